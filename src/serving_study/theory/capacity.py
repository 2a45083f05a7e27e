"""How many KV tokens fit beside a model before a server starts, by the accounting that vLLM does at its start.

GPU memory × utilization − weights − peak of the profiling run − CUDA graphs − a constant, over the KV bytes of
a token, in blocks of 16, least of all ranks; layers of several kinds are counted in the blocks of `pages`. The
constant (libraries, workspaces, NCCL) is fitted on the baseline's start of each GPU. What can mislead: a first
start, whose compile cache is empty, has a higher peak than later ones (`compiled`); versions count differently
(`ACCOUNTING`); `data/hardware/README.md` has the evidence. Not modelled: NCCL's buffers apart from the
constant, MTP layers' weights, multimodal encoders, expert kernels' workspaces.

    >>> from serving_study.hardware import ceilings
    >>> from serving_study.models import shapes
    >>> from serving_study.theory import capacity
    >>> model = shapes.load("qwen2.5-7b-instruct")
    >>> deployment = capacity.Deployment(model, ceilings.gpu("l4"), max_num_seqs=128, version="0.27.1")
    >>> capacity.predict(deployment).tokens
    62512
"""

import math
import re
from dataclasses import dataclass

from ..errors import ModelError, ParameterError
from ..hardware.ceilings import Gpu
from ..models import pages
from ..models.layer_weights import MIB
from ..models.shapes import GIB, Shape

BLOCK_TOKENS = 16
# Fitted on the baseline's start alone: 7b-tp1 of a10gx4, baseline of l4x1 (7b-tp1 of l4x4 is the same to the token),
# baseline of h200x1.
CONSTANT_GIB = {"l4": 0.1775, "a10g": 0.1861, "h200": 0.3344}
GRAPH_MIB, GRAPH_LAYERS = 4.7, 28
# Bytes by logit in the profiling run's sampler: bf16 and float32 logit, probability, noise. With speculation in its
# verification: bf16 logit, random numbers of two rows, the bonus row in bf16, float32 and as returned, and the verified
# row in float32 four times.
SAMPLING_BYTES, VERIFYING_BYTES = 2 + 4 + 4 + 4, 2 + 2 * 2 + (2 + 4 + 4) + 4 * 4


@dataclass(frozen=True)
class Accounting:
    """How a version counts: embeddings held while it compiles, and whether every model runner sets memory for CUDA
    graphs aside.
    """

    copies: int
    graphs: bool


# By the first version that counts so; sources were read of 0.25.1, 0.27.1, 0.28.0 and 0.32.0.
ACCOUNTING = {"0.25": Accounting(1, False), "0.27": Accounting(2, False), "0.32": Accounting(1, True)}


@dataclass(frozen=True)
class Deployment:
    """What decides a server's memory: model, GPU, ranks and options. `compiled`: its graphs are in the compile cache.

    `max_num_seqs` and `max_num_batched_tokens` default as in `vllm serve` on that GPU; `kv_element_bytes` is 1 for an
    fp8 cache; `prediction_layers` and `prefix_caching` matter where layers are of several kinds (`pages`)."""

    model: Shape
    gpu: Gpu
    tp: int = 1
    pp: int = 1
    utilization: float = 0.9
    max_model_len: int = 4096
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    speculative_tokens: int = 0
    draft: Shape | None = None
    kv_element_bytes: int | None = None
    compiled: bool = False
    eager: bool = False
    version: str = "0.32"
    prediction_layers: int = 0
    prefix_caching: bool = True

    def __post_init__(self):
        if not 0 < self.utilization <= 1:
            raise ParameterError("no such memory utilization", value=self.utilization, allowed="above 0, at most 1")
        if self.draft and (self.pp > 1 or not self.speculative_tokens):
            raise ModelError(
                "a draft model needs speculative tokens and no pipeline",
                value=f"{self.speculative_tokens} tokens, pp {self.pp}",
                allowed="1 token or more, pp 1",
            )
        if self.draft and set(self.model.layer_kinds) | set(self.draft.layer_kinds) != {"full"}:
            raise ModelError(
                "a draft model is counted beside full attention alone",
                value=f"{self.model.name}, {self.draft.name}",
                allowed="models whose layers are all of full attention",
            )

    @property
    def sequences(self) -> int:
        return self.max_num_seqs or (1024 if self._large else 256)

    @property
    def batched_tokens(self) -> int:
        if self.max_num_batched_tokens:
            return self.max_num_batched_tokens
        return 16384 if self.gpu.memory_gib >= 160 else 8192 if self._large else 2048

    @property
    def accounting(self) -> Accounting:
        number = _number(self.version)
        return next(
            (ACCOUNTING[name] for name in sorted(ACCOUNTING, key=_number, reverse=True) if _number(name) <= number),
            ACCOUNTING["0.25"],
        )

    @property
    def _large(self) -> bool:
        return self.gpu.memory_gib >= 160 or (self.gpu.memory_gib >= 70 and not self.gpu.name.startswith("a100"))


@dataclass(frozen=True)
class Capacity:
    """The memory of the fullest rank, and what its KV cache holds. Negative `kv_gib`: out of memory."""

    tokens: int
    max_concurrency: float
    weights_gib: float
    peak_gib: float
    graphs_gib: float
    constant_gib: float
    kv_gib: float
    kv_bytes_per_token: float
    stage: int

    @property
    def can_start(self) -> bool:
        """Whether one sequence of the longest context fits, without which vLLM refuses to start."""
        return self.max_concurrency >= 1


def predict(deployment: Deployment, *, constant_gib: float | None = None) -> Capacity:
    """The server's memory by arithmetic; `tokens` is "GPU KV cache size" in vLLM's log. `constant_gib` None: the
    constant of its GPU, or the mean of the three known ones.
    """
    constant = (
        CONSTANT_GIB.get(deployment.gpu.name, sum(CONSTANT_GIB.values()) / len(CONSTANT_GIB))
        if constant_gib is None
        else constant_gib
    )
    ranks = [_rank(deployment, stage, constant) for stage in range(deployment.pp)]
    return min(ranks, key=lambda rank: (rank.tokens, rank.kv_gib))


def cuda_graphs(deployment: Deployment) -> int:
    """The number of CUDA graphs that vLLM captures: piecewise for each batch size, and whole for the sizes that
    decoding can have.
    """
    query = 1 + deployment.speculative_tokens
    largest = min(2 * deployment.sequences * query, 512)
    sizes = {size for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)) if size <= largest}
    sizes = {math.ceil(size / query) * query for size in sizes}
    piecewise = [size for size in sizes if size <= largest]
    return len(piecewise) + sum(size <= deployment.sequences * query for size in piecewise)


def forward_bytes(model: Shape, tokens: int, tp: int = 1) -> int:
    """Peak bytes of one pass over `tokens` on a rank: gate, up and their product, and two copies of the hidden
    state.
    """
    get = model.config.get
    width = get("intermediate_size") or 0
    if model.experts:
        width = max(
            width,
            get("num_experts_per_tok", 1) * (get("moe_intermediate_size") or width)
            + (get("shared_expert_intermediate_size") or 0),
        )
    return tokens * (3 * width // tp + 2 * model.hidden) * model.dtype_bytes


def peak_bytes(deployment: Deployment, stage: int = 0) -> int:
    """Peak bytes of the profiling run on a rank of this stage: the forward pass, sampling, or compiling."""
    models = [model for model in (deployment.model, deployment.draft) if model]
    last = stage == deployment.pp - 1
    held = [forward_bytes(model, deployment.batched_tokens, deployment.tp) for model in models]
    if last:
        per_logit = VERIFYING_BYTES if deployment.speculative_tokens else SAMPLING_BYTES
        held.append(min(deployment.sequences, deployment.batched_tokens) * deployment.model.vocabulary * per_logit)
    if stage == 0 and not deployment.compiled and not deployment.eager:
        copies = deployment.accounting.copies if last else 1
        held += [copies * model.tensors(tp=deployment.tp)[0].elements * model.dtype_bytes for model in models]
    return max(held)


def _rank(deployment: Deployment, stage: int, constant_gib: float) -> Capacity:
    weights = deployment.model.weights_bytes(tp=deployment.tp, pp=deployment.pp, stage=stage)
    per_token = deployment.model.kv_bytes_per_token(
        tp=deployment.tp, pp=deployment.pp, stage=stage, element_bytes=deployment.kv_element_bytes
    )
    if deployment.draft:
        weights += deployment.draft.weights_bytes(tp=deployment.tp)
        per_token += deployment.draft.kv_bytes_per_token(tp=deployment.tp, element_bytes=deployment.kv_element_bytes)
    counted = not deployment.eager and (deployment.speculative_tokens or deployment.accounting.graphs)
    graphs = (
        cuda_graphs(deployment) * GRAPH_MIB * MIB * deployment.model.layers / deployment.pp / GRAPH_LAYERS
        if counted
        else 0.0
    )
    peak = peak_bytes(deployment, stage)
    left = (
        math.ceil(deployment.gpu.memory_gib * GIB * deployment.utilization)
        - weights
        - peak
        - graphs
        - constant_gib * GIB
    )
    kinds = {deployment.model.layer_kinds[layer] for layer in deployment.model.stage_layers(deployment.pp)[stage]}
    if kinds <= {"full", "shared", "none"}:
        tokens = max(0, math.floor(left / (BLOCK_TOKENS * per_token))) * BLOCK_TOKENS
    else:
        blocks = pages.layout(
            deployment.model,
            tp=deployment.tp,
            pp=deployment.pp,
            stage=stage,
            element_bytes=deployment.kv_element_bytes,
            speculative_tokens=deployment.speculative_tokens,
            prediction_layers=deployment.prediction_layers,
            prefix_caching=deployment.prefix_caching,
            max_num_batched_tokens=deployment.batched_tokens,
        )
        tokens, per_token = (
            blocks.tokens(left, deployment.max_model_len),
            blocks.bytes_per_token(deployment.max_model_len),
        )
    return Capacity(
        tokens,
        tokens / deployment.max_model_len,
        weights / GIB,
        peak / GIB,
        graphs / GIB,
        constant_gib,
        left / GIB,
        per_token,
        stage,
    )


def _number(version: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", version)
    if not numbers:
        raise ParameterError("no such version", value=version, allowed="numbers with points between, as in 0.28.0")
    return tuple(map(int, numbers[:2]))
