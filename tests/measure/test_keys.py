"""What a cell's key is made of: a result never mixes with one that something else decided."""

from dataclasses import replace
from pathlib import Path

import fake_study
import pytest
from other_engine import OtherEngine

from serving_study import engines, files
from serving_study.engines.process import CACHE_SERVER, Process
from serving_study.environments import Environment, variables
from serving_study.hardware.hosts import Host
from serving_study.measure.plan import Plan
from serving_study.models.checkpoints import Model
from serving_study.results import store
from serving_study.servers.arm import Arm

MODEL = Model("m", "m", Path("m"))
LMCACHE = {"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}
ENVIRONMENT = Environment("vllm-cpu", Path("python"), "3.12", {"vllm": "0.32.0", "lmcache": "0.5.6", "nixl": "1.5.1"})


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    fake_study.model(Path(), "m")
    for name in variables.deciding():
        monkeypatch.delenv(name)


def plan(*arms, host=fake_study.HOST, environment=ENVIRONMENT):
    return Plan(3, host, environment, arms, (), 1, {})


@pytest.mark.parametrize(
    ("about", "names"),
    [
        ({}, ()),
        ({"options": LMCACHE}, ("lmcache",)),
        ({"options": {"kv_transfer_config": '{"kv_connector": "LMCacheConnectorV1"}'}}, ("lmcache",)),
        ({"options": LMCACHE, "sidecar": Process(CACHE_SERVER, "lmcache")}, ("lmcache",)),
        ({"options": {"kv_transfer_config": {"kv_connector": "NixlConnector"}}}, ("nixl",)),
        (
            {
                "options": {
                    "kv_transfer_config": {
                        "kv_connector": "MultiConnector",
                        "kv_connector_extra_config": {
                            "connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "LMCacheMPConnector"}]
                        },
                    }
                }
            },
            ("lmcache", "nixl"),
        ),
        ({"options": {"kv_transfer_config": {"kv_connector": "OffloadingConnector"}}}, ()),
        ({"options": {"distributed_executor_backend": "ray"}}, ("ray",)),
        ({"options": {"distributed_executor_backend": "mp"}}, ()),
        ({"options": {"quantization": "bitsandbytes"}}, ("bitsandbytes",)),
        ({"options": {"load_format": "gguf"}}, ("gguf",)),
    ],
)
def test_an_arm_says_what_it_needs_beside_the_engine(about, names):
    assert Arm.of("a", MODEL, **about).distributions == names


def test_the_version_of_what_an_arm_needs_is_in_its_key_and_in_no_others():
    plain, cached = Arm.of("plain", MODEL), Arm.of("cached", MODEL, options=LMCACHE)
    newer = replace(ENVIRONMENT, versions=ENVIRONMENT.versions | {"lmcache": "0.5.7"})
    before, after = plan(plain, cached), plan(plain, cached, environment=newer)
    assert before.identity_of(cached)["distributions"] == {"lmcache": "0.5.6"}
    assert before.arm_key(cached) != after.arm_key(cached) and before.arm_key(plain) == after.arm_key(plain)
    assert before.identity_of(plain) == plain.identity()


def test_the_version_of_whatever_engine_is_in_the_keys_of_its_arms(monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "other", OtherEngine())
    arms = Arm.of("a", MODEL), Arm.of("a", MODEL, engine="other")
    both = replace(ENVIRONMENT, versions=ENVIRONMENT.versions | {"other": "1.2"})
    newer = replace(both, versions=both.versions | {"other": "1.3"})
    vllm, other = ([plan(arm, environment=there).arm_key(arm) for there in (both, newer)] for arm in arms)
    assert vllm[0] == vllm[1] and other[0] != other[1]


def test_a_variable_of_the_caller_is_in_the_key_where_it_is_set_and_decides(monkeypatch):
    arm = Arm.of("a", MODEL, environment={"VLLM_CPU_KVCACHE_SPACE": 1})
    unset = plan(arm).arm_key(arm)
    for name in ("VLLM_LOGGING_LEVEL", "VLLM_PYTHON", "NCCL_DEBUG", "VLLM_CPU_KVCACHE_SPACE", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "1")  # decides nothing, or the harness sets it itself
        assert plan(arm).arm_key(arm) == unset, name
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "FLASHINFER")
    assert plan(arm).identity_of(arm)["variables"] == {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}
    assert plan(arm).arm_key(arm) != unset
    monkeypatch.delenv("VLLM_ATTENTION_BACKEND")
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4")  # the harness adds to this one
    assert plan(arm).identity_of(arm)["variables"] == {"LD_PRELOAD": "libtcmalloc.so.4"}


def test_another_machine_is_another_key_and_so_is_another_results_folder(results):
    arm = Arm.of("a", MODEL)
    here = Host("cpu", "AMD EPYC", 2, 23.5, 20.0, virtualisation="kvm", kernel="6.1")
    key = plan(arm, host=here).arm_key(arm)
    assert plan(arm, host=replace(here, free_memory_gib=3.0)).arm_key(arm) == key
    for other in ({"kernel": "6.2"}, {"virtualisation": "none"}, {"memory_gib": 47.0}, {"cpu_revision": "25-1-1"}):
        assert plan(arm, host=replace(here, **other)).arm_key(arm) != key, other
    store.name_results_folder()
    named = plan(arm, host=here).arm_key(arm)
    assert named != key == files.key(plan(arm, host=here).provenance() | {"results_folder": None}, arm.identity())
    store.name_results_folder()
    assert plan(arm, host=here).arm_key(arm) == named  # a second run finds its own cells
