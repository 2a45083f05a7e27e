"""One life of an arm's servers: started, warmed up, the cells that it is given, frozen while others are measured, its
end; and what goes on record when it fails.

>>> with Life(bench, arm) as life:                                  # doctest: +SKIP
...     life.measure(cells)
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import HostError, LoadError, ServerError, StoreError, StudyError
from ..hardware import cgroups, hosts
from ..hardware.hosts import Host
from ..loads import Generator, questions
from ..results.store import Run
from ..servers import client, fleet, lifetime, preflight
from ..servers.arm import Arm
from ..servers.fleet import Fleet
from . import mechanisms, records
from .cell import measure_cell, warm_up
from .plan import Cell, Estimate, Plan
from .progress import Progress
from .records import StartRecord

WAKING_TOKENS = 4  # asked of a server that stood still, and counted nowhere


class Starter:
    """Starts each arm's server, and the next arm's beside it: two thirds of a start are imports, which keep one core of
    two busy.

    The next one is frozen before its weights, at the latest when the present server is ready, until that one's arm is
    done: nothing but the present server runs while a cell is measured, and only one loads a model. A context manager:
    what was not taken is stopped."""

    def __init__(self, host: Host, environment_of: fleet.EnvironmentOf, run: Run, port: int, *, in_pairs: bool):
        self.host, self.environment_of, self.run, self.port, self.in_pairs = host, environment_of, run, port, in_pairs
        self.lives: dict[str, int] = {}  # arm to how many it has had in this run
        self._ahead: Fleet | None = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._ahead:
            fleet.stop(self._ahead)

    @contextlib.contextmanager
    def serve(self, arm: Arm, life: int, following: Arm | None):
        """`arm`'s server, ready; meanwhile that of the `following` arm begins."""
        folder = self.run.start_folder(arm.name, life)
        folder.mkdir(parents=True, exist_ok=True)
        launched = self._take(arm)
        next_server = self._begin(following) if following and not launched else None
        with lifetime.serve(
            arm, self.host, self.environment_of, folder, port=self.port, launched=launched, next_server=next_server
        ) as server:
            yield server

    def _take(self, arm: Arm) -> Fleet | None:
        """The server of `arm` if it was started ahead."""
        if self._ahead is None or self._ahead.arm is not arm:
            return None
        server, self._ahead = self._ahead, None
        return server

    def _begin(self, arm: Arm) -> Fleet | None:
        """Start the server of `arm`'s next life and return it; None where that cannot be: its own turn will say why."""
        if self._ahead is None and self.in_pairs:
            with contextlib.suppress(StudyError, OSError):
                folder = self.run.start_folder(arm.name, self.lives.get(arm.name, 0) + 1)
                self._ahead = fleet.launch(arm, self.host, self.environment_of, folder)
        return self._ahead


@dataclass
class Bench:
    """What every life of a run needs: the plan, where results go, what starts servers and sends loads, the bar, and the
    time by phase.
    """

    plan: Plan
    run: Run
    starter: Starter
    generator: Generator
    progress: Progress
    estimate: Estimate
    timing: dict[str, float]
    longest_block_s: float = 0.0
    measured: int = 0
    failed: set[str] = field(default_factory=set)  # arms of which a life ended early
    asked: set[str] = field(default_factory=set)  # arms whose answers to the plan's questions are stored


class Life:
    """One life of an arm's servers. A server that dies is started once more, for what is left; the logs of the first
    end in `-lost.log` then.

    Whatever fails ends this life alone, with its cause on record beside the figures of its start where it had one;
    StoreError ends the run. A context manager: the servers are stopped however it is left.
    """

    def __init__(self, bench: Bench, arm: Arm, sitting: int | None = None):
        self.bench, self.arm, self.sitting = bench, arm, sitting
        self.server: Fleet | None = None
        self.ended, self.memory_gib = False, preflight.cpu_memory_gib(arm)
        self._open: contextlib.ExitStack | None = None
        self._figures, self._lost, self._restarted, self._free_gib = {}, [], False, []
        lives = bench.starter.lives
        self.number = lives[arm.name] = lives.get(arm.name, 0) + 1
        self._record = StartRecord.of(bench.plan, bench.run, arm, self.number)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self._stop()
        else:
            self._close()

    def begin(self, following: Arm | None = None) -> bool:
        """Start and warm up, the `following` arm's server beside it; returns whether it is up."""
        self._go_on([], following, ())
        return not self.ended

    def measure(self, cells: Sequence[Cell], *, following: Arm | None = None, idle: Sequence[Fleet] = ()) -> None:
        """Measure cells one after the other, in a server that is started unless it is up, while the `idle` servers
        stand still.
        """
        self._go_on(list(cells), following, idle)

    def freeze(self) -> None:
        """Have the servers stand still."""
        if self.server:
            self.server.freeze()

    def thaw(self) -> None:
        """Let them go on, with a few tokens that nobody counts: the first after a stop come late."""
        if not self.server or not self.server.frozen:
            return
        began = time.monotonic()
        self.server.thaw()
        for _ in range(self.arm.replicas):
            with contextlib.suppress(OSError, ValueError, KeyError):  # a dead server says so in its next cell
                client.complete(self.server.url, self.arm.model.name, lifetime.PROBE_PROMPT, WAKING_TOKENS, 60)
        self.bench.timing["warm-up"] += time.monotonic() - began

    def _go_on(self, left: list[Cell], following: Arm | None, idle: Sequence[Fleet]) -> None:
        bench = self.bench
        while not self.ended and (left or self.server is None):
            before, began = dict(bench.timing), time.monotonic()
            try:
                if self.server is None:
                    self._start(following if not self._restarted else None, began)
                while left:
                    bench.progress.show("measuring", arm=self.arm.name, cell=left[0].name)
                    measure_cell(
                        bench.run,
                        left[0],
                        self.server,
                        bench.generator,
                        bench.timing,
                        life=self.number,
                        sitting=self.sitting,
                        idle=idle,
                    )
                    bench.measured += 1
                    bench.progress.advance(bench.estimate.seconds(left[0]), cell=True)
                    left.pop(0)
            except StoreError:
                raise
            except StudyError as error:
                self._fail(error, left, before, began)

    def _start(self, following: Arm | None, began: float) -> None:
        bench, host = self.bench, self.bench.plan.host
        self._free_gib = [gpu.free_gib for gpu in hosts.detect().gpus] if host.gpus else []
        free_gib, loads = cgroups.free_memory_gib(), bench.plan.loads_of(self.arm)
        bench.progress.show("server starting", arm=self.arm.name)
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(bench.starter.serve(self.arm, self.number, following))
            bench.generator.wait_until_ready()
            bench.timing["start"] += time.monotonic() - began
            bench.progress.advance(bench.estimate.start_s)
            server.start |= self._probe(server, loads)
            self._figures = server.start | records.weights(self.arm, server.start)
            self._record.write("ok", figures=self._figures, lost=self._lost)
            warm_up(self.arm, loads, server, bench.generator, bench.progress, bench.timing)
            self._ask(server)
            self.memory_gib = max(0.0, free_gib - cgroups.free_memory_gib())
            if not host.gpus:
                self._figures |= {"memory_gib": round(self.memory_gib, 2)}
                self._record.write("ok", figures=self._figures, lost=self._lost)
            self._open, self.server = stack.pop_all(), server

    def _probe(self, server: Fleet, loads: tuple) -> dict:
        """What the probe of the arm's cache found.

        It comes before the start counts as one, so that an arm whose cache does nothing has failed and costs no cell.
        """
        began = time.monotonic()
        self.bench.progress.show("probing its cache", arm=self.arm.name)
        try:
            return mechanisms.of(self.arm.technique).probe(self.arm, server, loads)
        finally:
            self.bench.timing["warm-up"] += time.monotonic() - began

    def _ask(self, server: Fleet) -> None:
        """Ask the plan's questions of the arm's first server that comes so far."""
        bench, plan = self.bench, self.bench.plan
        if not plan.questions or self.arm.name in bench.asked:
            return
        began = time.monotonic()
        bench.progress.show("answering questions", arm=self.arm.name)
        try:
            answers = questions.ask(plan.questions, self.arm, server, bench.generator)
            records.write_answers(plan, bench.run, self.arm, answers)
        finally:
            bench.timing["questions"] = bench.timing.get("questions", 0.0) + time.monotonic() - began
        bench.asked.add(self.arm.name)

    def _fail(self, error: StudyError, left: list[Cell], before: dict, began: float) -> None:
        """One more start for a server that was up, with its cause among what was lost; else the end of this life."""
        bench = self.bench
        if bench.timing == before:
            bench.timing["start"] += time.monotonic() - began
        failure = records.failure_of(error, time.monotonic() - began)
        self._close()
        if self._figures and not self._restarted and isinstance(error, ServerError | LoadError):
            self._restarted = True
            for log in bench.run.start_folder(self.arm.name, self.number).glob("*.log"):
                log.rename(log.with_name(f"{log.stem}-lost.log"))  # the next server writes its own
            what = left[0].name if left else f"{self.arm.name}: warming up"
            self._lost.append({"cell": what, "reason": failure["reason"]})
            bench.progress.say(f"{what}: {failure['reason']}; the server is started once more")
            with contextlib.suppress(HostError):  # whoever is started next says what stands in its way
                preflight.wait_for_gpu_memory(bench.plan.host, self._free_gib)
            return
        self.ended = True
        bench.failed.add(self.arm.name)
        self._record.write("failed", figures=self._figures, lost=self._lost, **failure)
        bench.progress.say(f"{self.arm.name} failed: {failure['reason']}")
        for cell in left:
            bench.progress.advance(bench.estimate.seconds(cell), cell=True)

    def _stop(self) -> None:
        """End the servers; what goes wrong with that stands beside the record of a good start."""
        if not self.server:
            return
        began = time.monotonic()
        try:
            self._close()
            preflight.wait_for_gpu_memory(self.bench.plan.host, self._free_gib)
            self.bench.timing["stop"] += time.monotonic() - began
        except StoreError:
            raise
        except StudyError as error:
            failure = records.failure_of(error, time.monotonic() - began)
            self._record.write("ok", figures=self._figures, lost=self._lost, later=failure)
            self.bench.progress.say(f"{self.arm.name} failed: {failure['reason']}")

    def _close(self) -> None:
        opened, self._open, server, self.server = self._open, None, self.server, None
        if server:
            server.thaw()
        if opened:
            opened.close()
