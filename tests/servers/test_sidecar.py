"""An arm whose engine needs a server beside it, in a real sweep: one is up before the other, both end, and what happens
to one is the arm's.
"""

import json
import signal
import subprocess
import sys
import threading

import pytest
from fake_study import cells, failed, starts, wait_for

from serving_study import engines, environments, paths
from serving_study.measure import sweep

sys.path.insert(0, str(environments.ENGINE_SIDE))
import beside  # noqa: E402


def test_the_server_beside_is_up_before_the_engine_and_ends_with_it(study):
    done = sweep.run(study.plan([study.arm("pair", sidecar={"chunk_size": 128}), study.arm("alone")]))
    first, second = (event for event in study.events("server") if event["arm"] in ("sidecar", "pair"))
    assert (first["arm"], second["arm"]) == ("sidecar", "pair") and first["port"] != second["port"]
    for cell in cells(done).values():
        assert (cell["certificate"]["verdict"], failed(cell)) == ("pass", []) and cell["server"]["owns_port"] is True
    record = starts(done)["pair"]
    assert record["figures"]["sidecar_s"] > 0 and "sidecar_s" not in starts(done)["alone"]["figures"]
    command = record["command"]
    assert command[:6] == [
        "python",
        "./src/serving_study/engine_side/beside.py",
        "--name",
        "lmcache",
        "--log",
        "{folder}/lmcache.log",
    ]
    assert (
        command[command.index("--chunk-size") + 1] == "128"
        and command.index("---") < command.index("--model")
        and "{http_port}" in command
    )
    [log] = done.store.folder.glob("*/arms/pair/lmcache.log")
    assert log.read_text().startswith("listening on ") and "listening" not in log.with_name("server.log").read_text()
    study.assert_nothing_left()


FAULTS = [
    (
        "dies-at-start",
        "RuntimeError: lmcache, which the engine needs beside it, ended with exit code 3: ValueError: no "
        "such eviction policy",
    ),
    ("port-taken", "the port is taken"),
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
    arm = study.arm("pair", sidecar={"chunk_size": 128})
    real = engines.get("fake").sidecar
    monkeypatch.setattr(
        type(engines.get("fake")),
        "sidecar",
        lambda self, log: {**vllm_said, "http_port": foreign} if (vllm_said := real(log)) else None,
    )
    done = sweep.run(study.plan([arm]))
    assert starts(done)["pair"]["reason"].startswith(f"port {foreign} is held by ")


def run_beside(tmp_path, *words, ready_s="1", engine=("-c", "print('engine')")):
    """The program itself, with this Python for both commands; `words` are the first one's."""
    program = [
        sys.executable,
        beside.__file__,
        "--name",
        "lmcache",
        "--log",
        str(tmp_path / "beside.log"),
        "--ready-s",
        ready_s,
        "--",
        sys.executable,
        *words,
        "---",
        sys.executable,
        *engine,
    ]
    return subprocess.run(program, capture_output=True, text=True, timeout=60)


def test_one_that_never_answers_has_a_deadline(tmp_path):
    done = run_beside(tmp_path, "-u", "-c", "import time; print('thinking'); time.sleep(600)")
    assert (
        done.returncode == 1
        and done.stdout
        == "    | thinking\nRuntimeError: lmcache, which the engine needs beside it, did not get ready "
        "within 1 s: thinking\n"
    )


def test_the_exit_code_is_the_engine_s_and_both_have_the_same_ports(tmp_path):
    sidecar = (str(paths.ROOT / "tests" / "fake_sidecar.py"), "--port", "{message_port}", "--http-port", "{http_port}")
    done = run_beside(
        tmp_path, *sidecar, ready_s="30", engine=("-c", "import sys; print('engine has {message_port}'); sys.exit(5)")
    )
    said = json.loads(done.stdout.splitlines()[0].removeprefix("beside: "))
    assert (
        done.returncode == 5
        and said["settings"]["mp"]["chunk_size"] == 256
        and done.stdout.splitlines()[1] == f"engine has {said['message_port']}"
    )


def test_two_commands_are_wanted(tmp_path):
    done = subprocess.run(
        [sys.executable, beside.__file__, "--name", "lmcache", "--log", str(tmp_path / "log"), "--", "one"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and "two commands are wanted, with --- between them" in done.stderr
