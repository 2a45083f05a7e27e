"""Section 7's tables, of the frames that `prefixes`, `working_sets` and `costs` make.

>>> prefix_views.gains_table(results.frame())                  # doctest: +SKIP
"""

import pandas
from pandas.io.formats.style import Styler

from ...analysis import claims, tables, verdicts
from ...hardware import prices
from ...measure import mechanisms
from . import costs
from .prefix_prose import break_even_words
from .prefixes import (
    CACHED,
    CONTROL,
    REFERENCE_PREFIX,
    SHARED,
    SOURCES,
    gains,
    predicted,
    published,
    quantised,
    requests,
    sequence,
)
from .working_sets import break_even, by_source, miss_costs, moved, read_from, tiers

LOAD = {
    "prefix_tokens": ("prefix (tokens)", "{:,.0f}"),
    "share": "{:.0%}",
    "hit_rate": ("hit rate", "{:.1%}"),
    "times": ("working set", "{:g}×"),
}
GAIN = dict.fromkeys(("gain", "low", "high"), "{:.2f}×")


def certificate(frame: pandas.DataFrame) -> Styler:
    """One row a cell: its verdict, how the mechanism was proved, and the evidence of what failed or could not be
    checked.
    """
    return tables.certificate(frame, by="load", proof=_proof)


def _proof(cell: dict) -> str:
    """The evidence of what a stored cell is about: its cache's hits, or that the caches were cold."""
    telling = "mechanism" if mechanisms.of(cell["technique"]).about_cache else "cold caches"
    return next(check["evidence"] for check in cell["certificate"]["checks"] if check["name"] == telling)


def predicted_table(plan) -> Styler:
    """What arithmetic says of a plan's host before anything runs."""
    caption = f"Predicted for this host, not measured ({plan.host.name})"
    return tables.style(predicted(plan), caption, {"value": "{:,.1f}"})


def sequence_table(frame: pandas.DataFrame, plan=None) -> Styler:
    """Requests that computed the prefix against those that found it, medians.

    With the plan of this host the reference study's stand beside it, and whether the gains may be compared.
    """
    shown = sequence(frame)
    if plan:
        theirs = published()
        shown = pandas.concat(
            [shown.assign(host=plan.host.name), theirs.assign(host="l4x1 (reference)")], ignore_index=True
        )
        shown["verdict"] = [
            _verdict(row, theirs, plan) if row.host == plan.host.name else "" for row in shown.itertuples()
        ]
        shown = shown[["host", *shown.columns.drop(["host", "verdict"]), "verdict"]]
    columns = {
        "computed": ("computed (requests)", None),
        "later": ("later (requests)", None),
        "cold_ms": ("computed (ms)", "{:,.1f}"),
        "warm_ms": ("later (ms)", "{:,.1f}"),
        "cold_hits": ("first found (tokens)", "{:,.0f}"),
        "warm_hits": ("later found (tokens)", "{:,.0f}"),
    }
    caption = f"Requests with one prefix, one after another: TTFT ({tables.labels(frame)})"
    return tables.style(shown, caption, LOAD | GAIN | columns)


def _verdict(row, theirs: pandas.DataFrame, plan) -> str:
    """In words, whether a gain may be held against the reference study's, and what came of it."""
    if row.arm not in set(theirs["arm"]):
        return ""
    model, gpus = plan.arms[0].model, plan.host.gpus
    unequal = [
        f"{what}: {ours} against {wanted}"
        for what, ours, wanted in (
            ("machine", gpus[0].name if gpus else plan.host.cpu_model, "NVIDIA L4"),
            ("model", verdicts.shape_name(model.name), "qwen2.5-7b"),
            ("weights", model.weights, "real"),
            ("prefix", row.prefix_tokens, REFERENCE_PREFIX),
        )
        if ours != wanted
    ]
    if unequal:
        return f"{verdicts.NOT_COMPARABLE} ({'; '.join(unequal)})"
    stated = theirs.set_index("arm")["gain"][row.arm]
    verdict = verdicts.REPRODUCES if verdicts.within(row.gain, stated) else verdicts.DIFFERS
    return f"{verdict} ({row.gain / stated - 1:+.1%})"


def requests_table(frame: pandas.DataFrame) -> Styler:
    """Each request of the sequence with its own hit counters; means over repeats."""
    table = requests(frame, SHARED).astype({"device": float})
    return tables.style(
        table.groupby(["arm", "request"], sort=False)[["ttft_ms", "server_ttft_ms", "device"]].mean().reset_index(),
        f"Request by request ({tables.labels(frame)})",
        {
            "ttft_ms": ("TTFT (ms)", "{:,.1f}"),
            "server_ttft_ms": ("by the server (ms)", "{:,.1f}"),
            "device": ("found in the cache (tokens)", "{:,.0f}"),
        },
    )


def overview(frame: pandas.DataFrame, starts: pandas.DataFrame | None = None) -> list:
    """The tables of one host: which figures to believe, requests one after another, under concurrency, and with
    `starts` the cache of 8-bit numbers.
    """
    made = [tables.glance(frame, by="load"), sequence_table(frame), gains_table(frame)]
    return made if starts is None else [*made, quantised_table(frame, starts)]


def gains_table(frame: pandas.DataFrame, arm: str = CACHED, price_per_hour: float | None = None) -> Styler:
    """Hit rate, gain and what is claimed of it, by prefix and share; with a price, what a thousand requests cost with
    the arm and without.
    """
    table = gains(frame, arm)
    of_ttft = table.rename(columns={"ttft_gain": "ratio"})[["ratio", "ttft_low", "ttft_high"]]
    of_ttft = of_ttft.rename(columns={"ttft_low": "low", "ttft_high": "high"})
    shown = table[["prefix_tokens", "share", "concurrency", "hit_rate", "gain", "low", "high"]].assign(
        claim=[claims.words(row, "request_throughput") for row in table.itertuples()],
        ttft_gain=[claims.ratio_text(row) for row in of_ttft.itertuples()],
    )
    if price_per_hour:
        price = costs.price_of(frame["host"].iloc[0], price_per_hour)
        shown["USD a thousand requests"] = table["request_throughput"].map(price.per_thousand)
        shown["without"] = table["control_request_throughput"].map(price.per_thousand)
    return tables.style(
        shown,
        f"{arm} against {CONTROL}: requests a second, and median TTFT ({tables.labels(frame)})",
        LOAD
        | GAIN
        | {"ttft_gain": ("TTFT gain", None)}
        | dict.fromkeys(("USD a thousand requests", "without"), "{:.4f}"),
    )


USD = {
    "usd_per_hour": ("USD an hour", "{:,.4f}"),
    "usd_per_gpu_hour": ("USD a GPU-hour", "{:,.4f}"),
    "rented_thousand": ("USD a thousand requests, instance rented whole", "{:,.4g}"),
    "rented_million": ("USD a million tokens, instance rented whole", "{:,.4g}"),
    "usd_thousand": ("USD a thousand requests, this host's GPUs", "{:,.4g}"),
    "usd_million": ("USD a million tokens, this host's GPUs", "{:,.4g}"),
    "usd_million_output": ("USD a million output tokens, this host's GPUs", "{:,.4g}"),
    "usd_million_prompt": ("USD a million prompt tokens, this host's GPUs", "{:,.4g}"),
}


def costs_table(frames: dict[str, pandas.DataFrame], paid: dict) -> Styler:
    """What the loads under concurrency cost, host by host (`costs.of_cells`), of the hosts with a price."""
    table = pandas.concat([costs.of_cells(frame, paid[host]) for host, frame in frames.items()], ignore_index=True)
    return tables.style(
        table,
        f"What requests cost, from the rates measured{'' if len(table) else ' (no price is known)'}",
        LOAD | USD | {"requests_s": ("requests a second", "{:,.2f}"), "against": ("against no cache", "{:.2f}×")},
    )


def instance_costs_table() -> Styler:
    """What tokens and requests cost instance by instance, from the rates of sections 3 and 5 (`costs.measured`)."""
    return tables.style(
        costs.measured(),
        "Instance by instance, at the concurrency with the highest rate",
        USD | {"tokens_s": ("tokens a second", "{:,.0f}")},
    )


def instances_table() -> Styler:
    """Every instance type with its price, and what fits (`costs.instances`)."""
    return tables.style(
        costs.instances(),
        f"Instance types by the hour ({prices.REGION}, Linux, on demand), and the requests that fit at once "
        "(predicted)",
        USD
        | {"gpu": ("GPU", None), "gpus": ("GPUs", None), "memory_gib": ("GiB each", "{:.1f}")}
        | {short: (f"8K requests of {short}", "{:,.1f}") for short in costs.SERVED},
    )


def quantised_table(frame: pandas.DataFrame, starts: pandas.DataFrame) -> Styler:
    """`quantised` as it is shown: counts whole, times and rates to two places."""
    table = quantised(frame, starts)
    said = [
        claims.words(row, row.what.split(",")[0]) if isinstance(row.claim, str) else tables.DASH
        for row in table.itertuples()
    ]
    shown = table.assign(
        **{
            side: [f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}" for value in table[side]]
            for side in ("own", "fp8")
        },
        ratio=list(map(claims.ratio_text, table.itertuples())),
        claim=said,
    )
    return tables.style(
        shown[["what", "own", "fp8", "ratio", "claim"]],
        f"A KV cache of 8-bit numbers beside the model's own ({tables.labels(frame)})",
    )


def tiers_table(frame: pandas.DataFrame) -> Styler:
    """Where each round's prompt tokens came from, and what that took."""
    return tables.style(
        tiers(frame),
        f"Working sets in the device's cache and below it: where prompt tokens came from ({tables.labels(frame)})",
        LOAD
        | dict.fromkeys(SOURCES, "{:.0%}")
        | {
            "prefixes": "{:.0f}",
            "capacity_tokens": ("cache (tokens)", "{:,.0f}"),
            "working_set_tokens": ("in blocks (tokens)", "{:,.0f}"),
            "median_ttft_ms": ("median TTFT (ms)", "{:,.1f}"),
        },
    )


def moved_table(frame: pandas.DataFrame, plan=None) -> Styler:
    """Bytes into and out of each tier, and what they were counted by."""
    return tables.style(
        moved(frame, plan).replace({"tier": {"": tables.DASH}}),
        f"What went below the device and came back ({tables.labels(frame)})",
        LOAD | {"in_mib": ("in (MiB)", "{:,.1f}"), "out_mib": ("out (MiB)", "{:,.1f}")},
    )


def by_source_table(frame: pandas.DataFrame) -> Styler:
    """What a prefix takes from each source; of a tier on disk, where its bytes were read from."""
    table, places = by_source(frame), read_from(frame)
    read = [places.get(row.arm) if row.source == "external" else None for row in table.itertuples()]
    return tables.style(
        table.assign(**{"disk read from": read}),
        f"What a prefix takes from each source ({tables.labels(frame)})",
        {"ttft_ms": ("median TTFT (ms)", "{:,.1f}"), "against_recompute": ("against computing", "{:.2f}×")},
    )


def break_even_table(frame: pandas.DataFrame) -> Styler:
    """Tier by tier, the length from which a prefix comes back sooner than it is computed: measured, and by the bytes
    alone.
    """
    table = break_even(frame)
    table = table.assign(pays=[break_even_words(row) for row in table.itertuples()])
    return tables.style(
        table[["arm", "pays", "predicted", "gb_s", "link_gb_s"]],
        f"From which length on a prefix comes back sooner than device-only computes it ({tables.labels(frame)})",
        {
            "predicted": ("predicted (tokens)", "{:,.0f}"),
            "gb_s": ("GB/s", "{:,.2f}"),
            "link_gb_s": ("link (GB/s)", "{:,.1f}"),
        },
    )


def miss_costs_table(frame: pandas.DataFrame) -> Styler:
    """What a hit saves and a miss loses by arm and length, and the share of hits above which a tier pays."""
    return tables.style(
        miss_costs(frame),
        f"What a miss costs in an arm with a tier, medians of requests ({tables.labels(frame)})",
        LOAD
        | {
            "computed_ms": ("device-only computes (ms)", "{:,.1f}"),
            "restored_ms": ("a hit (ms)", "{:,.1f}"),
            "missed_ms": ("a miss (ms)", "{:,.1f}"),
            "saved_ms": ("saved a hit (ms)", "{:,.1f}"),
            "lost_ms": ("lost a miss (ms)", "{:,.1f}"),
            "pays_above": ("pays above, share of hits", "{:.0%}"),
        },
    )
