"""The rule that the book had before this one, kept for comparison: every arm in one life after another, and the floor.

A difference was claimed where its paired t interval over repeats excludes 1 and where it is larger than the floor: what
the baseline and its twin, measured last, differ by. Its two faults are the subject of the chapter: repeats within one
life are no repeats of the arm, and a single twin is a single draw.

    >>> rule_before.claimed(drawn_chapters.one_after_another(noise, Chapter(), 2000, rng))  # doctest: +SKIP
"""

import numpy as np

CONFIDENCE = 0.95


def claimed(logs: np.ndarray) -> np.ndarray:
    """Whether a difference from the baseline is claimed: (chapter, arm, place), arms without baseline and twin, of
    logarithms (chapter, repeat, arm, place), the baseline first and its twin last.

    The floor is the largest of the twin's difference at the place, its median over places (with one repeat: the
    largest), and the half-width of its interval."""
    from scipy import special

    repeats = logs.shape[1]
    differences = logs[:, :, 1:] - logs[:, :, :1]
    centre = differences.mean(axis=1)
    if repeats > 1:
        quantile = special.stdtrit(repeats - 1, 0.5 + CONFIDENCE / 2)
        half = quantile * differences.std(axis=1, ddof=1) / np.sqrt(repeats)
    else:
        half = np.zeros_like(centre)
    twin = np.abs(centre[:, -1])
    typical = np.median(twin, axis=1) if repeats > 1 else twin.max(axis=1)
    floor = np.maximum(np.maximum(twin, typical[:, None]), half[:, -1])
    return np.abs(centre[:, :-1]) > np.maximum(half[:, :-1], floor[:, None])
