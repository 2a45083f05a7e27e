"""Measures more concurrencies around a crossover."""

import math
from dataclasses import replace

import numpy as np
import pandas

from ...analysis import crossovers
from ...measure import sweep
from ...measure.plan import Plan
from ...measure.records import Results


def narrow(
    plan: Plan,
    results: Results,
    *,
    cells: int | None = None,
    metric: str = "output_throughput",
    baseline: str = "baseline",
) -> pandas.DataFrame:
    """Measure up to `cells` more concurrencies an arm (None: the plan's `crossover_cells`) around its crossover, with
    the baseline at the same ones, and return all cells.

    Costs one more start for each such arm and for the baseline. New loads have as many prompts as those around them."""
    frame, by_name = results.frame(), {arm.name: arm for arm in plan.arms}
    cells = plan.parameters.get("crossover_cells", 0) if cells is None else cells
    if baseline not in set(frame["arm"]) or cells < 1:
        return frame
    highest = by_name[baseline].options.get("max_num_seqs") or max(load.concurrency for load in plan.loads)
    wanted = {
        crossing.arm: crossovers.between(crossing, cells, highest)
        for crossing in crossovers.crossings(frame, metric, baseline)
    }
    wanted = {arm: between for arm, between in wanted.items() if between}
    if not wanted:
        return frame
    known = [load.concurrency for load in plan.loads]
    rounds = [load.prompts / load.concurrency for load in plan.loads]
    loads = {
        c: replace(plan.loads[0], concurrency=c, prompts=c * math.ceil(np.interp(c, known, rounds)))
        for between in wanted.values()
        for c in between
    }
    parts = [frame]
    for names, concurrencies in [([baseline], sorted(loads))] + [([arm], between) for arm, between in wanted.items()]:
        more = replace(plan, arms=tuple(by_name[name] for name in names), loads=tuple(loads[c] for c in concurrencies))
        parts.append(sweep.run(more).frame())
    return pandas.concat(parts, ignore_index=True)
