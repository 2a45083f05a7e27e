"""The parameters of section 4's methods, and the plan that they come to: a target without and with each method, on each
workload, one request at a time, and one more load with several in flight for what depends on their number.

>>> from serving_study.chapters import sections
>>> [arm.name for arm in sections.plan("4-methods", dry=True).arms]                          # doctest: +SKIP
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import pandas
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ...analysis import claims
from ...chapters import plans, speculation_plan
from ...engines import probes
from ...environments import Environment, additions
from ...errors import EngineEnvironmentError, ParameterError
from ...hardware.hosts import Host
from ...loads import Load
from ...loads.workloads import NAMES, workload
from ...measure.plan import Plan
from ...models import checkpoints, embedded
from ...models.checkpoints import Model, check_draft
from ...servers.arm import Arm, again
from ..parameters import PORT, NotNegative, Number, Once, Port, Positive, Share, Whole
from . import catalogue
from .catalogue import Method, Wanted

SECTION = "4-methods"
METRIC, BASELINE = "median_tpot_ms", "baseline"
CPU = {
    "model": embedded.NAME,
    "draft_model": f"{embedded.NAME}-first-4-layers",
    "workloads": list(NAMES),
    "prompts": 3,
    "output_tokens": 32,
    "repeats": 6,
    "lives": 2,
    "minutes": 15,
    "max_num_seqs": 16,
    "enforce_eager": True,
}
GPU = CPU | {
    "prompts": 8,
    "output_tokens": 128,
    "repeats": 8,
    "minutes": 20,
    "max_num_seqs": 64,
    "enforce_eager": False,
}
STEPS = "[[1, k], [from, k], …], the first from 1 and each from more than the one before"


def _steps(steps: list[list[int]]) -> list[list[int]]:
    begins = [step[0] for step in steps if len(step) == 2 and min(step) >= 0]
    if len(begins) != len(steps) or begins[:1] != [1] or begins != sorted(set(begins)) or not any(k for _, k in steps):
        raise PydanticCustomError("refused", STEPS)
    return steps


class Methods(plans.InBlocks):
    """The parameters of section 4's methods."""

    section = SECTION
    profiles = {"cpu": CPU, "gpu": GPU}

    host: str = Field("auto", description='this machine; "cpu" leaves GPUs aside')
    model: str | None = Field(
        None, description="the target, with real weights: a hub id, a folder, or the embedded one"
    )
    draft_model: str | None = Field(None, description="None: the one that this section trained")
    arms: list[str] | None = Field(None, description="names of the arms to run; None: all")
    k: Positive = Field(3, description="tokens that look-up and drafts propose a round")
    suffix_k: Positive = Field(8, description="most that suffix decoding proposes; it chooses how many each round")
    ngram_window: Annotated[list[Whole], AfterValidator(speculation_plan.rising)] = Field(
        [2, 4],
        description="shortest and longest match, in tokens",
        json_schema_extra={"allowed": speculation_plan.WINDOW},
    )
    dynamic: Annotated[list[list[Whole]], Field(min_length=1), AfterValidator(_steps)] = Field(
        [[1, 3], [4, 1]],
        description="the dynamic draft's length: [from so many requests at once, proposals]",
        json_schema_extra={"allowed": STEPS},
    )
    heads: dict[str, str] | None = Field(None, description='trained heads, {"medusa": FOLDER}; None: this section\'s')
    workloads: Annotated[list[Literal[NAMES]], Field(min_length=1), Once] | None = Field(
        None, description="sets under data/prompts/workloads; None: all"
    )
    batch: NotNegative = Field(
        4, description="requests in flight in one more load of the first workload; 0: no such load"
    )
    prompts: Positive | None = Field(None, description="requests of a cell, one at a time")
    output_tokens: Annotated[Whole, Field(ge=4)] | None = Field(None, description="length of every answer")
    temperature: Annotated[Number, Field(ge=0)] = Field(
        0.0, description="0 on a CPU, whose speculation returns garbage above it"
    )
    max_model_len: Positive = Field(2048, description="longest prompt and answer together")
    max_num_seqs: Positive | None = Field(None, description="most requests that the engine runs at once")
    gpu_memory_utilization: Share = Field(0.90, description="GPU: share of its memory that the server may use")
    kv_cache_gib: Positive = Field(1, description="CPU: memory for the KV cache")
    prefix_caching: bool = Field(False, description="section 7 is about it; here every prompt is computed")
    enforce_eager: bool | None = Field(None, description="None: compiled on a GPU, eager on a CPU")
    seed: Whole = Field(42, description="prompts, order of cells, sampling")
    port: Port = Field(0, description="0: any free port", json_schema_extra=PORT)
    twins: NotNegative = Field(1, description="times that the first arm is measured again, under other names")
    fresh: bool = Field(False, description="measure again what is measured already")


def defaults(host: Host) -> dict:
    """This host's values for what the header leaves open; the draft that ships is everybody's."""
    return (GPU if host.gpus else CPU) | speculation_plan.trained_draft()


def model_names(wanted: Methods, host: Host) -> list[str]:
    """The models of a plan with these parameters."""
    filled = wanted.filled(defaults(host))
    return [filled.model, filled.draft_model, *(filled.heads or {}).values()]


def plan(wanted: Methods, host: Host, *, dry: bool = False, say: Callable[[str], None] = print) -> Plan:
    """What the methods' notebook measures on `host`.

    Raises ParameterError for an unknown arm or head, ModelError for models that do not go together."""
    wanted = wanted.filled(defaults(host))
    environment = plans.environment(host, dry, say)
    ready = None if dry and not environment.vllm else environment
    models, notes = plans.models(model_names(wanted, host), "real", ready, "acceptance would mean nothing", say)
    target, draft = models[wanted.model], models[wanted.draft_model]
    check_draft(target, draft, heterogeneous=True)
    environment, without_extension = _with_extension(wanted, environment, dry, say)
    accepted, unasked = _accepted(environment, dry)
    looked = Wanted(
        target,
        host,
        accepted,
        f"vLLM {environment.vllm}" if environment.vllm else "this engine",
        wanted.temperature,
        _heads(wanted, target, models),
        without_extension,
    )
    loads = _loads(wanted)
    made = _arms(wanted, host, looked, draft)
    return Plan(
        SECTION,
        host,
        environment,
        made,
        loads,
        parameters=plans.resolved(wanted, host),
        seed=wanted.seed,
        port=wanted.port,
        notes=(*notes, *unasked, *plans.notes(environment)),
        only=_only(made, loads),
        **plans.in_blocks(wanted, host, decisions),
    )


def decisions(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What the cells decide about the pace of tokens against the baseline."""
    return claims.decisions(frame, METRIC, BASELINE)


def name_of(method: Method, wanted: Methods) -> str:
    """`ngram-k3`, `suffix-own-k8`; without proposals a round where they are the schedule's or the head's own."""
    return method.name if method.needs == "schedule" else f"{method.name}-k{_proposals(method, wanted)}"


def _proposals(method: Method, wanted: Methods) -> int:
    if method.needs == "schedule":
        return max(k for _, k in wanted.dynamic)
    return wanted.suffix_k if method.told_by == "suffix" else wanted.k


def _with_extension(
    wanted: Methods, environment: Environment, dry: bool, say: Callable[[str], None]
) -> tuple[Environment, str | None]:
    """The environment with suffix decoding's extension, or why it has none."""
    names = [name_of(method, wanted) for method in catalogue.METHODS if method.needs == "extension"]
    if dry or (wanted.arms is not None and not set(names) & set(wanted.arms)):
        return environment, None
    try:
        return additions.add(environment, say), None
    except EngineEnvironmentError as error:
        return environment, f"{error.what}: {str(error.value).splitlines()[0]}; next: {error.next}"


def _accepted(environment: Environment, dry: bool) -> tuple[Mapping | None, list[str]]:
    """What the engine says that it accepts, and a note where it does not say."""
    try:
        probe = probes.engine(environment, only_kept=dry)
    except (TimeoutError, EngineEnvironmentError, OSError) as error:
        return None, [f"the engine did not say which methods it has: {str(error).splitlines()[0]}"]
    return (probe.answer["accepted"], []) if probe else (None, [])


def _heads(wanted: Methods, target: Model, models: Mapping[str, Model]) -> dict[str, Model]:
    """Trained heads by method: those that are named, else those that the book has."""
    if unknown := [name for name in wanted.heads or {} if name not in catalogue.HEADS]:
        raise ParameterError(
            "no method with a head of its own",
            value=", ".join(unknown),
            allowed=", ".join(catalogue.HEADS),
            next=f"make plan SECTION={SECTION}",
        )
    named = {name: models[model] for name, model in (wanted.heads or {}).items()}
    kept = {name: head for name in catalogue.HEADS if (head := checkpoints.trained_head(target, name))}
    return kept | named


def _loads(wanted: Methods) -> tuple[Load, ...]:
    """One load a workload, requests one by one, and the first workload once more with several in flight."""
    shared = (wanted.output_tokens, wanted.temperature, True, wanted.seed)
    sets = [workload(name) for name in wanted.workloads]
    loads = [Load(1, wanted.prompts, each, *shared) for each in sets]
    if wanted.batch > 1:
        loads.append(Load(wanted.batch, 2 * wanted.batch, sets[0], *shared))
    return tuple(loads)


def _only(arms: tuple[Arm, ...], loads: tuple[Load, ...]) -> dict[str, tuple[str, ...]]:
    """A dynamic length differs from a fixed one where several requests run at once, and only there; what is held
    against it, the draft and the baseline, has all loads, and the others those with requests one by one.
    """
    one = tuple(load.name for load in loads if load.concurrency == 1)
    several = tuple(load.name for load in loads if load.concurrency > 1)
    dynamic = {arm.name: several for arm in arms if arm.technique == "dynamic"}
    others = {arm.name: one for arm in arms if arm.technique == "suffix" or arm.technique == "ngram" or arm.distinction}
    return others | dynamic


def _arms(wanted: Methods, host: Host, looked: Wanted, draft: Model) -> tuple[Arm, ...]:
    """The baseline, each method or why it is not there, and the baseline again."""
    baseline = Arm.of(
        BASELINE,
        looked.target,
        options=plans.options(wanted, host),
        environment=plans.variables(wanted, host),
        gpus=min(1, len(host.gpus)),
    )
    made = [baseline]
    for method in catalogue.METHODS:
        model = draft if method.method == "draft_model" else None
        model = looked.heads.get(method.name, model) if method.needs == "head" else model
        made.append(
            baseline.variant(
                name=name_of(method, wanted),
                speculative=_config(method, wanted, model, looked),
                draft=model,
                technique=method.told_by,
                acceptance="measured",
                distinction=method.apart,
                unsupported=catalogue.lacking(method, looked),
            )
        )
    made += [again(baseline, number) for number in range(1, wanted.twins + 1)]
    names = [arm.name for arm in made]
    if unknown := [name for name in wanted.arms or () if name not in names]:
        raise ParameterError(
            "unknown arm", value=", ".join(unknown), allowed=", ".join(names), next=f"make plan SECTION={SECTION}"
        )
    return tuple(arm for arm in made if wanted.arms is None or arm.name in wanted.arms)


def _config(method: Method, wanted: Methods, model: Model | None, looked: Wanted) -> dict:
    """The method as the engine is told it."""
    config = {"method": method.method, "num_speculative_tokens": _proposals(method, wanted), **method.config}
    if model:
        config["model"] = model.source
        if method.method == "draft_model" and model.vocab_size != looked.target.vocab_size:
            config["use_heterogeneous_vocab"] = True
    if method.told_by == "ngram":
        config |= dict(zip(("prompt_lookup_min", "prompt_lookup_max"), wanted.ngram_window, strict=True))
    if method.needs == "schedule":
        ends = [begin - 1 for begin, _ in wanted.dynamic[1:]] + [max(wanted.max_num_seqs, wanted.dynamic[-1][0])]
        config[catalogue.SCHEDULE] = [[begin, end, k] for (begin, k), end in zip(wanted.dynamic, ends, strict=True)]
    if wanted.temperature and method.method == "draft_model":
        config["draft_sample_method"] = "probabilistic"  # with greedy drafts there would be no probabilities to judge
    return config
