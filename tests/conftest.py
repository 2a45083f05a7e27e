"""Folders of their own for every test that writes, and the fake engine; fixtures only, none of them automatic."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import fake_study
import psutil
import pytest

from serving_study import paths
from serving_study.measure import sweep
from serving_study.servers import preflight


def pytest_configure(config):
    """A run of the reader's own under data/results is no part of the published study that tests hold figures of."""

    def listed(*which: str) -> list[str]:
        command = ["git", "-C", str(paths.ROOT), "ls-files", "-z", *which, "--", "data/results"]
        return subprocess.run(command, capture_output=True, text=True).stdout.split("\0")[:-1]

    if not listed("--others", "--exclude-standard"):  # no checkout of git, or nothing was measured in it
        return
    folder = Path(tempfile.mkdtemp(prefix="published-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    for name in listed():
        file = folder / Path(name).relative_to("data/results")
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(paths.ROOT / name, file)
    paths.RESULTS_PUBLISHED = paths.RESULTS = folder


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    """An empty results folder in place of data/results."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache in place of .cache."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


class Study:
    """A fake engine and load generator, and the journal of what happened in them."""

    def __init__(self, folder: Path, journal: Path, engine: str):
        self.folder, self.journal, self.engine, self.fake = folder, journal, engine, fake_study.FAKES[engine]

    def arm(self, name: str, **about):
        return fake_study.arm(self.folder / "models", name, engine=self.engine, **about)

    plan = staticmethod(fake_study.plan)

    def harness(self, arms: list[dict], **plan) -> subprocess.Popen:
        """A harness in a process of its own."""
        file = self.folder / "specification.json"
        arms = [{"engine": self.engine} | arm for arm in arms]
        file.write_text(json.dumps({"models": str(self.folder / "models"), "arms": arms, "plan": plan}))
        variables = {
            **os.environ,
            "SERVING_STUDY_RESULTS": str(self.folder / "results"),
            "SERVING_STUDY_CACHE": str(self.folder / "cache"),
        }
        return subprocess.Popen(
            [sys.executable, fake_study.__file__, file],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def events(self, *kinds: str) -> list[dict]:
        """What the fakes noted down, of these kinds, in order."""
        lines = self.journal.read_text().splitlines() if self.journal.is_file() else []
        return [event for event in map(json.loads, lines) if not kinds or event["event"] in kinds]

    def processes(self) -> set[int]:
        """Every process that a fake ever was or started."""
        return {
            event["child"] if event["event"] == "child" else event["pid"]
            for event in self.events("server", "child", "worker")
        }

    def alive(self) -> set[int]:
        return {pid for pid in self.processes() if is_alive(pid)}

    def wardens(self) -> list[int]:
        """Wardens whose log lies in this test's folder."""
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if any(word.endswith("warden.py") for word in words) and any(str(self.folder) in word for word in words):
                found.append(process.pid)
        return found

    def assert_nothing_left(self, within_s: float = 20) -> None:
        """No server, child, worker or warden of ours lives, and the ports are free; waits for those still ending."""
        deadline = time.monotonic() + within_s
        while (self.alive() or self.wardens()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not self.alive(), [psutil.Process(pid).cmdline() for pid in self.alive()]
        assert not self.wardens()
        for event in self.events("server"):
            preflight.check_port(event["port"])


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def engine(request) -> str:
    """Which of the fake engines a test has; `fake_study.both` is for those that have each in its turn."""
    return getattr(request, "param", "fake")


@pytest.fixture
def foreign(engine):
    """The port of another job's server."""
    with fake_study.foreign(engine) as port:
        yield port


@contextmanager
def fakes(folder: Path, patch: pytest.MonkeyPatch, engine: str = "fake"):
    """The fake engines registered, arms being of `engine`, results and cache in `folder`; afterwards nothing of it may
    be left running.
    """
    patch.setattr(paths, "RESULTS", folder / "results")
    patch.setattr(paths, "CACHE", folder / "cache")
    patch.setenv("JOURNAL", str(folder / "journal.jsonl"))
    patch.setenv("SERVING_STUDY_PROGRESS", os.devnull)
    fake_study.register(patch.setattr, patch.setitem)
    study = Study(folder, folder / "journal.jsonl", engine)
    yield study
    study.assert_nothing_left()


@pytest.fixture
def study(tmp_path, results, cache, monkeypatch, engine):
    """The fakes, in a folder of this test's own."""
    with fakes(tmp_path, monkeypatch, engine) as study:
        yield study


@pytest.fixture(scope="module")
def measured(tmp_path_factory, engine) -> Path:
    """A results folder in which the arm `first` is measured, three cells of it, once for all tests of a module."""
    with pytest.MonkeyPatch.context() as patch, fakes(tmp_path_factory.mktemp("measured"), patch, engine) as study:
        sweep.run(study.plan([study.arm("first")], repeats=3))
        return paths.RESULTS


@pytest.fixture
def checkout(tmp_path):
    """A copy of the tree with results of its own; environments and models are shared."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("notebooks", "book", "data", "env", "_toc.yml", "_config.yml"):
        source = paths.ROOT / name
        shutil.copytree(
            source, root / name, ignore=shutil.ignore_patterns("cpu-*")
        ) if source.is_dir() else shutil.copy(source, root / name)
    (root / ".venv").symlink_to(paths.ENVIRONMENTS)
    return root
