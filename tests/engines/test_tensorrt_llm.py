"""TensorRT-LLM as an engine: by the vendor's sources (options, names of counters), and by a log of 1.1.0rc3 that was
posted in public. Nobody here could start it.
"""

import json
from pathlib import Path

import pytest

from serving_study import engines, paths
from serving_study.engines import base, tensorrt_llm
from serving_study.engines.process import SERVER, Process
from serving_study.hardware.hosts import Host
from serving_study.models.checkpoints import Model
from serving_study.servers import metrics

LOG = (Path(__file__).parents[1] / "fixtures" / "tensorrt-llm" / "server.log").read_text()
CPU = Host("cpu", "x", 2, 8.0, 8.0)
OPTIONS = {
    "max_seq_len": 4096,
    "max_batch_size": 64,
    "kv_cache_config": {"free_gpu_memory_fraction": 0.85, "enable_block_reuse": False},
}
# As its MetricsCollector names them, with the label that it counts positions by.
COUNTERS = """
# TYPE trtllm_prompt_tokens counter
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 440.0
# TYPE trtllm_generation_tokens counter
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 400.0
# TYPE trtllm_request_success counter
trtllm_request_success_total{engine_type="trtllm",finished_reason="length",model_name="m"} 2.0
# TYPE trtllm_prompt_cached_tokens counter
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 32.0
# TYPE trtllm_spec_decode_accepted_tokens counter
trtllm_spec_decode_accepted_tokens_total{engine_type="trtllm",model_name="m",token_position="0"} 30.0
trtllm_spec_decode_accepted_tokens_total{engine_type="trtllm",model_name="m",token_position="1"} 20.0
# TYPE trtllm_kv_cache_max_blocks gauge
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 2710.0
# TYPE trtllm_kv_cache_tokens_per_block gauge
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
"""


def process(**fields) -> Process:
    model = Model("m", "/models/m", Path("/models/m"), weights="random")
    return Process(SERVER, "tensorrt-llm", "baseline", model, **{"options": OPTIONS} | fields)


def test_it_has_all_that_is_asked_of_an_engine():
    assert isinstance(tensorrt_llm, base.Engine)
    assert engines.named({"tensorrt-llm": "1.1.0"}) == "TensorRT-LLM 1.1.0"
    assert tensorrt_llm.environment_name(CPU) == "tensorrt-llm"
    assert "without a GPU" in tensorrt_llm.unsupported(process(), CPU)


def test_its_command_line_and_the_file_beside_it(cache):
    asked = process(options=OPTIONS | {"enable_chunked_prefill": True, "trust_remote_code": False})
    words = tensorrt_llm.command(asked, Path("python"), 8000)
    assert words[:5] == ["python", "-m", "tensorrt_llm.commands.serve", "serve", "/models/m"]
    flags = words[5:]
    file = Path(flags[flags.index("--config") + 1])
    assert file.parent == paths.CACHE / "tensorrt-llm" and not file.exists()
    assert " ".join(flags).replace(str(file), "FILE") == (
        "--host 127.0.0.1 --port 8000 --served_model_name m --config FILE --max_batch_size 64 --max_seq_len 4096 "
        "--enable_chunked_prefill"
    )
    tensorrt_llm.prepare(asked)
    assert json.loads(file.read_text()) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "load_format": "dummy",
        "kv_cache_config": OPTIONS["kv_cache_config"],
    }
    assert tensorrt_llm.memory_share(asked) == 0.85 and tensorrt_llm.memory_share(process(options={})) == 0.9


def test_speculation_by_vllms_keys():
    given = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    assert tensorrt_llm.config(process(speculative=given))["speculative_config"] == {
        "decoding_type": "NGram",
        "max_draft_len": 3,
        "max_matching_ngram_size": 4,
    }
    given = {"method": "draft_model", "num_speculative_tokens": 1, "model": "/models/small"}
    assert tensorrt_llm.config(process(speculative=given))["speculative_config"] == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 1,
        "speculative_model": "/models/small",
    }


def test_the_terms_of_a_comparison_in_its_own_options():
    terms = base.Terms("bfloat16", 4096, 128, 524288, 8192, 42, compiled=False, memory_share=0.85)
    options, variables = tensorrt_llm.on_terms(terms, CPU)
    assert variables == {} and options == {
        "dtype": "bfloat16",
        "max_seq_len": 4096,
        "max_batch_size": 128,
        "max_num_tokens": 8192,
        "enable_chunked_prefill": True,
        "kv_cache_config": {"max_tokens": 524288, "free_gpu_memory_fraction": 0.85, "enable_block_reuse": False},
        "cuda_graph_config": None,
    }
    assert tensorrt_llm.config(process(options=options))["cuda_graph_config"] is None


def test_the_figures_of_its_start_are_those_of_its_second_cache():
    assert tensorrt_llm.start_figures(LOG) == {
        "weights_gib": 63.32,
        "load_s": 49.14,
        "kv_cache_gib": 5.95,
        "kv_cache_tokens": 86720,
        "max_concurrency": 1.0,
    }
    assert tensorrt_llm.start_figures("") == {} == tensorrt_llm.failure_figures("")


def test_the_phases_of_its_start_in_order():
    lines, seen = LOG.splitlines(), []
    for end in range(len(lines)):
        phase = tensorrt_llm.phase("\n".join(lines[:end]))
        if phase not in seen:
            seen.append(phase)
    assert seen == [base.IMPORTS, base.WEIGHTS, base.PROFILING, base.CAPTURE, base.OTHER]


def test_its_settings_are_its_own_words():
    assert tensorrt_llm.settings(process(), LOG, {}) == {
        "kv_cache_dtype": "auto",
        "max_model_len": 86720,
        "max_num_seqs": 64,
        "max_batched_tokens": 8192,
        "chunked_prefill": False,
        "prefix_caching": True,
        "memory_share": 0.9,
        "kv_cache_tokens": 86720,
        "block_tokens": 32,
        "attention_backend": "TRTLLM",
        "cuda_graphs": "decode, 11 sizes",
    }
    assert tensorrt_llm.settings(process(), "", {}) == {}


def test_a_limit_that_it_lowered_is_said():
    longer = process(options={"max_seq_len": 131072, "max_batch_size": 64})
    assert "max_seq_len is 86720, not 131072" in tensorrt_llm.ineffective(longer, LOG)
    assert tensorrt_llm.ineffective(process(options={"max_batch_size": 64}), LOG) is None
    assert tensorrt_llm.ineffective(longer, "") is None


def test_its_counters():
    snapshot, none = metrics.parse(COUNTERS), metrics.parse("")
    counted = metrics.difference(none, snapshot, tensorrt_llm.COUNTERS)
    assert counted[base.PROMPT_TOKENS] == counted[base.PREFIX_QUERIES] == 440
    assert counted[base.GENERATED_TOKENS] == 400 and counted[base.PREFIX_HITS] == 32
    assert counted["finished"] == {"length": 2}
    assert counted[base.ACCEPTED_PER_POSITION] == 50 and counted[base.DRAFTS] is None
    assert metrics.acceptance(none, snapshot, tensorrt_llm.COUNTERS) == {}  # it counts no rounds
    assert metrics.block_tokens(snapshot, tensorrt_llm.COUNTERS) == 32
    assert tensorrt_llm.cache_figures(snapshot) == {"blocks": 2710, "block_tokens": 32, "kv_cache_tokens": 86720}
    assert tensorrt_llm.cache_figures(none) == {}


def test_what_this_version_does_not_have():
    accepted = {"options": ["max_seq_len", "max_batch_size", "kv_cache_config", "attn_backend"]}
    assert tensorrt_llm.problems(process(), accepted) == []
    found = {
        problem.found: problem.wanted
        for problem in tensorrt_llm.problems(process(options={"max_model_len": 1, "attn_backen": "x"}), accepted)
    }
    assert found == {"option max_model_len": "max_seq_len", "option attn_backen": "attn_backend"}
    (problem,) = tensorrt_llm.problems(process(options={"gpu_memory_utilization": 0.9, "anything": 1}), None)
    assert "free_gpu_memory_fraction" in problem.wanted


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 48.00 MiB. GPU 0 has a total capacity of "
            "7.70 GiB of which 42.69 MiB is free.\nRuntimeError: Executor worker returned error\n",
            "out of memory: tried to allocate 48.00 MiB, 42.69 MiB free of 7.70 GiB",
        ),
        (
            "[TRT-LLM] [E] Executor creation failed due to insufficient GPU memory.\n"
            "RuntimeError: Executor worker returned error\n",
            "too little GPU memory",
        ),
        (
            "RuntimeError: Only SM100 is supported by FP4 block scale MOE\n"
            "RuntimeError: Executor worker returned error\n",
            "RuntimeError: Only SM100 is supported by FP4 block scale MOE",
        ),
        ("RuntimeError: Executor worker returned error\n", "RuntimeError: Executor worker returned error"),
        ("Error: No such option: --max-seq-len\n", "an option that this version does not have: --max-seq-len"),
        ("", None),
    ],
)
def test_why_it_died(log, cause):
    assert tensorrt_llm.cause(log) == cause
