"""What test_fault_matrix.py leaves open of faults in a sweep: what is recorded, what is measured after all, and the
life and death of servers, harnesses and files. Which check catches which fault stands there."""

import errno
import functools
import os
import signal
from dataclasses import replace

import fake_study
import psutil
import pytest
from fake_study import CRASHED, OUT_OF_MEMORY, both, cells, failed, starts, wait_for

from serving_study import files, loads, paths
from serving_study.engines import base
from serving_study.errors import DatasetError, EngineEnvironmentError, HostError, ModelError, ServerError, StoreError
from serving_study.measure import life, sweep
from serving_study.measure import starts as serving_starts
from serving_study.results import sources, store
from serving_study.servers import client, fleet, lifetime, preflight


def with_a_good_arm(study, **about):
    """A sweep of one faulty arm and then a good one, which must come out whole."""
    results = sweep.run(study.plan([study.arm("faulty", **about), study.arm("good")]))
    good = cells(results)["good", 2, 0]
    assert starts(results)["good"]["outcome"] == "ok"
    assert good["certificate"]["verdict"] == "pass", good["certificate"]
    study.assert_nothing_left()
    return results


@both
def test_good_arms_pass_with_every_check_made(study):
    results = sweep.run(
        study.plan([study.arm("baseline"), study.arm("draft-k3", k=3)], concurrencies=(1, 4), repeats=2)
    )
    frame = results.frame()
    assert len(frame) == 8 and set(frame["certificate"]) == {"pass"}
    assert list(frame["arm"]) == ["baseline"] * 4 + ["draft-k3"] * 4
    assert list(frame["concurrency"][:4]) == [1, 1, 4, 4]
    assert frame["total_output_tokens"].eq(8 * 12).all()
    assert frame[frame["arm"] == "draft-k3"]["drafts"].eq(8 * 6).all()
    assert frame[frame["arm"] == "baseline"]["drafts"].isna().all()
    start = results.starts().set_index("arm").loc["baseline"]
    assert (start["outcome"], start["kv_cache_tokens"], start["max_concurrency"], start["weights_gib"]) == (
        "ok",
        12288,
        6.0,
        0.25,
    )
    # Two servers, one load generator; a warm-up at the highest concurrency, then the four cells.
    assert len(study.events("server")) == 2 and len(study.events("worker")) == 1
    assert [event["prompts"] for event in study.events("load")] == [4, 8, 8, 8, 8] * 2
    sent = study.events("stream")[-1]
    assert sent["temperature"] == 0.0 and sent["ignore_eos"] is True and sent["max_tokens"] == 12
    figures = starts(results)["baseline"]["figures"]
    assert set(figures["phases"]) <= set(base.PHASES) and {base.FIRST_REQUEST, base.OTHER} <= set(figures["phases"])
    assert min(figures["phases"].values()) >= -0.001
    assert sum(figures["phases"].values()) == pytest.approx(figures["startup_s"], abs=0.01)
    run = files.read(results.run.folder / "run.json")
    assert (
        set(run["timing"]) == {"start", "warm-up", "load", "stop", "harness"}
        and run["provenance"]["engine_versions"] == study.fake.versions
    )
    assert {path.name for path in results.run.folder.iterdir()} == {
        "run.json",
        "cells.csv",
        "starts.csv",
        "status.json",
        "arms",
        "cells",
    }


def test_each_cell_draws_its_own_prompts_and_all_arms_the_same(study):
    sweep.run(study.plan([study.arm("a"), study.arm("b", variant="b")], repeats=2))
    seeds = [event["seed"] for event in study.events("load") if event["prompts"] == 8]
    assert len(set(seeds[:2])) == 2 and sorted(seeds[:2]) == sorted(seeds[2:])
    assert {event["seed"] for event in study.events("load") if event["prompts"] != 8}.isdisjoint(seeds)


@both
def test_a_server_that_does_not_start_leaves_its_log_and_no_figures(study):
    results = with_a_good_arm(study, fault="oom")
    record = starts(results)["faulty"]
    assert (record["outcome"], record["reason"], record["exit_code"]) == ("failed", study.fake.said(OUT_OF_MEMORY), 1)
    assert record["last_lines"] and record["failure_s"] > 0 and record["figures"] == {}
    assert [key[0] for key in cells(results)] == ["good"]
    assert list(results.starts()["outcome"]) == ["failed", "ok"]
    last_word = study.fake.dialect.out_of_memory.splitlines()[-1]
    assert last_word in "\n".join(record["last_lines"])
    assert last_word in (results.run.folder / "arms" / "faulty" / "server.log").read_text()


@both
def test_a_slow_start_is_waited_for(study):
    results = with_a_good_arm(study, fault="slow-start")
    assert (
        starts(results)["faulty"]["outcome"] == "ok"
        and cells(results)["faulty", 2, 0]["certificate"]["verdict"] == "pass"
    )


@both
def test_a_server_that_is_dead_after_a_load_is_started_once_more_and_then_given_up(study, monkeypatch):
    monkeypatch.setattr(client, "LAST_WORDS_S", 0.2)
    results = with_a_good_arm(study, fault="dead-after")
    record, cell = starts(results)["faulty"], cells(results)["faulty", 2, 0]
    assert (record["outcome"], record["reason"]) == ("failed", "no token came back after the load") and len(
        record["lost_cells"]
    ) == 1
    assert failed(cell) == ["alive afterwards"]  # what was measured stays as evidence, under a certificate that failed


@both
def test_a_server_that_recovers_gives_the_cell_again(study, monkeypatch):
    monkeypatch.setattr(client, "LAST_WORDS_S", 0.2)
    results = sweep.run(study.plan([study.arm("once", fault="dead-after", lives=1)], repeats=2))
    assert starts(results)["once"]["outcome"] == "ok" and len(starts(results)["once"]["lost_cells"]) == 1
    assert [cell["certificate"]["verdict"] for cell in cells(results).values()] == ["pass", "pass"]
    kept = {log.name for log in results.run.start_folder("once").glob("*.log")}
    assert kept == {"server.log", "server-lost.log"}  # each server's own, or the cause of the first one's end were gone


@both
def test_a_server_that_dies_under_load_is_started_once_more_and_then_given_up(study):
    # Two streams warm up, then the cell dies in its fifth.
    results = with_a_good_arm(study, fault="dies-after", after=6)
    record = starts(results)["faulty"]
    assert record["outcome"] == "failed" and record["exit_code"] == 1
    assert record["reason"] == study.fake.said(CRASHED)
    assert [lost["cell"] for lost in record["lost_cells"]] == ["faulty concurrency=2 repeat=0"]
    assert len(study.events("server")) == 3
    assert ("faulty", 2, 0) not in cells(results)


@both
def test_after_a_death_the_cells_belong_to_their_own_loads(study):
    """The load that the death interrupted still answers later; its answer may not pass for the next load's."""
    arm = study.arm("once", fault="dies-after", after=5, lives=1)
    results = sweep.run(study.plan([arm, study.arm("good")], concurrencies=(2, 4), repeats=2))
    record = starts(results)["once"]
    assert record["outcome"] == "ok" and len(record["lost_cells"]) == 1
    measured = cells(results)
    assert len(measured) == 8 and {cell["certificate"]["verdict"] for cell in measured.values()} == {"pass"}
    for cell in measured.values():
        assert cell["result"]["num_prompts"] == 8 and cell["result"]["total_output_tokens"] == 96
    by_load = {
        (concurrency, repeat): cell["result"]["total_input_tokens"]
        for (arm, concurrency, repeat), cell in measured.items()
        if arm == "good"
    }
    assert len(set(by_load.values())) == 4
    for (name, concurrency, repeat), cell in measured.items():
        assert cell["result"]["total_input_tokens"] == by_load[concurrency, repeat], name
        assert cell["result"]["duration"] == pytest.approx(8 / concurrency * 0.16)


@both
def test_a_server_that_hangs_under_load_is_given_up_and_the_next_arm_measured(study, monkeypatch):
    monkeypatch.setattr(loads.Generator, "run", functools.partialmethod(loads.Generator.run, timeout_s=1.0))
    results = with_a_good_arm(study, fault="hangs", after=2)
    record = starts(results)["faulty"]
    assert record["outcome"] == "failed" and "stopped answering" in record["reason"] and len(record["lost_cells"]) == 1
    assert cells(results)["good", 2, 0]["result"]["num_prompts"] == 8


def test_a_load_generator_that_ends_costs_its_cell_and_no_other_arm(study, monkeypatch):
    monkeypatch.setenv("CRASH", "4")
    with_four = study.plan([study.arm("first"), study.arm("second", variant="b")], concurrencies=(4,))
    results = sweep.run(with_four)
    assert [record["outcome"] for record in starts(results).values()] == ["failed", "failed"]
    assert all(
        "the load generator ended: exit code 139" in record["reason"] and "Segmentation fault" in record["reason"]
        for record in starts(results).values()
    )
    # The command to read its log is for the terminal; what is stored has no path of this machine.
    assert all("load-generator.log" in record["reason"] for record in starts(results).values())
    assert not any(str(paths.RESULTS) in record["reason"] for record in starts(results).values())
    study.assert_nothing_left()
    monkeypatch.delenv("CRASH")
    assert set(sweep.run(with_four).frame()["certificate"]) == {"pass"}


def test_a_load_that_fails_as_its_server_ends_has_the_server_s_cause(study, monkeypatch):
    """The client is refused before the process has ended; the record names what ended it."""
    real, killed = loads.Generator._answer, []

    def answer(generator, deadline, server):
        found = real(generator, deadline, server)
        if server and found["id"] == 3 and not killed:
            killed.append(server.pid)
            os.kill(server.pid, signal.SIGKILL)
            return found | {"ok": False, "error": "ClientConnectorError: Cannot connect"}
        return found

    monkeypatch.setattr(loads.Generator, "_answer", answer)
    results = sweep.run(study.plan([study.arm("once")], repeats=2))
    [lost] = starts(results)["once"]["lost_cells"]
    assert killed and "ClientConnectorError" not in lost["reason"] and "SIGKILL" in lost["reason"]
    assert len(cells(results)) == 2


FIGURES = {"weights_gib": 0.25, "kv_cache_tokens": 12288, "max_concurrency": 6.0}


@both
def test_a_start_that_was_good_keeps_its_figures_when_the_server_dies_later(study):
    results = with_a_good_arm(study, fault="dies-after", after=6)
    record = starts(results)["faulty"]
    assert record["outcome"] == "failed" and record["reason"] == study.fake.said(CRASHED)
    assert record["figures"].items() >= FIGURES.items() and record["figures"]["startup_s"] > 0
    row = results.starts().set_index("arm").loc["faulty"]
    assert (row["outcome"], row["kv_cache_tokens"], row["weights_gib"]) == ("failed", 12288, 0.25)
    assert record["last_lines"] and record["exit_code"] == 1 and "later" not in record


@both
def test_a_second_start_that_fails_leaves_the_figures_of_the_first(study, monkeypatch):
    real, lives = lifetime.serve, []

    def serve(arm, *positional, **named):
        if arm.name == "faulty":
            lives.append(arm)
            if len(lives) > 1:
                raise HostError("too little free memory", value="0.1 GiB free, about 6 wanted")
        return real(arm, *positional, **named)

    monkeypatch.setattr(lifetime, "serve", serve)
    record = starts(with_a_good_arm(study, fault="dies-after", after=6))["faulty"]
    assert len(lives) == 2 and record["outcome"] == "failed" and "too little free memory" in record["reason"]
    assert record["figures"].items() >= FIGURES.items()
    assert record["lost_cells"][0]["reason"] == study.fake.said(CRASHED)


@both
def test_before_a_server_is_started_once_more_its_memory_is_back(study, monkeypatch):
    happened, serve = [], lifetime.serve
    monkeypatch.setattr(preflight, "wait_for_gpu_memory", lambda *_: happened.append("memory"))
    monkeypatch.setattr(lifetime, "serve", lambda *some, **named: happened.append("serve") or serve(*some, **named))
    results = sweep.run(study.plan([study.arm("once", fault="dies-after", after=5, lives=1)], repeats=2))
    assert happened == ["serve", "memory", "serve", "memory"] and starts(results)["once"]["outcome"] == "ok"


@pytest.fixture
def late_memory(monkeypatch):
    """The memory of the first server does not come back in time."""
    asked = []

    def wait(host, baseline_gib, timeout_s=60):
        asked.append(baseline_gib)
        if len(asked) == 1:
            raise HostError("GPU memory did not come back after a server ended", value="free [2.0] GiB")
        return 0.0

    monkeypatch.setattr(preflight, "wait_for_gpu_memory", wait)


def test_memory_that_comes_back_late_is_added_to_a_good_start(study, late_memory):
    results = sweep.run(study.plan([study.arm("late"), study.arm("good")]))
    record = starts(results)["late"]
    assert (record["outcome"], record["reason"], record["exit_code"]) == ("ok", None, None)
    assert record["figures"].items() >= FIGURES.items()
    assert record["later"]["reason"].startswith("GPU memory did not come back after a server ended: free [2.0] GiB")
    assert "later" not in starts(results)["good"] and set(results.frame()["certificate"]) == {"pass"}
    assert sweep.run(study.plan([study.arm("late"), study.arm("good")])).run is None


def test_a_plan_that_only_starts_servers_keeps_a_good_start_too(study, late_memory):
    plan = replace(study.plan([study.arm("late"), study.arm("good")]), loads=())
    results = serving_starts.run(plan)
    record = starts(results)["late"]
    assert record["outcome"] == "ok" and record["figures"].items() >= FIGURES.items()
    assert record["later"]["reason"].startswith("GPU memory did not come back")
    assert serving_starts.stands(record) and serving_starts.pending(plan, results.store) == []


ARMS_ERRORS = {
    "DatasetError": DatasetError("no prompts of that length", value="7 tokens"),
    "ModelError": ModelError("not a tokenizer", value="x"),
    "EngineEnvironmentError": EngineEnvironmentError("gone", value="python"),
    "HostError": HostError("too little of something", value="0"),
}


@pytest.mark.parametrize("name", ARMS_ERRORS)
@pytest.mark.parametrize("place", ["before a load", "at the start"])
def test_an_error_of_one_arm_ends_that_arm_alone(study, monkeypatch, name, place):
    error = ARMS_ERRORS[name]

    def raised(real, is_meant):
        def call(*positional, **named):
            if is_meant(*positional):
                raise error
            return real(*positional, **named)

        return call

    if place == "at the start":
        meant = lambda arm, *_: arm.name == "faulty"  # noqa: E731
        monkeypatch.setattr(fleet, "launch", raised(fleet.launch, meant))
    else:
        meant = lambda run, cell, *_: cell.arm.name == "faulty" and cell.repeat == 1  # noqa: E731
        monkeypatch.setattr(life, "measure_cell", raised(life.measure_cell, meant))
    results = sweep.run(study.plan([study.arm("faulty"), study.arm("good")], repeats=2))
    record = starts(results)["faulty"]
    assert (record["outcome"], record["reason"]) == ("failed", str(error)) and record["lost_cells"] == []
    assert bool(record["figures"]) == (place == "before a load")
    measured = cells(results)
    assert {key for key in measured if key[0] == "good"} == {("good", 2, 0), ("good", 2, 1)}
    assert all(cell["certificate"]["verdict"] == "pass" for cell in measured.values())
    study.assert_nothing_left()


def test_results_that_cannot_be_written_end_the_sweep(study, monkeypatch):
    def measure(*_, **more):
        raise StoreError("a result could not be written; those already stored are intact", value="x")

    monkeypatch.setattr(life, "measure_cell", measure)
    with pytest.raises(StoreError, match="a result could not be written"):
        sweep.run(study.plan([study.arm("first"), study.arm("second")]))
    study.assert_nothing_left()


def test_without_git_a_run_says_what_ran_by_its_digest(study, monkeypatch):
    plan = study.plan([study.arm("good")])
    monkeypatch.setenv("PATH", str(study.folder / "empty"))
    results = sweep.run(plan)
    provenance = files.read(results.run.folder / "run.json")["provenance"]
    assert provenance["git"] is None and provenance["source_sha256"] == sources.digest(3)
    assert set(results.frame()["certificate"]) == {"pass"}
    # What ran does not decide a key: the cells stand when only the source is another one.
    monkeypatch.setattr(sources, "digest", lambda section: "another")
    assert [cell.key for cell in plan.cells(plan.arms[0])] == [cell["key"] for cell in cells(results).values()]
    assert sweep.run(plan).run is None


def test_a_kernels_colours_do_not_reach_a_server(study, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    plan, folder = study.plan([study.arm("good")]), study.folder / "log"
    with lifetime.serve(plan.arms[0], plan.host, plan.environment_of, folder) as server:
        variables = psutil.Process(server.pid).environ()
    assert not {"FORCE_COLOR", "CLICOLOR_FORCE"} & set(variables)


@both
def test_a_cause_in_colours_is_found(study):
    record = starts(with_a_good_arm(study, fault="oom", colours=1))["faulty"]
    assert record["reason"] == study.fake.said(OUT_OF_MEMORY)
    assert "\x1b" not in "\n".join(record["last_lines"])


@both
@pytest.mark.parametrize("fault", ["ignores-term", "escapee"])
def test_what_ignores_sigterm_is_killed_with_all_that_it_started(study, fault):
    results = with_a_good_arm(study, fault=fault)
    assert cells(results)["faulty", 2, 0]["certificate"]["verdict"] == "pass"
    assert len(study.events("child")) == 1


def test_an_unsupported_arm_is_recorded_and_never_started(study):
    plan = study.plan([study.arm("tp2").variant(unsupported="2 GPUs wanted, 0 here"), study.arm("good")])
    results = sweep.run(plan)
    assert (starts(results)["tp2"]["outcome"], starts(results)["tp2"]["reason"]) == (
        "unsupported",
        "2 GPUs wanted, 0 here",
    )
    assert len(study.events("server")) == 1 and list(results.frame()["arm"]) == ["good"]
    assert sweep.run(plan).run is None  # nothing is left to do, not even to say again that it cannot be done


@both
def test_another_jobs_server_on_our_port_is_not_taken_for_ours(study, foreign, monkeypatch):
    monkeypatch.setattr(preflight, "free_port", lambda: foreign)
    results = sweep.run(study.plan([study.arm("faulty", fault="silent")]))
    record = starts(results)["faulty"]
    assert (
        record["outcome"] == "failed"
        and f"port {foreign} is held by" in record["reason"]
        and f"pid {os.getpid()}" in record["reason"]
    )
    assert not study.events("stream")
    study.journal.unlink(missing_ok=True)  # the port stays taken, by the test


def test_a_busy_port_fails_the_arm_before_anything_starts(study, foreign):
    results = sweep.run(study.plan([study.arm("faulty")], port=foreign))
    assert (
        starts(results)["faulty"]["outcome"] == "failed" and "the port is busy" in starts(results)["faulty"]["reason"]
    )
    assert not study.events("server")
    with pytest.raises(HostError, match=f"the port is busy: {foreign}, held by"):
        preflight.check_port(foreign)


def test_a_proxy_of_the_environment_is_not_in_between(study, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert set(sweep.run(study.plan([study.arm("good")])).frame()["certificate"]) == {"pass"}


def test_the_next_server_starts_beside_and_is_frozen_while_cells_are_measured(study, monkeypatch):
    real, seen = life.measure_cell, []

    def measure(run, cell, server, *rest, **more):
        others = study.alive() - {server.pid} - {event["pid"] for event in study.events("worker")}
        seen.append((cell.arm.name, [psutil.Process(pid).status() for pid in others]))
        return real(run, cell, server, *rest, **more)

    monkeypatch.setattr(life, "measure_cell", measure)
    arms = [study.arm("first"), study.arm("second"), study.arm("third")]
    results = sweep.run(study.plan(arms))
    assert seen == [("first", [psutil.STATUS_STOPPED]), ("second", []), ("third", [])]
    assert set(results.frame()["certificate"]) == {"pass"} and len(study.events("server")) == 3
    study.assert_nothing_left()
    # A port of one's own, or no room for two: one after the other.
    assert study.plan(arms).starts_in_pairs()
    assert not replace(study.plan(arms), port=8123).starts_in_pairs()
    assert not replace(study.plan(arms), host=replace(fake_study.HOST, free_memory_gib=2.0)).starts_in_pairs()


@both
def test_a_server_started_ahead_that_dies_is_recorded_in_its_own_turn(study):
    results = sweep.run(study.plan([study.arm("good"), study.arm("faulty", fault="dies-at-start"), study.arm("last")]))
    records = starts(results)
    assert [records[name]["outcome"] for name in ("good", "faulty", "last")] == ["ok", "failed", "ok"]
    assert records["faulty"]["exit_code"] and records["faulty"]["reason"] and records["faulty"]["failure_s"] < 30
    study.assert_nothing_left()


ARMS = [{"name": "baseline", "token_s": 0.02}, {"name": "draft-k3", "k": 3, "token_s": 0.02}]


def test_a_killed_harness_leaves_nothing_behind_and_loses_only_the_cell_in_flight(study, results):
    known = store.Store(fake_study.HOST.name, 3)
    process = study.harness(ARMS, repeats=4)
    try:
        wait_for(lambda: len(known.cell_files()) >= 2)
        assert study.alive() and study.wardens()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    study.assert_nothing_left()
    stored = {
        file: (file.stat().st_mtime_ns, files.read(file)["key"], len(store.requests_of(file)))
        for file in known.cell_files()
    }
    assert 2 <= len(stored) < 8 and all(requests == 8 for _, _, requests in stored.values())
    before = len(study.events("load"))
    plan = study.plan([study.arm(**about) for about in ARMS], repeats=4)
    assert sum(map(len, plan.pending(known).values())) == 8 - len(stored)
    again = sweep.run(plan)
    measured = [event for event in study.events("load")[before:] if event["prompts"] == 8]
    assert len(measured) == 8 - len(stored)
    assert {file: file.stat().st_mtime_ns for file in stored} == {file: about[0] for file, about in stored.items()}
    assert len(again.frame()) == 8 and set(again.frame()["certificate"]) == {"pass"}
    assert len(set(again.frame()["run"])) == 2
    before = len(study.events("server"))
    assert sweep.run(plan).run is None and len(study.events("server")) == before


def test_a_terminated_harness_leaves_nothing_behind(study, results):
    process = study.harness(ARMS, repeats=4)
    try:
        wait_for(lambda: study.events("stream"))
    finally:
        process.terminate()
        process.wait()
    study.assert_nothing_left()


def test_a_server_does_not_outlive_its_warden(study):
    plan = study.plan([study.arm("good")])
    folder = study.folder / "log"
    folder.mkdir()
    with (
        pytest.raises(ServerError, match="good: the server ended"),
        lifetime.serve(plan.arms[0], plan.host, plan.environment_of, folder) as server,
    ):
        assert study.alive() == {server.pid} and server.owns_port() is True
        server.running[0].warden.kill()
        server.require_alive(10)
    study.assert_nothing_left()


def test_two_runs_at_once_on_one_folder_are_refused(study, results):
    process = study.harness(ARMS, repeats=4)
    try:
        wait_for(lambda: study.events("server"))
        with pytest.raises(StoreError, match=rf"another run is writing here: .*section-3 \(pid {process.pid}\)"):
            sweep.run(study.plan([study.arm("other")]))
        assert len(study.events("worker")) <= 1 and "other" not in {event["arm"] for event in study.events("server")}
    finally:
        process.kill()
        process.wait()
    study.assert_nothing_left()
    assert set(sweep.run(study.plan([study.arm("other")])).frame()["certificate"]) == {"pass"}


def test_after_a_full_disk_the_cells_are_intact_and_the_rest_follows(study, results, monkeypatch):
    real, stored = os.replace, []

    def replace(source, target):
        if len(stored) >= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        if "/cells/" in str(target) and not str(target).endswith(".requests.json"):
            stored.append(str(target))
        return real(source, target)

    plan = study.plan([study.arm("a"), study.arm("b", variant="b")], repeats=2, concurrencies=(1, 2))
    with monkeypatch.context() as full:
        full.setattr(os, "replace", replace)
        with pytest.raises(StoreError, match="those already stored are intact") as caught:
            sweep.run(plan)
    assert caught.value.next.startswith("df -h ")
    study.assert_nothing_left()
    known = store.Store(fake_study.HOST.name, 3)
    assert [str(file) for file in sorted(known.cell_files())] == sorted(stored)
    assert {files.read(file)["certificate"]["verdict"] for file in known.cell_files()} == {"pass"} and not list(
        known.folder.rglob("*.tmp")
    )
    done = sweep.run(plan)
    assert (
        len(done.frame()) == 8 and sum(path == file for path in map(str, done.frame()["file"]) for file in stored) == 2
    )


def test_fresh_measures_again_and_the_newest_counts(study):
    plan = study.plan([study.arm("a")])
    first = sweep.run(plan)
    second = sweep.run(plan, fresh=True)
    assert second.run.name != first.run.name and list(second.frame()["run"]) == [second.run.name]
    assert len(second.store.cell_files()) == 2
