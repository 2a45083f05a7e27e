"""Which measured arms meet a service's targets, at which concurrency, ranked by throughput and cost; and by how much
the others miss.

Only cells with a passed certificate count. A figure is the geometric mean of its repeats; its interval is Student's t
at 95 % over their logarithms, at least the noise floor; an interval that holds the target decides nothing. A p99 over
fewer than a hundred requests is not judged, and an arm with prescribed acceptance is shown but never the answer. What
can mislead: the load is the section's, not yours; where nothing was measured only medians can be predicted, and are
labelled so.

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

STATISTICS = {"p50": "median", "p95": "p95", "p99": "p99", "mean": "mean"}
SLOS = {
    f"{latency}_{statistic}_ms": f"{column}_{latency}_ms"
    for latency in comparisons.LATENCIES
    for statistic, column in STATISTICS.items()
}
PREDICTED = {"ttft_p50_ms": "ttft_ms", "tpot_p50_ms": "tpot_ms"}
MEETS, UNDECIDED, MISSES, UNKNOWN = "meets", "not decided", "misses", "unknown"
ORDER = (MEETS, UNDECIDED, MISSES, UNKNOWN)
OF_ARMS = "each arm's own model"  # in a section whose header has none for all


@dataclass(frozen=True)
class Target:
    """A service-level objective: the latency `name` (`ttft_p99_ms`) is at most `limit_ms`."""

    name: str
    limit_ms: float

    @property
    def metric(self) -> str:
        """Its column of cells.csv."""
        return SLOS[self.name]

    def too_few(self, requests: int) -> str | None:
        """Why a cell of so many requests cannot be judged by this target; None where it can."""
        needed = comparisons.least_requests(self.metric)
        return (
            f"not enough requests for {self.name.split('_')[1]}: {requests} of {needed}" if requests < needed else None
        )


@dataclass(frozen=True)
class Figure:
    """The mean of `repeats` (0: predicted), and its interval `low` to `high`, equal to the value where nothing bounds
    the noise.
    """

    value: float
    low: float
    high: float
    repeats: int = 0


@dataclass(frozen=True)
class Row:
    """An arm at a concurrency.

    `over` is the relative excess over its `worst` target (0.44: 44 % above; negative: kept). `requests` are those of
    one repeat; `why` says why a target has no figure; `prescribed`: the engine was told what to accept."""

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

    `basis` is `measured` or `predicted`, `where` names the results or constants."""

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
        """The first row whose acceptance, if any, was measured."""
        return next((row for row in self.rows if not row.prescribed), None)

    @property
    def found(self) -> bool:
        """Whether an arm with measured acceptance was measured to meet every target."""
        return self.basis == "measured" and any(row.verdict == MEETS and not row.prescribed for row in self.rows)

    def arms(self, verdict: str) -> list[Row]:
        """One row an arm: the highest throughput of its best verdict, or its nearest miss."""
        best = {}
        for row in self.rows:
            best.setdefault(row.arm, row)
        return [row for row in best.values() if row.verdict == verdict]

    def as_dict(self) -> dict:
        return asdict(self) | {"price": self.price and self.price.as_dict(), "qualifies": self.found}


def targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Targets from `NAME=MS`; NAME may be a column (`p99_ttft_ms`). Raises ParameterError naming the allowed ones."""
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
    """A host's measurements, judged; predictions where there are none.

    Looks in `root`, else in this machine's results, else in the published ones; for an instance type also under its
    GPUs' profile. `own` is this machine's name. Raises HostError where nothing was measured and nothing can be
    predicted."""
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
    """Geometric mean and interval; the interval is the value where nothing bounds the noise."""
    if values.empty:
        return None
    return Figure(*comparisons.bounded(*comparisons.interval(values, noise)), len(values))


def _verdict(wanted: tuple[Target, ...], latencies: dict[str, Figure | None]) -> tuple[str, float | None, str | None]:
    """`misses` if the whole interval of one target does, `unknown` if one has no figure, `not decided` if one lies in
    its interval, else `meets`.
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
    """First rows that meet, by throughput; then the undecided, those with a good mean first; then misses by their
    excess.
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
