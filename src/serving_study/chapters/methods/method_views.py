"""The methods' tables, figure and sentences.

>>> method_views.by_workload(table, frame)                                                   # doctest: +SKIP
"""

import pandas
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ...analysis import claims, drawing, tables
from ...engines import probes
from ...measure.plan import Plan
from ...measure.records import Results
from ...theory import speculation
from . import catalogue
from .method_frames import best, memory, one_by_one, same_beginnings
from .plan import BASELINE

COUNTED = {
    "tokens": ("tokens a step", "{:.2f}"),
    "proposing": ("steps that propose", "{:.0%}"),
    "rate": ("accepted", "{:.0%}"),
    "accepted": ("accepted (tokens)", "{:,.0f}"),
}


def needs(results: Results, table: pandas.DataFrame) -> Styler:
    """Every method: what it drafts from, what it costs in memory, what it gained here; or what it lacks."""
    plan, figures = results.plan, memory(results).set_index("arm")
    base = figures.loc[BASELINE] if BASELINE in figures.index else None
    gained, rows = one_by_one(table), []
    by_key = {(method.told_by, method.apart): method for method in catalogue.METHODS}
    for arm in plan.arms:
        method = by_key.get((arm.technique, arm.distinction))
        if method is None:
            continue
        start = figures.loc[arm.name] if arm.name in figures.index else None
        served = start is not None and start["outcome"] == "ok"
        lacks = None if served or start is None else start["reason"]
        rows.append(
            {
                "method": method.title,
                "arm": arm.name,
                "drafts from": method.drafts_from,
                "weights": start["weights_gib"] - base["weights_gib"] if served and base is not None else None,
                "cache": start["kv_cache_tokens"] / base["kv_cache_tokens"] - 1
                if served and base is not None
                else None,
                "gained here": _gained(gained[gained["arm"] == arm.name]) if served else tables.DASH,
                "lacks": lacks or (tables.DASH if served else "not measured"),
            }
        )
    return tables.style(
        pandas.DataFrame(rows),
        f"Methods: what each drafts from, what it costs, what it gained ({plan.host.name})",
        {
            "weights": ("more weights (GiB)", "{:.3f}"),
            "cache": ("KV cache, against none", "{:+.0%}"),
            "lacks": ("what it lacks here", None),
        },
    )


def _gained(rows: pandas.DataFrame) -> str:
    if rows.empty:
        return "measured with several requests in flight alone"
    low, high = rows.loc[rows["ratio"].idxmin()], rows.loc[rows["ratio"].idxmax()]
    return (
        f"{low['ratio']:.2f}× ({low['workload']}) to {high['ratio']:.2f}× ({high['workload']}): "
        f"{claims.counted(rows, claims.SPEEDUP)}"
    )


def by_workload(table: pandas.DataFrame, frame: pandas.DataFrame) -> Styler:
    """Acceptance and speed by workload and method, requests one at a time; the twin among them."""
    shown = table[table["concurrency"] == 1]
    return _shown(shown, f"One request at a time: what was accepted, and the pace of tokens ({tables.labels(frame)})")


def in_flight(table: pandas.DataFrame, frame: pandas.DataFrame) -> Styler:
    """The same of the load with several requests in flight."""
    several = table[table["concurrency"] > 1]
    most = "" if several.empty else f", {several['concurrency'].max()} requests in flight"
    return _shown(several, f"A fixed length against a dynamic one{most} ({tables.labels(frame)})")


def _shown(rows: pandas.DataFrame, caption: str) -> Styler:
    columns = rows[["workload", "arm", *COUNTED]].assign(
        **{
            "pace": list(map(claims.ratio_text, rows.itertuples())),
            "claim": [claims.words(row, claims.SPEEDUP) for row in rows.itertuples()],
        }
    )
    return tables.style(columns, caption, COUNTED | {"pace": ("pace of tokens", None)})


def which(table: pandas.DataFrame, frame: pandas.DataFrame) -> Figure:
    """Which method for which text: tokens a step and the pace of tokens with its interval, a row a workload."""
    import matplotlib.pyplot as plt

    rows = one_by_one(table)
    palette = drawing.colours(rows["method"], without_grey=True)
    shapes, names = drawing.markers(palette), list(dict.fromkeys(rows["workload"]))
    size, widths = (drawing.WIDTH, 1.0 + 0.85 * max(1, len(names))), [1, 1.8]
    figure, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, width_ratios=widths, layout="constrained")
    step = 0.7 / max(1, len(palette))
    for number, (method, colour) in enumerate(palette.items()):
        part = rows[rows["method"] == method]
        part = part.assign(
            y=[names.index(name) + (number - (len(palette) - 1) / 2) * step for name in part["workload"]]
        )
        look = {"color": colour, "marker": shapes[method], "linestyle": "none", "markersize": 5}
        left.plot(part["tokens"], part["y"], label=method, **look)
        right.plot(part["ratio"], part["y"], **look)
        drawing.intervals(right, part, "ratio", "y", "method", palette, sideways=True)
        open_claims = part[part["claim"] == claims.UNDECIDED]
        right.plot(open_claims["ratio"], open_claims["y"], **look | {"markerfacecolor": "white"})
    left.set(xlabel="tokens a step", yticks=range(len(names)), yticklabels=names)
    left.set(ylim=(max(1, len(names)) - 0.5, -0.5), xlim=(0.9, None))
    for axis in (left, right):
        axis.axvline(1, color="black", lw=0.9)
    right.set(xlabel="pace of tokens, against no speculation")
    if len(rows):
        drawing.multiples_axis(right.xaxis)
        right.plot([], [], "o", color="black", markerfacecolor="white", label="hollow: not decided")
    else:
        right.text(0.5, 0.5, "nothing was measured", transform=right.transAxes, ha="center")
    drawing.legend(figure, most=3)
    drawing.caption(figure, drawing.of(frame))
    return figure


def recommended(table: pandas.DataFrame, frame: pandas.DataFrame) -> Styler:
    """Of each workload, the method that is faster for sure by the most, among how many."""
    rows = best(table)
    shown = pandas.DataFrame(
        {
            "workload": rows["workload"],
            "method": [name or "none that is decided" for name in rows["method"]],
            "pace": [claims.ratio_text(row) if row.arm else tables.DASH for row in rows.itertuples()],
            "claim": [claims.words(row, claims.SPEEDUP) if row.arm else tables.DASH for row in rows.itertuples()],
            "faster": [f"{row.faster} of {row.compared}" for row in rows.itertuples()],
        }
    )
    headings = {"pace": ("pace of tokens", None), "faster": ("methods decided to be faster", None)}
    return tables.style(shown, f"Which method for which text ({tables.labels(frame)})", headings)


def answers(frame: pandas.DataFrame) -> str:
    """In a sentence: how often the first answer of a cell begins as the baseline's does, arm by arm."""
    counts = same_beginnings(frame)
    if not counts:
        return "There is no answer to compare yet."
    words = [f"{arm} {same} of {compared}" for arm, (same, compared) in counts.items()]
    return (
        "At temperature 0 speculation should change no text. The first 200 characters of a cell’s first answer are the "
        f"baseline’s in: {', '.join(words)} cells. The twin’s count is what two plain servers agree in."
    )


def finding(table: pandas.DataFrame, frame: pandas.DataFrame) -> str:
    """What was found, in sentences: how many comparisons have which claim, and the best of each workload."""
    rows = one_by_one(table)
    if rows.empty:
        return "There is nothing to compare yet."
    many = len(rows)
    words = [
        f"On this host ({tables.labels(frame)}), of {many} comparison{'s' if many > 1 else ''} of the pace of tokens "
        f"with no speculation, one request at a time, {claims.counted(rows, claims.SPEEDUP)}."
    ]
    for row in best(table).itertuples():
        words.append(
            f"For {row.workload}, the largest decided gain is that of {row.method} ({row.arm}), "
            f"{claims.ratio_text(row)}: {claims.words(row, claims.SPEEDUP)}."
            if row.arm
            else f"For {row.workload}, none of {row.compared} methods is decided to be faster."
        )
    slower = rows[rows["claim"] == claims.BELOW]
    if len(slower):
        row = slower.loc[slower["ratio"].idxmin()]
        words.append(
            f"The largest decided loss is that of {row['method']} for {row['workload']}, {claims.ratio_text(row)}: "
            f"{claims.words(row, claims.SPEEDUP)}."
        )
    return " ".join(words)


def of_engine(plan: Plan) -> dict[str, object]:
    """For prose: how many methods the engine names, those without an arm, and what a draft's pass costs by bytes."""
    probe = probes.engine(plan.environment, only_kept=True)
    accepted = probe.answer["accepted"] if probe else {}
    families, rest = catalogue.unlisted(accepted)
    named = set(accepted.get("speculative_methods", ()))
    draft = next((arm.draft for arm in plan.arms if arm.technique == "draft" and arm.draft), None)
    cost = draft.weights_gib / plan.baseline.model.weights_gib if draft else 0.0
    methods = [arm for arm in plan.arms if arm.technique != "none"]
    return {
        "engine": plan.engine_in_words(),
        "engine_methods": len(named),
        "mtp_names": len(families),
        "engine_rest": ", ".join(rest) or "none",
        "not_methods": " and ".join(
            f"`{name}` {catalogue.NO_METHODS[name]}" for name in sorted(named & set(catalogue.NO_METHODS))
        )
        or "none",
        "methods": len(methods),
        "served": sum(not arm.unsupported for arm in methods),
        "lacking": sum(bool(arm.unsupported) for arm in methods),
        "k": plan.parameters["k"],
        "draft_cost": cost,
        "break_even": speculation.break_even(plan.parameters["k"], cost),
    }
