"""A second engine, in nothing like vLLM: its own flags, counters, log lines, paths and process titles; fake_engine.py
speaks it. What the harness asks of an engine is all that it has.
"""

import os
import re
from pathlib import Path

from fake_engine import OTHER

from serving_study.engines import base

SERVER = Path(__file__).with_name("fake_engine.py")


class OtherEngine:
    TITLE, HEALTH, EMPTY_CACHE = "Other", OTHER.health, OTHER.empty
    RANKS = ("other-shard-",)
    BENCH = ("--backend", "openai", "--endpoint", "/v1/completions")
    CORES = "OTHER_CORES", ";"
    FACTS = ("facts.py",)
    FOOTPRINT = base.Footprint(processes_gib=0.2, imported_gib=0.1)
    REPORTS = ("/about",)
    TOKENIZER = None
    COUNTERS = base.Counters(
        samples={
            base.DRAFTS: "other_guesses_total",
            base.DRAFTED: "other_guessed_tokens_total",
            base.ACCEPTED: "other_kept_tokens_total",
            base.ACCEPTED_PER_POSITION: "other_kept_at_total",
            base.PROMPT_TOKENS: "other_read_tokens_total",
            base.GENERATED_TOKENS: "other_written_tokens_total",
            base.FINISHED_REQUESTS: "other_answers_total",
            base.PREFIX_QUERIES: "other_looked_up_total",
            base.PREFIX_HITS: "other_found_total",
            base.EXTERNAL_HITS: "other_fetched_total",
        },
        histograms={
            base.TTFT: "other_first_token_seconds",
            base.E2E: "other_answer_seconds",
            base.QUEUE: "other_waiting_seconds",
        },
        watched={
            base.PREFIX_QUERIES: "other_looked_up_total",
            base.PREFIX_HITS: "other_found_total",
            base.EXTERNAL_HITS: "other_fetched_total",
            base.TTFT_SUM: "other_first_token_seconds_sum",
        },
        finish_reason="why",
        position="place",
        block_size=("other_cache", "page"),
    )

    def environment_name(self, host):
        return "other"

    def unsupported(self, process, host):
        return "other has no such thing" if "impossible" in process.options else None

    def prepare(self, process):
        pass

    def settings(self, process, log, reports):
        return {"kv_cache_tokens": self.start_figures(log)["kv_cache_tokens"]} | reports.get("/about", {})

    def on_terms(self, terms, host):
        return {"page": 1}, {}

    def command(self, process, python, port):
        words = [str(python), str(SERVER), OTHER.port, str(port), OTHER.model, process.model.name]
        for name, value in process.options.items():
            flag = OTHER.ranks if name == "tensor_parallel_size" else f"--{name.replace('_', '-')}"
            words += [flag, str(value)]
        return words + (["--k", str(process.k)] if process.k else [])

    def environment(self, process, host, python):
        return {
            "PYTHONUNBUFFERED": "1",
            "JOURNAL": os.environ.get("JOURNAL", ""),
            "ARM": process.name,
        } | process.environment

    def template(self, process, host, variables):
        return None

    def version(self, versions):
        return versions.get("other")

    def problems(self, arm, accepted, versions):
        return []

    def memory_share(self, arm):
        return 0.5

    def host_cache_gib(self, arm):
        return 0.0

    def phase(self, log):
        return base.WEIGHTS if "[other] weights" in log else base.IMPORTS

    def start_figures(self, log):
        weights = re.search(r"loaded: ([\d.]+) GiB", log)
        cache = re.search(r"cache: ([\d,]+) tokens for ([\d.]+) requests", log)
        return {
            "weights_gib": float(weights[1]),
            "kv_cache_tokens": int(cache[1].replace(",", "")),
            "max_concurrency": float(cache[2]),
        }

    def failure_figures(self, log):
        return {}

    def cache_figures(self, snapshot):
        return {}

    def ineffective(self, process, log):
        unsaid = (name for name in process.environment if f"[other] {name}" not in log)
        return next((f"other did not take {name}" for name in unsaid), None)

    def cause(self, log, exit_code=None):
        fatal = re.search(r"\[other\] FATAL (.*)", log)
        return f"other: {fatal[1]}" if fatal else None
