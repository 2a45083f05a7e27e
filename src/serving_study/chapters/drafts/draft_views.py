"""Section 4's tables and figures of a draft before it is served: size, training, held-out prompts.

What a server made of it is in `served_drafts`. What can mislead: acceptance is that of the held-out texts, and a cost
ratio by bytes is a lower bound.

    >>> draft_views.rounds_table(trained)                                                    # doctest: +SKIP
"""

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ...analysis import drawing, plots, tables
from ...analysis.drawing import PALETTE
from ...models.checkpoints import Model
from ...theory import speculation
from . import draft_sizes
from .drafts import Trained
from .recipe import Distillation

if TYPE_CHECKING:
    from .recipe import Distillation

LOOKS = {"acceptance": "acceptance, temperature 1", "agreement": "agreement, temperature 0"}


def cost_ratio(wanted: Distillation, target: Model) -> float:
    """A pass of the wanted student in target passes, by bytes."""
    return draft_sizes.cost_ratio(draft_sizes.student_config(wanted, target.config), target.config)


def break_even(wanted: Distillation, target: Model) -> float:
    """The acceptance from which the smallest k pays."""
    return speculation.break_even(min(wanted.ks), cost_ratio(wanted, target))


def other_sizes(wanted: Distillation, target: Model) -> list[dict]:
    """Changes to the wanted student for the sizes shown beside it: other depths, then other widths below the
    target's.
    """
    depths = [{"layers": 1}, {"layers": 2 * wanted.layers}]
    return depths + [
        {
            "width": quarters * wanted.width // 4,
            "heads": max(1, quarters * wanted.heads // 4),
            "kv_heads": 1,
            "intermediate": quarters * wanted.intermediate // 4,
        }
        for quarters in (1, 2, 3, 8)
        if wanted.heads % 4 == 0 and quarters * wanted.width // 4 < target.config["hidden_size"]
    ]


def sizes_table(wanted: Distillation, target: Model) -> Styler:
    """What the wanted student and others weigh, cost, and must reach."""
    table = draft_sizes.candidates(wanted, target.config, other_sizes(wanted, target))
    formats = {column: "{:.2f}" for column in table if column.startswith("breaks")} | {
        "cost ratio": "{:.3f}",
        "output embedding": "{:.0%}",
        "million weights": "{:.2f}",
        "MiB": "{:.1f}",
        "MiB a pass": "{:.1f}",
    }
    return tables.style(
        table.drop_duplicates(),
        f"Sizes of a draft for {target.name}, bf16; the acceptance at which speculation breaks even if a pass costs "
        "its bytes",
        formats,
    )


def training_figure(trained: Trained, wanted: Distillation, target: Model) -> Figure:
    """Left the divergence of each step, right the evaluations on held-out prompts."""
    steps, looks = trained.steps(), trained.held_out()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    left.plot(steps["tokens"] / 1e6, steps["kl"], color=plots.PALETTE[2], lw=1.2)
    left.set(xlabel="million tokens", ylabel="KL divergence (nats a token), training", ylim=(0, None))
    for (column, label), colour in zip(LOOKS.items(), plots.PALETTE[1:4:2], strict=True):
        right.plot(looks["tokens"] / 1e6, looks[column], "o-", color=colour, ms=3.5, lw=1.4, label=label)
    line = f"breaks even at k = {min(wanted.ks)}"
    right.axhline(break_even(wanted, target), color="0.4", lw=1, ls="--", label=line)
    right.set(xlabel="million tokens", ylabel="share, held-out prompts", ylim=(0, 1))
    right.legend(fontsize=8)
    return figure


def sources_table(trained: Trained) -> Styler:
    """The last evaluation by the origin of its prompts."""
    names = {"own": "data/prompts", "written": "written by the target"}
    looks = {label: trained.last[f"{column}_by_source"] for column, label in LOOKS.items()}
    return tables.style(
        pandas.DataFrame(looks).rename(index=names),
        f"Held-out prompts by source (trained on {trained.device})",
        dict.fromkeys(looks, "{:.3f}"),
        index=True,
    )


def rounds_table(trained: Trained) -> Styler:
    """`Trained.positions`, as it is shown."""
    frame = trained.positions()
    shares = [column for column in frame if column.startswith(("position", "acceptance"))]
    return tables.style(
        frame,
        f"Rounds along held-out answers at temperature 0, as a server would count them (trained on {trained.device})",
        dict.fromkeys(shares, "{:.3f}") | {"tokens a round": "{:.2f}", "rounds": "{:,.0f}"},
    )


def side_by_side_table(both: pandas.DataFrame, trained: Trained, target: Model) -> Styler:
    """`drafts.side_by_side`, as it is shown."""
    formats = dict.fromkeys((*LOOKS.values(), "breaks even, k = 1", "cost ratio"), "{:.3f}")
    return tables.style(
        both,
        f"Two drafts for {target.name}, on held-out answers; predicted for one request at temperature 0 (trained on "
        f"{trained.device})",
        formats | {"MiB a pass": "{:.1f}", "predicted speed-up": "{:.2f}×"},
    )


def predicted(trained: Trained, cost: float) -> pandas.DataFrame:
    """One row a k: tokens of a held-out round, and the speed-up if a pass costs `cost`, or twice that."""
    rounds = trained.last["rounds"]
    frame = pandas.DataFrame(
        {"k": [int(k) for k in rounds], "tokens a round": [seen["tokens_a_round"] for seen in rounds.values()]}
    )
    frame["speed-up"] = frame["tokens a round"] / (1 + frame["k"] * cost)
    frame["if c were twice that"] = frame["tokens a round"] / (1 + 2 * frame["k"] * cost)
    return frame


def predicted_table(trained: Trained, wanted: Distillation, target: Model) -> Styler:
    """`predicted` at the cost by bytes, as it is shown."""
    return tables.style(
        predicted(trained, cost_ratio(wanted, target)),
        "Predicted from the rounds above and the bytes of a pass, for one request at temperature 0",
        {"tokens a round": "{:.2f}", "speed-up": "{:.2f}×", "if c were twice that": "{:.2f}×"},
    )


def values(trained: Trained, wanted: Distillation, target: Model, served_tokens: int) -> dict[str, float]:
    """The values in section 4's sentences, by name."""
    student = draft_sizes.size(draft_sizes.student_config(wanted, target.config))
    return {
        "head_share": 100 * student.head_share,
        "million": student.parameters / 1e6,
        "pass_mib": student.bytes_a_pass / 2**20,
        "target_mib": draft_sizes.size(target.config).bytes_a_pass / 2**20,
        "cost": cost_ratio(wanted, target),
        "even_percent": 100 * break_even(wanted, target),
        "million_tokens": trained.training["tokens"] / 1e6,
        "acceptance": trained.last["acceptance"],
        "acceptance_before": trained.held_out()["acceptance"].iloc[0],
        "agreement": trained.last["agreement"],
        "answer_tokens": wanted.answer_tokens,
        "served_tokens": served_tokens,
    }


def surface(ks, marks: pandas.DataFrame, source: str) -> Figure:
    """Lines of equal speed-up over acceptance and cost, one panel a k.

    `marks` has `label` (a colour), `alpha`, `cost`, `marker`, `filled`, and `k` (missing: in every panel); `source`
    below the figure says where they are from."""
    alphas, highest = np.linspace(0, 0.99, 100), max(0.6, 1.15 * marks["cost"].max())
    costs, levels = np.linspace(0.01, highest, 60), [0.5, 0.8, 1, 1.2, 1.5, 2, 3]
    grid = drawing.panels(pandas.DataFrame({"k": list(ks)}), "k", 3, 2.6)
    grid.set_titles("k = {col_name}")
    palette = dict(zip(dict.fromkeys(marks["label"]), PALETTE[1:], strict=False))
    for k, axis in grid.axes_dict.items():
        gains = np.array([speculation.speedup(alphas, k, cost) for cost in costs])
        shades = ["black" if level == 1 else "0.6" for level in levels]
        drawn = axis.contour(alphas, costs, gains, levels=levels, colors=shades, linewidths=1)
        for text in axis.clabel(drawn, fontsize=8, fmt="%g×", inline=False):
            across, up = text.get_position()
            inside = 0.08 < across < 0.92 and 0.08 < up / highest < 0.92  # else the edge of the panel cuts it
            text.set(visible=inside, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
        for mark in marks[marks["k"].isna() | (marks["k"] == k)].itertuples():
            colour = palette[mark.label]
            looks = {"color": colour, "mfc": colour if mark.filled else "none", "clip_on": False}
            axis.plot(mark.alpha, mark.cost, mark.marker, **looks)
        axis.grid(False)
    grid.set_axis_labels("acceptance probability α", "cost of a proposal\n(target passes)")
    for label, colour in palette.items():
        grid.axes.flat[0].plot([], [], "o", color=colour, label=label)
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, source)
    return grid.figure
