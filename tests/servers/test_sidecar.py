"""An arm whose engine needs a server beside it, in a real sweep: one is up before the other, both end, and what happens
to one is the arm's.
"""

import json
import os
import signal
import threading

import psutil
import pytest
from fake_study import cells, failed, starts, wait_for

from serving_study.errors import ServerError
from serving_study.measure import sweep
from serving_study.servers import fleet, lifetime, preflight


def test_the_server_beside_is_up_before_the_engine_and_ends_with_it(study):
    done = sweep.run(study.plan([study.arm("pair", sidecar={"chunk_size": 128}), study.arm("alone")]))
    first, second = (event for event in study.events("server") if event["arm"] in ("sidecar", "pair"))
    assert (first["arm"], second["arm"]) == ("sidecar", "pair") and first["port"] != second["port"]
    for cell in cells(done).values():
        assert (cell["certificate"]["verdict"], failed(cell)) == ("pass", []) and cell["server"]["owns_port"] is True
    record = starts(done)["pair"]
    assert record["figures"]["sidecar_s"] > 0 and "sidecar_s" not in starts(done)["alone"]["figures"]
    [command] = record["other_commands"]
    assert command[command.index("--chunk-size") + 1] == "128" and "{http_port}" in command
    assert "--chunk-size" not in record["command"] and "--model" in record["command"]
    [log] = done.store.folder.glob("*/arms/pair/lmcache.log")
    assert "\nlistening on " in log.read_text() and "listening" not in log.with_name("server.log").read_text()
    study.assert_nothing_left()


FAULTS = [
    (
        "dies-at-start",
        "lmcache, which the engine needs beside it, ended with exit code 3: ValueError: no such eviction policy",
    ),
    ("port-taken", "lmcache, which the engine needs beside it, ended with exit code 1: the port is taken"),
    ("other-settings", "chunk_size 64, wanted 128"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_server_beside_that_does_not_start_as_asked_fails_the_arm_and_not_the_sweep(study, fault, reason):
    done = sweep.run(study.plan([study.arm("pair", sidecar={"chunk_size": 128, "fault": fault}), study.arm("next")]))
    assert starts(done)["pair"]["outcome"] == "failed" and starts(done)["pair"]["reason"] == reason
    assert {arm for arm, *_ in cells(done)} == {"next"}
    assert fault == "other-settings" or not [
        event for event in study.events("server") if event["arm"] == "pair"
    ]  # its engine was never started
    study.assert_nothing_left()


def test_when_the_server_beside_dies_the_arm_has_failed(study, tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH", str(tmp_path / "switch.json"))

    def switch():
        wait_for(lambda: study.events("stream"))
        (tmp_path / "switch.json").write_text(json.dumps([{"who": "sidecar", "fault": "dies"}]))

    thread = threading.Thread(target=switch)
    thread.start()
    done = sweep.run(study.plan([study.arm("pair", sidecar={"chunk_size": 128}, token_s=0.05), study.arm("next")]))
    thread.join()
    record = starts(done)["pair"]
    assert (
        record["outcome"] == "failed"
        and record["reason"].endswith("ended with exit code 7: OSError: the first tier is gone")
        and len(record["lost_cells"]) <= 1
    )
    assert {arm for arm, *_ in cells(done)} == {"next"}
    study.assert_nothing_left()


def test_when_the_engine_dies_its_own_cause_is_the_arm_s(study):
    done = sweep.run(study.plan([study.arm("pair", sidecar={"chunk_size": 128}, fault="oom")]))
    assert starts(done)["pair"]["reason"] == "out of memory: tried to allocate 270.00 MiB, 127.44 MiB free of 22.06 GiB"
    study.assert_nothing_left()


@pytest.mark.parametrize("faults", [{}, {"fault": "ignores-term"}], ids=["both heed TERM", "the one beside does not"])
def test_a_killed_harness_leaves_neither_behind(study, faults):
    process = study.harness([{"name": "pair", "sidecar": {"chunk_size": 128, **faults}, "token_s": 0.05}], repeats=4)
    try:
        wait_for(lambda: study.events("stream"))
        assert len(study.alive()) >= 2 and study.wardens()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    study.assert_nothing_left()


def test_a_stranger_on_one_of_its_ports_is_named(study, foreign, monkeypatch):
    monkeypatch.setattr(
        preflight,
        "owner_group",
        lambda port, group, real=preflight.owner_group: real(foreign if stolen(port) else port, group),
    )
    stolen = lambda port: any(  # noqa: E731
        event["arm"] == "sidecar" and event["port"] == port for event in study.events("server")
    )
    done = sweep.run(study.plan([study.arm("pair", sidecar={"chunk_size": 128})]))
    assert "is held by" in starts(done)["pair"]["reason"]


def test_one_that_never_answers_has_a_deadline(study, monkeypatch):
    monkeypatch.setattr(fleet, "CACHE_SERVER_S", 1.0)
    done = sweep.run(study.plan([study.arm("pair", sidecar={"fault": "silent"}), study.arm("next")]))
    record = starts(done)["pair"]
    assert record["reason"] == "lmcache did not answer within 1 s" and "listening on" in record["last_lines"][-1]
    assert {arm for arm, *_ in cells(done)} == {"next"}
    study.assert_nothing_left()


@pytest.mark.parametrize(("role", "name"), [("sidecar", "lmcache"), ("pair", "server")])
def test_a_process_that_is_killed_is_the_one_that_the_arm_names(study, role, name):
    plan = study.plan([study.arm("pair", sidecar={"chunk_size": 128})])
    folder = study.folder / "log"
    with (
        pytest.raises(ServerError) as caught,
        lifetime.serve(plan.arms[0], plan.host, plan.environment_of, folder) as server,
    ):
        [pid] = [event["pid"] for event in study.events("server") if event["arm"] == role]
        os.kill(pid, signal.SIGKILL)
        server.require_alive(10)
    assert caught.value.log.name == f"{name}.log" and "SIGKILL" in caught.value.reason
    assert ("lmcache, which the engine needs" in caught.value.reason) == (name == "lmcache")
    study.assert_nothing_left()


def test_who_ended_first_is_said_each_time_that_it_is_asked(study):
    plan = study.plan([study.arm("pair", sidecar={"chunk_size": 128})])
    with lifetime.serve(plan.arms[0], plan.host, plan.environment_of, study.folder / "log") as server:
        for role in ("pair", "sidecar"):
            [pid] = [event["pid"] for event in study.events("server") if event["arm"] == role]
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda dead=role: sum(not process.alive() for process in server.running) == 1 + (dead != "pair"))
        assert [server.death().log.name for _ in range(2)] == ["server.log"] * 2
    study.assert_nothing_left()


def test_all_processes_are_frozen_and_go_on_together(study):
    plan = study.plan([study.arm("pair", sidecar={"chunk_size": 128})])
    with lifetime.serve(plan.arms[0], plan.host, plan.environment_of, study.folder / "log") as server:
        pids = [event["pid"] for event in study.events("server")]
        assert len(pids) == 2
        server.freeze()
        wait_for(lambda: {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_STOPPED})
        server.thaw()
        wait_for(lambda: psutil.STATUS_STOPPED not in {psutil.Process(pid).status() for pid in pids})
        assert server.alive() and server.owns_port() is True
    study.assert_nothing_left()
