"""What requests and tokens cost: prices over measured rates, of results that are published; what has no price has no
cost.
"""

import math
import shutil

import pytest

from serving_study import paths
from serving_study.chapters.kv_cache import costs, prefix_views
from serving_study.hardware import ceilings, prices
from serving_study.results import reference, store

PRICE = prices.given("cpu", 3.6)  # a thousandth of a dollar a second


@pytest.fixture(scope="module")
def cells():
    return store.Store("cpu-46af", 7, paths.RESULTS_PUBLISHED).newest()


@pytest.mark.parametrize(
    ("host", "usd", "source"),
    [
        ("l4x1", 0.8048, "AWS Price List"),
        ("g5.12xlarge", 5.672, "AWS Price List"),
        ("h200x1", 63.296 / 8, "1 of 8 GPUs of p5en.48xlarge"),
        ("cpu", None, None),
        ("moon", None, None),
    ],
)
def test_a_host_costs_what_is_given_else_its_instance_else_its_share(host, usd, source, cache):
    found = costs.price_of(host)
    assert (found and found.usd_per_hour) == (usd and pytest.approx(usd)) and (
        found is None or found.source.startswith(source)
    )
    assert costs.price_of(host, 2.0) == prices.given(host, 2.0)


def test_the_same_dollars_are_read_three_times(cells):
    table = costs.of_cells(cells, PRICE)
    assert {"prefix-cache", "no-prefix-cache"} == set(table["arm"]) and len(table) >= 2
    for row in table.itertuples():
        same = cells[
            (cells["arm"] == row.arm) & cells["load"].str.startswith(f"prefix={row.prefix_tokens},share={row.share:g},")
        ]
        assert row.usd_thousand == pytest.approx(
            1 / same["request_throughput"].mean()
        ) and row.requests_s == pytest.approx(same["request_throughput"].mean())
        # A request's dollars are those of its prompt, and again those of its answer.
        asked, written = (
            same[name].sum() / same["completed"].sum() for name in ("total_input_tokens", "total_output_tokens")
        )
        assert row.usd_million_prompt * asked / 1e3 == pytest.approx(row.usd_thousand, rel=0.02)
        assert row.usd_million_output * written / 1e3 == pytest.approx(row.usd_thousand, rel=0.02)
    assert (table.loc[table["arm"] == "no-prefix-cache", "against"] == 1).all()
    shared = table[(table["arm"] == "prefix-cache") & (table["share"] == 1)]
    assert len(shared) and (shared["against"] < 1).all() and (shared["hit_rate"] > 0.5).all()


def test_requests_on_a_part_of_an_instance_cost_the_part_and_the_whole(cache):
    h200 = store.Store("h200x1", 7, paths.RESULTS_PUBLISHED).newest()
    table = costs.of_cells(h200, costs.price_of("h200x1"))
    parts = (table["rented_thousand"] / table["usd_thousand"]).tolist()
    assert parts and parts == pytest.approx([8.0] * len(parts))
    assert costs.price_of("h200x1").rented.usd_per_hour == pytest.approx(63.296)
    assert costs.price_of("l4x1").rented == costs.price_of("l4x1")
    assert costs.price_of("h200x1").as_dict()["parts"] == 8 and "parts" not in costs.price_of("l4x1").as_dict()


def test_without_a_price_there_is_no_cost(cells, cache):
    assert costs.of_cells(cells, None).empty and list(costs.of_cells(cells, None).columns) == list(
        costs.of_cells(cells, PRICE).columns
    )
    words = costs.basis({"cpu": None, "l4x1": costs.price_of("l4x1")})
    assert "`l4x1`: 0.8048 US dollars an hour (AWS Price List" in words and "us-east-1, 2026-09-24)" in words
    assert (
        "No price is known for `cpu`, and none is made up: set `price_per_hour`" in words
        and "`serving-study price`" in words
    )


def test_a_failed_cell_costs_nothing_that_could_be_shown(cells):
    assert costs.of_cells(cells.assign(certificate="fail"), PRICE).empty


def test_measured_costs_are_of_the_reference_and_of_published_hosts_with_a_price(cache):
    table = costs.measured()
    l4 = table[(table["host"] == "l4x1, reference") & (table["arm"] == "baseline")].iloc[0]
    highest = (
        reference.load(3)
        .query("host == 'l4x1' and arm == 'baseline' and metric == 'total_token_throughput'")["value"]
        .max()
    )
    assert (
        (l4["instance"], l4["tokens_s"]) == ("g6.xlarge", highest)
        and l4["usd_million"] == pytest.approx(0.8048 / 3600 / highest * 1e6)
        and math.isnan(l4["usd_thousand"])
    )
    four = table[table["host"] == "a10gx4, reference"]
    assert (
        set(four["instance"]) == {"g5.12xlarge"} and (four["usd_million"] * four["tokens_s"]).round(6).nunique() == 1
    )  # paid for whole, whatever it used
    part = table[table["host"].str.startswith("h200x1")]
    assert (part["instance"] == "1 of 8 GPUs of p5en.48xlarge").all() and part["host"].str.contains(
        "random weights"
    ).all()
    # An instance is rented whole: eight times what the share of one GPU would be.
    assert (part["rented_million"] / part["usd_million"]).tolist() == pytest.approx([8.0] * len(part))
    assert (part["rented_million"] * part["tokens_s"]).tolist() == pytest.approx([63.296 / 3600 * 1e6] * len(part))
    assert (table["rented_million"] == table["usd_million"])[table["host"].str.endswith("reference")].all()
    assert (
        part[["usd_million_output", "usd_thousand"]].notna().all(axis=None)
        and (part["usd_million_output"] > part["usd_million"]).all()
    )
    assert not table["host"].str.startswith("cpu").any() and not table["arm"].str.endswith("-again").any()


def test_a_host_without_results_adds_no_row(tmp_path, cache):
    assert set(costs.measured(tmp_path)["host"]) == {"l4x1, reference", "a10gx4, reference"}
    shutil.copytree(paths.RESULTS_PUBLISHED / "cpu-c2f5" / "section-3", tmp_path / "cpu-c2f5" / "section-3")
    assert set(costs.measured(tmp_path)["host"]) == {"l4x1, reference", "a10gx4, reference"}


def test_the_table_of_instances_has_the_p4d_beside_the_p4de(cache):
    table = costs.instances().set_index("instance")
    assert list(table.index) == list(ceilings.instances()) and table["usd_per_gpu_hour"].notna().all()
    small, large = table.loc["p4d.24xlarge"], table.loc["p4de.24xlarge"]
    assert (small["gpu"], large["gpu"], small["gpus"], large["gpus"]) == ("A100-40", "A100-80", 8, 8) and small[
        "memory_gib"
    ] < 40 < 79 < large["memory_gib"]
    assert small["usd_per_gpu_hour"] == pytest.approx(21.957642 / 8) and large["70B"] > 2 * small["70B"]
    # What the reference study takes for 8B on one GPU and for 70B fits there, and 70B does not fit an L4.
    assert table.loc["g6.xlarge", "8B"] > 1 and math.isnan(table.loc["g6.xlarge", "70B"])
    nowhere = costs.instances("eu-west-1")
    assert nowhere["usd_per_hour"].isna().all() and nowhere["date"].isna().all()


def test_the_views_show_dashes_and_say_when_there_is_no_price(cells, cache):
    none, some = (prefix_views.costs_table({"cpu": cells}, {"cpu": price}) for price in (None, PRICE))
    assert (
        "(no price is known)" in none.to_html()
        and "(no price is known)" not in some.to_html()
        and "USD a thousand requests" in some.to_html()
    )
    shown = prefix_views.instance_costs_table().to_html()
    assert "1 of 8 GPUs of p5en.48xlarge" in shown
    assert "instance rented whole" in shown and "this host&#x27;s GPUs" in shown.replace("'", "&#x27;")
    shown = prefix_views.instances_table().to_html()
    assert "p4de.24xlarge" in shown and "8K requests of 70B" in shown and "nan" not in shown
