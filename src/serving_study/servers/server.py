"""One process of an arm under its warden: alive or not, frozen or not, its ports, and what ended it."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .. import engines
from ..engines import base, logs
from ..environments import templates
from ..errors import ServerError
from ..hardware import cgroups
from . import preflight
from .arm import Arm

WARDEN = Path(__file__).with_name("programs") / "warden.py"
GRACE_S = 30.0
UNSAID = "the log does not say why"


@dataclass
class Server:
    """A running process: its name in the arm, its process group, the ports it answers on, the file it writes to, and
    whether a template forked it.
    """

    name: str
    ports: tuple[int, ...]
    pid: int
    log: Path
    warden: subprocess.Popen | templates.Warden
    forked: bool = False
    _ended_at: float | None = None
    _bound: dict = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address of its last port, which speaks HTTP."""
        return f"http://127.0.0.1:{self.ports[-1]}"

    def alive(self) -> bool:
        return self.warden.poll() is None

    def ended_at(self) -> float | None:
        """When it ended by itself (seconds of the monotonic clock); None while it lives, or where that is unknown."""
        if not self.alive() and not self.warden.stdout.closed:
            said = self.warden.stdout.read().split()
            self.warden.stdout.close()
            self._ended_at = float(said[0]) if said else None
        return self._ended_at

    def signal(self, number: int) -> None:
        """Signal its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def cpu_s(self) -> float:
        """Processor time that its living processes have had, seconds; their ended children's too."""
        total = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    total += times.user + times.system
        return total

    def unbind(self) -> None:
        """Let those of its processes that are bound to one core use all, until `bind_again`.

        vLLM's CPU worker binds itself to its first core before its imports, and two would import on the same one."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if len(bound := os.sched_getaffinity(process.pid)) == 1:
                        self._bound[process.pid] = bound
                        os.sched_setaffinity(process.pid, cgroups.cores())

    def bind_again(self) -> None:
        """Undo `unbind`."""
        while self._bound:
            pid, bound = self._bound.popitem()
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, bound)

    def owns_ports(self) -> bool | None:
        """Whether the listeners on its ports are its process group's; None when the system does not say."""
        owners = [preflight.owner_group(port, self.pid) for port in self.ports]
        return False if False in owners else None if None in owners else True

    def close(self) -> None:
        """Have its warden end it; returns at once."""
        if self.warden.stdin and not self.warden.stdin.closed:
            self.warden.stdin.close()

    def wait(self) -> None:
        """Wait until it and its warden have ended."""
        try:
            self.warden.wait(GRACE_S + 30)
        except subprocess.TimeoutExpired:
            self.warden.kill()
            self.warden.wait()
        self.warden.stdout.close()


def start(
    name: str,
    command: list[str],
    ports: tuple[int, ...],
    log: Path,
    environment: dict,
    place: Path | None,
    template: base.Template | None = None,
) -> Server:
    """Start `command` under a warden and return the `Server`; `place` is its working folder.

    Within `templates.kept` it is a fork of the template, where that can be had.
    """
    log.write_text(f"$ {shlex.join(command)}\n")
    grace = (str(WARDEN.resolve()), GRACE_S, log.resolve())
    forked = templates.fork(template, *grace, command, environment, place) if template else None
    warden = forked or subprocess.Popen(
        [sys.executable, *map(str, grace), *command],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=environment,
    )
    return Server(name, ports, int(warden.stdout.readline() or 0), log, warden, forked is not None)


def died(arm: Arm, log: Path, code: int | None) -> ServerError:
    """The error for a server that ended by itself, with its log's known cause."""
    reason = engines.get(arm.engine).cause(logs.read(log), code) or f"{_signal_of(code)}{UNSAID}"
    return ServerError(
        f"{arm.name}: the server ended", reason=reason, log=log, last_lines=logs.tail(log), exit_code=code
    )


def _signal_of(code: int | None) -> str:
    """The signal that ended a process, from its warden's exit code (the number modulo 256)."""
    try:
        return f"ended by {signal.Signals(256 - code).name}; " if code and 192 <= code < 256 else ""
    except ValueError:
        return ""
