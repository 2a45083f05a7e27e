"""The KV cache: prompts find what earlier ones left, on the device or in a tier below, as block arithmetic expects."""

import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from ... import engines
from ...engines import base, logs
from ...errors import LoadError, ServerError
from ...hardware.hosts import Host
from ...loads import Load, prompts
from ...results.certificates import FAIL, PASS, UNKNOWN, Check
from ...servers import client, metrics
from ...servers.arm import Arm
from ...servers.fleet import Fleet
from ...servers.metrics import Snapshot
from . import tiers
from .mechanism import Mechanism

ATTEMPTS, APART_S = 6, 0.5  # seconds: data still moves to the tier below when the answer is there
TIERS = ("memory", "disk")  # in this order, which a stored cell does not keep
FITS = 0.9  # a working set up to this share of the capacity fits, one above its inverse does not
# Least share of the expected hits in an arm with a tier, whose pieces are larger than the device's blocks.
CHUNKS = 0.8


@dataclass(frozen=True)
class Cache(Mechanism):
    """The device's prefix cache; with `tier`, another one below it."""

    tier: bool = False
    about_cache = True

    def probe(self, arm: Arm, server: Fleet, loads: tuple[Load, ...]) -> dict:
        """`probe_device_tokens` and `probe_external_tokens` that a repeated prompt finds; empty where every prefix is
        shorter than a block. For an arm with a tier the device's cache is emptied in between.

        The prompt is as long as the shortest load from which a cache can give anything, and shares no text with the
        loads. Raises ServerError when the cache gives nothing."""
        block = metrics.block_tokens(server.counters(), engines.get(arm.engine).COUNTERS)
        sizes = sorted(
            (load.dataset.shared, load.dataset.own)
            for load in loads
            if isinstance(load.dataset, prompts.Exact) and block and load.dataset.reused(block)
        )
        if not sizes:
            return {}
        [prompt] = prompts.exact(Path(arm.model.folder), [(0, -1)], *sizes[0], f"probe/{prompts.VERSION}")
        server.fill(prompt, "the probe of the cache")
        for _ in range(ATTEMPTS):
            if self.tier:
                _empty_device(server)
            before = metrics.scrape(server.url)
            server.fill(prompt, "the probe of the cache")
            counts = metrics.difference(
                before,
                metrics.scrape(server.url),
                engines.get(arm.engine).COUNTERS,
                (base.PREFIX_HITS, base.EXTERNAL_HITS),
            )
            hits = {
                "probe_device_tokens": counts[base.PREFIX_HITS],
                "probe_external_tokens": counts[base.EXTERNAL_HITS],
            }
            if counts[base.EXTERNAL_HITS if self.tier else base.PREFIX_HITS]:
                return hits
            time.sleep(APART_S)
        device, external = (hits[name] or 0 for name in hits)
        reason = (
            f"a prompt of {sum(sizes[0])} tokens, sent {ATTEMPTS + 1} times, was found nowhere in "
            f"{'the tier below the device' if self.tier else 'the device'} ({device:.0f} tokens from the device, "
            f"{external:.0f} from below, at last)"
        )
        raise ServerError(
            f"{arm.name}: the probe of its cache found nothing",
            reason=reason,
            log=server.log,
            last_lines=logs.tail(server.log),
        )

    def look(self, arm: Arm, server: Fleet, host: Host, counters: Snapshot) -> tiers.Look | None:
        return tiers.look(arm, server, counters) if self.tier else None

    def evidence(self, arm: Arm, before: tiers.Look | None, after: tiers.Look | None, counted: dict) -> dict:
        moved = tiers.moved(arm, before, after, external_tokens=counted.get(base.EXTERNAL_HITS))
        return {"moved": moved} if moved else {}

    def check(self, cell: dict) -> Check:
        """Hits must be those of arithmetic: the whole blocks of each earlier prefix. Of a working set above its
        capacity the device must have lost some; in arms with a tier, and only there, the tier makes up for it.
        """
        if unwanted := self.drafts_unwanted((cell["speculation"] or {}).get("drafts", 0)):
            return unwanted
        expected_reuse, counters = cell.get("reuse") or {}, cell["counters"]
        hits, external, expected = (
            counters.get(base.PREFIX_HITS),
            counters.get(base.EXTERNAL_HITS) or 0,
            expected_reuse.get("expected_tokens"),
        )
        if expected is None or hits is None:
            return Check(
                "mechanism",
                UNKNOWN,
                f"expected hits {expected}, device hits {hits}: the server's block size or its counters are missing",
            )
        needed, capacity = expected_reuse.get("working_set_tokens"), expected_reuse["capacity_tokens"]
        evidence = (
            f"{hits:.0f} device and {external:.0f} external hits, {expected} tokens repeated in blocks "
            f"of {expected_reuse['block_tokens']}"
        )
        evidence += f"; working set of {needed} tokens, capacity of {capacity}" if needed else ""
        moved = cell.get("moved") or {}
        evidence += "".join(
            f"; {name}: {_mib(way['in_bytes'])} in and {_mib(way['out_bytes'])} out"
            for name, way in sorted(moved.get("tiers", {}).items(), key=lambda item: TIERS.index(item[0]))
        )
        if external and moved.get("out_bytes") == 0:
            return Check("mechanism", FAIL, f"{evidence}: hits were counted and nothing came back")
        read, asked = counters.get(base.PROMPT_TOKENS), expected_reuse["prompt_tokens"] * cell["asked"]["prompts"]
        if read is not None and read != asked:
            return Check(
                "mechanism",
                FAIL,
                f"prompts of {expected_reuse['prompt_tokens']} tokens asked for, {asked} in all, {read:.0f} read; "
                f"{evidence}",
            )
        if not self.tier and external:
            return Check("mechanism", FAIL, f"{evidence}: this arm has no tier below the device")
        if needed is None or not capacity or needed <= FITS * capacity:
            good = (
                hits + external >= CHUNKS * expected and hits + external <= expected if self.tier else hits == expected
            )
            return Check("mechanism", PASS if good else FAIL, evidence)
        if needed < capacity / FITS:
            return Check(
                "mechanism",
                PASS if hits + external <= expected else FAIL,
                f"{evidence}: as large as the cache, so that what stays is not told beforehand",
            )
        evicted = hits < expected
        good = evicted and (not self.tier or 0 < external <= expected)
        return Check(
            "mechanism", PASS if good else FAIL, f"{evidence}; {'evicted' if evicted else 'nothing was evicted'}"
        )


def _mib(size_bytes: float | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**20:,.1f} MiB"


def _empty_device(server) -> None:
    """Ask for an empty device cache. The answer is not believed (it has been 200 for nothing done): the counters
    are.
    """
    path = engines.get(server.arm.engine).EMPTY_CACHE
    try:
        with client.DIRECT.open(
            urllib.request.Request(f"{server.url}{path}", b"", {"Connection": "close"}), timeout=30
        ):
            pass
    except (urllib.error.URLError, OSError) as error:
        server.require_alive(client.LAST_WORDS_S)
        raise LoadError(
            "the device's cache cannot be emptied for the probe",
            value=f"POST {path}: {error}",
            allowed="an engine that has it",
            next=f"less {server.log}",
        ) from None
