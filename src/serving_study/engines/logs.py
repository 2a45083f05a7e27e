"""A server's log as it is read: without colours, and without the names that its processes put before their lines.

What can mislead: a notebook's kernel sets FORCE_COLOR for all that it starts, so that even a file has colours in it; a
progress bar ends its lines with a carriage return; each of an engine's processes puts `(EngineCore_DP0 pid=123) `
before its own, a worker's even twice. A pattern that begins at a line's start finds nothing then.

    >>> unprefixed("\\x1b[36m(EngineCore_DP0 pid=7)\\x1b[0m ValueError: too long")
    'ValueError: too long'
"""

import re
from pathlib import Path

COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
PROCESS = re.compile(r"^(?:\([\w.:-]+ (?:\w+=[\w.:-]+(?:, ?)?)+\) ?)+", re.MULTILINE)


def read(file: Path) -> str:
    """A log without colours, its lines ending in a line feed; empty where there is none."""
    try:
        return plain(file.read_text(errors="replace"))
    except OSError:
        return ""


def plain(text: str) -> str:
    """`text` without colours, its lines ending in a line feed."""
    return COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def unprefixed(text: str) -> str:
    """`plain` text, and without the names of processes at the start of its lines."""
    return PROCESS.sub("", plain(text))
