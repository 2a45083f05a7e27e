"""Counters as a real server prints them, and their differences."""

import http.server
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from serving_study.engines import base, vllm
from serving_study.errors import LoadError
from serving_study.servers import metrics

FOLDER = Path(__file__).parents[1] / "fixtures" / "metrics"


def snapshot(name):
    return metrics.parse((FOLDER / f"{name}.txt").read_text())


BASELINE = snapshot("cpu-baseline-before"), snapshot("cpu-baseline-after")
NGRAM = snapshot("cpu-ngram-k3-before"), snapshot("cpu-ngram-k3-after")


def test_the_difference_is_the_cells_alone():
    counts = metrics.difference(*NGRAM, vllm.COUNTERS)
    assert counts[base.PROMPT_TOKENS] == 549 - 65 and counts[base.GENERATED_TOKENS] == 104 - 40
    assert counts[base.FINISHED_REQUESTS] == 4 and counts["finished"] == {"length": 4}
    assert (counts[base.DRAFTS], counts[base.DRAFTED], counts[base.ACCEPTED]) == (8, 24, 6)
    assert (
        counts[base.PREFIX_HITS]
        == counts[base.PREFIX_QUERIES]
        == counts[base.EXTERNAL_HITS]
        == counts[base.PREEMPTIONS]
        == 0
    )
    ttft = counts[base.TTFT]
    assert ttft["count"] == 4 and ttft["sum_s"] == pytest.approx(12.5087308883667 - 5.936912536621094)


def test_a_server_without_speculation_has_no_draft_counters():
    counts = metrics.difference(*BASELINE, vllm.COUNTERS)
    assert counts[base.DRAFTS] is None and counts[base.DRAFTED] is None and counts[base.ACCEPTED] is None
    assert counts[base.GENERATED_TOKENS] == 64 and metrics.acceptance(*BASELINE, vllm.COUNTERS) == {}


def test_a_counter_that_the_server_does_not_have_is_none_and_never_zero():
    fewer = replace(vllm.COUNTERS, samples={base.DRAFTS: vllm.COUNTERS.samples[base.DRAFTS], base.PROMPT_TOKENS: "no"})
    counts = metrics.difference(*NGRAM, fewer)
    assert (
        counts.pop(base.DRAFTS) == 8 and counts.pop("finished") == {} and set(vllm.COUNTERS.histograms) <= set(counts)
    )
    assert {counts[name] for name in base.NAMES if name != base.DRAFTS} == {None}


def test_a_counter_that_appears_in_between_counts_from_zero():
    assert metrics.difference(BASELINE[0], NGRAM[1], vllm.COUNTERS)[base.DRAFTS] == 11


def test_acceptance_is_accepted_over_drafted_without_the_bonus_token():
    found = metrics.acceptance(*NGRAM, vllm.COUNTERS)
    assert found == {
        "drafts": 8,
        "drafted_tokens": 24,
        "accepted_tokens": 6,
        "acceptance_rate": 6 / 24,
        "acceptance_length": 1 + 6 / 8,
        "acceptance_by_position": [4 / 8, 2 / 8, 0.0],
    }
    assert sum(found["acceptance_by_position"]) / 3 == found["acceptance_rate"]


def test_no_drafts_in_between_is_no_acceptance():
    assert metrics.acceptance(NGRAM[1], NGRAM[1], vllm.COUNTERS) == {}


def test_positions_are_in_numerical_order():
    names = vllm.COUNTERS.samples

    def text(scale):
        rows = [f'x_per_pos_total{{position="{position}"}} {scale * (20 - position)}' for position in range(12)]
        rows = [row.replace("x_per_pos_total", names[base.ACCEPTED_PER_POSITION]) for row in rows]
        return metrics.parse(
            "\n".join(
                [
                    f"{names[base.DRAFTS]} {scale * 20}",
                    f"{names[base.DRAFTED]} {scale * 240}",
                    f"{names[base.ACCEPTED]} {scale * 174}",
                    *rows,
                ]
            )
            + "\n"
        )

    assert metrics.acceptance(text(0), text(1), vllm.COUNTERS)["acceptance_by_position"] == [
        (20 - position) / 20 for position in range(12)
    ]


def test_labels_are_summed():
    found = metrics.parse(
        '# TYPE a counter\na_total{engine="0",x="p"} 1\na_total{engine="1",x="p"} 2\na_total{engine="0",x="q"} 4\n'
    )
    assert (
        found.total("a_total") == 7
        and found.by_label("a_total", "x") == {"p": 3, "q": 4}
        and found.by_label("a_total", "y") == {}
    )
    assert found.total("b_total") is None


def test_a_server_that_is_not_there():
    with pytest.raises(LoadError, match=r"counters cannot be read: http://127\.0\.0\.1:9/metrics"):
        metrics.scrape("http://127.0.0.1:9")


@pytest.fixture
def page():
    """An HTTP server whose every page is what the test makes it."""
    content = {"status": 200, "body": b""}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(content["status"])
            self.end_headers()
            self.wfile.write(content["body"])

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield content, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_scraping(page):
    content, url = page
    content["body"] = (FOLDER / "cpu-ngram-k3-after.txt").read_bytes()
    assert metrics.scrape(url) == NGRAM[1]


@pytest.mark.parametrize(
    ("status", "body"), [(500, b"x"), (404, b""), (200, b"<html>a page {of something} else</html>"), (200, b"\xff\xfe")]
)
def test_what_is_no_metrics_page_is_an_error(page, status, body):
    content, url = page
    content.update(status=status, body=body)
    with pytest.raises(LoadError, match="counters cannot be read"):
        metrics.scrape(url)
