"""Section 7's sizes: what a model's KV cache takes, how many requests fit a host, and when a cache that exists is worth
moving. All of it arithmetic.

The frames of the notebook `07-kv-cache-sizes`, from `shapes`, `pages`, `capacity` and `reuse`. What can mislead: each
figure is a prediction unless its column says *reference*; hosts whose GPU was never calibrated have typical constants;
a length longer than the model was made for is counted all the same.

    >>> from serving_study.chapters.cache_sizes import cache_sizes
    >>> round(float(cache_sizes.against_reference()["error"].abs().max()), 4)
    0.0057
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pandas
from pydantic import Field, model_validator

from ...chapters.parameters import (
    Number,
    Parameters,
    Positive,
    Share,
    Whole,
)
from ...hardware import ceilings
from ...models import pages, shapes
from ...models.shapes import GIB
from ...results import reference
from ...theory import budgets, calibration, capacity, reuse

TOKENS = {"allowed": "1 token or more"}
DTYPES = {"auto": None, "fp8": 1}
REFERENCE_MODELS = {
    "qwen2.5-7b": "qwen2.5-7b-instruct",
    "llama-3-8b": "meta-llama-3-8b",
    "llama-3-70b": "meta-llama-3-70b",
}
HYBRID = "qwen3.5-27b"  # its shape is that of the hybrid model which the reference study measured
REFERENCE_HOST, REFERENCE_VERSION = "l4x1", "0.27.1"
LENGTHS = {"kv_gib_8k": 8192, "kv_gib_128k": 131072}


class CacheSizes(Parameters):
    """The parameters of section 7's sizes."""

    section = "7-sizes"
    verb = "make run"

    models: Annotated[list[str], Field(min_length=1)] = Field(
        [
            "qwen2.5-7b-instruct",
            "meta-llama-3-8b",
            "meta-llama-3-70b",
            "llama-2-7b",
            "qwen3-8b",
            "mistral-7b-v0.1",
            "gemma-3-27b-it",
            "gpt-oss-20b",
            "deepseek-v2-lite",
            "deepseek-v3",
            "qwen3-next-80b-a3b-instruct",
            "qwen3.5-27b",
        ],
        description="shapes that ship, folders, config.json files, or hub ids in the cache",
        json_schema_extra={"allowed": "one model or more"},
    )
    lengths: Annotated[list[Positive], Field(min_length=1)] = Field(
        [8192, 131072],
        description="tokens of a sequence, rising",
        json_schema_extra={"allowed": "tokens, 1 or more, rising"},
    )
    model: str = Field(
        "qwen2.5-7b-instruct", description="the model of the examples; one without experts that fits one GPU"
    )
    host: str = Field(
        "g6.xlarge", description="the host of the examples: an instance type or a profile of data/hardware"
    )
    other_host: str = Field("p5en.48xlarge", description="a faster one beside it")
    hosts: list[str] | None = Field(None, description="hosts of the tables; None: every instance type of data/hardware")
    memory_utilization: Share = Field(0.90, description="share of GPU memory that the server may use")
    cache_dtype: Literal[*DTYPES] = Field(
        "auto", description='of the tables of sizes: "auto" (the model\'s own, as of all times) or "fp8"'
    )
    shared_tokens: Positive = Field(3001, description="prefix that requests have in common", json_schema_extra=TOKENS)
    own_tokens: Positive = Field(20, description="of each prompt, that no other has", json_schema_extra=TOKENS)
    output_tokens: Positive = Field(128, description="of each answer", json_schema_extra=TOKENS)
    concurrency: Annotated[Whole, Field(ge=2)] = Field(16, description="requests in flight")
    hit_rates: Annotated[list[Annotated[Number, Field(ge=0, le=1)]], Field(min_length=1)] = Field(
        [0.0, 0.5, 0.9],
        description="shares of requests that find the prefix",
        json_schema_extra={"allowed": "shares from 0 to 1"},
    )
    restore_overhead_ms: Annotated[Number, Field(ge=0)] = Field(
        5.0, description="what a restored prompt costs beside its bytes: assumed, not measured"
    )

    @model_validator(mode="after")
    def _lengths_rise_and_the_example_is_dense(self) -> Self:
        self.require(self.lengths == sorted(set(self.lengths)), "lengths", "tokens, 1 or more, rising")
        self.require(not shapes.load(self.model).experts, "model", "a model without experts; `models` takes any")
        return self

    @property
    def element_bytes(self) -> int | None:
        return DTYPES[self.cache_dtype]

    def places(self) -> dict[str, ceilings.Instance]:
        """The hosts of the examples, each once, with what they reach."""
        return {name: ceilings.of_host(name) for name in dict.fromkeys((self.host, self.other_host))}


def attention(shape: shapes.Shape) -> str:
    """How a model's heads keep keys and values: `MHA`, `GQA 7:1`, `MLA`."""
    if not shape.heads:
        return "none"
    return (
        "MLA" if shape.latent else "MHA" if shape.kv_heads == shape.heads else f"GQA {shape.heads // shape.kv_heads}:1"
    )


def layers(shape: shapes.Shape) -> str:
    """In words: how many layers, and which of them do not keep every token."""
    count = shape.layer_kinds.count
    more = [f"{count('sliding')} see {shape.config['sliding_window']:,} tokens"] if count("sliding") else []
    words = {"linear": "linear", "both": "with a state too", "shared": "share a cache", "none": "without attention"}
    more += [f"{count(kind)} {said}" for kind, said in words.items() if count(kind)]
    return ", ".join([str(shape.layers), *more])


def whole_heads_bytes(shape: shapes.Shape, tokens: int) -> int:
    """What the cache would take if every layer and head kept its own keys and values of every token, in the model's own
    numbers.
    """
    width = (
        shape.config["qk_nope_head_dim"] + shape.config["qk_rope_head_dim"] + shape.config["v_head_dim"]
        if shape.latent
        else 2 * shape.head_dim
    )
    kept = sum(kind != "none" for kind in shape.layer_kinds)
    return kept * shape.heads * width * shape.dtype_bytes * tokens


def per_model(models: Sequence[str], lengths: Sequence[int], element_bytes: int | None = None) -> pandas.DataFrame:
    """One row a model: `attention` and `layers` in words, `kib_per_token` (of a sequence shorter than any window),
    `state_mib` a sequence, GiB at each length (named by the length), and `share`: that of the longest in what whole
    heads in every layer would take.
    """
    rows = []
    for name in models:
        shape = shapes.load(name)
        sizes = {length: shape.kv_bytes(length, element_bytes=element_bytes) for length in lengths}
        row = {
            "model": name,
            "attention": attention(shape),
            "layers": layers(shape),
            "kib_per_token": shape.kv_bytes_per_token(element_bytes=element_bytes) / 1024,
            "state_mib": shape.state_bytes_per_sequence() / 2**20 or math.nan,
        }
        rows.append(
            row
            | {length: size / GIB for length, size in sizes.items()}
            | {"share": sizes[lengths[-1]] / (whole_heads_bytes(shape, lengths[-1]) or math.nan)}
        )
    return pandas.DataFrame(rows)


def against_reference() -> pandas.DataFrame:
    """The reference study's arithmetic beside ours: `model`, `figure`, `reference`, `computed`, `error`."""
    figures, rows = reference.load(7).query("host == 'arithmetic'"), []
    for model, name in REFERENCE_MODELS.items():
        shape = shapes.load(name)
        computed = {
            "layers": shape.layers,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "kv_kib_per_token": shape.kv_bytes_per_token() / 1024,
        } | {metric: shape.kv_bytes(length) / GIB for metric, length in LENGTHS.items()}
        for metric, value in figures[figures["model"] == model].set_index("metric")["value"].items():
            rows.append(
                {
                    "model": model,
                    "figure": metric,
                    "reference": value,
                    "computed": computed[metric],
                    "error": computed[metric] / value - 1,
                }
            )
    return pandas.DataFrame(rows)


def hybrid_against_reference() -> pandas.DataFrame:
    """What servers of a hybrid model said, beside the blocks that `pages` counts: `setting`, `figure`, `reference`,
    `computed`, `error`.

    The study states fp8, 16 sequences, 8,192 tokens and no MTP for the fixed setting, 2 ranks and MTP for the card's.
    Three tokens of MTP, and prefix caching in the card's setting alone, are inferred: they are what gives its count of
    tokens exactly."""
    shape = shapes.load(HYBRID)
    figures = reference.load(7).query("host != 'model-card'").set_index(["arm", "metric"])["value"]
    mtp = {"speculative_tokens": 3, "prediction_layers": 1}
    card = pages.layout(shape, tp=2, element_bytes=1, **mtp)
    whole = math.ceil(figures["hybrid-card-tp2", "kv_cache_tokens"] / 262144 * card.blocks(262144))
    rows = []

    def row(setting, figure, arm, metric, computed):
        rows.append(
            {
                "setting": setting,
                "figure": figure,
                "reference": figures[arm, metric],
                "computed": computed,
                "error": computed / figures[arm, metric] - 1,
            }
        )

    fixed = {
        tp: pages.layout(shape, tp=tp, element_bytes=1, prefix_caching=False).bytes_per_token(8192) / 1024
        for tp in (1, 2)
    }
    row("8,192 tokens, 1 rank", "KiB a token, lowest", "hybrid-fixed-tp1", "kv_kib_per_token_min", fixed[1])
    row("8,192 tokens, 1 rank", "KiB a token, highest", "hybrid-fixed-tp1", "kv_kib_per_token_max", fixed[1])
    row("8,192 tokens, 2 ranks", "KiB a token", "hybrid-fixed-tp2", "kv_kib_per_token", fixed[2])
    row(
        "262,144 tokens, 2 ranks, MTP",
        "GiB a sequence",
        "hybrid-card-tp2",
        "kv_gib_per_sequence",
        card.bytes_per_sequence(262144) / GIB,
    )
    row(
        "262,144 tokens, 2 ranks, MTP",
        "KV cache (tokens)",
        "hybrid-card-tp2",
        "kv_cache_tokens",
        card.tokens(whole * card.block_bytes, 262144),
    )
    row(
        "262,144 tokens, 2 ranks, MTP",
        "maximum concurrency",
        "hybrid-card-tp2",
        "max_concurrency",
        whole / card.blocks(262144),
    )
    row(
        "262,144 tokens, 4 ranks, MTP",
        "KiB a token",
        "hybrid-varied",
        "kv_kib_per_token_min",
        pages.layout(shape, tp=4, element_bytes=1, **mtp).bytes_per_token(262144) / 1024,
    )
    row(
        "8,192 tokens, 1 rank, MTP",
        "KiB a token",
        "hybrid-varied",
        "kv_kib_per_token_max",
        pages.layout(shape, element_bytes=1, prefix_caching=False, **mtp).bytes_per_token(8192) / 1024,
    )
    return pandas.DataFrame(rows)


def reference_budget() -> capacity.Capacity:
    """The memory of the reference study's baseline, of the GPU and the version that it had."""
    return budgets.budget(REFERENCE_MODELS["qwen2.5-7b"], REFERENCE_HOST, version=REFERENCE_VERSION)


def is_reference(place: ceilings.Instance, model: str) -> bool:
    """Whether a host has the GPU, and serves the model, of the reference study's requests with one prefix."""
    served = shapes.load(model).name == REFERENCE_MODELS["qwen2.5-7b"]
    return served and place.gpu == ceilings.of_host(REFERENCE_HOST).gpu


def prefixes_against_reference(own_tokens: int = 20) -> pandas.DataFrame:
    """The reference study's five requests with one prefix: `figure`, `reference`, `predicted`, `error`.

    Its questions' length is not stated.
    """
    figures = reference.load(7).query("metric == 'ttft_ms'").set_index(["arm", "request"])["value"]
    cold = pandas.concat([figures.loc["prefix-off"], figures.loc["prefix-on"].iloc[:1]]).mean()
    warm = figures.loc["prefix-on"].iloc[1:].mean()
    prediction = reuse.prefix(
        shapes.load(calibration.TARGET),
        reuse.prefill_machine(ceilings.of_host(REFERENCE_HOST)),
        shared=3001,
        own=own_tokens,
    )
    frame = pandas.DataFrame(
        {
            "figure": ["first token without the cache (ms)", "first token with it (ms)", "gain"],
            "reference": [cold, warm, figures["prefix-on", 1] / warm],
            "predicted": [1000 * prediction.cold_s, 1000 * prediction.warm_s, prediction.gain],
        }
    )
    return frame.assign(error=frame["predicted"] / frame["reference"] - 1)


def throughputs(
    model: str,
    hosts: Sequence[str],
    hit_rates: Sequence[float],
    *,
    shared: int,
    own: int,
    output: int,
    concurrency: int,
) -> pandas.DataFrame:
    """Requests a second by host and hit rate (columns named by the rate) on one GPU, and `most`: what the highest rate
    gains over none.
    """
    shape, rows = shapes.load(model), []

    def rate(machine: reuse.Machine, hits: float) -> float:
        tokens = {"shared": shared, "own": own, "output": output}
        return reuse.request_throughput(shape, machine, **tokens, concurrency=concurrency, hit_rate=hits)

    for host in hosts:
        machine = reuse.prefill_machine(ceilings.of_host(host))
        most = rate(machine, max(hit_rates)) / rate(machine, 0.0)
        rows.append({"host": host} | {hits: rate(machine, hits) for hits in hit_rates} | {"most": most})
    return pandas.DataFrame(rows)


def throughputs_of(wanted: CacheSizes, hosts: Sequence[str]) -> pandas.DataFrame:
    """`throughputs` with the notebook's parameters."""
    return throughputs(
        wanted.model,
        hosts,
        wanted.hit_rates,
        shared=wanted.shared_tokens,
        own=wanted.own_tokens,
        output=wanted.output_tokens,
        concurrency=wanted.concurrency,
    )


def batched_tokens(host: str) -> int:
    """Tokens of one pass at most, as vLLM has it by default on this host's GPU."""
    return capacity.Deployment(shapes.load(calibration.TARGET), ceilings.of_host(host).gpu).batched_tokens


def handovers(model: str, hosts: Sequence[str], *, prompt: int, output: int, concurrency: int) -> pandas.DataFrame:
    """One row a host and link to another GPU: GB/s, ms of transfer and of prefill, TPOT of a decoding GPU and of two
    replicas, and whether it `pays`.
    """
    shape, rows = shapes.load(model), []
    for host in hosts:
        for name, link in reuse.links(ceilings.of_host(host)).items():
            if name in ("cpu", "nvme"):
                continue
            prediction = reuse.hand_over(
                shape,
                reuse.prefill_machine(ceilings.of_host(host)),
                link,
                prompt=prompt,
                output=output,
                concurrency=concurrency,
                budget=batched_tokens(host),
            )
            rows.append(
                {
                    "host": host,
                    "link": name,
                    "gb_s": link.gb_s,
                    "prefill_ms": 1000 * prediction.prefill_s,
                    "transfer_ms": 1000 * prediction.transfer_s,
                    "tpot_ms": 1000 * prediction.tpot_s,
                    "replicas_tpot_ms": 1000 * prediction.replicas_tpot_s,
                    "pays": prediction.pays,
                }
            )
    return pandas.DataFrame(rows)


def tiers(model: str, hosts: Sequence[str], overhead_s: float, lengths: Sequence[int]) -> pandas.DataFrame:
    """One row a host and tier: GB/s, tokens that break even (missing: none up to a million), and restoring over
    recomputing time at each length.
    """
    shape, rows = shapes.load(model), []
    for host in hosts:
        place = ceilings.of_host(host)
        on = reuse.prefill_machine(place)
        for name, link in reuse.links(place).items():
            if name in ("nvlink", "pcie"):
                continue
            ratios = {
                length: reuse.restore_s(shape, link, length, overhead_s=overhead_s)
                / reuse.recompute_s(shape, on, length)
                for length in lengths
            }
            rows.append(
                {
                    "host": host,
                    "tier": name,
                    "gb_s": link.gb_s,
                    "break_even": reuse.break_even_tokens(shape, on, link, overhead_s=overhead_s),
                }
                | ratios
            )
    return pandas.DataFrame(rows).astype({"break_even": "float64"})
