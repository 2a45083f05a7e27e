"""What section 5 makes of cells: multiples by model, pipelines against tensors, idle GPUs and their cost, and the
start's memory.
"""

import json
import re

import matplotlib.pyplot as plt
import pandas
import pytest
from typer.testing import CliRunner

from serving_study import cli, files, paths
from serving_study.analysis import comparisons, plots, verdicts
from serving_study.chapters.parallelism import split_tables, splits
from serving_study.hardware import prices
from serving_study.results import old_cells, store
from serving_study.theory import predictions


@pytest.fixture
def figures():
    yield
    plt.close("all")


def frame(rates, host="h200x2", tpot=None):
    """Cells of these arms: arm to output throughput by concurrency, two repeats a per cent apart."""
    rows = []
    for arm, values in rates.items():
        for concurrency, value in values.items():
            for repeat in range(2):
                made = value * (1 + 0.001 * repeat)
                ms = 1000 * concurrency / made
                rows.append(
                    {
                        "host": host,
                        "arm": arm,
                        "concurrency": concurrency,
                        "repeat": repeat,
                        "certificate": "pass",
                        "weights": "random",
                        "output_throughput": made,
                        "total_token_throughput": 2 * made,
                        "median_tpot_ms": ms,
                        "p99_tpot_ms": 1.1 * ms,
                        "median_ttft_ms": 20.0,
                        "p99_ttft_ms": 50.0 * (0.8 if "-pp" in arm else 1),
                    }
                )
    return old_cells.with_arm_columns(pandas.DataFrame(rows))


def named(*arms):
    """Cells of arms of which nothing but their names matters."""
    return frame({arm: {1: 1.0} for arm in arms})


CELLS = frame(
    {
        "7b-tp1": {1: 200.0, 32: 5000.0},
        "7b-tp2": {1: 300.0, 32: 7000.0},
        "7b-pp2": {1: 190.0, 32: 6000.0},
        "7b-replicas2": {1: 200.0, 32: 9500.0},
        "14b-tp2": {1: 150.0, 32: 4000.0},
        "14b-pp2": {1: 100.0, 32: 3000.0},
        "7b-tp1-again": {1: 201.0, 32: 5010.0},
    }
)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("7b-tp1", splits.Split("7b")),
        ("14b-tp2-pp2", splits.Split("14b", tp=2, pp=2)),
        ("7b-dp2-replicas2", splits.Split("7b", dp=2, replicas=2)),
        ("moe-a2.7b-tp2-ep", splits.Split("moe-a2.7b", tp=2, ep=True)),
        ("14b-tp1-memory-0.15", splits.Split("14b", distinction="memory-0.15")),
        ("7b-tp1-again", splits.Split("7b")),
    ],
)
def test_a_name_says_how_an_arm_is_split(name, split):
    assert splits.of(old_cells.of_name(name)) == split
    assert f"{split.group}-{split.words}" == name.removesuffix("-again")


def test_each_model_is_held_against_its_own_smallest_arm():
    assert list(splits.groups(CELLS)) == ["7b", "14b"] and splits.baseline(CELLS) == "7b-tp1"
    assert (
        splits.baseline(named("14b-pp2", "14b-dp2", "14b-tp4", "14b-tp2")) == "14b-tp2"
        and splits.baseline(named("7b-tp1-memory-0.15", "7b-tp1")) == "7b-tp1"
        and splits.baseline(named("moe-a2.7b-tp2-ep", "moe-a2.7b-tp2")) == "moe-a2.7b-tp2"
    )
    found = splits.efficiency(CELLS).set_index(["arm", "concurrency"])
    assert found.loc[("7b-tp2", 1), "multiple"] == pytest.approx(1.5, rel=0.01) and found.loc[
        ("7b-tp2", 1), "efficiency"
    ] == pytest.approx(0.75, rel=0.01)
    assert found.loc[("14b-pp2", 1), "gpus"] == 1 and found.loc[("14b-pp2", 1), "multiple"] == pytest.approx(2 / 3)
    assert not any(arm.endswith("-again") for arm, _ in found.index) and set(splits.first_model(CELLS)["arm"]) == {
        "7b-tp1",
        "7b-tp2",
        "7b-pp2",
        "7b-replicas2",
        "7b-tp1-again",
    }


def test_the_reference_studys_multiples_are_those_that_it_prints():
    found = splits.efficiency(splits.of_reference(), "total_token_throughput").set_index(["arm", "concurrency"])[
        "multiple"
    ]
    assert [round(found["7b-tp2", c], 2) for c in (1, 8, 32)] == [1.84, 1.73, 1.47] and [
        round(found["7b-tp4", c], 2) for c in (1, 32)
    ] == [2.99, 2.09]
    ratios = splits.pairs(splits.of_reference()).set_index("concurrency")
    assert ratios["TPOT"].round(2).to_dict() == {1: 1.76, 8: 1.66, 32: 1.33} and ratios["TTFT p99"].round(
        2
    ).to_dict() == {1: 0.83, 8: 0.83, 32: 0.72}
    said = splits.figures(CELLS)
    assert (
        round(said["ref_kv_gain"], 1) == 18.7
        and said["own_best"] == pytest.approx(1.9, rel=0.01)
        and all(isinstance(float(value), float) for value in said.values())
    )


def test_a_pipeline_is_held_against_tensors_on_as_many_gpus():
    found = splits.pairs(CELLS)
    assert found[["model", "GPUs", "concurrency"]].to_numpy().tolist() == [
        ["7b", 2, 1],
        ["7b", 2, 32],
        ["14b", 2, 1],
        ["14b", 2, 32],
    ]
    assert found["throughput"].iloc[0] == pytest.approx(190 / 300) and found["TTFT p99"].iloc[0] == pytest.approx(0.8)
    assert splits.pairs(CELLS[CELLS["arm"] != "7b-tp2"])["model"].unique().tolist() == ["14b"]


def test_idle_gpus_are_paid_for():
    found = splits.accounts(CELLS).set_index(["arm", "concurrency"])
    one, two = found.loc[("7b-tp1", 1)], found.loc[("7b-replicas2", 32)]
    assert (
        (one["used"], one["idle"]) == (1, 1)
        and one["a used one"] == pytest.approx(200, rel=0.01)
        and one["a paid one"] == pytest.approx(100, rel=0.01)
    )
    usd, instance = splits.usd_per_gpu_hour("h200x2")
    assert instance == "p5en.48xlarge" and usd == pytest.approx(prices.known("p5en.48xlarge").usd_per_hour / 8)
    assert two["USD a million tokens"] == pytest.approx(2 * usd / 3600 / 9500 * 1e6, rel=0.01)


def test_gpus_of_other_nodes_are_paid_for():
    cells = frame({"7b-tp1": {1: 200.0}, "7b-tp4": {1: 500.0}})
    assert splits.accounts(cells, 8)["idle"].tolist() == [7, 4] and splits.accounts(cells, 8)["a paid one"].iloc[
        0
    ] == pytest.approx(25, rel=0.01)
    assert splits.accounts(cells)["idle"].tolist() == [
        3,
        0,
    ]  # a profile is of one node; an arm that spans two tells of as many GPUs


def test_a_host_without_a_price_has_no_cost():
    cells = frame({"135m-tp1": {1: 20.0}, "135m-tp2": {1: 30.0}}, host="cpu")
    assert splits.usd_per_gpu_hour("cpu") is None and "USD a million tokens" not in splits.accounts(cells)
    assert splits.accounts(cells, 4)["idle"].tolist() == [3, 2] and splits.accounts(cells)["idle"].tolist() == [1, 0]
    assert splits.usd_per_gpu_hour("a10gx4")[1] == "g5.12xlarge"


def start(arm, outcome="ok", reason=None, failure_s=None, **figures):
    return {
        "arm": arm,
        "outcome": outcome,
        "reason": reason,
        "failure_s": failure_s,
        "figures": figures,
        "key": arm,
        "host": "h200x2",
        "labels": {"weights": "random"},
    }


STARTS = [
    start("7b-tp1", weights_gib=14.29, kv_cache_tokens=62688, max_concurrency=15.3, startup_s=60.0),
    start("7b-tp2", weights_gib=7.16, kv_cache_tokens=431344, max_concurrency=105.31, startup_s=70.0),
    start("7b-replicas2", weights_gib=14.29, kv_cache_tokens=62688, max_concurrency=15.3, startup_s=80.0),
    start("14b-tp1", "failed", "out of memory: tried to allocate 270.00 MiB, 127.44 MiB free of 22.06 GiB", 35.0),
    start("7b-tp4", "unsupported", "needs 4 GPUs, h200x2 has 2"),
]


def test_a_failed_start_is_a_row_with_its_reason_and_seconds():
    found = splits.starts(STARTS).set_index("arm")
    assert (
        found.loc["7b-tp2", "gain"] == pytest.approx(6.88, abs=0.01)
        and found.loc["7b-replicas2", "kv_cache_tokens"] == 2 * 62688
        and found.loc["7b-replicas2", "max_concurrency"] == 30.6
    )
    assert (
        found.loc["14b-tp1", "failure_s"] == 35.0
        and "270.00 MiB" in found.loc["14b-tp1", "reason"]
        and pandas.isna(found.loc["14b-tp1", "gain"])
    )
    shown = split_tables.memory(STARTS, "h200x2, random weights").to_html()
    assert "6.9×" in shown and "failed after (s)" in shown and "needs 4 GPUs" in shown and "nan" not in shown


def test_of_withheld_cells_alone_the_tables_are_empty():
    withheld = CELLS.assign(certificate="fail")
    assert splits.accounts(withheld).empty and split_tables.resources(withheld).data.empty
    figures_shown = split_tables.throughput(withheld).data.set_index(["arm", "GPUs"])
    assert figures_shown.size and (figures_shown == "withheld (certificate failed)").all(axis=None)


def test_latencies_are_those_of_all_blocks_and_withheld_cells_have_none():
    cells = store.Store("cpu-46af", 5, paths.RESULTS_PUBLISHED).newest()
    first = comparisons.latencies(cells, "ttft").iloc[0]
    arm, concurrency, wanted = first["arm"], first["concurrency"], first["median"]
    shown = split_tables.latencies(cells, "ttft").data.set_index("arm")
    assert shown.loc[arm, str(concurrency)] == f"{wanted:,.1f} / –"
    lost = cells.assign(certificate=cells["certificate"].where(cells["arm"] != arm, "fail"))
    assert set(split_tables.latencies(lost, "ttft").data.set_index("arm").loc[arm]) == {"withheld (certificate failed)"}


def test_tables_and_plots_say_of_what_they_are(figures):
    reference_cells = splits.of_reference()
    made = [
        split_tables.throughput(CELLS),
        split_tables.throughput(reference_cells, "total_token_throughput"),
        split_tables.pipelines(CELLS),
        split_tables.pipelines(reference_cells),
        split_tables.resources(CELLS),
        split_tables.reference_memory("a10gx4"),
    ]
    said = [table.to_html() for table in made]
    assert all("h200x2, random weights" in text or "a10gx4, reference" in text for text in said) and not any(
        "nan" in text for text in said
    )
    assert "1.50×" in said[0] and "USD a GPU and hour, a share of p5en.48xlarge" in said[4]
    assert [axis.get_title() for axis in split_tables.scaling(CELLS, reference_cells).axes] == [
        "7b, h200x2",
        "14b, h200x2",
        "7b, a10gx4, reference",
        "14b, a10gx4, reference",
    ]


def test_what_the_reference_studys_failed_start_said():
    found = split_tables.reference_memory("a10gx4").data.set_index("arm")
    assert (
        found.loc["14b-tp1", "reason"] == "tried to allocate 270 MiB, 127.44 MiB free of 22.06 GiB"
        and found.loc["14b-tp1", "failed after (s)"] == 35
    )
    assert (
        found["reason"].notna().sum() == 1 and split_tables.reference_memory("l4x4").data["reason"].notna().sum() == 1
    )


def test_cells_that_failed_are_withheld():
    cells = CELLS.assign(certificate=["fail" if arm == "7b-tp2" else "pass" for arm in CELLS["arm"]])
    assert "withheld" in split_tables.throughput(cells).to_html() and "7b-tp2" not in set(
        splits.efficiency(cells)["arm"]
    )


def test_the_finding_counts_claims_and_compares_equal_gpus():
    said = splits.finding(CELLS)
    assert said.startswith("Output throughput (h200x2, random weights). 7b: of 6 comparisons with `7b-tp1`, ")
    assert "with 2 GPUs, at concurrency 1 `7b-tp2` is against `7b-replicas2` 1.50× [" in said
    assert "at concurrency 32 `7b-replicas2` is against `7b-tp2` 1.36× [" in said and "faster by" in said
    # The 14B has neither a twin nor a second life.
    assert "14b: of 2 comparisons with `14b-tp2`, 0 faster, 0 slower, 0 equal within 3 % and 2 not decided" in said
    noisy = pandas.concat([CELLS[CELLS["arm"] != "7b-tp1-again"], frame({"7b-tp1-again": {1: 400.0, 32: 10000.0}})])
    assert "7b: of 6 comparisons with `7b-tp1`, 0 faster, 0 slower, 0 equal within 3 % and 6 not" in splits.finding(
        noisy
    )
    assert (
        splits.finding(CELLS[CELLS["arm"] == "7b-tp1"]) == "There is nothing to compare yet (h200x2, random weights)."
    )


def test_what_links_carry(figures):
    found = {
        "measured": [
            {
                "name": "all-reduce",
                "link": "2 ranks",
                "bytes": 16384,
                "seconds": [1.1e-5],
                "gb_s": 1.49,
                "bus_gb_s": 1.49,
            }
        ]
    }
    assert (
        "1.49" in split_tables.links_table(found, "h200x2").to_html() and split_tables.bandwidths(found, "h200x2").axes
    )
    assert (
        split_tables.bandwidths({"measured": []}, "h200x1").axes
        and split_tables.links_table({}, "h200x1").to_html()
        and "p5.48xlarge" in split_tables.instances_table().to_html()
    )


def test_each_pair_has_its_link_and_what_it_carries():
    rows = [
        {"name": "GPU to GPU", "link": link, "bytes": size, "gb_s": rate}
        for link, size, rate in (("0 to 1", 2**20, 95.0), ("0 to 1", 2**29, 392.0), ("1 to 0", 2**29, 390.0))
    ]
    found = split_tables.matrix({"topology": {"pairs": {"0-1": "NV18"}}, "measured": rows}, "h200x2").data
    assert found.to_numpy().tolist() == [["GPU 0 and GPU 1", "NV18", 392.0, 390.0]]
    assert (
        split_tables.matrix({"measured": rows}, "h200x2").data["back (GB/s)"].tolist() == [390.0]
        and split_tables.matrix({}, "cpu").data.empty
    )


def stored(folder, cells, prompts):
    """Cells with a file each, which says how many prompts they had."""
    cell_files = []
    files.write(folder / "run.json", {})
    for index, cell in enumerate(cells.itertuples()):
        cell_files.append(folder / "cells" / "arm" / "load" / f"{index}.json")
        files.write(cell_files[-1], {"arm": cell.arm, "asked": {"prompts": prompts[cell.concurrency]}})
    return cells.assign(file=cell_files)


def test_predictions_stand_beside_what_was_measured(tmp_path):
    cells = stored(tmp_path, pandas.concat([CELLS, frame({"moe-a2.7b-tp2": {1: 250.0}})]), {1: 8, 32: 64})
    found = splits.predicted(cells).set_index(["arm", "concurrency"])
    assert not any("moe" in arm or arm.endswith("-again") for arm, _ in found.index) and found.loc[
        ("7b-tp2", 1), "measured_output_throughput"
    ] == pytest.approx(300, rel=0.01)
    rates = found["output_throughput"]
    assert (
        rates["7b-tp2", 1] > 1.3 * rates["7b-tp1", 1]
        and rates["7b-replicas2", 1] == pytest.approx(rates["7b-tp1", 1])
        and rates["7b-replicas2", 32] > 1.1 * rates["7b-tp1", 32]
    )
    assert rates["7b-pp2", 1] == pytest.approx(rates["7b-tp1", 1], rel=0.02)
    said = split_tables.predictions_table(cells).to_html()
    assert "output predicted (tok/s)" in said and predictions.basis("h200x2").split(";")[0] in said


def test_prediction_reference_and_measurement_on_one_axis(tmp_path, figures):
    rows = splits.beside(stored(tmp_path, CELLS, {1: 8, 32: 64}))
    assert set(zip(rows["source"], rows["host"], strict=True)) == {
        ("reference", "a10gx4, 7b"),
        ("measured", "h200x2, 7b"),
        ("predicted", "h200x2, 7b"),
    }
    at = rows.set_index(["source", "arm", "concurrency"])["value"]
    assert (
        at["measured", "replicas2", 32] == pytest.approx(1.9, rel=0.01)
        and at["reference", "tp2", 1] == pytest.approx(1.84, abs=0.005)
        and at["predicted", "pp2", 1] == pytest.approx(1, rel=0.02)
    )
    said = {text.get_text() for text in plots.beside(rows, "multiple").legends[0].get_texts()}
    assert {"tp2", "pp2", "measured: h200x2, 7b\n(random weights)", "reference: a10gx4, 7b"} <= said
    slow = frame({"135m-tp1": {1: 20.0}, "135m-tp2": {1: 30.0}, "135m-tp1-again": {1: 20.0}}, host="cpu").assign(
        weights="real"
    )
    rows = splits.beside(slow)  # no ceilings: the prediction is the reference study's machine's
    assert set(zip(rows["source"], rows["host"], strict=True)) == {
        ("predicted", "a10gx4, 7b"),
        ("reference", "a10gx4, 7b"),
        ("measured", "cpu, 135m"),
    }
    assert (
        set(splits.beside(slow[slow["arm"] == "135m-tp2"])["source"])
        == set(splits.beside(slow.iloc[:0])["source"])
        == {"predicted", "reference"}
    )


def test_a_host_without_ceilings_has_no_prediction():
    cells = frame({"135m-tp1": {1: 20.0}, "135m-tp2": {1: 30.0}}, host="cpu")
    assert (
        splits.predicted(cells).empty
        and "no ceilings are known for this host" in split_tables.predictions_table(cells).to_html()
    )


def test_kv_tokens_by_arithmetic_of_a_start():
    words = ["python", "serve", "--gpu-memory-utilization", "0.9", "--max-model-len", "4096", "--max-num-seqs", "128"]
    published = start("7b-tp1") | {"host": "a10gx4", "command": words, "vllm": "0.27.1"}
    assert splits.kv_tokens(published) == pytest.approx(62688, rel=0.01) and splits.kv_tokens(
        published | {"arm": "7b-replicas2"}
    ) == 2 * splits.kv_tokens(published)
    assert (
        pandas.isna(splits.kv_tokens(published | {"arm": "14b-tp1"}))
        and pandas.isna(splits.kv_tokens(published | {"host": "cpu"}))
        and pandas.isna(splits.kv_tokens(published | {"arm": "135m-tp1"}))
    )


def test_verdicts_go_model_by_model_by_ratios(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS_PUBLISHED", tmp_path)
    run = store.Run(tmp_path / "h200x2" / "section-5" / "r")
    host = {"gpus": [{"name": "NVIDIA H200"}] * 2, "cpu_model": "a processor", "cpus": 2}
    files.write(
        run.folder / "run.json",
        {
            "host": host,
            "parameters": {},
            "dataset": {"name": "own", "sha256": "0" * 64},
            "provenance": {"environment": {"vllm": "0.25.1"}},
        },
    )
    for row in CELLS[CELLS["concurrency"] == 1].to_dict("records"):
        model = "Qwen/Qwen2.5-7B-Instruct" if row["arm"].startswith("7b") else "Qwen/Qwen2.5-14B-Instruct"
        about = {
            "key": f"{row['arm']}{row['repeat']}",
            "host": "h200x2",
            "section": 5,
            "run": "r",
            "arm": row["arm"],
            "model": model,
            "load": "concurrency=1",
            "concurrency": 1,
            "repeat": row["repeat"],
            "at": "2030-01-01T00:00:00Z",
        }
        about |= {
            "technique": "parallel",
            "asked": {"prompts": 8, "output_tokens": None, "temperature": None},
            "server": {"alive": True},
            "speculation": {},
            "labels": {"weights": "random", "acceptance": None},
        }
        run.write_cell(about | {"result": row, "certificate": {"verdict": "pass", "checks": []}}, [])
    cells = store.Store("h200x2", 5, tmp_path).newest()
    monkeypatch.setattr(paths, "RESULTS_PUBLISHED", tmp_path / "elsewhere")
    said = split_tables.verdicts_table(cells).to_html()
    assert "reference/a10gx4" in said and verdicts.NOT_COMPARABLE in said and "unequal: weights, data set" in said
    assert "1.84×" in split_tables.compared(cells).to_html() and "1.50×" in split_tables.compared(cells).to_html()
    mine, theirs = verdicts.study("h200x2", 5, tmp_path), verdicts.study("reference/a10gx4", 5)
    table = splits.verdicts_by_model(mine, theirs).query("kind == 'ratio'")
    assert set(zip(table["model"], table["arm"], strict=True)) == {("7b", "7b-tp2"), ("14b", "14b-pp2")} and set(
        table["verdict"]
    ) == {verdicts.NOT_COMPARABLE}
    assert table.query("arm == '7b-tp2' and metric == 'total_token_throughput'")["b"].item() == pytest.approx(
        1.84, abs=0.005
    )
    assert set(splits.verdicts_by_model(mine, mine).query("kind == 'ratio'")["verdict"]) == {verdicts.REPRODUCES}
    assert splits.verdicts_by_model(verdicts.Study("none", mine.frame[mine.frame["arm"] == "7b-pp2"]), theirs).empty
    said = CliRunner().invoke(cli.app, ["compare", "reference/a10gx4", "reference/a10gx4", "--section", "5"]).output
    assert (
        "ratio     total_token_throughput  7b-tp4" in said
        and "ratio     total_token_throughput  14b-tp4" in said
        and "0 differs" in said
    )


def test_every_figure_of_the_notebook_is_glued():
    source = json.loads((paths.NOTEBOOKS / "05-parallelism.ipynb").read_text())
    wanted = set(
        re.findall(
            r"\{glue:text\}`(\w+):",
            "".join("".join(cell["source"]) for cell in source["cells"] if cell["cell_type"] == "markdown"),
        )
    )
    assert wanted and wanted <= set(splits.figures(CELLS))
