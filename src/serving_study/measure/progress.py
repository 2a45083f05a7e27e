"""The progress of a run: a bar on the terminal or in the notebook, and `status.json` in the run's folder.

`status.json` has `section`, `run`, `state` (`running`, then `done`, `failed` or `interrupted`), `doing`, `arm`, `cell`,
`done_cells` of `cells`, `spent_s`, `left_s` and `at`. What can mislead: it changes with the bar, so during a long load
it is as old as that load; a killed process leaves `running` until the next run of its section writes `interrupted`.

    >>> with Progress(3, run, total_s=90.0, cells=4) as progress:                            # doctest: +SKIP
    ...     progress.show("server starting", arm="baseline")
"""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from tqdm import tqdm

from .. import files
from ..engines import logs
from ..errors import StoreError
from ..results.store import Run, Store

STATUS = "status.json"
RUNNING, DONE, FAILED, INTERRUPTED = "running", "done", "failed", "interrupted"
WRITE_EVERY_S = 1.0


class Progress:
    """A bar with arm, cell and time left, on the terminal of `serving-study run` or in the notebook, and the same in
    `status.json`. A context manager; how it is left becomes the last state.

    `serving-study run` passes its terminal in SERVING_STUDY_PROGRESS, since a notebook's kernel has none."""

    def __init__(self, section: int | str, run: Run, total_s: float, cells: int):
        place = os.environ.get("SERVING_STUDY_PROGRESS")
        try:
            self._file = open(place, "a") if place else sys.stderr
        except OSError:
            self._file = sys.stderr
        self.total_s, self.done_s, self.began, self.cells, self.done_cells = total_s, 0.0, time.monotonic(), cells, 0
        self._status = _Status(
            run.folder / STATUS, {"section": section, "run": run.name, "pid": os.getpid(), "began": files.now()}
        )
        self._doing = {"doing": None, "arm": None, "cell": None}
        self._bar = tqdm(
            total=round(total_s, 1),
            file=self._file,
            dynamic_ncols=True,
            leave=True,
            mininterval=0.2,
            bar_format="{desc} |{bar:20}| {percentage:3.0f}%{postfix}",
        )
        self._tell(RUNNING)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self._bar.close()
        if self._file is not sys.stderr:
            self._file.close()
        self._doing = {"doing": None, "arm": None, "cell": None} if kind is None else self._doing
        self._tell(DONE if kind is None else FAILED if issubclass(kind, Exception) else INTERRUPTED)

    @property
    def left_s(self) -> float:
        """Expected seconds left, at the pace so far."""
        spent = time.monotonic() - self.began
        pace = max(0.5, min(2.0, spent / self.done_s)) if self.done_s > 20 else 1.0
        return max(0.0, self.total_s - self.done_s) * pace

    def show(self, doing: str, *, arm: str, cell: str | None = None) -> None:
        """Show what is being done, for which arm and cell."""
        self._doing = {"doing": doing, "arm": arm, "cell": cell}
        left_s = self.left_s
        self._bar.set_description_str(
            f"[{self.done_cells}/{self.cells}] {cell or f'{arm}: {doing}'}",
            refresh=False,
        )
        self._bar.set_postfix_str(f"{int(left_s // 60)}:{int(left_s % 60):02d} left", refresh=True)
        self._tell(RUNNING)

    def advance(self, seconds: float, cell: bool = False) -> None:
        """Count what was expected to take `seconds` as done, and with `cell` one more cell."""
        self.done_s += seconds
        self.done_cells += cell
        self.cells = max(self.cells, self.done_cells)  # blocks go on for what is not decided
        self._bar.update(min(seconds, max(0.0, self._bar.total - self._bar.n)))
        self._tell(RUNNING)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line, file=self._file)

    def _tell(self, state: str) -> None:
        self._status.set(
            self._doing
            | {
                "state": state,
                "done_cells": self.done_cells,
                "cells": self.cells,
                "spent_s": round(time.monotonic() - self.began, 1),
                "left_s": round(self.left_s, 1) if state == RUNNING else 0.0,
            }
        )


class _Status:
    """`status.json`: written at most once a second, a final state at once. A disk that refuses it does not end the
    run.
    """

    def __init__(self, file: Path, header: dict):
        self._file, self._header, self._lock = file, header, threading.RLock()
        self._status, self._written, self._timer = {}, None, None

    def set(self, status: dict) -> None:
        with self._lock:
            self._status = status | {"at": files.now()}
            wait_s = 0.0 if self._written is None else self._written + WRITE_EVERY_S - time.monotonic()
            if status["state"] != RUNNING:
                if self._timer:
                    self._timer.cancel()
                self._write()
            elif wait_s <= 0:
                self._write()
            elif self._timer is None:
                self._timer = threading.Timer(wait_s, self._later)
                self._timer.daemon = True
                self._timer.start()

    def _later(self) -> None:
        with self._lock:
            self._timer = None
            if self._status["state"] == RUNNING:
                self._write()

    def _write(self) -> None:
        with contextlib.suppress(StoreError):
            files.write(self._file, self._header | self._status)
        self._written = time.monotonic()


def end_interrupted(known: Store) -> None:
    """Do for runs whose status says `running` what their end would have: the state `interrupted`, logs without this
    machine's paths, tables of all cells. The caller holds the folder's lock, so no such run is alive.
    """
    for file in known.folder.glob(f"*/{STATUS}"):
        with contextlib.suppress(StoreError, OSError):
            status = files.read(file)
            if status.get("state") == RUNNING:
                run = Run(file.parent)
                for log in run.folder.glob("arms/**/*.log"):
                    logs.tidy_log(log)
                known.rebuild(run)
                files.write(file, status | {"state": INTERRUPTED})
