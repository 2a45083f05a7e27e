"""What a draft of a given size costs, before training: weights, bytes of a pass, and the acceptance that makes it pay.

What can mislead: a cost ratio by bytes is a lower bound, since parts of a pass do not shrink with the model.

    >>> from serving_study.models import checkpoints
    >>> from serving_study.chapters.drafts import draft_sizes
    >>> draft_sizes.size(checkpoints.planned("smollm2-135m-instruct").config).parameters
    134515008
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas

from ...models import shapes
from ...theory import speculation
from .recipe import Distillation

if TYPE_CHECKING:
    from .recipe import Distillation

BF16 = 2  # bytes
CHUNKS = {True: 4096, False: 512}  # rows of logits at a time, on a GPU or a CPU


@dataclass(frozen=True)
class Size:
    """A model's parameters, and the bytes that a decode pass reads in bf16, output embedding included."""

    parameters: int
    bytes_a_pass: int
    head_share: float


def student_config(wanted: Distillation, target: dict) -> dict:
    """The student's config.json: a Llama of the wanted size with the target's vocabulary, special tokens and
    positions.
    """
    kept = {
        name: target[name]
        for name in ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")
        if name in target
    }
    return kept | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": wanted.width,
        "intermediate_size": wanted.intermediate,
        "num_hidden_layers": wanted.layers,
        "num_attention_heads": wanted.heads,
        "num_key_value_heads": wanted.kv_heads,
        "head_dim": wanted.width // wanted.heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": target.get("rope_theta") or (target.get("rope_parameters") or {}).get("rope_theta", 10000.0),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": wanted.tie_embeddings,
        "torch_dtype": "bfloat16",
    }


def size(config: dict) -> Size:
    """A model's size from its config.json."""
    shape = shapes.of_config(config | {"torch_dtype": "bfloat16"})
    return Size(shape.parameters, shape.read_bytes, BF16 * shape.vocabulary * shape.hidden / shape.read_bytes)


def cost_ratio(student: dict, target: dict) -> float:
    """A draft pass in target passes, by the bytes that each reads; a lower bound."""
    return size(student).bytes_a_pass / size(target).bytes_a_pass


def candidates(wanted: Distillation, target: dict, others: Sequence[dict]) -> pandas.DataFrame:
    """The wanted size and others: bytes of a pass, cost, and the acceptance from which each k pays."""
    rows = []
    for changes in ({}, *others):
        other = wanted.replaced(**changes)
        config = student_config(other, target)
        weighs, cost = size(config), cost_ratio(config, target)
        row = {
            "layers": other.layers,
            "width": other.width,
            "million weights": weighs.parameters / 1e6,
            "MiB": BF16 * weighs.parameters / 2**20,
            "MiB a pass": weighs.bytes_a_pass / 2**20,
            "output embedding": weighs.head_share,
            "cost ratio": cost,
        }
        rows.append(row | {f"breaks even, k = {k}": speculation.break_even(k, cost) for k in wanted.ks})
    return pandas.DataFrame(rows).sort_values("cost ratio", ignore_index=True)


def memory_gib(wanted: Distillation, target: dict, gpu: bool) -> float:
    """Peak memory of training: both models, the optimizer, one chunk's logits, and one batch's activations."""
    student, teacher = (size(config).parameters for config in (student_config(wanted, target), target))
    weights = 16 * student + (BF16 if gpu else 4) * teacher + 4 * target["vocab_size"] * target["hidden_size"]
    logits = 7 * 4 * CHUNKS[gpu] * target["vocab_size"]
    activations = (
        4
        * wanted.batch_tokens
        * (
            wanted.layers * (20 * wanted.width + 4 * wanted.intermediate)
            + 12 * target["hidden_size"]
            + 4 * target["intermediate_size"]
        )
    )
    return (weights + logits + activations) / 2**30
