"""Tidy frame in, matplotlib Figure out.

One colour an arm everywhere, colour-blind safe; failed cells hollow, never on a line.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas
from matplotlib.figure import Figure

from . import comparisons, reference, speculation, tables
from .errors import ParameterError

PALETTE = ("#4c4c4c", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d")


def setup() -> None:
    """Plain, deterministic figures."""
    plt.rcParams.update(
        {
            "svg.hashsalt": "book",
            "figure.dpi": 100,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "legend.frameon": False,
            "font.size": 9,
        }
    )


def colours(arms) -> dict[str, str]:
    return {arm: PALETTE[index % len(PALETTE)] for index, arm in enumerate(dict.fromkeys(arms))}


def over_concurrency(frame: pandas.DataFrame, metrics: tuple[str, ...]) -> Figure:
    """One panel a metric: each arm over concurrency, its repeats as dots, its mean as a line."""
    frame = frame[~frame["arm"].str.endswith(comparisons.AGAIN)]
    figure, axes = plt.subplots(1, len(metrics), figsize=(4.2 * len(metrics), 3.4), squeeze=False, layout="constrained")
    palette = colours(frame["arm"])
    for axis, metric in zip(axes[0], metrics, strict=True):
        means = comparisons.summary(frame, metric)
        for arm, colour in palette.items():
            line = means[means["arm"] == arm]
            axis.plot(
                line["concurrency"], line["mean"], color=colour, label=arm, marker="o", markersize=3.5, linewidth=1.4
            )
            cells = frame[frame["arm"] == arm]
            failed = cells[cells["certificate"] == "fail"]
            axis.scatter(failed["concurrency"], failed[metric], facecolors="none", edgecolors=colour, s=36, zorder=3)
        _concurrency_axis(axis, frame)
        axis.set_ylim(bottom=0)
        axis.set_ylabel(tables.METRIC_NAMES.get(metric, metric))
    axes[0][0].legend(fontsize=8)
    figure.suptitle(tables.labels(frame), fontsize=9, x=0.99, ha="right")
    return figure


def speedup(frame: pandas.DataFrame, metric: str = "output_throughput", baseline: str = "baseline") -> Figure:
    """Each arm's multiple of the baseline over concurrency, with its interval, the line at 1 and the noise floor around
    it.
    """
    table = comparisons.compare(frame, metric, baseline)
    floors = comparisons.floor(frame, metric)
    figure, axis = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
    palette = colours(frame["arm"])
    for arm in dict.fromkeys(table["arm"]):
        if arm.endswith(comparisons.AGAIN):
            continue
        rows = table[table["arm"] == arm]
        errors = np.nan_to_num(np.array([rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]]))
        axis.errorbar(
            rows["concurrency"],
            rows["ratio"],
            yerr=errors,
            color=palette[arm],
            label=arm,
            marker="o",
            markersize=3.5,
            linewidth=1.4,
            capsize=2.5,
        )
    axis.axhline(1, color="black", linewidth=0.9)
    if floors:
        at = sorted(floors)
        axis.fill_between(
            at,
            [math.exp(-floors[x]) for x in at],
            [math.exp(floors[x]) for x in at],
            color="black",
            alpha=0.1,
            linewidth=0,
            label="noise floor (A/A)",
        )
    _concurrency_axis(axis, frame)
    axis.set_ylim(bottom=0)
    axis.set_ylabel(f"multiple of {baseline}:\n{tables.METRIC_NAMES.get(metric, metric)}")
    axis.legend(fontsize=8, ncols=2)
    axis.set_title(tables.labels(frame), fontsize=9, loc="right")
    return figure


def acceptance(frame: pandas.DataFrame, reference_frame: pandas.DataFrame | None = None) -> Figure:
    """Acceptance rate over k, each concurrency a dot; the reference study's as crosses."""
    rows = comparisons.usable(frame).dropna(subset=["acceptance_rate"]).copy()
    figure, axis = plt.subplots(figsize=(5.0, 3.2), layout="constrained")
    groups = {"n-gram": ("ngram", PALETTE[1]), "draft model": ("draft", PALETTE[2])}
    for label, (prefix, colour) in groups.items():
        for source, marker, name in (
            (rows, "o", f"{label}, {tables.labels(frame)}"),
            (reference_frame, "x", f"{label}, reference study"),
        ):
            if source is None:
                continue
            mine = source[source["arm"].str.fullmatch(rf"{prefix}-k\d+")]
            if len(mine):
                ks = mine["arm"].str.extract(r"k(\d+)")[0].astype(int)
                column = "acceptance_rate" if "acceptance_rate" in mine else "value"
                axis.scatter(ks, mine[column], marker=marker, s=22, color=colour, label=name, alpha=0.85)
    axis.set_xlabel("draft tokens a round (k)")
    axis.set_ylabel("acceptance rate")
    axis.set_ylim(0, 1)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=7.5)
    return figure


def decomposition(frame: pandas.DataFrame, baseline: str = "baseline") -> Figure:
    """Stacked logarithms of the three factors, whole run and steady window: bars to the right help, and they add up to
    the ratio (the dot).
    """
    parts = {
        name: comparisons.decompose(frame, baseline, steady)
        for name, steady in (("whole run", False), ("steady window", True))
    }
    parts = {name: table[~table["arm"].str.endswith(comparisons.AGAIN)].iloc[::-1] for name, table in parts.items()}
    figure, axes = plt.subplots(
        1, 2, sharex=True, figsize=(8.0, 0.28 * max(3, *map(len, parts.values())) + 1.3), layout="constrained"
    )
    for axis, (title, table) in zip(axes, parts.items(), strict=True):
        places = np.arange(len(table))
        right, left = np.zeros(len(table)), np.zeros(len(table))
        for name, colour in (("latency", PALETTE[2]), ("occupancy", PALETTE[5]), ("mix", PALETTE[4])):
            width = np.log2(table[name].to_numpy(float))
            axis.barh(
                places,
                width,
                left=np.where(width >= 0, right, left),
                color=colour,
                label=name if name != "mix" else "work mix",
                height=0.7,
            )
            right, left = right + np.clip(width, 0, None), left + np.clip(width, None, 0)
        axis.plot(
            np.log2(table["ratio"].to_numpy(float)), places, "o", color="black", markersize=4, label="throughput ratio"
        )
        axis.axvline(0, color="black", linewidth=0.9)
        axis.set_yticks(
            places,
            [f"{arm}, {concurrency}" for arm, concurrency in zip(table["arm"], table["concurrency"], strict=True)],
            fontsize=7.5,
        )
        axis.xaxis.set_major_formatter(lambda value, _: f"{2**value:.2g}×")
        axis.set_xlabel(f"factor against {baseline} (logarithmic)")
        axis.set_title(title, fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7.5, ncols=4, loc="outside upper center")
    figure.supxlabel(tables.labels(frame), fontsize=9, x=0.99, ha="right")
    return figure


SOURCES = {
    "predicted": {"linestyle": "--", "linewidth": 1.2},
    "reference": {"linestyle": "none", "marker": "x", "markersize": 6},
    "measured": {"linestyle": "none", "marker": "o", "markersize": 4},
}


def surface(ks, marks: pandas.DataFrame, about: str) -> Figure:
    """Lines of equal speed-up over acceptance and cost, one panel a k, and on them `marks`: `label` (a colour),
    `alpha`, `cost`, `marker`, `filled`, and `k`, missing for a mark of every panel. `about` says in a corner where they
    are from.
    """
    alphas, highest = np.linspace(0, 0.99, 100), max(0.6, 1.15 * marks["cost"].max())
    costs = np.linspace(0.01, highest, 60)
    figure, axes = plt.subplots(
        1, len(ks), figsize=(3.1 * len(ks), 3.3), sharey=True, squeeze=False, layout="constrained"
    )
    palette = dict(zip(dict.fromkeys(marks["label"]), PALETTE[1:], strict=False))
    for axis, k in zip(axes[0], ks, strict=True):
        lines = axis.contour(
            alphas,
            costs,
            np.array([speculation.speedup(alphas, k, cost) for cost in costs]),
            levels=[0.5, 0.8, 1, 1.2, 1.5, 2, 3],
            cmap="viridis",
            linewidths=1,
        )
        axis.clabel(lines, fontsize=7)
        for mark in marks[marks["k"].isna() | (marks["k"] == k)].itertuples():
            axis.plot(
                mark.alpha,
                mark.cost,
                mark.marker,
                color=palette[mark.label],
                mfc=palette[mark.label] if mark.filled else "none",
            )
        axis.set(title=f"k = {k}", xlabel="acceptance probability α")
    axes[0, 0].set_ylabel("cost of a proposal (target passes)")
    figure.legend(
        [plt.Line2D([], [], color=colour, marker="o", linestyle="none") for colour in palette.values()],
        list(palette),
        fontsize=7.5,
        ncols=len(palette),
        loc="outside upper left",
    )
    figure.suptitle(about, fontsize=9, x=0.99, ha="right")
    return figure


def beside(rows: pandas.DataFrame, label: str, x: str = "concurrency", x_label: str = "") -> Figure:
    """Prediction, reference and measurement on one axis: dashed lines, crosses and dots, one colour an arm.

    `rows` has a row a point: `arm`, the column `x`, `value`, `source` (`predicted`, `reference` or `measured`), `host`,
    and, where there are any, `low` and `high`, the ends of an interval, and `labels`, what has to be said of the point
    (`comparisons.kinds`), which the legend says of its source. `theory.beside` makes it of sections 3 and 5; any other
    frame with these columns will do. Figures of several hosts may be on one axis as multiples alone.

        plots.beside(theory.beside(3, "l4x1", "total_token_throughput", cells), "multiple of the baseline")
    """
    unknown = sorted(set(rows["source"]) - set(SOURCES))
    if unknown:
        raise ParameterError("a source that is not drawn", value=", ".join(unknown), allowed=", ".join(SOURCES))
    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    palette, of_hosts = (
        colours(rows["arm"]),
        {
            source: [_labelled(host, cells, "\n") for host, cells in mine.groupby("host")]
            for source, mine in rows.groupby("source")
        },
    )
    for (source, _, arm), mine in rows.groupby(["source", "host", "arm"], sort=False):
        mine = mine.sort_values(x)
        axis.plot(mine[x], mine["value"], color=palette[arm], **SOURCES[source])
        if "low" in mine and mine["low"].notna().any():
            axis.vlines(mine[x], mine["low"], mine["high"], color=palette[arm], linewidth=1)
    for arm, colour in palette.items():
        axis.plot([], [], color=colour, linewidth=3, label=arm)
    for source, looks in SOURCES.items():
        if source in of_hosts:
            axis.plot([], [], color="black", **looks, label=f"{source}: {', '.join(of_hosts[source])}")
    if x == "concurrency":
        _concurrency_axis(axis, rows)
    else:
        axis.set_xlabel(x_label or x)
    axis.set_ylim(bottom=0)
    axis.set_ylabel(label)
    figure.legend(fontsize=7.5, ncols=min(5, len(palette)), loc="outside upper center")
    return figure


def predictions(errors: pandas.DataFrame, metric: str = "median TPOT (ms)") -> Figure:
    """Predicted over measured, a dot a cell, with the diagonal and 20 % on either side; what was left out is hollow,
    and a ring is around what a constant was chosen on.

    `errors` is `theory.errors`, a part of it, or any frame with its columns: `section`, `host`, `metric`, `predicted`,
    `measured`, `excluded`, `took_part`."""
    rows, published = errors[errors["metric"] == metric], reference.load()
    figure, axis = plt.subplots(figsize=(5.0, 4.0), layout="constrained")
    for (section, host), colour in zip(
        dict.fromkeys(zip(rows["section"], rows["host"], strict=True)), PALETTE[1:], strict=False
    ):
        mine = rows[(rows["section"] == section) & (rows["host"] == host)]
        kept, left = mine[mine["excluded"].isna()], mine[mine["excluded"].notna()]
        about = (
            "reference"
            if host in set(published.loc[published["section"] == section, "host"])
            else "random weights, prescribed acceptance"
        )
        axis.scatter(
            kept["measured"], kept["predicted"], s=20, color=colour, label=f"section {section}, {host}: {about}"
        )
        axis.scatter(
            left["measured"],
            left["predicted"],
            s=20,
            facecolors="none",
            edgecolors=colour,
            label="left out" if len(left) else None,
        )
    seen = rows[rows["took_part"].notna()]
    if len(seen):
        look = {"s": 60, "facecolors": "none", "edgecolors": "black", "linewidths": 0.8}
        axis.scatter(seen["measured"], seen["predicted"], **look, label="a constant was chosen on it")
    ends = np.array(
        [0.8 * rows[["measured", "predicted"]].min().min(), 1.25 * rows[["measured", "predicted"]].max().max()]
    )
    axis.plot(ends, ends, color="black", linewidth=0.9)
    axis.fill_between(ends, 0.8 * ends, 1.2 * ends, color="black", alpha=0.1, linewidth=0, label="within 20 %")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(f"measured: {metric}")
    axis.set_ylabel("predicted")
    axis.legend(fontsize=7.5)
    return figure


def effects(frame: pandas.DataFrame, metric: str) -> Figure:
    """One row a technique's arm at its lowest concurrency: measured, published, of the reference study and predicted,
    on one axis; a cross is what can be no basis, and a bar an interval over repeats.
    """
    rows = frame[(frame["metric"] == metric) & frame["ratio"].notna()]
    rows = rows[rows["concurrency"] == rows.groupby(["technique", "arm"])["concurrency"].transform("min")]
    names = list(dict.fromkeys(zip(rows["technique"], rows["arm"], strict=True)))[::-1]
    figure, axis = plt.subplots(figsize=(7.0, 0.34 * max(4, len(names)) + 1.1), layout="constrained")
    bases = list(dict.fromkeys(zip(rows["basis"], rows["host"], strict=True)))
    for place, (basis, host) in enumerate(bases):
        of_basis = rows[(rows["basis"] == basis) & (rows["host"] == host)]
        kinds = [name for name, *_ in comparisons.KINDS if of_basis["labels"].fillna("").str.contains(name).any()]
        label = f"{basis}, {host}" + (f" ({', '.join(kinds)})" if kinds else "")
        for grounded, part in of_basis.groupby("grounded", sort=False):
            at = np.array([names.index(pair) for pair in zip(part["technique"], part["arm"], strict=True)]) + 0.12 * (
                (len(bases) - 1) / 2 - place
            )
            errors = np.nan_to_num(np.array([part["ratio"] - part["low"], part["high"] - part["ratio"]], dtype=float))
            look = {"marker": "D", "markerfacecolor": "none"} if basis == "predicted" else {"marker": "o"}
            axis.errorbar(
                part["ratio"],
                at,
                xerr=errors,
                linestyle="none",
                markersize=5,
                capsize=2,
                color=PALETTE[1 + place],
                label=label,
                **(look if grounded else {"marker": "x"}),
            )
            label = None
    axis.axvline(1, color="black", linewidth=0.9)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}×")
    axis.set_yticks(range(len(names)), [technique if " " in arm else arm for technique, arm in names])
    axis.set_xlabel(f"{metric}, multiple of the arm replaced, lowest concurrency measured")
    figure.legend(fontsize=7.5, ncols=2, loc="outside upper center")
    return figure


def _labelled(name: str, rows: pandas.DataFrame, between: str = " ") -> str:
    """`h200x1 (random weights, prescribed acceptance)`: a name in a legend with what the `labels` of its rows say."""
    about = (
        dict.fromkeys(label for labels in rows["labels"].dropna() for label in labels.split(", ") if label)
        if "labels" in rows
        else ()
    )
    return f"{name}{between}({', '.join(about)})" if about else name


def _concurrency_axis(axis, frame) -> None:
    values = sorted(frame["concurrency"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [str(int(value)) for value in values])
    axis.minorticks_off()
    axis.set_xlabel("concurrency")
