"""TensorRT-LLM: `trtllm-serve`'s command line, environment and names of counters, and what its log says.

From the vendor's sources and a log posted in public: this study could not start it, since its package index has only a
stub that fetches from the vendor's own (`environments.recipes`). What can mislead: most options are not of the command
line but of a file beside it; /metrics answers JSON, the counters are at another path, and of requests only with
`return_perf_metrics`; it counts no rounds of speculation.

    >>> config(Process(SERVER, "tensorrt-llm", options={"max_seq_len": 4096, "attn_backend": "TRTLLM"}))
    {'return_perf_metrics': True, 'enable_iter_perf_stats': True, 'attn_backend': 'TRTLLM'}
"""

from collections.abc import Mapping
from pathlib import Path

from ... import files, paths
from ...environments.templates import Template
from ...hardware.hosts import Host
from .. import base, vllm
from ..base import Problem, Snapshot
from ..process import Process
from . import reports

TITLE, HEALTH, EMPTY_CACHE = "TensorRT-LLM", "/health", None
RANKS: tuple[str, ...] = ()  # what its MPI workers are called is not known here
BENCH = ("--backend", "openai", "--endpoint", "/v1/completions")
CORES = "", ","
FACTS = ("tensorrt_llm/facts.py",)
FOOTPRINT = base.Footprint(processes_gib=2.2, imported_gib=1.6, worker_gib=0.7)  # as vLLM's; asked only without a GPU
REPORTS: tuple[str, ...] = ()
TOKENIZER = None
MEMORY_SHARE = 0.9

cause, phase, settings, ineffective = reports.cause, reports.phase, reports.settings, reports.ineffective
start_figures, failure_figures = reports.start_figures, reports.failure_figures

PROMPT_TOKENS = "trtllm_prompt_tokens_total"
COUNTERS = base.Counters(
    samples={
        base.DRAFTED: "trtllm_spec_decode_num_draft_tokens_total",
        base.ACCEPTED: "trtllm_spec_decode_num_accepted_tokens_total",
        base.ACCEPTED_PER_POSITION: "trtllm_spec_decode_accepted_tokens_total",
        base.PROMPT_TOKENS: PROMPT_TOKENS,
        base.GENERATED_TOKENS: "trtllm_generation_tokens_total",
        base.FINISHED_REQUESTS: "trtllm_request_success_total",
        base.PREFIX_QUERIES: PROMPT_TOKENS,
        base.PREFIX_HITS: "trtllm_prompt_cached_tokens_total",
        base.LOADED_BYTES: "trtllm_kv_cache_onboard_bytes_total",
        base.STORED_BYTES: "trtllm_kv_cache_offload_bytes_total",
    },
    histograms={
        base.TTFT: "trtllm_time_to_first_token_seconds",
        base.E2E: "trtllm_e2e_request_latency_seconds",
        base.QUEUE: "trtllm_request_queue_time_seconds",
    },
    watched={},
    finish_reason="finished_reason",
    position="token_position",
    block_size=("trtllm_kv_cache_tokens_per_block", None),
    path="/prometheus/metrics",
)

# Options of the command line; all others are of the file beside it.
FLAGS = (
    "tokenizer backend log_level max_beam_width max_batch_size max_num_tokens max_seq_len tensor_parallel_size "
    "pipeline_parallel_size context_parallel_size moe_expert_parallel_size moe_cluster_parallel_size gpus_per_node "
    "num_postprocess_workers trust_remote_code revision enable_chunked_prefill chat_template"
).split()
# An option by another engine's name, and its own.
RENAMED = {
    "max_model_len": "max_seq_len",
    "context_length": "max_seq_len",
    "max_num_seqs": "max_batch_size",
    "max_running_requests": "max_batch_size",
    "max_num_batched_tokens": "max_num_tokens",
    "gpu_memory_utilization": "kv_cache_config = {'free_gpu_memory_fraction': …}, a share of what weights leave",
    "mem_fraction_static": "kv_cache_config = {'free_gpu_memory_fraction': …}, a share of what weights leave",
    "enable_prefix_caching": "kv_cache_config = {'enable_block_reuse': …}",
    "disable_radix_cache": "kv_cache_config = {'enable_block_reuse': False}",
    "enforce_eager": "cuda_graph_config = None",
    "data_parallel_size": "no option: several servers",
}
METHODS = {"ngram": "NGram", "draft_model": "Draft_Target", "eagle": "Eagle", "eagle3": "Eagle3", "mtp": "MTP"}


def environment_name(host: Host) -> str:
    """One, which wants a GPU."""
    return "tensorrt-llm"


def unsupported(process: Process, host: Host) -> str | None:
    """It refuses a machine without a GPU."""
    return None if host.gpus else "trtllm-serve refuses a machine without a GPU (ValueError: No GPU devices found)"


def on_terms(terms: base.Terms, host: Host) -> tuple[dict, dict]:
    """Options and variables; it cannot be told a seed."""
    given = {
        "dtype": terms.dtype,
        "max_seq_len": terms.max_model_len,
        "max_batch_size": terms.max_num_seqs,
        "max_num_tokens": terms.max_batched_tokens,
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "max_tokens": terms.kv_cache_tokens,
            "free_gpu_memory_fraction": terms.memory_share,
            "enable_block_reuse": terms.prefix_caching,
        },
    }
    return given | ({} if terms.compiled else {"cuda_graph_config": None}), {}


def config(process: Process) -> dict:
    """The file beside the command line: what makes it count, and all options that are not of the command line."""
    given = dict(process.speculative or {})
    written = {"return_perf_metrics": True, "enable_iter_perf_stats": True}
    if process.weights == "random":
        written["load_format"] = "dummy"
    written |= {name: value for name, value in process.options.items() if name not in FLAGS}
    if given:
        method, k, model = (given.pop(name, None) for name in ("method", "num_speculative_tokens", "model"))
        named = {"decoding_type": METHODS.get(method, method), "max_draft_len": k, "speculative_model": model}
        window = {"max_matching_ngram_size": given.pop("prompt_lookup_max", None)}
        given.pop("prompt_lookup_min", None)
        speculative = {name: value for name, value in (named | window | given).items() if value is not None}
        written["speculative_config"] = speculative
    return written


def _config_file(process: Process) -> Path:
    return paths.CACHE / "tensorrt-llm" / f"{files.key(config(process))}.yaml"


def prepare(process: Process) -> None:
    """Write the file beside the command line; JSON is YAML."""
    files.write(_config_file(process), config(process))


def command(process: Process, python: Path, port: int) -> list[str]:
    """The server's command line, whose flags have underscores. It binds to 127.0.0.1 only."""
    words = [str(python), "-m", "tensorrt_llm.commands.serve", "serve", process.model.source]
    words += ["--host", "127.0.0.1", "--port", str(port), "--served_model_name", process.model.name]
    words += ["--config", str(_config_file(process))]
    for name in FLAGS:
        value = process.options.get(name)
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def environment(process: Process, host: Host, python: Path) -> dict[str, str]:
    """Variables that the server needs beside the caller's own (without those of `DROPPED`)."""
    variables = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "", "NO_COLOR": "1", "TLLM_LOG_LEVEL": "INFO"}
    variables |= vllm.caches()
    if Path(process.model.source).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    return variables | {key: str(value) for key, value in process.environment.items()}


def template(process: Process, host: Host, variables: Mapping[str, str]) -> Template | None:
    """Its workers are started by MPI, whatever forked it."""
    return None


def version(versions: Mapping[str, str]) -> str | None:
    """The version of TensorRT-LLM among an interpreter's distributions; None where it is not installed."""
    return versions.get("tensorrt-llm") or versions.get("tensorrt_llm")


def problems(process: Process, accepted: Mapping | None, versions: Mapping | None = None) -> list[Problem]:
    """Options that this version has neither on the command line nor in the file; where what it accepts is not known,
    those alone that are another engine's.
    """
    accepted, all_problems = accepted or {}, []
    known = accepted.get("options")
    for name, value in process.options.items():
        if value is None or (name not in RENAMED if known is None else name in known):
            continue
        all_problems.append(Problem(f"option {name}", RENAMED.get(name) or base.nearest(name, known)))
    return all_problems


def memory_share(process: Process) -> float:
    """The share of a GPU's memory that a server asks for: of what its weights leave."""
    return (process.options.get("kv_cache_config") or {}).get("free_gpu_memory_fraction") or MEMORY_SHARE


def host_cache_gib(process: Process) -> float:
    """None is reserved: it does not run without a GPU."""
    return 0.0


def cache_figures(snapshot: Snapshot) -> dict:
    """The KV cache by the server's gauges, which it sets after its first iteration; what is not reported is missing."""
    blocks, each = (snapshot.total(f"trtllm_kv_cache_{name}") for name in ("max_blocks", "tokens_per_block"))
    figures = {name: int(value) for name, value in (("blocks", blocks), ("block_tokens", each)) if value}
    return figures | ({"kv_cache_tokens": int(blocks * each)} if blocks and each else {})
