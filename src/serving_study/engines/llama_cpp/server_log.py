"""llama.cpp's log: the figures of a start, what holds in the started server, and why one died.

Its library's lines come at verbosity 4, the memory figures among them. What can mislead: with `--fit` the model is
looked at once before it is loaded, and a draft has lines of its own after the target's; `kv_unified` makes all slots
share the cells, which are divided among them without.

    >>> cause("error: invalid argument: --max-model-len")
    'an option that this version does not have: --max-model-len'
"""

import re
import signal
from collections.abc import Mapping

from .. import base, logs
from ..process import Process
from . import options

VERBOSITY = "4"
MIB_OF_GIB = 1024
ERROR = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} E (?:(?:srv|cmn|slot|spec) +)?(?:[\w:]+ *: )?(?P<said>.+)$", re.MULTILINE)
BUFFER = re.compile(r"load_tensors: +(?P<place>\w+) model buffer size = +(?P<mib>[\d.]+) MiB")
CELLS = re.compile(
    r"llama_kv_cache: size = +(?P<mib>[\d.]+) MiB \( *(?P<cells>\d+) cells, +\d+ layers, +\d+/(?P<streams>\d+) "
    r"seqs\), K \((?P<k>\w+)\): +[\d.]+ MiB, V \((?P<v>\w+)\)"
)
SLOTS = re.compile(
    r"initializing, n_slots = (?P<slots>\d+), n_ctx_slot = (?P<longest>\d+), kv_unified = '(?P<one>\w+)'"
)
SPECULATES = re.compile(r"adding speculative implementation '(?P<kind>[\w-]+)'")
DRAFT = re.compile(r"loading draft model")  # what follows is the draft's
# By what a phase is known to have begun, the last one first.
REACHED = (
    (base.OTHER, re.compile(r"listening on ")),
    (base.CAPTURE, re.compile(r"warming up the model with an empty run")),
    (base.PROFILING, re.compile(r"constructing llama_context")),
    (base.WEIGHTS, re.compile(r"loading model ")),
)
CAUSES = (
    (re.compile(r"error: invalid argument: (?P<a>\S+)"), "an option that this version does not have"),
    (
        re.compile(r'error while handling argument "(?P<a>[\w-]+)": (?P<b>.+)'),
        "an option with a value that this version does not take",
    ),
    (re.compile(r"couldn't bind HTTP server socket, hostname: \S+, port: (?P<a>\d+)"), "the port is taken"),
    (
        re.compile(
            r"CUDA error: out of memory|cudaMalloc failed: out of memory|allocating (?P<a>[\d.]+ MiB) on device"
        ),
        "out of memory on the GPU",
    ),
    (
        re.compile(r"insufficient memory \(attempted to allocate (?P<a>[\d.]+ MB)\)|std::bad_alloc"),
        "out of host memory",
    ),
    (re.compile(r"failed to open GGUF file '(?P<a>[^']+)' \((?P<b>[^)]+)\)"), "no file of the model"),
    (re.compile(r"error loading model: (?P<a>.+)"), "a model that cannot be loaded"),
    (re.compile(r"failed to load draft model, '(?P<a>[^']+)'"), "a draft that cannot be loaded"),
    (re.compile(r"failed to find a memory slot for batch|Context size has been exceeded"), "no cells left"),
    (re.compile(r"GGML_ASSERT\((?P<a>.+?)\) failed"), "a check inside it failed"),
)
ENDED_BY = {
    signal.SIGILL: "an instruction that this processor does not have: it was built for another one",
    signal.SIGKILL: "killed, as where the host's memory is full",
}


def phase(log: str) -> str:
    """Which of `base.PHASES` a server that starts is in; `capture` is its warm-up, `profiling` its context and cells.
    It imports nothing.
    """
    return next((name for name, reached in REACHED if reached.search(log)), base.WEIGHTS)


def start_figures(log: str) -> dict:
    """Memory figures of a startup log, the target's; what is not printed is missing, never zero."""
    target = DRAFT.split(logs.plain(log))[0]
    figures = {}
    if buffers := BUFFER.findall(target):
        figures["weights_gib"] = round(sum(float(mib) for _, mib in buffers) / MIB_OF_GIB, 3)
    if cells := CELLS.search(target):
        figures["kv_cache_tokens"] = int(cells["cells"]) * int(cells["streams"])
        figures["kv_cache_gib"] = round(float(cells["mib"]) / MIB_OF_GIB, 3)
    if (slots := SLOTS.search(log)) and cells:
        figures["max_concurrency"] = round(figures["kv_cache_tokens"] / int(slots["longest"]), 2)
    return figures


def failure_figures(log: str) -> dict:
    """The figures of its start, as far as it came."""
    return start_figures(log)


def settings(process: Process, log: str, reports: Mapping[str, object]) -> dict:
    """What holds in the started server, by `base.SETTINGS`: by its log, and by its own /props. Neither says whether it
    looks prompts up; its counters show it.
    """
    log = logs.plain(log)
    target, props = DRAFT.split(log)[0], reports.get("/props")
    props = props if isinstance(props, dict) else {}
    said = {"kv_cache_tokens": start_figures(log).get("kv_cache_tokens"), "max_num_seqs": props.get("total_slots")}
    said["dtype"] = (props.get("model_ftype") or "").lower() or None
    generation = props.get("default_generation_settings") or {}
    said |= {"max_model_len": generation.get("n_ctx"), "seed": (generation.get("params") or {}).get("seed")}
    if cells := CELLS.search(target):
        said["kv_cache_dtype"] = cells["k"] if cells["k"] == cells["v"] else f"{cells['k']}/{cells['v']}"
    for name, pattern in (
        ("max_batched_tokens", r"llama_context: n_batch += (\d+)"),
        ("threads", r"system_info: n_threads = (\d+)"),
    ):
        if match := re.search(pattern, target):
            said[name] = int(match[1])
    asked, resolved = (re.search(line, target) for line in (r"flash_attn += (\w+)", r"Flash Attention (\w+abled)"))
    if flash := resolved or asked:
        said["attention_backend"] = f"flash attention {flash[1]}"
    if slots := SLOTS.search(log):
        said["scheduling"] = f"{slots['slots']} slots, {'one pool of' if slots['one'] == 'true' else 'divided'} cells"
    said["speculation"] = kind[1] if (kind := SPECULATES.search(log)) else None
    return {name: said[name] for name in base.SETTINGS if said.get(name) is not None}


def ineffective(process: Process, log: str) -> str | None:
    """Which settings the started server does not have: a speculation that it cannot have it leaves out in silence."""
    wanted = options.type_of(process)
    begun = SPECULATES.findall(logs.plain(log))
    if wanted and wanted not in begun:
        return f"speculation {wanted} was asked for, and the server began {', '.join(begun) or 'none'}"
    return None


def cause(log: str, exit_code: int | None = None) -> str | None:
    """Why a server died, from its log and its warden's exit code, in one line; None when no known cause matches."""
    log = logs.plain(log)
    for pattern, name in CAUSES:
        if match := pattern.search(log):
            detail = ", ".join(value for value in match.groupdict().values() if value)
            return f"{name}: {detail}" if detail else name
    ended = next((said for number, said in ENDED_BY.items() if exit_code in (-number, 256 - number)), None)
    errors = [match["said"] for match in ERROR.finditer(log)]
    return ended or (errors[0].strip()[:300] if errors else None)
