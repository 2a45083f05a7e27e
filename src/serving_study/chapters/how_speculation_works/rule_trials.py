"""Section 2's trials: what four rules emit where two real models were compared, and the tests of it.

`run` draws, `tests` judges each rule. What can mislead: tokens are drawn here, from the models' real distributions; no
server takes part.

    >>> trials = rule_trials.run(pair, samples=4000, seed=42)                                # doctest: +SKIP
    >>> rule_trials.tests(trials, level=0.01)["verdict"]                                     # doctest: +SKIP
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas
from pydantic import Field

from ...chapters.parameters import (
    Above0,
    Once,
    Parameters,
    Positive,
    Share,
    Whole,
)
from ...hardware import hosts
from ...models import checkpoints, embedded
from ...theory import speculation
from ...theory.speculation import Distributions, Emitted

RIGHT, MATCH, SLIP = "accept or correct", "match", "correct from target"


class HowSpeculationWorks(Parameters):
    """Section 2's parameters."""

    section = 2
    verb = "make run"

    host: str = Field("auto", description='profile of this machine: "auto", its own name, or "cpu"')
    draft_layers: Annotated[Whole, Field(ge=1, le=29)] = Field(
        26, description="the draft: the target's first layers, 1 to 29"
    )
    positions: Positive = Field(40, description="places at which the two models are compared")
    samples: Positive = Field(4000, description="tokens that each rule emits at each place")
    level: Share = Field(0.01, description="p-value below which a rule is rejected")
    ks: Annotated[list[Positive], Field(min_length=1), Once] = Field([1, 3, 5], description="proposals a round")
    cost_ratios: Annotated[list[Above0], Field(min_length=1), Once] = Field(
        [0.06, 0.25], description="a draft pass, in passes of the target"
    )
    folklore: Share = Field(0.6, description="the acceptance that guides ask for")
    seed: Whole = Field(42, description="of every random draw below")


@dataclass(frozen=True)
class Trials:
    """(target's, draft's) distributions by place, and what each rule emitted there."""

    pairs: Sequence[tuple[np.ndarray, np.ndarray]]
    emitted: dict[str, list[Emitted]]
    samples: int

    @property
    def overlap(self) -> np.ndarray:
        """The chance that a proposal is kept by place, by algebra."""
        return np.array([speculation.acceptance_probability(p, q) for p, q in self.pairs])

    @property
    def distance(self) -> np.ndarray:
        """Total variation distance of the two models by place."""
        return np.array([speculation.total_variation(p, q) for p, q in self.pairs])

    def kept(self, rule: str) -> np.ndarray:
        """The share of proposals that a rule kept by place."""
        return np.array([accepted.mean() for _, accepted in self.emitted[rule]])


def pair(
    wanted: HowSpeculationWorks, say: Callable[[str], None] = print
) -> tuple[checkpoints.Model, checkpoints.Model, Distributions]:
    """The embedded model, its first layers as a draft, and both models' distributions at the wanted places."""
    target, draft = (
        checkpoints.resolve(name, say=say)
        for name in (embedded.NAME, f"{embedded.NAME}-first-{wanted.draft_layers}-layers")
    )
    host = hosts.detect(wanted.host)
    return (
        target,
        draft,
        speculation.distributions(target, draft, host=host, positions=wanted.positions, say=say),
    )


def run(places: Distributions, *, samples: int, seed: int) -> Trials:
    """`samples` tokens of every rule at every place, drawn with `seed`."""
    pairs, rng = list(zip(places.target, places.draft, strict=True)), np.random.default_rng(seed)
    return Trials(
        pairs,
        {rule: [emit(p, q, rng, samples) for p, q in pairs] for rule, emit in speculation.RULES.items()},
        samples,
    )


def fits(trials: Trials) -> dict[str, pandas.DataFrame]:
    """By rule, one row a place: Pearson's `statistic`, its `degrees`, and the `p_value` of the emitted tokens."""
    return {
        rule: pandas.DataFrame(
            [speculation.goodness_of_fit(tokens, p) for (tokens, _), (p, _) in zip(emitted, trials.pairs, strict=True)]
        )
        for rule, emitted in trials.emitted.items()
    }


def tests(trials: Trials, level: float) -> pandas.DataFrame:
    """One row a rule: `positions`, p-values `fisher` and `uniform`, `distance` by algebra, share `accepted`, sums over
    places of `statistic` and `degrees`, and the `verdict` at `level`.
    """
    by_rule = fits(trials)
    table = pandas.DataFrame({rule: speculation.combine(fit["p_value"]) for rule, fit in by_rule.items()}).T
    table["distance"] = [
        np.mean([speculation.total_variation(speculation.emitted(p, q, rule), p) for p, q in trials.pairs])
        for rule in by_rule
    ]
    table["accepted"] = [trials.kept(rule).mean() for rule in by_rule]
    table["statistic"] = [fit["statistic"].sum() for fit in by_rule.values()]
    table["degrees"] = [fit["degrees"].sum() for fit in by_rule.values()]
    table["verdict"] = np.where(table[["fisher", "uniform"]].min(axis=1) < level, "rejected", "not rejected")
    return table
