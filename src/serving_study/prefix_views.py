"""Section 7's tables and figures, of the frames that `prefixes` makes: tidy frame in, styled table or Figure out.

>>> prefix_views.gains_table(results.frame())                  # doctest: +SKIP
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from pandas.io.formats.style import Styler

from . import certificates, costs, plots, prices, reference, store, tables
from .prefixes import (
    CACHED,
    CONTROL,
    DEVICE,
    OF_REFERENCE,
    REFERENCE_PREFIX,
    SOURCES,
    break_even,
    break_even_words,
    by_length,
    by_source,
    gains,
    miss_costs,
    moved,
    published,
    quantised,
    read_from,
    requests,
    sequence,
    tiers,
)

COLOURS = {"device": plots.PALETTE[3], "external": plots.PALETTE[2], "recompute": plots.PALETTE[1]}


def glance(frame: pandas.DataFrame) -> Styler:
    """Which figures to believe: loads down, arms across, each with its verdict and, where one failed, the checks that
    did.
    """
    rows = []
    for load in dict.fromkeys(frame["load"]):
        row = {"load": load}
        for arm in dict.fromkeys(frame["arm"]):
            cells = frame[(frame["arm"] == arm) & (frame["load"] == load)]
            verdicts = list(cells["certificate"])
            worst = next(
                (
                    verdict
                    for verdict in (certificates.FAIL, certificates.UNKNOWN, certificates.PASS)
                    if verdict in verdicts
                ),
                None,
            )
            row[arm] = (
                tables.DASH
                if worst is None
                else f"{tables.badge(worst)} {verdicts.count(certificates.PASS)} of "
                f"{len(verdicts)}{tables.failed_checks(cells)}"
            )
        rows.append(row)
    return tables.style(
        pandas.DataFrame(rows), f"Which figures to believe: certified cells by load ({tables.labels(frame)})"
    )


def certificate(frame: pandas.DataFrame) -> Styler:
    """One row a cell: its verdict, how the mechanism was proved, and the evidence of what failed or could not be
    checked.
    """
    rows = []
    for cell in frame.itertuples():
        stored = store.read(cell.file)
        found, telling = (
            stored["certificate"],
            "mechanism" if stored["technique"] in certificates.REUSING else "cold caches",
        )
        proof = next(check["evidence"] for check in found["checks"] if check["name"] == telling)
        rows.append(
            {
                "arm": cell.arm,
                "load": cell.load,
                "repeat": int(cell.repeat),
                "certificate": tables.badge(found["verdict"]),
                "found": proof,
                "evidence": certificates.why(found) or tables.DASH,
            }
        )
    return tables.style(pandas.DataFrame(rows), f"Certificates, and what proves the mechanism ({tables.labels(frame)})")


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
    shown = shown.rename(
        columns={
            "prefix_tokens": "prefix (tokens)",
            "computed": "computed (requests)",
            "later": "later (requests)",
            "cold_ms": "computed (ms)",
            "warm_ms": "later (ms)",
            "cold_hits": "first found (tokens)",
            "warm_hits": "later found (tokens)",
        }
    )
    formats = {
        "prefix (tokens)": "{:,.0f}",
        "computed (ms)": "{:,.1f}",
        "later (ms)": "{:,.1f}",
        **dict.fromkeys(("gain", "low", "high"), "{:.2f}×"),
        "first found (tokens)": "{:,.0f}",
        "later found (tokens)": "{:,.0f}",
    }
    return tables.style(shown, f"Requests with one prefix, one after another: TTFT ({tables.labels(frame)})", formats)


def _verdict(row, theirs: pandas.DataFrame, plan) -> str:
    """In words, whether a gain may be held against the reference study's, and what came of it."""
    if row.arm not in set(theirs["arm"]):
        return ""
    model, gpus = plan.arms[0].model, plan.host.gpus
    unequal = [
        f"{what}: {ours} against {wanted}"
        for what, ours, wanted in (
            ("machine", gpus[0].name if gpus else plan.host.cpu_model, "NVIDIA L4"),
            ("model", reference.shape_name(model.name), "qwen2.5-7b"),
            ("weights", model.weights, "real"),
            ("prefix", row.prefix_tokens, REFERENCE_PREFIX),
        )
        if ours != wanted
    ]
    if unequal:
        return f"{reference.NOT_COMPARABLE} ({'; '.join(unequal)})"
    stated = theirs.set_index("arm")["gain"][row.arm]
    verdict = reference.REPRODUCES if reference.within(row.gain, stated) else reference.DIFFERS
    return f"{verdict} ({row.gain / stated - 1:+.1%})"


def requests_table(frame: pandas.DataFrame) -> Styler:
    """Each request of the sequence with its own hit counters; means over repeats."""
    table = requests(frame)
    table = table[table["kind"] == "SharedPrefix"].astype({"device": float})
    shown = table.groupby(["arm", "request"], sort=False)[["ttft_ms", "server_ttft_ms", "device"]].mean().reset_index()
    shown = shown.rename(
        columns={
            "ttft_ms": "TTFT (ms)",
            "server_ttft_ms": "by the server (ms)",
            "device": "found in the cache (tokens)",
        }
    )
    return tables.style(
        shown,
        f"Request by request ({tables.labels(frame)})",
        {"TTFT (ms)": "{:,.1f}", "by the server (ms)": "{:,.1f}", "found in the cache (tokens)": "{:,.0f}"},
    )


def gains_table(frame: pandas.DataFrame, arm: str = CACHED, price_per_hour: float | None = None) -> Styler:
    """Hit rate and gain by prefix and share; with a price, what a thousand requests cost with the arm and without."""
    table = gains(frame, arm)
    shown = table[
        ["prefix_tokens", "share", "concurrency", "hit_rate", "gain", "low", "high", "floor", "ttft_gain"]
    ].rename(columns={"prefix_tokens": "prefix (tokens)", "hit_rate": "hit rate", "ttft_gain": "TTFT gain"})
    formats = {
        "prefix (tokens)": "{:,.0f}",
        "share": "{:.0%}",
        "hit rate": "{:.1%}",
        **dict.fromkeys(("gain", "low", "high", "TTFT gain"), "{:.2f}×"),
        "floor": "{:.3f}×",
    }
    shown["floor"] = np.exp(shown["floor"])
    if price_per_hour:
        for name, column in (
            ("USD a thousand requests", "request_throughput"),
            ("without", "control_request_throughput"),
        ):
            shown[name], formats[name] = 1000 * price_per_hour / 3600 / table[column], "{:.4f}"
    return tables.style(
        shown, f"{arm} against {CONTROL}: requests a second, and median TTFT ({tables.labels(frame)})", formats
    )


USD = {
    "usd_per_hour": "USD an hour",
    "usd_per_gpu_hour": "USD a GPU-hour",
    "rented_thousand": "USD a thousand requests, instance rented whole",
    "rented_million": "USD a million tokens, instance rented whole",
    "usd_thousand": "USD a thousand requests, this host's GPUs",
    "usd_million": "USD a million tokens, this host's GPUs",
    "usd_million_output": "USD a million output tokens, this host's GPUs",
    "usd_million_prompt": "USD a million prompt tokens, this host's GPUs",
}


def costs_table(frames: dict[str, pandas.DataFrame], paid: dict) -> Styler:
    """What the loads under concurrency cost, host by host (`costs.of_cells`), of the hosts with a price."""
    table = pandas.concat([costs.of_cells(frame, paid[host]) for host, frame in frames.items()], ignore_index=True)
    shown = table.rename(
        columns=USD
        | {
            "prefix_tokens": "prefix (tokens)",
            "hit_rate": "hit rate",
            "requests_s": "requests a second",
            "against": "against no cache",
        }
    )
    formats = {
        "prefix (tokens)": "{:,.0f}",
        "share": "{:.0%}",
        "hit rate": "{:.1%}",
        "requests a second": "{:,.2f}",
        "against no cache": "{:.2f}×",
        **dict.fromkeys(USD.values(), "{:,.4g}"),
    }
    return tables.style(
        shown, f"What requests cost, from the rates measured{'' if len(table) else ' (no price is known)'}", formats
    )


def instance_costs_table() -> Styler:
    """What tokens and requests cost instance by instance, from the rates of sections 3 and 5 (`costs.measured`)."""
    shown = costs.measured().rename(columns=USD | {"tokens_s": "tokens a second"})
    return tables.style(
        shown,
        "Instance by instance, at the concurrency with the highest rate",
        {"tokens a second": "{:,.0f}", **dict.fromkeys(USD.values(), "{:,.4g}")},
    )


def instances_table() -> Styler:
    """Every instance type with its price, and what fits (`costs.instances`)."""
    shown = costs.instances().rename(
        columns=USD
        | {"gpu": "GPU", "gpus": "GPUs", "memory_gib": "GiB each"}
        | {short: f"8K requests of {short}" for short in costs.SERVED}
    )
    return tables.style(
        shown,
        f"Instance types by the hour ({prices.REGION}, Linux, on demand), and the requests that fit at once "
        "(predicted)",
        {
            "GiB each": "{:.1f}",
            "USD an hour": "{:,.4f}",
            "USD a GPU-hour": "{:,.4f}",
            **{f"8K requests of {short}": "{:,.1f}" for short in costs.SERVED},
        },
    )


def quantised_table(frame: pandas.DataFrame, starts: pandas.DataFrame) -> Styler:
    """`quantised` as it is shown: counts whole, times and rates to two places."""
    table = quantised(frame, starts)
    shown = table.assign(
        **{
            side: [f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}" for value in table[side]]
            for side in ("own", "fp8")
        }
    )
    return tables.style(
        shown, f"A KV cache of 8-bit numbers beside the model's own ({tables.labels(frame)})", {"ratio": "{:.2f}×"}
    )


def tiers_table(frame: pandas.DataFrame) -> Styler:
    """Where each round's prompt tokens came from, and what that took."""
    shown = tiers(frame).rename(
        columns={
            "times": "working set",
            "capacity_tokens": "cache (tokens)",
            "working_set_tokens": "in blocks (tokens)",
            "median_ttft_ms": "median TTFT (ms)",
        }
    )
    formats = {
        "working set": "{:g}×",
        "prefixes": "{:.0f}",
        "cache (tokens)": "{:,.0f}",
        "in blocks (tokens)": "{:,.0f}",
        **dict.fromkeys(SOURCES, "{:.0%}"),
        "median TTFT (ms)": "{:,.1f}",
    }
    return tables.style(
        shown,
        f"Working sets in the device's cache and below it: where prompt tokens came from ({tables.labels(frame)})",
        formats,
    )


def moved_table(frame: pandas.DataFrame, plan=None) -> Styler:
    """Bytes into and out of each tier, and what they were counted by."""
    shown = (
        moved(frame, plan)
        .replace({"tier": {"": tables.DASH}})
        .rename(columns={"times": "working set", "in_mib": "in (MiB)", "out_mib": "out (MiB)"})
    )
    return tables.style(
        shown,
        f"What went below the device and came back ({tables.labels(frame)})",
        {"working set": "{:g}×", "in (MiB)": "{:,.1f}", "out (MiB)": "{:,.1f}"},
    )


def by_source_table(frame: pandas.DataFrame) -> Styler:
    """What a prefix takes from each source; of a tier on disk, where its bytes were read from."""
    table, places = by_source(frame), read_from(frame)
    shown = table.assign(
        reason=[places.get(row.arm) if row.source == "external" else None for row in table.itertuples()]
    ).rename(
        columns={"ttft_ms": "median TTFT (ms)", "against_recompute": "against computing", "reason": "disk read from"}
    )
    return tables.style(
        shown,
        f"What a prefix takes from each source ({tables.labels(frame)})",
        {"median TTFT (ms)": "{:,.1f}", "against computing": "{:.2f}×"},
    )


def break_even_table(frame: pandas.DataFrame) -> Styler:
    """Tier by tier, the length from which a prefix comes back sooner than it is computed: measured, and by the bytes
    alone.
    """
    table = break_even(frame)
    shown = pandas.DataFrame(
        {
            "arm": table["arm"],
            "pays": [break_even_words(row) for row in table.itertuples()],
            "predicted (tokens)": table["predicted"],
            "GB/s": table["gb_s"],
            "link (GB/s)": table["link_gb_s"],
        }
    )
    formats = {"predicted (tokens)": "{:,.0f}", "GB/s": "{:,.2f}", "link (GB/s)": "{:,.1f}"}
    return tables.style(
        shown,
        f"From which length on a prefix comes back sooner than device-only computes it ({tables.labels(frame)})",
        formats,
    )


def miss_costs_table(frame: pandas.DataFrame) -> Styler:
    """What a hit saves and a miss loses by arm and length, and the share of hits above which a tier pays."""
    names = {
        "prefix_tokens": "prefix (tokens)",
        "computed_ms": "device-only computes (ms)",
        "restored_ms": "a hit (ms)",
        "missed_ms": "a miss (ms)",
        "saved_ms": "saved a hit (ms)",
        "lost_ms": "lost a miss (ms)",
        "pays_above": "pays above, share of hits",
    }
    formats = {name: "{:,.1f}" for name in names.values() if name.endswith("(ms)")}
    return tables.style(
        miss_costs(frame).rename(columns=names),
        f"What a miss costs in an arm with a tier, medians of requests ({tables.labels(frame)})",
        formats | {"prefix (tokens)": "{:,.0f}", "pays above, share of hits": "{:.0%}"},
    )


def break_even_figure(frame: pandas.DataFrame) -> Figure:
    """Median TTFT over the prefix's length: computed by `device-only`, and given back by each tier."""
    table = by_length(frame)
    figure, axis = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
    computed = table.drop_duplicates("prefix_tokens").sort_values("prefix_tokens")
    axis.plot(
        computed["prefix_tokens"],
        computed["computed_ms"],
        "o--",
        color="black",
        markersize=4,
        lw=1.2,
        label=f"computed ({DEVICE})",
    )
    palette = plots.colours(table["arm"])
    for arm, mine in table.groupby("arm", sort=False):
        axis.plot(
            mine["prefix_tokens"],
            mine["restored_ms"],
            "o-",
            color=palette[arm],
            markersize=4,
            lw=1.4,
            label=f"given back: {arm}",
        )
    axis.set(xlabel="tokens of the prefix", ylabel="median TTFT (ms)", xscale="log", yscale="log")
    lengths = list(computed["prefix_tokens"])
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.legend(fontsize=7.5)
    axis.set_title(tables.labels(frame), fontsize=9, loc="right")
    return figure


def sequence_figure(frame: pandas.DataFrame) -> Figure:
    """TTFT request by request, one line an arm, the reference study's as crosses relative to each first request."""
    table = requests(frame)
    table = table[table["kind"] == "SharedPrefix"]
    figure, axis = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    palette = plots.colours(table["arm"])
    for arm, mine in table.groupby("arm", sort=False):
        line = mine.groupby("request")["ttft_ms"].mean()
        axis.plot(line.index, line / line.iloc[0], marker="o", markersize=4, lw=1.4, color=palette[arm], label=arm)
    figures = reference.load(7).query("metric == 'ttft_ms' and host == 'l4x1'")
    for arm, mine in figures.groupby("arm", sort=False):
        line = mine.set_index("request")["value"]
        axis.plot(
            line.index,
            line / line.iloc[0],
            "x",
            color=palette.get(OF_REFERENCE[arm], "black"),
            label=f"{OF_REFERENCE[arm]}, reference",
        )
    axis.set(xlabel="request", ylabel="TTFT, the first one's being 1", ylim=(0, None))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=7.5)
    axis.set_title(tables.labels(frame), fontsize=9, loc="right")
    return figure


def gains_figure(frame: pandas.DataFrame, arm: str = CACHED) -> Figure:
    """Gain in requests a second and in TTFT over the measured hit rate, one line a prefix length, with the interval
    over repeats.
    """
    table = gains(frame, arm)
    figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.3), layout="constrained")
    palette = plots.colours(sorted(table["prefix_tokens"].unique()))
    for prefix, mine in table.groupby("prefix_tokens"):
        mine = mine.sort_values("hit_rate")
        errors = np.nan_to_num(np.array([mine["gain"] - mine["low"], mine["high"] - mine["gain"]], dtype=float))
        axes[0].errorbar(
            mine["hit_rate"],
            mine["gain"],
            yerr=errors,
            marker="o",
            markersize=3.5,
            lw=1.4,
            capsize=2.5,
            color=palette[prefix],
            label=f"{prefix:,} tokens",
        )
        axes[1].plot(mine["hit_rate"], mine["ttft_gain"], marker="o", markersize=3.5, lw=1.4, color=palette[prefix])
    for axis, name in zip(axes, ("requests a second", "median TTFT"), strict=True):
        axis.axhline(1, color="black", lw=0.9)
        axis.set(xlabel="hit rate (of prompt tokens, measured)", ylabel=f"gain: {name}", xlim=(-0.02, 1.02))
    axes[1].set_yscale("log")
    for set_formatter in (axes[1].yaxis.set_major_formatter, axes[1].yaxis.set_minor_formatter):
        set_formatter("{x:.2g}×")
    if len(table):
        axes[0].legend(fontsize=7.5, title="prefix", title_fontsize=7.5)
    figure.suptitle(tables.labels(frame), fontsize=9, x=0.99, ha="right")
    return figure


def tiers_figure(frame: pandas.DataFrame) -> Figure:
    """Where the tokens of the last round came from over the working set's size (bars), and its median TTFT (dots), one
    panel an arm.
    """
    table = tiers(frame)
    table = table[table["round"] == table["round"].max()]
    arms = list(dict.fromkeys(table["arm"]))
    across = min(4, max(1, len(arms)))
    down = -(-max(1, len(arms)) // across)
    figure, axes = plt.subplots(
        down, across, figsize=(1.2 + 2.7 * across, 0.5 + 2.8 * down), squeeze=False, sharey=True, layout="constrained"
    )
    for axis in axes.flat[len(arms) :]:
        axis.set_visible(False)
    most = table["median_ttft_ms"].max() if len(table) else 1.0
    for place, (axis, arm) in enumerate(zip(axes.flat, arms, strict=False)):
        mine = table[table["arm"] == arm].sort_values("times")
        places, bottom = np.arange(len(mine)), np.zeros(len(mine))
        for source in SOURCES:
            axis.bar(places, mine[source], bottom=bottom, color=COLOURS[source], width=0.7, label=source)
            bottom = bottom + mine[source].to_numpy(float)
        right = axis.twinx()
        right.plot(places, mine["median_ttft_ms"], "o-", color="black", markersize=4, lw=1.0, label="median TTFT")
        right.set_ylim(0, 1.1 * most)
        right.grid(False)
        right.spines["right"].set_visible(True)
        if arm == arms[-1] or place % across == across - 1:
            right.set_ylabel("median TTFT (ms)")
        else:
            right.set_yticklabels([])
        axis.set_xticks(places, [f"{times:g}×" for times in mine["times"]])
        axis.set_title(arm, fontsize=9)
        axis.grid(False)
    for row in axes:
        row[0].set_ylabel("share of prompt tokens")
    figure.supxlabel("working set, in multiples of the cache", fontsize=9)
    if arms:
        figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=7.5, ncols=3, loc="outside upper left")
    figure.suptitle(tables.labels(frame), fontsize=9, x=0.99, ha="right")
    return figure
