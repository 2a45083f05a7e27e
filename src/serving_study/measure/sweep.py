"""Carrying out a plan, arm by arm: only what the store lacks, and without stopping at a failed arm.

All cells of an arm are measured within one server's life, in an order shuffled by a recorded seed. A failed arm is
recorded with its cause and the next one starts; a server that dies meanwhile is started once more.

    >>> from serving_study.chapters import sections
    >>> from serving_study.measure import sweep
    >>> sweep.run(sections.plan(3)).frame()                        # doctest: +SKIP
"""

import contextlib
import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from .. import files
from ..environments import Environment, templates
from ..errors import HostError, LoadError, ServerError, StoreError, StudyError
from ..hardware import hosts
from ..hardware.hosts import Host
from ..loads import Generator, Load
from ..results import store
from ..results.store import Run, Store
from ..servers import fleet, lifetime, preflight
from ..servers.arm import Arm
from ..servers.fleet import Fleet
from . import mechanisms, records
from .cell import measure_cell, warm_up
from .plan import Cell, Estimate, Plan
from .progress import Progress, mark_interrupted
from .records import Results, StartRecord


def run(plan: Plan, *, fresh: bool = False) -> Results:
    """Measure what is missing of `plan` and return all of it.

    Raises StoreError when results cannot be written or another run holds the folder; failures of arms are recorded."""
    known = Store(plan.host.name, plan.section)
    with known.lock(), templates.kept():
        store.name_results_folder()
        mark_interrupted(known)
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


@dataclass(frozen=True)
class Turn:
    """An arm's turn in a run: the cells that are left of it, its loads, and where its start is recorded."""

    arm: Arm
    cells: list[Cell]
    loads: tuple[Load, ...]
    start: StartRecord

    @classmethod
    def of(cls, plan: Plan, run: Run, arm: Arm, cells: list[Cell]) -> "Turn":
        return cls(arm, cells, plan.loads_of(arm), StartRecord.of(plan, run, arm))


def _measure(plan: Plan, known: Store, run: Run, pending: dict[str, list[Cell]], unsupported: list[Arm]) -> None:
    estimate = plan.estimate(known, pending)
    turns = [Turn.of(plan, run, arm, pending[arm.name]) for arm in plan.arms if pending.get(arm.name)]
    record = records.record_of(plan)
    files.write(run.folder / "run.json", record)
    timing = dict.fromkeys(("start", "warm-up", "load", "stop", "harness"), 0.0)
    began = time.monotonic()

    def keep() -> None:
        timing["harness"] = 0.0
        timing["harness"] = time.monotonic() - began - sum(timing.values())
        records.write_timing(run, record, timing)
        known.rebuild(run)

    cells = sum(map(len, pending.values()))
    with Progress(plan.section, run, total_s=estimate.total(pending), cells=cells) as progress:
        try:
            for arm in unsupported:
                StartRecord.of(plan, run, arm).write("unsupported", reason=arm.unsupported)
            starter = Starter(plan.host, plan.environment, run, plan.port, in_pairs=plan.starts_in_pairs())
            with Generator(plan.environment, _log(run)) as generator, starter:
                for turn, following in itertools.zip_longest(turns, turns[1:]):
                    _measure_arm(turn, following, starter, generator, estimate, progress, timing)
                    keep()
        finally:
            keep()


def _log(run: Run) -> Path:
    run.folder.mkdir(parents=True, exist_ok=True)
    return run.folder / "load-generator.log"


class Starter:
    """Starts each arm's server, and the next arm's beside it: two thirds of a start are imports, which keep one core of
    two busy.

    The next one is frozen before its weights, at the latest when the present server is ready, until that one's arm is
    done: nothing but the present server runs while a cell is measured, and only one holds a model. A context manager:
    what was not taken is stopped."""

    def __init__(self, host: Host, environment: Environment, run: Run, port: int, *, in_pairs: bool):
        self.host, self.environment, self.run, self.port, self.in_pairs = host, environment, run, port, in_pairs
        self._ahead: Fleet | None = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._ahead:
            fleet.stop(self._ahead)

    @contextlib.contextmanager
    def serve(self, arm: Arm, following: Arm | None):
        """`arm`'s server, ready; meanwhile that of the `following` arm begins."""
        folder = self.run.start_folder(arm.name)
        folder.mkdir(parents=True, exist_ok=True)
        launched = self._take(arm)
        next_server = self._begin(following) if following and not launched else None
        with lifetime.serve(
            arm, self.host, self.environment, folder, port=self.port, launched=launched, next_server=next_server
        ) as server:
            yield server

    def _take(self, arm: Arm) -> Fleet | None:
        """The server of `arm` if it was started ahead."""
        if self._ahead is None or self._ahead.arm is not arm:
            return None
        server, self._ahead = self._ahead, None
        return server

    def _begin(self, arm: Arm) -> Fleet | None:
        """Start `arm`'s server and return it; None where that cannot be: its own turn will say why."""
        if self._ahead is None and self.in_pairs:
            with contextlib.suppress(StudyError, OSError):
                self._ahead = fleet.launch(arm, self.host, self.environment, self.run.start_folder(arm.name))
        return self._ahead


def _measure_arm(
    turn: Turn,
    following: Turn | None,
    starter: Starter,
    generator: Generator,
    estimate: Estimate,
    progress: Progress,
    timing: dict,
) -> None:
    """All cells of an arm within one server's life; a server that dies is started once more for the rest.

    Whatever fails ends this arm alone, with its cause on record beside the figures of its start where it had one;
    StoreError ends the sweep.
    """
    arm, host, run = turn.arm, starter.host, starter.run
    left, deaths, lost, figures = list(turn.cells), 0, [], {}
    while left:
        before, free = dict(timing), [gpu.free_gib for gpu in hosts.detect().gpus] if host.gpus else []
        began = time.monotonic()
        progress.show("server starting", arm=arm.name)
        try:
            with starter.serve(arm, following.arm if following and not deaths else None) as server:
                generator.wait_until_ready()
                timing["start"] += time.monotonic() - began
                progress.advance(estimate.start_s)
                server.start |= _probe(turn, server, progress, timing)
                figures = server.start | records.weights(arm, server.start)
                turn.start.write("ok", figures=figures, lost=lost)
                warm_up(arm, turn.loads, server, generator, progress, timing)
                while left:
                    progress.show("measuring", arm=arm.name, cell=left[0].name)
                    measure_cell(run, left[0], server, generator, timing)
                    progress.advance(estimate.cell_s[left[0].key], cell=True)
                    left.pop(0)
                stopping = time.monotonic()
            preflight.wait_for_gpu_memory(host, free)
            timing["stop"] += time.monotonic() - stopping
        except StoreError:
            raise
        except StudyError as error:
            if timing == before:
                timing["start"] += time.monotonic() - began
            failure = records.failure_of(error, time.monotonic() - began)
            if figures and left and deaths == 0 and isinstance(error, ServerError | LoadError):
                deaths += 1
                lost.append({"cell": left[0].name, "reason": failure["reason"]})
                progress.say(f"{left[0].name}: {failure['reason']}; the server is started once more")
                with contextlib.suppress(HostError):  # whoever is started next says what stands in its way
                    preflight.wait_for_gpu_memory(host, free)
                continue
            if left:
                turn.start.write("failed", figures=figures, lost=lost, **failure)
            else:
                turn.start.write("ok", figures=figures, lost=lost, later=failure)
            progress.say(f"{arm.name} failed: {failure['reason']}")
            for cell in left:
                progress.advance(estimate.cell_s[cell.key], cell=True)
            return


def _probe(turn: Turn, server: Fleet, progress: Progress, timing: dict) -> dict:
    """What the probe of the arm's cache found.

    It comes before the start counts as one, so that an arm whose cache does nothing has failed and costs no cell.
    """
    began = time.monotonic()
    progress.show("probing its cache", arm=turn.arm.name)
    try:
        return mechanisms.of(turn.arm.technique).probe(turn.arm, server, turn.loads)
    finally:
        timing["warm-up"] += time.monotonic() - began
