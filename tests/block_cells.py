"""Cells in blocks whose effects are known."""

import numpy as np
import pandas

from serving_study.results import old_cells


def cells(values: dict, certificate="pass", metric="output_throughput", lives=1, sittings=False) -> pandas.DataFrame:
    """`{(arm, concurrency): [value of each block]}` as a frame of cells; an arm whose name ends in `-again` is a twin.

    The blocks are dealt out to `lives` in turn, equally many to each; with `sittings` the lives of a number share the
    time of their blocks.
    """
    rows = []
    for (arm, concurrency), blocks in values.items():
        for block, value in enumerate(blocks):
            life = 1 + block * lives // len(blocks)
            rows.append(
                {
                    "host": "cpu",
                    "arm": arm,
                    "load": f"concurrency={concurrency}",
                    "concurrency": concurrency,
                    "repeat": block,
                    "life": life,
                    "sitting": life if sittings else None,
                    "run": "r",
                    "at": f"2026-01-01T00:{block:02}:00Z",
                    "certificate": certificate,
                    metric: value,
                    "weights": "real",
                    "acceptance": None,
                }
            )
    return old_cells.with_arm_columns(pandas.DataFrame(rows))


def drawn(
    draw: np.random.Generator,
    effects: dict[str, float],
    *,
    blocks=8,
    lives=2,
    concurrencies=(1, 4, 8),
    between_blocks=0.1,
    between_lives=0.02,
    noise=0.05,
) -> pandas.DataFrame:
    """A chapter of lives side by side: `effects` are the logarithms of each arm's ratio, the others standard deviations
    of logarithms, as two cores had them.
    """
    values = {}
    for concurrency in concurrencies:
        times = draw.normal(0, between_blocks, blocks)
        for arm, effect in effects.items():
            of_lives = np.repeat(draw.normal(0, between_lives, lives), blocks // lives)
            values[arm, concurrency] = 100 * np.exp(effect + times + of_lives + draw.normal(0, noise, blocks))
    return cells(values, lives=lives, sittings=True)
