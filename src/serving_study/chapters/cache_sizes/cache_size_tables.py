"""The tables of section 7's sizes: the frames of `cache_sizes`, as they are shown.

Each takes the notebook's parameters. What can mislead: every figure is a prediction unless its column says *reference*.

    >>> cache_size_tables.sequences(wanted)                                                  # doctest: +SKIP
"""

import pandas
from pandas.io.formats.style import Styler

from ...analysis import tables
from ...hardware import ceilings
from ...theory import budgets
from . import cache_sizes
from .cache_sizes import CacheSizes

BY_ARITHMETIC = {"kv_kib_per_token": "KiB a token", "kv_gib_8k": "GiB at 8K", "kv_gib_128k": "GiB at 128K"}


def length_name(tokens: int) -> str:
    """`128K` for a multiple of 1,024 tokens, else the number."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def hosts_of(wanted: CacheSizes) -> list[str]:
    """The hosts of the tables: the wanted ones, or every instance type that is known."""
    return wanted.hosts or list(ceilings.instances())


def reference_sums() -> Styler:
    """The reference study's arithmetic beside the one of config.json."""
    table = cache_sizes.against_reference()
    return tables.style(
        table[table["figure"].isin(BY_ARITHMETIC)].replace({"figure": BY_ARITHMETIC}),
        "The reference study’s arithmetic beside the one of config.json (BF16)",
        {"reference": "{:g}", "computed": "{:g}", "error": "{:+.1%}"},
    )


def sequences(wanted: CacheSizes) -> Styler:
    """What one sequence of each model holds at each length."""
    sizes = cache_sizes.per_model(wanted.models, wanted.lengths, wanted.element_bytes)
    at = {length: f"{length_name(length)} (GiB)" for length in wanted.lengths}
    columns = (
        {"attention": "attention", "kib_per_token": "KiB a token"}
        | at
        | {"share": "of MHA", "state_mib": "state (MiB)", "layers": "layers"}
    )
    numbers = "fp8" if wanted.element_bytes else "the model’s own numbers"
    return tables.style(
        sizes.set_index("model")[[*columns]].rename(columns=columns),
        f"KV cache of one sequence ({numbers})",
        {"KiB a token": "{:,.1f}", "state (MiB)": "{:,.0f}", "of MHA": "{:.1%}"} | dict.fromkeys(at.values(), "{:.2f}"),
        index=True,
    )


def hybrid() -> Styler:
    """What servers of a hybrid model said, beside the engine's rule."""
    return tables.style(
        cache_sizes.hybrid_against_reference(),
        "A hybrid model’s servers (reference), and the engine’s rule (computed)",
        {"reference": "{:,.6g}", "computed": "{:,.6g}", "error": "{:+.2%}"},
    )


def memory() -> Styler:
    """How the memory of the reference study's GPU is shared out at the start of its baseline."""
    known = cache_sizes.reference_budget()
    usable = 0.9 * ceilings.of_host(cache_sizes.REFERENCE_HOST).gpu.memory_gib
    parts = [
        ("of the memory that CUDA reports, 90 %", usable),
        ("weights", -known.weights_gib),
        ("most that a pass needs besides", -known.peak_gib),
        ("libraries, fitted once for this GPU", -known.constant_gib),
        ("left for the KV cache", known.kv_gib),
    ]
    return tables.style(
        pandas.DataFrame(parts, columns=["what", "GiB"]),
        "The memory of an L4 that serves Qwen2.5-7B (predicted; vLLM 0.27.1)",
        {"GiB": "{:+.2f}"},
    )


def fits(wanted: CacheSizes) -> Styler:
    """What of the example's model fits on every host, split over as many GPUs as its heads divide over."""
    fitting = budgets.fits(
        [wanted.model], hosts_of(wanted), wanted.lengths, wanted.memory_utilization, wanted.element_bytes
    )
    at = {length: f"at {length_name(length)}" for length in wanted.lengths}
    titles = {"tp": "GPUs", "weights_gib": "weights (GiB)", "kv_gib": "KV cache (GiB)"} | at
    titles |= {"reason": "reason"} if fitting["reason"].notna().any() else {}
    return tables.style(
        fitting[["host", *titles]].rename(columns=titles),
        f"What fits of {wanted.model}, {wanted.memory_utilization:.0%} of memory (predicted)",
        {"weights (GiB)": "{:.2f}", "KV cache (GiB)": "{:.1f}"} | dict.fromkeys(at.values(), "{:,.1f}"),
    )


def requests(wanted: CacheSizes) -> Styler:
    """Requests of the longest length that fit at once: models down, hosts across."""
    longest, hosts = wanted.lengths[-1], hosts_of(wanted)
    every = budgets.fits(wanted.models, hosts, [longest], wanted.memory_utilization, wanted.element_bytes)
    return tables.style(
        every.pivot(index="model", columns="host", values=longest).reindex(index=wanted.models, columns=hosts),
        f"Requests of {length_name(longest)} in flight (predicted)",
        dict.fromkeys(hosts, "{:,.1f}"),
        index=True,
    )


def prefixes(wanted: CacheSizes) -> Styler:
    """The reference study's five requests with one prefix, beside the arithmetic."""
    return tables.style(
        cache_sizes.prefixes_against_reference(wanted.own_tokens),
        "Five requests with one prefix of 3,001 tokens, on an L4",
        {"reference": "{:,.1f}", "predicted": "{:,.1f}", "error": "{:+.0%}"},
    )


def throughputs(wanted: CacheSizes) -> Styler:
    """Requests a second by the share that finds the prefix."""
    rates = {rate: f"{rate:.0%} hits" for rate in wanted.hit_rates}
    most = f"{max(wanted.hit_rates):.0%} over none"
    return tables.style(
        cache_sizes.throughputs_of(wanted, hosts_of(wanted)).rename(columns=rates | {"most": most}),
        f"Requests a second on one GPU, {wanted.model} (predicted)",
        dict.fromkeys(rates.values(), "{:.2f}") | {most: "{:.2f}×"},
    )


def handovers(wanted: CacheSizes) -> Styler:
    """Prefill on one GPU and decode on another, by host and link."""
    prompt = wanted.shared_tokens + wanted.own_tokens
    moves = cache_sizes.handovers(
        wanted.model,
        list(wanted.places()),
        prompt=prompt,
        output=wanted.output_tokens,
        concurrency=wanted.concurrency,
    )
    titles = {
        "gb_s": "GB/s",
        "prefill_ms": "prefill",
        "transfer_ms": "transfer",
        "tpot_ms": "TPOT",
        "replicas_tpot_ms": "TPOT, replicas",
    }
    return tables.style(
        moves.assign(pays=moves["pays"].map({True: "yes", False: "no"})).rename(columns=titles),
        f"{wanted.concurrency} requests on two GPUs, {prompt:,} tokens in and {wanted.output_tokens} out (predicted, "
        "times in ms)",
        dict.fromkeys(titles.values(), "{:,.1f}") | {"GB/s": "{:,.2f}", "TPOT": "{:.2f}", "TPOT, replicas": "{:.2f}"},
    )


def tiers(wanted: CacheSizes) -> Styler:
    """From which length a tier below the GPU pays, by host."""
    frame = cache_sizes.tiers(wanted.model, hosts_of(wanted), wanted.restore_overhead_ms / 1000, wanted.lengths)
    at = {length: f"fetch/compute, {length_name(length)}" for length in wanted.lengths}
    return tables.style(
        frame.rename(columns={"gb_s": "GB/s", "break_even": "pays from (tokens)"} | at),
        f"What a tier gives one GPU, {wanted.model} (predicted)",
        {"GB/s": "{:.2f}", "pays from (tokens)": "{:,.0f}"} | dict.fromkeys(at.values(), "{:.2f}"),
    )
