"""The matrix of techniques, with where each figure was measured and how far it may be believed."""

import pandas
from pandas.io.formats.style import Styler

from ...analysis import claims, tables
from ...results import certificates
from .techniques import FEW, KV, NOTHING, OURS, PREDICTED, PUBLISHED, THROUGHPUT, TPOT, TTFT


def matrix(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row a technique, arm, host and section: `technique`, `arm`, `basis`, `concurrency` (lowest and highest, one a
    line), a column a metric, `measured with` (engine, requests, repeats), `how sure`, `certificate`.
    """
    rows = []
    keys = ["technique", "arm", "against", "basis", "host", "section"]
    for (technique, arm, against, basis, *_), cells in frame.groupby(keys, sort=False, dropna=False):
        if basis == NOTHING:
            rows.append({"technique": technique, "basis": NOTHING})
            continue
        ends = end_concurrencies(cells)
        row = {
            "technique": technique,
            "arm": arm,
            "against": against,
            "basis": place_of(cells.iloc[0]),
            "concurrency": "\n".join(map(str, ends)) or None,
        }
        row |= {
            metric: said(cells, metric) for metric in (THROUGHPUT, TPOT, TTFT, KV) if (cells["metric"] == metric).any()
        }
        outcomes = set(cells["certificate"].dropna())
        certificate = certificates.UNKNOWN if certificates.UNKNOWN in outcomes else certificates.PASS
        row |= {"measured with": measured_with(cells), "how sure": how_sure(cells)}
        rows.append(row | {"certificate": certificate if outcomes else None})
    columns = ["technique", "arm", "against", "basis", "concurrency", THROUGHPUT, TPOT, TTFT, KV]
    return pandas.DataFrame(rows, columns=[*columns, "measured with", "how sure", "certificate"])


def measured_with(cells: pandas.DataFrame) -> str:
    """`section 3, vLLM 0.25.1, 10–128 requests, 3 repeats`; empty for a prediction."""
    if (cells["basis"] == PREDICTED).all():
        return ""
    requests = cells["requests"].dropna()
    spans = "–".join(f"{value:,.0f}" for value in dict.fromkeys([requests.min(), requests.max()]))
    words = [f"section {cells['section'].iloc[0]:.0f}", cells["engine"].iloc[0]]
    words += [f"{spans} requests", repeats_text(cells)] if len(requests) else []
    return ", ".join(filter(None, words))


def repeats_text(cells: pandas.DataFrame) -> str:
    repeats = cells["repeats"].dropna()
    return f"{repeats.min():.0f} repeats" if len(repeats) and repeats.min() > 1 else "one draw"


def how_sure(cells: pandas.DataFrame) -> str:
    """How far figures may be believed: how many of them have which claim, or what they are in place of measurements."""
    first = cells.iloc[0]
    if first["basis"] == PREDICTED:
        return "arithmetic"
    if not cells["grounded"].any():
        return "no basis: " + ("prescribed acceptance" if "prescribed" in str(first["labels"]) else FEW)
    kept = cells[cells["grounded"]]
    if (kept["metric"] == KV).all():
        return "counted at the start"
    compared = kept[kept["claim"].notna()]
    if compared["low"].isna().all():
        return "nothing bounds the noise"
    faster = [gains(row) for row in compared.itertuples()]
    counts = {
        "faster": faster.count(True),
        "slower": faster.count(False),
        f"equal within {100 * compared['margin'].max():g} %": int((compared["claim"] == claims.EQUAL).sum()),
        "not decided": int((compared["claim"] == claims.UNDECIDED).sum()),
    }
    return f"of {len(kept)} figures " + ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def gains(row) -> bool | None:
    """Whether an effect is decided to make answers faster; None where it is not decided, or equal."""
    if row.claim not in (claims.ABOVE, claims.BELOW):
        return None
    return claims.directions(OURS[row.metric])[row.claim == claims.BELOW] == "faster"


def said(cells: pandas.DataFrame, metric: str) -> str:
    """A metric at the lowest and highest concurrency of one arm's cells, one a line, with intervals; a dash where
    unknown.
    """
    rows = cells[cells["metric"] == metric]
    if rows["concurrency"].isna().all():
        return claims.ratio_text(rows.iloc[0])
    by_concurrency = rows.set_index("concurrency")
    return "\n".join(
        claims.ratio_text(by_concurrency.loc[concurrency]) if concurrency in by_concurrency.index else "–"
        for concurrency in end_concurrencies(cells)
    )


def end_concurrencies(cells: pandas.DataFrame) -> list[int]:
    concurrencies = sorted({int(concurrency) for concurrency in cells["concurrency"].dropna()})
    return list(dict.fromkeys(concurrencies[:1] + concurrencies[-1:]))


def place_of(row) -> str:
    return row["host"] if row["basis"] == PUBLISHED else f"{row['basis']}, {row['host']}"


def labels(frame: pandas.DataFrame) -> str:
    """What a caption must say of the hosts in it: `h200x1: random weights, prescribed acceptance`."""
    by_host = {}
    for host, words in frame.loc[frame["labels"].fillna("") != "", ["host", "labels"]].itertuples(index=False):
        by_host.setdefault(host, {}).update(dict.fromkeys(words.split(", ")))
    return "; ".join(f"{host}: {', '.join(words)}" for host, words in by_host.items())


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
    shown = table.assign(
        ratio=list(map(claims.ratio_text, table.itertuples())),
        claim=[claims.words(row, "output_throughput") for row in table.itertuples()],
        best=["best" if best else "" for best in table["best"]],
    )
    names = "host section arm concurrency ratio claim best prompts requests answer_tokens repeats engine"
    return tables.style(
        shown[names.split()],
        "One draft in two sections: multiples of the baseline, and what differs",
        {"ratio": ("output throughput", None), "answer_tokens": ("answer (tokens)", "{:.0f}")},
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
