"""The book's sections that measure: their notebooks, their parameters, and the plan that parameters and host come to.

A notebook's `parameters` cell and `serving-study run SECTION --dry-run` both end in `plan`, so that what is printed
beforehand is what runs."""

import ast
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from . import cache_sizes, choosing, distillation, hosts, paths, rule_trials
from .errors import ParameterError
from .plans import hybrid, kv_cache, parallelism, speculation
from .sweeps import Plan


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
    import papermill

    values = {}
    for name, about in papermill.inspect_notebook(str(section.notebook)).items():
        try:
            values[name] = ast.literal_eval(about["default"])
        except (ValueError, SyntaxError):
            raise ParameterError(
                f"the parameters cell of {section.notebook.name} may hold literals only",
                value=f"{name} = {about['default']}",
                next=f"edit {section.notebook}",
            ) from None
    return values


def parameters(section: Section, given: dict[str, Any]) -> dict[str, Any]:
    """The header's values with `given` in their place, checked: unknown names and wrong types raise ParameterError."""
    values = header(section)
    unknown = [name for name in given if name not in values]
    if unknown:
        raise ParameterError(
            "unknown parameter",
            value=", ".join(unknown),
            allowed=", ".join(values),
            next=f"make plan SECTION={section.number}",
        )
    values |= given
    if section.number in HEADERS:
        check(HEADERS[section.number], values)
    return values


def of_header(number: int | str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Section `number`'s parameters as a notebook's header left them among its variables, checked.

    In a notebook: `sections.plan(3, **sections.of_header(3, globals()))`.
    """
    kind = HEADERS[number]
    values = {field.name: namespace[field.name] for field in fields(kind) if field.name in namespace}
    check(kind, values)
    return values


def check(kind: type, values: dict[str, Any]) -> None:
    """Raises ParameterError for a value whose type is not the one that the field declares."""
    wanted = typing.get_type_hints(kind)
    for name, value in values.items():
        if name not in wanted:
            raise ParameterError("unknown parameter", value=name, allowed=", ".join(wanted))
        if not _fits(value, wanted[name]):
            raise ParameterError(
                f"parameter {name} has the wrong type",
                value=f"{value!r} ({type(value).__name__})",
                allowed=str(wanted[name]).replace("<class '", "").replace("'>", ""),
                next=f"-p {name} VALUE, or -y '{{{name}: …}}' for lists",
            )


def _fits(value, kind) -> bool:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in typing.get_args(kind))
    if origin is list:
        return isinstance(value, list | tuple) and all(_fits(item, typing.get_args(kind)[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, typing.get_args(kind)[0]) and _fits(item, typing.get_args(kind)[1])
            for key, item in value.items()
        )
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind if kind is not type(None) else type(None))


def plan(number: int | str, *, dry: bool = False, say: Callable[[str], None] = print, **given) -> Plan:
    """What section `number` will measure with these parameters on this machine.

    With `dry`, nothing is installed, fetched or made: what is not there yet is planned from its name and shape.
    """
    if number not in PLANS:
        raise ParameterError("this section measures nothing", value=number, allowed=", ".join(map(str, PLANS)))
    kind, made = PLANS[number]
    check(kind, given)
    wanted = kind(**given)
    return made(wanted, hosts.detect(wanted.host), dry=dry, say=say)
