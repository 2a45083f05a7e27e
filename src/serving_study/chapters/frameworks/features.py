"""What the reference study's comparison of frameworks says, and what holds today by each engine's own words.

`data/frameworks/features.csv` has one row a statement and engine, with the place that it was looked up at: an option of
the installed engine's `--help`, a file of its source at a version, a page of its documentation at a commit. What can
mislead: a feature that exists is no feature that is fast; and a page is as old as its commit.

    >>> features.table().query("verdict == 'out of date'")                                     # doctest: +SKIP
"""

import pandas

from ... import paths

FILE = paths.DATA / "frameworks" / "features.csv"
HOLDS, MORE, OUTDATED, NOT_SO, OPINION = "holds", "holds, and more", "out of date", "not so", "an opinion"
VERDICTS = (HOLDS, MORE, OUTDATED, NOT_SO, OPINION)
COLUMNS = ("feature", "engine", "study", "today", "verdict", "version", "place")


def table() -> pandas.DataFrame:
    """One row a statement of the study and engine: COLUMNS."""
    return pandas.read_csv(FILE, keep_default_na=False, dtype=str)


def counted() -> dict[str, int]:
    """How many statements came to each verdict."""
    counts = table()["verdict"].value_counts()
    return {verdict: int(counts.get(verdict, 0)) for verdict in VERDICTS}


def figures() -> dict[str, float]:
    """What the page's prose has of it."""
    counts = counted()
    return {
        "statements": sum(counts.values()) - counts[OPINION],
        "out_of_date": counts[OUTDATED],
        "not_so": counts[NOT_SO],
        "holds": counts[HOLDS] + counts[MORE],
    }
