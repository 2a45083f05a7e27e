"""How often a chapter's claims were looked at, and what chance of a false one each look was given.

Measuring goes on until claims are decided, so that they are looked at more than once. All looks together may make a
false claim in 5 % of chapters: each is given a part of what is left, one between two sittings an eighth, the one that
ends a run a half. `run.json` keeps them. What can mislead: cells of runs that took no look, as of those before there
were any, have the whole 5 %, for their number was settled before they were measured.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas

from .. import files

LEVEL = 0.05
SHARE_BETWEEN, SHARE_AT_END = 1 / 8, 1 / 2


@dataclass(frozen=True)
class Look:
    """When cells were looked at (`files.now`; None: all of them), and the chance of a false claim that it was given."""

    at: str | None
    level: float

    def as_dict(self) -> dict:
        return {"at": self.at, "level": self.level}


def next_level(taken: list[Look], *, ends: bool) -> float:
    """The level of the next look, one that ends a run or one between two sittings."""
    return max(0.0, LEVEL - sum(look.level for look in taken)) * (SHARE_AT_END if ends else SHARE_BETWEEN)


def of_record(record: dict) -> list[Look]:
    """The looks of a run.json, oldest first."""
    return [Look(look["at"], look["level"]) for look in record.get("looks", ())]


def of_cells(frame: pandas.DataFrame) -> list[Look]:
    """The looks that were taken at these cells, oldest first; one at all of them where their runs have none.

    `frame` has `file`, each cell's place in its run's folder; without it nothing is known of looks.
    """
    runs = {file.parents[3] for file in frame["file"]} if "file" in frame else set()
    return of_runs(runs) or [Look(None, LEVEL)]


def of_runs(runs: Iterable[Path]) -> list[Look]:
    """The looks that were taken in these runs (their folders), oldest first."""
    taken = [look for run in set(runs) for look in of_record(files.read(run / "run.json"))]
    return sorted(taken, key=lambda look: look.at)
