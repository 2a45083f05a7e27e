"""Section 10's tables: effects, decisions, one draft in two sections, and the arms ranked against targets.

>>> choosing_tables.effects(effect_matrix.matrix(settled))     # doctest: +SKIP
"""

import math

import pandas
from pandas.io.formats.style import Styler

from ...analysis import tables
from ...results import certificates


def effects(matrix: pandas.DataFrame, labels: str = "") -> Styler:
    """What each technique did where, as multiples of what it is held against (`effect_matrix.matrix`)."""
    arms = [
        f"<br>{row.arm}" + (f", against {row.against}" if row.against != "baseline" else "")
        if isinstance(row.arm, str)
        else ""
        for row in matrix.itertuples()
    ]
    shown = matrix.assign(
        technique=matrix["technique"] + arms,
        basis=matrix["basis"].str.replace(", ", "<br>"),
        certificate=[tables.badge(verdict) if isinstance(verdict, str) else None for verdict in matrix["certificate"]],
    )
    return tables.style(
        _lines(shown.drop(columns=["arm", "against"])),
        "Multiples of the arm that a technique is held against, at the lowest and the highest "
        f"concurrency{f' ({labels})' if labels else ''}",
    )


def same_draft(table: pandas.DataFrame) -> Styler:
    """One draft in sections 3 and 4, and what differs between the two (`decision_rules.same_draft`)."""
    ends = [
        tables.DASH if math.isnan(row.low) else f"[{row.low:.2f}, {row.high:.2f}]"
        for row in table.itertuples(index=False)
    ]
    shown = table.assign(interval=ends, best=["best" if best else "" for best in table["best"]])
    names = "host section arm concurrency ratio interval best prompts requests answer_tokens repeats engine"
    return tables.style(
        shown[names.split()],
        "One draft in two sections: multiples of the baseline, and what differs",
        {"ratio": ("output throughput", "{:.2f}×"), "answer_tokens": ("answer (tokens)", "{:.0f}")},
    )


def decisions(table: pandas.DataFrame, labels: str = "") -> Styler:
    """The decision table (`decision_rules.decisions`), one figure a line."""
    return tables.style(
        _lines(table), f"What to look at first, and what is known of it{f' ({labels})' if labels else ''}"
    )


def _lines(table: pandas.DataFrame) -> pandas.DataFrame:
    return table.map(lambda value: value.replace("\n", "<br>") if isinstance(value, str) else value)


def advised(table: pandas.DataFrame, labels: str) -> Styler:
    """The ranking of `advice.table`."""
    looks = {"meets": certificates.PASS, "misses": certificates.FAIL}
    if len(table):
        table = table.assign(
            verdict=[
                tables.badge(verdict, certificates.UNKNOWN if "no answer" in verdict else looks.get(verdict.split()[0]))
                for verdict in table["verdict"]
            ]
        )
    return tables.style(table, f"Arms against the targets ({labels})", {"USD a million tokens": "{:.2f}"})
