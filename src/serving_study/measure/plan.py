"""What a section measures on a host, decided before anything starts: arms × loads × repeats, keys, expected seconds.

A cell's key is the digest of what decides its result, so an upgraded engine or another machine never mixes with earlier
measurements. What can mislead: an estimate comes from what this host took before, else from its kind of host.

    >>> from serving_study.chapters import sections
    >>> sections.plan(3).pending(store.Store("cpu", 3))            # doctest: +SKIP
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .. import engines, files
from ..environments import Environment, variables
from ..hardware.hosts import Host
from ..loads import Load
from ..results import store
from ..results.store import Store
from ..servers import preflight
from ..servers.arm import Arm


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
        """What decides a result beside arm, load and repeat: host, engine, results folder."""
        return {
            "host": self.host.identity(),
            "environment": self.environment.identity(),
            "results_folder": store.results_folder_id(),
        }

    def identity_of(self, arm: Arm) -> dict:
        """What decides an arm's results: the arm, its engine's version where that is not the environment's, the
        versions of what it needs beside the engine, and the caller's variables that reach its server.
        """
        needed = {name: self.environment.versions.get(name) for name in arm.distributions}
        version = engines.get(arm.engine).version(self.environment.versions)
        if given := variables.deciding():
            set_here = engines.get(arm.engine).environment(arm.server, self.host, self.environment.python)
            given = {name: value for name, value in given.items() if name == "LD_PRELOAD" or name not in set_here}
        identity = {"engine_version": version if version != self.environment.vllm else None}
        identity |= {"distributions": needed, "variables": given}
        return arm.identity() | {name: value for name, value in identity.items() if value}

    def engine_in_words(self) -> str:
        """The engines of the arms with their versions."""
        return engines.in_words([arm.engine for arm in self.arms] or ["vllm"], self.environment.versions)

    def cells(self, arm: Arm) -> list[Cell]:
        """The arm's cells in the order of measurement."""
        base, identity = self.provenance(), self.identity_of(arm)
        cells = [
            Cell(self.section, arm, load, repeat, files.key(base, identity, load.identity(), {"repeat": repeat}))
            for load in self.loads_of(arm)
            for repeat in range(self.repeats)
        ]
        random.Random(f"{self.seed}/{arm.repeat_of or arm.name}/order").shuffle(cells)
        return cells

    def arm_key(self, arm: Arm) -> str:
        return files.key(self.provenance(), self.identity_of(arm))

    def estimate(self, known: Store, pending: dict[str, list[Cell]]) -> "Estimate":
        """Expected seconds of each start and cell, from what this host took before, else from its kind."""
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
        per_token_s, per_read_token_s = (0.015, 5e-5) if self.host.gpus else (0.045, 1e-3)
        return Estimate(
            start_s + (8.0 if self.host.gpus else 6.0),
            {
                cell.key: sum(earlier_s) / len(earlier_s)
                if (
                    earlier_s := cells.get(
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
        """Whether the next arm's server may import beside the present one: on a CPU with two cores, a port of its own
        and the memory. Never on a GPU, where an engine sizes its memory by what is free.
        """
        wanted = (
            max((preflight.cpu_memory_gib(arm) for arm in self.arms if not arm.unsupported), default=0.0)
            + preflight.IMPORTED_GIB
        )
        return not self.host.gpus and self.host.cpus > 1 and not self.port and wanted <= self.host.free_memory_gib

    def pending(self, known: Store, fresh: bool = False) -> dict[str, list[Cell]]:
        """Arm name to the cells that are not measured yet, without arms that cannot run here."""
        have = {} if fresh else known.by_key()
        return {
            arm.name: [cell for cell in self.cells(arm) if cell.key not in have]
            for arm in self.arms
            if not arm.unsupported
        }


@dataclass
class Estimate:
    """Expected seconds of a start and of each pending cell."""

    start_s: float
    cell_s: dict[str, float]

    def total(self, pending: dict[str, list[Cell]]) -> float:
        return sum(self.start_s + sum(self.cell_s[cell.key] for cell in cells) for cells in pending.values() if cells)


def table_of_plan(plan: Plan, known: Store, fresh: bool = False, say: Callable[[str], None] = print) -> float:
    """Print arms × cells: what is measured already, what cannot run here and why. Returns the estimated minutes."""
    pending = plan.pending(known, fresh)
    estimate = plan.estimate(known, pending)
    loads = ", ".join(
        f"{load.concurrency}{f' {load.dataset.label}' if load.dataset.label else ''} ({load.prompts} prompts)"
        for load in plan.loads
    )
    say(f"section {plan.section} on {plan.host.name} with {plan.engine_in_words()}; results in {known.folder}")
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
