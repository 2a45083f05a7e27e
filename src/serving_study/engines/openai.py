"""A server that speaks OpenAI's completions API and of which nothing else is known: somebody else started it
(`serving-study bench`). It has no counters, so that whatever a certificate reads from them stays unknown.

>>> COUNTERS.samples
{}
"""

from collections.abc import Mapping
from pathlib import Path

from ..environments.templates import Template
from ..errors import ParameterError
from ..hardware.hosts import Host
from . import base
from .base import Problem, Snapshot
from .process import Process

TITLE, HEALTH, EMPTY_CACHE = "a server with OpenAI's API", "/v1/models", None
RANKS: tuple[str, ...] = ()
BENCH = ("--backend", "openai", "--endpoint", "/v1/completions")
CORES = "", ","
FACTS: tuple[str, ...] = ()
FOOTPRINT = base.Footprint(processes_gib=0.0, imported_gib=0.0)
REPORTS: tuple[str, ...] = ()
TOKENIZER = None
COUNTERS = base.Counters(samples={}, histograms={}, watched={}, finish_reason="", position="", block_size=("", None))


def environment_name(host: Host) -> str:
    """Raises ParameterError: the study has none to start it from."""
    raise _not_ours()


def unsupported(process: Process, host: Host) -> str | None:
    """Why the study cannot start it."""
    return str(_not_ours()).splitlines()[0]


def prepare(process: Process) -> None:
    """Nothing: it runs already."""


def on_terms(terms: base.Terms, host: Host) -> tuple[dict, dict]:
    """None: it runs already."""
    return {}, {}


def command(process: Process, python: Path, port: int) -> list[str]:
    """Raises ParameterError: the study does not start it."""
    raise _not_ours()


def environment(process: Process, host: Host, python: Path) -> dict[str, str]:
    """None that would reach it."""
    return {}


def template(process: Process, host: Host, variables: Mapping[str, str]) -> Template | None:
    """None: it runs already."""
    return None


def version(versions: Mapping[str, str]) -> str | None:
    """None: no interpreter here has it."""
    return None


def problems(process: Process, accepted: Mapping | None, versions: Mapping | None = None) -> list[Problem]:
    """Every option: it has its own already."""
    return [Problem(f"option {name}", "none: the server runs already") for name in process.options]


def memory_share(process: Process) -> float:
    """Nothing is asked of this machine."""
    return 0.0


def host_cache_gib(process: Process) -> float:
    """Nothing is asked of this machine."""
    return 0.0


def phase(log: str) -> str:
    """It is up."""
    return base.OTHER


def start_figures(log: str) -> dict:
    """None: there is no log."""
    return {}


def settings(process: Process, log: str, reports: Mapping[str, object]) -> dict:
    """None: it reports none."""
    return {}


def failure_figures(log: str) -> dict:
    """None: there is no log."""
    return {}


def cache_figures(snapshot: Snapshot) -> dict:
    """None: it has no counters."""
    return {}


def ineffective(process: Process, log: str) -> str | None:
    """Nothing was asked for."""
    return None


def cause(log: str, exit_code: int | None = None) -> str | None:
    """Not known: there is no log."""
    return None


def _not_ours() -> ParameterError:
    return ParameterError(
        "the study does not start a server of engine openai",
        allowed="a server that somebody else started",
        next="serving-study bench --url http://HOST:PORT --engine openai --section 3",
    )
