"""Which cells may be compared, what their figures are, and what a speed-up is made of.

Only certified cells take part. What is claimed of arms is `claims`' business: here are means, absolute figures with an
interval, paired ratios of other things than arms, and the factors of a ratio of throughputs. All of it is in
logarithms. The noise floor, which an interval of an absolute figure is at least as wide as, is what equal arms differ
by: an arm measured again under another name. What can mislead: with one repeat there is no interval, and the floor is
a single draw; then the widest difference of equal arms stands for all.

    >>> summary(frame, "output_throughput")                        # doctest: +SKIP
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas

from ..results import certificates, store

CONFIDENCE = 0.95
LEAST_REQUESTS = {"p95": 20, "p99": 100}  # of which the percentile is more than the slowest one
LEAST_ACCEPTED = 30  # tokens that a gain of speculation has to rest on: their number is then known to about a fifth
LATENCIES = {  # seconds of a request's record
    "ttft": lambda request: [request["ttft_s"]],
    "tpot": lambda request: (
        [math.fsum(request["itls_s"]) / (request["output_tokens"] - 1)] * (request["output_tokens"] > 1)
    ),
    "itl": lambda request: request["itls_s"],
    "e2el": lambda request: [certificates.latency_s(request)],
}
KINDS = (
    ("random weights", "weights", "random"),
    ("prescribed acceptance", "acceptance", "prescribed"),
    ("modified engine", "engine_files", "modified"),
)


def usable(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The cells whose certificate did not fail."""
    return frame[frame["certificate"] != certificates.FAIL]


def kinds(frame: pandas.DataFrame) -> str:
    """What has to be said of these cells wherever they are shown: `random weights, prescribed acceptance`; empty where
    nothing has.
    """
    return ", ".join(name for name, column, value in KINDS if column in frame and (frame[column] == value).any())


def repeats(frame: pandas.DataFrame) -> dict[str, str]:
    """Each arm that is another one measured again, and which: the pairs of equal arms, as the cells say."""
    if "repeat_of" not in frame:
        return {}
    pairs = frame[["arm", "repeat_of"]].dropna().drop_duplicates()
    return dict(zip(pairs["arm"], pairs["repeat_of"], strict=True))


def without_repeats(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of arms that are not another one measured again."""
    return frame[frame["repeat_of"].isna()] if "repeat_of" in frame else frame


def summary(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Per arm and concurrency: `mean`, `sd`, `repeats` of the certified cells, and `cv`, the spread over the mean."""
    rows = usable(frame).dropna(subset=[metric]).groupby(["arm", "concurrency"], sort=False)[metric]
    table = rows.agg(mean="mean", sd="std", repeats="count").reset_index()
    table["cv"] = table["sd"] / table["mean"]
    return table


def least_requests(metric: str) -> int:
    """How many requests the figure in a column needs: `p99_ttft_ms` a hundred, `median_ttft_ms` one."""
    return LEAST_REQUESTS.get(metric.partition("_")[0], 1)


def latencies(frame: pandas.DataFrame, latency: str) -> pandas.DataFrame:
    """`concurrency`, `arm`, `requests`, and `median`, `p95`, `p99` in ms of one latency (`ttft`, `tpot`, `itl`,
    `e2el`) over the requests of all certified cells together; NaN where so many requests have no such percentile.
    """
    rows, cells = [], usable(frame).dropna(subset=[f"median_{latency}_ms"])
    for (concurrency, arm), of_arm in cells.groupby(["concurrency", "arm"], sort=False):
        requests = [request for file in of_arm["file"] for request in store.requests_of(file)]
        values = [1000 * value for request in requests for value in LATENCIES[latency](request)]
        percentiles = np.percentile(values, [50, 95, 99]) if values else [math.nan] * 3
        rows.append(
            {"concurrency": int(concurrency), "arm": arm, "requests": len(requests)}
            | {
                name: value if len(requests) >= least_requests(name) else math.nan
                for name, value in zip(("median", "p95", "p99"), percentiles, strict=True)
            }
        )
    table = pandas.DataFrame(rows, columns=["concurrency", "arm", "requests", "median", "p95", "p99"])
    return table.sort_values("concurrency", kind="stable", ignore_index=True)


def floor(frame: pandas.DataFrame, metric: str, *, by: str = "concurrency") -> dict:
    """What equal arms differ by: each value of column `by` to a natural logarithm (0.05: a factor of 1.05).

    Every arm that was measured again (`repeats`) gives one difference at each value of `by`. The floor is the largest
    of: the difference there, the median difference of all (the largest, while nothing was repeated), and, from two
    repeats on, the half-width of the pair's interval. Where no arm was measured again, the largest floor elsewhere
    holds. Empty without such a pair."""
    cells = by_cell(frame, metric, by=by)
    equal = repeats(frame)
    pairs = {
        (arm, place): ratio(values, cells[equal[arm], place])
        for (arm, place), values in cells.items()
        if arm in equal and (equal[arm], place) in cells
    }
    differences = {key: abs(math.log(centre)) for key, (centre, *_) in pairs.items() if not math.isnan(centre)}
    if not differences:
        return {}
    single = all(len(cells[key]) < 2 for key in differences)
    typical = max(differences.values()) if single else float(np.median(list(differences.values())))
    floors = {}
    for (arm, place), difference in differences.items():
        _, low, high = pairs[arm, place]
        half = 0.0 if math.isnan(low) else math.log(high / low) / 2
        floors[place] = max(floors.get(place, 0.0), difference, typical, half)
    return {place: floors.get(place, max(floors.values())) for place in sorted({place for _, place in cells})}


def by_cell(frame: pandas.DataFrame, metric: str, *, by: str = "concurrency") -> dict[tuple, pandas.Series]:
    """(arm, value of column `by`) to the certified cells' values by repeat."""
    rows = usable(frame[["arm", by, "repeat", "certificate", metric]]).dropna(subset=[metric]).set_index("repeat")
    return {key: cells.astype(float) for key, cells in rows.groupby(["arm", by], sort=False)[metric]}


def interval(values: pandas.Series, noise: float = math.nan) -> tuple[float, float, float]:
    """Geometric mean of repeats with the ends of its interval: Student's t over the logarithms, and at least the floor
    `noise` (a natural logarithm) on either side.

    The ends are NaN where neither bounds it. Values that are not all positive have no logarithm: their mean, and the
    lowest and highest as ends."""
    values = np.asarray(values, dtype=float)
    if not len(values):
        return (math.nan,) * 3
    if (values <= 0).any():
        return float(values.mean()), float(values.min()), float(values.max())
    logs = np.log(values)
    half = math.nan
    if len(logs) > 1:
        half = t_quantile(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return _widened(float(logs.mean()), half, noise)


def bounded(value: float, low: float, high: float) -> tuple[float, float, float]:
    """A figure with its interval; where nothing bounds the noise, the figure alone."""
    return (value, value, value) if math.isnan(low) else (float(value), float(low), float(high))


def ratio(above: pandas.Series, below: pandas.Series, noise: float = math.nan) -> tuple[float, float, float]:
    """Ratio of the geometric means with its confidence interval, both indexed by repeat; the interval is at least the
    floor `noise` (a natural logarithm) on either side, and NaN where nothing bounds it.

    A repeat has the same prompts in every arm, so that the logarithms of the ratios within repeats are taken together
    (paired t), which leaves out what the prompts themselves do. With fewer than two repeats in common it is Welch's t
    over all. All of it is symmetric: `ratio(b, a)` is one over `ratio(a, b)`, ends exchanged."""
    above, below = pandas.Series(above, dtype=float), pandas.Series(below, dtype=float)
    if above.empty or below.empty or (above <= 0).any() or (below <= 0).any():
        return (math.nan,) * 3
    a, b = np.log(above), np.log(below)
    pairs = (a - b).dropna()
    half = math.nan
    if len(pairs) > 1:
        centre = float(pairs.mean())
        half = t_quantile(len(pairs) - 1) * float(pairs.std(ddof=1)) / math.sqrt(len(pairs))
    else:
        centre = float(a.mean() - b.mean())
        if len(a) > 1 and len(b) > 1:
            variances = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
            spread = math.sqrt(sum(variances))
            shares = variances[0] ** 2 / (len(a) - 1) + variances[1] ** 2 / (len(b) - 1)
            half = t_quantile(spread**4 / shares) * spread if spread else 0.0
    return _widened(centre, half, noise)


def _widened(centre: float, half: float, noise: float) -> tuple[float, float, float]:
    """exp of a logarithm and of its ends, `half` or at least `noise` away; NaN ends where both are."""
    width = float(np.fmax(half, noise))
    return math.exp(centre), math.exp(centre - width), math.exp(centre + width)


def t_quantile(freedom: float) -> float:
    """How many standard errors lie on each side of a mean: Student's t at `CONFIDENCE`, two-sided."""
    from scipy import special  # a third of a second, which a prediction need not wait for

    return float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2))


def decompose(
    frame: pandas.DataFrame,
    baseline: str,
    steady: bool = False,
    requests_of: Callable[[Path], list[dict]] = store.requests_of,
) -> pandas.DataFrame:
    """Each arm's total-throughput ratio as latency × occupancy × work mix, from the records of its requests.

    With N output tokens in T seconds and latencies e_i: occupancy L = Σe_i / T, residence r = Σe_i / N, and
    `total_token_throughput = (L / r) · (1 + input / output tokens)`. Factors above 1 help. `closure` is their product
    over the measured ratio. With `steady`, all of it is of each cell's steady window alone, and cells without one are
    left out. Geometric means over the repeats that an arm and the baseline have in common; `file` of a cell names where
    its records lie."""
    rows = []
    for cell in usable(frame).itertuples():
        requests = requests_of(cell.file)
        ends = max((request["start_s"] + certificates.latency_s(request) for request in requests), default=0.0)
        window = certificates.steady_window(requests, cell.concurrency) if steady else (-1.0, ends + 1.0)
        if window is None or window[1] <= window[0]:
            continue
        part = certificates.within(requests, window)
        if not part["made"] or not part["lived_s"]:
            continue
        seconds = part["seconds"] if steady else cell.duration
        throughput = (part["made"] + part["read"]) / seconds if steady else cell.total_token_throughput
        rows.append(
            {
                "arm": cell.arm,
                "concurrency": cell.concurrency,
                "repeat": cell.repeat,
                "occupancy": part["lived_s"] / seconds,
                "residence": part["lived_s"] / part["made"],
                "mix": 1 + part["read"] / part["made"],
                "throughput": throughput,
            }
        )
    if not rows:
        columns = ["arm", "concurrency", "latency", "occupancy", "mix", "ratio", "closure", "repeat_of"]
        return pandas.DataFrame(columns=columns)
    cells = pandas.DataFrame(rows)
    pairs = cells.merge(
        cells[cells["arm"] == baseline].drop(columns="arm"), on=["concurrency", "repeat"], suffixes=("", "_base")
    )
    pairs = pairs[pairs["arm"] != baseline]
    factors = pandas.DataFrame(
        {
            "latency": pairs["residence_base"] / pairs["residence"],
            "occupancy": pairs["occupancy"] / pairs["occupancy_base"],
            "mix": pairs["mix"] / pairs["mix_base"],
            "ratio": pairs["throughput"] / pairs["throughput_base"],
        }
    )
    table = np.exp(np.log(factors).groupby([pairs["arm"], pairs["concurrency"]], sort=False).mean()).reset_index()
    table["closure"] = table["latency"] * table["occupancy"] * table["mix"] / table["ratio"]
    table["repeat_of"] = table["arm"].map(repeats(frame)).astype(object)
    order = {arm: place for place, arm in enumerate(dict.fromkeys(frame["arm"]))}
    return table.sort_values(
        ["arm", "concurrency"],
        key=lambda column: column.map(order) if column.name == "arm" else column,
        ignore_index=True,
    )


def steps(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The cells with `steps`, those of a request's decoding, and what was counted in them: `tokens_a_step`, `proposing`
    (the share of steps with proposals to check) and `proposals_a_step`; missing without speculation.

    A request's first token is prefill's, and each accepted one saves a step; but a server also counts accepted tokens
    that a request's length then cuts off, so that there are at least as many steps as drafts."""
    drafts, drafted, accepted = (frame[name].astype(float) for name in ("drafts", "drafted_tokens", "accepted_tokens"))
    made = frame["total_output_tokens"] - frame["completed"]
    taken = np.maximum(made - accepted, drafts).where(drafts > 0)
    return frame.assign(
        steps=taken, tokens_a_step=made / taken, proposing=drafts / taken, proposals_a_step=drafted / taken
    )


def accepted(frame: pandas.DataFrame) -> dict[tuple[str, int], int]:
    """(arm, concurrency) to the tokens that its certified cells accepted, all repeats together; arms without
    speculation are left out.
    """
    if "accepted_tokens" not in frame:
        return {}
    rows = usable(frame).dropna(subset=["accepted_tokens"])
    sums = rows["accepted_tokens"].astype(float).groupby([rows["arm"], rows["concurrency"]]).sum()
    return {(arm, int(concurrency)): int(count) for (arm, concurrency), count in sums.items()}


def too_few_accepted(table: pandas.DataFrame, frame: pandas.DataFrame) -> pandas.Series:
    """Which rows of a table of `compare` are gains of speculation that rest on fewer than LEAST_ACCEPTED tokens."""
    counts = accepted(frame)
    few = [
        row.ratio > 1 and counts.get((row.arm, row.concurrency), LEAST_ACCEPTED) < LEAST_ACCEPTED
        for row in table.itertuples()
    ]
    return pandas.Series(few, index=table.index, dtype=bool)


def rounds(frame: pandas.DataFrame, baseline: str) -> pandas.DataFrame:
    """What a step takes with speculation: `tokens` a step, `step_ms` = median TPOT × tokens, `plain_ms` the baseline's
    TPOT, `proposals` counted a step, and `per_proposal_ms` = (step - plain) / proposals: the cost of drafting and
    checking one more token.

    Steps without a proposal are steps too: a look-up proposes in some of them (`proposing`), a draft in all."""
    cells = steps(frame)
    tpot = summary(frame, "median_tpot_ms").set_index(["arm", "concurrency"])["mean"]
    names = {"tokens": "tokens_a_step", "proposing": "proposing", "proposals": "proposals_a_step"}
    counted = {name: summary(cells, column).set_index(["arm", "concurrency"])["mean"] for name, column in names.items()}
    rows = []
    for (arm, concurrency), tokens in counted["tokens"].items():
        plain, took = tpot.get((baseline, concurrency), math.nan), tpot.get((arm, concurrency), math.nan) * tokens
        row = {"arm": arm, "concurrency": int(concurrency)}
        row |= {name: values[arm, concurrency] for name, values in counted.items()}
        row |= {"step_ms": took, "plain_ms": plain, "per_proposal_ms": (took - plain) / row["proposals"]}
        rows.append(row)
    columns = ["arm", "concurrency", *names, "step_ms", "plain_ms", "per_proposal_ms"]
    return pandas.DataFrame(rows, columns=columns).sort_values(["arm", "concurrency"], ignore_index=True)
