"""Folders with a space or colon in their names, from the checkout to a server's processes, and a HOME of nobody's."""

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_study
import psutil
import pytest
from conftest import fakes
from fake_study import cells, starts

from serving_study import engines, files, paths
from serving_study.engines import vllm
from serving_study.environments import Environment
from serving_study.measure import sweep
from serving_study.results import store
from serving_study.servers import lifetime

TESTS = Path(__file__).parents[1]


class Preloading(fake_study.FakeEngine):
    """The fake engine with the real one's variables."""

    def environment(self, arm, host, python):
        return vllm.environment(arm, host, python) | super().environment(arm, host, python)


@pytest.fixture
def spaced(tmp_path, monkeypatch):
    """Results, cache and models below a folder with a space."""
    with fakes(tmp_path / "a folder, with a space", monkeypatch) as study:
        study.folder.mkdir()
        yield study


@pytest.fixture
def interpreter(tmp_path) -> Environment:
    """An engine's environment below a folder with a space and a colon; its OpenMP is the system's mathematics."""
    there = (
        next(Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "/libm.so" in line)
        if "/libm.so" in Path("/proc/self/maps").read_text()
        else Path(ctypes.util.find_library("m"))
    )
    folder = tmp_path / "of an engine: its own"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    shutil.copy(there, folder / "lib" / "libiomp5.so")
    return Environment("fake", folder / "bin" / "python", "3.11", {"vllm": "0.32.0"})


def test_the_library_is_loaded_into_the_server(spaced, interpreter, monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "fake", Preloading())
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    plan = replace(spaced.plan([spaced.arm("good")]), environment=interpreter)
    with lifetime.serve(plan.arms[0], plan.host, plan.environment_of, spaced.folder / "log") as server:
        maps = Path(f"/proc/{server.pid}/maps").read_text()
        command = psutil.Process(server.pid).cmdline()
    assert str(interpreter.python.parent.parent / "lib" / "libiomp5.so") in maps
    assert command[0] == str(interpreter.python)
    assert "cannot be preloaded" not in server.log.read_text()
    first = server.log.read_text().splitlines()[0]
    assert first.startswith("$ '") and "of an engine: its own" in first


def test_a_sweep_below_a_folder_with_a_space(spaced, interpreter, monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "fake", Preloading())
    arms = [
        spaced.arm("good"),
        spaced.arm("two", replicas=2).variant(environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
        spaced.arm("pair", sidecar={"chunk_size": 128}),
        spaced.arm("tier").variant(scratch=True),
    ]
    results = sweep.run(replace(spaced.plan(arms), environment=interpreter))
    assert {arm: record["outcome"] for arm, record in starts(results).items()} == dict.fromkeys(
        ("good", "two", "pair", "tier"), "ok"
    )
    assert {cell["certificate"]["verdict"] for cell in cells(results).values()} == {"pass"} and len(cells(results)) == 4
    for file in results.store.folder.rglob("start.json"):
        assert str(spaced.folder) not in json.dumps(files.read(file)["command"])


def test_a_checkout_in_a_folder_with_a_space(study, tmp_path):
    """The harness itself lies there, with the programs that it starts."""
    checkout = tmp_path / "a checkout"
    for name in ("src", "tests"):
        shutil.copytree(TESTS.parent / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"))
    shutil.copytree(paths.DATA / "prompts", checkout / "data" / "prompts")
    shutil.copytree(paths.NOTEBOOKS, checkout / "notebooks")
    specification = checkout / "specification.json"
    arms = [{"name": "good"}, {"name": "two", "replicas": 2}, {"name": "pair", "sidecar": {"chunk_size": 128}}]
    specification.write_text(json.dumps({"models": str(checkout / "models"), "arms": arms, "plan": {}}))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SERVING_STUDY_")}
    variables |= {"PYTHONPATH": str(checkout / "src"), "SERVING_STUDY_PROGRESS": os.devnull}
    code = "import runpy, sys; import serving_study; print(serving_study.__file__); sys.argv = sys.argv[1:]; "
    code += "sys.path.insert(0, sys.argv[0].rsplit('/', 1)[0]); runpy.run_path(sys.argv[0], run_name='__main__')"
    words = [sys.executable, "-c", code, checkout / "tests" / "fake_study.py", specification]
    run = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.startswith(str(checkout))
    known = store.Store(fake_study.HOST.name, 3, checkout / "data" / "results")
    assert {files.read(file)["certificate"]["verdict"] for file in known.cell_files()} == {"pass"}
    assert len(known.cell_files()) == 3


def test_a_server_of_a_user_without_a_home_keeps_its_caches_with_us(study, monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "fake", Preloading())
    for name in vllm.CACHES:
        monkeypatch.delenv(name, raising=False)
    nowhere = study.folder / "file"
    nowhere.touch()
    monkeypatch.setenv("HOME", str(nowhere / "nobody"))
    plan = study.plan([study.arm("good")])
    with lifetime.serve(plan.arms[0], plan.host, plan.environment_of, study.folder / "log") as server:
        variables = psutil.Process(server.pid).environ()
    assert variables["XDG_CACHE_HOME"] == str(paths.CACHE / "engine" / "xdg_cache_home")
    assert variables["HF_HOME"].startswith(str(paths.CACHE))
