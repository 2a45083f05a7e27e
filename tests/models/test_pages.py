"""Blocks of layers of several kinds: by hand, and against every hybrid figure of the reference study's section 7."""

import pytest

from serving_study.errors import ModelError
from serving_study.hardware import ceilings
from serving_study.models import pages, shapes
from serving_study.results import reference
from serving_study.theory import capacity

HYBRID, GEMMA, OSS = (shapes.load(name) for name in ("qwen3.5-27b", "gemma-3-27b-it", "gpt-oss-20b"))
CARD = {"element_bytes": 1, "speculative_tokens": 3, "prediction_layers": 1}


def published(arm, metric, host=None):
    figures = reference.load(7)
    [value] = figures.loc[
        (figures["arm"] == arm) & (figures["metric"] == metric) & ((figures["host"] == host) if host else True), "value"
    ]
    return value


def test_a_state_decides_the_size_of_every_block():
    # One layer's state: 3 inputs of 2 x 16 x 128 + 48 x 128 channels in bf16, 48 matrices of 128 x 128 in float32:
    # 3,207,168 bytes. A token of a full layer takes 2 x 4 x 256 bytes in fp8, so that 1,566 tokens make as much;
    # kernels want a multiple of 16.
    found = pages.layout(HYBRID, element_bytes=1, prefix_caching=False)
    assert HYBRID.state_bytes_per_layer() == 3_207_168
    assert (found.block_tokens, found.group_layers, found.groups) == (1568, 16, {"full": 1, "linear": 3})
    assert found.block_bytes == 1568 * 2048 * 16 and found.blocks(8192) == 6 + 3


@pytest.mark.parametrize(("arm", "tp"), [("hybrid-fixed-tp1", 1), ("hybrid-fixed-tp2", 2)])
def test_the_fixed_setting_of_the_reference_study(arm, tp):
    found = pages.layout(HYBRID, tp=tp, element_bytes=1, prefix_caching=False).bytes_per_token(8192) / 1024
    low, high = (55.1, 55.4) if tp == 1 else (published(arm, "kv_kib_per_token"),) * 2
    if tp == 1:
        assert (low, high) == (published(arm, "kv_kib_per_token_min"), published(arm, "kv_kib_per_token_max"))
    assert low - 0.05 <= found <= high + 0.05


def test_the_cards_setting_to_the_token():
    found = pages.layout(HYBRID, tp=2, **CARD)
    assert (found.block_tokens, found.group_layers, found.blocks(262144)) == (1600, 17, 164 + 3 * 5)
    assert (
        found.tokens(383 * found.block_bytes, 262144)
        == published("hybrid-card-tp2", "kv_cache_tokens", "l4x2")
        == 560900
    )
    assert 383 / found.blocks(262144) == pytest.approx(
        published("hybrid-card-tp2", "max_concurrency", "l4x2"), abs=0.005
    )
    assert found.bytes_per_sequence(262144) / 2**30 == pytest.approx(
        published("hybrid-card-tp2", "kv_gib_per_sequence", "l4x2"), rel=0.002
    )


def test_no_other_setting_gives_the_cards_count():
    def reaches(tokens_drafted, caching):
        blocks = pages.layout(
            HYBRID,
            tp=2,
            element_bytes=1,
            speculative_tokens=tokens_drafted,
            prediction_layers=int(tokens_drafted > 0),
            prefix_caching=caching,
        ).blocks(262144)
        return any(int(count / blocks * 262144) == 560900 for count in range(1, 2000))

    assert [(drafted, caching) for drafted in range(9) for caching in (False, True) if reaches(drafted, caching)] == [
        (3, True)
    ]


def test_the_figure_for_four_ranks_is_the_cards_setting():
    assert pages.layout(HYBRID, tp=4, **CARD).bytes_per_token(262144) / 1024 == pytest.approx(
        published("hybrid-fixed-tp4", "kv_kib_per_token"), abs=0.05
    )
    assert pages.layout(HYBRID, tp=4, element_bytes=1, prefix_caching=False).bytes_per_token(
        8192
    ) / 1024 == pytest.approx(13.8, abs=0.05)


def test_both_ends_of_the_spread_come_of_settings():
    low, high = (published("hybrid-varied", f"kv_kib_per_token_{end}") for end in ("min", "max"))
    assert pages.layout(HYBRID, tp=4, **CARD).bytes_per_token(262144) / 1024 == pytest.approx(low, abs=0.05)
    # Two drafted tokens with prefix caching take as many blocks as three without.
    for drafted, caching in ((3, False), (2, True)):
        found = pages.layout(
            HYBRID, element_bytes=1, speculative_tokens=drafted, prediction_layers=1, prefix_caching=caching
        )
        assert found.bytes_per_token(8192) / 1024 == pytest.approx(high, rel=0.002)


def test_windows_hold_what_is_in_flight_too():
    found = pages.layout(GEMMA, max_num_batched_tokens=2048, batches=1)
    assert found.group_layers == 10 and found.groups == {
        "sliding": 6,
        "full": 1,
    }  # 52 sliding layers in six groups, of which the last is padded
    assert found.blocks(131072) == 8192 + 6 * (192 + 1) and found.blocks(1000) == 63 + 6 * 64
    assert found.bytes_per_sequence(131072) > GEMMA.kv_bytes(131072)


def test_kinds_of_nearly_equal_number_are_padded():
    assert pages.layout(OSS).groups == {"sliding": 1, "full": 1} and pages.layout(OSS).group_layers == 12
    assert pages.layout(OSS, prediction_layers=1).group_layers == 13


def test_layers_all_alike_need_no_padding():
    shape = shapes.load("qwen2.5-7b-instruct")
    found = pages.layout(shape)
    assert found.bytes_per_token(4096) == shape.kv_bytes_per_token() and found.tokens(1e9, 4096) == int(
        1e9 // found.block_bytes * 16
    )
    assert (
        pages.layout(shapes.load("deepseek-v3")).bytes_per_token(4096)
        == shapes.load("deepseek-v3").kv_bytes_per_token()
    )


def test_a_latent_cache_beside_states_is_refused():
    both = shapes.of_config(HYBRID.config | {"kv_lora_rank": 512, "qk_rope_head_dim": 64})
    with pytest.raises(ModelError, match="latent attention beside linear attention"):
        pages.layout(both)


def test_capacity_counts_in_these_blocks():
    server = capacity.Deployment(
        HYBRID, ceilings.gpu("h200"), max_model_len=32768, max_num_seqs=128, kv_element_bytes=1
    )
    found = capacity.predict(server)
    blocks = pages.layout(HYBRID, element_bytes=1, max_num_batched_tokens=8192)
    assert found.tokens == blocks.tokens(
        found.kv_gib * 2**30, 32768
    ) and found.kv_bytes_per_token == blocks.bytes_per_token(32768)
    longer = capacity.predict(
        capacity.Deployment(HYBRID, ceilings.gpu("h200"), max_model_len=131072, max_num_seqs=128, kv_element_bytes=1)
    )
    assert longer.tokens > found.tokens and longer.max_concurrency < found.max_concurrency
    with pytest.raises(ModelError, match="beside full attention alone"):
        capacity.Deployment(
            HYBRID, ceilings.gpu("h200"), speculative_tokens=3, draft=shapes.load("qwen2.5-0.5b-instruct")
        )
