"""The book's sections that measure: their notebooks, their parameters, and the plan that parameters and host come to.

A notebook's `parameters` cell and `serving-study run SECTION --dry-run` both end in `plan`, so that what is printed
beforehand is what runs."""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .. import paths
from ..errors import ParameterError
from ..hardware import hosts
from ..measure.sweeps import Plan
from . import headers
from .cache_sizes import cache_sizes
from .choosing import choosing
from .drafts import distillation
from .how_speculation_works import rule_trials
from .hybrid import plan as hybrid
from .kv_cache import plan as kv_cache
from .parallelism import plan as parallelism
from .speculation import plan as speculation


@dataclass(frozen=True)
class Section:
    """A section with a notebook. `measures` is whether its cells are known beforehand; of one where they are not,
    `takes` is how long it runs.

    A second notebook of a section has an address after its subject (`7-sizes`) in place of the number.
    """

    number: int | str
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
    4: Section(
        4,
        "04-train-a-draft",
        "Training a draft",
        measures=False,
        takes="about half an hour: writing and training, then its servers; what stands already is not made again",
    ),
    5: Section(5, "05-parallelism", "Splitting a model over GPUs"),
    7: Section(7, "07-kv-cache", "KV cache: reuse and tiers"),
    "7-sizes": Section("7-sizes", "07-kv-cache-sizes", "KV cache sizes", measures=False, takes="about ten seconds"),
    "7-hybrid": Section("7-hybrid", "07-kv-cache-hybrid", "KV cache of hybrid models"),
    10: Section(10, "10-choosing", "Choosing a technique", measures=False, takes="some seconds"),
}
PLANS = {
    3: (speculation.Speculation, speculation.plan),
    5: (parallelism.Parallelism, parallelism.plan),
    7: (kv_cache.KvCache, kv_cache.plan),
    "7-hybrid": (hybrid.Hybrid, hybrid.plan),
}
MODEL_NAMES = {
    3: speculation.model_names,
    5: parallelism.model_names,
    7: kv_cache.model_names,
    "7-hybrid": hybrid.model_names,
}
PARAMETERS = {number: kind for number, (kind, _) in PLANS.items()}
HEADERS = PARAMETERS | {
    2: rule_trials.HowSpeculationWorks,
    4: distillation.Distillation,
    "7-sizes": cache_sizes.CacheSizes,
    10: choosing.Choosing,
}


def address(text: str) -> int | str:
    """`3`, or `7-sizes` as it is: what the other functions take. Raises ParameterError listing the sections."""
    found = next((key for key in SECTIONS if str(key) == text), int(text) if text.isdigit() else None)
    if found is None:
        raise ParameterError(
            "no such section", value=text, allowed=", ".join(map(str, SECTIONS)), next="serving-study sections"
        )
    return found


def get(number: int | str) -> Section:
    """The section `number`. Raises ParameterError listing those that have a notebook."""
    if number not in SECTIONS:
        raise ParameterError(
            "no notebook for section",
            value=number,
            allowed=", ".join(f"{section.number} ({section.title})" for section in SECTIONS.values()),
            next="make help",
        )
    return SECTIONS[number]


def header(section: Section) -> dict[str, Any]:
    """The values in the notebook's `parameters` cell, which holds literals alone."""
    kind = HEADERS.get(section.number)
    return headers.read(section.notebook, [field.name for field in fields(kind)] if kind else [])


def parameters(section: Section, given: dict[str, Any]) -> dict[str, Any]:
    """The header's values with `given` in their place, of the types that the plan declares: unknown names and values
    that cannot be one raise ParameterError.

    `true` and `false` are taken for truth values, as YAML writes them; a string of the header stays one.
    """
    values = header(section)
    unknown = [name for name in given if name not in values]
    if unknown:
        raise ParameterError(
            "unknown parameter",
            value=", ".join(map(str, unknown)),
            allowed=", ".join(values),
            next=f"make plan SECTION={section.number}",
        )
    if section.number not in HEADERS:
        return values | given
    kinds = typing.get_type_hints(HEADERS[section.number])
    return fitted(
        HEADERS[section.number], values | {name: _truth(value, kinds.get(name)) for name, value in given.items()}
    )


def of_header(number: int | str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Section `number`'s parameters as a notebook's header left them among its variables, checked.

    In a notebook: `sections.plan(3, **sections.of_header(3, globals()))`.
    """
    kind = HEADERS[number]
    return fitted(kind, {field.name: namespace[field.name] for field in fields(kind) if field.name in namespace})


def fitted(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values as the types of `kind`'s fields: 3.0 is 3 where a whole number is declared, a tuple is a list.

    Raises ParameterError for a name that `kind` does not have, and a value that cannot be of its type.
    """
    kinds, made = typing.get_type_hints(kind), {}
    for name, value in values.items():
        if name not in kinds:
            raise ParameterError("unknown parameter", value=name, allowed=", ".join(kinds))
        try:
            made[name] = _fitted(value, kinds[name])
        except TypeError:
            raise ParameterError(
                f"parameter {name} has the wrong type",
                value=f"{value!r} ({type(value).__name__})",
                allowed=_words(kinds[name]),
                next=f"-p {name}=VALUE, or -y '{{{name}: …}}' for lists",
            ) from None
    return made


def check(kind: type, values: dict[str, Any]) -> None:
    """Raises ParameterError for a value that cannot be of the type that the field declares."""
    fitted(kind, values)


def _fitted(value, kind):
    """The value as a `kind`; TypeError where it cannot be one."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        for part in sorted(parts, key=lambda part: part is not type(value)):  # its own type first
            try:
                return _fitted(value, part)
            except TypeError:
                pass
    elif origin is list and isinstance(value, list | tuple):
        return [_fitted(item, parts[0]) for item in value]
    elif origin is dict and isinstance(value, dict):
        return {_fitted(key, parts[0]): _fitted(item, parts[1]) for key, item in value.items()}
    elif kind in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        if kind is float or value == value // 1:
            return value if kind is float else int(value)
    elif origin is None and isinstance(value, kind) and kind not in (int, float):
        return value
    raise TypeError(value)


def _truth(value, kind):
    """A given `true` or `false` as a truth value, where one is declared and a string is not."""
    kinds = typing.get_args(kind) or (kind,)
    return {"true": True, "false": False}.get(value, value) if bool in kinds and isinstance(value, str) else value


def _words(kind, several: bool = False) -> str:
    """`a whole number or None`, `a list of whole numbers`: what a type allows."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_words(part, several) for part in parts)
    if origin is list:
        return f"{'lists' if several else 'a list'} of {_words(parts[0], True)}"
    if origin is dict:
        return f"{'mappings' if several else 'a mapping'} of {_words(parts[0], True)} to {_words(parts[1], True)}"
    names = {int: "a whole number", float: "a number", str: "a string"}
    if kind in names:
        return f"{names[kind][2:]}s" if several else names[kind]
    return {bool: "True or False", type(None): "None"}.get(kind, str(kind))


def plan(number: int | str, *, dry: bool = False, say: Callable[[str], None] = print, **given) -> Plan:
    """What section `number` will measure with these parameters on this machine.

    With `dry`, nothing is installed, fetched or made: what is not there yet is planned from its name and shape.
    """
    if number not in PLANS:
        raise ParameterError("this section measures nothing", value=number, allowed=", ".join(map(str, PLANS)))
    kind, made = PLANS[number]
    wanted = kind(**fitted(kind, given))
    return made(wanted, hosts.detect(wanted.host), dry=dry, say=say)
