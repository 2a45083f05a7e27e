"""A copy of the tree with results of its own, and the command that runs a section there."""

import os
import time
from pathlib import Path

import psutil

from serving_study import paths


def command(root: Path, section: str, parameters: str) -> tuple[list[str], dict]:
    """The words and the variables that run a section in the checkout `root`."""
    environment = {
        **os.environ,
        "SERVING_STUDY_ROOT": str(root),
        "SERVING_STUDY_CACHE": str(paths.CACHE),
        "SERVING_STUDY_RESULTS": str(root / "data" / "results"),
    }
    program = str(paths.ENVIRONMENTS / "harness" / "bin" / "serving-study")
    return [program, "run", section, "--no-book", "-y", parameters], environment


def ours(root: Path) -> list[psutil.Process]:
    """Processes of a run in the checkout `root`."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SERVING_STUDY_ROOT") == str(root) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def wait(condition, seconds: float, what: str):
    """What `condition` returns, once it is true; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if outcome := condition():
            return outcome
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")
