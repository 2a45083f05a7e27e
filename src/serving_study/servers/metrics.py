"""A server's Prometheus counters before and after, and their difference.

Counters run from a server's start, so only a difference belongs to a cell. Acceptance is accepted / drafted tokens of
the cell alone, without the bonus token.
"""

import urllib.error
import urllib.request
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from ..engines import base
from ..engines.base import Counters, Series, Snapshot
from ..errors import LoadError
from . import client


def parse(text: str) -> Snapshot:
    """Parse Prometheus' text format."""
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return Snapshot(series)


def scrape(url: str, path: str = "/metrics", timeout_s: float = 10) -> Snapshot:
    """Fetch a server's counters. Raises LoadError when it does not answer with any."""
    request = urllib.request.Request(f"{url}{path}", headers=client.headers())
    try:
        with client.DIRECT.open(request, timeout=timeout_s) as answer:
            return parse(answer.read().decode())
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise LoadError("the server's counters cannot be read", value=f"{url}{path}: {error}") from None


def difference(before: Snapshot, after: Snapshot, counters: Counters, names: Sequence[str] = base.NAMES) -> dict:
    """The difference of each counter, by our names; None, never 0, for one that the server does not have.

    `finished` has the finished requests by reason, each histogram its `count` and `sum_s`."""
    counted = {}
    for name in counters.samples:
        start, end = (counters.total(snapshot, name) for snapshot in (before, after))
        counted[name] = None if end is None else end - (start or 0)
    counted |= {name: derive(counted, after) for name, derive in counters.derived.items()}
    result = {name: counted.get(name) for name in names}
    earlier, finished = (
        snapshot.by_label(counters.samples.get(base.FINISHED_REQUESTS), counters.finish_reason)
        for snapshot in (before, after)
    )
    result["finished"] = {
        reason: count - earlier.get(reason, 0) for reason, count in finished.items() if count != earlier.get(reason, 0)
    }
    for name, sample in counters.histograms.items():
        count, total = after.total(f"{sample}_count"), after.total(f"{sample}_sum")
        if count is not None and total is not None:
            spent, seen = total - (before.total(f"{sample}_sum") or 0), count - (before.total(f"{sample}_count") or 0)
            result[name] = {"count": seen, "sum_s": spent}
    return result


def block_tokens(snapshot: Snapshot, counters: Counters) -> int | None:
    """Tokens of a block of the server's KV cache; None when it does not report them."""
    sample, label = counters.block_size
    values = {f"{value:g}" for (name, _), value in snapshot.series.items() if name == sample}
    sizes = [size for size in (snapshot.by_label(sample, label) if label else values) if size.isdigit()]
    return int(sizes[0]) if len(sizes) == 1 else None


def acceptance(before: Snapshot, after: Snapshot, counters: Counters) -> dict:
    """`acceptance_rate`, `acceptance_length` (tokens a round, the target's own included) and the rate by position where
    the server counts by it; empty without drafts.
    """
    names = (base.DRAFTS, base.DRAFTED, base.ACCEPTED)
    drafts, drafted, accepted = map(difference(before, after, counters, names).get, names)
    if not drafts or not drafted or accepted is None:
        return {}
    sample = counters.samples.get(base.ACCEPTED_PER_POSITION)
    start, end = (snapshot.by_label(sample, counters.position) for snapshot in (before, after))
    positions = {int(position): (value - start.get(position, 0)) / drafts for position, value in end.items()}
    by_position = [positions[position] for position in sorted(positions)]
    return {
        "drafts": int(drafts),
        "drafted_tokens": int(drafted),
        "accepted_tokens": int(accepted),
        "acceptance_rate": accepted / drafted,
        "acceptance_length": 1 + accepted / drafts,
    } | ({"acceptance_by_position": by_position} if sample else {})
