"""Ratios, noise floor and decomposition on cells whose answers are known."""

import math

import numpy as np
import pandas
import pytest

from serving_study import comparisons, plots, tables
from serving_study.errors import ParameterError


def cells(values: dict, certificate="pass", metric="output_throughput") -> pandas.DataFrame:
    """`{(arm, concurrency): [value of each repeat]}` as a frame of cells."""
    rows = []
    for (arm, concurrency), repeats in values.items():
        for repeat, value in enumerate(repeats):
            rows.append(
                {
                    "host": "cpu",
                    "arm": arm,
                    "load": f"concurrency={concurrency}",
                    "concurrency": concurrency,
                    "repeat": repeat,
                    "certificate": certificate,
                    metric: value,
                    "weights": "real",
                    "acceptance": None,
                }
            )
    return pandas.DataFrame(rows)


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


def test_a_difference_inside_the_floor_is_none():
    frame = cells(
        {("baseline", 1): [100.0], ("fast", 1): [108.0], ("much-faster", 1): [150.0], ("baseline-again", 1): [110.0]}
    )
    assert comparisons.floor(frame, "output_throughput", "baseline") == {1: pytest.approx(0.10)}
    table = comparisons.compare(frame, "output_throughput", "baseline").set_index("arm")
    assert table.loc["fast", "differs"] == False and table.loc["much-faster", "differs"] == True  # noqa: E712
    shown = tables.throughput(frame, "output_throughput").to_html()
    assert "108.0 (no difference)" in shown and "150.0 (1.50×)" in shown


def test_one_draw_of_the_floor_stands_for_all_concurrencies():
    frame = cells(
        {
            ("baseline", 1): [100.0],
            ("baseline", 4): [100.0],
            ("baseline-again", 1): [101.0],
            ("baseline-again", 4): [120.0],
        }
    )
    assert comparisons.floor(frame, "output_throughput", "baseline") == {1: pytest.approx(0.2), 4: pytest.approx(0.2)}


def test_without_an_a_a_pair_nothing_bounds_the_noise():
    frame = cells({("baseline", 1): [100.0], ("fast", 1): [150.0]})
    assert comparisons.compare(frame, "output_throughput", "baseline")["differs"].tolist() == [None]
    assert "1.50× ?" in tables.throughput(
        frame, "output_throughput"
    ).to_html() and "nothing bounds the noise" in tables.finding(frame)


def test_a_failed_cell_is_in_no_mean_and_no_comparison():
    good, bad = (
        cells({("baseline", 1): [100.0], ("fast", 1): [150.0]}),
        cells({("broken", 1): [999.0]}, certificate="fail"),
    )
    frame = pandas.concat([good, bad], ignore_index=True)
    assert "broken" not in set(comparisons.compare(frame, "output_throughput", "baseline")["arm"])
    assert (
        "withheld" in tables.throughput(frame, "output_throughput").to_html()
        and "999" not in tables.throughput(frame, "output_throughput").to_html()
    )
    figure = plots.over_concurrency(frame, ("output_throughput",))
    assert not any(999.0 in line.get_ydata() for line in figure.axes[0].lines)


def test_an_unknown_baseline_is_named():
    with pytest.raises(ParameterError, match="no such arm.*none\n.*allowed: baseline"):
        comparisons.compare(cells({("baseline", 1): [1.0]}), "output_throughput", "none")


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


def test_what_the_repeats_do_not_resolve_is_not_called_equal():
    frame = cells(
        {("baseline", 1): [100.0, 101, 99], ("wild", 1): [80.0, 200, 140], ("baseline-again", 1): [100.0, 101, 99]}
    )
    row = comparisons.compare(frame, "output_throughput", "baseline").set_index("arm").loc["wild"]
    assert row["differs"] is None and row["low"] < 1 < row["high"]
    assert "(1.31× ?)" in tables.throughput(frame, "output_throughput").to_html()


def test_repeats_are_paired_by_their_prompts():
    """The second repeat's prompts are slow in both arms: no noise of the ratio."""
    ratio, low, high = comparisons.ratio(pandas.Series([150.0, 75.3, 150.4]), pandas.Series([100.0, 50, 100]))
    assert low > 1.49 and high < 1.52
    # Without a repeat in common, Welch's t over all.
    ratio, low, high = comparisons.ratio(
        pandas.Series([150.0, 151], index=[2, 3]), pandas.Series([100.0, 101], index=[0, 1])
    )
    assert 1.4 < low < ratio < high < 1.6


def crossing(**ratios):
    values = {}
    for name, ratio in ratios.items():
        concurrency = int(name.removeprefix("c"))
        values |= {
            ("baseline", concurrency): [100.0, 100.5],
            ("arm", concurrency): [100.0 * ratio, 100.5 * ratio],
            ("baseline-again", concurrency): [100.4, 100.9],
        }
    return next(
        found for found in comparisons.crossings(cells(values), "output_throughput", "baseline") if found.arm == "arm"
    )


@pytest.mark.parametrize(
    ("ratios", "pays", "costs", "words"),
    [
        ({"c1": 1.5, "c4": 1.2, "c16": 0.8}, 4, 16, "between 4 and 16"),
        ({"c1": 1.5, "c4": 1.001, "c16": 0.8}, 1, 16, "between 1 and 16"),
        ({"c1": 0.7, "c4": 0.5}, None, 1, "below 1"),
        ({"c2": 1.001, "c4": 0.5}, None, 4, "below 4 (not certain at 2)"),
        ({"c1": 1.5, "c4": 1.2}, 4, None, "above 4"),
        ({"c1": 1.5, "c4": 1.001}, 1, None, "above 1 (not certain from 4 on)"),
        ({"c1": 1.0, "c4": 1.001}, None, None, "nowhere certain from 1 to 4"),
        ({"c1": 0.5, "c4": 1.5}, 4, 1, "the other way round: it starts to pay between 1 and 4"),
        ({"c1": 1.5, "c4": 0.5, "c16": 1.5}, None, None, "more than one: gains at 1, 16, losses at 4"),
    ],
)
def test_where_an_arm_stops_paying(ratios, pays, costs, words):
    found = crossing(**ratios)
    assert (found.pays, found.costs, found.words) == (pays, costs, words)
    assert found.measured == tuple(int(name[1:]) for name in ratios) and found.repeats == 2


def test_the_table_of_crossovers_says_how_sure_it_is():
    twice = cells({("baseline", 1): [1.0, 1.01], ("baseline-again", 1): [1.01, 1.02], ("arm", 1): [2.0, 2.01]})
    shown = tables.crossings(twice).to_html()
    assert ">above 1<" in shown and "95% intervals of 2 repeats" in shown and "baseline-again" not in shown
    assert "one draw against the noise floor" in tables.crossings(twice[twice["repeat"] == 0]).to_html()


def test_a_crossover_without_a_floor_is_unknown():
    frame = cells({("baseline", 1): [100.0], ("arm", 1): [150.0]})
    assert comparisons.crossings(frame, "output_throughput", "baseline")[0].words == "unknown: nothing bounds the noise"


def test_a_crossover_is_narrowed_inside_its_interval_or_upwards():
    inside = comparisons.between(crossing(c1=1.5, c4=1.2, c16=0.8), 2, 64)
    assert inside == [6, 10] and comparisons.between(crossing(c1=1.5, c4=1.2, c16=0.8), 1, 64) == [8]
    assert (
        comparisons.between(crossing(c1=1.5, c4=1.2), 2, 64) == [10, 16]
        and comparisons.between(crossing(c1=1.5, c4=1.2), 2, 4) == []
    )
    assert (
        comparisons.between(crossing(c1=0.5, c4=0.4), 2, 64) == []
        and comparisons.between(crossing(c1=1.5, c4=1.2, c16=0.8), 0, 64) == []
    )
    assert comparisons.between(crossing(c4=1.5, c5=0.8), 3, 64) == []


def test_a_round_is_its_tokens_at_their_pace():
    frame = cells({("baseline", 1): [10.0], ("draft-k3", 1): [8.0]}, metric="median_tpot_ms").assign(
        acceptance_length=[math.nan, 2.5]
    )
    row = comparisons.rounds(frame, "baseline").iloc[0]
    assert (row["round_ms"], row["step_ms"]) == (20.0, 10.0) and row["per_draft_ms"] == pytest.approx(10 / 3)


def test_captions_carry_the_labels():
    frame = cells({("baseline", 1): [1.0]}).assign(weights="random", acceptance="prescribed", host="h200x1")
    assert tables.labels(frame) == "h200x1, random weights, prescribed acceptance"
    assert "h200x1, random weights, prescribed acceptance" in tables.throughput(frame, "output_throughput").to_html()


def test_the_quantile_is_students_two_sided():
    # Of any table of Student's t, 95 % two-sided.
    assert [round(comparisons.t_quantile(freedom), 3) for freedom in (1, 2, 10, 120)] == [12.706, 4.303, 2.228, 1.98]
