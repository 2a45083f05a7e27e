"""A random target of two layers, with a tokenizer of its own, and a training of seconds; a target of the embedded
model's shape that nobody can run, and the log of a training that nobody ran.
"""

import json
from contextlib import contextmanager

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from serving_study import paths
from serving_study.hardware import hosts
from serving_study.loads import datasets
from serving_study.models import checkpoints, embedded

WIDTH, INNER, LAYERS, HEADS = 64, 128, 2, 2
TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "Ċ",
    "Ġ",
    *map(chr, range(ord("a"), ord("z") + 1)),
    "th",
    "the",
]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TINY = {
    "prompts": 60,
    "prompt_tokens": 64,
    "answer_tokens": 48,
    "context": 256,
    "held_out": 0.2,
    "evaluated": 12,
    "evaluations": 3,
    "tokens": 45_000,
    "minutes": 30.0,
    "batch_tokens": 1024,
    "learning_rate": 3e-3,
    "checkpoint_s": 0.5,
    "truncated": 1,
}

SMOL = json.loads((checkpoints.SHAPES / embedded.NAME / "config.json").read_text())
LOOK = {
    "event": "held_out",
    "step": 9,
    "tokens": 900,
    "share": 1.0,
    "acceptance": 0.5,
    "agreement": 0.6,
    "rounds": {"1": {"rounds": 10, "by_position": [0.6], "acceptance_rate": 0.6, "tokens_a_round": 1.6}},
}
TRAINING = {
    "steps": 9,
    "tokens": 900,
    "epochs": 1,
    "elapsed_s": 90.0,
    "data": {
        "written_prompts": 28,
        "book_prompts": 270,
        "answers": 596,
        "answer_tokens": 9000,
        "held_out_prompts": 12,
        "writer": "transformers",
    },
    "versions": {"torch": "2", "transformers": "5", "device": "cpu"},
    "log": [
        LOOK | {"step": 0, "tokens": 0, "acceptance": 0.01},
        {"event": "step", "step": 9, "tokens": 900, "kl": 1.0},
        LOOK,
    ],
}


def shaped_target(folder):
    """A folder with the embedded model's shape, weights that nobody reads, and a tokenizer of three tokens."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMOL))
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    Tokenizer(BPE({"a": 0, "b": 1, "<|end|>": 2}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def random_target(folder):
    """A Llama with random weights, sure enough of itself to be learnt from, that ends a turn about once in its
    thirty-odd tokens.
    """
    rng = np.random.default_rng(5)
    embedding = 0.3 * rng.standard_normal((len(TOKENS), WIDTH))
    tensors = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": rng.permutation(embedding),
        "model.norm.weight": np.ones(WIDTH),
    }
    for layer in range(LAYERS):
        for name, shape in (
            ("self_attn.q_proj", (WIDTH, WIDTH)),
            ("self_attn.k_proj", (WIDTH, WIDTH)),
            ("self_attn.v_proj", (WIDTH, WIDTH)),
            ("self_attn.o_proj", (WIDTH, WIDTH)),
            ("mlp.gate_proj", (INNER, WIDTH)),
            ("mlp.up_proj", (INNER, WIDTH)),
            ("mlp.down_proj", (WIDTH, INNER)),
        ):
            tensors[f"model.layers.{layer}.{name}.weight"] = rng.standard_normal(shape) / np.sqrt(shape[1])
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(WIDTH)
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": len(TOKENS),
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    embedded.write_raw(
        folder / "model.safetensors",
        {
            name: ("BF16", list(values.shape), embedded.bf16(values.astype(np.float32)))
            for name, values in tensors.items()
        },
    )
    fields = {
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "llama.context_length": 512,
        "tokenizer.chat_template": TEMPLATE,
    }
    embedded.write_tokenizer(fields, folder)
    return folder


@contextmanager
def apart(root):
    """The target, a cache under `root`, and forty conversations in place of the book's."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklm"), 4)) for _ in range(60)]
    conversations = [
        {
            "id": str(number),
            "conversations": [
                {"from": "human", "value": " ".join(rng.choice(words, 6))},
                {"from": "gpt", "value": "yes"},
            ],
        }
        for number in range(40)
    ]
    (root / "conversations.json").write_text(json.dumps(conversations))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CACHE", root / "cache")
        patch.setattr(datasets, "OWN", root / "conversations.json")
        patch.setattr(hosts, "detect", lambda profile="auto": hosts.Host("cpu", "x", 2, 16.0, 12.0))
        patch.setenv("SERVING_STUDY_PROGRESS", "/dev/null")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield random_target(root / "target")
