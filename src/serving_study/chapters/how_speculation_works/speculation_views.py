"""Section 2's tables and figures, and the values in its sentences.

The arithmetic is `speculation`'s, the draws are `rule_trials`'; published figures are the reference study's L4.

    >>> speculation_views.break_even_table([1, 3, 5], [0.06, 0.25])                          # doctest: +SKIP
"""

import json
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas
import seaborn
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ...analysis import plots, tables
from ...models import checkpoints
from ...results import old_cells, reference
from ...theory import speculation
from . import rule_trials
from .rule_trials import MATCH, RIGHT, SLIP, Trials

DATA_SHEETS = {"L4": (300, 121), "A100 80GB SXM": (2039, 312), "H200 SXM": (4800, 989)}  # GB/s, dense BF16 TFLOP/s
FAMILY = ("qwen2.5-7b-instruct", "qwen2.5-14b-instruct", "qwen2.5-0.5b-instruct")
RULE_COLOURS = dict(zip(speculation.RULES, (plots.PALETTE[place] for place in (2, 1, 3, 7)), strict=True))


def weights_gib() -> pandas.Series:
    """GiB of weights by arm in the reference study's L4 logs."""
    return _published().query("metric == 'weights_gib'").set_index("arm")["value"]


def cost_by_bytes() -> float:
    """A pass of the reference study's draft in target passes, by the bytes of their weights."""
    weights = weights_gib()
    return float((weights["draft-k1"] - weights["baseline"]) / weights["baseline"])


def single() -> pandas.DataFrame:
    """The reference study's figures for one request at a time: rows are arms, columns metrics."""
    return _published().query("concurrency == 1").pivot(index="arm", columns="metric", values="value")


def one_token() -> pandas.DataFrame:
    """One row a GPU: the datasheet's time to read, and to calculate, one token of the reference study's target."""
    frame = pandas.DataFrame.from_dict(DATA_SHEETS, orient="index", columns=["GB/s", "TFLOP/s"])
    size = weights_gib()["baseline"] * 2**30
    frame["read (ms)"] = size / frame["GB/s"] / 1e6
    frame["calculate (ms)"] = size / frame["TFLOP/s"] / 1e9
    frame["FLOP per byte"] = frame["TFLOP/s"] / frame["GB/s"] * 1e3
    return frame


def one_token_table() -> Styler:
    """`one_token`, as it is shown."""
    formats = dict.fromkeys(("GB/s", "TFLOP/s", "FLOP per byte"), "{:,.0f}")
    return tables.style(
        one_token(),
        "Memory bandwidth and dense BF16 arithmetic by data sheet, and one token of a 7B model in BF16",
        formats | dict.fromkeys(("read (ms)", "calculate (ms)"), "{:,.2f}"),
        index=True,
    )


def speedup_figure(ks: Sequence[int], cost_ratios: Sequence[float]) -> Figure:
    """The predicted speed-up over acceptance: a panel for each cost of a draft pass, a line for each k."""
    alphas, speedup = np.linspace(0, 1, 101), speculation.speedup
    curves = (
        pandas.DataFrame({"α": alphas, "speed-up": speedup(alphas, k, cost), "k": f"k = {k}", "cost": cost})
        for cost in cost_ratios
        for k in ks
    )
    grid = seaborn.relplot(
        pandas.concat(curves, ignore_index=True),
        kind="line",
        x="α",
        y="speed-up",
        hue="k",
        row="cost",
        palette="viridis",
        height=2.9,
        aspect=2,
        lw=2,
    )
    grid.set(xlim=(0, 1), ylim=(0, None))
    grid.set_titles("a draft pass costs {row_name:g} target passes")
    grid.set_axis_labels("acceptance probability α", "speed-up")
    grid.refline(y=1, color="0.6", lw=1, ls="-", zorder=0)
    grid.legend.set_title(None)
    return grid.figure


def break_even_table(ks: Sequence[int], cost_ratios: Sequence[float]) -> Styler:
    """The acceptance from which k proposals pay, by the cost of a draft pass."""
    frame = pandas.DataFrame(
        {f"c = {cost:g}": [speculation.break_even(k, cost) for k in ks] for cost in cost_ratios},
        index=[f"k = {k}" for k in ks],
    )
    styler = tables.style(frame, "The acceptance probability α at which speculation breaks even", index=True)
    return styler.format("{:.2f}", na_rep="never")


def published() -> pandas.DataFrame:
    """The reference study's draft arms by k: acceptance rate and speed-up, both also predicted from k = 1 and the
    weights' bytes, and the cost of a pass that would explain the speed-up.
    """
    one = single()
    rows = old_cells.with_arm_columns(one.reset_index()).query("technique == 'draft'").astype({"k": int})
    rows = rows.set_index("k").sort_index()
    alpha, frame = rows.loc[1, "acceptance_rate"], pandas.DataFrame(index=rows.index)
    frame["rate"] = rows["acceptance_rate"].to_numpy()
    frame["predicted rate"] = speculation.acceptance_rate(alpha, frame.index.to_numpy())
    frame["speed-up"] = one.loc["baseline", "median_tpot_ms"] / rows["median_tpot_ms"].to_numpy()
    frame["predicted speed-up"] = speculation.speedup(alpha, frame.index.to_numpy(), cost_by_bytes())
    yields = speculation.expected_tokens(alpha, frame.index.to_numpy())
    frame["implied c"] = (yields / frame["speed-up"] - 1) / frame.index
    return frame


def published_table() -> Styler:
    """`published`, as it is shown."""
    formats = dict.fromkeys(("rate", "predicted rate", "implied c"), "{:.3f}")
    return tables.style(
        published().rename("k = {}".format),
        "Acceptance rate and TPOT speed-up published for one L4 at concurrency 1, and predicted from k = 1 and the "
        "sizes of the weights",
        formats | dict.fromkeys(("speed-up", "predicted speed-up"), "{:.2f}"),
        index=True,
    )


def tests_table(tests: pandas.DataFrame) -> Styler:
    """`rule_trials.tests`, as it is shown."""
    names = {"fisher": "p (Fisher)", "uniform": "p (K–S)", "positions": "places"}
    shown = tests[["verdict", "fisher", "uniform", "distance", "accepted", "statistic", "degrees", "positions"]].rename(
        columns=names
    )
    for column in ("p (Fisher)", "p (K–S)"):
        shown[column] = [_p_value(value) for value in shown[column].astype(float)]
    formats = dict.fromkeys(("statistic", "degrees", "places"), "{:,.0f}")
    return tables.style(
        shown,
        "Four rules on the same pairs of distributions: statistics and degrees of freedom summed over all places",
        formats | dict.fromkeys(("distance", "accepted"), "{:.3f}"),
        index=True,
    )


def p_values_figure(trials: Trials) -> Figure:
    """Each rule's sorted p-values against a uniform distribution."""
    rows = []
    for rule, fit in rule_trials.fits(trials).items():
        values = np.sort(fit["p_value"].dropna())
        quantiles = (np.arange(len(values)) + 0.5) / len(values)
        rows.append(pandas.DataFrame({"quantile": quantiles, "p": values, "rule": rule}))
    figure, axis = _square(
        pandas.concat(rows, ignore_index=True),
        "quantile",
        "p",
        {rule: marker for rule, marker in zip(speculation.RULES, "osv^", strict=True)},
    )
    axis.set(xlabel="quantile of the uniform distribution", ylabel="p-value of a place, in order")
    return figure


def frequencies_figure(trials: Trials) -> Figure:
    """The place with overlap nearest one half: both distributions, and what two rules emitted there."""
    place = np.abs(trials.overlap - 0.5).argmin()
    p, q = trials.pairs[place]
    top = np.argsort(-np.maximum(p, q))[:7]
    heights = {"target p": p, "draft q": q} | {
        rule: np.bincount(trials.emitted[rule][place].tokens, minlength=len(p)) / trials.samples
        for rule in (RIGHT, SLIP)
    }
    rows = pandas.DataFrame(
        [(str(token), share[token], name) for name, share in heights.items() for token in top],
        columns=["token", "share", "of"],
    )
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    palette = {"target p": "0.25", "draft q": "0.75"} | {rule: RULE_COLOURS[rule] for rule in (RIGHT, SLIP)}
    seaborn.barplot(rows, x="token", y="share", hue="of", palette=palette, saturation=1, ax=axis)
    axis.set(xlabel="token id", ylabel="probability, or frequency among the draws")
    axis.legend(title=None)
    return figure


def overlap_figure(trials: Trials) -> Figure:
    """The share of kept proposals against one minus the models' distance; a dot a place."""
    rules = (
        pandas.DataFrame({"overlap": 1 - trials.distance, "kept": trials.kept(rule), "rule": rule})
        for rule in (MATCH, RIGHT)
    )
    figure, axis = _square(pandas.concat(rules, ignore_index=True), "overlap", "kept", {MATCH: "s", RIGHT: "o"})
    axis.set(xlabel="1 − total variation distance of target and draft", ylabel="proposals kept")
    return figure


def overlap_table(trials: Trials, target: checkpoints.Model, draft: checkpoints.Model) -> Styler:
    """The spread of the acceptance probability over places."""
    spread = pandas.Series(trials.overlap).describe()[["min", "25%", "50%", "75%", "max", "mean"]].to_frame("α").T
    return tables.style(
        spread,
        f"Acceptance probability over {len(trials.overlap)} places: {draft.name} for {target.name}",
        dict.fromkeys(spread, "{:.3f}"),
        index=True,
    )


def vocabularies() -> pandas.DataFrame:
    """Layers, width and vocabulary of one family's models, from their config.json."""
    configs = [json.loads((checkpoints.SHAPES / name / "config.json").read_text()) for name in FAMILY]
    return pandas.DataFrame(configs, index=FAMILY)[["num_hidden_layers", "hidden_size", "vocab_size"]]


def vocabularies_table() -> Styler:
    """`vocabularies`, as it is shown."""
    frame = vocabularies()
    return tables.style(frame, "From the models’ config.json", dict.fromkeys(frame, "{:,}"), index=True)


def values(
    wanted: rule_trials.HowSpeculationWorks,
    trials: Trials,
    tests: pandas.DataFrame,
    target: checkpoints.Model,
    draft: checkpoints.Model,
) -> dict[str, float | str]:
    """The values in section 2's sentences, by name."""
    l4, alone, table, vocabulary = one_token().loc["L4"], single(), published(), vocabularies()["vocab_size"]
    k, overlap, kept = table.index[len(table) // 2], trials.overlap, trials.kept(RIGHT)
    arm, baseline = alone.loc[f"draft-k{k}"], alone.loc["baseline"]
    of_publication = {
        "weights_gib": weights_gib()["baseline"],
        "read_ms": l4["read (ms)"],
        "calculate_ms": l4["calculate (ms)"],
        "operations_per_byte": l4["FLOP per byte"],
        "baseline_tpot_ms": baseline["median_tpot_ms"],
        "rate_gap": (table["rate"] - table["predicted rate"]).abs().max(),
        "rate_first": table["rate"].iloc[0],
        "rate_last": table["rate"].iloc[-1],
        "cost_by_bytes": cost_by_bytes(),
        "implied_low": table["implied c"].min(),
        "implied_high": table["implied c"].max(),
        "vocab_target": vocabulary.iloc[0],
        "vocab_draft": vocabulary.iloc[2],
        "folklore": wanted.folklore,
        "folklore_k": k,
        "folklore_cheap": speculation.speedup(wanted.folklore, k, min(wanted.cost_ratios)),
        "folklore_dear": speculation.speedup(wanted.folklore, k, max(wanted.cost_ratios)),
        "busy_speedup": speculation.speedup(alone.loc["draft-k1", "acceptance_rate"], k, 0, verification=k + 1),
        "folklore_rate": arm["acceptance_rate"],
        "folklore_speedup": baseline["median_tpot_ms"] / arm["median_tpot_ms"],
    }
    of_trials = {
        "draft_layers": wanted.draft_layers,
        "target_layers": target.config["num_hidden_layers"],
        "own_cost": draft.weights_gib / target.weights_gib,
        "positions": wanted.positions,
        "samples": wanted.samples,
        "p_right": tests.loc[RIGHT, ["fisher", "uniform"]].min(),
        "slip_distance": tests.loc[SLIP, "distance"],
        "largest_gap": np.abs(kept - overlap).max(),
        "kept": kept.mean(),
        "matched": trials.kept(MATCH).mean(),
        "alpha_min": overlap.min(),
        "alpha_max": overlap.max(),
        "alpha_mean": overlap.mean(),
    }
    verdicts = {f"verdict_{rule.replace(' ', '_')}": verdict for rule, verdict in tests["verdict"].items()}
    return of_publication | of_trials | verdicts


def _published() -> pandas.DataFrame:
    return reference.load(3).query("host == 'l4x1'")


def _p_value(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else "&lt; 0.01" if value >= 1e-6 else "&lt; 10⁻⁶"


def _square(rows: pandas.DataFrame, x: str, y: str, markers: dict[str, str]) -> tuple[Figure, plt.Axes]:
    """Dots by rule on the unit square, with its diagonal."""
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    looks = {"palette": RULE_COLOURS, "markers": markers, "s": 28, "alpha": 0.8, "linewidth": 0}
    seaborn.scatterplot(
        rows, x=x, y=y, hue="rule", style="rule", style_order=markers, hue_order=markers, ax=axis, **looks
    )
    axis.plot([0, 1], [0, 1], color="0.6", lw=1, zorder=0)
    axis.legend(loc="upper left", title=None)
    return figure, axis
