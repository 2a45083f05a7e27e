"""A server's log: read without colours and process names, published without paths.

What can mislead: a notebook's kernel sets FORCE_COLOR for all that it starts, so even a file has colours; a progress
bar ends its lines with a carriage return; an engine's processes prefix their lines with `(EngineCore_DP0 pid=123) `, a
worker's even twice, which hides the start of a line from a pattern.

    >>> unprefixed("\x1b[36m(EngineCore_DP0 pid=7)\x1b[0m ValueError: too long")
    'ValueError: too long'
"""

import os
import re
from pathlib import Path

from .. import paths

COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
PROCESS = re.compile(r"^(?:\([\w.:-]+ (?:\w+=[\w.:-]+(?:, ?)?)+\) ?)+", re.MULTILINE)
LAST_LINES = 20


def read(file: Path) -> str:
    """A log without colours and with plain line ends; empty without a file."""
    try:
        return plain(file.read_text(errors="replace"))
    except OSError:
        return ""


def plain(text: str) -> str:
    """`text` without colours and with plain line ends."""
    return COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def unprefixed(text: str) -> str:
    """`plain` text without the names of processes at the start of its lines."""
    return PROCESS.sub("", plain(text))


def tidy_log(log: Path, keep: int = 400) -> None:
    """Remove this machine's paths from a finished log, and the middle of a very long one: logs are published."""
    lines = read(log).splitlines()
    if len(lines) > 2 * keep:
        lines = [*lines[:keep], f"[{len(lines) - 2 * keep} lines left out]", *lines[-keep:]]
    log.write_text(tidied("\n".join(lines) + "\n"))


def tidied(text: str) -> str:
    """A server's text without colours and this machine's paths."""
    text = plain(text)
    home = os.path.expanduser("~")
    for path, name in ((paths.CACHE, ".cache"), (paths.RESULTS, "results"), (paths.ROOT, "."), (home, "~")):
        if len(str(path)) > 1:  # a user without a home, as some containers' are, has `/` or `~`
            text = text.replace(str(path), name)
    text = re.sub(r"(?:/[\w.+-]+)+/(?=(?:site-packages|dist-packages|vllm|torch|transformers)/)", "…/", text)
    return re.sub(r"(?:/[\w.+-]+)+/bin/(?=python)", "", text)


def tail(log: Path, lines: int = LAST_LINES) -> tuple[str, ...]:
    """The last lines of a log."""
    return tuple(line[:300] for line in read(log).splitlines()[-lines:])
