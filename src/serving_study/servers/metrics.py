"""A server's Prometheus counters, before and after, and their difference.

Counters run from a server's start, so that the last value mixes all that came before; only a difference belongs to a
cell. Acceptance has one definition here: accepted / drafted tokens of the cell alone, the bonus token never counted.
"""

import urllib.error
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from ..engines import vllm
from ..errors import LoadError

# Our servers are on this machine: a proxy that the environment names is for others, and would be measured along.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True)
class Snapshot:
    """All samples of one scrape."""

    series: Series

    def total(self, name: str) -> float | None:
        """The sum of a sample over its labels; None when the server has no such sample."""
        values = [value for (sample, _), value in self.series.items() if sample == name]
        return sum(values) if values else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        sums: dict[str, float] = {}
        for (sample, labels), value in self.series.items():
            if sample == name and label in dict(labels):
                sums[dict(labels)[label]] = sums.get(dict(labels)[label], 0) + value
        return sums


def parse(text: str) -> Snapshot:
    """Read Prometheus' text format."""
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return Snapshot(series)


def scrape(url: str, timeout_s: float = 10) -> Snapshot:
    """Fetch `url`/metrics. Raises LoadError when it does not answer."""
    request = urllib.request.Request(f"{url}/metrics", headers={"Connection": "close"})
    try:
        with DIRECT.open(request, timeout=timeout_s) as answer:
            return parse(answer.read().decode())
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise LoadError("the server's counters cannot be read", value=f"{url}/metrics: {error}") from None


def difference(before: Snapshot, after: Snapshot, names: tuple[str, ...] = vllm.COUNTERS) -> dict:
    """Counter by counter, what happened in between; a counter that the server does not have is None, never 0."""
    result = {}
    for name in names:
        start, end = before.total(name), after.total(name)
        result[name] = None if end is None else end - (start or 0)
    finished, earlier = (
        after.by_label(vllm.REQUESTS, "finished_reason"),
        before.by_label(vllm.REQUESTS, "finished_reason"),
    )
    result["finished"] = {
        reason: count - earlier.get(reason, 0) for reason, count in finished.items() if count != earlier.get(reason, 0)
    }
    for name in vllm.HISTOGRAMS:
        count, total = after.total(f"{name}_count"), after.total(f"{name}_sum")
        if count is not None and total is not None:
            spent, seen = total - (before.total(f"{name}_sum") or 0), count - (before.total(f"{name}_count") or 0)
            result[name] = {"count": seen, "sum_s": spent}
    return result


def block_tokens(snapshot: Snapshot) -> int | None:
    """Tokens of a block of the server's KV cache; None when it does not say."""
    sizes = [size for size in snapshot.by_label(vllm.CACHE, "block_size") if size.isdigit()]
    return int(sizes[0]) if len(sizes) == 1 else None


def acceptance(before: Snapshot, after: Snapshot) -> dict:
    """`acceptance_rate`, `acceptance_length` (tokens a round, the target's own included) and the rate by position;
    empty without drafts.
    """
    counts = difference(before, after)
    drafts, drafted, accepted = (counts[name] for name in (vllm.DRAFTS, vllm.DRAFTED, vllm.ACCEPTED))
    if not drafts or not drafted or accepted is None:
        return {}
    start, end = (snapshot.by_label(vllm.ACCEPTED_PER_POSITION, "position") for snapshot in (before, after))
    positions = {int(position): (value - start.get(position, 0)) / drafts for position, value in end.items()}
    return {
        "drafts": int(drafts),
        "drafted_tokens": int(drafted),
        "accepted_tokens": int(accepted),
        "acceptance_rate": accepted / drafted,
        "acceptance_length": 1 + accepted / drafts,
        "acceptance_by_position": [positions[position] for position in sorted(positions)],
    }
