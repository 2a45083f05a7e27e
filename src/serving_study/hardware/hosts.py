"""This machine: its GPUs, memory and processor, its profile, and its own name.

A profile is `cpu`, or the GPU's short name and count: `l4x1`, `a10gx4`, `h200x2`. Plans and parameters go by it.
Results go by the `name`: the profile of a host with GPUs; `cpu-` and four digits of its hardware's digest for one
without, since two processors have less in common than two cards of one kind. Figures of different names are never
compared as absolute numbers. What can mislead: a container sees the whole machine's memory and cores; here they are
what its control group allows.

    >>> from serving_study.hardware import hosts
    >>> hosts.detect().name               # doctest: +SKIP
    'cpu-3f2a'
"""

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import HostError
from .cgroups import GIB, cores, memory_of_host
from .gpus import Gpu, detected, short_name

CPU = "cpu"
ENDPOINT = "endpoint-"  # begins the name under which figures of a server that somebody else started are kept
LATER = ("cpu_revision", "virtualisation", "kernel")  # not recorded by the first runs
# The kind of a virtual machine by its clock source, or by the maker in its firmware.
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
class Host:
    """One machine. `memory_gib` and `free_memory_gib` are of host memory; `gpus` is empty on profile `cpu`.

    `virtualisation` is `none` or what it runs in (`kvm, docker`), `kernel` the kernel's release, `cpu_revision` the
    processor's family, model and stepping: a virtual machine may name every generation alike. Empty where unknown."""

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
        """The hardware that decides a result: it may not differ between two cells of the same key."""
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
        """The name in results folders and tables: the profile, or without GPUs a name of its own: `cpu-3f2a`."""
        if self.profile != CPU:
            return self.profile
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()
        return f"{CPU}-{digest[:4]}"

    @property
    def words(self) -> str:
        """The hardware in words: GPUs or processor, cores, memory, virtualisation, kernel and driver."""
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
        """For `run.json`, without the UUIDs of slices."""
        gpus = tuple({name: value for name, value in asdict(gpu).items() if name != "uuid"} for gpu in self.gpus)
        return asdict(self) | {"name": self.name, "gpus": gpus}


def of_record(record: Mapping) -> Host:
    """The host of a run, from its `run.json`; what an early run did not record stays empty."""
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
    """Whether a host's name or profile is of a machine without GPUs."""
    return re.fullmatch(rf"{CPU}(-[0-9a-f]{{4}})?", name) is not None


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
    fields = {name.strip(): value.strip() for name, value in reversed(lines)}
    names = (
        ("cpu family", "model", "stepping")
        if "cpu family" in fields
        else ("CPU implementer", "CPU part", "CPU revision")
    )
    return "-".join(fields[name] for name in names if name in fields)


def computes_bf16() -> bool:
    """Whether the processor multiplies bf16 natively; without, vLLM's CPU build prefills many times slower."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return False
    return any(flag in flags.split() for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def virtualisation(root: Path = Path("/")) -> str:
    """The kind of virtual machine and of container that this is (`kvm, docker`), or `none`."""
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
    gpus, driver = detected()
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
