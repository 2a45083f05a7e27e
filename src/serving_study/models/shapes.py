"""A model's arithmetic from its `config.json` alone: parameters, weight bytes by rank, KV bytes a token, state a
sequence.

Weights are listed as an engine allocates them (`layer_weights`), since the allocator rounds each up: 0.7 % of
Qwen2.5-7B, and what makes the figures meet vLLM's "Model loading took". What can mislead: the rounding is PyTorch's as
vLLM sets it while loading, so another engine may need less; quantized weights are refused; latent attention (MLA) is
counted without the matrices that vLLM derives from `kv_b_proj`; where layers are of several kinds, engines pad the
small ones' pages (`pages` has that).

    >>> from serving_study.models import shapes
    >>> shape = shapes.load("qwen2.5-7b-instruct")
    >>> shape.parameters, shape.kv_bytes_per_token() // 1024, round(shape.weights_gib(tp=2), 2)
    (7615616512, 56, 7.16)
"""

import json
import math
import os
import re
import urllib.error
from dataclasses import dataclass
from pathlib import Path

from .. import files, paths
from ..errors import ModelError, near
from . import configurations, hub, layer_weights, states
from .checkpoints import SHAPES
from .configurations import FAMILIES
from .layer_weights import Tensor

GIB = 2**30
SCALED_TOGETHER, SCALE_BYTES = 128, 4  # of an 8-bit index or latent vector: numbers with one scale, and its size
VOCABULARY_PADDING = 64  # vLLM's DEFAULT_VOCAB_PADDING_SIZE
FIRST_LAYERS = re.compile(r"(.+)-first-(\d+)-layers")


@dataclass(frozen=True)
class Shape:
    """A model as its `config.json` states it: `layer_kinds` (full, sliding, linear, both, shared or none) by layer;
    `layer_heads`, key-value heads and their size by layer where layers differ.
    """

    name: str
    config: dict
    layer_kinds: tuple[str, ...]
    layer_heads: tuple[tuple[int, int], ...] | None = None

    family = property(lambda self: self.config["model_type"])
    layers = property(lambda self: self.config["num_hidden_layers"])
    hidden = property(lambda self: self.config["hidden_size"])
    heads = property(lambda self: self.config.get("num_attention_heads") or 0)  # none where only states are kept
    vocabulary = property(lambda self: self.config["vocab_size"])

    @property
    def kv_heads(self) -> int:
        return self.config.get("num_key_value_heads") or self.heads

    @property
    def head_dim(self) -> int:
        return configurations.head_size(self.config)

    @property
    def tied(self) -> bool:
        """Whether the output head is the embedding; the default differs by family."""
        return self.config.get("tie_word_embeddings", self.family.startswith("gemma"))

    @property
    def latent(self) -> bool:
        """Whether it has multi-head latent attention: one compressed vector a token in place of keys and values."""
        return bool(self.config.get("kv_lora_rank"))

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a number as an engine serves it, which may differ from the checkpoint's (`check_dtype`)."""
        return configurations.SERVED_BYTES

    @property
    def experts(self) -> int:
        return next(
            (
                self.config[name]
                for name in ("num_local_experts", "num_experts", "n_routed_experts")
                if self.config.get(name)
            ),
            0,
        )

    @property
    def parameters(self) -> int:
        """Parameters of the checkpoint: a tied head once, no padding, no module that only predicts further tokens."""
        return sum(tensor.elements * tensor.count for tensor in self.tensors(padded=False))

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a decode pass of a dense model reads; of an untied input embedding it reads one row."""
        return (self.parameters - (0 if self.tied else self.vocabulary * self.hidden)) * self.dtype_bytes

    def stage_layers(self, pp: int = 1) -> list[range]:
        """The layers of each pipeline stage; as in vLLM, the remainder goes to the stages before the last."""
        if not 1 <= pp <= self.layers:
            raise ModelError("this model cannot be cut into that many stages", value=pp, allowed=f"1 to {self.layers}")
        sizes = [self.layers // pp] * pp
        for position in range(2, self.layers % pp + 2):
            sizes[-position] += 1
        starts = [sum(sizes[:stage]) for stage in range(pp)]
        return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def tensors(self, *, tp: int = 1, pp: int = 1, stage: int = 0, padded: bool = True) -> list[Tensor]:
        """The weights of one rank: its share of each matrix, norms whole, key and value heads repeated where there are
        fewer than ranks.

        Raises ModelError where the heads do not divide by `tp`, and for a family whose weights are not counted."""
        if self.family not in FAMILIES:
            raise ModelError(
                "the weights of this family are not counted", value=self.family, allowed=", ".join(FAMILIES)
            )
        self._check_tp(tp)
        rows = math.ceil(self.vocabulary / VOCABULARY_PADDING) * VOCABULARY_PADDING if padded else self.vocabulary
        embedding = Tensor("embedding", rows * self.hidden // tp)
        tensors = [embedding] if stage == 0 or (stage == pp - 1 and self.tied) else []
        for layer in self.stage_layers(pp)[stage]:
            tensors += layer_weights.of(self, layer, tp)
        if stage == pp - 1:
            tensors += [Tensor("norm", self.hidden)] + ([] if self.tied else [Tensor("head", embedding.elements)])
        return tensors

    def weights_bytes(self, *, tp: int = 1, pp: int = 1, stage: int | None = None) -> int:
        """Bytes of the weights on a rank of `stage` (None: the fullest stage), with the rotary table and rounding."""
        if quantized := self.config.get("quantization_config"):
            raise ModelError(
                "quantized weights are not counted",
                value=quantized.get("quant_method"),
                allowed="a config.json without quantization_config",
            )
        if stage is None:
            return max(self.weights_bytes(tp=tp, pp=pp, stage=number) for number in range(pp))
        weights = sum(
            layer_weights.allocated_bytes(tensor.elements * self.dtype_bytes) * tensor.count
            for tensor in self.tensors(tp=tp, pp=pp, stage=stage)
        )
        return weights + layer_weights.allocated_bytes(
            self.config.get("max_position_embeddings", 0) * self._rotary_dim * self.dtype_bytes
        )

    def weights_gib(self, *, tp: int = 1, pp: int = 1, stage: int | None = None) -> float:
        """The weights in GiB: vLLM's "Model loading took"."""
        return self.weights_bytes(tp=tp, pp=pp, stage=stage) / GIB

    def kv_bytes_per_token(
        self,
        *,
        tp: int = 1,
        pp: int = 1,
        stage: int | None = None,
        element_bytes: int | None = None,
        context: int | None = None,
    ) -> int:
        """Bytes of KV cache for one more token on a rank (`stage` None: the fullest); `element_bytes` is 1 for an fp8
        cache.

        Full attention grows with every token; sliding layers count while `context` (tokens so far) is inside their
        window, or when it is None; linear attention never counts. A latent vector is whole on every rank."""
        if stage is None:
            return max(
                self.kv_bytes_per_token(tp=tp, pp=pp, stage=number, element_bytes=element_bytes, context=context)
                for number in range(pp)
            )
        self._check_tp(tp)
        window = self.config.get("sliding_window") or math.inf
        growing = {"full", "both"} | ({"sliding"} if context is None or context < window else set())
        return sum(
            self.kv_bytes_per_layer(layer, tp=tp, element_bytes=element_bytes)
            for layer in self.stage_layers(pp)[stage]
            if self.layer_kinds[layer] in growing
        )

    def kv_bytes_per_layer(self, layer: int = 0, *, tp: int = 1, element_bytes: int | None = None) -> int:
        """Bytes of one token in one attention layer on a rank: keys and values, or the latent vector with its index."""
        number_bytes = element_bytes or configurations.cache_element_bytes(self.config)
        if not self.latent:
            heads, size = self.layer_heads[layer] if self.layer_heads else (self.kv_heads, self.head_dim)
            return 2 * max(1, heads // tp) * size * number_bytes if heads else 0
        low, rope = self.config["kv_lora_rank"], self.config["qk_rope_head_dim"]
        if self.family not in configurations.INDEXED:
            return (low + rope) * number_bytes
        scales = low // SCALED_TOGETHER * SCALE_BYTES
        latent = low + scales + rope * self.dtype_bytes if number_bytes == 1 else (low + rope) * number_bytes
        index = self.config["index_head_dim"] if configurations.has_index(self.config, layer) else 0
        return latent + index + index // SCALED_TOGETHER * SCALE_BYTES

    def kv_bytes(self, tokens: int, *, tp: int = 1, pp: int = 1, element_bytes: int | None = None) -> int:
        """Bytes of KV cache and state of a sequence of `tokens` on a rank of the fullest stage; sliding layers keep
        their window.
        """
        window = min(tokens, self.config.get("sliding_window") or tokens)
        all_layers, full_only = (
            self.kv_bytes_per_token(tp=tp, pp=pp, element_bytes=element_bytes, context=context)
            for context in (None, math.inf)
        )
        if "sliding" not in self.layer_kinds:
            full_only = all_layers
        return full_only * tokens + (all_layers - full_only) * window + self.state_bytes_per_sequence(tp=tp, pp=pp)

    def state_bytes_per_sequence(self, *, tp: int = 1, pp: int = 1) -> int:
        """Bytes of linear-attention state for a sequence on a rank: the convolution's last inputs and the recurrent
        matrices.
        """
        return self.state_bytes_per_layer(tp=tp) * max(
            sum(self.layer_kinds[number] in ("linear", "both") for number in stage) for stage in self.stage_layers(pp)
        )

    def state_bytes_per_layer(self, *, tp: int = 1, speculative_tokens: int = 0) -> int:
        """Bytes of state of a linear-attention layer on a rank; each speculative token adds one input to its
        convolution.
        """
        if not {"linear", "both"} & set(self.layer_kinds):
            return 0
        return states.bytes_per_layer(self.config, self.dtype_bytes, tp=tp, speculative_tokens=speculative_tokens)

    @property
    def _rotary_dim(self) -> int:
        if self.latent:
            return self.config["qk_rope_head_dim"]
        return int(self.head_dim * self.config.get("partial_rotary_factor", 1.0))

    def _check_tp(self, tp: int) -> None:
        if not self.heads and tp == 1:
            return
        if (
            tp < 1
            or not self.heads
            or self.heads % tp
            or (not self.latent and max(tp, self.kv_heads) % min(tp, self.kv_heads))
        ):
            fits = [
                n
                for n in range(1, self.heads + 1)
                if self.heads % n == 0 and (self.latent or max(n, self.kv_heads) % min(n, self.kv_heads) == 0)
            ]
            heads = f"the heads of {self.name} ({self.heads}, {self.kv_heads} for keys and values)"
            raise ModelError(
                f"{heads} do not divide over that many ranks", value=f"tp {tp}", allowed=", ".join(map(str, fits))
            )


def load(source: str | Path) -> Shape:
    """The shape at a path, of a name that ships with the book (truncated or whole), or of a hub id.

    A hub id's config.json is one that ships, that is in the hub's cache, or that is fetched. Raises ModelError for
    anything else, and for an unknown family."""
    if cut := FIRST_LAYERS.fullmatch(str(source)):
        return of_config(first_layers(load(cut[1]).config, int(cut[2])), name=str(source))
    path = Path(source).expanduser()
    places = (
        path,
        path / "config.json",
        SHAPES / str(source).rsplit("/", 1)[-1].lower() / "config.json",
        hub.kept_config(str(source)),
    )
    config_file = next((file for file in places if file and file.is_file()), None) or _fetched(str(source))
    if config_file is None:
        known = ", ".join(sorted(folder.name for folder in SHAPES.iterdir() if folder.is_dir()))
        allowed = f"a path, a hub id, or one of {known}"
        raise ModelError(
            "no config.json for this model",
            value=source,
            allowed=allowed,
            next=near(str(source).rsplit("/", 1)[-1], [folder.name for folder in SHAPES.iterdir()])
            or f"hf download {source} config.json",
        )
    try:
        config = json.loads(config_file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError("not a config.json", value=f"{config_file}: {error}", allowed="one JSON object") from None
    return of_config(config, name=str(source) if config_file.parent != path else path.name)


def first_layers(config: dict, layers: int) -> dict:
    """The `config.json` of the model's first `layers` layers."""
    kinds = {"layer_types": config["layer_types"][:layers]} if config.get("layer_types") else {}
    return config | {"num_hidden_layers": layers} | kinds


def of_config(config: dict, *, name: str = "model") -> Shape:
    """The shape of a parsed `config.json`; of its text model where it has several.

    Raises ModelError for a model without a cache, and for unknown layers."""
    if not isinstance(config, dict):
        raise ModelError("not a config.json", value=type(config).__name__, allowed="one JSON object")
    try:
        text_config = configurations.text(config)
        configurations.check_dtype(text_config)
        return Shape(
            name,
            text_config,
            tuple(configurations.layer_kinds(text_config)),
            _tupled(configurations.layer_heads(text_config)),
        )
    except (TypeError, KeyError, IndexError, AttributeError, ZeroDivisionError, ValueError) as error:
        raise ModelError(
            "this config.json cannot be read",
            value=f"{name}, {config.get('model_type')} ({type(error).__name__}: {error})",
            allowed="the figures of a model as transformers or Llama name them",
        ) from None


def _tupled(heads: list[tuple[int, int]] | None) -> tuple[tuple[int, int], ...] | None:
    return None if heads is None else tuple(heads)


def _fetched(name: str) -> Path | None:
    """The config.json of a hub id, fetched once and kept; None for other names, and with HF_HUB_OFFLINE set.

    Raises ModelError where the hub does not give it."""
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) or os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return None
    kept = paths.CACHE / "shapes" / name.replace("/", "--").lower() / "config.json"
    if kept.is_file():
        return kept
    from huggingface_hub import get_token, hf_hub_url

    token = get_token()
    said = {
        "value": name,
        "allowed": "a path, a public model of the hub or one that your token may read, or a shape of "
        "data/models/shapes",
    }
    likely = near(name.rsplit("/", 1)[-1], [folder.name for folder in SHAPES.iterdir()])
    try:  # not hf_hub_download, which tries for half a minute without a network
        content = hub.read(
            hf_hub_url(name, "config.json", endpoint=os.environ.get("HF_ENDPOINT")),
            {"Authorization": f"Bearer {token}"} if token else {},
        )
    except urllib.error.HTTPError as error:
        error.close()
        raise ModelError(
            "the hub does not give this model's config.json",
            **said | {"value": f"{name} ({error.code} {error.reason})"},
            next=likely or "hf auth login, where the model is gated",
        ) from None
    except OSError as error:
        raise ModelError(
            "no config.json for this model here, and the hub does not answer",
            **said | {"value": f"{name} ({getattr(error, 'reason', error)})"},
            next=likely or "check the network (HF_ENDPOINT), or give a path",
        ) from None
    with files.whole(kept) as temporary:
        temporary.write_bytes(content)
    return kept
