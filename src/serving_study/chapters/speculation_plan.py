"""The plan of a target without and with proposals, which sections 3 and 4 share: its arms (a baseline, n-grams, a draft
model at several k, and the baseline again), and section 3's parameters.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import pandas
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ..analysis import claims
from ..errors import ParameterError
from ..hardware.hosts import Host
from ..measure.plan import Plan
from ..models import checkpoints
from ..models.checkpoints import Model, check_draft
from ..results import reference
from ..servers.arm import TRUNCATED, Arm, again
from . import plans
from .parameters import Number, Once, Positive, Whole

CPU_WAVES, GPU_WAVES = {"least": 4, "each": 2}, {"least": 8, "each": 4}
CPU = {
    "model": "smollm2-135m-instruct",
    "draft_model": "smollm2-135m-instruct-first-4-layers",
    "concurrencies": [1, 4, 8],
    "prompts": plans.in_waves([1, 4, 8], **CPU_WAVES),
    "output_tokens": 16,
    "repeats": 8,
    "lives": 2,
    "minutes": 9,
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
    "prompts": plans.in_waves([1, 4, 16, 64], **GPU_WAVES),
    "repeats": 8,
    "lives": 2,
    "minutes": 45,
    "crossover_cells": 2,
    "max_model_len": 4096,
    "max_num_seqs": 128,
    "enforce_eager": False,
}
WINDOW = "[shortest, longest], 1 <= shortest <= longest"


def rising(window: list[int]) -> list[int]:
    """The window. Raises PydanticCustomError for one that is none."""
    if len(window) != 2 or not 1 <= window[0] <= window[1]:
        raise PydanticCustomError("refused", WINDOW)
    return window


class SpeculativeDecoding(plans.Loaded):
    """Section 3's parameters."""

    section = 3
    profiles = {"cpu": CPU, "gpu": GPU}

    model: str | None = Field(None, description="the target: a hub id, a folder, or smollm2-135m-instruct")
    draft_model: str | None = Field(None, description="on a CPU the one that section 4 trained")
    ks: Annotated[list[Positive], Once] = Field([1, 3, 5], description="tokens that the draft model proposes a round")
    ngram_ks: Annotated[list[Positive], Once] = Field([3], description="the same for n-gram lookup")
    ngram_window: Annotated[list[Whole], AfterValidator(rising)] = Field(
        [2, 4], description="shortest and longest match, in tokens", json_schema_extra={"allowed": WINDOW}
    )
    prescribed_acceptance: dict[str, Number] | None = Field(
        None, description="for random weights; None: the reference's"
    )
    heterogeneous_vocabulary: bool = Field(True, description="let the engine map between vocabularies")
    controls: bool = Field(True, description="GPU: arms that separate the causes of a draft's cost")
    crossover_cells: Annotated[Whole, Field(ge=0, le=16)] | None = Field(
        None, description="more concurrencies an arm, to narrow its crossover"
    )
    arms: list[str] | None = Field(None, description="names of the arms to run; None: all")


def defaults(host: Host) -> dict:
    """This host's values for what the header leaves open."""
    return GPU if host.gpus else CPU | trained_draft()


def model_names(wanted: SpeculativeDecoding, host: Host) -> list[str]:
    """The models of a plan with these parameters."""
    filled = wanted.filled(defaults(host))
    return [filled.model, filled.draft_model]


def plan(
    wanted: SpeculativeDecoding,
    host: Host,
    *,
    dry: bool = False,
    say: Callable[[str], None] = print,
    poor: str | None = None,
    eagle: Model | None = None,
) -> Plan:
    """What section 3 measures on `host`; `poor` names a second draft, for one arm, `eagle` is an EAGLE-3 head of the
    target.
    """
    wanted = wanted.filled(defaults(host))
    environment = plans.environment(host, dry, say)
    ready = None if dry and not environment.vllm else environment
    target, draft, control, notes = _models(wanted, host, ready, dry, say)
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
        eagle=eagle,
        synchronous_control=wanted.controls and bool(host.gpus),
        twins=wanted.twins,
        only=wanted.arms,
    )
    loads = plans.loads(wanted, host, environment, dry, say, held_out=plans.held_out(draft))
    return Plan(
        3,
        host,
        environment,
        made,
        loads,
        parameters=plans.resolved(wanted, host),
        seed=wanted.seed,
        port=wanted.port,
        notes=(*notes, *plans.data_notes(loads)),
        **plans.in_blocks(wanted, host, decisions),
    )


def decisions(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What the cells decide about output throughput against the baseline."""
    return claims.decisions(frame, "output_throughput", "baseline")


def trained_draft() -> dict:
    """The draft that ships, if there is one, in place of the truncated target."""
    return (
        {"draft_model": checkpoints.TRAINED}
        if (checkpoints.SHIPPED / checkpoints.TRAINED / "config.json").is_file()
        else {}
    )


def _models(wanted: SpeculativeDecoding, host, environment, dry: bool, say):
    """Target, draft, the control draft of the target's vocabulary (random weights only), and notes for the plan."""
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


def _prescribed(wanted: SpeculativeDecoding, target, draft) -> dict | None:
    """Acceptance rates for random weights: the header's, else the reference study's means over concurrencies."""
    if target.weights != "random" and draft.weights != "random":
        return None
    if wanted.prescribed_acceptance is not None:
        return wanted.prescribed_acceptance
    frame = reference.load(3)
    rates = frame[frame["metric"] == "acceptance_rate"].groupby("arm")["value"].mean()
    return {arm: round(float(rate), 4) for arm, rate in rates.items()}


def speculation(
    *,
    target: Model,
    draft: Model,
    ks: Sequence[int],
    ngram_ks: Sequence[int],
    ngram_window: tuple[int, int],
    options: dict,
    environment: dict,
    host: Host,
    heterogeneous_vocabulary: bool = True,
    prescribed: dict | None = None,
    control: Model | None = None,
    truncated: Model | None = None,
    eagle: Model | None = None,
    synchronous_control: bool = False,
    twins: int = 1,
    only: Sequence[str] | None = None,
) -> tuple[Arm, ...]:
    """`baseline`, `ngram-k3` for each n-gram k, `draft-k1` … for each k, and the baseline again, `twins` times.

    `ngram_window` is (shortest, longest) match in tokens; `prescribed` maps an arm's name to the acceptance rate that
    the engine produces, for random weights. Arms at the middle k: `control`, a draft of the target's own vocabulary,
    shows whether mapping vocabularies costs anything; `truncated` what a bad draft costs. `eagle` is an EAGLE-3 head of
    the target, for each k. `synchronous_control` adds the baseline as vLLM runs a target with a draft model: without
    asynchronous scheduling, on the older model runner. `twins` is how often the baseline is measured again; `only`
    keeps the named arms.

    Raises ParameterError for a draft that cannot serve this target, and for an unknown name in `only`."""
    gpus = min(1, len(host.gpus)) if host.gpus else 0
    baseline = Arm.of("baseline", target, options=options, environment=environment, gpus=gpus)
    shortest, longest = ngram_window
    check_draft(target, draft, heterogeneous=heterogeneous_vocabulary)
    vocabulary = {"use_heterogeneous_vocab": True} if draft.vocab_size != target.vocab_size else {}
    middle = sorted(ks)[len(ks) // 2] if ks else None

    def drafting(name: str, model: Model, k: int, distinction: str | None = None, **more) -> Arm:
        config = {"method": "draft_model", "model": model.source, "num_speculative_tokens": k} | more
        return baseline.variant(
            name=name,
            speculative=config,
            draft=model,
            technique="draft",
            acceptance="measured",
            distinction=distinction,
        )

    arms = [baseline]
    for k in ngram_ks:
        config = {
            "method": "ngram",
            "num_speculative_tokens": k,
            "prompt_lookup_max": longest,
            "prompt_lookup_min": shortest,
        }
        arms.append(baseline.variant(name=f"ngram-k{k}", speculative=config, technique="ngram", acceptance="measured"))
    arms += [drafting(f"draft-k{k}", draft, k, **vocabulary) for k in ks]
    if control and ks:
        arms.append(drafting(f"draft-k{middle}-same-vocabulary", control, middle, "same-vocabulary"))
        prescribed = (prescribed or {}) | {arms[-1].name: (prescribed or {}).get(f"draft-k{middle}")}
    if truncated and ks:
        arms.append(drafting(f"draft-k{middle}-truncated", truncated, middle, TRUNCATED))
    arms += [drafting(f"eagle3-k{k}", eagle, k, "eagle3", method="eagle3") for k in (ks if eagle else ())]
    arms = [_prescribe(arm, (prescribed or {}).get(arm.name)) for arm in arms]
    if synchronous_control:
        arms.append(
            baseline.variant(
                name="baseline-synchronous",
                distinction="synchronous",
                options=options | {"async_scheduling": False},
                environment=environment | {"VLLM_USE_V2_MODEL_RUNNER": "0"},
            )
        )
    arms += [again(baseline, number) for number in range(1, twins + 1)]
    names = [arm.name for arm in arms]
    if unknown := [name for name in only or () if name not in names]:
        raise ParameterError(
            "unknown arm", value=", ".join(unknown), allowed=", ".join(names), next="make plan SECTION=3"
        )
    return tuple(arm for arm in arms if only is None or arm.name in only)


def _prescribe(arm: Arm, rate: float | None) -> Arm:
    """Options with which the engine accepts drafts at `rate` (accepted / drafted), whatever the models say."""
    if rate is None or not arm.k:
        return arm
    config = arm.speculative | {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": round(1 + rate * arm.k, 4),
    }
    return arm.variant(speculative=config, acceptance="prescribed")
