"""The Hugging Face hub as a run asks it: a snapshot or a file, by the engine's own huggingface_hub, with a deadline.

What can mislead: a hub out of reach (no name, connection or answer, or offline by request) is told from every other
failure, since only then may random weights take a model's place. What is in the hub's cache is used without an answer
too; `checkpoints` checks that it is complete.

    >>> from serving_study.models import hub
    >>> hub.fetch(environment, "Qwen/Qwen2.5-7B-Instruct", patterns=["*.json"]).path        # doctest: +SKIP
"""

import json
import os
import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..environments import ENGINE_SIDE, Environment, scripts

SCRIPT = ENGINE_SIDE / "fetch.py"
ANSWER_S = 10.0  # name, connection and first answer
MODEL_S, FILE_S = 3600.0, 1800.0  # the whole fetch; the same command again resumes


@dataclass(frozen=True)
class Fetched:
    """The `path` of what was fetched, or the `reason` in one line; `out_of_reach` and `refused` are kinds of it."""

    path: Path | None
    reason: str | None = None
    out_of_reach: bool = False
    refused: bool = False


def fetch(
    environment: Environment,
    repository: str,
    *,
    kind: str = "model",
    revision: str | None = None,
    patterns: Sequence[str] = (),
    file: str | None = None,
    deadline_s: float = MODEL_S,
    say: Callable[[str], None] = lambda line: None,
) -> Fetched:
    """Fetch the files of a repository that match `patterns`, or one `file`; what is here already is not fetched
    again.
    """
    wanted = {
        "repository": repository,
        "kind": kind,
        "revision": revision,
        "patterns": list(patterns),
        "file": file,
        "answer_s": ANSWER_S,
    }
    say(f"{repository}: asking the hub (an answer within {ANSWER_S:g} s, all of it within {deadline_s / 60:g} min)")
    try:
        ended = scripts.run(
            environment.python,
            SCRIPT,
            json.dumps(wanted),
            deadline_s=deadline_s,
            variables=scripts.QUIET | {"HF_HUB_ETAG_TIMEOUT": f"{max(1, round(ANSWER_S))}"},
        )
    except TimeoutError:
        return Fetched(None, f"not whole within {deadline_s / 60:g} min; the same command again resumes")
    except OSError as error:
        return Fetched(None, f"{environment.python}: {error.strerror}")
    said = scripts.parsed(ended.lines[-1]) if ended.lines else None
    if said is None:
        last = (ended.complaints or ["it said nothing"])[-1]
        return Fetched(None, f"{environment.python} ended with exit code {ended.code}: {last}"[:300])
    if path := said.get("path"):
        return Fetched(Path(path))
    return Fetched(None, said["reason"], bool(said.get("out_of_reach")), bool(said.get("refused")))


def read(url: str, headers: dict[str, str], deadline_s: float = ANSWER_S) -> bytes:
    """The content of a small file at a URL. Raises OSError (HTTPError is one), and TimeoutError at the deadline.

    Name look-up has no deadline of its own, so it runs in a thread."""
    answer: list[bytes | OSError] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=deadline_s) as response:
                answer.append(response.read())
        except OSError as error:
            answer.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(deadline_s)
    said = answer.pop() if answer else TimeoutError(f"no answer within {deadline_s:g} s")
    if isinstance(said, bytes):
        return said
    try:
        raise said
    finally:
        del said  # the error's traceback would keep the connection open


def kept_config(repository: str) -> Path | None:
    """The newest config.json of this repository in the hub's cache."""
    home = Path(
        os.environ.get("HF_HUB_CACHE")
        or Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    )
    files = home.glob(f"models--{repository.replace('/', '--')}/snapshots/*/config.json")
    return max(files, key=lambda file: file.stat().st_mtime, default=None)
