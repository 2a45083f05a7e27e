"""What figures show: the data as given, intervals as compared, one palette, the same bytes each time."""

import ast
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas
import pytest
from matplotlib import colors, pyplot

from serving_study import paths
from serving_study.analysis import claims, drawing, plots
from serving_study.chapters.choosing import choosing, techniques
from serving_study.chapters.drafts import draft_views
from serving_study.chapters.kv_cache import prefix_figures, prefixes, working_sets
from serving_study.chapters.parallelism import split_tables, splits
from serving_study.chapters.speculation import draft_cost
from serving_study.hardware import links
from serving_study.results import old_cells, store
from serving_study.theory import prediction_errors

matplotlib.use("agg")
SAID = "h200x1, random weights, prescribed acceptance; 2 to 3 repeats; vLLM 0.25.1"


def cells(values: dict, **columns) -> pandas.DataFrame:
    """`{(arm, concurrency): [value of each repeat]}` as a frame of cells."""
    frame = pandas.DataFrame(
        {
            "host": "h200x2",
            "arm": arm,
            "load": f"concurrency={concurrency}",
            "concurrency": concurrency,
            "repeat": repeat,
            "certificate": "pass",
            "output_throughput": value,
            "weights": "random",
        }
        | columns
        for (arm, concurrency), repeats in values.items()
        for repeat, value in enumerate(repeats)
    )
    return old_cells.with_arm_columns(frame)


SPLITS = cells(
    {
        ("7b-tp1", 1): [100.0, 102.0, 98.0],
        ("7b-tp1-again", 1): [101.0, 100.0, 99.0],
        ("7b-tp2", 1): [180.0, 185.0, 190.0],
        ("7b-tp1", 32): [900.0, 920.0, 910.0],
        ("7b-tp1-again", 32): [905.0, 915.0, 912.0],
        ("7b-tp2", 32): [1300.0, 1310.0, 1290.0],
    }
)
MARKS = pandas.DataFrame(
    [("trained", 0.6, 0.1, "o", True, np.nan), ("first layers", 0.1, 0.3, "s", False, np.nan)]
    + [("trained", 0.5, 0.2, "D", True, k) for k in (1, 3)],
    columns=["label", "alpha", "cost", "marker", "filled", "k"],
)
LINKS = {
    "measured": [
        {"name": name, "link": "2 ranks", "bytes": size, "seconds": [1e-5], "gb_s": size / 2**20}
        for name in ("all-reduce", "GPU to GPU")
        for size in (2**14, 2**20)
    ]
}


def speculation() -> pandas.DataFrame:
    return draft_cost.arms()


def reuse() -> pandas.DataFrame:
    return store.Store("h200x1", 7, paths.RESULTS_PUBLISHED).newest()


def beside() -> pandas.DataFrame:
    rows = prediction_errors.with_measured(3, "l4x1", "total_token_throughput", speculation())
    return rows.assign(low=0.9 * rows["value"], high=1.2 * rows["value"])


STARTS = pandas.DataFrame(
    {
        "host": "h200x1",
        "weights": "random",
        "arm": ["baseline", "old", "draft-k3"],
        "phases": [
            {"imports": 14.0, "weights": 2.0, "profiling": 1.0, "first request": 1.5, "other": 0.5},
            None,
            {"imports": 3.0, "weights": 3.0, "profiling": 1.0, "capture": 9.0, "first request": 2.0, "other": 0.0},
        ],
    }
)
FIGURES = {
    "over_concurrency": lambda: plots.over_concurrency(speculation(), ("output_throughput", "median_tpot_ms")),
    "speedup": lambda: plots.speedup(speculation()),
    "acceptance": lambda: plots.acceptance(speculation(), plots.reference.load(3).query("metric == 'acceptance_rate'")),
    "decomposition": lambda: plots.decomposition(speculation()),
    "surface": lambda: draft_views.surface([1, 2, 3, 5, 7], MARKS, "diamonds: cpu"),
    "start_phases": lambda: plots.start_phases(STARTS),
    "beside": lambda: plots.beside(beside(), "multiple of the baseline"),
    "predictions": lambda: plots.predictions(prediction_errors.errors()),
    "effects": lambda: plots.effects(choosing.effects("h200x1"), techniques.THROUGHPUT),
    "scaling": lambda: split_tables.scaling(SPLITS, splits.of_reference()),
    "bandwidths": lambda: split_tables.bandwidths(LINKS, "h200x2"),
    "break_even_figure": lambda: prefix_figures.break_even_figure(reuse()),
    "sequence_figure": lambda: prefix_figures.sequence_figure(reuse()),
    "gains_figure": lambda: prefix_figures.gains_figure(reuse()),
    "tiers_figure": lambda: prefix_figures.tiers_figure(reuse()),
}


@pytest.fixture(scope="module")
def figures():
    """Every figure, drawn once, as a notebook would."""
    with matplotlib.rc_context():
        plots.setup()
        made = {name: draw() for name, draw in FIGURES.items()}
        for figure in made.values():
            figure.canvas.draw()
        yield made
        pyplot.close("all")


@pytest.fixture(params=FIGURES)
def figure(request, figures):
    return figures[request.param]


def digests() -> dict[str, str]:
    """A digest of each figure as SVG; another process calls this too."""
    found = {}
    with matplotlib.rc_context():
        plots.setup()
        for name, draw in FIGURES.items():
            figure, file = draw(), io.BytesIO()
            figure.savefig(file, format="svg", metadata={"Date": None})
            found[name] = hashlib.sha256(file.getvalue()).hexdigest()
            pyplot.close(figure)
    return found


def legend_texts(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def ends(axis, sideways: bool = False) -> list[tuple[float, float]]:
    """The ends of the error bars that an axis shows."""
    way = 0 if sideways else 1
    bars = [bar for container in axis.containers if hasattr(container, "has_yerr") for bar in container.lines[2]]
    return sorted((part[0][way], part[1][way]) for bar in bars for part in bar.get_segments())


def drawn(axis) -> list[float]:
    """The values of every line with markers, without the caps of error bars."""
    lines = [line for line in axis.lines if line.get_marker() not in ("None", "_", "|")]
    return sorted(value for line in lines for value in line.get_ydata())


def test_the_palette_is_seaborns_and_needs_no_seaborn():
    import seaborn

    assert sorted(plots.PALETTE) == sorted(seaborn.color_palette("colorblind").as_hex())
    code = (
        "import sys; from serving_study.analysis import plots; "
        "from serving_study.chapters.kv_cache import prefix_figures; "
        "from serving_study.chapters.parallelism import split_tables; print('seaborn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_seventy_arms_look_different():
    arms = [f"arm-{number}" for number in range(70)]
    looks = {(drawing.colours(arms)[arm], drawing.markers(arms)[arm]) for arm in arms}
    assert len(looks) == 70
    assert drawing.colours(["baseline", "fast"]) == {"baseline": "#949494", "fast": "#0173b2"}
    assert "#949494" not in drawing.colours(arms, without_grey=True).values()


def shades(figure) -> set[str]:
    """Every colour of what stands for data in a figure: lines, dots, bars, error bars and the legend."""
    holders = [*figure.axes, *figure.legends]
    found = []
    for holder in holders:
        for artist in holder.findobj(pyplot.Line2D):
            if artist.axes is None or artist in artist.axes.lines:
                found += [artist.get_color(), artist.get_markeredgecolor(), artist.get_markerfacecolor()]
        for artist in holder.findobj(matplotlib.collections.Collection):
            found += [*artist.get_facecolor(), *artist.get_edgecolor()]
        for artist in holder.findobj(matplotlib.patches.Rectangle):
            found += [artist.get_facecolor()]
    return {colors.to_hex(shade) for shade in found if colors.to_rgba(shade)[3] > 0}


def test_every_figure_has_its_colours_from_the_one_palette(figure):
    of_data = {shade for shade in shades(figure) if len({shade[1:3], shade[3:5], shade[5:7]}) > 1}  # no grey, no black
    assert of_data and of_data <= set(plots.PALETTE)


def test_every_function_that_draws_is_among_those_tested():
    named = set()
    for module in (plots, prefix_figures, split_tables):
        for node in ast.parse(Path(module.__file__).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) == "Figure":
                named.add(node.name)
    assert named | {draft_views.surface.__name__} == set(FIGURES)


def test_two_processes_draw_the_same_bytes():
    code = f"import sys, json, pathlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_plots as t; "
    code += f"t.paths.RESULTS = t.paths.RESULTS_PUBLISHED = pathlib.Path({str(paths.RESULTS_PUBLISHED)!r}); "
    code += "print(json.dumps(t.digests()))"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == digests()


def test_a_figure_is_a_white_sheet_of_at_most_seven_inches(figure):
    assert figure.get_figwidth() == pytest.approx(7)
    assert colors.to_hex(figure.get_facecolor()) == "#ffffff" and figure.patch.get_alpha() in (None, 1)


def test_nothing_is_cut_and_no_legend_lies_over_data(figure):
    page, inside = figure.bbox, figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert inside.x0 >= page.x0 - 1 and inside.x1 <= page.x1 + 1
    assert inside.y0 >= page.y0 - 1 and inside.y1 <= page.y1 + 1
    assert not any(axis.get_legend() for axis in figure.axes)
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert not any(box.overlaps(axis.bbox) for axis in figure.axes)
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and box.y1 <= page.y1 + 1


def test_letters_are_readable_at_700_pixels(figure):
    texts = [text for text in figure.findobj(pyplot.Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 7.5


def test_a_speedups_bars_end_where_the_comparison_says(figures):
    table = claims.compare(speculation(), "output_throughput", "baseline")
    table = table[~table["arm"].str.endswith("-again")].dropna(subset=["low", "high"])
    axis = figures["speedup"].axes[0]
    assert len(table) and np.allclose(ends(axis), sorted(zip(table["low"], table["high"], strict=True)))
    assert np.allclose(drawn(axis), sorted(table["ratio"]))
    assert axis.get_yscale() == "log" and legend_texts(figures["speedup"]) == [
        *dict.fromkeys(table["arm"]),
        "equal within 3 %",
        "hollow: not decided",
    ]
    open_claims = table[table["claim"] == claims.UNDECIDED]
    white = [part for part in axis.collections if isinstance(part, matplotlib.collections.PathCollection)]
    hollow = [value for part in white for value in part.get_offsets()[:, 1]]
    assert len(open_claims) and np.allclose(sorted(hollow), sorted(open_claims["ratio"]))


def test_the_band_of_equality_is_as_far_below_one_as_above(figures):
    (band,) = [part for part in figures["speedup"].axes[0].patches if part.get_label() == "equal within 3 %"]
    assert band.get_y() == pytest.approx(1 / 1.03) and band.get_y() + band.get_height() == pytest.approx(1.03)


def test_a_splits_bars_end_where_the_comparison_says(figures):
    table = splits.efficiency(SPLITS)
    assert list(table["arm"]) == ["7b-tp2"] * 2 and (table["low"] < table["multiple"]).all()
    compared = claims.compare(SPLITS, "output_throughput", "7b-tp1").query("arm == '7b-tp2'")
    assert table[["low", "high"]].to_numpy().tolist() == compared[["low", "high"]].to_numpy().tolist()
    assert np.allclose(ends(figures["scaling"].axes[0]), sorted(zip(table["low"], table["high"], strict=True)))
    assert [axis.get_title() for axis in figures["scaling"].axes] == ["7b, h200x2", *REFERENCE]


REFERENCE = ["7b, a10gx4, reference", "14b, a10gx4, reference"]


def test_a_gains_bars_end_where_its_columns_say():
    table = prefixes.gains(reuse()).assign(low=lambda rows: 0.8 * rows["gain"], high=lambda rows: 1.5 * rows["gain"])
    table = table.assign(ttft_low=0.7 * table["ttft_gain"], ttft_high=1.2 * table["ttft_gain"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_figures, "gains", lambda frame, arm: table)
        figure = prefix_figures.gains_figure(reuse())
    left, right = figure.axes
    assert np.allclose(ends(left), sorted(zip(table["low"], table["high"], strict=True)))
    assert np.allclose(ends(right), sorted(zip(table["ttft_low"], table["ttft_high"], strict=True)))
    assert left.get_yscale() == right.get_yscale() == "log"
    assert legend_texts(figure) == [f"prefix of {length} tokens" for length in ("256", "2,048", "16,384")]
    pyplot.close(figure)


def test_bars_beside_a_prediction_and_of_effects_are_the_rows_own(figures):
    rows = beside()
    expected = sorted(zip(rows["low"], rows["high"], strict=True))
    assert np.allclose(ends(figures["beside"].axes[0]), expected)
    rows = choosing.effects("h200x1").query("metric == @techniques.THROUGHPUT").dropna(subset=["ratio", "low"])
    rows = rows[rows["concurrency"] == rows.groupby(["technique", "arm"])["concurrency"].transform("min")]
    expected = sorted(zip(rows["low"].astype(float), rows["high"].astype(float), strict=True))
    assert np.allclose(ends(figures["effects"].axes[0], sideways=True), expected)


def test_what_is_no_basis_is_a_cross_and_what_a_constant_was_chosen_on_has_a_ring(figures):
    rows = choosing.effects("h200x1").query("metric == @techniques.THROUGHPUT").dropna(subset=["ratio"])
    rows = rows[rows["concurrency"] == rows.groupby(["technique", "arm"])["concurrency"].transform("min")]
    certain, crosses = figures["effects"].axes[0].collections[:2]
    assert len(crosses.get_offsets()) == (~rows["grounded"].astype(bool)).sum() > 0
    assert len(certain.get_offsets()) == rows["grounded"].sum() and "no basis for a rule" in legend_texts(
        figures["effects"]
    )
    errors = prediction_errors.errors().query("metric == 'median TPOT (ms)'")
    parts = {part.get_label(): part for part in figures["predictions"].axes[0].collections}
    assert len(parts["a constant was chosen on it"].get_offsets()) == errors["took_part"].notna().sum() > 0
    hollow = [part for part in figures["predictions"].axes[0].collections if len(part.get_facecolor()) == 0]
    assert sum(len(part.get_offsets()) for part in hollow) == (
        errors["excluded"].notna().sum() + errors["took_part"].notna().sum()
    )


def test_an_interval_without_an_end_is_not_drawn():
    rows = pandas.DataFrame({"arm": "a", "x": [1, 2, 3], "y": [1.0, 2.0, 3.0], "low": [0.5, np.nan, np.nan]})
    grid = drawing.lines(rows.assign(high=[2.0, 4.0, np.nan]), "x", "y")
    assert ends(grid.ax) == [(0.5, 2.0)]
    pyplot.close(grid.figure)


def test_error_bars_are_drawn_in_one_place_and_seaborn_estimates_nothing():
    texts = {file.name: file.read_text() for file in paths.ROOT.glob("src/serving_study/**/*.py")}
    assert [name for name, text in texts.items() if ".errorbar(" in text or ".vlines(" in text] == ["drawing.py"]
    for module in (drawing, plots, prefix_figures, split_tables):
        text = Path(module.__file__).read_text()
        estimating = len(re.findall(r"seaborn\.(lineplot|pointplot|barplot|relplot)\(", text))
        assert estimating == len(re.findall(r'\berrorbar"?[=:] ?None', text)), module.__name__


def test_repeats_are_dots_their_mean_is_a_line_and_failed_cells_are_hollow():
    frame = cells({("baseline", 1): [100.0, 120.0], ("baseline", 4): [300.0], ("fast", 1): [150.0]})
    failed = cells({("fast", 4): [999.0]}, certificate="fail")
    figure = plots.over_concurrency(pandas.concat([frame, failed], ignore_index=True), ("output_throughput",))
    (axis,) = figure.axes
    means = {tuple(line.get_ydata()) for line in axis.lines if len(line.get_ydata())}
    assert means == {(110.0, 300.0), (150.0,)}
    filled, hollow = axis.collections
    assert sorted(filled.get_offsets()[:, 1]) == [100, 120, 150, 300]
    assert hollow.get_offsets().tolist() == [[4, 999]] and len(hollow.get_facecolor()) == 0
    assert axis.get_xscale() == "log" and [text.get_text() for text in axis.get_xticklabels()] == ["1", "4"]
    pyplot.close(figure)


def test_a_caption_says_hosts_kinds_repeats_and_engine(figures):
    assert drawing.of(speculation()) == SAID
    for name in ("over_concurrency", "speedup", "acceptance", "decomposition"):
        assert figures[name].get_supxlabel() == SAID
    for name in ("break_even_figure", "sequence_figure", "gains_figure", "tiers_figure"):
        assert figures[name].get_supxlabel() == "h200x1, random weights; 1 repeat; vLLM 0.25.1"
    said = "h200x1, random weights; older starts, which do not say: old"
    assert figures["start_phases"].get_supxlabel() == said
    assert figures["scaling"].get_supxlabel() == "h200x2, random weights; 3 repeats | a10gx4, reference"
    assert figures["surface"].get_supxlabel() == "diamonds: cpu"
    assert any("random weights, prescribed acceptance" in text for text in legend_texts(figures["acceptance"]))
    assert any("random weights, prescribed acceptance" in text for text in legend_texts(figures["predictions"]))


def test_logarithmic_axes_stay_logarithmic(figures):
    def scales(name):
        return [(axis.get_xscale(), axis.get_yscale()) for axis in figures[name].axes]

    assert scales("predictions") == scales("bandwidths") == scales("break_even_figure") == [("log", "log")]
    assert scales("over_concurrency") == [("log", "linear")] * 2 and scales("effects") == [("log", "linear")]


def test_facets_wrap(figures):
    for name, across in (("surface", 3), ("tiers_figure", 3), ("scaling", 3), ("over_concurrency", 2)):
        columns = {round(axis.get_position().x0, 3) for axis in figures[name].axes}
        assert len(columns) == across, name


def test_sources_of_tokens_are_stacked_to_their_shares(figures):
    table = working_sets.tiers(reuse())
    table = table[(table["round"] == table["round"].max()) & (table["arm"] == "device-only")].sort_values("times")
    (axis,) = [axis for axis in figures["tiers_figure"].axes if axis.get_title() == "device-only"]
    for source in prefixes.SOURCES:
        shade = colors.to_rgba(prefix_figures.COLOURS[source])
        heights = {
            round(bar.get_x() + bar.get_width() / 2): bar.get_height()
            for bar in axis.patches
            if bar.get_facecolor() == shade and bar.get_height() > 0
        }
        expected = {place: share for place, share in enumerate(table[source].astype(float)) if share > 0}
        assert heights == pytest.approx(expected)


def test_requests_stand_behind_the_median_of_a_tier(figures):
    axis, table = figures["break_even_figure"].axes[0], working_sets.by_length(reuse())
    computed = table.drop_duplicates("prefix_tokens")["computed_ms"]
    assert np.allclose(drawn(axis), sorted([*table["restored_ms"], *computed]))
    dots = np.concatenate([np.asarray(part.get_offsets()) for part in axis.collections])
    told = prefixes.requests(reuse()).query("kind == 'WorkingSet' and arm == 'lmcache-disk' and source == 'external'")
    assert set(zip(told["prefix_tokens"], told["ttft_ms"], strict=True)) <= set(map(tuple, dots))


@pytest.mark.parametrize("low, high, ticks", [
    (0.8, 1.35, ["0.8×", "0.9×", "1×", "1.1×", "1.2×", "1.3×"]),
    (0.4, 3.0, ["0.5×", "1×", "2×"]),
    (0.01, 10.0, ["0.0156×", "0.0625×", "0.25×", "1×", "4×"]),
])  # fmt: skip
def test_multiples_have_round_ticks(low, high, ticks):
    figure, axis = pyplot.subplots()
    axis.set_ylim(low, high)
    drawing.multiples_axis(axis.yaxis)
    assert [text.get_text() for text in axis.get_yticklabels()] == ticks
    pyplot.close(figure)


@pytest.mark.parametrize(
    "draw",
    [
        lambda none: plots.over_concurrency(none, ("output_throughput",)),
        plots.speedup,
        plots.acceptance,
        plots.decomposition,
        split_tables.scaling,
        lambda none: split_tables.bandwidths({"measured": []}, "h200x1"),
        prefix_figures.break_even_figure,
        prefix_figures.sequence_figure,
        prefix_figures.gains_figure,
        prefix_figures.tiers_figure,
    ],
)
def test_where_nothing_was_measured_an_empty_figure_is_drawn(draw):
    figure = draw(store.Store("nowhere", 3, paths.RESULTS_PUBLISHED).newest())
    figure.canvas.draw()
    pyplot.close(figure)


def test_a_starts_bars_are_its_phases_end_to_end(figures):
    [axis] = figures["start_phases"].axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["draft-k3", "baseline"]
    spans = {bars.get_label(): [(bar.get_x(), bar.get_width()) for bar in bars] for bars in axis.containers}
    assert spans["imports"] == [(0, 3), (0, 14)] and spans["capture"] == [(7, 9), (17, 0)]
    assert spans["first request"] == [(16, 2), (17, 1.5)] and spans["other"] == [(18, 0), (18.5, 0.5)]
    assert legend_texts(figures["start_phases"]) == [
        "imports",
        "weights",
        "profiling",
        "capture",
        "first request",
        "other",
    ]


def test_old_starts_do_not_say_where_their_seconds_went():
    figure = plots.start_phases(STARTS[STARTS["arm"] == "old"])
    [axis] = figure.axes
    assert [text.get_text() for text in axis.texts] == ["older starts do not say where their seconds went"]
    assert not axis.containers
    pyplot.close(figure)


def test_links_of_every_kind_are_lines(figures):
    assert legend_texts(figures["bandwidths"]) == ["GPU to GPU", "all-reduce"]
    assert set(links.rates(LINKS)["name"]) == {"GPU to GPU", "all-reduce"}
