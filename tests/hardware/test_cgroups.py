"""A container's limits, from planted control groups of both versions."""

import os
import types

import psutil
import pytest
from control_groups import GIB, plant, v2

from serving_study.hardware import cgroups, hosts
from serving_study.hardware.cgroups import Limits


def test_no_control_group_limits_nothing(tmp_path):
    assert cgroups.limits(tmp_path) == Limits() == cgroups.limits(v2(tmp_path))


def test_version_2(tmp_path):
    v2(tmp_path, cpu="150000 100000", memory=8 * GIB, used=5 * GIB, inactive=2 * GIB)
    assert cgroups.limits(tmp_path) == Limits(1.5, 8 * GIB, 5 * GIB)


def test_the_smallest_limit_of_the_groups_above_holds(tmp_path):
    v2(tmp_path, cpu="400000 100000", memory=4 * GIB, used=GIB, path="/pods/one")
    above = {"cpu.max": "200000 100000", "memory.max": 6 * GIB, "memory.current": 5 * GIB, "memory.stat": ""}
    plant(tmp_path, {f"sys/fs/cgroup/pods/{name}": value for name, value in above.items()})
    # Its own limit is 4 GiB, but the pod has 1 GiB left of its 6.
    assert cgroups.limits(tmp_path) == Limits(2.0, 4 * GIB, GIB)


def test_version_1_with_and_without_a_namespace(tmp_path):
    mounts = (
        "32 31 0:29 /docker/1f /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 /docker/1f /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 / /proc rw - proc proc rw"
    )
    files = {
        "proc/self/mountinfo": mounts,
        "proc/self/cgroup": "5:memory:/docker/1f\n2:cpu,cpuacct:/docker/1f\n1:name=systemd:/docker/1f\n0::/",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": 250000,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 3 * GIB,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": 2 * GIB,
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
    }
    assert cgroups.limits(plant(tmp_path / "docker", files)) == Limits(2.5, 3 * GIB, 2 * GIB)
    inside = files | {"proc/self/cgroup": "5:memory:/\n2:cpu,cpuacct:/\n0::/"}
    assert cgroups.limits(plant(tmp_path / "namespace", inside)).cores == 2.5
    free = files | {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": -1,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
    }
    assert cgroups.limits(plant(tmp_path / "free", free)) == Limits()


@pytest.mark.parametrize(("quota", "count"), [("max", 8), ("250000", 2), ("300000", 3), ("50000", 1), ("9000000", 8)])
def test_cores_are_as_many_whole_ones_as_the_share_makes(tmp_path, monkeypatch, quota, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8, 16)))
    assert cgroups.cores(v2(tmp_path, cpu=f"{quota} 100000")) == list(range(8, 8 + count))


def test_memory_is_the_containers(tmp_path, monkeypatch):
    whole = types.SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: whole)
    assert cgroups.memory_of_host(tmp_path) == (64 * GIB, 40 * GIB)
    assert cgroups.memory_of_host(v2(tmp_path, memory=16 * GIB, used=10 * GIB)) == (16 * GIB, 6 * GIB)
    assert cgroups.memory_of_host(v2(tmp_path, memory=128 * GIB, used=10 * GIB)) == (64 * GIB, 40 * GIB)


def test_the_limits_are_those_of_the_host(monkeypatch):
    monkeypatch.setattr(cgroups, "limits", lambda root=None: Limits(1.0, 2 * GIB, GIB))
    host = hosts.detect("cpu")
    assert (host.cpus, host.memory_gib, host.free_memory_gib) == (1, 2.0, 1.0) and cgroups.free_memory_gib() == 1.0
    assert host.name != hosts.Host("cpu", host.cpu_model, 2, 23.5, 1.0).name
