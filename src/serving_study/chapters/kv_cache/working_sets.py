"""Section 7's frames of working sets: which tier gave a prefix back, what that took, and from when on a tier pays.

What can mislead: medians are of requests, of whatever round; a tier on disk may be read from the page cache
(`read_from`); a length at which a tier pays is of hits alone, and what a miss costs stands beside it.

    >>> working_sets.by_source(results.frame())                    # doctest: +SKIP
"""

import math

import numpy as np
import pandas

from ... import files
from ...analysis import comparisons
from ...engines import base
from ...errors import StudyError
from ...hardware import ceilings
from ...measure.mechanisms import tiers as below
from ...models import shapes
from ...results import store
from ...theory import reuse
from .prefixes import DEVICE, SOURCES, WORKING_SET, facts, requests


def _of_one_length(table: pandas.DataFrame) -> pandas.DataFrame:
    """Those rows of working sets whose prefixes have the length that the most sizes were measured with; other lengths
    are for `by_length`.
    """
    sizes = table.groupby("prefix_tokens")["times"].nunique()
    return table[table["prefix_tokens"] == sizes.idxmax()] if len(sizes) else table


def tiers(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row an arm, working set and round, of one length of prefix: `prefixes`, `capacity_tokens`,
    `working_set_tokens`, the share of prompt tokens from each source, and `median_ttft_ms`.
    """
    table, rows = _of_one_length(requests(frame, WORKING_SET)), []
    sizes = facts(frame)
    sizes = sizes[sizes["prefix_tokens"].isin(table["prefix_tokens"])]
    for (arm, times, turn), round_requests in table.groupby(["arm", "times", "round"], sort=False):
        size = sizes[(sizes["arm"] == arm) & (sizes["times"] == times)].iloc[0]
        total = round_requests[list(SOURCES)].astype(float).sum()
        rows.append(
            {
                "arm": arm,
                "times": times,
                "round": int(turn),
                **{name: size[name] for name in ("prefixes", "capacity_tokens", "working_set_tokens")},
                **(total / total.sum()).to_dict(),
                "median_ttft_ms": round_requests["ttft_ms"].median(),
            }
        )
    columns = ["arm", "times", "round", "prefixes", "capacity_tokens", "working_set_tokens", *SOURCES, "median_ttft_ms"]
    return pandas.DataFrame(rows, columns=columns).sort_values(["times", "round"], kind="stable").reset_index(drop=True)


def by_source(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row an arm and source of the working sets' requests, of one length of prefix: `requests`, median `ttft_ms`,
    and `against_recompute`: how many times quicker than computing it in the arm without a tier below the device.
    """
    table = _of_one_length(requests(frame, WORKING_SET).dropna(subset=["source"]))
    computed = table[(table["arm"] == DEVICE) & (table["source"] == "recompute")]["ttft_ms"].median()
    times = table.groupby(["arm", "source"], sort=False)["ttft_ms"].agg(requests="count", ttft_ms="median")
    return times.assign(against_recompute=computed / times["ttft_ms"]).reset_index()


def by_length(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row an arm with a tier and length of its prefixes: median `restored_ms` of the requests that the tier gave
    most tokens to, median `computed_ms` of those that `device-only` computed, and `gain`, their ratio. Empty without
    that control.
    """
    table = requests(frame, WORKING_SET)
    computed = table[(table["arm"] == DEVICE) & (table["source"] == "recompute")]
    computed = computed.groupby("prefix_tokens")["ttft_ms"].median().rename("computed_ms")
    restored = table[table["source"] == "external"].astype({"prefix_tokens": int})
    restored = restored.groupby(["arm", "prefix_tokens"], sort=False)["ttft_ms"].median().rename("restored_ms")
    medians = restored.reset_index().merge(computed, on="prefix_tokens")
    medians["arm"] = pandas.Categorical(medians["arm"], dict.fromkeys(medians["arm"]))
    medians = medians.sort_values(["arm", "prefix_tokens"], ignore_index=True).astype({"arm": object})
    return medians.assign(gain=medians["computed_ms"] / medians["restored_ms"])


def miss_costs(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row an arm with a tier and length of its prefixes: what a hit saves and a miss loses, and from which share of
    hits on the tier pays.

    Medians of requests: `computed_ms` of those that `device-only` computed, `restored_ms` of the `hits` that the tier
    gave most tokens to, `missed_ms` of the `misses` that the arm had to compute: it looked below in vain, and kept what
    it computed. `saved_ms` is a hit's, `lost_ms` a miss's; `pays_above` is the share of requests that must hit: 0 where
    a miss loses nothing, missing where a hit saves nothing."""
    times = requests(frame, WORKING_SET).groupby(["source", "arm", "prefix_tokens"])["ttft_ms"].agg(["median", "count"])
    rows = []
    for row in by_length(frame).itertuples():
        key = row.arm, row.prefix_tokens
        missed, misses = times.loc["recompute", *key] if ("recompute", *key) in times.index else (math.nan, 0)
        saved, lost = row.computed_ms - row.restored_ms, missed - row.computed_ms
        share = math.nan if saved <= 0 or math.isnan(lost) else max(0.0, lost) / (max(0.0, lost) + saved)
        counts = int(times.loc[("external", *key), "count"]), int(misses)
        rows.append((*key, row.computed_ms, row.restored_ms, missed, *counts, saved, lost, share))
    columns = "arm prefix_tokens computed_ms restored_ms missed_ms hits misses saved_ms lost_ms pays_above".split()
    return pandas.DataFrame(rows, columns=columns)


def read_from(frame: pandas.DataFrame) -> dict[str, str]:
    """Arm with a tier on disk to where its bytes were read from: an ordinary file that fits in the host's free memory
    comes out of the page cache, so that no disk was measured.

    All that an arm wrote in one run counts, against what was free as the run began; arms without a disk are left out.
    """
    wrote, free = {}, {}
    for file in frame.get("file", ()):
        moved = store.read_cell(file).get("moved") or {}
        if "disk" not in moved.get("tiers", {}):
            continue
        key = frame.loc[frame["file"] == file, "arm"].iloc[0], file.parents[3]
        wrote[key] = wrote.get(key, 0) + (moved["tiers"]["disk"]["in_bytes"] or 0)
        free[key] = files.read(file.parents[3] / "run.json")["host"].get("free_memory_gib")
    sources = {}
    for (arm, run), written in wrote.items():
        room = free[arm, run]
        fits = room is not None and written / 2**30 < room
        told = f"{written / 2**30:.1f} GiB written, {room:.0f} GiB of memory free" if room else "memory not told"
        sources.setdefault(arm, f"{'page cache' if fits else 'disk, in part page cache'} ({told})")
    return sources


def break_even(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row an arm of `by_length` with two lengths or more: the length from which on its tier is always quicker than
    computing.

    `measured` is that length (tokens): where straight lines between the measured points cross for the last time. Where
    they do not it is missing: `at_most` is then the shortest length, if all pay, or `above` the longest, if it does
    not. `gb_s` is the rate at which bytes came back (10⁹ a second), from what the longest prefix has and takes beyond
    the shortest. `link_gb_s` is what the link carries by the host's tables, and `predicted` is
    `reuse.break_even_tokens` with the bytes as the only cost; both are missing where the link is not known."""
    rows = []
    for arm, arm_medians in by_length(frame).groupby("arm", sort=False):
        if len(arm_medians) < 2:
            continue
        lengths = arm_medians["prefix_tokens"].to_numpy(float)
        saved = (arm_medians["computed_ms"] - arm_medians["restored_ms"]).to_numpy(float)
        losing = np.flatnonzero(saved <= 0)  # a tier pays from where it never loses again
        crossing = at_most = above = math.nan
        if not len(losing):
            at_most = lengths[0]
        elif (last := losing[-1]) == len(lengths) - 1:
            above = lengths[-1]
        else:
            crossing = float(np.interp(0.0, saved[last : last + 2], lengths[last : last + 2]))
        each, link, predicted = _bytes_and_prediction(frame[frame["arm"] == arm])
        took_s = (arm_medians["restored_ms"].iloc[-1] - arm_medians["restored_ms"].iloc[0]) / 1000
        rows.append(
            {
                "arm": arm,
                "measured": crossing,
                "at_most": at_most,
                "above": above,
                "gb_s": each * (lengths[-1] - lengths[0]) / took_s / 1e9 if took_s > 0 else math.nan,
                "link_gb_s": link,
                "predicted": predicted,
            }
        )
    return pandas.DataFrame(rows, columns=["arm", "measured", "at_most", "above", "gb_s", "link_gb_s", "predicted"])


def _bytes_and_prediction(cells: pandas.DataFrame) -> tuple[float, float, float]:
    """Bytes of a token as one arm's cells counted them, GB/s of the link by its host's tables, and the break-even
    length (tokens) that this link gives its model; missing where that is not known.
    """
    for cell in map(store.read_cell, cells["file"]):
        back, told = cell["counters"].get(base.EXTERNAL_HITS), cell.get("moved")
        if not told or not told["out_bytes"] or not back:
            continue
        each = told["out_bytes"] / back
        try:
            host = ceilings.of_host(cell["host"])
            link = reuse.links(host).get("nvme" if list(told["tiers"]) == ["disk"] else "cpu")
            if link:
                return (
                    each,
                    link.gb_s,
                    float(
                        reuse.break_even_tokens(shapes.load(cell["model"]), reuse.prefill_machine(host), link)
                        or math.nan
                    ),
                )
        except StudyError:
            pass
        return each, math.nan, math.nan
    return (math.nan,) * 3


def moved(frame: pandas.DataFrame, plan=None) -> pandas.DataFrame:
    """Bytes below the device: one row an arm, working set of one length of prefix, and tier: `in_mib` and `out_mib`
    (missing where it is not told), means over repeats, and how they were `counted`. Of cells that are older than that
    count, what came back is the engine's tokens times the bytes of the `plan`'s model; without a plan they are left
    out.
    """
    arms, rows = {arm.name: arm for arm in plan.arms} if plan else {}, []
    cells = facts(comparisons.usable(frame))
    for cell in _of_one_length(cells[cells["kind"] == WORKING_SET]).itertuples():
        stored = store.read_cell(cell.file)
        told = stored.get("moved")
        if stored["technique"] != "offload" or told is None and cell.arm not in arms:
            continue
        if told is None:
            each = below.token_bytes(arms[cell.arm])
            told = {
                "tiers": {"": {"in_bytes": None, "out_bytes": None if each is None else each * cell.external_tokens}},
                "counted": "tokens given back by the engine",
            }
        for tier, tier_bytes in told["tiers"].items():
            mib = {
                f"{way}_mib": math.nan if tier_bytes[f"{way}_bytes"] is None else tier_bytes[f"{way}_bytes"] / 2**20
                for way in ("in", "out")
            }
            rows.append({"arm": cell.arm, "times": cell.times, "tier": tier, **mib, "counted": told["counted"]})
    order = {name: place for place, name in enumerate([*arms, *dict.fromkeys(cells["arm"])])}
    rows.sort(key=lambda row: (order[row["arm"]], row["tier"], row["times"]))
    table = pandas.DataFrame(rows, columns=["arm", "times", "tier", "in_mib", "out_mib", "counted"])
    return (
        table.groupby(["arm", "times", "tier", "counted"], sort=False)[["in_mib", "out_mib"]]
        .mean()
        .reset_index()[list(table.columns)]
    )
