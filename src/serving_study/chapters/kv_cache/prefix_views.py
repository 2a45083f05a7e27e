"""Section 7's tables and figures, of the frames that `prefixes` makes: tidy frame in, styled table or Figure out.

>>> prefix_views.gains_table(results.frame())                  # doctest: +SKIP
"""

import math

import numpy as np
import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from pandas.io.formats.style import Styler

from ...analysis import drawing, plots, tables, verdicts
from ...hardware import prices
from ...measure import mechanisms
from ...results import reference
from . import costs
from .prefixes import (
    CACHED,
    CONTROL,
    DEVICE,
    OF_REFERENCE,
    REFERENCE_PREFIX,
    SHARED,
    SOURCES,
    WORKING_SET,
    break_even,
    break_even_words,
    by_length,
    by_source,
    gains,
    miss_costs,
    moved,
    published,
    quantised,
    read_from,
    requests,
    sequence,
    tiers,
)

LOAD = {
    "prefix_tokens": ("prefix (tokens)", "{:,.0f}"),
    "share": "{:.0%}",
    "hit_rate": ("hit rate", "{:.1%}"),
    "times": ("working set", "{:g}×"),
}
GAIN = dict.fromkeys(("gain", "low", "high"), "{:.2f}×")
COLOURS = {"device": plots.PALETTE[3], "external": plots.PALETTE[1], "recompute": plots.PALETTE[2]}


def certificate(frame: pandas.DataFrame) -> Styler:
    """One row a cell: its verdict, how the mechanism was proved, and the evidence of what failed or could not be
    checked.
    """
    return tables.certificate(frame, by="load", proof=_proof)


def _proof(cell: dict) -> str:
    """The evidence of what a stored cell is about: its cache's hits, or that the caches were cold."""
    telling = "mechanism" if mechanisms.of(cell["technique"]).about_cache else "cold caches"
    return next(check["evidence"] for check in cell["certificate"]["checks"] if check["name"] == telling)


def sequence_table(frame: pandas.DataFrame, plan=None) -> Styler:
    """Requests that computed the prefix against those that found it, medians.

    With the plan of this host the reference study's stand beside it, and whether the gains may be compared.
    """
    shown = sequence(frame)
    if plan:
        theirs = published()
        shown = pandas.concat(
            [shown.assign(host=plan.host.name), theirs.assign(host="l4x1 (reference)")], ignore_index=True
        )
        shown["verdict"] = [
            _verdict(row, theirs, plan) if row.host == plan.host.name else "" for row in shown.itertuples()
        ]
        shown = shown[["host", *shown.columns.drop(["host", "verdict"]), "verdict"]]
    columns = {
        "computed": ("computed (requests)", None),
        "later": ("later (requests)", None),
        "cold_ms": ("computed (ms)", "{:,.1f}"),
        "warm_ms": ("later (ms)", "{:,.1f}"),
        "cold_hits": ("first found (tokens)", "{:,.0f}"),
        "warm_hits": ("later found (tokens)", "{:,.0f}"),
    }
    caption = f"Requests with one prefix, one after another: TTFT ({tables.labels(frame)})"
    return tables.style(shown, caption, LOAD | GAIN | columns)


def _verdict(row, theirs: pandas.DataFrame, plan) -> str:
    """In words, whether a gain may be held against the reference study's, and what came of it."""
    if row.arm not in set(theirs["arm"]):
        return ""
    model, gpus = plan.arms[0].model, plan.host.gpus
    unequal = [
        f"{what}: {ours} against {wanted}"
        for what, ours, wanted in (
            ("machine", gpus[0].name if gpus else plan.host.cpu_model, "NVIDIA L4"),
            ("model", verdicts.shape_name(model.name), "qwen2.5-7b"),
            ("weights", model.weights, "real"),
            ("prefix", row.prefix_tokens, REFERENCE_PREFIX),
        )
        if ours != wanted
    ]
    if unequal:
        return f"{verdicts.NOT_COMPARABLE} ({'; '.join(unequal)})"
    stated = theirs.set_index("arm")["gain"][row.arm]
    verdict = verdicts.REPRODUCES if verdicts.within(row.gain, stated) else verdicts.DIFFERS
    return f"{verdict} ({row.gain / stated - 1:+.1%})"


def requests_table(frame: pandas.DataFrame) -> Styler:
    """Each request of the sequence with its own hit counters; means over repeats."""
    table = requests(frame, SHARED).astype({"device": float})
    return tables.style(
        table.groupby(["arm", "request"], sort=False)[["ttft_ms", "server_ttft_ms", "device"]].mean().reset_index(),
        f"Request by request ({tables.labels(frame)})",
        {
            "ttft_ms": ("TTFT (ms)", "{:,.1f}"),
            "server_ttft_ms": ("by the server (ms)", "{:,.1f}"),
            "device": ("found in the cache (tokens)", "{:,.0f}"),
        },
    )


def gains_table(frame: pandas.DataFrame, arm: str = CACHED, price_per_hour: float | None = None) -> Styler:
    """Hit rate and gain by prefix and share; with a price, what a thousand requests cost with the arm and without."""
    table = gains(frame, arm)
    shown = table.drop(columns=["request_throughput", "control_request_throughput", "differs"])
    shown["floor"] = np.exp(shown["floor"])
    if price_per_hour:
        price = costs.price_of(frame["host"].iloc[0], price_per_hour)
        shown["USD a thousand requests"] = table["request_throughput"].map(price.per_thousand)
        shown["without"] = table["control_request_throughput"].map(price.per_thousand)
    return tables.style(
        shown,
        f"{arm} against {CONTROL}: requests a second, and median TTFT ({tables.labels(frame)})",
        LOAD
        | GAIN
        | {"floor": "{:.3f}×", "ttft_gain": ("TTFT gain", "{:.2f}×")}
        | dict.fromkeys(("USD a thousand requests", "without"), "{:.4f}"),
    )


USD = {
    "usd_per_hour": ("USD an hour", "{:,.4f}"),
    "usd_per_gpu_hour": ("USD a GPU-hour", "{:,.4f}"),
    "rented_thousand": ("USD a thousand requests, instance rented whole", "{:,.4g}"),
    "rented_million": ("USD a million tokens, instance rented whole", "{:,.4g}"),
    "usd_thousand": ("USD a thousand requests, this host's GPUs", "{:,.4g}"),
    "usd_million": ("USD a million tokens, this host's GPUs", "{:,.4g}"),
    "usd_million_output": ("USD a million output tokens, this host's GPUs", "{:,.4g}"),
    "usd_million_prompt": ("USD a million prompt tokens, this host's GPUs", "{:,.4g}"),
}


def costs_table(frames: dict[str, pandas.DataFrame], paid: dict) -> Styler:
    """What the loads under concurrency cost, host by host (`costs.of_cells`), of the hosts with a price."""
    table = pandas.concat([costs.of_cells(frame, paid[host]) for host, frame in frames.items()], ignore_index=True)
    return tables.style(
        table,
        f"What requests cost, from the rates measured{'' if len(table) else ' (no price is known)'}",
        LOAD | USD | {"requests_s": ("requests a second", "{:,.2f}"), "against": ("against no cache", "{:.2f}×")},
    )


def instance_costs_table() -> Styler:
    """What tokens and requests cost instance by instance, from the rates of sections 3 and 5 (`costs.measured`)."""
    return tables.style(
        costs.measured(),
        "Instance by instance, at the concurrency with the highest rate",
        USD | {"tokens_s": ("tokens a second", "{:,.0f}")},
    )


def instances_table() -> Styler:
    """Every instance type with its price, and what fits (`costs.instances`)."""
    return tables.style(
        costs.instances(),
        f"Instance types by the hour ({prices.REGION}, Linux, on demand), and the requests that fit at once "
        "(predicted)",
        USD
        | {"gpu": ("GPU", None), "gpus": ("GPUs", None), "memory_gib": ("GiB each", "{:.1f}")}
        | {short: (f"8K requests of {short}", "{:,.1f}") for short in costs.SERVED},
    )


def quantised_table(frame: pandas.DataFrame, starts: pandas.DataFrame) -> Styler:
    """`quantised` as it is shown: counts whole, times and rates to two places."""
    table = quantised(frame, starts)
    shown = table.assign(
        **{
            side: [f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}" for value in table[side]]
            for side in ("own", "fp8")
        }
    )
    return tables.style(
        shown, f"A KV cache of 8-bit numbers beside the model's own ({tables.labels(frame)})", {"ratio": "{:.2f}×"}
    )


def tiers_table(frame: pandas.DataFrame) -> Styler:
    """Where each round's prompt tokens came from, and what that took."""
    return tables.style(
        tiers(frame),
        f"Working sets in the device's cache and below it: where prompt tokens came from ({tables.labels(frame)})",
        LOAD
        | dict.fromkeys(SOURCES, "{:.0%}")
        | {
            "prefixes": "{:.0f}",
            "capacity_tokens": ("cache (tokens)", "{:,.0f}"),
            "working_set_tokens": ("in blocks (tokens)", "{:,.0f}"),
            "median_ttft_ms": ("median TTFT (ms)", "{:,.1f}"),
        },
    )


def moved_table(frame: pandas.DataFrame, plan=None) -> Styler:
    """Bytes into and out of each tier, and what they were counted by."""
    return tables.style(
        moved(frame, plan).replace({"tier": {"": tables.DASH}}),
        f"What went below the device and came back ({tables.labels(frame)})",
        LOAD | {"in_mib": ("in (MiB)", "{:,.1f}"), "out_mib": ("out (MiB)", "{:,.1f}")},
    )


def by_source_table(frame: pandas.DataFrame) -> Styler:
    """What a prefix takes from each source; of a tier on disk, where its bytes were read from."""
    table, places = by_source(frame), read_from(frame)
    read = [places.get(row.arm) if row.source == "external" else None for row in table.itertuples()]
    return tables.style(
        table.assign(**{"disk read from": read}),
        f"What a prefix takes from each source ({tables.labels(frame)})",
        {"ttft_ms": ("median TTFT (ms)", "{:,.1f}"), "against_recompute": ("against computing", "{:.2f}×")},
    )


def break_even_table(frame: pandas.DataFrame) -> Styler:
    """Tier by tier, the length from which a prefix comes back sooner than it is computed: measured, and by the bytes
    alone.
    """
    table = break_even(frame)
    table = table.assign(pays=[break_even_words(row) for row in table.itertuples()])
    return tables.style(
        table[["arm", "pays", "predicted", "gb_s", "link_gb_s"]],
        f"From which length on a prefix comes back sooner than device-only computes it ({tables.labels(frame)})",
        {
            "predicted": ("predicted (tokens)", "{:,.0f}"),
            "gb_s": ("GB/s", "{:,.2f}"),
            "link_gb_s": ("link (GB/s)", "{:,.1f}"),
        },
    )


def miss_costs_table(frame: pandas.DataFrame) -> Styler:
    """What a hit saves and a miss loses by arm and length, and the share of hits above which a tier pays."""
    return tables.style(
        miss_costs(frame),
        f"What a miss costs in an arm with a tier, medians of requests ({tables.labels(frame)})",
        LOAD
        | {
            "computed_ms": ("device-only computes (ms)", "{:,.1f}"),
            "restored_ms": ("a hit (ms)", "{:,.1f}"),
            "missed_ms": ("a miss (ms)", "{:,.1f}"),
            "saved_ms": ("saved a hit (ms)", "{:,.1f}"),
            "lost_ms": ("lost a miss (ms)", "{:,.1f}"),
            "pays_above": ("pays above, share of hits", "{:.0%}"),
        },
    )


def break_even_figure(frame: pandas.DataFrame) -> Figure:
    """TTFT over the prefix's length: computed by `device-only`, and given back by each tier; each request a faint dot,
    their median a line.
    """
    table, computed = by_length(frame), f"computed ({DEVICE})"
    medians = [
        table.drop_duplicates("prefix_tokens").assign(label=computed, ms=lambda rows: rows["computed_ms"]),
        table.assign(label="given back: " + table["arm"], ms=table["restored_ms"]),
    ]
    medians = pandas.concat(medians, ignore_index=True)
    palette = plots.colours(medians["label"])
    grid = drawing.lines(medians, "prefix_tokens", "ms", "label", palette=palette, height=3.8)
    drawing.dots(grid.ax, _requests_behind(frame, table, computed), "prefix_tokens", "ttft_ms", "label", palette)
    grid.set(xlabel="tokens of the prefix", ylabel="TTFT (ms)", xscale="log", yscale="log")
    axis, lengths = grid.ax, sorted(table["prefix_tokens"].unique())
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:,g}")
    drawing.legend(grid.figure, most=3)
    drawing.caption(grid.figure, drawing.of(frame))
    return grid.figure


def _requests_behind(frame: pandas.DataFrame, table: pandas.DataFrame, computed: str) -> pandas.DataFrame:
    """The requests that `by_length` takes its medians of, by the names that the figure gives them."""
    rows = requests(frame, WORKING_SET)
    rows = rows[rows["prefix_tokens"].isin(table["prefix_tokens"])]
    names = [
        computed
        if request.arm == DEVICE and request.source == "recompute"
        else f"given back: {request.arm}"
        if request.source == "external" and request.arm in set(table["arm"])
        else None
        for request in rows.itertuples()
    ]
    return rows.assign(label=names).dropna(subset=["label"])


def sequence_figure(frame: pandas.DataFrame) -> Figure:
    """TTFT request by request, each repeat a faint dot, their mean a line, one line an arm; the reference study's as
    crosses; all relative to each first request.
    """
    import seaborn

    table = requests(frame, SHARED)
    means = table.groupby(["arm", "request"], sort=False)["ttft_ms"].mean().reset_index()
    first = means[means["request"] == 1].set_index("arm")["ttft_ms"]
    means, table = (rows.assign(ratio=rows["ttft_ms"] / rows["arm"].map(first)) for rows in (means, table))
    palette = plots.colours(table["arm"])
    grid = drawing.lines(means, "request", "ratio", palette=palette, height=3.6)
    drawing.dots(grid.ax, table, "request", "ratio", "arm", palette)
    figures = reference.load(7).query("metric == 'ttft_ms' and host == 'l4x1'")
    figures = figures.assign(of=figures["arm"].map(OF_REFERENCE))
    base = figures[figures["request"] == 1].set_index("of")["value"]
    crosses = figures.assign(ratio=figures["value"] / figures["of"].map(base), label=figures["of"] + ", reference")
    shades = {f"{arm}, reference": palette.get(arm, "black") for arm in crosses["of"]}
    look = {"hue": "label", "palette": shades, "marker": "X", "s": 45, "ax": grid.ax}
    seaborn.scatterplot(crosses, x="request", y="ratio", **look)
    grid.ax.set(xlabel="request", ylabel="TTFT, the first\nrequest's being 1", ylim=(0, None))
    grid.ax.xaxis.get_major_locator().set_params(integer=True)
    drawing.legend(grid.figure, most=3)
    drawing.caption(grid.figure, drawing.of(frame))
    return grid.figure


def gains_figure(frame: pandas.DataFrame, arm: str = CACHED) -> Figure:
    """Gain in requests a second and in TTFT over the measured hit rate, one line a prefix length, with the interval
    over repeats.
    """
    table = gains(frame, arm).sort_values(["prefix_tokens", "hit_rate"])
    table = table.assign(prefix=[f"prefix of {length:,} tokens" for length in table["prefix_tokens"]])
    of_ttft = table.assign(gain=table["ttft_gain"], low=math.nan, high=math.nan)
    names = {"requests a second": table, "median TTFT": of_ttft}
    rows = pandas.concat([part.assign(of=name) for name, part in names.items()], ignore_index=True)
    grid = drawing.lines(rows, "hit_rate", "gain", "prefix", "of", height=3.1)
    for axis, name in zip(grid.axes.flat, names, strict=False):
        axis.axhline(1, color="black", lw=0.9)
        axis.set(xlabel="hit rate (of prompt tokens, measured)", ylabel=f"gain: {name}", xlim=(-0.04, 1.04), title="")
        drawing.multiples_axis(axis.yaxis)
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, drawing.of(frame))
    return grid.figure


def tiers_figure(frame: pandas.DataFrame) -> Figure:
    """Where the tokens of the last round came from over the working set's size (bars), and its median TTFT (dots), one
    panel an arm.
    """
    import seaborn

    table = tiers(frame)
    table = table[table["round"] == table["round"].max()]
    times = sorted(table["times"].unique())
    table = table.assign(place=[times.index(value) for value in table["times"]])
    across, most = 3, table["median_ttft_ms"].max() if len(table) else 1.0
    grid = drawing.panels(table, "arm", across, 2.5)
    for place, (arm, axis) in enumerate(grid.axes_dict.items()):
        rows = table[table["arm"] == arm].sort_values("place")
        shares = rows.melt(["place"], list(SOURCES), "source", "share").astype({"share": float})
        stack = {"hue": "source", "hue_order": SOURCES[::-1], "multiple": "stack", "palette": COLOURS, "alpha": 1}
        bars = {"discrete": True, "shrink": 0.7, "linewidth": 0, "legend": False}
        seaborn.histplot(shares, x="place", weights="share", ax=axis, **stack, **bars)
        right = axis.twinx()
        dots = {"color": "black", "marker": "o", "estimator": None, "errorbar": None}
        seaborn.lineplot(rows, x="place", y="median_ttft_ms", ax=right, **dots)
        right.set(ylim=(0, 1.1 * most), ylabel="")
        right.grid(False)
        right.spines["right"].set_visible(True)
        axis.tick_params(labelleft=place % across == 0)
        axis.set_xticks(range(len(times)), [f"{value:g}×" for value in times])
        axis.grid(False)
    grid.set_axis_labels("working set, in caches", "share of prompt tokens")
    for source in SOURCES:
        grid.axes.flat[0].bar([0], [0], color=COLOURS[source], label=source)
    grid.axes.flat[0].plot([], [], "o-", color="black", label="median TTFT (ms, right)")
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, drawing.of(frame))
    return grid.figure
