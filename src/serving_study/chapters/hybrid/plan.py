"""The parameters of section 7's servers of hybrid models, and the plan that they come to: one start a setting, and no
load.

A setting is {"model": …, "max_model_len": 8192, "max_num_seqs": 16, "prefix_caching": True, "mtp": 3, "ngram": 3,
"tp": 2, "cache_dtype": "fp8"}; what is left out has the values of `USUAL`. Weights are random: a KV cache depends on
the shape alone. A setting that this host cannot have is `unsupported`, with the reason, before anything starts; one
that the engine refuses is started, and its refusal is a result."""

import json
import shutil
from collections.abc import Callable
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ... import paths
from ...chapters import parameters, plans
from ...chapters.parameters import (
    PORT,
    Parameters,
    Port,
    Positive,
    Share,
    Whole,
)
from ...errors import ModelError, ParameterError
from ...hardware import cgroups
from ...hardware.hosts import Host
from ...measure.plan import Plan
from ...models import checkpoints, shapes
from ...models.checkpoints import Model
from ...servers import preflight
from ...servers.arm import Arm

SECTION = "7-hybrid"
USUAL = {"max_model_len": 8192, "max_num_seqs": 16, "prefix_caching": True, "tp": 1, "cache_dtype": "auto"}
WHOLE, NARROW, WINDOWS, OWN_CLASS = (
    "qwen3.5-27b",
    "qwen3-next-narrow-first-16-layers",
    "gemma-3-27b-it-narrow-first-24-layers",
    "qwen3.5-27b-narrow",
)
BATCHED_TOKENS = 2048  # of one pass, said to every server: windows hold them too
MTP = {"qwen3_next": "qwen3_next_mtp"}  # the engine's name where `mtp` alone is not one


CPU = [
    *(
        {"model": NARROW} | change
        for change in ({}, {"max_model_len": 2048}, {"max_model_len": 65536}, {"max_model_len": 131072})
    ),
    *(
        {"model": NARROW} | change
        for change in ({"max_num_seqs": 64}, {"prefix_caching": False}, {"mtp": 3}, {"tp": 2})
    ),
    *({"model": NARROW, "prefix_caching": False} | change for change in ({"mtp": 3}, {"cache_dtype": "fp8"})),
    *({"model": WINDOWS} | change for change in ({}, {"max_model_len": 32768})),
    {"model": OWN_CLASS},
]


class Setting(BaseModel):
    """A setting as a header writes it."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str = Field(json_schema_extra={"allowed": "a model's name"})
    max_model_len: int = Field(8192, ge=1)
    max_num_seqs: int = Field(16, ge=1)
    prefix_caching: bool = Field(True, json_schema_extra={"allowed": "true or false"})
    mtp: int = Field(0, ge=1)
    ngram: int = Field(0, ge=1)
    tp: int = Field(1, ge=1)
    cache_dtype: Literal["auto", "fp8"] = "auto"


class Hybrid(Parameters):
    """The parameters of section 7's servers of hybrid models."""

    section = SECTION

    host: str = Field("auto", description='this machine; "cpu" leaves GPUs aside')
    settings: list[dict[str, str | int | bool]] | None = Field(
        None, description='a list of {"model": …, "max_model_len": 8192, "tp": 2, …}; None: the host\'s'
    )
    gpu_memory_utilization: Share = Field(0.90, description="GPU: share of its memory that a server may use")
    kv_cache_gib: Positive = Field(2, description="CPU: memory for the KV cache of each rank")
    seed: Whole = Field(42, description="of the random weights")
    port: Port = Field(0, description="0: any free one", json_schema_extra=PORT)
    fresh: bool = Field(False, description="start again what has a result already")

    @model_validator(mode="after")
    def _settings_can_be_read_and_told_apart(self) -> Self:
        for setting in self.settings or ():
            parameters.check_item(Setting, setting, "a", "setting", SECTION)
            if "mtp" in setting and "ngram" in setting:
                raise ParameterError(
                    "a setting that cannot be",
                    value=setting,
                    allowed="mtp or ngram",
                    next=f"make plan SECTION={SECTION}",
                )
        names = [name_of(USUAL | setting) for setting in self.settings or ()]
        twice = sorted({name for name in names if names.count(name) > 1})
        self.require(not twice, "settings", f"each setting once; twice: {', '.join(twice)}")
        return self


def default_settings(host: Host) -> list[dict]:
    """What this host can start: on a GPU the reference study's shape, or as many of its layers as fit one GPU, under
    the study's two settings and around them.
    """
    if not host.gpus:
        return CPU
    model = largest(min(gpu.memory_gib for gpu in host.gpus))
    fixed = {"model": model, "cache_dtype": "fp8", "prefix_caching": False}
    card = {"model": model, "cache_dtype": "fp8", "max_model_len": 262144, "mtp": 3}
    changes = (
        {},
        {"max_num_seqs": 256},
        {"max_model_len": 2048},
        {"max_model_len": 32768},
        {"prefix_caching": True},
        {"mtp": 3},
        {"cache_dtype": "auto"},
    )
    return (
        [fixed | change for change in changes]
        + [card]
        + [setting | {"tp": tp} for tp in (2, 4) for setting in (fixed, card)]
    )


def largest(memory_gib: float, share: float = 0.65) -> str:
    """The reference study's hybrid shape, or its first layers, all kinds among them, whose weights leave a GPU of this
    size a third of itself.
    """
    if shapes.load(WHOLE).weights_gib() <= share * memory_gib:
        return WHOLE
    whole = shapes.load(WHOLE)
    period = whole.config["full_attention_interval"]
    fitting = [
        count
        for count in range(period, whole.layers, period)
        if shapes.load(f"{WHOLE}-first-{count}-layers").weights_gib() <= share * memory_gib
    ]
    return f"{WHOLE}-first-{max(fitting, default=period)}-layers"


def model_names(wanted: Hybrid, host: Host) -> list[str]:
    """The shapes that a plan with these parameters is made of."""
    settings = default_settings(host) if wanted.settings is None else wanted.settings
    return list(dict.fromkeys(setting["model"] for setting in settings))


def plan(wanted: Hybrid, host: Host, *, dry: bool = False, say: Callable[[str], None] = print) -> Plan:
    """What is started on `host` with these parameters."""
    wanted = wanted.filled({"settings": default_settings(host)})
    environment = plans.environment(host, dry or not wanted.settings, say)
    there = not dry or bool(environment.vllm)
    models = {name: _model(name, there, say) for name in dict.fromkeys(setting["model"] for setting in wanted.settings)}
    made = tuple(_arm(USUAL | setting, models[setting["model"]], wanted, host) for setting in wanted.settings)
    notes = ["random weights: memory is as it would be with real ones, text is not"] if made else []
    return Plan(
        SECTION,
        host,
        environment,
        made,
        (),
        1,
        plans.resolved(wanted, host),
        wanted.seed,
        wanted.port,
        (*notes, *plans.notes(environment)),
    )


def name_of(setting: dict) -> str:
    """`qwen3.5-27b-8192`, `qwen3.5-27b-262144-fp8-mtp3-tp2`: model and length, then what is not as usual."""
    words = [setting["model"].rstrip("/").rsplit("/", 1)[-1].lower(), str(setting["max_model_len"])]
    words += [f"seqs{setting['max_num_seqs']}"] if setting["max_num_seqs"] != USUAL["max_num_seqs"] else []
    words += [] if setting["prefix_caching"] else ["no-prefix-caching"]
    words += [setting["cache_dtype"]] if setting["cache_dtype"] != "auto" else []
    words += [
        f"{key}{setting[key]}"
        for key in ("mtp", "ngram", "tp")
        if setting.get(key, 1 if key == "tp" else 0) > (key == "tp")
    ]
    return "-".join(words)


def _arm(setting: dict, model: Model, wanted: Hybrid, host: Host) -> Arm:
    config, tp = model.config, setting["tp"]
    options = {
        "max_model_len": setting["max_model_len"],
        "max_num_seqs": setting["max_num_seqs"],
        "max_num_batched_tokens": BATCHED_TOKENS,
        "seed": wanted.seed,
        "enable_prefix_caching": setting["prefix_caching"],
        "dtype": "bfloat16",
        "enforce_eager": True,
    }
    options |= {"kv_cache_dtype": setting["cache_dtype"]} if setting["cache_dtype"] != "auto" else {}
    options |= {"tensor_parallel_size": tp} if tp > 1 else {}
    options |= {"gpu_memory_utilization": wanted.gpu_memory_utilization} if host.gpus else {}
    if config["model_type"] == "qwen3_next" and config.get(
        "mamba_ssm_dtype"
    ):  # this class does not read it from its config.json
        options["mamba_ssm_cache_dtype"] = config["mamba_ssm_dtype"]
    speculative = None
    if k := setting.get("mtp"):
        speculative = {"method": MTP.get(config["model_type"], "mtp"), "num_speculative_tokens": k}
    elif k := setting.get("ngram"):
        speculative = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    variables = (
        {}
        if host.gpus
        else {"VLLM_CPU_KVCACHE_SPACE": wanted.kv_cache_gib}
        | ({"VLLM_CPU_OMP_THREADS_BIND": cgroups.cores_of_ranks(tp, tp)} if tp > 1 else {})
    )
    arm = Arm.of(
        name_of(setting),
        model,
        options=options,
        speculative=speculative,
        environment=variables,
        gpus=tp if host.gpus else 0,
        acceptance="measured" if speculative else None,
    )
    return arm.variant(unsupported=_unsupported(arm, host))


def _unsupported(arm: Arm, host: Host) -> str | None:
    """Why this host, or this model, cannot have the arm; None where nothing speaks against it before its start."""
    tp = arm.split
    if host.gpus and tp > len(host.gpus):
        return f"needs {tp} GPUs, {host.profile} has {len(host.gpus)}"
    if not host.gpus and tp > host.cpus:
        return f"needs {tp} cores, one a rank, and this host has {host.cpus}"
    try:
        weights_gib = shape_of(arm.model).weights_gib(tp=tp)
    except ModelError as error:
        return (
            None
            if error.what.startswith(("the arithmetic of this family", "quantized"))
            else str(error).splitlines()[0]
        )
    if host.gpus:
        memory_gib = min(gpu.memory_gib for gpu in host.gpus) * arm.options["gpu_memory_utilization"]
        return (
            f"weights of {weights_gib:.1f} GiB a rank, and a GPU may use {memory_gib:.1f} GiB"
            if weights_gib >= memory_gib
            else None
        )
    wanted_gib = preflight.cpu_memory_gib(arm) + weights_gib * tp
    return (
        f"takes about {wanted_gib:.0f} GiB of memory, and this host has {host.memory_gib:.0f}"
        if wanted_gib > host.memory_gib
        else None
    )


def shape_of(model: Model) -> shapes.Shape:
    """A planned model's shape: that of its name where it is cut and its folder not made yet."""
    return (
        shapes.load(model.name)
        if shapes.FIRST_LAYERS.fullmatch(model.name)
        else shapes.of_config(model.config, name=model.name)
    )


def _model(name: str, make: bool, say: Callable[[str], None]) -> Model:
    """The shape `name`, or its first layers, with random weights; without `make`, as far as it is known with nothing
    made.
    """
    cut = shapes.FIRST_LAYERS.fullmatch(name)
    whole = cut[1] if cut else name
    folder = paths.CACHE / "models" / f"{name.rsplit('/', 1)[-1].lower()}-random"
    if not make:
        shape = (
            folder
            if cut and (folder / "config.json").is_file()
            else checkpoints.SHAPES / whole.rsplit("/", 1)[-1].lower()
        )
        return (
            Model(name, name, shape, weights="random")
            if shape.is_dir()
            else checkpoints.with_random_weights(whole, say)
        )
    model = checkpoints.with_random_weights(whole, say)
    if not cut:
        return model
    shutil.copytree(model.folder, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shapes.first_layers(model.config, int(cut[2])), indent=1) + "\n")
    return Model(name, str(folder), folder, weights="random")
