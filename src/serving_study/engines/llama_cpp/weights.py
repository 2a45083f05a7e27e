"""The file that llama.cpp reads: a model's own weights, number for number, as GGUF in bf16.

A Hugging Face folder is written once into the cache: matrices as they are, norms and biases widened to float32, which
llama.cpp wants and which changes no value. Its rotary pairs are interleaved where Llama's are (`PERMUTED`). Random
weights are drawn here, since llama.cpp has no such option: they fill the true shape and mean nothing. What can mislead:
the tokenizer is described by the name of its pre-tokenizer alone; one that is not known here is refused.

    >>> from serving_study.engines.llama_cpp import weights
    >>> weights.write(checkpoints.resolve("smollm2-135m-instruct"))                          # doctest: +SKIP
    PosixPath('.../.cache/gguf/smollm2-135m-instruct-9be07b5c9c2e.gguf')
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ... import files, paths
from ...errors import ModelError
from ...models import embedded
from ...models.checkpoints import Model

WRITTEN_AS = 1  # a number for what this module writes: another one is another file
KINDS = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}  # by the config's architecture
PERMUTED = ("llama",)
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_LAYER = {theirs: ours for ours, theirs in embedded.LAYER.items()}
WIDENED = ("norm", "bias")
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # types of tokens
MOSTLY_BF16 = 32
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEVIATION = 0.02  # of random weights


def unsupported(model: Model) -> str | None:
    """Why there can be no file of this model; None where there can."""
    config = model.config
    architecture = next(iter(config.get("architectures") or ["none named"]))
    if architecture not in KINDS:
        return f"llama.cpp's file of {model.name} cannot be written: {architecture}; known are {', '.join(KINDS)}"
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        return f"llama.cpp's file of {model.name} cannot be written: its rotary embedding is scaled ({scaling})"
    return None


def path(model: Model) -> Path:
    """Where the model's file lies, or will."""
    tokenizer = model.folder / "tokenizer.json"
    decides = [model.identity(), {"tokenizer": files.digest(tokenizer) if tokenizer.is_file() else None}]
    name = model.name.rsplit("/", 1)[-1].lower()
    return paths.CACHE / "gguf" / f"{name}-{files.key(*decides, {'written': WRITTEN_AS})[:12]}.gguf"


def write(model: Model) -> Path:
    """The model's file, made on first use. Raises ModelError for a model of which there can be none."""
    from gguf import GGMLQuantizationType, GGUFWriter

    out = path(model)
    if out.is_file():
        return out
    if reason := unsupported(model):
        raise ModelError(
            "a model that llama.cpp is not given",
            value=reason,
            allowed=f"{' or '.join(KINDS)}, without scaling of its rotary embedding",
            next="leave llama.cpp's arms out (arms), or choose another model",
        )
    config = model.config
    kind = KINDS[config["architectures"][0]]
    with files.whole(out) as unfinished:
        writer = GGUFWriter(unfinished, kind)
        _describe(writer, model, kind)
        for name, wide, shape, _ in _tensors(model, kind):
            length, dtype = (4, GGMLQuantizationType.F32) if wide else (2, GGMLQuantizationType.BF16)
            in_bytes = (*shape[:-1], length * shape[-1])
            writer.add_tensor_info(name, in_bytes, np.dtype(np.uint8), int(np.prod(in_bytes)), raw_dtype=dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for *_, data in _tensors(model, kind):
            writer.write_tensor_data(data())
        writer.close()
    return out


def _describe(writer, model: Model, kind: str) -> None:
    """The model's shape and tokenizer."""
    config = model.config
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rotary = config.get("rope_parameters") or config
    writer.add_name(model.name)
    writer.add_file_type(MOSTLY_BF16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(rotary["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(model.vocab_size)
    _describe_tokenizer(writer, model)


def _describe_tokenizer(writer, model: Model) -> None:
    """The byte-level BPE of tokenizer.json; ids beyond its tokens, which the embedding has, are unused ones."""
    file = model.folder / "tokenizer.json"
    try:
        tokenizer = json.loads(file.read_text())
        vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(
            "a model without a tokenizer that llama.cpp can have",
            value=f"{file}: {error}",
            allowed="a tokenizer.json with a byte-level BPE",
            next=f"ls {model.folder}",
        ) from None
    added = {token["id"]: token for token in tokenizer.get("added_tokens", [])}
    by_id = {number: token for token, number in vocabulary.items()} | {
        n: token["content"] for n, token in added.items()
    }
    ids = range(max(model.vocab_size, 1 + max(by_id)))
    types = [
        UNUSED if n not in by_id else NORMAL if n not in added else CONTROL if added[n]["special"] else USER_DEFINED
        for n in ids
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer(tokenizer))
    writer.add_token_list([by_id.get(number, f"[PAD{number}]") for number in ids])
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    for add, name in ((writer.add_bos_token_id, "bos_token_id"), (writer.add_eos_token_id, "eos_token_id")):
        value = model.config.get(name)
        if value is not None:
            add(value[0] if isinstance(value, list) else value)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    settings = model.folder / "tokenizer_config.json"
    template = json.loads(settings.read_text()).get("chat_template") if settings.is_file() else None
    if isinstance(template, str):
        writer.add_chat_template(template)


def pre_tokenizer(tokenizer: dict) -> str:
    """llama.cpp's name of the pre-tokenizer in a tokenizer.json. Raises ModelError for one that is not known here."""
    steps = tokenizer.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    match steps:
        case [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True}]:
            return "smollm"
        case [{"type": "Split", "pattern": {"Regex": pattern}}, {"type": "ByteLevel"}] if pattern == QWEN2:
            return "qwen2"
    raise ModelError(
        "a pre-tokenizer that has no name here that llama.cpp knows",
        value=json.dumps(steps)[:200],
        allowed="SmolLM2's (digits one by one) or Qwen2's",
        next="leave llama.cpp's arms out (arms), or choose another model",
    )


def _tensors(model: Model, kind: str) -> Iterator[tuple]:
    """Each tensor's name in the file, whether it is widened to float32, its shape, and what gives its bytes."""
    stored = sorted(model.folder.glob("*.safetensors"))
    for name, shape, read in _stored(stored) if stored else _random(model.config):
        ours = name_of(name)
        wide = any(word in ours for word in WIDENED)
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(ours.split(".")[-2])
        heads = model.config[heads] if heads and kind in PERMUTED else None
        yield ours, wide, tuple(shape), lambda read=read, heads=heads, wide=wide: _bytes(read(), heads, wide)


def name_of(name: str) -> str:
    """A tensor's name in the file: `blk.3.attn_q.weight` of `model.layers.3.self_attn.q_proj.weight`."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    try:
        _, _, layer, *of_layer, what = name.split(".")
        return f"blk.{layer}.{IN_LAYER['.'.join(of_layer)]}.{what}"
    except (ValueError, KeyError):
        raise ModelError(
            "a tensor that llama.cpp's file has no name for",
            value=name,
            allowed=f"{', '.join(OUTSIDE)}, and model.layers.N.PART with PART any of {', '.join(IN_LAYER)}",
            next="leave llama.cpp's arms out (arms), or choose another model",
        ) from None


def _stored(stored: list[Path]) -> Iterator[tuple]:
    for file in stored:
        for name, (dtype, shape, data) in embedded.read_raw(file).items():
            yield name, shape, lambda dtype=dtype, shape=shape, data=data: _as_bf16(dtype, data).reshape(shape)


def _as_bf16(dtype: str, data) -> np.ndarray:
    """The upper halves of float32 values as uint16. Raises ModelError for values that are not stored as floats."""
    if dtype == "BF16":
        return np.frombuffer(data, np.uint16)
    if dtype not in ("F16", "F32"):
        raise ModelError(
            "weights of a type that is not written for llama.cpp",
            value=dtype,
            allowed="BF16, F16, F32",
            next="leave llama.cpp's arms out (arms), or choose another model",
        )
    values = np.frombuffer(data, np.float16 if dtype == "F16" else np.float32).astype(np.float32)
    return np.frombuffer(embedded.bf16(values), np.uint16)


def _bytes(values: np.ndarray, heads: int | None, wide: bool) -> np.ndarray:
    """A tensor as the file has it, from its bf16 values: with its rotary pairs interleaved for these heads."""
    if heads:
        rows = values.shape[0]
        values = values.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)
    if wide:
        values = values.astype(np.uint32) << 16
    return np.ascontiguousarray(values).view(np.uint8)


def _random(config: dict) -> Iterator[tuple]:
    """Tensors of the shape that a config.json describes, filled with numbers drawn from a seed."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    queries, keys = heads * size, config.get("num_key_value_heads", heads) * size
    biased = config.get("attention_bias", config.get("model_type") == "qwen2")
    of_layer = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for name, rows in (("q", queries), ("k", keys), ("v", keys)):
        of_layer[f"self_attn.{name}_proj.weight"] = (rows, hidden)
        of_layer |= {f"self_attn.{name}_proj.bias": (rows,)} if biased else {}
    of_layer |= {"self_attn.o_proj.weight": (hidden, queries), "mlp.gate_proj.weight": (inner, hidden)}
    of_layer |= {"mlp.up_proj.weight": (inner, hidden), "mlp.down_proj.weight": (hidden, inner)}
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    shapes |= {} if config.get("tie_word_embeddings") else {"lm_head.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    for number, (name, shape) in enumerate(shapes.items()):
        yield name, shape, lambda number=number, name=name, shape=shape: _drawn(number, name, shape)


def _drawn(number: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith("norm.weight"):
        return np.full(shape, 0x3F80, np.uint16)  # one
    values = np.random.default_rng(number).standard_normal(shape, np.float32) * np.float32(DEVIATION)
    return np.frombuffer(embedded.bf16(values), np.uint16).reshape(shape)
