"""Section 12's parameters and plan: one server configuration, measured as several arms that differ in nothing but their
names.

A baseline and its twins have the loads of section 3, block by block: on a CPU side by side, on a GPU in lives one after
the other. What can mislead: the noise is that of this machine, of these loads and of the time of the run; another hour
may be less quiet.

    >>> from serving_study.chapters import sections
    >>> sections.plan(12, dry=True).arms                           # doctest: +SKIP
"""

from collections.abc import Callable
from typing import Annotated

import pandas
from pydantic import Field

from ...analysis import claims
from ...hardware.hosts import Host
from ...measure.plan import Plan
from ...servers.arm import Arm, again
from .. import plans, speculation_plan
from ..parameters import Positive, Whole

SECTION = 12
OWN = {"repeats": 12, "lives": 2, "minutes": 0}
CPU = speculation_plan.CPU | OWN
GPU = speculation_plan.GPU | OWN


class Trust(plans.Loaded):
    """Section 12's parameters."""

    section = SECTION
    profiles = {"cpu": CPU, "gpu": GPU}

    model: str | None = Field(None, description="a hub id, a folder, or smollm2-135m-instruct")
    twins: Annotated[Whole, Field(ge=2)] = Field(5, description="the baseline under other names, all of them equal")
    chapters: Positive = Field(2000, description="drawn from the measured cells, for each disturbance")


def model_names(wanted: Trust, host: Host) -> list[str]:
    """The model of a plan with these parameters."""
    return [wanted.filled(GPU if host.gpus else CPU).model]


def plan(wanted: Trust, host: Host, *, dry: bool = False, say: Callable[[str], None] = print) -> Plan:
    """What section 12 measures on `host` with these parameters."""
    wanted = wanted.filled(GPU if host.gpus else CPU)
    environment = plans.environment(host, dry, say)
    ready = None if dry and not environment.vllm else environment
    models, notes = plans.models([wanted.model], wanted.weights, ready, "text is not", say)
    baseline = Arm.of(
        "baseline",
        models[wanted.model],
        options=plans.options(wanted, host),
        environment=plans.variables(wanted, host),
        gpus=min(1, len(host.gpus)),
    )
    loads = plans.loads(wanted, host, environment, dry, say)
    return Plan(
        SECTION,
        host,
        environment,
        (baseline, *(again(baseline, number) for number in range(1, wanted.twins + 1))),
        loads,
        parameters=plans.resolved(wanted, host),
        seed=wanted.seed,
        port=wanted.port,
        notes=(*notes, *plans.notes(environment), *plans.data_notes(loads)),
        **plans.in_blocks(wanted, host, decisions),
    )


def decisions(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Nothing is ever decided here, so that blocks go on until the minutes are spent: the more, the better the noise is
    known.
    """
    return claims.decisions(frame, "output_throughput", frame["arm"].iloc[0]).assign(decided=False)
