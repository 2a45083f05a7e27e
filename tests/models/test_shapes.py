"""Model arithmetic against published parameter counts, logged weights and the reference study's KV table."""

import http.server
import subprocess
import sys
import threading

import pytest

from serving_study.errors import ModelError
from serving_study.models import checkpoints, layer_weights, shapes
from serving_study.results import reference

# model_type, hidden, intermediate, layers, heads, KV heads, head dimension, vocabulary; the rest by name.
DENSE = {
    7_241_732_096: (
        "mistral",
        4096,
        14336,
        32,
        32,
        8,
        None,
        32000,
        {"sliding_window": 4096, "tie_word_embeddings": False},
    ),
    8_190_735_360: ("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, {"tie_word_embeddings": False}),
    596_049_920: ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, {"tie_word_embeddings": True}),
    46_702_792_704: (
        "mixtral",
        4096,
        14336,
        32,
        32,
        8,
        None,
        32000,
        {"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    30_532_122_624: (
        "qwen3_moe",
        2048,
        6144,
        48,
        32,
        4,
        128,
        151936,
        {
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    14_315_784_192: (
        "qwen2_moe",
        2048,
        5632,
        24,
        16,
        16,
        None,
        151936,
        {
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "decoder_sparse_step": 1,
        },
    ),
    2_506_172_416: ("gemma", 2048, 16384, 18, 8, 1, 256, 256000, {}),
    2_614_341_888: ("gemma2", 2304, 9216, 26, 8, 4, 256, 256000, {"sliding_window": 4096}),
    999_885_952: (
        "gemma3_text",
        1152,
        6912,
        26,
        4,
        1,
        256,
        262144,
        {"sliding_window": 512, "sliding_window_pattern": 6},
    ),
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "tie_word_embeddings": False,
    "max_position_embeddings": 163840,
}
DEEPSEEK_V2_LITE = DEEPSEEK_V3 | {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
}
HYBRID = {
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 248320,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "tie_word_embeddings": False,
}


HYBRID_EXPERTS = HYBRID | {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "linear_num_value_heads": 32,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def config(family, hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary, more):
    names = (
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
    )
    return (
        dict(zip(names, (family, hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary), strict=True))
        | more
    )


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("smollm2-135m-instruct", 134_515_008),
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("qwen2.5-14b-instruct", 14_770_033_664),
        ("meta-llama/Meta-Llama-3-8B", 8_030_261_248),
        ("meta-llama/Meta-Llama-3-70B", 70_553_706_496),
        ("meta-llama/Llama-2-7b", 6_738_415_616),
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        (
            "google/gemma-3-27b-it",
            27_009_346_304,
        ),  # its text model: 27,432,406,640 less the vision tower and its projection
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200),
        ("deepseek-ai/DeepSeek-V2-Lite", 15_706_484_224),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79_674_391_296),
    ],
)
def test_parameters_of_shapes_that_ship(name, parameters, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert shapes.load(name).parameters == parameters


@pytest.mark.parametrize("parameters", DENSE)
def test_parameters_by_family(parameters):
    assert shapes.of_config(config(*DENSE[parameters])).parameters == parameters


@pytest.mark.parametrize(
    "found, parameters",
    [(DEEPSEEK_V3, 671_026_419_200), (DEEPSEEK_V2_LITE, 15_706_484_224), (HYBRID_EXPERTS, 79_674_391_296)],
)
def test_parameters_with_latent_and_linear_attention(found, parameters):
    assert shapes.of_config(found).parameters == parameters


# Achieved error of a rank's weights against "Model loading took", which vLLM rounds to 0.01 GiB; it may only become
# smaller.
WEIGHTS_ERROR = {
    "7b-tp1": 0.0001,
    "7b-tp2": 0.0006,
    "7b-tp4": 0.0009,
    "14b-tp2": 0.0001,
    "14b-pp2": 0.0002,
    "14b-tp4": 0.0006,
}


@pytest.mark.parametrize("host", ["a10gx4", "l4x4"])
@pytest.mark.parametrize("arm", WEIGHTS_ERROR)
def test_weights_of_a_rank_are_what_the_log_says(host, arm):
    size, split = arm.split("-")
    figures = reference.load(5)
    (logged,) = figures.loc[
        (figures["host"] == host) & (figures["arm"] == arm) & (figures["metric"] == "weights_gib"), "value"
    ]
    error = shapes.load(f"qwen2.5-{size}-instruct").weights_gib(**{split[:2]: int(split[2])}) / logged - 1
    assert abs(error) <= WEIGHTS_ERROR[arm] < 0.005


def test_weights_with_a_draft_are_what_the_log_says():
    figures = reference.load(3)
    (logged,) = set(figures.loc[figures["arm"].str.startswith("draft") & (figures["metric"] == "weights_gib"), "value"])
    both = shapes.load("qwen2.5-7b-instruct").weights_gib() + shapes.load("qwen2.5-0.5b-instruct").weights_gib()
    assert abs(both / logged - 1) <= 0.0004


@pytest.mark.parametrize("name", ["qwen2.5-7b", "llama-3-8b", "llama-3-70b"])
def test_the_kv_table_of_section_7_follows_from_configs(name):
    figures = reference.load(7)
    figures = figures[(figures["host"] == "arithmetic") & (figures["model"] == name)].set_index("metric")["value"]
    shape = shapes.load({"qwen2.5-7b": "qwen2.5-7b-instruct"}.get(name, f"meta-{name}"))
    assert (shape.layers, shape.kv_heads, shape.head_dim) == tuple(figures[["layers", "kv_heads", "head_dim"]])
    assert shape.kv_bytes_per_token() / 1024 == figures["kv_kib_per_token"]
    assert round(shape.kv_bytes(8192) / 2**30, 2) == figures["kv_gib_8k"]
    assert shape.kv_bytes(131072) / 2**30 == figures["kv_gib_128k"]
    assert shape.kv_bytes_per_token(element_bytes=1) * 2 == shape.kv_bytes_per_token()


def test_every_row_of_the_kv_table_is_held():
    figures = reference.load(7)
    assert set(figures.loc[figures["host"] == "arithmetic", "metric"]) == {
        "layers",
        "kv_heads",
        "head_dim",
        "kv_kib_per_token",
        "kv_gib_8k",
        "kv_gib_128k",
    }
    assert set(figures.loc[figures["host"] == "arithmetic", "model"]) == {"qwen2.5-7b", "llama-3-8b", "llama-3-70b"}


def test_a_draft_adds_its_own_kv():
    assert shapes.load("qwen2.5-0.5b-instruct").kv_bytes_per_token() == 12 * 1024


def test_kv_heads_are_repeated_where_there_are_fewer_than_ranks():
    shape = shapes.load("qwen2.5-7b-instruct")
    assert [shape.kv_bytes_per_token(tp=tp) // 1024 for tp in (1, 2, 4)] == [56, 28, 14]
    narrow = shapes.load("qwen2.5-0.5b-instruct")
    assert [narrow.kv_bytes_per_token(tp=tp) for tp in (1, 2, 14)] == [12288, 6144, 6144]
    whole = sum(tensor.elements * tensor.count for tensor in narrow.tensors(tp=14)) * 14
    assert whole > narrow.parameters


def test_kv_of_whole_heads_and_of_latent_vectors():
    whole = shapes.of_config(config("llama", 4096, 11008, 32, 32, None, None, 32000, {}))
    assert whole.kv_bytes_per_token() == 512 * 1024
    latent = shapes.of_config(DEEPSEEK_V3)
    assert (
        latent.kv_bytes_per_token() == 61 * 576 * 2 and latent.kv_bytes_per_token(tp=8) == latent.kv_bytes_per_token()
    )


@pytest.mark.parametrize(
    ("name", "kib", "gib_8k", "gib_128k"),
    [
        # Bytes a token and layer times layers, by hand: 2 x 32 x 128 x 2 x 32; 576 x 2 x 61; 2 x 16 x 128 x 2 for 62
        # layers, of which 10 go on past 1,024 tokens; 2 x 8 x 64 x 2 for 24, of which 12 go on past 128; 2 x 4 x 256 x
        # 2 x 16, and 146.8 MiB of state.
        ("llama-2-7b", 512, 4, 64),
        ("deepseek-v3", 68.625, 0.5361328125, 8.578125),
        ("deepseek-v2-lite", 30.375, 0.2373046875, 3.796875),
        ("gemma-3-27b-it", 496, (52 * 1024 + 10 * 8192) * 8 / 2**20, (52 * 1024 + 10 * 131072) * 8 / 2**20),
        ("gpt-oss-20b", 48, 12 * (128 + 8192) * 2 / 2**20, 12 * (128 + 131072) * 2 / 2**20),
        ("mistral-7b-v0.1", 128, 0.5, 0.5),
        ("qwen3.5-27b", 64, 0.5 + 146.8125 / 1024, 8 + 146.8125 / 1024),
    ],
)
def test_the_kv_cache_of_every_kind_of_attention(name, kib, gib_8k, gib_128k):
    shape = shapes.load(name)
    assert shape.kv_bytes_per_token() / 1024 == kib
    assert (shape.kv_bytes(8192) / 2**30, shape.kv_bytes(131072) / 2**30) == (gib_8k, gib_128k)


def test_states_take_the_models_own_numbers_unless_told():
    told, untold = shapes.load("qwen3.5-27b"), shapes.load("qwen3-next-80b-a3b-instruct")
    assert (
        told.state_bytes_per_layer() == 3 * 10240 * 2 + 48 * 128 * 128 * 4
        and untold.state_bytes_per_layer() == 3 * 8192 * 2 + 32 * 128 * 128 * 2
    )
    assert told.state_bytes_per_layer(tp=2, speculative_tokens=3) == (6 * 10240 * 2 + 48 * 128 * 128 * 4) // 2
    assert shapes.load("qwen2.5-7b-instruct").state_bytes_per_layer() == 0


def test_sliding_layers_stop_growing_at_their_window():
    shape = shapes.of_config(config(*DENSE[2_614_341_888]))
    assert shape.layer_kinds.count("sliding") == shape.layer_kinds.count("full") == 13
    assert (
        shape.kv_bytes_per_token(context=4095)
        == 2 * shape.kv_bytes_per_token(context=4096)
        == shape.kv_bytes_per_token()
    )
    assert shape.kv_bytes(8192) == shape.kv_bytes_per_token() * 4096 + shape.kv_bytes_per_token(context=8191) * 4096
    assert shapes.of_config(config(*DENSE[999_885_952])).layer_kinds.count("full") == 4
    every = shapes.of_config(config(*DENSE[7_241_732_096]))
    assert every.kv_bytes(100_000) == every.kv_bytes(4096)


def test_only_full_attention_layers_of_a_hybrid_model_grow():
    shape = shapes.of_config(HYBRID)
    assert shape.layer_kinds.count("full") == 16 and shape.kv_bytes_per_token() == 64 * 1024
    state = 48 * (3 * (2 * 16 * 128 + 48 * 128) * 2 + 48 * 128 * 128 * 4)
    assert shape.state_bytes_per_sequence() == state == 2 * shape.state_bytes_per_sequence(tp=2)
    assert shape.kv_bytes(1000) == 1000 * 64 * 1024 + state
    nested = shapes.of_config({"model_type": "qwen3_5", "architectures": ["X"], "text_config": HYBRID})
    assert nested.parameters == shape.parameters
    assert (
        shapes.of_config(HYBRID | {"layer_types": ["linear_attention", "full_attention"] * 32}).layer_kinds.count(
            "full"
        )
        == 32
    )


@pytest.mark.parametrize(
    "layers, pp, sizes", [(48, 2, [24, 24]), (28, 3, [9, 10, 9]), (30, 4, [7, 8, 8, 7]), (7, 4, [2, 2, 2, 1])]
)
def test_layers_left_over_go_to_the_stages_before_the_last(layers, pp, sizes):
    shape = shapes.of_config(config("llama", 64, 128, layers, 4, 4, None, 128, {}))
    assert [len(stage) for stage in shape.stage_layers(pp)] == sizes
    assert [layer for stage in shape.stage_layers(pp) for layer in stage] == list(range(layers))


def test_stages_together_hold_the_model_and_a_tied_head_twice():
    for name, repeated in (("qwen2.5-14b-instruct", 0), ("qwen2.5-0.5b-instruct", 151936 * 896)):
        shape = shapes.load(name)
        stages = sum(
            tensor.elements * tensor.count for stage in range(3) for tensor in shape.tensors(pp=3, stage=stage)
        )
        assert stages == shape.parameters + repeated


def test_the_vocabulary_is_padded_to_64():
    shape = shapes.of_config(config("llama", 64, 128, 2, 4, 4, None, 100, {}))
    assert shape.tensors()[0].elements == 128 * 64 and shape.tensors(padded=False)[0].elements == 100 * 64


@pytest.mark.parametrize(
    "mib, allocated",
    [(0.0001, 512 / 2**20), (7.875, 7.875), (12.25, 12.25), (15.75, 16), (24.5, 26), (32.375, 34), (270, 270)],
)
def test_the_allocator_rounds_large_tensors_up(mib, allocated):
    assert layer_weights.allocated_bytes(int(mib * 2**20)) == allocated * 2**20


def test_load_takes_paths_folders_names_and_the_hub_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = checkpoints.SHAPES / "qwen2.5-7b-instruct"
    assert (
        shapes.load(folder).parameters
        == shapes.load(str(folder / "config.json")).parameters
        == shapes.load("Qwen2.5-7B-Instruct").parameters
    )
    snapshot = tmp_path / "hub" / "models--someone--else" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text((folder / "config.json").read_text())
    assert shapes.load("someone/else").parameters == 7_615_616_512
    assert shapes.load("smollm2-135m-instruct-first-4-layers").layers == 4
    with pytest.raises(ModelError, match="no config.json for this model: no-such\n  allowed: a path.*meta-llama-3-70b"):
        shapes.load("no-such")


def test_a_hub_id_is_asked_for_once(cache, tmp_path, monkeypatch):
    """A hub of this test's own: one model that it gives, one that it does not, and then no hub at all."""
    content, asked = (checkpoints.SHAPES / "qwen2.5-7b-instruct" / "config.json").read_bytes(), []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200 if "/given/" in self.path else 401)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        assert [shapes.load("given/Model-7B").parameters for _ in range(2)] == [7_615_616_512] * 2
        assert asked == ["/given/Model-7B/resolve/main/config.json"]
        with pytest.raises(
            ModelError,
            match="does not give this model's config.json: gated/Qwen3-8C .401.*\n.*\n.*did you mean qwen3-8b",
        ):
            shapes.load("gated/Qwen3-8C")
        hub.shutdown()
    with pytest.raises(ModelError, match="the hub does not answer: other/Model .*refused"):
        shapes.load("other/Model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="no config.json for this model: other/Model\n  allowed: a path, a hub id"):
        shapes.load("other/Model")
    assert len(asked) == 2 and not list((cache / "shapes").rglob("*.part"))


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "not a config.json"),
        ('{"model_type": "bert"}', "no cache of keys and values that grows with each token: bert\n  allowed: a model"),
        (
            '{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, '
            '"vocab_size": 8, "layer_types": ["memory"]}',
            "is not known: memory\n  allowed: full_attention",
        ),
        (
            '{"model_type": "llama", "hidden_size": 8}',
            "lacks what the arithmetic needs: num_hidden_layers, vocab_size, num_attention_heads",
        ),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        shapes.load(tmp_path)


def test_quantized_weights_are_refused_but_their_kv_is_counted():
    shape = shapes.of_config(DEEPSEEK_V3 | {"quantization_config": {"quant_method": "fp8"}})
    assert shape.kv_bytes_per_token() == 61 * 576 * 2
    with pytest.raises(ModelError, match="quantized weights are not counted: fp8"):
        shape.weights_gib()


@pytest.mark.parametrize(
    "call",
    [
        lambda shape: shape.weights_gib(tp=3),
        lambda shape: shape.kv_bytes_per_token(tp=0),
        lambda shape: shape.tensors(tp=14),
    ],
)
def test_heads_that_do_not_divide_are_refused(call):
    with pytest.raises(ModelError, match=r"do not divide over that many ranks: tp \d+\n  allowed: 1, 2, 4, 28"):
        call(shapes.load("qwen2.5-7b-instruct"))


def test_too_many_stages_are_refused():
    with pytest.raises(ModelError, match="cut into that many stages: 29\n  allowed: 1 to 28"):
        shapes.load("qwen2.5-7b-instruct").stage_layers(29)


def test_the_arithmetic_imports_no_torch():
    code = (
        "import sys; from serving_study.models import shapes; from serving_study.theory import capacity; "
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
