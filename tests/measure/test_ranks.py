"""The ranks of a server: which processes they are, what they did, and when that is proof that all took part."""

import subprocess
import sys
import types

import psutil
import pytest
from fake_study import HOST
from good_cells import GPU, good

from serving_study.engines import vllm
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.measure import mechanisms
from serving_study.measure.mechanisms import ranks
from serving_study.results.certificates import FAIL, PASS, UNKNOWN
from serving_study.servers.arm import Arm

TWO_GPUS = {"samples": 5, "cpu_steal": 0.0, "gpus": [GPU["gpus"][0] | {"index": index} for index in range(2)]}
TITLED = (
    "import subprocess, sys; children = [subprocess.Popen([title, '-c', 'input()'], "
    "executable=sys.executable) for title in sys.argv[1:]]; print(flush=True); input()"
)


def judged(about, machine=None, concurrency=2, speculation=None):
    cell, requests = good()
    cell |= {"technique": "parallel", "ranks": about, "concurrency": concurrency, "speculation": speculation or {}} | (
        {"machine": machine} if machine else {}
    )
    [check] = [check for check in mechanisms.certify(cell, requests)["checks"] if check["name"] == "mechanism"]
    return check["outcome"], check["evidence"]


def asked(wanted=2, copies=1, cpu_s=(3.0, 2.9), **about):
    return {
        "wanted": wanted,
        "copies": copies,
        "processes": [{"name": f"VLLM::Worker_TP{rank}", "cpu_s": seconds} for rank, seconds in enumerate(cpu_s)],
    } | about


def gpus(*utilisation):
    return TWO_GPUS | {
        "gpus": [gpu | {"mean_utilisation": share} for gpu, share in zip(TWO_GPUS["gpus"], utilisation, strict=True)]
    }


def test_ranks_that_all_took_part():
    assert judged(asked()) == (
        PASS,
        "2 of 2 ranks have a process; 2 active, 2 needed (Worker_TP0 3.0 s of processor, Worker_TP1 2.9 s "
        "of processor)",
    )
    outcome, evidence = judged(asked(nvlink_bytes={"0": {"sent": 3 * 2**30, "received": 2**30}}), gpus(96.0, 94.0))
    assert (outcome, evidence) == (
        PASS,
        "2 of 2 ranks have a process; 2 active, 2 needed (GPUs at 96 %, 94 %; GPU 0 sent 3.00 GiB over NVLink)",
    )


@pytest.mark.parametrize(
    ("about", "machine", "words"),
    [
        (asked(cpu_s=(3.0, 0.1)), None, "1 active, 2 needed"),
        (asked(cpu_s=(3.0,)), None, "1 of 2 ranks have a process"),
        (asked(cpu_s=(3.0, 2.0, 1.0)), None, "3 of 2 ranks have a process"),
        (asked(), gpus(97.0, 0.0), "1 active, 2 needed (GPUs at 97 %, 0 %)"),
        (
            asked(wanted=1, cpu_s=(1.0, 1.0)),
            gpus(97.0, 0.0),
            "2 of 1 ranks have a process; 1 active, 1 needed (GPUs at 97 %)",
        ),
    ],
)
def test_a_rank_that_is_missing_or_idle(about, machine, words):
    outcome, evidence = judged(about, machine)
    assert outcome == FAIL and words in evidence


@pytest.mark.parametrize(
    ("about", "machine"),
    [
        ({}, None),
        (asked(cpu_s=()), None),
        (asked(cpu_s=(0.0, 0.0)), None),
        (asked(), gpus(97.0, None)),
        (asked(), gpus(97.0, 96.0) | {"samples": 0}),
        (asked(cpu_s=()), gpus(97.0, 96.0)),
    ],
)
def test_what_was_not_seen_is_unknown(about, machine):
    assert judged(about, machine)[0] == UNKNOWN


def test_a_copy_that_no_request_can_reach_may_idle():
    alone = asked(copies=2, cpu_s=(3.0, 0.0))
    assert judged(alone, concurrency=1)[0] == PASS and judged(alone, concurrency=2)[0] == FAIL
    assert judged(asked(wanted=4, copies=2, cpu_s=(3.0, 2.0, 0.0, 0.0)), concurrency=1)[0] == PASS


def test_a_split_arm_makes_no_drafts():
    assert judged(asked(), speculation={"drafts": 3, "drafted_tokens": 9})[0] == FAIL


@pytest.mark.parametrize(
    ("titles", "found"),
    [
        (
            ["VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1", "other"],
            ["VLLM::Worker_TP0", "VLLM::Worker_TP1"],
        ),
        (["VLLM::EngineCore_DP0", "VLLM::EngineCore_DP1"], ["VLLM::EngineCore_DP0", "VLLM::EngineCore_DP1"]),
        (["python"], []),
    ],
)
def test_processes_are_told_by_their_titles(titles, found):
    server = subprocess.Popen([sys.executable, "-c", TITLED, *titles], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        server.stdout.readline()
        before = ranks.count([server.pid], HOST, vllm.RANKS)
        assert sorted(about["name"] for about in before["processes"].values()) == found and before["nvlink"] == {}
        after = {
            "processes": {pid: about | {"cpu_s": about["cpu_s"] + 2.0} for pid, about in before["processes"].items()},
            "nvlink": {},
        }
        seen = ranks.difference(Arm.of("a", None, options={"tensor_parallel_size": 2}), before, after)
        assert (seen["wanted"], seen["copies"]) == (2, 1) and [row["cpu_s"] for row in seen["processes"]] == [
            2.0
        ] * len(found)
    finally:
        children = psutil.Process(server.pid).children()
        for process in children:
            process.kill()
        server.communicate(b"\n")
    assert ranks.count([server.pid], HOST, vllm.RANKS) == {"processes": {}, "nvlink": {}}


def nvml(monkeypatch, counted, supported=True):
    import pynvml

    values = iter(counted)

    def value(kib):
        return types.SimpleNamespace(nvmlReturn=0 if supported else 3, value=types.SimpleNamespace(ullVal=kib))

    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetFieldValues", lambda handle, fields: [value(next(values)) for _ in fields]
    )


def test_bytes_over_nvlink_are_a_difference(monkeypatch):
    host = Host("fakex1", "a processor", 2, 8.0, 8.0, (Gpu(0, "Fake", 80.0, 80.0, "9.0"),))
    nvml(monkeypatch, [100, 50, 1124, 60])
    before, after = ({"processes": {}, "nvlink": ranks.nvlink(host)} for _ in range(2))
    assert ranks.difference(Arm.of("a", None), before, after)["nvlink_bytes"] == {
        "0": {"sent": 2**20, "received": 10 * 1024}
    }
    nvml(monkeypatch, [1, 2], supported=False)
    assert ranks.nvlink(host) == {}
