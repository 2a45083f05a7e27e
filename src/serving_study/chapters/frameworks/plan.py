"""Section 8's parameters, and the plan that they come to: one arm an engine on equal terms, and the first one's twins.

Terms are stated once (`engines.base.Terms`) and each engine's module says them in its own flags: type, context,
requests at once, tokens of the KV cache, tokens of a step. What can mislead: an engine that cannot be made or run here
is an arm all the same, `unsupported` with the reason, and the rest runs.

    >>> from serving_study.chapters import sections
    >>> [arm.name for arm in sections.plan(8, dry=True).arms]                                  # doctest: +SKIP
    ['vllm', 'llama-cpp', 'sglang', 'tensorrt-llm', 'vllm-again']
"""

from collections.abc import Callable
from typing import Annotated, Literal, Self

import pandas
from pydantic import Field, model_validator

from ... import engines
from ...analysis import claims
from ...engines import base
from ...hardware import hosts
from ...hardware.hosts import Host
from ...loads import Load, datasets
from ...loads.questions import Questions
from ...measure.plan import Plan
from ...models.checkpoints import Model
from ...servers.arm import Arm, again
from .. import plans
from ..parameters import NotNegative, Once, Positive, Whole

SECTION = 8
GENERATOR = "vllm"  # whose environment has the load generator, too
ENGINES = ("vllm", "llama-cpp", "sglang", "tensorrt-llm")
WAVES = {"least": 4, "each": 2}
CPU = {
    "model": "smollm2-135m-instruct",
    "concurrencies": [1, 4, 8],
    "prompts": plans.in_waves([1, 4, 8], **WAVES),
    "output_tokens": 16,
    "repeats": 6,
    "lives": 2,
    "minutes": 4,
    "temperature": 0.0,
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "max_batched_tokens": 2048,
    "enforce_eager": True,
}
GPU = {
    "model": "Qwen/Qwen2.5-7B-Instruct",
    "concurrencies": [1, 4, 16, 64, 128],
    "prompts": plans.in_waves([1, 4, 16, 64, 128], least=8, each=4),
    "output_tokens": 200,
    "repeats": 6,
    "lives": 2,
    "minutes": 25,
    "temperature": 0.0,
    "max_model_len": 4096,
    "max_num_seqs": 128,
    "max_batched_tokens": 8192,
    "enforce_eager": False,
}
CLIENT_LOAD = {"concurrency": 1, "prompts": 4, "output_tokens": 16, "temperature": 0.0, "output_spread": 0.5}


class Frameworks(plans.Loaded):
    """Section 8's parameters."""

    section = SECTION
    profiles = {"cpu": CPU, "gpu": GPU}

    model: str | None = Field(None, description="a hub id, a folder, or smollm2-135m-instruct")
    engines: Annotated[list[Literal[ENGINES]], Field(min_length=1), Once] = Field(
        list(ENGINES), description="the first one is what the others are compared with"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="of weights and KV cache; auto: bfloat16 where the machine computes in it"
    )
    max_batched_tokens: Positive | None = Field(None, description="most tokens of a step, prompts' and answers'")
    kv_cache_tokens: Positive | None = Field(
        None, description="what every KV cache holds; None: max_num_seqs requests of max_model_len"
    )
    differences: dict[str, str] = Field(
        {}, description="settings that may differ between the engines, each with the reason"
    )
    texts: NotNegative = Field(12, description="prompts whose answers are compared between the engines")
    text_tokens: Positive = Field(48, description="tokens of such an answer, at most")
    client_rounds: Annotated[Whole, Field(ge=2)] = Field(4, description="in which a second client sends the same load")
    twins: NotNegative = Field(1, description="times that the first arm is measured again, under other names")

    @model_validator(mode="after")
    def _settings_are_known(self) -> Self:
        unknown = [name for name in self.differences if name not in base.SETTINGS]
        self.require(not unknown, "differences", f"reasons by setting, of {', '.join(base.SETTINGS)}")
        return self


def model_names(wanted: Frameworks, host: Host) -> list[str]:
    """The model of a plan with these parameters."""
    return [wanted.filled(GPU if host.gpus else CPU).model]


def plan(wanted: Frameworks, host: Host, *, dry: bool = False, say: Callable[[str], None] = print) -> Plan:
    """What section 8 measures on `host` with these parameters."""
    wanted = wanted.filled(GPU if host.gpus else CPU)
    environment = plans.environment(host, dry, say)
    others = plans.environments_of((name for name in wanted.engines if name != GENERATOR), host, dry, say)
    ready = None if dry and not environment.vllm else environment
    models, notes = plans.models([wanted.model], wanted.weights, ready, "text is not", say)
    model = models[wanted.model]
    made = [_arm(name, model, wanted, host) for name in wanted.engines]
    made = plans.supported(made, others, host)
    first = next((arm for arm in made if not arm.unsupported), None)
    twins = [again(first, number) for number in range(1, wanted.twins + 1)] if first else []
    loads = plans.loads(wanted, host, environment, dry, say)
    return Plan(
        SECTION,
        host,
        environment,
        (*made, *twins),
        loads,
        environments=others,
        questions=_questions(wanted, loads[0], model) if ready else None,
        parameters=plans.resolved(wanted, host),
        seed=wanted.seed,
        port=wanted.port,
        notes=(*notes, *plans.notes(environment), *plans.data_notes(loads)),
        **plans.in_blocks(wanted, host, decisions),
    )


def decisions(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What the cells decide about output throughput against the first engine that has any."""
    return claims.decisions(frame, "output_throughput", baseline(frame))


def baseline(frame: pandas.DataFrame) -> str:
    """The arm that the others are compared with: the first, in the plan's order, that was measured."""
    return frame["arm"].iloc[0]


def terms(wanted: Frameworks, host: Host) -> base.Terms:
    """What every engine's server is given, of filled parameters."""
    computed = "bfloat16" if host.gpus or hosts.computes_bf16() else "float32"
    return base.Terms(
        dtype=computed if wanted.dtype == "auto" else wanted.dtype,
        max_model_len=wanted.max_model_len,
        max_num_seqs=wanted.max_num_seqs,
        kv_cache_tokens=wanted.kv_cache_tokens or wanted.max_num_seqs * wanted.max_model_len,
        max_batched_tokens=wanted.max_batched_tokens,
        seed=wanted.seed,
        prefix_caching=wanted.prefix_caching,
        compiled=not wanted.enforce_eager,
        memory_share=wanted.gpu_memory_utilization,
        host_cache_gib=wanted.kv_cache_gib,
    )


def _arm(name: str, model: Model, wanted: Frameworks, host: Host) -> Arm:
    options, variables = engines.get(name).on_terms(terms(wanted, host), host)
    return Arm.of(
        name,
        model,
        engine=name,
        options=options,
        environment=variables,
        gpus=min(1, len(host.gpus)),
    )


def _questions(wanted: Frameworks, load: Load, model: Model) -> Questions:
    """What each server is asked, with prompts of the book's own."""
    asked = Load(
        1, max(1, wanted.texts), datasets.load(datasets.OWN, "own"), wanted.text_tokens, 0.0, False, wanted.seed
    )
    prompts = asked.dataset.drawn(asked, str(model.folder), 0)[: wanted.texts]
    client = Load(dataset=load.dataset, seed=wanted.seed, **CLIENT_LOAD)
    return Questions(tuple(prompts), wanted.text_tokens, client, wanted.client_rounds)
