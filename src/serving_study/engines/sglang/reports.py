"""What SGLang says of itself: its log (figures of a start, why it died, the arguments that it runs with), and the
report at /server_info.

What can mislead: «GB» in its log are GiB; it prints tracebacks of requests that failed while the server went on, so
that an error is a death's cause only behind the words that announce one; its graphs reach to `max_running_requests`,
whatever its report lists.

    >>> cause("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    'no memory left for the KV cache'
"""

import ast
import re
from collections.abc import Mapping

from .. import base, logs, vllm_logs
from ..process import Process

RANK = r"^\[[\d :-]+(?P<rank> (?:DP|TP|PP|EP)\S*(?: \S+)*)?\] "
WEIGHTS = re.compile(
    RANK + r"Load weight end\. elapsed=(?P<seconds>[\d.]+) s, .*?mem usage=(?P<gib>[\d.]+) GB", re.MULTILINE
)
CACHE = re.compile(
    RANK + r"KV Cache is allocated\. .*?dtype: torch\.(?P<dtype>\w+), #tokens: (?P<tokens>\d+), "
    r"K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB",
    re.MULTILINE,
)
CAPTURED = re.compile(
    RANK + r"Capture .*?(?P<what>prefill|decode).* end\. elapsed=(?P<seconds>[\d.]+) s, mem usage=(?P<gib>[\d.]+) GB",
    re.MULTILINE,
)
CAPTURING = re.compile(
    r"Capture .*?(?P<what>prefill|decode).* begin\. backend=(?P<backend>\w+), .*?=\[(?P<sizes>[\d, ]+)\]"
)
LIMITS = re.compile(
    r"max_total_num_tokens=(?P<tokens>\d+), chunked_prefill_size=(?P<chunk>-?\d+|None), "
    r"max_prefill_tokens=(?P<prefill>\d+), max_running_requests=(?P<requests>\d+), context_len=(?P<longest>\d+)"
)
ARGUMENTS = re.compile(r"server_args=(?P<call>ServerArgs\(.*\))\s*$", re.MULTILINE)
# An option by the name of its flag, where the server's own name for it is another.
ALIASES = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
}
REACHED = (
    (base.OTHER, re.compile(r"\bmax_total_num_tokens=\d+, chunked_prefill_size=")),
    (base.CAPTURE, re.compile(r"Capture .* begin")),
    (base.PROFILING, re.compile(r"Load weight end")),
    (base.WEIGHTS, re.compile(r"Load weight begin")),
)
# What announces a death; what a request did wrong stands before it.
DEATH = re.compile(r"Scheduler hit an exception|Received sigquit from a child process|Rank \d+ scheduler is dead")
CAUSES = (
    (
        re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static"),
        "no memory left for the KV cache",
    ),
    (re.compile(r"std::bad_alloc|MemoryError|DefaultCPUAllocator: can't allocate memory"), "out of host memory"),
    (re.compile(r"[Aa]ddress already in use"), "the port is taken"),
    (
        re.compile(r"(?:unrecognized arguments|ambiguous option): (?P<a>.+)"),
        "an option that this version does not have",
    ),
    (re.compile(r"argument (?P<a>--[\w-]+: invalid .+)"), "an option's value that this version does not have"),
    (
        re.compile(r"(?:ModuleNotFoundError|ImportError): (?P<a>.+)"),
        "a module that does not load in the engine's environment",
    ),
)


def start_figures(log: str) -> dict:
    """Memory figures and seconds in the log of a start; what is not printed is missing, never zero.

    `weights_gib` (a draft's among them), `kv_cache_gib` and `kv_cache_tokens` are a rank's."""
    log, figures = logs.plain(log), {}
    weights, caches, captured = (_of_ranks(pattern, log) for pattern in (WEIGHTS, CACHE, CAPTURED))
    if weights:
        of_ranks = [sum(float(line["gib"]) for line in lines) for lines in weights.values()]
        figures["weights_gib"] = round(of_ranks[0], 2)
        figures["load_s"] = sum(float(line["seconds"]) for line in next(iter(weights.values())))
        if len(set(of_ranks)) > 1:
            figures["weights_gib_of_ranks"] = sorted({round(gib, 2) for gib in of_ranks})
    if caches:
        lines = next(iter(caches.values()))
        figures["kv_cache_tokens"] = int(lines[0]["tokens"])
        figures["kv_cache_gib"] = round(sum(float(line["k"]) + float(line["v"]) for line in lines), 2)
    if captured:
        lines = next(iter(captured.values()))
        figures["graph_capture_s"] = round(sum(float(line["seconds"]) for line in lines), 2)
        figures["graph_gib"] = round(sum(float(line["gib"]) for line in lines), 2)
    if limits := LIMITS.search(log):
        figures["kv_cache_tokens"] = int(limits["tokens"])
        figures["max_concurrency"] = int(limits["tokens"]) / int(limits["longest"])
    return figures


def _of_ranks(pattern: re.Pattern, log: str) -> dict[str, list[re.Match]]:
    """A pattern's matches by rank, in the log's order."""
    by_rank: dict[str, list[re.Match]] = {}
    for match in pattern.finditer(log):
        by_rank.setdefault(match["rank"] or "", []).append(match)
    return by_rank


def failure_figures(log: str) -> dict:
    """What the log of a failed server says of its KV cache."""
    return start_figures(log)


def phase(log: str) -> str:
    """Which of `base.PHASES` a server that starts is in; profiling is all from the weights to the first capture."""
    log = logs.plain(log)
    return next((name for name, reached in REACHED if reached.search(log)), base.IMPORTS)


def arguments(log: str) -> dict:
    """The arguments that the started server says it has, without those that are no plain values; empty where it does
    not say.
    """
    said = ARGUMENTS.search(logs.plain(log))
    if not said:
        return {}
    values = {}
    try:
        keywords = ast.parse(said["call"], mode="eval").body.keywords
    except SyntaxError:
        return {}
    for keyword in keywords:
        try:
            values[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            continue
    return values


def unheeded(asked: Mapping[str, object], log: str) -> str | None:
    """Which of the options that were asked for the server runs without, by its arguments; None where none is known
    to differ.
    """
    has = arguments(log)
    if limits := LIMITS.search(logs.plain(log)):
        has |= {"context_length": int(limits["longest"]), "max_running_requests": int(limits["requests"])}
        has["max_total_tokens"] = int(limits["tokens"])
    different = []
    for name, wanted in asked.items():
        own = ALIASES.get(name, name)
        if wanted is None or own not in has or _same(wanted, has[own]):
            continue
        different.append(f"{name} is {has[own]}, not {wanted}")
    return f"SGLang changed what it was given: {'; '.join(different)}" if different else None


def _same(wanted: object, has: object) -> bool:
    if isinstance(wanted, list | tuple) or isinstance(has, list | tuple | dict):
        return True  # given as several words, or as JSON
    return wanted == has or str(wanted).lower() == str(has).lower()


def settings(process: Process, log: str, reported: Mapping[str, object]) -> dict:
    """What holds in the started server, by `base.SETTINGS`: its own report, else the arguments in its log.

    `max_batched_tokens` is its chunk of a prefill, or without chunks its limit of a prefill; overlapped scheduling is
    what vLLM calls asynchronous."""
    log = logs.plain(log)
    report = next((answer for answer in reported.values() if isinstance(answer, dict)), {})
    has = arguments(log) | {name: value for name, value in report.items() if value is not None}
    said = {
        "dtype": has.get("dtype"),
        "kv_cache_dtype": has.get("kv_cache_dtype"),
        "max_model_len": has.get("context_length"),
        "max_num_seqs": has.get("max_running_requests"),
        "memory_share": has.get("mem_fraction_static"),
        "kv_cache_tokens": has.get("max_total_num_tokens"),
        "block_tokens": has.get("page_size"),
        "attention_backend": has.get("attention_backend"),
        "seed": has.get("random_seed"),
        "speculation": str(has["speculative_algorithm"]).lower() if has.get("speculative_algorithm") else None,
    }
    chunk = has.get("chunked_prefill_size")
    if chunk is not None:
        said["chunked_prefill"] = chunk > 0
        said["max_batched_tokens"] = chunk if chunk > 0 else has.get("max_prefill_tokens")
    if "disable_radix_cache" in has:
        said["prefix_caching"] = not has["disable_radix_cache"]
    if has.get("disable_overlap_schedule") is False:
        said["scheduling"] = "asynchronous"
    if cache := CACHE.search(log):
        said["kv_cache_dtype"] = cache["dtype"]
    if limits := LIMITS.search(log):
        said |= {"max_model_len": int(limits["longest"]), "max_num_seqs": int(limits["requests"])}
        said["kv_cache_tokens"] = said["kv_cache_tokens"] or int(limits["tokens"])
    off = has.get("cuda_graph_backend_decode") == has.get("cuda_graph_backend_prefill") == "disabled"
    said["cuda_graphs"] = _graphs(log) or ("NONE" if off else None)
    return {name: said[name] for name in base.SETTINGS if said.get(name) is not None}


def _graphs(log: str) -> str:
    """`decode full up to 128, prefill breakable up to 4096`; empty where none was captured."""
    reach = {
        match["what"]: f"{match['what']} {match['backend']} up to {max(map(int, match['sizes'].split(',')))}"
        for match in CAPTURING.finditer(log)
    }
    return ", ".join(reach[what] for what in sorted(reach))


def cause(log: str, exit_code: int | None = None) -> str | None:
    """Why a server died, from its log, in one line; None when no known cause matches."""
    log = logs.plain(log)
    if died := DEATH.search(log):
        log = log[died.start() :]
    if match := vllm_logs.OUT_OF_MEMORY.search(log):
        return f"out of memory: tried to allocate {match['tried']}, {match['free']} free of {match['capacity']}"
    if re.search(r"OutOfMemoryError", log):
        return "out of memory"
    for pattern, name in CAUSES:
        if match := pattern.search(log):
            detail = ", ".join(value for value in match.groupdict().values() if value)
            return f"{name}: {detail}" if detail else name
    errors = re.findall(r"^((?:\w+\.)*\w*(?:Error|Exception): .+)$", log, re.MULTILINE)
    if errors and (died or not re.search(r"Uvicorn running", log)):
        return errors[-1].strip()[:300]
    return None
