"""The verdict of one study against another.

A verdict is *reproduces* (the intervals overlap, or the figures lie within the tolerance), *differs* (by how much,
which way), or *not comparable*, with what differs: absolute figures are compared between equal machines, models,
weights, data sets, versions and loads alone, ratios between arms also across machines and versions."""

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path

import pandas

from .. import files, paths
from ..errors import ParameterError
from ..hardware import hosts
from ..results import old_cells, reference, store
from . import claims, comparisons

TOLERANCE = 0.05


REPRODUCES, DIFFERS, NOT_COMPARABLE = "reproduces", "differs", "not comparable"


VERDICT_METRICS = ("total_token_throughput", "output_throughput", "median_tpot_ms", "median_ttft_ms", "acceptance_rate")


# What must be equal: ratios between arms hold across machines and versions, absolute figures do not.
OF_RATIOS = ("model", "draft", "weights", "acceptance", "data set", "load")


OF_ABSOLUTES = ("machine", *OF_RATIOS, "version")


# What the study says of its runs; the data set's digest is not stated there, nor the version of these.
STATED = {"weights": "real", "data set": "sharegpt", "version": "not stated"}


DRAFT = "qwen2.5-0.5b"


LOADS = {3: {1: 10, 4: 20, 16: 64, 64: 128}, 5: {1: 8, 8: 24, 32: 48}}  # section to prompts by concurrency


@dataclass(frozen=True, eq=False)
class Study:
    """One side of a verdict: a host's cells, those of one of its runs, or the reference study's figures.

    `frame` has `arm`, `concurrency`, `repeat`, `certificate`, the metrics, and `facts`: what the cell was measured on,
    by name."""

    name: str
    frame: pandas.DataFrame


def study(name: str, section: int, root: Path | None = None) -> Study:
    """`HOST` (its newest cells), `HOST/RUN`, or `reference/HOST`. Raises ParameterError naming what there is."""
    host, _, part = name.partition("/")
    if host == "reference":
        return _reference_study(name, part, section)
    host = store.host_named(host, section, root)
    known = store.Store(host, section, root)
    runs = {run.name: run for run in known.runs()}
    if not runs or part and part not in runs:
        raise ParameterError(
            "no results of that name",
            value=name,
            allowed=", ".join(_names(section, root)),
            next=f"make run SECTION={section}",
        )
    return of_files(
        name,
        runs[part].cell_files() if part else list(known.newest()["file"]),
    )


def machine_lines(name: str, section: int, root: Path | None = None) -> list[str]:
    """Which machine a study's name is, and what of its cells takes no part, since another one made them."""
    host, _, part = name.partition("/")
    if host == "reference":
        return [f"{name}: as the reference study states it"]
    host = store.host_named(host, section, root)
    known, said = store.Store(host, section, root), f"{name}: {host}, {store.machine_of(host, root)}"
    return [said, *filter(None, [] if part else [known.left_out()])]


def of_files(name: str, cell_files: list[Path]) -> Study:
    """The study made of these cells."""
    cells = [(store.read_cell(file), file) for file in cell_files]
    rows = [store.cell_row(cell) | {"facts": _facts(cell, _run_of(file)), "file": file} for cell, file in cells]
    return Study(name, pandas.DataFrame(rows, columns=[*store.CELL_COLUMNS, "facts", "file"]))


def earlier(host: str, section: int, current: set[Path], root: Path | None = None) -> list[Study]:
    """Each stored run of a host that is not part of the `current` cells."""
    studies = []
    for run in store.Store(host, section, root).runs():
        cell_files = run.cell_files()
        if cell_files and not current & set(cell_files):
            studies.append(of_files(f"{host}/{run.name}", cell_files))
    return studies


@functools.lru_cache(maxsize=64)
def _run_record(file: Path) -> dict:
    return files.read(file)


def _run_of(cell_file: Path) -> dict:
    return _run_record(cell_file.parents[3] / "run.json")


def _facts(cell: dict, run: dict) -> dict:
    """What a cell was measured on, in the words that a verdict names."""
    host, asked, parameters = run["host"], cell["asked"], run["parameters"]
    drafted = cell["technique"] == "draft"
    return {
        "machine": f"{len(host['gpus'])} × {host['gpus'][0]['name']}" if host["gpus"] else hosts.of_record(run).words,
        "model": shape_name(cell.get("model") or parameters["model"]),
        "draft": shape_name(parameters["draft_model"]) if drafted else None,
        "weights": cell["labels"]["weights"],
        "acceptance": cell["labels"]["acceptance"],
        "data set": f"{run['dataset']['name']} {run['dataset']['sha256'][:12]}",
        "load": _load(asked),
        "version": run["provenance"]["environment"]["vllm"]
        + (" modified" if run["provenance"]["environment"].get("modified") else ""),
    }


def shape_name(model: str) -> str:
    return re.sub(r"-instruct$", "", str(model).rsplit("/", 1)[-1].lower())


def _load(asked: dict) -> str:
    temperature, spread = asked["temperature"], asked.get("output_spread")
    tokens = f"{asked['output_tokens'] or 'the data set’s'} output tokens" + (f" ± {spread:.0%}" if spread else "")
    return f"{asked['prompts']} prompts, {tokens}, temperature {'default' if temperature is None else temperature}"


def _reference_study(name: str, host: str, section: int) -> Study:
    figures = reference.load(section)
    hosts = list(figures["host"].unique())
    if host not in hosts:
        raise ParameterError(
            "the reference study has no such host in this section",
            value=name,
            allowed=", ".join(f"reference/{host}" for host in hosts),
        )
    figures = figures[(figures["host"] == host) & figures["concurrency"].notna() & figures["value"].notna()]
    if figures.empty:
        raise ParameterError(
            "the reference study has no figures by concurrency of this host in this section",
            value=f"{name}, section {section}",
            allowed="a host with latencies or throughputs",
            next=f"grep {host} data/reference/section-{section}.csv",
        )
    frame = (
        figures.pivot_table(index=["arm", "model", "concurrency"], columns="metric", values="value", sort=False)
        .reset_index()
        .astype({"concurrency": int})
    )
    frame = old_cells.with_arm_columns(frame)
    machine = {"l4x1": "1 × NVIDIA L4", "l4x4": "4 × NVIDIA L4", "a10gx4": "4 × NVIDIA A10G"}.get(host, host)

    def stated(row) -> dict:
        return STATED | {
            "machine": machine,
            "model": row.model,
            "draft": DRAFT if row.technique == "draft" else None,
            "acceptance": "measured" if row.k else None,
            "load": _load({"prompts": LOADS[section][row.concurrency], "output_tokens": None, "temperature": None}),
        }

    return Study(name, frame.assign(repeat=0, certificate="unknown", facts=[stated(row) for row in frame.itertuples()]))


def verdicts(
    a: Study,
    b: Study,
    *,
    metrics: tuple[str, ...] = VERDICT_METRICS,
    tolerance: float = TOLERANCE,
    baseline: str = "baseline",
) -> pandas.DataFrame:
    """Every figure that both have, absolute and as a ratio to `baseline`.

    Columns: `kind` (absolute, ratio), `metric`, `arm`, `concurrency`, `a`, `b`, `change` (a / b - 1), `verdict`, `why`.
    Cells whose certificate failed take no part."""
    rows = []
    for metric in metrics:
        if metric not in a.frame or metric not in b.frame:
            continue
        sides = [_side(study, metric, baseline) for study in (a, b)]
        for arm, concurrency in [key for key in sides[0] if key in sides[1]]:
            ours, theirs = sides[0][arm, concurrency], sides[1][arm, concurrency]
            rows.append(
                {"kind": "absolute", "metric": metric, "arm": arm, "concurrency": concurrency}
                | _verdict(
                    ours["absolute"],
                    theirs["absolute"],
                    _unequal(ours["facts"], theirs["facts"], OF_ABSOLUTES),
                    tolerance,
                )
            )
            if arm != baseline and ours["ratio"] and theirs["ratio"] and metric != "acceptance_rate":
                unequal = _unequal(ours["facts"], theirs["facts"], OF_RATIOS)
                rows.append(
                    {"kind": "ratio", "metric": metric, "arm": arm, "concurrency": concurrency}
                    | _verdict(ours["ratio"], theirs["ratio"], unequal, tolerance)
                )
    return pandas.DataFrame(
        rows, columns=["kind", "metric", "arm", "concurrency", "a", "b", "change", "verdict", "why"]
    )


@functools.lru_cache(maxsize=256)
def _side(study: Study, metric: str, baseline: str) -> dict:
    """(arm, concurrency) to facts, and (value, low, high) of the figure and of its ratio to the baseline."""
    frame = study.frame[["arm", "concurrency", "repeat", "certificate", "repeat_of", metric, "facts"]]
    usable = comparisons.usable(frame).dropna(subset=[metric])
    if usable.empty:
        return {}
    floors = comparisons.floor(frame, metric)
    has_base = baseline in set(frame["arm"])
    ratios = (
        claims.compare(study.frame, metric, baseline).set_index(["arm", "concurrency"])
        if has_base
        else pandas.DataFrame()
    )
    figures = {}
    for (arm, concurrency), cells in usable.groupby(["arm", "concurrency"], sort=False):
        ratio = None
        if (arm, concurrency) in ratios.index:
            ratio = comparisons.bounded(*ratios.loc[(arm, concurrency), ["ratio", "low", "high"]])
        figures[arm, int(concurrency)] = {
            "facts": cells["facts"].iloc[0],
            "absolute": comparisons.bounded(*comparisons.interval(cells[metric], floors.get(concurrency, math.nan))),
            "ratio": ratio,
        }
    return figures


def within(value: float, other: float, tolerance: float = TOLERANCE) -> bool:
    """Whether two figures are a factor of at most 1 + `tolerance` apart, either way round."""
    return value == other or min(value, other) > 0 and abs(math.log(value / other)) <= math.log1p(tolerance)


def _unequal(ours: dict, theirs: dict, names: tuple[str, ...]) -> str:
    return "; ".join(f"{name}: {ours[name]} against {theirs[name]}" for name in names if ours[name] != theirs[name])


def _verdict(ours: tuple, theirs: tuple, unequal: str, tolerance: float) -> dict:
    change = 0.0 if ours[0] == theirs[0] else ours[0] / theirs[0] - 1 if theirs[0] else math.inf
    row = {"a": ours[0], "b": theirs[0], "change": change}
    if unequal:
        return row | {"verdict": NOT_COMPARABLE, "why": unequal}
    if ours[1] <= theirs[2] and theirs[1] <= ours[2]:
        factor = max(math.sqrt(high / low) if low > 0 else 1.0 for _, low, high in (ours, theirs))
        return row | {"verdict": REPRODUCES, "why": f"the intervals overlap (the wider is a factor of {factor:.2f})"}
    if within(ours[0], theirs[0], tolerance):
        return row | {"verdict": REPRODUCES, "why": f"within {tolerance:.0%}"}
    return row | {
        "verdict": DIFFERS,
        "why": f"{abs(change):.1%} {'higher' if change > 0 else 'lower'}, outside both intervals",
    }


def _names(section: int, root: Path | None) -> list[str]:
    return [
        *store.measured_hosts(section, root or paths.RESULTS),
        *(f"reference/{host}" for host in reference.load(section)["host"].unique()),
    ]


def explained(section: int, host: str, baseline: str = "baseline") -> pandas.DataFrame:
    """How much of each total-throughput ratio of the reference study its TPOT explains.

    Per-request records do not exist there; its medians allow `share` = ln(TPOT of baseline / TPOT) / ln(throughput
    ratio), missing where the ratio is within 2 % of 1. What is left is occupancy, work mix, or prefill."""
    figures = reference.load(section)
    wide = figures[(figures["host"] == host) & figures["concurrency"].notna()].pivot_table(
        index=["arm", "concurrency"], columns="metric", values="value", sort=False
    )
    rows = []
    for (arm, concurrency), row in wide.iterrows():
        if arm == baseline or (baseline, concurrency) not in wide.index:
            continue
        base = wide.loc[(baseline, concurrency)]
        ratio, pace = (
            row["total_token_throughput"] / base["total_token_throughput"],
            base["median_tpot_ms"] / row["median_tpot_ms"],
        )
        share = math.log(pace) / math.log(ratio) if abs(ratio - 1) > 0.02 else math.nan
        rows.append(
            {
                "arm": arm,
                "concurrency": int(concurrency),
                "ratio": ratio,
                "latency": pace,
                "rest": ratio / pace,
                "share": share,
            }
        )
    return pandas.DataFrame(rows, columns=["arm", "concurrency", "ratio", "latency", "rest", "share"])
