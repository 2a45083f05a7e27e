"""What TensorRT-LLM's log says: the figures of a start, the settings that hold, and why a server died.

From one log of 1.1 that was posted in public, and the vendor's sources. What can mislead: the cache is made twice, the
first time for profiling; the longest request is fitted to the cache without a word to the client.

    >>> start_figures("Model init total -- 49.14s")
    {'load_s': 49.14}
"""

import re
from collections.abc import Mapping

from .. import base, logs, vllm_logs
from ..process import Process

LIMITS = re.compile(
    r"max_seq_len=(?P<max_seq_len>\d+), max_num_requests=\d+, max_num_tokens=(?P<max_num_tokens>\d+), "
    r"max_batch_size=(?P<max_batch_size>\d+)"
)
ALLOCATED = re.compile(r"Allocated (?P<gib>[\d.]+) GiB for max tokens in paged KV cache \((?P<tokens>\d+)\)")
REACHED = (
    (base.OTHER, re.compile(r"Setting PyTorch memory fraction|Started server process")),
    (base.CAPTURE, re.compile(r"Creating CUDA graph instances")),
    (base.PROFILING, re.compile(r"Model init total --")),
    (base.WEIGHTS, re.compile(r"GB for model weights|Loading (?:safetensors )?weights")),
)
CAUSES = (
    (re.compile(r"Executor creation failed due to insufficient GPU memory"), "too little GPU memory"),
    (re.compile(r"CUDA error: out of memory"), "out of memory"),
    (re.compile(r"No such option: (?P<a>\S+)"), "an option that this version does not have"),
    (re.compile(r"Failed to bind socket to (?P<a>\S+: .+)"), "the port is taken"),
    (
        re.compile(r"(?:ModuleNotFoundError|ImportError): (?P<a>.+)"),
        "a module that does not load in the engine's environment",
    ),
)
CONSEQUENCE = re.compile(r"Executor worker (?:returned error|died during initialization)")


def phase(log: str) -> str:
    """Which of `base.PHASES` a server that starts is in; it profiles with graphs, which count as capture."""
    log = logs.plain(log)
    return next((name for name, reached in REACHED if reached.search(log)), base.IMPORTS)


def start_figures(log: str) -> dict:
    """Memory figures and seconds in the log of a start; what is not printed is missing, never zero."""
    log, figures = logs.plain(log), {}
    if weights := re.search(r"Use ([\d.]+) GB for model weights", log):
        figures["weights_gib"] = float(weights[1])
    if load := re.search(r"Model init total -- ([\d.]+)s", log):
        figures["load_s"] = float(load[1])
    if cache := list(ALLOCATED.finditer(log)):  # the last: one before it is for profiling
        figures |= {"kv_cache_gib": float(cache[-1]["gib"]), "kv_cache_tokens": int(cache[-1]["tokens"])}
        if limits := list(LIMITS.finditer(log)):
            figures["max_concurrency"] = figures["kv_cache_tokens"] / int(limits[-1]["max_seq_len"])
    return figures


def failure_figures(log: str) -> dict:
    """What the log of a failed server says of its KV cache."""
    return start_figures(log)


def settings(process: Process, log: str, reports: Mapping[str, object]) -> dict:
    """What the started server says of its settings, by `base.SETTINGS`."""
    log = logs.plain(log)
    said: dict = {"kv_cache_tokens": start_figures(log).get("kv_cache_tokens")}
    for name, pattern, kind in (
        ("attention_backend", r"\battn_backend='(\w+)'", str),
        ("kv_cache_dtype", r"\bkv_cache_dtype='(\w+)'", str),
        ("chunked_prefill", r"AttentionRuntimeFeatures\(chunked_prefill=(\w+)", "True".__eq__),
        ("prefix_caching", r"AttentionRuntimeFeatures\(.*?cache_reuse=(\w+)", "True".__eq__),
        ("block_tokens", r"Number of tokens per block: (\d+)", int),
        ("memory_share", r"fraction is set ([\d.]+)", lambda share: round(float(share), 4)),
        ("cuda_graphs", r"Creating CUDA graph instances for (\d+) batch sizes", lambda sizes: f"decode, {sizes} sizes"),
    ):
        if match := re.search(pattern, log):
            said[name] = kind(match[1])
    if re.search(r"\bdisable_overlap_scheduler=False", log):
        said["scheduling"] = "asynchronous"
    if limits := list(LIMITS.finditer(log)):
        last = {name: int(value) for name, value in limits[-1].groupdict().items()}
        said |= {"max_model_len": last["max_seq_len"], "max_num_seqs": last["max_batch_size"]}
        said["max_batched_tokens"] = last["max_num_tokens"]
    return {name: said[name] for name in base.SETTINGS if said.get(name) is not None}


def ineffective(process: Process, log: str) -> str | None:
    """Which limits the started server lowered; it fits the longest request to its cache without a word to the
    client.
    """
    limits = list(LIMITS.finditer(logs.plain(log)))
    if not limits:
        return None
    different = [
        f"{name} is {has}, not {process.options[name]}"
        for name, has in limits[-1].groupdict().items()
        if process.options.get(name) is not None and int(has) != process.options[name]
    ]
    return f"TensorRT-LLM changed what it was given: {'; '.join(different)}" if different else None


def cause(log: str, exit_code: int | None = None) -> str | None:
    """Why a server died, from its log, in one line; None when no known cause matches. The last error is that of its
    proxy, which says no more than that a worker failed.
    """
    log = logs.plain(log)
    if match := vllm_logs.OUT_OF_MEMORY.search(log):
        return f"out of memory: tried to allocate {match['tried']}, {match['free']} free of {match['capacity']}"
    for pattern, name in CAUSES:
        if match := pattern.search(log):
            detail = ", ".join(value for value in match.groupdict().values() if value)
            return f"{name}: {detail}" if detail else name
    errors = re.findall(r"^((?:\w+\.)*\w*(?:Error|Exception): .+)$", log, re.MULTILINE)
    causes = [error for error in errors if not CONSEQUENCE.search(error)] or errors
    return causes[-1].strip()[:300] if causes else None
