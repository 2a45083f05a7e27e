"""A section's loads against a server that somebody else started, stored as cells of a host that is called after it.

Each session measures anew: a server that is not ours may be another one tomorrow. What can mislead: nothing is known of
the machine, the weights and the options, so that a cell's certificate says `unknown`, and no comparison of the book has
it.

    >>> measure(report, section, loads, repeats=2, …)                              # doctest: +SKIP
"""

import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ... import files
from ...environments import Environment
from ...errors import ParameterError
from ...hardware import hosts
from ...hardware.hosts import Host
from ...loads import Generator, Load
from ...results import store
from ...results.store import Run, Store
from ...servers.arm import Arm
from .. import records
from ..cell import measure_cell, warm_up
from ..plan import Cell, Plan
from ..progress import Progress
from . import report
from .endpoint import Endpoint
from .report import Report

STARTED = dict.fromkeys(("start", "warm-up", "load", "stop", "harness"), 0.0)


@dataclass(frozen=True)
class Session:
    """What is sent to whom: loads, how often, the model's tokenizer, and under which name it is stored."""

    report: Report
    section: int | str
    loads: tuple[Load, ...]
    repeats: int
    parameters: dict
    tokenizer: Path
    name: str
    seed: int = 42

    @property
    def host_name(self) -> str:
        """The host of its cells: never that of a machine."""
        return f"{hosts.ENDPOINT}{self.name}"

    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return max(load.longest(str(self.tokenizer), range(self.repeats)) for load in self.loads)


def name_of(url: str, given: str) -> str:
    """What a server's results are called: the given name, else its address. Raises ParameterError for a name that no
    folder can have.
    """
    name = given or report.address(url).split("://", 1)[1].replace("/", "-").replace(":", "-")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ParameterError(
            "results cannot be called so", value=name, allowed="letters, digits, dots, dashes and underscores"
        )
    return name


def measure(session: Session, host: Host, environment: Environment) -> Run:
    """Measure all loads; returns the run with its cells. `host` is this machine, `environment` has the load generator.

    Raises StoreError when results cannot be written, ModelError for a context that is too short, and ServerError or
    LoadError when the server is lost, whose cells so far stay."""
    report.require_context(session.report, session.longest(), session.section)
    known = Store(session.host_name, session.section)
    arm = report.arm(session.report.engine, session.report.model, session.tokenizer)
    client = replace(host, profile=session.host_name)
    with known.lock():
        store.name_results_folder()
        run = known.new_run()
        plan = Plan(session.section, client, environment, (), session.loads, session.repeats, session.parameters)
        model = {arm.model.name: {"name": arm.model.name, "weights": report.UNKNOWN}}
        record = records.record_of(plan) | {"models": model, "server": session.report.as_dict()}
        files.write(run.folder / "run.json", record)
        cells, timing = _cells(session, run, plan, arm), dict(STARTED)
        server = Endpoint(
            session.report, arm, client, environment, run.folder / "load-generator.log", dict(session.report.cache)
        )
        try:
            with (
                Progress(session.section, run, total_s=float(len(cells)), cells=len(cells)) as progress,
                Generator(environment, server.log) as generator,
            ):
                warm_up(arm, session.loads, server, generator, progress, timing)
                for cell in cells:
                    progress.show("measuring", arm=arm.name, cell=cell.name)
                    measure_cell(run, cell, server, generator, timing)
                    progress.advance(1.0, cell=True)
        finally:
            records.write_timing(run, record, timing)
            known.rebuild(run)
    return run


def _cells(session: Session, run: Run, plan: Plan, arm: Arm) -> list[Cell]:
    """Blocks of all loads, each in an order of its own; their keys are this run's alone."""
    identity = plan.provenance() | {"endpoint": session.report.as_dict(), "run": run.name}
    cells = []
    for repeat in range(session.repeats):
        block = [
            Cell(
                session.section,
                arm,
                load,
                repeat,
                files.key(identity, {"url": session.report.url}, load.identity(), {"repeat": repeat}),
            )
            for load in session.loads
        ]
        random.Random(f"{session.seed}/{repeat}/order").shuffle(block)
        cells += block
    return cells
