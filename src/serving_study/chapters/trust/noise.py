"""What the measured cells of equal arms say of noise: how far blocks, server lives and all the rest move a figure.

The logarithm of a figure is its place's (a concurrency), plus its block's, plus its life's, plus the rest. Blocks and
lives are fitted by least squares, and each part is scaled to the spread that is left once the parts below it are taken
out, so that drawing from the parts gives the measured variances back. What can mislead: few lives say little about the
spread between them, so that its upper bound stands beside it.

    >>> noise.split(results.frame(), drawn_chapters.METRIC).table()  # doctest: +SKIP
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas

from ...errors import StoreError
from ...results import certificates

CONFIDENCE = 0.95  # of the upper bound of the spread between lives
FEWEST_ARMS = 3  # a baseline and two twins


@dataclass(frozen=True)
class Noise:
    """The parts of natural logarithms, one column a place: `block`, `life` and `rest` as they were estimated, scaled to
    their spread; `life_bound` is the upper bound of the standard deviation between lives, `cell_s` the seconds of a
    cell at each place, `start_s` those of a server's start.
    """

    places: tuple[int, ...]
    block: np.ndarray
    life: np.ndarray
    rest: np.ndarray
    life_bound: np.ndarray
    cell_s: np.ndarray
    start_s: float

    def table(self) -> pandas.DataFrame:
        """One row a place: standard deviations of the logarithm between `blocks`, between `lives` with its upper bound
        `lives_bound`, and of the `rest`.
        """
        parts = {name: np.sqrt((part**2).mean(axis=0)) for name, part in self._parts().items()}
        table = pandas.DataFrame({"concurrency": self.places, **parts})
        table.insert(3, "lives_bound", self.life_bound)
        return table

    def _parts(self) -> dict[str, np.ndarray]:
        return {"blocks": self.block, "lives": self.life, "rest": self.rest}

    def at_bound(self) -> "Noise":
        """With lives that differ as much as the cells allow: the upper bound in place of the estimate."""
        rng = np.random.default_rng(0)
        directions = rng.standard_normal((400, 1))
        return replace(self, life=directions / math.sqrt((directions**2).mean()) * self.life_bound)


def split(frame: pandas.DataFrame, metric: str, *, start_s: float = 40.0) -> Noise:
    """The parts of the certified cells of equal arms.

    Raises StoreError where there are too few: at least three arms beside each other in two blocks."""
    rows = frame[frame["certificate"] != certificates.FAIL].dropna(subset=[metric])
    run, sitting = rows["run"].astype(str), rows["sitting"].astype(float).fillna(0).astype(int).astype(str)
    rows = rows.assign(
        log=np.log(rows[metric].astype(float)),
        group=run + "/" + sitting,
        block=run + "/" + sitting + "/" + rows["repeat"].astype(str),
        lived=rows["arm"] + "/" + run + "/" + rows["life"].astype(float).fillna(1).astype(int).astype(str),
    )
    places = tuple(sorted(int(place) for place in rows["concurrency"].unique()))
    fits = [_fit(rows[rows["concurrency"] == place]) for place in places]
    if rows["arm"].nunique() < FEWEST_ARMS or min(fit.freedom for fit in fits) < 2:
        raise StoreError(
            "too few cells to tell noise apart",
            value=f"{len(rows)} certified cells of {rows['arm'].nunique()} arms",
            allowed="at least three arms beside each other in two blocks, at every concurrency",
            next="make run SECTION=12",
        )
    return Noise(
        places,
        *(
            pandas.concat([getattr(fit, part) for fit in fits], axis=1).dropna().to_numpy()
            for part in ("block", "life", "rest")
        ),
        np.array([fit.life_bound for fit in fits]),
        _seconds(rows, places),
        start_s,
    )


@dataclass(frozen=True)
class _Fit:
    """The parts at one place, each a Series: by block, by life, by (block, life)."""

    block: pandas.Series
    life: pandas.Series
    rest: pandas.Series
    life_bound: float
    freedom: int


def _fit(rows: pandas.DataFrame) -> _Fit:
    from scipy import special
    from scipy.sparse import csgraph

    blocks, lives = pandas.get_dummies(rows["block"], dtype=float), pandas.get_dummies(rows["lived"], dtype=float)
    design = np.hstack([blocks.to_numpy(), lives.to_numpy()])
    solution, _, rank, _ = np.linalg.lstsq(design, rows["log"].to_numpy(), rcond=None)
    rest = pandas.Series(rows["log"].to_numpy() - design @ solution, [rows["block"], rows["lived"]])
    freedom = len(rows) - int(rank)
    within = float((rest**2).sum()) / freedom if freedom else math.nan
    # Only lives that blocks connect can be told from each other: the mean of each group is its blocks'.
    _, groups = csgraph.connected_components(design.T @ design)
    of_block, of_life = groups[: blocks.shape[1]], groups[blocks.shape[1] :]
    life = pandas.Series(solution[blocks.shape[1] :], lives.columns)
    middle = life.groupby(of_life).mean()
    life = life - middle.loc[of_life].to_numpy()
    block = pandas.Series(solution[: blocks.shape[1]], blocks.columns) + middle.loc[of_block].to_numpy()
    block = block - block.mean()
    life_freedom = max(1, len(life) - len(middle))
    noise_of_block, noise_of_life = within * len(block) / len(rows), within * len(life) / len(rows)
    bound = float((life**2).sum() / special.chdtri(life_freedom, CONFIDENCE))
    return _Fit(
        _scaled(block, len(block) - 1, noise_of_block),
        _scaled(life, life_freedom, noise_of_life),
        _scaled(rest, freedom, 0.0),
        math.sqrt(max(0.0, bound - noise_of_life)),
        freedom,
    )


def _scaled(part: pandas.Series, freedom: int, noise: float) -> pandas.Series:
    """Estimates scaled so that their mean square is the variance of what they estimate: lost degrees of freedom made
    up for, and the `noise` variance that the estimates carry taken out.
    """
    squares = float((part**2).sum())
    variance = max(0.0, squares / max(1, freedom) - noise)
    return part * math.sqrt(variance * len(part) / squares) if squares else part


def _seconds(rows: pandas.DataFrame, places: tuple[int, ...]) -> np.ndarray:
    """Seconds from one cell to the next at each place, by when cells were written; else how long their loads took."""
    ordered = rows.sort_values("at")
    at = pandas.to_datetime(ordered["at"], errors="coerce", utc=True, format="ISO8601")
    gaps = at.diff().dt.total_seconds().where(ordered["group"] == ordered["group"].shift())
    typical = gaps.groupby(ordered["concurrency"]).median().reindex(places)
    loads = rows.groupby("concurrency")["duration"].median().astype(float).reindex(places)
    return typical.fillna(loads).to_numpy(dtype=float)
