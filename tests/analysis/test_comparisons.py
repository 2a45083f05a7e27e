"""Absolute figures, paired ratios and the decomposition on cells whose answers are known."""

import math

import numpy as np
import pandas
import pytest
from block_cells import cells

from serving_study import paths
from serving_study.analysis import claims, comparisons, host_tables, tables
from serving_study.chapters.speculation import draft_cost
from serving_study.results import store


def test_a_ratio_and_its_interval():
    ratio, low, high = comparisons.ratio(np.array([200.0, 202, 198]), np.array([100.0, 101, 99]))
    assert ratio == pytest.approx(2, rel=1e-3) and low < 2 < high and high - low < 0.1
    assert comparisons.ratio(np.array([2.0]), np.array([1.0]))[0] == 2 and math.isnan(
        comparisons.ratio(np.array([2.0]), np.array([1.0]))[1]
    )
    assert all(map(math.isnan, comparisons.ratio(np.array([]), np.array([1.0])))) and all(
        map(math.isnan, comparisons.ratio(np.array([0.0]), np.array([1.0])))
    )


def test_the_interval_covers_as_often_as_it_says():
    draw = np.random.default_rng(3)
    hits = [
        low <= 1.5 <= high
        for _ in range(400)
        for _, low, high in [comparisons.ratio(1.5 * np.exp(draw.normal(0, 0.05, 4)), np.exp(draw.normal(0, 0.05, 4)))]
    ]
    assert 0.92 <= np.mean(hits) <= 0.98


def test_percentiles_are_over_the_requests_of_all_blocks_and_of_enough_of_them():
    frame = store.Store("cpu-0028", 12, paths.RESULTS_PUBLISHED).newest()
    table = comparisons.latencies(frame, "ttft").set_index(["arm", "concurrency"])
    usable = comparisons.usable(frame).dropna(subset=["median_ttft_ms"])
    for (arm, concurrency), cells_of in usable.groupby(["arm", "concurrency"]):
        times = [1000 * request["ttft_s"] for file in cells_of["file"] for request in store.requests_of(file)]
        row = table.loc[(arm, concurrency)]
        assert row["requests"] == len(times) and row["median"] == pytest.approx(np.median(times))
        assert math.isnan(row["p95"]) == (len(times) < 20) and math.isnan(row["p99"]) == (len(times) < 100)
    assert table["p99"].isna().any() and table["p99"].notna().any()
    one = usable[usable["repeat"] == 0].iloc[:1]
    for latency in ("tpot", "itl", "e2el"):  # of one cell, the load generator's own figures
        row = comparisons.latencies(one, latency).iloc[0]
        assert row["median"] == pytest.approx(one[f"median_{latency}_ms"].iloc[0], rel=0.02)
    assert comparisons.latencies(frame.assign(certificate="fail"), "ttft").empty
    assert "a p99 of fewer than 100 is not shown" in tables.latencies(frame, "ttft").to_html()


def test_every_arm_measured_again_makes_the_floor():
    frame = cells({("a", 1): [100.0], ("a-again", 1): [102.0], ("b", 1): [100.0], ("b-again", 1): [90.0]})
    assert comparisons.floor(frame, "output_throughput") == {1: pytest.approx(math.log(100 / 90))}


def test_an_interval_of_repeats_is_at_least_the_floor():
    value, low, high = comparisons.interval(pandas.Series([80.0, 125.0]), noise=0.01)
    assert value == pytest.approx(100) and low * high == pytest.approx(100**2) and high > 1000
    assert comparisons.interval([100.0], 0.1) == pytest.approx((100, 100 * math.exp(-0.1), 100 * math.exp(0.1)))
    assert all(map(math.isnan, comparisons.interval([100.0])[1:])) and all(map(math.isnan, comparisons.interval([])))
    assert comparisons.interval([0.0, 0.5]) == (0.25, 0.0, 0.5)  # a rate may be zero


def test_one_draw_of_the_floor_stands_for_all_concurrencies():
    frame = cells(
        {
            ("baseline", 1): [100.0],
            ("baseline", 4): [100.0],
            ("baseline-again", 1): [101.0],
            ("baseline-again", 4): [120.0],
        }
    )
    floor = pytest.approx(math.log(1.2))
    assert comparisons.floor(frame, "output_throughput") == {1: floor, 4: floor}


def requests(count, ttft, gap, tokens, reads):
    return [
        {
            "start_s": 0.0,
            "ttft_s": ttft,
            "itls_s": [gap] * (tokens - 1),
            "input_tokens": reads,
            "output_tokens": tokens,
            "error": None,
        }
        for _ in range(count)
    ]


def test_the_decomposition_closes_and_blames_the_right_factor():
    stored = {
        "slow": requests(4, 0.1, 0.1, 10, 10),
        "half": requests(4, 0.05, 0.05, 10, 10),
        "packed": requests(4, 0.1, 0.1, 10, 10),
        "reader": requests(4, 0.1, 0.1, 10, 30),
    }
    durations = {"slow": 4.0, "half": 2.0, "packed": 2.0, "reader": 4.0}
    rows = []
    for arm, records in stored.items():
        tokens = sum(request["input_tokens"] + request["output_tokens"] for request in records)
        rows.append(
            {
                "arm": arm,
                "concurrency": 4,
                "repeat": 0,
                "certificate": "pass",
                "file": arm,
                "duration": durations[arm],
                "total_token_throughput": tokens / durations[arm],
            }
        )
    table = comparisons.decompose(pandas.DataFrame(rows), "slow", requests_of=stored.__getitem__).set_index("arm")
    assert table["closure"].tolist() == pytest.approx([1, 1, 1])
    assert table.loc["half", ["latency", "occupancy", "mix"]].tolist() == pytest.approx([2, 1, 1])
    assert table.loc["packed", ["latency", "occupancy", "mix"]].tolist() == pytest.approx([1, 2, 1])
    assert table.loc["reader", ["latency", "occupancy", "mix"]].tolist() == pytest.approx([1, 1, 2])


def test_the_decomposition_of_repeats_closes_exactly():
    """Factors are taken within repeats: an arm that lacks one is compared on those that it has."""
    stored = {
        ("slow", 0): requests(4, 0.1, 0.1, 10, 10),
        ("slow", 1): requests(4, 0.2, 0.1, 10, 40),
        ("fast", 1): requests(4, 0.1, 0.05, 10, 40),
    }
    rows = []
    for (arm, repeat), records in stored.items():
        tokens, duration = sum(request["input_tokens"] + request["output_tokens"] for request in records), 3.0 + repeat
        rows.append(
            {
                "arm": arm,
                "concurrency": 4,
                "repeat": repeat,
                "certificate": "pass",
                "file": (arm, repeat),
                "duration": duration,
                "total_token_throughput": tokens / duration,
            }
        )
    row = comparisons.decompose(pandas.DataFrame(rows), "slow", requests_of=stored.__getitem__).iloc[0]
    assert (
        row["closure"] == pytest.approx(1, abs=1e-9)
        and row["mix"] == pytest.approx(1)
        and row["latency"] == pytest.approx(2)
    )


def test_the_steady_window_leaves_out_ramp_and_drain():
    """Two at a time; the last request of `drained` goes on alone for a second, which the whole run counts and the
    steady window does not.
    """
    pair = lambda gap, last: [  # noqa: E731
        {
            "start_s": start,
            "ttft_s": gap,
            "itls_s": [gap] * 9 if index < 3 else [gap] * 9 + [last],
            "input_tokens": 10,
            "output_tokens": 10,
            "error": None,
        }
        for index, start in enumerate([0.0, 0.0, 10 * gap, 10 * gap])
    ]
    stored = {"slow": pair(0.1, 0.0), "drained": pair(0.1, 1.0)}
    rows = [
        {
            "arm": arm,
            "concurrency": 2,
            "repeat": 0,
            "certificate": "pass",
            "file": arm,
            "duration": 2.0 + (arm == "drained"),
            "total_token_throughput": 80 / (2.0 + (arm == "drained")),
        }
        for arm in stored
    ]
    whole = comparisons.decompose(pandas.DataFrame(rows), "slow", requests_of=stored.__getitem__).iloc[0]
    steady = comparisons.decompose(pandas.DataFrame(rows), "slow", steady=True, requests_of=stored.__getitem__).iloc[0]
    assert whole["ratio"] == pytest.approx(2 / 3) and whole["closure"] == pytest.approx(1)
    assert (
        steady["ratio"] == pytest.approx(1, abs=0.06)
        and steady["occupancy"] == pytest.approx(1)
        and steady["closure"] == pytest.approx(1)
    )


def test_repeats_are_paired_by_their_prompts():
    """The second repeat's prompts are slow in both arms: no noise of the ratio."""
    ratio, low, high = comparisons.ratio(pandas.Series([150.0, 75.3, 150.4]), pandas.Series([100.0, 50, 100]))
    assert low > 1.49 and high < 1.52
    # Without a repeat in common, Welch's t over all.
    ratio, low, high = comparisons.ratio(
        pandas.Series([150.0, 151], index=[2, 3]), pandas.Series([100.0, 101], index=[0, 1])
    )
    assert 1.4 < low < ratio < high < 1.6


def spoken(arm: str, tpot: float, made: int, drafts=math.nan, drafted=math.nan, accepted=math.nan) -> pandas.DataFrame:
    """One cell of ten requests with the counters of speculation."""
    counted = {"drafts": drafts, "drafted_tokens": drafted, "accepted_tokens": accepted}
    return cells({(arm, 1): [tpot]}, metric="median_tpot_ms").assign(total_output_tokens=made, completed=10, **counted)


def test_a_step_is_its_tokens_at_their_pace():
    frame = pandas.concat([spoken("baseline", 10.0, 1010), spoken("draft-k3", 8.0, 1010, 400, 1200, 600)])
    row = comparisons.rounds(frame, "baseline").iloc[0]
    assert (row["tokens"], row["step_ms"], row["plain_ms"]) == (2.5, 20.0, 10.0)
    assert (row["proposing"], row["proposals"]) == (1, 3) and row["per_proposal_ms"] == pytest.approx(10 / 3)


def test_a_proposal_costs_what_those_counted_cost():
    """A look-up that proposes in a tenth of its steps: dividing by k would make each proposal ten times as cheap."""
    frame = pandas.concat([spoken("baseline", 10.0, 1010), spoken("ngram-k3", 10.0, 1010, 90, 270, 100)])
    row = comparisons.rounds(frame, "baseline").iloc[0]
    assert (row["proposing"], row["proposals"]) == (0.1, 0.3) and row["tokens"] == pytest.approx(1000 / 900)
    assert row["per_proposal_ms"] == pytest.approx((10 * 1000 / 900 - 10) / 0.3)
    # Tokens that a request's length cuts off are counted as accepted: no more steps propose than there are.
    cut = comparisons.steps(spoken("draft-k1", 5.0, 1010, 510, 510, 500)).iloc[0]
    assert (cut["steps"], cut["proposing"]) == (510, 1)


def test_look_up_of_repeating_text_proposes_nearly_always():
    """The H200's random weights repeat themselves; a text that means something does not."""
    loud = comparisons.rounds(draft_cost.arms(), "baseline").query("arm == 'ngram-k3'")
    assert loud["proposing"].between(0.96, 0.97).all() and len(loud) == 6
    for host in host_tables.other_hosts(3, {"h200x1"}):
        quiet = comparisons.rounds(store.Store(host, 3, paths.RESULTS_PUBLISHED).newest(), "baseline")
        assert quiet.query("arm == 'ngram-k3'")["proposing"].max() < 0.3


def test_a_gain_stands_beside_its_accepted_tokens_and_rests_on_enough():
    rows = [
        spoken("baseline", 10.0, 1010),
        spoken("baseline-again", 10.1, 1010),
        spoken("ngram-k3", 20.0, 1010, 5, 15, 8),
        spoken("draft-k3", 15.0, 1010, 400, 1200, 600),
    ]
    frame = pandas.concat(rows).rename(columns={"median_tpot_ms": "output_throughput"})
    shown = tables.throughput(frame, "output_throughput").to_html()
    assert "], 8 accepted<br>" in shown and "], 600 accepted<br>" in shown
    table = claims.compare(frame, "output_throughput", "baseline")
    few = table[comparisons.too_few_accepted(table, frame)]
    assert few["arm"].tolist() == ["ngram-k3"] and "of 1 comparison of" in tables.finding(frame)
    said = tables.set_aside(frame)
    assert "ngram-k3 at concurrency 1 (1.99× [" in said and "], 8 accepted tokens)" in said and "draft-k3" not in said
    assert "ngram-k3" not in tables.finding(frame)
    # A loss needs no accepted tokens, and an arm without speculation none at all.
    pair = spoken("baseline", 10.0, 1010), spoken("draft-k3", 8.0, 1010, 400, 1200, 2)
    frame = pandas.concat(pair).rename(columns={"median_tpot_ms": "output_throughput"})
    assert not tables.set_aside(frame) and not comparisons.accepted(pair[0])


def test_captions_carry_the_labels():
    frame = cells({("baseline", 1): [1.0]}).assign(weights="random", acceptance="prescribed", host="h200x1")
    assert tables.labels(frame) == "h200x1, random weights, prescribed acceptance"
    assert "h200x1, random weights, prescribed acceptance" in tables.throughput(frame, "output_throughput").to_html()


def test_the_quantile_is_students_two_sided():
    # Of any table of Student's t, 95 % two-sided.
    assert [round(comparisons.t_quantile(freedom), 3) for freedom in (1, 2, 10, 120)] == [12.706, 4.303, 2.228, 1.98]
