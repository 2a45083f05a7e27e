"""This machine: its GPUs, memory and processor, the name of its profile, and its own name.

A profile is `cpu`, or the GPU's short name and count: `l4x1`, `a10gx4`, `h200x2`; plans and parameters go by it. What
results go by is the `name`: the profile of a host with GPUs, and of one without `cpu-` and four digits that stand for
its hardware, since two processors have less in common than two cards of one kind. Figures of different names are never
compared as absolute numbers. What can mislead: a container sees the whole machine's memory and cores; here they are
those that its control group leaves it.

    >>> from serving_study.hardware import hosts
    >>> hosts.detect().name               # doctest: +SKIP
    'cpu-3f2a'
"""

import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ..errors import HostError
from . import cgroups

GIB = 2**30
CPU = "cpu"
# Words of a card's name that say nothing of its ceilings, and the memory that a name leaves out since the table's card
# of that name has it.
FILLERS = re.compile(
    r"|nvidia|tesla|geforce|quadro|graphics|device|gpu|generation|blackwell|edition|active|sxm\d*|hbm\d*e?|ac|shared"
)
PLAIN_SIZE = {"h100": "80", "h800": "80", "h200": "141", "gh200": "480"}
LATER = ("cpu_revision", "virtualisation", "kernel")  # which the first runs did not record
# What tells the kind of a virtual machine: the clock that the kernel takes from it, or the maker that it names.
CLOCKS = {"kvm-clock": "kvm", "hyperv": "hyperv", "xen": "xen"}
MAKERS = {
    "KVM": "kvm",
    "QEMU": "kvm",
    "Amazon EC2": "kvm",
    "Google": "kvm",
    "OpenStack": "kvm",
    "VMware": "vmware",
    "innotek": "virtualbox",
    "VirtualBox": "virtualbox",
    "Xen": "xen",
    "Virtual Machine": "hyperv",
    "Parallels": "parallels",
    "Apple Virtualization": "apple",
}
CONTAINERS = {
    "docker": "docker",
    "kubepods": "kubernetes",
    "libpod": "podman",
    "lxc": "lxc",
    "containerd": "containerd",
}


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one slice of it (MIG), as NVML reports it; memory in GiB. `index` is the card's; `uuid` is a slice's,
    empty of a whole card.
    """

    index: int
    name: str
    memory_gib: float
    free_gib: float
    compute_capability: str
    uuid: str = ""


@dataclass(frozen=True)
class Host:
    """One machine. `memory_gib` and `free_memory_gib` are of host memory; `gpus` is empty on profile `cpu`.

    `virtualisation` says what it runs in (`kvm, docker`, or `none`), `kernel` is the kernel's release, `cpu_revision`
    the processor's own numbers, since a virtual machine may name every generation alike; empty where nobody asked.
    """

    profile: str
    cpu_model: str
    cpus: int
    memory_gib: float
    free_memory_gib: float
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    virtualisation: str = ""
    kernel: str = ""
    cpu_revision: str = ""

    def identity(self) -> dict:
        """The hardware, which decides a result: the parts that may not differ between two cells of the same key."""
        return {
            "profile": self.profile,
            "cpu": self.cpu_model,
            "cpus": self.cpus,
            "memory_gib": round(self.memory_gib),
            "cpu_revision": self.cpu_revision,
            "virtualisation": self.virtualisation,
            "kernel": self.kernel,
            "gpus": [gpu.name for gpu in self.gpus],
            "driver": self.driver,
        }

    @property
    def name(self) -> str:
        """What results folders and tables call it: its profile, or without GPUs one of its own: `cpu-3f2a`."""
        if self.profile != CPU:
            return self.profile
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()
        return f"{CPU}-{digest[:4]}"

    @property
    def words(self) -> str:
        """Its hardware for a reader: GPUs or processor, cores, memory, what it runs in, kernel and driver."""
        gpus = [gpu.name for gpu in self.gpus]
        kinds = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
        return ", ".join(
            [
                *kinds,
                self.cpu_model,
                f"{self.cpus} core{'s' if self.cpus != 1 else ''}",
                f"{self.memory_gib:.0f} GiB",
                *([self.virtualisation] if self.virtualisation not in ("", "none") else []),
                *([f"kernel {self.kernel}"] if self.kernel else []),
                *([f"driver {self.driver}"] if self.driver else []),
            ]
        )

    def is_same_machine(self, other: "Host") -> bool:
        """Whether the hardware is the same, as far as both are known."""
        ours, theirs = self.identity(), other.identity()
        return all(ours[name] == theirs[name] or name in LATER and "" in (ours[name], theirs[name]) for name in ours)

    def as_dict(self) -> dict:
        """For `run.json`: without a slice's UUID, which is this machine's alone."""
        gpus = tuple({name: value for name, value in asdict(gpu).items() if name != "uuid"} for gpu in self.gpus)
        return asdict(self) | {"name": self.name, "gpus": gpus}


def of_record(record: Mapping) -> Host:
    """The host of a run, from its `run.json`; what earlier runs did not record stays empty."""
    host = record["host"]
    return Host(
        host.get("profile", ""),
        host.get("cpu_model", ""),
        host.get("cpus", 0),
        host.get("memory_gib", 0.0),
        host.get("free_memory_gib", 0.0),
        tuple(Gpu(**(dict.fromkeys(Gpu.__dataclass_fields__) | {"uuid": ""} | gpu)) for gpu in host.get("gpus", ())),
        host.get("driver"),
        host.get("virtualisation", ""),
        host.get("kernel") or (record.get("provenance") or {}).get("kernel") or "",
        host.get("cpu_revision", ""),
    )


def is_cpu(name: str) -> bool:
    """Whether a host's name, or its profile, is of a machine without GPUs."""
    return re.fullmatch(rf"{CPU}(-[0-9a-f]{{4}})?", name) is not None


def short_name(gpu_name: str) -> str:
    """A card's name in a profile: `NVIDIA A10G` is `a10g`, `NVIDIA H100 80GB HBM3` is `h100`, `NVIDIA H100 PCIe` is
    `h100pcie`, `NVIDIA A100-SXM4-40GB` is `a100-40`.

    Two cards have one name where their ceilings are the same: a form factor other than SXM stays, and so does the
    memory of a family that is made with several. A slice (MIG) has its own size: `a100-40mig1g.5gb`.
    """
    card, _, part = gpu_name.partition(" MIG ")
    words, sizes = [], []
    for word in re.split(r"[\s-]+", card.lower()):
        if size := re.fullmatch(r"(\d+)gb?", word):
            sizes.append(size[1])
        elif not FILLERS.fullmatch(word):
            words.append(re.sub(r"[^a-z0-9]", "", word))
    name = "".join(words) or "gpu"
    size = "".join(f"-{size}" for size in sizes if PLAIN_SIZE.get(name) != size)
    return name + size + (f"mig{re.sub(r'[^a-z0-9.+]', '', part.lower())}" if part else "")


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """The cards and slices that CUDA would show to a process of ours, and the driver.

    Raises HostError where one of them does not say how much memory it has.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        handles = {index: _said(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(_count(pynvml))}
        # A card that this process may not touch, as outside of its container, is none that CUDA counts.
        cards = [(index, handle) for index, handle in handles.items() if handle is not None]
        uuids = [str(_said(pynvml.nvmlDeviceGetUUID, handle) or "") for _, handle in cards]
        slices = [_slices(pynvml, handle) for _, handle in cards]
        gpus = []
        for position, uuid in visible_devices(uuids, [None if own is None else list(own) for own in slices]):
            index, handle = cards[position]
            gpus.append(_gpu(pynvml, index, handle, slices[position][uuid] if uuid else handle, uuid or ""))
        return tuple(gpus), pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()


def _said(ask, *arguments):
    """What NVML answers, or None where it does not: an old driver, a missing permission, a kind of card."""
    import pynvml

    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _count(pynvml) -> int:
    return _said(pynvml.nvmlDeviceGetCount) or 0


def _slices(pynvml, handle) -> dict | None:
    """Handle by UUID of each slice of a card in MIG mode; None of a whole card."""
    mode = _said(pynvml.nvmlDeviceGetMigMode, handle)
    if not mode or not mode[0]:
        return None
    places = range(_said(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    handles = [_said(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place) for place in places]
    return {str(pynvml.nvmlDeviceGetUUID(one)): one for one in handles if one is not None}


def _gpu(pynvml, index: int, card, handle, uuid: str) -> Gpu:
    """A card, or the slice of it that `handle` is; memory that a processor and a GPU share is the system's."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = memory.total, memory.free
    except pynvml.NVMLError_NotSupported:
        total = free = 0
    except pynvml.NVMLError as error:
        raise HostError(
            "a GPU does not say how much memory it has",
            value=f"GPU {index}: {error}",
            allowed="a GPU, or a slice of one, that this user may ask",
            next='nvidia-smi -L; a slice by its UUID in CUDA_VISIBLE_DEVICES, or host = "cpu"',
        ) from None
    if not total:
        total, free = memory_of_host()
    capability = _said(pynvml.nvmlDeviceGetCudaComputeCapability, handle) or _said(
        pynvml.nvmlDeviceGetCudaComputeCapability, card
    )
    return Gpu(
        index,
        pynvml.nvmlDeviceGetName(handle),
        round(total / GIB, 2),
        round(free / GIB, 2),
        ".".join(map(str, capability or ())),
        uuid,
    )


def nvml_handle(gpu: Gpu):
    """NVML's handle of a card or a slice, between `nvmlInit` and `nvmlShutdown`. Raises NVMLError."""
    import pynvml

    return pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) if gpu.uuid else pynvml.nvmlDeviceGetHandleByIndex(gpu.index)


def visible_devices(uuids: Sequence[str], slices: Sequence[Sequence[str] | None] = ()) -> list[tuple[int, str | None]]:
    """What CUDA_VISIBLE_DEVICES leaves of cards with these UUIDs: each a card's position, and a slice's UUID.

    By CUDA's own rules: the list ends at the first entry that names nothing, one thing twice or several things, so that
    `-1` or an empty text hides all; a UUID may be cut short; of a card in MIG mode its first slice is seen, and one
    slice alone in all. `slices` are those of each card, None of a whole one. An index is NVML's: where cards differ and
    CUDA_DEVICE_ORDER is not PCI_BUS_ID, CUDA counts the fastest first.
    """
    slices = [*slices, *[None] * (len(uuids) - len(slices))]
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(len(uuids)))) if wanted is None else [part.strip() for part in wanted.split(",")]
    visible: list[tuple[int, str | None]] = []
    for name in names:
        if name.startswith("MIG-"):
            named = [(at, uuid) for at, own in enumerate(slices) for uuid in own or () if uuid.startswith(name)]
        elif name.startswith("GPU-"):
            named = [(at, None) for at, uuid in enumerate(uuids) if uuid.startswith(name)]
        else:
            named = [(int(name), None)] if re.fullmatch(r"\d+", name) and int(name) < len(uuids) else []
        if len(named) == 1 and named[0][1] is None and slices[named[0][0]] is not None:
            at = named[0][0]
            named = [(at, uuid) for uuid in list(slices[at])[:1]]
            if not named and wanted is None:
                continue
        if len(named) != 1 or named[0] in visible:
            break
        visible += named
    first_slice = next((one for one in visible if one[1]), None)
    return [first_slice] if first_slice else visible


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
        return ", ".join(sorted(names)) or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def cpu_revision(root: Path = Path("/")) -> str:
    """The processor's family, model and stepping (`6-167-1`), or on ARM its implementer, part and revision."""
    lines = [line.split(":", 1) for line in _text(root / "proc/cpuinfo").splitlines() if ":" in line]
    said = {name.strip(): value.strip() for name, value in reversed(lines)}
    names = (
        ("cpu family", "model", "stepping") if "cpu family" in said else ("CPU implementer", "CPU part", "CPU revision")
    )
    return "-".join(said[name] for name in names if name in said)


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


def cores(root: Path = Path("/")) -> list[int]:
    """The processor cores that this process may use: as many whole ones as its container's share of time makes."""
    allowed, share = sorted(os.sched_getaffinity(0)), cgroups.limits(root).cores
    return allowed if share is None else allowed[: max(1, int(share + 1e-6))]


def cores_of_ranks(ranks: int, shares: int) -> str:
    """A list of cores a rank, `0,1|2,3`: every rank has the same number of them, this process's over `shares`."""
    usable = cores()
    each = max(1, len(usable) // max(shares, 1))
    return "|".join(",".join(map(str, usable[rank * each : (rank + 1) * each])) for rank in range(ranks))


def memory_of_host(root: Path = Path("/")) -> tuple[int, int]:
    """Bytes of host memory in all and free now: this container's where it has a limit."""
    whole, limits = psutil.virtual_memory(), cgroups.limits(root)
    if limits.memory is None:
        return whole.total, whole.available
    return min(whole.total, limits.memory), min(whole.available, limits.memory_free)


def free_memory_gib() -> float:
    """Host memory that is free now, GiB."""
    return memory_of_host()[1] / GIB


def virtualisation(root: Path = Path("/")) -> str:
    """What this machine runs in: the kind of virtual machine and of container (`kvm, docker`), or `none`."""
    read = lambda name: _text(root / name)  # noqa: E731
    clocks = read("sys/devices/system/clocksource/clocksource0/available_clocksource")
    makers = " ".join(read(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name", "bios_vendor"))
    flags = next((line for line in read("proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    machine = (
        read("sys/hypervisor/type").strip()
        or next((kind for clock, kind in CLOCKS.items() if clock in clocks), "")
        or next((kind for maker, kind in MAKERS.items() if maker in makers), "")
        or ("virtual machine" if "hypervisor" in flags.split() else "")
    )
    groups = read("proc/1/cgroup") + read("proc/self/cgroup")
    container = (
        read("run/systemd/container").strip()
        or next((kind for word, kind in CONTAINERS.items() if word in groups), "")
        or ("docker" if (root / ".dockerenv").exists() else "")
        or ("podman" if (root / "run/.containerenv").exists() else "")
    )
    return ", ".join(filter(None, (machine, container))) or "none"


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def detect(profile: str = "auto") -> Host:
    """This machine under `profile`: `auto`, its own profile or name, or `cpu` to leave its GPUs aside.

    Raises HostError for a profile that this machine cannot be.
    """
    without = _host(CPU)
    if profile in (CPU, without.name):
        return without
    gpus, driver = _gpus()
    kinds = [short_name(gpu.name) for gpu in gpus]
    own = "+".join(f"{kind}x{kinds.count(kind)}" for kind in dict.fromkeys(kinds)) or CPU
    allowed = ["auto", *dict.fromkeys([own, CPU])]
    if profile not in allowed:
        raise HostError(
            "this machine is not the host profile asked for",
            value=profile,
            allowed=", ".join(allowed),
            next="serving-study run SECTION --dry-run",
        )
    chosen = own if profile == "auto" else profile
    return without if chosen == CPU else _host(chosen, gpus, driver)


def _host(profile: str, gpus: tuple[Gpu, ...] = (), driver: str | None = None) -> Host:
    total, free = memory_of_host()
    return Host(
        profile,
        _cpu_model(),
        len(cores()),
        round(total / GIB, 1),
        round(free / GIB, 1),
        gpus,
        driver,
        virtualisation(),
        platform.release(),
        cpu_revision(),
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
        handles = [nvml_handle(gpu) for gpu in self.host.gpus]
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
