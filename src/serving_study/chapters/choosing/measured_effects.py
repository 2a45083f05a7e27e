"""Effects of stored cells and of the reference study: each arm against the one that it replaces."""

import math
import re

import pandas

from ... import files, paths
from ...analysis import claims, comparisons, verdicts
from ...chapters.kv_cache import prefixes, working_sets
from ...results import certificates, old_cells, reference, store
from ...servers.arm import COLUMNS
from .techniques import (
    FAULT,
    FEW,
    KV,
    MENDED,
    OF_REFERENCE,
    OURS,
    REFERENCE,
    TECHNIQUES,
    THEIRS,
    THROUGHPUT,
    TPOT,
    TTFT,
    Technique,
    effect_row,
)


def hosts_with_results(section: int, host: str) -> list[str]:
    return [host, *(name for name in store.measured_hosts(section) if name != host)]


def measured_rows(host: str, section: int, basis: str) -> list[dict]:
    """Effects of a host's newest cells, by `claims.compare` of all arms of a model; section 4 has section 3's
    techniques.
    """
    frame = newest(host, section)
    if frame is None:
        return []
    outcomes, rows = frame.groupby(["arm", "concurrency"])["certificate"].agg(set), []
    for technique in (technique for technique in TECHNIQUES if technique.section == (3 if section == 4 else section)):
        arms, models = by_arm(frame), frame["model"].fillna("")
        against = {arm: base for arm in arms if (base := technique.baseline(arm, arms))}
        for base in dict.fromkeys(against.values()):
            # All of a model's arms, since the chapter makes claims of all of them.
            of_model = frame[models == models[frame["arm"] == base].iloc[0]]
            for metric, column in OURS.items():
                table = claims.compare(of_model, column, base)
                table = table[table["arm"].map(against) == base]
                few = comparisons.too_few_accepted(table.assign(ratio=better(table["ratio"], metric)), of_model)
                for row, rests_on_few in zip(table.itertuples(), few, strict=True):
                    both = outcomes[row.arm, row.concurrency] | outcomes[base, row.concurrency]
                    at, of_arm = frame[frame["concurrency"] == row.concurrency], frame[frame["arm"] == row.arm]
                    columns = _of_cells(technique, at[at["arm"] == row.arm], at[at["arm"] == base], column, of_arm)
                    columns["grounded"] = columns["grounded"] and not rests_on_few
                    if rests_on_few:
                        columns["labels"] = ", ".join(filter(None, [columns["labels"], FEW]))
                    rows.append(
                        effect_row(
                            technique,
                            row.arm,
                            base,
                            basis,
                            host,
                            metric,
                            row.concurrency,
                            row.ratio,
                            **{name: getattr(row, name) for name in claims.CLAIMED},
                            certificate=_certificate(both),
                            section=section,
                            model=arms[row.arm]["model"],
                            **columns,
                        )
                    )
    return rows


def by_arm(frame: pandas.DataFrame) -> dict[str, dict]:
    """Each arm of the rows with its columns."""
    return frame.drop_duplicates("arm").set_index("arm")[list(COLUMNS)].to_dict("index")


def better(ratios: pandas.Series, metric: str) -> pandas.Series:
    """Ratios as gains: above 1 is better."""
    return 1 / ratios if metric in (TPOT, TTFT) else ratios


def _certificate(outcomes: set[str]) -> str:
    """The certificate of an effect's cells; failed ones took no part in it."""
    return certificates.PASS if outcomes <= {certificates.PASS, certificates.FAIL} else certificates.UNKNOWN


def _of_cells(
    technique: Technique,
    cells: pandas.DataFrame,
    base: pandas.DataFrame,
    column: str,
    of_arm: pandas.DataFrame | None = None,
) -> dict:
    """Columns of an arm's cells at one concurrency: engine, requests of a repeat, repeats (that both arms have), share
    of steps with proposals over all cells `of_arm`, labels, and whether it is grounded.
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


def store_of(host: str, section: int) -> store.Store | None:
    """This machine's results of a host and section, else the published ones."""
    stores = [store.Store(host, section, folder) for folder in dict.fromkeys([paths.RESULTS, paths.RESULTS_PUBLISHED])]
    return next((known for known in stores if known.cell_files()), None)


def newest(host: str, section: int) -> pandas.DataFrame | None:
    known = store_of(host, section)
    return known.newest() if known else None


def reused_rows(host: str, basis: str) -> list[dict]:
    """Section 7's effects on TTFT: with the prefix found over the cold first request, the control's, and a tier's
    prefixes over computing them.
    """
    frame, by_name = newest(host, 7), {technique.name: technique for technique in TECHNIQUES}
    if frame is None:
        return []
    ratios = [
        ("prefix caching", row.arm, "computing it", 1 / row.gain, int(row.later))
        for row in prefixes.sequence(frame).itertuples()
        if row.arm in (prefixes.CACHED, prefixes.CONTROL)
    ]
    back = working_sets.by_source(frame).query("source == 'external'").dropna(subset=["against_recompute"])
    places = working_sets.read_from(frame)
    ratios += [
        ("KV offload", row.arm, "recomputing", 1 / row.against_recompute, row.requests) for row in back.itertuples()
    ]
    rows = []
    for technique, arm, against, ratio, requests in ratios:
        columns = _of_cells(by_name[technique], *[frame[frame["arm"] == arm]] * 2, "median_ttft_ms")
        columns["requests"] = requests
        if technique == "KV offload" and arm in places:
            columns["labels"] = ", ".join(
                filter(None, [columns["labels"], f"{arm} from the {places[arm].split(' (')[0]}"])
            )
        certificate = _certificate(set(frame.loc[frame["arm"] == arm, "certificate"]))
        rows.append(
            effect_row(
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
                control=arm == prefixes.CONTROL,
                **columns,
            )
        )
    return rows


def quantised_rows(host: str, basis: str) -> list[dict]:
    """The 8-bit cache against the model's own, in section 7's starts and loads; empty where unmeasured. Its effect on
    answers is not in these figures.
    """
    known = store_of(host, 7)
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
        columns = _of_cells(technique, cells, base, "request_throughput")
        at = None if metric == KV else int(cells["concurrency"].max())
        certificate = None if metric == KV else _certificate(set(cells["certificate"]) | set(base["certificate"]))
        if metric == KV:
            columns |= {"requests": math.nan, "repeats": math.nan}
        rows.append(
            effect_row(
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
                **{name: getattr(row, name) for name in claims.CLAIMED},
                **columns,
            )
        )
    return rows


def reference_rows(section: int) -> list[dict]:
    """Effects in the reference study's tables: throughput and latencies by concurrency, KV tokens of starts."""
    figures, rows = reference.load(section), []
    arms = by_arm(old_cells.with_arm_columns(figures))
    values = {
        (row.host, row.arm, row.metric, None if pandas.isna(row.concurrency) else int(row.concurrency)): row.value
        for row in figures.itertuples()
    }
    for (host, arm, column, concurrency), value in values.items():
        metric = next(
            (name for name, of_reference in THEIRS.items() if of_reference == column),
            KV if column == "kv_cache_tokens" else None,
        )
        for technique in (technique for technique in TECHNIQUES if technique.section == section and metric):
            same = (other for place, other, name, at in values if (place, name, at) == (host, column, concurrency))
            base = technique.baseline(arm, {other: arms[other] for other in same})
            if base:
                rows.append(
                    effect_row(
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
                        model=arms[arm]["model"],
                    )
                )
    return rows


def reference_prefix_rows() -> list[dict]:
    """TTFT with the prefix found over TTFT of computing it, and of the same five requests without the cache, the
    control; medians, as in `prefixes.published`.
    """
    [technique] = [technique for technique in TECHNIQUES if technique.name == "prefix caching"]
    names = {arm: reference_name for reference_name, arm in prefixes.OF_REFERENCE.items()}
    columns = {"section": 7, "engine": OF_REFERENCE}
    return [
        effect_row(
            technique,
            names[row.arm],
            "computing it",
            REFERENCE,
            "l4x1",
            TTFT,
            1,
            1 / row.gain,
            requests=int(row.later),
            control=row.arm == prefixes.CONTROL,
            **columns,
        )
        for row in prefixes.published().itertuples()
    ]
