"""Advice: targets that are and are not ones, verdicts against intervals, the order of arms, and what is said where
nothing was measured.
"""

import json
import math

import pytest
from toy_results import cell, measure
from typer.testing import CliRunner

from serving_study import cli, files, paths
from serving_study.chapters.choosing import advice, advice_text
from serving_study.chapters.choosing.advice import MEETS, MISSES, UNDECIDED, UNKNOWN
from serving_study.errors import HostError, ParameterError
from serving_study.hardware import prices
from serving_study.results import store


def call(*words):
    return CliRunner().invoke(cli.app, ["advise", *words], catch_exceptions=True)


def asked(root, *slos, **about):
    return advice.of_host("toy", 3, advice.targets(slos), root=root, **about)


def verdicts(found):
    return {(row.arm, row.concurrency): row.verdict for row in found.rows}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ttft_p99=500",
            "no such target: ttft_p99=500\n  allowed: ttft_p50_ms, .*\n  next:    did you mean ttft_p99_ms",
        ),
        ("latency=1", "no such target"),
        ("ttft_p99_ms", "wants milliseconds: ttft_p99_ms\n  allowed: ttft_p99_ms=NUMBER, above 0"),
        ("ttft_p99_ms=fast", "wants milliseconds"),
        ("ttft_p99_ms=0", "wants milliseconds"),
        ("ttft_p99_ms=nan", "wants milliseconds"),
    ],
)
def test_a_target_that_is_none_is_named_with_those_that_are(text, said):
    with pytest.raises(ParameterError, match=said):
        advice.targets([text])


def test_targets_are_columns_of_the_cells():
    assert all(column in store.METRICS for column in advice.SLOS.values()) and len(advice.SLOS) == 16
    assert advice.targets(["ttft_p99_ms=500"])[0].metric == "p99_ttft_ms"
    # The name that `vllm bench serve` gives a figure is understood as well.
    assert advice.targets(["median_tpot_ms = 40"]) == (advice.Target("tpot_p50_ms", 40.0),)
    with pytest.raises(ParameterError, match="given twice: tpot_p50_ms"):
        advice.targets(["median_tpot_ms=40", "tpot_p50_ms=30"])


def test_an_arm_meets_misses_or_is_undecided_by_its_interval(tmp_path):
    measure(
        tmp_path,
        [
            cell(arm, 1, repeat, 100, tpot)
            for arm, values in {"below": (10, 10.1, 9.9), "above": (30, 30.2, 29.8), "around": (15, 21, 27)}.items()
            for repeat, tpot in enumerate(values)
        ],
    )
    found = asked(tmp_path, "tpot_p50_ms=20")
    assert verdicts(found) == {("below", 1): MEETS, ("above", 1): MISSES, ("around", 1): UNDECIDED} and found.found
    figure = next(row for row in found.rows if row.arm == "around").latencies["tpot_p50_ms"]
    assert (
        figure.value == pytest.approx(math.prod((15, 21, 27)) ** (1 / 3))
        and 0 < figure.low < 20 < figure.high
        and figure.repeats == 3
    )
    above = next(row for row in found.rows if row.arm == "above")
    assert above.over == pytest.approx(0.5, abs=0.001) and above.worst == "tpot_p50_ms"


def test_without_repeats_the_noise_floor_is_the_interval(tmp_path):
    measure(
        tmp_path,
        [
            cell("baseline", 1, 0, 100, 10),
            cell("baseline-again", 1, 0, 100, 12),
            cell("near", 1, 0, 100, 18),
            cell("far", 1, 0, 100, 15),
        ],
    )
    found = asked(tmp_path, "tpot_p50_ms=20")
    # A/A differ by a fifth, so 18 may be 21.6.
    assert verdicts(found) == {("baseline", 1): MEETS, ("near", 1): UNDECIDED, ("far", 1): MEETS}


def test_arms_are_ranked_by_throughput_at_their_best_concurrency_and_misses_by_how_little(tmp_path):
    measure(
        tmp_path,
        [
            cell("slow", 1, 0, 50, 10),
            cell("fast", 1, 0, 60, 10),
            cell("fast", 8, 0, 300, 20),
            cell("fast", 64, 0, 900, 50),
            cell("far", 1, 0, 999, 90),
            cell("near", 1, 0, 10, 44),
        ],
    )
    found = asked(tmp_path, "tpot_p50_ms=40")
    assert [(row.arm, row.concurrency) for row in found.arms(MEETS)] == [("fast", 8), ("slow", 1)]
    assert [(row.arm, round(row.over, 3)) for row in found.arms(MISSES)] == [("near", 0.1), ("far", 1.25)]
    lines = advice_text.lines(found)
    assert lines.index("meets every target:") < lines.index("misses:") and any(
        "near" in line and "tpot_p50_ms exceeded by 10%" in line for line in lines
    )


def test_only_cells_whose_certificate_passed_count_and_the_others_are_counted(tmp_path):
    measure(
        tmp_path,
        [
            cell("a", 1, 0, 100, 10, certificate="fail"),
            cell("b", 1, 0, 100, 10, certificate="unknown"),
            cell("c", 1, 0, 100, 10),
        ],
    )
    found = asked(tmp_path, "tpot_p50_ms=20")
    assert set(verdicts(found)) == {("c", 1)} and found.left_out == {"certificate fail": 1, "certificate unknown": 1}
    assert "left out: 1 cell (certificate fail), 1 cell (certificate unknown)" in advice_text.lines(found)


def test_cells_of_another_model_than_the_newest_are_left_out(tmp_path):
    measure(tmp_path, [cell("a", 1, 0, 100, 10), cell("b", 1, 0, 100, 10)], model="an/older")
    measure(tmp_path, [cell("a", 1, 0, 100, 12, at="2026-01-02T00:00:00Z")])
    found = asked(tmp_path, "tpot_p50_ms=20")
    assert (
        set(verdicts(found)) == {("a", 1)}
        and found.left_out == {"another model": 2}
        and "a/model on 1 × NVIDIA Toy, A CPU, 2 cores" in found.where
    )


def test_arms_may_have_a_model_each(tmp_path):
    run = store.Store("toy", 5, tmp_path).new_run()
    files.write(
        run.folder / "run.json",
        {
            "host": {"gpus": [{"name": "NVIDIA Toy"}] * 2, "cpu_model": "A CPU", "cpus": 2},
            "parameters": {"arms": [{"model": "a/7b"}, {"model": "a/14b", "tp": 2}]},
        },
    )
    for name, throughput in (("7b-tp1", 100), ("14b-tp2", 80)):
        run.write_cell(cell(name, 1, 0, throughput, 10) | {"section": 5, "run": run.name}, [])
    found = advice.of_host("toy", 5, advice.targets(["tpot_p50_ms=40"]), root=tmp_path)
    assert (
        verdicts(found) == {("7b-tp1", 1): MEETS, ("14b-tp2", 1): MEETS}
        and not found.left_out
        and "each arm's own model on 2 × NVIDIA Toy, A CPU, 2 cores" in found.where
    )
    assert call("--host", "cpu-46af", "--section", "5").exit_code == 0


def test_an_instance_type_has_the_results_of_its_gpus(tmp_path):
    measure(tmp_path, [cell("a", 1, 0, 100, 10)])
    (tmp_path / "toy").rename(tmp_path / "l4x1")
    found = advice.of_host("g6.xlarge", 3, (), root=tmp_path)
    assert (found.basis, found.host, found.price.instance) == ("measured", "l4x1", "g6.xlarge")


def test_a_withheld_figure_is_unknown_unless_another_target_is_missed(tmp_path):
    withheld = [{"name": "TTFT", "outcome": "fail", "evidence": "late"}]
    measure(
        tmp_path,
        [cell("a", 1, 0, 100, 10, checks=withheld), cell("b", 1, 0, 100, 50, checks=withheld), cell("a", 8, 0, 50, 10)],
    )
    found = asked(tmp_path, "ttft_p99_ms=500", "tpot_p50_ms=20")
    assert verdicts(found) == {("a", 1): UNKNOWN, ("b", 1): MISSES, ("a", 8): MEETS}
    assert "not judged: a at 1 (the figure is withheld)" in advice_text.lines(found)


def test_a_p99_of_few_requests_is_not_judged(tmp_path):
    """The slowest of 99 requests is no 99th percentile, and of 19 no 95th; a median is judged whatever their number."""
    rows = [cell("few", 1, 0, 100, 10, requests=99), cell("many", 1, 0, 90, 10, requests=100)]
    measure(tmp_path, [*rows, cell("slow", 1, 0, 80, 50, requests=4)])
    found = asked(tmp_path, "ttft_p99_ms=500", "tpot_p50_ms=20")
    assert verdicts(found) == {("few", 1): UNKNOWN, ("many", 1): MEETS, ("slow", 1): MISSES}
    few = next(row for row in found.rows if row.arm == "few")
    assert few.why == {"ttft_p99_ms": "not enough requests for p99: 99 of 100"} and few.latencies["ttft_p99_ms"] is None
    shown = advice_text.table(found).set_index("arm")
    assert shown.loc["few", "ttft_p99_ms ≤ 500"] == "not enough requests for p99: 99 of 100"
    assert (shown.loc["many", "requests"], shown.loc["many", "repeats"]) == (100, 1)
    assert any("ttft_p99_ms – (not enough requests for p99: 99 of 100)" in line for line in advice_text.lines(found))
    target = {name: advice.targets([f"ttft_{name}_ms=1"])[0] for name in ("p50", "p95", "p99", "mean")}
    assert target["p95"].too_few(19) == "not enough requests for p95: 19 of 20" and not target["p95"].too_few(20)
    assert not target["p50"].too_few(1) and not target["mean"].too_few(1)


def test_where_no_p99_can_be_judged_the_sentence_says_why(tmp_path):
    measure(tmp_path, [cell("a", 1, 0, 100, 10, requests=4), cell("b", 4, 0, 100, 10, requests=8)])
    said = advice_text.sentence(asked(tmp_path, "ttft_p99_ms=500"))
    assert said.startswith("On toy no cell can be judged: not enough requests for p99: ")
    assert "4 of 100" in said and "8 of 100" in said


def test_no_brackets_stand_around_a_single_draw(tmp_path):
    """A floor decides with one repeat too; but what is drawn as an interval is of repeats."""
    single = [cell(arm, 1, 0, value, 10) for arm, value in (("baseline", 100), ("baseline-again", 120), ("a", 300))]
    measure(tmp_path / "one", single)
    repeated = [cell("a", 1, repeat, 300 + repeat, 10) for repeat in range(3)]
    measure(tmp_path / "three", repeated)
    [one] = [row for row in asked(tmp_path / "one", "tpot_p50_ms=20").rows if row.arm == "a"]
    assert one.throughput.low < 300 < one.throughput.high
    assert "[" not in advice_text.sentence(asked(tmp_path / "one", "tpot_p50_ms=20"))
    assert "301.0 [" in advice_text.sentence(asked(tmp_path / "three", "tpot_p50_ms=20"))


def test_an_arm_whose_acceptance_was_prescribed_is_never_the_answer(tmp_path):
    rows = [cell("ngram-k3", 40, 0, 900, 5, acceptance="prescribed"), cell("baseline", 40, 0, 600, 10)]
    measure(tmp_path, [*rows, cell("baseline", 25, 0, 500, 10), cell("baseline", 16, 0, 300, 10)])
    found = asked(tmp_path, "tpot_p50_ms=40", price=prices.given("toy", 3.6))
    assert found.rows[0].arm == "ngram-k3" and found.answer.arm == "baseline" and found.found
    said = advice_text.sentence(found)
    assert "baseline at concurrency 40 has the highest" in said and "(128 requests, one draw)" in said
    assert "the best of 3, the middle one is baseline at concurrency 25" in said
    assert said.endswith("ngram-k3 stood above it with an acceptance that was prescribed, which is no answer.")
    assert advice_text.table(found)["verdict"].tolist() == ["meets (no answer)", "meets"]
    assert any("acceptance prescribed: no answer" in line for line in advice_text.lines(found))
    assert "fastest: baseline on toy at concurrency 40, 600.0 tok/s out" in advice_text.across([found, found])
    measure(tmp_path / "alone", [cell("ngram-k3", 1, 0, 900, 5, acceptance="prescribed")])
    alone = asked(tmp_path / "alone", "tpot_p50_ms=40")
    assert not alone.found and advice_text.sentence(alone) == "On toy no cell can be judged."


def test_cost_is_of_the_hosts_price(tmp_path):
    measure(tmp_path, [cell("a", 1, 0, 100, 10)])
    found = asked(tmp_path, price=prices.given("toy", 3.6))
    assert found.rows[0].usd_per_million == pytest.approx(10) and any(
        "10.00 USD/M" in line for line in advice_text.lines(found)
    )
    assert asked(tmp_path).rows[
        0
    ].usd_per_million is None and "price: none known for toy; --price USD_PER_HOUR adds the cost" in advice_text.lines(
        asked(tmp_path)
    )


def test_several_hosts_are_compared_by_cost(tmp_path):
    measure(tmp_path, [cell("a", 1, 0, 100, 10)])
    dear, cheap = (asked(tmp_path, price=prices.given("toy", usd)) for usd in (4.0, 2.0))
    assert advice_text.across([dear]) == []
    assert (
        advice_text.across([dear, cheap])[-1]
        == "cheapest: a on toy at concurrency 1, 5.56 USD a million output tokens (of the hosts with a price)"
    )


def test_the_published_results_of_the_h200(results, cache):
    found = call("--host", "h200x1", "--slo", "ttft_p99_ms=500", "--slo", "tpot_p50_ms=40", "--json")
    told = json.loads(found.output)
    assert (
        found.exit_code == 0
        and told["basis"] == "measured"
        and told["qualifies"]
        and told["where"].startswith("published with the book (")
        and "h200x1/section-3: " in told["where"]
    )
    assert "random weights" in told["labels"] and told["rows"][0]["verdict"] == "meets" and told["price"] is None
    # What ranks first accepted what it was told to: the baseline is the answer.
    assert told["rows"][0]["prescribed"] and told["engine"] == "vLLM 0.25.1"
    assert advice.of_host("h200x1", 3, advice.targets(["ttft_p99_ms=500"])).answer.arm == "baseline"
    assert call("--host", "h200x1", "--slo", "tpot_p50_ms=0.1").exit_code == 1
    assert not results.exists()


def test_this_machines_own_results_come_first(results, monkeypatch):
    measure(results, [cell("a", 1, 0, 100, 10)])
    (results / "toy").rename(results / "h200x1")
    assert "this machine's own results" in advice.of_host("h200x1", 3, (), own="h200x1").where
    assert "own results" not in advice.of_host("h200x1", 3, (), own="cpu-46af").where
    # A clone that never measured anything has no results of its own, whatever lies in the published folder.
    monkeypatch.setattr(paths, "RESULTS", paths.RESULTS_PUBLISHED)
    monkeypatch.setattr(store, "results_folder_id", lambda: None)
    assert "published with the book" in advice.of_host("cpu-46af", 3, (), own="cpu-46af").where


def test_where_nothing_was_measured_it_predicts_and_says_so(results, cache):
    shown = call("--host", "g6.xlarge", "--slo", "ttft_p99_ms=500", "--slo", "tpot_p50_ms=40")
    assert shown.exit_code == 3, shown.output
    assert (
        "section 3 on g6.xlarge, predicted: nothing is measured on g6.xlarge in section 3" in shown.output
        and "meets every target" not in shown.output
    )
    assert (
        "not judged: ttft_p99_ms; theory predicts ttft_p50_ms, tpot_p50_ms alone" in shown.output
        and "0.8048 USD an hour for g6.xlarge in us-east-1 on 2026-09-24" in shown.output
    )
    found = advice.of_host("g6.xlarge", 3, advice.targets(["tpot_p50_ms=40"]))
    assert not found.found and found.rows[0].repeats == 0 and {row.arm for row in found.arms(MISSES)} == {"baseline"}
    assert {row.verdict for row in advice.of_host("g6.xlarge", 3, advice.targets(["itl_p99_ms=40"])).rows} == {UNKNOWN}


def test_a_section_without_predictions_says_where_it_was_measured(results):
    with pytest.raises(
        HostError,
        match="nothing is predicted for this section: g6.xlarge, section 7\n  allowed: a host with results "
        ".*cpu.*, or section 3 or 5\n  next:    measured: ",
    ):
        advice.of_host("g6.xlarge", 7, ())


def test_a_host_of_which_nothing_is_known_is_refused_with_near_matches(results):
    for host, next_step in (("h200", "did you mean h200x1"), ("g6.xlage", "did you mean g6.xlarge")):
        with pytest.raises(
            HostError,
            match=f"nothing is measured on this host, and nothing can be predicted for it: {host}, section "
            f"3\n  allowed: a host with results .*h200x1.*\n  next:    {next_step}",
        ):
            advice.of_host(host, 3, ())
    assert isinstance(call("--host", "h200x1", "--slo", "speed=1").exception, ParameterError)
