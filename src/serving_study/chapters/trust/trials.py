"""Both rules applied to many drawn chapters: how often a false difference is claimed, and how small a true one is
decided.

A claim is false where the arms are equal, or the other way round, or where a difference beyond the margin is called
equal. Shares have Clopper and Pearson's interval. What can mislead: chapters are drawn from one run's cells; the
interval says how many chapters were drawn, not how many machines were measured.

    >>> trials.false_claims(noise, chapters=2000, seed=42)         # doctest: +SKIP
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas

from ...analysis import claims
from ...results.looks import LEVEL, Look
from . import drawn_chapters, rule_before
from .drawn_chapters import METRIC, STEADY, Chapter
from .noise import Noise

ONE_REPEAT, REPEATS, BLOCKS = "one life an arm, 1 repeat", "one life an arm, {} repeats", "blocks"
LOOKED, AT_BOUND, RENAMED = "blocks, a look after each sitting", "blocks, lives at their bound", "blocks as measured"
EFFECTS = (0.0, 0.05, 0.10, 0.20)
BLOCK_COUNTS, LIVES = (4, 8, 16, 32), (2, 4)
DECIDED = 0.8  # of the claims: from here on a number of blocks is said to decide an effect
WHOLE = (Look(None, LEVEL),)
USUAL = Chapter()


def claimed(frame: pandas.DataFrame, looks: Sequence[Look] = WHOLE) -> pandas.DataFrame:
    """The claims on one chapter's cells."""
    return claims.compare(frame, METRIC, "baseline", taken=looks)


def is_false(table: pandas.DataFrame, truth: pandas.Series) -> np.ndarray:
    """Which claims of a table are false, given the logarithm of each arm's true ratio."""
    true, claim = table["arm"].map(truth).to_numpy(dtype=float), table["claim"].to_numpy()
    equal = (claim == claims.EQUAL) & (np.abs(true) > math.log1p(claims.MARGIN))
    return (claim == claims.ABOVE) & (true <= 0) | (claim == claims.BELOW) & (true >= 0) | equal


def false_claims(noise: Noise, *, chapters: int, seed: int, chapter: Chapter = USUAL) -> pandas.DataFrame:
    """One row a rule and disturbance: the `chapters` drawn, those `false` (with at least one false claim), their
    `share` with its ends `low` and `high`, and the share of all `claims` that are false.
    """
    rng, rows = np.random.default_rng(seed), []
    for disturbance in drawn_chapters.DISTURBANCES:
        for repeats, name in ((1, ONE_REPEAT), (chapter.blocks, REPEATS.format(chapter.blocks))):
            size = Chapter(chapter.arms, 1, repeats, 1)
            found = rule_before.claimed(drawn_chapters.one_after_another(noise, size, chapters, rng, disturbance))
            rows.append(_row(name, disturbance, found.reshape(chapters, -1)))
        rows.append(_row(BLOCKS, disturbance, _false(noise, chapter, chapters, rng, disturbance)))
    return pandas.DataFrame(rows)


def false_claims_otherwise(
    frame: pandas.DataFrame, noise: Noise, *, chapters: int, seed: int, chapter: Chapter = USUAL
) -> pandas.DataFrame:
    """The same of the rule of blocks, on a steady machine: with a look after each of twice as many sittings, with lives
    that differ as much as the cells allow, and with the measured cells themselves, their names exchanged.

    The last has no interval: its chapters are all of the same cells, so that their number says nothing of how the share
    would be for others."""
    rng = np.random.default_rng(seed)
    longer = Chapter(chapter.arms, chapter.twins, 2 * chapter.blocks, 2 * chapter.lives)
    rows = [
        _row(LOOKED, STEADY, _false(noise, longer, chapters, rng, looks=longer.looks())),
        _row(AT_BOUND, STEADY, _false(noise.at_bound(), chapter, chapters, rng)),
    ]
    equal = pandas.Series(0.0, sorted({*chapter.names, *Chapter(arms=frame["arm"].nunique()).names}))
    renamed = [is_false(claimed(drawn_chapters.renamed(frame, rng)), equal) for _ in range(chapters)]
    return pandas.DataFrame([*rows, _row(RENAMED, STEADY, np.array(renamed)) | {"low": math.nan, "high": math.nan}])


def power(
    noise: Noise,
    *,
    chapters: int,
    seed: int,
    effects: tuple[float, ...] = EFFECTS,
    block_counts: Sequence[int] = BLOCK_COUNTS,
    lives: Sequence[int] = LIVES,
) -> pandas.DataFrame:
    """One row for each number of blocks and lives, each effect (a ratio less 1) and concurrency: the share `decided` of
    the claims that it is a difference, with `low` and `high`, and the median `half_width` of intervals, as a ratio less
    1.

    Each chapter has one arm of each effect, and a run's looks."""
    rng, rows = np.random.default_rng(seed), []
    for count in lives:
        for blocks in block_counts:
            chapter = Chapter(1 + len(effects), 2, blocks, count, effects)
            effect_of = dict(zip(chapter.names[1:], effects, strict=False))
            tables = [
                table.assign(effect=table["arm"].map(effect_of), half=np.log(table["high"] / table["low"]) / 2)
                for table in _tables(noise, chapter, chapters, rng, looks=chapter.looks())
            ]
            for (effect, place), table in pandas.concat(tables).groupby(["effect", "concurrency"]):
                decided = int(table["claim"].isin([claims.ABOVE, claims.BELOW]).sum())
                rows.append(
                    {
                        "blocks": blocks,
                        "lives": count,
                        "effect": effect,
                        "concurrency": place,
                        **_share("decided", decided, len(table)),
                        "half_width": math.expm1(float(table["half"].median())),
                    }
                )
    return pandas.DataFrame(rows)


def blocks_to_decide(power: pandas.DataFrame) -> pandas.DataFrame:
    """One row for each number of lives, effect and concurrency: the fewest `blocks` that decide it (DECIDED of the
    claims); NaN where none of those drawn does.
    """
    places = ["lives", "effect", "concurrency"]
    enough = power[power["decided"] >= DECIDED].groupby(places)["blocks"].min()
    index = pandas.MultiIndex.from_frame(power.loc[power["effect"] > 0, places].drop_duplicates())
    return enough.reindex(index).reset_index()


def _tables(noise: Noise, chapter: Chapter, count: int, rng, disturbance: str = STEADY, looks=WHOLE):
    """The table of claims of each of `count` drawn chapters."""
    cells = chapter.frame(noise.places)
    for logs in drawn_chapters.blocks(noise, chapter, count, rng, disturbance):
        yield claimed(cells.assign(**{METRIC: np.exp(logs.ravel())}), looks)


def _false(noise: Noise, chapter: Chapter, count: int, rng, disturbance: str = STEADY, looks=WHOLE) -> np.ndarray:
    """Which claims are false, (chapter, claim)."""
    truth = pandas.Series(chapter.truth, chapter.names)
    return np.array([is_false(table, truth) for table in _tables(noise, chapter, count, rng, disturbance, looks)])


def _row(rule: str, disturbance: str, false: np.ndarray) -> dict:
    chapters = len(false)
    return {
        "rule": rule,
        "disturbance": disturbance,
        "chapters": chapters,
        **_share("share", int(false.any(axis=1).sum()), chapters),
        "claims": float(false.mean()),
    }


def _share(name: str, count: int, of: int) -> dict:
    """A share with the ends of its interval at 95%."""
    from scipy import stats  # takes a second

    ends = stats.binomtest(count, of).proportion_ci()
    return {name: count / of, "low": float(ends.low), "high": float(ends.high)}
