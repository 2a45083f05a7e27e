"""What a GPU and an instance can do at most: memory, bandwidth, matrix rates and links, from `data/hardware/`.

Figures are of datasheets: rates dense, links each way, memory as CUDA reports it where `memory_basis` says so. What can
mislead: no server reaches them. A decode step gets 60 to 90 % of the bandwidth, and a GPU limited to 72 W (an L4) far
less than its matrix rate. So predictions fit an efficiency on the baseline, and take a probe's figures where there is
one.

    >>> from serving_study.hardware import ceilings
    >>> ceilings.gpu("l4").bandwidth_gb_s, ceilings.of_host("g6.12xlarge").count, ceilings.of_host("a10gx4").gpu.name
    (300.0, 4, 'a10g')
"""

import csv
import functools
import re
from dataclasses import dataclass

from ..errors import HostError, StoreError, near
from ..paths import DATA

FOLDER = DATA / "hardware"
LINKS = ("none", "pcie", "nvlink")
BASES = ("cuda", "nvml", "nominal")


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Rates in 10¹² operations a second, dense; links in 10⁹ bytes a second each way; None where the GPU has none.
    """

    name: str
    memory_gib: float
    memory_basis: str
    memory_source: str
    bandwidth_gb_s: float
    bf16_tflops: float
    fp8_tflops: float | None
    pcie_gen: int
    pcie_gb_s: float
    nvlink_gb_s: float | None
    source_title: str
    source_url: str


@dataclass(frozen=True)
class Instance:
    """Some GPUs in one host.

    `vcpus` and `memory_gib` (of the host) are None for a profile that is no instance type in the table.
    """

    name: str
    gpu: Gpu
    count: int
    link: str
    vcpus: int | None = None
    memory_gib: float | None = None
    network_gbit_s: float | None = None
    efa: bool = False
    source_title: str = ""
    source_url: str = ""

    @property
    def link_gb_s(self) -> float | None:
        """Bandwidth between two of its GPUs, GB/s each way; None for a single GPU."""
        return {"none": None, "pcie": self.gpu.pcie_gb_s, "nvlink": self.gpu.nvlink_gb_s}[self.link]


@functools.cache
def gpus() -> dict[str, Gpu]:
    """All GPUs of the table by name. Raises StoreError for a table that is damaged."""
    gpu_by_name = {}
    for line, row in _rows("gpus.csv"):
        if row["memory_basis"] not in BASES:
            raise StoreError(
                f"gpus.csv, line {line}: unknown memory_basis", value=row["memory_basis"], allowed=", ".join(BASES)
            )
        numbers = {
            name: _number("gpus.csv", line, name, row[name], optional=name in ("fp8_tflops", "nvlink_gb_s"))
            for name in row
            if name.endswith(("_gib", "_gb_s", "_tflops"))
        }
        gpu_by_name[row["gpu"]] = Gpu(
            **{
                "name": row["gpu"],
                **{name: row[name] for name in row if name != "gpu"},
                **numbers,
                "pcie_gen": int(row["pcie_gen"]),
            }
        )
    return gpu_by_name


@functools.cache
def instances() -> dict[str, Instance]:
    """All instance types of the table by name. Raises StoreError for a table that is damaged."""
    instance_by_name = {}
    for line, row in _rows("instances.csv"):
        if row["gpu"] not in gpus() or row["link"] not in LINKS:
            raise StoreError(
                f"instances.csv, line {line}: unknown GPU or link",
                value=f"{row['gpu']}, {row['link']}",
                allowed=f"{', '.join(gpus())}; {', '.join(LINKS)}",
            )
        count, vcpus, memory, network = (
            _number("instances.csv", line, name, row[name])
            for name in ("gpus", "vcpus", "memory_gib", "network_gbit_s")
        )
        instance_by_name[row["instance"]] = Instance(
            row["instance"],
            gpus()[row["gpu"]],
            int(count),
            row["link"],
            int(vcpus),
            memory,
            network,
            row["efa"] == "yes",
            row["source_title"],
            row["source_url"],
        )
    return instance_by_name


def gpu(name: str) -> Gpu:
    """A GPU by its short name. Raises HostError naming those that there are."""
    if name.lower() not in gpus():
        raise HostError(
            "no ceilings for this GPU",
            value=name,
            allowed=", ".join(gpus()),
            next=f"add a row to {FOLDER / 'gpus.csv'}",
        )
    return gpus()[name.lower()]


def of_host(name: str, *, gpu_memory_gib: float | None = None) -> Instance:
    """The ceilings of a host profile (`l4x1`, `h200x2`) or of an instance type (`g6.xlarge`).

    A profile takes the link of the instance type with its GPUs, or its GPU's own. `gpu_memory_gib` tells an A100 of 40
    GB from one of 80. Raises HostError for `cpu` and for what is in neither table."""
    if name in instances():
        return instances()[name]
    match = re.fullmatch(r"(.+?)x(\d+)", name)
    short, count = (match[1], int(match[2])) if match else (name, 0)
    if short == "a100" and gpu_memory_gib is not None:
        short = "a100-40" if gpu_memory_gib < 60 else "a100-80"
    if count < 1 or short not in gpus():
        allowed = f"a profile GPUxCOUNT with GPU of {', '.join(gpus())}; or an instance type: {', '.join(instances())}"
        raise HostError(
            "no ceilings for this host",
            value=name,
            allowed=allowed,
            next=near(name, [*instances(), *(f"{known}x1" for known in gpus())]) or "serving-study doctor",
        )
    gpu = gpus()[short]
    same = next((known for known in instances().values() if known.gpu == gpu and known.count == count), None)
    link = "none" if count == 1 else same.link if same else "nvlink" if gpu.nvlink_gb_s else "pcie"
    return Instance(name, gpu, count, link)


def _rows(name: str):
    path = FOLDER / name
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                if None in row or None in row.values():
                    raise StoreError(
                        f"{name}, line {reader.line_num}: wrong number of fields", allowed=", ".join(reader.fieldnames)
                    )
                yield reader.line_num, row
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise StoreError(
            "the table of ceilings cannot be read", value=f"{path}: {error}", next=f"git checkout {path}"
        ) from None


def _number(file: str, line: int, name: str, text: str, optional: bool = False) -> float | None:
    if optional and not text:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise StoreError(
            f"{file}, line {line}: unusable {name}",
            value=text or "(empty)",
            allowed="digits with at most one decimal point",
        )
    return float(text)
