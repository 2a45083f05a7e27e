"""How many KV tokens fit beside a model before a server starts, by the bookkeeping that vLLM does at its start.

GPU memory × utilization − weights − peak of the profiling run − CUDA graphs − a constant, over the KV bytes of
a token, in blocks of 16, least of all ranks; of a model with layers of several kinds, in the blocks of `pages`.
The constant (libraries, their workspaces, NCCL) is fitted on one start of each GPU, the baseline's. What can
mislead:

- **The peak is not the forward pass's while the compile cache is empty.** vLLM compiles inside its profiling run, and
  kernels that are tuned on the embedding hold a copy of it, which counts as activations (vLLM issues 54122, 54383). A
  first start of Qwen2.5-7B on an L4 gives up 1.3 GiB that the second gets back. The reference study's `draft-k1`
  (30,848 tokens where k 3 and 5 have 51,552) comes out as the first start of its graph, not as a variation of
  profiling: `compiled` tells the two apart.
- **How often the copy counts depends on the version.** Once, as a transient peak, in 0.25. From 0.27 on everything that
  has left the device's free memory counts, so that a segment from which sampling carved a small block counts again;
  0.32 limits the splitting and should count once (no such start was seen). That bookkeeping was read in the sources of
  0.25.1, 0.27.1, 0.28.0 and 0.32.0; that it is the embedding's segment which stays was inferred from the tables. It did
  not stay in the four TP arms of `l4x4`: counted once, they come within 1 %; as predicted, `14b-tp2` is 14 % too low.
- **n-grams need no verification buffer worth the name.** A server that speculates by n-grams or a draft model falls
  back to vLLM's first model runner, which sets an estimate for CUDA graphs aside; the second does not before 0.32. The
  estimate is 4.7 MiB a graph, the mean of four H200 logs (4.4 to 5.2).

Not modelled: NCCL's buffers apart from the constant, the weights of layers that only predict further tokens (MTP),
multimodal encoders, expert kernels' workspaces.

    >>> from serving_study.hardware import ceilings
    >>> from serving_study.models import shapes
    >>> from serving_study.theory import capacity
    >>> model = shapes.load("qwen2.5-7b-instruct")
    >>> server = capacity.Server(model, ceilings.gpu("l4"), max_num_seqs=128, version="0.27.1")
    >>> capacity.predict(server).tokens
    62512
"""

import math
import re
from dataclasses import dataclass

from ..errors import ModelError, ParameterError
from ..hardware.ceilings import Gpu
from ..models import pages
from ..models.shapes import GIB, MIB, Shape

BLOCK_TOKENS = 16
# Fitted on the baseline's start alone: 7b-tp1 of a10gx4, baseline of l4x1 (7b-tp1 of l4x4 is the same to the token),
# baseline of h200x1.
CONSTANT_GIB = {"l4": 0.1775, "a10g": 0.1861, "h200": 0.3344}
GRAPH_MIB, GRAPH_LAYERS = 4.7, 28
# What the profiling run's sampler holds for each logit: itself in bf16 and float32, its probability, its noise. With
# speculation, its verification instead: the logit in bf16, random ones for two rows, the bonus row in bf16, float32 and
# as returned, the verified row in float32 four times over.
SAMPLING_BYTES, VERIFYING_BYTES = 2 + 4 + 4 + 4, 2 + 2 * 2 + (2 + 4 + 4) + 4 * 4


@dataclass(frozen=True)
class Accounting:
    """How a version counts: embeddings held while it compiles, and whether every model runner sets the CUDA graphs'
    estimate aside.
    """

    copies: int
    graphs: bool


# By the first version that counts so, as far as sources were read: 0.25.1, 0.27.1, 0.28.0, 0.32.0. Between them the
# older one's is taken.
ACCOUNTING = {"0.25": Accounting(1, False), "0.27": Accounting(2, False), "0.32": Accounting(1, True)}


@dataclass(frozen=True)
class Server:
    """One server as its command line and its GPU decide its memory. `compiled`: the compile cache has its graphs
    already.

    `max_num_seqs` and `max_num_batched_tokens` default as in `vllm serve` on that GPU; `kv_element_bytes` 1 for an fp8
    cache; `prediction_layers` and `prefix_caching` matter where layers are of several kinds (`pages`)."""

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
    """The memory of the fullest rank, and what its KV cache holds. Negative `kv_gib`: the server runs out of memory."""

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
    def starts(self) -> bool:
        """Whether one sequence of the longest context fits, without which vLLM refuses to start."""
        return self.max_concurrency >= 1


def predict(server: Server, *, constant_gib: float | None = None) -> Capacity:
    """The server's memory by arithmetic, `tokens` being "GPU KV cache size" in vLLM's log; the constant of its GPU, or
    the mean of the three known ones, when None.
    """
    constant = (
        CONSTANT_GIB.get(server.gpu.name, sum(CONSTANT_GIB.values()) / len(CONSTANT_GIB))
        if constant_gib is None
        else constant_gib
    )
    ranks = [_rank(server, stage, constant) for stage in range(server.pp)]
    return min(ranks, key=lambda rank: (rank.tokens, rank.kv_gib))


def cuda_graphs(server: Server) -> int:
    """CUDA graphs that vLLM captures: one of each batch size piecewise, and whole ones of the sizes that decoding can
    have.
    """
    query = 1 + server.speculative_tokens
    largest = min(2 * server.sequences * query, 512)
    sizes = {size for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)) if size <= largest}
    sizes = {math.ceil(size / query) * query for size in sizes}
    piecewise = [size for size in sizes if size <= largest]
    return len(piecewise) + sum(size <= server.sequences * query for size in piecewise)


def forward_bytes(model: Shape, tokens: int, tp: int = 1) -> int:
    """Peak of one pass over `tokens` on a rank: gate, up and their product, and two copies of the hidden state."""
    get = model.config.get
    width = get("intermediate_size") or 0
    if model.experts:
        width = max(
            width,
            get("num_experts_per_tok", 1) * (get("moe_intermediate_size") or width)
            + (get("shared_expert_intermediate_size") or 0),
        )
    return tokens * (3 * width // tp + 2 * model.hidden) * model.dtype_bytes


def peak_bytes(server: Server, stage: int = 0) -> int:
    """What the profiling run holds at most on a rank of this stage: the forward pass, sampling, or compiling."""
    models = [model for model in (server.model, server.draft) if model]
    last = stage == server.pp - 1
    held = [forward_bytes(model, server.batched_tokens, server.tp) for model in models]
    if last:
        per_logit = VERIFYING_BYTES if server.speculative_tokens else SAMPLING_BYTES
        held.append(min(server.sequences, server.batched_tokens) * server.model.vocabulary * per_logit)
    if stage == 0 and not server.compiled and not server.eager:
        copies = server.accounting.copies if last else 1
        held += [copies * model.tensors(tp=server.tp)[0].elements * model.dtype_bytes for model in models]
    return max(held)


def _rank(server: Server, stage: int, constant_gib: float) -> Capacity:
    weights = server.model.weights_bytes(tp=server.tp, pp=server.pp, stage=stage)
    per_token = server.model.kv_bytes_per_token(
        tp=server.tp, pp=server.pp, stage=stage, element_bytes=server.kv_element_bytes
    )
    if server.draft:
        weights += server.draft.weights_bytes(tp=server.tp)
        per_token += server.draft.kv_bytes_per_token(tp=server.tp, element_bytes=server.kv_element_bytes)
    counted = not server.eager and (server.speculative_tokens or server.accounting.graphs)
    graphs = cuda_graphs(server) * GRAPH_MIB * MIB * server.model.layers / server.pp / GRAPH_LAYERS if counted else 0.0
    peak = peak_bytes(server, stage)
    left = math.ceil(server.gpu.memory_gib * GIB * server.utilization) - weights - peak - graphs - constant_gib * GIB
    kinds = {server.model.layer_kinds[layer] for layer in server.model.stage_layers(server.pp)[stage]}
    if kinds <= {"full", "shared", "none"}:
        tokens = max(0, math.floor(left / (BLOCK_TOKENS * per_token))) * BLOCK_TOKENS
    else:
        blocks = pages.layout(
            server.model,
            tp=server.tp,
            pp=server.pp,
            stage=stage,
            element_bytes=server.kv_element_bytes,
            speculative_tokens=server.speculative_tokens,
            prediction_layers=server.prediction_layers,
            prefix_caching=server.prefix_caching,
            max_num_batched_tokens=server.batched_tokens,
        )
        tokens, per_token = blocks.tokens(left, server.max_model_len), blocks.bytes_per_token(server.max_model_len)
    return Capacity(
        tokens,
        tokens / server.max_model_len,
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
