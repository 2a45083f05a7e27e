"""The machine's profile, and what a sampler says of it."""

import types

import pynvml
import pytest

from serving_study import hosts
from serving_study.errors import HostError


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000"),
        ("NVIDIA Graphics Device", "gpu"),
        ("", "gpu"),
    ],
)
def test_short_names(name, short):
    assert hosts.short_name(name) == short


def nvml(monkeypatch, names, free_gib=20):
    """NVML as a machine with these GPUs answers it."""
    memory = types.SimpleNamespace(total=22 * hosts.GIB, free=free_gib * hosts.GIB, used=2 * hosts.GIB)
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(names),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: memory,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (8, 9),
        "nvmlDeviceGetName": lambda handle: names[handle],
        "nvmlSystemGetDriverVersion": lambda: "580.1",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


@pytest.fixture
def no_gpu(monkeypatch):
    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)


def test_without_nvml_the_profile_is_cpu(no_gpu):
    host = hosts.detect()
    assert host.profile == "cpu" and host.gpus == () and host.driver is None
    assert host.cpus >= 1 and host.memory_gib >= host.free_memory_gib > 0 and host.cpu_model
    assert hosts.detect("cpu").profile == "cpu"
    assert set(host.identity()) == {"profile", "cpu", "cpus", "gpus", "driver"}
    assert host.as_dict()["memory_gib"] == host.memory_gib


def test_an_unknown_profile_is_refused_and_the_possible_ones_named(no_gpu):
    with pytest.raises(HostError) as caught:
        hosts.detect("l4x1")
    assert caught.value.value == "l4x1" and caught.value.allowed == "auto, cpu"


def test_gpus_make_the_profile(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml(monkeypatch, ["NVIDIA A10G"] * 4)
    host = hosts.detect()
    assert host.profile == "a10gx4" and host.driver == "580.1" and [gpu.index for gpu in host.gpus] == [0, 1, 2, 3]
    assert host.gpus[0].memory_gib == 22 and host.gpus[0].free_gib == 20 and host.gpus[0].compute_capability == "8.9"
    aside = hosts.detect("cpu")
    assert aside.profile == "cpu" and aside.gpus == () and aside.identity()["gpus"] == []
    with pytest.raises(HostError) as caught:
        hosts.detect("a10gx1")
    assert caught.value.allowed == "auto, a10gx4, cpu"


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1, 2, 3]), ("1", [1]), ("2, 0", [2, 0]), ("", []), ("0,9", [0]), ("GPU-1f", [0, 1, 2, 3])],
)
def test_visible_devices(monkeypatch, visible, indices):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hosts.visible_devices(4) == indices


def test_hidden_gpus_leave_a_cpu_host(monkeypatch):
    nvml(monkeypatch, ["NVIDIA L4"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hosts.detect().profile == "cpu"


def test_a_gpu_sampler_keeps_extremes_and_leaves_out_what_is_not_answered():
    gpu = hosts.Gpu(0, "NVIDIA L4", 22, 20, "8.9")
    sampler = hosts.Sampler(hosts.Host("l4x1", "x", 1, 1, 1, (gpu,)))
    sampler.steal, sampler.busy = 0.0, 0.5
    row = {
        "utilisation": 90,
        "sm_clock_mhz": 1500,
        "memory_gib": 20.0,
        "throttle": 0x4,
        "power_w": None,
        "temperature_c": 60,
    }
    sampler.samples = [{"gpus": [row]}, {"gpus": [row | {"utilisation": 100, "sm_clock_mhz": 2040, "throttle": 0x40}]}]
    assert sampler.summary() == {
        "samples": 2,
        "cpu_busy": 0.5,
        "cpu_steal": 0.0,
        "gpus": [
            {
                "index": 0,
                "mean_utilisation": 95.0,
                "min_sm_clock_mhz": 1500,
                "max_sm_clock_mhz": 2040,
                "peak_memory_gib": 20.0,
                "mean_power_w": None,
                "max_temperature_c": 60,
                "throttle_reasons": 0x44,
            }
        ],
    }


def test_a_cpu_sampler_says_load_and_steal():
    with hosts.Sampler(hosts.Host("cpu", "x", 1, 1, 1), interval_s=0.001) as sampler:
        while not sampler.samples:
            pass
    summary = sampler.summary()
    assert summary["samples"] >= 1 and summary["load_average"] >= 0
    assert summary["cpu_steal"] is None or 0 <= summary["cpu_steal"] <= 1
