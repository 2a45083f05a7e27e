"""Whether the package index has what an engine needs on this machine, asked of the index before anything is made.

uv resolves the one requirement for this interpreter and platform, from wheels alone, and installs nothing: a source
distribution may be a stub that fetches from elsewhere. What can mislead: an index that does not answer is no index
without the package, and says so.

    >>> availability.lacking("sglang-kernel-cpu")                                     # doctest: +SKIP
    'sglang-kernel-cpu was not found in the package registry'
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ..errors import EngineEnvironmentError
from . import installer
from .recipes import Recipe

DEADLINE_S = 60.0
# What uv draws around its reasons, and how it begins them.
DRAWN = re.compile(r"[×╰─▶│├]+")
BECAUSE = re.compile(r"Because (?:only )?(?P<why>.+?)(?:,? and you require\b.*|,? we can conclude that\b.*|\.?$)")


def absent(recipe: Recipe) -> EngineEnvironmentError:
    """Why an environment without a lock file is not made, by what the package index says of the wheel it would need."""
    said = lacking(recipe.wheel)
    if said is None:
        return EngineEnvironmentError(
            f"the package index has a wheel of {recipe.wheel} now, but the study has no lock file for it",
            next=recipe.otherwise,
        )
    if recipe.elsewhere:
        there = lacking(recipe.wheel, recipe.elsewhere)
        said += f"; {recipe.elsewhere}: {there or 'it has a wheel'}"
    return EngineEnvironmentError(
        f"the package index has no wheel of {recipe.wheel} for this platform", value=said, next=recipe.otherwise
    )


def lacking(requirement: str, index: str | None = None) -> str | None:
    """Why no wheel of `requirement` can be had here, in one line; None where one can. `index` is asked in place of the
    configured ones.
    """
    program = _uv()
    if program is None:
        return "uv is not there to ask the package index"
    python = Path(sys.executable)
    places = ["--default-index", index] if index else installer.indexes(python)
    words = [program, "pip", "install", "--dry-run", "--no-deps", "--only-binary", ":all:", "--reinstall"]
    words += ["--index-strategy", "unsafe-best-match", "--python", python, *places, requirement]
    try:
        ended = subprocess.run(
            list(map(str, words)),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=os.environ | {"NO_COLOR": "1", "UV_HTTP_TIMEOUT": "10", "UV_HTTP_RETRIES": "1"},
        )
    except subprocess.TimeoutExpired:
        return f"the package index did not answer within {DEADLINE_S:g} s"
    return None if ended.returncode == 0 else reason(ended.stderr)


def reason(said: str) -> str:
    """uv's reason in one line, without this machine's indexes."""
    line = " ".join(DRAWN.sub(" ", said).split())
    line = re.sub(r"https?://\S+", "the package index", line)
    because = BECAUSE.search(line)
    return (because["why"] if because else line)[:300]


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")
