"""This machine: its GPUs, memory and processor, and the name of its profile.

A profile is `cpu`, or the GPU's short name and count: `l4x1`, `a10gx4`, `h200x2`. Figures of different profiles are
never compared as absolute numbers.

    >>> from serving_study import hosts
    >>> hosts.detect().profile            # doctest: +SKIP
    'l4x1'
"""

import os
import platform
import re
import threading
import time
from dataclasses import asdict, dataclass

import psutil

from .errors import HostError

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML reports it; memory in GiB."""

    index: int
    name: str
    memory_gib: float
    free_gib: float
    compute_capability: str


@dataclass(frozen=True)
class Host:
    """One machine. `memory_gib` and `free_memory_gib` are of host memory; `gpus` is empty on profile `cpu`."""

    profile: str
    cpu_model: str
    cpus: int
    memory_gib: float
    free_memory_gib: float
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None

    def identity(self) -> dict:
        """What decides a result: the parts that may not differ between two cells of the same key."""
        return {
            "profile": self.profile,
            "cpu": self.cpu_model,
            "cpus": self.cpus,
            "gpus": [gpu.name for gpu in self.gpus],
            "driver": self.driver,
        }

    def as_dict(self) -> dict:
        return asdict(self)


def short_name(gpu_name: str) -> str:
    """`NVIDIA A10G` is `a10g`, `NVIDIA H100 80GB HBM3` is `h100`, `Tesla T4` is `t4`."""
    words = [
        word
        for word in re.split(r"[\s-]+", gpu_name)
        if word.lower() not in ("nvidia", "tesla", "geforce", "quadro", "graphics", "device")
    ]
    return (
        re.sub(
            r"[^a-z0-9]", "", "".join(words[:2] if words and words[0].lower() in ("rtx", "gtx") else words[:1]).lower()
        )
        or "gpu"
    )


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        found = []
        for index in visible_devices(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            capability = ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle)))
            found.append(
                Gpu(
                    index,
                    pynvml.nvmlDeviceGetName(handle),
                    round(memory.total / GIB, 2),
                    round(memory.free / GIB, 2),
                    capability,
                )
            )
        return tuple(found), pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()


def visible_devices(count: int) -> list[int]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES leaves; those that it names by UUID are all taken as visible."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None or not all(part.strip().isdigit() for part in wanted.split(",") if part.strip()):
        return list(range(count))
    return [index for index in map(int, filter(str.strip, wanted.split(","))) if index < count]


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
        return ", ".join(sorted(names)) or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def computes_bf16() -> bool:
    """Whether the processor multiplies bf16 itself; without, vLLM's CPU build falls back to a path that makes prefill
    many times slower.
    """
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return False
    return any(flag in flags.split() for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def detect(profile: str = "auto") -> Host:
    """This machine under `profile`: `auto`, its own name, or `cpu` to leave its GPUs aside.

    Raises HostError for a profile that this machine cannot be.
    """
    gpus, driver = _gpus()
    own = f"{short_name(gpus[0].name)}x{len(gpus)}" if gpus else "cpu"
    allowed = ["auto", *dict.fromkeys([own, "cpu"])]
    if profile not in allowed:
        raise HostError(
            "this machine is not the host profile asked for",
            value=profile,
            allowed=", ".join(allowed),
            next="serving-study run SECTION --dry-run",
        )
    chosen = own if profile == "auto" else profile
    if chosen == "cpu":
        gpus, driver = (), None
    memory = psutil.virtual_memory()
    return Host(
        chosen, _cpu_model(), len(cores()), round(memory.total / GIB, 1), round(memory.available / GIB, 1), gpus, driver
    )


class Sampler:
    """Samples the machine during a load, in a thread: GPU utilisation, clocks and throttle reasons, or load average and
    steal.

    A context manager; `summary()` afterwards. What NVML does not answer stays missing.
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
        handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in self.host.gpus]
        try:
            while not self._stop.wait(self.interval_s):
                self.samples.append({"at": time.time(), "gpus": [_gpu_sample(pynvml, handle) for handle in handles]})
        finally:
            pynvml.nvmlShutdown()

    def summary(self) -> dict:
        """Per GPU: mean utilisation (%), lowest and highest SM clock (MHz), peak memory (GiB), throttle reasons seen
        (bit mask).
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
