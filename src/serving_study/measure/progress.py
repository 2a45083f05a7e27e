"""How far a run is: a bar for the terminal or the notebook, and `status.json` in the run's folder for who watches from
elsewhere.

    >>> Progress(total_s=90.0, cells=4).show("baseline c1 repeat=0")          # doctest: +SKIP
"""

import os
import sys
import time

from tqdm import tqdm


class Progress:
    """A bar that names arm and cell and knows the time left, on the terminal of `serving-study run` or in the notebook.

    `serving-study run` passes its terminal's place in SERVING_STUDY_PROGRESS, since a notebook's kernel has none.
    """

    def __init__(self, total_s: float, cells: int):
        place = os.environ.get("SERVING_STUDY_PROGRESS")
        try:
            self._file = open(place, "a") if place else sys.stderr
        except OSError:
            self._file = sys.stderr
        self.total_s, self.done_s, self.began, self.cells, self.cell = total_s, 0.0, time.monotonic(), cells, 0
        self._bar = tqdm(
            total=round(total_s, 1),
            file=self._file,
            dynamic_ncols=True,
            leave=True,
            mininterval=0.2,
            bar_format="{desc} |{bar:20}| {percentage:3.0f}%{postfix}",
        )

    def show(self, what: str) -> None:
        spent = time.monotonic() - self.began
        pace = max(0.5, min(2.0, spent / self.done_s)) if self.done_s > 20 else 1.0
        left = max(0.0, self.total_s - self.done_s) * pace
        self._bar.set_description_str(f"[{self.cell}/{self.cells}] {what}", refresh=False)
        self._bar.set_postfix_str(f"{int(left // 60)}:{int(left % 60):02d} left", refresh=True)

    def advance(self, seconds: float, cell: bool = False) -> None:
        self.done_s += seconds
        self.cell += cell
        self._bar.update(min(seconds, max(0.0, self._bar.total - self._bar.n)))

    def say(self, line: str) -> None:
        self._bar.write(line, file=self._file)

    def close(self) -> None:
        self._bar.close()
        if self._file is not sys.stderr:
            self._file.close()
