"""Starts without loads: the plan of section 7's hybrid models, what stands and what is tried again, and what real logs
come to.
"""

import json
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from serving_study import environments, files, paths
from serving_study.chapters import sections
from serving_study.chapters.hybrid import hybrid_sizes
from serving_study.chapters.hybrid import plan as hybrid
from serving_study.chapters.hybrid.plan import Hybrid
from serving_study.engines import vllm
from serving_study.errors import ParameterError
from serving_study.hardware import hosts
from serving_study.hardware.gpus import GIB, Gpu
from serving_study.hardware.hosts import Host
from serving_study.measure import starts
from serving_study.measure.records import Results
from serving_study.models import checkpoints, pages, shapes
from serving_study.results import store
from serving_study.servers import metrics, preflight

FIXTURES = Path(__file__).parents[1] / "fixtures"
LAPTOP = Host("cpu", "x", 2, 16.0, 16.0)
PUBLISHED = sorted(paths.RESULTS_PUBLISHED.glob("*/section-7-hybrid/*/arms/*/start.json"))


def gpus(name: str, memory_gib: float, count: int) -> Host:
    return Host(
        f"{name}x{count}",
        "x",
        16,
        64.0,
        64.0,
        tuple(Gpu(index, name, memory_gib, memory_gib, "9.0") for index in range(count)),
        "1",
    )


@pytest.fixture
def planned(monkeypatch, cache):
    """A function that plans dry for a host, whatever this machine is."""
    monkeypatch.setattr(environments, "has", lambda name: False)
    monkeypatch.setattr(environments, "ensure", lambda *_: pytest.fail("an environment was installed"))

    def make(host=LAPTOP, **given):
        monkeypatch.setattr(hosts, "detect", lambda profile="auto": host)
        return sections.plan("7-hybrid", dry=True, **given)

    return make


def arms(plan) -> dict:
    return {arm.name: arm for arm in plan.arms}


def test_the_notebooks_header_is_the_plans():
    assert sections.header(sections.get("7-hybrid")) == Hybrid().values()


def test_a_cpu_starts_a_narrow_model_one_change_at_a_time(planned, cache):
    found = arms(plan := planned())
    assert (
        plan.loads == ()
        and plan.section == "7-hybrid"
        and not list(cache.iterdir())
        and all(not arm.unsupported for arm in plan.arms)
    )
    usual = found["qwen3-next-narrow-first-16-layers-8192"]
    assert usual.weights == "random" and usual.environment == {"VLLM_CPU_KVCACHE_SPACE": 2}
    assert usual.options == {
        "max_model_len": 8192,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "seed": 42,
        "enable_prefix_caching": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "mamba_ssm_cache_dtype": "float32",
    }
    assert found["qwen3-next-narrow-first-16-layers-8192-mtp3"].speculative == {
        "method": "qwen3_next_mtp",
        "num_speculative_tokens": 3,
    }
    two = found["qwen3-next-narrow-first-16-layers-8192-tp2"]
    assert two.options["tensor_parallel_size"] == 2 and "|" in two.environment["VLLM_CPU_OMP_THREADS_BIND"]
    for name, changed in (("seqs64", {"max_num_seqs": 64}), ("no-prefix-caching", {"enable_prefix_caching": False})):
        assert found[f"qwen3-next-narrow-first-16-layers-8192-{name}"].options == usual.options | changed
    assert "mamba_ssm_cache_dtype" not in found["gemma-3-27b-it-narrow-first-24-layers-8192"].options


def test_what_a_host_cannot_have_is_said_before_anything_starts(planned):
    small = arms(planned(replace(LAPTOP, cpus=1, memory_gib=4.0)))
    assert (
        small["qwen3-next-narrow-first-16-layers-8192-tp2"].unsupported
        == "needs 2 cores, one a rank, and this host has 1"
    )
    assert small["qwen3-next-narrow-first-16-layers-8192"].unsupported.endswith("of memory, and this host has 4")
    [three] = planned(settings=[{"model": "qwen3-next-narrow", "tp": 5}], host=replace(LAPTOP, cpus=8)).arms
    assert "(24, 4 for keys and values) do not divide over that many ranks: tp 5" in three.unsupported
    one = arms(planned(gpus("h200", 139.8, 1)))
    assert (
        one["qwen3.5-27b-8192-no-prefix-caching-fp8-tp2"].unsupported == "needs 2 GPUs, h200x1 has 1"
        and not one["qwen3.5-27b-262144-fp8-mtp3"].unsupported
    )
    [large] = planned(gpus("l4", 22.0, 1), settings=[{"model": "qwen3.5-27b"}]).arms
    assert large.unsupported == "weights of 50.1 GiB a rank, and a GPU may use 19.8 GiB"


@pytest.mark.parametrize(
    ("memory_gib", "model"),
    [
        (139.8, "qwen3.5-27b"),
        (79.2, "qwen3.5-27b"),
        (44.0, "qwen3.5-27b-first-32-layers"),
        (22.0, "qwen3.5-27b-first-12-layers"),
    ],
)
def test_a_gpu_gets_as_many_layers_as_leave_room_for_a_cache(planned, memory_gib, model):
    assert hybrid.largest(memory_gib) == model
    plan = planned(gpus("x", memory_gib, 2))
    assert {arm.model.name for arm in plan.arms} == {model}
    supported = [arm.name for arm in plan.arms if not arm.unsupported]
    assert f"{model}-262144-fp8-mtp3-tp2" in supported and not any(name.endswith("tp4") for name in supported)
    assert arms(plan)[f"{model}-8192-no-prefix-caching-fp8-mtp3"].speculative == {
        "method": "mtp",
        "num_speculative_tokens": 3,
    }


BAD = [
    ({"max_model_len": 8192}, "a setting that cannot be read", "model, and of"),
    ({"model": "qwen3-next-narrow", "length": 1}, "a setting that cannot be read", "max_model_len"),
    ({"model": "qwen3-next-narrow", "tp": 0}, "tp of a setting cannot be used", "1 or more"),
    ({"model": "qwen3-next-narrow", "mtp": True}, "mtp of a setting cannot be used", "whole number"),
    (
        {"model": "qwen3-next-narrow", "prefix_caching": 1},
        "prefix_caching of a setting cannot be used",
        "true or false",
    ),
    ({"model": "qwen3-next-narrow", "cache_dtype": "int4"}, "cache_dtype of a setting cannot be used", "auto, fp8"),
    ({"model": "qwen3-next-narrow", "mtp": 1, "ngram": 1}, "a setting that cannot be", "mtp or ngram"),
]


@pytest.mark.parametrize(("setting", "what", "allowed"), BAD)
def test_a_setting_that_cannot_be_is_refused(planned, setting, what, allowed):
    with pytest.raises(ParameterError, match=what) as caught:
        planned(settings=[setting])
    assert allowed in caught.value.allowed and caught.value.next == "make plan SECTION=7-hybrid"


def test_values_and_twins_are_refused(planned):
    for given in (
        {"kv_cache_gib": 0},
        {"gpu_memory_utilization": 1.1},
        {"port": -1},
        {"settings": [{"model": "qwen3-next-narrow"}, {"model": "qwen3-next-narrow", "tp": 1}]},
    ):
        with pytest.raises(ParameterError, match=f"parameter {next(iter(given))} cannot be used"):
            planned(**given)


def test_first_layers_are_made_once_with_all_else_as_it_is(cache, monkeypatch):
    monkeypatch.setattr(checkpoints.embedded, "folder", lambda say: _tokenizer(cache))
    made = hybrid._model("gemma-3-27b-it-narrow-first-24-layers", True, print)
    assert made.weights == "random" and (made.folder / "tokenizer.json").is_file()
    assert made.config == checkpoints.Model("x", "x", checkpoints.SHAPES / "gemma-3-27b-it-narrow").config | {
        "num_hidden_layers": 24
    }
    assert shapes.load("gemma-3-27b-it-narrow-first-24-layers").layer_kinds == shapes.of_config(made.config).layer_kinds
    assert shapes.first_layers({"layer_types": list("abcd"), "x": 1}, 3) == {
        "layer_types": list("abc"),
        "x": 1,
        "num_hidden_layers": 3,
    }


def _tokenizer(folder: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    return folder


def test_the_narrow_shapes_have_the_caches_of_the_whole_ones():
    for narrow, whole in (
        ("qwen3-next-narrow", "qwen3.5-27b"),
        ("qwen3.5-27b-narrow", "qwen3.5-27b"),
        ("gemma-3-27b-it-narrow", "gemma-3-27b-it"),
    ):
        one, other = shapes.load(narrow), shapes.load(whole)
        assert (
            one.layer_kinds == other.layer_kinds
            and one.kv_bytes(100_000) == other.kv_bytes(100_000)
            and one.parameters < 0.01 * other.parameters
        )
        assert pages.layout(one, tp=2, speculative_tokens=2) == pages.layout(other, tp=2, speculative_tokens=2)


# What stands.


def test_what_is_a_result_and_what_is_tried_again():
    assert (
        starts.stands({"outcome": "ok"})
        and starts.stands({"outcome": "unsupported"})
        and starts.stands({"outcome": "failed", "exit_code": 1})
    )
    assert not starts.stands(None) and not starts.stands({"outcome": "failed", "exit_code": None})


def starts_only(study, *made):
    return replace(study.plan(made), loads=())


def test_each_arm_is_started_once_and_a_refusal_stands(study):
    plan = starts_only(
        study,
        study.arm("a"),
        study.arm("b", fault="dies-at-start"),
        study.arm("c").variant(unsupported="needs 2 GPUs"),
    )
    found = starts.run(plan).starts().set_index("arm")
    assert (
        list(found["outcome"]) == ["ok", "failed", "unsupported"]
        and found.loc["a", "kv_cache_tokens"] == 12288
        and found.loc["a", "max_concurrency"] == 6
    )
    run = json.loads(next(starts.run(plan).store.folder.glob("*/run.json")).read_text())
    assert run["dataset"] is None and run["timing"]["start"] > 0 and run["ended"]
    known = store.Store(plan.host.name, plan.section)
    assert starts.pending(plan, known) == [] and len(known.runs()) == 1 and len(study.events("server")) == 2
    assert [arm.name for arm in starts.pending(plan, known, fresh=True)] == ["a", "b"]


def test_a_start_that_the_machine_stood_in_the_way_of_is_tried_again(study, monkeypatch):
    plan = starts_only(study, study.arm("a"))
    with monkeypatch.context() as full:
        full.setattr(preflight, "cpu_memory_gib", lambda arm: 1e6)
        assert list(starts.run(plan).starts()["outcome"]) == ["failed"]
    assert list(starts.run(plan).starts()["outcome"]) == ["ok"]


def test_a_plan_is_said_before_it_runs(study):
    plan, lines = starts_only(study, study.arm("a"), study.arm("b").variant(unsupported="needs 2 GPUs")), []
    known = store.Store(plan.host.name, plan.section)
    assert starts.table_of_plan(plan, known, say=lines.append) == pytest.approx(plan.estimate(known).start_s / 60)
    assert lines[1:3] == ["  a  to be started", "  b  cannot run here: needs 2 GPUs"]
    starts.run(plan)
    assert starts.table_of_plan(plan, known, say=lambda line: None) == 0


def test_nothing_to_start_makes_no_folder_and_an_empty_table(planned, results):
    plan = planned(settings=[])
    found = hybrid_sizes.table(starts.run(plan))
    assert found.empty and not results.exists()
    for view in (hybrid_sizes.started, hybrid_sizes.not_started, hybrid_sizes.changes_table):
        assert "nothing was started" in (text := view(found).to_html()) or "none came up here" in text
    assert (
        hybrid_sizes.sentence(found) == "Nothing was started: the header's list of settings is empty."
        and hybrid_sizes.curves(plan) == {}
    )
    assert "no server came up" in hybrid_sizes.against_reference(found).lower()


# Real logs.


def test_the_cache_of_a_real_server():
    found = vllm.cache_figures(metrics.parse((FIXTURES / "metrics" / "cpu-baseline-after.txt").read_text()))
    assert found == {
        "blocks": 182,
        "block_tokens": 128,
        "kv_cache_tokens": 23296,
        "kv_cache_gib": 1.0,
        "max_concurrency": 11.375,
    }
    assert vllm.cache_figures(metrics.parse("")) == {}


def test_a_length_that_does_not_fit_is_refused_with_what_it_would_take():
    log = (FIXTURES / "logs" / "cpu-fails-length.log").read_text()
    found = vllm.failure_figures(log)
    blocks = pages.layout(shapes.load("qwen3-next-narrow-first-16-layers"), alignment=pages.CPU_ALIGNMENT)
    assert found["kv_gib_needed"] == pytest.approx(blocks.bytes_per_sequence(131072) / GIB, abs=0.005)
    # One block of the pool is nobody's: a request may hold all but one.
    assert (
        found["longest_tokens"] % blocks.block_tokens == 0
        and blocks.blocks(found["longest_tokens"]) == 2 * GIB // blocks.block_bytes - 1
    )
    assert (
        vllm.cause(log) == "the KV cache cannot hold one request of max_model_len"
        and vllm.failure_figures("no such line") == {}
    )


def test_a_class_whose_module_is_missing_is_named():
    assert (
        vllm.cause((FIXTURES / "logs" / "cpu-fails-torchvision.log").read_text())
        == "a module that the engine's environment does not have: No module named 'torchvision'"
    )


def test_a_servers_blocks_by_hand():
    # A linear layer's state: 3 inputs of 10,240 channels in bf16 and 48 matrices of 128 x 128 in float32, 3,207,168
    # bytes. A token of a full layer takes 4,096 bytes, so that 783 tokens make as much, and the CPU's blocks are
    # multiples of 128. Four layers a group: 14,680,064 bytes a block, 146 of them in 2 GiB.
    blocks = pages.layout(shapes.load("qwen3-next-narrow-first-16-layers"), alignment=pages.CPU_ALIGNMENT)
    assert (blocks.block_tokens, blocks.group_layers, blocks.block_bytes, blocks.groups) == (
        896,
        4,
        14_680_064,
        {"linear": 3, "full": 1},
    )
    assert blocks.blocks(8192) == 10 + 3 * 2 and blocks.tokens(2 * GIB, 8192) == 146 * 8192 // 16
    figures = vllm.start_figures((FIXTURES / "logs" / "cpu-hybrid.log").read_text())
    assert figures["kv_cache_tokens"] == blocks.tokens(2 * GIB, 8192) and figures["max_concurrency"] == round(
        146 / 16, 2
    )


@pytest.fixture
def shown(planned, results):
    """The table of the published CPU starts, as their own machine sees it."""
    plan = planned()
    known = store.Store(plan.host.name, "7-hybrid")
    run = known.new_run()
    for file in PUBLISHED:
        start = files.read(file)
        if hosts.is_cpu(start["host"]) and start["arm"] in arms(plan):
            files.write(
                run.start_folder(start["arm"]) / "start.json", start | {"key": plan.arm_key(arms(plan)[start["arm"]])}
            )
    files.write(run.folder / "run.json", {})
    return hybrid_sizes.table(Results(plan, known))


def test_every_published_start_is_met_to_the_token(shown):
    said = shown[shown["kv_cache_tokens"].notna()]
    assert (
        len(said) >= 8
        and (said["error"] == 0).all()
        and set(shown["weights"]) == {"random"}
        and (shown["outcome"] != "not started").all()
    )
    refused = shown[shown["needed_gib"].notna()]
    assert len(refused) and refused["needed_gib"].tolist() == pytest.approx(
        refused["predicted_needed_gib"].tolist(), abs=0.005
    )


def test_what_one_setting_changes_in_the_published_starts(shown):
    found = hybrid_sizes.changes(shown).query("model.str.startswith('qwen3-next')")
    assert found["factor"].tolist() == pytest.approx(found["predicted"].tolist())
    factors = found.set_index(["change", "beside"])["factor"]
    assert factors["64 sequences", ""] == 1 and factors["2 ranks", ""] == pytest.approx(0.5, abs=0.01)
    assert (
        factors["length 65,536", ""]
        < factors["prefix caching off", ""]
        < 1
        < factors["mtp 3 drafted tokens", ""]
        < factors["length 2,048", ""]
    )
    assert factors["mtp 3 drafted tokens", "prefix caching off"] > 1 and factors["fp8 cache", "prefix caching off"] < 1
    spread = hybrid_sizes.spread(shown, hybrid.NARROW)
    assert spread["times"] == spread["high"] / spread["low"] > 3
    assert "each count of tokens to the token" in hybrid_sizes.sentence(
        shown
    ) and "random weights" in hybrid_sizes.sentence(shown)


def test_pages_show_what_came_up_and_what_did_not(shown):
    assert f"{LAPTOP.name}, random weights" in hybrid_sizes.started(shown).to_html()
    html = hybrid_sizes.not_started(shown).to_html()
    assert "torchvision" in html and "the KV cache cannot hold one request of max_model_len" in html


def test_a_family_without_arithmetic_has_a_row_and_no_prediction(shown, planned, results, tmp_path, monkeypatch):
    made = checkpoints.Model("other", "other", tmp_path, weights="random")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    monkeypatch.setattr(hybrid, "_model", lambda *_: made)
    plan = planned(settings=[{"model": "other"}])
    [row] = hybrid_sizes.table(Results(plan, store.Store(plan.host.name, "7-hybrid"))).to_dict("records")
    assert row["outcome"] == "not started" and pandas.isna(row["predicted_tokens"]) and hybrid_sizes.curves(plan) == {}
