"""The GPUs of this machine, by NVML: whole cards and slices of them (MIG), and their names in a profile.

What can mislead: CUDA shows a process only what CUDA_VISIBLE_DEVICES leaves, and so does this module.

    >>> from serving_study.hardware import gpus
    >>> gpus.short_name("NVIDIA A100-SXM4-40GB")
    'a100-40'
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import HostError
from .cgroups import GIB, memory_of_host

# Words of a card's name that do not tell its ceilings, and the memory size that a short name leaves out.
FILLERS = re.compile(
    r"|nvidia|tesla|geforce|quadro|graphics|device|gpu|generation|blackwell|edition|active|sxm\d*|hbm\d*e?|ac|shared"
)


PLAIN_SIZE = {"h100": "80", "h800": "80", "h200": "141", "gh200": "480"}


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one slice of it (MIG), as NVML reports it; memory in GiB. `uuid` is a slice's, empty of a whole
    card.
    """

    index: int
    name: str
    memory_gib: float
    free_gib: float
    compute_capability: str
    uuid: str = ""


def short_name(gpu_name: str) -> str:
    """A card's name in a profile: `NVIDIA A10G` is `a10g`, `NVIDIA H100 PCIe` is `h100pcie`, `NVIDIA A100-SXM4-40GB` is
    `a100-40`.

    Cards with the same ceilings share a name: a form factor other than SXM stays in it, and so does the memory of a
    family that is made with several sizes. A slice (MIG) has its own size: `a100-40mig1g.5gb`."""
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


def detected() -> tuple[tuple[Gpu, ...], str | None]:
    """The cards and slices that CUDA would show to this process, and the driver's version.

    Raises HostError where one of them does not report its memory."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        handles = {index: _said(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(_count(pynvml))}
        # CUDA does not count a card that this process may not touch (outside of its container).
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
    """NVML's answer; None where it has none (an old driver, a missing permission, a kind of card)."""
    import pynvml

    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _count(pynvml) -> int:
    return _said(pynvml.nvmlDeviceGetCount) or 0


def _slices(pynvml, handle) -> dict | None:
    """Handle by UUID of each slice of a card in MIG mode; None for a whole card."""
    mode = _said(pynvml.nvmlDeviceGetMigMode, handle)
    if not mode or not mode[0]:
        return None
    places = range(_said(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    handles = [_said(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place) for place in places]
    return {str(pynvml.nvmlDeviceGetUUID(one)): one for one in handles if one is not None}


def _gpu(pynvml, index: int, card, handle, uuid: str) -> Gpu:
    """A card, or the slice that `handle` is; a GPU that shares its memory with the processor has the system's."""
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
    """The cards and slices that CUDA_VISIBLE_DEVICES leaves: each card's position, and a slice's UUID or None.

    `uuids` are the cards', `slices` those of each card (None: a whole one). CUDA's rules: the list ends at the first
    entry that names nothing, one device twice or several devices, so `-1` and an empty text hide all; a UUID may be cut
    short; of a card in MIG mode only the first slice is seen, and at most one slice in all. An index is NVML's: where
    cards differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID, CUDA counts the fastest first."""
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
