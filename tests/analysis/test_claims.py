"""What may be claimed of arms, on cells whose answers are known."""

import math

import numpy as np
import pandas
import pytest
from block_cells import cells, drawn

from serving_study import files, paths
from serving_study.analysis import claims, plots, tables
from serving_study.analysis.claims import ABOVE, BELOW, EQUAL, UNDECIDED
from serving_study.errors import ParameterError
from serving_study.results import store
from serving_study.results.looks import Look

METRIC = "output_throughput"
EQUALS = {"baseline": 0.0, "baseline-again": 0.0, "other": 0.0}


def claimed(frame, baseline="baseline", **options) -> pandas.DataFrame:
    return claims.compare(frame, METRIC, baseline, **options).set_index(["arm", "concurrency"])


@pytest.mark.parametrize("lives", [1, 2])
def test_of_equal_arms_hardly_any_chapter_claims_a_difference(lives):
    """At most one in twenty: of 60 chapters, eight or more would be a chance of 1 in 100."""
    draw = np.random.default_rng(lives)
    tables_of = [claimed(drawn(draw, EQUALS, lives=lives, between_lives=0.03)) for _ in range(60)]
    assert sum(table["claim"].isin([ABOVE, BELOW]).any() for table in tables_of) < 8


def test_large_effects_are_claimed_and_which_way():
    frame = drawn(np.random.default_rng(5), EQUALS | {"fast": 0.5, "slow": -0.5})
    table = claimed(frame)
    assert set(table.loc["fast", "claim"]) == {ABOVE} and set(table.loc["slow", "claim"]) == {BELOW}
    assert (table.loc["fast", "low"] > 1).all() and (table.loc["slow", "high"] < 1).all()
    assert not table.loc["baseline-again", "claim"].isin([ABOVE, BELOW]).any()
    assert table.loc["fast", "more_blocks"].isna().all() and set(table["blocks"]) == {8}
    assert table["repeat_of"].loc["baseline-again"].eq("baseline").all() and set(table["margin"]) == {claims.MARGIN}


def test_an_interval_that_bounds_nothing_is_none():
    """One cell an arm: so few degrees of freedom that no number is as large as the interval's end."""
    values = {(f"arm-{number}", 1): [60.0 + number] for number in range(80)}
    frame = cells(values | {("baseline", 1): [100.0], ("baseline-again", 1): [400.0]})
    table = claimed(frame)
    assert set(table["claim"]) == {UNDECIDED} and table["low"].isna().all() and table["more_blocks"].isna().all()
    assert claims.words(table.loc[("arm-0", 1)], METRIC) == "not decided: nothing bounds the noise"


def test_what_lies_inside_the_margin_is_equal_and_a_narrower_margin_leaves_it_open():
    quiet = {"between_lives": 0.001, "noise": 0.004}
    frame = drawn(np.random.default_rng(2), EQUALS, **quiet)
    assert set(claimed(frame)["claim"]) == {EQUAL}
    assert UNDECIDED in set(claimed(frame, margin=0.001)["claim"])
    widest = frame.assign(margin=[0.001] * (len(frame) - 1) + [math.nan])
    assert set(claimed(widest)["margin"]) == {0.001} and set(claimed(frame.assign(margin=math.nan))["margin"]) == {0.03}
    assert set(claimed(widest.assign(margin=0.05))["margin"]) == {0.05}


def test_swapping_arm_and_baseline_swaps_the_claim():
    draw, seen = np.random.default_rng(13), set()
    for _ in range(40):
        frame = drawn(draw, {"baseline": 0.0, "arm": draw.uniform(-0.3, 0.3)}, between_lives=draw.uniform(0, 0.05))
        there, back = claimed(frame).loc["arm"], claimed(frame, "arm").loc["baseline"]
        assert back["ratio"].tolist() == pytest.approx((1 / there["ratio"]).tolist())
        assert back["low"].tolist() == pytest.approx((1 / there["high"]).tolist())
        assert claims.inverted(there)["claim"].tolist() == back["claim"].tolist()
        seen |= set(there["claim"])
    assert {ABOVE, BELOW, UNDECIDED} <= seen
    with_twins = drawn(draw, EQUALS | {"other-again": 0.0})
    there, back = claimed(with_twins).loc["other"], claimed(with_twins, "other").loc["baseline"]
    assert back["ratio"].tolist() == pytest.approx((1 / there["ratio"]).tolist())  # each is the mean of both its arms


def test_one_life_and_no_twin_claims_nothing():
    frame = cells({("baseline", 1): [100.0, 101.0, 99.0], ("fast", 1): [300.0, 301.0, 299.0]})
    row = claimed(frame).loc["fast", 1]
    assert row["claim"] == UNDECIDED and math.isnan(row["low"]) and math.isnan(row["high"])
    assert row["more_blocks"] is None and claims.words(row, METRIC) == "not decided: nothing bounds the noise"
    assert "nothing bounds the noise" in tables.finding(frame)
    assert "3.00×<br>not decided" in tables.throughput(frame, METRIC).to_html()
    twice = cells({("baseline", 1): [100.0, 101.0, 99.0, 100.0], ("fast", 1): [300.0, 301.0, 299.0, 300.0]}, lives=2)
    assert claimed(twice).loc["fast", 1]["claim"] == ABOVE


def test_the_twin_of_the_fresh_clone_is_no_claim():
    """What a fresh clone on two cores measured: the twin at 0.77 of the baseline, and an arm as far below."""
    frame = cells({("baseline", 4): [100.0], ("baseline-again", 4): [76.9], ("draft-k1", 4): [77.0]})
    assert set(claimed(frame)["claim"]) == {UNDECIDED}


def test_a_withheld_cell_leaves_out_its_block_alone():
    frame = drawn(np.random.default_rng(3), EQUALS | {"fast": 0.5}, concurrencies=(1,))
    lost = (frame["arm"] == "fast") & (frame["repeat"] == 2)
    row = claimed(frame.assign(certificate=np.where(lost, "fail", "pass"))).loc["fast", 1]
    assert row["blocks"] == 7 and row["claim"] == ABOVE
    of_base = (frame["arm"] != "fast") & (frame["repeat"] == 2)
    row = claimed(frame.assign(certificate=np.where(of_base, "fail", "pass"))).loc["fast", 1]
    assert row["blocks"] == 7 and row["claim"] == ABOVE


def test_a_failed_cell_is_in_no_mean_and_no_comparison():
    good = cells({("baseline", 1): [100.0], ("fast", 1): [150.0]})
    frame = pandas.concat([good, cells({("broken", 1): [999.0]}, certificate="fail")], ignore_index=True)
    assert "broken" not in claims.compare(frame, METRIC, "baseline")["arm"].tolist()
    shown = tables.throughput(frame, METRIC).to_html()
    assert "withheld" in shown and "999" not in shown
    figure = plots.over_concurrency(frame, (METRIC,))
    assert not any(999.0 in line.get_ydata() for line in figure.axes[0].lines)
    plots.plt.close(figure)


def test_what_a_look_decided_stands():
    """Four blocks decide; those that follow say otherwise, and do not take it back."""
    early = cells(
        {
            ("baseline", 1): [100.0, 101.0, 99.0, 100.0] + [100.0, 100.0, 100.0, 100.0],
            ("baseline-again", 1): [100.5, 100.5, 99.5, 100.5] + [100.0, 101.0, 99.0, 100.0],
            ("fast", 1): [150.0, 151.5, 148.5, 150.0] + [50.0, 50.0, 50.0, 50.0],
        }
    )
    looks = [Look("2026-01-01T00:03:30Z", 0.00625), Look("2026-01-01T00:09:00Z", 0.02)]
    assert claimed(early).loc["fast", 1]["claim"] == UNDECIDED
    row = claimed(early, taken=looks).loc["fast", 1]
    assert row["claim"] == ABOVE and row["blocks"] == 4 and row["low"] < 1.5 < row["high"]
    assert claimed(early, taken=looks).loc["baseline-again", 1]["blocks"] == 8


def test_looks_are_read_from_the_runs_of_the_cells(tmp_path):
    frame = drawn(np.random.default_rng(9), EQUALS | {"fast": 0.4}, concurrencies=(1,))
    files.write(tmp_path / "run.json", {"looks": [{"at": "2026-01-01T00:04:30Z", "level": 0.00625}]})
    frame = frame.assign(file=[tmp_path / "cells" / "arm" / "load" / f"{number}.json" for number in range(len(frame))])
    assert set(claimed(frame)["blocks"]) == {5}


def test_the_more_is_claimed_the_wider_are_the_intervals():
    draw = np.random.default_rng(21)
    frame = drawn(draw, EQUALS | {f"arm-{number}": 0.02 for number in range(6)}, concurrencies=(1,))
    few = frame[frame["arm"].isin(["baseline", "baseline-again", "arm-0"])]
    many, alone = claimed(frame).loc["arm-0", 1], claimed(few).loc["arm-0", 1]
    assert many["ratio"] == pytest.approx(alone["ratio"])
    # The arms' noise is drawn together, so that its level alone is compared where that is the same.
    estimate = claims.Estimate(0.02, 0.001, 10, 8)
    assert estimate.half_width(0.05 / 7) > estimate.half_width(0.05 / 2)
    found = {}
    claims._decide(found, {("a", 1): estimate}, 7, 0.05, 0.03)
    wide = found["a", 1][2] / found["a", 1][1]
    found.clear()
    claims._decide(found, {("a", 1): estimate}, 1, 0.05, 0.03)
    assert wide > found["a", 1][2] / found["a", 1][1]


def test_about_so_many_blocks_would_decide():
    """A ratio of 1.1 whose interval is twice as wide as it may be wants four times the blocks."""
    more = claims._more_blocks(None, (1.1, 1.1 / 1.21, 1.1 * 1.21, UNDECIDED, 8), 0.03)
    assert more is None
    estimate = claims.Estimate(math.log(1.1), 0.01, 10, 8)
    assert claims._more_blocks(estimate, (1.1, 1.1 / 1.21, 1.1 * 1.21, UNDECIDED, 8), 0.03) == 24
    assert claims._more_blocks(estimate, (1.1, 1.01, 1.2, ABOVE, 8), 0.03) is None
    frame = drawn(np.random.default_rng(4), EQUALS | {"near": 0.03})
    table = claims.compare(frame, METRIC, "baseline")
    open_claims = table[table["claim"] == UNDECIDED]
    assert len(open_claims) and all(row.more_blocks >= 1 for row in open_claims.itertuples())


def test_comparisons_go_by_what_a_chapter_varies():
    """Two loads of one concurrency are two comparisons."""
    draw = np.random.default_rng(8)
    one, other = (drawn(draw, EQUALS | {"fast": effect}, concurrencies=(1,)) for effect in (0.5, -0.5))
    both = pandas.concat([one.assign(load="one"), other.assign(load="other")], ignore_index=True)
    table = claims.compare(both, METRIC, "baseline", by="load").set_index(["arm", "load"])
    assert table.loc[("fast", "one"), "claim"] == ABOVE and table.loc[("fast", "other"), "claim"] == BELOW
    rows = claims.of_arm(both, METRIC, "fast", "baseline", by="load")
    assert rows.index.tolist() == ["one", "other"] and set(rows["arm"]) == {"fast"}


def test_a_twin_may_be_the_baseline():
    frame = drawn(np.random.default_rng(6), EQUALS | {"fast": 0.5}, concurrencies=(1,))
    row = claimed(frame, "baseline-again").loc["fast", 1]
    assert row["ratio"] == pytest.approx(claimed(frame).loc["fast", 1]["ratio"])


@pytest.mark.parametrize("missing", ["gone", "empty"])
def test_cells_from_before_there_were_lives_are_compared_too(missing):
    frame = drawn(np.random.default_rng(7), EQUALS | {"fast": 0.8}, lives=1, between_lives=0.005)
    columns = ["life", "sitting"]
    old = frame.drop(columns=columns) if missing == "gone" else frame.assign(**dict.fromkeys(columns))
    table = claimed(old)
    assert table.loc["fast", "low"].notna().all() and set(table.loc["fast", "claim"]) == {ABOVE}


def test_published_cells_are_compared():
    for host in store.measured_hosts(3, paths.RESULTS_PUBLISHED):
        frame = store.Store(host, 3, paths.RESULTS_PUBLISHED).newest()
        table = claims.compare(frame, METRIC, "baseline")
        assert len(table) and set(table["claim"]) <= {ABOVE, BELOW, EQUAL, UNDECIDED}
        twins = table[table["repeat_of"].notna()]
        assert not twins["claim"].isin([ABOVE, BELOW]).any()


def test_an_unknown_baseline_is_named_and_nothing_measured_is_an_empty_table():
    with pytest.raises(ParameterError, match="no such arm.*none\n.*allowed: baseline"):
        claimed(cells({("baseline", 1): [1.0]}), "none")
    empty = pandas.DataFrame([], columns=[*store.CELL_COLUMNS, "file"])
    assert claims.compare(empty, METRIC, "baseline").empty


def row(claim, ratio=1.0, low=1.0, high=1.0, more_blocks=None, margin=0.03, more_minutes=math.nan):
    columns = {"ratio": ratio, "low": low, "high": high, "claim": claim, "more_blocks": more_blocks, "margin": margin}
    return pandas.Series(columns | {"more_minutes": more_minutes})


@pytest.mark.parametrize(
    ("of", "metric", "said"),
    [
        (row(ABOVE, 1.26, 1.1, 1.45), METRIC, "faster by 10–45 %"),
        (row(BELOW, 0.69, 0.65, 0.72), METRIC, "slower by 28–35 %"),
        (row(BELOW, 0.69, 0.65, 0.72), "median_tpot_ms", "faster by 28–35 %"),
        (row(ABOVE, 1.26, 1.1, 1.45), "p99_ttft_ms", "slower by 10–45 %"),
        (row(ABOVE, 1.26, 1.1, 1.45), "kv_cache_tokens", "more by 10–45 %"),
        (row(ABOVE, 3.4, 3.3, 3.5), claims.SPEEDUP, "faster by 230–250 %"),
        (row(ABOVE, 1.05, 1.004, 1.1), METRIC, "faster by 0.4–10 %"),
        (row(ABOVE, 1.5, 1.5, 1.5), METRIC, "faster by 50 %"),
        (row(EQUAL, 1.0, 0.99, 1.01), METRIC, "equal within 3 %"),
        (row(EQUAL, 1.0, 0.99, 1.01, margin=0.025), METRIC, "equal within 2.5 %"),
        (row(UNDECIDED, 1.1, 0.9, 1.3, 7), METRIC, "not decided: about 7 more blocks would"),
        (row(UNDECIDED, 1.1, 0.9, 1.3, 1), METRIC, "not decided: about 1 more block would"),
        (row(UNDECIDED, 1.1, 0.9, 1.3, 2314), METRIC, "not decided: about 2,300 more blocks would"),
        (row(UNDECIDED, 1.1, math.nan, math.nan), METRIC, "not decided: nothing bounds the noise"),
        (row(UNDECIDED, 1.1, 0.9, 1.3), METRIC, "not decided"),
    ],
)
def test_the_words_of_a_claim(of, metric, said):
    assert claims.words(of, metric) == said


@pytest.mark.parametrize(
    ("minutes", "said"),
    [(9.8, "10 minutes"), (1.2, "1 minute"), (0.1, "1 minute"), (119.0, "119 minutes"), (150, "2 hours")],
)
def test_minutes_are_said_where_it_is_known_how_long_a_block_takes(minutes, said):
    of = row(UNDECIDED, 1.1, 0.9, 1.3, 12, more_minutes=minutes)
    assert claims.words(of, METRIC) == f"not decided: about 12 more blocks ({said}) would"


def test_how_long_more_blocks_take_is_what_the_blocks_took_starts_included():
    """Eight blocks of three cells, each cell ten seconds after the last, two minutes between two sittings."""
    frame = drawn(np.random.default_rng(5), EQUALS, concurrencies=(1,)).sort_values(["repeat", "arm"])
    seconds = 10 * np.arange(24) + 120 * (frame["repeat"].to_numpy() >= 4)
    frame["at"] = [f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z" for second in seconds]
    table = claimed(frame).dropna(subset=["more_blocks"])
    block_s = 350 * 24 / 23 / 8
    assert len(table) and table["more_minutes"].astype(float).tolist() == pytest.approx(
        (table["more_blocks"].astype(float) * block_s / 60).tolist()
    )
    assert claimed(frame.assign(at=None))["more_minutes"].isna().all()
    assert claimed(frame.drop(columns=["run"]))["more_minutes"].isna().all()


def test_a_percentile_of_too_few_requests_is_not_compared():
    p99 = {("baseline", 1): [100.0, 101.0], ("baseline-again", 1): [100.0, 99.0], ("fast", 1): [50.0, 51.0]}
    frame = cells(p99, metric="p99_ttft_ms")
    for completed, arms in ((99, []), (100, ["fast", "baseline-again"]), (math.nan, ["fast", "baseline-again"])):
        table = claims.compare(frame.assign(completed=completed), "p99_ttft_ms", "baseline")
        assert sorted(table["arm"]) == sorted(arms)
    few = frame.assign(completed=1).rename(columns={"p99_ttft_ms": "median_ttft_ms"})
    assert len(claims.compare(few, "median_ttft_ms", "baseline")) == 2


def test_claims_are_counted_and_the_largest_named():
    table = pandas.DataFrame([row(ABOVE, 1.2), row(ABOVE, 1.4), row(BELOW, 0.7), row(UNDECIDED, 9.0), row(ABOVE, 2.0)])
    table["repeat_of"] = [None, None, None, None, "baseline"]
    gain, loss = claims.extremes(table)
    assert gain["ratio"] == 1.4 and loss["ratio"] == 0.7
    assert claims.counted(table, METRIC) == "3 faster, 1 slower, 0 equal within 3 % and 1 not decided"
    assert claims.counted(table, "median_tpot_ms") == "1 faster, 3 slower, 0 equal within 3 % and 1 not decided"
    assert claims.extremes(table[table["claim"] == UNDECIDED]) == (None, None)


def test_a_finding_counts_and_names_decided_claims_alone():
    frame = drawn(np.random.default_rng(5), EQUALS | {"slow": -0.5}, concurrencies=(1,))
    frame.loc[frame["arm"] == "other", METRIC] *= np.tile([1.0, 4.0], 4)
    said = tables.finding(frame)
    assert (
        "of 2 comparisons of output throughput with baseline, 0 faster, 1 slower, 0 equal within 3 % and 1 not" in said
    )
    assert "The largest loss is slow at concurrency 1, 0." in said and "slower by" in said and "gain" not in said
    open_alone = tables.finding(frame[frame["arm"] != "slow"])
    assert "The nearest to a decision is other at concurrency 1" in open_alone and "minutes) would" in open_alone
    assert tables.finding(frame[frame["arm"] == "baseline"]) == "There is nothing to compare yet."


def test_a_ratio_stands_with_its_interval_and_its_claim():
    frame = drawn(np.random.default_rng(5), EQUALS | {"fast": 0.5}, concurrencies=(1,))
    one = claims.of_arm(frame, METRIC, "fast", "baseline").iloc[0]
    shown = tables.throughput(frame, METRIC).to_html()
    assert f"<br>{one['ratio']:.2f}× [{one['low']:.2f}, {one['high']:.2f}]<br>faster by" in shown
    assert claims.ratio_text(row(EQUAL, 12.34, 11.0, 0.0512)) == "12.3× [11.0, 0.051]"
    noise = tables.noise(frame, (METRIC,)).data
    assert noise["twin"].str.contains("×").all() and noise["claim"].str.contains("equal|not decided").all()
    assert noise["half-width (median of arms)"].between(0, 1).all()
    assert tables.noise(frame[frame["arm"] == "baseline"], (METRIC,)).data.empty


def of_noises(draw: np.random.Generator, noise: dict[str, float], between_lives=0.04, odd: str | None = None):
    """Equal arms in two sittings of four blocks, each with noise of its own; a life of `odd` is a third slower."""
    values = {}
    for concurrency in (1, 4, 8):
        times = draw.normal(0, 0.1, 8)
        for arm, size in noise.items():
            of_lives = draw.normal(0, between_lives, 2) - [0.0, 0.4 if arm == odd else 0.0]
            values[arm, concurrency] = np.exp(times + np.repeat(of_lives, 4) + draw.normal(0, size, 8))
    return cells(values, lives=2, sittings=True)


def test_the_noise_of_one_arm_does_not_hide_what_lives_of_equal_arms_differ_by():
    """Of 60 chapters with unequal lives and one noisy arm, eight or more false ones would be a chance of 1 in 100."""
    draw = np.random.default_rng(4)
    noise = {"baseline": 0.01, "baseline-again": 0.01, "baseline-again-2": 0.01, "quiet": 0.01, "noisy": 0.3}
    chapters = [claimed(of_noises(draw, noise)) for _ in range(60)]
    assert sum(table["claim"].isin([ABOVE, BELOW]).any() for table in chapters) < 8


def test_an_odd_life_widens_the_intervals_of_its_own_arm_alone():
    noise = dict.fromkeys(("baseline", "baseline-again", "baseline-again-2", "quiet", "odd"), 0.02)
    frames = [of_noises(np.random.default_rng(8), noise, 0.01, odd) for odd in (None, "odd")]
    even, with_odd = (np.log(table["high"] / table["low"]) for table in map(claimed, frames))
    assert (with_odd.loc["odd"] > 2 * even.loc["odd"]).all()
    assert (with_odd.loc["quiet"] < 1.1 * even.loc["quiet"]).all()
