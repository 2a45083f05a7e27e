"""Samples of this machine during a load: what its GPUs, or its processor, were doing.

What NVML does not answer is missing from a sample and from the summary.

    with Sampler(host) as sampler:
        ...
    sampler.summary()["samples"]
"""

import os
import threading
import time

import psutil

from .cgroups import GIB
from .gpus import nvml_handle
from .hosts import Host


class Sampler:
    """Samples the machine in a thread: GPU utilisation, clocks and throttle reasons, or load average and steal. A
    context manager; `summary()` afterwards.
    """

    def __init__(self, host: Host, interval_s: float = 0.2):
        self.host, self.interval_s, self.samples = host, interval_s, []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self):
        self._cpu_before = psutil.cpu_times()
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()
        after, before = psutil.cpu_times(), self._cpu_before
        total = sum(after) - sum(before)
        self.steal = (getattr(after, "steal", 0) - getattr(before, "steal", 0)) / total if total > 0 else None
        self.busy = 1 - (after.idle - before.idle) / total if total > 0 else None

    def _loop(self):
        if not self.host.gpus:
            while not self._stop.wait(self.interval_s):
                self.samples.append({"load_average": os.getloadavg()[0]})
            return
        import pynvml

        pynvml.nvmlInit()
        handles = [nvml_handle(gpu) for gpu in self.host.gpus]
        try:
            while not self._stop.wait(self.interval_s):
                self.samples.append({"at": time.time(), "gpus": [_gpu_sample(pynvml, handle) for handle in handles]})
        finally:
            pynvml.nvmlShutdown()

    def summary(self) -> dict:
        """Per GPU: mean utilisation (%), lowest and highest SM clock (MHz), peak memory (GiB), throttle reasons (bit
        mask).
        """
        result = {"samples": len(self.samples), "cpu_busy": self.busy, "cpu_steal": self.steal}
        if not self.host.gpus:
            loads = [sample["load_average"] for sample in self.samples]
            return result | {"load_average": max(loads) if loads else None}
        per_gpu = []
        for position, gpu in enumerate(self.host.gpus):
            rows = [sample["gpus"][position] for sample in self.samples]
            values = {
                key: [row[key] for row in rows if row.get(key) is not None]
                for key in ("utilisation", "sm_clock_mhz", "memory_gib", "throttle", "power_w", "temperature_c")
            }
            per_gpu.append(
                {
                    "index": gpu.index,
                    "mean_utilisation": _mean(values["utilisation"]),
                    "min_sm_clock_mhz": min(values["sm_clock_mhz"], default=None),
                    "max_sm_clock_mhz": max(values["sm_clock_mhz"], default=None),
                    "peak_memory_gib": max(values["memory_gib"], default=None),
                    "mean_power_w": _mean(values["power_w"]),
                    "max_temperature_c": max(values["temperature_c"], default=None),
                    "throttle_reasons": _or(values["throttle"]),
                }
            )
        return result | {"gpus": per_gpu}


def _mean(values):
    return round(sum(values) / len(values), 2) if values else None


def _or(values):
    mask = 0
    for value in values:
        mask |= value
    return mask if values else None


def _gpu_sample(pynvml, handle) -> dict:
    asks = {
        "utilisation": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_gib": lambda: round(pynvml.nvmlDeviceGetMemoryInfo(handle).used / GIB, 2),
        "throttle": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    }
    sample = {}
    for key, ask in asks.items():
        try:
            sample[key] = ask()
        except pynvml.NVMLError:
            sample[key] = None
    return sample
