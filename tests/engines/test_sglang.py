"""SGLang as an engine, by the log, counters and report of a server of 0.5.16 that ran on one H200."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from serving_study import engines, paths
from serving_study.engines import base, sglang
from serving_study.engines.process import SERVER, Process
from serving_study.engines.sglang import reports
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.models.checkpoints import Model
from serving_study.servers import metrics

SEEN = Path(__file__).parents[1] / "fixtures" / "sglang"
LOG, COUNTERS = (SEEN / "server.log").read_text(), metrics.parse((SEEN / "metrics.txt").read_text())
REPORT = {"/server_info": json.loads((SEEN / "server_info.json").read_text())}
CPU = Host("cpu", "x", 2, 8.0, 8.0)
H200 = Host("h200x1", "x", 16, 128, 128, (Gpu(0, "h200", 139.8, 139.8, "9.0"),), "570")
OPTIONS = {
    "context_length": 4096,
    "max_running_requests": 128,
    "mem_fraction_static": 0.85,
    "attention_backend": "fa3",
    "random_seed": 42,
}


def process(folder: Path | None = None, **fields) -> Process:
    model = Model("qwen2.5-7b", str(folder or "qwen2.5-7b"), folder or Path("qwen2.5-7b"), weights="random")
    return Process(SERVER, "sglang", "baseline", model, **{"options": OPTIONS} | fields)


def test_it_has_all_that_is_asked_of_an_engine():
    assert isinstance(sglang, base.Engine)
    assert engines.named({"sglang": "0.5.16"}) == "SGLang 0.5.16"
    assert {sglang.environment_name(CPU), sglang.environment_name(H200)} == {"sglang", "sglang-cpu"}


def test_its_command_is_that_of_the_server_that_ran():
    words = sglang.command(process(), Path("python"), 8300)
    assert words[:3] == ["python", "-m", "sglang.launch_server"]
    given = dict(zip(words[3::1], words[4::1], strict=False))
    assert given["--host"] == "127.0.0.1" and given["--port"] == "8300" and given["--load-format"] == "dummy"
    assert given["--context-length"] == "4096" and given["--mem-fraction-static"] == "0.85"
    assert "--enable-metrics" in words
    switched = sglang.command(process(options={"disable_radix_cache": True, "disable_cuda_graph": False}), Path("p"), 1)
    assert "--disable-radix-cache" in switched and not any("cuda-graph" in word for word in switched)


@pytest.mark.parametrize(
    ("speculative", "words"),
    [
        ({"method": "ngram", "num_speculative_tokens": 3}, {"algorithm": "NGRAM", "num-draft-tokens": "4"}),
        (
            {"method": "eagle3", "num_speculative_tokens": 3, "model": "head"},
            {
                "algorithm": "EAGLE3",
                "num-draft-tokens": "4",
                "num-steps": "3",
                "eagle-topk": "1",
                "draft-model-path": "head",
            },
        ),
        (
            {"method": "draft_model", "num_speculative_tokens": 1, "model": "small"},
            {
                "algorithm": "STANDALONE",
                "num-draft-tokens": "2",
                "num-steps": "1",
                "eagle-topk": "1",
                "draft-model-path": "small",
            },
        ),
        (
            {"method": "dflash", "model": "block", "draft_window_size": 64},
            {
                "algorithm": "DFLASH",
                "eagle-topk": "1",
                "draft-model-path": "block",
                "draft-window-size": "64",
            },
        ),
    ],
)
def test_speculation_by_vllms_keys(speculative, words):
    line = sglang.command(process(speculative=speculative), Path("python"), 1)
    said = {
        flag.removeprefix("--speculative-"): line[place + 1]
        for place, flag in enumerate(line)
        if flag.startswith("--speculative-")
    }
    assert said == words


TERMS = base.Terms("bfloat16", 4096, 128, 524288, 8192, 42, memory_share=0.85)


def test_the_terms_of_a_comparison_in_its_own_flags():
    options, variables = sglang.on_terms(TERMS, H200)
    assert variables == {} and options == {
        "dtype": "bfloat16",
        "context_length": 4096,
        "max_running_requests": 128,
        "max_total_tokens": 524288,
        "chunked_prefill_size": 8192,
        "max_prefill_tokens": 8192,
        "mem_fraction_static": 0.85,
        "random_seed": 42,
        "disable_radix_cache": True,
    }
    eager, _ = sglang.on_terms(replace(TERMS, compiled=False, prefix_caching=True), H200)
    assert eager["cuda_graph_backend_decode"] == eager["cuda_graph_backend_prefill"] == "disabled"
    assert "disable_radix_cache" not in eager
    # Of these 1,946,407 tokens fitted.
    assert "max_total_tokens is 1946407, not 524288" in sglang.ineffective(process(options=options), LOG)


def test_a_folder_without_a_tokenizers_settings_gets_some(tmp_path, cache):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 2048}')
    (tmp_path / "tokenizer.json").write_text("{}")
    asked = process(tmp_path)
    sglang.prepare(asked)
    words = sglang.command(asked, Path("python"), 1)
    served = Path(words[words.index("--model-path") + 1])
    assert served.parent.parent == paths.CACHE
    assert json.loads((served / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
    }
    assert (served / "config.json").resolve() == tmp_path / "config.json"
    assert not (tmp_path / "tokenizer_config.json").exists()
    sglang.prepare(asked)  # again, for the next life
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert str(tmp_path) in sglang.command(asked, Path("python"), 1)


def test_the_figures_of_its_start():
    figures = sglang.start_figures(LOG)
    assert figures == {
        "weights_gib": 14.3,
        "load_s": 0.28,
        "kv_cache_tokens": 1_946_407,
        "kv_cache_gib": 103.94,
        "graph_capture_s": 10.71,
        "graph_gib": 1.03,
        "max_concurrency": 1_946_407 / 4096,
    }
    assert sglang.start_figures("") == {} and sglang.failure_figures(LOG) == figures


def test_the_figures_of_two_ranks_are_one_ranks():
    lines = [line for line in LOG.splitlines() if "Load weight end" in line or "KV Cache is" in line]
    of_ranks = "\n".join(line.replace("] ", f" TP{rank}] ", 1) for rank in (0, 1) for line in lines)
    figures = sglang.start_figures(of_ranks)
    assert figures["weights_gib"] == 14.3 and figures["kv_cache_gib"] == 103.94
    assert "weights_gib_of_ranks" not in figures
    uneven = of_ranks.replace(
        "TP1] Load weight end. elapsed=0.28 s, type=Qwen2ForCausalLM, avail mem=124.83 GB, mem usage=14.30",
        "TP1] Load weight end. elapsed=0.28 s, type=Qwen2ForCausalLM, avail mem=124.83 GB, mem usage=12.10",
    )
    assert sglang.start_figures(uneven)["weights_gib_of_ranks"] == [12.1, 14.3]


def test_the_phases_of_its_start_in_order():
    lines, seen = LOG.splitlines(), []
    for end in range(len(lines)):
        phase = sglang.phase("\n".join(lines[:end]))
        if phase not in seen:
            seen.append(phase)
    assert seen == [base.IMPORTS, base.WEIGHTS, base.PROFILING, base.CAPTURE, base.OTHER]


def test_its_settings_are_its_own_words():
    wanted = {
        "dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",  # of the log: the report says "auto"
        "max_model_len": 4096,
        "max_num_seqs": 128,
        "max_batched_tokens": 8192,
        "chunked_prefill": True,
        "prefix_caching": True,
        "memory_share": 0.85,
        "kv_cache_tokens": 1_946_407,
        "block_tokens": 1,
        "attention_backend": "fa3",
        "cuda_graphs": "decode full up to 128, prefill breakable up to 4096",
        "scheduling": "asynchronous",
        "seed": 42,
    }
    assert sglang.settings(process(), LOG, REPORT) == wanted
    assert list(sglang.settings(process(), LOG, REPORT)) == [name for name in base.SETTINGS if name in wanted]
    assert sglang.settings(process(), LOG, {}) == wanted  # its log has them too
    of_report = sglang.settings(process(), "", REPORT)
    assert "cuda_graphs" not in of_report and of_report["kv_cache_tokens"] == 1_946_407
    assert sglang.settings(process(), "", {}) == {}
    off = {"/server_info": {"chunked_prefill_size": -1, "max_prefill_tokens": 16384} | sglang.WITHOUT_GRAPHS}
    assert sglang.settings(process(), "", off) == {
        "max_batched_tokens": 16384,
        "chunked_prefill": False,
        "cuda_graphs": "NONE",
    }


def test_a_setting_that_it_changed_is_said():
    assert sglang.ineffective(process(), LOG) is None
    twice = process(options=OPTIONS | {"tensor_parallel_size": 2, "max_running_requests": 256, "dtype": "bfloat16"})
    said = sglang.ineffective(twice, LOG)
    assert "max_running_requests is 128, not 256" in said and "tensor_parallel_size is 1, not 2" in said
    assert "dtype" not in said
    assert "speculative_algorithm is None, not NGRAM" in sglang.ineffective(
        process(speculative={"method": "ngram", "num_speculative_tokens": 3}), LOG
    )
    assert sglang.ineffective(process(), "") is None


def test_its_counters():
    counted = {name: sglang.COUNTERS.total(COUNTERS, name) for name in sglang.COUNTERS.samples}
    assert counted == {
        base.DRAFTS: 0,
        base.PROMPT_TOKENS: 64087,
        base.GENERATED_TOKENS: 58416,
        base.FINISHED_REQUESTS: 294,
        base.PREFIX_QUERIES: 64087,
        base.PREFIX_HITS: 21845,
        base.PREEMPTIONS: 0,
    }
    none = metrics.parse("")
    difference = metrics.difference(none, COUNTERS, sglang.COUNTERS)
    assert difference[base.DRAFTS] == 0 and difference[base.ACCEPTED] is None and difference["finished"] == {}
    assert difference[base.TTFT] == {"count": 294, "sum_s": pytest.approx(31.63, abs=0.01)}
    assert difference[base.QUEUE]["count"] == 295
    assert metrics.block_tokens(COUNTERS, sglang.COUNTERS) == 1
    assert metrics.acceptance(none, COUNTERS, sglang.COUNTERS) == {}


def test_acceptance_follows_from_rounds_and_tokens():
    """Of 2 answers of 100 tokens in 60 rounds that draft 3: 138 tokens came from drafts."""
    speculating = metrics.parse(
        "# TYPE sglang:prompt_tokens counter\nsglang:prompt_tokens_total 20\n"
        "# TYPE sglang:generation_tokens counter\nsglang:generation_tokens_total 200\n"
        "# TYPE sglang:num_requests counter\nsglang:num_requests_total 2\n"
        "# TYPE sglang:spec_verify_calls counter\nsglang:spec_verify_calls_total 60\n"
        "# TYPE sglang:spec_num_draft_tokens gauge\nsglang:spec_num_draft_tokens 4\n"
    )
    assert metrics.acceptance(metrics.parse(""), speculating, sglang.COUNTERS) == {
        "drafts": 60,
        "drafted_tokens": 180,
        "accepted_tokens": 138,
        "acceptance_rate": 138 / 180,
        "acceptance_length": 1 + 138 / 60,
    }


def test_a_counter_that_is_not_there_before_its_first_count_is_0_and_others_are_missing():
    """A server with --disable-radix-cache never shows cached tokens."""
    lines = [line for line in (SEEN / "metrics.txt").read_text().splitlines() if "cached_tokens" not in line]
    cold = metrics.parse("\n".join(lines) + "\n")
    assert metrics.difference(cold, cold, sglang.COUNTERS)[base.PREFIX_HITS] == 0
    unasked = metrics.parse("# TYPE sglang:num_pages gauge\nsglang:num_pages 12\n")
    assert metrics.difference(unasked, unasked, sglang.COUNTERS)[base.PREFIX_HITS] is None


def test_the_cache_by_its_gauges():
    assert sglang.cache_figures(COUNTERS) == {
        "blocks": 1_946_407,
        "block_tokens": 1,
        "kv_cache_tokens": 1_946_407,
        "max_concurrency": 1_946_407 / 4096,
    }
    assert sglang.cache_figures(metrics.parse("")) == {}


ACCEPTED = {
    "flags": [
        "--context-length",
        "--max-running-requests",
        "--mem-fraction-static",
        "--attention-backend",
        "--random-seed",
        "--speculative-algorithm",
        "--speculative-num-draft-tokens",
        "--max-total-tokens",
    ],
    "algorithms": ["EAGLE", "NGRAM"],
    "variables": ["SGLANG_USE_CPU_ENGINE"],
}


def test_what_this_version_does_not_have():
    assert sglang.problems(process(), ACCEPTED, {}) == []
    asked = process(
        options=OPTIONS | {"max_model_len": 4096, "max_total_token": 9},
        speculative={"method": "eagle9", "num_speculative_tokens": 1},
        environment={"SGLANG_USE_CPU_ENGIN": 1},
    )
    found = {problem.found: problem for problem in sglang.problems(asked, ACCEPTED, {})}
    assert found["option max_model_len"].wanted == "context_length"
    assert found["option max_total_token"].wanted.startswith("max_total_tokens")
    assert found["speculative algorithm EAGLE9"].wanted == "EAGLE, NGRAM"
    assert found["variable SGLANG_USE_CPU_ENGIN"].ignored
    # What it accepts is not known: another engine's options are still known as such.
    (problem,) = sglang.problems(process(options={"gpu_memory_utilization": 0.9, "anything": 1}), None)
    assert problem.wanted == "mem_fraction_static"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "Scheduler hit an exception: Traceback (most recent call last):\nRuntimeError: Not enough memory. Please "
            "try to increase --mem-fraction-static. self.server_args.mem_fraction_static=0.05\n",
            "no memory left for the KV cache",
        ),
        (
            "Scheduler hit an exception: Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of "
            "memory. Tried to allocate 270.00 MiB. GPU 0 has a total capacity of 22.06 GiB of which 127.44 MiB is "
            "free\n",
            "out of memory: tried to allocate 270.00 MiB, 127.44 MiB free of 22.06 GiB",
        ),
        (
            "launch_server.py: error: unrecognized arguments: --max-model-len 4096\n",
            "an option that this version does not have: --max-model-len 4096",
        ),
        (
            "launch_server.py: error: argument --speculative-algorithm: invalid choice: 'X' (choose from 'EAGLE')\n",
            "an option's value that this version does not have: --speculative-algorithm: invalid choice: 'X' "
            "(choose from 'EAGLE')",
        ),
        (
            "Traceback (most recent call last):\nImportError: libcuda.so.1: cannot open shared object file\n",
            "a module that does not load in the engine's environment: libcuda.so.1: cannot open shared object file",
        ),
        (
            "ValueError: Model architectures ['X'] are not supported for now.\n",
            "ValueError: Model architectures ['X'] are not supported for now.",
        ),
        ("", None),
    ],
)
def test_why_it_died(log, cause):
    assert sglang.cause(log) == cause


def test_a_request_that_failed_is_no_death():
    """The server went on after this one's TypeError."""
    assert "TypeError: Integer exceeds 64-bit range" in LOG
    assert sglang.cause(LOG) is None
    died = (
        LOG + "[2026-12-02 11:00:00] Scheduler hit an exception: Traceback (most recent call last):\nRuntimeError: x\n"
    )
    assert sglang.cause(died) == "RuntimeError: x"


def test_its_environment_keeps_the_hub_out(tmp_path, monkeypatch):
    variables = sglang.environment(process(tmp_path, environment={"SGLANG_X": 1}), H200, Path(sys.executable))
    assert variables["HF_HUB_OFFLINE"] == "1" and variables["SGLANG_X"] == "1" and "VLLM_LOGGING_LEVEL" not in variables
    assert sglang.template(process(), H200, {}) is None


def test_arguments_that_are_no_plain_values_are_left_out():
    said = reports.arguments(LOG)
    assert said["random_seed"] == 42 and "cuda_graph_config" not in said and len(said) == 444
    assert reports.arguments("server_args=ServerArgs(a=1, b=)\n") == {}
