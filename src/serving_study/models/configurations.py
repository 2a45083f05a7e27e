"""A model's `config.json` as an engine reads it: the text model's figures, completed by its class.

Published files leave much to the classes of `transformers` (gemma-3-12b's has no head size and no vocabulary), so the
class completes a file that does not say everything. A type that `transformers` does not know is read by the names that
such files share. What can mislead: nothing here runs a model's own code or uses a network; importing `transformers`,
done only for a file that needs it, takes a second or more.

    >>> from serving_study.models import configurations
    >>> configurations.text({"model_type": "gemma3", "text_config": {"num_hidden_layers": 48}})["head_dim"]
    256
"""

import contextlib
import os
from collections.abc import Iterator

from ..errors import ModelError

PLAIN = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
)
HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
FAMILIES = (*PLAIN, *HYBRID)  # families whose weights are counted, and whose complete files are taken as they are
WHOLE_HEADS = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe")  # head size is hidden size over heads unless said
NAMES = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "attention_heads"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "hidden_dim"),
    "num_key_value_heads": (
        "num_key_value_heads",
        "n_head_kv",
        "num_kv_heads",
        "kv_n_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "head_dim": ("head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "sliding_window": ("sliding_window", "attention_chunk_size"),
}
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
KINDS = {
    "full_attention": "full",
    "attention": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
    "mamba": "linear",
    "conv": "linear",
    "short_conv": "linear",
    "hybrid": "both",
    "mlp": "none",
    "moe": "none",
}
PATTERN = {"M": "linear", "*": "full", "-": "none", "E": "none"}  # of nemotron_h's `hybrid_override_pattern`
STATES_ALONE = ("mamba", "mamba2", "falcon_mamba")
INDEXED = ("deepseek_v32", "glm_moe_dsa")  # an index of its own beside each latent vector
# Keys of files whose layers the common names do not describe, and whose types are not handled here.
UNKNOWN_LAYERS = (
    "compress_ratios",
    "swa_num_key_value_heads",
    "use_cla",
    "cla_share_factor",
    "linear_attn_config",
    "ssm_cfg",
    "mamba_d_state",
    "rwkv_hidden_size",
    "block_types",
    "attention_types",
    "index_topk",
)
NO_CACHE = frozenset(
    "albert audio-spectrogram-transformer beit bert big_bird camembert canine clip convnext convnextv2 deberta "
    "deberta-v2 deit detr dinov2 dinov3_vit distilbert electra ernie esm eurobert flaubert fnet funnel gte hubert "
    "ibert jina_bert layoutlm layoutlmv2 layoutlmv3 lilt longformer luke megatron-bert mobilebert modernbert mpnet mra "
    "new nomic_bert nystromformer perceiver rembert resnet roberta roberta-prelayernorm roformer sam siglip siglip2 "
    "squeezebert swin swinv2 tapas vit vit_mae wav2vec2 wavlm xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso".split()
)
NUMBERS = (
    "bfloat16 float16 half float32 float float64 double float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz int8 "
    "uint8 auto"
).split()
SERVED_BYTES = 2


def text(config: dict) -> dict:
    """The text model's configuration under Llama's names, completed by its class.

    Raises ModelError for a model without a KV cache, and for a file that lacks what the arithmetic needs."""
    kind = config.get("model_type")
    _refuse_encoders(config)
    nested = next((config[name] for name in NESTED if isinstance(config.get(name), dict)), {})
    text_config = {name: value for name, value in config.items() if name not in NESTED} | nested
    if not _says_all(text_config):
        completed = _of_class(config)
        if completed is None and nested.get("model_type") not in (None, kind):
            return text(text_config)
        text_config = (completed or {}) | {name: value for name, value in text_config.items() if value is not None}
        text_config["model_type"] = (completed or text_config).get("model_type")
        if completed is None:
            _refuse_unknown_layers(text_config)
        _refuse_encoders(text_config)
        _rename(text_config)
    _correct(text_config)
    needed = ["num_hidden_layers", "vocab_size"]
    needed += [] if text_config.get("model_type") in STATES_ALONE else ["hidden_size", "num_attention_heads"]
    missing = [name for name in needed if not _is_number(text_config.get(name))]
    if missing:
        raise ModelError(
            "config.json lacks what the arithmetic needs",
            value=f"{', '.join(missing)} ({text_config.get('model_type')})",
            allowed="a whole number each",
        )
    return text_config


def layer_kinds(config: dict) -> list[str]:
    """The kind of each layer: full, sliding, linear, both (attention and a state), shared (an earlier one's cache), or
    none.
    """
    kinds = _kinds(config)
    for layer in config.get("cross_attention_layers") or ():  # they read an image, not the text
        kinds[layer] = "none"
    shared = config.get("num_kv_shared_layers") or 0
    return [*kinds[: len(kinds) - shared], *(["shared"] * shared)]


def layer_heads(config: dict) -> list[tuple[int, int]] | None:
    """Key-value heads and head size of each layer where layers differ; None where all are alike."""
    layers, heads = config["num_hidden_layers"], config.get("num_attention_heads") or 0
    if blocks := config.get("block_configs"):
        groups = [block["attention"].get("n_heads_in_group") for block in blocks]
        return [(heads // group if group else 0, head_size(config)) for group in groups]
    if isinstance(config.get("num_key_value_heads"), list):
        return [(count, head_size(config)) for count in config["num_key_value_heads"]]
    if different := config.get("per_layer_config"):
        changes = {int(layer): change for layer, change in different.items()}
        return [
            (
                changes.get(layer, {}).get("num_key_value_heads") or config["num_key_value_heads"],
                changes.get(layer, {}).get("head_dim") or head_size(config),
            )
            for layer in range(layers)
        ]
    return None


def head_size(config: dict) -> int:
    """The size of one attention head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def has_index(config: dict, layer: int) -> bool:
    """Whether a layer of sparse latent attention keeps an index of its own rather than using an earlier layer's."""
    if pattern := config.get("index_topk_pattern"):
        return pattern[layer] != "S"
    return max(layer - config.get("index_skip_topk_offset", 2) + 1, 0) % (config.get("index_topk_freq") or 1) == 0


def check_dtype(config: dict) -> None:
    """Raises ModelError where a file names an unknown number format.

    Which known one it names does not matter: an engine serves float32, and formats that it cannot compute with, in 2
    bytes (vLLM's `dtype=auto`)."""
    said = config.get("torch_dtype") or config.get("dtype")
    values = said.values() if isinstance(said, dict) else said if isinstance(said, list) else [said]
    unknown = [str(value) for value in values if str(value or "auto").removeprefix("torch.") not in NUMBERS]
    if unknown:
        raise ModelError("a number format that is not known", value=", ".join(unknown), allowed=", ".join(NUMBERS))


def cache_element_bytes(config: dict) -> int:
    """Bytes of a number in the cache under the engine's defaults: 1 where the checkpoint brings scales for an 8-bit
    cache.
    """
    quantization = config.get("quantization_config") or config.get("compression_config") or {}
    inner = quantization.get("quantization") if isinstance(quantization.get("quantization"), dict) else quantization
    scheme = inner.get("kv_cache_scheme") or quantization.get("kv_cache_scheme") or {}
    bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
    algorithm = str(inner.get("kv_cache_quant_algo") or "").upper()
    if algorithm == "NVFP4" or bits not in (None, 8):
        raise ModelError(
            "a cache of this format is not counted",
            value=algorithm or f"{bits} bits",
            allowed="8 bits, or a checkpoint without a format for its cache",
        )
    return 1 if bits or algorithm == "FP8" else SERVED_BYTES


def _says_all(config: dict) -> bool:
    """Whether a file of a counted family leaves nothing to its class."""
    family, latent = config.get("model_type"), bool(config.get("kv_lora_rank"))
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
    names += [] if family in WHOLE_HEADS or latent else ["head_dim"]
    names += [] if family in HYBRID or family in ("llama", *WHOLE_HEADS) else ["num_key_value_heads"]
    return family in FAMILIES and all(isinstance(config.get(name), int) for name in names)


def _of_class(config: dict) -> dict | None:
    """The file's text model as its `transformers` class completes it; None without a class, or where the class refuses
    it.
    """
    with _quiet():
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        if config.get("model_type") not in CONFIG_MAPPING:
            return None
        skipped = {"auto_map", "quantization_config", "dtype", "torch_dtype", "architectures"}
        try:
            made = CONFIG_MAPPING[config["model_type"]].from_dict(
                {name: value for name, value in config.items() if name not in skipped}
            )
            part = made.get_text_config(decoder=True)
            values = part.to_dict()
            for name in (*NAMES, "layer_types", "layers_block_type", "is_encoder_decoder"):
                with contextlib.suppress(Exception):  # a value that differs by layer raises when it is read whole
                    if getattr(part, name, None) is not None:
                        values[name] = getattr(part, name)
        except Exception:  # a class may raise anything; the common names may still suffice
            return None
    return {name: value for name, value in values.items() if value is not None and name not in skipped}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """`transformers` without advice on standard error and without a network."""
    before = os.environ.get("TRANSFORMERS_NO_ADVISORY_WARNINGS")
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    try:
        from huggingface_hub import constants
        from transformers.utils import logging

        level, offline = logging.get_verbosity(), constants.HF_HUB_OFFLINE
        logging.set_verbosity_error()
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            logging.set_verbosity(level)
            constants.HF_HUB_OFFLINE = offline
    finally:
        if before is None:
            os.environ.pop("TRANSFORMERS_NO_ADVISORY_WARNINGS")
        else:
            os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = before


def _rename(text_config: dict) -> None:
    """Puts figures with other names under Llama's."""
    inner = text_config.get("attn_config") if isinstance(text_config.get("attn_config"), dict) else {}
    for name, others in NAMES.items():
        value = next((text_config[other] for other in others if text_config.get(other)), inner.get("kv_n_heads"))
        if value and (name == "num_key_value_heads" or value != inner.get("kv_n_heads")):
            text_config[name] = value


def _correct(text_config: dict) -> None:
    """Corrects what a family's file says differently from what its model does."""
    family = text_config.get("model_type")
    multi_query = text_config.get("multi_query") and not text_config.get("new_decoder_architecture")
    if family in ("falcon", "RefinedWeb", "RefinedWebModel", "gpt_bigcode") and multi_query:
        text_config["num_key_value_heads"] = 1
    if family == "chatglm" and not text_config.get("multi_query_attention"):
        text_config["num_key_value_heads"] = text_config.get("num_attention_heads")
    if family == "minicpm3":  # served with whole heads
        text_config["head_dim"] = text_config["qk_nope_head_dim"] + text_config["qk_rope_head_dim"]
        text_config.pop("kv_lora_rank", None)
    if family == "longcat_flash":  # two attention layers in each
        text_config["num_hidden_layers"] = 2 * text_config["num_layers"]


def _refuse_encoders(config: dict) -> None:
    """Raises ModelError for a model that writes no text, and for an encoder with a decoder."""
    kind = config.get("model_type")
    if kind in NO_CACHE or config.get("is_encoder_decoder"):
        raise ModelError(
            "this model has no cache of keys and values that grows with each token"
            if kind in NO_CACHE
            else "the cache of an encoder with a decoder depends on both lengths and is not counted",
            value=kind,
            allowed="a model that writes text token by token",
        )


def _refuse_unknown_layers(config: dict) -> None:
    """Raises ModelError for a file of an unknown type whose layers keep something other than keys and values."""
    if said := [name for name in UNKNOWN_LAYERS if config.get(name)]:
        raise ModelError(
            "the layers of this family are not known",
            value=f"{config.get('model_type')} ({', '.join(said)})",
            allowed="plain, grouped or latent attention, or a family that transformers knows",
        )


def _kinds(config: dict) -> list[str]:
    layers, family = config["num_hidden_layers"], config.get("model_type")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if family in STATES_ALONE:
        return ["linear"] * layers
    if family == "falcon_h1":
        return ["both"] * layers
    if pattern := config.get("hybrid_override_pattern"):
        return [PATTERN.get(letter, "full") for letter in pattern]
    if blocks := config.get("block_configs"):
        kept = [
            not (block["attention"].get("no_op") or block["attention"].get("replace_with_linear")) for block in blocks
        ]
        return ["full" if attention else "none" for attention in kept]
    named = config.get("layer_types") or config.get("layers_block_type")
    if family == "kimi_linear" and (linear := config.get("linear_attn_config")):
        return ["linear" if layer + 1 in linear["kda_layers"] else "full" for layer in range(layers)]
    if family == "jamba":
        every, first = config["attn_layer_period"], config["attn_layer_offset"]
        return ["full" if layer % every == first else "linear" for layer in range(layers)]
    if family == "bamba" and config.get("attn_layer_indices") is not None:
        return ["full" if layer in config["attn_layer_indices"] else "linear" for layer in range(layers)]
    if family.startswith("minimax") and config.get("attn_type_list"):
        return ["full" if kind else "linear" for kind in config["attn_type_list"]]
    if named:
        if unknown := set(named) - set(KINDS):
            raise ModelError(
                "layers of a kind that is not known", value=", ".join(sorted(unknown)), allowed=", ".join(KINDS)
            )
        if "indexed_attention" in named and family not in INDEXED:
            raise ModelError("the index of this family is not counted", value=family, allowed=", ".join(INDEXED))
        return [KINDS[kind] for kind in named]
    if every := config.get("full_attention_interval"):
        return ["full" if (layer + 1) % every == 0 else "linear" for layer in range(layers)]
    if family in ("gemma2", "gemma3_text"):
        every = config.get("sliding_window_pattern", 2 if family == "gemma2" else 6)
        return ["full" if (layer + 1) % every == 0 else "sliding" for layer in range(layers)]
    first = config.get("max_window_layers", 0) if family.startswith("qwen") else 0
    return ["sliding" if window and layer >= first else "full" for layer in range(layers)]


def _is_number(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
