"""What may be claimed of arms that were measured in blocks: above, below, equal within a margin, or not decided.

One model holds for every design: the logarithm of a figure is that of its arm, plus its block's (what the machine did
meanwhile, and the block's prompts), plus its server life's, plus noise. Ratios are taken within blocks, against the
mean of all lives of the baseline, twins included. A life is not a repeat: the spread between lives of equal arms stands
in every interval, and its few degrees of freedom with it (Satterthwaite). The noise of an arm is its own, drawn towards
that of the others as far as all agree (Smyth 2004, doi:10.2202/1544-6115.1027).

All claims of one figure hold together: Holm's procedure keeps the chance of any false one below the level of a look,
whatever else is true; Benjamini-Hochberg would let false claims come in with the true ones, a twin's first. Looks share
5 % between them (`results.looks`), so that it does not matter how often one looked. What can mislead: a margin that
noise cannot resolve leaves every small difference undecided, and that is what the table then says; and a percentage is
of the figure that is compared, so that a TPOT of 0.8 times is *faster by 20 %* where its inverse is a speed-up of 25 %.

    >>> compare(frame, "output_throughput", "baseline")            # doctest: +SKIP
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pandas

from ..errors import ParameterError
from ..results import certificates, looks
from ..results.looks import Look
from .comparisons import least_requests, repeats, without_repeats

MARGIN = 0.03
ABOVE, BELOW, EQUAL, UNDECIDED = "above", "below", "equal", "undecided"
CLAIMED = ("low", "high", "claim", "more_blocks", "more_minutes", "margin")  # the columns of `compare` that words need
SPEEDUP = "speedup"  # a ratio of times upside down, as a metric
WIDEST = math.log(1e100)  # half-width of an interval that bounds nothing: a block or two, and many claims
LEAST_LIFE_SHARE = 0.3  # of the noise of equal cells: few lives that differ little by chance do not prove that all do
ODD_LIFE = 0.1  # chance below which lives of unequal arms are seen to differ
LEAST_LIFE_FREEDOM = 6  # with fewer degrees of freedom a place, the spread between lives is taken over all places


@dataclass(frozen=True)
class Estimate:
    """The logarithm of one arm's ratio at one place: its mean over `blocks` blocks, its variance and its degrees of
    freedom; NaN variance where nothing bounds the noise.
    """

    centre: float
    variance: float
    freedom: float
    blocks: int

    def half_width(self, level: float) -> float:
        """Of the interval that misses with the probability `level`."""
        from scipy import special  # a third of a second, which a prediction need not wait for

        return float(-special.stdtrit(self.freedom, level / 2) * math.sqrt(self.variance))

    @property
    def p(self) -> float:
        """Probability of a ratio at least as far from 1 between equal arms; NaN where nothing bounds the noise."""
        from scipy import special

        if not self.variance > 0:
            return math.nan if math.isnan(self.variance) else float(self.centre == 0)
        return float(2 * special.stdtr(self.freedom, -abs(self.centre) / math.sqrt(self.variance)))


@dataclass(frozen=True)
class _Spread:
    """Sums of squares and degrees of freedom between lives and within them, block by block."""

    life_squares: float = 0.0
    life_freedom: int = 0
    cells_a_life: float = 0.0
    noise_squares: float = 0.0
    noise_freedom: int = 0

    @property
    def between(self) -> float:
        return self.life_squares / self.life_freedom if self.life_freedom else 0.0

    @property
    def within(self) -> float:
        return self.noise_squares / self.noise_freedom if self.noise_freedom else 0.0

    @property
    def chance(self) -> float:
        """Of so much between lives that do not differ (F)."""
        from scipy import special

        if not self.life_freedom or not self.within:
            return 0.0
        return float(special.fdtrc(self.life_freedom, self.noise_freedom, self.between / self.within))


@dataclass
class _Place:
    """The certified cells of one place."""

    arm: np.ndarray
    family: np.ndarray
    block: np.ndarray
    life: np.ndarray
    value: np.ndarray  # logarithms
    differences: dict = field(default_factory=dict)  # arm to (differences by block, lives, weight of lives)


def compare(
    frame: pandas.DataFrame,
    metric: str,
    baseline: str,
    *,
    by: str = "concurrency",
    margin: float | None = None,
    taken: Sequence[Look] | None = None,
) -> pandas.DataFrame:
    """Every arm against `baseline` at each value of column `by`: `arm`, `by`, `ratio`, `low`, `high`, `claim`,
    `blocks`, `more_blocks`, `more_minutes`, `margin`, `repeat_of`.

    Rates of tokens are compared over the steady window alone where the cells have it: over a whole run, ramp and drain
    would be part of the ratio. `low` and `high` are NaN where nothing bounds the noise: neither twin nor second life.
    `more_blocks` is how many more would about decide an undecided claim, if noise and ratio stayed, else None;
    `more_minutes` what they take if every block takes as long as these did, NaN where that is not known. A percentile
    of a cell with too few requests to have one is left out. A claim that a look decided stands, with that look's
    interval. `margin` is by default the widest of the cells' own, from
    their column of that name, else MARGIN. `taken` are the looks, by default those that the cells' runs have on record.
    Nothing measured is an empty table. Raises ParameterError for a baseline that there is not."""
    if len(frame) and baseline not in set(frame["arm"]):
        raise ParameterError(
            "no such arm to compare with", value=baseline, allowed=", ".join(dict.fromkeys(frame["arm"]))
        )
    metric = compared(frame, metric)
    margin = _margin_of(frame) if margin is None else margin
    taken = looks.of_cells(frame) if taken is None else list(taken)
    claims, final = {}, {}
    whole = _estimates(frame, metric, baseline, by)
    for look in taken:
        final = whole if look.at is None else _estimates(frame[frame["at"] <= look.at], metric, baseline, by)
        _decide(claims, final, len(whole), look.level, math.log1p(margin))
    rows = [(arm, place, *claims[arm, place]) for arm, place in _in_order(frame, claims, by)]
    table = pandas.DataFrame(rows, columns=["arm", by, "ratio", "low", "high", "claim", "blocks"])
    more = [_more_blocks(final.get(row[:2]), row[2:], margin) for row in rows]
    table["more_blocks"] = pandas.Series(more, index=table.index, dtype=object)
    table["more_minutes"] = pandas.to_numeric(table["more_blocks"]) * (_block_s(frame) / 60 if any(more) else math.nan)
    table["margin"] = margin
    table["repeat_of"] = table["arm"].map(repeats(frame)).astype(object)
    return table


def decisions(frame: pandas.DataFrame, metric: str, baseline: str) -> pandas.DataFrame:
    """What `measure.plan.Plan.decisions` wants to know of claims about `metric`, twins of the baseline aside: `arm`,
    `load`, `decided`, `half_width` (of the interval's logarithm), `blocks`. Empty without cells of the baseline's.
    """
    if baseline not in set(frame["arm"]):
        return pandas.DataFrame(columns=["arm", "load", "decided", "half_width", "blocks"])
    table = compare(frame, metric, baseline, by="load")
    table = table[table["repeat_of"] != baseline]
    half_width = np.log(table["high"] / table["low"]) / 2
    return table[["arm", "load", "blocks"]].assign(decided=table["claim"] != UNDECIDED, half_width=half_width)


def of_arm(
    frame: pandas.DataFrame, metric: str, arm: str, baseline: str, *, by: str = "concurrency"
) -> pandas.DataFrame:
    """The rows of `compare` of one arm alone, indexed by column `by`."""
    table = compare(frame, metric, baseline, by=by)
    return table[table["arm"] == arm].set_index(by)


def inverted(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table of `compare` with every ratio, interval and claim upside down: times to speeds."""
    ends = {"ratio": 1 / table["ratio"], "low": 1 / table["high"], "high": 1 / table["low"]}
    return table.assign(**ends, claim=table["claim"].replace({ABOVE: BELOW, BELOW: ABOVE}))


def extremes(table: pandas.DataFrame) -> tuple[pandas.Series | None, pandas.Series | None]:
    """The row of a table of `compare` with the largest ratio decided to be above 1, and that with the smallest decided
    to be below; None where there is none. Pairs of equal arms take no part.
    """
    table = without_repeats(table)
    above, below = table[table["claim"] == ABOVE], table[table["claim"] == BELOW]
    return (
        above.loc[above["ratio"].idxmax()] if len(above) else None,
        below.loc[below["ratio"].idxmin()] if len(below) else None,
    )


def directions(metric: str) -> tuple[str, str]:
    """What a figure above the baseline's is called, and one below: a longer time is slower, a higher rate faster."""
    if metric.endswith(("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")):
        return "slower", "faster"
    return ("faster", "slower") if metric.endswith("throughput") or metric == SPEEDUP else ("more", "less")


def words(row, metric: str) -> str:
    """What is claimed by a row of `compare` of `metric`: `faster by 10–45 %`, `equal within 3 %`, or `not decided:
    about 7 more blocks (9 minutes) would`.

    `row` is a Series, or anything else that has the columns of `compare` as attributes."""
    if row.claim == EQUAL:
        return f"equal within {100 * row.margin:g} %"
    if row.claim != UNDECIDED:
        ends = sorted(abs(100 * (end - 1)) for end in (row.low, row.high))
        return f"{directions(metric)[row.claim == BELOW]} by {'–'.join(dict.fromkeys(map(_percentage, ends)))} %"
    if math.isnan(row.low):
        return "not decided: nothing bounds the noise"
    if row.more_blocks is None or pandas.isna(row.more_blocks):
        return "not decided"
    more = int(row.more_blocks)
    shown = more if more < 100 else round(more, 2 - len(str(more)))
    return f"not decided: about {shown:,} more block{'s' if more > 1 else ''}{_minutes(row.more_minutes)} would"


def counted(table: pandas.DataFrame, metric: str) -> str:
    """How many rows of a table of `compare` have which claim: `2 faster, 1 slower, 0 equal within 3 % and 4 not
    decided`.
    """
    above, below = directions(metric)
    counts = {claim: int((table["claim"] == claim).sum()) for claim in (ABOVE, BELOW, EQUAL, UNDECIDED)}
    named = {above: counts[ABOVE], below: counts[BELOW]}
    first, second = sorted(named, key=("faster", "more", "slower", "less").index)
    margin = f"{100 * table['margin'].max():g} %" if len(table) else "the margin"
    return (
        f"{named[first]} {first}, {named[second]} {second}, {counts[EQUAL]} equal within {margin} and "
        f"{counts[UNDECIDED]} not decided"
    )


def ratio_text(row) -> str:
    """A ratio with its interval, where it has one: `1.26× [1.10, 1.45]`."""

    def form(ratio: float) -> str:
        return f"{ratio:.{3 if ratio < 0.1 else 2 if ratio < 10 else 1}f}"

    ends = "" if pandas.isna(row.low) else f" [{form(row.low)}, {form(row.high)}]"
    return f"{form(row.ratio)}×{ends}"


def _percentage(value: float) -> str:
    return f"{value:.{0 if value >= 10 else 1}f}" if value >= 0.1 else f"{value:.1g}"


def _minutes(minutes: float) -> str:
    if pandas.isna(minutes):
        return ""
    if minutes >= 120:
        return f" ({minutes / 60:,.0f} hours)"
    return f" ({max(1, round(minutes))} minute{'s' if minutes >= 1.5 else ''})"


def _block_s(frame: pandas.DataFrame) -> float:
    """Seconds that a block of these cells takes, from one cell to the next, starts in between included; NaN where no
    run has several blocks.
    """
    if not {"at", "run"} <= set(frame):
        return math.nan
    seconds = blocks = 0.0
    for _, cells in frame.groupby("run"):
        at = pandas.to_datetime(cells["at"], errors="coerce", utc=True, format="ISO8601").dropna()
        if cells["repeat"].nunique() > 1 and len(at) > 1:
            share = len(at) / (len(at) - 1)  # the time before the first cell's end is in no difference
            seconds += share * (at.max() - at.min()).total_seconds()
            blocks += cells["repeat"].nunique()
    return seconds / blocks if blocks and seconds else math.nan


def compared(frame: pandas.DataFrame, metric: str) -> str:
    """The column that claims about `metric` rest on: that of the steady window, where the cells have it."""
    steady = f"steady_{metric}"
    return steady if steady in frame and frame[steady].notna().any() else metric


def _margin_of(frame: pandas.DataFrame) -> float:
    known = frame["margin"].dropna() if "margin" in frame else ()
    return float(known.astype(float).max()) if len(known) else MARGIN


def _decide(claims: dict, estimates: dict, count: int, level: float, margin: float) -> None:
    """One look: what it decides is put into `claims`, and the rest as undecided with its interval.

    Holm's procedure: the smallest p has to be below the level over the number of claims, the next over one less, and
    so on; the intervals of claims have the same levels, so that interval and claim never disagree.
    """
    different = sum(claim in (ABOVE, BELOW) for *_, claim, _ in claims.values())
    open_claims = {
        key: estimate for key, estimate in estimates.items() if key not in claims or claims[key][3] == UNDECIDED
    }
    for key, estimate in sorted(open_claims.items(), key=lambda item: (math.isnan(item[1].p), item[1].p)):
        share = level / (count - different)
        half = math.nan if math.isnan(estimate.variance) else estimate.half_width(share)
        if math.isnan(half) or half > WIDEST:
            claims[key] = (math.exp(estimate.centre), math.nan, math.nan, UNDECIDED, estimate.blocks)
            continue
        if estimate.p <= share:
            claim, different = ABOVE if estimate.centre > 0 else BELOW, different + 1
        else:
            claim = EQUAL if abs(estimate.centre) + half <= margin else UNDECIDED
        claims[key] = (
            math.exp(estimate.centre),
            math.exp(estimate.centre - half),
            math.exp(estimate.centre + half),
            claim,
            estimate.blocks,
        )


def _more_blocks(estimate: Estimate | None, claim: tuple, margin: float) -> int | None:
    """How many blocks more would decide an undecided claim, if its ratio and noise stayed and lives came with them."""
    ratio, low, high, word, blocks = claim
    if word != UNDECIDED or estimate is None or math.isnan(low):
        return None
    half, centre = math.log(high / low) / 2, abs(math.log(ratio))
    target = max(centre, math.log1p(margin) - centre)
    return max(1, math.ceil(blocks * ((half / target) ** 2 - 1)))


def _in_order(frame: pandas.DataFrame, claims: dict, by: str) -> list[tuple]:
    places = sorted({place for _, place in claims}) if claims else []
    return [(arm, place) for arm in dict.fromkeys(frame["arm"]) for place in places if (arm, place) in claims]


def _estimates(frame: pandas.DataFrame, metric: str, baseline: str, by: str) -> dict[tuple, Estimate]:
    """(arm, place) to the estimate of its ratio to the baseline, of all arms but the baseline."""
    places, again = _places(frame, metric, baseline, by), repeats(frame)
    for place in places.values():
        _differences(place, baseline, again)
    estimates = {}
    within = {
        (arm, value): _within(by_block, lives)
        for value, place in places.items()
        for arm, (by_block, lives, _) in place.differences.items()
    }
    priors = _priors(within)
    family = again.get(baseline, baseline)
    spreads = {
        (arm, value): _spread(place, family, again.get(arm, arm))
        for value, place in places.items()
        for arm in place.differences
    }
    for value, place in places.items():
        for arm, (by_block, _, weight) in place.differences.items():
            spread = spreads[arm, value]
            if spread.life_freedom < LEAST_LIFE_FREEDOM:
                spread = _wider(spread, [one for (name, _), one in spreads.items() if name == arm])
            own, freedom = within[arm, value]
            prior_freedom, prior = priors[arm, value]
            if math.isinf(prior_freedom):
                noise = prior
            elif prior_freedom + freedom:
                noise = (prior_freedom * prior + freedom * own) / (prior_freedom + freedom)
            else:
                noise = 0.0
            estimates[arm, value] = _estimate(by_block, noise, prior_freedom + freedom, weight, spread)
    return estimates


def _places(frame: pandas.DataFrame, metric: str, baseline: str, by: str) -> dict:
    """Each place with a cell of the baseline's to its cells, arms in columns of numbers."""
    columns = [name for name in ("sitting", "life", "run", "completed") if name in frame and name != metric]
    cells = frame[["arm", by, "repeat", "certificate", metric, *columns]]
    cells = cells[cells["certificate"] != certificates.FAIL].dropna(subset=[metric])
    if "completed" in cells:
        cells = cells[~(pandas.to_numeric(cells["completed"]) < least_requests(metric))]
    cells = cells[cells[metric].astype(float) > 0]
    again, places = repeats(frame), {}
    run = cells["run"].astype(str) if "run" in cells else pandas.Series("", cells.index)
    sitting = cells["sitting"] if "sitting" in cells else pandas.Series(np.nan, cells.index)
    life = cells["life"].fillna(1).astype(int) if "life" in cells else pandas.Series(1, cells.index)
    # Cells share a block's time where they were measured in one sitting; otherwise its prompts alone.
    together = run.str.cat(sitting.astype(str), "/").where(sitting.notna(), "")
    block = together.str.cat(cells["repeat"].astype(str), "/").to_numpy(dtype=str)
    lives = cells["arm"].str.cat(run, "/").str.cat(life.astype(str), "/").to_numpy(dtype=str)
    arm = cells["arm"].to_numpy(dtype=str)
    family = np.array([again.get(name, name) for name in arm], dtype=str)
    logs, values = np.log(cells[metric].to_numpy(dtype=float)), cells[by].to_numpy()
    for value in sorted(cells[by].dropna().unique()):
        rows = values == value
        if again.get(baseline, baseline) in family[rows]:
            places[value] = _Place(arm[rows], family[rows], block[rows], lives[rows], logs[rows])
    return places


def _one_hot(names: np.ndarray) -> np.ndarray:
    return (names[:, None] == np.unique(names)).astype(float)


def _residual(values: np.ndarray, *factors: np.ndarray) -> tuple[np.ndarray, int]:
    """What factors leave of values (a vector, or columns), and the rank of the factors."""
    basis = _basis(*(np.unique(names, return_inverse=True)[1].tobytes() for names in factors))
    return values - basis @ (basis.T @ values), basis.shape[1]


@lru_cache(maxsize=64)
def _basis(*factors: bytes) -> np.ndarray:
    """Orthonormal columns that span these factors, each a number for each cell; places and looks share most of them."""
    design = np.hstack([_one_hot(np.frombuffer(factor, dtype=np.intp)) for factor in factors])
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    return left[:, singular > singular[0] * max(design.shape) * np.finfo(float).eps]


def _spread(place: _Place, family: str, own: str) -> _Spread:
    """Of the lives of the arms that are equal to the baseline (`family`); with those of the `own` arm where they are
    seen to differ more. Another arm's noise would hide what equal lives differ by, and its odd life says nothing of
    this one.
    """
    equal, with_own = place.family == family, np.isin(place.family, (family, own))
    spread, wider = _between_lives(place, equal), _between_lives(place, with_own)
    if not spread.life_freedom or wider.between > spread.between and wider.chance < ODD_LIFE:
        spread = wider
    return spread if spread.life_freedom else _between_lives(place, np.ones(len(place.arm), dtype=bool))


def _between_lives(place: _Place, rows: np.ndarray) -> _Spread:
    value, life, block, family = (part[rows] for part in (place.value, place.life, place.block, place.family))
    within, rank = _residual(value, life, block)
    outside, least = _residual(value, family, block)
    noise = float(within @ within), len(value) - rank
    if rank == least:
        return _Spread(0.0, 0, 0.0, *noise)
    lives, _ = _residual(_one_hot(life), family, block)
    squares = max(0.0, float(outside @ outside - within @ within))
    return _Spread(squares, rank - least, float((lives**2).sum()) / (rank - least), *noise)


def _wider(spread: _Spread, everywhere: list[_Spread]) -> _Spread:
    """The noise of an arm at all places together, or this place's own spread between lives where that is wider."""
    names = ("life_squares", "life_freedom", "noise_squares", "noise_freedom")
    total = {name: sum(getattr(one, name) for one in everywhere) for name in names}
    lives = sum(one.cells_a_life * one.life_freedom for one in everywhere)
    cells = lives / total["life_freedom"] if total["life_freedom"] else 0.0
    pooled = _Spread(**total, cells_a_life=cells)
    if not pooled.life_freedom or not spread.life_freedom:
        return pooled
    return replace(pooled, life_squares=max(pooled.life_squares, spread.between * pooled.life_freedom))


def _differences(place: _Place, baseline: str, again: dict[str, str]) -> None:
    """Each arm's differences to the baseline by block, the arm's and the baseline's life of each, and the sum of
    squared weights of all lives in their mean. An arm and the baseline are each the mean of their lives, twins
    included; but a twin, of whichever arm, is itself alone, and what is equal to the baseline is compared with the
    baseline's other lives.
    """
    equal_to = again.get(baseline, baseline)
    for arm in dict.fromkeys(place.arm):
        if arm == baseline:
            continue
        alone = arm in again or arm == equal_to
        own = _by_block(place, place.arm == arm if alone else place.family == arm)
        base = _by_block(place, (place.family == equal_to) & (place.arm != arm))
        by_block, lives, weights = [], [], {}
        for block in own:
            if block not in base:
                continue
            sides = own[block], base[block]
            by_block.append(place.value[sides[0]].mean() - place.value[sides[1]].mean())
            both = np.array(sides[0] + sides[1])
            primary = both[np.isin(place.arm[both], (arm, baseline))]  # a withheld twin is no other life
            lives.append(" ".join(sorted(set(place.life[primary]))))
            for rows in sides:
                for life in place.life[rows]:
                    weights[life] = weights.get(life, 0.0) + 1.0 / len(rows)
        if by_block:
            weight = sum((share / len(by_block)) ** 2 for share in weights.values())
            place.differences[arm] = np.array(by_block), np.array(lives), weight


def _by_block(place: _Place, wanted: np.ndarray) -> dict[str, list[int]]:
    """Block to those of its cells that are wanted."""
    rows = {}
    for row in np.flatnonzero(wanted):
        rows.setdefault(place.block[row], []).append(int(row))
    return rows


def _within(by_block: np.ndarray, lives: np.ndarray) -> tuple[float, int]:
    """Variance of differences within lives, and its degrees of freedom."""
    squares = sum(float(((by_block[lives == life] - by_block[lives == life].mean()) ** 2).sum()) for life in set(lives))
    freedom = len(by_block) - len(set(lives))
    return (squares / freedom if freedom else 0.0), freedom


def _priors(within: dict[tuple, tuple[float, int]]) -> dict[tuple, tuple[float, float]]:
    """(arm, place) to what the others say of its variance, and how many degrees of freedom that is worth.

    Infinitely many where all variances differ by no more than chance, 0 where there are too few to compare. Where they
    differ, an arm's noise elsewhere and the others' noise at this place foretell it (their logarithms add up), as far
    as they are seen to; what is foretold leaves out the arm's own variance at this place."""
    from scipy import special

    keys = [key for key, (own, freedom) in within.items() if freedom and own > 0]
    if len(keys) < 3:
        return dict.fromkeys(within, (0.0, 0.0))
    own = np.array([within[key][0] for key in keys])
    half = np.array([within[key][1] for key in keys]) / 2
    logs, chance = np.log(own) - special.digamma(half) + np.log(half), special.polygamma(1, half)
    excess = float(logs.var(ddof=1) - chance.mean())
    if excess <= special.polygamma(1, 1e6):
        return dict.fromkeys(within, (math.inf, float(np.average(own, weights=half))))
    priors = dict.fromkeys(within, _worth(float(logs.mean()), excess))
    arms, places = (np.unique([str(key[part]) for key in keys], return_inverse=True)[1] for part in (0, 1))
    basis = _basis(arms.tobytes(), places.tobytes())
    leverage = (basis**2).sum(axis=1)
    if len(keys) - basis.shape[1] < 3 or leverage.max() > 1 - 1e-9:
        return priors
    left = logs - basis @ (basis.T @ logs)
    beyond = max(0.0, float(left @ left) / (len(keys) - basis.shape[1]) - float(chance.mean()))
    unsure = beyond + leverage / (1 - leverage) * (beyond + chance)
    foretold = logs - left / (1 - leverage)
    for key, centre, spread in zip(keys, foretold, unsure, strict=True):
        priors[key] = max(priors[key], _worth(float(centre), float(spread)))
    return priors


def _worth(centre: float, spread: float) -> tuple[float, float]:
    """How many degrees of freedom a variance is worth whose logarithm lies about `centre`, `spread` its variance; and
    that variance.
    """
    from scipy import optimize, special

    freedom = 2 * float(optimize.brentq(lambda value: special.polygamma(1, value) - spread, 1e-6, 2e6))
    return freedom, math.exp(centre + float(special.digamma(freedom / 2)) - math.log(freedom / 2))


def _estimate(by_block: np.ndarray, noise: float, freedom: float, weight: float, spread: _Spread) -> Estimate:
    centre, blocks = float(by_block.mean()), len(by_block)
    if not spread.life_freedom or not spread.cells_a_life:
        return Estimate(centre, math.nan, math.nan, blocks)
    if not spread.noise_freedom or not freedom:  # one cell a life: its noise is part of the spread between lives
        return Estimate(centre, weight * spread.between / spread.cells_a_life, spread.life_freedom, blocks)
    within, share, own = spread.within, weight / spread.cells_a_life, noise / blocks
    between = max(spread.between, (1 + LEAST_LIFE_SHARE) * within)
    variance = own + share * (between - within)
    parts = own**2 / min(freedom, spread.noise_freedom) + share**2 * (
        between**2 / spread.life_freedom + within**2 / spread.noise_freedom
    )
    # Of a difference of mean squares Satterthwaite's number can fall below that of each of them.
    least = min(spread.life_freedom, spread.noise_freedom, freedom)
    return Estimate(centre, variance, max(variance**2 / parts, least), blocks)
