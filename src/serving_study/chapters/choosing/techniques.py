"""What a technique is, which arms of which section show it, and what a row of its effects holds."""

import math
import re
from dataclasses import dataclass

from ...analysis import comparisons

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
    "low",
    "high",
    "differs",
    "certificate",
    "labels",
    "section",
    "engine",
    "requests",
    "repeats",
    "proposing",
    "grounded",
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


@dataclass(frozen=True)
class Technique:
    """A technique, and the arms of a section that show it: those that match `arms`, each held against the first of
    `against` that there is.
    """

    name: str
    section: int | None = None
    arms: str = ""
    against: tuple[str, ...] = ()

    def baseline(self, arm: str, arms) -> str | None:
        """The arm among `arms` that this one is held against; None for an arm of another technique, or where there is
        none.
        """
        match = re.fullmatch(self.arms, arm)
        names = [name.format(**match.groupdict()) for name in self.against] if match else []
        first = next((name for name in names if name in arms), None)
        return None if first == arm else first


TECHNIQUES = (
    Technique("n-gram look-up", 3, r"ngram-k\d+", ("baseline",)),
    Technique("draft model", 3, r"draft-k\d+", ("baseline",)),
    Technique("EAGLE head", 3, r"eagle\d*-k\d+", ("baseline",)),
    Technique("tensor parallelism", 5, r"(?P<model>.+?)-tp\d+", ("{model}-tp1", "{model}-tp2")),
    Technique("pipeline parallelism", 5, r"(?P<model>.+?)-pp(?P<ranks>\d+)", ("{model}-tp{ranks}",)),
    Technique("prefix caching"),
    Technique("prefill/decode split"),
    Technique("KV offload"),
    Technique("quantised KV cache"),
    Technique("data-parallel replicas", 5, r"(?P<model>.+?)-(dp|replicas)\d+", ("{model}-tp1",)),
)


def effect_row(technique, arm, against, basis, host, metric, concurrency, ratio, **columns) -> dict:
    """One row of `effects`; what is not told is missing."""
    row = {"technique": technique.name, "arm": arm, "against": against, "basis": basis, "host": host, "metric": metric}
    missing = {"low": math.nan, "high": math.nan, "labels": "", "requests": math.nan, "repeats": math.nan}
    return missing | row | {"concurrency": concurrency, "ratio": float(ratio)} | columns
