"""Section 5's tables and plots, made of what `splits` finds in its cells.

Every caption says of which host and with which weights.
"""

import math

import pandas
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ...analysis import claims, comparisons, drawing, host_tables, tables, verdicts
from ...hardware import links
from ...results import old_cells, reference
from ...theory import predictions
from . import splits

START = tables.START | {
    "weights_gib": ("weights a rank (GiB)", "{:.2f}"),
    "kv_predicted": ("KV cache by arithmetic", "{:,.0f}"),
    "gain": ("KV gain", "{:.1f}×"),
    "failure_s": ("failed after (s)", "{:.0f}"),
}


def memory(start_records: list[dict], label: str) -> Styler:
    """The table of `starts`."""
    frame = splits.starts(start_records)
    frame = frame[[name for name in frame if name in ("arm", "outcome") or frame[name].notna().any()]]
    return tables.style(frame, f"Starts: memory, or why there is none ({label})", START)


def reference_memory(host: str) -> Styler:
    """The reference study's starts, the KV tokens that arithmetic expects of them, and of those that failed what was
    tried and after how long.
    """
    figures = reference.load(splits.SECTION).query("host == @host and concurrency.isna()")
    wide = figures.pivot_table(index="arm", columns="metric", values="value", sort=False)
    outcome = figures[figures["metric"] == "start_outcome"].set_index("arm")["text"]
    command = ["--gpu-memory-utilization", "0.9", "--max-model-len", "4096", "--max-num-seqs", "128"]
    start = {"host": host, "command": command, "vllm": splits.REFERENCE_VERSIONS[host]}
    expected = pandas.Series({arm: splits.kv_tokens(start | {"arm": arm}) for arm in wide.index}, name="kv_predicted")
    known = wide[["weights_gib", "kv_cache_tokens", "max_concurrency"]]
    frame = pandas.DataFrame({"outcome": outcome}).join(known).join(expected)
    with_columns = old_cells.with_arm_columns(frame.reset_index(names="arm").dropna(subset="kv_cache_tokens"))
    for _, rows in splits.groups(with_columns).items():
        first = rows.set_index("arm")["kv_cache_tokens"][splits.baseline(rows)]
        frame.loc[rows["arm"], "gain"] = (rows["kv_cache_tokens"] / first).to_numpy()
    if "oom_tried_mib" in wide:
        frame = frame.join(wide.filter(["failure_s"]))
        failed = wide.dropna(subset="oom_tried_mib")
        frame["reason"] = (
            failed["oom_tried_mib"].map("tried to allocate {:.0f} MiB".format)
            + failed["oom_free_mib"].map(", {:.2f} MiB free".format)
            + failed["oom_capacity_gib"].map(" of {:.2f} GiB".format)
        )
    return tables.style(frame.reset_index(names="arm"), f"Starts in the reference study ({host}, reference)", START)


def throughput(frame: pandas.DataFrame, metric: str = splits.THROUGHPUT) -> Styler:
    """Arms down, concurrencies across: the mean, the multiple of the arm with the fewest GPUs, and what is claimed."""
    rows, arms = [], splits.by_arm(frame)
    for _, model_cells in splits.groups(frame).items():
        texts = tables.multiples(model_cells, metric, splits.baseline(model_cells))
        rows += [
            {"arm": arm, "GPUs": arms[arm].gpus}
            | {
                str(concurrency): texts.get((arm, concurrency), tables.DASH)
                for concurrency in sorted(frame["concurrency"].unique())
            }
            for arm in dict.fromkeys(model_cells["arm"])
        ]
    return tables.style(
        pandas.DataFrame(rows).rename(columns={"GPUs": splits.places(frame)}),
        f"{tables.METRIC_NAMES.get(metric, metric).capitalize()} by concurrency, and multiple of the "
        f"model's arm with the fewest {splits.places(frame)}{tables.of_window(frame, metric)} ({tables.labels(frame)})",
    )


def latencies(frame: pandas.DataFrame, metric: str, parts: tuple[str, ...] = ("median", "p99")) -> Styler:
    """Arms down, concurrencies across: median and p99 of `tpot` or `ttft` in ms, over the requests of all blocks."""
    table = comparisons.latencies(frame, metric).set_index(["arm", "concurrency"])
    rows = [
        {"arm": arm}
        | {
            str(concurrency): " / ".join(
                tables.DASH if math.isnan(value) else f"{value:,.1f}"
                for value in table.loc[(arm, concurrency), list(parts)]
            )
            if (arm, concurrency) in table.index
            else tables.withheld(frame, arm, concurrency)
            for concurrency in sorted(frame["concurrency"].unique())
        }
        for arm in dict.fromkeys(frame["arm"])
    ]
    return tables.style(
        pandas.DataFrame(rows),
        f"{metric.upper()} in ms by concurrency, {' / '.join(parts)} over the requests of all blocks; "
        f"{tables.few_requests()} ({tables.labels(frame)})",
    )


def pipelines(frame: pandas.DataFrame) -> Styler:
    """The table of `pairs`, each ratio with its interval."""
    table = splits.pairs(frame)
    shown = table[["model", "GPUs", "concurrency"]].copy()
    for label in ("throughput", "TPOT", "TTFT p99"):
        if label in table:
            ends = {label: "ratio", f"{label}, low": "low", f"{label}, high": "high"}
            rows = table[list(ends)].rename(columns=ends).astype(float)
            shown[label] = [
                tables.DASH if math.isnan(row.ratio) else claims.ratio_text(row) for row in rows.itertuples()
            ]
    return tables.style(
        shown,
        f"A pipeline over tensor parallelism, at equal {splits.places(frame)}: ratios ({tables.labels(frame)})",
        {"GPUs": (splits.places(frame), None)},
    )


def resources(frame: pandas.DataFrame, places: int | None = None, metric: str = splits.THROUGHPUT) -> Styler:
    """The table of `accounts`, each model at its lowest and highest concurrency."""
    accounts = splits.accounts(frame, places, metric)
    accounts = accounts[
        accounts["concurrency"].isin([accounts["concurrency"].min(), accounts["concurrency"].max()])
    ].sort_values(["concurrency", "model"], kind="stable")
    price = splits.usd_per_gpu_hour(frame["host"].iloc[0].split(",")[0])
    price_note = f"; {price[0]:.2f} USD a GPU and hour, a share of {price[1]}" if price else ""
    return tables.style(
        accounts.drop(columns="model"),
        f"Equal resources: throughput of each of the {splits.places(frame)}, idle ones counted "
        f"({tables.labels(frame)}{price_note})",
        dict.fromkeys(("a used one", "a paid one"), "{:,.1f}")
        | {metric: (tables.METRIC_NAMES.get(metric, metric), "{:,.1f}"), "USD a million tokens": "{:.2f}"},
    )


def predictions_table(cells: pandas.DataFrame) -> Styler:
    """The table of `predicted`."""
    predicted = splits.predicted(cells)
    basis = predictions.basis(cells["host"].iloc[0]) if len(predicted) else "no ceilings are known for this host"
    return tables.style(
        predicted,
        f"Prediction beside measurement ({tables.labels(cells)}; {basis})",
        {
            "tpot_ms": ("TPOT predicted (ms)", "{:,.1f}"),
            "measured_tpot_ms": ("measured (ms)", "{:,.1f}"),
            splits.THROUGHPUT: ("output predicted (tok/s)", "{:,.1f}"),
            "measured_output_throughput": ("measured (tok/s)", "{:,.1f}"),
        },
    )


def compared(cells: pandas.DataFrame, metric: str = "total_token_throughput") -> Styler:
    """Multiples of the model's arm with the fewest GPUs, with their intervals, by host: this one, the published ones,
    the reference study.

    An arm down, a concurrency across.
    """
    frames, rows = [cells, *splits.others(cells), splits.of_reference()], []
    columns = sorted({int(value) for frame in frames for value in frame["concurrency"]})
    for frame in frames:
        multiples = splits.efficiency(frame, metric)
        for (name, arm), arm_multiples in multiples.groupby(["model", "arm"], sort=False):
            rows_of_arm = arm_multiples.rename(columns={"multiple": "ratio"}).itertuples()
            ratios = {int(row.concurrency): claims.ratio_text(row) for row in rows_of_arm}
            rows.append(
                {
                    "host": frame["host"].iloc[0],
                    "arm": arm,
                    "against": splits.baseline(splits.groups(frame)[name]),
                }
                | {str(concurrency): ratios.get(concurrency, tables.DASH) for concurrency in columns}
            )
    return tables.style(
        pandas.DataFrame(rows),
        f"Multiples of {tables.METRIC_NAMES[metric]} by concurrency and host "
        f"({'; '.join(dict.fromkeys(map(tables.labels, frames)))})",
    )


def verdicts_table(cells: pandas.DataFrame, tolerance: float = verdicts.TOLERANCE) -> Styler:
    """Against the other hosts and the reference study, model by model, each with the arm of fewest GPUs that both have
    as baseline: ratios, and why not.
    """
    own = verdicts.of_files(cells["host"].iloc[0], list(cells["file"]))
    published = host_tables.other_studies(splits.SECTION, set(cells["host"]))
    rows = []
    for other in [*published, verdicts.study("reference/a10gx4", splits.SECTION)]:
        table = splits.verdicts_by_model(own, other, tolerance=tolerance)
        ratios = table[table["kind"] == "ratio"]
        reasons = [host_tables.reason(rows) for _, rows in ratios.groupby("model", sort=False)]
        rows.append(
            {
                "against": other.name,
                "verdict": host_tables.verdict_badges(ratios) or tables.badge("unknown"),
                "found": "<br>".join(dict.fromkeys(reasons)) or "no arm pair in common",
            }
        )
    names = [own.name, *(other.name for other in published)]
    said = "; ".join([tables.labels(cells), *host_tables.machines(names, splits.SECTION)])
    return tables.style(pandas.DataFrame(rows), f"Do the ratios reproduce? ({said})")


def links_table(link_record: dict, label: str) -> Styler:
    """Measured copies and all-reduces by message size: microseconds and GB/s."""
    table = links.rates(link_record)
    return tables.style(
        table.assign(bytes=table["bytes"] / 1024),
        f"What the links carry ({label})",
        {
            "name": ("what", None),
            "bytes": ("message (KiB)", "{:,.0f}"),
            "us": ("one call (µs)", "{:,.1f}"),
            "gb_s": ("GB/s", "{:,.3g}"),
        },
    )


def matrix(link_record: dict, label: str) -> Styler:
    """Each pair of GPUs: its link, and what the largest copy makes of it each way, GB/s.

    The caption says which EFA interfaces lead to other hosts.
    """
    copies = (
        pandas.DataFrame(
            [row for row in link_record.get("measured", []) if row["name"] == "GPU to GPU"],
            columns=["link", "bytes", "gb_s"],
        )
        .sort_values("bytes")
        .drop_duplicates("link", keep="last")
        .set_index("link")["gb_s"]
    )
    plugged = (link_record.get("topology") or {}).get("pairs", {})
    names = dict.fromkeys([*plugged, *("-".join(sorted(pair.split(" to "))) for pair in copies.index)])
    rows = [
        {
            "pair": f"GPU {first} and GPU {second}",
            "link": plugged.get(f"{first}-{second}"),
            "there (GB/s)": copies.get(f"{first} to {second}", math.nan),
            "back (GB/s)": copies.get(f"{second} to {first}", math.nan),
        }
        for first, second in (name.split("-") for name in names)
    ]
    return tables.style(
        pandas.DataFrame(rows, columns=["pair", "link", "there (GB/s)", "back (GB/s)"]),
        f"Pairs of GPUs ({label}{'' if rows else ': none'}; {links.efa(link_record)})",
        {name: "{:,.1f}" for name in ("there (GB/s)", "back (GB/s)")},
    )


def instances_table() -> Styler:
    return tables.style(
        links.instances(),
        "Instance types and their links (data sheets; in brackets what the reference study found)",
        {"GB/s each way": "{:,.0f}", "network (Gbit/s)": "{:,.0f}"},
    )


def scaling(*frames: pandas.DataFrame, metric: str = splits.THROUGHPUT) -> Figure:
    """One panel a host and model: each arm's multiple over concurrency with its interval, and a dashed line at the
    ideal, as many times as it has GPUs.
    """
    parts = []
    for frame in frames:
        table = splits.efficiency(frame, metric if metric in frame else "total_token_throughput")
        arms = splits.by_arm(frame)
        panel = table["model"] + f", {frame['host'].iloc[0]}" if len(frame) else table["model"]
        parts.append(table.assign(split=[arms[arm].words for arm in table["arm"]], panel=panel))
    rows = pandas.concat(parts, ignore_index=True)
    grid = drawing.lines(rows, "concurrency", "multiple", "split", "panel", across=3, height=2.7)
    for panel, axis in grid.axes_dict.items():
        cells = rows[rows["panel"] == panel]
        for ideal in sorted(set(cells["gpus"])):
            axis.axhline(ideal, color="black", linestyle="--", linewidth=0.9)
        axis.axhline(1, color="black", linewidth=0.9)
        drawing.concurrency_axis(axis, cells)
        axis.set_ylim(bottom=0)
    grid.set_axis_labels("concurrency", "multiple of\nthe smallest arm")
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, " | ".join(filter(None, dict.fromkeys(map(drawing.of, frames)))))
    return grid.figure


def bandwidths(link_record: dict, label: str) -> Figure:
    """All-reduce and copy bandwidth over message size."""
    table = links.rates(link_record)
    grid = drawing.lines(table, "bytes", "gb_s", "name", height=3.4)
    if len(table):
        grid.set(xscale="log", yscale="log")
        grid.ax.set_xscale("log", base=2)
    grid.set_axis_labels("message (bytes)", "GB/s")
    drawing.legend(grid.figure)
    drawing.caption(grid.figure, label)
    return grid.figure
