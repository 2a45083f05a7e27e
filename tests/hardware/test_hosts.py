"""The machine's profile, and what a sampler says of it."""

import platform
import types
from dataclasses import replace

import pynvml
import pytest

from serving_study.errors import HostError
from serving_study.hardware import ceilings, cgroups, gpus, hosts
from serving_study.hardware.sampler import Sampler


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 PCIe", "h100pcie"),
        ("NVIDIA H100 NVL", "h100nvl"),
        ("NVIDIA H200 NVL", "h200nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100 80GB PCIe", "a100pcie-80"),
        ("NVIDIA A100-PCIE-40GB", "a100pcie-40"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-40mig1g.5gb"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "h100mig3g.40gb"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144"),
        ("NVIDIA GB10", "gb10"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("Tesla V100-PCIE-16GB", "v100pcie-16"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx4090laptop"),
        ("NVIDIA GeForce RTX 4080 SUPER", "rtx4080super"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("Quadro RTX 6000", "rtx6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000server"),
        ("NVIDIA Graphics Device", "gpu"),
        ("", "gpu"),
    ],
)
def test_short_names(name, short):
    assert gpus.short_name(name) == short


def nvml(monkeypatch, names, free_gib=20):
    """NVML as a machine with these GPUs answers it."""
    memory = types.SimpleNamespace(total=22 * cgroups.GIB, free=free_gib * cgroups.GIB, used=2 * cgroups.GIB)
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
    [
        (None, [0, 1, 2, 3]),
        ("1", [1]),
        ("2, 0", [2, 0]),
        ("", []),
        ("-1", []),
        ("0,-1,2", [0]),
        ("0,9,1", [0]),
        ("1,,2", [1]),
        ("none", []),
        ("0x1", []),
        ("GPU-1f", [2]),
        ("GPU-1f00-2", [2]),
        ("GPU-0", []),  # two begin like that
        ("GPU-0a,GPU-0b", [0, 1]),
        ("3,GPU-ff,0", [3]),
        ("1,1", [1]),  # the second of the same names nothing that is left
        ("MIG-1", []),
    ],
)
def test_visible_devices(monkeypatch, visible, indices):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    uuids = ["GPU-0a00-0", "GPU-0b00-1", "GPU-1f00-2", "GPU-3c00-3"]
    assert gpus.visible_devices(uuids) == [(index, None) for index in indices]


def test_hidden_gpus_leave_a_cpu_host(monkeypatch):
    nvml(monkeypatch, ["NVIDIA L4"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hosts.detect().profile == "cpu"


def test_a_gpu_sampler_keeps_extremes_and_leaves_out_what_is_not_answered():
    gpu = gpus.Gpu(0, "NVIDIA L4", 22, 20, "8.9")
    sampler = Sampler(hosts.Host("l4x1", "x", 1, 1, 1, (gpu,)))
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
    with Sampler(hosts.Host("cpu", "x", 1, 1, 1), interval_s=0.001) as sampler:
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
    gpu = gpus.Gpu(0, "NVIDIA L4", 22, 20, "8.9")
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


class Nvml:
    """NVML of a machine with these cards: name, UUID, (total, free) GiB or the error instead, and slices by UUID with
    the same. A card that is None may not be touched.
    """

    def __init__(self, monkeypatch, *cards):
        self.cards = cards
        self.slices = {uuid: (card, said) for card in cards if card for uuid, said in card.get("slices", {}).items()}
        for name in (name for name in dir(self) if name.startswith("nvml")):
            monkeypatch.setattr(pynvml, name, getattr(self, name))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        pass

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.cards[index] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return self.cards[index]["uuid"]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def _of(self, handle):
        return next((card for card in self.cards if card and card["uuid"] == handle), None)

    def nvmlDeviceGetName(self, handle):
        card = self._of(handle)
        return card["name"] if card else f"{self.slices[handle][0]['name']} MIG 1g.5gb"

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        if self._of(handle) is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 8, 0

    def nvmlDeviceGetMemoryInfo(self, handle):
        card = self._of(handle)
        said = card["gib"] if card else self.slices[handle][1]
        if isinstance(said, int):
            raise pynvml.NVMLError(said)
        total, free = (gib * cgroups.GIB for gib in said)
        return types.SimpleNamespace(total=total, free=free, used=total - free)

    def nvmlDeviceGetMigMode(self, handle):
        return (1, 1) if "slices" in self._of(handle) else (0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, place):
        own = list(self._of(handle)["slices"])
        if place >= len(own):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return own[place]


def card(uuid, name="NVIDIA A100-SXM4-40GB", gib=(39.5, 39.0), **about):
    return {"uuid": uuid, "name": name, "gib": gib} | about


def sliced(uuid="GPU-1", **slices):
    return card(uuid, gib=pynvml.NVML_ERROR_NO_PERMISSION, slices={f"MIG-{name}": gib for name, gib in slices.items()})


def test_a_gpu_without_a_memory_of_its_own_has_the_systems(monkeypatch):
    Nvml(monkeypatch, card("GPU-1", "NVIDIA GB10", pynvml.NVML_ERROR_NOT_SUPPORTED))
    monkeypatch.setattr(gpus, "memory_of_host", lambda: (119 * cgroups.GIB, 100 * cgroups.GIB))
    host = hosts.detect()
    assert host.profile == host.name == "gb10x1" and host.gpus[0].memory_gib == 119 and host.gpus[0].free_gib == 100


def test_a_card_that_may_not_be_touched_is_none_of_ours(monkeypatch):
    Nvml(monkeypatch, None, card("GPU-2"))
    assert [gpu.index for gpu in hosts.detect().gpus] == [1] and hosts.detect().profile == "a100-40x1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # the first of those that CUDA sees
    assert [gpu.index for gpu in hosts.detect().gpus] == [1]


def test_a_card_that_keeps_its_memory_to_itself_is_an_error_that_says_what_to_do(monkeypatch):
    Nvml(monkeypatch, card("GPU-1", gib=pynvml.NVML_ERROR_NO_PERMISSION))
    with pytest.raises(HostError) as caught:
        hosts.detect()
    assert "GPU 0: " in caught.value.value and 'host = "cpu"' in caught.value.next
    assert hosts.detect("cpu").gpus == ()


def test_a_slice_has_its_own_memory_and_name(monkeypatch):
    Nvml(monkeypatch, card("GPU-0"), sliced(a1=(4.75, 4.7), a2=(9.5, 9.4)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a2")
    host = hosts.detect()
    [gpu] = host.gpus
    assert (gpu.index, gpu.memory_gib, gpu.free_gib, gpu.uuid) == (1, 9.5, 9.4, "MIG-a2")
    assert gpu.compute_capability == "8.0" and host.profile == "a100-40mig1g.5gbx1"
    assert gpus.nvml_handle(gpu) == "MIG-a2" and gpus.nvml_handle(replace(gpu, uuid="")) == "GPU-1"
    assert "uuid" not in host.as_dict()["gpus"][0] and hosts.of_record({"host": host.as_dict()}).name == host.name


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, ["MIG-a1"]),  # of all slices CUDA shows one
        ("0", ["MIG-a1"]),
        ("MIG-b", ["MIG-b1"]),
        ("MIG-a", []),  # two begin like that
        ("MIG-b1,MIG-a1", ["MIG-b1"]),
        ("MIG-c", []),
        ("GPU-2", ["MIG-b1"]),
        ("-1", []),
    ],
)
def test_of_cards_in_slices_one_slice_is_seen(monkeypatch, visible, seen):
    Nvml(monkeypatch, sliced(a1=(4.75, 4.7), a2=(4.75, 4.7)), sliced("GPU-2", b1=(9.5, 9.4)))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in hosts.detect().gpus] == seen


def test_cards_of_two_kinds_are_no_profile_of_one(monkeypatch):
    Nvml(monkeypatch, card("GPU-0", "NVIDIA L4"), card("GPU-1", "NVIDIA L4"), card("GPU-2", "NVIDIA A10G"))
    assert hosts.detect().profile == "l4x2+a10gx1"


def test_a_profile_has_the_ceilings_of_its_card_or_none():
    for name, known in (("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100-80"), ("NVIDIA L4", "l4")):
        assert ceilings.of_host(f"{gpus.short_name(name)}x1").gpu.name == known
    for name in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA A100 80GB PCIe", "NVIDIA H200 NVL", "NVIDIA L40"):
        with pytest.raises(HostError, match="no ceilings for this host"):
            ceilings.of_host(f"{gpus.short_name(name)}x1")
