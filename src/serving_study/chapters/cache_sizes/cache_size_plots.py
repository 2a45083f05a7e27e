"""The figures of section 7's sizes: what arithmetic says over the length of a sequence, a prefix or a prompt.

Each takes the notebook's parameters; the hosts of the examples are a panel each.

    >>> cache_size_plots.prefixes(wanted)                                                    # doctest: +SKIP
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas
import seaborn
from matplotlib.figure import Figure

from ...analysis import plots
from ...hardware.ceilings import Instance
from ...models import shapes
from ...theory import reuse
from . import cache_sizes
from .cache_sizes import CacheSizes

PROMPTS = (256, 1024, 4096, 16384, 65536)
TIER_COLOURS = plots.colours(["", "cpu", "efa", "tcp", "nvme"])
COLD, WARM = "not cached", "cached"


def lengths(wanted: CacheSizes) -> Figure:
    """What one sequence of each model holds over its length, and the memory of the examples' GPUs."""
    contexts = 2 ** np.arange(8, 18)
    figure, axis = plt.subplots(figsize=(6.6, 4.4), layout="constrained")
    for number, name in enumerate(wanted.models):
        shape = shapes.load(name)
        sizes = [shape.kv_bytes(int(tokens), element_bytes=wanted.element_bytes) / 2**30 for tokens in contexts]
        dashes = "-" if number < 8 else "--"
        axis.plot(contexts, sizes, color=plots.PALETTE[number % 8], ls=dashes, lw=1.4, label=name)
    for place in wanted.places().values():
        axis.axhline(place.gpu.memory_gib, color="0.5", lw=0.9, ls=":")
        words = f"memory of one {place.gpu.name.upper()}"
        axis.text(contexts[0], 1.08 * place.gpu.memory_gib, words, fontsize=8, color="0.35")
    axis.set(xscale="log", yscale="log", xlabel="tokens of the sequence", ylabel="KV cache (GiB)")
    axis.legend(fontsize=7, ncols=2, loc="lower right")
    return figure


def prefixes(wanted: CacheSizes) -> Figure:
    """Time to first token over the length of a prefix, computed and found, a panel a host."""
    rows = pandas.concat([_prefixes(wanted, host, place) for host, place in wanted.places().items()], ignore_index=True)
    grid = seaborn.FacetGrid(rows, col="host", height=3.4, aspect=4.2 / 3.4, sharey=False)
    for host, axis in grid.axes_dict.items():
        seaborn.lineplot(
            rows[rows["host"] == host],
            x="shared",
            y="ms",
            hue="how",
            palette={f"{COLD}, predicted": plots.PALETTE[1], f"{WARM}, predicted": plots.PALETTE[2]},
            ax=axis,
        )
        if cache_sizes.is_reference(wanted.places()[host], wanted.model):
            published = cache_sizes.prefixes_against_reference(wanted.own_tokens)["reference"]
            for number, how in enumerate((COLD, WARM)):
                axis.plot(3001, published[number], "x", color=plots.PALETTE[1 + number], label=f"{how}, reference")
        axis.legend(fontsize=7.5, title=None)
    grid.set(xscale="log", yscale="log", xlabel="shared tokens", ylabel="time to first token (ms)")
    grid.set_titles("{col_name}")
    return grid.figure


def links(wanted: CacheSizes) -> Figure:
    """The rate at which a prompt's cache moves as fast as it is computed, and what each host's links carry."""
    plain = [shape for shape in map(shapes.load, wanted.models) if not shape.experts]
    places = wanted.places()
    rows = pandas.DataFrame(
        [
            (_panel(host, place), shape.name, tokens, _needed(shape, host, place, tokens))
            for host, place in places.items()
            for shape in plain
            for tokens in PROMPTS
        ],
        columns=["panel", "model", "tokens", "gb_s"],
    )
    palette = {shape.name: plots.PALETTE[number % 8] for number, shape in enumerate(plain)}
    grid = seaborn.relplot(
        rows, kind="line", x="tokens", y="gb_s", hue="model", col="panel", palette=palette, height=3.9, lw=1.3
    )
    for host, place in places.items():
        offered = {name: link.gb_s for name, link in reuse.links(place).items() if name not in ("cpu", "nvme")}
        axis = grid.axes_dict[_panel(host, place)]
        for rate in dict.fromkeys(offered.values()):
            axis.axhline(rate, color="0.5", lw=0.9, ls=":")
            names = ", ".join(name for name in offered if offered[name] == rate)
            axis.text(PROMPTS[-1], 1.06 * rate, names, fontsize=7.5, color="0.35", ha="right")
    grid.set(xscale="log", yscale="log")
    grid.set_axis_labels("tokens of the prompt", "GB/s that keep up with prefill").set_titles("{col_name}")
    seaborn.move_legend(grid, "upper center", bbox_to_anchor=(0.5, 0), ncol=4, title=None, fontsize=7.5)
    return grid.figure


def tiers(wanted: CacheSizes) -> Figure:
    """How many times sooner a prefix is fetched than computed, a panel a host, a line a tier."""
    rows = pandas.DataFrame(
        [
            (host, tier, f"{tier}, {link.gb_s:.2g} GB/s", tokens, ratio)
            for host, place in wanted.places().items()
            for tier, link in reuse.links(place).items()
            if tier not in ("nvlink", "pcie")
            for tokens, ratio in _fetching(wanted, place, link).items()
        ],
        columns=["host", "tier", "label", "tokens", "ratio"],
    )
    grid = seaborn.FacetGrid(rows, col="host", height=3.4, aspect=4.2 / 3.4)
    for host, axis in grid.axes_dict.items():
        shown = rows[rows["host"] == host]
        tier_of = shown.drop_duplicates("label").set_index("label")["tier"]
        seaborn.lineplot(
            shown,
            x="tokens",
            y="ratio",
            hue="label",
            palette={label: TIER_COLOURS[tier] for label, tier in tier_of.items()},
            style="label",
            dashes={label: (4, 1.5) if tier == "efa" else "" for label, tier in tier_of.items()},
            ax=axis,
        )
        axis.axhline(1, color="black", lw=0.9)
        axis.legend(fontsize=7.5, title=None)
    grid.set(xscale="log", yscale="log")
    grid.set_axis_labels("tokens of the prefix", "times quicker to fetch than to compute").set_titles("{col_name}")
    return grid.figure


def _prefixes(wanted: CacheSizes, host: str, place: Instance) -> pandas.DataFrame:
    shape, machine, rows = shapes.load(wanted.model), reuse.prefill_machine(place), []
    for tokens in map(int, np.unique(np.geomspace(64, 32768, 40).astype(int))):
        prediction = reuse.prefix(
            shape, machine, shared=tokens, own=wanted.own_tokens, budget=cache_sizes.batched_tokens(host)
        )
        rows.append({"host": host, "shared": tokens, "how": f"{COLD}, predicted", "ms": 1000 * prediction.cold_s})
        rows.append({"host": host, "shared": tokens, "how": f"{WARM}, predicted", "ms": 1000 * prediction.warm_s})
    return pandas.DataFrame(rows)


def _panel(host: str, place: Instance) -> str:
    return f"one {place.gpu.name.upper()} of {host}"


def _needed(shape: shapes.Shape, host: str, place: Instance, tokens: int) -> float:
    return reuse.needed_gb_s(shape, reuse.prefill_machine(place), tokens, budget=cache_sizes.batched_tokens(host))


def _fetching(wanted: CacheSizes, place: Instance, link) -> dict[int, float]:
    shape, machine, overhead_s = (
        shapes.load(wanted.model),
        reuse.prefill_machine(place),
        wanted.restore_overhead_ms / 1000,
    )
    return {
        tokens: reuse.recompute_s(shape, machine, tokens) / reuse.restore_s(shape, link, tokens, overhead_s=overhead_s)
        for tokens in (2**power for power in range(6, 19))
    }
