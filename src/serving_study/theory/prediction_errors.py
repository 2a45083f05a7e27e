"""How far off predictions were where something was measured, and both in one frame for a figure.

What can mislead: cells that were in sight when a constant was chosen (`TOOK_PART`) are no test of it.

    >>> from serving_study.theory import prediction_errors
    >>> prediction_errors.summary(prediction_errors.errors())                              # doctest: +SKIP
"""

import pandas

from ..analysis import claims, comparisons, verdicts
from ..errors import ParameterError
from ..hardware import ceilings
from ..results import reference
from .calibration import (
    SPLITS,
    calibrated,
    kinds_by_arm,
    lengths,
    measured_cells,
)
from .latency import closed_loop, round_s

# Which cells say something about theory, and why the others do not.
EXCLUDED = {("l4x1", "ngram-k3"): "how often the look-up finds something to propose is not stated"}
EXCLUDED |= {
    ("h200x1", arm): "what a draft's layer makes the GPU wait was taken from it"
    for arm in ("draft-k1", "draft-k3, its graphs on")
}


# Which cells were in sight when a constant was chosen: their errors are no test of it.
TOOK_PART = {
    ("a10gx4", arm): "the link's constants were chosen on the cells of two GPUs"
    for arm, (_, tp, pp) in SPLITS.items()
    if tp * pp == 2
}


def errors() -> pandas.DataFrame:
    """Every cell but the baselines', predicted from its host's baseline: `section`, `host`, `arm`, `concurrency`,
    `metric`, `predicted`, `measured`, `error` (predicted / measured - 1), `excluded` (why the cell says nothing about
    theory, or missing) and `took_part` (the constant that was chosen with this cell in sight, or missing).
    """
    rows = []
    for section, host, cells, baseline in measured_cells():
        machine, base = calibrated(ceilings.of_host(host)), {}
        for (arm, concurrency), cell in cells.items():
            seen = _of_cell(section, concurrency, cell, machine)
            if arm == baseline:
                base[concurrency] = seen["total_token_throughput"], cell["total_token_throughput"]
                continue
            cell_columns = {
                "section": section,
                "host": host,
                "arm": arm,
                "concurrency": concurrency,
                "excluded": EXCLUDED.get((host, arm)),
                "took_part": TOOK_PART.get((host, arm)),
            }
            rows.append(
                cell_columns
                | {
                    "metric": "median TPOT (ms)",
                    "predicted": seen["median_tpot_ms"],
                    "measured": cell["median_tpot_ms"],
                }
            )
            predicted_baseline, measured_baseline = base[concurrency]
            rows.append(
                cell_columns
                | {
                    "metric": "throughput, multiple of the baseline",
                    "predicted": seen["total_token_throughput"] / predicted_baseline,
                    "measured": cell["total_token_throughput"] / measured_baseline,
                }
            )
    frame = pandas.DataFrame(rows)
    return frame.assign(error=frame["predicted"] / frame["measured"] - 1)


PREDICTED = ("median_tpot_ms", "median_ttft_ms", "output_throughput", "total_token_throughput")


def with_measured(
    section: int, host: str, metric: str, cells: pandas.DataFrame | None = None, *, multiples: bool = True
) -> pandas.DataFrame:
    """The rows of `plots.beside`: predicted and measured figures of each arm of a host with a published baseline, and
    the means of `cells`.

    Figures are multiples of the baseline, those of `cells` as `claims.compare` has them, with `low` and `high`;
    with `multiples=False` absolute, and of one host only. `source` is `predicted`, `reference` (the reference
    study) or `measured` (the book's own; `cells` of the same host replace the published ones). `labels` qualify a
    measured figure: random weights, prescribed acceptance.
    """
    known = {(number, name): (measured, baseline) for number, name, measured, baseline in measured_cells()}
    if metric not in PREDICTED or (section, host) not in known:
        raise ParameterError(
            "nothing to put beside one another",
            value=f"section {section}, {host}, {metric}",
            allowed=f"{', '.join(f'section {number}, {name}' for number, name in known)}; {', '.join(PREDICTED)}",
        )
    if cells is not None and not multiples and set(cells["host"]) != {host}:
        raise ParameterError(
            "absolute figures of several hosts are not put on one axis",
            value=", ".join(sorted({host, *cells["host"]})),
            allowed="multiples=True, or one host",
        )
    measured, baseline = known[section, host]
    machine, rows = calibrated(ceilings.of_host(host)), []
    source_name = "reference" if host in set(reference.load(section)["host"]) else "measured"
    replaced = source_name == "measured" and cells is not None and host in set(cells["host"])
    for (arm, concurrency), cell in measured.items():
        seen = _of_cell(section, concurrency, cell, machine)
        if (host, arm) not in EXCLUDED:
            rows.append(
                {"arm": arm, "concurrency": concurrency, "source": "predicted", "host": host, "value": seen[metric]}
            )
        if not replaced:
            rows.append(
                {
                    "arm": arm,
                    "concurrency": concurrency,
                    "source": source_name,
                    "host": host,
                    "value": cell.get(metric),
                    "labels": cell["labels"],
                }
            )
    if cells is not None:
        means, kinds = (
            comparisons.summary(comparisons.without_repeats(cells), metric),
            kinds_by_arm(cells),
        )
        source = {"source": "measured", "host": ", ".join(sorted(set(cells["host"])))}
        if multiples:
            means = means[means["arm"] == baseline].assign(mean=1.0)
        rows += [
            source | {"arm": row.arm, "concurrency": int(row.concurrency), "value": row.mean, "labels": kinds[row.arm]}
            for row in means.itertuples(index=False)
        ]
        if multiples and len(means):
            rows += [
                source
                | {"arm": row.arm, "concurrency": int(row.concurrency), "value": row.ratio, "labels": kinds[row.arm]}
                | {"low": row.low, "high": row.high}
                for row in comparisons.without_repeats(claims.compare(cells, metric, baseline)).itertuples()
            ]
    frame = pandas.DataFrame(rows).dropna(subset=["value"])
    if multiples:
        base = (
            frame[frame["arm"] == baseline]
            .drop_duplicates(["source", "host", "concurrency"])
            .set_index(["source", "host", "concurrency"])["value"]
        )
        keys = pandas.MultiIndex.from_frame(frame[["source", "host", "concurrency"]])
        frame = frame.assign(value=frame["value"].to_numpy() / base.reindex(keys).to_numpy())
        frame = frame[frame["value"].notna() & (frame["arm"] != baseline)]
    return frame.reset_index(drop=True)


def summary(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Errors by section, host and metric without the excluded cells: `cells`, `median` and `worst` absolute error,
    `within_20` as a share, `took_part` (cells in sight when a constant was chosen) and `median_others`, of the others.
    """
    kept = frame[frame["excluded"].isna()]
    kept = kept.assign(size=kept["error"].abs(), unseen=kept["error"].abs().where(kept["took_part"].isna()))
    return (
        kept.groupby(["section", "host", "metric"], sort=False)
        .agg(
            cells=("size", "count"),
            took_part=("took_part", "count"),
            median=("size", "median"),
            median_others=("unseen", "median"),
            worst=("size", "max"),
            within_20=("size", lambda values: (values <= 0.2).mean()),
        )
        .reset_index()
    )


def wait_shares(host: str, concurrency: int = 1) -> dict[str, float]:
    """By arm, the share of a predicted round (sequences half answered) in which the GPU waits for the processor, for
    the hosts of section 3 whose arms are published.
    """
    machine = calibrated(ceilings.of_host(host))
    prompts = verdicts.LOADS[3][concurrency]
    context = sum(read + made / 2 for read, made in lengths(concurrency, prompts)) / prompts * concurrency
    [cells] = [cells for section, name, cells, _ in measured_cells() if (section, name) == (3, host)]
    return {
        arm: cell["speculation"].wait_s / round_s(cell["rank"], machine, concurrency, context, cell["speculation"])
        for (arm, requests), cell in cells.items()
        if requests == concurrency and cell["speculation"]
    }


def _of_cell(section: int, concurrency: int, cell: dict, machine) -> dict:
    """The model's figures for a published cell on this machine, as `closed_loop` has them."""
    requests = lengths(concurrency, verdicts.LOADS[section][concurrency])
    return closed_loop(requests, concurrency, cell["rank"], machine, cell["speculation"])
