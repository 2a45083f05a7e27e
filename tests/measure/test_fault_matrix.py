"""The fault matrix: every row of data/faults.csv is planted in a real sweep, and must come out as the row says.

Three arms of three cells each. The first is measured and stored. The fault is planted as the second cell of the second
arm begins (or before that arm starts), while the third arm's server waits beside. Whatever the fault: what was stored
is the same, byte for byte; nothing of ours runs on; what the row names has caught it; the figure is withheld where it
must be; and the next run, without the fault, measures what is missing and nothing else. The details of single faults
are in test_faults.py."""

import builtins
import csv
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_study import cells, failed, foreign, starts, wait_for

from serving_study import loads, paths
from serving_study.analysis import comparisons
from serving_study.errors import StoreError
from serving_study.measure import sweeps
from serving_study.servers import client, fleet, preflight

pytestmark = pytest.mark.alone

with open(paths.DATA / "faults.csv", newline="") as _file:
    ROWS = {row["fault"]: row for row in csv.DictReader(_file)}
PROMPTS, REPEATS, HUNG_S = 8, 3, 1.0
FULL_DISK_GIB = 0.24  # a little more than a server's start asks for


class Scene:
    """The three arms, what is planted, and what was stored when that happened."""

    def __init__(self, study, monkeypatch, k: int, ranks: int):
        self.study, self.monkeypatch = study, monkeypatch
        self.arms = [
            {"name": "first"},
            {"name": "second", "k": k} | ({"tensor_parallel_size": ranks} if ranks > 1 else {}),
            {"name": "third"},
        ]
        self.plan = study.plan([study.arm(**about) for about in self.arms], repeats=REPEATS)
        self.switch = study.folder / "switch.json"
        monkeypatch.setenv("SWITCH", str(self.switch))
        self.planted, self.stored = ExitStack(), {}

    def cells(self, arm: str) -> list[sweeps.Cell]:
        """The arm's cells, in the order in which they are measured."""
        return self.plan.cells(next(found for found in self.plan.arms if found.name == arm))

    @property
    def hit(self) -> sweeps.Cell:
        return self.cells("second")[1]

    def only(self, *arms: str) -> sweeps.Plan:
        return self.study.plan([arm for arm in self.plan.arms if arm.name in arms], repeats=REPEATS)

    def remember(self) -> None:
        """Keep every stored cell's bytes, its requests' records included."""
        self.stored |= {file: file.read_bytes() for file in paths.RESULTS.rglob("repeat=*.json")}

    def loads(self) -> int:
        """Loads driven so far, warm-ups left out."""
        return sum(event["prompts"] == PROMPTS for event in self.study.events("load"))


@dataclass(frozen=True)
class Check:
    """Caught by these checks of the cell's certificate, and by no other."""

    names: tuple[str, ...]

    def words(self) -> str:
        return f"certificate: {', '.join(f'`{name}`' for name in self.names)}"

    def verify(self, scene, results, error) -> None:
        cell = cells(results)["second", 2, scene.hit.repeat]
        assert (error, cell["certificate"]["verdict"], tuple(failed(cell))) == (None, "fail", self.names)


@dataclass(frozen=True)
class Record:
    """Caught before or during the load, and said in the arm's start record; `recovered` where the second start went
    well.
    """

    reason: str
    recovered: bool = False

    def words(self) -> str:
        return (
            f"start record: `{'ok' if self.recovered else 'failed'}`, "
            f"«{self.reason}»{', started once more' if self.recovered else ''}"
        )

    def verify(self, scene, results, error) -> None:
        record = starts(results)["second"]
        assert error is None and record["outcome"] == ("ok" if self.recovered else "failed")
        assert self.reason in (record["lost_cells"][0]["reason"] if self.recovered else record["reason"])
        assert starts(results)["third"]["outcome"] == "ok" or self.reason in starts(results)["third"]["reason"]


@dataclass(frozen=True)
class Raised:
    """Caught by an error that ends the run."""

    what: str
    kind: type[Exception] = StoreError

    def words(self) -> str:
        return f"`{self.kind.__name__}`: «{self.what}»"

    def verify(self, scene, results, error) -> None:
        assert type(error) is self.kind and self.what in str(error)


@dataclass(frozen=True)
class Warden:
    """Nobody is left to say anything: the warden ends what runs on."""

    def words(self) -> str:
        return "warden"

    def verify(self, scene, results, error) -> None:
        assert error is None  # that nothing runs on is asserted for every fault


def switched(fault: str, who: str = "second", after: int = -1):
    """A fault of the fake engine or of the fake load generator."""

    @contextmanager
    def plant(scene, server):
        beside = scene.switch.with_suffix(".tmp")
        beside.write_text(json.dumps({"who": who, "fault": fault, "after": after}))
        os.replace(beside, scene.switch)
        try:
            yield
        finally:
            scene.switch.unlink()

    return plant


def killed(scene, server):
    os.kill(server.pid, signal.SIGKILL)
    return nullcontext()


@contextmanager
def anothers_port(scene, server):
    """The second arm's server is given the port on which another job's server answers, and never listens itself."""
    launch, free_port = fleet.launch, preflight.free_port
    with foreign() as port, switched("silent")(scene, server), scene.monkeypatch.context() as patch:

        def launch_there(arm, *positional, **named):
            patch.setattr(preflight, "free_port", (lambda: port) if arm.name == "second" else free_port)
            return launch(arm, *positional, **named)

        patch.setattr(fleet, "launch", launch_there)
        yield


@contextmanager
def refusing(scene, number: int):
    """The outermost edge, where no file system can be mounted: opening a file of the results for writing fails."""
    real = builtins.open

    def refuse(file, mode="r", *rest, **named):
        if set(mode) & set("wax+") and Path(str(file)).is_relative_to(paths.RESULTS):
            raise OSError(number, os.strerror(number), str(file))
        return real(file, mode, *rest, **named)

    with scene.monkeypatch.context() as patch:
        patch.setattr(builtins, "open", refuse)
        yield


def mount(*words) -> bool:
    return subprocess.run(["mount", *map(str, words)], capture_output=True).returncode == 0


@contextmanager
def mounted_read_only(scene, server):
    with ExitStack() as stack:
        if mount("--bind", paths.RESULTS, paths.RESULTS):
            stack.callback(subprocess.run, ["umount", paths.RESULTS], check=True)
            assert mount("-o", "remount,bind,ro", paths.RESULTS)
        else:
            stack.enter_context(refusing(scene, errno.EROFS))
        yield


@contextmanager
def without_write_permission(scene, server):
    """Also where tests run as root: this thread gives up the capability that permission bits do not bind
    (CAP_DAC_OVERRIDE).
    """
    libc, header, data = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    effective = data[0]
    folders = {
        folder: folder.stat().st_mode for folder in [paths.RESULTS, *filter(Path.is_dir, paths.RESULTS.rglob("*"))]
    }
    try:
        for folder in folders:
            folder.chmod(0o555)
        data[0] = effective & ~(1 << 1)
        assert libc.capset(header, data) == 0
        yield
    finally:
        data[0] = effective
        libc.capset(header, data)
        for folder, mode in folders.items():
            folder.chmod(mode)


@contextmanager
def small_disk():
    """A file system of its own for the results, where one can be mounted."""
    paths.RESULTS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if mount("-t", "tmpfs", "-o", f"size={FULL_DISK_GIB * 1024:.0f}m", "tmpfs", paths.RESULTS):
            stack.callback(subprocess.run, ["umount", "--lazy", paths.RESULTS], check=True)
        yield


@contextmanager
def full(scene, server):
    with ExitStack() as stack:
        if os.path.ismount(paths.RESULTS):
            filler = paths.RESULTS / "filler"
            stack.callback(filler.unlink)
            with open(filler, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(paths.RESULTS).free)
        else:
            stack.enter_context(refusing(scene, errno.ENOSPC))
        yield


def here(scene, fault) -> Exception | None:
    """The sweep in this process, with the fault; returns the error that ended it."""
    real, planted = loads.Generator.run, []

    def run(self, load, server, *, repeat=0, **named):
        if (
            fault.plant
            and not planted
            and (server.arm.name, load.seed, repeat) == ("second", scene.hit.load.seed, scene.hit.repeat)
        ):
            planted.append(server)
            scene.remember()
            scene.planted.enter_context(fault.plant(scene, server))
        return real(
            self,
            load,
            server,
            repeat=repeat,
            timeout_s=HUNG_S if fault.hangs and planted and server.arm.name == "second" else 60.0,
            **named,
        )

    if fault.before:
        scene.planted.enter_context(fault.before(scene, None))
    with scene.monkeypatch.context() as patch:
        patch.setattr(loads.Generator, "run", run)
        try:
            sweeps.run(scene.plan)
        except Exception as error:
            return error
        finally:
            assert planted or not fault.plant, "the fault was not planted"
    return None


@contextmanager
def another_harness(scene):
    """A harness in a process of its own, held where the second arm's second cell is under load; yields it and lets it
    go on.
    """
    streams = len(scene.study.events("stream"))
    held = 2 + PROMPTS  # streams of the warm-up and of the first cell
    with switched("hangs", after=held)(scene, None):
        process = scene.study.harness(scene.arms, repeats=REPEATS)
        try:
            wait_for(lambda: len(scene.study.events("stream")) > streams + held)
            scene.remember()
            assert process.poll() is None and len(scene.study.alive()) > 1 and scene.study.wardens()
            yield process
        except BaseException:
            process.kill()
            raise
    process.wait(60)


def killed_harness(scene, fault) -> None:
    with another_harness(scene) as process:
        process.kill()
        process.wait(60)


def two_harnesses(scene, fault) -> Exception:
    before = len(scene.study.events("server", "worker"))
    with another_harness(scene) as process:
        with pytest.raises(StoreError) as caught:
            sweeps.run(scene.plan)
        assert f"pid {process.pid}" in str(caught.value)
    assert process.returncode == 0 and len(scene.study.events("server", "worker")) == before + 3
    return caught.value


@dataclass(frozen=True)
class Fault:
    """`before` is planted before the run, `plant` as the second arm's second cell begins; `run` runs the sweep."""

    caught: Check | Record | Raised | Warden
    plant: Callable | None = None
    before: Callable | None = None
    run: Callable = here
    k: int = 0
    ranks: int = 1
    hangs: bool = False
    last_words_s: float = client.LAST_WORDS_S
    disk: bool = False


def under_load(fault: str, *checks: str, **about) -> Fault:
    return Fault(Check(checks), switched(fault), **about)


NOT_WRITTEN = Raised("a result could not be written; those already stored are intact")
OUT_OF_MEMORY = Record("out of memory: tried to allocate 270.00 MiB, 127.44 MiB free of 22.06 GiB")
FAULTS = {
    "the harness is killed": Fault(Warden(), run=killed_harness),
    "two runs at once on one folder": Fault(Raised("another run is writing here"), run=two_harnesses),
    "the disk is full": Fault(NOT_WRITTEN, full, disk=True),
    "the results folder is mounted read-only": Fault(NOT_WRITTEN, mounted_read_only),
    "the results folder loses its write permission": Fault(NOT_WRITTEN, without_write_permission),
    "the results folder is read-only from the start": Fault(
        Raised("results cannot be written"), before=mounted_read_only
    ),
    "the server is killed": Fault(Record("ended by SIGKILL; the log does not say why", recovered=True), killed),
    "an engine process outlives its server": Fault(
        Record("ended by SIGKILL; the log does not say why", recovered=True), killed, before=switched("escapee")
    ),
    "the server crashes under every load": Fault(
        Record("RuntimeError: Worker failed with error 'illegal memory access'"), switched("dies-after")
    ),
    "the server hangs": Fault(
        Record("the server stopped answering within the time allowed"), switched("hangs"), hangs=True
    ),
    "the engine is dead, its server is not": under_load("dead-after", "alive afterwards", last_words_s=0.2),
    "out of memory at the start": Fault(OUT_OF_MEMORY, before=switched("oom")),
    "out of memory under load": Fault(OUT_OF_MEMORY, switched("oom-after")),
    "every request is answered with an error": under_load(
        "http-500", "requests", "output attainment", "text", "records", "steady window"
    ),
    "some requests are answered with an error": under_load("refuses-some", "requests", "output attainment", "records"),
    "streams end in an error event": under_load("error-event", "output attainment"),
    "fewer tokens than asked": under_load("short", "output attainment"),
    "input tokens are counted differently": under_load("miscounts", "input tokens"),
    "another model answers": Fault(
        Record("model 'somebody-else', 24 tokens; wanted 'fake'"), before=switched("wrong-model")
    ),
    "another job's server answers on our port": Fault(Record("is held by"), before=anothers_port),
    "the text is garbage": under_load("garbage", "text"),
    "the cache is warm": under_load("warm", "cold caches"),
    "a draft arm makes no drafts": under_load("no-drafts", "mechanism", k=3),
    "the baseline makes drafts": under_load("spurious-drafts", "mechanism"),
    "a rank takes no part": under_load("idle-rank", "mechanism", ranks=2),
    "a rank is not there": under_load("lost-rank", "mechanism", ranks=2),
    "the client is too slow": Fault(Check(("client",)), switched("slow", "load generator")),
    "the load generator crashes": Fault(
        Record("the load generator ended: exit code 139"), switched("dies", "load generator")
    ),
}


def lost(scene, shown: set[str]) -> str:
    """Which cells of the run have no figure to show, in the file's words."""
    second, third = ([cell.key for cell in scene.cells(arm)] for arm in ("second", "third"))
    missing = [key for key in second + third if key not in shown]
    words = {
        "nothing": [],
        "the cell in flight": second[1:2],
        "its arm's cells from then on": second[1:],
        "its arm's cells": second,
        "the run's cells from then on": second[1:] + third,
        "the run's cells": second + third,
    }
    return next((name for name, keys in words.items() if keys == missing), f"cells {missing}")


def test_the_table_and_the_matrix_hold_the_same_faults():
    assert list(ROWS) == list(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_after_a_fault(study, measured, monkeypatch, name):
    fault, row = FAULTS[name], ROWS[name]
    monkeypatch.setattr(fleet, "GRACE_S", 0.3)
    monkeypatch.setattr(client, "LAST_WORDS_S", fault.last_words_s)
    scene = Scene(study, monkeypatch, fault.k, fault.ranks)
    with small_disk() if fault.disk else nullcontext():
        shutil.copytree(measured, paths.RESULTS, dirs_exist_ok=True)
        results = sweeps.run(scene.only("first"))
        assert (
            results.run is None and set(results.frame()["certificate"]) == {"pass"} and len(results.frame()) == REPEATS
        )
        scene.remember()
        with scene.planted:
            error = fault.run(scene, fault)

        # Nothing of ours runs on, and what was stored is the same.
        study.assert_nothing_left()
        assert len(scene.stored) >= 2 * REPEATS and all(
            file.read_bytes() == content for file, content in scene.stored.items()
        )
        # It was caught by what the row says.
        assert fault.caught.words() == row["caught by"]
        fault.caught.verify(scene, results, error)
        if not isinstance(fault.caught, Check):
            assert {cell["certificate"]["verdict"] for cell in cells(results).values()} == {"pass"}
        # The figure is withheld where it must be.
        frame = results.store.cells()
        shown, stored = set(comparisons.usable(frame)["key"]), set(frame["key"])
        assert {"shown" if scene.hit.key in shown else "withheld" if scene.hit.key in stored else "none"} == {
            row["figure"]
        }
        assert lost(scene, shown) == row["what is lost"]
        assert not list(paths.RESULTS.rglob("*.tmp"))

        # The next run measures what is missing and nothing else; what failed its certificate is measured again when
        # asked to.
        scene.remember()
        before, missing = scene.loads(), 3 * REPEATS - sum(cell["server"]["alive"] for cell in cells(results).values())
        again = sweeps.run(scene.plan)
        assert scene.loads() == before + missing
        if withheld := set(again.frame().loc[again.frame()["certificate"] != "pass", "arm"]):
            assert isinstance(fault.caught, Check) and withheld <= {"second", "third"}
            sweeps.run(scene.only(*withheld), fresh=True)
        again = sweeps.run(scene.plan)
        assert again.run is None and len(again.frame()) == 3 * REPEATS and set(again.frame()["certificate"]) == {"pass"}
        assert all(file.read_bytes() == content for file, content in scene.stored.items())
        study.assert_nothing_left()
