"""Plans in blocks: servers side by side, lives mirrored, more blocks of what is undecided, a run broken off."""

import time
from dataclasses import replace

import pandas
import psutil
import pytest
from fake_study import HOST, cells

from serving_study import files
from serving_study.measure import life, sweep
from serving_study.results import store
from serving_study.servers.arm import again


def beside(study, names=("base", "fast", "slow"), **about):
    """A plan side by side of these arms and the first one's twin."""
    arms = [study.arm(name) for name in names]
    plan = study.plan([*arms, again(arms[0])], prompts=4, repeats=about.pop("repeats", 2))
    return replace(plan, side_by_side=True, **about)


def by_time(results):
    return [store.read_cell(file) for file in sorted(results.files.values(), key=lambda file: file.stat().st_mtime_ns)]


def test_a_block_is_each_arm_once_and_the_others_stand_still(study, monkeypatch):
    seen, real = [], life.measure_cell

    def measure(run, cell, server, *rest, **more):
        others = study.alive() - {server.pid} - {event["pid"] for event in study.events("worker")}
        seen.append([psutil.Process(pid).status() for pid in others])
        return real(run, cell, server, *rest, **more)

    monkeypatch.setattr(life, "measure_cell", measure)
    results = sweep.run(beside(study, repeats=3))
    measured = by_time(results)
    assert [cell["repeat"] for cell in measured] == [0] * 4 + [1] * 4 + [2] * 4
    orders = [[cell["arm"] for cell in measured if cell["repeat"] == block] for block in range(3)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders) and len(set(map(tuple, orders))) > 1
    assert {tuple(states) for states in seen} == {(psutil.STATUS_STOPPED,) * 3}
    assert {(cell["life"], cell["sitting"]) for cell in measured} == {(1, 1)}
    assert all(cell["idle"]["servers"] == 3 and cell["idle"]["cpu_s"] == 0 for cell in measured)
    assert sweep.run(beside(study, repeats=3)).run is None
    study.assert_nothing_left()


def test_every_sitting_has_new_lives_and_new_blocks(study):
    results = sweep.run(beside(study, repeats=4, lives=2))
    measured = by_time(results)
    assert {(cell["sitting"], cell["life"], cell["repeat"]) for cell in measured} == {
        (1, 1, 0),
        (1, 1, 1),
        (2, 2, 2),
        (2, 2, 3),
    }
    assert len({cell["server"]["pid"] for cell in measured}) == 8
    assert len(results.run.start_files()) == 8


def test_what_memory_does_not_hold_is_measured_in_groups_beside_the_baseline(study, monkeypatch):
    monkeypatch.setattr(sweep, "_fits", lambda lives: len(lives) < 3)
    measured = by_time(sweep.run(beside(study, repeats=1)))
    blocks = {block: {cell["arm"] for cell in measured if cell["repeat"] == block} for block in range(2)}
    assert blocks == {0: {"base", "fast", "slow"}, 1: {"base", "base-again"}}
    assert len({cell["server"]["pid"] for cell in measured if cell["arm"] == "base"}) == 1


def test_lives_one_after_the_other_are_mirrored(study):
    arms = [study.arm("first"), study.arm("second"), study.arm("third")]
    plan = replace(study.plan(arms, prompts=4, repeats=2), lives=2)
    measured = by_time(sweep.run(plan))
    assert [(cell["arm"], cell["life"]) for cell in measured] == [
        ("first", 1),
        ("second", 1),
        ("third", 1),
        ("third", 2),
        ("second", 2),
        ("first", 2),
    ]
    assert {cell["sitting"] for cell in measured} == {None}


@pytest.mark.parametrize("side_by_side", [True, False])
def test_blocks_go_on_for_what_is_undecided_until_it_is_or_the_time_is_over(study, monkeypatch, side_by_side):
    asked = []

    def decisions(frame):
        asked.append(len(frame))
        return pandas.DataFrame([("fast", "concurrency=2", len(asked) >= 3)], columns=["arm", "load", "decided"])

    monkeypatch.setattr(sweep.Course, "round_s", lambda course, only: 0.0)
    plan = replace(
        beside(study, repeats=1, decisions=decisions),
        side_by_side=side_by_side,
        minutes=30.0 / 60 if side_by_side else 10.0,
    )
    results = sweep.run(plan)
    measured = [cell["arm"] for cell in by_time(results)]
    assert measured.count("slow") < measured.count("fast") and measured.count("base") == measured.count("fast")
    levels = [look["level"] for look in files.read(results.run.folder / "run.json")["looks"]]
    assert len(levels) == len(asked) + 1 and levels[-1] == max(levels) and sum(levels) < 0.05
    assert sweep.run(plan).run is None


def test_measuring_ends_with_its_minutes_whatever_is_undecided(study):
    never = pandas.DataFrame([("fast", "concurrency=2", False)], columns=["arm", "load", "decided"])
    plan = beside(study, repeats=1, minutes=0.2, decisions=lambda frame: never)
    began = time.monotonic()
    results = sweep.run(plan)
    assert time.monotonic() - began < 60 and len(cells(results)) >= 4
    assert sweep.run(plan).run is None  # its minutes are spent, over all runs


def test_an_arm_that_cannot_start_costs_the_others_nothing(study):
    plan = beside(study, repeats=2)
    arms = [plan.arms[0], study.arm("broken", fault="oom"), *plan.arms[1:]]
    results = sweep.run(replace(plan, arms=tuple(arms)))
    assert {arm for arm, *_ in cells(results)} == {"base", "fast", "slow", "base-again"}
    assert len(cells(results)) == 8
    study.assert_nothing_left()


def test_a_server_that_dies_in_a_block_is_started_once_more(study):
    plan = beside(study, repeats=3)
    arms = [plan.arms[0], study.arm("once", fault="dead-after", lives=1), *plan.arms[2:]]
    results = sweep.run(replace(plan, arms=tuple(arms)))
    assert {repeat for arm, _, repeat in cells(results) if arm == "once"} == {0, 1, 2}
    study.assert_nothing_left()


def test_a_sitting_that_was_broken_off_loses_no_cell_and_blocks_go_on(study, monkeypatch):
    real, left = life.measure_cell, iter(range(6))

    def measure(*rest, **more):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*rest, **more)

    plan = beside(study, repeats=2)
    with monkeypatch.context() as patch:
        patch.setattr(life, "measure_cell", measure)
        with pytest.raises(KeyboardInterrupt):
            sweep.run(plan)
    study.assert_nothing_left()
    results = sweep.run(plan)
    measured = by_time(results)
    assert len(measured) == 6 + 4  # one block was whole, two cells are of a broken one, and one more is whole
    assert {cell["repeat"] for cell in measured if cell["run"] == results.run.name} == {2}
    assert HOST.name == results.plan.host.name
