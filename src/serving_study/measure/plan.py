"""What a section measures on a host, decided before anything starts: arms × loads × repeats, keys, expected seconds.

A cell's key is the digest of what decides its result, so an upgraded engine or another machine never mixes with earlier
measurements. What can mislead: an estimate comes from what this host took before, else from its kind of host.

    >>> from serving_study.chapters import sections
    >>> sections.plan(3).pending(store.Store("cpu", 3))            # doctest: +SKIP
"""

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas

from .. import engines, files
from ..engines.process import Process
from ..environments import Environment, variables
from ..hardware.hosts import Host
from ..loads import Load
from ..loads.questions import Questions
from ..results import store
from ..results.store import Store
from ..servers import preflight
from ..servers.arm import Arm

SPARE_GIB = 1.0  # of memory, that stays free beside all servers


@dataclass(frozen=True)
class Cell:
    """An arm of a section under a load, once."""

    section: int | str
    arm: Arm
    load: Load
    repeat: int
    key: str

    @property
    def name(self) -> str:
        return f"{self.arm.name} {self.load.name} repeat={self.repeat}"


@dataclass(frozen=True)
class Plan:
    """What one section measures on one host. Without loads it only starts servers (`starts`).

    `environment` is the load generator's, and that of every engine which has none of its own in `environments`, by the
    engine's name.

    Each arm has at least `repeats` blocks in at least `lives` lives; more follow for what is not decided until
    `minutes` are spent on the section. `decisions` tells that of a frame of cells: one row a claim, `arm`, `load` (its
    name), `decided`, `half_width` (a natural logarithm), `blocks`. `side_by_side` keeps the servers of all arms alive,
    all but one frozen, as far as memory allows. Arms whose ratio lies within `margin` of 1 count as equal (None: the
    usual one). `questions` are asked of each arm's first server, before its cells.
    """

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
    lives: int = 1
    minutes: float = 0.0
    margin: float | None = None
    side_by_side: bool = False
    decisions: Callable[[pandas.DataFrame], pandas.DataFrame] | None = None
    questions: Questions | None = None
    only: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # arm to the names of its loads, where it does not have all
    environments: Mapping[str, Environment] = field(default_factory=dict)

    def environment_of(self, process: Process) -> Environment:
        """The environment of a process's engine."""
        return self.environments.get(process.engine, self.environment)

    def version_of(self, process: Process) -> str | None:
        """The version of a process's engine; None where it is not installed."""
        return engines.get(process.engine).version(self.environment_of(process).versions)

    def loads_of(self, arm: Arm) -> tuple[Load, ...]:
        return tuple(load for load in self.loads if arm.name not in self.only or load.name in self.only[arm.name])

    def provenance(self) -> dict:
        """What decides a result beside arm, load and repeat: host, engine, results folder."""
        return {
            "host": self.host.identity(),
            "environment": self.environment.identity(),
            "results_folder": store.results_folder_id(),
        }

    def identity_of(self, arm: Arm) -> dict:
        """What decides an arm's results: the arm, the versions of engines that are not the load generator's, the
        versions of what it needs beside the engine, and the caller's variables that reach its server.
        """
        environment, version = self.environment_of(arm.server), self.version_of(arm.server)
        needed = {name: environment.versions.get(name) for name in arm.distributions}
        others = {
            process.engine: {"version": self.version_of(process)} | self.environment_of(process).identity()
            for process in self._elsewhere(arm)
        }
        if given := variables.deciding():
            set_here = engines.get(arm.engine).environment(arm.server, self.host, environment.python)
            given = {name: value for name, value in given.items() if name == "LD_PRELOAD" or name not in set_here}
        identity = {"engine_version": version if version != environment.vllm and not others else None}
        identity |= {"environments": others, "distributions": needed, "variables": given}
        return arm.identity() | {name: value for name, value in identity.items() if value}

    def _elsewhere(self, arm: Arm) -> list[Process]:
        """The arm's processes that have an environment of their own engine's."""
        return [process for process in arm.processes if process.engine in self.environments]

    def engine_in_words(self) -> str:
        """The engines of the arms that can run, or of all, with their versions."""
        arms = self.supported or self.arms
        versions = {arm.engine: self.environment_of(arm.server).versions for arm in arms}
        return engines.in_words(versions or {"vllm": self.environment.versions})

    @property
    def baseline(self) -> Arm:
        """What the others are compared with: the first arm that can run here."""
        return next((arm for arm in self.arms if not arm.unsupported), self.arms[0])

    @property
    def supported(self) -> list[Arm]:
        """The arms that can run here."""
        return [arm for arm in self.arms if not arm.unsupported]

    def is_reference(self, arm: Arm) -> bool:
        """Whether `arm` is the baseline or its twin: the lives that all others are compared with."""
        return self.baseline.name in (arm.name, arm.repeat_of)

    def cells_of(self, arm: Arm, blocks: Iterable[tuple[Load, int]]) -> list[Cell]:
        """The arm's cells of these loads and blocks, as they come."""
        base, identity = self.provenance(), self.identity_of(arm)
        return [
            Cell(self.section, arm, load, repeat, files.key(base, identity, load.identity(), {"repeat": repeat}))
            for load, repeat in blocks
        ]

    def cells(self, arm: Arm) -> list[Cell]:
        """The arm's least cells in the order in which one life measures them."""
        cells = self.cells_of(arm, itertools.product(self.loads_of(arm), range(self.repeats)))
        random.Random(f"{self.seed}/{arm.repeat_of or arm.name}/order").shuffle(cells)
        return cells

    def stored(self, known: Store) -> list[tuple[Cell, Path]]:
        """The plan's cells that are measured, of any block, and their files; the newest where there are several.

        Cells that are older than blocks tell no life; a plan that wants several lives leaves them out."""
        loads = {load.name: load for load in self.loads}
        have, columns = known.by_key(), known.summaries().columns
        blocks: dict[str, dict] = {arm.name: {} for arm in self.arms}
        names = ("arm", "load", "repeat", "life")
        for name, load, repeat, life in zip(*(columns[column] for column in names), strict=True):
            if name in blocks and load in loads and (life or self.lives == 1):
                blocks[name][load, repeat] = loads[load], int(repeat)
        cells = (cell for arm in self.arms for cell in self.cells_of(arm, blocks[arm.name].values()))
        return [(cell, have[cell.key]) for cell in cells if cell.key in have]

    def frame(self, cells: Iterable[tuple[Cell, Path]]) -> pandas.DataFrame:
        """One row a stored cell, in the plan's order of arms: the columns of cells.csv, `file`, and `margin` if the
        plan has one.
        """
        order = {arm.name: place for place, arm in enumerate(self.arms)}
        cells = sorted(cells, key=lambda one: (order[one[0].arm.name], one[0].load.concurrency, one[0].repeat))
        rows = [store.cell_row(store.read_cell(file)) | {"file": file} for _, file in cells]
        frame = pandas.DataFrame(rows, columns=[*store.CELL_COLUMNS, "file"])
        return frame if self.margin is None else frame.assign(margin=self.margin)

    def arm_key(self, arm: Arm) -> str:
        return files.key(self.provenance(), self.identity_of(arm))

    def estimate(self, known: Store) -> "Estimate":
        """Seconds for each start and cell, from what this host took before, else from its kind."""
        starts = [
            start["figures"]["startup_s"]
            for start in known.starts_by_key().values()
            if (start.get("figures") or {}).get("startup_s")
        ]
        cells = {}
        columns = known.summaries().columns
        names = ("arm", "load", "concurrency", "prompts", "cell_s")
        for arm, load, concurrency, prompts, seconds in zip(*(columns[name] for name in names), strict=True):
            for load_key in (load, (concurrency, prompts)):
                cells.setdefault((arm, load_key), []).append(seconds)
        start_s = sum(starts) / len(starts) if starts else (90.0 if self.host.gpus else 45.0)
        if self.starts_in_pairs():
            start_s *= 0.6
        return Estimate(start_s + (8.0 if self.host.gpus else 6.0), cells, bool(self.host.gpus), self.lives)

    def starts_in_pairs(self) -> bool:
        """Whether the next arm's server may import beside the present one: on a CPU with two cores, a port of its own
        and the memory. Never on a GPU, where an engine sizes its memory by what is free.
        """
        wanted = max(map(preflight.cpu_memory_gib, self.supported), default=0.0) + max(
            map(preflight.imported_gib, self.supported), default=0.0
        )
        return not self.host.gpus and self.host.cpus > 1 and not self.port and wanted <= self.host.free_memory_gib

    def lacking(self, cells: Iterable[tuple[Cell, Path]]) -> dict[str, list[Cell]]:
        """Arm to the cells that it lacks of those that every arm has at least; arms that lack none are not in it.

        Side by side what counts is blocks that an arm shares with the baseline, whichever they are: such a cell has the
        block 0 here, until it is measured."""
        if not self.side_by_side:
            have = {cell.key for cell, _ in cells}
            missing = {arm.name: [cell for cell in self.cells(arm) if cell.key not in have] for arm in self.supported}
        else:
            shared = self.shared_blocks(cells)
            missing = {
                arm.name: [
                    cell
                    for load in self.loads_of(arm)
                    for cell in self.cells_of(arm, [(load, 0)] * (self.repeats - len(shared[arm.name, load.name])))
                ]
                for arm in self.supported
            }
        return {name: left for name, left in missing.items() if left}

    def shared_blocks(self, cells: Iterable[tuple[Cell, Path]]) -> dict[tuple[str, str], set]:
        """Names of arm and load to the blocks in which that arm has a cell beside the baseline's, of the same sitting;
        where the baseline has none, since it cannot start, to its own blocks.
        """
        blocks: dict[tuple[str, str], set] = {(arm.name, load.name): set() for arm in self.arms for load in self.loads}
        for cell, file in cells:
            stored = store.read_cell(file)
            sitting = stored.get("sitting")  # without one, cells of a block share its prompts alone
            blocks[cell.arm.name, cell.load.name].add((sitting and stored["run"], sitting, cell.repeat))
        base = self.baseline.name
        return {(arm, load): had & (blocks.get((base, load)) or had) for (arm, load), had in blocks.items()}

    def pending(self, known: Store, fresh: bool = False) -> dict[str, list[Cell]]:
        """Arm to the cells that are to be measured at least, without arms that cannot run here."""
        return self.lacking([] if fresh else self.stored(known))


@dataclass
class Estimate:
    """Seconds that a start and each cell are expected to take: `before` has what earlier cells took, by arm and load or
    by arm, concurrency and prompts.
    """

    start_s: float
    before: dict[tuple, list[float]]
    on_gpu: bool
    lives: int = 1

    def seconds(self, cell: Cell) -> float:
        load = cell.load
        known = self.before.get((cell.arm.name, load.name if load.dataset.label else (load.concurrency, load.prompts)))
        if known:
            return sum(known) / len(known)
        per_token_s, per_read_token_s = (0.015, 5e-5) if self.on_gpu else (0.045, 1e-3)
        made_s = load.prompts / load.concurrency * (load.output_tokens or 200) * per_token_s
        return 1.0 + made_s + load.dataset.reads(load) * per_read_token_s

    def total(self, pending: dict[str, list[Cell]]) -> float:
        return sum(self.of_arm(cells) for cells in pending.values())

    def of_arm(self, cells: list[Cell]) -> float:
        """The starts of an arm's lives and its cells; 0 without cells."""
        return self.lives * self.start_s + sum(map(self.seconds, cells)) if cells else 0.0
