"""The plans of the sections that measure, one module each: its parameters, its profiles' defaults, and `plan`.

What they share stands here: defaults, checks, environment, the server's options, loads. Parameters of every section
have the names that these functions ask for (`concurrencies`, `prompts`, `max_model_len` …)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from .. import environments, paths
from ..environments import Environment
from ..errors import ParameterError
from ..hardware import hosts
from ..hardware.hosts import Host
from ..loads import Load, datasets
from ..models.checkpoints import Model


@dataclass(frozen=True)
class Loaded:
    """Those values of a header that sections 3 and 5 share: server, loads, repeats.

    None leaves a value to the host's profile.
    """

    host: str = "auto"
    weights: str = "auto"
    concurrencies: list[int] | None = None
    prompts: list[int] | None = None
    output_tokens: int | None = None
    repeats: int | None = None
    dataset: str = "auto"
    temperature: float | None = None
    ignore_eos: bool = True
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float = 0.90
    kv_cache_gib: int = 1
    prefix_caching: bool = False
    enforce_eager: bool | None = None
    seed: int = 42
    port: int = 0
    fresh: bool = False


def filled(wanted, defaults: dict):
    """Parameters with the profile's defaults where the header leaves them to it (None)."""
    return replace(
        wanted,
        **{field.name: defaults.get(field.name) for field in fields(wanted) if getattr(wanted, field.name) is None},
    )


def refuse(wanted, section: int, name: str, allowed: str) -> None:
    """Raises ParameterError for the parameter `name`."""
    raise ParameterError(
        f"parameter {name} cannot be used",
        value=getattr(wanted, name),
        allowed=allowed,
        next=f"make plan SECTION={section}",
    )


def check_loads(wanted, section: int) -> None:
    """Raises ParameterError for loads, memory or ports that cannot be."""
    for name in ("concurrencies", "prompts"):
        if not getattr(wanted, name) or not all(value >= 1 for value in getattr(wanted, name)):
            refuse(wanted, section, name, "whole numbers of 1 or more")
    for name, allowed, fine in (
        ("concurrencies", "each value once", len(set(wanted.concurrencies)) == len(wanted.concurrencies)),
        (
            "prompts",
            f"one number for each of the concurrencies {wanted.concurrencies}",
            len(wanted.concurrencies) == len(wanted.prompts),
        ),
        (
            "prompts",
            "at least as many prompts as the concurrency",
            all(count >= concurrency for count, concurrency in zip(wanted.prompts, wanted.concurrencies, strict=False)),
        ),
        ("repeats", "1 or more", wanted.repeats >= 1),
        ("gpu_memory_utilization", "above 0, at most 1", 0 < wanted.gpu_memory_utilization <= 1),
        (
            "output_tokens",
            "4 or more, or None for the dataset's own lengths",
            wanted.output_tokens is None or wanted.output_tokens >= 4,
        ),
        ("kv_cache_gib", "1 or more", wanted.kv_cache_gib >= 1),
        ("port", "0 for any free port, or a port number", 0 <= wanted.port <= 65535),
    ):
        if not fine:
            refuse(wanted, section, name, allowed)


def environment(host: Host, dry: bool, say: Callable[[str], None]) -> Environment:
    """The engine's environment on this host; with `dry`, one that is not there yet is named and not made."""
    name = "vllm" if host.gpus else "vllm-cpu"
    if dry and not environments.has(name):
        return Environment(name, paths.ENVIRONMENTS / name / "bin" / "python", "", {})
    return environments.ensure(name, say)


def notes(environment: Environment) -> list[str]:
    """What a plan says of its environment."""
    return (
        [f"modified engine: vLLM {environment.vllm} with {', '.join(environment.modified)} changed"]
        if environment.modified
        else []
    )


def random_notes(found: Iterable[Model], lost: str) -> list[str]:
    """What a plan says of random weights: which models have them, whether as asked, and why not the real ones."""
    random = [model for model in found if model.weights == "random"]
    because = {model.name: model.random_because for model in random if model.random_because}
    if not random:
        return []
    why = "; ".join(f"{name} could not be fetched: {reason}" for name, reason in because.items())
    return [
        f"random weights: speed and memory are measured, {lost} ({why or ', '.join(model.name for model in random)})"
    ]


def data_notes(loads: Iterable[Load]) -> list[str]:
    """What a plan says of prompts that took the place of others."""
    reasons = {getattr(load.dataset, "in_place_because", None) for load in loads} - {None}
    return [f"the book's own prompts in ShareGPT's place, which could not be fetched: {why}" for why in sorted(reasons)]


def options(wanted, host: Host) -> dict:
    """The server's options that every section has."""
    found = {
        "max_model_len": wanted.max_model_len,
        "max_num_seqs": wanted.max_num_seqs,
        "seed": wanted.seed,
        "enable_prefix_caching": wanted.prefix_caching,
    }
    if host.gpus:
        found["gpu_memory_utilization"] = wanted.gpu_memory_utilization
    if not host.gpus and not hosts.computes_bf16():
        found["dtype"] = "float32"
    if wanted.enforce_eager:
        found["enforce_eager"] = True
    return found


def variables(wanted, host: Host) -> dict:
    """The server's environment variables that decide a result."""
    return {} if host.gpus else {"VLLM_CPU_KVCACHE_SPACE": wanted.kv_cache_gib}


def loads(
    wanted, host: Host, environment: Environment, dry: bool, say: Callable[[str], None], *, held_out: Path | None = None
) -> tuple[Load, ...]:
    """One load a concurrency, from the book's own prompts on a CPU and ShareGPT on a GPU unless the header names a data
    set.

    `held_out` is the file of prompts that a trained draft never saw: they take the place of the book's own, and are the
    data set `held-out`."""
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
        Load(concurrency, prompts, dataset, wanted.output_tokens, wanted.temperature, wanted.ignore_eos, wanted.seed)
        for concurrency, prompts in zip(wanted.concurrencies, wanted.prompts, strict=True)
    )


def resolved(wanted, host: Host) -> dict:
    """The parameters as run.json has them."""
    return {
        field.name: getattr(wanted, field.name) for field in fields(wanted) if field.name not in ("fresh", "port")
    } | {"host": host.profile}
