"""Section 7's frames: what a cache gave back, request by request, and what that was worth. Their tables and figures are
in `prefix_views`.

Everything is read from stored cells. What can mislead: a load's concurrency does not tell it from another one here, so
that these frames go by the prefix, the share and the working set; a hit rate is of prompt tokens, so that a share of 1
stays below it by what every prompt has of its own; times to first token are the client's, which hold the making of
tokens from text, and `server_ttft_ms` are without.

    >>> prefixes.sequence(results.frame())                         # doctest: +SKIP
"""

import math

import numpy as np
import pandas

from ... import files, paths
from ...analysis import comparisons, tables
from ...engines import base
from ...errors import StudyError
from ...hardware import ceilings
from ...measure.mechanisms import tiers as below
from ...models import shapes
from ...results import certificates, reference, store
from ...theory import reuse

CACHED, CONTROL, QUANTISED, DEVICE = "prefix-cache", "no-prefix-cache", "fp8-cache", "device-only"
TIERS = (
    DEVICE,
    "cpu-offload",
    "lmcache-cpu",
    "lmcache-disk",
    "files",
    "lmcache-server",
    "lmcache-server-disk",
    "lmcache-cpu-disk",
    "fp8-cpu-offload",
)
SOURCES = ("device", "external", "recompute")
SHARED, WORKING_SET = "SharedPrefix", "WorkingSet"  # what a load's `kind` is
OF_LOAD = (
    "kind prefix_tokens own_tokens share sequence times prefixes capacity_tokens working_set_tokens block_tokens"
).split()
REQUESTS = [
    *"arm kind prefix_tokens times repeat request round ttft_ms server_ttft_ms".split(),
    *SOURCES,
    *("source", "repeat_of"),
]
OF_REFERENCE = {"prefix-on": CACHED, "prefix-off": CONTROL}
REFERENCE_PREFIX = 3001
GAINS = (
    "prefix_tokens share concurrency hit_rate request_throughput control_request_throughput gain low high floor "
    "differs ttft_gain"
).split()
SEQUENCE = "arm prefix_tokens computed later cold_ms warm_ms gain low high cold_hits warm_hits".split()


def facts(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The cells with what their loads were (`kind`, `prefix_tokens`, `share`, `times`, `prefixes`, `capacity_tokens`,
    `working_set_tokens`) and what came of it (`device_tokens`, `external_tokens`, `hit_rate`); what a cell does not
    have is missing.
    """
    rows = []
    for file in frame["file"]:
        cell = store.read_cell(file)
        load, counters = cell.get("reuse") or {}, cell["counters"]
        device, external = counters.get(base.PREFIX_HITS), counters.get(base.EXTERNAL_HITS) or 0
        read = counters.get(base.PROMPT_TOKENS)
        hit_rate = math.nan if device is None or not read else (device + external) / read
        rows.append([*map(load.get, OF_LOAD), device, external, hit_rate])
    columns = [*OF_LOAD, "device_tokens", "external_tokens", "hit_rate"]
    return pandas.concat([frame, pandas.DataFrame(rows, index=frame.index, columns=columns)], axis=1)


def shared_loads(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The cells, but for failed ones, of the loads under concurrency in which a share of the requests has a prefix."""
    cells = facts(comparisons.usable(frame))
    return cells[(cells["kind"] == SHARED) & (cells["sequence"] == False)]  # noqa: E712 - None is neither


def requests(frame: pandas.DataFrame, kind: str | None = None) -> pandas.DataFrame:
    """One row a request of the loads that come one by one, all or those of a `kind`: `arm`, `kind`, `times`, `repeat`,
    `request` and `round` (from 1), `ttft_ms`, `server_ttft_ms`, tokens from `device`, `external` and `recompute`, and
    `source`, the largest of the three. Failed cells are left out.
    """
    rows, cells = [], facts(comparisons.usable(frame))
    one_by_one = (cells["sequence"] == True) | (cells["kind"] == WORKING_SET)  # noqa: E712 - None is neither
    for cell in cells[one_by_one & (cells["kind"] == kind if kind else True)].itertuples():
        for index, request in enumerate(store.requests_of(cell.file)):
            counters = request.get("counters") or {}
            device, external = counters.get(base.PREFIX_HITS), counters.get(base.EXTERNAL_HITS) or 0
            spent, turn = counters.get(base.TTFT_SUM), min(index, 1)
            tokens = (device, external, None if device is None else request["input_tokens"] - device - external)
            row = {name: getattr(cell, name) for name in ("arm", "kind", "prefix_tokens", "times", "repeat")}
            row |= {
                "request": index + 1,
                "round": 1 + (index // int(cell.prefixes) if cell.kind == WORKING_SET else turn),
                "ttft_ms": 1000 * request["ttft_s"],
                "server_ttft_ms": math.nan if spent is None else 1000 * spent,
                **dict(zip(SOURCES, tokens, strict=True)),
                "source": None if device is None else SOURCES[tokens.index(max(tokens))],
                "repeat_of": cell.repeat_of,
            }
            rows.append(row)
    return pandas.DataFrame(rows, columns=REQUESTS)


def elsewhere(plan) -> dict[str, pandas.DataFrame]:
    """Host to the newest cells of the other hosts that have published results of this section, in the order in which a
    plan has its arms.
    """
    order = {name: place for place, name in enumerate((CACHED, CONTROL, QUANTISED, None, *TIERS))}
    cells_by_host = {
        host: store.Store(host, plan.section, paths.RESULTS_PUBLISHED).newest()
        for host in tables.other_hosts(plan.section, {plan.host.name})
    }
    return {
        host: frame.assign(place=frame["arm"].where(frame["repeat_of"].isna(), None).map(order))
        .sort_values("place", kind="stable", ignore_index=True)
        .drop(columns="place")
        for host, frame in cells_by_host.items()
    }


def starts_of(host: str, section: int = 7) -> pandas.DataFrame:
    """The newest start of each arm of a host that has published results."""
    newest = store.Store(host, section, paths.RESULTS_PUBLISHED).newest_starts().values()
    return pandas.DataFrame(map(store.start_row, newest), columns=list(store.START_COLUMNS))


def sequence(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row an arm: `cold_ms`, the median of the requests that computed the prefix (the arm's first, and all of the
    control's), `warm_ms`, that of the `later` ones of the arm, and `gain`, cold over warm.

    Medians within repeats, means over them. `low` and `high` are the gain's interval over repeats, at least as wide as
    the gains of equal arms are apart; missing where there is neither. `computed` and `later` count requests,
    `cold_hits` and `warm_hits` are the tokens that the first and a later one found. The control's own row holds its
    first request against its later ones."""
    table = requests(frame, SHARED)
    control, rows, draws = table[table["arm"] == CONTROL], [], []
    for arm, of_arm in table.groupby("arm", sort=False):
        first, later = of_arm[of_arm["request"] == 1], of_arm[of_arm["request"] > 1]
        computed = first if arm == CONTROL else pandas.concat([first, control])
        cold, warm = (side.groupby("repeat")["ttft_ms"].median() for side in (computed, later))
        known = {"arm": arm} | {name: first[name].iloc[0] for name in ("prefix_tokens", "repeat_of")}
        draws.append((cold / warm).rename("gain").reset_index().assign(certificate=certificates.PASS, **known))
        counts = {"computed": len(computed), "later": len(later), "cold_ms": cold.mean(), "warm_ms": warm.mean()}
        hits = [side["device"].astype(float).mean() for side in (first, later)]
        rows.append(known | counts | {"cold_hits": hits[0], "warm_hits": hits[1]})
    floors = comparisons.floor(pandas.concat(draws), "gain", by="prefix_tokens") if draws else {}
    for row, drawn in zip(rows, draws, strict=True):
        ends = comparisons.interval(drawn["gain"], floors.get(row["prefix_tokens"], math.nan))
        row |= dict(zip(("gain", "low", "high"), ends, strict=True))
    return pandas.DataFrame(rows, columns=SEQUENCE)


def published() -> pandas.DataFrame:
    """The reference study's five requests, in the columns of `sequence`."""
    figures = reference.load(7).query("metric == 'ttft_ms' and host == 'l4x1'")
    table = figures.assign(arm=figures["arm"].map(OF_REFERENCE)).astype({"request": int})
    rows = []
    for arm, of_arm in table.groupby("arm", sort=False):
        later = of_arm[of_arm["request"] > 1]["value"]
        computed = of_arm[of_arm["request"] == 1]["value"]
        if arm != CONTROL:
            computed = pandas.concat([computed, table[table["arm"] == CONTROL]["value"]])
        cold, warm = computed.median(), later.median()
        rows.append(
            {
                "arm": arm,
                "prefix_tokens": REFERENCE_PREFIX,
                "computed": len(computed),
                "later": len(later),
                "cold_ms": cold,
                "warm_ms": warm,
                "gain": cold / warm,
            }
        )
    return pandas.DataFrame(rows).reindex(columns=SEQUENCE)


def gains(
    frame: pandas.DataFrame, arm: str = CACHED, control: str = CONTROL, metric: str = "request_throughput"
) -> pandas.DataFrame:
    """`arm` against `control` under each load with a share: `prefix_tokens`, `share`, `hit_rate` (measured, of the
    arm), `gain` with `low`, `high`, `floor` and `differs` as `comparisons.compare` has them, and `ttft_gain`.
    """
    cells = shared_loads(frame)
    if not {arm, control} <= set(cells["arm"]):
        return pandas.DataFrame(columns=GAINS)
    loads = cells.groupby(["arm", "load"]).agg(
        prefix_tokens=("prefix_tokens", "first"),
        share=("share", "first"),
        concurrency=("concurrency", "first"),
        hit_rate=("hit_rate", "mean"),
        request_throughput=("request_throughput", "mean"),
    )
    table = comparisons.of_arm(cells, metric, arm, control, by="load")
    ttft = comparisons.of_arm(cells, "median_ttft_ms", control, arm, by="load")
    own, against = loads.loc[arm].loc[table.index], loads.loc[control].loc[table.index]
    table = own.assign(
        gain=table["ratio"],
        **{name: table[name] for name in ("low", "high", "floor", "differs")},
        control_request_throughput=against["request_throughput"],
        ttft_gain=ttft["ratio"],
    )
    table["prefix_tokens"] = table["prefix_tokens"].astype(int)
    return table.sort_values(["prefix_tokens", "share"]).reset_index(drop=True)[GAINS]


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


def tier_words(frame: pandas.DataFrame) -> list[str]:
    """Of each arm with a tier, as parts of a sentence: the length at which most requests must hit before it pays, and
    where its files were read from.
    """
    table = miss_costs(frame).dropna(subset=["pays_above"])
    dearest = table.loc[table.groupby("arm", sort=False)["pays_above"].idxmax()] if len(table) else table
    return [
        f"{row.arm} loses {row.lost_ms:,.1f} ms a miss where it saves {row.saved_ms:,.1f} ms a hit "
        f"({row.prefix_tokens:,} tokens), and pays there above {row.pays_above:.0%} of hits"
        if row.lost_ms > 0
        else f"{row.arm} loses nothing by a miss"
        for row in dearest.itertuples()
    ] + [f"{arm} read its files from the {source}" for arm, source in read_from(frame).items()]


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
    not. `gb_s` is the rate at which bytes came back (10⁹ a second), from the differences in bytes and time between the
    longest and the shortest prefix. `link_gb_s` is what the link carries by the host's tables, and `predicted` is
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
                    float(reuse.break_even_tokens(shapes.load(cell["model"]), reuse.machine(host), link) or math.nan),
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


def predicted(plan) -> pandas.DataFrame:
    """What arithmetic expects on this host: `what`, `value`.

    Empty where the host's ceilings are not known, as on a CPU, or the model has experts.
    """
    parameters = plan.parameters
    try:
        host, shape = ceilings.of_host(plan.host.profile), shapes.load(plan.arms[0].model.folder)
        on, link = reuse.machine(host), reuse.links(host)
        prediction = reuse.prefix(shape, on, shared=parameters["sequence_prefix"], own=parameters["own_tokens"])
        rows = [
            ("cold_ms", 1000 * prediction.cold_s),
            ("warm_ms", 1000 * prediction.warm_s),
            ("gain", prediction.gain),
            ("cached_tokens", prediction.cached_tokens),
        ]
        for tier in ("cpu", "nvme"):
            if tier in link:
                rows += [
                    (f"{tier}_restore_ms", 1000 * reuse.restore_s(shape, link[tier], parameters["tier_prefix"])),
                    (f"{tier}_break_even_tokens", reuse.break_even_tokens(shape, on, link[tier]) or math.nan),
                ]
    except StudyError:
        rows = []
    return pandas.DataFrame(rows, columns=["what", "value"])


def quantised(frame: pandas.DataFrame, starts: pandas.DataFrame) -> pandas.DataFrame:
    """The cache of 8-bit numbers against the model's own: `what`, `own`, `fp8`, `ratio`.

    Empty where it was not measured.
    """
    sizes, rows = starts.set_index("arm"), []
    if QUANTISED not in set(frame["arm"]) or CACHED not in set(frame["arm"]):
        return pandas.DataFrame(rows, columns=["what", "own", "fp8", "ratio"])
    for what in ("kv_cache_tokens", "max_concurrency"):
        rows.append({"what": what, "own": sizes[what].get(CACHED), "fp8": sizes[what].get(QUANTISED)})
    cells = shared_loads(frame)
    for metric in ("request_throughput", "median_ttft_ms", "median_tpot_ms"):
        means = cells.groupby(["arm", "load"])[metric].mean()
        pairs = means.unstack("arm").reindex(columns=[CACHED, QUANTISED]).dropna()
        if len(pairs):
            own, fp8 = (comparisons.interval(pairs[arm])[0] for arm in pairs)
            rows.append({"what": f"{metric}, geometric mean over loads", "own": own, "fp8": fp8})
    return pandas.DataFrame(rows).assign(ratio=lambda table: table["fp8"] / table["own"])


def break_even_words(row) -> str:
    """A row of `break_even` as part of a sentence; it is of hits alone, a miss is `miss_costs`'."""
    if not math.isnan(row.measured):
        return f"from prefixes of about {row.measured:,.0f} tokens on, if all hit"
    return (
        f"from the shortest measured, {row.at_most:,.0f} tokens, on, if all hit"
        if not math.isnan(row.at_most)
        else f"from no length that was measured, the longest being {row.above:,.0f} tokens"
    )


def finding(frame: pandas.DataFrame, where: str = "On this host") -> str:
    """What was found, in sentences, each figure from certified cells; what was not measured is left out."""
    words, arms = [], sequence(frame).set_index("arm")
    if CACHED in arms.index and CONTROL in arms.index:
        row, control = arms.loc[CACHED], arms.loc[CONTROL]
        longer = comparisons.words(row["gain"], row["low"], row["high"], True, "as long as one that finds it")
        words.append(
            f"a request that computes a prefix of {int(row['prefix_tokens']):,} tokens waits for its first token "
            f"{longer} (medians of {row['computed']:.0f} and {row['later']:.0f} requests); without the cache the first "
            f"waits {control['gain']:.2f} times as long as those behind it"
        )
    if len(table := gains(frame)):
        best, _ = comparisons.extremes(table.rename(columns={"gain": "ratio"}).assign(arm=CACHED))
        if best is not None:
            many = comparisons.words(best["ratio"], best["low"], best["high"], best["differs"], "the requests")
            words.append(
                f"at a hit rate of {best['hit_rate']:.0%} (prefix of {best['prefix_tokens']:,.0f} tokens) a server "
                f"answers {many}, the most of {len(table)} loads"
            )
        elif table["differs"].isna().all():
            words.append(
                f"a server answers {table['gain'].min():.2f} to {table['gain'].max():.2f} times the requests over "
                f"{len(table)} loads, single draws with nothing beside them that bounds the noise"
            )
        else:
            words.append(f"under none of {len(table)} loads does a server certainly answer more requests")
    sources = by_source(frame)
    for row in sources[(sources["source"] == "external") & sources["against_recompute"].notna()].itertuples():
        words.append(f"{row.arm} gives a prefix back {row.against_recompute:.2f} times as soon as computing it")
    words += [f"{row.arm} pays {break_even_words(row)}" for row in break_even(frame).itertuples()]
    words += tier_words(frame)
    return f"{where} ({tables.labels(frame)}): {'; '.join(words)}." if words else "There is nothing to compare yet."
