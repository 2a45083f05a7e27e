"""One module an engine: its command line, environment, startup-log lines and metric names."""

from types import ModuleType

from ..errors import ParameterError
from . import lmcache, vllm

ENGINES = {"vllm": vllm}
CACHE_SERVERS = {"lmcache": lmcache}


def get(name: str) -> ModuleType:
    """The module of engine `name`."""
    if name not in ENGINES:
        raise ParameterError("unknown engine", value=name, allowed=", ".join(ENGINES))
    return ENGINES[name]
