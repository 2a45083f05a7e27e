"""How vLLM lays out the KV cache of a model with several kinds of layers, and what a sequence really takes of it.

All layers share one pool of equal blocks. A linear-attention layer keeps its state in a block as large as those of full
attention (whose tokens a block are raised until the state fits); layers are cut into groups of equal number, each of
which draws its own blocks. Read in vLLM 0.32.0 (`v1/core/kv_cache_utils.py`, `v1/kv_cache_interface.py`,
`platforms/interface.py`). What can mislead: the log's "GPU KV cache size" is then the number of requests of
`max_model_len` that fit, times that length, so no formula per token gives it. Models whose layers are all alike need
only `shapes`.

    >>> from serving_study.models import pages, shapes
    >>> layout = pages.layout(shapes.load("qwen3.5-27b"), element_bytes=1, prefix_caching=False)
    >>> layout.block_tokens, layout.blocks(8192), layout.bytes_per_token(8192) / 1024
    (1568, 9, 55.125)
"""

import math
from collections import Counter
from dataclasses import dataclass

from ..errors import ModelError, ParameterError
from .shapes import Shape

ALIGNMENT, CPU_ALIGNMENT = (
    16,
    128,
)  # tokens of the smallest and of the default block: of GPU kernels, and of vLLM's CPU build
KEPT = {"both": ("full", "linear"), "shared": (), "none": ()}  # the kinds of cache that these layers have
SIMILAR = 1.5  # kinds whose layers differ by less are padded to one group each, instead of cut


@dataclass(frozen=True)
class Layout:
    """One rank's KV cache in blocks of `block_bytes`: `block_tokens` positions of `group_layers` layers; `groups` by
    kind.

    `window` is the sliding layers'; `in_flight_tokens` is what they hold beyond it while steps overlap; `states` are
    the blocks of a linear group."""

    block_tokens: int
    group_layers: int
    block_bytes: int
    groups: dict[str, int]
    window: float = math.inf
    in_flight_tokens: int = 0
    states: int = 1

    def blocks(self, tokens: int) -> int:
        """The most blocks that one sequence of so many tokens takes, over all groups."""
        windowed = math.ceil(min(self.window - 1 + self.in_flight_tokens, tokens) / self.block_tokens) + 1
        each = {"full": math.ceil(tokens / self.block_tokens), "sliding": windowed, "linear": self.states}
        return sum(count * each[kind] for kind, count in self.groups.items())

    def bytes_per_sequence(self, tokens: int) -> int:
        """The KV memory of such a sequence on a rank."""
        return self.blocks(tokens) * self.block_bytes

    def bytes_per_token(self, max_model_len: int) -> float:
        """KV memory over the tokens that the log reports, for a server of this `max_model_len`."""
        return self.bytes_per_sequence(max_model_len) / max_model_len

    def tokens(self, kv_bytes: float, max_model_len: int) -> int:
        """The log's "GPU KV cache size" for so much memory."""
        return int(math.floor(max(0.0, kv_bytes) / self.block_bytes) / self.blocks(max_model_len) * max_model_len)


def layout(
    shape: Shape,
    *,
    tp: int = 1,
    pp: int = 1,
    stage: int = 0,
    element_bytes: int | None = None,
    speculative_tokens: int = 0,
    prediction_layers: int = 0,
    prefix_caching: bool = True,
    max_num_batched_tokens: int = 2048,
    batches: int = 2,
    alignment: int = ALIGNMENT,
) -> Layout:
    """The block layout of a rank.

    `prediction_layers`: attention layers that only predict further tokens (MTP), in the same pool; `batches`: steps in
    flight at once, 2 with asynchronous scheduling; `alignment`: a block's tokens are a multiple of it. Raises
    ModelError for a latent cache beside linear attention, whose alignment differs."""
    kinds = Counter()
    for layer in shape.stage_layers(pp)[stage]:
        kinds.update(KEPT.get(shape.layer_kinds[layer], (shape.layer_kinds[layer],)))
    if shape.layer_heads and len(set(shape.layer_heads)) > 1:
        raise ModelError(
            "the blocks of layers whose heads differ are not known here", value=shape.name, allowed="layers alike"
        )
    if shape.latent and "linear" in kinds:
        raise ModelError(
            "the blocks of latent attention beside linear attention are not known here",
            value=shape.name,
            allowed="one of the two",
        )
    if prediction_layers:
        kinds["full"] += prediction_layers
    per_layer, state = (
        shape.kv_bytes_per_layer(tp=tp, element_bytes=element_bytes),
        shape.state_bytes_per_layer(tp=tp, speculative_tokens=speculative_tokens),
    )
    block_tokens = alignment * math.ceil(state / (alignment * per_layer)) if kinds["linear"] else alignment
    counts = [count for count in kinds.values() if count]
    group_layers = max(counts) if max(counts) < SIMILAR * min(counts) else min(counts)
    groups = {kind: math.ceil(count / group_layers) for kind, count in kinds.items() if count}
    states = (2 if prefix_caching else 1) + speculative_tokens
    return Layout(
        block_tokens,
        group_layers,
        block_tokens * per_layer * group_layers,
        groups,
        shape.config.get("sliding_window") or math.inf,
        batches * max_num_batched_tokens,
        states,
    )


def cached_tokens(shared: int, prompt: int, block_tokens: int = ALIGNMENT) -> int:
    """Tokens that a prefix cache can give: whole blocks of the shared part, without the prompt's last token."""
    if not 0 <= shared <= prompt or prompt < 1 or block_tokens < 1:
        raise ParameterError(
            "no such prefix",
            value=f"{shared} shared of {prompt} tokens, blocks of {block_tokens}",
            allowed="0 to all of a prompt of 1 token or more",
        )
    return min(shared, prompt - 1) // block_tokens * block_tokens
