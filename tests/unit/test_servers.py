"""What is checked before a server starts, and what counts as language."""

import types
from pathlib import Path

import psutil
import pytest

from serving_study import hosts, paths, servers
from serving_study.arms import Arm
from serving_study.errors import HostError
from serving_study.hosts import GIB, Gpu, Host
from serving_study.models import Model

CPU = Host("cpu", "x", 2, 8, 8)


@pytest.mark.parametrize(
    "text",
    [
        " Paris.\n\nThe answer is: 2018-01-22 12:1",  # what the embedded model says
        " Paris. It is the capital of France",
        "def add(a, b):\n    return a + b  # the sum",
        "프랑스의 수도는 파리입니다",
        "Die Hauptstadt ist Paris",
    ],
)
def test_language(text):
    assert servers.is_sane(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "\ufffd\ufffd the river",
        "!!!!!!!!!!!!!!!!",
        "the the the the the",
        "1 2 3 4 5 6 7",
        "the river\x00turns",
        "a b c d e f g h",
        "(((((( the ))))))) ((((((((((( river ))))))))))))))))))))))",
    ],
)
def test_no_language(text):
    assert servers.is_sane(text) is False


@pytest.fixture
def arm(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"0")
    return Arm(
        "baseline",
        Model("m", str(tmp_path), tmp_path),
        environment={"VLLM_CPU_KVCACHE_SPACE": 4},
        options={"gpu_memory_utilization": 0.9},
    )


@pytest.mark.parametrize(("free_gib", "enough"), [(6.3, True), (6.1, False)])
def test_host_memory_for_the_cache_is_checked_beforehand(arm, monkeypatch, free_gib, enough):
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: types.SimpleNamespace(total=32 * GIB, available=free_gib * GIB)
    )
    if enough:
        servers.check_memory(arm, CPU)
    else:
        with pytest.raises(HostError, match="too little free memory: 6.1 GiB free, about 6.2 wanted"):
            servers.check_memory(arm, CPU)


@pytest.mark.parametrize(("free_gib", "enough"), [(19.84, False), (19.85, True)])
def test_gpu_memory_is_checked_beforehand(arm, monkeypatch, free_gib, enough):
    host = Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22.05, free_gib, "8.9"),))
    monkeypatch.setattr(hosts, "detect", lambda: host)
    monkeypatch.setattr(servers, "_gpu_holders", lambda index: "pid 77")
    if enough:
        servers.check_memory(arm, host)
    else:
        with pytest.raises(
            HostError, match="too little free memory on GPU 0: 19.84 of 22.05 GiB free, 19.8. wanted; holders: pid 77"
        ):
            servers.check_memory(arm, host)


def test_gpu_memory_must_come_back(monkeypatch):
    free = iter([2.0, 10.0, 19.6, 19.6])
    host = Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22, 20, "8.9"),))
    monkeypatch.setattr(
        hosts, "detect", lambda: Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22, next(free), "8.9"),))
    )
    servers.wait_for_gpu_memory(host, [20.0])
    assert next(free) == 19.6  # it was asked three times
    monkeypatch.setattr(hosts, "detect", lambda: Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22, 2.0, "8.9"),)))
    monkeypatch.setattr(servers, "_gpu_holders", lambda index: "pid 77")
    with pytest.raises(
        HostError, match=r"did not come back after a server ended: free \[2.0\] GiB, before \[20.0\]; holders: pid 77"
    ):
        servers.wait_for_gpu_memory(host, [20.0], timeout_s=0)


def test_a_host_without_gpus_waits_for_none():
    assert servers.wait_for_gpu_memory(CPU, []) < 1


def test_a_full_disk_is_seen_before_a_start(tmp_path, monkeypatch):
    servers.check_disk(tmp_path, 0)
    monkeypatch.setattr(servers.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=0.1 * GIB))
    with pytest.raises(HostError, match=f"the disk is nearly full: 0.10 GiB free at {tmp_path}"):
        servers.check_disk(tmp_path)


def test_a_free_port_can_be_had():
    servers.check_port(servers.free_port())


def test_what_is_published_of_a_servers_words_has_no_path_of_this_machine():
    text = (
        f'\x1b[1m File "{Path.home()}/.pyenv/x.py" {paths.CACHE}/models {paths.ROOT}/src '
        "/a/b/site-packages/torch/x.py /opt/env/bin/python3"
    )
    assert servers.tidied(text) == ' File "~/.pyenv/x.py" .cache/models ./src …/torch/x.py python3'
