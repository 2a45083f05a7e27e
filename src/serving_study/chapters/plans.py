"""What the plans of the measuring sections share: parameters, environment, notes, the server's options, loads.

A section's parameters have the names that these functions use (`concurrencies`, `prompts`, `max_model_len` …).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

import pandas
from pydantic import Field, model_validator

from .. import engines, environments
from ..environments import Environment
from ..errors import ParameterError
from ..hardware import hosts
from ..hardware.hosts import Host
from ..loads import Load, datasets
from ..models import checkpoints
from ..models.checkpoints import Model
from ..servers.arm import Arm
from .parameters import PORT, NotNegative, Number, Once, Parameters, Port, Positive, Share, Weights, Whole

HELD_OUT = "held-out.json"  # of a trained draft: prompts that it never saw, in ShareGPT's format


class InBlocks(Parameters):
    """What sections that measure in blocks share: how many, and when they have decided."""

    repeats: Positive | None = Field(None, description="blocks: each measures every cell once; at least so many")
    lives: Positive | None = Field(None, description="in at least so many lives of each arm's servers")
    minutes: Annotated[Number, Field(ge=0)] | None = Field(
        None, description="then blocks go on for what is not decided, until so many are spent"
    )
    margin: Annotated[Number, Field(gt=0, le=0.5)] = Field(
        0.03, description="arms whose ratio certainly lies so near to 1 are equal"
    )
    twins: NotNegative = Field(2, description="times that the first arm is measured again, under other names")


class Loaded(InBlocks):
    """What sections 3 and 5 share: server, loads, blocks."""

    host: str = Field("auto", description='this machine; "cpu" leaves GPUs aside')
    weights: Weights = Field("auto", description='"real", "random", or "auto": real where within reach')
    concurrencies: Annotated[list[Positive], Field(min_length=1), Once] | None = Field(
        None, description="requests in flight"
    )
    prompts: Annotated[list[Positive], Field(min_length=1)] | None = Field(
        None, description="requests in all, one number for each concurrency"
    )
    output_tokens: Annotated[Whole, Field(ge=4)] | None = Field(
        None,
        description="length of every answer; None on a GPU: the dataset's",
        json_schema_extra={"allowed": "4 or more, or None for the dataset's own lengths"},
    )
    output_spread: Annotated[Number, Field(ge=0, le=0.75)] = Field(
        0.5, description="lengths lie within this share of output_tokens, evenly; 0: all alike"
    )
    dataset: str = Field("auto", description="sharegpt, own, held-out, a file; auto: what is reachable")
    temperature: Annotated[Number, Field(ge=0)] | None = Field(
        None, description="None on a GPU: the server's default; 0 on a CPU"
    )
    ignore_eos: bool = Field(True, description="answers run to their full length")
    max_model_len: Positive | None = Field(None, description="longest prompt and answer together")
    max_num_seqs: Positive | None = Field(None, description="most requests that the engine runs at once")
    gpu_memory_utilization: Share = Field(0.90, description="share of GPU memory for the engine")
    kv_cache_gib: Positive = Field(1, description="CPU: memory for the KV cache")
    prefix_caching: bool = Field(False, description="section 7 is about it; here every prompt is new")
    enforce_eager: bool | None = Field(None, description="None: compiled on a GPU, eager on a CPU")
    seed: Whole = Field(42, description="prompts, order of cells, sampling")
    port: Port = Field(0, description="0: any free port", json_schema_extra=PORT)
    fresh: bool = Field(False, description="measure again what is measured already")

    def filled(self, defaults: dict) -> Self:
        """With the defaults where a value is None; other concurrencies than theirs have as many waves of prompts."""
        if self.prompts is None and self.concurrencies is not None and "prompts" in defaults:
            least, each = defaults["prompts"][0], defaults["prompts"][-1] // defaults["concurrencies"][-1]
            defaults = defaults | {"prompts": in_waves(self.concurrencies, least=least, each=each)}
        return super().filled(defaults)

    @model_validator(mode="after")
    def _a_load_a_concurrency(self) -> Self:
        if self.concurrencies is not None and self.prompts is not None:
            self.require(
                len(self.concurrencies) == len(self.prompts),
                "prompts",
                f"one number for each of the concurrencies {self.concurrencies}",
            )
            self.require(
                all(count >= concurrency for count, concurrency in zip(self.prompts, self.concurrencies, strict=True)),
                "prompts",
                "at least as many prompts as the concurrency",
            )
        return self


def in_waves(concurrencies: Iterable[int], *, least: int, each: int) -> list[int]:
    """Prompts by concurrency: `each` for each request in flight, `least` at least. The steady window of such a load is
    about `each` - 0.3 median latencies long, since answers of unequal lengths end one by one.
    """
    return [max(least, each * concurrency) for concurrency in concurrencies]


def environment(host: Host, dry: bool, say: Callable[[str], None]) -> Environment:
    """vLLM's environment on this host, which has the load generator; with `dry`, a missing one is named and not
    made.
    """
    name = engines.get("vllm").environment_name(host)
    return environments.planned(name) if dry and not environments.has(name) else environments.ensure(name, say)


def environments_of(names: Iterable[str], host: Host, dry: bool, say: Callable[[str], None]) -> dict[str, Environment]:
    """The environments of other engines, by the engine's name; one that cannot be made says why in `missing`."""
    made = {}
    for name in dict.fromkeys(names):
        lock = engines.get(name).environment_name(host)
        made[name] = (
            environments.planned(lock)
            if dry and not environments.has(lock) and not environments.RECIPES[lock].wheel  # whose index is only asked
            else environments.obtain(lock, say)
        )
        if made[name].missing:
            say(f"{engines.get(name).TITLE} cannot be measured here: {made[name].missing}")
    return made


def supported(arms: Iterable[Arm], others: Mapping[str, Environment], host: Host) -> tuple[Arm, ...]:
    """The arms; those whose engine has no environment here, or cannot run their processes, are `unsupported`."""
    return tuple(arm if arm.unsupported else replace(arm, unsupported=_unsupported(arm, others, host)) for arm in arms)


def _unsupported(arm: Arm, others: Mapping[str, Environment], host: Host) -> str | None:
    missing = (others[process.engine].missing for process in arm.servers if process.engine in others)
    cannot = (engines.get(process.engine).unsupported(process, host) for process in arm.servers)
    return next(filter(None, (*missing, *cannot)), None)


def notes(environment: Environment) -> list[str]:
    """A plan's notes on its environment."""
    return (
        [f"modified engine: {engines.named(environment.versions)} with {', '.join(environment.modified)} changed"]
        if environment.modified
        else []
    )


def models(
    names: Iterable[str], weights: str, environment: Environment | None, lost: str, say: Callable[[str], None]
) -> tuple[dict[str, Model], list[str]]:
    """The models of a plan by name, and its notes on them; without an environment, as far as they can be planned.

    Raises ParameterError where real weights were asked for and are out of reach."""
    names = list(dict.fromkeys(names))
    if environment is None:
        planned = {name: checkpoints.planned(name) or checkpoints.resolve(name, say=say) for name in names}
        return planned, ["the engine's environment is not installed yet: nothing counts as measured"]
    made = {name: checkpoints.resolve(name, environment=environment, weights=weights, say=say) for name in names}
    random = [name for name, model in made.items() if model.weights == "random"]
    if random and weights == "real":
        raise ParameterError(
            "real weights were asked for and are not within reach",
            value=", ".join(random),
            allowed="weights = 'auto' or 'random', or models that can be fetched",
            next="check the network (HF_HUB_OFFLINE, HF_ENDPOINT)",
        )
    return made, random_notes(made.values(), lost)


def random_notes(models: Iterable[Model], lost: str) -> list[str]:
    """A plan's notes on random weights: which models have them, and why."""
    random = [model for model in models if model.weights == "random"]
    because = {model.name: model.random_because for model in random if model.random_because}
    if not random:
        return []
    why = "; ".join(f"{name} could not be fetched: {reason}" for name, reason in because.items())
    return [
        f"random weights: speed and memory are measured, {lost} ({why or ', '.join(model.name for model in random)})"
    ]


def data_notes(loads: Iterable[Load]) -> list[str]:
    """A plan's notes on prompts that replaced others."""
    reasons = {getattr(load.dataset, "in_place_because", None) for load in loads} - {None}
    return [f"the book's own prompts in ShareGPT's place, which could not be fetched: {why}" for why in sorted(reasons)]


def options(wanted, host: Host) -> dict:
    """The server's options that every section has."""
    settings = {
        "max_model_len": wanted.max_model_len,
        "max_num_seqs": wanted.max_num_seqs,
        "seed": wanted.seed,
        "enable_prefix_caching": wanted.prefix_caching,
    }
    if host.gpus:
        settings["gpu_memory_utilization"] = wanted.gpu_memory_utilization
    if not host.gpus and not hosts.computes_bf16():
        settings["dtype"] = "float32"
    if wanted.enforce_eager:
        settings["enforce_eager"] = True
    return settings


def variables(wanted, host: Host) -> dict:
    """The server's environment variables that decide a result."""
    return {} if host.gpus else {"VLLM_CPU_KVCACHE_SPACE": wanted.kv_cache_gib}


def held_out(draft: Model) -> Path | None:
    """The prompts that a draft of this book never saw, a file in ShareGPT's format; None for any other model."""
    file = draft.folder / HELD_OUT
    return file if file.is_file() else None


def loads(
    wanted, host: Host, environment: Environment, dry: bool, say: Callable[[str], None], *, held_out: Path | None = None
) -> tuple[Load, ...]:
    """One load a concurrency, from the header's data set, else the book's own prompts on a CPU and ShareGPT on a GPU.

    `held_out` is a file of prompts that a trained draft never saw; they replace the book's own, as the data set
    `held-out`."""
    own = wanted.dataset == "own" or not host.gpus and wanted.dataset == "auto"
    if held_out and (wanted.dataset == "held-out" or not host.gpus and wanted.dataset == "auto"):
        dataset = datasets.load(held_out, "held-out")
    elif wanted.dataset == "held-out":
        raise ParameterError(
            "no prompts were held out",
            value=wanted.dataset,
            allowed="a draft that the book trained, or another data set",
            next="make run SECTION=4",
        )
    else:
        dataset = (
            datasets.load(datasets.OWN, "own")
            if own
            else datasets.resolve(wanted.dataset, environment=None if dry else environment, say=say)
        )
    return tuple(
        Load(
            concurrency,
            prompts,
            dataset,
            wanted.output_tokens,
            wanted.temperature,
            wanted.ignore_eos,
            wanted.seed,
            wanted.output_spread if wanted.output_tokens else 0.0,
        )
        for concurrency, prompts in zip(wanted.concurrencies, wanted.prompts, strict=True)
    )


def in_blocks(wanted: InBlocks, host: Host, decisions: Callable[[pandas.DataFrame], pandas.DataFrame]) -> dict:
    """A plan's fields that say how its cells come: side by side on a CPU, whose servers stand still when they are
    frozen; one life after the other on a GPU, where each server has the memory.
    """
    return {
        "repeats": wanted.repeats,
        "lives": wanted.lives,
        "minutes": wanted.minutes,
        "margin": wanted.margin,
        "side_by_side": not host.gpus,
        "decisions": decisions,
    }


def resolved(wanted, host: Host) -> dict:
    """The parameters as run.json has them."""
    return {name: value for name, value in wanted if name not in ("fresh", "port")} | {"host": host.profile}
