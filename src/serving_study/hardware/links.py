"""What connects this machine's GPUs, and at which rates: `nvidia-smi topo -m`, `fi_info`, measured copies and
all-reduces.

Between two GPUs is `NV18` (18 NVLinks) or a PCIe path: `PIX` (one switch), `PXB` (several), `PHB` (the processor's
bridge), `NODE` (several bridges of a NUMA node), `SYS` (across nodes). What can mislead: the matrix says what is
plugged in, not whether direct copies are allowed over it (`probes.peers` tries that): hosts of one kind may differ
tenfold. For small messages vLLM has its own all-reduce, faster than the NCCL that is measured here.

    >>> from serving_study.hardware import links
    >>> links.topology(open("topo.txt").read()).pairs             # doctest: +SKIP
    {(0, 1): 'NV18'}
"""

import re
import statistics
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas

from ..environments import ENGINE_SIDE, scripts
from ..errors import HostError, StudyError
from . import ceilings

if TYPE_CHECKING:
    from ..environments import Environment
    from .hosts import Host

SCRIPT = ENGINE_SIDE / "link_rates.py"
DEADLINE_S = 120.0
MEANING = {
    "NV": "bonded NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "a PCIe host bridge (the processor)",
    "NODE": "PCIe host bridges of one NUMA node",
    "SYS": "PCIe and the link between NUMA nodes",
}
# The links of instance types that the reference study states.
STATED = {
    "g5.12xlarge": "PHB",
    "g6.12xlarge": "NODE",
    "g6e.12xlarge": "PHB",
    "p4d.24xlarge": "NVLink 3 and NVSwitch",
    "p5.48xlarge": "NVLink 4 and NVSwitch",
}


@dataclass(frozen=True)
class Topology:
    """The link matrix: `pairs` of GPUs to their link, `nics` (name to its link to each GPU), `numa` (node by GPU, where
    shown).
    """

    gpus: int
    pairs: dict[tuple[int, int], str]
    nics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numa: dict[int, str] = field(default_factory=dict)

    def kind(self, first: int, second: int) -> str:
        """`nvlink` or `pcie`."""
        return "nvlink" if self.pairs[min(first, second), max(first, second)].startswith("NV") else "pcie"

    @property
    def words(self) -> str:
        """Each kind of link and its number of pairs: `NV18 between each pair`."""
        counts = {link: list(self.pairs.values()).count(link) for link in dict.fromkeys(self.pairs.values())}
        if len(counts) == 1:
            return f"{next(iter(counts))} between each pair"
        return (
            ", ".join(f"{link} between {count} pair{'s' if count > 1 else ''}" for link, count in counts.items())
            or "one GPU"
        )

    def as_dict(self) -> dict:
        return {
            "gpus": self.gpus,
            "pairs": {f"{first}-{second}": link for (first, second), link in self.pairs.items()},
            "nics": {name: list(row) for name, row in self.nics.items()},
            "numa": {str(gpu): node for gpu, node in self.numa.items()},
        }


def topology(text: str) -> Topology:
    """Parse the output of `nvidia-smi topo -m`. Raises HostError for text without a matrix, and for an unknown link."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text.splitlines()]
    header = next((words for words in map(str.split, lines) if words and words[0] == "GPU0" and "X" not in words), None)
    if not header:
        raise HostError(
            "no link matrix", value=repr(text[:80]), allowed="what nvidia-smi topo -m prints", next="nvidia-smi topo -m"
        )
    devices = [name for name in header if re.fullmatch(r"GPU\d+|NIC\d+|\w*_\d+|mlx\w+|rdmap\w+", name)]
    rows = {
        words[0]: words[1:]
        for words in map(str.split, lines)
        if words and words[0] in devices and "X" in words[1 : 1 + len(devices)]
    }
    gpus = [name for name in devices if name.startswith("GPU")]
    pairs = {}
    for first, name in enumerate(gpus):
        for second in range(first + 1, len(gpus)):
            link = rows[name][devices.index(gpus[second])]
            if not re.fullmatch(r"NV\d+", link) and link not in MEANING:
                raise HostError(
                    "an unknown link",
                    value=f"{name} to {gpus[second]}: {link}",
                    allowed=", ".join(MEANING),
                    next="nvidia-smi topo -m",
                )
            pairs[first, second] = link
    nics = {name: tuple(rows[gpu][devices.index(name)] for gpu in gpus) for name in devices if name not in gpus}
    numa = (
        {
            index: words[len(devices) + 1]
            for index, words in enumerate(rows[name] for name in gpus)
            if len(words) > len(devices) + 1 and words[len(devices) + 1].isdigit()
        }
        if "NUMA Affinity" in text
        else {}
    )
    return Topology(len(gpus), pairs, nics, numa)


def fabrics(text: str) -> list[dict[str, str]]:
    """Parse the output of `fi_info`: one dictionary an interface, with `provider`, `fabric`, `domain`, `version`,
    `type` and `protocol`.
    """
    fabric_rows: list[dict[str, str]] = []
    for line in text.splitlines():
        name, mark, value = line.strip().partition(":")
        if mark and name == "provider":
            fabric_rows.append({})
        if mark and fabric_rows and name in ("provider", "fabric", "domain", "version", "type", "protocol"):
            fabric_rows[-1][name] = value.strip()
    return fabric_rows


def topology_here() -> Topology | None:
    """This machine's link matrix; None without `nvidia-smi`, or where it prints none."""
    return _read("nvidia-smi", "topo", "-m", parse=topology)


def here() -> dict:
    """This machine's `topology` and its EFA interfaces (`fabrics`); None where the program that tells is missing or
    silent.
    """
    matrix = topology_here()
    return {
        "topology": matrix.as_dict() if matrix else None,
        "fabrics": _read("fi_info", "-p", "efa", parse=fabrics),
    }


def efa(links: dict) -> str:
    """The number of EFA interfaces in `links["fabrics"]`, in words; `fi_info` lists each once per kind of endpoint."""
    count = len({row.get("domain", "").split("-")[0] for row in links.get("fabrics") or [] if row["provider"] == "efa"})
    return f"{count or 'no'} EFA interface{'s' if count > 1 else ''}"


def _read(*command: str, parse):
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return parse(run.stdout) if run.returncode == 0 else None
    except (OSError, subprocess.SubprocessError, StudyError):
        return None


def measure(host: "Host", environment: "Environment") -> list[dict]:
    """Copies between GPUs and all-reduces over message sizes, by the engine's torch: NCCL, or gloo between two
    processes of a CPU host. Raises TimeoutError at the deadline, EngineEnvironmentError where it fails.
    """
    backend, world = ("nccl", len(host.gpus)) if host.gpus else ("gloo", 2)
    if world < 2:
        return []
    ended = scripts.run(environment.python, SCRIPT, backend, world, deadline_s=DEADLINE_S)
    rows, _ = ended.figures("the links were not measured to their end")
    return [row | {"backend": backend} for row in rows]


def rates(links: dict) -> pandas.DataFrame:
    """One row a figure, of copies the slowest pair's: `name`, `bytes`, `us` (microseconds a call), `gb_s`."""
    rows = [
        {"name": row["name"], "bytes": row["bytes"], "us": 1e6 * statistics.median(row["seconds"]), "gb_s": row["gb_s"]}
        for row in links.get("measured", [])
    ]
    frame = pandas.DataFrame(rows, columns=["name", "bytes", "us", "gb_s"])
    return (
        frame.sort_values("gb_s").drop_duplicates(["name", "bytes"]).sort_values(["name", "bytes"], ignore_index=True)
    )


def instances() -> pandas.DataFrame:
    """Instance types and links: `instance`, `GPUs`, `between GPUs`, `GB/s each way`, `network (Gbit/s)`, `EFA`."""
    rows = []
    for instance in ceilings.instances().values():
        link = {"none": "–", "pcie": f"PCIe {instance.gpu.pcie_gen}", "nvlink": "NVLink, NVSwitch"}[instance.link]
        stated = STATED.get(instance.name)
        rows.append(
            {
                "instance": instance.name,
                "GPUs": f"{instance.count} × {instance.gpu.name}",
                "between GPUs": f"{link} ({stated})" if stated and instance.link == "pcie" else link,
                "GB/s each way": instance.link_gb_s,
                "network (Gbit/s)": instance.network_gbit_s,
                "EFA": "yes" if instance.efa else "no",
            }
        )
    return pandas.DataFrame(rows)
