"""Section 5's parameters, and the plan that they come to: one model over several ranks in every way that this host
allows.

An arm is {"model": …, "tp": 1, "pp": 1, "dp": 1, "ep": False, "replicas": 1, "gpu_memory_utilization": …}; what is
left out has these values. A rank takes a GPU, on a CPU host an equal part of the cores that all arms of the plan share
out. An arm that this host cannot have is `unsupported`, with the reason, before anything starts; one that only its
start can refuse (weights that do not fit) is started, and its failure is a result."""

from collections.abc import Callable
from typing import Self

import pandas
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...analysis import claims
from ...chapters import parameters, plans
from ...chapters.parameters import (
    Positive,
    Share,
)
from ...environments import Environment
from ...hardware import cgroups
from ...hardware.hosts import Host
from ...measure.plan import Plan
from ...models import checkpoints
from ...models.checkpoints import Model
from ...servers.arm import Arm, again

SECTION = 5
SEVEN, FOURTEEN, MOE = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen1.5-MoE-A2.7B-Chat"
EMBEDDED, DIVIDES = "smollm2-135m-instruct", "smollm2-135m-instruct-12-heads"
NO_RAY = "current platform cpu does not support ray."  # vLLM 0.32's CPU build, once Ray 2.60 is installed beside it
LARGE_GIB = 40.0  # a GPU from here on holds 14B in bf16: its failure is brought about by less memory


WAVES = {"least": 4, "each": 4}
CPU = {
    "arms": [
        {"model": DIVIDES},
        {"model": DIVIDES, "tp": 2},
        {"model": DIVIDES, "pp": 2},
        {"model": DIVIDES, "replicas": 2},
        {"model": EMBEDDED, "tp": 2},
    ],
    "concurrencies": [1, 2, 4],
    "prompts": plans.in_waves([1, 2, 4], **WAVES),
    "output_tokens": 12,
    "repeats": 6,
    "lives": 2,
    "minutes": 12,
    "temperature": 0.0,
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "enforce_eager": True,
}
GPU = {
    "concurrencies": [1, 8, 32, 128],
    "prompts": plans.in_waves([1, 8, 32, 128], **WAVES),
    "repeats": 6,
    "lives": 2,
    "minutes": 60,
    "max_model_len": 4096,
    "max_num_seqs": 128,
    "enforce_eager": False,
}
REFERENCE = [
    {"model": SEVEN},
    {"model": SEVEN, "tp": 2},
    {"model": SEVEN, "tp": 4},
    {"model": FOURTEEN},
    {"model": FOURTEEN, "tp": 2},
    {"model": FOURTEEN, "pp": 2},
    {"model": FOURTEEN, "tp": 4},
]
TWO_GPUS = [
    *({"model": SEVEN} | split for split in ({}, {"tp": 2}, {"pp": 2}, {"dp": 2}, {"replicas": 2})),
    *({"model": FOURTEEN} | split for split in ({}, {"tp": 2}, {"pp": 2})),
    *({"model": MOE} | split for split in ({"tp": 2}, {"tp": 2, "ep": True})),
]
FOUR_GPUS = [
    *({"model": SEVEN} | split for split in ({"tp": 2, "pp": 2}, {"dp": 4}, {"replicas": 4})),
    *({"model": MOE} | split for split in ({"tp": 4}, {"tp": 4, "ep": True})),
]


class Split(BaseModel):
    """An arm as a header writes it."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str = Field(json_schema_extra={"allowed": "a model's name"})
    tp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    dp: int = Field(1, ge=1)
    ep: bool = Field(False, json_schema_extra={"allowed": "true or false"})
    replicas: int = Field(1, ge=1)
    gpu_memory_utilization: Share | None = None


class Parallelism(plans.Loaded):
    """Section 5's parameters."""

    section = SECTION
    profiles = {"cpu": CPU, "gpu": GPU}

    arms: list[dict[str, str | int | float | bool]] | None = Field(
        None, description='a list of {"model": …, "tp": 2, …}; None: the profile\'s'
    )
    nodes: Positive = Field(1, description="machines of a Ray cluster that an arm may span")
    dataset: str = Field("auto", description="sharegpt, own, a file; auto: what is reachable")
    max_num_seqs: Positive | None = Field(None, description="most requests that one copy runs at once")
    kv_cache_gib: Positive = Field(1, description="CPU: memory for the KV cache of a rank")

    @model_validator(mode="after")
    def _arms_can_be_read_and_told_apart(self) -> Self:
        if self.arms is None:
            return self
        self.require(bool(self.arms), "arms", "at least one, {model: …, tp: 2}")
        for split in self.arms:
            parameters.check_item(Split, split, "an", "arm", SECTION)
        names = [name_of(split) for split in self.arms]
        twice = sorted({name for name in names if names.count(name) > 1})
        self.require(
            not twice, "arms", f"each arm once, and models whose sizes tell them apart; twice: {', '.join(twice)}"
        )
        return self


def default_arms(host: Host) -> list[dict]:
    """The reference study's seven where there are four GPUs, else what two allow; with large GPUs also the other ways
    to use four, and an arm of too little memory.
    """
    if not host.gpus:
        return CPU["arms"]
    four, large = len(host.gpus) >= 4, min(gpu.memory_gib for gpu in host.gpus) > LARGE_GIB
    chosen = REFERENCE + (FOUR_GPUS if large else []) if four else TWO_GPUS
    return chosen + ([{"model": FOURTEEN, "gpu_memory_utilization": 0.15}] if large else [])


def model_names(wanted: Parallelism, host: Host) -> list[str]:
    """The models that a plan with these parameters is made of."""
    return list(dict.fromkeys(setting["model"] for setting in wanted.arms or default_arms(host)))


def plan(wanted: Parallelism, host: Host, *, dry: bool = False, say: Callable[[str], None] = print) -> Plan:
    """What section 5 measures on `host` with these parameters."""
    wanted = wanted.filled((GPU if host.gpus else CPU) | {"arms": default_arms(host)})
    environment = plans.environment(host, dry, say)
    names = (setting["model"] for setting in wanted.arms)
    models, notes = plans.models(
        names, wanted.weights, None if dry and not environment.vllm else environment, "text is not", say
    )
    ranks = _most_ranks(wanted, host)
    made = [_arm(setting, models[setting["model"]], wanted, host, environment, ranks) for setting in wanted.arms]
    first = next((arm for arm in made if not arm.unsupported), None)
    made += [again(first, number) for number in range(1, wanted.twins + 1)] if first else []
    loads = plans.loads(wanted, host, environment, dry, say)
    return Plan(
        SECTION,
        host,
        environment,
        tuple(made),
        loads,
        parameters=plans.resolved(wanted, host),
        seed=wanted.seed,
        port=wanted.port,
        notes=(*notes, *plans.notes(environment), *plans.data_notes(loads)),
        **plans.in_blocks(wanted, host, decisions),
    )


def decisions(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What the cells decide about output throughput against the first arm of the same model."""
    models = [cells for _, cells in frame.groupby("model", sort=False)]
    return pandas.concat([claims.decisions(cells, "output_throughput", cells["arm"].iloc[0]) for cells in models])


def name_of(setting: dict) -> str:
    """`7b-tp2`, `14b-tp2-pp2`, `7b-dp2`, `moe-a2.7b-tp2-ep`, `7b-replicas2`: model, then what is more than one."""
    parts = [f"{key}{setting[key]}" for key in ("tp", "pp", "dp") if setting.get(key, 1) > 1] + (
        ["ep"] if setting.get("ep") else []
    )
    parts += [f"replicas{setting['replicas']}"] if setting.get("replicas", 1) > 1 else []
    limit = [limit] if (limit := distinction_of(setting)) else []
    return "-".join(
        [checkpoints.short(setting["model"]), *(parts if parts and parts != ["ep"] else ["tp1", *parts]), *limit]
    )


def distinction_of(setting: dict) -> str | None:
    """`memory-0.15`: the limit by which an arm differs from another of the same split."""
    return f"memory-{setting['gpu_memory_utilization']:g}" if "gpu_memory_utilization" in setting else None


def ranks_of(setting: dict) -> int:
    return setting.get("tp", 1) * setting.get("pp", 1) * setting.get("dp", 1) * setting.get("replicas", 1)


def _most_ranks(wanted: Parallelism, host: Host) -> int:
    """Ranks of the largest arm that a CPU host has cores for."""
    return max((ranks for ranks in map(ranks_of, wanted.arms) if ranks <= host.cpus), default=1)


def _arm(setting: dict, model: Model, wanted: Parallelism, host: Host, environment: Environment, ranks: int) -> Arm:
    options, variables = plans.options(wanted, host), plans.variables(wanted, host)
    options |= {
        name: setting[key]
        for key, name in (
            ("tp", "tensor_parallel_size"),
            ("pp", "pipeline_parallel_size"),
            ("dp", "data_parallel_size"),
        )
        if setting.get(key, 1) > 1
    }
    if setting.get("ep"):
        options["enable_expert_parallel"] = True
    if host.gpus and "gpu_memory_utilization" in setting:
        options["gpu_memory_utilization"] = setting["gpu_memory_utilization"]
    if wanted.nodes > 1:
        options |= {"distributed_executor_backend": "ray"}
    if wanted.nodes > 1 and setting.get("dp", 1) > 1:
        options["data_parallel_backend"] = "ray"
        if not (fits := len(host.gpus) // (setting.get("tp", 1) * setting.get("pp", 1))):
            variables["VLLM_RAY_DP_PACK_STRATEGY"] = (
                "span"  # a copy on several nodes, which the engine allows only when told
            )
        elif fits < setting["dp"]:
            options["data_parallel_size_local"] = fits  # else the engine wants all copies on the first node
    if not host.gpus:
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": cgroups.cores_of_ranks(ranks_of(setting), ranks)}
        if setting.get("pp", 1) > 1:
            options.pop(
                "enforce_eager", None
            )  # an eager pipeline passes its health check and dies at the first request on this build
    arm = Arm.of(
        name_of(setting),
        model,
        options=options,
        environment=variables,
        gpus=ranks_of(setting) if host.gpus else 0,
        replicas=setting.get("replicas", 1),
        technique="parallel",
        distinction=distinction_of(setting),
    )
    return arm.variant(unsupported=_unsupported(arm, setting, wanted, host, environment))


def _unsupported(arm: Arm, setting: dict, wanted: Parallelism, host: Host, environment: Environment) -> str | None:
    """Why this host, or this model, cannot have the arm; None where nothing speaks against it before its start."""
    places = (len(host.gpus) or host.cpus) * wanted.nodes
    if arm.ranks > places:
        return (
            f"needs {arm.ranks} GPUs, {host.profile} has {len(host.gpus)}"
            + (f" on each of {wanted.nodes} nodes" if wanted.nodes > 1 else "")
            if host.gpus
            else f"needs {arm.ranks} cores, one a rank, and this host has {places}"
        )
    if wanted.nodes > 1 and not host.gpus:
        return f"needs Ray to reach other nodes, and this build refuses it: {NO_RAY}"
    if wanted.nodes > 1 and "ray" not in environment.versions and environment.vllm:
        return "needs Ray to reach other nodes, which is not installed beside the engine"
    if wanted.nodes > 1 and arm.replicas > 1:
        return "replicas stay on one node; data parallelism spans several"
    config, tp = arm.model.config, setting.get("tp", 1)
    if setting.get("ep") and not any(
        config.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts")
    ):
        return "expert parallelism needs experts, and this model is dense"
    heads = checkpoints.MORE_HEADS.fullmatch(arm.model.name)
    heads = int(heads[2]) if heads else config.get("num_attention_heads", tp)
    if heads % tp:
        return f"{heads} attention heads do not divide by tensor parallel size {tp}"
    if setting.get("pp", 1) > config.get("num_hidden_layers", 1):
        return f"{config.get('num_hidden_layers')} layers cannot be cut into {setting['pp']} stages"
    return None
