"""Which technique for which problem, from figures: measured on this host, measured elsewhere, published by the
reference study, or predicted.

An *effect* is a ratio of an arm to the arm it replaces: throughput, TPOT, TTFT, KV tokens. Those of stored cells have
the certificate of every comparison in the book, and an interval where they were repeated; those of the reference study
have neither; predictions stand only where nothing was measured, and say so. An effect is *grounded* unless the engine
was told what to accept, or a gain rests on too few accepted tokens: what is not is shown as evidence, with its label,
and is neither a rule nor an answer. What can mislead: throughput is of output tokens in our cells and in predictions,
of all tokens in the reference study; and an effect belongs to its model, GPU, engine and load, which is why a second
host stands beside the first.

    >>> from serving_study.chapters.choosing import choosing
    >>> choosing.effects("cpu")[["technique", "basis", "ratio"]]                    # doctest: +SKIP
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated

import pandas
from pydantic import Field

from ... import files, paths
from ...analysis import comparisons, verdicts
from ...chapters.kv_cache import prefixes
from ...chapters.parameters import (
    Number,
    Parameters,
)
from ...chapters.speculation import draft_cost
from ...errors import HostError
from ...hardware import ceilings
from ...models import shapes
from ...results import certificates, reference, store
from ...theory import calibration, capacity, predictions, reuse
from . import advice

HERE, PUBLISHED, REFERENCE, PREDICTED, NOTHING = (
    "this host",
    "published",
    "reference study",
    "predicted",
    "not measured",
)
THROUGHPUT, TPOT, TTFT, KV = "throughput", "TPOT", "TTFT", "KV tokens"
OURS = {THROUGHPUT: "output_throughput", TPOT: "median_tpot_ms", TTFT: "median_ttft_ms"}
THEIRS = {THROUGHPUT: "total_token_throughput", TPOT: "median_tpot_ms", TTFT: "median_ttft_ms"}
COLUMNS = [
    "technique",
    "arm",
    "against",
    "basis",
    "host",
    "metric",
    "concurrency",
    "ratio",
    "low",
    "high",
    "differs",
    "certificate",
    "labels",
    "section",
    "engine",
    "requests",
    "repeats",
    "proposing",
    "grounded",
]
SHARED, OWN, LONG = (
    3001,
    20,
    8192,
)  # tokens: of the reference study's prefix, of a question after it, of a prompt worth moving


FAULT = "draft passes outside CUDA graphs (an engine fault that the source of 0.32 has mended)"
MENDED = (
    0,
    32,
)  # of vLLM: from here on a draft model's passes are in CUDA graphs (section-3-draft-graphs measured both)
FEW = f"on fewer than {comparisons.LEAST_ACCEPTED} accepted tokens"
OF_REFERENCE = "vLLM 0.27.1"  # named for the study as a whole


@dataclass(frozen=True)
class Technique:
    """A technique, and the arms of a section that show it: those that match `arms`, each held against the first of
    `against` that there is.
    """

    name: str
    section: int | None = None
    arms: str = ""
    against: tuple[str, ...] = ()

    def baseline(self, arm: str, arms) -> str | None:
        """The arm among `arms` that this one is held against; None for an arm of another technique, or where there is
        none.
        """
        match = re.fullmatch(self.arms, arm)
        names = [name.format(**match.groupdict()) for name in self.against] if match else []
        first = next((name for name in names if name in arms), None)
        return None if first == arm else first


TECHNIQUES = (
    Technique("n-gram look-up", 3, r"ngram-k\d+", ("baseline",)),
    Technique("draft model", 3, r"draft-k\d+", ("baseline",)),
    Technique("EAGLE head", 3, r"eagle\d*-k\d+", ("baseline",)),
    Technique("tensor parallelism", 5, r"(?P<model>.+?)-tp\d+", ("{model}-tp1", "{model}-tp2")),
    Technique("pipeline parallelism", 5, r"(?P<model>.+?)-pp(?P<ranks>\d+)", ("{model}-tp{ranks}",)),
    Technique("prefix caching"),
    Technique("prefill/decode split"),
    Technique("KV offload"),
    Technique("quantised KV cache"),
    Technique("data-parallel replicas", 5, r"(?P<model>.+?)-(dp|replicas)\d+", ("{model}-tp1",)),
)


class Choosing(Parameters):
    """Section 10's parameters."""

    section = 10
    verb = "make run"

    host: str = Field("auto", description='profile of this machine: "auto", its own name, or "cpu"')
    slo: Annotated[dict[str, Number], Field(min_length=1)] = Field(
        {"ttft_p99_ms": 500, "tpot_p50_ms": 40},
        description="targets in milliseconds",
        json_schema_extra={"allowed": "one target or more, in milliseconds"},
    )
    instance: str = Field("g6.xlarge", description="to predict for: one GPU")
    instances: str = Field("g5.12xlarge", description="to predict for: several GPUs")
    model: str = Field("Qwen/Qwen2.5-7B-Instruct", description="to predict for")


def effects(
    host: str, *, instance: str = "g6.xlarge", instances: str = "g5.12xlarge", model: str = calibration.TARGET
) -> pandas.DataFrame:
    """Every effect of every technique, one row a metric and concurrency; a technique of which nothing is known has one
    row without a ratio.

    Predictions are for `host` where its ceilings are known, for `instance` (one GPU) and for `instances` (several);
    `settled` drops those that a measurement has settled."""
    found = [
        effect
        for section in (3, 4, 5)
        for name in _hosts(section, host)
        for effect in _measured(name, section, HERE if name == host else PUBLISHED)
    ]
    found += [
        effect
        for name in _hosts(7, host)
        for make in (_reused, _quantised)
        for effect in make(name, HERE if name == host else PUBLISHED)
    ]
    found += [effect for section in (3, 5) for effect in _reference(section)] + _reference_prefix()
    found += [
        effect
        for place in dict.fromkeys([*([host] if _known(host) else []), instance, instances])
        for effect in _predicted(place, model, place == host)
    ]
    named = {row["technique"] for row in found}
    found += [
        {"technique": technique.name, "basis": NOTHING} for technique in TECHNIQUES if technique.name not in named
    ]
    order = {technique.name: place for place, technique in enumerate(TECHNIQUES)}
    bases = [HERE, PUBLISHED, REFERENCE, PREDICTED, NOTHING]
    frame = pandas.DataFrame(found, columns=COLUMNS)
    keys = frame.assign(place=frame["technique"].map(order), basis_place=frame["basis"].map(bases.index))
    frame["grounded"] = frame["grounded"].isna() | (frame["grounded"] == True)  # noqa: E712 - None is grounded
    return frame.loc[
        keys.sort_values(
            ["place", "basis_place", "host", "section", "arm", "metric", "concurrency"], kind="stable"
        ).index
    ].reset_index(drop=True)


def settled(frame: pandas.DataFrame, host: str) -> pandas.DataFrame:
    """Without predictions for techniques that somebody measured; those for `host` stay until it is measured itself."""
    seen = frame[frame["basis"].isin([HERE, PUBLISHED, REFERENCE])]
    here = frame["technique"].isin(seen.loc[seen["host"] == host, "technique"])
    anywhere = frame["technique"].isin(seen["technique"])
    return frame[(frame["basis"] != PREDICTED) | ~(here | (anywhere & (frame["host"] != host)))].reset_index(drop=True)


def _hosts(section: int, host: str) -> list[str]:
    return [host, *(name for name in store.measured_hosts(section) if name != host)]


def _known(host: str) -> bool:
    try:
        return bool(ceilings.of_host(host))
    except HostError:
        return False


def _measured(host: str, section: int, basis: str) -> list[dict]:
    """Effects of a host's newest cells, as `comparisons.compare` has them; section 4's arms are section 3's."""
    frame = _newest(host, section)
    if frame is None:
        return []
    outcomes, rows = frame.groupby(["arm", "concurrency"])["certificate"].agg(set), []
    for technique in (technique for technique in TECHNIQUES if technique.section == (3 if section == 4 else section)):
        arms = dict.fromkeys(frame["arm"])
        against = {arm: base for arm in arms if (base := technique.baseline(arm, arms))}
        for base in dict.fromkeys(against.values()):
            again = [arm for arm, equal in comparisons.repeats(frame).items() if equal == base]
            chosen = frame[frame["arm"].isin([base, *again, *(arm for arm in against if against[arm] == base)])]
            for metric, column in OURS.items():
                table = comparisons.compare(chosen, column, base)
                few = comparisons.too_few_accepted(table.assign(ratio=_better(table["ratio"], metric)), chosen)
                for row, rests_on_few in zip(table.itertuples(), few, strict=True):
                    if row.arm in again:
                        continue
                    both = outcomes[row.arm, row.concurrency] | outcomes[base, row.concurrency]
                    at, of_arm = chosen[chosen["concurrency"] == row.concurrency], chosen[chosen["arm"] == row.arm]
                    about = _of_cells(technique, at[at["arm"] == row.arm], at[at["arm"] == base], column, of_arm)
                    about["grounded"] = about["grounded"] and not rests_on_few
                    if rests_on_few:
                        about["labels"] = ", ".join(filter(None, [about["labels"], FEW]))
                    if about["repeats"] > 1:
                        about |= {"low": row.low, "high": row.high}
                    rows.append(
                        _effect(
                            technique,
                            row.arm,
                            base,
                            basis,
                            host,
                            metric,
                            row.concurrency,
                            row.ratio,
                            differs=row.differs,
                            certificate=_certificate(both),
                            section=section,
                            **about,
                        )
                    )
    return rows


def _better(ratios: pandas.Series, metric: str) -> pandas.Series:
    """Ratios as gains: above 1 is better."""
    return 1 / ratios if metric in (TPOT, TTFT) else ratios


def _certificate(outcomes: set[str]) -> str:
    """What an effect's cells come to: those that failed took no part in it."""
    return certificates.PASS if outcomes <= {certificates.PASS, certificates.FAIL} else certificates.UNKNOWN


def _of_cells(
    technique: Technique,
    cells: pandas.DataFrame,
    base: pandas.DataFrame,
    column: str,
    of_arm: pandas.DataFrame | None = None,
) -> dict:
    """What has to be said of an arm's cells at one concurrency: engine, requests of one repeat, repeats (those that
    both arms have), the share of steps with proposals over all cells `of_arm`, labels, and whether it is grounded.
    """
    usable = comparisons.usable(cells).dropna(subset=[column])
    with_base = comparisons.usable(base).dropna(subset=[column])
    run = files.read(usable["file"].iloc[0].parents[3] / "run.json")
    engine = store.engine_of(run)
    proposing = comparisons.steps(comparisons.usable(usable if of_arm is None else of_arm))["proposing"].mean()
    prescribed = technique.section == 3 and (usable["acceptance"] == "prescribed").any()
    words = [comparisons.kinds(usable)]
    if prescribed and technique.name == "n-gram look-up":
        words.append(f"{proposing:.0%} of steps propose (random text repeats itself)")
    if technique.name == "draft model" and run["host"]["gpus"] and engine and _version(engine) < MENDED:
        words.append(FAULT)
    return {
        "labels": ", ".join(filter(None, words)),
        "engine": engine,
        "requests": int(usable["completed"].min()) if usable["completed"].notna().any() else math.nan,
        "repeats": min(usable["repeat"].nunique(), with_base["repeat"].nunique()),
        "proposing": proposing,
        "grounded": not prescribed,
    }


def _version(engine: str) -> tuple[int, ...]:
    """(0, 25) of `vLLM 0.25.1`."""
    return tuple(int(part) for part in re.findall(r"\d+", engine)[:2])


def _store(host: str, section: int) -> store.Store | None:
    """This machine's results of a host and section, else the published ones."""
    stores = [store.Store(host, section, folder) for folder in dict.fromkeys([paths.RESULTS, paths.RESULTS_PUBLISHED])]
    return next((known for known in stores if known.cell_files()), None)


def _newest(host: str, section: int) -> pandas.DataFrame | None:
    known = _store(host, section)
    return known.newest() if known else None


def _reused(host: str, basis: str) -> list[dict]:
    """Section 7's effects: TTFT behind a prefix that was found over the cold first one, the control's, and of prefixes
    that a tier gave back over computing them.
    """
    frame, by_name = _newest(host, 7), {technique.name: technique for technique in TECHNIQUES}
    if frame is None:
        return []
    found = [
        ("prefix caching", row.arm, "computing it", 1 / row.gain, int(row.later))
        for row in prefixes.sequence(frame).itertuples()
        if row.arm in (prefixes.CACHED, prefixes.CONTROL)
    ]
    back = prefixes.by_source(frame).query("source == 'external'").dropna(subset=["against_recompute"])
    places = prefixes.read_from(frame)
    found += [
        ("KV offload", row.arm, "recomputing", 1 / row.against_recompute, row.requests) for row in back.itertuples()
    ]
    rows = []
    for technique, arm, against, ratio, requests in found:
        about = _of_cells(by_name[technique], *[frame[frame["arm"] == arm]] * 2, "median_ttft_ms")
        about["requests"] = requests
        if technique == "KV offload" and arm in places:
            about["labels"] = ", ".join(filter(None, [about["labels"], f"{arm} from the {places[arm].split(' (')[0]}"]))
        certificate = _certificate(set(frame.loc[frame["arm"] == arm, "certificate"]))
        rows.append(
            _effect(
                by_name[technique],
                arm,
                against,
                basis,
                host,
                TTFT,
                1,
                ratio,
                certificate=certificate,
                section=7,
                **about,
            )
        )
    return rows


def _quantised(host: str, basis: str) -> list[dict]:
    """The cache of 8-bit numbers against the model's own, of section 7's starts and loads; nothing where it was not
    measured. What it does to answers is not in these figures.
    """
    known = _store(host, 7)
    if known is None:
        return []
    frame = known.newest()
    starts = pandas.DataFrame(
        {start["arm"]: store.start_row(start) for start in known.starts_by_key().values()}.values(),
        columns=list(store.START_COLUMNS),
    )
    table = prefixes.quantised(frame, starts)
    metrics = {"kv_cache_tokens": KV} | {column: metric for metric, column in OURS.items()}
    metrics |= {"request_throughput": THROUGHPUT}
    [technique] = [technique for technique in TECHNIQUES if technique.name == "quantised KV cache"]
    cells, base = (frame[frame["arm"] == arm] for arm in (prefixes.QUANTISED, prefixes.CACHED))
    rows = []
    for row in table.itertuples():
        metric = metrics.get(row.what.split(",")[0])
        if metric is None:
            continue
        about = _of_cells(technique, cells, base, "request_throughput")
        at = None if metric == KV else int(cells["concurrency"].max())
        certificate = None if metric == KV else _certificate(set(cells["certificate"]) | set(base["certificate"]))
        if metric == KV:
            about |= {"requests": math.nan, "repeats": math.nan}
        rows.append(
            _effect(
                technique,
                prefixes.QUANTISED,
                prefixes.CACHED,
                basis,
                host,
                metric,
                at,
                row.ratio,
                certificate=certificate,
                section=7,
                **about,
            )
        )
    return rows


def _reference(section: int) -> list[dict]:
    """Effects in the reference study's tables: throughput and latencies by concurrency, KV tokens of the starts."""
    figures, rows = reference.load(section), []
    values = {
        (row.host, row.arm, row.metric, None if pandas.isna(row.concurrency) else int(row.concurrency)): row.value
        for row in figures.itertuples()
    }
    for (host, arm, column, concurrency), value in values.items():
        metric = next(
            (name for name, theirs in THEIRS.items() if theirs == column), KV if column == "kv_cache_tokens" else None
        )
        for technique in (technique for technique in TECHNIQUES if technique.section == section and metric):
            base = technique.baseline(
                arm, {other for place, other, name, at in values if (place, name, at) == (host, column, concurrency)}
            )
            if base:
                rows.append(
                    _effect(
                        technique,
                        arm,
                        base,
                        REFERENCE,
                        host,
                        metric,
                        concurrency,
                        value / values[host, base, column, concurrency],
                        section=section,
                        engine=OF_REFERENCE,
                        requests=verdicts.LOADS[section].get(concurrency, math.nan),
                    )
                )
    return rows


def _reference_prefix() -> list[dict]:
    """TTFT with the prefix found over TTFT of computing it, and the same five requests with the cache off: the control.

    Medians, as `prefixes.published` has them."""
    [technique] = [technique for technique in TECHNIQUES if technique.name == "prefix caching"]
    names = {ours: theirs for theirs, ours in prefixes.OF_REFERENCE.items()}
    about = {"section": 7, "engine": OF_REFERENCE}
    return [
        _effect(
            technique,
            names[row.arm],
            "computing it",
            REFERENCE,
            "l4x1",
            TTFT,
            1,
            1 / row.gain,
            requests=int(row.later),
            **about,
        )
        for row in prefixes.published().itertuples()
    ]


def _predicted(host: str, model: str, own: bool) -> list[dict]:
    """What arithmetic says for a host: `theory.predict`'s arms, and `reuse`'s trades at one length each; of several
    GPUs section 3's only if it is one's own.
    """
    place, shape, rows = ceilings.of_host(host), shapes.load(model), []
    machine, links = calibration.machine(place), reuse.links(place)
    by_name = {technique.name: technique for technique in TECHNIQUES}
    for section in (3,) if place.count == 1 else (5,) if not own else (3, 5):
        table = (
            predictions.predict(host, model, section=section)
            .dropna(subset=["concurrency", "tpot_ms"])
            .set_index(["arm", "concurrency"])
        )
        for technique in (technique for technique in TECHNIQUES if technique.section == section):
            for arm, concurrency in table.index:
                if base := technique.baseline(arm, {other for other, at in table.index if at == concurrency}):
                    mine, theirs = table.loc[(arm, concurrency)], table.loc[(base, concurrency)]
                    for metric, column in {
                        THROUGHPUT: "output_throughput",
                        TPOT: "tpot_ms",
                        TTFT: "ttft_ms",
                        KV: "kv_tokens",
                    }.items():
                        rows.append(
                            _effect(
                                technique,
                                arm,
                                base,
                                PREDICTED,
                                host,
                                metric,
                                int(concurrency),
                                mine[column] / theirs[column],
                            )
                        )
    found = reuse.prefix(shape, machine, shared=SHARED, own=OWN)
    rows.append(
        _effect(
            by_name["prefix caching"],
            f"{found.cached_tokens} of {found.tokens} tokens",
            "none found",
            PREDICTED,
            host,
            TTFT,
            1,
            1 / found.gain,
        )
    )
    between = links.get("nvlink") or links.get("pcie")
    if place.count > 1 and between:
        split = reuse.hand_over(shape, machine, between, prompt=LONG, output=256, concurrency=8)
        for metric, ratio in (
            (TPOT, split.tpot_s / split.replicas_tpot_s),
            (THROUGHPUT, split.request_throughput / split.replicas_request_throughput),
        ):
            rows.append(
                _effect(
                    by_name["prefill/decode split"],
                    f"{LONG} tokens, {between.name}",
                    "two replicas",
                    PREDICTED,
                    host,
                    metric,
                    8,
                    ratio,
                )
            )
    if "cpu" in links:
        ratio = reuse.restore_s(shape, links["cpu"], LONG) / reuse.recompute_s(shape, machine, LONG)
        rows.append(
            _effect(
                by_name["KV offload"], f"{LONG} tokens, host memory", "recomputing", PREDICTED, host, TTFT, 1, ratio
            )
        )
    starts = [
        capacity.predict(capacity.Server(shape, place.gpu, max_num_seqs=128, kv_element_bytes=size))
        for size in (None, 1)
    ]
    if starts[0].starts:
        rows.append(
            _effect(
                by_name["quantised KV cache"],
                "fp8",
                "bf16",
                PREDICTED,
                host,
                KV,
                None,
                starts[1].tokens / starts[0].tokens,
            )
        )
    return rows


def _effect(technique, arm, against, basis, host, metric, concurrency, ratio, **about) -> dict:
    """One row of `effects`; what is not told is missing."""
    row = {"technique": technique.name, "arm": arm, "against": against, "basis": basis, "host": host, "metric": metric}
    missing = {"low": math.nan, "high": math.nan, "labels": "", "requests": math.nan, "repeats": math.nan}
    return missing | row | {"concurrency": concurrency, "ratio": float(ratio)} | about


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
        ends = _ends(cells)
        row = {
            "technique": technique,
            "arm": arm,
            "against": against,
            "basis": _where(cells.iloc[0]),
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
    words += [f"{spans} requests", _repeats(cells)] if len(requests) else []
    return ", ".join(filter(None, words))


def _repeats(cells: pandas.DataFrame) -> str:
    repeats = cells["repeats"].dropna()
    return f"{repeats.min():.0f} repeats" if len(repeats) and repeats.min() > 1 else "one draw"


def how_sure(cells: pandas.DataFrame) -> str:
    """How far a figure may be believed: what bounds its noise, and of how many figures it says that they differ."""
    first = cells.iloc[0]
    if first["basis"] == PREDICTED:
        return "arithmetic"
    if not cells["grounded"].any():
        return "no basis: " + ("prescribed acceptance" if "prescribed" in str(first["labels"]) else FEW)
    kept = cells[cells["grounded"]]
    if (kept["metric"] == KV).all():
        return "counted at the start"
    decided = kept["differs"].dropna()
    certain = f"{int((decided == True).sum())} of {len(kept)} figures certainly differ"  # noqa: E712 - None is neither
    if (kept["repeats"] > 1).any():
        return f"{comparisons.CONFIDENCE:.0%} intervals: {certain}"
    return f"against what equal arms differ by: {certain}" if len(decided) else "nothing bounds the noise"


def said(cells: pandas.DataFrame, metric: str) -> str:
    """A metric at the lowest and the highest concurrency of one arm's cells, one a line, with intervals where there
    are. A dash where it is not known.
    """
    rows = cells[cells["metric"] == metric]
    if rows["concurrency"].isna().all():
        return _one(rows.iloc[0])
    by_concurrency = rows.set_index("concurrency")
    return "\n".join(
        _one(by_concurrency.loc[concurrency]) if concurrency in by_concurrency.index else "–"
        for concurrency in _ends(cells)
    )


def _one(row) -> str:
    form = lambda ratio: f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"  # noqa: E731
    ends = "" if math.isnan(row["low"]) else f" [{form(row['low'])}, {form(row['high'])}]"
    return f"{form(row['ratio'])}×{ends}"


def _ends(cells: pandas.DataFrame) -> list[int]:
    found = sorted({int(concurrency) for concurrency in cells["concurrency"].dropna()})
    return list(dict.fromkeys(found[:1] + found[-1:]))


def _where(row) -> str:
    return row["host"] if row["basis"] == PUBLISHED else f"{row['basis']}, {row['host']}"


def labels(frame: pandas.DataFrame) -> str:
    """What a caption must say of the hosts in it: `h200x1: random weights, prescribed acceptance`."""
    found = {}
    for host, words in frame.loc[frame["labels"].fillna("") != "", ["host", "labels"]].itertuples(index=False):
        found.setdefault(host, {}).update(dict.fromkeys(words.split(", ")))
    return "; ".join(f"{host}: {', '.join(words)}" for host, words in found.items())


def ordered(
    frame: pandas.DataFrame, technique: str, metric: str, *, basis: str, best: bool = True, arms: str = ".*"
) -> list[pandas.DataFrame]:
    """The grounded cells of each arm of a technique, on one basis: first that which does best by `metric`, in the
    geometric mean over its concurrencies. With `best` false: that which does worst at the lowest concurrency.
    """
    rows = frame[
        (frame["technique"] == technique)
        & (frame["basis"] == basis)
        & frame["grounded"]
        & frame["arm"].fillna("").str.fullmatch(arms)
    ]
    figures = rows[(rows["metric"] == metric) & rows["ratio"].notna()]
    if not best:
        lowest = figures["concurrency"].isna() | (figures["concurrency"] == figures["concurrency"].min())
        figures = figures[lowest]
    keys = ["arm", "against", "host", "section"]
    means = figures.assign(log=figures["ratio"].map(math.log)).groupby(keys, sort=False, dropna=False)["log"].mean()
    lowest_first = (metric in (TPOT, TTFT)) == best
    groups = dict(list(rows.groupby(keys, sort=False, dropna=False)))
    named = {tuple(map(str, key)): cells for key, cells in groups.items()}
    return [named[tuple(map(str, key))] for key in means.sort_values(ascending=lowest_first, kind="stable").index]


def pick(
    frame: pandas.DataFrame, technique: str, metric: str, *, basis: str | None = None, **chosen
) -> pandas.DataFrame:
    """The cells of that arm of a technique which comes first in `ordered`, on the first basis that has it; empty where
    none has.
    """
    for wanted in (basis,) if basis else (HERE, PUBLISHED, REFERENCE, PREDICTED):
        if alike := ordered(frame, technique, metric, basis=wanted, **chosen):
            return alike[0]
    return frame.iloc[:0]


def phrase(
    frame: pandas.DataFrame, technique: str, metric: str, *, basis: str | None = None, best: bool = True, **chosen
) -> str:
    """`draft-k3: TPOT 0.55× at concurrency 1, 0.84× at 64; the best of 3, in the middle draft-k5: TPOT 0.58× …
    (reference study, l4x1; section 3, vLLM 0.27.1, 10–128 requests, one draw; nothing bounds the noise)`, or `not
    measured`. The first of several arms never stands without the middle one of its kind.
    """
    cells = pick(frame, technique, metric, basis=basis, best=best, **chosen)
    if cells.empty:
        return NOTHING
    first = cells.iloc[0]
    alike = ordered(frame, technique, metric, basis=first["basis"], best=best, **chosen)
    text = _figures(cells, metric)
    if len(alike) > 1:
        middle = alike[len(alike) // 2]
        other = middle.iloc[0]
        unlike = [_where(other)] if other["host"] != first["host"] else []
        if str(other["section"]) != str(first["section"]):
            unlike.append(f"section {other['section']:.0f}, {_repeats(middle)}")
        rank = f"the {'best' if best else 'worst'} of {len(alike)}"
        place = "in the middle" if len(alike) > 2 else "the other"
        text += f"; {rank}, {place} {_figures(middle, metric)}" + (f" ({', '.join(unlike)})" if unlike else "")
    shown = cells[cells["metric"] == metric]
    about = [_where(first), measured_with(shown), how_sure(shown), first["labels"] or ""]
    return f"{text} ({'; '.join(filter(None, about))})"


def _figures(cells: pandas.DataFrame, metric: str) -> str:
    """`draft-k3: TPOT 0.55× at concurrency 1, 0.84× at 64`: the lowest concurrency, the highest, and the best one."""
    rows = cells[cells["metric"] == metric]
    by_concurrency = rows.set_index("concurrency")
    extreme = by_concurrency["ratio"].idxmin() if metric in (TPOT, TTFT) else by_concurrency["ratio"].idxmax()
    ends = sorted({int(found) for found in [*_ends(rows), extreme] if found == found})
    what = [
        f"{_one(by_concurrency.loc[concurrency])} at {'concurrency ' if place == 0 else ''}{concurrency}"
        for place, concurrency in enumerate(ends)
    ] or [_one(rows.iloc[0])]
    return f"{rows.iloc[0]['arm']}: {metric} {', '.join(what)}"


def set_aside(frame: pandas.DataFrame, technique: str, metric: str, basis: str) -> list[str]:
    """What was measured on a basis and is no answer, a line a host: which arms, and why."""
    rows = frame[
        (frame["technique"] == technique) & (frame["metric"] == metric) & (frame["basis"] == basis) & ~frame["grounded"]
    ]
    lines = []
    for _, cells in rows.groupby("host", sort=False):
        why = dict.fromkeys(word for words in cells["labels"] for word in words.split(", ") if word)
        arms = [
            f"{arm} at {', '.join(str(int(at)) for at in sorted(of_arm['concurrency'].unique()))}"
            for arm, of_arm in cells.groupby("arm", sort=False)
        ]
        lines.append(f"no answer: {', '.join(arms)} ({_where(cells.iloc[0])}; {'; '.join(why)})")
    return lines


def known(frame: pandas.DataFrame, technique: str, metric: str, **chosen) -> str:
    """The phrases of every basis that has the figure, one a line, and what was set aside: this host first, predictions
    last.
    """
    lines = []
    for basis in (HERE, PUBLISHED, REFERENCE, PREDICTED):
        text = phrase(frame, technique, metric, basis=basis, **chosen)
        lines += [] if text == NOTHING else [text]
        lines += set_aside(frame, technique, metric, basis)
    return "\n".join(lines) or NOTHING


def too_large() -> str:
    """What became of a model that does not fit: the reference study's start, and the arithmetic for the same GPU."""
    figures = reference.load(5)
    starts = figures[(figures["metric"] == "start_outcome") & figures["text"].str.startswith("failed", na=False)]
    parts = []
    for row in starts.itertuples():
        seconds = figures[
            (figures["host"] == row.host) & (figures["arm"] == row.arm) & (figures["metric"] == "failure_s")
        ]["value"]
        after = f" after {seconds.iloc[0]:.0f} s" if len(seconds) else ""
        parts.append(f"{row.arm} {row.text}{after} ({REFERENCE}, {row.host})")
    found = capacity.predict(
        capacity.Server(shapes.load("qwen2.5-14b-instruct"), ceilings.gpu("a10g"), max_num_seqs=128)
    )
    arithmetic = "does not start" if not found.starts else f"holds {found.tokens} tokens"
    return (
        "\n".join(parts)
        + f"\n{found.weights_gib:.1f} GiB of weights {arithmetic} in {ceilings.gpu('a10g').memory_gib:.1f} "
        f"GiB ({PREDICTED}, a10g)"
    )


def figure(
    frame: pandas.DataFrame,
    arm: str,
    metric: str,
    *,
    basis: str = REFERENCE,
    highest: bool = False,
    against: str | None = None,
) -> float:
    """One ratio of an arm at its lowest concurrency, or the highest; NaN where there is none."""
    rows = frame[(frame["arm"] == arm) & (frame["metric"] == metric) & (frame["basis"] == basis)].sort_values(
        "concurrency"
    )
    rows = rows[rows["against"] == against] if against else rows
    return float(rows["ratio"].iloc[-1 if highest else 0]) if len(rows) else math.nan


def rules(frame: pandas.DataFrame) -> dict[str, float | str]:
    """The figures of section 10's rules, by the names under which the notebook glues them."""
    of = lambda *names, **chosen: figure(frame, *names, **chosen)  # noqa: E731
    unmeasured = list(dict.fromkeys(frame.loc[frame["basis"] == NOTHING, "technique"]))
    predicted = [
        name
        for name in dict.fromkeys(frame.loc[frame["basis"] == PREDICTED, "technique"])
        if set(frame.loc[frame["technique"] == name, "basis"]) == {PREDICTED}
    ]
    return {
        "draft_tpot_low": of("draft-k3", TPOT),
        "draft_tpot_high": of("draft-k3", TPOT, highest=True),
        "draft_here": _spoken(frame, "draft model", HERE),
        "draft_published": _spoken(frame, "draft model", PUBLISHED),
        "ngram_here": _spoken(frame, "n-gram look-up", HERE),
        "ngram_published": _spoken(frame, "n-gram look-up", PUBLISHED),
        "ngram_tpot_low": of("ngram-k3", TPOT),
        "ngram_tpot_high": of("ngram-k3", TPOT, highest=True),
        "fault": FAULT,
        "same_draft": disagreement(same_draft()),
        "fault_gain": draft_cost.figures()["h200_graph_gain"],
        "ngram_ttft": phrase(frame, "n-gram look-up", TTFT, basis=REFERENCE),
        "draft_ttft": phrase(frame, "draft model", TTFT, basis=REFERENCE, best=False),
        "prefix_gain": 1 / of("prefix-on", TTFT),
        "prefix_control": 1 / of("prefix-off", TTFT),
        "tp_tpot": of("7b-tp4", TPOT),
        "tp_throughput": of("7b-tp4", THROUGHPUT),
        "tp_share": of("7b-tp4", THROUGHPUT) / 4,
        "tp_kv": of("7b-tp4", KV),
        "pp_throughput": of("14b-pp2", THROUGHPUT),
        "pp_throughput_high": of("14b-pp2", THROUGHPUT, highest=True),
        "fp8_kv": known(frame, "quantised KV cache", KV).replace("\n", "; "),
        "fp8_throughput": known(frame, "quantised KV cache", THROUGHPUT).replace("\n", "; "),
        "fp8_tpot": known(frame, "quantised KV cache", TPOT).replace("\n", "; "),
        "predicted_only": ", ".join(predicted) or "none",
        "unmeasured": ", ".join(unmeasured) or "none",
    }


def _spoken(frame: pandas.DataFrame, technique: str, basis: str) -> str:
    """What is known of a technique's TPOT on one basis, as part of a sentence: the phrase, and what was set aside."""
    text = phrase(frame, technique, TPOT, basis=basis)
    lines = ([] if text == NOTHING else [text]) + set_aside(frame, technique, TPOT, basis)
    return "; ".join(lines) or NOTHING


def same_draft() -> pandas.DataFrame:
    """Sections 3 and 4 on one draft, where a host has both: a row an arm at the lowest concurrency, with `ratio` of
    output throughput to the baseline's and, of repeats, `low` and `high`; and what differs between the two: `prompts`
    (the data set), `requests` of one repeat, `answer_tokens` of each, `repeats`. `best` marks each section's highest.
    """
    rows = []
    for host in _hosts(4, "")[1:]:
        found = {section: frame for section in (3, 4) if (frame := _newest(host, section)) is not None}
        drafts = [_draft_of(frame) for frame in found.values()]
        if len(found) < 2 or drafts[0] is None or drafts[0] != drafts[1]:
            continue
        for section, frame in found.items():
            lowest = frame[frame["concurrency"] == frame["concurrency"].min()]
            table = comparisons.compare(lowest, "output_throughput", "baseline")
            table = table[table["arm"].str.fullmatch(r"draft-k\d+")]
            for row in table.itertuples():
                cells = comparisons.usable(lowest[lowest["arm"] == row.arm])
                run = files.read(cells["file"].iloc[0].parents[3] / "run.json")
                repeats = cells["repeat"].nunique()
                rows.append(
                    {
                        "host": host,
                        "section": section,
                        "arm": row.arm,
                        "concurrency": row.concurrency,
                        "ratio": row.ratio,
                        "low": row.low if repeats > 1 else math.nan,
                        "high": row.high if repeats > 1 else math.nan,
                        "differs": row.differs,
                        "best": row.ratio == table["ratio"].max(),
                        "prompts": run["dataset"]["name"],
                        "requests": int(cells["completed"].min()),
                        "answer_tokens": cells["total_output_tokens"].sum() / cells["completed"].sum(),
                        "repeats": repeats,
                        "engine": store.engine_of(run),
                    }
                )
    columns = "host section arm concurrency ratio low high differs best prompts requests answer_tokens repeats engine"
    return pandas.DataFrame(rows, columns=columns.split())


def _draft_of(frame: pandas.DataFrame) -> tuple | None:
    """Name and digest of the draft that these cells' newest run had."""
    run = files.read(frame.loc[frame["at"].idxmax(), "file"].parents[3] / "run.json")
    about = run["models"].get(run["parameters"].get("draft_model"), {})
    return (about["name"], about["weights_digest"]) if about.get("weights_digest") else None


def disagreement(table: pandas.DataFrame) -> str:
    """In a sentence a host: which k each section has its best with, and whether either is sure."""
    words = []
    for host, rows in table.groupby("host", sort=False):
        parts = [
            f"section {row.section} has its best with {row.arm}, {_one(row._asdict())} "
            f"({row.requests} requests of {row.answer_tokens:.0f} tokens, "
            f"{f'{row.repeats} repeats' if row.repeats > 1 else 'one draw'})"
            for row in rows[rows["best"]].itertuples()
        ]
        same = rows.loc[rows["best"], "arm"].nunique() == 1
        verdict = "they agree" if same else "the same draft, and two answers: neither k is settled by these"
        words.append(f"On `{host}` {' and '.join(parts)}: {verdict}.")
    return " ".join(words) or "No host has both."


def advised(host: str, wanted: tuple[advice.Target, ...], section: int = 3) -> list[advice.Advice]:
    """Advice for this host, where something is measured or can be predicted, and for every other host with results."""
    others, found = [name for name in store.measured_hosts(section) if name != host], []
    for name in [host, *others]:
        try:
            found.append(advice.of_host(name, section, wanted, own=host))
        except HostError:
            continue
    return found


def decisions(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The decision table: `problem`, `look first at`, `what is known`, every figure of it out of `frame` or the
    reference tables.
    """
    of = lambda *names, **chosen: known(frame, *names, **chosen)  # noqa: E731
    rows = [
        (
            "answers come too slowly for whoever is waiting",
            "speculation: a draft model, an EAGLE head; n-grams where the text is seen to repeat its prompt",
            f"{of('draft model', TPOT)}\n{of('n-gram look-up', TPOT)}",
        ),
        (
            "the first token has a target",
            "n-gram look-up before a draft model, which reads every prompt too",
            f"{of('n-gram look-up', TTFT)}\n{of('draft model', TTFT, best=False)}",
        ),
        (
            "prompts are long and begin alike",
            "prefix caching; leave it on, it costs nothing where nothing repeats",
            f"{of('prefix caching', TTFT, arms='(?!prefix-off|no-prefix-cache).*')}\nwithout the cache, "
            f"{phrase(frame, 'prefix caching', TTFT, basis=REFERENCE, arms='prefix-off')}",
        ),
        (
            "the model does not fit on one GPU",
            "tensor parallelism inside a host, pipeline parallelism between hosts",
            f"{too_large()}\npipeline in place of tensor parallelism, {of('pipeline parallelism', THROUGHPUT)}",
        ),
        (
            "more requests at once than the cache holds",
            "tensor parallelism, for the cache it frees; a quantised cache",
            f"{of('tensor parallelism', KV, arms='7b.*')}\n{of('quantised KV cache', KV)}"
            f"\n{of('quantised KV cache', THROUGHPUT)}".removesuffix(f"\n{NOTHING}"),
        ),
        (
            "prefills disturb the answers under way",
            "chunked prefill, which engines do by default; then a prefill/decode split",
            of("prefill/decode split", TPOT),
        ),
        (
            "throughput is short and the model is small",
            "data-parallel replicas, which leave latency as it is",
            of("data-parallel replicas", THROUGHPUT),
        ),
        ("memory is short and prefixes come back", "KV offload to host memory or disk", of("KV offload", TTFT)),
    ]
    return pandas.DataFrame(rows, columns=["problem", "look first at", "what is known"])
