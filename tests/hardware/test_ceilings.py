"""The hardware tables: complete, sourced, plausible beside one another, and refused when damaged."""

import pytest

from serving_study.errors import HostError, StoreError
from serving_study.hardware import ceilings
from serving_study.results import reference


def test_every_gpu_states_its_sources_and_its_memory_basis():
    assert list(ceilings.gpus()) == ["l4", "a10g", "l40s", "a100-40", "a100-80", "h100", "h200", "b200"]
    for gpu in ceilings.gpus().values():
        assert gpu.source_url.startswith("https://") and gpu.source_title and gpu.memory_source
        assert 20 < gpu.memory_gib < 180 and 300 <= gpu.bandwidth_gb_s <= 8000
        assert gpu.fp8_tflops is None or 1.9 < gpu.fp8_tflops / gpu.bf16_tflops < 2.1
        assert gpu.pcie_gb_s == {4: 32, 5: 64}[gpu.pcie_gen]
        assert gpu.nvlink_gb_s is None or gpu.nvlink_gb_s > 4 * gpu.pcie_gb_s


@pytest.mark.parametrize("gpu, host", [("l4", "l4x4"), ("a10g", "a10gx4")])
def test_memory_is_what_the_reference_studys_servers_reported(gpu, host):
    figures = reference.load(5)
    (capacity,) = figures.loc[(figures["host"] == host) & (figures["metric"] == "oom_capacity_gib"), "value"]
    assert ceilings.gpu(gpu).memory_gib == capacity


def test_eight_bit_rates_are_missing_where_there_are_no_units():
    assert (ceilings.gpu("A10G").bf16_tflops, ceilings.gpu("a10g").fp8_tflops) == (70, None)
    assert ceilings.gpu("h200").fp8_tflops == 1979


@pytest.mark.parametrize(
    "name, gpu, count, vcpus, link_gb_s",
    [
        ("g6.xlarge", "l4", 1, 4, None),
        ("g6.12xlarge", "l4", 4, 48, 32),
        ("g5.12xlarge", "a10g", 4, 48, 32),
        ("g6e.xlarge", "l40s", 1, 4, None),
        ("p4d.24xlarge", "a100-40", 8, 96, 300),
        ("p4de.24xlarge", "a100-80", 8, 96, 300),
        ("p5.48xlarge", "h100", 8, 192, 450),
        ("p6-b200.48xlarge", "b200", 8, 192, 900),
    ],
)
def test_instances(name, gpu, count, vcpus, link_gb_s):
    found = ceilings.of_host(name)
    assert (found.gpu.name, found.count, found.vcpus, found.link_gb_s) == (gpu, count, vcpus, link_gb_s)
    assert found.name == name and found.source_url.startswith("https://aws.amazon.com/")


@pytest.mark.parametrize(
    "host, gpu, count, link",
    [
        ("l4x1", "l4", 1, "none"),
        ("l4x2", "l4", 2, "pcie"),
        ("a10gx4", "a10g", 4, "pcie"),
        ("h200x1", "h200", 1, "none"),
        ("h200x2", "h200", 2, "nvlink"),
        ("a100-80x8", "a100-80", 8, "nvlink"),
    ],
)
def test_profiles(host, gpu, count, link):
    found = ceilings.of_host(host)
    assert (found.name, found.gpu.name, found.count, found.link, found.vcpus) == (host, gpu, count, link, None)


def test_an_a100_needs_its_memory():
    assert ceilings.of_host("a100x8", gpu_memory_gib=79.3).gpu.name == "a100-80"
    assert ceilings.of_host("a100x1", gpu_memory_gib=39.5).gpu.name == "a100-40"
    with pytest.raises(HostError, match="no ceilings for this host: a100x8"):
        ceilings.of_host("a100x8")


@pytest.mark.parametrize(
    "call, name, message",
    [
        (ceilings.gpu, "t4", "allowed: l4, a10g"),
        (ceilings.of_host, "p4d.xlarge", "an instance type: g5.12xlarge, g6.xlarge"),
        (ceilings.of_host, "cpu", "a profile GPUxCOUNT"),
        (ceilings.of_host, "l4x0", "GPUxCOUNT"),
    ],
)
def test_what_is_not_in_the_tables_is_refused_and_the_rest_named(call, name, message):
    with pytest.raises(HostError) as raised:
        call(name)
    assert message in str(raised.value) and name in str(raised.value)


@pytest.mark.parametrize(
    "file, old, new, message",
    [
        ("gpus.csv", ",300,121,", ",300,fast,", "line 2: unusable bf16_tflops: fast"),
        ("gpus.csv", "22.04,cuda", "22.04,guess", "line 2: unknown memory_basis: guess"),
        ("gpus.csv", ",300,121,", ",300,", "line 2: wrong number of fields"),
        ("instances.csv", "a10g,4", "a11g,4", "line 2: unknown GPU or link: a11g, pcie"),
        ("instances.csv", "48,192,pcie", "48,192,rope", "line 2: unknown GPU or link: a10g, rope"),
        ("instances.csv", "a10g,4,48", "a10g,4,", "line 2: unusable vcpus: (empty)"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, monkeypatch, file, old, new, message):
    for name in ("gpus.csv", "instances.csv"):
        text = (ceilings.FOLDER / name).read_text()
        (tmp_path / name).write_text(text.replace(old, new, 1) if name == file else text)
    monkeypatch.setattr(ceilings, "FOLDER", tmp_path)
    read = {"gpus.csv": ceilings.gpus, "instances.csv": ceilings.instances}[file]
    with pytest.raises(StoreError) as raised:
        read.__wrapped__()
    assert f"{file}, {message}" in str(raised.value)


def test_a_missing_table_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ceilings, "FOLDER", tmp_path)
    with pytest.raises(StoreError, match="cannot be read"):
        ceilings.gpus.__wrapped__()
