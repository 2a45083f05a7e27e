"""The registry of the book's sections, and their parameters and plans by number. A chapter's folder is all that it
takes to be in it.

A notebook's `parameters` cell and `serving-study run SECTION --dry-run` both end in `plan`, so what is printed
beforehand is what runs:

    plan = sections.plan(3, globals())
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from .. import chapters
from ..errors import ParameterError
from ..hardware import hosts
from ..measure.plan import Plan
from . import headers
from .parameters import Parameters
from .section import Section


def found() -> dict[int | str, Section]:
    """Every chapter's own record by its number, in the numbers' order; a section's further notebooks come after its
    first.
    """
    folders = (module.name for module in pkgutil.iter_modules(chapters.__path__) if module.ispkg)
    records = [importlib.import_module(f"{chapters.__name__}.{folder}").SECTION for folder in folders]
    return {section.number: section for section in sorted(records, key=Section.place)}


SECTIONS = found()


def address(text: str) -> int | str:
    """`3` as a number, `7-sizes` as it is. Raises ParameterError listing the sections."""
    number = next((number for number in SECTIONS if str(number) == text), int(text) if text.isdigit() else None)
    if number is None:
        raise ParameterError(
            "no such section", value=text, allowed=", ".join(map(str, SECTIONS)), next="serving-study sections"
        )
    return number


def get(number: int | str) -> Section:
    """The section `number`. Raises ParameterError listing those with a notebook."""
    if number not in SECTIONS:
        raise ParameterError(
            "no notebook for section",
            value=number,
            allowed=", ".join(f"{section.number} ({section.title})" for section in SECTIONS.values()),
            next="make help",
        )
    return SECTIONS[number]


def header(section: Section) -> dict[str, Any]:
    """The values in the notebook's `parameters` cell."""
    return headers.read(section.notebook, section.parameters.model_fields)


def parameters(section: Section, given: dict[str, Any]) -> dict[str, Any]:
    """The header's values with `given` in their place, checked; strings `true` and `false` in `given` are truth values.

    Raises ParameterError for unknown names and unusable values."""
    values = header(section)
    unknown = [name for name in given if name not in values]
    if unknown:
        raise ParameterError(
            "unknown parameter",
            value=", ".join(map(str, unknown)),
            allowed=", ".join(values),
            next=f"make plan SECTION={section.number}",
        )
    checked = section.parameters(**values | section.parameters.spoken(given))
    return {name: getattr(checked, name) for name in values}


def of_header(number: int | str, namespace: Mapping[str, Any]) -> Parameters:
    """Section `number`'s parameters among a notebook's variables: `of_header(2, globals())`."""
    return get(number).parameters.named(namespace)


def plan(
    number: int | str,
    namespace: Mapping[str, Any] | None = None,
    *,
    dry: bool = False,
    say: Callable[[str], None] = print,
    **given,
) -> Plan:
    """What section `number` will measure on this machine with the parameters among a notebook's variables, or `given`.

    With `dry` nothing is installed, fetched or made: what is missing is planned from its name and shape."""
    section = SECTIONS.get(number)
    if not section or not section.measures:
        measuring = [str(other.number) for other in SECTIONS.values() if other.measures]
        raise ParameterError("this section measures nothing", value=number, allowed=", ".join(measuring))
    wanted = section.parameters(**given) if namespace is None else of_header(number, namespace).replaced(**given)
    return section.plan(wanted, hosts.detect(wanted.host), dry=dry, say=say)
