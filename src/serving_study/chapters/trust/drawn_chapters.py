"""Chapters of equal arms drawn from measured noise, with something wrong with the machine where that is wanted.

A chapter is as the book measures them: a baseline, other arms, and the baseline's twins, block by block, each arm with
several lives. Every block, life and rest is one of those that were measured, drawn with replacement and whole, so that
what time does to a block it does to all arms at all concurrencies. A chapter of the rule before (`rule_before`) has the
same arms one after the other, each in one life, the twin last; each of its cells has a block of its own.

What can mislead: in truth what is slow stays slow for minutes. Repeats of one life that draw a block each average it
out, so that the rule before does better here than on the machine. Blocks of side by side arms do not mind either way.

    >>> drawn = drawn_chapters.blocks(noise, Chapter(), 2000, rng)  # doctest: +SKIP
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas

from ...results import certificates, looks
from ...results.looks import Look
from .noise import Noise

METRIC = "steady_output_throughput"  # what claims of output throughput rest on
STEADY, DRIFT, SLOW_LIFE, SLOW_BLOCK = (
    "none",
    "drift of 10% a minute",
    "one life 15% slower",
    "first block 30% slower",
)
DISTURBANCES = (STEADY, DRIFT, SLOW_LIFE, SLOW_BLOCK)
DRIFT_LEFT, SLOW_LIFE_LEFT, SLOW_BLOCK_LEFT = 0.90, 0.85, 0.70  # of the throughput: after a minute, in a life, a block


@dataclass(frozen=True)
class Chapter:
    """The size of a drawn chapter: `arms` with the baseline, twins, blocks in all, and sittings that share them, each
    with new lives. `effects` are what the arms after the baseline truly gain, as ratios less 1.
    """

    arms: int = 5
    twins: int = 2
    blocks: int = 8
    lives: int = 2
    effects: tuple[float, ...] = ()

    @property
    def names(self) -> list[str]:
        """The arms in order, the baseline first and its twins last."""
        twins = [f"baseline-again-{number}" for number in range(1, self.twins + 1)]
        return ["baseline", *(f"arm-{number}" for number in range(1, self.arms)), *twins]

    @property
    def truth(self) -> np.ndarray:
        """The logarithm of each arm's true ratio to the baseline, in the order of `names`."""
        logs = np.zeros(self.arms + self.twins)
        logs[1 : 1 + len(self.effects)] = np.log1p(self.effects)
        return logs

    @property
    def sitting(self) -> np.ndarray:
        """Which sitting each block is of, from 0."""
        return np.repeat(np.arange(self.lives), [len(part) for part in np.array_split(range(self.blocks), self.lives)])

    def frame(self, places: tuple[int, ...]) -> pandas.DataFrame:
        """The cells of such a chapter without their figure, by block, arm and place."""
        shape = (self.blocks, self.arms + self.twins, len(places))
        block, arm, place = (index.ravel() for index in np.indices(shape))
        names = np.array(self.names, dtype=object)
        twin_of = np.array(["baseline" if "again" in name else None for name in names], dtype=object)
        return pandas.DataFrame(
            {
                "arm": names[arm],
                "repeat_of": twin_of[arm],
                "concurrency": np.array(places)[place],
                "repeat": block,
                "run": "drawn",
                "sitting": self.sitting[block],
                "life": self.sitting[block] + 1,
                "certificate": certificates.PASS,
                "at": [f"{sitting:03d}" for sitting in self.sitting[block]],
            }
        )

    def looks(self) -> list[Look]:
        """The looks of a run that stops here: after each sitting from the second on, and at its end."""
        taken: list[Look] = []
        for sitting in range(1, self.lives):
            taken.append(Look(f"{sitting:03d}", looks.next_level(taken, ends=False)))
        taken.append(Look(None, looks.next_level(taken, ends=True)))
        last = f"{self.lives - 1:03d}"
        return [Look(None, look.level) if look.at == last else look for look in taken]


def blocks(
    noise: Noise, chapter: Chapter, count: int, rng: np.random.Generator, disturbance: str = STEADY
) -> np.ndarray:
    """Logarithms of `count` chapters: (chapter, block, arm, place), arms in the order of `Chapter.names`."""
    arms, places = chapter.arms + chapter.twins, len(noise.places)
    shape = (count, chapter.blocks, arms, places)
    life = noise.life[rng.integers(len(noise.life), size=(count, chapter.lives, arms))]
    logs = (
        noise.block[rng.integers(len(noise.block), size=(count, chapter.blocks))][:, :, None]
        + life[:, chapter.sitting]
        + noise.rest[rng.integers(len(noise.rest), size=shape[:3])]
        + chapter.truth[None, None, :, None]
    )
    block_s = arms * noise.cell_s.sum()
    begins_s = np.arange(chapter.blocks) * block_s + chapter.sitting * arms * noise.start_s
    turn = rng.permuted(np.broadcast_to(np.arange(arms), shape[:3]), axis=2)
    began_s = begins_s[None, :, None] + turn * noise.cell_s.sum()
    seconds = began_s[..., None] + _begins(noise.cell_s, rng, shape)
    slow = rng.integers((chapter.lives, arms), size=(count, 2))
    in_life = chapter.sitting[None, :, None] == slow[:, None, None, 0]
    in_life = in_life & (np.arange(arms)[None, None] == slow[:, None, None, 1])
    return logs + _disturbed(disturbance, seconds, in_life[..., None], block_s)


def one_after_another(
    noise: Noise, chapter: Chapter, count: int, rng: np.random.Generator, disturbance: str = STEADY
) -> np.ndarray:
    """Logarithms of `count` chapters whose arms have one life each, one twin last: (chapter, repeat, arm, place)."""
    arms, places = chapter.arms + 1, len(noise.places)
    shape = (count, chapter.blocks, arms, places)
    truth = np.append(chapter.truth[: chapter.arms], 0.0)
    logs = (
        noise.block[rng.integers(len(noise.block), size=shape[:3])]
        + noise.life[rng.integers(len(noise.life), size=(count, 1, arms))]
        + noise.rest[rng.integers(len(noise.rest), size=shape[:3])]
        + truth[None, None, :, None]
    )
    in_life_s = chapter.blocks * noise.cell_s.sum()
    within = _begins(np.tile(noise.cell_s, chapter.blocks), rng, (count, arms, chapter.blocks * places))
    within = within.reshape(count, arms, chapter.blocks, places).swapaxes(1, 2)
    seconds = np.arange(arms)[None, None, :, None] * (noise.start_s + in_life_s) + within
    slow = rng.integers(arms, size=(count, 1, 1, 1)) == np.arange(arms)[None, None, :, None]
    block_s = (chapter.arms + chapter.twins) * noise.cell_s.sum()
    return logs + _disturbed(disturbance, seconds, slow, block_s)


def _begins(cell_s: np.ndarray, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Seconds at which each cell begins when those along the last axis come in random order."""
    order = rng.permuted(np.broadcast_to(np.arange(len(cell_s)), shape), axis=-1)
    in_order = cell_s[order]
    begins = np.empty(shape)
    np.put_along_axis(begins, order, in_order.cumsum(axis=-1) - in_order, axis=-1)
    return begins


def _disturbed(disturbance: str, seconds: np.ndarray, in_life: np.ndarray, block_s: float) -> np.ndarray:
    """What a disturbance adds to each cell's logarithm, by when it begins, whether its life is the slow one, and how
    long a block takes.
    """
    if disturbance == DRIFT:
        return math.log(DRIFT_LEFT) * seconds / 60
    if disturbance == SLOW_LIFE:
        return math.log(SLOW_LIFE_LEFT) * in_life
    if disturbance == SLOW_BLOCK:
        return math.log(SLOW_BLOCK_LEFT) * (seconds < block_s)
    return np.zeros(1)


def renamed(frame: pandas.DataFrame, rng: np.random.Generator, twins: int = 2) -> pandas.DataFrame:
    """The measured cells themselves, their names exchanged at random among the lives of each sitting: a baseline, its
    `twins`, and arms.
    """
    measured = list(dict.fromkeys(frame["arm"]))
    names = Chapter(arms=len(measured) - twins, twins=twins).names
    sitting = frame["run"].astype(str) + "/" + frame["sitting"].astype(str)
    arm = pandas.Series(index=frame.index, dtype=object)
    for _, rows in frame.groupby(sitting)["arm"]:
        arm[rows.index] = rows.map(dict(zip(measured, rng.permutation(names), strict=True)))
    return frame.assign(arm=arm, repeat_of=arm.where(~arm.str.contains("again")).isna().map({True: "baseline"}))
