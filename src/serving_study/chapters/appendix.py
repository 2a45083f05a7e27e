"""The book's appendix: every section's parameters, a table each, written from their models.

python -c "from serving_study.chapters import appendix; appendix.write()"
"""

import typing
from pathlib import Path

from .. import paths
from . import parameters, sections
from .section import Section

PAGE = "parameters.md"
LONGEST_LIST = 6  # values of a default that are shown; of a longer one, how many there are
INTRODUCTION = """\
# Parameters

Each notebook's header holds these, and `serving-study run 3 -p repeats=2` sets one for a run. `None` leaves a
value to the profile of the host, whose own value stands behind it. This page is written from the models that check the
headers.
"""


def page() -> str:
    """The page in Markdown: a heading and a table a section."""
    return "\n".join([INTRODUCTION, *("\n".join(_table(section)) for section in sections.SECTIONS.values())])


def write() -> Path:
    """Write the book's page; a current one stays untouched."""
    file = paths.BOOK / PAGE
    if not file.is_file() or file.read_text(encoding="utf-8") != page():
        file.write_text(page(), encoding="utf-8")
    return file


def _table(section: Section) -> list[str]:
    model = section.parameters
    hints = typing.get_type_hints(model)
    rows = [
        (
            f"`{name}`",
            parameters.words(hints[name]),
            _allowed(section, name),
            _default(section, name),
            field.description,
        )
        for name, field in model.model_fields.items()
    ]
    heading = [
        f"## {section.number}: {section.title}",
        "",
        "{.parameters}",
        "| name | type | allowed | default | meaning |",
    ]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return [*heading, "| --- | --- | --- | --- | --- |", *lines, ""]


def _allowed(section: Section, name: str) -> str:
    return parameters.allowed(section.parameters, name) or "any"


def _default(section: Section, name: str) -> str:
    """The header's value; where that is None, those of the profiles."""
    value = section.parameters.model_fields[name].default
    own = [
        f"{profile}: {_shown(values[name])}"
        for profile, values in section.parameters.profiles.items()
        if value is None and values.get(name) is not None
    ]
    return "; ".join([_shown(value), *own])


def _shown(value: object) -> str:
    return f"{len(value)} values" if isinstance(value, list) and len(value) > LONGEST_LIST else f"`{value!r}`"
