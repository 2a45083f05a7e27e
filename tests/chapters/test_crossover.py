"""Where an arm stops paying, on cells whose answers are known, and where more would be measured."""

import pytest
from block_cells import cells

from serving_study.chapters.speculation import crossover


def crossing(**ratios):
    values = {}
    for name, ratio in ratios.items():
        concurrency = int(name.removeprefix("c"))
        values |= {
            ("baseline", concurrency): [100.0, 105.0, 95.0, 101.0],
            ("arm", concurrency): [100.0 * ratio, 105.5 * ratio, 94.7 * ratio, 101.0 * ratio],
            ("baseline-again", concurrency): [100.4, 104.9, 95.1, 100.6],
        }
    return next(
        found for found in crossover.crossings(cells(values), "output_throughput", "baseline") if found.arm == "arm"
    )


@pytest.mark.parametrize(
    ("ratios", "pays", "costs", "words"),
    [
        ({"c1": 1.5, "c4": 1.2, "c16": 0.8}, 4, 16, "between 4 and 16"),
        ({"c1": 1.5, "c4": 1.001, "c16": 0.8}, 1, 16, "between 1 and 16"),
        ({"c1": 0.7, "c4": 0.5}, None, 1, "below 1"),
        ({"c2": 1.001, "c4": 0.5}, None, 4, "below 4 (no loss decided at 2)"),
        ({"c1": 1.5, "c4": 1.2}, 4, None, "above 4"),
        ({"c1": 1.5, "c4": 1.001}, 1, None, "above 1 (no gain decided from 4 on)"),
        ({"c1": 1.0, "c4": 1.001}, None, None, "neither gain nor loss decided from 1 to 4"),
        ({"c1": 0.5, "c4": 1.5}, 4, 1, "the other way round: it starts to pay between 1 and 4"),
        ({"c1": 1.5, "c4": 0.5, "c16": 1.5}, None, None, "more than one: gains at 1, 16, losses at 4"),
    ],
)
def test_where_an_arm_stops_paying(ratios, pays, costs, words):
    found = crossing(**ratios)
    assert (found.pays, found.costs, found.words) == (pays, costs, words)
    assert found.measured == tuple(int(name[1:]) for name in ratios) and found.blocks == (4, 4)


def test_the_table_of_crossovers_says_on_how_many_blocks_it_rests():
    frame = cells(
        {
            ("baseline", 1): [100.0, 105.0, 95.0, 101.0],
            ("baseline-again", 1): [100.4, 104.9, 95.1, 100.6],
            ("arm", 1): [200.0, 211.0, 189.4, 202.0],
        }
    )
    table = crossover.crossings_table(frame)
    assert table.data.to_dict("records") == [{"arm": "arm", "crossover": "above 1", "measured at": "1", "blocks": "4"}]
    assert "by output throughput (cpu)" in table.caption


def test_a_crossover_is_not_decided_where_nothing_bounds_the_noise():
    frame = cells({("baseline", 1): [100.0], ("arm", 1): [150.0]})
    assert crossover.crossings(frame)[0].words == "not decided: nothing bounds the noise"
    twin = cells({("baseline", 4): [100.0], ("baseline-again", 4): [76.9], ("arm", 4): [77.0]})
    assert crossover.crossings(twin)[0].words == "neither gain nor loss decided from 4 to 4"


def test_a_crossover_is_narrowed_inside_its_interval_or_upwards():
    inside = crossover.between(crossing(c1=1.5, c4=1.2, c16=0.8), 2, 64)
    assert inside == [6, 10] and crossover.between(crossing(c1=1.5, c4=1.2, c16=0.8), 1, 64) == [8]
    assert (
        crossover.between(crossing(c1=1.5, c4=1.2), 2, 64) == [10, 16]
        and crossover.between(crossing(c1=1.5, c4=1.2), 2, 4) == []
    )
    assert (
        crossover.between(crossing(c1=0.5, c4=0.4), 2, 64) == []
        and crossover.between(crossing(c1=1.5, c4=1.2, c16=0.8), 0, 64) == []
    )
    assert crossover.between(crossing(c4=1.5, c5=0.8), 3, 64) == []
