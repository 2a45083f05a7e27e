"""`status.json`: what a watcher reads of a run while it goes on, and what is left of it afterwards."""

import pytest

from serving_study import files, paths
from serving_study.errors import StoreError
from serving_study.measure import life, progress, sweep
from serving_study.measure.progress import Progress
from serving_study.results.store import Run, Store


def test_each_cell_is_told_as_it_begins_and_the_last_state_is_done(study, monkeypatch):
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 0.0)
    seen, real = [], life.measure_cell

    def measure(run, cell, *rest, **more):
        seen.append(files.read(run.folder / "status.json"))
        return real(run, cell, *rest, **more)

    monkeypatch.setattr(life, "measure_cell", measure)
    plan = study.plan([study.arm("first"), study.arm("second")])
    run = sweep.run(plan).run
    told = [(row["arm"], row["cell"], row["done_cells"], row["cells"], row["state"]) for row in seen]
    [first], [second] = map(plan.cells, plan.arms)
    assert told == [("first", first.name, 0, 2, "running"), ("second", second.name, 1, 2, "running")]
    assert seen[0]["section"] == 3 and seen[0]["run"] == run.name
    assert seen[0]["spent_s"] < seen[1]["spent_s"] and seen[0]["left_s"] > seen[1]["left_s"] > 0
    last = files.read(run.folder / "status.json")
    assert (last["state"], last["done_cells"], last["left_s"], last["cell"]) == ("done", 2, 0.0, None)


@pytest.mark.parametrize(("error", "state"), [(StoreError("no space"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_what_ends_a_run_early_is_its_last_state(study, monkeypatch, error, state):
    def measure(*_, **more):
        raise error

    monkeypatch.setattr(life, "measure_cell", measure)
    plan = study.plan([study.arm("first")])
    with pytest.raises(type(error)):
        sweep.run(plan)
    [file] = Store(plan.host.name, plan.section).folder.glob("*/status.json")
    status = files.read(file)
    assert (status["state"], status["cell"], status["done_cells"]) == (state, plan.cells(plan.arms[0])[0].name, 0)


def test_the_next_run_says_that_a_killed_one_was_interrupted(study):
    plan = study.plan([study.arm("first")])
    known = Store(plan.host.name, plan.section)
    killed = known.folder / "20200101T000000Z" / "status.json"
    files.write(killed, {"state": "running", "cell": "first c2 repeat=0"})
    log = killed.parent / "arms" / "first" / "life=2" / "server.log"
    files.write(log, f"caching under {paths.CACHE}/models\n")
    run = sweep.run(plan).run
    assert files.read(killed) == {"state": "interrupted", "cell": "first c2 repeat=0"}
    assert log.read_text() == "caching under .cache/models\n" and (killed.parent / "cells.csv").is_file()
    assert files.read(run.folder / "status.json")["state"] == "done"


def test_it_is_written_at_most_once_a_second_and_nothing_is_lost(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(progress.files, "write", lambda file, status: written.append(status))
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 0.2)
    with Progress(3, Run(tmp_path), total_s=10.0, cells=50) as shown:
        for _ in range(50):
            shown.advance(0.1, cell=True)
        assert len(written) <= 2
        timer = shown._status._timer
        if timer:
            timer.join()
        assert written[-1]["done_cells"] == 50 and written[-1]["state"] == "running"
    assert written[-1]["state"] == "done" and len(written) <= 4


def test_a_disk_that_is_full_does_not_end_the_run(tmp_path, monkeypatch):
    def write(*_):
        raise StoreError("no space")

    monkeypatch.setattr(progress.files, "write", write)
    with Progress(3, Run(tmp_path), total_s=1.0, cells=1) as shown:
        shown.advance(1.0, cell=True)
    assert shown.done_cells == 1
