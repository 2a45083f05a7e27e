"""What arithmetic says of a host, model and arm before anything runs, and how far off it was where something did.

Memory is `capacity`'s, time `latency`'s. Two constants a host, the shares of bandwidth and of the matrix rate that are
reached, are fitted to the TPOT of its baseline cells alone (`calibration`); every other arm is predicted. What can
mislead:

- The reference study does not state its requests' lengths, so those of the book's own prompts stand in, and its
  throughputs are compared as ratios to its baseline; the constants of a link without direct copies (`LINKS`) were
  chosen on section 5's cells of two GPUs.
- A baseline is replayed as one CUDA graph, scheduled ahead, and says nothing of a processor that the GPU waits for.
  Speculation with a draft model or by look-up is not scheduled ahead, and a draft pass is launched in pieces of a graph
  (0.27.1; taken to be the L4's version) or by kernel (0.25.1, the H200's; vLLM pull request 47460). What that takes
  (`WAITS`) is the engine's, the same for every host: measured on the H200, in arms left out of the errors, and carried
  to others by the draft's layers. The L4's arms took no part in it, but another processor launches there: the wait is
  an estimate.
- The wait is added to a pass, for two synchronisations in each (vocabularies are mapped) keep the processor from
  running ahead. The longer of the two in place of the sum is as arguable, and was refused with the L4's figures in
  sight: its median errors are then 12.4 % in TPOT and 11.3 % in throughput.
- A constant a layer fitted to the baseline instead, with one share of bandwidth for all GPUs, was tried too: at 90 % it
  brings the L4's TPOT to 5 %, but section 5's from 4 to 8 %, with single cells 40 % off. A baseline alone cannot tell a
  slow layer from slow memory.
- The L4's throughput ratios at concurrency 64 come out up to 21 % low. At most a third of those is TPOT
  (`reference.explained`); the rest is how the last requests run out, which depends on the lengths: with one long answer
  among those assumed, the predicted ratios rise.

    >>> from serving_study.theory import predictions
    >>> theory.predict("g6.xlarge")[["arm", "concurrency", "tpot_ms"]]                     # doctest: +SKIP
"""

import functools

import pandas

from ..analysis import comparisons, verdicts
from ..errors import ModelError, ParameterError
from ..hardware import ceilings
from ..models import checkpoints, shapes
from ..results import reference
from . import capacity
from .calibration import (
    DRAFT,
    SPLITS,
    TARGET,
    is_calibrated,
    kinds_by_arm,
    lengths,
    machine,
    measured_cells,
    probed_rates,
    speculate,
    work,
)
from .latency import alpha_of, closed_loop, crossover, round_s

SPLIT = {
    "tp1": (1, 1),
    "tp2": (2, 1),
    "pp2": (1, 2),
    "tp4": (4, 1),
    "tp8": (8, 1),
}  # of any other model, as far as the host has GPUs
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


def caveat(arm: str) -> str:
    """What a prediction for this arm takes for granted, for a line about it; empty where nothing in particular."""
    return " (if the look-up proposes in every round)" if arm.startswith("ngram") else ""


def basis(host: str) -> str:
    """In words: where a prediction's constants come from."""
    constants = (
        "constants fitted to a baseline on this GPU"
        if is_calibrated(host)
        else "this GPU was never calibrated, constants are typical ones"
    )
    return f"{constants}; {ceilings_of(host)}; memory as vLLM {capacity.Server.version} accounts for it"


def ceilings_of(host: str) -> str:
    """In words: what a prediction takes for the most that this host can do."""
    probed = probed_rates(ceilings.of_host(host))
    return f"ceilings: {probed.label if probed else 'datasheet'}"


def predict(
    host: str,
    model: str = TARGET,
    draft: str = DRAFT,
    *,
    section: int = 3,
    acceptance: dict[str, float] | None = None,
    price_per_hour: float | None = None,
) -> pandas.DataFrame:
    """One row an arm and concurrency of section 3 or 5 on a host (profile or instance type): `weights_gib`,
    `kv_tokens`, `max_concurrency`, `tpot_ms`, `ttft_ms`, `output_throughput`, `multiple` of its model's first arm that
    starts, `crossover` (concurrency from which an arm no longer pays), `usd_per_million` output tokens where a price is
    given, `acceptance` (the rate taken for granted) and `ceilings` (`datasheet`, or when they were probed). Arms that
    do not start have a `reason` and no figures.

    `acceptance` is a rate by arm; for the reference study's own target and draft its mean stands in. An arm whose rate
    nobody knows has its memory, and no figure that depends on it. Section 5's arms are the reference study's
    seven, of another model than its 7B those of SPLIT."""
    if section not in verdicts.LOADS:
        raise ParameterError(
            "nothing is predicted for this section", value=section, allowed=", ".join(map(str, verdicts.LOADS))
        )
    place, rows = ceilings.of_host(host), []
    probed, arms = probed_rates(place), list(_arms(section, model, draft))
    _check_acceptance(acceptance or {}, [arm for arm, *_, k, _ in arms if k])
    for arm, target, tp, pp, k, drafted in arms:
        row = {"model": target.name, "arm": arm, "gpus": tp * pp, "ceilings": probed.label if probed else "datasheet"}
        if tp * pp > place.count:
            rows.append(row | {"reason": f"needs {tp * pp} GPUs, {host} has {place.count}"})
            continue
        try:
            prediction = capacity.predict(
                capacity.Server(target, place.gpu, tp=tp, pp=pp, max_num_seqs=128, speculative_tokens=k, draft=drafted)
            )
        except ModelError as error:
            if tp * pp == 1:
                raise
            rows.append(row | {"reason": f"{error.what}: {error.value}"})
            continue
        row |= {"weights_gib": prediction.weights_gib}
        if not prediction.starts:
            rows.append(
                row
                | {
                    "reason": f"out of memory: {prediction.weights_gib:.1f} GiB of weights, "
                    f"{place.gpu.memory_gib:.1f} GiB of memory"
                }
            )
            continue
        row |= {"kv_tokens": prediction.tokens, "max_concurrency": prediction.max_concurrency}
        rank, on = work(target, tp, pp), machine(place, probed=probed)
        rate = (acceptance or {}).get(arm, _reference_rate(arm, target, drafted)) if k else None
        if k and rate is None:
            rows += [row | {"concurrency": concurrency} for concurrency in verdicts.LOADS[section]]
            continue
        speculation = speculate(k, alpha_of(rate, k), work(drafted) if drafted else None) if k else None
        ends = crossover(rank, on, speculation, 330) if speculation else None
        row |= {"acceptance": rate}
        for concurrency, prompts in verdicts.LOADS[section].items():
            seen = closed_loop(lengths(concurrency, prompts), concurrency, rank, on, speculation)
            cost = price_per_hour / 3600 / seen["output_throughput"] * 1e6 if price_per_hour else None
            rows.append(
                row
                | {
                    "concurrency": concurrency,
                    "tpot_ms": seen["median_tpot_ms"],
                    "ttft_ms": seen["median_ttft_ms"],
                    "output_throughput": seen["output_throughput"],
                    "crossover": ends,
                    "usd_per_million": cost,
                }
            )
    columns = [
        "arm",
        "gpus",
        "weights_gib",
        "kv_tokens",
        "max_concurrency",
        "concurrency",
        "tpot_ms",
        "ttft_ms",
        "output_throughput",
        "multiple",
        "crossover",
        "usd_per_million",
        "acceptance",
        "ceilings",
        "reason",
    ]
    frame = (
        pandas.DataFrame(rows)
        .reindex(columns=["model", *columns])
        .astype({"crossover": float, "usd_per_million": float, "acceptance": float})
    )
    frame["multiple"] = frame["output_throughput"] / frame.groupby(["model", "concurrency"])[
        "output_throughput"
    ].transform("first")
    return frame[columns]


def errors() -> pandas.DataFrame:
    """Every cell of another arm than the baseline, predicted from its host's baseline: `section`, `host`, `arm`,
    `concurrency`, `metric`, `predicted`, `measured`, `error` (predicted / measured - 1), `excluded` (why the cell says
    nothing of theory, else missing) and `took_part` (which constant was chosen with this cell in sight, else missing).
    """
    rows = []
    for section, host, cells, baseline in measured_cells():
        on, base = machine(ceilings.of_host(host)), {}
        for (arm, concurrency), cell in cells.items():
            seen = _of_cell(section, concurrency, cell, on)
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


def beside(
    section: int, host: str, metric: str, cells: pandas.DataFrame | None = None, *, multiples: bool = True
) -> pandas.DataFrame:
    """The rows of `plots.beside`: predicted and measured figures of each arm of a host with a published baseline, and
    the mean of `cells`.

    Figures are multiples of the baseline; with `multiples=False` absolute, and of one host only. `source` is
    `reference` for the reference study and `measured` for the book's own machines, whose published figures `cells` of
    the same host replace. `labels` qualify a measured figure: random weights, prescribed acceptance."""
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
    on, rows = machine(ceilings.of_host(host)), []
    ours = "reference" if host in set(reference.load(section)["host"]) else "measured"
    replaced = ours == "measured" and cells is not None and host in set(cells["host"])
    for (arm, concurrency), cell in measured.items():
        seen = _of_cell(section, concurrency, cell, on)
        if (host, arm) not in EXCLUDED:
            rows.append(
                {"arm": arm, "concurrency": concurrency, "source": "predicted", "host": host, "value": seen[metric]}
            )
        if not replaced:
            rows.append(
                {
                    "arm": arm,
                    "concurrency": concurrency,
                    "source": ours,
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
        rows += [
            source | {"arm": row.arm, "concurrency": int(row.concurrency), "value": row.mean, "labels": kinds[row.arm]}
            for row in means.itertuples(index=False)
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
    """The distribution of errors by section, host and metric, excluded cells left out: `cells`, `median` and `worst`
    absolute error, `within_20` as a share; `took_part`, how many of the cells were in sight when a constant was chosen,
    and `median_others`, the median of those that were not.
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
    """Arm to the share of a round in which the GPU waits for the processor, by the model of this module: the waits over
    the predicted round, its sequences half answered.

    For the hosts of section 3 whose arms are published."""
    on = machine(ceilings.of_host(host))
    prompts = verdicts.LOADS[3][concurrency]
    context = sum(read + made / 2 for read, made in lengths(concurrency, prompts)) / prompts * concurrency
    [cells] = [cells for section, name, cells, _ in measured_cells() if (section, name) == (3, host)]
    return {
        arm: cell["speculation"].wait_s / round_s(cell["rank"], on, concurrency, context, cell["speculation"])
        for (arm, requests), cell in cells.items()
        if requests == concurrency and cell["speculation"]
    }


def _of_cell(section: int, concurrency: int, cell: dict, on) -> dict:
    """What the model expects of a published cell on that machine, as `closed_loop` has it."""
    requests = lengths(concurrency, verdicts.LOADS[section][concurrency])
    return closed_loop(requests, concurrency, cell["rank"], on, cell["speculation"])


def _arms(section: int, model: str, draft: str):
    """Name, shape, TP, PP, k, draft's shape."""
    target = shapes.load(model)
    if section == 5:
        if target.config == shapes.load(TARGET).config:
            for arm, (size, tp, pp) in SPLITS.items():
                yield arm, shapes.load(f"qwen2.5-{size}-instruct"), tp, pp, 0, None
        else:
            for split, (tp, pp) in SPLIT.items():
                yield f"{checkpoints.short(model)}-{split}", target, tp, pp, 0, None
        return
    drafted = shapes.load(draft)
    yield "baseline", target, 1, 1, 0, None
    yield "ngram-k3", target, 1, 1, 3, None
    for k in (1, 3, 5):
        yield f"draft-k{k}", target, 1, 1, k, drafted


def _reference_rate(arm: str, target: shapes.Shape, drafted: shapes.Shape | None) -> float | None:
    """The reference study's mean acceptance of this arm; None for an arm, a target or a draft that it did not have."""
    same = target.config == shapes.load(TARGET).config
    same = same and (drafted is None or drafted.config == shapes.load(DRAFT).config)
    return _reference_rates().get(arm) if same else None


def _check_acceptance(given: dict[str, float], arms: list[str]) -> None:
    """Raises ParameterError for an arm that does not speculate here, or a rate that is none."""
    if unknown := [arm for arm in given if arm not in arms]:
        raise ParameterError(
            "an acceptance rate for no arm of this section",
            value=", ".join(unknown),
            allowed=", ".join(arms) or "none: no arm of this section speculates",
        )
    if wrong := [f"{arm}={rate}" for arm, rate in given.items() if not 0 <= rate < 1]:
        raise ParameterError("not an acceptance rate", value=", ".join(wrong), allowed="from 0 to below 1")


@functools.cache
def _reference_rates() -> dict[str, float]:
    figures = reference.load(3)
    return figures[figures["metric"] == "acceptance_rate"].groupby("arm")["value"].mean().to_dict()
