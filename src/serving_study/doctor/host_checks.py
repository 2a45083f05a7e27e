"""What a run needs of its host, one function a check: memory, port, clocks, links, hub, load.

Nothing is installed, fetched or locked, and every wait has a deadline; what cannot be checked is a warning.

    >>> from serving_study.doctor import host_checks
    >>> host_checks.port(8000).found                                                        # doctest: +SKIP
    '8000 is free'
"""

import contextlib
import http.client
import os
import resource
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from ..engine_side import fetch
from ..engines import probes
from ..environments import Environment
from ..errors import HostError, StudyError
from ..hardware import cgroups, gpus
from ..hardware.hosts import Host
from ..hardware.links import topology_here
from ..measure.plan import Plan
from ..results import certificates
from ..servers import preflight
from ..servers.arm import Arm
from ..servers.server import WARDEN
from .findings import FAIL, OK, WARN, Finding, of_error

HUB = "https://huggingface.co"
HUB_S = 3.0
SHM_GIB = 0.25  # of /dev/shm for each process that computes
OPEN_FILES = 256  # of a process, without those of requests


def memory(arms: list[Arm], host: Host) -> list[Finding]:
    """Free memory of each GPU, or of a CPU host, against the need of the most demanding arm."""
    faults = {}
    for arm in arms or [Arm.of("any", None, environment={"VLLM_CPU_KVCACHE_SPACE": 1}, gpus=len(host.gpus))]:
        try:
            preflight.check_memory(arm, host)
        except HostError as error:
            faults.setdefault(error.what, of_error("memory", error))
    if faults:
        return list(faults.values())
    if host.gpus:
        return [
            Finding(
                "memory",
                ", ".join(f"GPU {gpu.index}: {gpu.free_gib:.1f} of {gpu.memory_gib:.1f} GiB free" for gpu in host.gpus),
            )
        ]
    wanted = f", about {max(map(preflight.cpu_memory_gib, arms)):.1f} wanted" if arms else ""
    return [Finding("memory", f"{cgroups.free_memory_gib():.1f} GiB free{wanted}")]


def container(root: Path = Path("/")) -> Finding:
    """The cores and memory that the container's control group allows."""
    limits, whole = cgroups.limits(root), os.cpu_count()
    said = []
    if limits.cores is not None:
        said.append(f"{limits.cores:g} of {whole} cores, of which {len(cgroups.cores(root))} are used")
    if limits.memory is not None:
        total = psutil.virtual_memory().total
        said.append(f"{limits.memory / cgroups.GIB:.1f} of {total / cgroups.GIB:.1f} GiB of memory")
    if limits.cores is not None and limits.cores < 1:
        return Finding(
            "container", said[0], "a whole core: less is a server that stands still between its turns", WARN, "--cpus 2"
        )
    return Finding("container", "; ".join(said) or "no limit of processor or memory")


def shared_memory(arms: list[Arm], place: Path = Path("/dev/shm")) -> Finding:
    """Room in `/dev/shm`, which an engine's processes share; a container has 64 MiB unless it is given more."""
    try:
        usage = shutil.disk_usage(place)
    except OSError as error:
        return Finding("shared memory", f"{place}: {error.strerror}", "a file system in memory", WARN, f"df -h {place}")
    ranks = max((arm.ranks for arm in arms), default=1)
    wanted, free = (
        SHM_GIB * ranks,
        f"{usage.free / cgroups.GIB:.2f} of {usage.total / cgroups.GIB:.2f} GiB free at {place}",
    )
    if usage.free < wanted * cgroups.GIB:
        return Finding(
            "shared memory",
            free,
            f"{wanted:g} GiB for {ranks} process{'es' if ranks > 1 else ''}: less ends a server with «No space left "
            "on device», or a bus error",
            WARN,
            "docker run --shm-size=8g or --ipc=host; in a pod, an emptyDir of medium Memory at /dev/shm",
        )
    return Finding("shared memory", free)


def open_files(plan: Plan | None) -> Finding:
    """The limit of open files against the highest concurrency: each request in flight takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max((load.concurrency for load in plan.loads), default=0) if plan else 0
    wanted, limit = highest + OPEN_FILES, soft if soft != resource.RLIM_INFINITY else None
    if limit is not None and limit < wanted:
        enough = hard == resource.RLIM_INFINITY or hard >= wanted
        return Finding(
            "open files",
            f"{limit} a process, with {highest} requests in flight",
            f"{wanted}: {OPEN_FILES} beside those of the requests",
            FAIL,
            f"ulimit -n {wanted}" if enough else f"ulimit -n is capped at {hard}: docker run --ulimit nofile={wanted}",
        )
    return Finding("open files", f"{limit or 'any number'} a process, with {highest} requests in flight")


def port(number: int) -> Finding:
    """The servers' port is free."""
    try:
        preflight.check_port(number)
    except HostError as error:
        return of_error("port", error)
    return Finding("port", f"{number} is free")


def gpu_clocks(host: Host) -> list[Finding]:
    """Why NVML says that clocks are lowered now; the certificate asks again during each cell."""
    if not host.gpus:
        return []
    import pynvml

    reasons = []
    try:
        pynvml.nvmlInit()
        for gpu in host.gpus:
            mask = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpus.nvml_handle(gpu))
            reasons += [f"GPU {gpu.index}: {name}" for bit, name in certificates.THROTTLE.items() if mask & bit]
    except pynvml.NVMLError as error:
        return [
            Finding(
                "GPU clocks", f"NVML does not say ({error})", "throttle reasons", WARN, "nvidia-smi -q -d PERFORMANCE"
            )
        ]
    if reasons:
        return [
            Finding(
                "GPU clocks",
                ", ".join(reasons),
                "no slowdown",
                WARN,
                "nvidia-smi -q -d PERFORMANCE,TEMPERATURE, and wait until they are cool",
            )
        ]
    return [Finding("GPU clocks", "not lowered")]


def hub(plan: Plan | None) -> Finding:
    """Models can be fetched; else weights are random and acceptance is prescribed."""
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    wanted = (
        {
            model.name
            for arm in plan.arms
            for model in (arm.model, arm.draft)
            if model and "/" in model.name and not (model.weights == "real" and model.weights_gib)
        }
        if plan
        else None
    )
    if wanted is not None and (not wanted or plan.parameters.get("weights") == "random"):
        return Finding("hub", "not needed: every model is here")
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        return Finding("hub", "not asked (HF_HUB_OFFLINE=1)")
    answer: list[tuple[str, bool]] = []
    asking = threading.Thread(
        target=_head, args=(endpoint, answer), daemon=True
    )  # name look-up has no deadline of its own
    asking.start()
    asking.join(HUB_S + 0.5)
    said, replaced = answer[0] if answer else (f"no answer within {HUB_S:g} s", True)
    if said == OK:
        return Finding("hub", f"{endpoint} answers")
    real = plan is not None and plan.parameters.get("weights") == "real"
    return Finding(
        "hub",
        f"{endpoint}: {said}",
        f"an answer; without, {'random weights are used' if replaced and not real else 'the run ends'}",
        WARN,
        "check the network and HF_ENDPOINT, or set HF_HUB_OFFLINE=1",
    )


def _head(endpoint: str, answer: list[tuple[str, bool]]) -> None:
    """Asks the hub, and whether a failure is a hub out of reach, whose models random weights may replace."""
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=HUB_S):
            answer.append((OK, False))
    except urllib.error.HTTPError as error:
        answer.append((f"HTTP {error.code}", False))
        error.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        said = f"no answer within {HUB_S:g} s" if isinstance(reason, TimeoutError) else str(reason)
        unreached = isinstance(reason, OSError) and fetch.unreached(reason) is not None
        answer.append((said, unreached and fetch.proxy(endpoint) is None))


def links(host: Host, environment: Environment | None, arms: list[Arm] | None) -> Finding:
    """How the GPUs are linked, and that data arrives from each at each; copies are tried only where an arm spans
    several.
    """
    if len(host.gpus) < 2:
        return Finding("GPU links", "one GPU" if host.gpus else "no GPU")
    linked = _topology()
    if not environment or not environment.vllm or arms is not None and all(arm.gpus < 2 for arm in arms):
        wanted = arms is None or any(arm.gpus > 1 for arm in arms)
        why = "no engine to try it with yet" if wanted else "no arm spans GPUs"
        return Finding("GPU links", f"{linked}; P2P copy not tried: {why}")
    fix = "NCCL_P2P_DISABLE=1 for the run; for good, turn off PCIe access control (ACS) or the IOMMU"
    try:
        pairs = probes.peers(environment, host).answer
    except TimeoutError:
        return Finding(
            "GPU links",
            f"P2P copy hangs: no answer within {probes.PEERS_S:g} s ({linked})",
            "a copy between every two GPUs",
            FAIL,
            fix,
        )
    except (StudyError, OSError) as error:
        return of_error("GPU links", error)
    changed = [pair for pair, seen in pairs.items() if not seen["intact"]]
    if changed:
        return Finding(
            "GPU links",
            f"P2P copy changes the data: {', '.join(changed)} ({linked})",
            "what was sent arrives",
            FAIL,
            fix,
        )
    through_host = "" if all(seen["peer_access"] for seen in pairs.values()) else ", through the host"
    return Finding(
        "GPU links",
        f"{linked}; {len(pairs)} P2P copies arrive{through_host}, the slowest in "
        f"{max((seen['seconds'] for seen in pairs.values()), default=0):.3f} s",
    )


def _topology() -> str:
    """Each pair of GPUs and its link, in one line."""
    matrix = topology_here()
    pairs = matrix.pairs.items() if matrix else ()
    return ", ".join(f"GPU{first}–GPU{second} {link}" for (first, second), link in pairs) or "topology unknown"


def load(host: Host) -> Finding:
    """Other work on a CPU host, which takes time from the measured server."""
    # The load average is of the whole machine, also in a container.
    average, cores = os.getloadavg()[0], host.cpus if cgroups.limits().cores is None else os.cpu_count()
    if not host.gpus and average > cores:
        return Finding(
            "other load",
            f"load average {average:.1f} on {cores} cores",
            f"at most {cores}",
            WARN,
            "measure on a quiet machine: see top, wait, then the same command again",
        )
    return Finding("other load", f"load average {average:.1f} on {cores} cores")


def earlier_runs() -> Finding:
    """Servers that this checkout started and that still run."""
    alive = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(WARDEN) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process.pid)
    if alive:
        return Finding(
            "earlier runs",
            f"still alive: {', '.join(f'warden pid {pid}' for pid in alive)}",
            "no server of an earlier run",
            WARN,
            f"wait for that run, or kill {' '.join(map(str, alive))}: each ends its server with it",
        )
    return Finding("earlier runs", "none alive")
