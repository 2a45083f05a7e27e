"""The machine's profile, and what a sampler says of it."""

import platform
import types
from dataclasses import replace

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
    assert set(host.identity()) == {
        "profile",
        "cpu",
        "cpus",
        "memory_gib",
        "cpu_revision",
        "virtualisation",
        "kernel",
        "gpus",
        "driver",
    }
    assert host.kernel == platform.release() and host.virtualisation and host.name == hosts.detect("cpu").name
    assert hosts.detect(host.name) == replace(hosts.detect(), free_memory_gib=hosts.detect(host.name).free_memory_gib)
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


EPYC = hosts.Host("cpu", "AMD EPYC", 2, 23.5, 22.7, virtualisation="kvm", kernel="6.18.44-fc-v782")


def test_without_gpus_a_hosts_name_stands_for_its_hardware():
    assert EPYC.profile == "cpu" and EPYC.name == "cpu-46af" and replace(EPYC, free_memory_gib=1.0).name == EPYC.name
    others = [
        {"cpu_model": "Intel(R) Xeon(R) Processor"},
        {"cpus": 4},
        {"memory_gib": 31.4},
        {"virtualisation": "kvm, docker"},
        {"kernel": "6.18.44-fc-v657"},
        {"cpu_revision": "25-17-1"},
    ]
    names = [replace(EPYC, **other).name for other in others]
    assert len({EPYC.name, *names}) == 7 and names[4] == "cpu-c2f5" and all(map(hosts.is_cpu, names))
    assert replace(EPYC, memory_gib=23.6).name == EPYC.name  # the kernel keeps a little more or less for itself
    assert replace(EPYC, profile="h200x1").name == "h200x1" and not hosts.is_cpu("h200x1") and hosts.is_cpu("cpu")


def test_the_words_of_a_host_say_which_machine_it_is():
    assert EPYC.words == "AMD EPYC, 2 cores, 24 GiB, kvm, kernel 6.18.44-fc-v782"
    gpu = hosts.Gpu(0, "NVIDIA L4", 22, 20, "8.9")
    rented = hosts.Host("l4x2", "Xeon", 1, 64.2, 60.0, (gpu, gpu), "580.1", "none", "6.8")
    assert rented.words == "2 × NVIDIA L4, Xeon, 1 core, 64 GiB, kernel 6.8, driver 580.1"


def test_a_host_is_read_back_from_its_run():
    record = {"host": EPYC.as_dict(), "provenance": {}}
    assert hosts.of_record(record) == EPYC and record["host"]["name"] == "cpu-46af"
    for name in ("name", "kernel", "virtualisation", "cpu_revision"):  # as the first runs recorded it
        del record["host"][name]
    earlier = hosts.of_record(record | {"provenance": {"kernel": EPYC.kernel}})
    assert earlier == replace(EPYC, virtualisation="")
    assert earlier.is_same_machine(EPYC) and EPYC.is_same_machine(earlier)
    assert not earlier.is_same_machine(replace(EPYC, kernel="6.18.44-fc-v657"))
    assert not EPYC.is_same_machine(replace(EPYC, virtualisation="none")) and not EPYC.is_same_machine(
        replace(EPYC, cpus=3)
    )


CLOCK = "sys/devices/system/clocksource/clocksource0/available_clocksource"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "none"),
        ({"sys/class/dmi/id/sys_vendor": "Dell Inc.", "proc/cpuinfo": "flags\t\t: fpu vme"}, "none"),
        ({CLOCK: "tsc kvm-clock "}, "kvm"),
        ({CLOCK: "tsc kvm-clock", ".dockerenv": ""}, "kvm, docker"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "g6.xlarge"}, "kvm"),
        ({"sys/class/dmi/id/product_name": "VMware Virtual Platform"}, "vmware"),
        ({"sys/hypervisor/type": "xen\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "xen"),
        ({"proc/cpuinfo": "flags\t\t: fpu hypervisor lahf_lm"}, "virtual machine"),
        ({"proc/self/cgroup": "0::/kubepods.slice/pod1"}, "kubernetes"),
        ({"proc/1/cgroup": "4:memory:/docker/1f"}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"run/systemd/container": "lxc\n"}, "lxc"),
    ],
)
def test_virtualisation_is_told_from_what_the_kernel_says(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert hosts.virtualisation(tmp_path) == said


def test_a_processor_is_told_by_its_numbers(tmp_path):
    (tmp_path / "proc").mkdir()
    assert hosts.cpu_revision(tmp_path) == ""
    file = tmp_path / "proc/cpuinfo"
    file.write_text("processor\t: 0\ncpu family\t: 6\nmodel\t\t: 167\nmodel name\t: Xeon\nstepping\t: 1\n" * 2)
    assert hosts.cpu_revision(tmp_path) == "6-167-1"
    file.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\nCPU revision\t: 0\n")
    assert hosts.cpu_revision(tmp_path) == "0x41-0xd4f-0"
