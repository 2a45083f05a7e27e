"""What a step of an engine should take, and what a closed loop of requests sees of it: TPOT, TTFT and throughput.

A forward pass reads the weights and the KV cache of its sequences, and multiplies its tokens with the weights; it takes
as long as both together. Requests share passes as a continuous batch does: decode tokens first, prompts in the rest of
the token budget. What can mislead: `efficiency` and `compute_efficiency` are fitted to a host's baseline alone; time in
which the GPU waits for the processor is only in `wait_s` of a round of speculation, though on a slow GPU some of it is
hidden.

    >>> rank = Work(read_bytes=14.1e9, flops_per_token=14.1e9, kv_bytes_per_token=57344)
    >>> round(1000 * pass_s(rank, Machine(300e9, 121e12), tokens=1, context=200), 1)
    47.0
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Work:
    """One forward pass of a model on one GPU: weight bytes read, FLOP a token, KV bytes a token of context. With `tp`
    above 1, `layers` and `hidden_bytes` (a token's activations) decide the all-reduces.
    """

    read_bytes: float
    flops_per_token: float
    kv_bytes_per_token: float
    layers: int = 0
    hidden_bytes: float = 0.0
    tp: int = 1
    pp: int = 1


@dataclass(frozen=True)
class Machine:
    """A GPU's ceilings (bytes/s, FLOP/s), the reached shares of them, and the link to the next GPU, or without
    `link_ring` to all others at once.
    """

    bandwidth: float
    flops: float
    efficiency: float = 1.0
    compute_efficiency: float = 0.6
    link_bandwidth: float = 0.0
    link_latency_s: float = 0.0
    link_ring: bool = True


@dataclass(frozen=True)
class Drafting:
    """k proposals a round, each kept with chance `alpha`. `draft` is the draft model's work (None: look-up in the
    text); in a round the GPU waits `wait_s` for the processor.
    """

    k: int
    alpha: float
    draft: Work | None = None
    wait_s: float = 0.0

    @property
    def tokens_a_round(self) -> float:
        return sum(self.alpha**position for position in range(self.k + 1))


def split(work: Work, tp: int = 1, pp: int = 1) -> Work:
    """The work of one rank: weights, products and cache are divided; a pipeline's stages take turns."""
    share = tp * pp
    return replace(
        work,
        read_bytes=work.read_bytes / share,
        flops_per_token=work.flops_per_token / share,
        kv_bytes_per_token=work.kv_bytes_per_token / share,
        tp=tp,
        pp=pp,
    )


def pass_s(work: Work, machine: Machine, tokens: float, context: float) -> float:
    """Seconds of one pass over `tokens` tokens and `context` tokens of KV cache, through all stages of a pipeline."""
    memory = (work.read_bytes + context * work.kv_bytes_per_token) / (machine.bandwidth * machine.efficiency)
    return work.pp * (memory + compute_s(work, machine, tokens)) + all_reduce_s(work, machine, tokens)


def compute_s(work: Work, machine: Machine, tokens: float) -> float:
    """Seconds of the matrix products alone."""
    return tokens * work.flops_per_token / (machine.flops * machine.compute_efficiency)


def all_reduce_s(work: Work, machine: Machine, tokens: float) -> float:
    """Seconds of two all-reduces a layer; zero without tensor parallelism.

    Each rank sends 2 (n - 1) / n of the activations, in n - 1 steps around a ring, or in one step where all GPUs reach
    one another directly (vLLM's `custom_all_reduce`)."""
    if work.tp == 1:
        return 0.0
    moved = 2 * (work.tp - 1) / work.tp * tokens * work.hidden_bytes
    return (
        2
        * work.layers
        * (
            machine.link_latency_s * (work.tp - 1 if machine.link_ring else 1)
            + (moved / machine.link_bandwidth if machine.link_bandwidth else 0.0)
        )
    )


def round_s(target: Work, machine: Machine, sequences: float, context: float, speculation: Drafting | None) -> float:
    """Seconds of one round of decoding for `sequences` sequences that have `context` tokens of cache in total."""
    if speculation is None:
        return pass_s(target, machine, sequences, context)
    checked = pass_s(target, machine, sequences * (speculation.k + 1), context)
    return (
        checked
        + speculation.wait_s
        + (speculation.k * pass_s(speculation.draft, machine, sequences, context) if speculation.draft else 0.0)
    )


def alpha_of(rate: float, k: int) -> float:
    """The chance α of one proposal at which k of them are accepted at `rate`: the mean of α, α², …, α^k."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sum(middle**position for position in range(1, k + 1)) / k < rate else (low, middle)
        )
    return low


def crossover(target: Work, machine: Machine, speculation: Drafting, context: int, highest: int = 4096) -> int | None:
    """The first concurrency at which rounds yield fewer tokens a second than plain steps; None when there is none up to
    `highest`.
    """
    for sequences in range(1, highest + 1):
        plain = pass_s(target, machine, sequences, sequences * context)
        if speculation.tokens_a_round * plain < round_s(target, machine, sequences, sequences * context, speculation):
            return sequences
    return None


@dataclass
class _Request:
    read: int
    made: int
    prefilled: int = 0
    done: int = 0
    began: float = 0.0
    first: float = 0.0
    last: float = 0.0


def closed_loop(
    lengths: Sequence[tuple[int, int]],
    concurrency: int,
    target: Work,
    machine: Machine,
    speculation: Drafting | None = None,
    budget: int = 2048,
    seed: int = 0,
) -> dict:
    """Run requests of (input, output) tokens through the model of an engine, `concurrency` at a time.

    Returns `median_tpot_ms`, `median_ttft_ms`, `output_throughput` and `total_token_throughput` (tokens/s), `duration`
    (s). Which proposals are kept is drawn with `seed`."""
    draw, now = random.Random(seed), 0.0
    waiting, running, finished = [_Request(read, made) for read, made in reversed(lengths)], [], []
    while waiting or running:
        while waiting and len(running) < concurrency:
            request = waiting.pop()
            request.began = now
            running.append(request)
        decoding = [request for request in running if request.prefilled >= request.read]
        left, chunks = budget - len(decoding) * (1 + (speculation.k if speculation else 0)), []
        for request in running:
            if request.prefilled < request.read and left > 0:
                chunk = min(left, request.read - request.prefilled)
                left -= chunk
                chunks.append((request, chunk))
        context = sum(request.read + request.done for request in decoding)
        prompt = sum(chunk for _, chunk in chunks)
        seconds = round_s(target, machine, len(decoding), context, speculation) if decoding else 0.0
        if prompt:
            alone = pass_s(target, machine, prompt + len(decoding), context)
            plain = pass_s(target, machine, len(decoding), context) if decoding else 0.0
            seconds += alone - plain
            if speculation and speculation.draft:
                seconds += compute_s(speculation.draft, machine, prompt)
        now += seconds
        for request in decoding:
            kept = 1
            while speculation and kept <= speculation.k and draw.random() < speculation.alpha:
                kept += 1
            request.done = min(request.made, request.done + kept)
            request.last = now
        for request, chunk in chunks:
            request.prefilled += chunk
            if request.prefilled >= request.read:
                request.done, request.first, request.last = 1, now, now
        finished += [request for request in running if request.done >= request.made]
        running = [request for request in running if request.done < request.made]
    made, read = sum(request.made for request in finished), sum(request.read for request in finished)
    paces = [1000 * (request.last - request.first) / (request.made - 1) for request in finished if request.made > 1]
    return {
        "median_tpot_ms": statistics.median(paces),
        "median_ttft_ms": 1000 * statistics.median(request.first - request.began for request in finished),
        "output_throughput": made / now,
        "total_token_throughput": (made + read) / now,
        "duration": now,
    }


def fit(
    machine: Machine, target: Work, lengths: dict[int, Sequence[tuple[int, int]]], measured: dict[int, float]
) -> Machine:
    """`machine` with the two constants that bring the baseline's TPOT (ms by concurrency) closest, relatively."""
    from scipy import optimize

    def error(constants):
        tried = replace(machine, efficiency=constants[0], compute_efficiency=constants[1])
        return [
            closed_loop(lengths[concurrency], concurrency, target, tried)["median_tpot_ms"] / wanted - 1
            for concurrency, wanted in measured.items()
        ]

    solution = optimize.least_squares(error, x0=(0.8, 0.6), bounds=((0.05, 0.02), (1.0, 1.0)), diff_step=0.02)
    return replace(machine, efficiency=float(solution.x[0]), compute_efficiency=float(solution.x[1]))
