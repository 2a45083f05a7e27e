"""Which measured arms meet a service's targets, at which concurrency, ranked by throughput and by cost; and those that
miss, by how much.

Only cells whose certificate passed count. A figure is the geometric mean of its repeats, its interval Student's t at 95
% over their logarithms and at least the noise floor, as in every comparison of the book; an interval with the target
inside decides nothing. A p99 over fewer than a hundred requests is their slowest, and is not judged; an arm whose
acceptance was prescribed is shown, and is never the answer. What can mislead: the load is the section's, not yours; and
where nothing was measured only medians can be predicted, which is labelled so.

    >>> from serving_study.chapters.choosing import advice
    >>> advice.of_host("h200x1", 3, advice.targets(["ttft_p99_ms=500"])).answer.arm        # doctest: +SKIP
    'baseline'
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas

from ... import files, paths
from ...analysis import comparisons, verdicts
from ...errors import HostError, ParameterError, near
from ...hardware import ceilings, hosts, prices
from ...results import certificates, store
from ...theory import predictions

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = {"p50": "median", "p95": "p95", "p99": "p99", "mean": "mean"}
SLOS = {
    f"{latency}_{statistic}_ms": f"{column}_{latency}_ms"
    for latency in LATENCIES
    for statistic, column in STATISTICS.items()
}
PREDICTED = {"ttft_p50_ms": "ttft_ms", "tpot_p50_ms": "tpot_ms"}
ENOUGH = {"p95": 20, "p99": 100}  # requests of a cell: with fewer, its slowest stands for that percentile
MEETS, UNDECIDED, MISSES, UNKNOWN = "meets", "undecided", "misses", "unknown"
ORDER = (MEETS, UNDECIDED, MISSES, UNKNOWN)
OF_ARMS = "each arm's own model"  # in a section whose header has none for all


@dataclass(frozen=True)
class Target:
    """One service-level objective: the latency `name` (`ttft_p99_ms`) at most `limit_ms`."""

    name: str
    limit_ms: float

    @property
    def metric(self) -> str:
        """The column of cells.csv."""
        return SLOS[self.name]

    def too_few(self, requests: int) -> str | None:
        """Why a cell of so many requests says nothing of this target; None where it does."""
        statistic = self.name.split("_")[1]
        needed = ENOUGH.get(statistic, 0)
        return f"not enough requests for {statistic}: {requests} of {needed}" if requests < needed else None


@dataclass(frozen=True)
class Figure:
    """A figure over `repeats` (0: predicted); `low` and `high` are its interval's ends, equal to the value where
    nothing bounds the noise.
    """

    value: float
    low: float
    high: float
    repeats: int = 0


@dataclass(frozen=True)
class Row:
    """An arm at a concurrency.

    `over` is by how much the worst target is exceeded (0.44: 44 %, negative: kept), `worst` its name. `requests` are
    those of one repeat; `why` says of a target without a figure why there is none; `prescribed` is whether the engine
    was told what to accept.
    """

    host: str
    arm: str
    concurrency: int
    repeats: int
    verdict: str
    throughput: Figure
    latencies: dict[str, Figure | None]
    over: float | None
    worst: str | None
    usd_per_million: float | None
    requests: int = 0
    why: dict[str, str] = field(default_factory=dict)
    prescribed: bool = False


@dataclass(frozen=True)
class Advice:
    """All rows of a host, the best first.

    `basis` is `measured` or `predicted`, `where` says whose results or which constants.
    """

    host: str
    section: int
    basis: str
    where: str
    labels: str
    targets: tuple[Target, ...]
    rows: tuple[Row, ...]
    left_out: dict[str, int]
    price: prices.Price | None
    engine: str = ""

    @property
    def answer(self) -> Row | None:
        """The first row whose acceptance, if it has one, was measured."""
        return next((row for row in self.rows if not row.prescribed), None)

    @property
    def found(self) -> bool:
        """Whether an arm was measured to meet every target, its acceptance too."""
        return self.basis == "measured" and any(row.verdict == MEETS and not row.prescribed for row in self.rows)

    def arms(self, verdict: str) -> list[Row]:
        """One row an arm whose best verdict this is: the concurrency with the highest throughput, or, of arms that
        miss, the nearest miss.
        """
        best = {}
        for row in self.rows:
            best.setdefault(row.arm, row)
        return [row for row in best.values() if row.verdict == verdict]

    def as_dict(self) -> dict:
        return asdict(self) | {"price": self.price and self.price.as_dict(), "qualifies": self.found}


def targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Targets from `NAME=MS`; a column's name (`p99_ttft_ms`) is taken as well.

    Raises ParameterError naming the allowed ones.
    """
    by_column, parsed = {column: name for name, column in SLOS.items()}, []
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        name = by_column.get(name, name)
        if name not in SLOS:
            raise ParameterError(
                "no such target",
                value=text,
                allowed=", ".join(SLOS),
                next=near(name, SLOS) or "serving-study advise --slo ttft_p99_ms=500",
            )
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if not sign or not 0 < limit < math.inf:
            raise ParameterError(
                "a target wants milliseconds",
                value=text,
                allowed=f"{name}=NUMBER, above 0",
                next=f"serving-study advise --slo {name}=500",
            )
        if name in {other.name for other in parsed}:
            raise ParameterError("a target is given twice", value=name, allowed="each once")
        parsed.append(Target(name, limit))
    return tuple(parsed)


def of_host(
    host: str,
    section: int,
    wanted: tuple[Target, ...],
    *,
    price: prices.Price | None = None,
    root: Path | None = None,
    own: str | None = None,
) -> Advice:
    """What was measured on a host, judged; predictions where nothing was.

    Looks in `root`, else in this machine's results, else in the published ones, for an instance type also under its
    GPUs' profile. `own` is the name of this machine, whose results may be its own. Raises HostError where nothing
    was measured and nothing can be predicted."""
    price = price or prices.known(host)
    place, host = ceilings.instances().get(host), store.host_named(host, section, root)
    for name in [host, *([f"{place.gpu.name}x{place.count}"] if place else [])]:
        for folder in dict.fromkeys([root] if root else [paths.RESULTS, paths.RESULTS_PUBLISHED]):
            known = store.Store(name, section, folder)
            if known.cell_files():
                return _measured(known, folder, wanted, price, own)
    return _predicted(host, section, wanted, price, root)


def _measured(
    known: store.Store, folder: Path, wanted: tuple[Target, ...], price: prices.Price | None, own: str | None
) -> Advice:
    frame = known.newest()
    runs = {run.name: files.read(run.folder / "run.json") for run in known.runs()}
    newest = runs[frame["run"][frame["at"].idxmax()]]
    model = newest["parameters"].get("model", OF_ARMS)
    passed, again = frame[frame["certificate"] == certificates.PASS], frame["repeat_of"].notna()
    left_out = {
        f"certificate {name}": int((frame.loc[~again, "certificate"] == name).sum())
        for name in (certificates.FAIL, certificates.UNKNOWN)
    } | {"another model": known.cells_of_another_model(), "another machine": known.cells_elsewhere()}
    floors = {
        metric: comparisons.floor(passed, metric)
        for metric in ("output_throughput", *(target.metric for target in wanted))
    }
    rows = [
        _row(known.host, group, wanted, floors, price)
        for _, group in comparisons.without_repeats(passed).groupby(["arm", "concurrency"], sort=False)
    ]
    is_own = own == known.host and (folder != paths.RESULTS_PUBLISHED or store.results_folder_id() is not None)
    place = known.folder.relative_to(paths.ROOT) if known.folder.is_relative_to(paths.ROOT) else known.folder
    whose = (
        "this machine's own results"
        if is_own
        else "published with the book"
        if folder == paths.RESULTS_PUBLISHED
        else "results"
    )
    where = f"{whose} ({place}: {model} on {hosts.of_record(newest).words})"
    return Advice(
        known.host,
        known.section,
        "measured",
        where,
        comparisons.kinds(frame),
        wanted,
        _ranked(rows),
        {why: count for why, count in left_out.items() if count},
        price,
        store.engine_of(newest),
    )


def _row(
    host: str, cells: pandas.DataFrame, wanted: tuple[Target, ...], floors: dict, price: prices.Price | None
) -> Row:
    concurrency = int(cells["concurrency"].iloc[0])

    def figure(metric: str) -> Figure:
        return _figure(cells[metric].dropna(), floors[metric].get(concurrency, math.nan))

    requests = int(cells["completed"].min()) if cells["completed"].notna().any() else 0
    why = {target.name: text for target in wanted if (text := target.too_few(requests))}
    throughput = figure("output_throughput")
    latencies = {target.name: None if target.name in why else figure(target.metric) for target in wanted}
    verdict, over, worst = _verdict(wanted, latencies)
    return Row(
        host,
        cells["arm"].iloc[0],
        concurrency,
        int(cells["repeat"].nunique()),
        verdict,
        throughput,
        latencies,
        over,
        worst,
        price.per_million(throughput.value) if price else None,
        requests,
        why
        | {name: "the figure is withheld" for name, latency in latencies.items() if not latency and name not in why},
        bool((cells["acceptance"] == "prescribed").any()),
    )


def _figure(values: pandas.Series, noise: float) -> Figure | None:
    """Geometric mean and interval; where nothing bounds the noise, the interval is the value."""
    if values.empty:
        return None
    return Figure(*comparisons.bounded(*comparisons.interval(values, noise)), len(values))


def _verdict(wanted: tuple[Target, ...], latencies: dict[str, Figure | None]) -> tuple[str, float | None, str | None]:
    """Misses if one target certainly does, unknown if one has no figure, undecided if one interval holds its target,
    else meets.
    """
    known = [(target, latencies[target.name]) for target in wanted if latencies[target.name]]
    excess, worst = max(
        ((figure.value / target.limit_ms - 1, target.name) for target, figure in known), default=(None, None)
    )
    if any(figure.low > target.limit_ms for target, figure in known):
        return MISSES, excess, worst
    if len(known) < len(wanted):
        return UNKNOWN, excess, worst
    return UNDECIDED if any(figure.high > target.limit_ms for target, figure in known) else MEETS, excess, worst


def _ranked(rows: list[Row]) -> tuple[Row, ...]:
    """Qualifying rows by throughput, then the undecided, those whose mean is inside first, then those that miss by how
    little.
    """
    excess = lambda row: max(0.0, row.over) if row.verdict in (UNDECIDED, MISSES) else 0.0  # noqa: E731
    return tuple(sorted(rows, key=lambda row: (ORDER.index(row.verdict), excess(row), -row.throughput.value)))


def _predicted(
    host: str, section: int, wanted: tuple[Target, ...], price: prices.Price | None, root: Path | None
) -> Advice:
    others = store.measured_hosts(section, root)
    hint = (
        f"measured: {', '.join(others)} (--host); or make run SECTION={section} here"
        if others
        else f"make run SECTION={section}"
    )
    try:
        ceilings.of_host(host)
    except HostError as error:
        raise HostError(
            "nothing is measured on this host, and nothing can be predicted for it",
            value=f"{host}, section {section}",
            allowed=f"a host with results ({', '.join(others) or 'none yet'}), or {error.allowed}",
            next=near(host, [*others, *ceilings.instances()]) or hint,
        ) from None
    if section not in verdicts.LOADS:
        raise HostError(
            "nothing is measured on this host, and nothing is predicted for this section",
            value=f"{host}, section {section}",
            allowed=f"a host with results ({', '.join(others) or 'none yet'}), or section "
            f"{' or '.join(map(str, verdicts.LOADS))}",
            next=hint,
        )
    frame, rows = predictions.predict(host, section=section), []
    for row in frame.dropna(subset=["output_throughput"]).itertuples():
        exact = lambda value: Figure(float(value), float(value), float(value))  # noqa: E731
        latencies = {
            target.name: exact(getattr(row, PREDICTED[target.name])) if target.name in PREDICTED else None
            for target in wanted
        }
        judged = tuple(target for target in wanted if latencies[target.name])
        verdict, over, worst = _verdict(judged, latencies) if judged or not wanted else (UNKNOWN, None, None)
        rows.append(
            Row(
                host,
                row.arm,
                int(row.concurrency),
                0,
                verdict,
                exact(row.output_throughput),
                latencies,
                over,
                worst,
                price.per_million(row.output_throughput) if price else None,
            )
        )
    return Advice(
        host,
        section,
        "predicted",
        f"nothing is measured on {host} in section {section}; {predictions.basis(host)}; {hint}",
        "",
        wanted,
        _ranked(rows),
        {},
        price,
    )


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
        UNDECIDED: "undecided: the interval holds a target, more repeats would tell",
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
    """The best of it in a sentence or two, beside it the middle one of those that do as well."""
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
        UNDECIDED: f"no arm certainly meets the targets. The best that is undecided is {what}, "
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
    """`(128 requests, 3 repeats)`; nothing for a prediction."""
    if not row.repeats:
        return ""
    return f" ({row.requests} requests, {f'{row.repeats} repeats' if row.repeats > 1 else 'one draw'})"


def about(advice: Advice) -> str:
    """`h200x1, measured, vLLM 0.25.1, random weights`: what a caption says of these figures."""
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
    """The cheapest and the fastest qualifying arm of several hosts; nothing for one host."""
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
