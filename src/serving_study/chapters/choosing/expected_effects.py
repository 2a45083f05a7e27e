"""Predicted effects on a host of techniques that nobody measured there."""

from ...errors import HostError
from ...hardware import ceilings
from ...models import shapes
from ...results import old_cells
from ...theory import calibration, capacity, predictions, reuse
from .measured_effects import by_arm
from .techniques import KV, LONG, OWN, PREDICTED, SHARED, TECHNIQUES, THROUGHPUT, TPOT, TTFT, effect_row


def has_ceilings(host: str) -> bool:
    try:
        return bool(ceilings.of_host(host))
    except HostError:
        return False


def predicted_rows(host: str, model: str, own: bool) -> list[dict]:
    """`predictions.predict`'s arms and `reuse`'s trades at one length each; a host of several GPUs has section 5's
    arms, and with `own` also section 3's.
    """
    place, shape, rows = ceilings.of_host(host), shapes.load(model), []
    machine, links = calibration.calibrated(place), reuse.links(place)
    by_name = {technique.name: technique for technique in TECHNIQUES}
    for section in (3,) if place.count == 1 else (5,) if not own else (3, 5):
        table = (
            predictions.predict(host, model, section=section)
            .dropna(subset=["concurrency", "tpot_ms"])
            .set_index(["arm", "concurrency"])
        )
        arms = by_arm(old_cells.with_arm_columns(table.reset_index()))  # they are the reference study's, by name
        for technique in (technique for technique in TECHNIQUES if technique.section == section):
            for arm, concurrency in table.index:
                if base := technique.baseline(
                    arm, {other: arms[other] for other, at in table.index if at == concurrency}
                ):
                    arm_row, base_row = table.loc[(arm, concurrency)], table.loc[(base, concurrency)]
                    for metric, column in {
                        THROUGHPUT: "output_throughput",
                        TPOT: "tpot_ms",
                        TTFT: "ttft_ms",
                        KV: "kv_tokens",
                    }.items():
                        rows.append(
                            effect_row(
                                technique,
                                arm,
                                base,
                                PREDICTED,
                                host,
                                metric,
                                int(concurrency),
                                arm_row[column] / base_row[column],
                                model=arms[arm]["model"],
                            )
                        )
    prediction = reuse.prefix(shape, machine, shared=SHARED, own=OWN)
    rows.append(
        effect_row(
            by_name["prefix caching"],
            f"{prediction.cached_tokens} of {prediction.tokens} tokens",
            "none found",
            PREDICTED,
            host,
            TTFT,
            1,
            1 / prediction.gain,
        )
    )
    between = links.get("nvlink") or links.get("pcie")
    if place.count > 1 and between:
        split = reuse.hand_over(shape, machine, between, prompt=LONG, output=256, concurrency=8)
        for metric, ratio in (
            (TPOT, split.tpot_s / split.replicas_tpot_s),
            (THROUGHPUT, split.request_throughput / split.replicas_request_throughput),
        ):
            rows.append(
                effect_row(
                    by_name["prefill/decode split"],
                    f"{LONG} tokens, {between.name}",
                    "two replicas",
                    PREDICTED,
                    host,
                    metric,
                    8,
                    ratio,
                )
            )
    if "cpu" in links:
        ratio = reuse.restore_s(shape, links["cpu"], LONG) / reuse.recompute_s(shape, machine, LONG)
        rows.append(
            effect_row(
                by_name["KV offload"], f"{LONG} tokens, host memory", "recomputing", PREDICTED, host, TTFT, 1, ratio
            )
        )
    by_element_size = [
        capacity.predict(capacity.Deployment(shape, place.gpu, max_num_seqs=128, kv_element_bytes=size))
        for size in (None, 1)
    ]
    if by_element_size[0].can_start:
        rows.append(
            effect_row(
                by_name["quantised KV cache"],
                "fp8",
                "bf16",
                PREDICTED,
                host,
                KV,
                None,
                by_element_size[1].tokens / by_element_size[0].tokens,
            )
        )
    return rows
