"""The protocol of an engine, and the harness's names of counters.

`Counters` says which sample of an engine's /metrics is which of our counters; cells store them by our names. What can
mislead: a counter that an engine does not have is missing, never 0.

    >>> from serving_study import engines
    >>> engines.get("vllm").COUNTERS.samples[PREFIX_HITS]
    'vllm:prefix_cache_hits_total'
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..environments.templates import Template
from ..hardware.hosts import Host
from .process import Process

DRAFTS, DRAFTED, ACCEPTED = "drafts", "drafted_tokens", "accepted_tokens"
ACCEPTED_PER_POSITION = "accepted_tokens_per_position"
PROMPT_TOKENS, GENERATED_TOKENS = "prompt_tokens", "generated_tokens"
FINISHED_REQUESTS = "finished_requests"
PREFIX_QUERIES, PREFIX_HITS, EXTERNAL_HITS = "prefix_queries", "prefix_hits", "external_hits"  # in tokens
PREEMPTIONS = "preemptions"
LOADED_BYTES, STORED_BYTES = "kv_loaded_bytes", "kv_stored_bytes"
NAMES = (
    DRAFTS,
    DRAFTED,
    ACCEPTED,
    ACCEPTED_PER_POSITION,
    PROMPT_TOKENS,
    GENERATED_TOKENS,
    FINISHED_REQUESTS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    EXTERNAL_HITS,
    PREEMPTIONS,
    LOADED_BYTES,
    STORED_BYTES,
)
TTFT, E2E, QUEUE = "ttft_s", "e2e_s", "queue_s"  # histograms, in seconds
TTFT_SUM = "ttft_sum_s"  # a histogram's sum as a counter: with requests one by one, each request's own time

# Of a start, in this order; what a server does before it answers that is none of them is `OTHER`.
IMPORTS, WEIGHTS, PROFILING, CAPTURE, OTHER = "imports", "weights", "profiling", "capture", "other"
FIRST_REQUEST = "first request"
PHASES = (IMPORTS, WEIGHTS, PROFILING, CAPTURE, FIRST_REQUEST, OTHER)

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True)
class Snapshot:
    """All samples of one scrape of /metrics."""

    series: Series

    def total(self, sample: str | tuple[str, ...] | None) -> float | None:
        """The sum of a sample, or of several, over their labels; None when the server has no such sample."""
        names = sample if isinstance(sample, tuple) else (sample,)
        values = [value for (name, _), value in self.series.items() if name in names]
        return sum(values) if values else None

    def by_label(self, sample: str | None, label: str) -> dict[str, float]:
        """The sums of a sample by one of its labels."""
        sums: dict[str, float] = {}
        for (name, labels), value in self.series.items():
            if name == sample and label in dict(labels):
                sums[dict(labels)[label]] = sums.get(dict(labels)[label], 0) + value
        return sums


@dataclass(frozen=True)
class Counters:
    """Which samples of an engine's metrics are our counters; what it does not have is left out.

    `samples` are counters (several samples are added up), `histograms` names without `_sum` and `_count`, `watched` the
    samples read after each request where requests come one by one. `finish_reason` and `position` are labels of
    `finished_requests` and `accepted_tokens_per_position`; `block_size` is a sample and its label that holds the tokens
    of a block (None: its value does). `begins_with` are samples that are not there before their first count, and the
    sample whose presence says that they stand at 0; `derived` are counters that follow from others: from the
    differences of all, by our names, and the later snapshot. `path` is where a server answers with all of them."""

    samples: Mapping[str, str | tuple[str, ...]]
    histograms: Mapping[str, str]
    watched: Mapping[str, str]
    finish_reason: str
    position: str
    block_size: tuple[str, str | None]
    begins_with: Mapping[str, str] = field(default_factory=dict)
    derived: Mapping[str, Callable[[Mapping[str, float | None], Snapshot], float | None]] = field(default_factory=dict)
    path: str = "/metrics"

    def total(self, snapshot: Snapshot, name: str) -> float | None:
        """A counter, by our name; None where the server does not have it."""
        sample = self.samples.get(name)
        counted = snapshot.total(sample)
        begun = counted is None and snapshot.total(self.begins_with.get(sample)) is not None
        return 0.0 if begun else counted


# What a started server says of its settings, whatever it calls them; what it does not say is missing.
SETTINGS = (
    "dtype",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_batched_tokens",
    "chunked_prefill",
    "prefix_caching",
    "memory_share",
    "kv_cache_tokens",
    "block_tokens",
    "attention_backend",
    "cuda_graphs",
    "threads",
    "scheduling",
    "speculation",
    "seed",
)


@dataclass(frozen=True)
class Footprint:
    """Host memory of a server's processes with a model of a few hundred million parameters, GiB, without weights and
    cache: of all of them, of one that has imported and loaded nothing yet, and of each further one that computes.
    `copies` is how often the weights lie in memory at most, while they are loaded.
    """

    processes_gib: float
    imported_gib: float
    worker_gib: float = 0.0
    copies: float = 2.0


@dataclass(frozen=True)
class TokenizerApi:
    """An engine's own tokenizer over HTTP. A POST to the path `encode` of a text under the name `text` is answered with
    numbers under `ids`, and one to `decode` of these with a text under `decoded`; `extra` and `extra_back` are further
    fields of the two requests, which leave special tokens out.
    """

    encode: str
    decode: str
    text: str
    ids: str
    decoded: str
    extra: Mapping = field(default_factory=dict)
    extra_back: Mapping = field(default_factory=dict)


@dataclass(frozen=True)
class Terms:
    """What servers of different engines are given alike, in the harness's words; each engine's module says it in its
    own flags (`Engine.on_terms`).

    `kv_cache_tokens` is what the KV cache holds, `max_batched_tokens` the tokens of one step, `compiled` whether graphs
    are captured, `memory_share` the share of a GPU's memory that may be taken, and `host_cache_gib` the most that the
    cache takes of a CPU host's."""

    dtype: str
    max_model_len: int
    max_num_seqs: int
    kv_cache_tokens: int
    max_batched_tokens: int
    seed: int
    prefix_caching: bool = False
    compiled: bool = True
    memory_share: float = 0.9
    host_cache_gib: float = 1


# What makes a program write colours to a file: NO_COLOR does not win everywhere, so these go.
DROPPED = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE")


@runtime_checkable
class Engine(Protocol):
    """The protocol of an engine; `ENGINES` holds one object each, a module or an instance.

    `TITLE` is its name for people, `HEALTH` a path that answers once it serves, `EMPTY_CACHE` a path to which a POST
    empties its prefix cache (None: it has none). `RANKS` are beginnings of the titles of its processes that compute;
    the first that matches any counts. `BENCH` are the options with which `vllm bench serve` speaks its API, `CORES` the
    variable for its ranks' cores and the separator between ranks. `FACTS` is the script of `engine_side/` with its
    arguments that says what the installed version accepts (`probes.engine`), `REPORTS` are paths that answer JSON on
    a started server's settings, `TOKENIZER` is its tokenizer over HTTP (None: it has none)."""

    TITLE: str
    COUNTERS: Counters
    HEALTH: str
    EMPTY_CACHE: str | None
    RANKS: tuple[str, ...]
    BENCH: tuple[str, ...]
    CORES: tuple[str, str]
    FACTS: tuple[str, ...]
    FOOTPRINT: Footprint
    REPORTS: tuple[str, ...]
    TOKENIZER: TokenizerApi | None

    def environment_name(self, host: Host) -> str:
        """Which lock file under `env/` its environment has on this host."""

    def unsupported(self, process: Process, host: Host) -> str | None:
        """Why it cannot run this process here, as far as that is known before anything starts, with what can be done;
        None where nothing stands against it.
        """

    def prepare(self, process: Process) -> None:
        """Make what the server reads and what is not there yet. Raises ModelError for a model that it cannot load."""

    def on_terms(self, terms: Terms, host: Host) -> tuple[dict, dict]:
        """The options and variables of a server on given terms; what the engine cannot be told is left out."""

    def command(self, process: Process, python: Path, port: int) -> list[str]:
        """The server's command line; it binds to 127.0.0.1 alone."""

    def environment(self, process: Process, host: Host, python: Path) -> dict[str, str]:
        """The variables that the server needs beside the caller's (without those in `DROPPED`)."""

    def template(self, process: Process, host: Host, variables: Mapping[str, str]) -> Template | None:
        """The template that a server with these variables may be forked from; None where it is started by itself."""

    def version(self, versions: Mapping[str, str]) -> str | None:
        """The engine's version among an interpreter's distributions; None where it is not installed."""

    def problems(self, process: Process, accepted: Mapping | None, versions: Mapping | None) -> list["Problem"]:
        """What the process asks for and this version does not have; `accepted` is what its interpreter says that it
        accepts.
        """

    def memory_share(self, process: Process) -> float:
        """The share of a GPU's memory that the server asks for."""

    def host_cache_gib(self, process: Process) -> float:
        """A rank's KV cache on a CPU host, GiB."""

    def phase(self, log: str) -> str:
        """Which of `PHASES` a server that starts is in, by its log so far."""

    def start_figures(self, log: str) -> dict:
        """Memory figures and seconds in the log of a start; what is not printed is missing, never zero."""

    def settings(self, process: Process, log: str, reports: Mapping[str, object]) -> dict:
        """What the started server says of its settings, by `SETTINGS`; `reports` are its answers at `REPORTS`."""

    def failure_figures(self, log: str) -> dict:
        """What the log of a failed server says of its KV cache."""

    def cache_figures(self, snapshot: Snapshot) -> dict:
        """The KV cache by the server's counters: `blocks`, `block_tokens`, `kv_cache_tokens`, `max_concurrency`."""

    def ineffective(self, process: Process, log: str) -> str | None:
        """Which settings the started server does not have, by its log; None where all hold."""

    def cause(self, log: str, exit_code: int | None = None) -> str | None:
        """Why a server died, in one line; None when no known cause matches."""


@dataclass(frozen=True)
class Problem:
    """Something asked for that does not exist, and what exists.

    `ignored`: the engine would silently go on without it; `doubtful`: it may be intended all the same."""

    found: str
    wanted: str
    ignored: bool = False
    doubtful: bool = False


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Known names similar to `name`, else some of them, in words."""
    known = sorted(set(known))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return ", ".join(prefix + word for word in near or known[:12]) + ("" if near or len(known) <= 12 else ", …")


def unknown(kind: str, names: Iterable[str], known: Iterable[str] | None, **fields) -> list[Problem]:
    """A problem for each name that is not known; none where nothing tells which are."""
    return (
        [Problem(f"{kind} {name}", nearest(name, known), **fields) for name in names if name not in known]
        if known is not None
        else []
    )


def flags(options: dict) -> list[str]:
    """Options by name without dashes as words of a command line: True is a bare flag, False its negation, None is left
    out, a mapping or list is JSON.
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
