"""The gate: what `.ci/run` does in which order, what it says of tests that needed a second run, and what is linted."""

import json
import os
import re
import shutil
import subprocess

import pytest

from serving_study import paths

MAKE = """#!/usr/bin/env bash
echo "make $*" >> calls
place=$(wc -l < calls)
if [ -f "failed-$place" ]; then mkdir -p .pytest_cache/v/cache; cp "failed-$place" .pytest_cache/v/cache/lastfailed; fi
if [ -f "passed-$place" ]; then rm -f .pytest_cache/v/cache/lastfailed; fi
exit "$(cat "exit-$place" 2>/dev/null || echo 0)"
"""
AGAIN = "make test ARGS=--last-failed --last-failed-no-failures none"
ONE, TWO = 'tests/unit/test_a.py::test_one[a b-"c"]', "tests/integration/test_b.py::test_two"


@pytest.fixture
def ci(tmp_path):
    """A function that runs `.ci/run` over a `make` whose calls end as given: an exit code, and what failed so far."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(paths.ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "make").write_text(MAKE)
    (tmp_path / "bin" / "make").chmod(0o755)

    def run(*ends):
        for place, (code, failed) in enumerate(ends, 1):
            (tmp_path / f"exit-{place}").write_text(str(code))
            if failed:
                names = json.dumps(dict.fromkeys(failed, True), indent=2)  # as pytest's cache writes it
                (tmp_path / f"failed-{place}").write_text(names)
            elif failed is not None:
                (tmp_path / f"passed-{place}").touch()
        done = subprocess.run(
            [tmp_path / ".ci" / "run"],
            env=os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, (tmp_path / "calls").read_text().splitlines()

    return run


def test_lint_comes_first_and_ends_it(ci):
    assert ci((2, None)) == (2, "", ["make lint"])


def test_all_that_passes_runs_once(ci):
    assert ci((0, None), (0, ())) == (0, "", ["make lint", "make test"])


def test_what_passed_the_second_time_is_named(ci):
    code, said, calls = ci((0, None), (2, (ONE, TWO)), (0, ()))
    assert code == 0 and calls == ["make lint", "make test", AGAIN]
    shown = json.dumps(ONE)[1:-1]
    assert said == f"\nneeded a second run:\n  {shown}\n  {TWO}\n"


def test_what_failed_twice_fails(ci):
    code, said, _ = ci((0, None), (2, (ONE, TWO)), (2, (TWO,)))
    assert code == 2 and said.endswith(f"  {TWO}\nfailed twice:\n  {TWO}\n")
    assert said.count("test_one") == 1


def test_a_test_run_that_failed_without_a_test_fails(ci):
    code, said, _ = ci((0, None), (2, None), (5, None))
    assert code == 5 and said == "\nneeded a second run:\n  no test: make test itself failed\n"


def test_failures_of_an_earlier_day_are_forgotten(ci, tmp_path):
    (tmp_path / ".pytest_cache/v/cache").mkdir(parents=True)
    (tmp_path / ".pytest_cache/v/cache/lastfailed").write_text('{\n  "tests/unit/test_old.py::test_old": true\n}')
    _, said, _ = ci((0, None), (2, None), (5, None))
    assert "test_old" not in said


def linted():
    return re.search(r"^LINTED := (.+)$", (paths.ROOT / "Makefile").read_text(), re.M)[1].split()


def test_every_source_of_this_checkout_is_linted():
    folders = [paths.ROOT / name for name in linted()]
    left = [
        file.relative_to(paths.ROOT)
        for kind in ("*.py", "*.ipynb")
        for file in paths.ROOT.rglob(kind)
        if not any(part.startswith((".", "_build")) for part in file.relative_to(paths.ROOT).parts)
        and not any(file.is_relative_to(folder) for folder in folders)
        and not file.is_relative_to(paths.SECTIONS)  # written by `make run` alone
    ]
    assert linted()[0] == "src" and not left


@pytest.mark.parametrize("check", [["format", "--check"], ["check"]], ids=" ".join)
def test_the_style_holds(check):
    done = subprocess.run(
        [paths.ROOT / ".venv/harness/bin/ruff", *check, *linted()], cwd=paths.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def imports(folder):
    """`lint-imports` over the package `serving_study` below `folder`: its exit code and what it says."""
    done = subprocess.run(
        [paths.ROOT / ".venv/harness/bin/lint-imports", "--no-logo", "--no-cache"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_no_line_is_wider_than_the_style_allows():
    """Comments and pragmas included, which ruff leaves out of a line's width where they stand alone or end it."""
    wide = [
        f"{file.relative_to(paths.ROOT)}:{number}"
        for folder in ("src", "tests", "benchmarks")
        for file in sorted((paths.ROOT / folder).rglob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert not wide


def test_no_package_has_more_than_eight_modules():
    source = paths.ROOT / "src" / "serving_study"
    modules = {
        folder: [file for file in folder.glob("*.py") if file.name != "__init__.py"] for folder in source.rglob("*/")
    }
    assert {str(folder): len(own) for folder, own in modules.items() if len(own) > 8} == {}


def test_no_room_looks_into_one_below_it():
    code, said = imports(paths.ROOT)
    assert code == 0, said


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        (
            "loads/__init__.py",
            "from ..theory import capacity",
            "serving_study.loads is not allowed to import serving_study.theory",
        ),
        (
            "chapters/hybrid/plan.py",
            "from ..parallelism import plan as parallelism",
            "serving_study.chapters.hybrid is not allowed to import serving_study.chapters.parallelism",
        ),
        (
            "engine_side/fetch.py",
            "from serving_study import paths",
            "serving_study.engine_side is not allowed to import serving_study",
        ),
        ("models/states.py", "from . import shapes", "No cycles are allowed in serving_study.models"),
    ],
    ids=["upwards", "across chapters", "out of the engine's environment", "in a circle"],
)
def test_an_import_that_looks_the_wrong_way_is_caught(tmp_path, file, line, broken):
    shutil.copy(paths.ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(paths.ROOT / "src" / "serving_study", tmp_path / "src" / "serving_study")
    with open(tmp_path / "src" / "serving_study" / file, "a") as module:
        module.write(f"\n{line}\n")
    code, said = imports(tmp_path)
    assert code == 1 and broken in " ".join(said.split())


def test_a_notebooks_cell_may_be_as_wide_as_a_page(tmp_path):
    shutil.copy(paths.ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(paths.ROOT / "notebooks" / "ruff.toml", tmp_path / "notebooks")
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "id": "a"}
    for width in (100, 101):
        source = f'x = "{("word " * 30)[: width - 6]}"'
        book = {"cells": [cell | {"source": [source]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / "notebooks" / f"{width}.ipynb").write_text(json.dumps(book))
    done = subprocess.run(
        [paths.ROOT / ".venv/harness/bin/ruff", "check", "notebooks", "--output-format", "concise"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "Line too long (101 > 100)" in done.stdout and "100.ipynb" not in done.stdout
    assert not (tmp_path / "notebooks" / ".ruff_cache").exists()
