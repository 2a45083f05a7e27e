"""What the harness asks of any engine, and the names that its counters have here.

An engine calls its counters as it likes; `Counters` says which sample of its /metrics holds which, and every cell has
them by the names below. What can mislead: a counter that an engine does not have is missing, never 0.

    >>> from serving_study import engines
    >>> engines.get("vllm").COUNTERS.samples[PREFIX_HITS]
    'vllm:prefix_cache_hits_total'
"""

from collections.abc import Mapping
from dataclasses import dataclass

DRAFTS, DRAFTED, ACCEPTED = "drafts", "drafted_tokens", "accepted_tokens"
ACCEPTED_PER_POSITION = "accepted_tokens_per_position"
PROMPT_TOKENS, GENERATED_TOKENS = "prompt_tokens", "generated_tokens"
FINISHED_REQUESTS = "finished_requests"
PREFIX_QUERIES, PREFIX_HITS, EXTERNAL_HITS = "prefix_queries", "prefix_hits", "external_hits"  # in tokens
PREEMPTIONS = "preemptions"
LOADED_BYTES, STORED_BYTES = "kv_loaded_bytes", "kv_stored_bytes"
NAMES = (
    DRAFTS,
    DRAFTED,
    ACCEPTED,
    ACCEPTED_PER_POSITION,
    PROMPT_TOKENS,
    GENERATED_TOKENS,
    FINISHED_REQUESTS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    EXTERNAL_HITS,
    PREEMPTIONS,
    LOADED_BYTES,
    STORED_BYTES,
)
TTFT, E2E, QUEUE = "ttft_s", "e2e_s", "queue_s"  # histograms, in seconds
TTFT_SUM = "ttft_sum_s"  # a histogram's sum as a counter: of requests that come one by one, each one's own

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True)
class Snapshot:
    """All samples of one scrape of an engine's /metrics."""

    series: Series

    def total(self, sample: str | None) -> float | None:
        """The sum of a sample over its labels; None when the server has no such sample."""
        values = [value for (name, _), value in self.series.items() if name == sample]
        return sum(values) if values else None

    def by_label(self, sample: str | None, label: str) -> dict[str, float]:
        """The sums of a sample by one of its labels."""
        sums: dict[str, float] = {}
        for (name, labels), value in self.series.items():
            if name == sample and label in dict(labels):
                sums[dict(labels)[label]] = sums.get(dict(labels)[label], 0) + value
        return sums


@dataclass(frozen=True)
class Counters:
    """Which samples of an engine's /metrics are the counters of our names; what it does not have is left out.

    `samples` are counters, `histograms` the names without `_sum` and `_count`, `watched` what is looked at after each
    request where requests come one by one. `finish_reason` and `position` are labels of `finished_requests` and of
    `accepted_tokens_per_position`, `block_size` a sample and its label that holds the tokens of a block."""

    samples: Mapping[str, str]
    histograms: Mapping[str, str]
    watched: Mapping[str, str]
    finish_reason: str
    position: str
    block_size: tuple[str, str]
