"""Cells that were stored when counters still had vLLM's own names: read, they have ours.

Nothing on disk is rewritten, so that a published cell stays what was published. A cell under our names passes through.

    >>> renamed({"vllm:prefix_cache_hits_total": 16.0, "finished": {"length": 1.0}})
    {'prefix_hits': 16.0, 'finished': {'length': 1.0}}
"""

from ..engines import base

NAMES = {
    "vllm:spec_decode_num_drafts_total": base.DRAFTS,
    "vllm:spec_decode_num_draft_tokens_total": base.DRAFTED,
    "vllm:spec_decode_num_accepted_tokens_total": base.ACCEPTED,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": base.ACCEPTED_PER_POSITION,
    "vllm:prompt_tokens_total": base.PROMPT_TOKENS,
    "vllm:generation_tokens_total": base.GENERATED_TOKENS,
    "vllm:request_success_total": base.FINISHED_REQUESTS,
    "vllm:prefix_cache_queries_total": base.PREFIX_QUERIES,
    "vllm:prefix_cache_hits_total": base.PREFIX_HITS,
    "vllm:external_prefix_cache_hits_total": base.EXTERNAL_HITS,
    "vllm:num_preemptions_total": base.PREEMPTIONS,
    "vllm:kv_offload_load_bytes_total": base.LOADED_BYTES,
    "vllm:kv_offload_store_bytes_total": base.STORED_BYTES,
    "vllm:time_to_first_token_seconds": base.TTFT,
    "vllm:e2e_request_latency_seconds": base.E2E,
    "vllm:request_queue_time_seconds": base.QUEUE,
    "vllm:time_to_first_token_seconds_sum": base.TTFT_SUM,
}


def renamed(record: dict) -> dict:
    """Counters under our names."""
    return {NAMES.get(name, name): value for name, value in record.items()}


def current(record: dict) -> dict:
    """A cell, or a request's record, with its counters under our names."""
    return record | {"counters": renamed(record["counters"])} if record.get("counters") else record
