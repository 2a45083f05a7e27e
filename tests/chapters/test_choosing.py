"""Section 10's figures: out of whose results they come, that a prediction never hides a measurement, and that nothing
is said of nothing.
"""

import math
import re

import pandas
import pytest
from toy_results import cell, measure

from serving_study import paths
from serving_study.analysis import claims, plots
from serving_study.chapters.choosing import (
    advice,
    advice_text,
    choosing,
    decision_rules,
    effect_matrix,
    techniques,
)
from serving_study.chapters.choosing.techniques import (
    HERE,
    KV,
    NOTHING,
    PREDICTED,
    PUBLISHED,
    REFERENCE,
    THROUGHPUT,
    TPOT,
    TTFT,
)
from serving_study.chapters.kv_cache import prefixes, working_sets
from serving_study.results import old_cells, reference, store

CPU = "cpu-c2f5"  # one of the machines without GPUs that have published results


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """From section 3's published results alone, whatever else is published later."""
    results = tmp_path_factory.mktemp("results")
    for host in (CPU, "h200x1"):
        (results / host).mkdir()
        (results / host / "section-3").symlink_to(paths.RESULTS_PUBLISHED / host / "section-3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "RESULTS", results)
        patch.setattr(paths, "RESULTS_PUBLISHED", results)
        return choosing.effects(CPU)


@pytest.fixture(scope="module")
def settled(everything):
    return choosing.settled(everything, CPU)


def test_every_technique_has_a_row_and_every_row_a_basis(everything):
    assert set(everything["technique"]) == {technique.name for technique in techniques.TECHNIQUES}
    known = everything["basis"] != NOTHING
    assert everything.loc[known, "ratio"].gt(0).all() and everything.loc[~known, "ratio"].isna().all()
    assert set(everything["basis"]) == {HERE, PUBLISHED, REFERENCE, PREDICTED, NOTHING}


@pytest.mark.parametrize(
    ("technique", "arm", "arms", "against"),
    [
        ("draft model", "draft-k3", {"baseline", "draft-k3"}, "baseline"),
        ("draft model", "draft-k3-same-vocabulary", {"baseline"}, None),
        ("draft model", "eagle3-k3", {"baseline"}, None),
        ("EAGLE head", "eagle3-k3", {"baseline-again", "baseline"}, "baseline"),
        ("tensor parallelism", "7b-tp4", {"7b-tp1", "7b-tp2", "14b-tp2"}, "7b-tp1"),
        ("tensor parallelism", "14b-tp4", {"7b-tp1", "14b-tp2"}, "14b-tp2"),
        ("tensor parallelism", "14b-tp2", {"7b-tp1", "14b-tp2"}, None),
        ("tensor parallelism", "7b-tp1", {"7b-tp1", "7b-tp2"}, None),
        ("tensor parallelism", "7b-tp1-memory-0.5", {"7b-tp1"}, None),
        ("pipeline parallelism", "14b-pp2", {"14b-tp2", "14b-tp4"}, "14b-tp2"),
        ("data-parallel replicas", "7b-replicas2", {"7b-tp1"}, "7b-tp1"),
        ("KV offload", "7b-tp4", {"7b-tp1"}, None),
    ],
)
def test_an_arm_is_held_against_what_it_replaces(technique, arm, arms, against):
    [chosen] = [known for known in techniques.TECHNIQUES if known.name == technique]
    assert chosen.baseline(arm, {name: old_cells.of_name(name) for name in {*arms, arm}}) == against


@pytest.mark.parametrize(
    ("arm", "metric", "highest", "printed"),
    [
        # The decision table of the reference study: −45 % and −16 %, +106 %, 2.99×, 18.7×.
        ("draft-k3", TPOT, False, 1 - 0.45),
        ("draft-k3", TPOT, True, 1 - 0.16),
        ("draft-k1", TTFT, False, 1 + 1.06),
        ("7b-tp4", THROUGHPUT, False, 2.99),
        ("7b-tp4", KV, False, 18.7),
    ],
)
def test_the_reference_studys_decision_table_carries_over(settled, arm, metric, highest, printed):
    assert decision_rules.figure(settled, arm, metric, highest=highest) == pytest.approx(printed, rel=0.01)


def test_the_rules_are_filled_from_it(settled):
    found = decision_rules.rules(settled)
    assert found["prefix_gain"] == pytest.approx(10.08, abs=0.005) and found["prefix_control"] == pytest.approx(
        0.99, abs=0.005
    )
    assert found["tp_share"] == pytest.approx(2.99 / 4, abs=0.002) and found["pp_throughput"] == pytest.approx(
        24.0 / 41.8
    )
    assert f"(this host, {CPU}; section 3, vLLM 0.32.0, 4–16 requests, one draw; " in found["draft_here"]
    assert "data-parallel replicas" in found["unmeasured"] and "draft model" not in found["predicted_only"]
    assert not [name for name, value in found.items() if isinstance(value, float) and math.isnan(value)]


def test_prescribed_acceptance_is_no_basis_of_a_rule(settled):
    """The H200's arms accept what they were told to, and its random text repeats itself: labelled, and no answer."""
    fast = settled[(settled["host"] == "h200x1") & settled["technique"].isin(["n-gram look-up", "draft model"])]
    assert len(fast) and not fast["grounded"].any()
    for technique in ("n-gram look-up", "draft model"):
        for metric in (THROUGHPUT, TPOT, TTFT):
            assert decision_rules.phrase(settled, technique, metric, basis=PUBLISHED) == NOTHING
    found = decision_rules.rules(settled)
    assert found["ngram_published"].startswith("no answer: ngram-k3 at 1, 4, 16, 25, 40, 64 (h200x1; random weights; ")
    assert "97% of steps propose (random text repeats itself)" in found["ngram_published"]
    assert techniques.FAULT in found["draft_published"] and found["fault_gain"] == pytest.approx(2.49, abs=0.01)
    # The L4, with a text that means something, gains nothing in TPOT by it.
    assert found["ngram_tpot_low"] == 1 and found["ngram_tpot_high"] == pytest.approx(1.043, abs=0.001)
    shown = effect_matrix.matrix(settled)
    [row] = shown[(shown["basis"] == "h200x1") & (shown["arm"] == "ngram-k3")].to_dict("records")
    assert row["how sure"] == "no basis: prescribed acceptance"
    assert row["measured with"] == "section 3, vLLM 0.25.1, 10–128 requests, 3 repeats"


def effects_of(*rows) -> pandas.DataFrame:
    """Grounded effects of look-ups on TPOT: (host, ratio, low, high, claim)."""
    [technique] = [known for known in techniques.TECHNIQUES if known.name == "n-gram look-up"]
    found = [
        techniques.effect_row(
            technique, "ngram-k3", "baseline", PUBLISHED, host, TPOT, 1, ratio, claim=claim, margin=0.03, grounded=True
        )
        | {"low": low, "high": high}
        for host, ratio, low, high, claim in rows
    ]
    return pandas.DataFrame(found, columns=techniques.COLUMNS)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("a", 0.8, 0.7, 0.9, claims.BELOW)], "it is decided to be faster on `a`."),
        ([("a", 1.2, 1.1, 1.3, claims.ABOVE), ("b", 1.2, 1.1, 1.3, claims.ABOVE)], "to be slower on `a` and `b`."),
        ([("a", 0.8, 0.7, 0.9, claims.BELOW), ("b", 1.2, 1.1, 1.3, claims.ABOVE)], "faster on `a`, slower on `b`."),
        (
            [("a", 0.8, 0.7, 0.9, claims.BELOW), ("a", 1.2, 1.1, 1.3, claims.ABOVE)],
            "faster in some figures and slower in others on `a`.",
        ),
        (
            [("a", 0.8, 0.6, 1.1, claims.UNDECIDED), ("b", 1.0, 0.99, 1.01, claims.EQUAL)],
            "None of this book's own comparisons (2) decides whether it pays.",
        ),
    ],
)
def test_what_the_rules_say_of_a_technique_is_what_is_decided(rows, said):
    frame = effects_of(*rows)
    assert decision_rules.decided(frame, "n-gram look-up").endswith(said)
    told = decision_rules.decided(frame.assign(grounded=False), "n-gram look-up")
    assert told == "Of this book's own measurements none may decide whether it pays."


def test_how_sure_an_arm_is_counts_its_claims():
    frame = effects_of(("a", 0.8, 0.7, 0.9, claims.BELOW), ("a", 1.2, 0.9, 1.4, claims.UNDECIDED))
    assert effect_matrix.how_sure(frame) == "of 2 figures 1 faster, 1 not decided"
    unbounded = frame.assign(low=math.nan, high=math.nan, claim=claims.UNDECIDED)
    assert effect_matrix.how_sure(unbounded) == "nothing bounds the noise"


def test_the_quantised_cache_is_section_7s(monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", paths.RESULTS_PUBLISHED)
    frame = choosing.settled(choosing.effects(CPU), CPU)
    rows = frame[frame["technique"] == "quantised KV cache"].set_index("metric")
    assert set(rows["basis"]) == {PUBLISHED} and set(rows["host"]) == {"h200x1"}
    assert rows.loc[KV, "ratio"] == pytest.approx(2.0, abs=0.001)
    assert rows.loc[THROUGHPUT, "ratio"] == pytest.approx(0.987, abs=0.001)
    assert rows.loc[TPOT, "ratio"] == pytest.approx(1.017, abs=0.001) and rows.loc[TPOT, "requests"] == 32
    found = decision_rules.rules(frame)
    assert "quantised KV cache" not in found["predicted_only"] + found["unmeasured"]
    assert found["fp8_kv"].startswith(
        "fp8-cache: KV tokens 2.00× (h200x1; section 7, vLLM 0.25.1; counted at the start"
    )
    assert "throughput 0.99×" in found["fp8_throughput"] and "32 requests, one draw" in found["fp8_throughput"]


def test_our_effects_are_claims_and_the_reference_studys_are_not(monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", paths.RESULTS_PUBLISHED)
    frame = choosing.effects(CPU)
    ours = frame[frame["basis"].isin([HERE, PUBLISHED]) & frame["section"].isin([3, 4, 5])]
    assert len(ours) > 20 and set(ours["claim"]) <= {claims.ABOVE, claims.BELOW, claims.EQUAL, claims.UNDECIDED}
    bounded = ours.dropna(subset=["low"])
    assert len(bounded) and ((bounded["low"] <= bounded["ratio"]) & (bounded["ratio"] <= bounded["high"])).all()
    assert set(ours.loc[ours["low"].isna(), "claim"]) <= {claims.UNDECIDED}
    others = frame[frame["basis"].isin([REFERENCE, PREDICTED, NOTHING])]
    assert others[["low", "high", "claim"]].isna().all(axis=None)


def test_section_10_claims_what_the_chapter_claims(monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", paths.RESULTS_PUBLISHED)
    cells = store.Store(CPU, 3, paths.RESULTS_PUBLISHED).newest()
    table = claims.compare(cells, "output_throughput", "baseline").set_index(["arm", "concurrency"])
    frame = choosing.effects(CPU).query("host == @CPU and section == 3 and metric == @THROUGHPUT")
    assert len(frame)
    for row in frame.itertuples():
        expected = table.loc[(row.arm, row.concurrency), ["ratio", "low", "high", "claim"]].tolist()
        assert [row.ratio, row.low, row.high, row.claim] == expected


def test_the_best_arm_stands_beside_the_middle_one(settled):
    rows = decision_rules.ordered(settled, "draft model", TPOT, basis=REFERENCE)
    names = [cells["arm"].iloc[0] for cells in rows]
    assert names == ["draft-k3", "draft-k5", "draft-k1"]
    said = decision_rules.phrase(settled, "draft model", TPOT, basis=REFERENCE)
    assert said.startswith(
        "draft-k3: TPOT 0.55× at concurrency 1, 0.84× at 64; the best of 3, in the middle draft-k5: "
    )
    assert said.endswith(
        "(reference study, l4x1; section 3, vLLM 0.27.1, 10–128 requests, one draw; nothing bounds the noise)"
    )
    worst = decision_rules.phrase(settled, "draft model", TTFT, basis=REFERENCE, best=False)
    assert worst.startswith("draft-k1: TTFT 2.06×") and "the worst of 3, in the middle draft-k5" in worst


def test_sections_3_and_4_have_one_draft_and_both_are_shown(monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", paths.RESULTS_PUBLISHED)
    table = decision_rules.same_draft()
    best = table[table["best"]]
    assert len(table) and all(set(rows["section"]) == {3, 4} for _, rows in best.groupby("host"))
    said = decision_rules.disagreement(table)
    for row in best.itertuples():
        assert f"section {row.section} has its best with {row.arm}, {claims.ratio_text(row)}, " in said
        assert claims.words(row, "output_throughput") in said and f"{row.requests} requests of " in said
    # One k in both, or two answers.
    alike = [
        rows.assign(arm="draft-k1" if same else rows["arm"].where(rows["section"] == 3, "other"))
        for same in (True, False)
        for rows in [best[best["host"] == best["host"].iloc[0]]]
    ]
    assert decision_rules.disagreement(alike[0]).endswith(": they agree.")
    assert decision_rules.disagreement(alike[1]).endswith(": the same draft, and two answers.")
    shown = effect_matrix.same_draft(table).to_html()
    assert "One draft in two sections" in shown and "× [" in shown
    assert decision_rules.disagreement(table.iloc[:0]) == "No host has both."
    assert {3, 4} <= set(choosing.effects(CPU).query("technique == 'draft model' and host == @CPU")["section"])


def test_a_prediction_gives_way_to_a_measurement_and_stays_where_there_is_none(everything, settled):
    assert {"draft model", "tensor parallelism", "quantised KV cache"} <= set(
        everything.loc[everything["basis"] == PREDICTED, "technique"]
    )
    left = settled[settled["basis"] == PREDICTED]
    assert set(left["technique"]) == {"prefill/decode split", "KV offload", "quantised KV cache"}
    # A GPU host that measured nothing keeps its own predictions beside the others' measurements.
    rented = choosing.settled(everything.assign(host=everything["host"].replace("g6.xlarge", "l4x9")), "l4x9")
    assert "draft model" in set(rented.loc[(rented["basis"] == PREDICTED) & (rented["host"] == "l4x9"), "technique"])


def test_the_predictions_of_what_is_moved_or_found_again_help(everything):
    rows = everything[everything["basis"] == PREDICTED].set_index(["technique", "host", "metric"])["ratio"]
    # The reference study measured a tenth.
    assert rows["prefix caching", "g6.xlarge", TTFT].item() == pytest.approx(0.1, rel=0.5)
    assert rows["KV offload", "g6.xlarge", TTFT].item() < 1 and rows[
        "quantised KV cache", "g6.xlarge", KV
    ].item() == pytest.approx(2, rel=0.01)
    assert (
        rows["prefill/decode split", "g5.12xlarge", TPOT].item() < 1
        and ("prefill/decode split", "g6.xlarge", TPOT) not in rows
    )


def test_measured_effects_have_interval_certificate_and_labels(results):
    cells = [
        cell(arm, 1, repeat, base + repeat, 10 + repeat)
        for arm, base in (("baseline", 100), ("baseline-again", 101), ("ngram-k3", 150))
        for repeat in range(3)
    ]
    cells.append(cell("draft-k1", 1, 0, 300, 10, certificate="fail"))
    for one in cells:
        one["result"]["median_ttft_ms"] = 50.0
    measure(results, cells)
    frame = choosing.effects("toy")
    mine = frame[(frame["basis"] == HERE) & (frame["metric"] == THROUGHPUT)]
    [row] = mine.to_dict("records")
    assert (
        row["arm"] == "ngram-k3"
        and row["low"] < row["ratio"] < row["high"]
        and row["ratio"] == pytest.approx(151 / 101.5, rel=0.001)
    )
    assert row["certificate"] == "pass" and row["claim"] == claims.ABOVE and row["labels"] == ""
    assert "(this host, toy; section 3, " in decision_rules.phrase(frame, "n-gram look-up", THROUGHPUT)
    assert decision_rules.phrase(frame, "draft model", THROUGHPUT, basis=HERE) == NOTHING


def test_an_unchecked_cell_makes_its_effect_unknown(results):
    cells = [cell("baseline", 1, 0, 100, 10), cell("ngram-k3", 1, 0, 150, 10, certificate="unknown")]
    for one in cells:
        one["result"]["median_ttft_ms"] = 50.0
    measure(results, cells)
    frame = choosing.effects("toy")
    assert set(frame.loc[frame["basis"] == HERE, "certificate"]) == {"unknown"}


def test_prefix_reuse_and_tiers_are_taken_from_section_7(monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", paths.RESULTS_PUBLISHED)
    host = "cpu-46af"
    frame = choosing.effects(host)
    mine = frame[(frame["basis"] == HERE) & frame["technique"].isin(["prefix caching", "KV offload"])].set_index("arm")
    cells = store.Store(host, 7, paths.RESULTS_PUBLISHED).newest()
    found = prefixes.sequence(cells).set_index("arm")
    for arm in (prefixes.CACHED, prefixes.CONTROL):
        assert (
            mine.at[arm, "ratio"] == pytest.approx(found.at[arm, "warm_ms"] / found.at[arm, "cold_ms"])
            and mine.at[arm, "certificate"] == "pass"
        )
    back = working_sets.by_source(cells).set_index(["arm", "source"])["ttft_ms"]
    tiers = {arm for arm, source in back.index if source == "external"}
    assert {"files", "lmcache-server"} <= tiers
    for arm in tiers:
        assert mine.at[arm, "ratio"] == pytest.approx(back[arm, "external"] / back["device-only", "recompute"])
    assert set(mine["metric"]) == {TTFT} and set(mine.index) == {prefixes.CACHED, prefixes.CONTROL, *tiers}
    known = dict(
        zip(decision_rules.decisions(frame)["problem"], decision_rules.decisions(frame)["what is known"], strict=True)
    )
    assert (
        f"(this host, {host}; section 7, " in known["prompts are long and begin alike"]
        and "files" in known["memory is short and prefixes come back"]
    )


def test_the_decision_table_covers_the_reference_studys_problems(settled):
    table = decision_rules.decisions(settled)
    assert len(table) == 8 and table["what is known"].str.len().gt(0).all()
    known = dict(zip(table["problem"], table["what is known"], strict=True))
    assert known["throughput is short and the model is small"] == NOTHING
    assert (
        "14b-tp1 failed: out of memory after 35 s (reference study, a10gx4)"
        in known["the model does not fit on one GPU"]
    )
    cache = known["more requests at once than the cache holds"].split("\n")
    assert cache[-1].startswith("fp8: KV tokens 2.00×; the best of 2, the other fp8: KV tokens 2.00× (predicted, g5")
    slow = known["answers come too slowly for whoever is waiting"].split("\n")
    assert any(line.startswith("draft-k3: TPOT 0.55× at concurrency 1, 0.84× at 64; the best of 3") for line in slow)
    assert len([line for line in slow if line.startswith("no answer: ") and "h200x1" in line]) == 2
    # Every line of figures says where it is from.
    assert all(re.search(r"\(.*\)$", line) for text in known.values() for line in text.split("\n") if line != NOTHING)


def test_the_tables_say_what_a_figure_is_of(settled):
    about = effect_matrix.labels(settled)
    few, fast = about.split("; ")
    assert few == f"{CPU}: on fewer than 30 accepted tokens"
    assert fast == (
        "h200x1: random weights, prescribed acceptance, 97% of steps propose (random text repeats itself), "
        f"{techniques.FAULT}"
    )
    matrix = effect_matrix.matrix(settled)
    shown = effect_matrix.effects(matrix, about).to_html()
    assert "badge-pass" in shown and about in shown and "nan" not in shown.lower()
    assert len(matrix[matrix["basis"] == NOTHING]) == 2
    assert "<br>" in effect_matrix.decisions(decision_rules.decisions(settled), about).to_html()


def test_the_plot_says_what_random_weights_and_prescribed_acceptance_are_in(everything):
    figure = plots.effects(everything, THROUGHPUT)
    said = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {
        f"this host, {CPU}",
        "published, h200x1 (random weights, prescribed acceptance)",
        "reference study, l4x1",
    } <= said
    # What is no basis is a cross.
    crosses = figure.axes[0].collections[1].get_offsets()
    assert len(crosses) == 4 + 2 and "no basis for a rule" in said  # the H200's arms, and two on few tokens
    plots.plt.close(figure)


def test_a_dash_stands_for_a_figure_that_the_reference_study_does_not_have(settled):
    row = effect_matrix.matrix(settled).set_index("arm").loc["7b-tp4"].iloc[0]
    assert row[TTFT].split("\n")[0] == "–" and reference.load(5).query("metric == 'median_ttft_ms'")[
        "concurrency"
    ].unique().tolist() == [32]


def test_the_targets_are_judged_on_this_host_and_the_published_ones(results):
    wanted = advice.targets([f"{name}={limit}" for name, limit in choosing.Choosing().slo.items()])
    found = {one.host: one for one in decision_rules.advised("l4x1", wanted)}
    assert found["l4x1"].basis == "predicted" and found["h200x1"].found and list(found)[0] == "l4x1"
    assert CPU in found and "moon" not in {one.host for one in decision_rules.advised("moon", wanted)}
    assert advice_text.sentence(found["h200x1"]).startswith(
        "On h200x1, measured: baseline at concurrency 40 has the highest output throughput within the targets"
    )
    about = advice_text.about(found["h200x1"])
    assert about == "h200x1, measured, vLLM 0.25.1, random weights, prescribed acceptance"
    shown = effect_matrix.advised(advice_text.table(found["h200x1"]), about).to_html()
    assert '<span class="badge-unknown">meets (no answer)</span>' in shown and "badge-pass" in shown
    assert set(advice_text.table(found["l4x1"])["verdict"]) <= {"meets (predicted)", "misses (predicted)"}
