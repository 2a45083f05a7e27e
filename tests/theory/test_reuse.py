"""Moving a KV cache against computing it: worked out by hand, and the reference study's table of prefixes with the
error pinned.
"""

import pytest

from serving_study.errors import ParameterError, StoreError
from serving_study.hardware import ceilings
from serving_study.models import pages, shapes
from serving_study.results import reference
from serving_study.theory import calibration, latency, reuse
from serving_study.theory.latency import Machine
from serving_study.theory.reuse import Link

SEVEN, HYBRID, GEMMA = (shapes.load(name) for name in ("qwen2.5-7b-instruct", "qwen3.5-27b", "gemma-3-27b-it"))
PLAIN = Machine(bandwidth=1e12, flops=1e14, efficiency=1.0, compute_efficiency=1.0)
SLOW = Link("slow", 1.0, "made up")
HEAD = 152064 * 3584  # Qwen2.5-7B's output head; its input embedding is as large
MATRICES = 7_615_616_512 - 2 * HEAD


def test_attention_by_hand():
    # Two products of 2 FLOP an element for each head and pair of tokens: 28 heads of 128, 28 layers.
    assert reuse.attention_flops(SEVEN, 1) == 28 * 28 * 4 * 128
    assert reuse.attention_flops(SEVEN, 3) == (1 + 2 + 3) * 28 * 28 * 4 * 128
    assert reuse.attention_flops(SEVEN, 2, cached=10) == (11 + 12) * 28 * 28 * 4 * 128
    assert reuse.attention_flops(SEVEN, 100) == reuse.attention_flops(SEVEN, 60) + reuse.attention_flops(
        SEVEN, 40, cached=60
    )


def test_attention_of_windows_states_and_latents():
    full, sliding = 10 * 32 * 4 * 128, 52 * 32 * 4 * 128
    assert reuse.attention_flops(GEMMA, 100) == 5050 * (full + sliding)
    assert reuse.attention_flops(GEMMA, 10, cached=5000) == (50000 + 55) * full + 10 * 1024 * sliding
    assert reuse.attention_flops(HYBRID, 1) == 16 * 24 * 4 * 256
    assert reuse.attention_flops(shapes.load("deepseek-v3"), 1) == 61 * 128 * 2 * (128 + 64 + 128)


def test_a_prefill_reads_the_weights_once_a_pass():
    read, flops = 2 * (MATRICES + HEAD), 2 * MATRICES
    one = read / 1e12 + (1000 * flops + reuse.attention_flops(SEVEN, 1000)) / 1e14
    assert reuse.prefill_s(SEVEN, PLAIN, 1000) == pytest.approx(one, rel=1e-9)
    two = (2 * read + 600 * 57344) / 1e12 + (1000 * flops + reuse.attention_flops(SEVEN, 1000)) / 1e14
    assert reuse.prefill_s(SEVEN, PLAIN, 1000, budget=600) == pytest.approx(two, rel=1e-9)
    assert reuse.prefill_s(SEVEN, PLAIN, 1000, alone=False) == pytest.approx(
        (1000 * flops + reuse.attention_flops(SEVEN, 1000)) / 1e14
    )
    cached = read / 1e12 + 512 * 57344 / 1e12 + (88 * flops + reuse.attention_flops(SEVEN, 88, cached=512)) / 1e14
    assert reuse.prefill_s(SEVEN, PLAIN, 88, cached=512) == pytest.approx(cached, rel=1e-9)


def test_ranks_share_a_prefill():
    assert reuse.prefill_s(SEVEN, PLAIN, 512, tp=4, alone=False) == pytest.approx(
        reuse.prefill_s(SEVEN, PLAIN, 512, alone=False) / 4
    )
    assert reuse.needed_gb_s(SEVEN, PLAIN, 512, share=0.1) == pytest.approx(10 * reuse.needed_gb_s(SEVEN, PLAIN, 512))


@pytest.mark.parametrize(
    ("shared", "prompt", "found"),
    [(3001, 3021, 2992), (3001, 3001, 2992), (16, 16, 0), (17, 17, 16), (15, 400, 0), (0, 1, 0), (32, 33, 32)],
)
def test_whole_blocks_are_found_and_never_the_last_token(shared, prompt, found):
    assert pages.cached_tokens(shared, prompt) == found


def test_large_blocks_find_less():
    assert pages.cached_tokens(3001, 3021, 1568) == 1568 and pages.cached_tokens(1500, 3021, 1568) == 0
    assert (
        pages.layout(HYBRID).block_tokens == 784
    )  # a token of bf16 takes twice what one of fp8 does, so that half as many make a state
    assert (
        reuse.prefix(HYBRID, PLAIN, shared=3001, own=20).cached_tokens == 3 * 784
        and reuse.prefix(GEMMA, PLAIN, shared=3001, own=20).cached_tokens == 2992
    )


# Achieved against the reference study's table of prefixes (L4, 3,001 shared tokens), relative; they may only become
# smaller. Prompts of that study end in a question whose length it does not state: 20 tokens are taken. The warm
# request's constant, engine and HTTP, is not predicted.
PREFIX_ERROR = {"cold": 0.115, "warm": 0.165, "gain": 0.32}


def test_the_reference_studys_prefixes():
    figures = reference.load(7).query("metric == 'ttft_ms'").set_index(["arm", "request"])["value"]
    cold = [figures["prefix-on", 1], *figures["prefix-off"]]
    warm = [figures["prefix-on", request] for request in range(2, 6)]
    cold, warm = sum(cold) / len(cold), sum(warm) / len(warm)
    found = reuse.prefix(SEVEN, reuse.prefill_machine(ceilings.of_host("l4x1")), shared=3001, own=20)
    assert (found.tokens, found.cached_tokens) == (3021, 2992)
    errors = {
        "cold": 1000 * found.cold_s / cold - 1,
        "warm": 1000 * found.warm_s / warm - 1,
        "gain": found.gain / (figures["prefix-on", 1] / warm) - 1,
    }
    assert all(abs(errors[name]) <= limit for name, limit in PREFIX_ERROR.items()), errors


def test_a_prefix_that_nobody_had_gains_nothing():
    found = reuse.prefix(SEVEN, PLAIN, shared=0, own=3000)
    assert found.cached_tokens == 0 and found.gain == 1


def test_throughput_under_a_hit_rate():
    about = {"shared": 3008, "own": 16, "output": 128, "concurrency": 8}
    cold, half, warm = (reuse.request_throughput(SEVEN, PLAIN, hit_rate=rate, **about) for rate in (0.0, 0.5, 1.0))
    # Seconds for eight requests are even in the hit rate.
    assert 8 / half == pytest.approx((8 / cold + 8 / warm) / 2)
    saved = reuse.prefill_s(SEVEN, PLAIN, 3024, alone=False) - reuse.prefill_s(
        SEVEN, PLAIN, 16, cached=3008, alone=False
    )
    assert 8 / cold - 8 / warm == pytest.approx(8 * saved)


def test_a_handover_by_hand():
    found = reuse.hand_over(SEVEN, PLAIN, SLOW, prompt=1024, output=128, concurrency=8)
    assert found.kv_bytes == 1024 * 57344 and found.transfer_s == pytest.approx(1024 * 57344 / 1e9)

    def step(sequences):
        return (2 * (MATRICES + HEAD) + sequences * 1088 * 57344) / 1e12 + sequences * 2 * MATRICES / 1e14

    added = reuse.prefill_s(SEVEN, PLAIN, 1024, alone=False)
    assert found.tpot_s == pytest.approx(step(8)) and found.replicas_tpot_s == pytest.approx(step(4) + 3 * added / 128)
    assert found.replicas_request_throughput == pytest.approx(8 / (128 * step(4) + 4 * added))
    assert found.pays == (found.transfer_s < found.prefill_s and found.tpot_s < found.replicas_tpot_s)
    assert not reuse.hand_over(SEVEN, PLAIN, Link("slower", 0.001, ""), prompt=1024, output=128, concurrency=8).pays


def test_restoring_against_recomputing():
    assert reuse.restore_s(SEVEN, SLOW, 1600, overhead_s=0.005) == pytest.approx(0.005 + 1600 * 57344 / 1e9)
    assert reuse.recompute_s(SEVEN, PLAIN, 1600) == pytest.approx(
        (1600 * 2 * MATRICES + reuse.attention_flops(SEVEN, 1600)) / 1e14
    )
    # A token costs 130.5 µs to compute at 100 TFLOP/s, 57.3 µs to fetch at 1 GB/s: 5 ms are made good within 69 tokens,
    # five blocks.
    assert reuse.break_even_tokens(SEVEN, PLAIN, SLOW, overhead_s=0.005) == 80
    assert reuse.break_even_tokens(SEVEN, PLAIN, SLOW) == 16


@pytest.mark.parametrize("name", ["qwen2.5-7b-instruct", "gemma-3-27b-it", "qwen3.5-27b", "llama-2-7b"])
@pytest.mark.parametrize("gb_s", [0.05, 0.3, 2.0])
def test_a_break_even_is_the_only_one(name, gb_s):
    shape, link = shapes.load(name), Link("x", gb_s, "")
    pays = [
        reuse.restore_s(shape, link, tokens, overhead_s=0.005) < reuse.recompute_s(shape, PLAIN, tokens)
        for tokens in range(16, 20001, 16)
    ]
    found = reuse.break_even_tokens(shape, PLAIN, link, overhead_s=0.005, highest=20000)
    assert pays == sorted(pays) and found == (16 * (pays.index(True) + 1) if any(pays) else None)


def test_the_links_of_a_host():
    one, four, eight = (reuse.links(ceilings.of_host(name)) for name in ("g6.xlarge", "g6.12xlarge", "p5.48xlarge"))
    assert (
        list(one) == ["cpu", "tcp", "nvme"]
        and one["nvme"].gb_s == pytest.approx(40625 * 4096 / 1e9)
        and one["tcp"].gb_s == 1.25
    )
    assert (
        list(four) == ["pcie", "cpu", "tcp", "nvme"]
        and four["pcie"].gb_s == 25
        and four["nvme"].gb_s == pytest.approx(0.32)
    )
    assert list(eight) == ["nvlink", "pcie", "cpu", "efa", "tcp", "nvme"]
    assert eight["nvlink"].gb_s == 450 and eight["efa"].gb_s == 50 and eight["nvme"].gb_s == pytest.approx(2.2528)
    assert list(reuse.links(ceilings.of_host("l4x1"))) == ["cpu"]
    assert set(reuse.storage()) == set(ceilings.instances()) and all(link.source for link in eight.values())


def test_a_share_fitted_to_decoding_is_not_believed_of_a_prefill():
    for name in ("l4x1", "h200x1", "p5.48xlarge"):
        fitted, used = calibration.calibrated(ceilings.of_host(name)), reuse.prefill_machine(ceilings.of_host(name))
        assert (
            used.compute_efficiency == min(fitted.compute_efficiency, calibration.TYPICAL[1])
            and used.bandwidth == fitted.bandwidth
        )


def test_a_damaged_table_of_stores_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(reuse, "FOLDER", tmp_path)
    reuse.storage.cache_clear()
    (tmp_path / "storage.csv").write_text("instance,read_iops\ng6.xlarge,many\n")
    with pytest.raises(StoreError, match="instance stores cannot be read"):
        reuse.storage()
    monkeypatch.undo()
    assert reuse.storage()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pages.cached_tokens(10, 5), "10 shared of 5 tokens"),
        (lambda: reuse.prefill_s(SEVEN, PLAIN, 0), "0 tokens, 0 cached"),
        (
            lambda: reuse.request_throughput(SEVEN, PLAIN, shared=10, own=1, output=1, concurrency=1, hit_rate=1.5),
            "hit rate: 1.5",
        ),
        (
            lambda: reuse.hand_over(SEVEN, PLAIN, SLOW, prompt=1, output=1, concurrency=1),
            "too few requests for two GPUs: 1",
        ),
        (lambda: reuse.prefill_s(shapes.load("gpt-oss-20b"), PLAIN, 10), "with experts: gpt-oss-20b"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ParameterError, match=message):
        call()


def test_decoding_is_the_latency_modules():
    rank = latency.Work(2 * (MATRICES + HEAD), 2 * MATRICES, 57344, 28, 7168)
    assert reuse._step_s(SEVEN, PLAIN, 4, 1000, 1) == pytest.approx(latency.pass_s(rank, PLAIN, 4, 4000))
