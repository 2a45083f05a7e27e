"""Section 8's tables and figures, of the frames that `settings`, `same_work` and `features` make.

>>> framework_views.settings_table(results)                        # doctest: +SKIP
"""

import pandas
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ... import engines, paths
from ...analysis import claims, comparisons, drawing, host_tables, tables
from ...loads.questions import BENCH, OPENAI
from ...results import certificates, store
from . import features, same_work, settings
from .plan import SECTION

LOOKS = {
    settings.EQUAL: certificates.PASS,
    settings.MAPPED: None,
    settings.CANNOT: None,
    settings.UNSAID: certificates.FAIL,
    same_work.WITHIN: certificates.PASS,
    same_work.BEYOND: certificates.FAIL,
    same_work.UNTOLD: certificates.UNKNOWN,
    features.HOLDS: certificates.PASS,
    features.MORE: certificates.PASS,
    features.OUTDATED: certificates.FAIL,
    features.NOT_SO: certificates.FAIL,
    features.OPINION: None,
}


def arms_table(plan) -> Styler:
    """Each engine's arm: version, environment, or why it cannot be measured here."""
    rows = []
    for arm in plan.arms:
        environment, engine = plan.environment_of(arm.server), engines.get(arm.engine)
        rows.append(
            {
                "arm": arm.name,
                "engine": f"{engine.TITLE} {engine.version(environment.versions) or ''}".strip(),
                "environment": environment.name,
                "reason": arm.unsupported or ("the twin" if arm.repeat_of else "measured"),
            }
        )
    return tables.style(
        pandas.DataFrame(rows), f"Engines, one environment each ({plan.host.name})", {"reason": ("found", None)}
    )


def settings_table(results, baseline: str) -> Styler:
    """Every reported setting by engine, with its verdict and why."""
    frame = settings.reported(results)
    twins = [arm.name for arm in results.plan.arms if arm.repeat_of and arm.name in frame]
    shown = frame.drop(columns=twins)
    shown.attrs["engines"] = frame.attrs["engines"]
    lines = settings.lines(shown, baseline, differences=results.plan.parameters.get("differences"))
    for arm in shown:
        lines[arm] = [tables.DASH if value is None else _said(value) for value in lines[arm]]
    lines["setting"] = lines["setting"].map(settings.NAMES)
    lines["verdict"] = [tables.badge(verdict, LOOKS[verdict]) for verdict in lines["verdict"]]
    return tables.style(
        lines.rename(columns={"because": "reason"}),
        f"Settings as the started servers report them ({results.plan.host.name})",
    )


def refusals_table(refusals: dict[str, str], host: str) -> Styler:
    """The arms that are not compared, and why."""
    rows = [{"arm": arm, "reason": reason} for arm, reason in refusals.items()]
    rows = rows or [
        {"arm": "none", "reason": "contexts and KV capacities are equal, or their difference is accounted for"}
    ]
    return tables.style(pandas.DataFrame(rows), f"Arms that are refused a comparison ({host})")


def texts_table(answers: dict, baseline: str, label: str) -> Styler:
    """The same prompts at temperature 0, by engine: how many answers are equal, and what the others part over."""
    looks = {
        "equal": ("same text", "{:.0%}"),
        "median_token": ("part at token (median)", "{:.0f}"),
        "steps": ("steps alike", "{:,.0f}"),
        "rounding_median": ("rounding, median (nats)", "{:.3f}"),
        "rounding_largest": ("largest", "{:.3f}"),
        **{
            name: (heading, "{:.0f}")
            for name, heading in (("within", "within rounding"), ("beyond", "beyond"), ("untold", "not told"))
        },
    }
    return tables.style(same_work.texts(answers, baseline), f"Answers against those of {baseline} ({label})", looks)


def partings_table(answers: dict, baseline: str, label: str) -> Styler:
    """Where texts part: the two tokens, and how much either server preferred its own."""
    frame = same_work.partings(answers, baseline)
    for name in ("baseline_token", "arm_token"):
        frame[name] = [
            tables.DASH if pandas.isna(token) else f"<code>{_escaped(token)}</code>" for token in frame[name]
        ]
    frame["verdict"] = [tables.badge(verdict, LOOKS[verdict]) for verdict in frame["verdict"]]
    gap = "{:.3f}"
    looks = {
        "token": ("at token", "{:.0f}"),
        "baseline_token": (f"{baseline} wrote", None),
        "arm_token": ("it wrote", None),
        "baseline_gap": (f"{baseline} prefers by (nats)", gap),
        "arm_gap": ("it prefers by", gap),
        "apart": ("together", gap),
        "rounding": ("largest rounding", gap),
    }
    return tables.style(frame, f"Where answers part ({label})", looks)


def work_table(answers: dict, baseline: str, label: str) -> Styler:
    """Tokens by usage and by counters, and what each tokenizer makes of the same texts."""
    counts = same_work.counts(answers, baseline)
    trips = same_work.tokenizers(answers, baseline).drop(columns="texts")
    frame = counts.merge(trips, on="arm", how="outer", sort=False).rename(columns={"failed": "reason"})
    looks = {
        "prompt_tokens": ("prompt tokens", "{:,.0f}"),
        "prompt_counter": ("by its counter", "{:,.0f}"),
        "answer_tokens": ("answer tokens", "{:,.0f}"),
        "answer_counter": ("by its counter ", "{:,.0f}"),
        "whole": ("text back whole", "{:.0%}"),
        "same": (f"tokens as {baseline}'s", "{:.0%}"),
    }
    frame = frame if frame["reason"].notna().any() else frame.drop(columns="reason")
    return tables.style(frame, f"The same work: tokens and tokenizers ({label})", looks)


def clients_table(answers: dict, cells: pandas.DataFrame) -> Styler:
    """The second client's times beside the load generator's."""
    frame = same_work.clients(answers, cells)
    versions = sorted(
        {record["clients"]["version"] for record in answers.values() if (record["clients"] or {}).get("version")}
    )
    looks = {
        "metric": ("metric", None),
        BENCH: (f"{BENCH} (ms)", "{:,.1f}"),
        OPENAI: (f"{OPENAI} {', '.join(versions)} (ms)", "{:,.1f}"),
        **dict.fromkeys(("ratio", "low", "high"), "{:.3f}×"),
        "floor": "{:.1%}",
        "agree": ("verdict", None),
    }
    return tables.style(frame, f"Two clients, one request in flight ({tables.labels(cells)})", looks)


def published() -> list[pandas.DataFrame]:
    """The stored cells of every host with results of this section, without arms that are refused there."""
    frames = []
    for host in store.measured_hosts(SECTION, paths.RESULTS_PUBLISHED):
        known = store.Store(host, SECTION, paths.RESULTS_PUBLISHED)
        cells = known.newest()
        if len(cells):
            refusals = settings.refused(settings.of_starts(known.newest_starts()), cells["arm"].iloc[0])
            frames.append(settings.comparable(cells, refusals))
    return frames


def hosts_table(own: pandas.DataFrame, names: list[str], metric: str = "output_throughput") -> Styler:
    """Each host's engines as multiples of its own first one, with what is claimed."""
    rows, others = [], [cells for cells in published() if cells["host"].iloc[0] not in set(own["host"])]
    frames = [cells for cells in (own, *others) if len(cells)]
    for cells in frames:
        first = cells["arm"].iloc[0]
        for row in comparisons.without_repeats(claims.compare(cells, metric, first)).itertuples():
            said = f"{claims.ratio_text(row)}<br>{claims.words(row, metric)}"
            rows.append({"host": cells["host"].iloc[0], "concurrency": row.concurrency, "arm": row.arm, "said": said})
    frame = pandas.DataFrame(rows, columns=["host", "concurrency", "arm", "said"])
    table = frame.pivot(index=["host", "concurrency"], columns="arm", values="said").fillna(tables.DASH)
    table = table[[name for name in names if name in table]].reset_index()
    hosts = "; ".join([*map(tables.labels, frames), *host_tables.machines(dict.fromkeys(frame["host"]), SECTION)])
    return tables.style(
        table, f"{tables.METRIC_NAMES[metric].capitalize()}, multiples of each host's first engine ({hosts})"
    )


def features_table(feature: str | None = None) -> Styler:
    """The study's statements by engine, what holds today, and where that stands; of one feature, or of all."""
    frame = features.table()
    frame = frame[frame["feature"] == feature] if feature else frame
    shown = frame.assign(
        verdict=[tables.badge(verdict, LOOKS[verdict]) for verdict in frame["verdict"]],
        engine=[engines.get(name).TITLE if name in engines.ENGINES else name for name in frame["engine"]],
        place=[
            f"{_escaped(place)} ({_escaped(version)})"
            for place, version in zip(frame["place"], frame["version"], strict=True)
        ],
    ).drop(columns="version")
    shown = shown.rename(columns={"study": "what is known", "today": "found", "place": "evidence"})
    return tables.style(
        shown,
        "The reference study's statements on frameworks, and what holds today",
        {"what is known": ("the study says", None)},
    )


def by_engine(cells: pandas.DataFrame, metrics: tuple[str, ...]) -> Figure:
    """One panel a metric: every arm over concurrency, twins too, its blocks as faint dots, the geometric mean with its
    interval: at least what twins differ by.
    """
    rows = []
    for metric in metrics:
        floors = comparisons.floor(cells, metric)
        for (arm, concurrency), values in comparisons.by_cell(cells, metric).items():
            centre, low, high = comparisons.interval(values, floors.get(concurrency, float("nan")))
            rows.append(
                {"metric": metric, "arm": arm, "concurrency": concurrency, "mean": centre, "low": low, "high": high}
            )
    frame = pandas.DataFrame(rows, columns=["metric", "arm", "concurrency", "mean", "low", "high"])
    frame = frame.assign(at=drawing.aside(frame["concurrency"], frame["arm"])) if len(frame) else frame.assign(at=[])
    palette = drawing.colours(cells["arm"])
    grid = drawing.lines(frame, "at", "mean", column="metric", palette=palette)
    for metric, axis in grid.axes_dict.items():
        drawing.dots(axis, comparisons.usable(cells), "concurrency", metric, "arm", palette)
        drawing.concurrency_axis(axis, cells)
        axis.set(title="", ylabel=tables.METRIC_NAMES.get(metric, metric), ylim=(0, None))
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, drawing.of(cells))
    return grid.figure


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _escaped(text: str) -> str:
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
