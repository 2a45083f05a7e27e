"""Templates: processes of an engine's interpreter that have imported what its servers need, and fork for each of them
(`engine_side/template.py`), so that a run pays for the imports once.

Within `kept`, one template lives at a time: another engine, interpreter or variable (but for those that are read late)
ends it and makes the next; servers live on without it. Whatever goes wrong with one is said once, and servers are
started by themselves, as they are outside.

    >>> with kept():                                               # doctest: +SKIP
    ...     starts.run(plan)
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import ENGINE_SIDE

PROGRAM = ENGINE_SIDE / "template.py"
READY_S, LONGEST = 180.0, 1 << 16
_kept: "Keeper | None" = None


@dataclass(frozen=True)
class Template:
    """How a process is made that forks for servers (engine_side/template.py): the `modules` that it imports, and the
    variables that are read `late`, after the imports, in which servers of one template may differ.
    """

    modules: tuple[str, ...]
    late: frozenset[str] = frozenset()


@contextlib.contextmanager
def kept():
    """Fork servers from templates, and end the template afterwards."""
    global _kept
    outer, _kept = _kept, Keeper()
    try:
        yield
    finally:
        _kept.end()
        _kept = outer


def fork(template: Template, warden: str, grace_s: float, log: Path, command: list[str], environment: Mapping, place):
    """A warden whose server is a fork of a template, or None: outside `kept`, or where it cannot be had."""
    return _kept.fork(template, warden, grace_s, log, command, environment, place) if _kept else None


class Keeper:
    """The template that lives, and whether one has failed: none is tried again then."""

    def __init__(self):
        self._living, self._key, self._broken = None, None, False

    def fork(self, template: Template, warden: str, grace_s: float, log: Path, command, environment, place):
        """A warden, or None where the template failed, which is said."""
        if self._broken:
            return None
        early = {name: value for name, value in environment.items() if name not in template.late}
        key = (template, command[0], early)
        try:
            if key != self._key:
                self.end()
                self._living, self._key = Living(template, command[0], environment), key
            request = {"warden": warden, "grace_s": grace_s, "log": str(log), "words": command[1:]}
            request |= {"environment": dict(environment), "folder": str(place.resolve()) if place else os.getcwd()}
            return self._living.fork(request)
        except (OSError, ValueError) as error:
            self._broken = True
            said = self._living.last_words() if self._living else ""
            print(f"servers are started by themselves: the template failed: {said or error}", file=sys.stderr)
            self.end()
            return None

    def end(self) -> None:
        if self._living:
            self._living.end()
        self._living = self._key = None


class Living:
    """A running template. Raises OSError or ValueError where it does not do what it is for."""

    def __init__(self, template: Template, python: str, environment: Mapping):
        self.channel, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(READY_S)
        self._log, self._ready = tempfile.TemporaryFile(), False
        with its:
            self.process = subprocess.Popen(
                [python, str(PROGRAM), *template.modules],
                stdin=its,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=environment,
            )

    def fork(self, request: dict) -> "Warden":
        """The warden of a server, once the template has done its imports."""
        self._ready = self._ready or bool(self._answer()["ready"])
        pipes = [os.pipe() for _ in range(3)]
        (its_input, our_input), (our_output, its_output), (our_code, its_code) = pipes
        try:
            sent = json.dumps(request).encode()
            socket.send_fds(self.channel, [sent], [its_input, its_output, 2, its_code])
            pid = self._answer()["pid"]
        except BaseException:
            for descriptor in (our_input, our_output, our_code):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (its_input, its_output, its_code):
                os.close(descriptor)
        return Warden(pid, our_input, our_output, our_code)

    def _answer(self) -> dict:
        said = self.channel.recv(LONGEST)
        if not said:
            raise ValueError("it ended")
        return json.loads(said)

    def last_words(self) -> str:
        """The last line that it wrote, as of an import that failed."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def end(self) -> None:
        """Close its socket, at which it ends; what it forked lives on."""
        self.channel.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:  # in the middle of its imports
            self.process.kill()
            self.process.wait()
        self._log.close()


class Warden:
    """The warden of a forked server: what we ask of a `subprocess.Popen`, though it is the template's child.

    Its exit code comes through a pipe; one that was killed leaves none there.
    """

    def __init__(self, pid: int, stdin: int, stdout: int, code: int):
        self.pid, self._code, self.returncode = pid, code, None
        self.stdin, self.stdout = os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb")

    def poll(self) -> int | None:
        return self._read(0)

    def _read(self, within_s: float | None) -> int | None:
        if self.returncode is None:
            said = select.poll()
            said.register(self._code, select.POLLIN)
            if said.poll(None if within_s is None else 1000 * within_s):
                code = os.read(self._code, 20)
                os.close(self._code)
                self.returncode = int(code) if code else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self._read(timeout) is None:
            raise subprocess.TimeoutExpired("warden", timeout)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
