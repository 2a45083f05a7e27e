"""The embedded model: dequantised, unpermuted and rounded as the formats say; written whole; cut after its first
layers.
"""

import hashlib
import json

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from serving_study.errors import ModelError
from serving_study.models import embedded

HEADS, KV_HEADS, WIDTH, LAYERS, INNER = 4, 2, 32, 3, 64
TOKENS = ["<|endoftext|>", "<|im_start|>", *map(chr, range(ord("a"), ord("z") + 1)), "Ġ", "th", "the", "1", "2"]


def rope_permuted(weights, heads):
    """What llama.cpp's converter does to q and k (convert_hf_to_gguf.py, `LlamaModel.permute`)."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (WIDTH,),
            f"blk.{layer}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{layer}.attn_k.weight": (WIDTH * KV_HEADS // HEADS, WIDTH),
            f"blk.{layer}.attn_v.weight": (WIDTH * KV_HEADS // HEADS, WIDTH),
            f"blk.{layer}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_norm.weight": (WIDTH,),
            f"blk.{layer}.ffn_gate.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_up.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, INNER),
        }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def written(file, truth, architecture="llama"):
    """A Llama GGUF file as llama.cpp writes it: q and k permuted, one tensor quantised (Q8_0), the others float32."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    for name, values in truth.items():
        if ".attn_q." in name:
            values = rope_permuted(values, HEADS)
        elif ".attn_k." in name:
            values = rope_permuted(values, KV_HEADS)
        if name.endswith("ffn_up.weight"):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def small(tmp_path_factory, truth):
    """The tiny model, converted."""
    folder = tmp_path_factory.mktemp("small")
    out = folder / "tiny"
    out.mkdir()
    embedded.convert(written(folder / "tiny.gguf", truth), out)
    return out


def bf16(values):
    """Nearest bf16, ties to even, worked out by comparing the two neighbours in float64."""
    low = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    high = ((values.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    below, above = np.abs(values.astype(np.float64) - low), np.abs(high.astype(np.float64) - values)
    even = (low.view(np.uint32) >> 16) % 2 == 0
    return np.where((below < above) | ((below == above) & even), low, high)


def as_float(raw):
    return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)


def test_rounding_is_to_nearest_even():
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.standard_normal(5000).astype(np.float32) * scale for scale in (1e-20, 1.0, 1e20)])
    ties = ((np.arange(512, dtype=np.uint32) + 0x3F80) << 16 | 0x8000).view(np.float32)
    values = np.concatenate([values, ties, np.float32([0.0, -0.0, 1.0, -2.5])])
    assert np.array_equal(as_float(embedded.bf16(values)), bf16(values))
    assert as_float(embedded.bf16(np.float32([1.00390625])))[0] == 1.0  # a tie goes to the even neighbour
    assert as_float(embedded.bf16(np.float32([1.01171875])))[0] == np.float32(1.015625)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_unpermute_undoes_what_the_converter_did(heads):
    weights = np.arange(16 * 3, dtype=np.float32).reshape(16, 3)
    assert np.array_equal(embedded._unpermute(rope_permuted(weights, heads), heads), weights)
    if heads < 8:
        assert not np.array_equal(rope_permuted(weights, heads), weights)


def test_every_tensor_comes_back(small, truth):
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    names |= {
        f"blk.{layer}.{ours}.weight": f"model.layers.{layer}.{theirs}.weight"
        for layer in range(LAYERS)
        for ours, theirs in embedded.LAYER.items()
    }
    tensors = embedded.read_raw(small / "model.safetensors")
    assert set(tensors) == set(names.values()) and set(names) == set(truth)
    for ours, theirs in names.items():
        kind, shape, raw = tensors[theirs]
        assert kind == "BF16" and tuple(shape) == truth[ours].shape
        wanted = truth[ours]
        if ours.endswith("ffn_up.weight"):
            q8 = gguf.GGMLQuantizationType.Q8_0
            wanted = gguf.quants.dequantize(gguf.quants.quantize(wanted, q8), q8)
        assert np.array_equal(as_float(raw).reshape(shape), bf16(np.ascontiguousarray(wanted, np.float32))), theirs


def test_the_file_is_laid_out_as_safetensors_wants(small):
    """Eight bytes of header length, a JSON header padded to eight bytes, then the tensors one after the other without a
    gap.
    """
    raw = (small / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0 and header.pop("__metadata__") == {"format": "pt"} and len(header) == 2 + 9 * LAYERS
    end = 0
    for name, about in header.items():
        start, stop = about["data_offsets"]
        assert start == end and stop - start == 2 * np.prod(about["shape"]), name
        end = stop
    assert end == len(raw) - 8 - length
    assert header["model.layers.2.mlp.down_proj.weight"]["shape"] == [WIDTH, INNER]


def test_the_configuration_is_the_files(small):
    config = json.loads((small / "config.json").read_text())
    wanted = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": 8,
    }
    wanted |= {
        "vocab_size": len(TOKENS),
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    assert {name: config[name] for name in wanted} == wanted
    assert json.loads((small / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": 0}


def test_the_tokenizer_merges_splits_digits_and_knows_its_control_tokens(small):
    tokenizer = Tokenizer.from_file(str(small / "tokenizer.json"))
    assert tokenizer.encode("the 12<|im_start|>").tokens == ["the", "Ġ", "1", "2", "<|im_start|>"]
    assert tokenizer.decode(tokenizer.encode("the th").ids) == "the th"
    about = json.loads((small / "tokenizer_config.json").read_text())
    assert (about["bos_token"], about["eos_token"], about["model_max_length"], about["chat_template"]) == (
        "<|im_start|>",
        "<|endoftext|>",
        128,
        "{{ messages }}",
    )


def test_another_architecture_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gemma")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="another architecture: gemma"):
        embedded.convert(tmp_path / "other.gguf", tmp_path)


def test_first_layers_keeps_those_the_embedding_and_the_vocabulary(small, cache):
    out = embedded.first_layers(small, 2)
    assert out == cache / "models" / "tiny-first-2-layers"
    kept, whole = embedded.read_raw(out / "model.safetensors"), embedded.read_raw(small / "model.safetensors")
    assert set(kept) == {name for name in whole if not name.startswith("model.layers.2.")}
    assert all(kept[name][:2] == whole[name][:2] and bytes(kept[name][2]) == bytes(whole[name][2]) for name in kept)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (small, out))
    assert after == before | {"num_hidden_layers": 2}
    assert (out / "tokenizer.json").read_bytes() == (small / "tokenizer.json").read_bytes()
    made = (out / "model.safetensors").stat().st_mtime_ns
    assert embedded.first_layers(small, 2) == out and (out / "model.safetensors").stat().st_mtime_ns == made
    assert [path.name for path in out.parent.iterdir()] == [out.name]


@pytest.mark.parametrize("count", [0, -1, LAYERS, LAYERS + 1])
def test_first_layers_has_bounds(small, cache, count):
    with pytest.raises(ModelError, match=f"layers to keep in a truncated draft: {count}") as caught:
        embedded.first_layers(small, count)
    assert caught.value.allowed == "1 to 2" and not (cache / "models").exists()


def test_another_file_than_the_pinned_one_is_refused(cache, tmp_path, monkeypatch):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    monkeypatch.setenv("SERVING_STUDY_GGUF", str(other))
    with pytest.raises(
        ModelError,
        match=f"other.gguf is not the file that the book was made with: sha256 {hashlib.sha256(b'GGUF').hexdigest()}",
    ) as caught:
        embedded.folder(say=lambda _: None)
    assert caught.value.allowed == embedded.GGUF_SHA256 and other.exists() and not (cache / "models").exists()


def test_the_folder_is_made_once_from_the_file_at_hand(cache, tmp_path, truth, monkeypatch):
    file, said = written(tmp_path / "tiny.gguf", truth), []
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setenv("SERVING_STUDY_GGUF", str(file))
    out = embedded.folder(said.append)
    assert out == cache / "models" / embedded.NAME and {path.name for path in out.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    file.unlink()
    assert embedded.folder(said.append) == out and len(said) == 1
    assert [path.name for path in cache.iterdir()] == ["models"]


def test_a_conversion_that_fails_leaves_nothing(cache, tmp_path, monkeypatch):
    def fail(gguf, unfinished):
        (unfinished / "config.json").write_text("{}")
        raise OSError("No space left on device")

    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(b"GGUF").hexdigest())
    monkeypatch.setattr(embedded, "convert", fail)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("SERVING_STUDY_GGUF", str(tmp_path / "x.gguf"))
    with pytest.raises(OSError, match="No space left"):
        embedded.folder(say=lambda _: None)
    assert list((cache / "models").iterdir()) == []


def test_no_index_within_reach_says_what_else_would_do(cache, monkeypatch):
    monkeypatch.delenv("SERVING_STUDY_GGUF", raising=False)
    monkeypatch.setattr(
        embedded.subprocess,
        "run",
        lambda command, **_: embedded.subprocess.CompletedProcess(command, 1, stderr="ERROR: no matching distribution"),
    )
    with pytest.raises(ModelError, match="could not be fetched: ERROR: no matching distribution") as caught:
        embedded.folder(say=lambda _: None)
    assert "SERVING_STUDY_GGUF=FILE" in caught.value.allowed


def test_a_fetch_of_the_package_has_a_deadline(cache, monkeypatch):
    def never(command, *, timeout, **_):
        raise embedded.subprocess.TimeoutExpired(command, timeout)

    monkeypatch.delenv("SERVING_STUDY_GGUF", raising=False)
    monkeypatch.setattr(embedded.subprocess, "run", never)
    said = []
    with pytest.raises(ModelError, match="could not be fetched: pip was not done within 15 min"):
        embedded.folder(say=said.append)
    assert said[0].endswith("(once, within 15 min)")
