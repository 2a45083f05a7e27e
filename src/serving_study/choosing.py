"""Which technique for which problem, from figures: measured on this host, measured elsewhere, published by the
reference study, or predicted.

An *effect* is a ratio of an arm to the arm it replaces: throughput, TPOT, TTFT, KV tokens. Those of stored cells have
the interval, noise floor and certificate of every comparison in the book; those of the reference study have neither
repeats nor certificates; predictions stand only where nothing was measured, and say so. What can mislead: throughput is
of output tokens in our cells and in predictions, of all tokens in the reference study; and an effect belongs to its
model, GPU and load, which is why a second host stands beside the first.

    >>> from serving_study import choosing
    >>> choosing.effects("cpu")[["technique", "basis", "ratio"]]                    # doctest: +SKIP
"""

import math
import re
from dataclasses import dataclass, field

import pandas

from . import (
    advice,
    capacity,
    ceilings,
    certificates,
    comparisons,
    paths,
    prefixes,
    reference,
    reuse,
    shapes,
    store,
    theory,
)
from .errors import HostError

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
]
SHARED, OWN, LONG = (
    3001,
    20,
    8192,
)  # tokens: of the reference study's prefix, of a question after it, of a prompt worth moving


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


@dataclass(frozen=True)
class Choosing:
    """Section 10's parameters; the notebook's header explains each."""

    host: str = "auto"
    slo: dict[str, float] = field(default_factory=lambda: {"ttft_p99_ms": 500, "tpot_p50_ms": 40})
    instance: str = "g6.xlarge"
    instances: str = "g5.12xlarge"
    model: str = "Qwen/Qwen2.5-7B-Instruct"


def effects(
    host: str, *, instance: str = "g6.xlarge", instances: str = "g5.12xlarge", model: str = theory.TARGET
) -> pandas.DataFrame:
    """Every effect of every technique, one row a metric and concurrency; a technique of which nothing is known has one
    row without a ratio.

    Predictions are for `host` where its ceilings are known, for `instance` (one GPU) and for `instances` (several);
    `settled` drops those that a measurement has settled."""
    found = [
        effect
        for section in (3, 5)
        for name in _hosts(section, host)
        for effect in _measured(name, section, HERE if name == host else PUBLISHED)
    ]
    found += [effect for name in _hosts(7, host) for effect in _reused(name, HERE if name == host else PUBLISHED)]
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
    return frame.loc[
        keys.sort_values(["place", "basis_place", "host", "arm", "metric", "concurrency"], kind="stable").index
    ].reset_index(drop=True)


def settled(frame: pandas.DataFrame, host: str) -> pandas.DataFrame:
    """Without predictions for techniques that somebody measured; those for `host` stay until it is measured itself."""
    seen = frame[frame["basis"].isin([HERE, PUBLISHED, REFERENCE])]
    here = frame["technique"].isin(seen.loc[seen["host"] == host, "technique"])
    anywhere = frame["technique"].isin(seen["technique"])
    return frame[(frame["basis"] != PREDICTED) | ~(here | (anywhere & (frame["host"] != host)))].reset_index(drop=True)


def _hosts(section: int, host: str) -> list[str]:
    folders = {paths.RESULTS_PUBLISHED, paths.RESULTS}
    others = sorted(
        {file.parents[2].name for folder in folders for file in folder.glob(f"*/section-{section}/*/run.json")} - {host}
    )
    return [host, *others]


def _known(host: str) -> bool:
    try:
        return bool(ceilings.of_host(host))
    except HostError:
        return False


def _measured(host: str, section: int, basis: str) -> list[dict]:
    """Effects of a host's newest cells, as `comparisons.compare` has them."""
    frame = _newest(host, section)
    if frame is None:
        return []
    verdicts, rows = frame.groupby(["arm", "concurrency"])["certificate"].agg(set), []
    for technique in (technique for technique in TECHNIQUES if technique.section == section):
        arms = dict.fromkeys(frame["arm"])
        mine = {arm: base for arm in arms if (base := technique.baseline(arm, arms))}
        for base in dict.fromkeys(mine.values()):
            again = base + comparisons.AGAIN
            chosen = frame[frame["arm"].isin([base, again, *(arm for arm in mine if mine[arm] == base)])]
            for metric, column in OURS.items():
                for row in comparisons.compare(chosen, column, base).itertuples():
                    if row.arm == again:
                        continue
                    both = verdicts[row.arm, row.concurrency] | verdicts[base, row.concurrency]
                    certificate = (
                        certificates.PASS if both <= {certificates.PASS, certificates.FAIL} else certificates.UNKNOWN
                    )
                    about = comparisons.kinds(chosen[chosen["arm"] == row.arm])
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
                            row.low,
                            row.high,
                            row.differs,
                            certificate,
                            about,
                        )
                    )
    return rows


def _newest(host: str, section: int) -> pandas.DataFrame | None:
    stores = [store.Store(host, section, folder) for folder in dict.fromkeys([paths.RESULTS, paths.RESULTS_PUBLISHED])]
    return next((known.newest() for known in stores if known.cell_files()), None)


def _reused(host: str, basis: str) -> list[dict]:
    """Section 7's effects: TTFT behind a prefix that was found over the cold first one, the control's, and of prefixes
    that a tier gave back over computing them.
    """
    frame, by_name = _newest(host, 7), {technique.name: technique for technique in TECHNIQUES}
    if frame is None:
        return []
    found = [
        ("prefix caching", row.arm, "its first request", 1 / row.gain)
        for row in prefixes.sequence(frame).itertuples()
        if row.arm in (prefixes.CACHED, prefixes.CONTROL)
    ]
    back = prefixes.by_source(frame).query("source == 'external'").dropna(subset=["against_recompute"])
    found += [("KV offload", row.arm, "recomputing", 1 / row.against_recompute) for row in back.itertuples()]
    rows = []
    for technique, arm, against, ratio in found:
        mine = frame[frame["arm"] == arm]
        certificate = (
            certificates.PASS
            if set(mine["certificate"]) <= {certificates.PASS, certificates.FAIL}
            else certificates.UNKNOWN
        )
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
                labels=comparisons.kinds(mine),
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
                    )
                )
    return rows


def _reference_prefix() -> list[dict]:
    """TTFT with the prefix found over TTFT of the cold first request, and the same five requests with the cache off:
    the control.
    """
    figures, technique = (
        reference.load(7),
        next(technique for technique in TECHNIQUES if technique.name == "prefix caching"),
    )
    requests = figures[figures["metric"] == "ttft_ms"]
    rows = []
    for (host, arm), cells in requests.groupby(["host", "arm"], sort=False):
        first, rest = cells.loc[cells["request"] == 1, "value"].iloc[0], cells.loc[cells["request"] > 1, "value"].mean()
        rows.append(_effect(technique, arm, "its first request", REFERENCE, host, TTFT, 1, rest / first))
    return rows


def _predicted(host: str, model: str, own: bool) -> list[dict]:
    """What arithmetic says for a host: `theory.predict`'s arms, and `reuse`'s trades at one length each; of several
    GPUs section 3's only if it is one's own.
    """
    place, shape, rows = ceilings.of_host(host), shapes.load(model), []
    machine, links = theory.machine(place), reuse.links(place)
    by_name = {technique.name: technique for technique in TECHNIQUES}
    for section in (3,) if place.count == 1 else (5,) if not own else (3, 5):
        table = (
            theory.predict(host, model, section=section)
            .dropna(subset=["concurrency"])
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


def _effect(
    technique,
    arm,
    against,
    basis,
    host,
    metric,
    concurrency,
    ratio,
    low=math.nan,
    high=math.nan,
    differs=None,
    certificate=None,
    labels="",
) -> dict:
    return dict(
        zip(
            COLUMNS,
            (
                technique.name,
                arm,
                against,
                basis,
                host,
                metric,
                concurrency,
                float(ratio),
                low,
                high,
                differs,
                certificate,
                labels,
            ),
            strict=True,
        )
    )


def matrix(frame: pandas.DataFrame) -> pandas.DataFrame:
    """One row a technique, arm and host: `technique`, `arm`, `basis`, `concurrency` (lowest and highest, one a line), a
    column a metric, `certificate`.
    """
    rows = []
    keys = ["technique", "arm", "against", "basis", "host"]
    for (technique, arm, against, basis, _), cells in frame.groupby(keys, sort=False, dropna=False):
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
        verdicts = set(cells["certificate"].dropna())
        rows.append(
            row
            | {
                "certificate": (certificates.UNKNOWN if certificates.UNKNOWN in verdicts else certificates.PASS)
                if verdicts
                else None
            }
        )
    return pandas.DataFrame(
        rows, columns=["technique", "arm", "against", "basis", "concurrency", THROUGHPUT, TPOT, TTFT, KV, "certificate"]
    )


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


def pick(
    frame: pandas.DataFrame,
    technique: str,
    metric: str,
    *,
    basis: str | None = None,
    best: bool = True,
    arms: str = ".*",
) -> pandas.DataFrame:
    """The cells of that arm of a technique which does best by `metric` over its concurrencies, on the first basis that
    has it; empty where none has.

    With `best` false: of that which does worst at the lowest concurrency.
    """
    rows = frame[
        (frame["technique"] == technique)
        & (frame["metric"] == metric)
        & frame["ratio"].notna()
        & frame["arm"].fillna("").str.fullmatch(arms)
    ]
    for wanted in (basis,) if basis else (HERE, PUBLISHED, REFERENCE, PREDICTED):
        mine = rows[rows["basis"] == wanted]
        if len(mine):
            at = mine if best else mine[mine["concurrency"].isna() | (mine["concurrency"] == mine["concurrency"].min())]
            means = at.groupby(["arm", "against", "host"], sort=False)["ratio"].prod() ** (
                1 / at.groupby(["arm", "against", "host"], sort=False)["ratio"].count()
            )
            arm, against, host = means.idxmin() if (metric in (TPOT, TTFT)) == best else means.idxmax()
            return frame[
                (frame["technique"] == technique)
                & (frame["arm"] == arm)
                & (frame["basis"] == wanted)
                & (frame["host"] == host)
                & (frame["against"] == against)
            ]
    return rows.iloc[:0]


def phrase(frame: pandas.DataFrame, technique: str, metric: str, *, labelled: bool = True, **chosen) -> str:
    """`draft-k3: TPOT 0.55× at concurrency 1, 0.84× at 64 (reference study, l4x1)`, or `not measured`.

    Without labels for where a caption has them.
    """
    cells = pick(frame, technique, metric, **chosen)
    if cells.empty:
        return NOTHING
    rows = cells[cells["metric"] == metric]
    by_concurrency = rows.set_index("concurrency")
    extreme = by_concurrency["ratio"].idxmin() if metric in (TPOT, TTFT) else by_concurrency["ratio"].idxmax()
    ends = sorted({int(found) for found in [*_ends(rows), extreme] if found == found})
    what = [
        f"{_one(by_concurrency.loc[concurrency])} at {'concurrency ' if place == 0 else ''}{concurrency}"
        for place, concurrency in enumerate(ends)
    ] or [_one(rows.iloc[0])]
    first = rows.iloc[0]
    return (
        f"{first['arm']}: {metric} {', '.join(what)} "
        f"({_where(first)}{', ' + first['labels'] if labelled and first['labels'] else ''})"
    )


def known(frame: pandas.DataFrame, technique: str, metric: str, **chosen) -> str:
    """The phrases of every basis that has the figure, one a line, without labels: this host first, predictions last."""
    found = [
        phrase(frame, technique, metric, basis=basis, labelled=False, **chosen)
        for basis in (HERE, PUBLISHED, REFERENCE, PREDICTED)
    ]
    return "\n".join(text for text in found if text != NOTHING) or NOTHING


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
        "draft_here": phrase(frame, "draft model", TPOT, basis=HERE),
        "draft_published": phrase(frame, "draft model", TPOT, basis=PUBLISHED),
        "ngram_here": phrase(frame, "n-gram look-up", TPOT, basis=HERE),
        "ngram_published": phrase(frame, "n-gram look-up", TPOT, basis=PUBLISHED),
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
        "fp8_kv": of("fp8", KV, basis=PREDICTED),
        "predicted_only": ", ".join(predicted) or "none",
        "unmeasured": ", ".join(unmeasured) or "none",
    }


def advised(host: str, wanted: tuple[advice.Target, ...], section: int = 3) -> list[advice.Advice]:
    """Advice for this host, where something is measured or can be predicted, and for every other host with results."""
    others, found = [name for name in advice.measured_hosts(section) if name != host], []
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
            "speculation: a draft model, an EAGLE head, n-grams for text that repeats its prompt",
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
            f"{of('prefix caching', TTFT, arms='(?!prefix-off).*')}\nwithout the cache, "
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
            f"{of('tensor parallelism', KV, arms='7b.*')}\n{of('quantised KV cache', KV)}",
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
