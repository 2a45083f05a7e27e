"""What a container may use of its machine: processor time and memory, by Linux control groups, versions 1 and 2.

A container sees the whole machine in `/proc/meminfo` and often in its affinity. Its limits are in the files of its
control group and of those above it; the smallest holds. What can mislead: cached files count as used memory although
the kernel gives them up when asked, so they are taken off here; a limit on processor time is a share of all cores,
which no list of cores shows.

    >>> from serving_study.hardware import cgroups
    >>> cgroups.limits().cores                            # doctest: +SKIP
    2.0
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

GIB = 2**30
NO_LIMIT = 2**60  # version 1 writes the largest number of pages where there is no limit


@dataclass(frozen=True)
class Limits:
    """Processor time in cores, memory in bytes, and how much of that memory is left; None: no limit."""

    cores: float | None = None
    memory: int | None = None
    memory_free: int | None = None


def limits(root: Path = Path("/")) -> Limits:
    """The limits of this process's control groups, read below `root`; what cannot be read limits nothing."""
    cores, memories = [], []
    for controllers, folder in _groups(root):
        if "cpu" in controllers:
            cores.append(_quota(folder))
        if "memory" in controllers:
            memories.append(_memory(folder))
    known = [memory for memory in memories if memory]
    return Limits(
        min(filter(None, cores), default=None),
        min((memory for memory, _ in known), default=None),
        min((max(0, memory - used) for memory, used in known), default=None),
    )


def _groups(root: Path) -> list[tuple[set[str], Path]]:
    """This process's control groups and those above them: each one's controllers and folder."""
    own = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own[frozenset(controllers.split(",")) if controllers else frozenset({"unified"})] = path
    groups = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, kind = line.partition(" - ")
        if not kind.startswith("cgroup"):
            continue
        top, place = mount.split()[3], root / re.sub(r"\\040", " ", mount.split()[4]).lstrip("/")
        wanted = {"unified"} if kind.startswith("cgroup2 ") else set(kind.split()[2].split(","))
        path = next((path for controllers, path in own.items() if controllers <= wanted), None)
        if path is None:
            continue
        # In a container the mount may start at its own group, which the path still includes.
        inside = path.removeprefix(top).lstrip("/") if path.startswith(top) else ""
        folder = place / inside if (place / inside).is_dir() else place
        controllers = {"cpu", "memory"} if wanted == {"unified"} else wanted
        groups += [(controllers, one) for one in (folder, *folder.parents) if one.is_relative_to(place)]
    return groups


def _quota(folder: Path) -> float | None:
    quota, period = (_read(folder / "cpu.max").split() + ["", ""])[:2]
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _memory(folder: Path) -> tuple[int, int] | None:
    """(limit, used), without cached files that the kernel can give up; None without a limit."""
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = _read(folder / limit_file).strip(), _read(folder / used_file).strip()
        if limit.isdigit() and int(limit) < NO_LIMIT:
            # Version 1 counts the groups below under `total_`; version 2 always does.
            given_up = dict(re.findall(r"^(\w*inactive_file) (\d+)$", _read(folder / "memory.stat"), re.MULTILINE))
            cached = given_up.get("total_inactive_file", given_up.get("inactive_file", 0))
            return int(limit), max(0, int(used or 0) - int(cached))
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def cores(root: Path = Path("/")) -> list[int]:
    """The processor cores that this process may use: as many whole ones as its container's processor time allows."""
    allowed, share = sorted(os.sched_getaffinity(0)), limits(root).cores
    return allowed if share is None else allowed[: max(1, int(share + 1e-6))]


def cores_of_ranks(ranks: int, shares: int) -> str:
    """Cores by rank, `0,1|2,3`: each rank gets an equal part of this process's cores, which are divided into
    `shares`.
    """
    usable = cores()
    each = max(1, len(usable) // max(shares, 1))
    return "|".join(",".join(map(str, usable[rank * each : (rank + 1) * each])) for rank in range(ranks))


def memory_of_host(root: Path = Path("/")) -> tuple[int, int]:
    """Total and free host memory in bytes; the container's where it has a limit."""
    whole, container = psutil.virtual_memory(), limits(root)
    if container.memory is None:
        return whole.total, whole.available
    return min(whole.total, container.memory), min(whole.available, container.memory_free)


def free_memory_gib() -> float:
    """Host memory that is free now, GiB."""
    return memory_of_host()[1] / GIB
