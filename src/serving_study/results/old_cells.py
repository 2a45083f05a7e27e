"""Reads records of earlier releases as today's.

Counters had the engine's own names, and an arm was known only by its name; today it says what it is in columns
(`servers.arm.COLUMNS`). Missing columns come from the command that the server was started with, else from the arm's
name; apart from `reference`, no other module parses names. Nothing on disk is rewritten.

    >>> renamed({"vllm:prefix_cache_hits_total": 16.0, "finished": {"length": 1.0}})
    {'prefix_hits': 16.0, 'finished': {'length': 1.0}}
    >>> columns = of_name("135m-12-heads-tp2-pp2-again")
    >>> columns["model"], columns["tp"], columns["pp"], columns["repeat_of"]
    ('135m-12-heads', 2, 2, '135m-12-heads-tp2-pp2')
"""

import functools
import json
import re
from pathlib import Path

import pandas

from .. import files
from ..engines import base
from ..servers.arm import COLUMNS

NAMES = {
    "vllm:spec_decode_num_drafts_total": base.DRAFTS,
    "vllm:spec_decode_num_draft_tokens_total": base.DRAFTED,
    "vllm:spec_decode_num_accepted_tokens_total": base.ACCEPTED,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": base.ACCEPTED_PER_POSITION,
    "vllm:prompt_tokens_total": base.PROMPT_TOKENS,
    "vllm:generation_tokens_total": base.GENERATED_TOKENS,
    "vllm:request_success_total": base.FINISHED_REQUESTS,
    "vllm:prefix_cache_queries_total": base.PREFIX_QUERIES,
    "vllm:prefix_cache_hits_total": base.PREFIX_HITS,
    "vllm:external_prefix_cache_hits_total": base.EXTERNAL_HITS,
    "vllm:num_preemptions_total": base.PREEMPTIONS,
    "vllm:kv_offload_load_bytes_total": base.LOADED_BYTES,
    "vllm:kv_offload_store_bytes_total": base.STORED_BYTES,
    "vllm:time_to_first_token_seconds": base.TTFT,
    "vllm:e2e_request_latency_seconds": base.E2E,
    "vllm:request_queue_time_seconds": base.QUEUE,
    "vllm:time_to_first_token_seconds_sum": base.TTFT_SUM,
}
AGAIN = "-again"
ENGINE = "vllm"  # of every cell and start before they named theirs
SPECULATES = re.compile(r"(?P<method>ngram|draft|eagle\d*)-k(?P<k>\d+)(?:-(?P<distinction>.+))?")
SPLITS = re.compile(
    r"(?P<model>.+?)-(?P<split>(?:(?:tp|pp|dp|replicas)\d+-?)+)(?P<ep>-?ep(?![a-z]))?(?P<distinction>.*)"
)
NOTHING = {"technique": "none", "k": 0, "tp": 1, "pp": 1, "dp": 1, "ep": False, "replicas": 1}
FLAGS = {"--tensor-parallel-size": "tp", "--pipeline-parallel-size": "pp", "--data-parallel-size": "dp"}
STARTS_ONLY = ("7-hybrid",)  # sections without loads, whose arms show no technique
OFFLOADS = ("--kv-offloading-size", "--kv-transfer-config")


def renamed(record: dict) -> dict:
    """Counters under our names."""
    return {NAMES.get(name, name): value for name, value in record.items()}


def current(record: dict) -> dict:
    """A cell, or a request's record, with its counters under our names."""
    return record | {"counters": renamed(record["counters"])} if record.get("counters") else record


def arm_columns(record: dict, cell_file: Path | None = None) -> dict:
    """The arm's columns of a stored cell or start; `cell_file` is where a cell lies, beside its arm's start."""
    if all(name in record for name in COLUMNS):
        return {name: record[name] for name in COLUMNS}
    command = record.get("command") or (_command(cell_file.parents[3], record["arm"]) if cell_file else ())
    columns = of_name(record["arm"]) | (_of_command(command) if command else {})
    if record.get("section") in STARTS_ONLY:
        columns["technique"] = "none"
    return columns | {name: record[name] for name in COLUMNS if record.get(name) is not None}


def with_arm_columns(frame: pandas.DataFrame) -> pandas.DataFrame:
    """`frame` with the missing ones of COLUMNS, from its arms' names."""
    named = {arm: of_name(arm) for arm in dict.fromkeys(frame["arm"])}
    missing = [name for name in COLUMNS if name not in frame]
    return frame.assign(
        **{
            name: pandas.Series([named[arm][name] for arm in frame["arm"]], frame.index, dtype=object)
            for name in missing
        }
    )


def of_name(arm: str) -> dict:
    """COLUMNS of an arm from its name alone: `draft-k3-truncated`, `7b-tp2`, `baseline-again`; any other is one plain
    server.
    """
    repeat_of = arm.removesuffix(AGAIN) if arm.endswith(AGAIN) else None
    columns = dict.fromkeys(COLUMNS) | NOTHING | {"repeat_of": repeat_of}
    if match := SPECULATES.fullmatch(repeat_of or arm):
        technique = "ngram" if match["method"] == "ngram" else "draft"
        distinction = match["distinction"] or (match["method"] if match["method"].startswith("eagle") else None)
        return columns | {"technique": technique, "k": int(match["k"]), "distinction": distinction}
    if match := SPLITS.fullmatch(repeat_of or arm):
        sizes = {name: int(size) for name, size in re.findall(r"(tp|pp|dp|replicas)(\d+)", match["split"])}
        distinction = match["distinction"].strip("-") or None
        columns |= {
            "technique": "parallel",
            "model": match["model"],
            "ep": bool(match["ep"]),
            "distinction": distinction,
        }
        return columns | sizes
    return columns


def _of_command(command: tuple[str, ...] | list[str]) -> dict:
    """The columns that a server's command line tells."""
    words = list(command)
    options = dict(zip(words, words[1:], strict=False))
    columns = {name: int(options[flag]) for flag, name in FLAGS.items() if flag in options}
    columns |= {"ep": "--enable-expert-parallel" in words}
    if "--served-model-name" in options:
        columns["model"] = options["--served-model-name"]
    if "--" in words and "--replicas" in options:
        columns["replicas"] = int(options["--replicas"])
    if "--speculative-config" in options:
        speculative = json.loads(options["--speculative-config"])
        columns |= {"k": speculative.get("num_speculative_tokens", 0), "draft": speculative.get("model")}
        if speculative.get("method") == "ngram":
            columns["technique"] = "ngram"
        elif speculative.get("model"):
            columns["technique"] = "draft"
    elif any(flag in words for flag in OFFLOADS):
        columns["technique"] = "offload"
    elif "--enable-prefix-caching" in words:
        columns["technique"] = "prefix"
    return columns


@functools.lru_cache(maxsize=1024)
def _command(run: Path, arm: str) -> tuple[str, ...]:
    """The command of an arm's start; empty without one on disk."""
    file = run / "arms" / arm / "start.json"
    return tuple(files.read(file).get("command") or ()) if file.is_file() else ()
