"""vLLM: its command line, environment, start figures, and names of counters.

What can mislead: the CPU build never prints «Model loading took»; the log's figures are per rank; all options of
speculation are one JSON option; an unknown key inside `kv_connector_extra_config` is silently accepted.
"""

import functools
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .. import paths
from ..environments.templates import Template
from ..errors import HostError
from ..hardware.cgroups import GIB, cores
from ..hardware.hosts import Host
from . import base, lmcache, logs, options, probes, vllm_logs
from .base import Snapshot, flags
from .process import Process

TITLE, HEALTH, EMPTY_CACHE = "vLLM", "/health", "/reset_prefix_cache"
RANKS = ("VLLM::Worker", "VLLM::EngineCore")  # the engine computes itself where it has no workers
BENCH = ("--backend", "vllm", "--endpoint", "/v1/completions")
SPLIT_AT = re.compile(r"[\s:]")
problems = options.problems
cause, phase = vllm_logs.cause, vllm_logs.phase
start_figures, failure_figures = vllm_logs.start_figures, vllm_logs.failure_figures
settings = vllm_logs.settings

FACTS = probes.VLLM_FACTS
FOOTPRINT = base.Footprint(processes_gib=2.2, imported_gib=1.6, worker_gib=0.7)
REPORTS = ()

TOKENIZER = base.TokenizerApi(
    "/tokenize", "/detokenize", text="prompt", ids="tokens", decoded="prompt", extra={"add_special_tokens": False}
)
CPU_BLOCK, GPU_BLOCK = 128, 16  # tokens of a block of the KV cache: what vLLM takes by itself

CACHE = "vllm:cache_config_info"
CORES = "VLLM_CPU_OMP_THREADS_BIND", "|"  # the variable for ranks' cores, and the separator between ranks
COUNTERS = base.Counters(
    samples={
        base.DRAFTS: "vllm:spec_decode_num_drafts_total",
        base.DRAFTED: "vllm:spec_decode_num_draft_tokens_total",
        base.ACCEPTED: "vllm:spec_decode_num_accepted_tokens_total",
        base.ACCEPTED_PER_POSITION: "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        base.PROMPT_TOKENS: "vllm:prompt_tokens_total",
        base.GENERATED_TOKENS: "vllm:generation_tokens_total",
        base.FINISHED_REQUESTS: "vllm:request_success_total",
        base.PREFIX_QUERIES: "vllm:prefix_cache_queries_total",
        base.PREFIX_HITS: "vllm:prefix_cache_hits_total",
        base.EXTERNAL_HITS: "vllm:external_prefix_cache_hits_total",
        base.PREEMPTIONS: "vllm:num_preemptions_total",
        base.LOADED_BYTES: "vllm:kv_offload_load_bytes_total",
        base.STORED_BYTES: "vllm:kv_offload_store_bytes_total",
    },
    histograms={
        base.TTFT: "vllm:time_to_first_token_seconds",
        base.E2E: "vllm:e2e_request_latency_seconds",
        base.QUEUE: "vllm:request_queue_time_seconds",
    },
    watched={
        base.PREFIX_QUERIES: "vllm:prefix_cache_queries_total",
        base.PREFIX_HITS: "vllm:prefix_cache_hits_total",
        base.EXTERNAL_HITS: "vllm:external_prefix_cache_hits_total",
        base.TTFT_SUM: "vllm:time_to_first_token_seconds_sum",
    },
    finish_reason="finished_reason",
    position="position",
    block_size=(CACHE, "block_size"),
)


def environment_name(host: Host) -> str:
    """The CPU build has a lock file of its own."""
    return "vllm" if host.gpus else "vllm-cpu"


def unsupported(process: Process, host: Host) -> str | None:
    """Nothing is known beforehand: vLLM says at its start what it does not take."""
    return None


def prepare(process: Process) -> None:
    """vLLM reads a model's folder as it is."""


def on_terms(terms: base.Terms, host: Host) -> tuple[dict, dict]:
    """Options and variables. The KV cache is set in blocks, one more than asked for, since vLLM keeps one that it never
    fills; on a CPU its memory has to hold them, and is no limit here.
    """
    block = GPU_BLOCK if host.gpus else CPU_BLOCK
    given = {
        "dtype": terms.dtype,
        "max_model_len": terms.max_model_len,
        "max_num_seqs": terms.max_num_seqs,
        "max_num_batched_tokens": terms.max_batched_tokens,
        "block_size": block,
        "num_gpu_blocks_override": -(-terms.kv_cache_tokens // block) + 1,
        "enable_prefix_caching": terms.prefix_caching,
        "seed": terms.seed,
    }
    if host.gpus:
        given["gpu_memory_utilization"] = terms.memory_share
    if not terms.compiled:
        given["enforce_eager"] = True
    return given, {} if host.gpus else {"VLLM_CPU_KVCACHE_SPACE": terms.host_cache_gib}


def command(process: Process, python: Path, port: int) -> list[str]:
    """The server's command line. It binds to 127.0.0.1 only."""
    words = [
        str(python),
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        process.model.source,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--served-model-name",
        process.model.name,
    ]
    if process.weights == "random":
        words += ["--load-format", "dummy"]
    words += flags(process.options)
    if process.speculative:
        words += ["--speculative-config", json.dumps(process.speculative)]
    return words


# An engine's own caches, by the variable that moves them.
CACHES = {
    "XDG_CACHE_HOME": "~/.cache",
    "XDG_CONFIG_HOME": "~/.config",
    "HF_HOME": "~/.cache/huggingface",
    "TRITON_HOME": "~",
    "FLASHINFER_WORKSPACE_BASE": "~",
    "CUDA_CACHE_PATH": "~/.nv/ComputeCache",
    "VLLM_CACHE_ROOT": None,  # below those above, unless it is given
    "VLLM_CONFIG_ROOT": None,
}


def environment(process: Process, host: Host, python: Path) -> dict[str, str]:
    """Variables that the server needs beside the caller's own (without those of `DROPPED`)."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        **lmcache.QUIET,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "NO_COLOR": "1",
        "VLLM_LOGGING_COLOR": "0",
        # The figures of a start are read from the log.
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_PREFIX": "",
        "VLLM_LOGGING_LEVEL": "DEBUG" if os.environ.get("VLLM_LOGGING_LEVEL") == "DEBUG" else "INFO",
    }
    variables |= caches()
    if process.resettable:
        variables["VLLM_SERVER_DEV_MODE"] = "1"  # for POST /reset_prefix_cache, which the probe of a tier needs
    if Path(process.model.source).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    if not host.gpus:
        own_cores = cores()
        variables["LD_PRELOAD"] = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), *_openmp(python)]))
        variables["VLLM_CPU_OMP_THREADS_BIND"] = (
            f"{own_cores[0]}-{own_cores[-1]}"
            if own_cores == list(range(own_cores[0], own_cores[-1] + 1))
            else ",".join(map(str, own_cores))
        )
        # numba's OpenMP layer shares the runtime with torch. vLLM's n-gram look-up sets its number of threads and then
        # "restores" numba's own, which is one where numba was imported by a bound process: the model then runs on one
        # core, or on all, by the luck of a start.
        variables["NUMBA_THREADING_LAYER"] = os.environ.get("NUMBA_THREADING_LAYER", "workqueue")
    return variables | {key: str(value) for key, value in process.environment.items()}


# What a worker, too, has imported before its own class: that one replaces parts of torch, and of vLLM, which whoever
# imported them earlier would have kept.
TEMPLATE = Template(
    ("vllm.v1.executor.multiproc_executor", "vllm.v1.engine.core_client"),
    frozenset({"VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_SERVER_DEV_MODE"}),
)


def template(process: Process, host: Host, variables: Mapping[str, str]) -> Template | None:
    """None on a GPU, which a fork must not find in use; where another OpenMP than Intel's is loaded, which would not
    read a fork's variables; and with a KV connector, whose library has settings and threads of its own.
    """
    plain = not host.gpus and "kv_transfer_config" not in process.options and "numa_bind" not in process.options
    return TEMPLATE if plain and "libiomp5" in variables.get("LD_PRELOAD", "") else None


def caches() -> dict[str, str]:
    """Variables that move an engine's caches into ours where it cannot write its own, as below somebody else's HOME;
    empty where it can. A model hub's folder that exists is only read, and stays.
    """
    own, moved = paths.CACHE / "engine", {}
    for name, usual in CACHES.items():
        if not (named := os.environ.get(name) or usual):
            continue
        place = Path(os.path.expanduser(named))
        if not _is_writable(place) and not (name == "HF_HOME" and place.is_dir()):
            moved[name] = str(own / name.lower())
    if moved:
        Path(own).mkdir(parents=True, exist_ok=True)
        moved.setdefault("TORCHINDUCTOR_CACHE_DIR", str(own / "torchinductor"))
        _say_once(
            f"{os.path.expanduser('~')} cannot be written: what engines keep between starts goes to {own} "
            f"({', '.join(sorted(moved))})"
        )
    return moved


def _is_writable(place: Path) -> bool:
    """Whether files can be made in `place`, or it can be made in its nearest existing parent."""
    if not place.is_absolute():
        return False  # `~` of a user without a home
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


@functools.cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)


def _openmp(python: Path) -> list[str]:
    """Intel's OpenMP beside the interpreter, which vLLM's CPU build wants preloaded (a fifth less TPOT here)."""
    library = python.parent.parent / "lib" / "libiomp5.so"
    return [preloadable(library)] if library.exists() else []


def preloadable(library: Path) -> str:
    """A path to `library` without a space or colon, at which LD_PRELOAD is split; if need be a link in a folder of this
    user's own.

    Raises HostError when there is no place for such a link."""
    if not SPLIT_AT.search(str(library)):
        return str(library)
    name = hashlib.sha256(os.fsencode(library)).hexdigest()[:16]
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/dev/shm", "/var/tmp"):
        if not parent or SPLIT_AT.search(parent):
            continue
        folder = Path(parent) / f"serving-study-{os.getuid()}"
        link = folder / f"{name}-{library.name}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
                continue  # somebody else could put a library there that our server loads
            if not link.is_symlink() or os.readlink(link) != str(library):
                link.unlink(missing_ok=True)
                link.symlink_to(library)
            return str(link)
        except OSError:
            continue
    raise HostError(
        "a library cannot be preloaded from a path with a space or colon, and there is no place for a link to it",
        value=library,
        allowed="a checkout whose path has none, or a temporary folder that can be written",
        next="export TMPDIR=FOLDER, then the same command again",
    )


def version(versions: Mapping[str, str]) -> str | None:
    """The version of vLLM or of its CPU build among an interpreter's distributions; None where neither is installed."""
    return versions.get("vllm-cpu") or versions.get("vllm")


def memory_share(process: Process) -> float:
    """The share of a GPU's memory that a server asks for."""
    return process.options.get("gpu_memory_utilization", 0.9)


def host_cache_gib(process: Process) -> float:
    """A rank's KV cache on a CPU host, GiB."""
    return float(process.environment.get("VLLM_CPU_KVCACHE_SPACE", 4))


def cache_figures(snapshot: Snapshot) -> dict:
    """The KV cache by the server's counters: `blocks`, `block_tokens`, a configured rank's `kv_cache_gib`, and the
    log's two figures unrounded. Of several engines behind one port the first; what is not reported is missing.
    """
    labels = next((dict(labels) for name, labels in snapshot.series if name == CACHE), {})
    named = {"blocks": "num_gpu_blocks", "block_tokens": "block_size", "kv_cache_tokens": "kv_cache_size_tokens"}
    figures = {figure: int(labels[label]) for figure, label in named.items() if labels.get(label, "").isdigit()}
    if labels.get("kv_cache_memory_bytes", "").isdigit():
        figures["kv_cache_gib"] = int(labels["kv_cache_memory_bytes"]) / GIB
    concurrency = labels.get("kv_cache_max_concurrency", "")
    return figures | ({"max_concurrency": float(concurrency)} if re.fullmatch(r"\d+(\.\d+)?", concurrency) else {})


def ineffective(process: Process, log: str) -> str | None:
    """Which settings the started server does not have, by its log: LMCache's, which vLLM accepts silently."""
    log = logs.plain(log)
    return lmcache.ineffective_in_process(process, log)
