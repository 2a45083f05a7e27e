"""Plans that only start servers: each is started as configured, its memory figures are kept, and it is ended.

For figures that a start settles, such as the tokens that the KV cache holds. A start that the engine refuses is a
result; one that failed because of this machine (too little free memory, a deadline) is tried again. What can mislead:
on a CPU the KV cache has the configured size, on a GPU what weights and the profiling run leave.

    >>> from serving_study.chapters import sections
    >>> from serving_study.measure import starts
    >>> starts.run(sections.plan("7-hybrid")).starts()                                       # doctest: +SKIP
"""

import time
from collections.abc import Callable

from .. import engines, files
from ..engines import logs
from ..environments import templates
from ..errors import StoreError, StudyError
from ..hardware import hosts
from ..results import store
from ..results.store import Run, Store
from ..servers import lifetime, metrics, preflight
from ..servers.arm import Arm
from ..servers.server import UNSAID
from . import records
from .plan import Plan
from .progress import Progress, end_interrupted
from .records import Results, StartRecord


def stands(start: dict | None) -> bool:
    """Whether a start record is a result: the server came up, cannot be, or ended by itself."""
    return start is not None and (start["outcome"] in ("ok", "unsupported") or start.get("exit_code") is not None)


def pending(plan: Plan, known: Store, fresh: bool = False) -> list[Arm]:
    """The arms to be started: those without a result, with `fresh` all that can be."""
    recorded = {} if fresh else known.starts_by_key()
    return [arm for arm in plan.arms if not arm.unsupported and not stands(recorded.get(plan.arm_key(arm)))]


def run(plan: Plan, *, fresh: bool = False) -> Results:
    """Start what has no result yet, one server after the other, and return all results.

    Raises StoreError when results cannot be written or another run holds the folder; failures of arms are recorded."""
    known = Store(plan.host.name, plan.section)
    result = Results(plan, known)
    if not plan.arms:
        return result
    with known.lock(), templates.kept():
        store.name_results_folder()
        end_interrupted(known)
        recorded = known.starts_by_key()
        wanted = pending(plan, known, fresh)
        unsupported = [
            arm
            for arm in plan.arms
            if arm.unsupported and recorded.get(plan.arm_key(arm), {}).get("reason") != arm.unsupported
        ]
        if wanted or unsupported:
            result.run = known.new_run()
            _start_all(plan, known, result.run, wanted, unsupported)
    return result


def _start_all(plan: Plan, known: Store, run: Run, wanted: list[Arm], unsupported: list[Arm]) -> None:
    record, began = records.record_of(plan), time.monotonic()
    start_s = plan.estimate(known).start_s
    files.write(run.folder / "run.json", record)
    with Progress(plan.section, run, total_s=start_s * len(wanted), cells=len(wanted)) as progress:
        try:
            for arm in unsupported:
                StartRecord.of(plan, run, arm).write("unsupported", reason=arm.unsupported)
            for arm in wanted:
                progress.show("server starting", arm=arm.name)
                if reason := _start(plan, run, arm):
                    progress.say(f"{arm.name} failed: {reason}")
                progress.advance(start_s, cell=True)
                known.rebuild(run)
        finally:
            files.write(
                run.folder / "run.json",
                record | {"timing": {"start": round(time.monotonic() - began, 3)}, "ended": files.now()},
            )
            known.rebuild(run)


def _start(plan: Plan, run: Run, arm: Arm) -> str | None:
    """One server's life and its record; returns why it failed.

    What fails once the figures are known (memory that does not come back) is added to the record of a good start.
    """
    figures, engine, record = {}, engines.get(arm.engine), StartRecord.of(plan, run, arm)
    folder, began, free = (
        run.start_folder(arm.name),
        time.monotonic(),
        [gpu.free_gib for gpu in hosts.detect().gpus] if plan.host.gpus else [],
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lifetime.serve(arm, plan.host, plan.environment_of, folder, port=plan.port) as server:
            figures = server.start
            figures = figures | engine.cache_figures(metrics.scrape(server.url))
            record.write("ok", figures=figures)
        preflight.wait_for_gpu_memory(plan.host, free)
    except StoreError:
        raise
    except StudyError as error:
        failure, whole = records.failure_of(error, time.monotonic() - began), logs.read(folder / "server.log")
        if failure["reason"].endswith(UNSAID):  # its processes went on writing while they ended
            failure["reason"] = engine.cause(whole) or failure["reason"]
        if (folder / "start.json").is_file():
            record.write("ok", figures=figures, later=failure)
        else:
            record.write("failed", figures=engine.failure_figures(whole) | figures, **failure)
        return failure["reason"]
    return None


def table_of_plan(plan: Plan, known: Store, fresh: bool = False, say: Callable[[str], None] = print) -> float:
    """Print what is started, what has a result already, and what cannot run here and why; returns the estimated
    minutes.
    """
    wanted = {arm.name for arm in pending(plan, known, fresh)}
    say(f"section {plan.section} on {plan.host.name} with {plan.engine_in_words()}; results in {known.folder}")
    width = max((len(arm.name) for arm in plan.arms), default=0)
    for arm in plan.arms:
        state = (
            f"cannot run here: {arm.unsupported}"
            if arm.unsupported
            else "to be started"
            if arm.name in wanted
            else "has its result already"
        )
        label = ", random weights" if arm.weights == "random" and not arm.unsupported else ""
        say(f"  {arm.name:<{width}}  {state}{label}")
    for note in plan.notes:
        say(f"  note: {note}")
    minutes = plan.estimate(known).start_s * len(wanted) / 60
    say(f"estimated: {minutes:.1f} minutes")
    return minutes
