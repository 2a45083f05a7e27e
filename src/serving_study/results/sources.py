"""The source of a result: the checkout's commit, and a digest of what ran.

A commit says little of a checkout with changes (`+`). The digest is of the contents: the harness's modules and the
section's notebook. Neither decides a cell's key.

    >>> from serving_study.results import sources
    >>> sources.digest(3)                                                                     # doctest: +SKIP
    '5f0c…'
"""

import hashlib
import subprocess
from pathlib import Path

from .. import paths

PACKAGE = Path(__file__).parents[1]


def git_commit() -> str | None:
    """The checkout's commit, with `+` when it has changes; None outside a checkout or without git."""
    try:
        run = subprocess.run(
            ["git", "-C", str(paths.ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


def digest(section: int | str) -> str:
    """The SHA-256 over names and contents of this package's modules and the section's notebook, in the order of names;
    all line ends count as one.
    """
    sha256 = hashlib.sha256()
    for name, file in sorted(files(section).items()):
        content = file.read_bytes().replace(b"\r\n", b"\n")
        sha256.update(f"{name}\0{len(content)}\0".encode() + content)
    return sha256.hexdigest()


def files(section: int | str) -> dict[str, Path]:
    """The files that `digest` reads, by name in the checkout: `src/serving_study/…` and `notebooks/…`."""
    modules = {f"src/serving_study/{file.relative_to(PACKAGE).as_posix()}": file for file in PACKAGE.rglob("*.py")}
    return modules | {f"notebooks/{file.name}": file for file in _notebooks(section)}


def _notebooks(section: int | str) -> list[Path]:
    """The notebooks of a section by its number (`3-draft-graphs` is a part of 3)."""
    number = str(section).split("-")[0]
    return sorted(paths.NOTEBOOKS.glob(f"{int(number):02d}-*.ipynb")) if number.isdigit() else []
