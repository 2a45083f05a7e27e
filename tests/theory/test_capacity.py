"""KV tokens by arithmetic against every start of the reference study and of our own H200, and the achieved errors
pinned.
"""

import csv
import re

import pytest

from serving_study import paths
from serving_study.errors import ModelError, ParameterError
from serving_study.hardware import ceilings
from serving_study.models import shapes
from serving_study.results import reference
from serving_study.theory import capacity

SEVEN, FOURTEEN, HALF = (shapes.load(f"qwen2.5-{size}-instruct") for size in ("7b", "14b", "0.5b"))
# With the achieved error (predicted over measured KV tokens, less one), rounded up: it may only become smaller. An arm
# is warm where an earlier start of the same table compiled its graphs: k 3 and 5 after k 1.
ARMS = {
    ("l4x1", "baseline"): ({}, 0.0001),
    ("l4x1", "ngram-k3"): ({"speculative_tokens": 3}, 0.023),
    ("l4x1", "draft-k1"): ({"speculative_tokens": 1, "draft": HALF}, 0.015),
    ("l4x1", "draft-k3"): ({"speculative_tokens": 3, "draft": HALF, "compiled": True}, 0.022),
    ("l4x1", "draft-k5"): ({"speculative_tokens": 5, "draft": HALF, "compiled": True}, 0.021),
    ("a10gx4", "7b-tp1"): ({}, 0.0001),
    ("a10gx4", "7b-tp2"): ({"tp": 2}, 0.002),
    ("a10gx4", "7b-tp4"): ({"tp": 4}, 0.011),
    ("a10gx4", "14b-tp2"): ({"model": FOURTEEN, "tp": 2}, 0.015),
    ("a10gx4", "14b-pp2"): ({"model": FOURTEEN, "pp": 2}, 0.028),
    ("a10gx4", "14b-tp4"): ({"model": FOURTEEN, "tp": 4}, 0.001),
    ("l4x4", "7b-tp1"): ({}, 0.0001),
    ("l4x4", "7b-tp2"): ({"tp": 2}, 0.036),
    ("l4x4", "7b-tp4"): ({"tp": 4}, 0.007),
    ("l4x4", "14b-tp2"): ({"model": FOURTEEN, "tp": 2}, 0.139),
    ("l4x4", "14b-pp2"): ({"model": FOURTEEN, "pp": 2}, 0.025),
    ("l4x4", "14b-tp4"): ({"model": FOURTEEN, "tp": 4}, 0.021),
}
# The study puts what differs between its two machines down to version and profiling; this arm's 14 % is the one beyond
# 5 %.
EXCLUDED = {("l4x4", "14b-tp2")}
VERSIONS = {"l4x1": "0.27.1", "a10gx4": "0.27.1", "l4x4": "0.28.0", "h200x1": "0.25.1"}
H200 = {
    "baseline": {},
    "baseline-again": {},
    "ngram-k3": {"speculative_tokens": 3},
    "draft-k1": {"speculative_tokens": 1, "draft": HALF},
    "draft-k3": {"speculative_tokens": 3, "draft": HALF},
    "draft-k5": {"speculative_tokens": 5, "draft": HALF},
}


def server(host, **about):
    return capacity.Deployment(
        **{"model": SEVEN, "gpu": ceilings.of_host(host).gpu, "max_num_seqs": 128, "version": VERSIONS[host], **about}
    )


def measured(host, arm, metric="kv_cache_tokens"):
    figures = reference.load(3 if host == "l4x1" else 5)
    (value,) = figures.loc[(figures["host"] == host) & (figures["arm"] == arm) & (figures["metric"] == metric), "value"]
    return value


def own_starts():
    """(arm, whether its log loads its graphs from the cache, KV tokens, weights in GiB) of each start on our H200."""
    for file in sorted((paths.RESULTS_PUBLISHED / "h200x1" / "section-3").glob("*/starts.csv")):
        with open(file, newline="") as rows:
            for row in csv.DictReader(rows):
                if row["outcome"] == "ok" and row["arm"] in H200:
                    log = (file.parent / "arms" / row["arm"] / "server.log").read_text(errors="replace")
                    yield (
                        row["arm"],
                        "Directly load the compiled graph" in log,
                        float(row["kv_cache_tokens"]),
                        float(row["weights_gib"]),
                        log,
                    )


@pytest.mark.parametrize("host, arm", ARMS)
def test_kv_tokens_of_the_reference_study(host, arm):
    about, limit = ARMS[host, arm]
    error = capacity.predict(server(host, **about)).tokens / measured(host, arm) - 1
    assert abs(error) <= limit
    assert (limit > 0.05) == ((host, arm) in EXCLUDED)


def test_kv_tokens_of_our_h200():
    starts = list(own_starts())
    assert {arm for arm, *_ in starts} == set(H200)
    for arm, compiled, tokens, weights, _log in starts:
        found = capacity.predict(server("h200x1", **H200[arm], compiled=compiled))
        assert abs(found.tokens / tokens - 1) <= 0.0006, arm
        assert abs(found.weights_gib / weights - 1) <= 0.0004, arm


def test_what_four_cards_hold_over_one_is_a_matter_of_what_weights_leave_on_one():
    def gain(host):
        return capacity.predict(server(host, tp=4)).tokens / capacity.predict(server(host)).tokens

    assert gain("a10gx4") == pytest.approx(18.7, rel=0.1)  # of 22 GiB, 7B leaves a small rest
    assert 4.2 < gain("h200x1") < 4.6  # of 140 GiB, nearly all is left on each


def test_graphs_are_counted_as_the_logs_count_them():
    seen = 0
    for arm, _compiled, _tokens, _weights, log in own_starts():
        if match := re.search(r"Profiling CUDA graph memory: PIECEWISE=(\d+).*FULL=(\d+)", log):
            seen += 1
            assert capacity.cuda_graphs(server("h200x1", **H200[arm])) == int(match[1]) + int(match[2]), arm
    assert seen
    assert capacity.cuda_graphs(server("h200x1")) == 35 + 19


def constant_gib(start, measured_tokens):
    """The constant with which this start comes out as measured."""
    rank = capacity.predict(start, constant_gib=0.0)
    return rank.kv_gib - measured_tokens * rank.kv_bytes_per_token / 2**30


@pytest.mark.parametrize("host, arm", [("l4x1", "baseline"), ("l4x4", "7b-tp1"), ("a10gx4", "7b-tp1")])
def test_the_constant_of_a_gpu_is_its_baselines_alone(host, arm):
    start = server(host)
    assert constant_gib(start, measured(host, arm)) == pytest.approx(capacity.CONSTANT_GIB[start.gpu.name], abs=0.0001)


def test_the_constant_of_the_h200_is_its_baselines_alone():
    arm, compiled, tokens, *_ = next(start for start in own_starts() if start[0] == "baseline")
    start = server("h200x1", compiled=compiled)
    assert arm == "baseline" and constant_gib(start, tokens) == pytest.approx(capacity.CONSTANT_GIB["h200"], abs=0.0001)


@pytest.mark.parametrize("host", ["a10gx4", "l4x4"])
def test_a_model_that_does_not_fit_is_seen_before_it_is_rented(host):
    found = capacity.predict(server(host, model=FOURTEEN))
    assert (
        (found.tokens, found.can_start) == (0, False)
        and found.kv_gib < 0
        and found.weights_gib > ceilings.of_host(host).gpu.memory_gib
    )
    gate_and_up = next(tensor for tensor in FOURTEEN.tensors() if tensor.name == "gate and up")
    assert gate_and_up.elements * 2 / 2**20 == measured(host, "14b-tp1", "oom_tried_mib")


def test_tokens_come_in_blocks_and_concurrency_follows():
    found = capacity.predict(server("l4x1", utilization=0.87, max_model_len=8192))
    assert found.tokens % 16 == 0 and found.max_concurrency == found.tokens / 8192 and found.can_start
    assert found.weights_gib + found.peak_gib + found.graphs_gib + found.constant_gib + found.kv_gib == pytest.approx(
        22.04 * 0.87, abs=1e-6
    )


def test_defaults_are_those_of_the_command_line():
    sizes = {
        name: (one.sequences, one.batched_tokens)
        for name in ceilings.gpus()
        for one in [capacity.Deployment(SEVEN, ceilings.gpu(name))]
    }
    assert (
        sizes["l4"] == sizes["a100-80"] == (256, 2048)
        and sizes["h200"] == sizes["h100"] == (1024, 8192)
        and sizes["b200"] == (1024, 16384)
    )
    assert capacity.Deployment(SEVEN, ceilings.gpu("l4"), max_num_batched_tokens=4096).batched_tokens == 4096


def test_what_a_start_leaves_out():
    cold, warm, eager = (
        capacity.predict(server("l4x1", version="0.32.0", **about))
        for about in ({}, {"compiled": True}, {"eager": True})
    )
    assert cold.tokens < warm.tokens < eager.tokens and warm.graphs_gib > 0 == eager.graphs_gib
    assert capacity.predict(server("l4x1", kv_element_bytes=1)).tokens == pytest.approx(
        2 * capacity.predict(server("l4x1")).tokens, abs=16
    )
    assert (
        server("l4x1", version="0.24").accounting
        == server("l4x1", version="0.25.1").accounting
        != server("l4x1", version="0.31").accounting
    )


def test_a_gpu_without_a_start_of_its_own_takes_the_mean_constant():
    found = capacity.predict(capacity.Deployment(SEVEN, ceilings.gpu("l40s")))
    assert found.constant_gib == pytest.approx(sum(capacity.CONSTANT_GIB.values()) / 3)


@pytest.mark.parametrize(
    "about, error, message",
    [
        ({"utilization": 1.2}, ParameterError, "utilization: 1.2"),
        ({"version": "nightly"}, ParameterError, "no such version: nightly"),
        ({"draft": HALF}, ModelError, "0 tokens, pp 1"),
        ({"draft": HALF, "speculative_tokens": 3, "pp": 2}, ModelError, "3 tokens, pp 2"),
        ({"tp": 3}, ModelError, "do not divide"),
    ],
)
def test_what_cannot_be_is_refused(about, error, message):
    with pytest.raises(error, match=message):
        capacity.predict(server("l4x1", **about))
