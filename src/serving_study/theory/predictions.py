"""What arithmetic says of a host, model and arm before anything runs, and how far off it was where something did.

Memory is `capacity`'s, time `latency`'s. Two constants a host, the shares of bandwidth and of the matrix rate that are
reached, are fitted to the TPOT of its baseline cells alone (`data/hardware/calibration.csv`; `python -m
serving_study.theory.predictions` writes it anew); every other arm is predicted. What can mislead:

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

import csv
import functools
import statistics
from dataclasses import replace

import pandas

from .. import paths
from ..analysis import comparisons, verdicts
from ..errors import ModelError, ParameterError
from ..hardware import ceilings, rates
from ..models import checkpoints, shapes
from ..results import reference, store
from . import capacity
from .latency import Machine, Speculation, Work, alpha_of, closed_loop, crossover, fit, round_s, split

CALIBRATION = paths.DATA / "hardware" / "calibration.csv"
WAITS = paths.DATA / "hardware" / "waits.csv"
TYPICAL = (0.72, 0.6)  # of a host that was never calibrated: what the fitted ones have in the middle
TYPICAL_OF_PROBED = (
    0.72 / 0.9,
    0.6 / 0.75,
)  # the same of what a probe measures, assuming nine tenths of the datasheet's bandwidth and three quarters of its rate
LINKS = {
    "pcie": (2.5e9, 15e-6),
    "nvlink": (300e9, 15e-6),
}  # bytes/s and seconds a step; pcie: through the host's memory
TARGET, DRAFT = "qwen2.5-7b-instruct", "qwen2.5-0.5b-instruct"
SPLITS = {
    "7b-tp1": ("7b", 1, 1),
    "7b-tp2": ("7b", 2, 1),
    "7b-tp4": ("7b", 4, 1),
    "14b-tp1": ("14b", 1, 1),
    "14b-tp2": ("14b", 2, 1),
    "14b-pp2": ("14b", 1, 2),
    "14b-tp4": ("14b", 4, 1),
}
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


def work(shape: shapes.Shape, tp: int = 1, pp: int = 1) -> Work:
    """One rank's work in a forward pass of a dense model.

    Raises ParameterError for a model with experts, of which a pass reads a part.
    """
    if shape.experts:
        raise ParameterError(
            "the time of a pass is not predicted for a model with experts", value=shape.name, allowed="a dense model"
        )
    read = shape.read_bytes
    whole = Work(
        read, 2 * read / shape.dtype_bytes, shape.kv_bytes_per_token(), shape.layers, shape.hidden * shape.dtype_bytes
    )
    return split(whole, tp, pp)


@functools.cache
def calibration() -> dict[str, tuple[float, float]]:
    """Host profile to its two constants."""
    with open(CALIBRATION, newline="") as file:
        return {
            row["host"]: (float(row["efficiency"]), float(row["compute_efficiency"])) for row in csv.DictReader(file)
        }


@functools.cache
def waits() -> dict[str, float]:
    """Seconds that the GPU waits for the processor: a `step` that is not scheduled ahead, a draft's layer `in pieces`
    of a graph or `by kernel`.
    """
    with open(WAITS, newline="") as file:
        return {row["wait"]: float(row["seconds"]) for row in csv.DictReader(file)}


def speculate(k: int, alpha: float, draft: Work | None = None, launched: str = "in pieces") -> Speculation:
    """Speculation as vLLM runs it, with what the GPU waits in a round; `launched` is how a draft pass is, `by kernel`
    before vLLM 0.27.
    """
    return Speculation(k, alpha, draft, waits()["step"] + (k * draft.layers * waits()[launched] if draft else 0.0))


def machine(
    host: ceilings.Instance, constants: tuple[float, float] | None = None, probed: rates.Rates | None = None
) -> Machine:
    """A host's ceilings with its constants: given, calibrated for one with the same GPU, or typical.

    With `probed` the ceilings are those measured. What a baseline on the same GPU reached is kept, up to the measured
    ceiling; a link is no faster than measured."""
    same = (
        next((found for name, found in calibration().items() if ceilings.of_host(name).gpu == host.gpu), None)
        if constants is None
        else constants
    )
    bandwidth, latency_s = LINKS.get(host.link, (0.0, 0.0))
    stated = 1e9 * host.gpu.bandwidth_gb_s, 1e12 * host.gpu.bf16_tflops
    if probed is None:
        return Machine(
            *stated,
            *(same or TYPICAL),
            link_bandwidth=bandwidth,
            link_latency_s=latency_s,
            link_ring=host.link != "nvlink",
        )
    measured = 1e9 * probed.value(rates.MEMORY), 1e12 * probed.tflops
    shares = (
        [min(1.0, share * ceiling / seen) for share, ceiling, seen in zip(same, stated, measured, strict=True)]
        if same
        else TYPICAL_OF_PROBED
    )
    return Machine(
        *measured,
        *shares,
        link_bandwidth=min(bandwidth, 1e9 * (probed.value(rates.PEER) or bandwidth)),
        link_latency_s=latency_s,
        link_ring=host.link != "nvlink",
    )


def probed_rates(host: ceilings.Instance) -> rates.Rates | None:
    """What `serving-study doctor --probe` measured on a machine of this host's GPU and number, if it did here."""
    found = rates.known(f"{host.gpu.name}x{host.count}")
    return found if found and found.value(rates.MEMORY) and found.tflops else None


def is_calibrated(host: str) -> bool:
    """Whether a host with this one's GPU has constants of its own."""
    return any(ceilings.of_host(name).gpu == ceilings.of_host(host).gpu for name in calibration())


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
    found = probed_rates(ceilings.of_host(host))
    return f"ceilings: {found.label if found else 'datasheet'}"


@functools.cache
def lengths(concurrency: int, prompts: int) -> tuple[tuple[int, int], ...]:
    """(input, output) tokens of so many requests: those of the book's own prompts, as the published baseline cells had
    them.
    """
    cells = _published_baseline()
    found = [
        (request["input_tokens"], request["output_tokens"])
        for request in store.requests_of(cells.get(concurrency, cells[max(cells)]))
    ]
    return tuple((found * (1 + prompts // len(found)))[:prompts])


@functools.cache
def _published_baseline() -> dict:
    """Concurrency to the file of the baseline's first cell on the H200."""
    frame = store.Store("h200x1", 3, paths.RESULTS_PUBLISHED).newest()
    return frame[(frame["arm"] == "baseline") & (frame["repeat"] == 0)].set_index("concurrency")["file"].to_dict()


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
            found = capacity.predict(
                capacity.Server(target, place.gpu, tp=tp, pp=pp, max_num_seqs=128, speculative_tokens=k, draft=drafted)
            )
        except ModelError as error:
            if tp * pp == 1:
                raise
            rows.append(row | {"reason": f"{error.what}: {error.value}"})
            continue
        row |= {"weights_gib": found.weights_gib}
        if not found.starts:
            rows.append(
                row
                | {
                    "reason": f"out of memory: {found.weights_gib:.1f} GiB of weights, "
                    f"{place.gpu.memory_gib:.1f} GiB of memory"
                }
            )
            continue
        row |= {"kv_tokens": found.tokens, "max_concurrency": found.max_concurrency}
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
    for section, host, cells, baseline in _measured():
        on, base = machine(ceilings.of_host(host)), {}
        for (arm, concurrency), cell in cells.items():
            seen = closed_loop(
                lengths(concurrency, verdicts.LOADS[section][concurrency]),
                concurrency,
                cell["rank"],
                on,
                cell["speculation"],
            )
            if arm == baseline:
                base[concurrency] = seen["total_token_throughput"], cell["total_token_throughput"]
                continue
            about = {
                "section": section,
                "host": host,
                "arm": arm,
                "concurrency": concurrency,
                "excluded": EXCLUDED.get((host, arm)),
                "took_part": TOOK_PART.get((host, arm)),
            }
            rows.append(
                about
                | {
                    "metric": "median TPOT (ms)",
                    "predicted": seen["median_tpot_ms"],
                    "measured": cell["median_tpot_ms"],
                }
            )
            mine, theirs = base[concurrency]
            rows.append(
                about
                | {
                    "metric": "throughput, multiple of the baseline",
                    "predicted": seen["total_token_throughput"] / mine,
                    "measured": cell["total_token_throughput"] / theirs,
                }
            )
    frame = pandas.DataFrame(rows)
    return frame.assign(error=frame["predicted"] / frame["measured"] - 1)


PREDICTED = ("median_tpot_ms", "median_ttft_ms", "output_throughput", "total_token_throughput")


def beside(
    section: int, host: str, metric: str, cells: pandas.DataFrame | None = None, *, multiples: bool = True
) -> pandas.DataFrame:
    """What `plots.beside` draws: for a host with a published baseline, each arm's prediction and its measured figure,
    and the mean of `cells` beside them.

    As multiples of the baseline's own; absolute figures on request, and only of one host. Figures published by the
    reference study have the source `reference`, those of the book's own machines `measured`; `cells` of the same host
    take the place of the latter. `labels` are what has to be said of a measured figure: random weights, prescribed
    acceptance."""
    known = {(number, name): (found, baseline) for number, name, found, baseline in _measured()}
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
    found, baseline = known[section, host]
    on, rows = machine(ceilings.of_host(host)), []
    ours = "reference" if host in set(reference.load(section)["host"]) else "measured"
    replaced = ours == "measured" and cells is not None and host in set(cells["host"])
    for (arm, concurrency), cell in found.items():
        seen = closed_loop(
            lengths(concurrency, verdicts.LOADS[section][concurrency]),
            concurrency,
            cell["rank"],
            on,
            cell["speculation"],
        )
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
        means, kinds = comparisons.summary(cells[~cells["arm"].str.endswith(comparisons.AGAIN)], metric), _kinds(cells)
        about = {"source": "measured", "host": ", ".join(sorted(set(cells["host"])))}
        rows += [
            about | {"arm": row.arm, "concurrency": int(row.concurrency), "value": row.mean, "labels": kinds[row.arm]}
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
    [cells] = [cells for section, name, cells, _ in _measured() if (section, name) == (3, host)]
    return {
        arm: cell["speculation"].wait_s / round_s(cell["rank"], on, concurrency, context, cell["speculation"])
        for (arm, requests), cell in cells.items()
        if requests == concurrency and cell["speculation"]
    }


def recalibrate() -> dict[str, tuple[float, float]]:
    """Fit both constants of every host that has a measured baseline."""
    found = {}
    for section, host, cells, baseline in _measured():
        if host in found:
            continue
        own = {concurrency: cell for (arm, concurrency), cell in cells.items() if arm == baseline}
        fitted = fit(
            machine(ceilings.of_host(host), TYPICAL),
            next(iter(own.values()))["rank"],
            {c: lengths(c, verdicts.LOADS[section][c]) for c in own},
            {c: cell["median_tpot_ms"] for c, cell in own.items()},
        )
        found[host] = (fitted.efficiency, fitted.compute_efficiency)
    return found


def remeasure_waits() -> dict[str, tuple[float, str]]:
    """Each wait of `waits` in seconds, and the H200's arm that it comes from: a mean over concurrencies of what is left
    of its time.
    """
    host = "h200x1"
    tpot = (
        store.Store(host, 3, paths.RESULTS_PUBLISHED)
        .cells()
        .query("temperature.isna()")
        .groupby(["arm", "concurrency"])["median_tpot_ms"]
        .mean()
    )
    step = (tpot["baseline-synchronous"] - tpot["baseline"]).mean() / 1000
    found = {"step": (step, "baseline-synchronous, over baseline")}
    cells = next(cells for _, name, cells, _ in _measured() if name == host)
    on = machine(ceilings.of_host(host))
    for launched, wanted in (("in pieces", "draft-k3, its graphs on"), ("by kernel", "draft-k1")):
        left = []
        for (arm, concurrency), cell in cells.items():
            if arm == wanted:
                speculation = replace(cell["speculation"], wait_s=step)
                seen = closed_loop(
                    lengths(concurrency, verdicts.LOADS[3][concurrency]), concurrency, cell["rank"], on, speculation
                )
                left.append(
                    (cell["median_tpot_ms"] - seen["median_tpot_ms"])
                    / 1000
                    * speculation.tokens_a_round
                    / (speculation.k * speculation.draft.layers)
                )
        found[launched] = statistics.fmean(left), wanted
    return found


def _measured():
    """(section, host, cells by (arm, concurrency), baseline arm): the reference study's and the book's own H200."""
    for section, host, baseline in ((3, "l4x1", "baseline"), (5, "a10gx4", "7b-tp1")):
        figures = reference.load(section)
        figures = figures[(figures["host"] == host) & figures["concurrency"].notna() & figures["value"].notna()]
        wide = figures.pivot_table(index=["arm", "concurrency"], columns="metric", values="value", sort=False)
        yield (
            section,
            host,
            {
                (arm, int(concurrency)): _cell(arm, row, "in pieces", "")
                for (arm, concurrency), row in _first(wide, baseline)
            },
            baseline,
        )
    frames = [store.Store("h200x1", name, paths.RESULTS_PUBLISHED).newest() for name in (3, "3-draft-graphs")]
    frames[1] = frames[1].assign(arm=frames[1]["arm"] + ", its graphs on")
    frame = comparisons.usable(pandas.concat(frames, ignore_index=True))
    frame = frame[frame["concurrency"].isin(list(verdicts.LOADS[3])) & ~frame["arm"].str.endswith(comparisons.AGAIN)]
    means = frame.groupby(["arm", "concurrency"], sort=False)[
        [
            "median_tpot_ms",
            "median_ttft_ms",
            "output_throughput",
            "total_token_throughput",
            "acceptance_rate",
            "total_output_tokens",
            "accepted_tokens",
        ]
    ].mean()
    kinds = _kinds(frame)
    cells = {
        (arm, int(concurrency)): _cell(arm, row, "in pieces" if arm.endswith("graphs on") else "by kernel", kinds[arm])
        for (arm, concurrency), row in _first(means, "baseline")
    }
    yield 3, "h200x1", cells, "baseline"


def _kinds(cells: pandas.DataFrame) -> dict[str, str]:
    """Arm to what has to be said of its cells."""
    return {arm: comparisons.kinds(mine) for arm, mine in cells.groupby("arm")}


def _first(wide: pandas.DataFrame, baseline: str):
    return sorted(wide.iterrows(), key=lambda item: item[0][0] != baseline)


def _cell(arm: str, row, launched: str, labels: str) -> dict:
    """A measured cell with what theory needs of its arm.

    Where the counters are known, the tokens of a round are the measured ones.
    """
    about = row.to_dict() | {"labels": labels}
    if arm in SPLITS:
        size, tp, pp = SPLITS[arm]
        return about | {"rank": work(shapes.load(f"qwen2.5-{size}-instruct"), tp, pp), "speculation": None}
    k = int(arm.split("-k")[1].split(",")[0]) if "-k" in arm else 0
    speculation = None
    if k:
        accepted = row.get("accepted_tokens")
        alpha = (
            alpha_of(row["acceptance_rate"], k)
            if accepted is None
            else alpha_of((row["total_output_tokens"] / (row["total_output_tokens"] - accepted) - 1) / k, k)
        )
        speculation = speculate(k, alpha, work(shapes.load(DRAFT)) if arm.startswith("draft") else None, launched)
    return about | {"rank": work(shapes.load(TARGET)), "speculation": speculation}


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


def main() -> None:
    """Write calibration.csv and waits.csv."""
    rows = [
        {"host": host, "efficiency": round(constants[0], 4), "compute_efficiency": round(constants[1], 4)}
        for host, constants in recalibrate().items()
    ]
    pandas.DataFrame(rows).to_csv(CALIBRATION, index=False)
    calibration.cache_clear()
    pandas.DataFrame(
        [
            {"wait": wait, "seconds": f"{seconds:.3g}", "host": "h200x1", "arm": arm}
            for wait, (seconds, arm) in remeasure_waits().items()
        ]
    ).to_csv(WAITS, index=False)


if __name__ == "__main__":
    main()
