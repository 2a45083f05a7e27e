"""Servers that a template forks are as visible, as mortal and as separate as those of new interpreters."""

import json
import os
import signal
import sys

import psutil
import pytest
from fake_study import OUT_OF_MEMORY, cells, starts, wait_for

from serving_study import files
from serving_study.environments import templates
from serving_study.errors import ServerError
from serving_study.measure import sweep
from serving_study.servers import lifetime, server

OF_JSON = templates.Template(("json",), frozenset({"LATE"}))


@pytest.fixture
def engine():
    return "fake"


@pytest.fixture
def forked(study, monkeypatch):
    """The fakes, forked from a template."""
    monkeypatch.setenv("FAKE_TEMPLATE", "json http.server")
    return study


def ours(study) -> list[psutil.Process]:
    """Templates and what they forked, by the environment that the template was given."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("JOURNAL") == str(study.journal) and process.status() != psutil.STATUS_ZOMBIE:
                processes += [process] if "template.py" in " ".join(process.cmdline()) else []
        except psutil.Error:
            continue
    return processes


def assert_none_left(study) -> None:
    study.assert_nothing_left()
    wait_for(lambda: not ours(study), 20)


def test_a_sweep_from_one_template_is_that_of_servers_started_by_themselves(study, monkeypatch, capfd):
    arms = [study.arm("first"), study.arm("second", k=3), study.arm("ranks", tensor_parallel_size=2)]
    monkeypatch.setenv("FAKE_TEMPLATE", "json http.server")
    results = sweep.run(study.plan(arms))
    assert_none_left(study)
    assert {record["figures"]["started_from"] for record in starts(results).values()} == {"template"}
    assert {cell["certificate"]["verdict"] for cell in cells(results).values()} == {"pass"}
    assert [process["name"] for process in cells(results)["ranks", 2, 0]["ranks"]["processes"]] == [
        "VLLM::Worker_TP0",
        "VLLM::Worker_TP1",
    ]
    monkeypatch.delenv("FAKE_TEMPLATE")
    assert not any(study.plan(arms).pending(results.store).values())  # the way of a start is in no key
    again = sweep.run(study.plan(arms), fresh=True)
    assert not any("started_from" in files.read(file)["figures"] for file in again.run.start_files())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("fault", ["oom", "dies-after", "ignores-term", "escapee"])
def test_what_goes_wrong_is_recorded_as_ever(study, monkeypatch, fault):
    records = []
    for modules in ("", "json"):
        monkeypatch.setenv("FAKE_TEMPLATE", modules)
        results = sweep.run(study.plan([study.arm("faulty", fault=fault), study.arm("good")]), fresh=True)
        record, good = (files.read(results.run.start_folder(name) / "start.json") for name in ("faulty", "good"))
        said = [line for line in record["last_lines"] if "127.0.0.1" not in line and not line.startswith("$")]
        records.append((record["outcome"], record["reason"], record["exit_code"], said))
        assert good["outcome"] == "ok" and ("started_from" in good["figures"]) == bool(modules)
        assert_none_left(study)
    assert records[0] == records[1]
    assert fault != "oom" or records[0][1] == OUT_OF_MEMORY


def test_a_killed_harness_leaves_neither_server_nor_template_behind(forked):
    process = forked.harness([{"name": "a"}, {"name": "b"}], repeats=4)
    try:
        wait_for(lambda: forked.events("stream"))
        assert len(ours(forked)) >= 3  # the template, the warden and the server of it
    finally:
        process.kill()
        process.wait()
    assert_none_left(forked)


def test_a_server_does_not_outlive_its_warden(forked):
    plan = forked.plan([forked.arm("good")])
    (forked.folder / "log").mkdir()
    with (
        templates.kept(),
        pytest.raises(ServerError, match="good: the server ended"),
        lifetime.serve(plan.arms[0], plan.host, plan.environment_of, forked.folder / "log") as running,
    ):
        assert forked.alive() == {running.pid} and running.owns_port() is True and running.from_template
        running.running[0].warden.kill()
        running.require_alive(10)
    assert running.running[0].warden.returncode == -signal.SIGKILL
    assert_none_left(forked)


def test_one_that_is_frozen_is_ended_all_the_same(forked):
    plan = forked.plan([forked.arm("good")])
    with (
        templates.kept(),
        lifetime.serve(plan.arms[0], plan.host, plan.environment_of, forked.folder / "log") as running,
    ):
        running.freeze()
        wait_for(lambda: psutil.Process(running.pid).status() == psutil.STATUS_STOPPED)
    assert running.running[0].warden.returncode == 256 - signal.SIGTERM
    assert_none_left(forked)


def test_a_template_that_cannot_be_made_is_said_once_and_missed_by_nobody(study, monkeypatch, capfd):
    monkeypatch.setenv("FAKE_TEMPLATE", "no_such_module")
    results = sweep.run(study.plan([study.arm("a"), study.arm("b")]))
    assert {record["outcome"] for record in starts(results).values()} == {"ok"}
    assert not any("started_from" in record["figures"] for record in starts(results).values())
    said = capfd.readouterr().err
    assert said.count("servers are started by themselves") == 1
    assert "the template failed: ModuleNotFoundError: No module named 'no_such_module'" in said
    assert_none_left(study)


def test_a_server_lives_on_without_its_template_and_the_next_one_starts_by_itself(forked, capfd):
    plan = forked.plan([forked.arm("good"), forked.arm("next")])
    with templates.kept():
        with lifetime.serve(plan.arms[0], plan.host, plan.environment_of, forked.folder / "log") as running:
            templates._kept._living.process.kill()
            templates._kept._living.process.wait()
            running.require_alive()
            running.fill("the river", "a request")
            with lifetime.serve(plan.arms[1], plan.host, plan.environment_of, forked.folder / "log-2") as other:
                assert running.from_template and not other.from_template
        assert running.running[0].warden.returncode == 256 - signal.SIGTERM
    assert "the template failed" in capfd.readouterr().err
    assert_none_left(forked)


PROGRAM = """
import json, multiprocessing, os, sys

def child(queue):
    queue.put([os.getppid(), os.environ.get("SET_LATER"), os.getcwd(), __name__])
    sys.exit(7)

if __name__ == "__main__":
    os.environ["SET_LATER"] = "yes"
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    answer = queue.get()
    process.join()
    lines = open("/proc/self/status").read().splitlines()
    signals = [line for line in lines if line.startswith(("SigIgn", "SigBlk"))]
    print(json.dumps({"child": answer, "own": os.getpid(), "code": process.exitcode, "group": os.getpgid(0),
                      "argv": sys.argv, "signals": signals, "path": sys.path[0], "late": os.environ.get("LATE"),
                      "descriptors": sorted(os.listdir("/proc/self/fd")), "modules": "http.server" in sys.modules}))
    sys.exit(3)
"""


def words_of(study, tmp_path, template, **variables) -> tuple[dict, object]:
    """What PROGRAM says of itself, and its server."""
    (tmp_path / "program.py").write_text(PROGRAM)
    log, environment = tmp_path / "server.log", {**os.environ, **variables}
    command = [sys.executable, str(tmp_path / "program.py"), "word"]
    running = server.start("server", command, (), log, environment, tmp_path, template)
    wait_for(lambda: not running.alive())
    assert running.ended_at()
    running.close()
    running.wait()
    return json.loads(log.read_text().splitlines()[-1]), running


def test_what_is_spawned_is_the_servers_own_child_with_its_variables_of_then(study, tmp_path):
    reports = []
    with templates.kept():
        for template in (None, templates.Template(("http.server",))):
            said, running = words_of(study, tmp_path, template)
            assert running.forked == (template is not None) == said.pop("modules")
            own = said.pop("own")
            assert running.pid == own == said.pop("group") and running.warden.returncode == 3
            assert said["child"].pop(0) == own
            reports.append(said)
    said.pop("descriptors")  # one more, to its helper
    assert len(reports[0].pop("descriptors")) <= 10
    assert reports[0] == reports[1] and said["child"] == ["yes", str(tmp_path), "__mp_main__"] and said["code"] == 7
    assert_none_left(study)


def test_one_template_serves_all_that_differ_in_late_variables_alone(study, tmp_path):
    with templates.kept():
        seen = []
        for variables in ({"LATE": "1"}, {"LATE": "2"}, {"EARLY": "1"}):
            said, running = words_of(study, tmp_path, OF_JSON, **variables)
            assert said["late"] == variables.get("LATE") and running.forked
            seen.append(templates._kept._living.process.pid)
    assert seen[0] == seen[1] != seen[2]
    assert templates._kept is None
    said, running = words_of(study, tmp_path, OF_JSON)
    assert not running.forked
    assert_none_left(study)
