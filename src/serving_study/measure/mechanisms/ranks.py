"""The processes of a server that compute, one a rank: how many there are, and what each has done.

They are known by their titles (`base.Engine.RANKS`). What can mislead: a rank that waits for others may spin, on a GPU
too, so work proves that it took part and not how much; Ray's workers are not the server's children and are not counted.

    >>> from serving_study.measure.mechanisms import ranks
    >>> ranks.count(server.pids, host, engine.RANKS)["processes"]                 # doctest: +SKIP
    {4711: {"name": "Worker 0", "cpu_s": 12.4}, …}
"""

import contextlib
from collections.abc import Sequence

import psutil

from ...hardware.gpus import nvml_handle
from ...hardware.hosts import Host
from ...servers.arm import Arm

# NVML's field numbers for payload over NVLink, KiB since the driver started, and the scope for all links.
NVLINK_FIELDS, ALL_LINKS = {"sent": 138, "received": 139}, 0xFFFFFFFF


def count(pids: list[int], host: Host, begin: Sequence[str]) -> dict:
    """Processes under `pids` with such titles (of several beginnings, the first that matches) and their processor time,
    and each GPU's NVLink bytes where NVML counts them.
    """
    titles = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.Error, IndexError):
                    times, title = process.cpu_times(), process.cmdline()[0].split()[0]
                    titles[process.pid] = {"name": title, "cpu_s": times.user + times.system}
    named = ({pid: row for pid, row in titles.items() if row["name"].startswith(title)} for title in begin)
    return {"processes": next(filter(None, named), {}), "nvlink": nvlink(host)}


def difference(arm: Arm, before: dict, after: dict) -> dict:
    """A certificate's evidence for a load: ranks asked for, ranks found with the processor time of each, bytes over
    NVLink.
    """
    processes = {} if arm.options.get("distributed_executor_backend") == "ray" else after["processes"]
    rows = [
        {
            "name": process["name"],
            "cpu_s": round(process["cpu_s"] - before["processes"].get(pid, {"cpu_s": 0.0})["cpu_s"], 3),
        }
        for pid, process in processes.items()
    ]
    links = {
        index: {way: 1024 * (counters[way] - before["nvlink"][index][way]) for way in counters}
        for index, counters in after["nvlink"].items()
        if index in before["nvlink"]
    }
    return {
        "wanted": arm.ranks,
        "copies": arm.copies,
        "processes": sorted(rows, key=lambda row: row["name"]),
        "nvlink_bytes": links,
    }


def nvlink(host: Host) -> dict[str, dict[str, int]]:
    """KiB sent and received over NVLink by GPU since the driver started; empty without such a counter."""
    by_gpu = {}
    if not host.gpus:
        return by_gpu
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for gpu in host.gpus:
                values = pynvml.nvmlDeviceGetFieldValues(
                    nvml_handle(gpu),
                    [(field, ALL_LINKS) for field in NVLINK_FIELDS.values()],
                )
                if all(value.nvmlReturn == pynvml.NVML_SUCCESS for value in values):
                    by_gpu[str(gpu.index)] = {
                        way: int(value.value.ullVal) for way, value in zip(NVLINK_FIELDS, values, strict=True)
                    }
        finally:
            pynvml.nvmlShutdown()
    return by_gpu
