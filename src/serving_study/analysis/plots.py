"""Tidy frame in, matplotlib Figure out, drawn with seaborn as `drawing` sets it up.

One colour and one marker an arm everywhere, colour-blind safe; failed cells hollow, never on a line.

    plots.setup(); plots.speedup(results.frame())                  # doctest: +SKIP
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas
from matplotlib.figure import Figure

from ..engines.base import OTHER, PHASES
from ..errors import ParameterError
from ..results import old_cells, reference
from . import claims, comparisons, drawing, tables
from .drawing import PALETTE, WIDTH, colours, setup  # noqa: F401 - notebooks take these from here

SOURCES = {
    "predicted": {"linestyle": "--", "linewidth": 1.2},
    "reference": {"linestyle": "none", "marker": "X", "markersize": 6},
    "measured": {"linestyle": "none", "marker": "o", "markersize": 6},
}


def over_concurrency(frame: pandas.DataFrame, metrics: tuple[str, ...]) -> Figure:
    """One panel a metric: each arm over concurrency, its repeats as faint dots, its mean as a line."""
    frame = comparisons.without_repeats(frame)
    means = [comparisons.summary(frame, metric).assign(metric=metric) for metric in metrics]
    palette = colours(frame["arm"])
    grid = drawing.lines(
        pandas.concat(means, ignore_index=True), "concurrency", "mean", column="metric", palette=palette
    )
    for metric, axis in grid.axes_dict.items():
        drawing.dots(axis, comparisons.usable(frame), "concurrency", metric, "arm", palette)
        failed = frame[(frame["certificate"] == "fail") & frame[metric].notna()]
        edges = list(failed["arm"].map(palette))
        axis.scatter(failed["concurrency"], failed[metric], facecolors="none", edgecolors=edges, s=36, zorder=3)
        drawing.concurrency_axis(axis, frame)
        axis.set(title="", ylabel=tables.METRIC_NAMES.get(metric, metric), ylim=(0, None))
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, drawing.of(frame))
    return grid.figure


def speedup(frame: pandas.DataFrame, metric: str = "output_throughput", baseline: str = "baseline") -> Figure:
    """Each arm's multiple of the baseline over concurrency with its interval, hollow where it is not decided, the line
    at 1 and the margin of equality around it: all of it on a logarithmic axis, where twice as fast and half as fast are
    equally far from 1.
    """
    table = comparisons.without_repeats(claims.compare(frame, metric, baseline))
    table = table.assign(at=drawing.aside(table["concurrency"], table["arm"]))
    palette = colours(frame["arm"])
    grid = drawing.lines(table, "at", "ratio", palette=palette, height=3.6)
    axis = grid.ax
    axis.axhline(1, color="black", linewidth=0.9, zorder=1.5)
    if len(table):
        margin = table["margin"].max()
        band = {"color": "black", "alpha": 0.1, "linewidth": 0, "label": f"equal within {100 * margin:g} %"}
        axis.axhspan(1 / (1 + margin), 1 + margin, **band)
    drawing.hollow(axis, table[table["claim"] == claims.UNDECIDED], "at", "ratio", "arm", palette, "not decided")
    drawing.concurrency_axis(axis, frame)
    drawing.multiples_axis(axis.yaxis)
    axis.set_ylabel(f"multiple of {baseline}:\n{tables.METRIC_NAMES.get(metric, metric)}")
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, drawing.of(frame))
    return grid.figure


def acceptance(frame: pandas.DataFrame, reference_frame: pandas.DataFrame | None = None) -> Figure:
    """Acceptance rate over k, a dot a cell; the reference study's as crosses."""
    import seaborn

    sources = {tables.labels(frame): comparisons.usable(frame).dropna(subset=["acceptance_rate"])}
    if reference_frame is not None:
        published = reference_frame.rename(columns={"value": "acceptance_rate"})
        sources["reference study"] = old_cells.with_arm_columns(published)
    techniques = {"n-gram": ("ngram", PALETTE[2]), "draft model": ("draft", PALETTE[1])}
    rows, palette, shapes = [], {}, {}
    for name, (technique, colour) in techniques.items():
        for source, cells in sources.items():
            shown = cells[(cells["technique"] == technique) & cells["distinction"].isna()]
            ks, label = shown["k"].astype(int), f"{name}, {source}"
            side = (-0.06 if technique == "ngram" else 0.06) * (1 if source == "reference study" else 2.5)
            rows.append(pandas.DataFrame({"k": ks + side, "rate": shown["acceptance_rate"], "label": label}))
            palette[label], shapes[label] = colour, "X" if source == "reference study" else "o"
    figure, axis = plt.subplots(figsize=(WIDTH, 3.8), layout="constrained")
    look = {"hue": "label", "style": "label", "palette": palette, "markers": shapes, "s": 36, "alpha": 0.8}
    points = pandas.concat(rows)
    if len(points):
        seaborn.scatterplot(points, x="k", y="rate", ax=axis, legend="full", **look)
    axis.set(xlabel="draft tokens a round (k)", ylabel="acceptance rate", ylim=(0, 1))
    axis.xaxis.get_major_locator().set_params(integer=True)
    drawing.legend(figure, most=2)
    drawing.caption(figure, drawing.of(frame))
    return figure


def decomposition(frame: pandas.DataFrame, baseline: str = "baseline") -> Figure:
    """Stacked logarithms of the three factors, whole run and steady window: bars to the right help, and they add up to
    the ratio (the dot).
    """
    parts = [
        comparisons.decompose(frame, baseline, steady).assign(window="steady window" if steady else "whole run")
        for steady in (False, True)
    ]
    table = pandas.concat(parts, ignore_index=True)
    table = comparisons.without_repeats(table)
    table = table.assign(row=[f"{cell.arm}, {cell.concurrency}" for cell in table.itertuples()])
    names = list(dict.fromkeys(table["row"]))[::-1]
    height = 0.24 * max(3, len(names)) + 1.2
    grid = drawing.panels(table, "window", 2, height)
    for window, axis in grid.axes_dict.items():
        rows = table[table["window"] == window]
        places = np.array([names.index(name) for name in rows["row"]])
        right, left = np.zeros(len(rows)), np.zeros(len(rows))
        for name, colour in (("latency", PALETTE[1]), ("occupancy", PALETTE[5]), ("mix", PALETTE[4])):
            width = np.log2(rows[name].to_numpy(float))
            starts, label = np.where(width >= 0, right, left), name if name != "mix" else "work mix"
            axis.barh(places, width, left=starts, color=colour, label=label, height=0.7, linewidth=0)
            right, left = right + np.clip(width, 0, None), left + np.clip(width, None, 0)
        ratios = np.log2(rows["ratio"].to_numpy(float))
        axis.plot(ratios, places, "o", color="black", markersize=4, label="throughput ratio")
        axis.axvline(0, color="black", linewidth=0.9)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_ylim(-0.6, len(names) - 0.4)
        axis.use_sticky_edges = False
        axis.margins(x=0.06)
        axis.xaxis.get_major_locator().set_params(nbins=6)
        axis.xaxis.set_major_formatter(lambda value, _: f"{2**value:.2g}×")
        axis.set_xlabel(f"factor against {baseline} (logarithmic)")
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, drawing.of(frame))
    return grid.figure


def start_phases(starts: pandas.DataFrame) -> Figure:
    """Where the seconds of each arm's start went, in stacked bars; old starts do not say, and are left out by name."""
    shown = starts[starts["phases"].map(lambda phases: isinstance(phases, dict))]
    figure, axis = plt.subplots(figsize=(WIDTH, 0.3 * max(2, len(shown)) + 1.2), layout="constrained")
    if shown.empty:
        words = "older starts do not say where their seconds went"
        axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", va="center")
        axis.set_axis_off()
        drawing.caption(figure, drawing.of(starts))
        return figure
    names, left = list(shown["arm"])[::-1], np.zeros(len(shown))
    for number, phase in enumerate(PHASES):
        width = np.array([phases.get(phase, 0.0) for phases in shown["phases"]])[::-1]
        colour = PALETTE[0] if phase == OTHER else PALETTE[number + 1]
        if width.any():
            axis.barh(range(len(names)), width, left=left, color=colour, label=phase, height=0.7, linewidth=0)
        left += width
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="seconds from the command to the first answer", ylim=(-0.6, len(names) - 0.4))
    axis.grid(axis="y", visible=False)
    drawing.legend(figure, most=len(PHASES))
    silent = [arm for arm in starts["arm"] if arm not in names]
    unsaid = f"; older starts, which do not say: {', '.join(silent)}" if silent else ""
    drawing.caption(figure, drawing.of(shown) + unsaid)
    return figure


def beside(rows: pandas.DataFrame, label: str, x: str = "concurrency", x_label: str = "") -> Figure:
    """Prediction, reference and measurement on one axis: dashed lines, crosses and dots, one colour an arm.

    `rows` has a row a point: `arm`, the column `x`, `value`, `source` (`predicted`, `reference` or `measured`), `host`,
    and, where there are any, `low` and `high`, the ends of an interval, and `labels`, what has to be said of the point
    (`comparisons.kinds`), which the legend says of its source.
    `theory.prediction_errors.with_measured` makes it of sections 3 and 5; any other frame with these columns will do.
    Figures of several hosts may be on one axis as multiples alone.

        rows = prediction_errors.with_measured(3, "l4x1", "total_token_throughput", cells)
        plots.beside(rows, "multiple of the baseline")
    """
    import seaborn

    unknown = sorted(set(rows["source"]) - set(SOURCES))
    if unknown:
        raise ParameterError("a source that is not drawn", value=", ".join(unknown), allowed=", ".join(SOURCES))
    figure, axis = plt.subplots(figsize=(WIDTH, 4.0), layout="constrained")
    palette = colours(rows["arm"], without_grey=True)
    look = {"x": x, "y": "value", "hue": "arm", "palette": palette, "legend": False, "ax": axis}
    predicted, points = rows[rows["source"] == "predicted"], rows[rows["source"] != "predicted"]
    dashed = {name: SOURCES["predicted"][name] for name in ("linestyle", "linewidth")}
    seaborn.lineplot(predicted, units="host", estimator=None, errorbar=None, **dashed, **look)
    shapes = {source: SOURCES[source]["marker"] for source in ("reference", "measured")}
    seaborn.scatterplot(points, style="source", markers=shapes, s=40, **look)
    if "low" in rows:
        drawing.intervals(axis, rows, x, "value", "arm", palette)
    for arm, colour in palette.items():
        axis.plot([], [], color=colour, linewidth=3, label=arm)
    for source, looks in SOURCES.items():
        of_source = rows[rows["source"] == source]
        hosts = [_labelled(host, cells, "\n") for host, cells in of_source.groupby("host")]
        if hosts:
            axis.plot([], [], color="black", **looks, label=f"{source}: {', '.join(hosts)}")
    if x == "concurrency":
        drawing.concurrency_axis(axis, rows)
    else:
        axis.set_xlabel(x_label or x)
    axis.set(ylabel=label, ylim=(0, None))
    drawing.legend(figure)
    return figure


def predictions(errors: pandas.DataFrame, metric: str = "median TPOT (ms)") -> Figure:
    """Predicted against measured, one dot a cell, with the diagonal and a band of 20 %. Cells left out are hollow;
    those on which a constant was chosen have a ring.

    `errors` is `theory.errors`, a part of it, or any frame with its columns: `section`, `host`, `metric`, `predicted`,
    `measured`, `excluded`, `took_part`."""
    import seaborn

    rows, published = errors[errors["metric"] == metric], reference.load()
    known = set(zip(published["section"], published["host"], strict=True))
    places = list(zip(rows["section"], rows["host"], strict=True))
    sources = {
        place: "reference" if place in known else "random weights, prescribed acceptance"
        for place in dict.fromkeys(places)
    }
    rows = rows.assign(label=[f"section {place[0]}, {place[1]}: {sources[place]}" for place in places])
    palette = dict(zip(dict.fromkeys(rows["label"]), PALETTE[1:], strict=False))
    figure, axis = plt.subplots(figsize=(WIDTH, 4.8), layout="constrained")
    ends = np.array([0.8, 1.25]) * rows[["measured", "predicted"]].stack().agg(["min", "max"]).to_numpy()
    axis.plot(ends, ends, color="black", linewidth=0.9)
    kept, left = rows[rows["excluded"].isna()], rows[rows["excluded"].notna()]
    look = {"x": "measured", "y": "predicted", "hue": "label", "style": "label", "palette": palette}
    seaborn.scatterplot(kept, markers=drawing.markers(palette), s=36, legend="full", ax=axis, **look)
    for label, part in left.groupby("label", sort=False):
        look = {"edgecolors": palette[label], "marker": drawing.markers(palette)[label], "s": 30}
        axis.scatter(part["measured"], part["predicted"], facecolors="none", **look)
    if len(left):
        axis.plot([], [], "o", color="black", markerfacecolor="none", label="hollow: left out")
    seen = rows[rows["took_part"].notna()]
    if len(seen):
        look = {"s": 80, "facecolors": "none", "edgecolors": "black", "linewidths": 0.8}
        axis.scatter(seen["measured"], seen["predicted"], **look, label="a constant was chosen on it")
    axis.fill_between(ends, 0.8 * ends, 1.2 * ends, color="black", alpha=0.1, linewidth=0, label="within 20 %")
    axis.set(xscale="log", yscale="log", xlabel=f"measured: {metric}", ylabel="predicted")
    drawing.legend(figure, most=2)
    return figure


def effects(frame: pandas.DataFrame, metric: str) -> Figure:
    """One row a technique's arm at its lowest concurrency: measured, published, of the reference study and predicted,
    on one axis; a cross is what can be no basis, and a bar the interval of a claim.
    """
    import seaborn

    rows = frame[(frame["metric"] == metric) & frame["ratio"].notna()]
    rows = rows[rows["concurrency"] == rows.groupby(["technique", "arm"])["concurrency"].transform("min")]
    names = list(dict.fromkeys(zip(rows["technique"], rows["arm"], strict=True)))[::-1]
    rows = rows.assign(source=rows["basis"] + ", " + rows["host"])
    labels = {}
    for source in dict.fromkeys(rows["source"]):
        said = rows.loc[rows["source"] == source, "labels"].fillna("")
        kinds = [name for name, *_ in comparisons.KINDS if said.str.contains(name).any()]
        labels[source] = source + (f" ({', '.join(kinds)})" if kinds else "")
    palette = colours(labels.values(), without_grey=True)
    rows = rows.assign(label=rows["source"].map(labels), row=list(zip(rows["technique"], rows["arm"], strict=True)))
    rows = rows.sort_values("label", key=lambda column: column.map(list(palette).index), kind="stable")
    rank, among = rows.groupby("row").cumcount(), rows.groupby("row")["label"].transform("count")
    rows = rows.assign(place=rows["row"].map(names.index) + 0.16 * ((among - 1) / 2 - rank))
    figure, axis = plt.subplots(figsize=(WIDTH, 0.4 * max(4, len(names)) + 1.7), layout="constrained")
    shapes = {label: "D" if label.startswith("predicted") else "o" for label in palette}
    look = {"x": "ratio", "y": "place", "hue": "label", "palette": palette, "hue_order": list(palette), "ax": axis}
    grounded, baseless = rows[rows["grounded"].astype(bool)], rows[~rows["grounded"].astype(bool)]
    look |= {"style": "label", "style_order": list(palette)}
    seaborn.scatterplot(grounded, markers=shapes, s=36, legend="full", **look)
    if len(baseless):
        seaborn.scatterplot(baseless, markers=dict.fromkeys(palette, "X"), s=50, legend=False, **look)
        axis.plot([], [], "X", color="black", label="no basis for a rule")
    drawing.intervals(axis, rows, "ratio", "place", "label", palette, sideways=True)
    axis.axvline(1, color="black", linewidth=0.9)
    axis.set_yticks(range(len(names)), [technique if " " in arm else arm for technique, arm in names])
    axis.set(xlabel=f"{metric}, multiple of the arm replaced,\nat the lowest concurrency measured", ylabel="")
    drawing.multiples_axis(axis.xaxis)
    drawing.legend(figure, most=2)
    return figure


def _labelled(name: str, rows: pandas.DataFrame, between: str = " ") -> str:
    """`h200x1 (random weights, prescribed acceptance)`: a name in a legend with what the `labels` of its rows say."""
    kinds = (
        dict.fromkeys(label for labels in rows["labels"].dropna() for label in labels.split(", ") if label)
        if "labels" in rows
        else ()
    )
    return f"{name}{between}({', '.join(kinds)})" if kinds else name
