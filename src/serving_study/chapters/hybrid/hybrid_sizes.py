"""What servers of models with layers of several kinds said of their KV cache, beside what the engine's rule for blocks
(`pages`) comes to.

Bytes a token are those of one rank: its KV memory over the tokens of the log. What can mislead: the log counts whole
requests of `max_model_len`, and memory that is less than a block is left over, in the log's figure as in the predicted
one; a GPU's log has its memory with two decimals.

    >>> from serving_study.chapters import sections
    >>> from serving_study.chapters.hybrid import hybrid_sizes
    >>> from serving_study.measure import starts
    >>> hybrid_sizes.table(starts.run(sections.plan("7-hybrid")))                            # doctest: +SKIP
"""

import math

import pandas
from pandas.io.formats.style import Styler

from ...analysis import tables
from ...errors import ModelError
from ...hardware import cgroups, hosts
from ...measure.plan import Plan
from ...measure.records import Results
from ...models import pages, shapes
from ...results import reference
from ...servers.arm import Arm
from . import plan as hybrid

COLUMNS = (
    "model",
    "max_model_len",
    "max_num_seqs",
    "prefix_caching",
    "drafted",
    "tp",
    "cache",
    "outcome",
    "kv_gib",
    "kv_cache_tokens",
    "max_concurrency",
    "kib_per_token",
    "predicted_tokens",
    "predicted_kib_per_token",
    "error",
    "needed_gib",
    "predicted_needed_gib",
    "reason",
    "host",
    "weights",
    "arm",
)
USUAL_LENGTH = hybrid.USUAL["max_model_len"]
STARTED = {
    "model": ("model", None),
    "setting": ("setting", None),
    "kv_cache_tokens": ("tokens", "{:,.0f}"),
    "predicted_tokens": ("predicted", "{:,.0f}"),
    "error": ("error", "{:+.2%}"),
    "max_concurrency": ("concurrency", "{:.2f}×"),
    "kib_per_token": ("KiB a token", "{:.2f}"),
    "kv_gib": ("KV cache (GiB)", "{:.2f}"),
    "outcome": ("outcome", None),
}


def layout(arm: Arm, on_gpu: bool) -> pages.Layout:
    """The blocks of one rank of the arm's server. Raises ModelError for a family whose layers are not known."""
    shape, options = hybrid.shape_of(arm.model), arm.options
    layers = 1 if "mtp" in (arm.speculative or {}).get("method", "") else 0
    batches, alignment = (2, pages.ALIGNMENT) if on_gpu else (1, pages.CPU_ALIGNMENT)
    return pages.layout(
        shape,
        tp=arm.split,
        element_bytes=1 if options.get("kv_cache_dtype") == "fp8" else None,
        speculative_tokens=arm.k,
        prediction_layers=layers,
        prefix_caching=options["enable_prefix_caching"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        batches=batches,
        alignment=alignment,
    )


def table(results: Results) -> pandas.DataFrame:
    """One row a setting, started or not: the setting, `outcome`, a rank's `kv_gib`, the log's `kv_cache_tokens` and
    `max_concurrency`, `kib_per_token`, the same as `predicted_…`, the tokens' relative `error`, and of a start that
    was refused for its length the GiB that one request would need. What is not there is missing.
    """
    starts = results.store.starts_by_key()
    return pandas.DataFrame(
        [_row(results.plan, arm, starts.get(results.plan.arm_key(arm))) for arm in results.plan.arms],
        columns=list(COLUMNS),
    )


def _row(plan: Plan, arm: Arm, start: dict | None) -> dict:
    options, length = arm.options, arm.options["max_model_len"]
    drafted = f"{arm.speculative['method'].rsplit('_', 1)[-1]} {arm.k}" if arm.speculative else None
    row = {
        "model": arm.model.name,
        "max_model_len": length,
        "max_num_seqs": options["max_num_seqs"],
        "prefix_caching": "on" if options["enable_prefix_caching"] else "off",
        "drafted": drafted,
        "tp": arm.split,
        "cache": options.get("kv_cache_dtype", options["dtype"]),
        "host": plan.host.name,
        "weights": arm.weights,
        "arm": arm.name,
    }
    if start is None:
        return row | {"outcome": "not started", "reason": arm.unsupported or "nothing was started"}
    figures = start.get("figures") or {}
    row |= {
        "outcome": start["outcome"],
        "reason": start.get("reason"),
        "kv_gib": figures.get("kv_cache_gib", math.nan),
        "kv_cache_tokens": figures.get("kv_cache_tokens", math.nan),
        "max_concurrency": figures.get("max_concurrency", math.nan),
        "needed_gib": figures.get("kv_gib_needed", math.nan),
    }
    try:
        blocks = layout(arm, bool(plan.host.gpus))
    except ModelError:
        return row
    row |= {"predicted_needed_gib": blocks.bytes_per_sequence(length) / cgroups.GIB}
    if math.isnan(row["kv_gib"] + row["kv_cache_tokens"]):
        return row
    kv_bytes = row["kv_gib"] * cgroups.GIB
    tokens = blocks.tokens(kv_bytes, length)
    return row | {
        "kib_per_token": kv_bytes / row["kv_cache_tokens"] / 1024,
        "predicted_tokens": tokens,
        "predicted_kib_per_token": kv_bytes / tokens / 1024 if tokens else math.nan,
        "error": tokens / row["kv_cache_tokens"] - 1,
    }


def setting(row: dict) -> str:
    """A setting in words: `8,192`, `8,192, no prefix caching, mtp 3, 2 ranks, fp8`: the length, then what is not as
    usual.
    """
    words = [f"{row['max_model_len']:,}"] + (
        [f"{row['max_num_seqs']} sequences"] if row["max_num_seqs"] != hybrid.USUAL["max_num_seqs"] else []
    )
    words += (["no prefix caching"] if row["prefix_caching"] == "off" else []) + (
        [row["drafted"]] if isinstance(row["drafted"], str) else []
    )
    return ", ".join(
        [*words, *([f"{row['tp']} ranks"] if row["tp"] > 1 else []), *(["fp8"] if row["cache"] == "fp8" else [])]
    )


def started(frame: pandas.DataFrame) -> Styler:
    """The settings whose server said its size, each with its log's two figures and what the rule makes of them;
    *failed* is one that said it and died at its first request.
    """
    shown = frame[frame["kv_cache_tokens"].notna()].assign(
        setting=lambda rows: [setting(row) for row in rows.to_dict("records")]
    )
    caption = (
        f"What servers say of their KV cache ({tables.labels(shown)})"
        if len(shown)
        else "What servers say of their KV cache: none came up here"
    )
    return tables.style(shown[[*STARTED]], caption, STARTED)


def not_started(frame: pandas.DataFrame) -> Styler:
    """The settings whose server does not answer, each with the reason; where one request did not fit, the GiB that it
    would take, by the engine and by the rule.
    """
    shown = frame[frame["outcome"] != "ok"].assign(
        setting=lambda rows: [setting(row) for row in rows.to_dict("records")]
    )
    shown = shown.assign(predicted_needed_gib=shown["predicted_needed_gib"].where(shown["needed_gib"].notna()))
    return tables.style(
        shown[["model", "setting", "outcome", "reason", "needed_gib", "predicted_needed_gib"]],
        f"Settings whose server does not answer ({', '.join(dict.fromkeys(frame['host'])) or 'nothing was started'})",
        {"needed_gib": ("needs (GiB)", "{:.2f}"), "predicted_needed_gib": ("predicted (GiB)", "{:.2f}")},
    )


def changes(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What one setting alone changes: `model`, the `change` and what else is unusual (`beside`) in words,
    `kib_per_token`, and its ratio to the server's without the change, measured (`factor`) and `predicted`.

    The usual setting of a model is its first one of 8,192 tokens, or else its first. A server that differs from it in
    more than one setting is compared with the first server that differs from it in one."""
    rows, names = (
        [],
        {
            "max_model_len": "length {:,}",
            "max_num_seqs": "{} sequences",
            "prefix_caching": "prefix caching {}",
            "drafted": "{} drafted tokens",
            "tp": "{} ranks",
            "cache": "{} cache",
        },
    )
    said = frame[frame["kib_per_token"].notna()]
    for model, servers in said.groupby("model", sort=False):
        servers = servers.assign(drafted=servers["drafted"].fillna("no")).to_dict("records")
        usual = next((server for server in servers if server["max_model_len"] == USUAL_LENGTH), servers[0])

        def words(server: dict, other: dict) -> list[str]:
            return [text.format(server[name]) for name, text in names.items() if server[name] != other[name]]

        for server in servers:
            base = next(
                (other for other in (usual, *servers) if server is usual or len(words(server, other)) == 1), None
            )
            if base is not None:
                change = ", ".join(words(server, base)) or f"usual: length {usual['max_model_len']:,}"
                factor, predicted = (server[name] / base[name] for name in ("kib_per_token", "predicted_kib_per_token"))
                rows.append(
                    {
                        "model": model,
                        "change": change,
                        "beside": ", ".join(words(base, usual)),
                        "kib_per_token": server["kib_per_token"],
                        "factor": factor,
                        "predicted": predicted,
                    }
                )
    return pandas.DataFrame(rows, columns=["model", "change", "beside", "kib_per_token", "factor", "predicted"])


def changes_table(frame: pandas.DataFrame) -> Styler:
    """`changes` as the book shows it."""
    shown = changes(frame).rename(
        columns={"beside": "where", "kib_per_token": "KiB a token", "factor": "times", "predicted": "times, predicted"}
    )
    return tables.style(
        shown,
        f"What one setting changes ({tables.labels(frame) or 'nothing was started'})",
        {"KiB a token": "{:.2f}", "times": "{:.3f}", "times, predicted": "{:.3f}"},
    )


def spread(frame: pandas.DataFrame, model: str) -> dict[str, float]:
    """`low` and `high` KiB a token of one model's servers, and how many `times` apart they are; NaN without a server
    that came up.
    """
    kib_per_token = frame.loc[frame["model"] == model, "kib_per_token"].astype(float)
    return {
        "low": kib_per_token.min(),
        "high": kib_per_token.max(),
        "times": kib_per_token.max() / kib_per_token.min(),
        "servers": int(kib_per_token.notna().sum()),
    }


def sentence(frame: pandas.DataFrame) -> str:
    """What the servers of this host say, one sentence a model, or why there is nothing to say."""
    words = []
    for model in dict.fromkeys(frame["model"]):
        extremes = spread(frame, model)
        if extremes["servers"] > 1:
            worst = 100 * frame.loc[frame["model"] == model, "error"].astype(float).abs().max()
            met = "to the token" if worst == 0 else f"within {worst:.2f} %" if worst == worst else "for none of them"
            words.append(
                f"{extremes['servers']} servers of {model} say from {extremes['low']:.1f} to {extremes['high']:.1f} "
                f"KiB a token and rank, {extremes['times']:.1f} times apart, and the engine’s rule gives each "
                f"count of tokens {met}"
            )
    if words:
        return f"On this host ({', '.join(dict.fromkeys(frame['host']))}, random weights), " + "; ".join(words) + "."
    return (
        "No two servers of one model have come up here, so that there is no spread to show."
        if len(frame)
        else "Nothing was started: the header's list of settings is empty."
    )


def curves(plan: Plan, points: int = 200) -> dict[str, tuple[list[int], list[float], float]]:
    """By model: lengths up to the longest asked for, the rule's KiB a token of one rank at each with the usual setting,
    and that of the full layers alone.
    """
    curves_by_model = {}
    for model in dict.fromkeys(arm.model.name for arm in plan.arms):
        same = [arm for arm in plan.arms if arm.model.name == model]
        usual = next((arm for arm in same if arm.options["max_model_len"] == USUAL_LENGTH), same[0])
        try:
            blocks, shape = layout(usual, bool(plan.host.gpus)), hybrid.shape_of(usual.model)
        except ModelError:
            continue
        longest = max(arm.options["max_model_len"] for arm in same)
        lengths = sorted({int(1024 * (longest / 1024) ** (step / points)) for step in range(points + 1)})
        plain = (
            shape.kv_bytes_per_layer(
                tp=usual.split, element_bytes=1 if usual.options.get("kv_cache_dtype") == "fp8" else None
            )
            * shape.layer_kinds.count("full")
            / 1024
        )
        curves_by_model[model] = (lengths, [blocks.bytes_per_token(length) / 1024 for length in lengths], plain)
    return curves_by_model


def against_reference(frame: pandas.DataFrame) -> str:
    """The reference study's fixed setting (fp8, 8,192 tokens, 16 sequences, no MTP, one rank), where a server of the
    same layers came up here: both figures, in a sentence.
    """
    whole = shapes.load(hybrid.WHOLE)
    same = frame[
        (frame["cache"] == "fp8")
        & (frame["max_model_len"] == 8192)
        & (frame["prefix_caching"] == "off")
        & frame["drafted"].isna()
        & (frame["tp"] == 1)
        & frame["model"].str.startswith((hybrid.WHOLE, hybrid.NARROW))
        & frame["kib_per_token"].notna()
    ]
    if same.empty:
        return (
            "No server came up here under the reference study’s fixed setting (an fp8 cache, 8,192 "
            "tokens), so its figure has nothing beside it."
        )
    stated = reference.load(7).query("arm == 'hybrid-fixed-tp1'").set_index("metric")["value"]
    row, times = same.iloc[0], whole.layers / shapes.load(same.iloc[0]["model"]).layers
    counted = f" times {times:g} for the layers left out" if times > 1 else ""
    on_cpu = pages.layout(whole, element_bytes=1, prefix_caching=False, alignment=pages.CPU_ALIGNMENT)
    blocks = (
        ""
        if not hosts.is_cpu(row["host"])
        else f" The CPU’s blocks are multiples of {pages.CPU_ALIGNMENT} tokens in place of "
        f"{pages.ALIGNMENT}, so the last one ends elsewhere: "
        f"{on_cpu.bytes_per_token(8192) / 1024:.1f} by the rule."
    )
    return (
        "Under the reference study’s fixed setting, an fp8 cache and 8,192 tokens on one rank, its "
        f"servers said {stated['kv_kib_per_token_min']:.1f} to {stated['kv_kib_per_token_max']:.1f} KiB a "
        f"token; here it is {row['kib_per_token']:.1f}{counted}, which makes "
        f"{times * row['kib_per_token']:.1f} ({row['host']}, random weights).{blocks}"
    )
