"""The tables, figures and sentences of section 7's sizes, from the notebook's own header."""

import matplotlib.pyplot as plt
import pytest

from serving_study.analysis import plots
from serving_study.chapters import sections
from serving_study.chapters.cache_sizes import cache_size_plots, cache_size_prose, cache_size_tables, cache_sizes
from serving_study.chapters.cache_sizes.cache_sizes import CacheSizes

FEW = {"models": ["qwen2.5-7b-instruct", "llama-2-7b"], "hosts": ["g6.xlarge", "g5.12xlarge"]}


@pytest.fixture(scope="module")
def wanted():
    return CacheSizes(**sections.header(sections.get("7-sizes"))).replaced(**FEW)


@pytest.fixture
def looks():
    with plt.rc_context():
        plots.setup()
        yield
    plt.close("all")


def shown(styler):
    """Row by row what a table shows, by column."""
    laid_out = styler._translate(False, False)
    names = [cell["display_value"] for cell in laid_out["head"][0] if cell["is_visible"]]
    rows = [[cell["display_value"] for cell in row if cell["is_visible"]] for row in laid_out["body"]]
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize(("tokens", "name"), [(8192, "8K"), (131072, "128K"), (1024, "1K"), (3000, "3,000")])
def test_a_length_has_a_name(tokens, name):
    assert cache_size_tables.length_name(tokens) == name


def test_the_reference_sums_are_those_of_bytes():
    rows = shown(cache_size_tables.reference_sums())
    assert {row["figure"] for row in rows} == {"KiB a token", "GiB at 8K", "GiB at 128K"} and len(rows) == 9
    assert rows[0]["reference"] == "56" and rows[0]["error"] == "+0.0%"


def test_what_a_sequence_holds(wanted):
    [qwen, llama] = shown(cache_size_tables.sequences(wanted))
    assert (qwen["attention"], qwen["KiB a token"], qwen["8K (GiB)"]) == ("GQA 7:1", "56.0", "0.44")
    assert (llama["KiB a token"], llama["of MHA"]) == ("512.0", "100.0%")
    assert "(fp8)" in cache_size_tables.sequences(wanted.replaced(cache_dtype="fp8")).caption


def test_the_memory_of_the_reference_adds_up():
    parts = [row["GiB"] for row in shown(cache_size_tables.memory())]
    assert parts == ["+19.84", "-14.29", "-2.03", "-0.18", "+3.34"]
    assert sum(map(float, parts[:4])) == pytest.approx(float(parts[4]), abs=0.011)


def test_what_fits_on_each_host(wanted):
    small, four = shown(cache_size_tables.fits(wanted))
    assert (small["host"], small["GPUs"], small["weights (GiB)"], small["at 8K"]) == ("g6.xlarge", "1", "14.29", "9.4")
    assert (four["host"], four["GPUs"], four["KV cache (GiB)"]) == ("g5.12xlarge", "4", "15.5")
    assert list(small)[0] == "host" and "reason" not in small


def test_requests_of_the_longest_length_by_model_and_host(wanted):
    table = cache_size_tables.requests(wanted)
    assert list(table.data) == FEW["hosts"] and list(table.data.index) == FEW["models"]
    assert table.data.loc["qwen2.5-7b-instruct", "g5.12xlarge"] == pytest.approx(8.9, abs=0.05)


def test_every_table_says_that_it_is_predicted(wanted):
    for make in ("fits", "requests", "throughputs", "handovers", "tiers"):
        assert "predicted" in getattr(cache_size_tables, make)(wanted).caption


def test_the_other_tables_have_the_columns_that_the_page_speaks_of(wanted):
    assert set(shown(cache_size_tables.throughputs(wanted))[0]) == {
        "host",
        "0% hits",
        "50% hits",
        "90% hits",
        "90% over none",
    }
    first = shown(cache_size_tables.handovers(wanted))[0]
    assert first["pays"] in ("yes", "no") and first["host"] == "g6.xlarge"
    tier = shown(cache_size_tables.tiers(wanted))[0]
    assert (tier["host"], tier["tier"], tier["pays from (tokens)"]) == ("g6.xlarge", "cpu", "32")
    assert shown(cache_size_tables.prefixes(wanted))[2]["reference"] == "10.0"
    assert shown(cache_size_tables.hybrid())[4]["error"] == "+0.00%"


def test_a_panel_a_host_of_the_examples(wanted, looks):
    for draw, titles in (
        (cache_size_plots.prefixes, ["g6.xlarge", "p5en.48xlarge"]),
        (cache_size_plots.links, ["one L4 of g6.xlarge", "one H200 of p5en.48xlarge"]),
        (cache_size_plots.tiers, ["g6.xlarge", "p5en.48xlarge"]),
    ):
        axes = draw(wanted).axes
        assert [axis.get_title() for axis in axes] == titles
        assert all(axis.get_xscale() == axis.get_yscale() == "log" for axis in axes)
    once = cache_size_plots.prefixes(wanted.replaced(other_host="g6.xlarge"))
    assert len(once.axes) == 1


def test_the_reference_is_drawn_where_it_was_measured_alone(wanted, looks):
    labels = [
        [text.get_text() for text in axis.get_legend().get_texts()] for axis in cache_size_plots.prefixes(wanted).axes
    ]
    assert labels[0][2:] == ["not cached, reference", "cached, reference"]
    assert labels[1] == ["not cached, predicted", "cached, predicted"]


def test_the_lines_are_the_arithmetic(wanted, looks):
    [axis] = cache_size_plots.lengths(wanted).axes
    whole = {line.get_label(): line.get_ydata() for line in axis.lines}
    assert whole["llama-2-7b"][0] == pytest.approx(256 * 512 / 2**20) and len(whole["llama-2-7b"]) == 10
    by_tier = {line.get_label(): line for line in cache_size_plots.tiers(wanted).axes[0].lines}
    assert {label.split(",")[0] for label in by_tier if "GB/s" in label} == {"cpu", "tcp", "nvme"}


def test_what_the_sentences_say():
    values = cache_size_prose.values(CacheSizes(**sections.header(sections.get("7-sizes"))))
    numbers = {name: round(float(value), 2) for name, value in values.items() if not isinstance(value, str)}
    assert len(values) == 53 and numbers["kib"] == 56 and numbers["figures"] == 18
    assert (numbers["tokens"], numbers["ref_tokens"], numbers["max_concurrency"]) == (62512, 62512, 15.26)
    assert (numbers["hybrid_full"], numbers["hybrid_layers"], numbers["block_tokens"]) == (16, 64, 1568)
    assert (numbers["spread_low"], numbers["spread_high"], numbers["gain"]) == (9.3, 119.7, 10.01)
    assert (values["host_name"], values["longest_name"]) == ("g6.xlarge", "131,072 tokens")
    assert values["disk_words"] == "31,568 tokens long"


def test_a_disk_that_never_pays_is_said_in_words():
    slow = CacheSizes(**sections.header(sections.get("7-sizes"))).replaced(restore_overhead_ms=1e9)
    assert cache_size_prose.values(slow)["disk_words"] == "longer than a million tokens"


def test_the_parameters_reach_the_frames(wanted):
    few = wanted.replaced(hit_rates=[0.0, 1.0], concurrency=8)
    assert list(cache_sizes.throughputs_of(few, ["g6.xlarge"])) == ["host", 0.0, 1.0, "most"]
