"""How arms are compared: only certified cells, every ratio against a noise floor, each speed-up split into what made
it.

The floor is the A/A difference: the baseline measured again under another name, after everything else. A ratio inside
the floor is no difference; one outside it whose interval holds 1 is undecided. What can mislead: with one repeat there
is no interval, and the floor is a single draw; then the widest A/A difference over the concurrencies stands for all.

    >>> compare(frame, "output_throughput", "baseline")            # doctest: +SKIP
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from . import certificates, store
from .errors import ParameterError

CONFIDENCE = 0.95
AGAIN = "-again"
KINDS = (
    ("random weights", "weights", "random"),
    ("prescribed acceptance", "acceptance", "prescribed"),
    ("modified engine", "engine", "modified"),
)


def usable(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The cells whose certificate did not fail."""
    return frame[frame["certificate"] != certificates.FAIL]


def kinds(frame: pandas.DataFrame) -> str:
    """What has to be said of these cells wherever they are shown: `random weights, prescribed acceptance`; empty where
    nothing has.
    """
    return ", ".join(name for name, column, value in KINDS if column in frame and (frame[column] == value).any())


def summary(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Per arm and concurrency: `mean`, `sd`, `repeats` of the certified cells, and `cv`, the spread over the mean."""
    rows = usable(frame).dropna(subset=[metric]).groupby(["arm", "concurrency"], sort=False)[metric]
    table = rows.agg(mean="mean", sd="std", repeats="count").reset_index()
    table["cv"] = table["sd"] / table["mean"]
    return table


def floor(frame: pandas.DataFrame, metric: str, baseline: str) -> dict[int, float]:
    """Concurrency to the relative difference below which nothing is claimed; empty without an A/A pair.

    The largest of: this concurrency's own A/A difference, the median A/A difference of all, and, from two repeats on,
    the half-width of the A/A ratio's interval. Where the baseline was not measured again, the largest floor elsewhere
    holds."""
    own, cells = summary(frame, metric), by_cell(frame, metric)
    pair = own[own["arm"] == baseline].merge(
        own[own["arm"] == baseline + AGAIN], on="concurrency", suffixes=("", "_again")
    )
    if pair.empty:
        return {}
    differences = (pair["mean_again"] / pair["mean"] - 1).abs()
    typical = differences.max() if (pair["repeats"] < 2).all() else differences.median()
    found = {}
    for row, difference in zip(pair.itertuples(), differences, strict=True):
        _, low, high = ratio(cells[baseline + AGAIN, row.concurrency], cells[baseline, row.concurrency])
        half = 0.0 if math.isnan(low) else (high - low) / 2
        found[int(row.concurrency)] = float(max(difference, typical, half))
    return dict.fromkeys(map(int, sorted(own[own["arm"] == baseline]["concurrency"])), max(found.values())) | found


def by_cell(frame: pandas.DataFrame, metric: str) -> dict[tuple[str, int], pandas.Series]:
    """(arm, concurrency) to the certified cells' values by repeat."""
    rows = (
        usable(frame[["arm", "concurrency", "repeat", "certificate", metric]])
        .dropna(subset=[metric])
        .set_index("repeat")
    )
    return {key: cells.astype(float) for key, cells in rows.groupby(["arm", "concurrency"], sort=False)[metric]}


def ratio(above: pandas.Series, below: pandas.Series) -> tuple[float, float, float]:
    """Ratio of the geometric means with its confidence interval, both indexed by repeat; the interval is NaN where
    nothing bounds it.

    A repeat has the same prompts in every arm, so that the logarithms of the ratios within repeats are taken together
    (paired t), which leaves out what the prompts themselves do. With fewer than two repeats in common it is Welch's t
    over all."""
    above, below = pandas.Series(above, dtype=float), pandas.Series(below, dtype=float)
    if above.empty or below.empty or (above <= 0).any() or (below <= 0).any():
        return (math.nan,) * 3
    a, b = np.log(above), np.log(below)
    pairs = (a - b).dropna()
    if len(pairs) > 1:
        centre, spread, freedom = pairs.mean(), pairs.std(ddof=1) / math.sqrt(len(pairs)), len(pairs) - 1
    else:
        centre = a.mean() - b.mean()
        if len(a) < 2 or len(b) < 2:
            return math.exp(centre), math.nan, math.nan
        variances = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
        spread = math.sqrt(sum(variances))
        freedom = (
            spread**4 / (variances[0] ** 2 / (len(a) - 1) + variances[1] ** 2 / (len(b) - 1)) if spread else math.inf
        )
    half = t_quantile(freedom) * spread if spread else 0.0
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)


def t_quantile(freedom: float) -> float:
    """How many standard errors lie on each side of a mean: Student's t at `CONFIDENCE`, two-sided."""
    from scipy import special  # a third of a second, which a prediction need not wait for

    return float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2))


def compare(frame: pandas.DataFrame, metric: str, baseline: str) -> pandas.DataFrame:
    """Every arm against `baseline`: `arm`, `concurrency`, `ratio`, `low`, `high`, `floor`, `differs`.

    `low` and `high` are the interval's ends, widened to the floor. `differs` is True when 1 lies outside them, False
    when the ratio lies inside the floor, and None when neither holds or nothing bounds the noise: more repeats would
    have to decide. Nothing measured is an empty table."""
    if len(frame) and baseline not in set(frame["arm"]):
        raise ParameterError(
            "no such arm to compare with", value=baseline, allowed=", ".join(dict.fromkeys(frame["arm"]))
        )
    floors, cells, rows = floor(frame, metric, baseline), by_cell(frame, metric), []
    for arm in dict.fromkeys(frame["arm"]):
        for concurrency in sorted(found for name, found in cells if name == arm):
            if arm == baseline or (baseline, concurrency) not in cells:
                continue
            centre, low, high = ratio(cells[arm, concurrency], cells[baseline, concurrency])
            if math.isnan(centre):
                continue
            noise = floors.get(int(concurrency), math.nan)
            edges = [edge for edge in (low, high, centre * (1 - noise), centre * (1 + noise)) if not math.isnan(edge)]
            low, high = (min(edges), max(edges)) if edges else (math.nan, math.nan)
            differs = (
                None
                if math.isnan(low)
                else True
                if not low <= 1 <= high
                else False
                if abs(centre - 1) <= noise
                else None
            )
            rows.append(
                {
                    "arm": arm,
                    "concurrency": int(concurrency),
                    "ratio": centre,
                    "low": low,
                    "high": high,
                    "floor": noise,
                    "differs": differs,
                }
            )
    return pandas.DataFrame(rows, columns=["arm", "concurrency", "ratio", "low", "high", "floor", "differs"])


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
        return pandas.DataFrame(columns=["arm", "concurrency", "latency", "occupancy", "mix", "ratio", "closure"])
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
    order = {arm: place for place, arm in enumerate(dict.fromkeys(frame["arm"]))}
    return table.sort_values(
        ["arm", "concurrency"],
        key=lambda column: column.map(order) if column.name == "arm" else column,
        ignore_index=True,
    )


@dataclass(frozen=True)
class Crossing:
    """Where an arm stops paying: between concurrency `pays` (the last at which it certainly gains) and `costs` (the
    first at which it certainly loses); None on a side where there is no such concurrency.
    """

    arm: str
    pays: int | None
    costs: int | None
    measured: tuple[int, ...]
    words: str
    repeats: int


def crossings(frame: pandas.DataFrame, metric: str, baseline: str) -> list[Crossing]:
    """The crossover of every arm from its measured cells; «certainly» is as `compare` has it, so that the interval is
    as wide as the noise.
    """
    table, found = compare(frame, metric, baseline), []
    for arm in dict.fromkeys(table["arm"]):
        if arm.endswith(AGAIN):
            continue
        rows = table[table["arm"] == arm].sort_values("concurrency")
        measured = tuple(map(int, rows["concurrency"]))
        certain = rows[rows["differs"].map(lambda value: value is not None and bool(value))]
        gains, losses = (
            [int(row.concurrency) for row in certain.itertuples() if (row.ratio > 1) == better]
            for better in (True, False)
        )
        repeats = int(frame[frame["arm"] == arm].groupby("concurrency")["repeat"].nunique().min())
        pays, costs, words = _crossing(gains, losses, measured, bool(rows["differs"].notna().any()))
        found.append(Crossing(arm, pays, costs, measured, words, repeats))
    return found


def _crossing(
    gains: list[int], losses: list[int], measured: tuple[int, ...], bounded: bool
) -> tuple[int | None, int | None, str]:
    first, last = measured[0], measured[-1]
    if not bounded:
        return None, None, "unknown: nothing bounds the noise"
    if not gains and not losses:
        return None, None, f"nowhere certain from {first} to {last}"
    if not losses:
        return (
            max(gains),
            None,
            f"above {max(gains)}"
            + (f" (not certain from {_next(measured, max(gains))} on)" if max(gains) != last else ""),
        )
    if not gains:
        return (
            None,
            min(losses),
            f"below {min(losses)}" + (f" (not certain at {first})" if min(losses) != first else ""),
        )
    if max(gains) < min(losses):
        return max(gains), min(losses), f"between {max(gains)} and {min(losses)}"
    if max(losses) < min(gains):
        return min(gains), max(losses), f"the other way round: it starts to pay between {max(losses)} and {min(gains)}"
    return None, None, f"more than one: gains at {', '.join(map(str, gains))}, losses at {', '.join(map(str, losses))}"


def _next(measured: tuple[int, ...], after: int) -> int:
    return next(value for value in measured if value > after)


def between(crossing: Crossing, cells: int, highest: int) -> list[int]:
    """The concurrencies, at most `cells`, whose cells would narrow a crossing: spread evenly on a logarithmic scale
    inside its interval, or above the last measured one, up to `highest`, when the arm still pays there.
    """
    if cells < 1 or crossing.pays is None:
        return []
    low, high = sorted((crossing.pays, crossing.costs or min(highest, 4 * crossing.pays)))
    inside = {int(round(value)) for value in np.geomspace(low, high, cells + 2)[1:-1]} if high > low else set()
    if crossing.costs is None and high > low:
        inside.add(high)
    return sorted(value for value in inside - set(crossing.measured) if low < value <= high)[-cells:]


def rounds(frame: pandas.DataFrame, baseline: str) -> pandas.DataFrame:
    """What a speculative round takes: `tokens` a round, `round_ms` = median TPOT × tokens, `step_ms` the baseline's
    TPOT, and `per_draft_ms` = (round - step) / k, the cost of drafting and checking one more token.
    """
    tpot = summary(frame, "median_tpot_ms").set_index(["arm", "concurrency"])["mean"]
    tokens = summary(frame, "acceptance_length").set_index(["arm", "concurrency"])["mean"]
    rows = []
    for (arm, concurrency), length in tokens.items():
        step, k = tpot.get((baseline, concurrency), math.nan), int(arm.split("-k")[1].split("-")[0])
        took = tpot[arm, concurrency] * length
        rows.append(
            {
                "arm": arm,
                "concurrency": int(concurrency),
                "tokens": length,
                "round_ms": took,
                "step_ms": step,
                "per_draft_ms": (took - step) / k,
            }
        )
    table = pandas.DataFrame(rows, columns=["arm", "concurrency", "tokens", "round_ms", "step_ms", "per_draft_ms"])
    return table.sort_values(["arm", "concurrency"], ignore_index=True)
