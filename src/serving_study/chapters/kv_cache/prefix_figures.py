"""Section 7's figures, of the frames that `prefixes` and `working_sets` make.

>>> prefix_figures.gains_figure(results.frame())               # doctest: +SKIP
"""

import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ...analysis import drawing, plots
from ...results import reference
from .prefixes import CACHED, DEVICE, OF_REFERENCE, SHARED, SOURCES, WORKING_SET, gains, requests
from .working_sets import by_length, tiers

COLOURS = {"device": plots.PALETTE[3], "external": plots.PALETTE[1], "recompute": plots.PALETTE[2]}


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
    of each.
    """
    table = gains(frame, arm).sort_values(["prefix_tokens", "hit_rate"])
    table = table.assign(prefix=[f"prefix of {length:,} tokens" for length in table["prefix_tokens"]])
    of_ttft = table.assign(gain=table["ttft_gain"], low=table["ttft_low"], high=table["ttft_high"])
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
