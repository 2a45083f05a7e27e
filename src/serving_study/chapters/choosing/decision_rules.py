"""Rules and decisions with the figures they rest on: a technique's best arm, and the middle one with it."""

import math

import pandas

from ... import files
from ...analysis import claims, comparisons
from ...chapters.speculation import draft_cost
from ...errors import HostError
from ...hardware import ceilings
from ...models import shapes
from ...results import reference, store
from ...theory import capacity
from . import advice
from .effect_matrix import end_concurrencies, gains, how_sure, measured_with, place_of, repeats_text
from .measured_effects import by_arm, hosts_with_results, newest
from .techniques import (
    DRAFTS,
    FAULT,
    HERE,
    KV,
    NOTHING,
    PREDICTED,
    PUBLISHED,
    REFERENCE,
    THROUGHPUT,
    TPOT,
    TTFT,
    shown_by,
)

SEVEN_B = ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct")  # as the reference study's arms have it, and as ours


def ordered(
    frame: pandas.DataFrame,
    technique: str,
    metric: str,
    *,
    basis: str,
    best: bool = True,
    control: bool | None = None,
    models: tuple[str, ...] | None = None,
) -> list[pandas.DataFrame]:
    """The grounded cells of each arm of a technique on one basis, the best first by `metric` (geometric mean over
    concurrencies); with `best` false, the worst first at the lowest concurrency. `control` keeps the arms
    that are controls, or those that are none; `models` those of models with these names.
    """
    rows = frame[(frame["technique"] == technique) & (frame["basis"] == basis) & frame["grounded"]]
    rows = rows if control is None else rows[rows["control"] == control]
    rows = rows if models is None else rows[rows["model"].isin(models)]
    figures = rows[(rows["metric"] == metric) & rows["ratio"].notna()]
    if not best:
        lowest = figures["concurrency"].isna() | (figures["concurrency"] == figures["concurrency"].min())
        figures = figures[lowest]
    keys = ["arm", "against", "host", "section"]
    means = figures.groupby(keys, sort=False, dropna=False)["ratio"].agg(lambda ratios: comparisons.interval(ratios)[0])
    lowest_first = (metric in (TPOT, TTFT)) == best
    groups = dict(list(rows.groupby(keys, sort=False, dropna=False)))
    named = {tuple(map(str, key)): cells for key, cells in groups.items()}
    return [named[tuple(map(str, key))] for key in means.sort_values(ascending=lowest_first, kind="stable").index]


def pick(
    frame: pandas.DataFrame, technique: str, metric: str, *, basis: str | None = None, **chosen
) -> pandas.DataFrame:
    """The first arm's cells of `ordered`, on the first basis that has any; else empty."""
    for wanted in (basis,) if basis else (HERE, PUBLISHED, REFERENCE, PREDICTED):
        if alike := ordered(frame, technique, metric, basis=wanted, **chosen):
            return alike[0]
    return frame.iloc[:0]


def phrase(
    frame: pandas.DataFrame, technique: str, metric: str, *, basis: str | None = None, best: bool = True, **chosen
) -> str:
    """The best arm in words: `draft-k3: TPOT 0.55× at concurrency 1, 0.84× at 64; the best of 3, in the middle
    draft-k5: TPOT 0.58× … (reference study, l4x1; section 3, vLLM 0.27.1, 10–128 requests, one draw; nothing
    bounds the noise)`, or `not measured`. The best of several arms is never given without the middle one.
    """
    cells = pick(frame, technique, metric, basis=basis, best=best, **chosen)
    if cells.empty:
        return NOTHING
    first = cells.iloc[0]
    alike = ordered(frame, technique, metric, basis=first["basis"], best=best, **chosen)
    text = _figures(cells, metric)
    if len(alike) > 1:
        middle = alike[len(alike) // 2]
        other = middle.iloc[0]
        unlike = [place_of(other)] if other["host"] != first["host"] else []
        if str(other["section"]) != str(first["section"]):
            unlike.append(f"section {other['section']:.0f}, {repeats_text(middle)}")
        rank = f"the {'best' if best else 'worst'} of {len(alike)}"
        place = "in the middle" if len(alike) > 2 else "the other"
        text += f"; {rank}, {place} {_figures(middle, metric)}" + (f" ({', '.join(unlike)})" if unlike else "")
    shown = cells[cells["metric"] == metric]
    notes = [place_of(first), measured_with(shown), how_sure(shown), first["labels"] or ""]
    return f"{text} ({'; '.join(filter(None, notes))})"


def _figures(cells: pandas.DataFrame, metric: str) -> str:
    """`draft-k3: TPOT 0.55× at concurrency 1, 0.84× at 64`: lowest and highest concurrency, and the best one."""
    rows = cells[cells["metric"] == metric]
    by_concurrency = rows.set_index("concurrency")
    extreme = by_concurrency["ratio"].idxmin() if metric in (TPOT, TTFT) else by_concurrency["ratio"].idxmax()
    ends = sorted({int(end) for end in [*end_concurrencies(rows), extreme] if end == end})
    ratios = [
        f"{claims.ratio_text(by_concurrency.loc[concurrency])} at {'concurrency ' if place == 0 else ''}{concurrency}"
        for place, concurrency in enumerate(ends)
    ] or [claims.ratio_text(rows.iloc[0])]
    return f"{rows.iloc[0]['arm']}: {metric} {', '.join(ratios)}"


def set_aside(frame: pandas.DataFrame, technique: str, metric: str, basis: str) -> list[str]:
    """What was measured on a basis but is no answer, a line a host: which arms, and why."""
    rows = frame[
        (frame["technique"] == technique) & (frame["metric"] == metric) & (frame["basis"] == basis) & ~frame["grounded"]
    ]
    lines = []
    for _, cells in rows.groupby("host", sort=False):
        why = dict.fromkeys(word for words in cells["labels"] for word in words.split(", ") if word)
        arms = [
            f"{arm} at {', '.join(str(int(concurrency)) for concurrency in sorted(of_arm['concurrency'].unique()))}"
            for arm, of_arm in cells.groupby("arm", sort=False)
        ]
        lines.append(f"no answer: {', '.join(arms)} ({place_of(cells.iloc[0])}; {'; '.join(why)})")
    return lines


def known(frame: pandas.DataFrame, technique: str, metric: str, **chosen) -> str:
    """The phrases of every basis with a figure, one a line, and what was set aside: this host first, predictions
    last.
    """
    lines = []
    for basis in (HERE, PUBLISHED, REFERENCE, PREDICTED):
        text = phrase(frame, technique, metric, basis=basis, **chosen)
        lines += [] if text == NOTHING else [text]
        lines += set_aside(frame, technique, metric, basis)
    return "\n".join(lines) or NOTHING


def too_large() -> str:
    """A model that does not fit: the reference study's start, and the arithmetic for its GPU."""
    figures = reference.load(5)
    starts = figures[(figures["metric"] == "start_outcome") & figures["text"].str.startswith("failed", na=False)]
    parts = []
    for row in starts.itertuples():
        seconds = figures[
            (figures["host"] == row.host) & (figures["arm"] == row.arm) & (figures["metric"] == "failure_s")
        ]["value"]
        after = f" after {seconds.iloc[0]:.0f} s" if len(seconds) else ""
        parts.append(f"{row.arm} {row.text}{after} ({REFERENCE}, {row.host})")
    prediction = capacity.predict(
        capacity.Deployment(shapes.load("qwen2.5-14b-instruct"), ceilings.gpu("a10g"), max_num_seqs=128)
    )
    arithmetic = "does not start" if not prediction.can_start else f"holds {prediction.tokens} tokens"
    return (
        "\n".join(parts)
        + f"\n{prediction.weights_gib:.1f} GiB of weights {arithmetic} in {ceilings.gpu('a10g').memory_gib:.1f} "
        f"GiB ({PREDICTED}, a10g)"
    )


def figure(
    frame: pandas.DataFrame,
    arm: str,
    metric: str,
    *,
    basis: str = REFERENCE,
    highest: bool = False,
    against: str | None = None,
) -> float:
    """An arm's ratio at its lowest or highest concurrency; NaN where there is none."""
    rows = frame[(frame["arm"] == arm) & (frame["metric"] == metric) & (frame["basis"] == basis)].sort_values(
        "concurrency"
    )
    rows = rows[rows["against"] == against] if against else rows
    return float(rows["ratio"].iloc[-1 if highest else 0]) if len(rows) else math.nan


def rules(frame: pandas.DataFrame) -> dict[str, float | str]:
    """The figures of section 10's rules, by the names under which the notebook glues them."""
    of = lambda *names, **chosen: figure(frame, *names, **chosen)  # noqa: E731
    unmeasured = list(dict.fromkeys(frame.loc[frame["basis"] == NOTHING, "technique"]))
    predicted = [
        name
        for name in dict.fromkeys(frame.loc[frame["basis"] == PREDICTED, "technique"])
        if set(frame.loc[frame["technique"] == name, "basis"]) == {PREDICTED}
    ]
    return {
        "draft_tpot_low": of("draft-k3", TPOT),
        "draft_tpot_high": of("draft-k3", TPOT, highest=True),
        "draft_here": _spoken(frame, "draft model", HERE),
        "draft_published": _spoken(frame, "draft model", PUBLISHED),
        "ngram_here": _spoken(frame, "n-gram look-up", HERE),
        "ngram_published": _spoken(frame, "n-gram look-up", PUBLISHED),
        "ngram_tpot_low": of("ngram-k3", TPOT),
        "ngram_tpot_high": of("ngram-k3", TPOT, highest=True),
        "draft_decided": decided(frame, "draft model"),
        "ngram_decided": decided(frame, "n-gram look-up"),
        "fault": FAULT,
        "same_draft": disagreement(same_draft()),
        "fault_gain": draft_cost.figures()["h200_graph_gain"],
        "ngram_ttft": phrase(frame, "n-gram look-up", TTFT, basis=REFERENCE),
        "draft_ttft": phrase(frame, "draft model", TTFT, basis=REFERENCE, best=False),
        "prefix_gain": 1 / of("prefix-on", TTFT),
        "prefix_control": 1 / of("prefix-off", TTFT),
        "tp_tpot": of("7b-tp4", TPOT),
        "tp_throughput": of("7b-tp4", THROUGHPUT),
        "tp_share": of("7b-tp4", THROUGHPUT) / 4,
        "tp_kv": of("7b-tp4", KV),
        "pp_throughput": of("14b-pp2", THROUGHPUT),
        "pp_throughput_high": of("14b-pp2", THROUGHPUT, highest=True),
        "fp8_kv": known(frame, "quantised KV cache", KV).replace("\n", "; "),
        "fp8_throughput": known(frame, "quantised KV cache", THROUGHPUT).replace("\n", "; "),
        "fp8_tpot": known(frame, "quantised KV cache", TPOT).replace("\n", "; "),
        "predicted_only": ", ".join(predicted) or "none",
        "unmeasured": ", ".join(unmeasured) or "none",
    }


def _spoken(frame: pandas.DataFrame, technique: str, basis: str) -> str:
    """A technique's TPOT on one basis as part of a sentence: the phrase, and what was set aside."""
    text = phrase(frame, technique, TPOT, basis=basis)
    lines = ([] if text == NOTHING else [text]) + set_aside(frame, technique, TPOT, basis)
    return "; ".join(lines) or NOTHING


def decided(frame: pandas.DataFrame, technique: str) -> str:
    """A sentence: on which hosts of ours a technique is decided to be faster by TPOT or throughput, on which slower."""
    rows = frame[(frame["technique"] == technique) & frame["grounded"] & frame["metric"].isin([TPOT, THROUGHPUT])]
    rows = rows[rows["basis"].isin([HERE, PUBLISHED]) & rows["claim"].notna()]
    if rows.empty:
        return "Of this book's own measurements none may decide whether it pays."
    faster = rows.assign(faster=[gains(row) for row in rows.itertuples()]).groupby("host", sort=False)["faster"]
    ways = {"faster": [], "slower": [], "faster in some figures and slower in others": []}
    for host, values in faster:
        known = {value for value in values if value is not None}
        if known:
            ways[list(ways)[2 if len(known) > 1 else 0 if known == {True} else 1]].append(f"`{host}`")
    said = [f"{way} on {' and '.join(hosts)}" for way, hosts in ways.items() if hosts]
    if not said:
        return f"None of this book's own comparisons ({len(rows)}) decides whether it pays."
    return f"By this book's own measurements it is decided to be {', '.join(said)}."


def same_draft() -> pandas.DataFrame:
    """Sections 3 and 4 with one draft, where a host has both: a row an arm at the lowest concurrency.

    `ratio` is output throughput over the baseline's, with what `claims.compare` says of it; `prompts` (the data set),
    `requests` of a repeat, `answer_tokens` of each and `repeats` differ between the two; `best` marks each section's
    highest."""
    rows = []
    for host in hosts_with_results(4, "")[1:]:
        frames = {section: frame for section in (3, 4) if (frame := newest(host, section)) is not None}
        drafts = [_draft_of(frame) for frame in frames.values()]
        if len(frames) < 2 or drafts[0] is None or drafts[0] != drafts[1]:
            continue
        for section, frame in frames.items():
            lowest = frame[frame["concurrency"] == frame["concurrency"].min()]
            table = claims.compare(frame, "output_throughput", "baseline")
            drafted = [arm for arm, columns in by_arm(lowest).items() if shown_by(columns) == DRAFTS]
            table = table[table["arm"].isin(drafted) & (table["concurrency"] == lowest["concurrency"].iloc[0])]
            for row in table.itertuples():
                cells = comparisons.usable(lowest[lowest["arm"] == row.arm])
                run = files.read(cells["file"].iloc[0].parents[3] / "run.json")
                repeats = cells["repeat"].nunique()
                rows.append(
                    {
                        "host": host,
                        "section": section,
                        "arm": row.arm,
                        "concurrency": row.concurrency,
                        "ratio": row.ratio,
                        **{name: getattr(row, name) for name in claims.CLAIMED},
                        "best": row.ratio == table["ratio"].max(),
                        "prompts": run["dataset"]["name"],
                        "requests": int(cells["completed"].min()),
                        "answer_tokens": cells["total_output_tokens"].sum() / cells["completed"].sum(),
                        "repeats": repeats,
                        "engine": store.engine_of(run),
                    }
                )
    columns = "best prompts requests answer_tokens repeats engine".split()
    return pandas.DataFrame(rows, columns=["host", "section", "arm", "concurrency", "ratio", *claims.CLAIMED, *columns])


def _draft_of(frame: pandas.DataFrame) -> tuple | None:
    """Name and digest of the draft that these cells' newest run had."""
    run = files.read(frame.loc[frame["at"].idxmax(), "file"].parents[3] / "run.json")
    draft = run["models"].get(run["parameters"].get("draft_model"), {})
    return (draft["name"], draft["weights_digest"]) if draft.get("weights_digest") else None


def disagreement(table: pandas.DataFrame) -> str:
    """A sentence a host: each section's best k, and what is claimed of it against the baseline."""
    words = []
    for host, rows in table.groupby("host", sort=False):
        parts = [
            f"section {row.section} has its best with {row.arm}, {claims.ratio_text(row)}, "
            f"{claims.words(row, 'output_throughput')} ({row.requests} requests of {row.answer_tokens:.0f} tokens, "
            f"{f'{row.repeats} repeats' if row.repeats > 1 else 'one draw'})"
            for row in rows[rows["best"]].itertuples()
        ]
        same = rows.loc[rows["best"], "arm"].nunique() == 1
        verdict = "they agree" if same else "the same draft, and two answers"
        words.append(f"On `{host}` {' and '.join(parts)}: {verdict}.")
    return " ".join(words) or "No host has both."


def advised(host: str, wanted: tuple[advice.Target, ...], section: int = 3) -> list[advice.Advice]:
    """Advice for this host, where it is measured or can be predicted, and for every other host with results."""
    others, of_hosts = [name for name in store.measured_hosts(section) if name != host], []
    for name in [host, *others]:
        try:
            of_hosts.append(advice.of_host(name, section, wanted, own=host))
        except HostError:
            continue
    return of_hosts


def decisions(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The decision table: `problem`, `look first at`, `what is known`; every figure is from `frame` or the reference
    tables.
    """
    of = lambda *names, **chosen: known(frame, *names, **chosen)  # noqa: E731
    rows = [
        (
            "answers come too slowly for whoever is waiting",
            "speculation: a draft model, an EAGLE head; n-grams where the text is seen to repeat its prompt",
            f"{of('draft model', TPOT)}\n{of('n-gram look-up', TPOT)}",
        ),
        (
            "the first token has a target",
            "n-gram look-up before a draft model, which reads every prompt too",
            f"{of('n-gram look-up', TTFT)}\n{of('draft model', TTFT, best=False)}",
        ),
        (
            "prompts are long and begin alike",
            "prefix caching; leave it on, it costs nothing where nothing repeats",
            f"{of('prefix caching', TTFT, control=False)}\nwithout the cache, "
            f"{phrase(frame, 'prefix caching', TTFT, basis=REFERENCE, control=True)}",
        ),
        (
            "the model does not fit on one GPU",
            "tensor parallelism inside a host, pipeline parallelism between hosts",
            f"{too_large()}\npipeline in place of tensor parallelism, {of('pipeline parallelism', THROUGHPUT)}",
        ),
        (
            "more requests at once than the cache holds",
            "tensor parallelism, for the cache it frees; a quantised cache",
            f"{of('tensor parallelism', KV, models=SEVEN_B)}\n{of('quantised KV cache', KV)}"
            f"\n{of('quantised KV cache', THROUGHPUT)}".removesuffix(f"\n{NOTHING}"),
        ),
        (
            "prefills disturb the answers under way",
            "chunked prefill, which engines do by default; then a prefill/decode split",
            of("prefill/decode split", TPOT),
        ),
        (
            "throughput is short and the model is small",
            "data-parallel replicas, which leave latency as it is",
            of("data-parallel replicas", THROUGHPUT),
        ),
        ("memory is short and prefixes come back", "KV offload to host memory or disk", of("KV offload", TTFT)),
    ]
    return pandas.DataFrame(rows, columns=["problem", "look first at", "what is known"])
