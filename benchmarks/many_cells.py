"""How long the store takes to answer a question about very many cells: the first time, again, and after an arm more.

Makes sections of 18,000 and 100,000 cells in a temporary folder, each cell a published one under other names, and asks
`Store.newest` and `Store.by_key`. The index lies in a temporary cache. On a busy machine the seconds at work count.

    $ .venv/harness/bin/python benchmarks/many_cells.py
    $ .venv/harness/bin/python benchmarks/many_cells.py 1000
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from serving_study import files, paths
from serving_study.results import index, store

ARMS, LOADS, REPEATS = 20, 10, 10


def template() -> tuple[dict, dict]:
    """A published cell and its run's record."""
    published = store.Store("h200x1", 3, paths.RESULTS_PUBLISHED)
    cell_file = published.cell_files()[0]
    return files.read(cell_file), files.read(cell_file.parents[3] / "run.json")


def write(folder: Path, count: int, runs: str = "run") -> None:
    """`count` cells in runs of ARMS × LOADS × REPEATS, without waiting for the disk."""
    cell, record = template()
    for number in range(count):
        run, rest = divmod(number, ARMS * LOADS * REPEATS)
        arm, rest = divmod(rest, LOADS * REPEATS)
        load, repeat = divmod(rest, REPEATS)
        place = folder / f"{runs}-{run:04d}" / "cells" / f"arm-{arm}" / f"concurrency={load}"
        if repeat == 0:
            place.mkdir(parents=True, exist_ok=True)
            (folder / f"{runs}-{run:04d}" / "run.json").write_text(json.dumps(record))
        names = {"arm": f"arm-{arm}", "load": f"concurrency={load}", "repeat": repeat, "key": f"{runs}{number:020d}"}
        (place / f"repeat={repeat}.json").write_text(json.dumps(cell | names, indent=1, sort_keys=True))
        (place / f"repeat={repeat}.requests.json").write_text("[]")


def timed(ask) -> str:
    began, worked = time.perf_counter(), time.process_time()
    ask()
    return f"{time.perf_counter() - began:6.2f} s, {time.process_time() - worked:6.2f} s of them at work"


def main() -> None:
    for count in map(int, sys.argv[1:] or (18_000, 100_000)):
        with tempfile.TemporaryDirectory() as folder:
            paths.CACHE = Path(folder) / "cache"
            known = store.Store("h200x1", 3, Path(folder))
            write(known.folder, count)
            time.sleep(index.SETTLED_S)
            print(f"{count} cells", flush=True)
            print(f"  newest, first time {timed(known.newest)}", flush=True)
            print(f"  newest, again      {timed(known.newest)}")
            print(f"  by key             {timed(known.by_key)}")
            write(known.folder, LOADS * REPEATS, "later")
            print(f"  after an arm more  {timed(known.newest)}", flush=True)


if __name__ == "__main__":
    main()
