"""Where an arm stops paying, the concurrencies between which its gain over the baseline turns into a loss; and more
concurrencies measured there.

Only decided claims count, so that the interval is as wide as the noise. What can mislead: there may be more than one
crossing; then there is no interval, only words.

    >>> crossover.crossings(frame)                                             # doctest: +SKIP
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas
from pandas.io.formats.style import Styler

from ...analysis import claims, comparisons, tables
from ...measure import sweep
from ...measure.plan import Plan
from ...measure.records import Results


@dataclass(frozen=True)
class Crossing:
    """Where an arm stops paying: between concurrency `pays` (the last at which it is decided to gain) and `costs` (the
    first at which it is decided to lose); None on a side where there is no such concurrency.
    """

    arm: str
    pays: int | None
    costs: int | None
    measured: tuple[int, ...]
    words: str
    blocks: tuple[int, int]  # fewest and most of a concurrency


def crossings(frame: pandas.DataFrame, metric: str = "output_throughput", baseline: str = "baseline") -> list[Crossing]:
    """The crossover of every arm from its measured cells, by what `claims.compare` decides alone."""
    table, arm_crossings = comparisons.without_repeats(claims.compare(frame, metric, baseline)), []
    for arm in dict.fromkeys(table["arm"]):
        rows = table[table["arm"] == arm].sort_values("concurrency")
        measured = tuple(map(int, rows["concurrency"]))
        gains, losses = (
            [int(concurrency) for concurrency in rows.loc[rows["claim"] == claim, "concurrency"]]
            for claim in (claims.ABOVE, claims.BELOW)
        )
        pays, costs, words = _crossing(gains, losses, measured, bool(rows["low"].notna().any()))
        blocks = int(rows["blocks"].min()), int(rows["blocks"].max())
        arm_crossings.append(Crossing(arm, pays, costs, measured, words, blocks))
    return arm_crossings


def _crossing(
    gains: list[int], losses: list[int], measured: tuple[int, ...], bounded: bool
) -> tuple[int | None, int | None, str]:
    first, last = measured[0], measured[-1]
    if not bounded:
        return None, None, "not decided: nothing bounds the noise"
    if not gains and not losses:
        return None, None, f"neither gain nor loss decided from {first} to {last}"
    if not losses:
        return (
            max(gains),
            None,
            f"above {max(gains)}"
            + (f" (no gain decided from {_next(measured, max(gains))} on)" if max(gains) != last else ""),
        )
    if not gains:
        return (
            None,
            min(losses),
            f"below {min(losses)}" + (f" (no loss decided at {first})" if min(losses) != first else ""),
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


def crossings_table(frame: pandas.DataFrame, metric: str = "output_throughput", baseline: str = "baseline") -> Styler:
    """Up to which concurrency each arm pays, as an interval, and on how many blocks that rests."""
    rows = [
        {
            "arm": crossing.arm,
            "crossover": crossing.words,
            "measured at": ", ".join(map(str, crossing.measured)),
            "blocks": "–".join(map(str, dict.fromkeys(crossing.blocks))),
        }
        for crossing in crossings(frame, metric, baseline)
    ]
    return tables.style(
        pandas.DataFrame(rows, columns=["arm", "crossover", "measured at", "blocks"]),
        f"Concurrency up to which an arm pays, by {tables.METRIC_NAMES[metric].split(' (')[0]} "
        f"({tables.labels(frame)})",
    )


def narrow(
    plan: Plan,
    results: Results,
    *,
    cells: int | None = None,
    metric: str = "output_throughput",
    baseline: str = "baseline",
) -> pandas.DataFrame:
    """Measure up to `cells` more concurrencies an arm (None: the plan's `crossover_cells`) around its crossover, with
    the baseline and its twins at the same ones, and return all cells.

    Costs one more start a life for each such arm and for the baseline. New loads have as many prompts as those around
    them."""
    frame, by_name = results.frame(), {arm.name: arm for arm in plan.arms}
    cells = plan.parameters.get("crossover_cells", 0) if cells is None else cells
    if baseline not in set(frame["arm"]) or cells < 1:
        return frame
    highest = by_name[baseline].options.get("max_num_seqs") or max(load.concurrency for load in plan.loads)
    wanted = {crossing.arm: between(crossing, cells, highest) for crossing in crossings(frame, metric, baseline)}
    wanted = {arm: more for arm, more in wanted.items() if more}
    if not wanted:
        return frame
    known = [load.concurrency for load in plan.loads]
    rounds = [load.prompts / load.concurrency for load in plan.loads]
    loads = {
        c: replace(plan.loads[0], concurrency=c, prompts=c * math.ceil(np.interp(c, known, rounds)))
        for more in wanted.values()
        for c in more
    }
    names = {arm: tuple(loads[c].name for c in sorted(places)) for arm, places in wanted.items()}
    every = tuple(load.name for _, load in sorted(loads.items()))
    arms = tuple(arm for arm in plan.arms if arm.name in wanted or plan.is_reference(arm))
    only = {arm.name: names.get(arm.name, every) for arm in arms}
    more = replace(plan, arms=arms, loads=tuple(load for _, load in sorted(loads.items())), only=only, minutes=0)
    return pandas.concat([frame, sweep.run(more).frame()], ignore_index=True)
