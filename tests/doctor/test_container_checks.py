"""What the doctor says of a container: its share of the machine, its shared memory, its open files."""

import os
import resource
import types

import fake_study
import pytest
from control_groups import GIB, v2

from serving_study.doctor import host_checks
from serving_study.doctor.findings import FAIL, OK, WARN
from serving_study.hardware import cgroups
from serving_study.hardware.cgroups import Limits


def test_a_containers_share_is_said(tmp_path, monkeypatch):
    assert host_checks.container(tmp_path).found == "no limit of processor or memory"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(host_checks.psutil, "virtual_memory", lambda: types.SimpleNamespace(total=64 * GIB))
    finding = host_checks.container(v2(tmp_path, cpu="250000 100000", memory=16 * GIB))
    assert finding.outcome == OK
    assert finding.found == "2.5 of 8 cores, of which 2 are used; 16.0 of 64.0 GiB of memory"
    finding = host_checks.container(v2(tmp_path, cpu="50000 100000", memory=16 * GIB))
    assert finding.outcome == WARN and finding.found == "0.5 of 8 cores, of which 1 are used"


@pytest.mark.parametrize(
    ("total_mib", "free_mib", "ranks", "outcome"),
    [(64, 64, 1, WARN), (1024, 1000, 1, OK), (1024, 100, 1, WARN), (1024, 1000, 8, WARN), (8192, 8000, 8, OK)],
)
def test_the_64_mib_of_a_container_are_warned_of(tmp_path, monkeypatch, total_mib, free_mib, ranks, outcome):
    usage = types.SimpleNamespace(total=total_mib * 2**20, free=free_mib * 2**20)
    monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda place: usage)
    arm = fake_study.arm(tmp_path, "a", **({"tensor_parallel_size": ranks} if ranks > 1 else {}))
    finding = host_checks.shared_memory([arm])
    assert finding.outcome == outcome
    if total_mib == 64:
        assert "0.06 of 0.06 GiB free at /dev/shm" in finding.found and "--shm-size" in finding.fix
        assert host_checks.shared_memory([]).outcome == WARN


def test_without_shared_memory_it_says_so(tmp_path):
    assert host_checks.shared_memory([], tmp_path / "none").outcome == WARN


@pytest.mark.parametrize(
    ("soft", "hard", "concurrency", "outcome", "fix"),
    [
        (1024, 4096, 64, OK, ""),
        (1024, 4096, 768, OK, ""),
        (1024, 4096, 769, FAIL, "ulimit -n 1025"),
        (1024, 1024, 1000, FAIL, "ulimit -n is capped at 1024: docker run --ulimit nofile=1256"),
        (256, resource.RLIM_INFINITY, 1, FAIL, "ulimit -n 257"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 9999, OK, ""),
    ],
)
def test_open_files_are_held_against_the_highest_concurrency(
    tmp_path, monkeypatch, soft, hard, concurrency, outcome, fix
):
    monkeypatch.setattr(host_checks.resource, "getrlimit", lambda which: (soft, hard))
    plan = fake_study.plan([fake_study.arm(tmp_path, "a")], concurrencies=(1, concurrency))
    finding = host_checks.open_files(plan)
    assert (finding.outcome, finding.fix) == (outcome, fix) and f"{concurrency} requests in flight" in finding.found
    assert host_checks.open_files(None).outcome == OK


def test_a_load_average_is_of_the_whole_machine(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (5.0, 5.0, 5.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert host_checks.load(fake_study.HOST).outcome == WARN
    monkeypatch.setattr(cgroups, "limits", lambda root=None: Limits(cores=2.0))
    assert host_checks.load(fake_study.HOST).outcome == OK
