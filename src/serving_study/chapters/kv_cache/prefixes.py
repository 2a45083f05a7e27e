"""Section 7's frames: what a cache gave back, request by request, and what that was worth.

Everything is read from stored cells. What can mislead: a load's concurrency does not tell it from another one here, so
that these frames go by the prefix, the share and the working set; a hit rate is of prompt tokens, so that a share of 1
stays below it by what every prompt has of its own; times to first token are the client's, which hold the making of
tokens from text, and `server_ttft_ms` are without.

    >>> prefixes.sequence(results.frame())                         # doctest: +SKIP
"""

import math

import pandas

from ... import paths
from ...analysis import claims, comparisons, host_tables
from ...engines import base
from ...errors import StudyError
from ...hardware import ceilings
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
    "prefix_tokens share concurrency hit_rate request_throughput control_request_throughput gain low high claim "
    "blocks more_blocks more_minutes margin ttft_gain ttft_low ttft_high"
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
        for host in host_tables.other_hosts(plan.section, {plan.host.name})
    }
    return {
        host: frame.assign(place=frame["arm"].where(frame["repeat_of"].isna(), None).map(order))
        .sort_values("place", kind="stable", ignore_index=True)
        .drop(columns="place")
        for host, frame in cells_by_host.items()
    }


def in_blocks() -> pandas.DataFrame:
    """The cells of a later lease of an H200: the prefix cache, its twin and its control, each in two lives."""
    return store.Store("h200x1", "7-blocks", paths.RESULTS_PUBLISHED).newest()


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
    arm), `gain` with `blocks` and what is claimed of it (`claims.CLAIMED`), and `ttft_gain` with `ttft_low` and
    `ttft_high`.
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
    table = claims.of_arm(cells, metric, arm, control, by="load")
    ttft = claims.inverted(claims.of_arm(cells, "median_ttft_ms", arm, control, by="load"))
    own, against = loads.loc[arm].loc[table.index], loads.loc[control].loc[table.index]
    table = own.assign(
        gain=table["ratio"],
        **{name: table[name] for name in ("blocks", *claims.CLAIMED)},
        control_request_throughput=against["request_throughput"],
        **{f"ttft_{name}": ttft[column] for name, column in (("gain", "ratio"), ("low", "low"), ("high", "high"))},
    )
    table["prefix_tokens"] = table["prefix_tokens"].astype(int)
    return table.sort_values(["prefix_tokens", "share"]).reset_index(drop=True)[GAINS]


def predicted(plan) -> pandas.DataFrame:
    """What arithmetic expects on this host: `what`, `value`.

    Empty where the host's ceilings are not known, as on a CPU, or the model has experts.
    """
    parameters = plan.parameters
    try:
        host, shape = ceilings.of_host(plan.host.profile), shapes.load(plan.arms[0].model.folder)
        on, link = reuse.prefill_machine(host), reuse.links(host)
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
    """The cache of 8-bit numbers against the model's own: `what`, `own`, `fp8`, `ratio`, and of what was measured under
    load, all loads together, what is claimed (`claims.CLAIMED`).

    Empty where it was not measured.
    """
    claimed = list(claims.CLAIMED)
    sizes, rows = starts.set_index("arm"), []
    if QUANTISED not in set(frame["arm"]) or CACHED not in set(frame["arm"]):
        return pandas.DataFrame(rows, columns=["what", "own", "fp8", "ratio", *claimed])
    for what in ("kv_cache_tokens", "max_concurrency"):
        own, fp8 = (sizes[what].get(arm) for arm in (CACHED, QUANTISED))
        rows.append({"what": what, "own": own, "fp8": fp8, "ratio": fp8 / own})
    cells = shared_loads(frame)
    # A load is a block here: its ratio is taken within it, and so is each repeat's.
    blocks = cells.assign(repeat=cells["load"] + "/" + cells["repeat"].astype(str), loads=SHARED)
    for metric in ("request_throughput", "median_ttft_ms", "median_tpot_ms"):
        table = claims.of_arm(blocks, metric, QUANTISED, CACHED, by="loads") if CACHED in set(cells["arm"]) else ()
        if len(table):
            means = cells.groupby(["arm", "load"])[metric].mean().unstack("arm").dropna(subset=[CACHED, QUANTISED])
            own = comparisons.interval(means[CACHED])[0]
            row = table.iloc[0]
            figures = {"own": own, "fp8": own * row["ratio"], "ratio": row["ratio"]}
            rows.append({"what": f"{metric}, geometric mean over loads"} | figures | row[claimed].to_dict())
    return pandas.DataFrame(rows, columns=["what", "own", "fp8", "ratio", *claimed])
