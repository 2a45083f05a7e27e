"""Scripts run by an engine's interpreter, each in a process group of its own, with a deadline.

A script's standard input stays open as long as this process lives: one that watches it ends with it. What can mislead:
a process that hangs in a driver cannot even be killed; it is waited for a few seconds only.

    >>> scripts.run(environment.python, "facts.py", deadline_s=120).check().lines[-1]      # doctest: +SKIP
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import EngineEnvironmentError

QUIET = {"PYTHONDONTWRITEBYTECODE": "", "VLLM_NO_USAGE_STATS": "1", "NO_COLOR": "1"}
OFFLINE = QUIET | {"HF_HUB_OFFLINE": "1"}
READ_BYTES = 1 << 16  # from the end of standard error, read for its last lines
POLL_S, KILLED_S = 1.0, 5.0


@dataclass(frozen=True)
class Ended:
    """A script that ended by itself: its exit code, printed `lines`, and last complaints on standard error."""

    command: tuple[str, ...]
    code: int
    lines: tuple[str, ...]
    complaints: tuple[str, ...]

    @property
    def cause(self) -> str:
        """The last complaint, else the exit code."""
        return self.complaints[-1][-300:] if self.complaints else f"exit code {self.code}"

    @property
    def last_words(self) -> str:
        """The exit code and the last complaints."""
        return f"exit code {self.code}" + "".join(f"\n    | {line}" for line in self.complaints[-8:])

    def check(self, what: str | None = None, *, next: str | None = None) -> "Ended":
        """Itself. Raises EngineEnvironmentError for an exit code other than 0."""
        if self.code != 0:
            raise self.failure(what or f"{self.command[0]} does not run {Path(self.command[1]).name}", next=next)
        return self

    def figures(self, what: str) -> tuple[list[dict], dict]:
        """The printed JSON objects, and apart from them the last, which must have `done`.

        Raises EngineEnvironmentError where it does not, or the exit code is not 0."""
        rows = [row for row in map(parsed, self.check(what).lines) if row is not None]
        if not rows or not rows[-1].get("done"):
            raise self.failure(what)
        return rows[:-1], rows[-1]

    def failure(self, what: str, *, next: str | None = None) -> EngineEnvironmentError:
        return EngineEnvironmentError(what, value=self.cause, next=next or " ".join(self.command))


def run(
    python: Path,
    script: Path,
    *arguments: object,
    deadline_s: float,
    renewed: bool = False,
    each: Callable[[dict], None] | None = None,
    log: Path | None = None,
    variables: Mapping[str, str] = OFFLINE,
) -> Ended:
    """Run a script to its end.

    `each` gets every printed JSON object at once; standard error is appended to `log`, if given; `variables` are added
    to this process's environment. With `renewed` the deadline restarts at each line. Raises TimeoutError when it was
    killed at the deadline, OSError for a bad interpreter."""
    command = tuple(map(str, (python, script, *arguments)))
    own = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    with open(log, "ab+") if log else tempfile.TemporaryFile() as errors:
        before = errors.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**own, **variables},
        )
        arrived: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process.stdout, arrived), daemon=True)
        reader.start()
        lines: list[str] = []
        end = time.monotonic() + deadline_s
        try:
            while (line := _next(arrived, process, end)) is not None:
                lines.append(line)
                end = time.monotonic() + deadline_s if renewed else end
                if each and (row := parsed(line)) is not None:
                    each(row)
            code = process.wait(max(POLL_S, end - time.monotonic()))
        except (queue.Empty, subprocess.TimeoutExpired):
            after = f"no end within {deadline_s:g} s, after {len(lines)} lines" if lines else None
            raise TimeoutError(f"{after or f'no answer within {deadline_s:g} s'}; killed") from None
        finally:
            _end(process, reader)
        errors.seek(max(before, errors.seek(0, os.SEEK_END) - READ_BYTES))
        complaints = errors.read().decode(errors="replace").strip().splitlines()
    return Ended(command, code, tuple(lines), tuple(complaints))


def parsed(line: str) -> dict | None:
    """The JSON object in a line; None without one."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _read(stream: IO[str], arrived: queue.Queue) -> None:
    with stream:
        for line in stream:
            arrived.put(line)
    arrived.put(None)


def _next(arrived: queue.Queue, process: subprocess.Popen, end: float) -> str | None:
    """The next line; None after the last. Raises queue.Empty at the time `end`."""
    while (left := end - time.monotonic()) > 0:
        ended = process.poll() is not None
        try:
            return arrived.get(timeout=min(left, POLL_S))
        except queue.Empty:
            if ended:  # a child that it left behind keeps its output open
                return None
    raise queue.Empty


def _end(process: subprocess.Popen, reader: threading.Thread) -> None:
    """Kill the rest of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)
    reader.join(KILLED_S)
