"""Section 7's frames: every figure of the reference study that is arithmetic, and what a header may say."""

import pytest

from serving_study.chapters import sections
from serving_study.chapters.cache_sizes import cache_sizes
from serving_study.chapters.cache_sizes.cache_sizes import CacheSizes
from serving_study.errors import ModelError, ParameterError
from serving_study.hardware import ceilings
from serving_study.models import shapes
from serving_study.results import reference
from serving_study.theory import budgets, capacity


@pytest.fixture(scope="module")
def wanted():
    return CacheSizes(**sections.header(sections.get("7-sizes")))


def test_the_header_is_of_its_types(wanted):
    assert CacheSizes(**wanted.values()) == wanted
    assert wanted.element_bytes is None and wanted.replaced(cache_dtype="fp8").element_bytes == 1


BAD = [
    ("models", [], "one model or more"),
    ("lengths", [8192, 1024], "rising"),
    ("cache_dtype", "int4", "auto, fp8"),
    ("memory_utilization", 1.5, "above 0, at most 1"),
    ("hit_rates", [1.2], "shares from 0 to 1"),
    ("concurrency", 1, "2 or more"),
    ("model", "gpt-oss-20b", "a model without experts"),
    ("own_tokens", 0, "1 token or more"),
    ("restore_overhead_ms", -1.0, "0 or more"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_a_value_that_cannot_be_used_is_refused(wanted, name, value, allowed):
    with pytest.raises(ParameterError, match=f"parameter {name} cannot be used") as caught:
        wanted.replaced(**{name: value})
    assert allowed in caught.value.allowed


def test_unknown_models_and_hosts_say_what_there_is(wanted):
    with pytest.raises(ModelError, match="no config.json for this model: moon"):
        wanted.replaced(model="moon")
    with pytest.raises(ModelError, match="no config.json for this model: moon"):
        cache_sizes.per_model(["moon"], [1024])


def test_the_reference_studys_table_comes_out():
    found = cache_sizes.against_reference()
    stated = reference.load(7).query("host == 'arithmetic'")
    assert len(found) == len(stated) == 18
    # 0.4375 GiB is printed as 0.44; every other figure is met exactly.
    assert (found["error"] != 0).sum() == 1 and found["error"].abs().max() <= 0.0057


def test_the_reference_studys_hybrid_model_comes_out():
    found = cache_sizes.hybrid_against_reference()
    assert len(found) == 8 and found["error"].abs().max() <= 0.005
    assert found.set_index("figure").loc["KV cache (tokens)", "error"] == 0


def test_how_models_keep_their_cache():
    words = {
        name: (cache_sizes.attention(shapes.load(name)), cache_sizes.layers(shapes.load(name)))
        for name in ("llama-2-7b", "qwen2.5-7b-instruct", "deepseek-v3", "gemma-3-27b-it", "qwen3.5-27b")
    }
    assert list(words.values()) == [
        ("MHA", "32"),
        ("GQA 7:1", "28"),
        ("MLA", "61"),
        ("GQA 2:1", "62, 52 see 1,024 tokens"),
        ("GQA 6:1", "64, 48 linear"),
    ]
    frame = cache_sizes.per_model(list(words), [8192, 131072]).set_index("model")
    assert frame.loc["llama-2-7b", "share"] == 1 and frame.loc["qwen2.5-7b-instruct", "share"] == pytest.approx(1 / 7)
    # 576 numbers a token and layer in place of 128 heads of 192 for keys and 128 for values.
    assert frame.loc["deepseek-v3", "share"] == pytest.approx(576 / (128 * 320))
    assert cache_sizes.per_model(["qwen2.5-7b-instruct"], [8192], 1)[8192].iloc[0] == 0.4375 / 2


def test_what_fits_a_host():
    frame = budgets.fits(
        ["qwen2.5-7b-instruct", "meta-llama-3-70b", "deepseek-v3"], ["g6.xlarge", "p5.48xlarge"], [8192, 131072]
    )
    rows = frame.set_index(["model", "host"])
    small = rows.loc[("qwen2.5-7b-instruct", "g6.xlarge")]
    server = capacity.Deployment(
        shapes.load("qwen2.5-7b-instruct"), ceilings.gpu("l4"), max_model_len=8192, max_num_seqs=128
    )
    assert (
        small["tp"] == 1
        and small[8192] == capacity.predict(server).max_concurrency
        and small[8192] == pytest.approx(16 * small[131072], rel=0.001)
    )
    assert (
        rows.loc[("meta-llama-3-70b", "g6.xlarge"), "reason"] == "out of memory"
        and rows.loc[("meta-llama-3-70b", "p5.48xlarge"), "tp"] == 8
    )
    assert "quantized" in rows.loc[("deepseek-v3", "p5.48xlarge"), "reason"]


@pytest.mark.parametrize(
    ("name", "gpus", "tp"),
    [
        ("qwen2.5-7b-instruct", 8, 4),
        ("meta-llama-3-70b", 8, 8),
        ("smollm2-135m-instruct", 4, 1),
        ("deepseek-v3", 8, 8),
        ("qwen2.5-0.5b-instruct", 2, 2),
    ],
)
def test_ranks_are_as_many_as_the_heads_divide_over(name, gpus, tp):
    shape = shapes.load(name)
    assert budgets.ranks(shape, gpus) == tp
    shape.kv_bytes_per_token(tp=tp)


def test_frames_have_a_row_for_each_way():
    hosts = ["g6.xlarge", "p5.48xlarge"]
    assert list(cache_sizes.tiers("qwen2.5-7b-instruct", hosts, 0.005, [1024])["tier"]) == [
        "cpu",
        "tcp",
        "nvme",
        "cpu",
        "efa",
        "tcp",
        "nvme",
    ]
    assert list(cache_sizes.handovers("qwen2.5-7b-instruct", hosts, prompt=1024, output=64, concurrency=4)["link"]) == [
        "tcp",
        "nvlink",
        "pcie",
        "efa",
        "tcp",
    ]
    assert [cache_sizes.batched_tokens(host) for host in hosts] == [2048, 8192]
    found = cache_sizes.throughputs(
        "qwen2.5-7b-instruct", hosts, [0.0, 0.9], shared=3001, own=20, output=128, concurrency=16
    )
    assert (found["most"] == found[0.9] / found[0.0]).all() and (found["most"] > 1).all()
