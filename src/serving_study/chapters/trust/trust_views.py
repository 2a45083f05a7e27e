"""Section 12's tables and figures, and the values in its sentences.

What can mislead: shares are of drawn chapters; their intervals say how many were drawn.

    >>> trust_views.false_claims_figure(trials.false_claims(noise, chapters=2000, seed=42))  # doctest: +SKIP
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from pandas.io.formats.style import Styler

from ...analysis import drawing, tables
from ...results.looks import LEVEL
from . import trials
from .drawn_chapters import (
    DISTURBANCES,
    DRIFT,
    DRIFT_LEFT,
    SLOW_BLOCK,
    SLOW_BLOCK_LEFT,
    SLOW_LIFE,
    SLOW_LIFE_LEFT,
    STEADY,
)
from .noise import CONFIDENCE, Noise
from .trials import USUAL

SHORT = {STEADY: "steady", DRIFT: "drift", SLOW_LIFE: "slow_life", SLOW_BLOCK: "slow_block"}
REPEATED = trials.REPEATS.format(USUAL.blocks)
NONE = "over {}"  # where no number of blocks that was drawn decides


def noise_table(noise: Noise, frame: pandas.DataFrame) -> Styler:
    """`Noise.table`, as it is shown."""
    headings = {
        "blocks": "between blocks",
        "lives": "between lives",
        "lives_bound": "between lives, at most",
        "rest": "the rest",
    }
    return tables.style(
        noise.table(),
        f"Standard deviations of the logarithm of output throughput in the steady window: {len(noise.block)} blocks, "
        f"{len(noise.life)} lives of equal servers ({tables.labels(frame)})",
        {name: (heading, "{:.3f}") for name, heading in headings.items()},
    )


def false_claims_table(rows: pandas.DataFrame, caption: str, frame: pandas.DataFrame) -> Styler:
    """One line a rule, one column a disturbance: the share of chapters with a false claim, with its interval."""
    shown = rows.assign(share=[_said(row) for _, row in rows.iterrows()])
    shown = shown.pivot(index="rule", columns="disturbance", values="share")
    shown = shown.reindex(index=rows["rule"].unique(), columns=rows["disturbance"].unique())
    return tables.style(shown, f"{caption} ({tables.labels(frame)})", index=True)


def _said(row: pandas.Series) -> str:
    """`2.5% (1.9% to 3.3%)`: a share with its ends, where it has any."""
    ends = "" if np.isnan(row["low"]) else f" ({row['low']:.1%} to {row['high']:.1%})"
    return f"{row['share']:.1%}{ends}"


def false_claims_figure(rows: pandas.DataFrame, frame: pandas.DataFrame) -> Figure:
    """The share of chapters with a false claim by disturbance, a colour a rule; the line is the level."""
    import seaborn

    rules = list(rows["rule"].unique())
    palette = drawing.colours(rules, without_grey=True)
    step = 0.22
    places = {name: place for place, name in enumerate(reversed(DISTURBANCES))}
    beside = {rule: step * ((len(rules) - 1) / 2 - place) for place, rule in enumerate(rules)}
    rows = rows.assign(at=rows["disturbance"].map(places) + rows["rule"].map(beside))
    figure, axis = plt.subplots(figsize=(drawing.WIDTH, 3.4), layout="constrained")
    seaborn.scatterplot(
        rows,
        x="share",
        y="at",
        hue="rule",
        style="rule",
        palette=palette,
        markers=drawing.markers(rules),
        s=40,
        ax=axis,
    )
    drawing.intervals(axis, rows, "share", "at", "rule", palette, sideways=True)
    axis.axvline(LEVEL, color="black", linewidth=0.9, linestyle="--", label=f"{LEVEL:.0%}")
    axis.set(xlim=(-0.01, 1.01), xlabel="chapters with at least one false claim", ylabel="")
    axis.set_yticks(list(places.values()), list(places))
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.get_legend().set_title(None)
    drawing.legend(figure)
    drawing.caption(figure, f"{rows['chapters'].max():,} drawn chapters for each dot; {drawing.of(frame)}")
    return figure


def power_figure(power: pandas.DataFrame, frame: pandas.DataFrame, lives: int = 2) -> Figure:
    """The share of claims that are decided over the number of blocks, a line an effect, a panel a concurrency."""
    rows = power[(power["effect"] > 0) & (power["lives"] == lives)]
    rows = rows.assign(
        faster=rows["effect"].map("{:.0%} faster".format), place=rows["concurrency"].map("concurrency {}".format)
    )
    grid = drawing.lines(rows, "blocks", "decided", "faster", "place", across=3, height=2.7)
    for axis in grid.axes_dict.values():
        axis.axhline(trials.DECIDED, color="black", linewidth=0.9, linestyle="--", zorder=1.5)
        axis.set_xscale("log", base=2)
        counts = sorted(rows["blocks"].unique())
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.minorticks_off()
        axis.set(ylim=(-0.03, 1.03), ylabel="claims decided")
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, f"{lives} lives an arm; {drawing.of(frame)}")
    return grid.figure


def widths_table(power: pandas.DataFrame, frame: pandas.DataFrame) -> Styler:
    """The median half-width of the intervals of equal arms, by blocks and lives, a column a concurrency."""
    shown = power[power["effect"] == 0].pivot(index=["lives", "blocks"], columns="concurrency", values="half_width")
    shown = shown.rename(columns="concurrency {}".format).reset_index()
    return tables.style(
        shown,
        "Median half-width of the interval of a ratio of output throughputs, all claims of a chapter holding together "
        f"({tables.labels(frame)})",
        {name: "{:.1%}" for name in shown.columns[2:]},
    )


def blocks_table(power: pandas.DataFrame, frame: pandas.DataFrame) -> Styler:
    """How many blocks decide an effect, by effect and lives, a column a concurrency."""
    most, needed = int(power["blocks"].max()), trials.blocks_to_decide(power)
    needed = needed.assign(
        blocks=[NONE.format(most) if np.isnan(count) else f"{count:.0f}" for count in needed["blocks"]],
        effect=needed["effect"].map("{:.0%}".format),
    )
    shown = needed.pivot(index=["effect", "lives"], columns="concurrency", values="blocks")
    order = [(f"{effect:.0%}", lives) for effect in trials.EFFECTS[1:] for lives in trials.LIVES]
    shown = shown.reindex(order).rename(columns="concurrency {}".format).reset_index()
    return tables.style(
        shown,
        f"Fewest of {_counts(power)} blocks that decide a difference in {trials.DECIDED:.0%} of chapters "
        f"({tables.labels(frame)})",
    )


def _counts(power: pandas.DataFrame) -> str:
    *first, last = (str(count) for count in sorted(power["blocks"].unique()))
    return f"{', '.join(first)} and {last}"


def values(
    noise: Noise, false: pandas.DataFrame, otherwise: pandas.DataFrame, power: pandas.DataFrame
) -> dict[str, float | str]:
    """The numbers in the chapter's sentences."""
    spread = noise.table()
    found = {
        "blocks": len(noise.block),
        "lives": len(noise.life),
        "block_s": (USUAL.arms + USUAL.twins) * noise.cell_s.sum(),
        "claims": (USUAL.arms + USUAL.twins - 1) * len(noise.places),
        "arms": USUAL.arms,
        "twins": USUAL.twins,
        "usual_blocks": USUAL.blocks,
        "usual_lives": USUAL.lives,
        "level": LEVEL,
        "decided": trials.DECIDED,
        "confidence": CONFIDENCE,
        "drift": 1 - DRIFT_LEFT,
        "slow_life": 1 - SLOW_LIFE_LEFT,
        "slow_block": 1 - SLOW_BLOCK_LEFT,
        **{f"effect_{number}": effect for number, effect in enumerate(trials.EFFECTS) if effect},
    }
    for part in ("blocks", "lives", "rest"):
        found |= {f"{part}_low": spread[part].min(), f"{part}_high": spread[part].max()}
    names = {trials.BLOCKS: "now", trials.ONE_REPEAT: "one", REPEATED: "repeated"}
    for row in false.itertuples():
        place = f"{names[row.rule]}_{SHORT[row.disturbance]}"
        found |= {place: row.share, f"{place}_claims": row.claims}
    found |= {"worst": false.loc[false["rule"] == trials.BLOCKS, "share"].max()}
    named = {trials.LOOKED: "looked", trials.AT_BOUND: "bound", trials.RENAMED: "renamed"}
    found |= {named[row.rule]: row.share for row in otherwise.itertuples()}
    usual = power[(power["blocks"] == USUAL.blocks) & (power["lives"] == USUAL.lives)]
    widths = usual.loc[usual["effect"] == 0, "half_width"]
    return found | {"width_low": widths.min(), "width_high": widths.max()}


def finding(false: pandas.DataFrame, power: pandas.DataFrame) -> str:
    """What the chapter found, in sentences: whether the rule keeps to its level, what the one before did, and what can
    be decided.
    """
    now = false[false["rule"] == trials.BLOCKS].set_index("disturbance")
    worst = now.loc[now["share"].idxmax()]
    verdict = (
        "keeps to it"
        if worst["high"] <= LEVEL
        else "does not keep to it"
        if worst["low"] > LEVEL
        else "is so near to it that these chapters cannot tell"
    )
    kept = (
        f"The rule of blocks promises a false claim in at most {LEVEL:.0%} of chapters, and {verdict}: "
        f"{_said(now.loc[STEADY])} on a steady machine, and at worst ({worst.name}) {_said(worst)}."
    )
    before = false[(false["rule"] == trials.ONE_REPEAT) & (false["disturbance"] == STEADY)]["share"].iloc[0]
    repeated = false[(false["rule"] == REPEATED) & (false["disturbance"] == STEADY)]["share"].iloc[0]
    said = (
        f"On the same steady machine the rule before makes one in {before:.0%} with one repeat, and in {repeated:.0%} "
        f"with {USUAL.blocks}."
    )
    needed = trials.blocks_to_decide(power)
    needed = needed[needed["lives"] == USUAL.lives]
    words = [
        f"{effect:.0%} {_needed(needed.loc[needed['effect'] == effect, 'blocks'], int(power['blocks'].max()))}"
        for effect in trials.EFFECTS[1:]
    ]
    return f"{kept} {said} With {USUAL.lives} lives an arm, a difference of {'; of '.join(words)}."


def _needed(blocks: pandas.Series, most: int) -> str:
    """`is decided by 8 blocks`, `by 8 to 32, according to concurrency`, or by none that was drawn."""
    known = blocks.dropna().astype(int)
    if known.empty:
        return f"is decided by more than {most} blocks"
    low, high = known.min(), known.max()
    if blocks.isna().any():
        return f"is decided by {low} blocks at the quietest concurrency and by more than {most} at another"
    return f"is decided by {low} blocks" if low == high else f"is decided by {low} to {high} blocks, by concurrency"
