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
            rows.append({"host": "cpu", "arm": arm, "load": f"concurrency={concurrency}", "concurrency": concurrency, "repeat": repeat, "certificate": certificate, metric: value, "weights": "real", "acceptance": None})
    return pandas.DataFrame(rows)


def test_a_ratio_and_its_interval():
    ratio, low, high = comparisons.ratio(np.array([200.0, 202, 198]), np.array([100.0, 101, 99]))
    assert ratio == pytest.approx(2, rel=1e-3) and low < 2 < high and high - low < 0.1
    assert comparisons.ratio(np.array([2.0]), np.array([1.0]))[0] == 2 and math.isnan(comparisons.ratio(np.array([2.0]), np.array([1.0]))[1])
    assert all(map(math.isnan, comparisons.ratio(np.array([]), np.array([1.0])))) and all(map(math.isnan, comparisons.ratio(np.array([0.0]), np.array([1.0]))))


def test_the_interval_covers_as_often_as_it_says():
    draw = np.random.default_rng(3)
    hits = [low <= 1.5 <= high for _ in range(400) for _, low, high in [comparisons.ratio(1.5 * np.exp(draw.normal(0, 0.05, 4)), np.exp(draw.normal(0, 0.05, 4)))]]
    assert 0.92 <= np.mean(hits) <= 0.98


def test_a_difference_inside_the_floor_is_none():
    frame = cells({("baseline", 1): [100.0], ("fast", 1): [108.0], ("much-faster", 1): [150.0], ("baseline-again", 1): [110.0]})
    assert comparisons.floor(frame, "output_throughput", "baseline") == {1: pytest.approx(0.10)}
    table = comparisons.compare(frame, "output_throughput", "baseline").set_index("arm")
    assert table.loc["fast", "differs"] == False and table.loc["much-faster", "differs"] == True  # noqa: E712
    shown = tables.throughput(frame, "output_throughput").to_html()
    assert "108.0 (no difference)" in shown and "150.0 (1.50×)" in shown


def test_one_draw_of_the_floor_stands_for_all_concurrencies():
    frame = cells({("baseline", 1): [100.0], ("baseline", 4): [100.0], ("baseline-again", 1): [101.0], ("baseline-again", 4): [120.0]})
    assert comparisons.floor(frame, "output_throughput", "baseline") == {1: pytest.approx(0.2), 4: pytest.approx(0.2)}


def test_without_an_a_a_pair_nothing_bounds_the_noise():
    frame = cells({("baseline", 1): [100.0], ("fast", 1): [150.0]})
    assert comparisons.compare(frame, "output_throughput", "baseline")["differs"].tolist() == [None]
    assert "1.50× ?" in tables.throughput(frame, "output_throughput").to_html() and "nothing bounds the noise" in tables.finding(frame)


def test_a_failed_cell_is_in_no_mean_and_no_comparison():
    good, bad = cells({("baseline", 1): [100.0], ("fast", 1): [150.0]}), cells({("broken", 1): [999.0]}, certificate="fail")
    frame = pandas.concat([good, bad], ignore_index=True)
    assert "broken" not in set(comparisons.compare(frame, "output_throughput", "baseline")["arm"])
    assert "withheld" in tables.throughput(frame, "output_throughput").to_html() and "999" not in tables.throughput(frame, "output_throughput").to_html()
    figure = plots.over_concurrency(frame, ("output_throughput",))
    assert not any(999.0 in line.get_ydata() for line in figure.axes[0].lines)


def test_an_unknown_baseline_is_named():
    with pytest.raises(ParameterError, match="no such arm.*none\n.*allowed: baseline"):
        comparisons.compare(cells({("baseline", 1): [1.0]}), "output_throughput", "none")


def requests(count, ttft, gap, tokens, reads):
    return [{"start_s": 0.0, "ttft_s": ttft, "itls_s": [gap] * (tokens - 1), "input_tokens": reads, "output_tokens": tokens, "error": None} for _ in range(count)]


def test_the_decomposition_closes_and_blames_the_right_factor():
    stored = {"slow": requests(4, 0.1, 0.1, 10, 10), "half": requests(4, 0.05, 0.05, 10, 10), "packed": requests(4, 0.1, 0.1, 10, 10), "reader": requests(4, 0.1, 0.1, 10, 30)}
    durations = {"slow": 4.0, "half": 2.0, "packed": 2.0, "reader": 4.0}
    rows = []
    for arm, records in stored.items():
        tokens = sum(request["input_tokens"] + request["output_tokens"] for request in records)
        rows.append({"arm": arm, "concurrency": 4, "certificate": "pass", "file": arm, "duration": durations[arm], "total_token_throughput": tokens / durations[arm]})
    table = comparisons.decompose(pandas.DataFrame(rows), "slow", stored.__getitem__).set_index("arm")
    assert table["closure"].tolist() == pytest.approx([1, 1, 1])
    assert table.loc["half", ["latency", "occupancy", "mix"]].tolist() == pytest.approx([2, 1, 1])
    assert table.loc["packed", ["latency", "occupancy", "mix"]].tolist() == pytest.approx([1, 2, 1])
    assert table.loc["reader", ["latency", "occupancy", "mix"]].tolist() == pytest.approx([1, 1, 2])


def test_a_round_is_its_tokens_at_their_pace():
    frame = cells({("baseline", 1): [10.0], ("draft-k3", 1): [8.0]}, metric="median_tpot_ms").assign(acceptance_length=[math.nan, 2.5])
    row = comparisons.rounds(frame, "baseline").iloc[0]
    assert (row["round_ms"], row["step_ms"]) == (20.0, 10.0) and row["per_draft_ms"] == pytest.approx(10 / 3)


def test_captions_carry_the_labels():
    frame = cells({("baseline", 1): [1.0]}).assign(weights="random", acceptance="prescribed", host="h200x1")
    assert tables.labels(frame) == "h200x1, random weights, prescribed acceptance"
    assert "h200x1, random weights, prescribed acceptance" in tables.throughput(frame, "output_throughput").to_html()
