"""The notebooks' sources and the published chapters: what the book's rules say about them."""

import json
import re
from dataclasses import fields

import pytest

from serving_study import paths, sections
from serving_study.plans import speculation

SOURCES = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
CHAPTERS = sorted(paths.SECTIONS.glob("*.ipynb"))


def cells(file):
    return json.loads(file.read_text())["cells"]


def code(file):
    return [cell for cell in cells(file) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_a_source_has_no_outputs_and_few_lines(file):
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code(file))
    assert sum(len("".join(cell["source"]).splitlines()) for cell in code(file)) <= 120
    assert not re.search(
        r"^\s*(def |class |!pip)", "\n".join("".join(cell["source"]) for cell in code(file)), re.MULTILINE
    )


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_every_parameter_has_a_comment(file):
    [header] = [cell for cell in code(file) if "parameters" in cell["metadata"].get("tags", [])]
    assert all(re.fullmatch(r"\w+ = .+  # .+", line) for line in "".join(header["source"]).splitlines())


def test_the_header_of_section_3_is_the_plans():
    assert set(sections.header(sections.get(3))) == {field.name for field in fields(speculation.Speculation)}


@pytest.mark.parametrize("file", CHAPTERS, ids=lambda file: file.stem)
def test_a_chapter_ran_to_its_end_and_is_of_its_source(file):
    assert not [output for cell in code(file) for output in cell["outputs"] if output["output_type"] == "error"]
    source = {"".join(cell["source"]) for cell in cells(paths.NOTEBOOKS / file.name)}
    changed = [
        cell
        for cell in cells(file)
        if "".join(cell["source"]) not in source and "injected-parameters" not in cell["metadata"].get("tags", [])
    ]
    assert not changed, f"{file.name} is not of its source as it is now; next: make run SECTION={int(file.name[:2])}"
