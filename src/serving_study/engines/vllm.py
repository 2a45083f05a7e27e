"""vLLM: its command line, its environment, what its startup log says, and the names of its counters.

What can mislead: the CPU build never prints «Model loading took»; the log's figures are per rank, and its lines have
colours and names of processes (`logs`); `--speculative-model` and `--num-speculative-tokens` are gone, everything about
speculation is one JSON option; an unknown key inside `kv_connector_extra_config` is accepted in silence."""

import functools
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from pathlib import Path

from .. import paths
from ..errors import HostError
from ..hardware.hosts import Host, cores
from . import base, logs
from .process import Process

CACHE = "vllm:cache_config_info"
# Of the LMCache server beside an engine, in pieces of `chunk_size` tokens; those of its second tier are there once it
# was used.
CHUNKS_WRITTEN, CHUNKS_TO_DISK, CHUNKS_FROM_DISK = (
    "lmcache_mp_l1_write_chunks_total",
    "lmcache_mp_l2_store_completed_objects_chunks_total",
    "lmcache_mp_l2_prefetch_load_completed_chunks_total",
)
CHUNKS_HANDED_ON, EVENTS_QUEUED = (
    "lmcache_mp_l2_store_submitted_objects_chunks_total",
    "lmcache_mp_event_bus_queue_depth",
)
CORES = "VLLM_CPU_OMP_THREADS_BIND", "|"  # where ranks' cores stand, and what stands between one's and the next's
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

OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError: CUDA out of memory\. Tried to allocate (?P<tried>[\d.]+ [KMG]iB)\. GPU \d+ has a "
    r"total capacity of (?P<capacity>[\d.]+ [KMG]iB) of which (?P<free>[\d.]+ [KMG]iB) is free"
)
# What vLLM's logger puts before an error.
HEAD = r"^(?:(?:ERROR|CRITICAL) [\d:., -]*\[[^\]]*\] )?"
TRACEBACK_LINES = 60
SPLIT_AT = re.compile(r"[\s:]")
CAUSES = (
    (
        re.compile(
            r"Free memory on device.*?\((?P<a>[\d./ GiB]+)\) on startup is less than desired GPU memory "
            r"utilization.*?\((?P<b>[\d., GiB]+)\)"
        ),
        "too little free GPU memory at start",
    ),
    (re.compile(r"No available memory for the cache blocks"), "no memory left for the KV cache"),
    (
        re.compile(r"larger than the available KV cache memory|KV cache is needed, which is larger"),
        "the KV cache cannot hold one request of max_model_len",
    ),
    (re.compile(r"std::bad_alloc|MemoryError|DefaultCPUAllocator: can't allocate memory"), "out of host memory"),
    (re.compile(r"Address already in use"), "the port is taken"),
    (re.compile(r"should have the same vocabulary size"), "target and draft vocabularies differ"),
    (re.compile(r"unrecognized arguments: (?P<a>.+)"), "an option that this version does not have"),
    (
        re.compile(r"ModuleNotFoundError: (?P<a>No module named '[\w.]+')"),
        "a module that the engine's environment does not have",
    ),
    (
        re.compile(HEAD + r" *Value error, (?P<a>.+?)(?: \[type=value_error|$)", re.MULTILINE),
        "a configuration that the engine refuses",
    ),
)
NO_SPACE = re.compile(r"^.*(?:No space left on device|out of shared memory).*$", re.MULTILINE)
# What an error about shared memory names, in its own line or in its traceback. /dev/shm is a file system of its own,
# of 64 MiB in a container that was given no other size, and says «No space left on device» like any.
SHARED_MEMORY = re.compile(r"/dev/shm|\bpsm_|/torch_\d|\bnccl-|[Ss]hared[ _]memory|shm_broadcast|_posixshmem|SemLock")
MORE_SHARED_MEMORY = "give a container more by --shm-size=8g or --ipc=host, else mount -o remount,size=8g /dev/shm"
SHARED_MEMORY_FULL = f"shared memory full (/dev/shm): {MORE_SHARED_MEMORY}"
# Writing to shared memory that is full is no error but a signal.
BUS_ERROR = f"a bus error, as where shared memory (/dev/shm) is full: {MORE_SHARED_MEMORY}"
# What the API server says when its engine has died: never the cause where there is another error.
CONSEQUENCE = re.compile(r"Engine core initialization failed|EngineDeadError")


def command(arm: Process, python: Path, port: int) -> list[str]:
    """The server's command line. It binds to 127.0.0.1 only."""
    words = [
        str(python),
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        arm.model.source,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--served-model-name",
        arm.model.name,
    ]
    if arm.weights == "random":
        words += ["--load-format", "dummy"]
    words += flags(arm.options)
    if arm.speculative:
        words += ["--speculative-config", json.dumps(arm.speculative)]
    return words


def flags(options: dict) -> list[str]:
    """Options by name without dashes as words of a command line: True is a bare flag, False its negation, None nothing,
    a mapping or list JSON.
    """
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is False:
            words.append("--no-" + name.replace("_", "-"))
        elif value is not None:
            words += [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return words


# What makes a program write colours to a file: NO_COLOR does not win everywhere, so these go.
DROPPED = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE")
# Where an engine keeps what it compiled and fetched, by the variable that names another place.
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


def environment(arm: Process, host: Host, python: Path) -> dict[str, str]:
    """Variables that the server needs beside the caller's own (without those of `DROPPED`)."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_DISABLE_BANNER": "1",
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
    if arm.resettable:
        variables["VLLM_SERVER_DEV_MODE"] = "1"  # for POST /reset_prefix_cache, which the probe of a tier needs
    if Path(arm.model.source).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    if not host.gpus:
        mine = cores()
        variables["LD_PRELOAD"] = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), *_openmp(python)]))
        variables["VLLM_CPU_OMP_THREADS_BIND"] = (
            f"{mine[0]}-{mine[-1]}" if mine == list(range(mine[0], mine[-1] + 1)) else ",".join(map(str, mine))
        )
    return variables | {key: str(value) for key, value in arm.environment.items()}


def caches() -> dict[str, str]:
    """Variables that name places in our own cache folder for what an engine would keep where it cannot write, as below
    a HOME of somebody else's; empty where it can.

    A model hub's folder that is there is left where it is: what is read from it need not be written.
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
    """Whether files can be made in `place`, or it can be made; asked of its nearest folder that there is."""
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
    """Intel's OpenMP beside the interpreter, which vLLM's CPU build asks to have preloaded (a fifth less TPOT here)."""
    library = python.parent.parent / "lib" / "libiomp5.so"
    return [preloadable(library)] if library.exists() else []


def preloadable(library: Path) -> str:
    """A path to `library` without a space or colon: LD_PRELOAD is split at both, and what is not found is left out in
    silence. A link in a folder of this user's own where its own path has one.

    Raises HostError when there is no place for such a link.
    """
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
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
                continue  # somebody else's: what lies there would be loaded into our server
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


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def parse_start(log: str) -> dict:
    """Memory figures from a startup log; what is not printed is missing, never zero.

    `weights_gib` and `kv_cache_tokens` are per rank as the log has them, `max_concurrency` in requests of
    `max_model_len`."""
    figures, log = {}, logs.plain(log)
    patterns = {
        "weights_gib": r"Model loading took ([\d.]+) (?:GiB|GB)",
        "kv_cache_tokens": r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens",
        "max_concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x",
        "kv_cache_gib": r"Available KV cache memory: ([\d.]+) GiB",
        "graph_capture_s": r"Graph capturing finished in ([\d.]+) sec",
        "graph_gib": r"Graph capturing finished in [\d.]+ secs?, took ([\d.]+) GiB",
        "load_s": r"Model loading took [\d.]+ (?:GiB|GB)(?: memory)? and ([\d.]+) s",
        "engine_init_s": r"init engine .*?took ([\d.]+) s",
    }
    for name, pattern in patterns.items():
        found = re.search(pattern, log)
        if found:
            figures[name] = _number(found[1])
    of_ranks = sorted(set(map(_number, re.findall(patterns["weights_gib"], log))))
    if len(of_ranks) > 1:
        figures["weights_gib_of_ranks"] = of_ranks
    if "kv_cache_tokens" in figures:
        figures["kv_cache_tokens"] = int(figures["kv_cache_tokens"])
    return figures


def is_loading(log: str) -> bool:
    """Whether a server has done its imports and goes on to its weights."""
    return "Starting to load model" in logs.plain(log)


def ineffective(arm: Process, log: str) -> str | None:
    """Which settings of LMCache the started server does not have, by what it prints of them; None where there are none
    or all hold.

    A mistyped variable is ignored in silence, and one that is not printed is not there; so is a mistyped key of a
    second tier in the LMCache server."""
    log = logs.plain(log)
    wanted = {
        name.removeprefix("LMCACHE_").lower(): value
        for name, value in arm.environment.items()
        if name.startswith("LMCACHE_")
    }
    if not wanted:
        return None
    printed = re.findall(r"(?:LMCache Configuration|Creating LMCacheEngine with config): (\{.*\})", log)
    if not printed:
        return "LMCache did not print its configuration"
    effective = {name: value.strip("'\"") for name, value in re.findall(r"'(\w+)': ('[^']*'|[^,{}\[\]]+)", printed[-1])}
    differs = [
        f"{name} {effective.get(name, 'not there')}, wanted {value}"
        for name, value in wanted.items()
        if not _same(effective.get(name), value)
    ]
    return "; ".join(differs) or None


def _same(found: str | None, wanted) -> bool:
    if found is None:
        return False
    try:
        return float(found.removesuffix(" GB")) == float(wanted)
    except ValueError:
        return (
            found.lower() == str(wanted).removeprefix("file://").rstrip("/").lower()
            or found.rstrip("/").lower() == str(wanted).rstrip("/").lower()
        )


def cause(log: str) -> str | None:
    """Why a server died, from its log, in one line; None when it is none of the known causes."""
    log = logs.unprefixed(log)
    found = OUT_OF_MEMORY.search(log)
    if found:
        return f"out of memory: tried to allocate {found['tried']}, {found['free']} free of {found['capacity']}"
    if re.search(r"OutOfMemoryError", log):
        return "out of memory"
    if full := _full(log):
        return full
    for pattern, name in CAUSES:
        found = pattern.search(log)
        if found:
            detail = ", ".join(value for value in found.groupdict().values() if value)
            return f"{name}: {detail}" if detail else name
    errors = re.findall(HEAD + r"((?:\w+\.)*\w*(?:Error|Exception): .+)$", log, re.MULTILINE)
    causes = [error for error in errors if not CONSEQUENCE.search(error)] or errors
    return causes[-1].strip()[:300] if causes else None


def _full(log: str) -> str | None:
    """Which of the two is full, the disk or shared memory, by the error's line and the traceback that it ends."""
    found = NO_SPACE.search(log)
    if not found:
        return BUS_ERROR if re.search(r"\b[Bb]us error\b", log) else None
    before = log[: found.start()].splitlines()[-TRACEBACK_LINES:]
    begins = next((index for index in reversed(range(len(before))) if "Traceback (most recent" in before[index]), None)
    told = [] if begins is None else before[begins:]
    return SHARED_MEMORY_FULL if SHARED_MEMORY.search("\n".join([*told, found[0]])) else "disk full"
