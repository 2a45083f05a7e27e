"""SGLang: its command line, environment, and names of counters; `reports` reads its log and its own report.

What can mislead: its share of memory is of what is free once its process has started, weights and KV cache together;
its GB are GiB; without a GPU it wants kernels that its package index does not have (`environments.recipes`). Of
speculation it counts rounds alone: what was drafted follows from its width, and what was accepted from the tokens that
neither a prompt's pass nor a round's own token gave, without those that the answer's end cut off.

    >>> command(process, environment.python, 8000)                                           # doctest: +SKIP
"""

from collections.abc import Mapping
from pathlib import Path

from ... import files, paths
from ...environments.templates import Template
from ...hardware.hosts import Host
from .. import base, vllm
from ..base import Problem, Snapshot, flags, nearest
from ..process import Process
from . import reports

TITLE, HEALTH, EMPTY_CACHE = "SGLang", "/health_generate", "/flush_cache"
RANKS = ("sglang::scheduler",)
BENCH = ("--backend", "openai", "--endpoint", "/v1/completions")
CORES = "SGLANG_CPU_OMP_THREADS_BIND", "|"
FACTS = ("sglang/facts.py",)
# As vLLM's, since nobody has weighed it: asked only without a GPU, where there are no kernels for it.
FOOTPRINT = base.Footprint(processes_gib=2.2, imported_gib=1.6, worker_gib=0.7)
REPORTS = ("/server_info",)
TOKENIZER = base.TokenizerApi(
    "/tokenize", "/detokenize", text="prompt", ids="tokens", decoded="text", extra={"add_special_tokens": False}
)
WITHOUT_GRAPHS = {f"cuda_graph_backend_{phase}": "disabled" for phase in ("decode", "prefill")}
MEMORY_SHARE = 0.88  # where it decides itself, it leaves about this much to weights and cache

cause, phase, settings = reports.cause, reports.phase, reports.settings
start_figures, failure_figures = reports.start_figures, reports.failure_figures

PROMPT_TOKENS, CACHED_TOKENS = "sglang:prompt_tokens_total", "sglang:cached_tokens_total"
ROUNDS, WIDTH = "sglang:spec_verify_calls_total", "sglang:spec_num_draft_tokens"


def _drafted(counted: Mapping[str, float | None], after: Snapshot) -> float | None:
    """Drafted tokens: a round's width without the token that is certain."""
    ranks = [value for (name, _), value in after.series.items() if name == WIDTH and value > 0]
    return counted[base.DRAFTS] * (ranks[0] - 1) if ranks and counted[base.DRAFTS] is not None else None


def _accepted(counted: Mapping[str, float | None], after: Snapshot) -> float | None:
    """Accepted tokens: those made, without each answer's first and each round's own."""
    parts = [counted[name] for name in (base.GENERATED_TOKENS, base.FINISHED_REQUESTS, base.DRAFTS)]
    return None if None in parts or not parts[2] else parts[0] - parts[1] - parts[2]


COUNTERS = base.Counters(
    samples={
        base.DRAFTS: ROUNDS,
        base.PROMPT_TOKENS: PROMPT_TOKENS,
        base.GENERATED_TOKENS: "sglang:generation_tokens_total",
        base.FINISHED_REQUESTS: "sglang:num_requests_total",
        base.PREFIX_QUERIES: PROMPT_TOKENS,  # each prompt is looked up whole
        base.PREFIX_HITS: CACHED_TOKENS,  # of all tiers: with --enable-hierarchical-cache not of the device alone
        base.PREEMPTIONS: "sglang:num_retracted_requests_total",
    },
    histograms={
        base.TTFT: "sglang:time_to_first_token_seconds",
        base.E2E: "sglang:e2e_request_latency_seconds",
        base.QUEUE: "sglang:queue_time_seconds",
    },
    watched={
        base.PREFIX_QUERIES: PROMPT_TOKENS,
        base.PREFIX_HITS: CACHED_TOKENS,
        base.TTFT_SUM: "sglang:time_to_first_token_seconds_sum",
    },
    finish_reason="",
    position="",
    block_size=("sglang:page_size", None),
    # None of them is there before its first count.
    begins_with=dict.fromkeys((ROUNDS, CACHED_TOKENS, "sglang:num_retracted_requests_total"), PROMPT_TOKENS),
    derived={base.DRAFTED: _drafted, base.ACCEPTED: _accepted},
)

# An option by vLLM's or the book's name, and SGLang's own: what an arm of another engine was given.
RENAMED = {
    "max_model_len": "context_length",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "gpu_memory_utilization": "mem_fraction_static",
    "enable_prefix_caching": "disable_radix_cache = True, or nothing",
    "enforce_eager": "cuda_graph_backend_decode = cuda_graph_backend_prefill = 'disabled'",
    "seed": "random_seed",
    "block_size": "page_size",
}
ALGORITHMS = {"ngram": "NGRAM", "eagle": "EAGLE", "eagle3": "EAGLE3", "draft_model": "STANDALONE"}
WITHOUT_DRAFT = ("NGRAM",)


def environment_name(host: Host) -> str:
    """Without a GPU it would be another build of its kernels, for which there is no lock file."""
    return "sglang" if host.gpus else "sglang-cpu"


def unsupported(process: Process, host: Host) -> str | None:
    """Nothing is known beforehand: which models it loads it says at its start."""
    return None


def on_terms(terms: base.Terms, host: Host) -> tuple[dict, dict]:
    """Options and variables; the cache has the type of the weights."""
    given = {
        "dtype": terms.dtype,
        "context_length": terms.max_model_len,
        "max_running_requests": terms.max_num_seqs,
        "max_total_tokens": terms.kv_cache_tokens,
        "chunked_prefill_size": terms.max_batched_tokens,
        "max_prefill_tokens": terms.max_batched_tokens,
        "mem_fraction_static": terms.memory_share,
        "random_seed": terms.seed,
    }
    if not terms.prefix_caching:
        given["disable_radix_cache"] = True
    if not terms.compiled:
        given |= WITHOUT_GRAPHS
    return given, {}


def prepare(process: Process) -> None:
    """Give a folder without `tokenizer_config.json` one, beside links to its files: without, the tokenizer of a Llama
    does not load, and /tokenize fails at a longest length that is no 64-bit number.
    """
    source, folder = Path(process.model.source), Path(_source(process.model))
    if folder == source or (folder / "tokenizer_config.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.resolve())
    longest = process.model.config.get("max_position_embeddings", 2**20)
    settings_of = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest}
    files.write(folder / "tokenizer_config.json", settings_of)


def _source(model) -> str:
    """What the server is given as its model."""
    folder = Path(model.source)
    lacks = (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").is_file()
    return str(paths.CACHE / "sglang" / model.name) if lacks else model.source


def command(process: Process, python: Path, port: int) -> list[str]:
    """The server's command line. It binds to 127.0.0.1 only, and counts (`--enable-metrics`)."""
    words = [str(python), "-m", "sglang.launch_server", "--model-path", _source(process.model)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", process.model.name, "--enable-metrics"]
    if process.weights == "random":
        words += ["--load-format", "dummy"]
    return words + flags({name: value for name, value in asked(process).items() if value is not False})


def asked(process: Process) -> dict:
    """A process's options with those of its speculation, whose keys are vLLM's; an algorithm that is not renamed is
    SGLang's own. It counts the token that is certain among a round's draft tokens.
    """
    given = dict(process.speculative or {})
    if not given:
        return process.options
    method, k, model = (given.pop(name, None) for name in ("method", "num_speculative_tokens", "model"))
    algorithm = ALGORITHMS.get(method, str(method).upper())
    options = {"speculative_algorithm": algorithm}
    if k:
        options |= {"speculative_num_draft_tokens": k + 1}
    if algorithm not in WITHOUT_DRAFT:
        options |= {"speculative_num_steps": k, "speculative_eagle_topk": 1, "speculative_draft_model_path": model}
    return (
        process.options | options | {f"speculative_{name.removeprefix('speculative_')}": given[name] for name in given}
    )


def environment(process: Process, host: Host, python: Path) -> dict[str, str]:
    """Variables that the server needs beside the caller's own (without those of `DROPPED`)."""
    variables = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "", "NO_COLOR": "1"} | vllm.caches()
    if Path(process.model.source).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    return variables | {key: str(value) for key, value in process.environment.items()}


def template(process: Process, host: Host, variables: Mapping[str, str]) -> Template | None:
    """It starts its own processes anew, whatever forked it."""
    return None


def version(versions: Mapping[str, str]) -> str | None:
    """The version of SGLang among an interpreter's distributions; None where it is not installed."""
    return versions.get("sglang")


def problems(process: Process, accepted: Mapping | None, versions: Mapping | None = None) -> list[Problem]:
    """Options, algorithms and variables that this version does not have; where what it accepts is not known, those
    alone that are vLLM's.
    """
    accepted, all_problems = accepted or {}, []
    known = accepted.get("flags")
    for name, value in asked(process).items():
        flag = "--" + name.replace("_", "-")
        if value is None or (name not in RENAMED if known is None else flag in known):
            continue
        instead = RENAMED.get(name) or nearest(name, [one[2:].replace("-", "_") for one in known])
        all_problems.append(Problem(f"option {name}", instead))
    algorithms, algorithm = accepted.get("algorithms"), asked(process).get("speculative_algorithm")
    if algorithm and algorithms is not None and algorithm not in algorithms:
        all_problems.append(Problem(f"speculative algorithm {algorithm}", ", ".join(algorithms)))
    named = (name for name in process.environment if name.startswith(("SGLANG_", "SGL_")))
    return all_problems + base.unknown("variable", named, accepted.get("variables"), ignored=True, doubtful=True)


def memory_share(process: Process) -> float:
    """The share of a GPU's memory that a server asks for."""
    return process.options.get("mem_fraction_static") or MEMORY_SHARE


def host_cache_gib(process: Process) -> float:
    """None is reserved: without a GPU it does not run here."""
    return 0.0


def cache_figures(snapshot: Snapshot) -> dict:
    """The KV cache by the server's gauges: `blocks`, `block_tokens`, `kv_cache_tokens`, and `max_concurrency` in
    requests of its longest length. Of several ranks the first; what is not reported is missing.
    """
    sizes = {}
    for name, sample in (
        ("blocks", "sglang:num_pages"),
        ("block_tokens", "sglang:page_size"),
        ("kv_cache_tokens", "sglang:max_total_num_tokens"),
        ("longest", "sglang:context_len"),
    ):
        values = [value for (sampled, _), value in snapshot.series.items() if sampled == sample and value > 0]
        sizes |= {name: int(values[0])} if values else {}
    longest = sizes.pop("longest", None)
    if longest and "kv_cache_tokens" in sizes:
        sizes["max_concurrency"] = sizes["kv_cache_tokens"] / longest
    return sizes


def ineffective(process: Process, log: str) -> str | None:
    """Which options the started server does not have, by the arguments that it says it runs with."""
    return reports.unheeded(asked(process), log)
