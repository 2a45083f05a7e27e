"""Arms × loads × repeats: in which order, what is measured already, what goes wrong without stopping the rest.

A `Plan` is decided before anything starts. `run` measures what the store does not have, arm by arm: one server's life
holds all cells of an arm, in an order shuffled by a recorded seed. An arm that fails is recorded with its cause and the
next one starts; a server that dies in the middle is started once more."""

import contextlib
import itertools
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas
from tqdm import tqdm

from .. import __version__, engines, files, paths
from ..engines import base, logs
from ..environments import Environment, variables
from ..errors import HostError, LoadError, ServerError, StoreError, StudyError
from ..hardware import hosts
from ..hardware.hosts import Host
from ..loads import Generator, Load
from ..results import certificates, sources, store
from ..results.store import Run, Store
from ..servers import client, fleet, language, metrics, preflight, ranks
from ..servers.arm import Arm
from .mechanisms import tiers

WARMUP_TOKENS, WARMUP_SEED = 8, 7


@dataclass(frozen=True)
class Cell:
    """An arm under a load, once."""

    arm: Arm
    load: Load
    repeat: int
    key: str

    @property
    def name(self) -> str:
        return f"{self.arm.name} {self.load.name} repeat={self.repeat}"


@dataclass(frozen=True)
class Plan:
    """What one section measures on one host. Without loads it only starts servers (`starts`)."""

    section: int | str
    host: Host
    environment: Environment
    arms: tuple[Arm, ...]
    loads: tuple[Load, ...]
    repeats: int
    parameters: dict
    seed: int = 42
    port: int = 0
    notes: tuple[str, ...] = ()
    only: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # arm to the names of its loads, where it does not have all

    def loads_of(self, arm: Arm) -> tuple[Load, ...]:
        return tuple(load for load in self.loads if arm.name not in self.only or load.name in self.only[arm.name])

    def provenance(self) -> dict:
        """What decides a result beside arm, load and repeat, and whose results folder it is in."""
        return {
            "host": self.host.identity(),
            "environment": self.environment.identity(),
            "results_folder": store.results_folder_id(),
        }

    def identity_of(self, arm: Arm) -> dict:
        """What decides a result of an arm: itself, the versions of what it needs beside the engine, and the variables
        of the caller that reach its server; each only where there are any.
        """
        needed = {name: self.environment.versions.get(name) for name in arm.distributions}
        if given := variables.deciding():
            set_here = engines.get(arm.engine).environment(arm, self.host, self.environment.python)
            given = {name: value for name, value in given.items() if name == "LD_PRELOAD" or name not in set_here}
        return arm.identity() | ({"distributions": needed} if needed else {}) | ({"variables": given} if given else {})

    def cells(self, arm: Arm) -> list[Cell]:
        """The arm's cells in the order in which they are measured."""
        base, identity = self.provenance(), self.identity_of(arm)
        cells = [
            Cell(arm, load, repeat, files.key(base, identity, load.identity(), {"repeat": repeat}))
            for load in self.loads_of(arm)
            for repeat in range(self.repeats)
        ]
        random.Random(f"{self.seed}/{arm.repeat_of or arm.name}/order").shuffle(cells)
        return cells

    def arm_key(self, arm: Arm) -> str:
        return files.key(self.provenance(), self.identity_of(arm))

    def estimate(self, known: Store, pending: dict[str, list[Cell]]) -> "Estimate":
        """Seconds for each start and cell, from what this host took before, else from its kind."""
        starts = [
            start["figures"]["startup_s"]
            for start in known.starts_by_key().values()
            if (start.get("figures") or {}).get("startup_s")
        ]
        cells = {}
        for file in known.cell_files():
            cell = store.read_cell(file)
            for told_by in (cell["load"], (cell["concurrency"], cell["result"].get("num_prompts"))):
                cells.setdefault((cell["arm"], told_by), []).append(cell["timing"]["cell_s"])
        start_s = sum(starts) / len(starts) if starts else (90.0 if self.host.gpus else 45.0)
        if self.starts_in_pairs():
            start_s *= 0.6
        per_token_s, per_read_token_s = (0.015, 5e-5) if self.host.gpus else (0.045, 1e-3)
        return Estimate(
            start_s + (8.0 if self.host.gpus else 6.0),
            {
                cell.key: sum(found) / len(found)
                if (
                    found := cells.get(
                        (
                            cell.arm.name,
                            cell.load.name if cell.load.dataset.label else (cell.load.concurrency, cell.load.prompts),
                        )
                    )
                )
                else 1.0
                + cell.load.prompts / cell.load.concurrency * (cell.load.output_tokens or 200) * per_token_s
                + cell.load.dataset.reads(cell.load) * per_read_token_s
                for rows in pending.values()
                for cell in rows
            },
        )

    def starts_in_pairs(self) -> bool:
        """Whether the next arm's server may do its imports beside this one: on a CPU, with two cores, a port of its own
        and the memory.

        Never on a GPU, where each engine sizes its memory by what it finds free.
        """
        wanted = (
            max((preflight.cpu_memory_gib(arm) for arm in self.arms if not arm.unsupported), default=0.0)
            + preflight.IMPORTED_GIB
        )
        return not self.host.gpus and self.host.cpus > 1 and not self.port and wanted <= self.host.free_memory_gib

    def pending(self, known: Store, fresh: bool = False) -> dict[str, list[Cell]]:
        """Arm name to the cells that are not measured yet; arms that cannot run here are left out."""
        have = {} if fresh else known.by_key()
        return {
            arm.name: [cell for cell in self.cells(arm) if cell.key not in have]
            for arm in self.arms
            if not arm.unsupported
        }


@dataclass
class Estimate:
    """Seconds that a start and each pending cell are expected to take."""

    start_s: float
    cell_s: dict[str, float]

    def total(self, pending: dict[str, list[Cell]]) -> float:
        return sum(self.start_s + sum(self.cell_s[cell.key] for cell in cells) for cells in pending.values() if cells)


class Progress:
    """A bar that names arm and cell and knows the time left, on the terminal of `serving-study run` or in the notebook.

    `serving-study run` passes its terminal's place in SERVING_STUDY_PROGRESS, since a notebook's kernel has none.
    """

    def __init__(self, total_s: float, cells: int):
        place = os.environ.get("SERVING_STUDY_PROGRESS")
        try:
            self._file = open(place, "a") if place else sys.stderr
        except OSError:
            self._file = sys.stderr
        self.total_s, self.done_s, self.began, self.cells, self.cell = total_s, 0.0, time.monotonic(), cells, 0
        self._bar = tqdm(
            total=round(total_s, 1),
            file=self._file,
            dynamic_ncols=True,
            leave=True,
            mininterval=0.2,
            bar_format="{desc} |{bar:20}| {percentage:3.0f}%{postfix}",
        )

    def show(self, what: str) -> None:
        spent = time.monotonic() - self.began
        pace = max(0.5, min(2.0, spent / self.done_s)) if self.done_s > 20 else 1.0
        left = max(0.0, self.total_s - self.done_s) * pace
        self._bar.set_description_str(f"[{self.cell}/{self.cells}] {what}", refresh=False)
        self._bar.set_postfix_str(f"{int(left // 60)}:{int(left % 60):02d} left", refresh=True)

    def advance(self, seconds: float, cell: bool = False) -> None:
        self.done_s += seconds
        self.cell += cell
        self._bar.update(min(seconds, max(0.0, self._bar.total - self._bar.n)))

    def say(self, line: str) -> None:
        self._bar.write(line, file=self._file)

    def close(self) -> None:
        self._bar.close()
        if self._file is not sys.stderr:
            self._file.close()


@dataclass
class Results:
    """What a plan's cells came to: measured now or found in the store."""

    plan: Plan
    store: Store
    files: dict[str, Path] = field(default_factory=dict)
    run: Run | None = None

    def cell_file(self, cell: Cell) -> Path | None:
        return self.files.get(cell.key)

    def frame(self) -> pandas.DataFrame:
        """One row a cell that there is, in the plan's order of arms, with `file` beside the columns of cells.csv."""
        rows = []
        for arm in self.plan.arms:
            for cell in sorted(self.plan.cells(arm), key=lambda cell: (cell.load.concurrency, cell.repeat)):
                if file := self.files.get(cell.key):
                    rows.append(store.cell_row(store.read_cell(file)) | {"file": file})
        return pandas.DataFrame(rows, columns=[*store.CELL_COLUMNS, "file"])

    def starts(self) -> pandas.DataFrame:
        """One row an arm, in the plan's order: its newest start."""
        known, rows = self.store.starts_by_key(), []
        for arm in self.plan.arms:
            if start := known.get(self.plan.arm_key(arm)):
                rows.append(store.start_row(start))
        return pandas.DataFrame(rows, columns=list(store.START_COLUMNS))

    def timing(self) -> pandas.DataFrame:
        """Where the time of each run that gave these cells went: `run`, `phase`, `seconds`."""
        names = {file.relative_to(self.store.folder).parts[0] for file in self.files.values()}
        rows = []
        for run in self.store.runs():
            if run.name in names:
                for phase, seconds in (files.read(run.folder / "run.json").get("timing") or {}).items():
                    rows.append({"run": run.name, "phase": phase, "seconds": seconds})
        return pandas.DataFrame(rows, columns=["run", "phase", "seconds"])


def run(plan: Plan, *, fresh: bool = False) -> Results:
    """Measure what is missing of `plan` and return all of it.

    Raises StoreError when results cannot be written or another run holds the folder; failures of single arms are
    recorded."""
    known = Store(plan.host.name, plan.section)
    with known.lock():
        store.name_results_folder()
        pending = plan.pending(known, fresh)
        result = Results(plan, known)
        recorded = known.starts_by_key()
        unsupported = [
            arm
            for arm in plan.arms
            if arm.unsupported and recorded.get(plan.arm_key(arm), {}).get("reason") != arm.unsupported
        ]
        if any(pending.values()) or unsupported:
            result.run = known.new_run()
            _measure(plan, known, result.run, pending, unsupported)
        have = known.by_key()
        for arm in plan.arms:
            for cell in plan.cells(arm):
                if cell.key in have:
                    result.files[cell.key] = have[cell.key]
    return result


def _measure(plan: Plan, known: Store, run: Run, pending: dict[str, list[Cell]], unsupported: list[Arm]) -> None:
    estimate = plan.estimate(known, pending)
    bar = Progress(estimate.total(pending), sum(map(len, pending.values())))
    record = record_of(plan)
    files.write(run.folder / "run.json", record)
    timing = dict.fromkeys(("start", "warm-up", "load", "stop", "harness"), 0.0)
    began = time.monotonic()
    try:
        for arm in unsupported:
            write_start(plan, run, arm, "unsupported", reason=arm.unsupported)
        with Generator(plan.environment, _log(run)) as generator, Ahead(plan, run) as ahead:
            arms = [arm for arm in plan.arms if pending.get(arm.name)]
            for arm, following in itertools.zip_longest(arms, arms[1:]):
                _measure_arm(plan, run, arm, pending[arm.name], generator, ahead, following, estimate, bar, timing)
                timing["harness"] = (
                    time.monotonic() - began - sum(seconds for phase, seconds in timing.items() if phase != "harness")
                )
                _record(run, record, timing)
                known.rebuild(run)
    finally:
        bar.close()
        timing["harness"] = (
            time.monotonic() - began - sum(seconds for phase, seconds in timing.items() if phase != "harness")
        )
        _record(run, record, timing)
        known.rebuild(run)


def record_of(plan: Plan) -> dict:
    """What run.json says of a plan when it begins."""
    return {
        "schema": store.SCHEMA,
        "host": plan.host.as_dict(),
        "section": plan.section,
        "parameters": plan.parameters,
        "provenance": plan.provenance()
        | {
            "python": plan.environment.python_version,
            "engine_versions": plan.environment.versions,
            "harness": __version__,
            "git": sources.git_commit(),
            "source_sha256": sources.digest(plan.section),
            "variables": variables.deciding(),
        },
        "models": {model.name: model.identity() for arm in plan.arms for model in (arm.model, arm.draft) if model},
        "dataset": plan.loads[0].dataset.identity() if plan.loads else None,
        "order_seed": plan.seed,
        "notes": list(plan.notes),
        "began": files.now(),
    }


def _record(run: Run, record: dict, timing: dict[str, float]) -> None:
    """run.json with the time so far, after each arm."""
    files.write(
        run.folder / "run.json",
        record | {"timing": {name: round(seconds, 3) for name, seconds in timing.items()}, "ended": files.now()},
    )


def _log(run: Run) -> Path:
    run.folder.mkdir(parents=True, exist_ok=True)
    return run.folder / "load-generator.log"


class Ahead:
    """The next arm's server, started beside the present one's: two thirds of a start are imports, which keep one core
    of two busy.

    It is frozen before its weights, at the latest when the present server is ready, until that one's arm is done:
    nothing but the present server runs while a cell is measured, and only one holds a model. A context manager: what
    was not taken is stopped."""

    def __init__(self, plan: Plan, run: Run):
        self.plan, self.run, self._server = plan, run, None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._server:
            fleet.stop(self._server)

    def take(self, arm: Arm):
        """The server of `arm` if it was started ahead, else None."""
        found, self._server = (self._server, None) if self._server and self._server.arm is arm else (None, self._server)
        return found

    def begin(self, arm: Arm):
        """Start `arm`'s server and return it; None where that cannot be: its own turn will say why."""
        if self._server is None and self.plan.starts_in_pairs():
            with contextlib.suppress(StudyError, OSError):
                self._server = fleet.launch(arm, self.plan.host, self.plan.environment, self.run.start_folder(arm.name))
        return self._server


def _measure_arm(
    plan: Plan,
    run: Run,
    arm: Arm,
    cells: list[Cell],
    generator: Generator,
    ahead: Ahead,
    following: Arm | None,
    estimate: Estimate,
    bar: Progress,
    timing: dict,
) -> None:
    """All cells of an arm within one server's life; a server that dies is started once more, for the cells that are
    left.

    Whatever fails ends this arm alone, with its cause on record beside the figures of its start where it had one;
    StoreError ends the sweep.
    """
    folder = run.start_folder(arm.name)
    left, deaths, lost, figures = list(cells), 0, [], {}
    while left:
        before, free = dict(timing), [gpu.free_gib for gpu in hosts.detect().gpus] if plan.host.gpus else []
        began = time.monotonic()
        bar.show(f"{arm.name}: server starting")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            launched = ahead.take(arm)
            beside = ahead.begin(following) if following and not launched and not deaths else None
            with fleet.serve(
                arm, plan.host, plan.environment, folder, port=plan.port, launched=launched, beside=beside
            ) as server:
                generator.wait_until_ready()
                timing["start"] += time.monotonic() - began
                bar.advance(estimate.start_s)
                server.start |= _probe(plan, arm, server, bar, timing)
                figures = server.start | _weights(arm, server.start)
                write_start(plan, run, arm, "ok", figures=figures, lost=lost)
                _warm_up(plan, arm, server, generator, bar, timing)
                while left:
                    bar.show(left[0].name)
                    _measure_cell(plan, run, left[0], server, generator, timing)
                    bar.advance(estimate.cell_s[left[0].key], cell=True)
                    left.pop(0)
                stopping = time.monotonic()
            preflight.wait_for_gpu_memory(plan.host, free)
            timing["stop"] += time.monotonic() - stopping
        except StoreError:
            raise
        except StudyError as error:
            if timing == before:
                timing["start"] += time.monotonic() - began
            failure = failure_of(error, time.monotonic() - began)
            if figures and left and deaths == 0 and isinstance(error, ServerError | LoadError):
                deaths += 1
                lost.append({"cell": left[0].name, "reason": failure["reason"]})
                bar.say(f"{left[0].name}: {failure['reason']}; the server is started once more")
                with contextlib.suppress(HostError):  # whoever is started next says what stands in its way
                    preflight.wait_for_gpu_memory(plan.host, free)
                continue
            if left:
                write_start(plan, run, arm, "failed", figures=figures, lost=lost, **failure)
            else:
                write_start(plan, run, arm, "ok", figures=figures, lost=lost, later=failure)
            bar.say(f"{arm.name} failed: {failure['reason']}")
            for cell in left:
                bar.advance(estimate.cell_s[cell.key], cell=True)
            return


def _warm_up(plan: Plan, arm: Arm, server, generator: Generator, bar: Progress, timing: dict) -> None:
    """One short load at the highest concurrency: the first requests of a path are slow and are never counted. The probe
    that found the server ready has been the first one alone in flight.
    """
    began = time.monotonic()
    bar.show(f"{arm.name}: warming up")
    loads = plan.loads_of(arm)
    most = max(load.concurrency for load in loads)
    generator.run(
        Load(most, max(2, min(most, 64)), loads[0].dataset, WARMUP_TOKENS, loads[0].temperature, True, WARMUP_SEED),
        server,
        tokenizer=str(arm.model.folder),
    )
    timing["warm-up"] += time.monotonic() - began


def _probe(plan: Plan, arm: Arm, server, bar: Progress, timing: dict) -> dict:
    """What the probe of the arm's cache found.

    It comes before the start counts as one, so that an arm whose cache does nothing has failed and costs no cell.
    """
    began = time.monotonic()
    bar.show(f"{arm.name}: probing its cache")
    try:
        return tiers.probe(arm, server, plan.loads_of(arm))
    finally:
        timing["warm-up"] += time.monotonic() - began


def _measure_cell(plan: Plan, run: Run, cell: Cell, server, generator: Generator, timing: dict) -> None:
    began, tokenizer = time.monotonic(), str(cell.arm.model.folder)
    load = cell.load.dataset.sized(cell.load, server.start)
    for prompt in load.dataset.primers(load, tokenizer, cell.repeat):
        client.fill(server, prompt, "a prefix to be found by the load")
    before, counted = _scrape(server), ranks.count(server.pid, plan.host) if cell.arm.technique == "parallel" else None
    below = tiers.look(cell.arm, server, before)
    with hosts.Sampler(plan.host) as sampler:
        answer = generator.run(load, server, tokenizer=tokenizer, repeat=cell.repeat)
    after = _scrape(server)
    parallel = {"ranks": ranks.difference(cell.arm, counted, ranks.count(server.pid, plan.host))} if counted else {}
    result, requests = _split(answer["result"], answer.get("watched"))
    load_s = result.get("duration") or 0.0
    samples = engines.get(cell.arm.engine).COUNTERS
    counters = metrics.difference(before, after, samples)
    moved = tiers.moved(
        cell.arm, below, tiers.look(cell.arm, server, after), external_tokens=counters.get(base.EXTERNAL_HITS)
    )
    evidence = {
        "key": cell.key,
        "host": plan.host.name,
        "section": plan.section,
        "run": run.name,
        "arm": cell.arm.name,
        "technique": cell.arm.technique,
        "model": cell.arm.model.name,
        "repeat_of": cell.arm.repeat_of,
        "k": cell.arm.k,
        "load": cell.load.name,
        "concurrency": cell.load.concurrency,
        "repeat": cell.repeat,
        "at": files.now(),
        "seed": cell.load.seed_of(cell.repeat),
        "asked": {
            "prompts": load.prompts,
            "output_tokens": cell.load.output_tokens,
            "ignore_eos": cell.load.ignore_eos,
            "temperature": cell.load.temperature,
        },
        "result": result,
        "counters": counters,
        "speculation": metrics.acceptance(before, after, samples),
        "reuse": load.dataset.evidence(
            load, metrics.block_tokens(before, samples), server.start.get("kv_cache_tokens")
        ),
        "client": answer["client"],
        "machine": sampler.summary(),
        **parallel,
        **({"moved": moved} if moved else {}),
        "server": {"owns_port": server.owns_port(), "alive": _alive(server), "pid": server.pid},
        "labels": {
            "host": plan.host.name,
            "weights": cell.arm.weights,
            "acceptance": cell.arm.acceptance,
            "engine": "modified" if plan.environment.modified else "as released",
        },
    }
    cell_s = time.monotonic() - began
    evidence["timing"] = {"load_s": load_s, "cell_s": cell_s, "overhead_s": cell_s - load_s}
    evidence["certificate"] = certificates.certify(evidence, requests)
    run.write_cell(evidence, requests)
    timing["load"] += load_s
    if not evidence["server"]["alive"]:  # every later cell of a dead engine would be 0
        server.require_alive(client.LAST_WORDS_S)
        raise ServerError(
            f"{cell.name}: the server does not answer after the load",
            reason="no token came back after the load",
            log=server.log,
            last_lines=logs.tail(server.log),
        )


def _scrape(server) -> metrics.Snapshot:
    """The counters; a server that does not answer because it is ending is a dead server, with its own cause."""
    try:
        return metrics.scrape(server.url)
    except LoadError:
        server.require_alive(client.LAST_WORDS_S)
        raise


def _alive(server) -> bool:
    """One more token, asked for after the load."""
    try:
        return all(
            client.complete(server.url, server.arm.model.name, fleet.PROBE_PROMPT, 1, 60)["usage"]["completion_tokens"]
            == 1
            for _ in range(server.arm.replicas)
        )
    except (OSError, ValueError, KeyError):
        return False


def _split(result: dict, watched: list[dict] | None = None) -> tuple[dict, list[dict]]:
    """A load's result without its long lists, and one record a request; times in seconds from the first request's
    start.

    Where requests came one by one, `counters` has what each of them added to the server's.
    """
    rows = {
        name: result.pop(name, [])
        for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")
    }
    first = min((start for start in rows["start_times"] if start), default=0.0)
    requests, sane = [], language.are_sane(rows["generated_texts"])
    for index, start in enumerate(rows["start_times"]):
        requests.append(
            {
                "start_s": round(start - first, 5),
                "ttft_s": round(rows["ttfts"][index], 5),
                "itls_s": [round(gap, 5) for gap in rows["itls"][index]],
                "input_tokens": rows["input_lens"][index],
                "output_tokens": rows["output_lens"][index],
                "error": rows["errors"][index] or None,
                "text_sane": sane[index] if sane else None,
            }
        )
    if watched and len(watched) == len(requests) + 1:
        for request, before, after in zip(requests, watched, watched[1:], strict=False):
            request["counters"] = {
                name: None if after[name] is None else round(after[name] - (before[name] or 0), 6) for name in after
            }
    kept = {name: value for name, value in result.items() if isinstance(value, int | float | str) or value is None}
    kept["sample"] = (rows["generated_texts"] or [""])[0][:200]
    for name in ("base_url", "tokenizer_id", "model_id"):
        kept.pop(name, None)
    return kept, requests


def _weights(arm: Arm, start: dict) -> dict:
    """Weight bytes from the files where the engine's log does not print them (vLLM's CPU build)."""
    if "weights_gib" in start:
        return {"weights_source": "log"}
    sizes = [model.weights_gib for model in (arm.model, arm.draft) if model]
    widened = 2 if arm.options.get("dtype") == "float32" else 1
    return (
        {
            "weights_gib": round(widened * sum(sizes) / arm.split, 3),
            "weights_source": "files" if arm.split == 1 else "files, in equal parts",
        }
        if all(sizes)
        else {}
    )


def failure_of(error: StudyError, after_s: float) -> dict:
    """What an error says of a server's end, as `write_start` takes it."""
    return {
        "reason": error.reason if isinstance(error, ServerError) else str(error),
        "last_lines": tuple(getattr(error, "last_lines", ())),
        "exit_code": getattr(error, "exit_code", None),
        "failure_s": after_s,
    }


def write_start(
    plan: Plan,
    run: Run,
    arm: Arm,
    outcome: str,
    *,
    reason: str | None = None,
    figures: dict | None = None,
    last_lines=(),
    lost=(),
    exit_code=None,
    failure_s=None,
    later: dict | None = None,
) -> None:
    """Store what a start came to.

    `failed` with `figures` is an arm whose server came up and was lost before its cells were done; `later` is what went
    wrong after all that was wanted of a good start was had.
    """
    command = engines.get(arm.engine).command(arm, Path("python"), 0)
    files.write(
        run.start_folder(arm.name) / "start.json",
        {
            "key": plan.arm_key(arm),
            "host": plan.host.name,
            "section": plan.section,
            "run": run.name,
            "arm": arm.name,
            "outcome": outcome,
            "reason": reason,
            "exit_code": exit_code,
            "failure_s": failure_s,
            "last_lines": list(map(logs.tidied, last_lines)),
            "lost_cells": list(lost),
            "figures": figures or {},
            **({"later": later | {"last_lines": list(map(logs.tidied, later["last_lines"]))}} if later else {}),
            "command": [
                str(word)
                .replace(str(arm.model.source), arm.model.name)
                .replace(str(arm.draft.source) if arm.draft else "\0", arm.draft.name if arm.draft else "")
                .replace(str(paths.ROOT), ".")
                for word in command
            ],
            "labels": {"host": plan.host.name, "weights": arm.weights, "acceptance": arm.acceptance},
            "at": files.now(),
        },
    )


def table_of_plan(plan: Plan, known: Store, fresh: bool = False, say: Callable[[str], None] = print) -> float:
    """Print arms × cells, what is measured already, what cannot run here and why; returns the estimated minutes."""
    pending = plan.pending(known, fresh)
    estimate = plan.estimate(known, pending)
    loads = ", ".join(
        f"{load.concurrency}{f' {load.dataset.label}' if load.dataset.label else ''} ({load.prompts} prompts)"
        for load in plan.loads
    )
    say(
        f"section {plan.section} on {plan.host.name} with vLLM "
        f"{plan.environment.vllm or '(not installed yet)'}; results in {known.folder}"
    )
    say(f"loads: concurrency {loads}; {plan.repeats} repeat{'s' if plan.repeats > 1 else ''}")
    width = max(len(arm.name) for arm in plan.arms)
    for arm in plan.arms:
        labels = "".join(
            f", {label}"
            for label in (
                f"{arm.weights} weights" if arm.weights == "random" else "",
                "prescribed acceptance" if arm.acceptance == "prescribed" else "",
            )
            if label
        )
        if arm.unsupported:
            say(f"  {arm.name:<{width}}  cannot run here: {arm.unsupported}")
            continue
        total, missing = len(plan.loads_of(arm)) * plan.repeats, len(pending[arm.name])
        seconds = (estimate.start_s + sum(estimate.cell_s[cell.key] for cell in pending[arm.name])) if missing else 0
        say(
            f"  {arm.name:<{width}}  {total} cells, {total - missing} measured already, {missing} to "
            f"measure, about {seconds / 60:.1f} min{labels}"
        )
    for note in plan.notes:
        say(f"  note: {note}")
    minutes = estimate.total(pending) / 60
    say(f"estimated: {minutes:.1f} minutes")
    return minutes
