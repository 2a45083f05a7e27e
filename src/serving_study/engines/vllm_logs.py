"""vLLM's log: the figures of a start, and why a server died.

What can mislead: the CPU build never prints «Model loading took»; figures are per rank; the API server's own error is
only a consequence where another process has one.

    >>> cause("ModuleNotFoundError: No module named 'arctic_inference'")
    "a module that the engine's environment does not have: No module named 'arctic_inference'"
"""

import re
import signal
from collections.abc import Mapping

from . import base, logs
from .process import Process

OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError: CUDA out of memory\. Tried to allocate (?P<tried>[\d.]+ [KMG]iB)\. GPU \d+ has a "
    r"total capacity of (?P<capacity>[\d.]+ [KMG]iB) of which (?P<free>[\d.]+ [KMG]iB) is free"
)
# What vLLM's logger puts before an error.
HEAD = r"^(?:(?:ERROR|CRITICAL) [\d:., -]*\[[^\]]*\] )?"
TRACEBACK_LINES = 60
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
# In the line or the traceback of an error about shared memory. /dev/shm is a file system of its own (64 MiB in most
# containers) and reports «No space left on device» like any other.
SHARED_MEMORY = re.compile(r"/dev/shm|\bpsm_|/torch_\d|\bnccl-|[Ss]hared[ _]memory|shm_broadcast|_posixshmem|SemLock")
MORE_SHARED_MEMORY = "give a container more by --shm-size=8g or --ipc=host, else mount -o remount,size=8g /dev/shm"
SHARED_MEMORY_FULL = f"shared memory full (/dev/shm): {MORE_SHARED_MEMORY}"
# Writing to full shared memory raises a signal, not an error.
BUS_ERROR = f"a bus error, as where shared memory (/dev/shm) is full: {MORE_SHARED_MEMORY}"
# The API server's error when its engine has died: not the cause where there is another error.
CONSEQUENCE = re.compile(r"Engine core initialization failed|EngineDeadError")
NEEDED = re.compile(r"\((?P<needed>[\d.]+) GiB KV cache is needed")
GIVEN = re.compile(r"Explicitly set \((?P<given>[\d.]+)/[\d.]+\) GiB for KV cache")
# By what a phase is known to have begun, the last one first. A GPU's worker says when its weights are there, a CPU's
# goes on to its warm-up, where there is one, and to its KV cache.
REACHED = (
    (base.OTHER, re.compile(r"init engine \(|Graph capturing finished")),
    (base.CAPTURE, re.compile(r"Capturing CUDA graph")),
    (base.PROFILING, re.compile(r"Model loading took|Warming up model|KV cache layout|GiB for KV cache")),
    (base.WEIGHTS, re.compile(r"Starting to load model")),
)
LONGEST = re.compile(r"estimated maximum model length is (?P<longest>\d+)")


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def start_figures(log: str) -> dict:
    """Memory figures of a startup log; what is not printed is missing, never zero.

    `weights_gib` and `kv_cache_tokens` are per rank, `max_concurrency` in requests of `max_model_len`."""
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
        match = re.search(pattern, log)
        if match:
            figures[name] = _number(match[1])
    of_ranks = sorted(set(map(_number, re.findall(patterns["weights_gib"], log))))
    if len(of_ranks) > 1:
        figures["weights_gib_of_ranks"] = of_ranks
    if "kv_cache_tokens" in figures:
        figures["kv_cache_tokens"] = int(figures["kv_cache_tokens"])
    return figures


# By `base.SETTINGS`: where the log says what holds, and what it is given as.
SAID = (
    ("dtype", r"with config: .*?\bdtype=torch\.(\w+)", str),
    ("kv_cache_dtype", r"with config: .*?\bkv_cache_dtype=([\w.]+)", str),
    ("max_model_len", r"with config: .*?\bmax_seq_len=(\d+)", int),
    ("prefix_caching", r"with config: .*?\benable_prefix_caching=(\w+)", "True".__eq__),
    ("chunked_prefill", r"with config: .*?\benable_chunked_prefill=(\w+)", "True".__eq__),
    ("cuda_graphs", r"with config: .*?'cudagraph_mode': <CUDAGraphMode\.(\w+)", str),
    ("seed", r"with config: .*?\bseed=(\d+)", int),
    ("max_batched_tokens", r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)", int),
    ("max_batched_tokens", r"non-default args: .*?'max_num_batched_tokens': (\d+)", int),
    ("max_num_seqs", r"non-default args: .*?'max_num_seqs': (\d+)", int),
    ("memory_share", r"non-default args: .*?'gpu_memory_utilization': ([\d.]+)", float),
    ("attention_backend", r"Using (\w+) attention backend", str),
    ("threads", r"core ids=\[([\d, ]+)\]", lambda cores: len(cores.split(","))),
    ("scheduling", r"(Asynchronous) scheduling is enabled", str.lower),
    ("speculation", r"with config: .*?\bspeculative_config=SpeculativeConfig\(method='(\w+)'", str),
)


def settings(process: Process, log: str, reports: Mapping[str, object]) -> dict:
    """What holds in the started server, by `base.SETTINGS`; a cache whose type is `auto` has the weights'."""
    log = logs.plain(log)
    said = {name: kind(match[1]) for name, pattern, kind in SAID if (match := re.search(pattern, log))}
    if said.get("kv_cache_dtype") == "auto" and "dtype" in said:
        said["kv_cache_dtype"] = said["dtype"]
    tokens = {name: value for name, value in start_figures(log).items() if name == "kv_cache_tokens"}
    return {name: value for name in base.SETTINGS if (value := (said | tokens).get(name)) is not None}


def phase(log: str) -> str:
    """Which of `base.PHASES` a server that starts is in; profiling is all from the weights to the first capture: the
    compilation, the run that measures memory, the KV cache.
    """
    log = logs.plain(log)
    return next((name for name, reached in REACHED if reached.search(log)), base.IMPORTS)


def failure_figures(log: str) -> dict:
    """The KV cache in the log of a failed server.

    One that refused its `max_model_len`: `kv_gib_needed` for one request of that length, and the `longest_tokens` that
    would fit. One that failed later: the figures of its start, and a CPU's configured `kv_cache_gib`."""
    figures = start_figures(log)
    for name, pattern, kind in (
        ("kv_cache_gib", GIVEN, float),
        ("kv_gib_needed", NEEDED, float),
        ("longest_tokens", LONGEST, int),
    ):
        if match := pattern.search(log):
            figures[name] = kind(match[1])
    return figures


def cause(log: str, exit_code: int | None = None) -> str | None:
    """Why a server died, from its log and exit code, in one line; None when no known cause matches."""
    return _said(log) or (BUS_ERROR if exit_code == 256 - signal.SIGBUS else None)


def _said(log: str) -> str | None:
    log = logs.unprefixed(log)
    match = OUT_OF_MEMORY.search(log)
    if match:
        return f"out of memory: tried to allocate {match['tried']}, {match['free']} free of {match['capacity']}"
    if re.search(r"OutOfMemoryError", log):
        return "out of memory"
    if full := _full(log):
        return full
    for pattern, name in CAUSES:
        match = pattern.search(log)
        if match:
            detail = ", ".join(value for value in match.groupdict().values() if value)
            return f"{name}: {detail}" if detail else name
    errors = re.findall(HEAD + r"((?:\w+\.)*\w*(?:Error|Exception): .+)$", log, re.MULTILINE)
    causes = [error for error in errors if not CONSEQUENCE.search(error)] or errors
    return causes[-1].strip()[:300] if causes else None


def _full(log: str) -> str | None:
    """Whether the disk or shared memory is full, by the error's line and its traceback."""
    match = NO_SPACE.search(log)
    if not match:
        return BUS_ERROR if re.search(r"\b[Bb]us error\b", log) else None
    before = log[: match.start()].splitlines()[-TRACEBACK_LINES:]
    begins = next((index for index in reversed(range(len(before))) if "Traceback (most recent" in before[index]), None)
    traceback = [] if begins is None else before[begins:]
    return SHARED_MEMORY_FULL if SHARED_MEMORY.search("\n".join([*traceback, match[0]])) else "disk full"
