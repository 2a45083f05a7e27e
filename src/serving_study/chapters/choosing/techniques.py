"""What a technique is, which arms of which section show it, and the columns of its effects."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...analysis import claims, comparisons

HERE, PUBLISHED, REFERENCE, PREDICTED, NOTHING = (
    "this host",
    "published",
    "reference study",
    "predicted",
    "not measured",
)
THROUGHPUT, TPOT, TTFT, KV = "throughput", "TPOT", "TTFT", "KV tokens"
OURS = {THROUGHPUT: "output_throughput", TPOT: "median_tpot_ms", TTFT: "median_ttft_ms"}
THEIRS = {THROUGHPUT: "total_token_throughput", TPOT: "median_tpot_ms", TTFT: "median_ttft_ms"}
COLUMNS = [
    "technique",
    "arm",
    "against",
    "basis",
    "host",
    "metric",
    "concurrency",
    "ratio",
    *claims.CLAIMED,
    "certificate",
    "labels",
    "section",
    "engine",
    "requests",
    "repeats",
    "proposing",
    "grounded",
    "model",
    "control",
]
SHARED, OWN, LONG = (
    3001,
    20,
    8192,
)  # tokens: of the reference study's prefix, of a question after it, of a prompt worth moving
FAULT = "draft passes outside CUDA graphs (an engine fault that the source of 0.32 has mended)"
MENDED = (
    0,
    32,
)  # of vLLM: from here on a draft model's passes are in CUDA graphs (section-3-draft-graphs measured both)
FEW = f"on fewer than {comparisons.LEAST_ACCEPTED} accepted tokens"
OF_REFERENCE = "vLLM 0.27.1"  # named for the study as a whole


NGRAM, DRAFTS, EAGLE = "n-gram look-up", "draft model", "EAGLE head"
TENSORS, PIPELINE, REPLICAS = "tensor parallelism", "pipeline parallelism", "data-parallel replicas"
PLAIN = "plain"


def shown_by(columns: Mapping) -> str | None:
    """Which technique alone an arm with these columns (`servers.arm.COLUMNS`) shows, PLAIN for none; no answer for one
    that is measured again, or that something else sets apart.
    """
    technique, apart = columns["technique"], columns["distinction"]
    if isinstance(columns["repeat_of"], str):
        return None
    if technique == "draft" and isinstance(apart, str) and apart.startswith("eagle"):
        return EAGLE
    if isinstance(apart, str) or columns["ep"]:
        return None
    if technique != "parallel":
        return {"none": PLAIN, "ngram": NGRAM, "draft": DRAFTS}.get(technique)
    split = [name for name in ("tp", "pp", "dp", "replicas") if columns[name] > 1]
    ways = {"tp": TENSORS, "pp": PIPELINE, "dp": REPLICAS, "replicas": REPLICAS}
    return TENSORS if not split else ways[split[0]] if len(split) == 1 else None


@dataclass(frozen=True)
class Technique:
    """A technique, and the section whose arms show it: each is held against its model's arm with the first of `ranks`
    of tensor parallelism that there is (`pp`: as many as it has itself), or without them against the plain one.
    """

    name: str
    section: int | None = None
    ranks: tuple[int | str, ...] = ()

    def baseline(self, arm: str, arms: Mapping[str, Mapping]) -> str | None:
        """The arm among `arms`, name to columns, that this one is held against; None for an arm of another technique,
        or where there is none.
        """
        own = arms[arm]
        if shown_by(own) != self.name:
            return None
        kinds = {name: shown_by(columns) for name, columns in arms.items()}
        if not self.ranks:
            return next((name for name, kind in kinds.items() if kind == PLAIN), None)
        by_ranks = {
            arms[name]["tp"]: name
            for name, kind in kinds.items()
            if kind == TENSORS and arms[name]["model"] == own["model"]
        }
        wanted = (own[ranks] if isinstance(ranks, str) else ranks for ranks in self.ranks)
        first = next((by_ranks[ranks] for ranks in wanted if ranks in by_ranks), None)
        return None if first == arm else first


TECHNIQUES = (
    Technique(NGRAM, 3),
    Technique(DRAFTS, 3),
    Technique(EAGLE, 3),
    Technique(TENSORS, 5, (1, 2)),
    Technique(PIPELINE, 5, ("pp",)),
    Technique("prefix caching"),
    Technique("prefill/decode split"),
    Technique("KV offload"),
    Technique("quantised KV cache"),
    Technique(REPLICAS, 5, (1,)),
)


def effect_row(technique, arm, against, basis, host, metric, concurrency, ratio, **columns) -> dict:
    """One row of `effects`; what is not given is missing."""
    row = {"technique": technique.name, "arm": arm, "against": against, "basis": basis, "host": host, "metric": metric}
    missing = {"low": math.nan, "high": math.nan, "labels": "", "requests": math.nan, "repeats": math.nan}
    missing |= {"claim": None, "more_blocks": None, "more_minutes": math.nan, "margin": math.nan}
    missing |= {"model": None, "control": False}
    return missing | row | {"concurrency": concurrency, "ratio": float(ratio)} | columns
