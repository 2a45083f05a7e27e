"""The weights of one layer on one rank, as an engine allocates them: q, k and v in one tensor, gate and up in another.

`shape` is a `shapes.Shape` throughout, which adds them up; read in the models' sources of vLLM 0.32.0.

    >>> from serving_study.models import layer_weights, shapes
    >>> layer_weights.of(shapes.load("qwen2.5-7b-instruct"), 0, 1)[0]
    Tensor(name='qkv', elements=16515072, count=1)
"""

import math
from dataclasses import dataclass

from .configurations import HYBRID

MIB = 2**20


@dataclass(frozen=True)
class Tensor:
    """A weight of one rank, as the engine allocates it; `count` of them are alike."""

    name: str
    elements: int
    count: int = 1


def of(shape, layer: int, tp: int) -> list[Tensor]:
    """The weights of a layer on each of `tp` ranks: attention, feed-forward and norms."""
    linear = shape.layer_kinds[layer] == "linear"
    attention = _linear(shape, tp) if linear else _latent(shape, tp) if shape.latent else _attention(shape, tp)
    norms = Tensor("norm", shape.hidden, 4 if shape.family in ("gemma2", "gemma3_text") else 2)
    return [*attention, *_mlp(shape, layer, tp), norms]


def allocated_bytes(size: int) -> int:
    """Bytes that PyTorch's allocator gives a tensor of `size` bytes while vLLM loads (`max_split_size_mb` 20).

    From 10 MiB on a segment is whole 2 MiB; a remainder above 1 MiB is given back, unless the block has 20 MiB or more.
    """
    exact, whole = math.ceil(size / 512) * 512, math.ceil(size / (2 * MIB)) * 2 * MIB
    return whole if size >= 20 * MIB or (size >= 10 * MIB and whole - exact <= MIB) else exact


def _attention(shape, tp: int) -> list[Tensor]:
    width, kv_width = shape.heads * shape.head_dim // tp, max(1, shape.kv_heads // tp) * shape.head_dim
    gate = width if shape.family in HYBRID else 0  # these gate the attention's output
    qkv = width + gate + 2 * kv_width
    tensors = [Tensor("qkv", qkv * shape.hidden), Tensor("output", width * shape.hidden)]
    if shape.config.get("attention_bias") or shape.config.get("qkv_bias", shape.family in ("qwen2", "qwen2_moe")):
        tensors.append(Tensor("qkv bias", qkv))
    if shape.config.get("attention_bias"):
        tensors.append(Tensor("output bias", shape.hidden))
    if shape.family == "gpt_oss":
        tensors.append(Tensor("attention sinks", shape.heads // tp))
    if shape.family.startswith("qwen3") or shape.family == "gemma3_text":
        tensors.append(Tensor("head norm", shape.head_dim, 2))
    return tensors


def _latent(shape, tp: int) -> list[Tensor]:
    get, heads = shape.config.get, shape.heads // tp
    query, value, low, rope = (
        get("qk_nope_head_dim") + get("qk_rope_head_dim"),
        get("v_head_dim"),
        get("kv_lora_rank"),
        get("qk_rope_head_dim"),
    )
    query_low = get("q_lora_rank")
    return [
        Tensor("query and kv down", ((query_low or 0) + low + rope) * shape.hidden),
        Tensor("latent norm", low + (query_low or 0)),
        Tensor("query up", heads * query * (query_low or shape.hidden)),
        Tensor("kv up", heads * (get("qk_nope_head_dim") + value) * low),
        Tensor("output", heads * value * shape.hidden),
    ]


def _linear(shape, tp: int) -> list[Tensor]:
    key_heads, key_dim, value_heads, value_dim, kernel = _gated_delta(shape)
    keys, values = key_heads * key_dim // tp, value_heads * value_dim // tp
    return [
        Tensor("gated delta input", (2 * keys + 2 * values) * shape.hidden),
        Tensor("gates", 2 * value_heads // tp * shape.hidden),
        Tensor("convolution", (2 * keys + values) * kernel),
        Tensor("decay", value_heads // tp, 2),
        Tensor("head norm", value_dim),
        Tensor("output", values * shape.hidden),
    ]


def _mlp(shape, layer: int, tp: int) -> list[Tensor]:
    get = shape.config.get
    sparse_from, step = get("first_k_dense_replace", 0), get("decoder_sparse_step") or get("moe_layer_freq") or 1
    if not shape.experts or layer < sparse_from or (layer + 1) % step or layer in (get("mlp_only_layers") or ()):
        tensors = _gated(shape.hidden, shape.config["intermediate_size"] // tp)
        return tensors + (
            [Tensor("mlp bias", 2 * shape.config["intermediate_size"] // tp), Tensor("mlp bias", shape.hidden)]
            if get("mlp_bias")
            else []
        )
    width = get("moe_intermediate_size") or shape.config["intermediate_size"]
    tensors = [Tensor("router", shape.experts * shape.hidden), *_gated(shape.hidden, width // tp, shape.experts)]
    if shape.family == "gpt_oss":
        tensors.append(Tensor("router and expert biases", shape.experts * (1 + 2 * width // tp + shape.hidden)))
    if get("topk_method") == "noaux_tc":
        tensors.append(Tensor("router correction", shape.experts))
    shared = get("shared_expert_intermediate_size") or get("n_shared_experts", 0) * width
    if shared:
        tensors += _gated(shape.hidden, shared // tp)
    if get("shared_expert_intermediate_size"):
        tensors.append(Tensor("shared gate", shape.hidden))
    return tensors


def _gated_delta(shape) -> tuple[int, ...]:
    names = (
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    return tuple(shape.config[name] for name in names)


def _gated(hidden: int, width: int, experts: int = 1) -> list[Tensor]:
    return [Tensor("gate and up", 2 * width * hidden * experts), Tensor("down", width * hidden * experts)]
