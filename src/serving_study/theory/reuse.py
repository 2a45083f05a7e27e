"""When an existing KV cache is worth having: shared prefixes, prefill on other GPUs, and tiers below GPU memory.

Each trades bytes moved against arithmetic saved: bytes by `shapes`, arithmetic by `latency`'s prefill with attention
added, which grows with the square of the prompt. What can mislead: times have `calibration`'s constants and nothing of
what engine, HTTP server and connector add (about 10 ms a request in the reference study's prefixes); transfers are
counted whole, though engines may send layer by layer; links are taken to be unshared.

    >>> from serving_study.hardware import ceilings
    >>> from serving_study.models import shapes
    >>> from serving_study.theory import reuse
    >>> on = reuse.prefill_machine(ceilings.of_host("g6.xlarge"))
    >>> found = reuse.prefix(shapes.load("qwen2.5-7b-instruct"), on, shared=3001, own=20)
    >>> found.cached_tokens, found.gain > 10
    (2992, True)
"""

import csv
import functools
import math
from dataclasses import dataclass, replace

from ..errors import ParameterError, StoreError
from ..hardware.ceilings import FOLDER, Instance
from ..models import pages
from ..models.shapes import Shape
from . import calibration
from .latency import Machine, Work, compute_s, pass_s, split

BLOCK_TOKENS = pages.ALIGNMENT  # of vLLM's prefix cache where all layers are alike
BATCHED_TOKENS = 2048  # vLLM's --max-num-batched-tokens on a GPU below 70 GiB; `capacity.Deployment` has the others'
PCIE_SHARE = 25 / 32  # what is reached of 16 lanes of the fourth generation (reference study, section 5: about 25 GB/s)
# One TCP flow between instances of one cluster placement group; 5 Gbit/s outside of one, 25 with ENA Express
# (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-network-bandwidth.html).
TCP_FLOW_GBIT_S = 10.0
READ_BYTES = 4096  # of the reads that storage.csv counts


@dataclass(frozen=True)
class Link:
    """A way into a GPU's memory, in 10⁹ bytes a second for one GPU, and where the figure is from."""

    name: str
    gb_s: float
    source: str

    def seconds(self, size_bytes: float) -> float:
        return size_bytes / (1e9 * self.gb_s)


def prefill_machine(host: Instance) -> Machine:
    """The calibrated machine with at most the typical share of its matrix rate.

    The share is fitted to decoding, which computes so little that it comes out near 1; no prefill reaches that.
    """
    machine = calibration.calibrated(host)
    return replace(machine, compute_efficiency=min(machine.compute_efficiency, calibration.TYPICAL[1]))


def links(host: Instance) -> dict[str, Link]:
    """The ways in which a GPU of this host can be given a KV cache, fastest kind first.

    `nvlink` and `pcie` are from another GPU, `efa` and `tcp` from another host, `cpu` (host memory) and `nvme`
    (instance store) are tiers. Each is one GPU's share while all fetch at once; ways that the host does not have or its
    tables do not state are left out."""
    pcie = host.gpu.pcie_gb_s * PCIE_SHARE
    host_links = (
        {"nvlink": Link("nvlink", host.gpu.nvlink_gb_s, host.gpu.source_title)} if host.link == "nvlink" else {}
    )
    if host.count > 1:
        host_links["pcie"] = Link("pcie", pcie, "PCIe by datasheet, the share that the reference study states")
    host_links["cpu"] = Link("cpu", pcie, "PCIe by datasheet, the share that the reference study states")
    if host.efa:
        host_links["efa"] = Link("efa", min(pcie, host.network_gbit_s / 8 / host.count), host.source_title)
    if host.network_gbit_s:
        host_links["tcp"] = Link(
            "tcp",
            min(TCP_FLOW_GBIT_S, host.network_gbit_s / host.count) / 8,
            "Amazon EC2 instance network bandwidth: one flow",
        )
    if host.name in storage():
        host_links["nvme"] = Link(
            "nvme",
            min(pcie, storage()[host.name] / host.count),
            "instance store: read operations of 4 KiB, a lower bound",
        )
    return host_links


@functools.cache
def storage() -> dict[str, float]:
    """Instance type to the read rate of its instance store, GB/s, with random reads of 4 KiB.

    Raises StoreError for a damaged table."""
    path = FOLDER / "storage.csv"
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return {
                row["instance"]: int(row["read_iops"]) * READ_BYTES / 1e9 for row in csv.DictReader(file, strict=True)
            }
    except (OSError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            "the table of instance stores cannot be read", value=f"{path}: {error}", next=f"git checkout {path}"
        ) from None


def attention_flops(shape: Shape, tokens: float, cached: float = 0.0) -> float:
    """FLOP of attention in all layers: scores and values of `tokens` new tokens over each other and `cached` earlier
    ones.

    It is causal; a sliding layer sees its window; linear attention is counted with the weights' products."""
    heads, per_pair = shape.heads, 2 * (shape.head_dim + shape.head_dim)
    if shape.latent:
        per_pair = 2 * (
            shape.config["qk_nope_head_dim"] + shape.config["qk_rope_head_dim"] + shape.config["v_head_dim"]
        )
    everything = tokens * cached + tokens * (tokens + 1) / 2
    window = shape.config.get("sliding_window") or math.inf
    growing = min(tokens, max(0.0, window - cached))
    windowed = (
        growing * cached + growing * (growing + 1) / 2 + (tokens - growing) * (window if math.isfinite(window) else 0.0)
    )
    pairs = shape.layer_kinds.count("full") * everything + shape.layer_kinds.count("sliding") * min(
        windowed, everything
    )
    return pairs * heads * per_pair


def prefill_s(
    shape: Shape,
    machine: Machine,
    tokens: int,
    *,
    cached: int = 0,
    tp: int = 1,
    budget: int = BATCHED_TOKENS,
    alone: bool = True,
) -> float:
    """Seconds to compute `tokens` of a prompt whose first `cached` tokens have their KV, in passes of at most `budget`
    tokens.

    The output head is computed for the last token only. With `alone` false: the arithmetic that the prompt adds to
    passes that run anyway. Raises ParameterError for a model with experts, of which a pass reads only some."""
    if tokens < 1 or cached < 0 or budget < 1:
        raise ParameterError(
            "no such prefill",
            value=f"{tokens} tokens, {cached} cached, {budget} a pass",
            allowed="1 token or more, 0 cached or more, 1 a pass or more",
        )
    rank, seconds, done = _work(shape, tp), 0.0, 0
    while done < tokens:
        chunk, context = min(budget, tokens - done), cached + done
        whole = replace(
            rank, flops_per_token=rank.flops_per_token + attention_flops(shape, chunk, context) / chunk / tp
        )
        seconds += pass_s(whole, machine, chunk, context) if alone else compute_s(whole, machine, chunk)
        done += chunk
    return seconds


@dataclass(frozen=True)
class Prefix:
    """A prompt of `tokens`, `cached_tokens` of them found: seconds to the first token without the cache and with it."""

    tokens: int
    cached_tokens: int
    cold_s: float
    warm_s: float

    @property
    def gain(self) -> float:
        return self.cold_s / self.warm_s


def prefix(
    shape: Shape,
    machine: Machine,
    *,
    shared: int,
    own: int,
    tp: int = 1,
    budget: int = BATCHED_TOKENS,
    block_tokens: int | None = None,
) -> Prefix:
    """Time to first token of a prompt with `shared` tokens of an earlier one and `own` new ones; one request alone.

    `block_tokens` of the prefix cache; None: `pages` decides."""
    prompt = shared + own
    cached_tokens = pages.cached_tokens(shared, prompt, block_tokens or pages.layout(shape, tp=tp).block_tokens)
    cold = prefill_s(shape, machine, prompt, tp=tp, budget=budget)
    return Prefix(
        prompt,
        cached_tokens,
        cold,
        prefill_s(shape, machine, prompt - cached_tokens, cached=cached_tokens, tp=tp, budget=budget),
    )


def request_throughput(
    shape: Shape,
    machine: Machine,
    *,
    shared: int,
    own: int,
    output: int,
    concurrency: int,
    hit_rate: float,
    tp: int = 1,
    block_tokens: int | None = None,
) -> float:
    """Requests a second of a busy server when a share `hit_rate` of them finds the prefix.

    While one slot makes its `output` tokens, each of the `concurrency` slots has one prompt computed. Their cache is
    assumed to fit (`capacity`), with a hit's blocks held once for all."""
    if not 0 <= hit_rate <= 1:
        raise ParameterError("no such hit rate", value=hit_rate, allowed="a share from 0 to 1")
    prompt = shared + own
    cached_tokens = pages.cached_tokens(shared, prompt, block_tokens or pages.layout(shape, tp=tp).block_tokens)
    cold = prefill_s(shape, machine, prompt, tp=tp, alone=False)
    warm = prefill_s(shape, machine, prompt - cached_tokens, cached=cached_tokens, tp=tp, alone=False)
    steps = output * _step_s(shape, machine, concurrency, prompt + output / 2, tp)
    return concurrency / (steps + concurrency * (hit_rate * warm + (1 - hit_rate) * cold))


@dataclass(frozen=True)
class Handover:
    """Prefill on one GPU and decode on another, against two replicas that do both: the cost of a prompt, and TPOT and
    requests a second of either.
    """

    kv_bytes: int
    prefill_s: float
    transfer_s: float
    tpot_s: float
    replicas_tpot_s: float
    request_throughput: float
    replicas_request_throughput: float

    @property
    def pays(self) -> bool:
        """Whether moving the cache is quicker than computing it, and decoding steadier than on the replicas."""
        return self.transfer_s < self.prefill_s and self.tpot_s < self.replicas_tpot_s


def hand_over(
    shape: Shape,
    machine: Machine,
    link: Link,
    *,
    prompt: int,
    output: int,
    concurrency: int,
    tp: int = 1,
    budget: int = BATCHED_TOKENS,
) -> Handover:
    """Two GPUs (or groups of `tp`) and `concurrency` requests between them; the transfer adds once to time to first
    token.

    Raises ParameterError for fewer requests than replicas."""
    if concurrency < 2:
        raise ParameterError("too few requests for two GPUs", value=concurrency, allowed="2 or more")
    size = shape.kv_bytes(prompt, tp=tp)
    whole, added = (
        prefill_s(shape, machine, prompt, tp=tp, budget=budget),
        prefill_s(shape, machine, prompt, tp=tp, alone=False),
    )
    moved, context, half = link.seconds(size), prompt + output / 2, concurrency / 2
    mixed = output * _step_s(shape, machine, half, context, tp) + half * added
    steady = _step_s(shape, machine, concurrency, context, tp)
    served = min(1 / whole, concurrency / (whole + moved + output * steady))
    return Handover(size, whole, moved, steady, (mixed - added) / output, served, concurrency / mixed)


def needed_gb_s(
    shape: Shape, machine: Machine, prompt: int, *, share: float = 1.0, tp: int = 1, budget: int = BATCHED_TOKENS
) -> float:
    """GB/s by GPU at which a prompt's KV cache moves in `share` of the time that its prefill takes."""
    return shape.kv_bytes(prompt, tp=tp) / (share * prefill_s(shape, machine, prompt, tp=tp, budget=budget)) / 1e9


def restore_s(shape: Shape, link: Link, tokens: int, *, overhead_s: float = 0.0, tp: int = 1) -> float:
    """Seconds until the KV cache of `tokens` is back in GPU memory: `overhead_s` a request, and the bytes. Meanwhile
    the GPU can work for others.
    """
    return overhead_s + link.seconds(shape.kv_bytes(tokens, tp=tp))


def recompute_s(shape: Shape, machine: Machine, tokens: int, *, tp: int = 1) -> float:
    """Seconds of arithmetic to compute these tokens again, in passes that run anyway."""
    return prefill_s(shape, machine, tokens, tp=tp, budget=tokens, alone=False)


def break_even_tokens(
    shape: Shape, machine: Machine, link: Link, *, overhead_s: float = 0.0, tp: int = 1, highest: int = 2**20
) -> int | None:
    """The shortest prefix, in whole blocks, that is restored faster than computed; None where there is none up to
    `highest`.

    There is one such length: recomputing grows at least in proportion to the tokens, restoring at most."""

    def pays(blocks: int) -> bool:
        restored_s = restore_s(shape, link, blocks * BLOCK_TOKENS, overhead_s=overhead_s, tp=tp)
        return restored_s < recompute_s(shape, machine, blocks * BLOCK_TOKENS, tp=tp)

    low, high = 0, highest // BLOCK_TOKENS
    if not pays(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high * BLOCK_TOKENS


def _work(shape: Shape, tp: int) -> Work:
    """A rank's work in a prefill: `calibration.work` without the output head, which runs for one token a prompt."""
    if shape.experts:
        raise ParameterError(
            "the time of a pass is not predicted for a model with experts", value=shape.name, allowed="a dense model"
        )
    head = shape.vocabulary * shape.hidden * shape.dtype_bytes
    # Only full attention's cache grows with context; windows and states are small beside the weights.
    growing = (
        shape.kv_bytes_per_token(context=math.inf) if "sliding" in shape.layer_kinds else shape.kv_bytes_per_token()
    )
    whole = Work(
        shape.read_bytes,
        2 * (shape.read_bytes - head) / shape.dtype_bytes,
        growing,
        shape.layers,
        shape.hidden * shape.dtype_bytes,
    )
    return split(whole, tp)


def _step_s(shape: Shape, machine: Machine, sequences: float, context: float, tp: int) -> float:
    """Seconds of one decode step for `sequences` of so much context each."""
    rank = _work(shape, tp)
    return pass_s(rank, machine, sequences, sequences * context)
