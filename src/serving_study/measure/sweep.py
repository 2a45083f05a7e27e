"""Carrying out a plan in blocks, and what goes wrong without stopping the rest.

Lives one after the other: a life of an arm's servers holds some blocks' cells of that arm, and the arms come in turn,
the second time backwards (A B C … C B A), so that a steady drift of the machine cancels. Side by side: the servers of
all arms stay alive, all but one frozen; a block is each arm once, in an order shuffled by a recorded seed, and a
sitting is the lives that share its blocks. Where memory does not hold all of them, each group of a sitting has the
baseline beside it, which never ends. An arm that fails is recorded with its cause and the next one starts.

What can mislead: a sitting that was broken off leaves a block of which some arms have no cell; it is not made up for,
since another time would stand beside this one, and the next sitting has new blocks.

    >>> from serving_study.chapters import sections
    >>> from serving_study.measure import sweep
    >>> sweep.run(sections.plan(3)).frame()                        # doctest: +SKIP
"""

import contextlib
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .. import files
from ..environments import templates
from ..hardware import cgroups
from ..loads import Generator
from ..results import looks, store
from ..results.looks import Look
from ..results.store import Run, Store
from ..servers.arm import Arm
from . import records
from .life import Bench, Life, Starter
from .plan import SPARE_GIB, Cell, Plan
from .progress import Progress, end_interrupted
from .records import Results, StartRecord


def run(plan: Plan, *, fresh: bool = False) -> Results:
    """Measure what is missing of `plan` and return all of it.

    Raises StoreError when results cannot be written or another run holds the folder; failures of single arms are
    recorded."""
    known = Store(plan.host.name, plan.section)
    with known.lock(), templates.kept():
        store.name_results_folder()
        end_interrupted(known)
        result = Results(plan, known)
        course = Course(plan, known, fresh)
        recorded = known.starts_by_key()
        unsupported = [
            arm
            for arm in plan.arms
            if arm.unsupported and recorded.get(plan.arm_key(arm), {}).get("reason") != arm.unsupported
        ]
        if course.goes_on() or unsupported:
            result.run = known.new_run()
            _measure(course, result.run, unsupported)
        result.cells = plan.stored(known)
    return result


@dataclass
class Course:
    """What is left of a plan: which lives or sittings it still has to have, and whether there is time for more.

    `fresh` leaves out what was measured before this run.
    """

    plan: Plan
    known: Store
    fresh: bool = False
    run: Run | None = None
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self):
        self.before = [] if self.fresh else self.plan.stored(self.known)
        self.spent_s = 0.0 if self.fresh else Results(self.plan, self.known, self.before).timing()["seconds"].sum()

    def cells(self) -> list[tuple[Cell, Path]]:
        """What is measured, in this run and, unless all is to be measured again, before it."""
        stored = self.plan.stored(self.known)
        own = self.run.folder if self.run else None
        return [place for place in stored if own in place[1].parents] if self.fresh else stored

    @property
    def left_s(self) -> float:
        """Of the minutes given to the section."""
        return 60 * self.plan.minutes - self.spent_s - (time.monotonic() - self.began if self.run else 0.0)

    def goes_on(self) -> bool:
        """Whether something is to be measured: what every arm has at least, or what is undecided while time is left."""
        return bool(self.least()) or bool(self.open())

    def least(self) -> dict[str, list[Cell]]:
        """Arm to the cells that it lacks of those that every arm has at least."""
        return self.plan.lacking(self.cells())

    def open(self) -> set[tuple[str, str]]:
        """Arm and load of what is not decided yet, while there is time for another round of it."""
        plan = self.plan
        if not plan.decisions or self.left_s <= 0:
            return set()
        frame = plan.frame(self.cells())
        claims = plan.decisions(frame) if len(frame) else frame
        undecided = {(claim.arm, claim.load) for claim in claims.itertuples() if not claim.decided}
        return undecided if self.round_s(undecided) <= self.left_s else set()

    def round_s(self, only: set[tuple[str, str]]) -> float:
        """Expected seconds of a start and one block of each arm that `only` asks for, and of the baseline."""
        estimate, seconds = self.plan.estimate(self.known), 0.0
        for name, loads in self.wanted(only).items():
            arm = next(arm for arm in self.plan.arms if arm.name == name)
            cells = self.plan.cells_of(arm, [(load, 0) for load in loads])
            seconds += estimate.start_s + sum(map(estimate.seconds, cells))
        return seconds

    def wanted(self, only: set[tuple[str, str]]) -> dict[str, tuple]:
        """Arm to its loads in the next round: those that are `only`, and of the baseline and its twins all loads that
        any arm has.
        """
        plan = self.plan
        loads = {load for _, load in only}
        return {
            arm.name: kept
            for arm in plan.supported
            if (
                kept := tuple(
                    load
                    for load in plan.loads_of(arm)
                    if (arm.name, load.name) in only or plan.is_reference(arm) and load.name in loads
                )
            )
        }


def _measure(course: Course, run: Run, unsupported: list[Arm]) -> None:
    plan, known = course.plan, course.known
    estimate, course.run = plan.estimate(known), run
    least = course.least()
    record = records.record_of(plan)
    files.write(run.folder / "run.json", record)
    timing = dict.fromkeys(("start", "warm-up", "load", "stop", "harness"), 0.0)
    began = time.monotonic()

    def keep() -> None:
        timing["harness"] = 0.0
        timing["harness"] = time.monotonic() - began - sum(timing.values())
        records.write_timing(run, record, timing)
        known.rebuild(run)

    def look(ends: bool) -> None:
        if plan.decisions:
            taken = looks.of_runs({file.parents[3] for _, file in course.before}) + looks.of_record(record)
            level = looks.next_level(taken, ends=ends)
            record.setdefault("looks", []).append(Look(files.now(), level).as_dict())
            keep()

    total_s = max(estimate.total(least), course.left_s)
    with Progress(plan.section, run, total_s=total_s, cells=sum(map(len, least.values()))) as progress:
        try:
            for arm in unsupported:
                StartRecord.of(plan, run, arm).write("unsupported", reason=arm.unsupported)
            starter = Starter(plan.host, plan.environment_of, run, plan.port, in_pairs=plan.starts_in_pairs())
            with Generator(plan.environment, _log(run)) as generator, starter:
                bench = Bench(plan, run, starter, generator, progress, estimate, timing)
                if plan.questions and not course.fresh:
                    bench.asked |= set(Results(plan, known).answers())
                rounds = _sittings if plan.side_by_side else _turns
                for _ in rounds(course, bench, look):
                    keep()
        finally:
            keep()


def _log(run: Run) -> Path:
    run.folder.mkdir(parents=True, exist_ok=True)
    return run.folder / "load-generator.log"


def _turns(course: Course, bench: Bench, look):
    """Lives one after the other: passes over the arms, every second one backwards; yields after each life."""
    plan = course.plan
    a_life = -(-plan.repeats // plan.lives)
    for number in itertools.count():
        blocks = range(number * a_life, (number + 1) * a_life)
        if number < plan.lives:
            least = course.least() if course.run else {}
            cells = {name: [cell for cell in left if cell.repeat in blocks] for name, left in least.items()}
        else:
            look(ends=False)
            only = course.open()
            wanted = course.wanted(only) if only else {}
            have = {cell.key for cell, _ in course.cells()}
            cells = {
                arm.name: [
                    cell
                    for cell in plan.cells_of(arm, itertools.product(wanted.get(arm.name, ()), blocks))
                    if cell.key not in have
                ]
                for arm in plan.supported
            }
            if not only:
                break
        arms = [arm for arm in plan.supported if cells.get(arm.name)]
        if number % 2:
            arms.reverse()
        for arm, following in itertools.zip_longest(arms, arms[1:]):
            with Life(bench, arm) as life:
                life.measure(cells[arm.name], following=following)
            yield
    look(ends=True)


def _sittings(course: Course, bench: Bench, look):
    """Side by side: sittings, each with new lives; yields after each block.

    First those that every arm has at least, then, each half as long as there is time left, of what is undecided."""
    plan, baseline = course.plan, course.plan.baseline.name
    had = {(file.parents[3].name, store.read_cell(file).get("sitting")) for _, file in course.before}
    for number in itertools.count(1):
        lacking = Counter(
            (cell.arm.name, cell.load.name)
            for name, cells in course.least().items()
            if name not in bench.failed and (number == 1 or baseline not in bench.failed)
            for cell in cells
        )
        if lacking:
            only, lives_left = set(lacking), max(1, plan.lives - len(had) - (number - 1))
            least_blocks, ends = -(-max(lacking.values()) // lives_left), 0.0
        else:
            look(ends=False)
            only, least_blocks, ends = course.open(), 1, time.monotonic() + course.left_s / 2
        if not only:
            break
        measured = bench.measured
        yield from _sitting(course, bench, number, course.wanted(only), least_blocks, ends)
        if bench.measured == measured:  # no server came up
            break
    look(ends=True)


def _sitting(course: Course, bench: Bench, number: int, wanted: dict, least_blocks: int, ends: float):
    """One sitting: groups of arms that memory holds beside the baseline, each with blocks of its own."""
    blocks = itertools.count(1 + max((cell.repeat for cell, _ in course.cells()), default=-1))
    waiting = [arm for arm in course.plan.supported if arm.name in wanted and arm.name not in bench.failed]
    if number % 2 == 0:
        waiting[1:] = reversed(waiting[1:])
    with contextlib.ExitStack() as stack:
        base = None
        while waiting and not base:
            life = stack.enter_context(Life(bench, waiting.pop(0), sitting=number))
            base = life if life.begin(following=next(iter(waiting), None)) else None
        first = True
        while base and (waiting or first):
            first = False
            base.freeze()
            with contextlib.ExitStack() as of_group:
                lives = [base]
                while waiting and (len(lives) == 1 or _fits(lives)):
                    life = of_group.enter_context(Life(bench, waiting.pop(0), sitting=number))
                    if life.begin(following=next(iter(waiting), None)):
                        life.freeze()
                        lives.append(life)
                groups_left = 1 + -(-len(waiting) // max(1, len(lives) - 1))
                now = time.monotonic()
                yield from _blocks(bench, lives, wanted, blocks, least_blocks, now + (ends - now) / groups_left)


def _fits(lives: list[Life]) -> bool:
    """Whether memory holds one more arm's servers beside those that live, by the most that one of these took."""
    return cgroups.free_memory_gib() >= max(life.memory_gib for life in lives) + SPARE_GIB


def _blocks(bench: Bench, lives: list[Life], wanted: dict, blocks, least_blocks: int, ends: float):
    """Blocks of these lives, `least_blocks` and then as many as end before the time `ends`; yields after each."""
    plan = bench.plan
    for count in itertools.count():
        alive = [life for life in lives if not life.ended]
        over = count >= least_blocks and time.monotonic() + bench.longest_block_s > ends
        if over or len(alive) < min(2, len(lives)):
            return
        block, began = next(blocks), time.monotonic()
        order = random.Random(f"{plan.seed}/{block}/order")
        order.shuffle(alive)
        for life in alive:
            cells = plan.cells_of(life.arm, [(load, block) for load in wanted[life.arm.name]])
            order.shuffle(cells)
            life.thaw()
            life.measure(cells, idle=[other.server for other in lives if other is not life and other.server])
            life.freeze()
        bench.longest_block_s = max(bench.longest_block_s, time.monotonic() - began)
        yield
