"""What arithmetic says of a host, model and arm before anything runs, and how far off it was where something did.

Memory is `capacity`'s, time `latency`'s. Two constants a host, the shares of bandwidth and of the matrix rate that are reached, are fitted to
the TPOT of its baseline cells alone (`data/hardware/calibration.csv`; `python -m serving_study.theory` writes it anew); every other arm is predicted. What
can mislead: the reference study does not state its requests' lengths, so those of the book's own prompts stand in, and its throughputs are
compared as ratios to its baseline; the constants of a link without direct copies (`LINKS`) were chosen on section 5's cells of two GPUs.

    >>> from serving_study import theory
    >>> theory.predict("g6.xlarge")[["arm", "concurrency", "tpot_ms"]]                     # doctest: +SKIP
"""

import csv
import functools

import pandas

from . import capacity, ceilings, comparisons, paths, reference, shapes, store
from .errors import ParameterError
from .latency import Machine, Speculation, Work, alpha_of, closed_loop, crossover, fit, split

CALIBRATION = paths.DATA / "hardware" / "calibration.csv"
TYPICAL = (0.72, 0.6)  # of a host that was never calibrated: what the fitted ones have in the middle
LINKS = {"pcie": (2.5e9, 15e-6), "nvlink": (300e9, 15e-6)}  # bytes/s and seconds a step of a ring; pcie: through the host's memory
TARGET, DRAFT = "qwen2.5-7b-instruct", "qwen2.5-0.5b-instruct"
SPLITS = {"7b-tp1": ("7b", 1, 1), "7b-tp2": ("7b", 2, 1), "7b-tp4": ("7b", 4, 1), "14b-tp1": ("14b", 1, 1), "14b-tp2": ("14b", 2, 1), "14b-pp2": ("14b", 1, 2), "14b-tp4": ("14b", 4, 1)}
# Which cells say something about theory, and why the others do not.
EXCLUDED = {("l4x1", "ngram-k3"): "how often the look-up finds something to propose is not stated"}
EXCLUDED |= {("h200x1", f"draft-k{k}"): "as released, the engine launches the draft's kernels one by one (section 3)" for k in (1, 3, 5)}


def work(shape: shapes.Shape, tp: int = 1, pp: int = 1) -> Work:
    """One rank's work in a forward pass of a dense model. Raises ParameterError for a model with experts, of which a pass reads a part."""
    if shape.experts:
        raise ParameterError("the time of a pass is not predicted for a model with experts", value=shape.name, allowed="a dense model")
    read = shape.read_bytes
    whole = Work(read, 2 * read / shape.dtype_bytes, shape.kv_bytes_per_token(), shape.layers, shape.hidden * shape.dtype_bytes)
    return split(whole, tp, pp)


@functools.cache
def calibration() -> dict[str, tuple[float, float]]:
    """Host profile to its two constants."""
    with open(CALIBRATION, newline="") as file:
        return {row["host"]: (float(row["efficiency"]), float(row["compute_efficiency"])) for row in csv.DictReader(file)}


def machine(host: ceilings.Instance, constants: tuple[float, float] | None = None) -> Machine:
    """A host's ceilings with its constants: given, calibrated for one with the same GPU, or typical."""
    same = next((found for name, found in calibration().items() if ceilings.of_host(name).gpu == host.gpu), TYPICAL) if constants is None else constants
    bandwidth, latency_s = LINKS.get(host.link, (0.0, 0.0))
    return Machine(1e9 * host.gpu.bandwidth_gb_s, 1e12 * host.gpu.bf16_tflops, *same, link_bandwidth=bandwidth, link_latency_s=latency_s)


def is_calibrated(host: str) -> bool:
    """Whether a host with this one's GPU has constants of its own."""
    return any(ceilings.of_host(name).gpu == ceilings.of_host(host).gpu for name in calibration())


def caveat(arm: str) -> str:
    """What a prediction for this arm takes for granted, for a line about it; empty where nothing in particular."""
    return " (if the look-up proposes in every round)" if arm.startswith("ngram") else ""


def basis(host: str) -> str:
    """In words: where a prediction's constants come from."""
    constants = "constants fitted to a baseline on this GPU" if is_calibrated(host) else "this GPU was never calibrated, constants are typical ones"
    return f"{constants}; memory as vLLM {capacity.Server.version} accounts for it"


@functools.cache
def lengths(concurrency: int, prompts: int) -> tuple[tuple[int, int], ...]:
    """(input, output) tokens of so many requests: those of the book's own prompts, as the published baseline cells had them."""
    frame = store.Store("h200x1", 3, paths.RESULTS_PUBLISHED).newest()
    cells = frame[(frame["arm"] == "baseline") & (frame["repeat"] == 0)].set_index("concurrency")["file"]
    file = cells[concurrency] if concurrency in cells else cells[max(cells.index)]
    found = [(request["input_tokens"], request["output_tokens"]) for request in store.requests_of(file)]
    return tuple((found * (1 + prompts // len(found)))[:prompts])


def predict(host: str, model: str = TARGET, draft: str = DRAFT, *, section: int = 3, acceptance: dict[str, float] | None = None, price_per_hour: float | None = None) -> pandas.DataFrame:
    """One row an arm and concurrency of section 3 or 5 on a host (profile or instance type): `weights_gib`, `kv_tokens`, `max_concurrency`, `tpot_ms`,
    `ttft_ms`, `output_throughput`, `multiple` of the first arm, `crossover` (concurrency from which an arm no longer pays) and `usd_per_million`
    output tokens where a price is given. Arms that do not start have a `reason` and no figures.

    `acceptance` is a rate by arm; without, the reference study's mean.
    """
    if section not in reference.LOADS:
        raise ParameterError("nothing is predicted for this section", value=section, allowed=", ".join(map(str, reference.LOADS)))
    place, rows = ceilings.of_host(host), []
    rates = acceptance if acceptance is not None else _reference_rates()
    for arm, target, tp, pp, k, drafted in _arms(section, model, draft):
        row = {"arm": arm, "gpus": tp * pp}
        if tp * pp > place.count:
            rows.append(row | {"reason": f"needs {tp * pp} GPUs, {host} has {place.count}"})
            continue
        found = capacity.predict(capacity.Server(target, place.gpu, tp=tp, pp=pp, max_num_seqs=128, speculative_tokens=k, draft=drafted))
        row |= {"weights_gib": found.weights_gib}
        if not found.starts:
            rows.append(row | {"reason": f"out of memory: {found.weights_gib:.1f} GiB of weights, {place.gpu.memory_gib:.1f} GiB of memory"})
            continue
        row |= {"kv_tokens": found.tokens, "max_concurrency": found.max_concurrency}
        rank, on = work(target, tp, pp), machine(place)
        speculation = Speculation(k, alpha_of(rates.get(arm, 0.5), k), work(drafted) if drafted else None) if k else None
        ends = crossover(rank, on, speculation, 330) if speculation else None
        for concurrency, prompts in reference.LOADS[section].items():
            seen = closed_loop(lengths(concurrency, prompts), concurrency, rank, on, speculation)
            cost = price_per_hour / 3600 / seen["output_throughput"] * 1e6 if price_per_hour else None
            rows.append(row | {"concurrency": concurrency, "tpot_ms": seen["median_tpot_ms"], "ttft_ms": seen["median_ttft_ms"], "output_throughput": seen["output_throughput"], "crossover": ends, "usd_per_million": cost})
    columns = ["arm", "gpus", "weights_gib", "kv_tokens", "max_concurrency", "concurrency", "tpot_ms", "ttft_ms", "output_throughput", "multiple", "crossover", "usd_per_million", "reason"]
    frame = pandas.DataFrame(rows).reindex(columns=columns)
    first = frame.dropna(subset=["concurrency"]).drop_duplicates("concurrency").set_index("concurrency")["output_throughput"]
    frame["multiple"] = frame["output_throughput"] / frame["concurrency"].map(first)
    return frame


def errors() -> pandas.DataFrame:
    """Every cell of another arm than the baseline, predicted from its host's baseline: `section`, `host`, `arm`, `concurrency`, `metric`, `predicted`,
    `measured`, `error` (predicted / measured - 1) and `excluded` (why the cell says nothing of theory, else missing)."""
    rows = []
    for section, host, cells, baseline in _measured():
        on, base = machine(ceilings.of_host(host)), {}
        for (arm, concurrency), cell in cells.items():
            seen = closed_loop(lengths(concurrency, reference.LOADS[section][concurrency]), concurrency, cell["rank"], on, cell["speculation"])
            if arm == baseline:
                base[concurrency] = seen["total_token_throughput"], cell["total_token_throughput"]
                continue
            about = {"section": section, "host": host, "arm": arm, "concurrency": concurrency, "excluded": EXCLUDED.get((host, arm))}
            rows.append(about | {"metric": "median TPOT (ms)", "predicted": seen["median_tpot_ms"], "measured": cell["median_tpot_ms"]})
            mine, theirs = base[concurrency]
            rows.append(about | {"metric": "throughput, multiple of the baseline", "predicted": seen["total_token_throughput"] / mine, "measured": cell["total_token_throughput"] / theirs})
    frame = pandas.DataFrame(rows)
    return frame.assign(error=frame["predicted"] / frame["measured"] - 1)


def summary(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The distribution of errors by section, host and metric, excluded cells left out: `cells`, `median` and `worst` absolute error, `within_20` as a share."""
    kept = frame[frame["excluded"].isna()]
    sizes = kept["error"].abs().groupby([kept["section"], kept["host"], kept["metric"]], sort=False)
    return sizes.agg(cells="count", median="median", worst="max", within_20=lambda values: (values <= 0.2).mean()).reset_index()


def recalibrate() -> dict[str, tuple[float, float]]:
    """Fit both constants of every host that has a measured baseline."""
    found = {}
    for section, host, cells, baseline in _measured():
        if host in found:
            continue
        own = {concurrency: cell for (arm, concurrency), cell in cells.items() if arm == baseline}
        fitted = fit(machine(ceilings.of_host(host), TYPICAL), next(iter(own.values()))["rank"], {c: lengths(c, reference.LOADS[section][c]) for c in own}, {c: cell["median_tpot_ms"] for c, cell in own.items()})
        found[host] = (fitted.efficiency, fitted.compute_efficiency)
    return found


def _measured():
    """(section, host, cells by (arm, concurrency), baseline arm): the reference study's tables and the book's own H200."""
    for section, host, baseline in ((3, "l4x1", "baseline"), (5, "a10gx4", "7b-tp1")):
        figures = reference.load(section)
        figures = figures[(figures["host"] == host) & figures["concurrency"].notna() & figures["value"].notna()]
        wide = figures.pivot_table(index=["arm", "concurrency"], columns="metric", values="value", sort=False)
        yield section, host, {(arm, int(concurrency)): _cell(arm, row) for (arm, concurrency), row in _first(wide, baseline)}, baseline
    frames = [store.Store("h200x1", name, paths.RESULTS_PUBLISHED).newest() for name in (3, "3-draft-graphs")]
    frames[1] = frames[1].assign(arm=frames[1]["arm"] + ", its graphs on")
    frame = comparisons.usable(pandas.concat(frames, ignore_index=True))
    frame = frame[frame["concurrency"].isin(list(reference.LOADS[3])) & ~frame["arm"].str.endswith(comparisons.AGAIN)]
    means = frame.groupby(["arm", "concurrency"], sort=False)[["median_tpot_ms", "total_token_throughput", "acceptance_rate", "total_output_tokens", "accepted_tokens"]].mean()
    yield 3, "h200x1", {(arm, int(concurrency)): _cell(arm, row) for (arm, concurrency), row in _first(means, "baseline")}, "baseline"


def _first(wide: pandas.DataFrame, baseline: str):
    return sorted(wide.iterrows(), key=lambda item: item[0][0] != baseline)


def _cell(arm: str, row) -> dict:
    """A measured cell with what theory needs of its arm. Where the counters are known, the tokens of a round are the measured ones."""
    if arm in SPLITS:
        size, tp, pp = SPLITS[arm]
        return {**row.to_dict(), "rank": work(shapes.load(f"qwen2.5-{size}-instruct"), tp, pp), "speculation": None}
    k = int(arm.split("-k")[1].split(",")[0]) if "-k" in arm else 0
    speculation = None
    if k:
        accepted = row.get("accepted_tokens")
        alpha = alpha_of(row["acceptance_rate"], k) if accepted is None else alpha_of((row["total_output_tokens"] / (row["total_output_tokens"] - accepted) - 1) / k, k)
        speculation = Speculation(k, alpha, work(shapes.load(DRAFT)) if arm.startswith("draft") else None)
    return {**row.to_dict(), "rank": work(shapes.load(TARGET)), "speculation": speculation}


def _arms(section: int, model: str, draft: str):
    """Name, shape, TP, PP, k, draft's shape."""
    if section == 5:
        for arm, (size, tp, pp) in SPLITS.items():
            yield arm, shapes.load(f"qwen2.5-{size}-instruct"), tp, pp, 0, None
        return
    target, drafted = shapes.load(model), shapes.load(draft)
    yield "baseline", target, 1, 1, 0, None
    yield "ngram-k3", target, 1, 1, 3, None
    for k in (1, 3, 5):
        yield f"draft-k{k}", target, 1, 1, k, drafted


@functools.cache
def _reference_rates() -> dict[str, float]:
    figures = reference.load(3)
    return figures[figures["metric"] == "acceptance_rate"].groupby("arm")["value"].mean().to_dict()


def main() -> None:
    """Write calibration.csv."""
    rows = [{"host": host, "efficiency": round(constants[0], 4), "compute_efficiency": round(constants[1], 4)} for host, constants in recalibrate().items()]
    pandas.DataFrame(rows).to_csv(CALIBRATION, index=False)


if __name__ == "__main__":
    main()
