"""Engines behind the protocol `base.Engine`; nothing outside knows a flag, counter, log line or process title.

>>> named({"vllm": "0.25.1"})
'vLLM 0.25.1'
"""

from collections.abc import Iterable, Mapping

from ..errors import ParameterError
from . import llama_cpp, lmcache, openai, sglang, tensorrt_llm, vllm
from .base import Engine, Problem
from .process import CACHE_SERVER, Process

ENGINES: dict[str, Engine] = {
    "vllm": vllm,
    "llama-cpp": llama_cpp,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "openai": openai,
}
CACHE_SERVERS = {"lmcache": lmcache}


def get(name: str) -> Engine:
    """The engine called `name`. Raises ParameterError for an unknown one."""
    if name not in ENGINES:
        raise ParameterError("unknown engine", value=name, allowed=", ".join(ENGINES))
    return ENGINES[name]


def problems(processes: Iterable[Process], accepted: Mapping | None, versions: Mapping | None = None) -> list[Problem]:
    """What an arm's processes ask for and these versions do not have, each once."""
    kinds = [(CACHE_SERVERS if process.role == CACHE_SERVER else ENGINES)[process.engine] for process in processes]
    asked = [kind.problems(process, accepted, versions) for kind, process in zip(kinds, processes, strict=True)]
    return list(dict.fromkeys(problem for of_process in asked for problem in of_process))


def named(versions: Mapping[str, str]) -> str:
    """The engine, with version, of an interpreter with these distributions; empty where it has none."""
    return next(
        (f"{engine.TITLE} {version}" for engine in ENGINES.values() if (version := engine.version(versions))), ""
    )


def in_words(versions: Mapping[str, Mapping[str, str]]) -> str:
    """The titles of engines, by name to the distributions of their interpreters, with versions where they are
    installed.
    """
    return " and ".join(
        f"{get(name).TITLE} {get(name).version(there) or '(not installed yet)'}" for name, there in versions.items()
    )
