"""Ratios, noise floor and decomposition on cells whose answers are known."""

import math

import numpy as np
import pandas
import pytest

from serving_study import paths
from serving_study.analysis import comparisons, crossovers, host_tables, plots, tables
from serving_study.chapters.speculation import draft_cost
from serving_study.errors import ParameterError
from serving_study.results import old_cells, store


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
    return old_cells.with_arm_columns(pandas.DataFrame(rows))


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


def verdict_of(frame, arm, baseline):
    """Which way the claim goes, and its three figures as logarithms."""
    row = comparisons.compare(frame, "output_throughput", baseline).set_index("arm").loc[arm]
    sign = None if row["differs"] is None else int(row["differs"]) * int(np.sign(math.log(row["ratio"])))
    return sign, np.log(row[["ratio", "low", "high"]].to_numpy(float))


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_swapping_arm_and_baseline_swaps_the_verdict(repeats):
    """Any two cells, with an A/A pair of any width beside them: no arm is favoured by which of the two it is."""
    draw, seen = np.random.default_rng(13), set()
    for _ in range(300):
        apart, spread, effect = draw.uniform(0, 0.3), draw.uniform(0, 0.2), draw.uniform(-0.5, 0.5)
        logs = {"baseline": 0.0, "fast": effect, "baseline-again": apart}
        frame = cells({(arm, 4): 100 * np.exp(log + draw.normal(0, spread, repeats)) for arm, log in logs.items()})
        sign, (ratio, low, high) = verdict_of(frame, "fast", "baseline")
        back, (inverse, lowest, highest) = verdict_of(frame, "baseline", "fast")
        assert back == (sign and -sign)
        assert (inverse, lowest, highest) == pytest.approx((-ratio, -high, -low), abs=1e-9)
        seen.add(sign)
    assert seen == ({-1, 0, 1} if repeats == 1 else {-1, 0, 1, None})


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_an_a_a_pair_is_never_called_a_difference_by_its_own_floor(repeats):
    draw = np.random.default_rng(31)
    for _ in range(300):
        apart, spread = draw.uniform(-0.6, 0.6, 2), draw.uniform(0, 0.1)
        frame = cells(
            {
                (arm, concurrency): 50 * np.exp(log + draw.normal(0, spread, repeats))
                for concurrency, log in zip((1, 4), apart, strict=True)
                for arm, log in (("baseline", 0.0), ("baseline-again", log))
            }
        )
        for arm, other in (("baseline-again", "baseline"), ("baseline", "baseline-again")):
            table = comparisons.compare(frame, "output_throughput", other)
            assert table["arm"].tolist() == [arm, arm] and table["differs"].tolist() == [False, False]


def test_the_twin_of_the_fresh_clone_is_no_difference():
    """What a fresh clone on two cores measured: the twin at 0.77 of the baseline, and an arm as far below."""
    frame = cells({("baseline", 4): [100.0], ("baseline-again", 4): [76.9], ("draft-k1", 4): [77.0]})
    assert comparisons.compare(frame, "output_throughput", "baseline")["differs"].tolist() == [False, False]
    assert "(0.77×)" not in tables.throughput(frame, "output_throughput").to_html()
    assert crossovers.crossings(frame, "output_throughput", "baseline")[0].words == "nowhere certain from 4 to 4"


def test_comparisons_go_by_what_a_chapter_varies():
    """Two loads of one concurrency are two comparisons, each with the floor of its own pair."""
    frame = cells({("baseline", 1): [100.0], ("baseline-again", 1): [101.0], ("fast", 1): [110.0]})
    other = cells({("baseline", 1): [100.0], ("baseline-again", 1): [100.1], ("fast", 1): [100.5]}).assign(load="other")
    both = pandas.concat([frame, other], ignore_index=True)
    table = comparisons.compare(both, "output_throughput", "baseline", by="load").set_index(["arm", "load"])
    assert table.loc[("fast", "concurrency=1"), "ratio"] == pytest.approx(1.1)
    assert table.loc[("fast", "concurrency=1"), "differs"] and not table.loc[("fast", "other"), "differs"]
    assert table.loc[("fast", "other"), "floor"] == pytest.approx(math.log(1.01))  # single draws: the widest for all


def test_every_arm_measured_again_makes_the_floor():
    frame = cells({("a", 1): [100.0], ("a-again", 1): [102.0], ("b", 1): [100.0], ("b-again", 1): [90.0]})
    assert comparisons.floor(frame, "output_throughput") == {1: pytest.approx(math.log(100 / 90))}


def test_an_interval_of_repeats_is_at_least_the_floor():
    value, low, high = comparisons.interval(pandas.Series([80.0, 125.0]), noise=0.01)
    assert value == pytest.approx(100) and low * high == pytest.approx(100**2) and high > 1000
    assert comparisons.interval([100.0], 0.1) == pytest.approx((100, 100 * math.exp(-0.1), 100 * math.exp(0.1)))
    assert all(map(math.isnan, comparisons.interval([100.0])[1:])) and all(map(math.isnan, comparisons.interval([])))
    assert comparisons.interval([0.0, 0.5]) == (0.25, 0.0, 0.5)  # a rate may be zero


def test_a_finding_names_certain_differences_alone():
    """The largest ratio is not the best case while equal arms differ as much."""
    values = {("baseline", 1): [100.0], ("baseline-again", 1): [125.0], ("fast", 1): [120.0], ("slow", 1): [50.0]}
    said = tables.finding(cells(values))
    assert "nothing certainly gains" in said and "slow at concurrency 1" in said and "fast" not in said
    assert "0.50 times (0.40 to 0.62)" in said and "1 lie inside the noise floor and 0 are not decided" in said
    gain, loss = comparisons.extremes(comparisons.compare(cells(values), "output_throughput", "baseline"))
    assert gain is None and loss["arm"] == "slow"


def test_a_difference_inside_the_floor_is_none():
    frame = cells(
        {("baseline", 1): [100.0], ("fast", 1): [108.0], ("much-faster", 1): [150.0], ("baseline-again", 1): [110.0]}
    )
    assert comparisons.floor(frame, "output_throughput") == {1: pytest.approx(math.log(1.1))}
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
    floor = pytest.approx(math.log(1.2))
    assert comparisons.floor(frame, "output_throughput") == {1: floor, 4: floor}


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


def test_a_multiple_is_of_the_repeats_that_both_have():
    """A withheld repeat leaves an arm's mean of other prompts than the baseline's: the caption says what is what."""
    frame = cells({("baseline", 1): [100.0, 300.0, 302.0], ("fast", 1): [120.0, 360.0, 361.0]})
    frame.loc[(frame["arm"] == "fast") & (frame["repeat"] > 1), "certificate"] = "fail"
    frame = pandas.concat([frame, cells({("baseline-again", 1): [101.0, 301.0, 301.0]})], ignore_index=True)
    shown = tables.throughput(frame, "output_throughput").to_html()
    assert "240.0 (1.20×)" in shown and "234.0" in shown and "within the repeats that both have" in shown


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
        found for found in crossovers.crossings(cells(values), "output_throughput", "baseline") if found.arm == "arm"
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
    assert crossovers.crossings(frame, "output_throughput", "baseline")[0].words == "unknown: nothing bounds the noise"


def test_a_crossover_is_narrowed_inside_its_interval_or_upwards():
    inside = crossovers.between(crossing(c1=1.5, c4=1.2, c16=0.8), 2, 64)
    assert inside == [6, 10] and crossovers.between(crossing(c1=1.5, c4=1.2, c16=0.8), 1, 64) == [8]
    assert (
        crossovers.between(crossing(c1=1.5, c4=1.2), 2, 64) == [10, 16]
        and crossovers.between(crossing(c1=1.5, c4=1.2), 2, 4) == []
    )
    assert (
        crossovers.between(crossing(c1=0.5, c4=0.4), 2, 64) == []
        and crossovers.between(crossing(c1=1.5, c4=1.2, c16=0.8), 0, 64) == []
    )
    assert crossovers.between(crossing(c4=1.5, c5=0.8), 3, 64) == []


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
    published = (store.Store(host, 3, paths.RESULTS_PUBLISHED).newest() for host in host_tables.other_hosts(3, set()))
    frame = next(frame for frame in published if comparisons.accepted(frame).get(("ngram-k3", 1)) == 8)
    assert "1.26×, 8 accepted" in tables.throughput(frame, "output_throughput").to_html()
    table = comparisons.compare(frame, "output_throughput", "baseline")
    few = table[comparisons.too_few_accepted(table, frame)]
    assert set(zip(few["arm"], few["concurrency"], strict=True)) == {("draft-k1", 1), ("ngram-k3", 1), ("ngram-k3", 4)}
    assert "ngram-k3 at concurrency 1 (1.26 times, 8 accepted tokens)" in tables.set_aside(frame)
    # A loss needs no accepted tokens, and an arm without speculation none at all.
    pair = spoken("baseline", 10.0, 1010), spoken("draft-k3", 8.0, 1010, 400, 1200, 2)
    frame = pandas.concat(pair).rename(columns={"median_tpot_ms": "output_throughput"})
    assert not tables.set_aside(frame) and not comparisons.accepted(pair[0])


def test_a_finding_does_not_rest_on_a_handful_of_tokens():
    rows = [
        spoken("baseline", 10.0, 1010),
        spoken("baseline-again", 10.1, 1010),
        spoken("ngram-k3", 20.0, 1010, 5, 15, 8),
        spoken("draft-k3", 15.0, 1010, 400, 1200, 600),
    ]
    frame = pandas.concat(rows).rename(columns={"median_tpot_ms": "output_throughput"})
    assert "draft-k3 at concurrency 1" in tables.finding(frame) and "ngram-k3" not in tables.finding(frame)
    assert "ngram-k3" in tables.set_aside(frame)


def test_captions_carry_the_labels():
    frame = cells({("baseline", 1): [1.0]}).assign(weights="random", acceptance="prescribed", host="h200x1")
    assert tables.labels(frame) == "h200x1, random weights, prescribed acceptance"
    assert "h200x1, random weights, prescribed acceptance" in tables.throughput(frame, "output_throughput").to_html()


def test_the_quantile_is_students_two_sided():
    # Of any table of Student's t, 95 % two-sided.
    assert [round(comparisons.t_quantile(freedom), 3) for freedom in (1, 2, 10, 120)] == [12.706, 4.303, 2.228, 1.98]
