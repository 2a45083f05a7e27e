"""What the cells of a section came to, kept in `.cache/results-index/`, so that only changed cells are read again.

The index is derived and may be deleted. At every question it is compared with the folder: a new cell file, or one whose
size, inode or times changed, is read; a deleted one is left out; an index of other code, or a damaged one, is rebuilt.
What can mislead: two writes within one tick of a file system's clock look alike, so a file that changed in the last
`SETTLED_S` is not kept.

    >>> from serving_study.results import index
    >>> index.summaries(Path("results/h200x1/section-3"), lambda file: {"bytes": 9104}, ["bytes"])  # doctest: +SKIP
    {'path': ['20300101T000000Z/cells/baseline/concurrency=1/repeat=0.json'], 'bytes': [9104]}
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .. import files, paths
from ..errors import StoreError

SETTLED_S = 2.0
FEWEST = 500  # cells from which on an index is kept: fewer are read in a tenth of a second
CELL_FILE = re.compile(r"repeat=.*(?<!\.requests)\.json")


def summaries(folder: Path, read: Callable[[Path], dict], names: Sequence[str]) -> dict[str, list]:
    """Columns with one entry a cell file, oldest run first: `path` within `folder`, and the `names` that `read` returns
    for a file; it is called for changed files only.

    Raises what `read` raises for a damaged cell."""
    kept = _load(folder, names)
    place_of = {path: place for place, path in enumerate(kept["path"])}
    settled_ns = time.time_ns() - int(SETTLED_S * 1e9)
    states, rows, unsettled, unchanged = {}, {}, set(), []
    for path, state, changed_ns in cell_files(folder):
        place = place_of.get(path)
        if place is not None and kept["state"][place] == state:
            unchanged.append(place)
        else:
            try:
                rows[path] = read(folder / path)
            except FileNotFoundError:  # deleted since the folder was listed
                continue
            if changed_ns >= settled_ns:
                unsettled.add(path)
        states[path] = state
    if not rows and len(unchanged) == len(place_of):
        return {name: kept[name] for name in ("path", *names)}
    columns = {"path": list(states), "state": list(states.values())}
    for name in names:
        column = kept[name]
        columns[name] = [rows[path][name] if path in rows else column[place_of[path]] for path in states]
    if max(len(states), len(place_of)) >= FEWEST:
        settled = [place for place, path in enumerate(states) if path not in unsettled]
        _save(
            folder, columns if not unsettled else {n: [column[at] for at in settled] for n, column in columns.items()}
        )
    return {name: columns[name] for name in ("path", *names)}


def cell_files(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Of each `RUN/cells/ARM/LOAD/repeat=N.json` of a run with a run.json: its path within `folder`, its state (size,
    inode, times of content and inode), and its last change (ns).
    """
    for run in _folders(folder):
        if not (folder / run / "run.json").is_file():
            continue
        for arm in _folders(folder / run / "cells"):
            for load in _folders(folder / run / "cells" / arm):
                place = f"{run}/cells/{arm}/{load}"
                with contextlib.suppress(FileNotFoundError), os.scandir(folder / place) as entries:
                    for entry in sorted(entries, key=lambda entry: entry.name):
                        if CELL_FILE.fullmatch(entry.name):
                            stat = entry.stat()
                            state = f"{stat.st_size} {stat.st_ino} {stat.st_mtime_ns} {stat.st_ctime_ns}"
                            yield f"{place}/{entry.name}", state, max(stat.st_mtime_ns, stat.st_ctime_ns)


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def file_of(folder: Path) -> Path:
    """The index file of a section's folder."""
    return paths.CACHE / "results-index" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]}.json"


def _load(folder: Path, names: Sequence[str]) -> dict[str, list]:
    """The kept columns: `path`, `state` and `names`; empty ones without a usable index."""
    wanted = ("path", "state", *names)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        index = json.loads(file_of(folder).read_bytes())
        columns = {name: index["columns"][name] for name in wanted}
        if index["made_by"] == _made_by() and len(set(map(len, columns.values()))) == 1:
            return columns
    return {name: [] for name in wanted}


def _save(folder: Path, columns: dict[str, list]) -> None:
    """Keep the index, if the cache can be written."""
    with contextlib.suppress(StoreError):
        files.write(file_of(folder), json.dumps({"made_by": _made_by(), "columns": columns}, separators=(",", ":")))


@functools.cache
def _made_by() -> str:
    """A digest of the harness's code, which decides what a cell comes to."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
