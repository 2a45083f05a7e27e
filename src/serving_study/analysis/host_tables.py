"""Tables that hold one host's results against those of others, of its own earlier runs and of the reference study.

What can mislead: absolute figures of two hosts are no comparison; multiples of one baseline are.

    >>> host_tables.verdicts_table(results.frame(), 3)                           # doctest: +SKIP
"""

import math
from collections.abc import Iterable

import pandas
from pandas.io.formats.style import Styler

from .. import paths
from ..results import certificates, reference, store
from . import claims, comparisons, tables, verdicts


def explained(section: int, host: str) -> Styler:
    """What TPOT explains of the reference study's throughput ratios."""
    return tables.style(
        verdicts.explained(section, host),
        f"What the reference study's TPOT explains of its throughput ratios ({host}, reference)",
        {
            "ratio": ("throughput ratio", "{:.2f}×"),
            "latency": ("TPOT ratio", "{:.2f}×"),
            "rest": "{:.2f}×",
            "share": ("explained by TPOT", "{:.0%}"),
        },
    )


def verdicts_table(frame: pandas.DataFrame, section: int, tolerance: float = verdicts.TOLERANCE) -> Styler:
    """This host's cells against its own earlier runs, the other hosts' and the reference study: how many figures
    reproduce, and why not.
    """
    host = frame["host"].iloc[0]
    own = verdicts.of_files(host, list(frame["file"]))
    others = verdicts.earlier(host, section, set(frame["file"]))[-4:]
    others += other_studies(section, {host})
    others += [verdicts.study(f"reference/{name}", section) for name in reference.load(section)["host"].unique()]
    rows = []
    for other in others:
        table = verdicts.verdicts(own, other, tolerance=tolerance)
        for kind, verdict_rows in table.groupby("kind", sort=False):
            row = {"against": other.name, "figures": "ratios" if kind == "ratio" else kind}
            rows.append(row | {"verdict": verdict_badges(verdict_rows), "found": reason(verdict_rows)})
    whose = [tables.labels(frame), *machines([host, *other_hosts(section, {host})], section)]
    shown = pandas.DataFrame(rows, columns=["against", "figures", "verdict", "found"])
    return tables.style(shown, f"Does it reproduce? ({'; '.join(whose)})")


def other_studies(section: int, own: set[str]) -> list[verdicts.Study]:
    """What the `other_hosts` measured."""
    return [
        verdicts.of_files(name, list(store.Store(name, section, paths.RESULTS_PUBLISHED).newest()["file"]))
        for name in other_hosts(section, own)
    ]


def verdict_badges(verdict_rows: pandas.DataFrame) -> str:
    """How many figures came to each verdict, a line each."""
    counts = verdict_rows["verdict"].value_counts()
    looks = {
        verdicts.DIFFERS: certificates.FAIL,
        verdicts.REPRODUCES: certificates.PASS,
        verdicts.NOT_COMPARABLE: certificates.UNKNOWN,
    }
    return "<br>".join(f"{tables.badge(name, look)} {counts[name]}" for name, look in looks.items() if name in counts)


def reason(verdict_rows: pandas.DataFrame) -> str:
    """What a table of verdicts rests on: the figure that differs most, or what is unequal."""
    differing = verdict_rows[verdict_rows["verdict"] == verdicts.DIFFERS]
    if len(differing):
        row = differing.loc[differing["change"].abs().idxmax()]
        return (
            f"most: {tables.METRIC_NAMES.get(row['metric'], row['metric'])} of {row['arm']} at concurrency "
            f"{row['concurrency']}, {row['why']}"
        )
    unequal = verdict_rows[verdict_rows["verdict"] == verdicts.NOT_COMPARABLE]["why"]
    names = dict.fromkeys(part.split(": ")[0] for why in unequal for part in why.split("; "))
    return f"unequal: {', '.join(names)}" if names else "all within their intervals or the tolerance"


def hosts(section: int, metric: str, arms: list[str], own: pandas.DataFrame, baseline: str | None = None) -> Styler:
    """`metric` by host, concurrency and arm: this host, the other hosts under data/results, the reference study.

    With `baseline`, each figure is a multiple of that arm's, with its interval: the only comparison that holds across
    hosts. The reference study's single draws have none.
    """
    frames = [
        own,
        *(
            store.Store(host, section, paths.RESULTS_PUBLISHED).newest()
            for host in other_hosts(section, set(own["host"]))
        ),
    ]
    table = pandas.concat(
        [_pivot(frame, metric, arms, baseline) for frame in frames]
        + [_reference_pivot(section, metric, arms, baseline)]
    )
    name = tables.METRIC_NAMES.get(metric, metric)
    unit = f"Multiples of {baseline}: {name}" if baseline else name.capitalize()
    number = None if baseline else "{:.3f}" if metric == "acceptance_rate" else "{:,.1f}"
    said = [words for words in map(tables.labels, frames) if "," in words]
    said += machines([frame["host"].iloc[0] for frame in frames], section)
    return tables.style(
        table, f"{unit}, by host" + (f" ({'; '.join(said)})" if said else ""), {arm: (arm, number) for arm in arms}
    )


def machines(names: Iterable[str], section: int | str) -> list[str]:
    """Which machine each host's name is, for captions, and what of its cells takes no part."""
    descriptions = [f"{name}: {words}" for name in names if (words := store.machine_of(name))]
    stores = (store.Store(name, section, paths.RESULTS_PUBLISHED) for name in names)
    return descriptions + [said for known in stores if (said := known.left_out())]


def other_hosts(section: int, own: set[str]) -> list[str]:
    """Hosts with stored results of `section`, beside `own`."""
    return [host for host in store.measured_hosts(section, paths.RESULTS_PUBLISHED) if host not in own]


def _pivot(frame, metric, arms, baseline) -> pandas.DataFrame:
    if baseline:
        table = claims.compare(frame, metric, baseline)
        table = table.assign(text=list(map(claims.ratio_text, table.itertuples())))
        return _rows(frame["host"].iloc[0], table.pivot(index="concurrency", columns="arm", values="text"), arms)
    means = comparisons.summary(frame, metric).pivot(index="concurrency", columns="arm", values="mean")
    return _rows(frame["host"].iloc[0], means, arms)


def _reference_pivot(section, metric, arms, baseline) -> pandas.DataFrame:
    frame = reference.load(section)
    frame = frame[(frame["metric"] == metric) & frame["concurrency"].notna()]
    parts = []
    for host, rows in frame.groupby("host", sort=False):
        values = rows.pivot(index="concurrency", columns="arm", values="value")
        if baseline:
            values = values.div(values.get(baseline, math.nan), axis=0).map("{:.2f}×".format, na_action="ignore")
        parts.append(_rows(f"{host}, reference", values, arms))
    return pandas.concat(parts) if parts else pandas.DataFrame(columns=["host", "concurrency", *arms])


def _rows(host: str, values: pandas.DataFrame, arms: list[str]) -> pandas.DataFrame:
    values = values.reindex(columns=arms)
    values.insert(0, "host", host)
    return values.reset_index()[["host", "concurrency", *arms]].astype({"concurrency": int})
