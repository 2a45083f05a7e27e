"""What a run needs of its folders, one function a check: free space, a clock that agrees with theirs, no other run.

Nothing is locked, and every file that a check makes is removed.

    >>> from serving_study.doctor import folder_checks
    >>> folder_checks.results_folder(paths.RESULTS).outcome                              # doctest: +SKIP
    'ok'
"""

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from pathlib import Path

from ..errors import HostError
from ..hardware import cgroups
from ..servers import preflight
from .findings import FAIL, WARN, Finding, of_error

CLOCK_S = 2.0
FIRST_YEAR = 2024


def disk(what: str, folder: Path, wanted_gib: float = 0.2) -> Finding:
    """Free space where `folder` is or will be."""
    place = _standing(folder)
    try:
        preflight.check_disk(place, wanted_gib)
    except HostError as error:
        return of_error(what, error)
    return Finding(what, f"{shutil.disk_usage(place).free / cgroups.GIB:.1f} GiB free at {place}")


def clock(folder: Path) -> Finding:
    """The system's clock agrees with the file system's and with the monotonic one."""
    year, place = time.gmtime().tm_year, _standing(folder)
    ahead, apart = time.time() - time.monotonic(), 0.0
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-", suffix=".tmp") as file:
        apart = os.fstat(file.fileno()).st_mtime - time.time()
    stepped = time.time() - time.monotonic() - ahead
    fix = "timedatectl set-ntp true, then timedatectl"
    if year < FIRST_YEAR:
        return Finding(
            "clock", f"the year is {year}", f"{FIRST_YEAR} or later: TLS and S3 refuse a wrong clock", FAIL, fix
        )
    if abs(stepped) > CLOCK_S:
        return Finding(
            "clock", f"set by {stepped:+.0f} s while it was looked at", "a clock that runs evenly", WARN, fix
        )
    if abs(apart) > CLOCK_S:
        return Finding(
            "clock",
            f"files in {place} are stamped {apart:+.0f} s from the system's clock",
            f"within {CLOCK_S:g} s",
            WARN,
            fix,
        )
    return Finding("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def results_folder(folder: Path) -> Finding:
    """A file can be written, renamed and deleted in the results folder."""
    place = _standing(folder)
    file = place / f".doctor-{uuid.uuid4().hex}.tmp"
    try:
        file.write_text("a result")
        file = file.rename(file.with_suffix(".2.tmp"))
        if file.read_text() != "a result":
            raise OSError("what was written does not come back")
        file.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
        return Finding(
            "results folder",
            f"{place}: {error.strerror or error}",
            "a writable folder",
            FAIL,
            f"ls -ld {place}, or set SERVING_STUDY_RESULTS",
        )
    return Finding("results folder", f"{folder} {'can be written' if place == folder else 'can be made'}")


def results_lock(folder: Path) -> Finding:
    """No run holds the folder, by the kernel's table of locks: taking the lock could fail a run that is just
    starting.
    """
    for lock in [folder / ".lock", *folder.glob("*/section-*/.lock")]:
        try:
            inode, pid, held = str(lock.stat().st_ino), lock.read_text().strip(), Path("/proc/locks").read_text()
        except OSError:
            continue
        for words in map(str.split, held.splitlines()):
            if "FLOCK" in words and words[-3].rsplit(":", 1)[-1] == inode and pid in words:
                return Finding(
                    "results lock",
                    f"another run is writing in {lock.parent} (pid {pid})",
                    "one run at a time",
                    FAIL,
                    "wait for it, or end it, then the same command again",
                )
    return Finding("results lock", "free")


def _standing(folder: Path) -> Path:
    """`folder`, or its nearest parent that exists."""
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder
