"""The values of the sentences in section 7's sizes, by the names that they use.

>>> prose.glue(cache_size_prose.values(wanted))                                          # doctest: +SKIP
"""

import math

from ...hardware import ceilings
from ...models import pages, shapes
from ...results import reference
from ...theory import reuse
from . import cache_sizes
from .cache_sizes import CacheSizes


def values(wanted: CacheSizes) -> dict[str, float | str]:
    """All of them."""
    return _models() | _hybrid() | _memory() | _prefixes(wanted) | _moves(wanted)


def _models() -> dict[str, float]:
    names = ("qwen2.5-7b-instruct", "llama-2-7b", "deepseek-v3", "gemma-3-27b-it")
    plain, whole, latent, sliding = map(shapes.load, names)
    table = cache_sizes.against_reference()
    return {
        "layers": plain.layers,
        "kv_heads": plain.kv_heads,
        "head_dim": plain.head_dim,
        "kib": plain.kv_bytes_per_token() / 1024,
        "gib_8k": plain.kv_bytes(8192) / 2**30,
        "figures": len(table),
        "worst_percent": 100 * table["error"].abs().max(),
        "mha_over_gqa": whole.kv_bytes_per_token() / plain.kv_bytes_per_token(),
        "deepseek_parameters": latent.parameters / 1e9,
        "deepseek_kib": latent.kv_bytes_per_token() / 1024,
        "gemma_kib": sliding.kv_bytes_per_token() / 1024,
        "gemma_full": sliding.layer_kinds.count("full"),
        "gemma_layers": sliding.layers,
    }


def _hybrid() -> dict[str, float]:
    shape, table, layout = shapes.load(cache_sizes.HYBRID), cache_sizes.hybrid_against_reference(), _hybrid_layout()
    spread = table["reference"][table["figure"].str.startswith("KiB")]
    on_four = pages.layout(shape, tp=4, element_bytes=1, prefix_caching=False)
    return {
        "hybrid_full": shape.layer_kinds.count("full"),
        "hybrid_layers": shape.layers,
        "hybrid_factor": shape.layers / shape.layer_kinds.count("full"),
        "hybrid_state": shape.state_bytes_per_sequence() / 2**20,
        "hybrid_formula": shape.kv_bytes_per_token(element_bytes=1) / 1024,
        "hybrid_worst": 100 * table["error"].abs().max(),
        "spread_low": spread.min(),
        "spread_high": spread.max(),
        "block_tokens": layout.block_tokens,
        "alignment": pages.ALIGNMENT,
        "fixed_four": on_four.bytes_per_token(8192) / 1024,
        "full_blocks": -(-8192 // layout.block_tokens),
        "state_blocks": layout.groups["linear"] * layout.states,
    }


def _memory() -> dict[str, float]:
    known = cache_sizes.reference_budget()
    stated = reference.load(3).query("host == 'l4x1' and arm == 'baseline'").set_index("metric")["value"]
    return {
        "ref_tokens": stated["kv_cache_tokens"],
        "kv_gib": known.kv_gib,
        "tokens": known.tokens,
        "max_concurrency": known.max_concurrency,
        "besides": known.peak_gib + known.constant_gib,
    }


def _prefixes(wanted: CacheSizes) -> dict[str, float | str]:
    prompt = wanted.shared_tokens + wanted.own_tokens
    cold, warm, gain = cache_sizes.prefixes_against_reference(wanted.own_tokens).itertuples()
    return {
        "shared": wanted.shared_tokens,
        "found": pages.cached_tokens(wanted.shared_tokens, prompt),
        "hybrid_found": pages.cached_tokens(wanted.shared_tokens, prompt, _hybrid_layout().block_tokens),
        "concurrency": wanted.concurrency,
        "output": wanted.output_tokens,
        "cold_error": 100 * cold.error,
        "warm_error": 100 * warm.error,
        "gain_error": 100 * gain.error,
        "missing_ms": warm.reference - warm.predicted,
        "gain": gain.reference,
        "gain_predicted": gain.predicted,
        "most": cache_sizes.throughputs_of(wanted, [wanted.host])["most"][0],
        "hit_percent": 100 * max(wanted.hit_rates),
    }


def _moves(wanted: CacheSizes) -> dict[str, float | str]:
    store = next(name for name in (wanted.host, *reuse.storage()) if name in reuse.storage())
    overhead_s = wanted.restore_overhead_ms / 1000
    [disk] = cache_sizes.tiers(wanted.model, [store], overhead_s, wanted.lengths).query("tier == 'nvme'")["break_even"]
    return {
        "needed_slow": _needed_gb_s(wanted, wanted.host),
        "needed_fast": _needed_gb_s(wanted, wanted.other_host),
        "read_iops": reuse.storage()[store] * 1e9 / reuse.READ_BYTES,
        "overhead": wanted.restore_overhead_ms,
        "model_name": wanted.model,
        "host_name": wanted.host,
        "store_name": store,
        "longest_name": f"{wanted.lengths[-1]:,} tokens",
        "disk_words": "longer than a million tokens" if math.isnan(disk) else f"{disk:,.0f} tokens long",
    }


def _hybrid_layout() -> pages.Layout:
    return pages.layout(shapes.load(cache_sizes.HYBRID), element_bytes=1, prefix_caching=False)


def _needed_gb_s(wanted: CacheSizes, host: str) -> float:
    machine, budget = reuse.prefill_machine(ceilings.of_host(host)), cache_sizes.batched_tokens(host)
    return reuse.needed_gb_s(shapes.load(wanted.model), machine, wanted.shared_tokens, budget=budget)
