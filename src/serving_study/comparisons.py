"""How arms are compared: only certified cells, every ratio against a noise floor, each speed-up split into what made it.

The floor is the A/A difference: the baseline measured again under another name, after everything else. A ratio inside the floor,
or whose interval holds 1, is no difference. What can mislead: with one repeat there is no interval, and the floor is a single
draw; then the widest A/A difference over the concurrencies stands for all.

    >>> compare(frame, "output_throughput", "baseline")            # doctest: +SKIP
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
from scipy import stats

from . import certificates, store
from .errors import ParameterError

CONFIDENCE = 0.95
AGAIN = "-again"


def usable(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The cells whose certificate did not fail."""
    return frame[frame["certificate"] != certificates.FAIL]


def summary(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """Per arm and concurrency: `mean`, `sd`, `repeats` of the certified cells, and `cv`, the coefficient of variation."""
    rows = usable(frame).dropna(subset=[metric]).groupby(["arm", "concurrency"], sort=False)[metric]
    table = rows.agg(mean="mean", sd="std", repeats="count").reset_index()
    table["cv"] = table["sd"] / table["mean"]
    return table


def floor(frame: pandas.DataFrame, metric: str, baseline: str) -> dict[int, float]:
    """Concurrency to the relative difference below which nothing is claimed; empty without an A/A pair.

    The largest of: this concurrency's own A/A difference, the median A/A difference of all, and, from two repeats on, the
    half-width of the A/A ratio's interval.
    """
    own = summary(frame, metric)
    pair = own[own["arm"] == baseline].merge(own[own["arm"] == baseline + AGAIN], on="concurrency", suffixes=("", "_again"))
    if pair.empty:
        return {}
    differences = (pair["mean_again"] / pair["mean"] - 1).abs()
    typical = differences.max() if (pair["repeats"] < 2).all() else differences.median()
    found = {}
    for row, difference in zip(pair.itertuples(), differences, strict=True):
        _, low, high = ratio(values(frame, metric, baseline + AGAIN, row.concurrency), values(frame, metric, baseline, row.concurrency))
        half = 0.0 if math.isnan(low) else (high - low) / 2
        found[int(row.concurrency)] = float(max(difference, typical, half))
    return found


def values(frame: pandas.DataFrame, metric: str, arm: str, concurrency: int) -> np.ndarray:
    """The certified cells' values, one a repeat."""
    rows = usable(frame)
    return rows[(rows["arm"] == arm) & (rows["concurrency"] == concurrency)][metric].dropna().to_numpy(float)


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float, float]:
    """Ratio of the geometric means with its confidence interval (Welch's t on logarithms); the interval is NaN with fewer than two repeats on a side."""
    if not len(above) or not len(below) or (above <= 0).any() or (below <= 0).any():
        return (math.nan,) * 3
    a, b = np.log(above), np.log(below)
    centre = a.mean() - b.mean()
    if len(a) < 2 or len(b) < 2:
        return math.exp(centre), math.nan, math.nan
    variances = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    spread = math.sqrt(sum(variances))
    if spread == 0:
        return math.exp(centre), math.exp(centre), math.exp(centre)
    freedom = spread**4 / (variances[0] ** 2 / (len(a) - 1) + variances[1] ** 2 / (len(b) - 1))
    half = stats.t.ppf(0.5 + CONFIDENCE / 2, freedom) * spread
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)


def compare(frame: pandas.DataFrame, metric: str, baseline: str) -> pandas.DataFrame:
    """Every arm against `baseline`: `arm`, `concurrency`, `ratio`, `low`, `high`, `floor`, `differs`.

    `low` and `high` are the interval's ends, widened to the floor; `differs` is True, False, or None where nothing bounds the noise.
    """
    if baseline not in set(frame["arm"]):
        raise ParameterError("no such arm to compare with", value=baseline, allowed=", ".join(dict.fromkeys(frame["arm"])))
    floors, rows = floor(frame, metric, baseline), []
    for arm in dict.fromkeys(frame["arm"]):
        for concurrency in sorted(frame[frame["arm"] == arm]["concurrency"].unique()):
            centre, low, high = ratio(values(frame, metric, arm, concurrency), values(frame, metric, baseline, concurrency))
            if math.isnan(centre) or arm == baseline:
                continue
            noise = floors.get(int(concurrency), math.nan)
            edges = [edge for edge in (low, high, centre * (1 - noise), centre * (1 + noise)) if not math.isnan(edge)]
            low, high = (min(edges), max(edges)) if edges else (math.nan, math.nan)
            differs = None if math.isnan(low) else not (low <= 1 <= high)
            rows.append({"arm": arm, "concurrency": int(concurrency), "ratio": centre, "low": low, "high": high, "floor": noise, "differs": differs})
    return pandas.DataFrame(rows, columns=["arm", "concurrency", "ratio", "low", "high", "floor", "differs"])


def decompose(frame: pandas.DataFrame, baseline: str, requests_of: Callable[[Path], list[dict]] = store.requests_of) -> pandas.DataFrame:
    """Each arm's total-throughput ratio as latency × occupancy × work mix, from the records of its requests.

    With N output tokens in T seconds and latencies e_i: occupancy L = Σe_i / T, residence r = Σe_i / N, and
    `total_token_throughput = (L / r) · (1 + input / output tokens)`. Factors above 1 help. `closure` is their product over the
    measured ratio. Means over repeats; `file` of a cell names where its records lie.
    """
    rows = []
    for cell in usable(frame).itertuples():
        requests = requests_of(cell.file)
        total = sum(certificates.latency_s(request) for request in requests)
        made, read = sum(request["output_tokens"] for request in requests), sum(request["input_tokens"] for request in requests)
        rows.append({"arm": cell.arm, "concurrency": cell.concurrency, "occupancy": total / cell.duration, "residence": total / made, "mix": 1 + read / made, "throughput": cell.total_token_throughput})
    if not rows:
        return pandas.DataFrame(columns=["arm", "concurrency", "latency", "occupancy", "mix", "ratio", "closure"])
    means = pandas.DataFrame(rows).groupby(["arm", "concurrency"], sort=False).mean().reset_index()
    pairs = means.merge(means[means["arm"] == baseline].drop(columns="arm"), on="concurrency", suffixes=("", "_base"))
    pairs = pairs[pairs["arm"] != baseline]
    table = pandas.DataFrame(
        {
            "arm": pairs["arm"],
            "concurrency": pairs["concurrency"],
            "latency": pairs["residence_base"] / pairs["residence"],
            "occupancy": pairs["occupancy"] / pairs["occupancy_base"],
            "mix": pairs["mix"] / pairs["mix_base"],
            "ratio": pairs["throughput"] / pairs["throughput_base"],
        }
    )
    table["closure"] = table["latency"] * table["occupancy"] * table["mix"] / table["ratio"]
    return table.reset_index(drop=True)


def rounds(frame: pandas.DataFrame, baseline: str) -> pandas.DataFrame:
    """What a speculative round takes: `tokens` a round, `round_ms` = median TPOT × tokens, `step_ms` the baseline's TPOT, and
    `per_draft_ms` = (round - step) / k, the cost of drafting and checking one more token."""
    tpot = summary(frame, "median_tpot_ms").set_index(["arm", "concurrency"])["mean"]
    tokens = summary(frame, "acceptance_length").set_index(["arm", "concurrency"])["mean"]
    rows = []
    for (arm, concurrency), length in tokens.items():
        step, k = tpot.get((baseline, concurrency), math.nan), int(arm.split("-k")[1].split("-")[0])
        took = tpot[arm, concurrency] * length
        rows.append({"arm": arm, "concurrency": int(concurrency), "tokens": length, "round_ms": took, "step_ms": step, "per_draft_ms": (took - step) / k})
    table = pandas.DataFrame(rows, columns=["arm", "concurrency", "tokens", "round_ms", "step_ms", "per_draft_ms"])
    return table.sort_values(["arm", "concurrency"], ignore_index=True)
