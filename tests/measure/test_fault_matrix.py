"""The fault matrix: every row of data/faults.csv is planted in a real sweep of either fake engine, and must come out as
the row says; what an engine's own log says of its death is the row's words in that engine's (`Fake.words`).

An arm is measured and stored; then an arm a fault, and a last arm whose server waits beside. A fault is planted as the
second of its arm's three cells begins, or before that arm starts. Faults that end no more than their own arm share a
sweep (`SWEEPS`). Whatever the fault: what was stored is the same, byte for byte; nothing of ours runs on; what the row
names has caught it; the figure is withheld where it must be; and the next run, without the fault, measures what is
missing and nothing else. The list only grows: no fault that was ever in it may leave it."""

import builtins
import csv
import ctypes
import errno
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import fake_engine
import pytest
from fake_study import CRASHED, OUT_OF_MEMORY, both, cells, failed, foreign, starts, wait_for

from serving_study import loads, paths
from serving_study.analysis import comparisons
from serving_study.errors import StoreError
from serving_study.measure import sweep
from serving_study.measure.plan import Cell, Plan
from serving_study.servers import client, fleet, lifetime, preflight
from serving_study.servers import server as processes

with open(paths.DATA / "faults.csv", newline="") as _file:
    ROWS = {row["fault"]: row for row in csv.DictReader(_file)}
PROMPTS, REPEATS, HUNG_S = 8, 3, 1.0
FULL_DISK_GIB = 0.24  # a little more than a server's start asks for


class Scene:
    """The arms of a sweep (`first`, one a fault, `last`), what is planted, and what was stored when that happened."""

    def __init__(self, study, monkeypatch, faults: "dict[str, Fault]"):
        self.study, self.monkeypatch, self.faults = study, monkeypatch, faults
        self.arms = [{"name": "first"}, *({"name": arm} | fault.arm for arm, fault in faults.items()), {"name": "last"}]
        self.plan = study.plan([study.arm(**options) for options in self.arms], repeats=REPEATS)
        self.switch = study.folder / "switch.json"
        monkeypatch.setenv("SWITCH", str(self.switch))
        self.planted, self.stored = ExitStack(), {}

    def cells(self, arm: str) -> list[Cell]:
        """The arm's cells, in the order in which they are measured."""
        return self.plan.cells(next(one for one in self.plan.arms if one.name == arm))

    def hit(self, arm: str) -> Cell:
        """The cell that the arm's fault is planted in."""
        return self.cells(arm)[1]

    @contextmanager
    def switched(self, who: str, fault: str, after: int = -1):
        """A fault of the fake engine or of the fake load generator, until the block ends."""
        self._switch(lambda switches: [*switches, {"who": who, "fault": fault, "after": after}])
        try:
            yield
        finally:
            self._switch(lambda switches: [switch for switch in switches if switch["who"] != who])

    def _switch(self, change) -> None:
        temporary = self.switch.with_suffix(".tmp")
        temporary.write_text(json.dumps(change(json.loads(self.switch.read_text()) if self.switch.exists() else [])))
        os.replace(temporary, self.switch)

    def only(self, *arms: str) -> Plan:
        return self.study.plan([arm for arm in self.plan.arms if arm.name in arms], repeats=REPEATS)

    def remember(self) -> None:
        """Keep every stored cell's bytes, its requests' records included."""
        self.stored |= {file: file.read_bytes() for file in paths.RESULTS.rglob("repeat=*.json")}

    def loads(self) -> int:
        """Loads driven so far, warm-ups left out."""
        return sum(event["prompts"] == PROMPTS for event in self.study.events("load"))


@dataclass(frozen=True)
class Check:
    """Caught by these checks of the cell's certificate, and by no other; `evidence` is what the first of them says."""

    names: tuple[str, ...]
    evidence: str = ""

    def words(self) -> str:
        return f"certificate: {', '.join(f'`{name}`' for name in self.names)}"

    def verify(self, scene, arm, results, error) -> None:
        cell = cells(results)[arm, 2, scene.hit(arm).repeat]
        assert (error, cell["certificate"]["verdict"], tuple(failed(cell))) == (None, "fail", self.names)
        checks = {check["name"]: check["evidence"] for check in cell["certificate"]["checks"]}
        assert self.evidence in checks[self.names[0]]


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

    def verify(self, scene, arm, results, error) -> None:
        record, reason = starts(results)[arm], scene.study.fake.said(self.reason)
        assert error is None and record["outcome"] == ("ok" if self.recovered else "failed")
        assert reason in (record["lost_cells"][0]["reason"] if self.recovered else record["reason"])
        assert starts(results)["last"]["outcome"] == "ok" or reason in starts(results)["last"]["reason"]


@dataclass(frozen=True)
class Raised:
    """Caught by an error that ends the run."""

    what: str
    kind: type[Exception] = StoreError

    def words(self) -> str:
        return f"`{self.kind.__name__}`: «{self.what}»"

    def verify(self, scene, arm, results, error) -> None:
        assert type(error) is self.kind and self.what in str(error)


@dataclass(frozen=True)
class Warden:
    """Nobody is left to say anything: the warden ends what runs on."""

    def words(self) -> str:
        return "warden"

    def verify(self, scene, arm, results, error) -> None:
        assert error is None  # that nothing runs on is asserted for every fault


ENGINE_FAULTS = {"silent"}  # of the fake engine, planted by one row or another; `anothers_port` plants this one


def switched(fault: str, who: str | None = None):
    """A fault of the arm's fake engine, or of `who`."""
    ENGINE_FAULTS.add(fault)
    return lambda scene, arm, server: scene.switched(who or arm, fault)


def killed(scene, arm, server):
    os.kill(server.pid, signal.SIGKILL)
    return nullcontext()


@contextmanager
def anothers_port(scene, arm, server):
    """The arm's server is given the port on which another job's server answers, and never listens itself."""
    launch, free_port = fleet.launch, preflight.free_port
    with foreign(scene.study.engine) as port, scene.switched(arm, "silent"), scene.monkeypatch.context() as patch:

        def launch_there(launched, *positional, **named):
            patch.setattr(preflight, "free_port", (lambda: port) if launched.name == arm else free_port)
            return launch(launched, *positional, **named)

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
def mounted_read_only(scene, arm, server):
    with ExitStack() as stack:
        if mount("--bind", paths.RESULTS, paths.RESULTS):
            stack.callback(subprocess.run, ["umount", paths.RESULTS], check=True)
            assert mount("-o", "remount,bind,ro", paths.RESULTS)
        else:
            stack.enter_context(refusing(scene, errno.EROFS))
        yield


@contextmanager
def without_write_permission(scene, arm, server):
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
def full(scene, arm, server):
    with ExitStack() as stack:
        if os.path.ismount(paths.RESULTS):
            filler = paths.RESULTS / "filler"
            stack.callback(filler.unlink)
            with open(filler, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(paths.RESULTS).free)
        else:
            stack.enter_context(refusing(scene, errno.ENOSPC))
        yield


def here(scene) -> Exception | None:
    """The sweep in this process, with the faults; returns the error that ended it."""
    real = loads.Generator.run
    awaited = {arm: fault for arm, fault in scene.faults.items() if fault.plant}

    def run(self, load, server, *, repeat=0, **named):
        arm = server.arm.name
        if arm in awaited and (load.seed, repeat) == (scene.hit(arm).load.seed, scene.hit(arm).repeat):
            scene.remember()
            scene.planted.enter_context(awaited.pop(arm).plant(scene, arm, server))
        hangs = arm in scene.faults and scene.faults[arm].hangs and arm not in awaited
        return real(self, load, server, repeat=repeat, timeout_s=HUNG_S if hangs else 60.0, **named)

    for arm, fault in scene.faults.items():
        if fault.before:
            scene.planted.enter_context(fault.before(scene, arm, None))
    with scene.monkeypatch.context() as patch:
        patch.setattr(loads.Generator, "run", run)
        try:
            sweep.run(scene.plan)
        except Exception as error:
            return error
        finally:
            assert not awaited, f"not planted: {', '.join(awaited)}"
    return None


@contextmanager
def another_harness(scene):
    """A harness in a process of its own, held where its second arm's second cell is under load; yields it and lets it
    go on.
    """
    streams = len(scene.study.events("stream"))
    held = 2 + PROMPTS  # streams of the warm-up and of the first cell
    [arm] = scene.faults
    with scene.switched(arm, "hangs", after=held):
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


def killed_harness(scene) -> None:
    with another_harness(scene) as process:
        process.kill()
        process.wait(60)


def two_harnesses(scene) -> Exception:
    before = len(scene.study.events("server", "worker"))
    with another_harness(scene) as process:
        with pytest.raises(StoreError) as caught:
            sweep.run(scene.plan)
        assert f"pid {process.pid}" in str(caught.value)
    assert process.returncode == 0 and len(scene.study.events("server", "worker")) == before + 3
    return caught.value


@dataclass(frozen=True)
class Fault:
    """`before` is planted before the run, `plant` as its arm's second cell begins; `run` runs the sweep; `arm` are the
    arm's options. With `shares` it ends no more than its own arm, and others may be planted in the same sweep."""

    caught: Check | Record | Raised | Warden
    plant: Callable | None = None
    before: Callable | None = None
    run: Callable = here
    arm: dict = field(default_factory=dict)
    hangs: bool = False
    last_words_s: float = client.LAST_WORDS_S
    disk: bool = False
    shares: bool = False


def under_load(fault: str, *checks: str, evidence: str = "", last_words_s: float = client.LAST_WORDS_S, **arm) -> Fault:
    return Fault(Check(checks, evidence), switched(fault), arm=arm, last_words_s=last_words_s, shares=True)


def at_the_start(fault: str, reason: str, **arm) -> Fault:
    return Fault(Record(reason), before=switched(fault), arm=arm, shares=True)


def impatient(fault: str, allowed_s: float):
    """The server does not get ready within `allowed_s`."""
    ENGINE_FAULTS.add(fault)

    @contextmanager
    def plant(scene, arm, server):
        serve = lifetime.serve

        def serve_in_time(served, *positional, **named):
            return serve(served, *positional, **(named | ({"timeout_s": allowed_s} if served.name == arm else {})))

        with scene.switched(arm, fault), scene.monkeypatch.context() as patch:
            patch.setattr(lifetime, "serve", serve_in_time)
            yield

    return plant


NOT_WRITTEN = Raised("a result could not be written; those already stored are intact")
KILLED = Record("ended by SIGKILL; the log does not say why", recovered=True)
HUNG = Record("the server stopped answering within the time allowed")
FAULTS = {
    "the harness is killed": Fault(Warden(), run=killed_harness),
    "two runs at once on one folder": Fault(Raised("another run is writing here"), run=two_harnesses),
    "the disk is full": Fault(NOT_WRITTEN, full, disk=True),
    "the results folder is mounted read-only": Fault(NOT_WRITTEN, mounted_read_only),
    "the results folder loses its write permission": Fault(NOT_WRITTEN, without_write_permission),
    "the results folder is read-only from the start": Fault(
        Raised("results cannot be written"), before=mounted_read_only
    ),
    "the server is killed": Fault(KILLED, killed, shares=True),
    "an engine process outlives its server": Fault(KILLED, killed, before=switched("escapee"), shares=True),
    "the server crashes under every load": Fault(Record(CRASHED), switched("dies-after"), shares=True),
    "the server hangs": Fault(HUNG, switched("hangs"), hangs=True, shares=True),
    "the engine is dead, its server is not": under_load("dead-after", "alive afterwards", last_words_s=0.2),
    "out of memory at the start": at_the_start("oom", OUT_OF_MEMORY),
    "out of memory under load": Fault(Record(OUT_OF_MEMORY), switched("oom-after"), shares=True),
    "every request is answered with an error": under_load(
        "http-500", "requests", "output attainment", "text", "records", "steady window", evidence="8 failed"
    ),
    "some requests are answered with an error": under_load(
        "refuses-some", "requests", "output attainment", "records", evidence="4 failed"
    ),
    "streams end in an error event": under_load("error-event", "output attainment", evidence="48 of 96 tokens"),
    "fewer tokens than asked": under_load("short", "output attainment", evidence="48 of 96 tokens"),
    "input tokens are counted differently": under_load("miscounts", "input tokens", evidence="server"),
    "another model answers": at_the_start("wrong-model", "model 'somebody-else', 24 tokens; wanted 'fake'"),
    "another job's server answers on our port": Fault(Record("is held by"), before=anothers_port),
    "the text is garbage": under_load("garbage", "text", evidence="0% of 8 answers"),
    "the cache is warm": under_load("warm", "cold caches", evidence="device"),
    "a draft arm makes no drafts": under_load("no-drafts", "mechanism", k=3),
    "the baseline makes drafts": under_load("spurious-drafts", "mechanism", evidence="none wanted"),
    "a rank takes no part": under_load("idle-rank", "mechanism", tensor_parallel_size=2),
    "a rank is not there": under_load("lost-rank", "mechanism", tensor_parallel_size=2),
    "the client is too slow": Fault(Check(("client",)), switched("slow", "load generator")),
    "the load generator crashes": Fault(
        Record("the load generator ended: exit code 139"), switched("dies", "load generator")
    ),
    "the server ends as it starts": at_the_start("dies-at-start", "the log does not say why"),
    "the server never listens": Fault(Record("no answer within 2 s"), before=impatient("silent", 2.0), shares=True),
    "the first request is never answered": Fault(
        Record("TimeoutError: timed out"), before=impatient("probe-hangs", 5.0), shares=True
    ),
    "the first request is answered with an error": at_the_start("probe-500", "HTTPError"),
    "the first answer is garbage": at_the_start("probe-garbage", "\ufffd"),
    "the first answer is empty": at_the_start("probe-empty", "model 'fake', 0 tokens; wanted 'fake'"),
}
NOTHING_TO_CATCH = {"slow-start", "ignores-term"}  # test_faults.py: it is waited for, it is ended all the same
OF_CACHES = {"no-hits", "no-tier"}  # test_reuse_faults.py: they want arms and loads of section 7
SWEEPS = [
    [name for name, fault in FAULTS.items() if fault.shares and isinstance(fault.caught, kind)]
    for kind in (Check, Record)
] + [[name] for name, fault in FAULTS.items() if not fault.shares]


def lost(scene, arm: str, shown: set[str]) -> str:
    """Which cells of the arm and of those after it have no figure to show, in the file's words."""
    own, last = ([cell.key for cell in scene.cells(name)] for name in (arm, "last"))
    missing = [key for key in own + last if key not in shown]
    words = {
        "nothing": [],
        "the cell in flight": own[1:2],
        "its arm's cells from then on": own[1:],
        "its arm's cells": own,
        "the run's cells from then on": own[1:] + last,
        "the run's cells": own + last,
    }
    return next((name for name, keys in words.items() if keys == missing), f"cells {missing}")


def test_the_table_and_the_matrix_hold_the_same_faults():
    assert list(ROWS) == list(FAULTS)


def test_every_fault_that_the_engine_can_have_is_planted():
    assert set(fake_engine.FAULTS) <= ENGINE_FAULTS | OF_CACHES | NOTHING_TO_CATCH


def test_no_fault_leaves_the_table():
    """Every name that any commit of this clone had in the table is still in it."""
    asked = ["git", "-C", paths.ROOT, "log", "-p", "--format=", "--", "data/faults.csv"]
    changes = subprocess.run(asked, capture_output=True, text=True)
    if changes.returncode:
        pytest.skip(f"no git history here: {changes.stderr.strip()}")
    lines = [line[1:] for line in changes.stdout.splitlines() if re.match(r"[+-](?![+-]{2} )", line)]
    assert {row[0] for row in csv.reader(lines)} - {"fault"} <= set(ROWS)


def differing(scene, arm: str, row: dict, fault: Fault, results, error) -> str | None:
    """What came out otherwise than the fault's row says; None where nothing did."""
    frame = results.store.cells()
    shown, stored, hit = set(comparisons.usable(frame)["key"]), set(frame["key"]), scene.hit(arm).key
    figure = "shown" if hit in shown else "withheld" if hit in stored else "none"
    outcome = {"caught by": fault.caught.words(), "figure": figure, "what is lost": lost(scene, arm, shown)}
    try:
        assert outcome == {name: row[name] for name in outcome}
        fault.caught.verify(scene, arm, results, error)
        if not isinstance(fault.caught, Check):
            own = [cell for (name, *_), cell in cells(results).items() if name in (arm, "first", "last")]
            assert {cell["certificate"]["verdict"] for cell in own} == {"pass"}
    except AssertionError as difference:
        return str(difference)


@both
@pytest.mark.parametrize("names", SWEEPS, ids=lambda names: names[0] if len(names) == 1 else f"{len(names)} faults")
def test_after_a_fault(study, measured, monkeypatch, names):
    faults = {f"fault-{number}": FAULTS[name] for number, name in enumerate(names)}
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    monkeypatch.setattr(client, "LAST_WORDS_S", min(fault.last_words_s for fault in faults.values()))
    scene = Scene(study, monkeypatch, faults)
    with small_disk() if any(fault.disk for fault in faults.values()) else nullcontext():
        shutil.copytree(measured, paths.RESULTS, dirs_exist_ok=True)
        results = sweep.run(scene.only("first"))
        assert (
            results.run is None and set(results.frame()["certificate"]) == {"pass"} and len(results.frame()) == REPEATS
        )
        scene.remember()
        with scene.planted:
            [run] = {fault.run for fault in faults.values()}
            error = run(scene)

        # Nothing of ours runs on, and what was stored is the same.
        study.assert_nothing_left()
        assert len(scene.stored) >= 2 * REPEATS and all(
            file.read_bytes() == content for file, content in scene.stored.items()
        )
        # Each was caught by what its row says, and its figure is what the row says.
        differences = {
            name: differing(scene, arm, ROWS[name], fault, results, error)
            for name, (arm, fault) in zip(names, faults.items(), strict=True)
        }
        assert not any(differences.values()), "\n".join(f"{name}: {said}" for name, said in differences.items() if said)
        assert not list(paths.RESULTS.rglob("*.tmp"))

        # The next run measures what is missing and nothing else; what failed its certificate is measured again when
        # asked to.
        scene.remember()
        wanted = len(scene.arms) * REPEATS
        before, missing = scene.loads(), wanted - sum(cell["server"]["alive"] for cell in cells(results).values())
        again = sweep.run(scene.plan)
        assert scene.loads() == before + missing
        if withheld := set(again.frame().loc[again.frame()["certificate"] != "pass", "arm"]):
            checked = {arm for arm, fault in faults.items() if isinstance(fault.caught, Check)}
            assert checked and withheld <= checked | {"last"}
            sweep.run(scene.only(*withheld), fresh=True)
        again = sweep.run(scene.plan)
        assert again.run is None and len(again.frame()) == wanted and set(again.frame()["certificate"]) == {"pass"}
        assert all(file.read_bytes() == content for file, content in scene.stored.items())
        study.assert_nothing_left()
