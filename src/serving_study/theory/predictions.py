"""What arithmetic says of a host, model and arm before anything runs; `prediction_errors` says how far off it was.

Memory is `capacity`'s, time `latency`'s. Two constants a host are fitted to the TPOT of its baseline alone
(`calibration`); every other arm is predicted. What can mislead: the reference study does not state its requests'
lengths, so those of the book's own prompts stand in, and its throughputs are compared as ratios to its baseline; the
processor's waits are measured on the H200 and carried to other hosts. `data/hardware/README.md` says why, and which
other models were tried.

    >>> from serving_study.theory import predictions
    >>> predictions.predict("g6.xlarge")[["arm", "concurrency", "tpot_ms"]]                # doctest: +SKIP
"""

import functools

import pandas

from ..analysis import verdicts
from ..errors import ModelError, ParameterError
from ..hardware import ceilings
from ..models import checkpoints, shapes
from ..results import reference
from . import capacity
from .calibration import (
    DRAFT,
    SPLITS,
    TARGET,
    calibrated,
    is_calibrated,
    lengths,
    probed_rates,
    speculate,
    work,
)
from .latency import alpha_of, closed_loop, crossover

SPLIT = {
    "tp1": (1, 1),
    "tp2": (2, 1),
    "pp2": (1, 2),
    "tp4": (4, 1),
    "tp8": (8, 1),
}  # arms of any other model, as far as the host has GPUs


def caveat(technique: str) -> str:
    """What a prediction for an arm of this technique takes for granted, in words; empty for most."""
    return " (if the look-up proposes in every round)" if technique == "ngram" else ""


def basis(host: str) -> str:
    """Where a prediction's constants come from, in words."""
    constants = (
        "constants fitted to a baseline on this GPU"
        if is_calibrated(host)
        else "this GPU was never calibrated, constants are typical ones"
    )
    return f"{constants}; {ceilings_of(host)}; memory as vLLM {capacity.Deployment.version} accounts for it"


def ceilings_of(host: str) -> str:
    """Which ceilings a prediction takes for this host, in words."""
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
    """One row an arm and concurrency of section 3 or 5 on a host (profile or instance type).

    Columns: `technique`, `weights_gib`, `kv_tokens`, `max_concurrency`, `tpot_ms`, `ttft_ms`, `output_throughput`,
    `multiple` of its model's first arm that starts, `crossover` (concurrency from which an arm no longer pays),
    `usd_per_million` output tokens where a price is given, `acceptance` (the assumed rate) and `ceilings` (`datasheet`,
    or the date of the probe). An arm that does not start has a `reason` and no figures.

    `acceptance` is a rate by arm; for the reference study's own target and draft its mean stands in; without a rate an
    arm has only its memory. Section 5 has the reference study's seven arms, and of another model than its 7B those of
    SPLIT."""
    if section not in verdicts.LOADS:
        raise ParameterError(
            "nothing is predicted for this section", value=section, allowed=", ".join(map(str, verdicts.LOADS))
        )
    place, rows = ceilings.of_host(host), []
    probed, arms = probed_rates(place), list(_arms(section, model, draft))
    _check_acceptance(acceptance or {}, [arm for arm, *_, k, _ in arms if k])
    for arm, target, tp, pp, k, drafted in arms:
        technique = "draft" if drafted else "ngram" if k else "parallel" if section == 5 else "none"
        row = {"model": target.name, "arm": arm, "technique": technique, "gpus": tp * pp}
        row |= {"ceilings": probed.label if probed else "datasheet"}
        if tp * pp > place.count:
            rows.append(row | {"reason": f"needs {tp * pp} GPUs, {host} has {place.count}"})
            continue
        try:
            prediction = capacity.predict(
                capacity.Deployment(
                    target, place.gpu, tp=tp, pp=pp, max_num_seqs=128, speculative_tokens=k, draft=drafted
                )
            )
        except ModelError as error:
            if tp * pp == 1:
                raise
            rows.append(row | {"reason": f"{error.what}: {error.value}"})
            continue
        row |= {"weights_gib": prediction.weights_gib}
        if not prediction.can_start:
            rows.append(
                row
                | {
                    "reason": f"out of memory: {prediction.weights_gib:.1f} GiB of weights, "
                    f"{place.gpu.memory_gib:.1f} GiB of memory"
                }
            )
            continue
        row |= {"kv_tokens": prediction.tokens, "max_concurrency": prediction.max_concurrency}
        rank, machine = work(target, tp, pp), calibrated(place, probed=probed)
        rate = (acceptance or {}).get(arm, _reference_rate(arm, target, drafted)) if k else None
        if k and rate is None:
            rows += [row | {"concurrency": concurrency} for concurrency in verdicts.LOADS[section]]
            continue
        speculation = speculate(k, alpha_of(rate, k), work(drafted) if drafted else None) if k else None
        ends = crossover(rank, machine, speculation, 330) if speculation else None
        row |= {"acceptance": rate}
        for concurrency, prompts in verdicts.LOADS[section].items():
            seen = closed_loop(lengths(concurrency, prompts), concurrency, rank, machine, speculation)
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
        "technique",
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


def _arms(section: int, model: str, draft: str):
    """(name, shape, TP, PP, k, draft's shape) of each arm."""
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
    """The reference study's mean acceptance of this arm; None for an arm, target or draft that it did not have."""
    same = target.config == shapes.load(TARGET).config
    same = same and (drafted is None or drafted.config == shapes.load(DRAFT).config)
    return _reference_rates().get(arm) if same else None


def _check_acceptance(given: dict[str, float], arms: list[str]) -> None:
    """Raises ParameterError for an arm that does not speculate here, and for a rate outside 0 to 1."""
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
