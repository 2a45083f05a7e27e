"""Section 3's parameters, and the plan that they come to: a baseline, n-grams, a draft model at several k, and the
baseline again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ...chapters import plans
from ...chapters.drafts import drafts
from ...errors import ParameterError
from ...hardware import hosts
from ...hardware.hosts import Host
from ...measure.sweeps import Plan
from ...models import checkpoints, embedded
from ...results import reference
from ...servers.arm import speculation

if TYPE_CHECKING:
    from ...chapters.drafts.distillation import Distillation


@dataclass(frozen=True)
class Speculation(plans.Loaded):
    """The header's values; None leaves a value to the host's profile. The notebook's header explains each."""

    model: str | None = None
    draft_model: str | None = None
    ks: list[int] = (1, 3, 5)
    ngram_ks: list[int] = (3,)
    ngram_window: list[int] = (2, 4)
    prescribed_acceptance: dict[str, float] | None = None
    heterogeneous_vocabulary: bool = True
    controls: bool = True
    crossover_cells: int | None = None
    arms: list[str] | None = None


CPU = {
    "model": "smollm2-135m-instruct",
    "draft_model": "smollm2-135m-instruct-first-4-layers",
    "concurrencies": [1, 4, 8],
    "prompts": [4, 8, 16],
    "output_tokens": 16,
    "repeats": 1,
    "crossover_cells": 0,
    "temperature": 0.0,
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "enforce_eager": True,
}
GPU = {
    "model": "Qwen/Qwen2.5-7B-Instruct",
    "draft_model": "Qwen/Qwen2.5-0.5B-Instruct",
    "concurrencies": [1, 4, 16, 64],
    "prompts": [10, 20, 64, 128],
    "repeats": 3,
    "crossover_cells": 2,
    "max_model_len": 4096,
    "max_num_seqs": 128,
    "enforce_eager": False,
}
OF_DRAFT = {"output_tokens": 200, "temperature": 0.0, "crossover_cells": 0, "dataset": "held-out"}  # section 4's loads


def defaults(host: Host) -> dict:
    """What the header leaves to this host's profile."""
    return GPU if host.gpus else CPU | _trained_draft()


def model_names(wanted: Speculation, host: Host) -> list[str]:
    """The models that a plan with these parameters is made of."""
    filled = plans.filled(wanted, defaults(host))
    return [filled.model, filled.draft_model]


def plan(
    wanted: Speculation, host: Host, *, dry: bool = False, say: Callable[[str], None] = print, poor: str | None = None
) -> Plan:
    """What section 3 measures on `host` with these parameters; `poor` names a second draft, for one arm."""
    wanted = plans.filled(wanted, defaults(host))
    check_values(wanted)
    environment = plans.environment(host, dry, say)
    there = None if dry and not environment.vllm else environment
    target, draft, control, notes = _models(wanted, host, there, dry, say)
    notes += plans.notes(environment)
    made = speculation(
        target=target,
        draft=draft,
        ks=wanted.ks,
        ngram_ks=wanted.ngram_ks,
        ngram_window=tuple(wanted.ngram_window),
        options=plans.options(wanted, host),
        environment=plans.variables(wanted, host),
        host=host,
        heterogeneous_vocabulary=wanted.heterogeneous_vocabulary,
        prescribed=_prescribed(wanted, target, draft),
        control=control,
        truncated=checkpoints.resolve(poor) if poor else None,
        synchronous_control=wanted.controls and bool(host.gpus),
        only=wanted.arms,
    )
    loads = plans.loads(wanted, host, environment, dry, say, held_out=drafts.held_out(draft))
    return Plan(
        3,
        host,
        environment,
        made,
        loads,
        wanted.repeats,
        plans.resolved(wanted, host),
        wanted.seed,
        wanted.port,
        (*notes, *plans.data_notes(loads)),
    )


def of_draft(wanted: "Distillation", trained: drafts.Trained, *, say: Callable[[str], None] = print) -> Plan:
    """Section 4's second half: the target without and with the draft that was trained for it, on prompts that the draft
    never saw, and with the embedded target's first layers as a draft that nobody trained. With `repeats` 0 it has no
    cells.
    """
    host = hosts.detect(wanted.host)
    names = {
        "model": wanted.target,
        "draft_model": wanted.name if trained.folder.parent == checkpoints.SHIPPED else str(trained.folder),
    }
    about = {
        "host": wanted.host,
        "ks": wanted.ks,
        "concurrencies": wanted.concurrencies,
        "prompts": [max(4, 2 * concurrency) for concurrency in wanted.concurrencies],
        "repeats": max(1, wanted.repeats),
        "seed": wanted.seed,
    }
    poor = (
        f"{embedded.NAME}-first-{wanted.truncated}-layers"
        if wanted.truncated and wanted.target == embedded.NAME
        else None
    )
    made = plan(Speculation(**names, **about, **OF_DRAFT), host, say=say, poor=poor)
    return replace(
        made,
        section=4,
        repeats=wanted.repeats,
        parameters=made.parameters | {"draft_model": wanted.name, "repeats": wanted.repeats},
    )


def _trained_draft() -> dict:
    """The draft that ships, once there is one, in place of the truncated target."""
    return (
        {"draft_model": checkpoints.TRAINED}
        if (checkpoints.SHIPPED / checkpoints.TRAINED / "config.json").is_file()
        else {}
    )


def check_values(wanted: Speculation) -> None:
    """Raises ParameterError for values that cannot be used."""
    refuse = partial(plans.refuse, wanted, 3)
    plans.check_loads(wanted, 3)
    if wanted.weights not in ("auto", "real", "random"):
        refuse("weights", "auto, real, random")
    for name in ("ks", "ngram_ks"):
        if not all(value >= 1 for value in getattr(wanted, name)):
            refuse(name, "whole numbers of 1 or more")
        if len(set(getattr(wanted, name))) != len(getattr(wanted, name)):
            refuse(name, "each value once")
    if not 0 <= wanted.crossover_cells <= 16:
        refuse("crossover_cells", "from 0 to 16")
    if len(wanted.ngram_window) != 2 or not 1 <= wanted.ngram_window[0] <= wanted.ngram_window[1]:
        refuse("ngram_window", "[shortest, longest], 1 <= shortest <= longest")


def _models(wanted: Speculation, host, environment, dry: bool, say):
    """Target, draft, the same-vocabulary control draft (random weights only), and notes for the plan."""
    if environment is None:
        target, draft = (
            checkpoints.planned(name) or checkpoints.resolve(name, say=say)
            for name in (wanted.model, wanted.draft_model)
        )
        return target, draft, None, ["the engine's environment is not installed yet: nothing counts as measured"]
    target = checkpoints.resolve(wanted.model, environment=environment, weights=wanted.weights, say=say)
    weights = "random" if target.weights == "random" else wanted.weights
    draft = checkpoints.resolve(wanted.draft_model, environment=environment, weights=weights, say=say)
    if draft.weights == "random" and target.weights != "random":
        target = checkpoints.resolve(wanted.model, environment=environment, weights="random", say=say)
    random = [model.name for model in (target, draft) if model.weights == "random"]
    if random and wanted.weights == "real":
        raise ParameterError(
            "real weights were asked for and are not within reach",
            value=", ".join(random),
            allowed="weights = 'auto' or 'random', or models that can be fetched",
            next="check the network (HF_HUB_OFFLINE, HF_ENDPOINT)",
        )
    notes = plans.random_notes([target, draft], "text and acceptance are not")
    if target.weights != "random":
        return target, draft, None, notes
    control = None
    if wanted.controls and draft.vocab_size != target.vocab_size:
        same = f"{draft.name}-{target.vocab_size}"
        if (checkpoints.SHAPES / same.split("/")[-1].lower()).is_dir():
            control = checkpoints.with_random_weights(same, say)
    return target, draft, control, notes


def _prescribed(wanted: Speculation, target, draft) -> dict | None:
    """Acceptance rates for random weights: the header's, else the reference study's mean over its concurrencies."""
    if target.weights != "random" and draft.weights != "random":
        return None
    if wanted.prescribed_acceptance is not None:
        return wanted.prescribed_acceptance
    frame = reference.load(3)
    rates = frame[frame["metric"] == "acceptance_rate"].groupby("arm")["value"].mean()
    return {arm: round(float(rate), 4) for arm, rate in rates.items()}
