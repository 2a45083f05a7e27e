"""What the methods' cells come to: each method on each workload against the baseline, memory, and whether answers
stayed the same.

A speed-up is of the pace of tokens after the first (median TPOT upside down), since that is what speculation changes:
how much of an answer's time it is depends on the length that the load asks for. What can mislead: a look-up's step
without a proposal costs what a plain one does, so its acceptance rate says little without the share of steps that
propose.

    >>> method_frames.speedups(results.frame())                                              # doctest: +SKIP
"""

import math

import pandas

from ...analysis import claims, comparisons
from ...loads.workloads import NAMES
from ...measure.records import Results
from ...results import store
from . import catalogue
from .plan import BASELINE, METRIC

COUNTED = ("tokens", "proposing", "rate", "accepted")


def workload_of(load: str) -> str:
    """`chat` of the load `chat,concurrency=1`."""
    return load.split(",")[0]


def methods_of(frame: pandas.DataFrame) -> dict[str, str]:
    """Arm to its method's title, by technique and distinction; the baseline and its twins are none."""
    titles = {(method.told_by, method.apart): method.title for method in catalogue.METHODS}
    columns = frame.drop_duplicates("arm")[["arm", "technique", "distinction"]]
    rows = columns.astype(object).where(columns.notna(), None)
    return {row.arm: titles[key] for row in rows.itertuples() if (key := (row.technique, row.distinction)) in titles}


def counted(frame: pandas.DataFrame) -> pandas.DataFrame:
    """By arm and load, over all certified cells: `tokens` a step, the share of steps that are `proposing`, and the
    acceptance `rate`; missing without speculation.
    """
    cells = comparisons.steps(comparisons.usable(frame))
    cells = cells.assign(made=cells["total_output_tokens"] - cells["completed"])
    names = ["made", "steps", "drafts", "drafted_tokens", "accepted_tokens"]
    sums = cells.dropna(subset=["steps"]).groupby(["arm", "load"], sort=False)[names].sum().astype(float)
    return pandas.DataFrame(
        {
            "tokens": sums["made"] / sums["steps"],
            "proposing": sums["drafts"] / sums["steps"],
            "rate": sums["accepted_tokens"] / sums["drafted_tokens"],
            "accepted": sums["accepted_tokens"],
        }
    )


def speedups(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row an arm and load: the columns of `claims.compare` as speed-ups, `workload`, `concurrency`, `method` (None
    of a twin), and what was counted. Empty without a baseline."""
    columns = ["arm", "load", "workload", "concurrency", "method", "ratio", *claims.CLAIMED, *COUNTED]
    if BASELINE not in set(frame["arm"]):
        return pandas.DataFrame(columns=columns)
    table = claims.inverted(claims.compare(frame, METRIC, BASELINE, by="load"))
    concurrency = frame.drop_duplicates("load").set_index("load")["concurrency"]
    table = table.assign(
        workload=table["load"].map(workload_of),
        concurrency=table["load"].map(concurrency).astype(int),
        method=table["arm"].map(methods_of(frame)),
    )
    table = table.join(counted(frame), on=["arm", "load"])
    return table.sort_values("workload", key=lambda names: names.map(NAMES.index), kind="stable", ignore_index=True)


def one_by_one(table: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of methods, requests one at a time."""
    return table[(table["concurrency"] == 1) & table["method"].notna()]


def best(table: pandas.DataFrame) -> pandas.DataFrame:
    """Of each workload, the method with the largest speed-up that is decided, how many are `faster` and how many were
    `compared`; the arm is None where none is faster for sure. What fewer than LEAST_ACCEPTED tokens carry is no gain.
    """
    rows = []
    for workload, part in one_by_one(table).groupby("workload", sort=False):
        faster = part[(part["claim"] == claims.ABOVE) & (part["accepted"] >= comparisons.LEAST_ACCEPTED)]
        row = faster.loc[faster["ratio"].idxmax()] if len(faster) else pandas.Series({"arm": None, "method": None})
        rows.append(
            {"workload": workload, "compared": len(part), "faster": len(faster)}
            | row.drop("workload", errors="ignore").to_dict()
        )
    return pandas.DataFrame(rows, columns=["workload", "compared", "faster", "arm", "method", "ratio", *claims.CLAIMED])


def same_beginnings(frame: pandas.DataFrame) -> dict[str, tuple[int, int]]:
    """Arm to the cells whose first answer begins as the baseline's does, and the cells that have one to compare with:
    the first 200 characters, with the same prompt. Greedy decoding may part where two candidates are within rounding.
    """
    first = {
        (row.arm, row.load, row.repeat): store.read_cell(row.file)["result"].get("sample")
        for row in comparisons.usable(frame).itertuples()
    }
    counts = {}
    for (arm, load, repeat), text in first.items():
        plain = first.get((BASELINE, load, repeat))
        if arm != BASELINE and text and plain:
            same, compared = counts.get(arm, (0, 0))
            counts[arm] = same + (text == plain), compared + 1
    return counts


def memory(results: Results) -> pandas.DataFrame:
    """By arm, what its start came to: `outcome`, `reason`, `weights_gib`, tokens of the KV cache, and the memory that
    its processes took (`memory_gib`, CPU alone, from what was free before and after).
    """
    starts, known = results.starts(), results.store.starts_by_key()
    figures = [(known[key].get("figures") or {}).get("memory_gib", math.nan) for key in starts["key"]]
    columns = ["arm", "outcome", "reason", "weights_gib", "kv_cache_tokens", "memory_gib"]
    return starts.assign(memory_gib=figures)[columns]
