"""Where an arm stops paying: the concurrencies between which its gain over a baseline turns into a loss.

«Certainly» is what `comparisons.compare` says, so that an interval is as wide as the noise. What can mislead: there
may be more than one crossing; then there is no interval, only words.

    >>> crossovers.crossings(frame, "output_throughput", "baseline")           # doctest: +SKIP
"""

from dataclasses import dataclass

import numpy as np
import pandas

from . import comparisons


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
    table, arm_crossings = comparisons.without_repeats(comparisons.compare(frame, metric, baseline)), []
    for arm in dict.fromkeys(table["arm"]):
        rows = table[table["arm"] == arm].sort_values("concurrency")
        measured = tuple(map(int, rows["concurrency"]))
        certain = rows[rows["differs"].map(lambda value: value is not None and bool(value))]
        gains, losses = (
            [int(row.concurrency) for row in certain.itertuples() if (row.ratio > 1) == better]
            for better in (True, False)
        )
        repeats = int(frame[frame["arm"] == arm].groupby("concurrency")["repeat"].nunique().min())
        pays, costs, words = _crossing(gains, losses, measured, bool(rows["differs"].notna().any()))
        arm_crossings.append(Crossing(arm, pays, costs, measured, words, repeats))
    return arm_crossings


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
