"""The notebooks' sources and the published chapters: what the book's rules say about them."""

import ast
import importlib
import json
import re

import pytest

from serving_study import paths
from serving_study.chapters import sections

SOURCES = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
CHAPTERS = sorted(paths.SECTIONS.glob("*.ipynb"))


def cells(file):
    return json.loads(file.read_text())["cells"]


def code(file):
    return [cell for cell in cells(file) if cell["cell_type"] == "code"]


def lines(file):
    return [line for cell in code(file) for line in "".join(cell["source"]).splitlines()]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_a_source_has_no_outputs_and_few_lines(file):
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code(file))
    assert len(lines(file)) <= 120
    assert not [line for line in lines(file) if len(line) > 100]
    assert not re.search(r"^\s*(async |def |class |!pip)", "\n".join(lines(file)), re.M)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_what_prose_takes_is_glued_by_one_call(file):
    assert not [line for line in lines(file) if "myst_nb" in line or re.search(r"(?<!prose\.)\bglue\(", line)]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_what_a_notebook_calls_is_in_the_package(file):
    """An import or `module.name` that is not there would stop a run at that cell, after what it has measured."""
    tree = ast.parse("\n".join("" if line.startswith(("%", "!")) else line for line in lines(file)))
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("serving_study"):
            for alias in node.names:
                modules[alias.asname or alias.name] = importlib.import_module(f"{node.module}.{alias.name}")
    called = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }
    assert called and not [f"{module}.{name}" for module, name in called if not hasattr(modules[module], name)]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.stem)
def test_every_parameter_has_a_comment_where_it_ends(file):
    [header] = [cell for cell in code(file) if "parameters" in cell["metadata"].get("tags", [])]
    source = "".join(header["source"])
    ends = [source.splitlines()[statement.end_lineno - 1] for statement in ast.parse(source).body]
    assert ends and all(re.fullmatch(r".+  # .+", line) for line in ends)


@pytest.mark.parametrize("number", sections.SECTIONS, ids=str)
def test_the_header_is_the_plans(number):
    section = sections.get(number)
    values, model = sections.header(section), section.parameters
    assert values == model().values()
    [header] = [cell for cell in code(section.notebook) if "parameters" in cell["metadata"].get("tags", [])]
    source = "".join(header["source"])
    for statement in ast.parse(source).body:
        comment = source.splitlines()[statement.end_lineno - 1].split("  # ", 1)[1]
        assert comment == model.model_fields[statement.targets[0].id].description


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
