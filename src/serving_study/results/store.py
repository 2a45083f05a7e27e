"""Results on disk: `data/results/HOST/section-N/RUN/`, every file whole or absent, every cell under its key.

`run.json`, `arms/ARM/start.json` and `cells/ARM/LOAD/repeat=N.json` are measurements; `cells.csv` and `starts.csv` are
derived from them (`rebuild`). A cell's requests are in `repeat=N.requests.json`, written before the cell, so a cell
that exists is complete. Cells are found by key over all runs, so a killed run loses only the cell in flight. What can
mislead: HOST is a host's name (`hosts.Host.name`), which two machines with the same card share; `newest` keeps those of
the newest cell's machine.

    >>> from serving_study.results import store
    >>> store.Store("h200x1", 3).cells()[["arm", "concurrency", "median_tpot_ms"]]        # doctest: +SKIP
"""

import contextlib
import datetime
import fcntl
import json
import os
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas

from .. import engines, files, paths
from ..errors import ParameterError, StoreError
from ..hardware import hosts
from ..hardware.hosts import Host
from ..servers.arm import COLUMNS
from . import certificates, index, old_cells

SCHEMA = 1
NEWEST = "newest"  # for a model or a temperature: the newest cell's
FOLDER_ID = ".results-folder-id"
METRICS = (
    "completed failed duration request_throughput output_throughput total_token_throughput "
    "total_input_tokens total_output_tokens "
    "mean_ttft_ms median_ttft_ms p95_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms p95_tpot_ms p99_tpot_ms "
    "mean_itl_ms median_itl_ms p95_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms p95_e2el_ms p99_e2el_ms"
).split()
STEADY = ("output_throughput", "total_token_throughput", "median_latencies")
SPECULATION = ("acceptance_rate", "acceptance_length", "drafts", "drafted_tokens", "accepted_tokens")
CELL_COLUMNS = (
    "host",
    "section",
    "run",
    "arm",
    "load",
    "concurrency",
    "repeat",
    "certificate",
    *COLUMNS,
    "engine",
    "engine_version",
    *METRICS,
    *(f"steady_{name}" for name in STEADY),
    *SPECULATION,
    "temperature",
    "weights",
    "acceptance",
    "engine_files",
    "life",
    "sitting",
    "at",
    "key",
)
INDEXED = (*CELL_COLUMNS, "alive", "prompts", "cell_s")
START_COLUMNS = (
    "host",
    "section",
    "run",
    "arm",
    *COLUMNS,
    "engine",
    "engine_version",
    "outcome",
    "reason",
    "weights_gib",
    "kv_cache_tokens",
    "max_concurrency",
    "startup_s",
    "weights",
    "at",
    "key",
)


def results_folder_id() -> str | None:
    """The random name of this results folder, part of every cell's key; None until `name_results_folder`.

    It is never published: without it, a fresh clone on equal hardware would take the published cells for its own."""
    file = paths.RESULTS / FOLDER_ID
    return file.read_text().strip() if file.is_file() else None


def name_results_folder() -> None:
    """Give this results folder its name, if it has none."""
    if results_folder_id() is None:
        files.write(paths.RESULTS / FOLDER_ID, uuid.uuid4().hex)


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    def start_folder(self, arm: str, life: int = 1) -> Path:
        """Where a life of an arm's servers keeps its logs and its record; further lives have folders in the first's."""
        folder = self.folder / "arms" / arm
        return folder if life == 1 else folder / f"life={life}"

    def cell_file(self, arm: str, load: str, repeat: int) -> Path:
        return self.folder / "cells" / arm / load / f"repeat={repeat}.json"

    def start_files(self) -> list[Path]:
        """Start records, an arm's further lives behind its first."""
        of_lives = self.folder.glob("arms/*/life=*/start.json")
        return [*sorted(self.folder.glob("arms/*/start.json")), *sorted(of_lives)]

    def cell_files(self) -> list[Path]:
        return [
            file
            for file in sorted(self.folder.glob("cells/*/*/repeat=*.json"))
            if not file.name.endswith(".requests.json")
        ]

    def write_cell(self, cell: dict, requests: list[dict]) -> Path:
        """Store a cell and its requests' records; the cell's file comes last."""
        file = self.cell_file(cell["arm"], cell["load"], cell["repeat"])
        files.write(file.with_suffix(".requests.json"), json.dumps(requests, separators=(",", ":")))
        files.write(file, {"schema": SCHEMA, **cell})
        return file


class Cells:
    """What all stored cells of a section come to, oldest run first, without requests and evidence."""

    def __init__(self, folder: Path):
        self.folder, self.columns = folder, index.summaries(folder, _summary, INDEXED)
        self.runs = [path.split("/", 1)[0] for path in self.columns["path"]]

    def __len__(self) -> int:
        return len(self.runs)

    def frame(self) -> pandas.DataFrame:
        """One row a cell: CELL_COLUMNS, the seconds it took, its load's prompts, its file's path in the folder."""
        return pandas.DataFrame(self.columns if len(self) else None, columns=[*INDEXED, "path"])

    def of_runs(self, runs: set[str]) -> int:
        """The number of cells of these runs."""
        return sum(run in runs for run in self.runs)


class Store:
    """The results of one host and section."""

    def __init__(self, host: str, section: int | str, root: Path | None = None):
        self.host, self.section = host, section
        self.folder = (root or paths.RESULTS) / host / f"section-{section}"

    @contextmanager
    def lock(self):
        """Holds the folder for one run. Raises StoreError when another run has it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = open(self.folder / ".lock", "a+")
        except OSError as error:
            raise StoreError(
                "results cannot be written",
                value=f"{self.folder}: {error.strerror}",
                allowed="a writable folder",
                next=f"ls -ld {self.folder.parent}",
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise StoreError(
                    "another run is writing here",
                    value=f"{self.folder} (pid {file.read().strip() or 'unknown'})",
                    allowed="one run at a time",
                    next="wait for it, or end it, then the same command again",
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield self

    def new_run(self) -> Run:
        """A new run, named by the time."""
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        name, count = stamp, 1
        while (self.folder / name).exists():
            count += 1
            name = f"{stamp}-{count}"
        return Run(self.folder / name)

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return [Run(file.parent) for file in sorted(self.folder.glob("*/run.json"))]

    def cell_files(self) -> list[Path]:
        return [self.folder / path for path, *_ in index.cell_files(self.folder)]

    def summaries(self) -> Cells:
        """What each stored cell comes to; cells that did not change are not read again."""
        return Cells(self.folder)

    def by_key(self) -> dict[str, Path]:
        """Cell files by key, the newest where several have it, without cells whose server was dead afterwards."""
        columns = self.summaries().columns
        newest = {
            key: path
            for key, path, alive in zip(columns["key"], columns["path"], columns["alive"], strict=True)
            if alive
        }
        return {key: self.folder / path for key, path in newest.items()}

    def starts_by_key(self) -> dict[str, dict]:
        """The newest start record by the arm's key; a failed one without figures has those of the last good start."""
        starts = {}
        for run in self.runs():
            for file in run.start_files():
                start = files.read(file)
                before = starts.get(start["key"], {}).get("figures")
                starts[start["key"]] = start | ({} if start.get("figures") or not before else {"figures": before})
        return starts

    def cells(self) -> pandas.DataFrame:
        """One row a stored cell, of all runs."""
        return self.summaries().frame()[list(CELL_COLUMNS)]

    def newest(self, *, model: str | None = NEWEST, temperature: float | None = NEWEST) -> pandas.DataFrame:
        """The newest cell of each arm, load and repeat, with `file`, of the newest cell's machine; `left_out` tells
        which others there are. Model and temperature are the newest cell's unless given. Cells that were
        measured one life after the other take no part beside newer ones that share their blocks' time.
        """
        cells = self.summaries()
        records, newest = self._run_records(), self._newest_run(cells)
        left_out = _elsewhere(records, newest) | _of_another_model(records, newest, model)
        frame = cells.frame()
        frame = frame[[run not in left_out for run in cells.runs]] if left_out else frame
        if len(frame):
            asked = frame["temperature"].astype(float).fillna(-1)
            wanted = (
                asked[frame["at"].idxmax()] if temperature == NEWEST else -1 if temperature is None else temperature
            )
            frame = frame[asked == wanted]
            if len(frame) and pandas.notna(frame["sitting"][frame["at"].idxmax()]):
                frame = frame[frame["sitting"].notna()]  # others share no block's time with these
        frame = frame.drop_duplicates(["arm", "load", "repeat"], keep="last").reset_index(drop=True)
        file = pandas.Series([self.folder / path for path in frame["path"]], dtype=object)
        return frame[list(CELL_COLUMNS)].assign(file=file)

    def newest_starts(self) -> dict[str, dict]:
        """The newest start record of each arm, of the newest run's machine and model."""
        records, newest = self._run_records(), self._newest_run()
        left_out = _elsewhere(records, newest) | _of_another_model(records, newest, NEWEST)
        start_files = (file for run in self.runs() if run.name not in left_out for file in run.start_files())
        return {start["arm"]: start for start in map(files.read, start_files)}

    def left_out(self) -> str:
        """What `newest` leaves out because another machine made it, in words; empty where nothing is."""
        cells, records = self.summaries(), self._run_records()
        runs = _elsewhere(records, self._newest_run(cells))
        if not runs:
            return ""
        machines = _machines(records)
        others = dict.fromkeys(machines[name].words for name in sorted(runs))
        return (
            f"{cells.of_runs(runs)} cells of {self.host} were made by another machine than the "
            f"newest ({'; '.join(others)}) and take no part"
        )

    def cells_elsewhere(self) -> int:
        """The number of cells that `newest` leaves out because another machine made them."""
        cells = self.summaries()
        runs = _elsewhere(self._run_records(), self._newest_run(cells))
        return cells.of_runs(runs)

    def cells_of_another_model(self) -> int:
        """The number of this machine's cells that `newest` leaves out because they are of another model."""
        cells, records = self.summaries(), self._run_records()
        newest = self._newest_run(cells)
        runs = _of_another_model(records, newest, NEWEST) - _elsewhere(records, newest)
        return cells.of_runs(runs)

    def _run_records(self) -> dict[str, dict]:
        """Run to its run.json."""
        return {run.name: files.read(run.folder / "run.json") for run in self.runs()}

    def _newest_run(self, cells: Cells | None = None) -> str | None:
        """The run of the newest cell (of `cells`, if given), else the last run that started a server."""
        cells = self.summaries() if cells is None else cells
        if len(cells):
            return max(zip(cells.columns["at"], cells.runs, strict=True))[1]
        return next((run.name for run in reversed(self.runs()) if run.start_files()), None)

    def certify(self, judge: Callable[[dict, list[dict]], dict]) -> int:
        """Judge every stored cell anew with `judge` (`measure.mechanisms.certify`); returns how many verdicts
        changed.
        """
        changed = 0
        for run in self.runs():
            for file in run.cell_files():
                cell = read_cell(file)
                certificate = judge(cell, requests_of(file))
                if certificate != cell.get("certificate"):
                    changed += certificate["verdict"] != (cell.get("certificate") or {}).get("verdict")
                    files.write(file, files.read(file) | {"certificate": certificate})
            self.rebuild(run)
        return changed

    def rebuild(self, run: Run) -> None:
        """Derive a run's cells.csv and starts.csv from its files."""
        cells = [cell_row(read_cell(file)) for file in run.cell_files()]
        starts = [start_row(files.read(file)) for file in run.start_files()]
        for name, rows, columns in (("cells.csv", cells, CELL_COLUMNS), ("starts.csv", starts, START_COLUMNS)):
            files.write(run.folder / name, pandas.DataFrame(rows, columns=list(columns)).to_csv(index=False))


def measured_hosts(section: int | str | None = None, root: Path | None = None) -> list[str]:
    """Hosts with stored results, here or published, of one section or of any; no servers that somebody else started."""
    folders = [root] if root else [paths.RESULTS, paths.RESULTS_PUBLISHED]
    part = "*" if section is None else section
    names = {file.parents[2].name for folder in folders for file in folder.glob(f"*/section-{part}/*/run.json")}
    return sorted(name for name in names if not name.startswith(hosts.ENDPOINT))


def host_named(name: str, section: int | str | None = None, root: Path | None = None) -> str:
    """The host's name; `cpu` is this machine without its GPUs if it has results, else the only such machine that has.

    Raises ParameterError where there are several others."""
    if name != hosts.CPU:
        return name
    measured = [host for host in measured_hosts(section, root) if hosts.is_cpu(host)]
    own = hosts.detect(hosts.CPU).name
    if own in measured or not measured:
        return own
    if len(measured) > 1:
        raise ParameterError(
            "several machines without GPUs have results, and this one is none of them",
            value=name,
            allowed=", ".join(f"{host} ({machine_of(host, root)})" for host in measured),
            next=f"the same command with {measured[0]} in place of {name}",
        )
    return measured[0]


def machine_of(host: str, root: Path | None = None) -> str:
    """A host's machine in words, from its newest run of any section; empty where no run records it."""
    folders = [root] if root else list(dict.fromkeys([paths.RESULTS, paths.RESULTS_PUBLISHED]))
    records_at = [file for folder in folders for file in (folder / host).glob("section-*/*/run.json")]
    records = (files.read(file) for file in sorted(records_at, key=lambda file: file.parent.name, reverse=True))
    return next((hosts.of_record(record).words for record in records if record.get("host")), "")


def _summary(cell_file: Path) -> dict:
    """The columns of a cell that the index keeps."""
    cell = read_cell(cell_file)
    return cell_row(cell) | {
        "alive": cell.get("server", {}).get("alive"),
        "prompts": cell["result"].get("num_prompts"),
        "cell_s": cell.get("timing", {}).get("cell_s"),
    }


def _machines(records: dict[str, dict]) -> dict[str, Host]:
    """Run to its machine, where run.json has it."""
    return {run: hosts.of_record(record) for run, record in records.items() if record.get("host")}


def _elsewhere(records: dict[str, dict], newest: str | None) -> set[str]:
    """Runs of another machine than the newest's."""
    machines = _machines(records)
    machine = machines.get(newest)
    return {run for run, other in machines.items() if machine and not other.is_same_machine(machine)}


def _of_another_model(records: dict[str, dict], newest: str | None, model: str | None) -> set[str]:
    """Runs whose header names another model than `model` (NEWEST: the newest run's)."""
    models = {run: record.get("parameters", {}).get("model") for run, record in records.items()}
    wanted = models.get(newest) if model == NEWEST else model
    return {run for run, of_run in models.items() if of_run != wanted}


def engine_of(run: dict) -> str:
    """`vLLM 0.25.1` from a run.json; empty where it has none."""
    provenance = run.get("provenance", {})
    versions = provenance.get("engine_versions", {}) | provenance.get("environment", {})
    return engines.named({name: version for name, version in versions.items() if version})


def read_cell(cell_file: Path) -> dict:
    """A stored cell in today's form."""
    cell = old_cells.current(files.read(cell_file))
    if "steady" not in cell:  # older cells have it in their requests' records alone
        with contextlib.suppress(FileNotFoundError):
            cell["steady"] = certificates.steady_rates(requests_of(cell_file), cell["concurrency"])
    return cell | old_cells.arm_columns(cell, cell_file)


def requests_of(cell_file: Path) -> list[dict]:
    """The records of a cell's requests: start_s, ttft_s, itls_s, input_tokens, output_tokens, error, and `counters`
    where requests came one by one.
    """
    return list(map(old_cells.current, files.read(cell_file.with_suffix(".requests.json"))))


def cell_row(cell: dict) -> dict:
    """A cell as a row of cells.csv; a figure that it does not have is missing."""
    row = {name: cell.get(name) for name in CELL_COLUMNS} | old_cells.arm_columns(cell)
    withheld = certificates.withheld(cell.get("certificate"))
    figures = figures_of(cell["result"])
    row |= {name: None if withheld and name.endswith(withheld) else figures.get(name) for name in METRICS}
    row |= {f"steady_{name}": (cell.get("steady") or {}).get(name) for name in STEADY}
    row |= {name: (cell.get("speculation") or {}).get(name) for name in SPECULATION}
    row["temperature"] = cell["asked"]["temperature"]
    row |= {
        "certificate": (cell.get("certificate") or {}).get("verdict", "unknown"),
        "engine": cell.get("engine", old_cells.ENGINE),
        **{name: cell["labels"].get(name) for name in ("weights", "acceptance")},
        "engine_files": cell["labels"].get("engine"),
    }
    return row


def figures_of(result: dict) -> dict:
    """A load's figures without those that do not exist: answers of one token have no time per output token, and answers
    without tokens no first one, for which the client writes 0.
    """
    tokens, done = result.get("total_output_tokens"), result.get("completed") or 0
    absent = () if tokens is None or tokens > done else ("tpot", "itl") if tokens else ("tpot", "itl", "ttft")
    return {name: None if set(absent) & set(name.split("_")) else value for name, value in result.items()}


def start_row(start: dict) -> dict:
    """A start as one row of starts.csv."""
    row = {name: start.get(name) for name in START_COLUMNS} | old_cells.arm_columns(start)
    row |= {
        name: (start.get("figures") or {}).get(name)
        for name in ("weights_gib", "kv_cache_tokens", "max_concurrency", "startup_s")
    }
    return row | {"engine": start.get("engine", old_cells.ENGINE), "weights": start["labels"]["weights"]}
