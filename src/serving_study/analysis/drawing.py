"""What the book's figures share: one palette, one look, and seaborn's grids of lines and panels.

Nothing here estimates: a mean comes from `comparisons.summary`, an interval's ends from the columns `low` and `high` of
whoever compared. What can mislead: an interval whose ends are missing is not drawn, so that a dot without a bar is a
single draw, not a sure figure. seaborn is imported where it draws, since its import takes a second.

    grid = drawing.lines(claims.compare(frame, metric, "baseline"), "concurrency", "ratio")   # doctest: +SKIP
"""

import textwrap
from pathlib import Path

import numpy as np
import pandas
from matplotlib.figure import Figure

from .. import files
from ..results import store
from . import tables

# seaborn's "colorblind": its grey first, as baselines come first, and its two pale colours last. Written out so that a
# colour needs no import of seaborn, which takes a second.
PALETTE = (
    "#949494",
    "#0173b2",
    "#d55e00",
    "#029e73",
    "#cc78bc",
    "#de8f05",
    "#56b4e9",
    "#ca9161",
    "#fbafe4",
    "#ece133",
)
MARKERS = ("o", "s", "^", "D", "v", "X", "P")  # not a divisor of the colours' number: 70 arms look different
WIDTH = 7.0  # inches of every figure, panels together


def setup() -> None:
    """The look of every figure: one palette, fonts that read at 700 pixels, a white sheet for both themes, and the same
    bytes each time.
    """
    import seaborn

    sizes = {"font.size": 10, "axes.labelsize": 10, "axes.titlesize": 10, "legend.title_fontsize": 9}
    sizes |= dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9)
    seaborn.set_theme(
        style="ticks",
        palette=PALETTE,
        font="DejaVu Sans",  # comes with matplotlib, so that every machine has it
        rc=sizes
        | {
            "svg.hashsalt": "book",
            "figure.dpi": 100,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.5,
            "legend.frameon": False,
            "lines.linewidth": 1.5,
            "lines.markersize": 6,
        },
    )


def colours(arms, *, without_grey: bool = False) -> dict[str, str]:
    """A colour an arm, the first one's grey, as of a baseline; or `without_grey`, where there is no baseline."""
    hues = PALETTE[1:] if without_grey else PALETTE
    return {arm: hues[index % len(hues)] for index, arm in enumerate(dict.fromkeys(arms))}


def markers(arms) -> dict[str, str]:
    return {arm: MARKERS[index % len(MARKERS)] for index, arm in enumerate(dict.fromkeys(arms))}


def lines(
    rows: pandas.DataFrame, x: str, y: str, hue: str = "arm", column: str | None = None, *, palette=None, **layout
):
    """A seaborn grid with a line for each value of `hue`, in its colour and with its marker, one panel a value of
    `column`; where the rows have `low` and `high`, these are drawn as they are.

    `layout`: `across` (panels in a row) and `height` (inches of a panel)."""
    import seaborn

    across, height = layout.get("across", 2), layout.get("height", 3.2)
    if rows.empty:
        return _nothing(height)
    palette = palette or colours(rows[hue], without_grey=True)
    across = min(across, rows[column].nunique()) if column else 1
    grid = seaborn.relplot(
        rows,
        kind="line",
        x=x,
        y=y,
        hue=hue,
        style=hue,
        hue_order=[name for name in palette if name in set(rows[hue])],
        palette=palette,
        markers=markers(palette),
        dashes=False,
        estimator=None,
        errorbar=None,
        col=column,
        col_wrap=across if column else None,
        height=height,
        aspect=WIDTH / across / height,
        facet_kws={"sharex": False, "sharey": False, "legend_out": False},
    )
    if "low" in rows:
        for name, axis in grid.axes_dict.items() or {None: grid.ax}.items():
            intervals(axis, rows[rows[column] == name] if column else rows, x, y, hue, palette)
    return _laid_out(grid)


def panels(rows: pandas.DataFrame, column: str, across: int, height: float, **shared):
    """A seaborn grid of empty panels, one a value of `column`, to draw in what seaborn has no word for; no panel in
    `axes_dict` where there are no rows.
    """
    import seaborn

    if rows.empty:
        return _nothing(height)
    across = min(across, rows[column].nunique())
    grid = seaborn.FacetGrid(
        rows, col=column, col_wrap=across, height=height, aspect=WIDTH / across / height, despine=False, **shared
    )
    return _laid_out(grid)


def _nothing(height: float):
    """The grid of a figure without any: one empty panel that says so."""
    import seaborn

    grid = seaborn.FacetGrid(pandas.DataFrame(), height=height, aspect=WIDTH / height)
    grid.ax.text(0.5, 0.6, "nothing was measured", transform=grid.ax.transAxes, ha="center")
    return _laid_out(grid)


def _laid_out(grid):
    grid.set_titles("{col_name}")
    grid.figure.set_layout_engine("constrained")
    return grid


def dots(axis, rows: pandas.DataFrame, x: str, y: str, hue: str, palette: dict) -> None:
    """Each single draw, faint, behind the line of its `hue`: how far they are spread."""
    import seaborn

    if rows.empty:
        return
    look = {"s": 14, "alpha": 0.4, "linewidth": 0, "zorder": 1.8, "legend": False}
    seaborn.scatterplot(rows, x=x, y=y, hue=hue, palette=palette, ax=axis, **look)


def intervals(axis, rows: pandas.DataFrame, x: str, y: str, hue: str, palette: dict, sideways: bool = False) -> None:
    """Error bars from `low` to `high` as the rows have them, in the colour of each `hue`: the only intervals of the
    book's figures. With `sideways` they are of `x`.
    """
    rows = rows.dropna(subset=["low", "high"])
    for name, part in rows.groupby(hue, sort=False):
        value = part[x if sideways else y].astype(float)
        ends = np.array([value - part["low"].astype(float), part["high"].astype(float) - value]).clip(min=0)
        way = {"xerr": ends} if sideways else {"yerr": ends}
        axis.errorbar(
            part[x], part[y], fmt="none", ecolor=palette[name], elinewidth=1.1, capsize=2.5, zorder=1.9, **way
        )


def hollow(axis, rows: pandas.DataFrame, x: str, y: str, hue: str, palette: dict, label: str) -> None:
    """White points over those of a line, in the marker and colour of each `hue`; one entry of the legend, `label`."""
    if rows.empty:
        return
    shapes = markers(palette)
    for name, part in rows.groupby(hue, sort=False):
        look = {"facecolors": "white", "edgecolors": palette[name], "marker": shapes[name], "s": 30, "zorder": 3}
        axis.scatter(part[x], part[y], **look)
    axis.plot([], [], "o", color="black", markerfacecolor="white", label=f"hollow: {label}")


def legend(figure: Figure, most: int = 5) -> None:
    """One legend for all panels, above them and never over the data, in as many columns as fit, at most `most`."""
    named = {}
    for axis in figure.axes:
        handles, labels = axis.get_legend_handles_labels()
        if old := axis.get_legend():
            handles, labels = [*old.legend_handles, *handles], [*(text.get_text() for text in old.texts), *labels]
            old.remove()
        named = dict(zip(labels, handles, strict=True)) | named
    labels = ["\n".join(textwrap.fill(line, 90) for line in label.split("\n")) for label in named]
    for columns in range(min(most, len(named)), 0, -1):
        look = {"ncols": columns, "loc": "outside upper left", "columnspacing": 1.2}
        made = figure.legend(list(named.values()), labels, **look)
        if columns == 1 or made.get_window_extent().width <= figure.bbox.width:
            return
        made.remove()


def caption(figure: Figure, words: str) -> None:
    """Below the panels: what has to be said of the figures."""
    figure.supxlabel(textwrap.fill(words, 105), x=0.99, ha="right", fontsize=8, color="0.35")


def of(frame: pandas.DataFrame) -> str:
    """What a figure is of: `h200x1, random weights, prescribed acceptance; 5 repeats; vLLM 0.25.1`."""
    counts = frame.groupby(["arm", "load"])["repeat"].nunique() if "load" in frame else pandas.Series(dtype=int)
    low, high = (counts.min(), counts.max()) if len(counts) else (0, 0)
    repeats = f"{low} to {high} repeats" if low != high else f"{high} repeat{'s' if high > 1 else ''}" if high else ""
    return "; ".join(filter(None, [tables.labels(frame), repeats, engines(frame)]))


def engines(frame: pandas.DataFrame) -> str:
    """The engine's versions that the cells were measured with, from the records of their runs; empty without `file`."""
    runs = {Path(file).parents[3] / "run.json" for file in frame["file"].dropna()} if "file" in frame else set()
    return ", ".join(sorted(filter(None, {store.engine_of(files.read(run)) for run in runs if run.is_file()})))


def aside(values: pandas.Series, hues: pandas.Series) -> pandas.Series:
    """Places on a logarithmic axis, each hue's a little to the side of the others', so that no interval hides
    another's.
    """
    names = list(dict.fromkeys(hues))
    logs, middle = np.log2(values.astype(float)), (len(names) - 1) / 2
    width = 0.012 * max(1.0, logs.max() - logs.min())
    return 2 ** (logs + width * (hues.map(names.index).astype(float) - middle))


def concurrency_axis(axis, frame: pandas.DataFrame) -> None:
    """Concurrency on a logarithmic axis, with a tick at each value that was measured."""
    values = sorted(frame["concurrency"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [str(int(value)) for value in values])
    axis.minorticks_off()
    axis.set_xlabel("concurrency")


def multiples_axis(axis) -> None:
    """Multiples on a logarithmic axis: powers of 2 or of 4 where it is long, round numbers where it is short."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    octaves = np.log2(high / low)
    if octaves > 2:
        step = np.ceil(octaves / 7)
        ticks = 2.0 ** (step * np.arange(np.ceil(np.log2(low) / step), np.floor(np.log2(high) / step) + 1))
    else:
        step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / step <= 9)
        ticks = step * np.arange(np.ceil(low / step), np.floor(high / step) + 1)
    axis.set_ticks(ticks, [f"{tick:.3g}×" for tick in ticks])
    axis.set_ticks([], minor=True)
