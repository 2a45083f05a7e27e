"""Which technique for which problem, from figures: measured here, elsewhere, by the reference study, or predicted.

An *effect* is a ratio of an arm to the arm it replaces: throughput, TPOT, TTFT, KV tokens. Stored cells give it a
certificate and, where repeated, an interval; the reference study gives neither; predictions stand only where nothing
was measured. An effect is *grounded* unless the engine was told what to accept or the gain rests on too few accepted
tokens; others are shown, labelled, but give no rule. What can mislead: throughput is of output tokens in our cells and
predictions, of all tokens in the reference study; and an effect belongs to its model, GPU, engine and load.

    >>> from serving_study.chapters.choosing import choosing
    >>> choosing.effects("cpu")[["technique", "basis", "ratio"]]                    # doctest: +SKIP
"""

from typing import Annotated

import pandas
from pydantic import Field

from ...chapters.parameters import (
    Number,
    Parameters,
)
from ...theory import calibration
from .expected_effects import has_ceilings, predicted_rows
from .measured_effects import (
    hosts_with_results,
    measured_rows,
    quantised_rows,
    reference_prefix_rows,
    reference_rows,
    reused_rows,
)
from .techniques import COLUMNS, HERE, NOTHING, PREDICTED, PUBLISHED, REFERENCE, TECHNIQUES


class Choosing(Parameters):
    """Section 10's parameters."""

    section = 10
    verb = "make run"

    host: str = Field("auto", description='profile of this machine: "auto", its own name, or "cpu"')
    slo: Annotated[dict[str, Number], Field(min_length=1)] = Field(
        {"ttft_p99_ms": 500, "tpot_p50_ms": 40},
        description="targets in milliseconds",
        json_schema_extra={"allowed": "one target or more, in milliseconds"},
    )
    instance: str = Field("g6.xlarge", description="to predict for: one GPU")
    instances: str = Field("g5.12xlarge", description="to predict for: several GPUs")
    model: str = Field("Qwen/Qwen2.5-7B-Instruct", description="to predict for")


def effects(
    host: str, *, instance: str = "g6.xlarge", instances: str = "g5.12xlarge", model: str = calibration.TARGET
) -> pandas.DataFrame:
    """Every effect of every technique, one row a metric and concurrency; an unknown technique has one row without a
    ratio.

    Predictions are for `host` where its ceilings are known, for `instance` (one GPU) and for `instances` (several);
    `settled` drops those that a measurement replaces."""
    rows = [
        effect
        for section in (3, 4, 5)
        for name in hosts_with_results(section, host)
        for effect in measured_rows(name, section, HERE if name == host else PUBLISHED)
    ]
    rows += [
        effect
        for name in hosts_with_results(7, host)
        for make in (reused_rows, quantised_rows)
        for effect in make(name, HERE if name == host else PUBLISHED)
    ]
    rows += [effect for section in (3, 5) for effect in reference_rows(section)] + reference_prefix_rows()
    rows += [
        effect
        for place in dict.fromkeys([*([host] if has_ceilings(host) else []), instance, instances])
        for effect in predicted_rows(place, model, place == host)
    ]
    named = {row["technique"] for row in rows}
    rows += [{"technique": technique.name, "basis": NOTHING} for technique in TECHNIQUES if technique.name not in named]
    order = {technique.name: place for place, technique in enumerate(TECHNIQUES)}
    bases = [HERE, PUBLISHED, REFERENCE, PREDICTED, NOTHING]
    frame = pandas.DataFrame(rows, columns=COLUMNS)
    keys = frame.assign(place=frame["technique"].map(order), basis_place=frame["basis"].map(bases.index))
    frame["grounded"] = frame["grounded"].isna() | (frame["grounded"] == True)  # noqa: E712 - None is grounded
    return frame.loc[
        keys.sort_values(
            ["place", "basis_place", "host", "section", "arm", "metric", "concurrency"], kind="stable"
        ).index
    ].reset_index(drop=True)


def settled(frame: pandas.DataFrame, host: str) -> pandas.DataFrame:
    """Without predictions for techniques that were measured anywhere; those for `host` stay until it is measured
    itself.
    """
    measured = frame[frame["basis"].isin([HERE, PUBLISHED, REFERENCE])]
    measured_here = frame["technique"].isin(measured.loc[measured["host"] == host, "technique"])
    measured_anywhere = frame["technique"].isin(measured["technique"])
    return frame[
        (frame["basis"] != PREDICTED) | ~(measured_here | (measured_anywhere & (frame["host"] != host)))
    ].reset_index(drop=True)
