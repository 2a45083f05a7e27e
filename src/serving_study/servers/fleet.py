"""An arm's processes: each under its own warden, with its own ports and log; frozen and ended together.

A cache server is up before the servers that need it start. A front takes the requests of several servers.
`lifetime.serve` starts a fleet, waits for it and ends it.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .. import engines, paths
from ..engines import base, logs
from ..engines.base import Snapshot
from ..engines.process import Process
from ..environments import Environment, variables
from ..errors import LoadError, ServerError
from ..hardware.hosts import Host
from ..hardware.sampler import Sampler
from . import client, metrics, preflight
from .arm import Arm
from .server import Server, died, start

EnvironmentOf = Callable[[Process], Environment]  # the interpreter of a process's engine
FRONT = Path(__file__).with_name("programs") / "front.py"
CACHE_SERVER_S = 180.0  # seconds within which a cache server has to answer


@dataclass
class Fleet:
    """An arm's started processes: addresses, state, figures of their start.

    `settings` are the cache server's own report, `cache_ready_s` the seconds until it answered."""

    arm: Arm
    host: Host
    environment_of: EnvironmentOf
    folder: Path
    port: int
    began: float
    running: list[Server] = field(default_factory=list)
    start: dict = field(default_factory=dict)
    settings: dict | None = None
    cache_ready_s: float | None = None
    frozen_s: float = 0.0
    _frozen_at: float | None = None
    _began_s: dict[str, float] = field(default_factory=dict)  # by phase of the start
    _servers: list[Server] = field(default_factory=list)
    _waiting: list[tuple[Process, int]] = field(default_factory=list)  # servers to be started, and their ports
    _cache_server: Server | None = None

    @property
    def environment(self) -> Environment:
        """The environment of its servers, the first's of several; a cache server runs there too."""
        return self.environment_of(self.arm.server)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """The server's log, the first of several."""
        return self.folder / "server.log"

    @property
    def pids(self) -> list[int]:
        """The servers' process groups."""
        return [server.pid for server in self._servers]

    @property
    def pid(self) -> int:
        """The first server's process group."""
        return self.pids[0]

    @property
    def sidecar_url(self) -> str | None:
        """The cache server's address."""
        return self._cache_server.url if self._cache_server else None

    @property
    def from_template(self) -> bool:
        """Whether a template forked its servers."""
        return all(server.forked for server in self._servers)

    def text(self) -> str:
        """The logs of all servers."""
        return "".join(logs.read(server.log) for server in self._servers)

    def begin(self) -> None:
        """Start the processes that need no other."""
        cache = self.arm.sidecar
        for process in self.arm.servers:
            engines.get(process.engine).prepare(process)
        ports = [self.port] if self.arm.front == "none" else [preflight.free_port() for _ in self.arm.servers]
        self._waiting = list(zip(self.arm.servers, ports, strict=True))
        if self.arm.front == "turns":
            words = [sys.executable, str(FRONT.resolve()), str(self.port), engines.get(self.arm.engine).HEALTH]
            words += map(str, ports)
            self._start("front", words, (self.port,), dict(os.environ))
        if cache:
            places = preflight.free_port(), preflight.free_port()
            words = filled(engines.CACHE_SERVERS[cache.engine].command(cache, self.environment.python), places)
            variables = whole_environment(self.arm.server, self.host, self.environment)
            self._cache_server = self._start(cache.engine, words, places, variables)
        else:
            self._start_servers()

    def advance(self) -> None:
        """Start the servers once the cache server is up. Raises ServerError where it does not get ready in time."""
        if not self._waiting or not self._cache_server.alive():
            return
        waited_s = time.monotonic() - self.began - self.frozen_s
        kind = engines.CACHE_SERVERS[self.arm.sidecar.engine]
        try:
            client.get(f"{self.sidecar_url}{kind.HEALTH}", 2)
            if not self._cache_server.alive():  # another process answered on the port
                return
            self.settings = json.loads(client.get(f"{self.sidecar_url}{kind.SETTINGS}", 10))
        except (OSError, ValueError):
            if waited_s > CACHE_SERVER_S:
                raise self.error(
                    "what the engine needs beside it did not get ready",
                    f"{self.arm.sidecar.engine} did not answer within {CACHE_SERVER_S:g} s",
                    self._cache_server.log,
                ) from None
            return
        self.cache_ready_s = round(waited_s, 2)
        self._start_servers()

    def _start_servers(self) -> None:
        first = 0
        for number, (process, port) in enumerate(self._waiting, 1):
            environment = self.environment_of(process)
            words = engines.get(process.engine).command(process, environment.python, port)
            if self._cache_server:
                words = filled(words, self._cache_server.ports)
            variables = whole_environment(process, self.host, environment)
            if len(self._waiting) > 1:
                variables |= places(process, variables, first, self.arm.ranks)
            name = "server" if number == 1 else f"server-{number}"
            template = engines.get(process.engine).template(process, self.host, variables)
            self._servers.append(self._start(name, words, (port,), variables, template))
            first += process.ranks
        self._waiting = []

    def _start(self, name: str, words: list[str], ports: tuple[int, ...], variables: dict, template=None) -> Server:
        place = scratch(self.arm) if self.arm.scratch else None
        self.running.append(start(name, words, ports, self.folder / f"{name}.log", variables, place, template))
        return self.running[-1]

    def look(self) -> str:
        """Which phase of its start the server is in, the first of several; when it came there is kept."""
        phase = engines.get(self.arm.engine).phase(logs.read(self.log)) if self._servers else base.OTHER
        self._began_s.setdefault(phase, time.monotonic() - self.began - self.frozen_s)
        return phase

    def phases(self, healthy_s: float, startup_s: float) -> dict[str, float]:
        """Seconds of the start by phase, none of them frozen ones; they add up to `startup_s`."""
        begun = sorted(self._began_s.items(), key=lambda item: item[1])
        ends = [*(at for _, at in begun[1:]), healthy_s]
        begins = [0.0, *ends]
        spent = {name: end - at for (name, _), at, end in zip(begun, begins, ends, strict=False)}
        spent[base.FIRST_REQUEST] = startup_s - healthy_s
        spent[base.OTHER] = startup_s - sum(seconds for name, seconds in spent.items() if name != base.OTHER)
        return {name: round(spent[name], 3) for name in base.PHASES if name in spent}

    def alive(self) -> bool:
        """Whether every process lives."""
        return all(server.alive() for server in self.running)

    def require_alive(self, within_s: float = 0.0) -> None:
        """Raises ServerError with the cause when a process has ended, or ends within so many seconds."""
        deadline = time.monotonic() + within_s
        while self.alive():
            if time.monotonic() >= deadline:
                return
            time.sleep(0.05)
        raise self.death()

    def death(self) -> ServerError:
        """The error for the process that ended first, with the cause from its log."""
        dead = [server for server in self.running if not server.alive()]
        first = min(dead, key=lambda server: server.ended_at() or float("inf"))
        error = died(self.arm, first.log, first.warden.returncode)
        if first in self._servers:
            return error
        code = first.warden.returncode
        error.reason = f"{first.name}, which the engine needs beside it, ended with exit code {code}: {error.reason}"
        return error

    def fill(self, prompt: str, what: str) -> None:
        """Send a request for one token, which leaves the prompt's cache behind.

        Raises ServerError where a process is dead, else LoadError (`what` could not be sent)."""
        try:
            client.complete(self.url, self.arm.model.name, prompt, 1, 300)
        except (OSError, ValueError) as error:
            self.require_alive(client.LAST_WORDS_S)
            raise LoadError(
                f"{what} could not be sent", value=f"{type(error).__name__}: {error}", next=f"less {self.log}"
            ) from None

    def error(self, what: str, reason: str, log: Path | None = None) -> ServerError:
        """The error for a start that failed."""
        log = log or self.log
        return ServerError(f"{self.arm.name}: {what}", reason=reason, log=log, last_lines=logs.tail(log))

    @property
    def frozen(self) -> bool:
        return self._frozen_at is not None

    def freeze(self) -> None:
        """Stop every process (SIGSTOP), so that it takes no time from the one that is measured."""
        if self.alive() and not self.frozen:
            self._frozen_at = time.monotonic()
            self.bind_again()
            for server in self.running:
                server.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue frozen processes."""
        if self.frozen:
            self.frozen_s += time.monotonic() - self._frozen_at
            self._frozen_at = None
            for server in self.running:
                server.signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        """Processor time that its processes have had, seconds."""
        return sum(server.cpu_s() for server in self.running)

    def unbind(self) -> None:
        """Let processes bound to one core use all, until `bind_again`."""
        for server in self.running:
            server.unbind()

    def bind_again(self) -> None:
        """Undo `unbind`."""
        for server in self.running:
            server.bind_again()

    @property
    def engine_version(self) -> str | None:
        """The version of its engine; None where that is not known."""
        return engines.get(self.arm.engine).version(self.environment.versions)

    @property
    def labels(self) -> dict:
        """What the figures of its cells are labelled with."""
        return {
            "host": self.host.name,
            "weights": self.arm.weights,
            "acceptance": self.arm.acceptance,
            "engine": "modified" if self.environment.modified else "as released",
        }

    def sampler(self) -> Sampler:
        """Samples of the machine that it runs on."""
        return Sampler(self.host)

    def counters(self) -> Snapshot:
        """Its counters now. Raises LoadError when it does not answer."""
        return metrics.scrape(self.url, engines.get(self.arm.engine).COUNTERS.path)

    def owns_port(self) -> bool | None:
        """Whether the listeners on all our ports are our process groups'; None when the system does not say."""
        owners = [server.owns_ports() for server in self.running]
        return False if False in owners else None if None in owners else True


def filled(words: list[str], ports: tuple[int, int]) -> list[str]:
    """A command with a cache server's ports in place of their names."""
    for name, port in zip(("message_port", "http_port"), ports, strict=True):
        words = [word.replace("{" + name + "}", str(port)) for word in words]
    return words


def places(process: Process, variables: dict, first: int, ranks: int) -> dict[str, str]:
    """A server's GPUs or cores: one share for each of its ranks, from the `first` of the arm's `ranks` on.

    Raises ServerError where the variable that lists them has fewer."""
    cores, mark = engines.get(process.engine).CORES
    name, mark = (cores, mark) if cores in variables else ("CUDA_VISIBLE_DEVICES", ",")
    parts = [part for part in variables.get(name, "").split(mark) if part] or list(map(str, range(ranks)))
    if len(parts) < ranks:
        raise ServerError(
            "too few places for the servers",
            reason=f"{ranks} ranks were asked for, and {name} has {len(parts)}: {variables[name]}",
        )
    return {name: mark.join(parts[first : first + process.ranks])}


def launch(arm: Arm, host: Host, environment_of: EnvironmentOf, folder: Path, *, port: int = 0) -> Fleet:
    """Start `arm`'s processes, each with its own engine's interpreter, and return at once; `folder` gets a log each.
    The caller has to `stop` the fleet.

    Raises, before anything starts, HostError for a busy port, too little memory or disk, or a variable that would break
    it, and ModelError for a model that its engine cannot load."""
    variables.check()
    if port:
        preflight.check_port(port)
    preflight.check_memory(arm, host)
    folder.mkdir(parents=True, exist_ok=True)
    preflight.check_disk(folder)
    if arm.scratch:
        shutil.rmtree(place := scratch(arm), ignore_errors=True)
        place.mkdir(parents=True)
        preflight.check_disk(place, preflight.SCRATCH_GIB)
    fleet = Fleet(arm, host, environment_of, folder, port or preflight.free_port(), time.monotonic())
    try:
        fleet.begin()
    except BaseException:
        stop(fleet)
        raise
    return fleet


def commands(arm: Arm, python: Path) -> dict[str, list[str]]:
    """The arm's commands by process, with ports left open."""
    cache = arm.sidecar
    words = {"server": engines.get(arm.engine).command(arm.server, python, 0)}
    return words | ({cache.engine: engines.CACHE_SERVERS[cache.engine].command(cache, python)} if cache else {})


def whole_environment(process: Process, host: Host, environment: Environment) -> dict[str, str]:
    """A server's environment: the caller's, without what would colour its log, and the engine's. A cache server has
    that of the servers that need it.
    """
    callers = {name: value for name, value in os.environ.items() if name not in base.DROPPED}
    return callers | engines.get(process.engine).environment(process, host, environment.python)


def scratch(arm: Arm) -> Path:
    """The folder for what an arm's processes write, emptied before each start."""
    return paths.CACHE / "scratch" / arm.name


def stop(fleet: Fleet) -> float:
    """End every process and all that it started; returns the seconds that took."""
    began = time.monotonic()
    for server in fleet.running:
        server.close()
    for server in fleet.running:
        server.wait()
    if fleet.arm.scratch:
        shutil.rmtree(scratch(fleet.arm), ignore_errors=True)
    for server in fleet.running:
        with contextlib.suppress(OSError):  # a full disk has its own error, which this one would hide
            logs.tidy_log(server.log)
    return time.monotonic() - began
