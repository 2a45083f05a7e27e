"""Advice in words: for the command line, for a sentence of the book, and as a table.

>>> advice_text.sentence(advice.of_host("h200x1", 3, advice.targets(["ttft_p99_ms=500"])))   # doctest: +SKIP
'On h200x1, measured: …'
"""

from collections.abc import Sequence

import pandas

from .advice import MEETS, MISSES, ORDER, PREDICTED, UNDECIDED, UNKNOWN, Advice, Figure, Row


def lines(advice: Advice) -> list[str]:
    """The advice as text."""
    asked = (
        ", ".join(f"{target.name} <= {target.limit_ms:g}" for target in advice.targets)
        or "none, so every certified arm qualifies"
    )
    out = [
        f"section {advice.section} on {advice.host}, {advice.basis}: {advice.where}"
        + "".join(f"; {words}" for words in (advice.engine, advice.labels) if words),
        f"targets: {asked}",
    ]
    out.append(
        f"price: {advice.price}"
        if advice.price
        else f"price: none known for {advice.host}; --price USD_PER_HOUR adds the cost"
    )
    if advice.left_out:
        out.append(
            "left out: "
            + ", ".join(f"{count} cell{'s' if count > 1 else ''} ({why})" for why, count in advice.left_out.items())
        )
    hidden = [row for row in advice.rows if row.verdict == UNKNOWN and row not in advice.arms(UNKNOWN)]
    if hidden and advice.basis == "measured":
        out.append(
            "not judged: "
            + ", ".join(
                f"{row.arm} at {row.concurrency} ({'; '.join(dict.fromkeys(row.why.values()))})" for row in hidden
            )
        )
    unjudged = [
        target.name for target in advice.targets if advice.basis == "predicted" and target.name not in PREDICTED
    ]
    if unjudged:
        out.append(f"not judged: {', '.join(unjudged)}; theory predicts {', '.join(PREDICTED)} alone")
    heads = {
        MEETS: "meets every target" if advice.basis == "measured" else "predicted to meet what is judged",
        UNDECIDED: "not decided: the interval holds a target, more blocks would tell",
        MISSES: "misses",
        UNKNOWN: "unknown: a figure is withheld, not predicted, or of too few requests",
    }
    for verdict, head in heads.items():
        rows = advice.arms(verdict)
        if rows:
            out += [f"{head}:", *(f"  {place:>2}  {_text(row, advice)}" for place, row in enumerate(rows, start=1))]
    if advice.basis == "measured" and not advice.found:
        out.append("no measured arm meets every target")
    return out


def sentence(advice: Advice) -> str:
    """The best row in a sentence or two, with the middle one of those that do as well."""
    kind = "measured" if advice.basis == "measured" else "predicted, not measured"
    row = advice.answer
    if row is None or row.verdict == UNKNOWN:
        reasons = dict.fromkeys(why for row in advice.rows for why in row.why.values())
        return f"On {advice.host} no cell can be judged{': ' if reasons else ''}{'; '.join(reasons)}."
    what = f"{row.arm} at concurrency {row.concurrency}"
    said = {
        MEETS: f"{what} has the highest output throughput within the targets, {_range(row.throughput)} tok/s"
        f"{_measured_with(row)}",
        MISSES: f"no arm meets the targets. The nearest is {what}: {row.worst} is {row.over:.0%} above its target",
        UNDECIDED: f"of no arm it is decided that it meets the targets. The best that is not decided is {what}, "
        f"{_range(row.throughput)} tok/s{_measured_with(row)}",
    }[row.verdict]
    alike = [other for other in advice.rows if other.verdict == row.verdict and not other.prescribed]
    middle = alike[len(alike) // 2]
    unjudged = "; ".join(f"{name} is not judged, {why}" for name, why in row.why.items())
    said += f" ({unjudged})" if unjudged else ""
    if row.verdict != MISSES and len(alike) > 1:
        place = "middle" if len(alike) > 2 else "other"
        said += (
            f"; that is the best of {len(alike)}, the {place} one is {middle.arm} at concurrency {middle.concurrency} "
            f"with {_range(middle.throughput)}"
        )
    above = list(dict.fromkeys(other.arm for other in advice.rows[: advice.rows.index(row)]))
    return f"On {advice.host}, {kind}: {said}." + (
        f" {', '.join(above)} stood above it with an acceptance that was prescribed, which is no answer."
        if above
        else ""
    )


def _measured_with(row: Row) -> str:
    """`(128 requests, 3 repeats)`; empty for a prediction."""
    if not row.repeats:
        return ""
    return f" ({row.requests} requests, {f'{row.repeats} repeats' if row.repeats > 1 else 'one draw'})"


def about(advice: Advice) -> str:
    """A caption's account of the figures: `h200x1, measured, vLLM 0.25.1, random weights`."""
    return ", ".join(filter(None, [advice.host, advice.basis, advice.engine, advice.labels]))


def table(advice: Advice) -> pandas.DataFrame:
    """One row an arm, best first: `verdict`, `arm`, `concurrency`, output throughput and the targets' figures as text
    with intervals, cost.
    """
    rows = []
    for verdict in ORDER:
        for row in advice.arms(verdict):
            label = " (predicted)" if advice.basis != "measured" else " (no answer)" if row.prescribed else ""
            cells = {
                "verdict": verdict + label,
                "arm": row.arm + (" (prescribed acceptance)" if row.prescribed else ""),
                "concurrency": row.concurrency,
                "output tok/s": _range(row.throughput),
            }
            cells |= {
                f"{target.name} ≤ {target.limit_ms:g}": _range(row.latencies[target.name])
                if row.latencies[target.name]
                else row.why.get(target.name)
                for target in advice.targets
            }
            if row.repeats:
                cells |= {"requests": row.requests, "repeats": row.repeats}
            cells |= {"exceeded by": f"{row.over:.0%} ({row.worst})" if row.verdict == MISSES else None}
            rows.append(cells | ({"USD a million tokens": row.usd_per_million} if advice.price else {}))
    return pandas.DataFrame(rows)


def across(of_hosts: Sequence[Advice]) -> list[str]:
    """The cheapest and the fastest qualifying arm over several hosts; nothing for one host."""
    rows = [
        row
        for advice in of_hosts
        if advice.basis == "measured"
        for row in advice.rows
        if row.verdict == MEETS and not row.prescribed
    ]
    priced = [row for row in rows if row.usd_per_million is not None]
    if len(of_hosts) < 2 or not rows:
        return []
    name = lambda row: f"{row.arm} on {row.host} at concurrency {row.concurrency}"  # noqa: E731
    best = max(rows, key=lambda row: row.throughput.value)
    out = ["", f"fastest: {name(best)}, {best.throughput.value:,.1f} tok/s out"]
    if priced:
        cheapest = min(priced, key=lambda row: row.usd_per_million)
        out.append(
            f"cheapest: {name(cheapest)}, {cheapest.usd_per_million:.2f} USD a million output tokens (of "
            "the hosts with a price)"
        )
    return out


def _text(row: Row, advice: Advice) -> str:
    cost = f"  {row.usd_per_million:8.2f} USD/M" if row.usd_per_million is not None else ""
    repeats = "" if not row.repeats else f"  {row.repeats} repeat{'s' if row.repeats > 1 else ''}"
    seen = "".join(
        f"  {name} {_range(figure)}" + (f" ({figure.repeats} of {row.repeats})" if figure.repeats < row.repeats else "")
        for name, figure in row.latencies.items()
        if figure
    )
    missing = "".join(
        f"  {name} – ({row.why.get(name, 'no figure')})"
        for name, figure in row.latencies.items()
        if not figure and advice.basis == "measured"
    )
    missing += "  acceptance prescribed: no answer" if row.prescribed else ""
    miss = f"  {row.worst} exceeded by {row.over:.0%}" if row.verdict == MISSES else ""
    return (
        f"{row.arm:<18} concurrency {row.concurrency:<3} {_range(row.throughput):>24} tok/s "
        f"out{cost}{repeats}{seen}{missing}{miss}"
    )


def _range(figure: Figure) -> str:
    form = "{:,.0f}" if figure.value >= 1000 else "{:,.1f}"
    ends = (
        ""
        if figure.low == figure.high or figure.repeats == 1
        else f" [{form.format(figure.low)}, {form.format(figure.high)}]"
    )
    return form.format(figure.value) + ends
