"""What a server made of a trained draft, beside what training predicted.

>>> served_drafts.served(trained, target, cells)                                         # doctest: +SKIP
"""

import math

import pandas
from pandas.io.formats.style import Styler

from ...analysis import claims, comparisons, tables
from ...models.checkpoints import Model
from ...servers.arm import TRUNCATED
from ...theory import speculation
from . import draft_sizes
from .drafts import Trained


def side_by_side(trained: Trained, target: Model) -> pandas.DataFrame:
    """One row a draft, the trained one and, where training evaluated it, the target's first layers: bytes, cost,
    acceptance on the same held-out answers.

    `by position` is of the largest k; `best k` and `predicted speed-up` are for one request at temperature 0, by bytes.
    """

    def layers(count):
        return f"{count} layer{'s' if count > 1 else ''}"

    looks = [
        (
            f"trained ({layers(trained.model.config['num_hidden_layers'])}, width "
            f"{trained.model.config['hidden_size']})",
            trained.model.config,
            trained.last,
        )
    ]
    if cut := trained.truncated:
        looks.append(
            (f"the target's first {layers(cut['layers'])}", target.config | {"num_hidden_layers": cut["layers"]}, cut)
        )
    rows = []
    for name, config, look in looks:
        cost = draft_sizes.cost_ratio(config, target.config)
        speeds = {int(k): figures["tokens_a_round"] / (1 + int(k) * cost) for k, figures in look["rounds"].items()}
        best = max(speeds, key=speeds.get)
        row = {
            "draft": name,
            "MiB a pass": draft_sizes.size(config).bytes_a_pass / 2**20,
            "cost ratio": cost,
            "acceptance, temperature 1": look["acceptance"],
            "agreement, temperature 0": look["agreement"],
        }
        most = look["rounds"][str(max(speeds))]["by_position"]
        rows.append(
            row
            | {
                "by position": ", ".join(f"{value:.2f}" for value in most),
                "breaks even, k = 1": speculation.break_even(1, cost),
                "best k": best,
                "predicted speed-up": speeds[best],
            }
        )
    return pandas.DataFrame(rows)


def served(trained: Trained, target: Model, frame: pandas.DataFrame) -> pandas.DataFrame:
    """Measured against predicted, one row an arm of the trained draft or the target's first layers, at the lowest
    concurrency.

    `rate` is the server's acceptance rate, `predicted_rate` that of held-out answers. `cost` is a draft pass in target
    passes by bytes, `measured_cost` what a proposal adds to a step: drafting, checking, and the engine's work for them.
    `speedup` is the baseline's median TPOT over the arm's, with what is claimed of it (`claims.CLAIMED`), `predicted`
    the formula's with `cost`."""
    columns = [
        "arm",
        "distinction",
        "k",
        "predicted_rate",
        "rate",
        "cost",
        "measured_cost",
        "predicted",
        "speedup",
        *claims.CLAIMED,
    ]
    if frame.empty:
        return pandas.DataFrame(columns=columns)
    lowest = frame[frame["concurrency"] == frame["concurrency"].min()]
    rates = comparisons.summary(lowest, "acceptance_rate").set_index("arm")["mean"]
    rounds = comparisons.rounds(lowest, "baseline").set_index("arm")
    rows, arms = [], lowest.drop_duplicates("arm").set_index("arm")
    speedups = claims.inverted(claims.compare(frame, "median_tpot_ms", "baseline"))
    for comparison in speedups[speedups["concurrency"] == frame["concurrency"].min()].itertuples():
        technique, k, distinction = arms.loc[comparison.arm, ["technique", "k", "distinction"]]
        cut = distinction == TRUNCATED
        known = technique == "draft" and (cut or pandas.isna(distinction))
        look = (trained.truncated if cut else trained.last) if known else None
        if look is None or comparison.arm not in rounds.index:
            continue
        k = int(k)
        cost = draft_sizes.cost_ratio(
            target.config | {"num_hidden_layers": look["layers"]} if cut else trained.model.config, target.config
        )
        held_out, timing = look["rounds"].get(str(k)), rounds.loc[comparison.arm]
        row = {
            "arm": comparison.arm,
            "distinction": distinction,
            "k": k,
            "predicted_rate": held_out["acceptance_rate"] if held_out else math.nan,
            "rate": rates[comparison.arm],
            "cost": cost,
            "measured_cost": timing["per_proposal_ms"] / timing["plain_ms"],
        }
        rows.append(
            row
            | {
                "predicted": held_out["tokens_a_round"] / (1 + k * cost) if held_out else math.nan,
                "speedup": comparison.ratio,
                **{name: getattr(comparison, name) for name in claims.CLAIMED},
            }
        )
    return pandas.DataFrame(rows, columns=columns)


def served_table(table: pandas.DataFrame, frame: pandas.DataFrame) -> Styler:
    """`served` as it is shown, each speed-up with its interval and what is claimed of it."""
    columns = {
        "rate, predicted": "predicted_rate",
        "counted": "rate",
        "cost, by bytes": "cost",
        "measured": "measured_cost",
        "speed-up, predicted": "predicted",
    }
    shown = table[["arm"]].assign(
        **{name: table[column] for name, column in columns.items()},
        **{"of TPOT, measured": [claims.ratio_text(row) for row in _ratios(table).itertuples()]},
        claim=[claims.words(row, claims.SPEEDUP) for row in table.itertuples()],
    )
    formats = dict.fromkeys(list(columns)[:-1], "{:.3f}") | {"speed-up, predicted": "{:.2f}×"}
    return tables.style(
        shown,
        f"One request at a time: what was predicted, and what a server made of it ({tables.labels(frame)})",
        formats,
    )


def _ratios(speedups: pandas.DataFrame) -> pandas.DataFrame:
    return speedups.rename(columns={"speedup": "ratio"})


def finding(speedups: pandas.DataFrame, frame: pandas.DataFrame) -> str:
    """`served` in sentences: how many of the drafts' speed-ups have which claim, and the best of each kind of draft."""
    if speedups.empty:
        return "The target was not served with its draft here."
    words = [f"of {len(speedups)} comparisons, {claims.counted(speedups, claims.SPEEDUP)}"]
    for untrained, rows in _ratios(speedups).groupby(speedups["distinction"] == TRUNCATED):
        best = rows.loc[rows["ratio"].idxmax()]
        whose = (
            "the target's first layers, as a draft, have"
            if untrained
            else f"the trained draft, at its best k of {best['k']}, has"
        )
        words.append(
            f"{whose} {best['rate']:.0%} of the proposals kept, and tokens come {claims.ratio_text(best)} as fast, "
            f"{claims.words(best, claims.SPEEDUP)}"
        )
    return f"One request at a time ({tables.labels(frame)}), against no speculation: {'; '.join(words)}."


def marks(both: pandas.DataFrame, speedups: pandas.DataFrame) -> pandas.DataFrame:
    """Both drafts for `draft_views.surface`: circles as `side_by_side` predicts them, at temperature 0 (filled) and 1;
    diamonds as `served` measured them, at the measured cost and the `alpha` of the counted acceptance rate.
    """
    rows = []
    for draft in both.to_dict("records"):
        rows += [
            {
                "label": draft["draft"],
                "alpha": draft[f"{kind}, temperature {warm}"],
                "cost": draft["cost ratio"],
                "marker": marker,
                "filled": not warm,
                "k": math.nan,
            }
            for kind, warm, marker in (("agreement", 0, "o"), ("acceptance", 1, "s"))
        ]
    for row in speedups.itertuples():
        name = both["draft"].iloc[-1 if row.distinction == TRUNCATED else 0]
        rows.append(
            {
                "label": name,
                "alpha": speculation.alpha_of(row.rate, row.k),
                "cost": row.measured_cost,
                "marker": "D",
                "filled": True,
                "k": row.k,
            }
        )
    return pandas.DataFrame(rows)
