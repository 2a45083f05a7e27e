"""The constants of a host: the reached shares of its bandwidth and matrix rate, and the waits of its GPU.

The shares are fitted to the TPOT of a host's baseline cells alone; the waits are measured on the H200. `python -m
serving_study.theory.calibration` writes `calibration.csv` and `waits.csv`; `data/hardware/README.md` says why these
constants.

    >>> from serving_study.theory import calibration
    >>> calibration.fitted()["l4x1"]                                                     # doctest: +SKIP
"""

import csv
import functools
import statistics
from dataclasses import replace

import pandas

from .. import paths
from ..analysis import comparisons, verdicts
from ..errors import ParameterError
from ..hardware import ceilings, rates
from ..models import shapes
from ..results import old_cells, reference, store
from .latency import Drafting, Machine, Work, alpha_of, closed_loop, fit, split

CALIBRATION = paths.DATA / "hardware" / "calibration.csv"
WAITS = paths.DATA / "hardware" / "waits.csv"
TYPICAL = (0.72, 0.6)  # of a host that was never calibrated: about the middle of the fitted ones
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


def work(shape: shapes.Shape, tp: int = 1, pp: int = 1) -> Work:
    """One rank's work in a forward pass of a dense model.

    Raises ParameterError for a model with experts, of which a pass reads only some."""
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
def fitted() -> dict[str, tuple[float, float]]:
    """Host profile to (share of bandwidth, share of the matrix rate)."""
    with open(CALIBRATION, newline="") as file:
        return {
            row["host"]: (float(row["efficiency"]), float(row["compute_efficiency"])) for row in csv.DictReader(file)
        }


@functools.cache
def waits() -> dict[str, float]:
    """Seconds that the GPU waits for the processor: in a `step` that is not scheduled ahead, and for a draft's layer
    launched `in pieces` of a graph or `by kernel`.
    """
    with open(WAITS, newline="") as file:
        return {row["wait"]: float(row["seconds"]) for row in csv.DictReader(file)}


def speculate(k: int, alpha: float, draft: Work | None = None, launched: str = "in pieces") -> Drafting:
    """Speculation as vLLM runs it, GPU waits included; draft passes are `launched` `in pieces`, or `by kernel` before
    vLLM 0.27.
    """
    return Drafting(k, alpha, draft, waits()["step"] + (k * draft.layers * waits()[launched] if draft else 0.0))


def calibrated(
    host: ceilings.Instance, constants: tuple[float, float] | None = None, probed: rates.Rates | None = None
) -> Machine:
    """A host's ceilings with its constants: given, fitted for the same GPU, or typical.

    With `probed` the ceilings are the measured ones, and a share is what the baseline reached of them, at most 1; a
    link is no faster than measured."""
    same = (
        next((efficiencies for name, efficiencies in fitted().items() if ceilings.of_host(name).gpu == host.gpu), None)
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
    """What `serving-study doctor --probe` measured on a machine with this host's GPUs; None where it did not run."""
    probed = rates.known(f"{host.gpu.name}x{host.count}")
    return probed if probed and probed.value(rates.MEMORY) and probed.tflops else None


def is_calibrated(host: str) -> bool:
    """Whether a host with this one's GPU has constants of its own."""
    return any(ceilings.of_host(name).gpu == ceilings.of_host(host).gpu for name in fitted())


@functools.cache
def lengths(concurrency: int, prompts: int) -> tuple[tuple[int, int], ...]:
    """(input, output) tokens of `prompts` requests, as the published baseline cells measured them."""
    cells = _published_baseline()
    request_lengths = [
        (request["input_tokens"], request["output_tokens"])
        for request in store.requests_of(cells.get(concurrency, cells[max(cells)]))
    ]
    return tuple((request_lengths * (1 + prompts // len(request_lengths)))[:prompts])


@functools.cache
def _published_baseline() -> dict:
    """Concurrency to the file of the baseline's first cell on the H200."""
    frame = store.Store("h200x1", 3, paths.RESULTS_PUBLISHED).newest()
    return frame[(frame["arm"] == "baseline") & (frame["repeat"] == 0)].set_index("concurrency")["file"].to_dict()


def recalibrate() -> dict[str, tuple[float, float]]:
    """Fit both constants of every host with a measured baseline."""
    efficiencies = {}
    for section, host, cells, baseline in measured_cells():
        if host in efficiencies:
            continue
        own = {concurrency: cell for (arm, concurrency), cell in cells.items() if arm == baseline}
        fitted = fit(
            calibrated(ceilings.of_host(host), TYPICAL),
            next(iter(own.values()))["rank"],
            {c: lengths(c, verdicts.LOADS[section][c]) for c in own},
            {c: cell["median_tpot_ms"] for c, cell in own.items()},
        )
        efficiencies[host] = (fitted.efficiency, fitted.compute_efficiency)
    return efficiencies


def remeasure_waits() -> dict[str, tuple[float, str]]:
    """Each wait in seconds and the H200's arm that it comes from: the mean over concurrencies of its unexplained
    time.
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
    measured_waits = {"step": (step, "baseline-synchronous, over baseline")}
    cells = next(cells for _, name, cells, _ in measured_cells() if name == host)
    machine = calibrated(ceilings.of_host(host))
    for launched, wanted in (("in pieces", "draft-k3, its graphs on"), ("by kernel", "draft-k1")):
        left = []
        for (arm, concurrency), cell in cells.items():
            if arm == wanted:
                speculation = replace(cell["speculation"], wait_s=step)
                seen = closed_loop(
                    lengths(concurrency, verdicts.LOADS[3][concurrency]),
                    concurrency,
                    cell["rank"],
                    machine,
                    speculation,
                )
                left.append(
                    (cell["median_tpot_ms"] - seen["median_tpot_ms"])
                    / 1000
                    * speculation.tokens_a_round
                    / (speculation.k * speculation.draft.layers)
                )
        measured_waits[launched] = statistics.fmean(left), wanted
    return measured_waits


def measured_cells():
    """(section, host, cells by (arm, concurrency), baseline arm) of the reference study and the book's own H200."""
    for section, host, baseline in ((3, "l4x1", "baseline"), (5, "a10gx4", "7b-tp1")):
        figures = reference.load(section)
        figures = figures[(figures["host"] == host) & figures["concurrency"].notna() & figures["value"].notna()]
        wide = figures.pivot_table(index=["arm", "concurrency"], columns="metric", values="value", sort=False)
        arms = old_cells.with_arm_columns(figures).drop_duplicates("arm").assign(launched="in pieces", labels="")
        yield section, host, _cells(wide, arms.set_index("arm"), baseline), baseline
    plain, graphs = (
        store.Store("h200x1", name, paths.RESULTS_PUBLISHED).newest().assign(launched=launched)
        for name, launched in ((3, "by kernel"), ("3-draft-graphs", "in pieces"))
    )
    graphs = graphs.assign(arm=graphs["arm"] + ", its graphs on")
    frame = comparisons.usable(pandas.concat([plain, graphs], ignore_index=True))
    frame = comparisons.without_repeats(frame[frame["concurrency"].isin(list(verdicts.LOADS[3]))])
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
    arms = frame.drop_duplicates("arm").set_index("arm").assign(labels=pandas.Series(kinds_by_arm(frame)))
    yield 3, "h200x1", _cells(means, arms, "baseline"), "baseline"


def kinds_by_arm(cells: pandas.DataFrame) -> dict[str, str]:
    """The `comparisons.kinds` of each arm's cells."""
    return {arm: comparisons.kinds(arm_cells) for arm, arm_cells in cells.groupby("arm")}


def _cells(wide: pandas.DataFrame, arms: pandas.DataFrame, baseline: str) -> dict[tuple[str, int], dict]:
    """(arm, concurrency) to its measured cell with what theory needs of the arm, the baseline's first."""
    rows = sorted(wide.iterrows(), key=lambda item: item[0][0] != baseline)
    return {(arm, int(concurrency)): _cell(row, arms.loc[arm]) for (arm, concurrency), row in rows}


def _cell(row: pandas.Series, arm: pandas.Series) -> dict:
    """Where the counters are known, the tokens of a round are the measured ones."""
    measured = row.to_dict() | {"labels": arm["labels"]}
    if arm["technique"] == "parallel":
        target = shapes.load(f"{arm['model']}-instruct")
        return measured | {"rank": work(target, int(arm["tp"]), int(arm["pp"])), "speculation": None}
    k, speculation = int(arm["k"]), None
    if k:
        accepted = row.get("accepted_tokens")
        alpha = (
            alpha_of(row["acceptance_rate"], k)
            if accepted is None
            else alpha_of((row["total_output_tokens"] / (row["total_output_tokens"] - accepted) - 1) / k, k)
        )
        speculation = speculate(
            k, alpha, work(shapes.load(DRAFT)) if arm["technique"] == "draft" else None, arm["launched"]
        )
    return measured | {"rank": work(shapes.load(TARGET)), "speculation": speculation}


def main() -> None:
    """Write calibration.csv and waits.csv."""
    rows = [
        {"host": host, "efficiency": round(constants[0], 4), "compute_efficiency": round(constants[1], 4)}
        for host, constants in recalibrate().items()
    ]
    pandas.DataFrame(rows).to_csv(CALIBRATION, index=False)
    fitted.cache_clear()
    pandas.DataFrame(
        [
            {"wait": wait, "seconds": f"{seconds:.3g}", "host": "h200x1", "arm": arm}
            for wait, (seconds, arm) in remeasure_waits().items()
        ]
    ).to_csv(WAITS, index=False)


if __name__ == "__main__":
    main()
