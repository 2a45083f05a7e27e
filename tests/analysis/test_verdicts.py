"""Verdicts on studies whose answers are known, and on the published ones."""

import json
import math

import pandas
import pytest
from typer.testing import CliRunner

from serving_study import cli, paths
from serving_study.analysis import host_tables, verdicts
from serving_study.analysis.verdicts import DIFFERS, NOT_COMPARABLE, REPRODUCES, Study
from serving_study.chapters.speculation import crossover
from serving_study.errors import ParameterError
from serving_study.measure import sweep
from serving_study.results import old_cells, store

FACTS = {
    "machine": "1 × NVIDIA L4",
    "model": "m",
    "draft": None,
    "weights": "real",
    "acceptance": None,
    "data set": "d",
    "load": "l",
    "version": "0.32.0",
}


def study(values: dict, **facts) -> Study:
    """`{(arm, concurrency): [a value a repeat]}`, all measured on FACTS."""
    rows = [
        {
            "arm": arm,
            "concurrency": concurrency,
            "repeat": repeat,
            "certificate": "pass",
            "output_throughput": value,
            "facts": FACTS | facts,
        }
        for (arm, concurrency), repeats in values.items()
        for repeat, value in enumerate(repeats)
    ]
    return Study("s", old_cells.with_arm_columns(pandas.DataFrame(rows)))


BASE = {("baseline", 1): [100.0, 101, 99], ("baseline-again", 1): [100.2, 100.9, 99.1], ("fast", 1): [150.0, 151, 149]}


def judge(a: Study, b: Study, **options):
    table = verdicts.verdicts(a, b, metrics=("output_throughput",), **options)
    return {(row.kind, row.arm): (row.verdict, row.why, row.change) for row in table.itertuples()}


@pytest.mark.parametrize(("a", "b"), [(100.0, 126.0), (120.0, 100.0), (100.0, 104.9), (0.0, 1.0), (0.0, 0.0)])
def test_swapping_two_studies_swaps_the_verdict(a, b):
    """Within a tolerance of 25 %, 100 reproduces 125 as 125 reproduces 100."""
    assert verdicts.within(a, b, 0.25) == verdicts.within(b, a, 0.25)
    there, back = (
        judge(study({("baseline", 1): [x]}), study({("baseline", 1): [y]}), tolerance=0.25)["absolute", "baseline"]
        for x, y in ((a, b), (b, a))
        if min(x, y) >= 0
    )
    assert there[0] == back[0] and ("higher" in there[1]) == ("lower" in back[1])


def test_equal_studies_reproduce():
    found = judge(study(BASE), study(BASE))
    assert {verdict for verdict, _, _ in found.values()} == {REPRODUCES} and len(found) == 5
    assert found["ratio", "fast"][1].startswith("the intervals overlap (the wider is a factor of 1.0")


def test_a_difference_says_how_much_and_which_way():
    slower = BASE | {("fast", 1): [120.0, 121, 119]}
    found = judge(study(slower), study(BASE))
    assert (
        found["absolute", "fast"][0] == DIFFERS
        and found["absolute", "fast"][1] == "20.0% lower, outside both intervals"
    )
    assert found["ratio", "fast"][0] == DIFFERS and found["absolute", "baseline"][0] == REPRODUCES
    assert judge(study(BASE), study(slower))["ratio", "fast"][1] == "25.0% higher, outside both intervals"
    # Within the tolerance that was stated it still reproduces.
    assert judge(study(slower), study(BASE), tolerance=0.26)["absolute", "fast"][:2] == (REPRODUCES, "within 26%")


@pytest.mark.parametrize("name", FACTS)
def test_what_is_unequal_is_named_and_nothing_is_pretended(name):
    found = judge(study(BASE), study(BASE, **{name: "other"}))
    assert found["absolute", "fast"][:2] == (NOT_COMPARABLE, f"{name}: {FACTS[name]} against other")
    # Ratios between arms hold across machines and versions, and across nothing else.
    assert found["ratio", "fast"][0] == (REPRODUCES if name in ("machine", "version") else NOT_COMPARABLE)


def test_a_failed_cell_takes_no_part():
    broken = study(BASE)
    broken.frame.loc[broken.frame["arm"] == "fast", "certificate"] = "fail"
    assert ("absolute", "fast") not in judge(broken, study(BASE))


def test_one_draw_is_as_wide_as_its_floor():
    one = {("baseline", 1): [100.0], ("baseline-again", 1): [110.0], ("fast", 1): [150.0]}
    found = judge(study(one), study(one | {("fast", 1): [165.0]}))
    assert found["absolute", "fast"][0] == REPRODUCES
    without = {key: value for key, value in one.items() if key[0] != "baseline-again"}
    assert judge(study(without), study(without | {("fast", 1): [165.0]}))["absolute", "fast"][0] == DIFFERS


def test_the_published_h200_reproduces_its_earlier_run_and_is_not_held_against_the_l4():
    runs = [run.name for run in store.Store("h200x1", 3, paths.RESULTS_PUBLISHED).runs()]
    names = {name: verdicts.study(f"h200x1/{name}", 3, paths.RESULTS_PUBLISHED) for name in runs}
    assert set(verdicts.verdicts(names[runs[0]], names[runs[0]])["verdict"]) == {REPRODUCES}
    table = verdicts.verdicts(verdicts.study("h200x1", 3, paths.RESULTS_PUBLISHED), verdicts.study("reference/l4x1", 3))
    assert set(table["verdict"]) == {NOT_COMPARABLE} and table["why"].str.contains("weights: random against real").all()
    assert {"absolute", "ratio"} == set(table["kind"])


def test_unknown_studies_are_named():
    with pytest.raises(
        ParameterError, match="no results of that name: nowhere\n.*allowed: cpu-.*, h200x1, reference/l4x1"
    ):
        verdicts.study("nowhere", 3, paths.RESULTS_PUBLISHED)
    with pytest.raises(ParameterError, match="no results of that name: h200x1/none"):
        verdicts.study("h200x1/none", 3, paths.RESULTS_PUBLISHED)
    with pytest.raises(ParameterError, match="no such host.*reference/b200\n.*allowed: reference/l4x1"):
        verdicts.study("reference/b200", 3)
    with pytest.raises(ParameterError, match="no figures by concurrency of this host.*reference/l4x4, section 5"):
        verdicts.study("reference/l4x4", 5)


def test_the_reference_study_states_each_arms_own_model_and_load():
    facts = {(row.arm, row.concurrency): row.facts for row in verdicts.study("reference/a10gx4", 5).frame.itertuples()}
    assert facts["14b-tp2", 8]["model"] == "qwen2.5-14b" and facts["7b-tp1", 8]["model"] == "qwen2.5-7b"
    assert facts["7b-tp1", 8]["load"].startswith("24 prompts, ") and facts["7b-tp1", 8]["acceptance"] is None


def test_earlier_runs_are_all_but_the_current_one():
    known = store.Store("h200x1", 3, paths.RESULTS_PUBLISHED)
    current = set(known.newest()["file"])
    earlier = verdicts.earlier("h200x1", 3, current, paths.RESULTS_PUBLISHED)
    assert earlier and not any(set(study.frame["file"]) & current for study in earlier)


def test_what_tpot_explains_of_the_references_ratios():
    table = verdicts.explained(3, "l4x1").set_index(["arm", "concurrency"])
    row = table.loc[("draft-k3", 64)]
    # The reference study: 1.74 times the throughput at a TPOT 1.19 times better.
    assert (round(row["ratio"], 2), round(row["latency"], 2)) == (1.74, 1.19)
    assert row["share"] == pytest.approx(math.log(row["latency"]) / math.log(row["ratio"])) and row[
        "rest"
    ] == pytest.approx(row["ratio"] / row["latency"])
    assert "baseline" not in table.index.get_level_values("arm")


def call(*words):
    return CliRunner().invoke(cli.app, ["compare", *words])


def test_compare_on_the_command_line():
    run = store.Store("h200x1", 3, paths.RESULTS_PUBLISHED).runs()[0].name
    same = call(f"h200x1/{run}", f"h200x1/{run}")
    assert (
        same.exit_code == 0 and "0 differs, 0 not comparable" in same.output and "the intervals overlap" in same.output
    )
    nothing = call("h200x1", "reference/l4x1", "--json")
    found = json.loads(nothing.output)
    assert nothing.exit_code == 3 and found["counts"] == {
        REPRODUCES: 0,
        DIFFERS: 0,
        NOT_COMPARABLE: len(found["verdicts"]),
    }
    assert set(found["verdicts"][0]) == {"kind", "metric", "arm", "concurrency", "a", "b", "change", "verdict", "why"}
    assert isinstance(call("h200x1", "cpu", "--tolerance", "2").exception, ParameterError)


def test_narrowing_measures_the_arm_and_the_baseline_between(monkeypatch, study):
    """The plan of what `narrow` would run: the baseline and the arm whose crossover lies inside, at the concurrencies
    between.
    """
    base, arm, lost = study.arm("baseline"), study.arm("arm", k=3), study.arm("lost", k=1)
    plan = study.plan([base, arm, lost], concurrencies=(1, 16), repeats=2)
    ratios = {"baseline": (100, 100), "arm": (150, 80), "lost": (50, 50), "baseline-again": (100.5, 100.2)}
    rows = [
        {
            "arm": name,
            "concurrency": concurrency,
            "repeat": repeat,
            "certificate": "pass",
            "output_throughput": value * (1 + 0.001 * repeat),
            "repeat_of": "baseline" if name == "baseline-again" else None,
        }
        for name, pair in ratios.items()
        for concurrency, value in zip((1, 16), pair, strict=True)
        for repeat in range(2)
    ]
    asked = []

    class Found:
        def __init__(self, frame):
            self.frame = lambda: frame

    def run(more):
        asked.append(
            ([made.name for made in more.arms], [(load.concurrency, load.prompts) for load in more.loads], more.repeats)
        )
        return Found(
            pandas.DataFrame(
                [{"arm": made.name, "concurrency": load.concurrency} for made in more.arms for load in more.loads]
            )
        )

    monkeypatch.setattr(sweep, "run", run)
    frame = crossover.narrow(plan, Found(pandas.DataFrame(rows)), cells=2)
    # Eight prompts at 1 and at 16: eight rounds and half a one; in between, whole rounds.
    assert asked == [(["baseline", "arm"], [(3, 21), (6, 36)], 2)]
    assert len(frame) == len(rows) + 4
    asked.clear()
    assert crossover.narrow(plan, Found(pandas.DataFrame(rows)), cells=0) is not None and not asked


def test_where_the_baseline_and_its_twin_are_withheld_there_are_no_multiples_of_it():
    frame = store.Store("cpu-46af", 3).newest()
    frame.loc[(frame["arm"] == "baseline") | (frame["repeat_of"] == "baseline"), "certificate"] = "fail"
    arms = ["ngram-k3", "draft-k1"]
    table = host_tables.hosts(3, "output_throughput", arms, frame, baseline="baseline").data
    assert table[table["host"] == "cpu-46af"][arms].isna().all(axis=None)
    assert table[table["host"] != "cpu-46af"][arms].notna().any(axis=None)


def test_a_comparison_says_which_machines_it_is_of():
    shown = CliRunner().invoke(cli.app, ["compare", "cpu-46af", "cpu-c2f5", "--section", "3"])
    for name, kernel in (("cpu-46af", "v782"), ("cpu-c2f5", "v657")):
        line = f"{name}: {name}, AMD EPYC, 2 cores, 24 GiB, kvm, kernel 6.18.44-fc-{kernel}"
        assert line in shown.output.splitlines(), shown.output
    # Two processors of one name under two kernels are two machines: no absolute figure is held against the other's.
    assert "machine: AMD EPYC" in shown.output and "  absolute  " not in shown.output
    caption = host_tables.hosts(3, "output_throughput", ["baseline"], store.Store("cpu-46af", 3).newest()).caption
    assert "cpu-c2f5: AMD EPYC, 2 cores, 24 GiB, kvm, kernel 6.18.44-fc-v657" in caption
    assert verdicts.machine_lines("reference/l4x1", 3) == ["reference/l4x1: as the reference study states it"]
