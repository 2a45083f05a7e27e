"""Tiers below the device's KV cache: the bytes that moved in and out of them in a cell.

`look` reads what counts bytes before and after a load, `moved` is the difference. What can mislead: only vLLM's own
offloading counts bytes; LMCache counts pieces and tokens, whose bytes follow from the model, and files on disk are
weighed; LMCache inside the engine does not tell which of two tiers a token came from.

    >>> moved(arm, before, after, external_tokens=512.0)           # doctest: +SKIP
    {'in_bytes': 23592960, 'out_bytes': 23592960, 'tiers': {'disk': …}, 'counted': 'files weighed; …'}
"""

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from ... import engines
from ...engines import base, lmcache, logs
from ...errors import ModelError
from ...models import shapes
from ...servers import fleet, metrics
from ...servers.arm import Arm
from ...servers.fleet import Fleet
from ...servers.metrics import Snapshot

SETTLE_S = 5.0


@dataclass(frozen=True)
class Look:
    """One reading: the engine's counters, those of the cache server, bytes of files on disk, stored tokens by the
    log.
    """

    engine: Snapshot
    sidecar: Snapshot | None = None
    files_bytes: int | None = None
    stored_tokens: int | None = None


def look(arm: Arm, server: Fleet, engine: Snapshot) -> Look:
    """Read them, once the cache server has nothing under way."""
    sidecar = _settled(server.sidecar_url) if server.sidecar_url else None
    files = weigh(fleet.scratch(arm)) if arm.scratch else None
    stored = lmcache.stored_tokens(logs.read(server.log)) if lmcache.is_in_process(arm.server) else None
    return Look(engine, sidecar, files, stored)


def weigh(folder: Path) -> int:
    """Bytes of the files below `folder`; one that disappears meanwhile counts for nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(os.path.join(place, name))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _settled(url: str) -> Snapshot:
    deadline = time.monotonic() + SETTLE_S
    while True:
        snapshot = metrics.scrape(url)
        if lmcache.is_settled(snapshot) or time.monotonic() > deadline:
            return snapshot
        time.sleep(0.05)


def token_bytes(arm: Arm) -> int | None:
    """Bytes of KV cache of one token of the arm, over all ranks; None for a model whose arithmetic is unknown."""
    options = arm.options
    element = (
        1
        if str(options.get("kv_cache_dtype", "auto")).startswith("fp8")
        else 4
        if options.get("dtype") == "float32"
        else None
    )
    try:
        return shapes.load(arm.model.folder).kv_bytes_per_token(element_bytes=element)
    except ModelError:
        return None


def _bytes(tokens: float | None, each: int | None) -> int | None:
    return None if tokens is None or each is None else round(tokens * each)


def moved(arm: Arm, before: Look | None, after: Look | None, *, external_tokens: float | None) -> dict | None:
    """Bytes that went below the device (`in_bytes`) and came back (`out_bytes`), the same by tier in `tiers` (`memory`,
    `disk`; None where unknown), and how they were `counted`; None for an arm without a tier.
    """
    if before is None or after is None:
        return None
    each = token_bytes(arm)
    back = _bytes(external_tokens, each)
    if after.sidecar:
        counted = lmcache.moved(before.sidecar, after.sidecar, arm.sidecar.options)
        new = _bytes(counted.written - counted.from_disk, each)  # what comes from disk is written to memory first
        tiers = {"memory": {"in_bytes": new, "out_bytes": back}}
        if lmcache.has_disk(arm.sidecar.options):
            tiers["disk"] = {"in_bytes": _bytes(counted.to_disk, each), "out_bytes": _bytes(counted.from_disk, each)}
        return {
            "in_bytes": new,
            "out_bytes": back,
            "tiers": tiers,
            "counted": "pieces by the LMCache server, tokens by the engine",
        }
    counts = metrics.difference(
        before.engine, after.engine, engines.get(arm.engine).COUNTERS, (base.STORED_BYTES, base.LOADED_BYTES)
    )
    if counts[base.STORED_BYTES] is not None or counts[base.LOADED_BYTES] is not None:
        moved_bytes = {"in_bytes": counts[base.STORED_BYTES], "out_bytes": counts[base.LOADED_BYTES] or 0}
        return moved_bytes | {"tiers": {"memory": moved_bytes}, "counted": "bytes by the engine"}
    wrote = None if after.files_bytes is None else after.files_bytes - before.files_bytes
    stored = None if after.stored_tokens is None else _bytes(after.stored_tokens - before.stored_tokens, each)
    in_memory = lmcache.keeps_in_memory(arm.server)
    both = in_memory and arm.scratch
    tiers = {"memory": {"in_bytes": stored, "out_bytes": None if both else back}} if in_memory else {}
    tiers |= {"disk": {"in_bytes": wrote, "out_bytes": None if both else back}} if arm.scratch else {}
    ways = [
        way
        for way, applies in (
            ("files weighed", arm.scratch),
            ("tokens stored by LMCache's log", in_memory),
            ("tokens given back by the engine", True),
        )
        if applies
    ]
    return {"in_bytes": stored if in_memory else wrote, "out_bytes": back, "tiers": tiers, "counted": ", ".join(ways)}
