"""Tidy frame in, styled table out. A figure that is not there is a dash, never a zero; every caption carries the
labels.

A cell whose certificate failed shows its figure struck through and takes no part in means or multiples.
"""

import hashlib
import math
from collections.abc import Callable
from itertools import product

import pandas
from pandas.io.formats.style import Styler

from ..results import certificates, store
from . import claims, comparisons

DASH = "–"
WORDS = ("evidence", "reason", "found", "claim")
TEXT = (
    "arm",
    "host",
    "technique",
    "basis",
    "what",
    "check",
    "outcome",
    "phase",
    "metric",
    "certificate",
    "against",
    "figures",
    "verdict",
    "crossover",
    "model",
    "attention",
    "layers",
    "setting",
    "figure",
    "link",
    "tier",
    "pays",
    *WORDS,
)
WIDTHS = {
    "technique": 11,
    "problem": 8,
    "look first at": 9,
    "what is known": 25,
    "measured with": 9,
    "how sure": 9,
}  # of columns whose words may wrap, in rem; 14 for those in WORDS
METRIC_NAMES = {
    "total_token_throughput": "total throughput (tok/s)",
    "output_throughput": "output throughput (tok/s)",
    "median_tpot_ms": "median TPOT (ms)",
    "median_ttft_ms": "median TTFT (ms)",
    "acceptance_rate": "acceptance rate",
}

START = {
    "kv_cache_tokens": ("KV cache (tokens)", "{:,.0f}"),
    "max_concurrency": ("maximum concurrency", "{:.2f}×"),
    "startup_s": ("start (s)", "{:.0f}"),
}


def style(
    frame: pandas.DataFrame,
    caption: str,
    columns: dict[str, str | tuple[str, str | None]] | None = None,
    index: bool = False,
) -> Styler:
    """The book's look: a caption, a fixed id, dashes for what is missing.

    `columns` says of a column its format, `"{:.2f}"`, or its heading and format, `("TTFT (ms)", "{:,.1f}")`; those that
    the frame does not have are passed over.
    """
    looks = {name: (name, look) if isinstance(look, str) else look for name, look in (columns or {}).items()}
    headings = {name: heading for name, (heading, _) in looks.items()}
    formats = {heading: look for name, (heading, look) in looks.items() if look and name in frame}
    frame = frame.rename(columns=headings).rename_axis(None).rename_axis(None, axis=1)
    frame = frame if index else frame.reset_index(drop=True)
    widths = dict.fromkeys(WORDS, 14) | WIDTHS
    props = {
        name: f"text-align: left; white-space: normal; min-width: {widths[name]}rem"
        if name in widths
        else "text-align: left"
        for name in frame.columns
        if name in TEXT or name in widths
    }
    styler = (
        frame.style.set_table_styles({name: [{"selector": "", "props": look}] for name, look in props.items()})
        .format(formats, na_rep=DASH)
        .set_uuid(_identifier(frame, caption))
        .set_table_attributes('class="dataframe"')
        .set_caption(caption)
    )
    return styler if index else styler.hide(axis="index")


def labels(frame: pandas.DataFrame) -> str:
    """`cpu`, `h200x1, random weights, prescribed acceptance`: what a caption must say about its figures."""
    return ", ".join(filter(None, [*sorted(set(frame["host"].dropna())), comparisons.kinds(frame)]))


def starts(frame: pandas.DataFrame) -> Styler:
    """Memory at start: weights, KV cache, maximum concurrency, seconds; or why there is none."""
    shown = frame[["arm", "outcome", "weights_gib", "kv_cache_tokens", "max_concurrency", "startup_s", "reason"]].copy()
    if shown["reason"].isna().all():
        shown = shown.drop(columns="reason")
    return style(shown, f"Memory at start ({labels(frame)})", START | {"weights_gib": ("weights (GiB)", "{:.2f}")})


def provenance(plan) -> Styler:
    """What was measured where: machine, engine, models, dataset."""
    models = {model.name: model for arm in plan.arms for model in (arm.model, arm.draft) if model}
    rows = [
        (
            "host",
            f"{plan.host.name}: {plan.host.words}",
        ),
        ("engine", f"{plan.engine_in_words()}, torch {plan.environment.versions.get('torch')}"),
        *(("model", f"{model.name}, {model.weights} weights") for model in models.values()),
        *(("prompts", f"{dataset.name}, sha256 {dataset.sha256[:12]}") for dataset in _prompts(plan)),
        *(("note", note) for note in plan.notes),
    ]
    return style(pandas.DataFrame(rows, columns=["what", "found"]), f"What is measured here ({plan.host.name})")


def _prompts(plan) -> list:
    """The files that a plan's prompts come from, each once; of made prompts the first load's."""
    read = {load.dataset.name: load.dataset for load in plan.loads if hasattr(load.dataset, "path")}
    return list(read.values()) or [load.dataset for load in plan.loads[:1]]


def finding(frame: pandas.DataFrame, baseline: str = "baseline") -> str:
    """Two sentences from the comparison of output throughput: how many of the chapter's comparisons are faster, slower,
    equal and not decided, and the largest gain and loss.
    """
    metric = "output_throughput"
    table = comparisons.without_repeats(claims.compare(frame, metric, baseline))
    table = table[~comparisons.too_few_accepted(table, frame)]
    if table.empty:
        return "There is nothing to compare yet."
    here = f"On this host ({labels(frame)})"
    many = "comparison" if len(table) == 1 else "comparisons"
    counts = f"of {len(table)} {many} of output throughput with {baseline}, {claims.counted(table, metric)}"
    if table["low"].isna().all():
        return (
            f"{here}, {counts}: there is neither a twin nor a second life of an arm, so that nothing bounds the noise."
        )
    said = [
        f"the largest {name} is {row['arm']} at concurrency {row['concurrency']}, {claims.ratio_text(row)}: "
        f"{claims.words(row, metric)}"
        for name, row in zip(("gain", "loss"), claims.extremes(table), strict=True)
        if row is not None
    ]
    open_claims = table[(table["claim"] == claims.UNDECIDED) & table["more_blocks"].notna()]
    if not said and len(open_claims):
        row = open_claims.loc[open_claims["more_blocks"].astype(int).idxmin()]
        said = [
            f"the nearest to a decision is {row['arm']} at concurrency {row['concurrency']}, {claims.ratio_text(row)}: "
            f"{claims.words(row, metric)}"
        ]
    first, *others = [f"{here}, {counts}", *said]
    return (
        f"{first}. " + "".join(f"{text[0].upper()}{text[1:]}. " for text in others).strip() if others else f"{first}."
    )


def throughput(frame: pandas.DataFrame, metric: str, baseline: str = "baseline") -> Styler:
    """`metric` by concurrency and arm, each with its multiple of the baseline, the multiple's interval, and what may be
    claimed of it. Beside a gain of speculation stand the tokens accepted, of all repeats.
    """
    texts = multiples(frame, metric, baseline, comparisons.accepted(frame))
    rows = [
        {"concurrency": int(concurrency)} | {arm: texts[arm, concurrency] for arm in dict.fromkeys(frame["arm"])}
        for concurrency in sorted(frame["concurrency"].unique())
    ]
    return style(
        pandas.DataFrame(rows),
        f"{METRIC_NAMES.get(metric, metric).capitalize()}, mean of the certified repeats, and multiple of {baseline} "
        f"within the blocks that both have{of_window(frame, metric)}, with its interval ({labels(frame)})",
    )


def of_window(frame: pandas.DataFrame, metric: str) -> str:
    """What a caption says of multiples that are not of the whole run, as the means beside them are."""
    return ", in the steady window alone" if claims.compared(frame, metric) != metric else ""


def multiples(
    frame: pandas.DataFrame, metric: str, baseline: str, accepted: dict[tuple[str, int], int] | None = None
) -> dict[tuple[str, int], str]:
    """(arm, concurrency) to the mean, with its multiple of the baseline and what is claimed of it a line each, or why
    there is none; `accepted` tokens stand beside a gain.
    """
    means = comparisons.summary(frame, metric).set_index(["arm", "concurrency"])["mean"]
    against = {(row.arm, row.concurrency): row for row in claims.compare(frame, metric, baseline).itertuples()}
    places = product(dict.fromkeys(frame["arm"]), frame["concurrency"].unique())
    return {
        place: "<br>".join(
            [f"{means[place]:,.1f}", *_multiple(against.get(place), metric, (accepted or {}).get(place))]
        )
        if place in means.index
        else withheld(frame, *place)
        for place in places
    }


def _multiple(row, metric: str, accepted: int | None = None) -> list[str]:
    if row is None:
        return []
    rests = f", {accepted:,} accepted" if accepted is not None and row.ratio > 1 else ""
    return [f"{claims.ratio_text(row)}{rests}", claims.words(row, metric)]


def set_aside(frame: pandas.DataFrame, baseline: str = "baseline") -> str:
    """In a sentence: the gains that `finding` leaves out, for they rest on too few accepted tokens; empty where none
    does.
    """
    table, counts = claims.compare(frame, "output_throughput", baseline), comparisons.accepted(frame)
    few = table[comparisons.too_few_accepted(table, frame)]
    words = [
        f"{row.arm} at concurrency {row.concurrency} ({claims.ratio_text(row)}, {counts[row.arm, row.concurrency]} "
        "accepted tokens)"
        for row in few.itertuples()
    ]
    least = comparisons.LEAST_ACCEPTED
    return f"Left out, for fewer than {least} accepted tokens say nothing: {', '.join(words)}." if words else ""


def withheld(frame: pandas.DataFrame, arm: str, concurrency: int) -> str:
    """Why a cell has no figure: its certificate failed, or it was not measured."""
    cells = frame[(frame["arm"] == arm) & (frame["concurrency"] == concurrency)]
    return "withheld (certificate failed)" if len(cells) else DASH


def latencies(frame: pandas.DataFrame, metric: str) -> Styler:
    """Median, p95 and p99 of one latency (`ttft`, `tpot`, `itl`, `e2el`) in ms by concurrency and arm, over the
    requests of all blocks together.
    """
    return style(
        comparisons.latencies(frame, metric),
        f"{metric.upper()} in ms over the requests of all blocks; {few_requests()} ({labels(frame)})",
        {name: "{:,.1f}" for name in ("median", "p95", "p99")} | {"requests": "{:,}"},
    )


def few_requests() -> str:
    """What a table says of the percentiles that it leaves out."""
    least = " and ".join(f"a {name} of fewer than {count}" for name, count in comparisons.LEAST_REQUESTS.items())
    return f"{least} is not shown"


def acceptance(frame: pandas.DataFrame) -> Styler:
    """Acceptance rate, length, and rate by position, from the counter differences of each cell; means over repeats."""
    rows = []
    for (arm, concurrency), cells in (
        comparisons.usable(frame).dropna(subset=["acceptance_rate"]).groupby(["arm", "concurrency"], sort=False)
    ):
        positions = pandas.DataFrame(
            [store.read_cell(file)["speculation"]["acceptance_by_position"] for file in cells["file"]]
        ).mean()
        row = {
            "arm": arm,
            "concurrency": int(concurrency),
            "rate": cells["acceptance_rate"].mean(),
            "tokens a round": cells["acceptance_length"].mean(),
        }
        rows.append(row | {f"position {index + 1}": value for index, value in enumerate(positions)})
    shown = pandas.DataFrame(rows)
    formats = {name: "{:.3f}" for name in shown.columns if name.startswith("position")} | {
        "rate": "{:.3f}",
        "tokens a round": "{:.2f}",
    }
    return style(shown, f"Draft tokens accepted ({labels(frame)})", formats if rows else None)


def glance(frame: pandas.DataFrame, by: str = "concurrency") -> Styler:
    """Which figures to believe: arms down and concurrencies across, or loads down and arms across, each with its
    verdict and, where one failed, the checks that did.
    """
    down, across = ("arm", by) if by == "concurrency" else (by, "arm")
    columns = sorted(frame[across].unique()) if by == "concurrency" else dict.fromkeys(frame[across])
    rows = []
    for name in dict.fromkeys(frame[down]):
        row = {down: name}
        for column in columns:
            cells = frame[(frame[down] == name) & (frame[across] == column)]
            outcomes = list(cells["certificate"])
            worst = min(outcomes, key=(certificates.FAIL, certificates.UNKNOWN, certificates.PASS).index, default=None)
            row[str(column)] = (
                DASH
                if worst is None
                else f"{badge(worst)} {outcomes.count(certificates.PASS)} of {len(outcomes)}{_failed_checks(cells)}"
            )
        rows.append(row)
    return style(pandas.DataFrame(rows), f"Which figures to believe: certified cells by {by} ({labels(frame)})")


def _failed_checks(cells: pandas.DataFrame) -> str:
    failed = dict.fromkeys(
        check["name"]
        for file in cells["file"]
        for check in store.read_cell(file)["certificate"]["checks"]
        if check["outcome"] == certificates.FAIL
    )
    whole = [name for name in failed if name not in certificates.PARTIAL]
    partial = [name for name in failed if name in certificates.PARTIAL]
    return (f": {', '.join(whole)}" if whole else "") + (f" ({', '.join(partial)} withheld)" if partial else "")


def certificate(frame: pandas.DataFrame, by: str = "concurrency", proof: Callable[[dict], str] | None = None) -> Styler:
    """One row a cell: its verdict as a badge, and the evidence of what failed or could not be checked. `proof` says of
    a stored cell how its mechanism was proved; without it stands how many checks passed.
    """
    rows = []
    for cell in frame.to_dict("records"):
        stored = store.read_cell(cell["file"])
        checked = stored.get("certificate") or {"verdict": certificates.UNKNOWN, "checks": []}
        outcomes = [check["outcome"] for check in checked["checks"]]
        row = {"arm": cell["arm"], by: cell[by], "repeat": cell["repeat"], "certificate": badge(checked["verdict"])}
        if proof:
            row["found"] = proof(stored)
        else:
            row["checks passed"] = f"{outcomes.count(certificates.PASS)} of {len(outcomes)}"
        rows.append(row | {"evidence": certificates.why(checked) or DASH})
    caption = "Certificates, and what proves the mechanism" if proof else "Certificates"
    return style(pandas.DataFrame(rows), f"{caption} ({labels(frame)})")


def badge(verdict: str, look: str | None = "") -> str:
    """A word in the colour of a verdict, its own or that of `look`; grey where that is None."""
    return f'<span class="badge-{look or (certificates.UNKNOWN if look is None else verdict)}">{verdict}</span>'


def checks(frame: pandas.DataFrame, arm: str, concurrency: int) -> Styler:
    """All checks of one cell with their evidence."""
    cell = frame[(frame["arm"] == arm) & (frame["concurrency"] == concurrency)].iloc[0]
    rows = [
        {"check": check["name"], "outcome": badge(check["outcome"]), "evidence": check["evidence"]}
        for check in store.read_cell(cell["file"])["certificate"]["checks"]
    ]
    return style(pandas.DataFrame(rows), f"The certificate of {arm} at concurrency {concurrency} ({labels(frame)})")


def noise(frame: pandas.DataFrame, metrics: tuple[str, ...]) -> Styler:
    """What equal arms are claimed to differ by: each twin against the other lives of its arm, by metric and
    concurrency; beside it the median half-width of all arms' intervals, which a difference has to exceed to be seen,
    and the coefficient of variation of repeats, mean over arms.
    """
    equal, rows = comparisons.repeats(frame), []
    baseline = next(iter(equal.values()), frame["arm"].iloc[0] if len(frame) else None)
    for metric in metrics:
        table = claims.compare(frame, metric, baseline)
        halves = (table["high"].astype(float) / table["low"].astype(float)) ** 0.5 - 1
        halves = halves.groupby(table["concurrency"]).median()
        variation = comparisons.summary(frame, metric).groupby("concurrency")["cv"].mean()
        twins = table[table["repeat_of"] == baseline]
        for concurrency in sorted(table["concurrency"].unique()):
            row = {"metric": METRIC_NAMES.get(metric, metric), "concurrency": concurrency}
            at = twins[twins["concurrency"] == concurrency]
            row["twin"] = "<br>".join(map(claims.ratio_text, at.itertuples())) or DASH
            row["claim"] = "<br>".join(claims.words(twin, metric) for twin in at.itertuples()) or DASH
            row["half-width"] = halves.get(concurrency, math.nan)
            rows.append(row | {"coefficient of variation": variation.get(concurrency, math.nan)})
    columns = ["metric", "concurrency", "twin", "claim", "half-width", "coefficient of variation"]
    return style(
        pandas.DataFrame(rows, columns=columns),
        f"Noise: equal arms compared, and the width of intervals ({labels(frame)})",
        {"half-width": ("half-width (median of arms)", "{:.1%}"), "coefficient of variation": "{:.1%}"},
    )


def decomposition(frame: pandas.DataFrame, baseline: str = "baseline", steady: bool = False) -> Styler:
    """Each throughput ratio as latency × occupancy × work mix, and how exactly the three close on it."""
    table = comparisons.decompose(frame, baseline, steady)
    return style(
        table.drop(columns="repeat_of"),
        f"What a throughput ratio is made of, {'steady window' if steady else 'whole run'} ({labels(frame)})",
        dict.fromkeys(("latency", "occupancy", "closure"), "{:.3f}")
        | {"mix": ("work mix", "{:.3f}"), "ratio": ("throughput ratio", "{:.3f}")},
    )


def timing(frame: pandas.DataFrame) -> Styler:
    """Where the time of the runs went, in seconds and as a share."""
    table = frame.groupby("phase", sort=False)["seconds"].sum().reset_index()
    table["share"] = table["seconds"] / table["seconds"].sum()
    return style(
        table,
        f"Where the time went, over {frame['run'].nunique()} run{'s' if frame['run'].nunique() != 1 else ''}",
        {"seconds": ("time (s)", "{:.1f}"), "share": "{:.1%}"},
    )


def prediction_errors(summary: pandas.DataFrame) -> Styler:
    """How far predictions were off, by section, host and metric; the median of the cells that no constant was chosen
    on stands beside that of all.
    """
    return style(
        summary,
        "Prediction against measurement, absolute relative error (reference study; h200x1, random weights, "
        "prescribed acceptance)",
        {
            "took_part": ("of them in sight of a constant", None),
            "median": ("median error", "{:.1%}"),
            "median_others": ("median of the others", "{:.1%}"),
            "worst": "{:.1%}",
            "within_20": ("within 20 %", "{:.0%}"),
        },
    )


def _identifier(frame: pandas.DataFrame, caption: str) -> str:
    """The caption's first words, to be found in a page, and a digest of all of it and of what the table holds: two
    tables of a page have one id only if they are the same table.
    """
    words = "".join(character if character.isalnum() else "-" for character in caption.lower())[:24].rstrip("-")
    return f"t{words}-{hashlib.sha256((caption + frame.to_csv()).encode()).hexdigest()[:8]}"


def rounds(frame: pandas.DataFrame, baseline: str = "baseline") -> Styler:
    """What a step costs with speculation: TPOT × tokens a step, and what of it is due to each proposal counted, beyond
    one plain step of the baseline.
    """
    return style(
        comparisons.rounds(frame, baseline),
        f"What a speculative step costs ({labels(frame)})",
        {
            "tokens": ("tokens a step", "{:.2f}"),
            "proposing": ("steps that propose", "{:.0%}"),
            "proposals": ("proposals a step", "{:.2f}"),
            "step_ms": ("step (ms)", "{:.1f}"),
            "plain_ms": ("plain step (ms)", "{:.1f}"),
            "per_proposal_ms": ("each proposal (ms)", "{:.1f}"),
        },
    )


def launches(profiles: dict[str, dict]) -> Styler:
    """What the profiler saw of each arm: kernels launched one by one, graphs replayed, and the share of time that the
    GPU worked.
    """
    rows = []
    for name, profile in profiles.items():
        calls, scopes = profile["runtime_calls"], profile["scopes_ms"]
        steps = scopes["gpu_model_runner: forward"]["count"]
        rows.append(
            {
                "arm": name,
                "steps": steps,
                "launches a step": sum(count for call, count in calls.items() if "LaunchKernel" in call) / steps,
                "graphs a step": calls.get("cudaGraphLaunch", 0) / steps,
                "drafting (ms)": scopes.get("gpu_model_runner: draft", {}).get("mean", math.nan),
                "GPU busy": profile["gpu_busy_ms"] / profile["span_ms"],
            }
        )
    return style(
        pandas.DataFrame(rows),
        "One request under the profiler (h200x1, random weights, prescribed acceptance)",
        dict.fromkeys(("launches a step", "graphs a step"), "{:,.0f}")
        | {"drafting (ms)": "{:.1f}", "GPU busy": "{:.0%}"},
    )
