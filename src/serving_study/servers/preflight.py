"""Checks before a server starts and after it has ended: ports, memory, disk."""

import os
import shutil
import socket
import time
from pathlib import Path

import psutil

from .. import engines
from ..engines.process import Process
from ..errors import HostError
from ..hardware import cgroups, hosts
from ..hardware.hosts import Host
from .arm import Arm

SCRATCH_GIB = 2.0  # of disk, for an arm that writes there


def free_port() -> int:
    """A port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_port(port: int) -> None:
    """Raises HostError naming the holder when something listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            name = holder(port)
            raise HostError(
                "the port is busy",
                value=f"{port}{f', held by {name}' if name else ''}",
                allowed="a free port, or port = 0 for any",
                next=f"ss -ltnp 'sport = :{port}'",
            ) from None


def check_memory(arm: Arm, host: Host) -> None:
    """Raises HostError when less memory is free than the server asks for at once."""
    if host.gpus:
        share = engines.get(arm.engine).memory_share(arm.server)
        for gpu in hosts.detect().gpus[: max(arm.gpus, 1)]:
            wanted = share * gpu.memory_gib
            if gpu.free_gib < wanted:
                raise HostError(
                    f"too little free memory on GPU {gpu.index}",
                    value=f"{gpu.free_gib:.2f} of {gpu.memory_gib:.2f} GiB free, {wanted:.2f} wanted; "
                    f"holders: {gpu_holders(gpu.index)}",
                    allowed=f"gpu_memory_utilization below {gpu.free_gib / gpu.memory_gib:.2f}",
                    next="nvidia-smi",
                )
        return
    wanted, free = cpu_memory_gib(arm), cgroups.free_memory_gib()
    if free < wanted:
        raise HostError(
            "too little free memory",
            value=f"{free:.1f} GiB free, about {wanted:.1f} wanted",
            allowed="a smaller kv_cache_gib or model",
            next="free -h",
        )


def cpu_memory_gib(arm: Arm) -> float:
    """Memory of the arm's servers on a CPU host, about, GiB: weights while they are loaded, KV cache, processes."""
    sidecar_gib = arm.sidecar.memory_gib if arm.sidecar else 0.0
    return sum(map(_server_gib, arm.servers)) + sidecar_gib


def _server_gib(process: Process) -> float:
    engine = engines.get(process.engine)
    taken = engine.FOOTPRINT
    weights = sum(model.weights_gib or 0 for model in (process.model, process.draft) if model)
    caches, workers = process.ranks * engine.host_cache_gib(process), (process.ranks - 1) * taken.worker_gib
    return process.copies * taken.copies * weights + caches + taken.processes_gib + workers


def imported_gib(arm: Arm) -> float:
    """What the arm's server takes before it loads anything, GiB."""
    return engines.get(arm.engine).FOOTPRINT.imported_gib


def check_disk(folder: Path, wanted_gib: float = 0.2) -> None:
    """Raises HostError when the disk of `folder` is nearly full."""
    free = shutil.disk_usage(folder).free / cgroups.GIB
    if free < wanted_gib:
        raise HostError(
            "the disk is nearly full",
            value=f"{free:.2f} GiB free at {folder}",
            allowed=f"{wanted_gib} GiB",
            next=f"df -h {folder}",
        )


def wait_for_gpu_memory(host: Host, baseline_gib: list[float], timeout_s: float = 60) -> float:
    """Wait until each GPU's free memory is within 0.5 GiB of `baseline_gib` again; returns the seconds waited.

    Raises HostError naming the processes that still hold it."""
    began = time.monotonic()
    while host.gpus:
        free = [gpu.free_gib for gpu in hosts.detect().gpus]
        if all(now >= before - 0.5 for now, before in zip(free, baseline_gib, strict=False)):
            break
        if time.monotonic() - began > timeout_s:
            raise HostError(
                "GPU memory did not come back after a server ended",
                value=f"free {free} GiB, before {baseline_gib}; holders: {gpu_holders(0)}",
                next="nvidia-smi",
            )
        time.sleep(0.1)
    return time.monotonic() - began


def listeners(port: int):
    return [
        connection
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]


def owner_group(port: int, group: int) -> bool | None:
    try:
        pids = {connection.pid for connection in listeners(port)} - {None}
    except psutil.AccessDenied:
        return None
    if not pids:
        return None
    try:
        return all(os.getpgid(pid) == group for pid in pids)
    except ProcessLookupError:
        return None


def holder(port: int) -> str | None:
    try:
        for connection in listeners(port):
            if connection.pid:
                process = psutil.Process(connection.pid)
                return f"{process.name()} (pid {process.pid})"
    except psutil.Error:
        pass
    return None


def gpu_holders(index: int) -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        holders = [f"pid {process.pid}" for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return ", ".join(holders) or "none that NVML shows"
    except pynvml.NVMLError as error:
        return f"unknown ({error})"
