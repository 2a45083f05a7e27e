"""Section 4's second half: the target served with and without what was trained for it.

>>> plan.of_draft(wanted, trained)                                                       # doctest: +SKIP
"""

from collections.abc import Callable
from dataclasses import replace

from ...hardware import hosts
from ...measure.plan import Plan
from ...models import checkpoints, embedded
from .. import speculation_plan
from ..speculation_plan import SpeculativeDecoding
from . import drafts, eagle, recipe
from .recipe import Distillation

# Section 4's loads: the answers are long, and few end together.
OF_DRAFT = {"output_tokens": 200, "output_spread": 0, "temperature": 0.0, "crossover_cells": 0, "dataset": "held-out"}


def head(header: Distillation, *, say: Callable[[str], None] = print) -> drafts.Trained | None:
    """The EAGLE-3 head that the header asks for, trained with this host's budget; None where it does not."""
    if "eagle3" not in header.methods:
        return None
    return eagle.train(recipe.resolved(header, shipped=False), eagle.Head(), say=say)


def of_draft(
    wanted: Distillation,
    trained: drafts.Trained,
    head: drafts.Trained | None = None,
    *,
    say: Callable[[str], None] = print,
) -> Plan:
    """The target alone, with its draft, with its EAGLE-3 head if there is one, and with the embedded target's first
    layers as an untrained draft, on prompts that the draft never saw. With `repeats` 0 it has no cells.
    """
    host = hosts.detect(wanted.host)
    names = {
        "model": wanted.target,
        "draft_model": wanted.name if trained.folder.parent == checkpoints.SHIPPED else str(trained.folder),
    }
    loads = {
        "host": wanted.host,
        "ks": wanted.ks,
        "concurrencies": wanted.concurrencies,
        "repeats": max(1, wanted.repeats),
        "lives": wanted.lives,
        "minutes": wanted.serve_minutes,
        "margin": wanted.margin,
        "twins": wanted.twins,
        "seed": wanted.seed,
    }
    poor = (
        f"{embedded.NAME}-first-{wanted.truncated}-layers"
        if wanted.truncated and wanted.target == embedded.NAME
        else None
    )
    made = speculation_plan.plan(
        SpeculativeDecoding(**names, **loads, **OF_DRAFT), host, say=say, poor=poor, eagle=head and head.model
    )
    return replace(
        made,
        section=4,
        repeats=wanted.repeats,
        parameters=made.parameters | {"draft_model": wanted.name, "repeats": wanted.repeats},
    )
