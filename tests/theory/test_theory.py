"""Prediction on cases that can be worked out by hand, and the achieved errors, pinned so that they only get smaller."""

import json
import math

import matplotlib.pyplot as plt
import pandas
import pytest
from typer.testing import CliRunner

from serving_study import cli, paths
from serving_study.analysis import plots, tables
from serving_study.chapters.speculation import draft_cost
from serving_study.errors import HostError, ParameterError
from serving_study.hardware import ceilings
from serving_study.models import shapes
from serving_study.theory import calibration, latency, prediction_errors, predictions
from serving_study.theory.latency import Drafting, Machine, Work

PLAIN = Machine(bandwidth=1e9, flops=1e12, efficiency=0.5, compute_efficiency=0.5)
RANK = Work(read_bytes=1e7, flops_per_token=1e7, kv_bytes_per_token=1e3)


@pytest.fixture(autouse=True)
def no_probe(tmp_path, monkeypatch):
    """Whatever was probed on the machine that runs the tests, predictions here are from datasheets."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")


def test_a_pass_reads_and_computes():
    # 10 MB and 2,000 tokens of 1 kB at half of 1 GB/s; 4 tokens of 10 MFLOP at half of 1 TFLOP/s.
    assert latency.pass_s(RANK, PLAIN, tokens=4, context=2000) == pytest.approx(0.02 + 0.004 + 0.00008)


def test_splitting_divides_the_work_and_adds_the_link():
    two = latency.split(Work(1e7, 1e7, 1e3, layers=10, hidden_bytes=1000), tp=2)
    linked = Machine(1e9, 1e12, 0.5, 0.5, link_bandwidth=1e9, link_latency_s=1e-5)
    assert latency.pass_s(two, linked, 1, 0) == pytest.approx(0.01 + 0.00001 + 20 * (1e-5 + 1e-6))
    # Stages of a pipeline take turns: one token takes as long as on one GPU.
    assert latency.pass_s(latency.split(RANK, pp=2), PLAIN, 1, 0) == pytest.approx(latency.pass_s(RANK, PLAIN, 1, 0))


def test_a_round_is_a_check_and_k_drafts():
    draft = Work(1e6, 1e6, 1e2)
    expected = latency.pass_s(RANK, PLAIN, 8, 100) + 3 * latency.pass_s(draft, PLAIN, 2, 100)
    assert latency.round_s(RANK, PLAIN, 2, 100, Drafting(3, 0.5, draft)) == pytest.approx(expected)
    assert Drafting(3, 0.5).tokens_a_round == pytest.approx(1 + 0.5 + 0.25 + 0.125)


@pytest.mark.parametrize(("alpha", "k"), [(0.1, 1), (0.5, 3), (0.9, 5)])
def test_alpha_from_a_mean_rate(alpha, k):
    assert latency.alpha_of(sum(alpha**position for position in range(1, k + 1)) / k, k) == pytest.approx(alpha)


def test_one_request_alone_takes_its_passes():
    seen = latency.closed_loop([(100, 11)], 1, RANK, PLAIN)
    assert seen["median_ttft_ms"] == pytest.approx(1000 * latency.pass_s(RANK, PLAIN, 100, 0))
    steps = sum(latency.pass_s(RANK, PLAIN, 1, 101 + made) for made in range(10))
    assert seen["median_tpot_ms"] == pytest.approx(100 * steps, rel=1e-6)
    assert seen["output_throughput"] == pytest.approx(11 / seen["duration"]) and seen[
        "total_token_throughput"
    ] == pytest.approx(111 / seen["duration"])


def test_the_loop_keeps_its_concurrency_and_loses_no_token():
    lengths = [(10 + index, 5 + index % 7) for index in range(40)]
    one, eight = (latency.closed_loop(lengths, concurrency, RANK, PLAIN) for concurrency in (1, 8))
    total = sum(output for _, output in lengths)
    assert one["output_throughput"] * one["duration"] == pytest.approx(total) and eight["output_throughput"] * eight[
        "duration"
    ] == pytest.approx(total)
    assert 3 < one["duration"] / eight["duration"] < 8


def test_certain_acceptance_divides_the_rounds():
    plain, fast = (
        latency.closed_loop([(10, 401)], 1, RANK, PLAIN, speculation) for speculation in (None, Drafting(3, 1.0))
    )
    assert plain["median_tpot_ms"] / fast["median_tpot_ms"] == pytest.approx(4, rel=0.02)


def test_the_crossover_is_where_checking_costs_what_it_brings():
    found = latency.crossover(RANK, PLAIN, Drafting(3, 0.5), context=1)
    plain = [latency.pass_s(RANK, PLAIN, count, count) for count in (found - 1, found)]
    rounds = [latency.round_s(RANK, PLAIN, count, count, Drafting(3, 0.5)) for count in (found - 1, found)]
    assert 1.875 * plain[0] >= rounds[0] and 1.875 * plain[1] < rounds[1]
    assert latency.crossover(RANK, PLAIN, Drafting(1, 1.0), context=1, highest=50) is None
    assert latency.crossover(RANK, PLAIN, Drafting(1, 0.0, RANK), context=1) == 1


def test_a_fit_finds_the_constants_that_made_the_figures():
    lengths = {1: [(100, 50)] * 2, 16: [(100, 50)] * 32}
    true = Machine(300e9, 121e12, 0.8, 0.4)
    target = calibration.work(shapes.load(calibration.TARGET))
    measured = {
        concurrency: latency.closed_loop(rows, concurrency, target, true)["median_tpot_ms"]
        for concurrency, rows in lengths.items()
    }
    found = latency.fit(Machine(300e9, 121e12), target, lengths, measured)
    assert (found.efficiency, found.compute_efficiency) == (pytest.approx(0.8, rel=0.01), pytest.approx(0.4, rel=0.05))


def test_the_work_of_a_model():
    tied, untied = shapes.load(calibration.DRAFT), shapes.load(calibration.TARGET)
    assert calibration.work(tied).read_bytes == 2 * tied.parameters
    assert (
        calibration.work(untied).read_bytes == 2 * (untied.parameters - 152064 * 3584)
        and calibration.work(untied).kv_bytes_per_token == 57344
    )


@pytest.fixture(scope="module")
def errors():
    return prediction_errors.errors()


@pytest.mark.parametrize(
    ("section", "host", "metric", "cells", "median", "within_20"),
    [
        # Section 5 is inside the target (a median of 10 %, nine of ten cells within 20 %) for both metrics.
        (5, "a10gx4", "median TPOT (ms)", 15, 0.041, 1.0),
        (5, "a10gx4", "throughput, multiple of the baseline", 15, 0.0227, 1.0),
        # Section 3's TPOT is; of its throughputs two of twelve are 20 and 21 % low, both at concurrency 64, where a
        # third of the ratio is TPOT.
        (3, "l4x1", "median TPOT (ms)", 12, 0.032, 1.0),
        (3, "l4x1", "throughput, multiple of the baseline", 12, 0.083, 0.83),
        # On an H200 the engine's waits decide, and were measured there, on two arms that are left out.
        (3, "h200x1", "median TPOT (ms)", 12, 0.11, 0.91),
        (3, "h200x1", "throughput, multiple of the baseline", 12, 0.063, 1.0),
    ],
)
def test_the_errors_only_get_smaller(errors, section, host, metric, cells, median, within_20):
    table = prediction_errors.summary(errors).set_index(["section", "host", "metric"])
    row = table.loc[(section, host, metric)]
    assert row["cells"] == cells and row["median"] <= median and (within_20 is None or row["within_20"] >= within_20)


def test_what_is_left_out_says_why(errors):
    left = errors[errors["excluded"].notna()]
    assert set(map(tuple, left[["host", "arm"]].to_numpy())) == set(prediction_errors.EXCLUDED)


def test_cells_that_a_constant_was_chosen_on_are_counted_and_ringed(errors):
    """Section 5's cells of two GPUs settled the link's constants: nine of fifteen; four GPUs were in nobody's sight."""
    seen = errors[errors["took_part"].notna()]
    assert set(map(tuple, seen[["host", "arm"]].to_numpy())) == {
        ("a10gx4", arm) for arm in ("7b-tp2", "14b-tp2", "14b-pp2")
    }
    table = prediction_errors.summary(errors).set_index(["section", "metric", "host"])
    row = table.loc[(5, "median TPOT (ms)", "a10gx4")]
    others = errors[(errors["section"] == 5) & errors["arm"].isin(["7b-tp4", "14b-tp4"])]
    others = others[others["metric"] == "median TPOT (ms)"]
    assert (row["took_part"], row["cells"]) == (9, 15) and len(others) == 6
    assert row["median_others"] == pytest.approx(others["error"].abs().median())
    assert "of them in sight of a constant" in tables.prediction_errors(prediction_errors.summary(errors)).to_html()
    figure = plots.predictions(errors)
    assert "a constant was chosen on it" in {text.get_text() for text in figure.legends[0].get_texts()}
    plots.plt.close(figure)


def test_a_drafts_waits_are_no_small_part_of_an_l4s_round(errors):
    shares = prediction_errors.wait_shares("l4x1")
    assert [shares[f"draft-k{k}"] for k in (1, 3, 5)] == pytest.approx([0.08, 0.156, 0.208], abs=0.005)
    glued = draft_cost.figures()
    assert [glued[f"l4_wait_k{k}"] for k in (1, 3, 5)] == [shares[f"draft-k{k}"] for k in (1, 3, 5)]
    assert glued["h200_wait"] > 0.5 and 0.96 < glued["h200_ngram_proposing"] < 0.97 and glued["l4_ngram_tpot"] == 1


def test_the_constants_on_disk_are_those_of_the_fit():
    found = calibration.recalibrate()
    assert set(found) == set(calibration.fitted())
    for host, constants in found.items():
        assert calibration.fitted()[host] == pytest.approx(constants, rel=1e-3)


def test_the_waits_on_disk_are_those_of_the_arms():
    for wait, (seconds, _) in calibration.remeasure_waits().items():
        assert calibration.waits()[wait] == pytest.approx(seconds, rel=0.01)


def test_what_a_round_waits():
    draft = calibration.work(shapes.load(calibration.DRAFT))
    waits = calibration.waits()
    assert calibration.speculate(3, 0.5).wait_s == waits["step"]
    assert calibration.speculate(3, 0.5, draft).wait_s == pytest.approx(waits["step"] + 3 * 24 * waits["in pieces"])
    assert calibration.speculate(1, 0.5, draft, "by kernel").wait_s == pytest.approx(
        waits["step"] + 24 * waits["by kernel"]
    )
    plain, slow = (latency.round_s(RANK, PLAIN, 2, 100, Drafting(3, 0.5, RANK, wait_s)) for wait_s in (0.0, 0.003))
    assert slow - plain == pytest.approx(0.003)


def test_the_waits_are_not_the_l4s(errors):
    """With none, the L4's draft arms are as far off as their launches take; no wait comes from an arm whose error
    counts.
    """
    taken = {arm for wait, (_, arm) in calibration.remeasure_waits().items() if wait != "step"}
    assert taken == {arm for host, arm in prediction_errors.EXCLUDED if host == "h200x1"}
    section = errors[(errors["host"] == "l4x1") & errors["excluded"].isna() & (errors["metric"] == "median TPOT (ms)")]
    assert set(section["arm"]) == {"draft-k1", "draft-k3", "draft-k5"} and abs(section["error"].median()) < 0.02


def test_prediction_reference_and_measurement_beside_one_another():
    own = draft_cost.arms()
    rows = prediction_errors.with_measured(3, "l4x1", "output_throughput", own)
    assert set(rows["source"]) == {"predicted", "measured"} and "baseline" not in set(
        rows["arm"]
    )  # the reference study has total throughput alone
    rows = prediction_errors.with_measured(3, "l4x1", "total_token_throughput", own)
    assert set(zip(rows["source"], rows["host"], strict=True)) == {
        ("predicted", "l4x1"),
        ("reference", "l4x1"),
        ("measured", "h200x1"),
    }
    one = rows[(rows["source"] == "reference") & (rows["arm"] == "draft-k3") & (rows["concurrency"] == 1)]
    assert one["value"].item() == pytest.approx(52.4 / 28.9)
    absolute = prediction_errors.with_measured(5, "a10gx4", "median_tpot_ms", multiples=False)
    assert absolute[(absolute["source"] == "reference") & (absolute["arm"] == "14b-pp2")]["value"].tolist() == [
        59.47,
        69.06,
        80.75,
    ]
    assert (
        len(
            prediction_errors.with_measured(
                3, "h200x1", "median_tpot_ms", own[own["arm"] == "baseline"], multiples=False
            ).query("source == 'measured' and arm != 'baseline'")
        )
        == 0
    )
    figure = plots.beside(rows, "multiple")
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= {
        "draft-k5",
        "predicted: l4x1",
        "reference: l4x1",
        "measured: h200x1\n(random weights, prescribed acceptance)",
    }
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 and box.x1 <= figure.bbox.x1
    plt.close(figure)


def test_what_stands_beside_is_labelled_by_what_it_is_alone():
    own = draft_cost.arms()
    labels = (
        prediction_errors.with_measured(3, "l4x1", "total_token_throughput", own)
        .groupby(["source", "arm"])["labels"]
        .agg(lambda found: found.dropna().unique().tolist())
    )
    assert labels["predicted", "draft-k3"] == [] and labels["reference", "draft-k3"] == [""]
    assert labels["measured", "draft-k3"] == ["random weights, prescribed acceptance"]
    real = own.assign(weights="real", acceptance=None, engine_files="as released")
    for cells, words in (
        (real, "measured: h200x1"),
        (real.assign(engine_files="modified"), "measured: h200x1\n(modified engine)"),
    ):
        figure = plots.beside(prediction_errors.with_measured(3, "l4x1", "total_token_throughput", cells), "multiple")
        assert words in {text.get_text() for text in figure.legends[0].get_texts()}
        plt.close(figure)
    published = (
        prediction_errors.with_measured(3, "h200x1", "total_token_throughput")
        .query("source == 'measured'")
        .groupby("arm")["labels"]
        .first()
    )
    assert published["draft-k1"] == "random weights, prescribed acceptance" and published[
        "draft-k3, its graphs on"
    ].endswith("modified engine")


def test_any_metric_can_be_drawn_beside_its_prediction():
    rows = pandas.DataFrame(
        [
            {
                "arm": "offloaded",
                "tokens": at,
                "value": at / 10,
                "source": source,
                "host": "l4x1",
                "low": at / 12,
                "high": at / 8,
            }
            for at in (1000, 8000)
            for source in ("predicted", "measured")
        ]
    )
    figure = plots.beside(rows, "TTFT (ms)", x="tokens", x_label="prompt (tokens)")
    assert figure.axes[0].get_xlabel() == "prompt (tokens)" and figure.axes[0].get_ylabel() == "TTFT (ms)"
    plt.close(figure)
    with pytest.raises(ParameterError, match="a source that is not drawn: guessed"):
        plots.beside(rows.assign(source="guessed"), "TTFT (ms)")


def test_what_cannot_stand_beside_is_refused():
    with pytest.raises(ParameterError, match="section 3, l4x1, p99_ttft_ms"):
        prediction_errors.with_measured(3, "l4x1", "p99_ttft_ms")
    with pytest.raises(ParameterError, match="several hosts"):
        prediction_errors.with_measured(3, "l4x1", "median_tpot_ms", draft_cost.arms(), multiples=False)


def test_a_prediction_before_renting():
    frame = predictions.predict("g6.xlarge", price_per_hour=0.8).set_index(["arm", "concurrency"])
    base = frame.loc[("baseline", 1)]
    assert base["multiple"] == 1 and base["tpot_ms"] == pytest.approx(56.5, rel=0.01)
    assert base["usd_per_million"] == pytest.approx(0.8 / 3600 / base["output_throughput"] * 1e6)
    assert len(frame) == 5 * 4 and (frame.loc[frame.index.get_level_values("arm") != "baseline", "multiple"] > 1).all()
    five = predictions.predict("g6.xlarge", section=5)
    reasons = five.dropna(subset=["reason"]).set_index("arm")["reason"]
    assert reasons["14b-tp1"].startswith("out of memory: ") and reasons["7b-tp2"] == "needs 2 GPUs, g6.xlarge has 1"
    assert not calibration.is_calibrated("p5.48xlarge") and "never calibrated" in predictions.basis("p5.48xlarge")


def test_an_acceptance_that_nobody_knows_is_not_invented():
    known = predictions.predict("g6.xlarge").groupby("arm")["acceptance"].first()
    assert known["draft-k3"] == pytest.approx(0.535) and known["ngram-k3"] == pytest.approx(0.358)
    assert math.isnan(known["baseline"])
    others = predictions.predict("g6.xlarge", "meta-llama-3-8b", "smollm2-135m-instruct").set_index(
        ["arm", "concurrency"]
    )
    figures = ["tpot_ms", "ttft_ms", "output_throughput", "multiple", "crossover", "acceptance"]
    for arm in ("ngram-k3", "draft-k1", "draft-k3", "draft-k5"):
        assert others.loc[arm, figures].isna().all(axis=None) and (others.loc[arm, "kv_tokens"] > 0).all()
    assert others.loc["baseline", "tpot_ms"].notna().all() and others["reason"].isna().all()
    # The target is the reference study's, the draft is not: its n-grams are known, its drafts are not.
    mixed = predictions.predict("g6.xlarge", draft="smollm2-135m-instruct").groupby("arm")["tpot_ms"].count()
    assert mixed["ngram-k3"] == 4 and mixed["draft-k3"] == 0


def test_an_acceptance_that_is_asked_for_is_taken():
    given = {"draft-k3": 0.6}
    found = predictions.predict("g6.xlarge", "meta-llama-3-8b", "smollm2-135m-instruct", acceptance=given)
    rows = found.set_index(["arm", "concurrency"])
    assert rows.loc["draft-k3", "acceptance"].eq(0.6).all() and rows.loc["draft-k3", "tpot_ms"].notna().all()
    assert rows.loc["draft-k1", "tpot_ms"].isna().all()
    own, other = (
        predictions.predict("g6.xlarge", acceptance=rates).set_index(["arm", "concurrency"]) for rates in ({}, given)
    )
    assert (other.loc["draft-k3", "tpot_ms"] < own.loc["draft-k3", "tpot_ms"]).all()
    assert other.loc["draft-k1", "tpot_ms"].equals(own.loc["draft-k1", "tpot_ms"])
    with pytest.raises(ParameterError, match="for no arm of this section: draft-k9\n  allowed: ngram-k3, draft-k1"):
        predictions.predict("g6.xlarge", acceptance={"draft-k9": 0.5})
    with pytest.raises(ParameterError, match="for no arm of this section: draft-k3\n  allowed: none"):
        predictions.predict("g6.xlarge", section=5, acceptance=given)
    with pytest.raises(ParameterError, match="not an acceptance rate: draft-k1=1.0, draft-k3=-0.1"):
        predictions.predict("g6.xlarge", acceptance={"draft-k1": 1.0, "draft-k3": -0.1})


def test_section_5_is_predicted_for_any_model():
    found = predictions.predict("p5.48xlarge", "meta-llama-3-70b", section=5)
    assert list(dict.fromkeys(found["arm"])) == ["70b-tp1", "70b-tp2", "70b-pp2", "70b-tp4", "70b-tp8"]
    assert found.set_index("arm").loc["70b-tp1", "reason"] == "out of memory: 131.4 GiB of weights, 79.1 GiB of memory"
    rows = found[found["concurrency"] == 8].set_index("arm")
    assert (
        rows.loc["70b-tp2", "multiple"] == 1
        and rows.loc["70b-tp8", "output_throughput"]
        > rows.loc["70b-tp4", "output_throughput"]
        > rows.loc["70b-pp2", "output_throughput"]
    )
    assert predictions.predict("g5.12xlarge", "Qwen/Qwen2.5-7B-Instruct", section=5).equals(
        predictions.predict("g5.12xlarge", section=5)
    )
    small = (
        predictions.predict("g5.12xlarge", "smollm2-135m-instruct", section=5)
        .dropna(subset=["reason"])
        .set_index("arm")["reason"]
    )
    assert (
        small["135m-tp2"].startswith("the heads of smollm2-135m-instruct (9, 3 for keys and values) do not divide")
        and small["135m-tp8"] == "needs 8 GPUs, g5.12xlarge has 4"
    )


def test_multiples_are_of_a_models_own_first_arm():
    found = predictions.predict("g5.12xlarge", section=5).dropna(subset=["multiple"])
    assert set(found.loc[found["multiple"] == 1, "arm"]) == {"7b-tp1", "14b-tp2"}


def test_gpus_that_reach_one_another_directly_add_in_one_step():
    four = latency.split(Work(1e7, 1e7, 1e3, layers=10, hidden_bytes=1000), tp=4)
    ring, switch = (
        latency.all_reduce_s(four, Machine(1e9, 1e12, link_bandwidth=1e9, link_latency_s=1e-5, link_ring=ring), 1)
        for ring in (True, False)
    )
    assert ring - switch == pytest.approx(20 * 2e-5) and switch == pytest.approx(20 * (1e-5 + 1.5e-6))
    assert (
        calibration.calibrated(ceilings.of_host("a10gx4")).link_ring
        and not calibration.calibrated(ceilings.of_host("h200x8")).link_ring
    )


def test_bad_input_is_named():
    with pytest.raises(HostError, match="no ceilings for this host: g9.huge"):
        predictions.predict("g9.huge")
    with pytest.raises(ParameterError, match="nothing is predicted for this section: 7\n.*allowed: 3, 5"):
        predictions.predict("l4x1", section=7)


def test_predict_on_the_command_line():
    call = lambda *words: CliRunner().invoke(cli.app, ["predict", *words])  # noqa: E731
    text = call("--host", "l4x1")
    assert text.exit_code == 0 and "predicted, not measured; constants fitted to a baseline on this GPU" in text.output
    assert "ngram-k3" in text.output and "if the look-up proposes in every round" in text.output
    every = call(
        "--host", "p5.48xlarge", "--section", "5", "--model", "qwen2.5-14b-instruct"
    )  # all arms start, none has a crossover
    assert every.exit_code == 0 and "14b-tp8" in every.output and "nan" not in every.output
    found = json.loads(call("--host", "h200x1", "--section", "5", "--json").output)
    assert found["calibrated"] is True and {row["arm"] for row in found["rows"]} == set(calibration.SPLITS)
    assert isinstance(call("--host", "l4x1", "--price", "0").exception, ParameterError)
