"""A running server under its warden: alive or not, frozen or not, whose its ports are, and what ended it."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .. import engines
from ..engines import logs, vllm
from ..errors import ServerError
from ..hardware import hosts
from . import preflight
from .arm import Arm

WARDEN = Path(__file__).with_name("programs") / "warden.py"


UNSAID = "the log does not say why"


@dataclass
class Server:
    """A running server: where it answers, its process group, the figures of its start, and what the server beside it
    said of itself.
    """

    arm: Arm
    url: str
    port: int
    pid: int
    log: Path
    warden: subprocess.Popen
    began: float
    start: dict = field(default_factory=dict)
    sidecar: dict = field(default_factory=dict)
    frozen_s: float = 0.0
    _frozen_at: float | None = None
    _bound: dict = field(default_factory=dict)

    def alive(self) -> bool:
        return self.warden.poll() is None

    def require_alive(self, within_s: float = 0.0) -> None:
        """Raises ServerError with the cause when the server has ended, or ends within so many seconds."""
        try:
            self.warden.wait(within_s)
        except subprocess.TimeoutExpired:
            return
        raise died(self.arm, self.log, self.warden.returncode)

    @property
    def frozen(self) -> bool:
        return self._frozen_at is not None

    def freeze(self) -> None:
        """Stop every process of the server where it is (SIGSTOP): it takes no time from the one that is measured."""
        if self.alive() and not self.frozen:
            self._frozen_at = time.monotonic()
            self.bind_again()
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        if self.frozen:
            self.frozen_s += time.monotonic() - self._frozen_at
            self._frozen_at = None
            self._signal(signal.SIGCONT)

    def unbind(self) -> None:
        """Let those of its processes that are bound to one core use every core, until `bind_again`.

        vLLM's CPU worker is bound to its first core before it imports anything; two of them would import on the same
        one."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if len(bound := os.sched_getaffinity(process.pid)) == 1:
                        self._bound[process.pid] = bound
                        os.sched_setaffinity(process.pid, hosts.cores())

    def bind_again(self) -> None:
        """Undo `unbind`."""
        while self._bound:
            pid, bound = self._bound.popitem()
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, bound)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def owns_port(self) -> bool | None:
        """Whether the listeners on our ports, those of the server beside it included, belong to our process group; None
        when the system does not say.
        """
        owners = [preflight.owner_group(port, self.pid) for port in self.ports()]
        return False if False in owners else None if None in owners else True

    def ports(self) -> list[int]:
        """The engine's port, and those of the server beside it."""
        return [self.port, *(self.sidecar[name] for name in ("message_port", "http_port") if self.sidecar)]

    @property
    def sidecar_url(self) -> str | None:
        return f"http://127.0.0.1:{self.sidecar['http_port']}" if self.sidecar else None


def died(arm: Arm, log: Path, code: int | None) -> ServerError:
    """The error for a server that ended by itself, with the cause from its log where it is a known one."""
    unsaid = vllm.BUS_ERROR if code == 256 - signal.SIGBUS else f"{_signal_of(code)}{UNSAID}"
    reason = engines.get(arm.engine).cause(logs.read(log)) or unsaid
    return ServerError(
        f"{arm.name}: the server ended", reason=reason, log=log, last_lines=logs.tail(log), exit_code=code
    )


def _signal_of(code: int | None) -> str:
    """A process that a signal ended passes its number on through its warden's exit code, modulo 256."""
    try:
        return f"ended by {signal.Signals(256 - code).name}; " if code and 192 <= code < 256 else ""
    except ValueError:
        return ""
