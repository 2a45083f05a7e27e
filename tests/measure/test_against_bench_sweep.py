"""The comparison with `vllm bench sweep serve`: our side through the sweep, and what each side's figures come to."""

import importlib.util
from dataclasses import replace

import numpy as np
import pandas
import pytest

from serving_study import paths
from serving_study.analysis import claims
from serving_study.servers.arm import again


@pytest.fixture(scope="module")
def bench():
    file = paths.ROOT / "benchmarks" / "against_bench_sweep.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_our_side_fills_its_minutes_with_blocks_in_two_lives(bench, study, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "RESULTS", paths.RESULTS)
    arms = [study.arm("baseline"), study.arm("fast")]
    plan = study.plan([*arms, again(arms[0])], prompts=4, repeats=1)
    cells = bench.ours(replace(plan, margin=0.5), tmp_path / "results", minutes=0.75)
    blocks = cells.groupby("arm")["repeat"].nunique()
    assert blocks.min() == blocks.max() >= bench.FEWEST_BLOCKS and (cells.groupby("arm")["life"].nunique() >= 2).all()
    assert set(claims.compare(cells, bench.METRIC, "baseline")["arm"]) == {"fast", "baseline-again"}


def test_the_peer_s_intervals_are_welch_s(bench):
    draw = np.random.default_rng(3)
    rates = {"baseline": 100.0, "baseline-again": 100.0, "slow": 50.0}
    rows = [
        {"arm": arm, "concurrency": 1, bench.METRIC: rate * np.exp(draw.normal(0, 0.03))}
        for arm, rate in rates.items()
        for _ in range(6)
    ]
    table = bench.of_runs(pandas.DataFrame(rows)).set_index("arm")
    assert table.loc["slow", "claim"] == claims.BELOW and table.loc["slow", "ratio"] == pytest.approx(0.5, rel=0.1)
    assert table.loc["baseline-again", "claim"] == claims.UNDECIDED and bench.twins_apart(table.reset_index()) == 0
    apart = pandas.DataFrame(rows)
    apart.loc[apart["arm"] == "baseline-again", bench.METRIC] *= 1.3
    assert bench.twins_apart(bench.of_runs(apart)) == 1
    wider = bench.of_runs(pandas.DataFrame(rows), together=True)
    assert bench.half_width(wider) > bench.half_width(table)
