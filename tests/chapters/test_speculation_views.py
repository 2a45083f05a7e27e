"""Section 2's trials, tables and figures: what is published, what is drawn, and what the sentences say of both."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from serving_study.analysis import plots
from serving_study.chapters import sections
from serving_study.chapters.how_speculation_works import rule_trials, speculation_views
from serving_study.chapters.how_speculation_works.rule_trials import MATCH, RIGHT, SLIP, HowSpeculationWorks
from serving_study.theory import speculation

WANTED = HowSpeculationWorks(samples=3000)


@pytest.fixture(scope="module")
def trials():
    """Every rule at twelve places over a small vocabulary, where the two models agree in various degrees."""
    rng = np.random.default_rng(7)
    target = rng.dirichlet(np.ones(9), size=12)
    draft = 0.5 * target + 0.5 * rng.dirichlet(np.ones(9), size=12)
    places = speculation.Distributions(target, draft, tuple(map(str, range(12))))
    return rule_trials.run(places, samples=WANTED.samples, seed=WANTED.seed)


@pytest.fixture(scope="module")
def tests(trials):
    return rule_trials.tests(trials, WANTED.level)


@pytest.fixture
def figure(monkeypatch):
    """A function that draws and gives the figure's axes; every figure is closed again."""
    with plt.rc_context():
        plots.setup()
        yield lambda drawn: drawn.axes
    plt.close("all")


def texts(styler):
    """The cells of a styled table as they are shown, row by row."""
    rows = styler._translate(False, False)["body"]
    return [[cell["display_value"] for cell in row if cell["is_visible"]] for row in rows]


def test_the_header_is_the_parameters():
    assert HowSpeculationWorks(**sections.header(sections.get(2))).draft_layers == 26


def test_a_right_rule_passes_and_wrong_ones_do_not(tests):
    assert tests["verdict"].to_dict() == {
        RIGHT: "not rejected",
        MATCH: "not rejected",
        SLIP: "rejected",
        "accept all": "rejected",
    }
    assert tests.loc[[RIGHT, MATCH], "distance"].tolist() == pytest.approx([0, 0], abs=1e-12)
    assert tests.loc["accept all", "accepted"] == 1 and (tests["positions"] == 12).all()


def test_what_is_kept_is_the_overlap(trials, tests):
    assert trials.overlap == pytest.approx(1 - trials.distance)
    assert np.abs(trials.kept(RIGHT) - trials.overlap).max() < 0.03
    assert tests.loc[RIGHT, "accepted"] == pytest.approx(trials.kept(RIGHT).mean())
    assert trials.kept(MATCH).mean() < trials.kept(RIGHT).mean()


def test_the_same_seed_draws_the_same_tokens(trials):
    places = speculation.Distributions(*(np.array(side) for side in zip(*trials.pairs, strict=True)), ())
    again = rule_trials.run(places, samples=WANTED.samples, seed=WANTED.seed)
    assert all((again.emitted[SLIP][place].tokens == trials.emitted[SLIP][place].tokens).all() for place in range(12))


def test_small_p_values_are_said_to_be_small(tests):
    table = texts(speculation_views.tests_table(tests.assign(fisher=[0.87, 0.01, 0.009, 1e-9])))
    assert [row[2] for row in table] == ["0.87", "0.01", "&lt; 0.01", "&lt; 10⁻⁶"]
    assert [row[0] for row in table] == list(speculation.RULES) and table[3][5] == "1.000"


def test_one_token_by_the_data_sheets():
    assert texts(speculation_views.one_token_table())[0] == ["L4", "300", "121", "51.15", "0.13", "403"]


def test_where_drafting_never_pays_the_table_says_so():
    table = texts(speculation_views.break_even_table([1, 3], [0.06, 1.5]))
    assert table == [["k = 1", "0.06", "never"], ["k = 3", "0.15", "never"]]


def test_what_was_published_of_drafts():
    assert texts(speculation_views.published_table()) == [
        ["k = 1", "0.714", "0.714", "1.46", "1.61", "0.175"],
        ["k = 3", "0.532", "0.529", "1.80", "2.17", "0.145"],
        ["k = 5", "0.414", "0.407", "1.80", "2.29", "0.136"],
    ]


def test_a_family_with_two_sizes_of_vocabulary():
    table = texts(speculation_views.vocabularies_table())
    assert [row[3] for row in table] == ["152,064", "152,064", "151,936"]


def test_the_speed_up_has_a_panel_a_cost_and_a_line_a_k(figure):
    axes = figure(speculation_views.speedup_figure([1, 3], [0.06, 0.25]))
    assert [axis.get_title() for axis in axes] == [f"a draft pass costs {cost} target passes" for cost in (0.06, 0.25)]
    ends = [line.get_ydata()[-1] for line in axes[0].lines if len(line.get_ydata()) == 101]
    assert ends == pytest.approx([2 / 1.06, 4 / 1.18])


def test_each_place_is_a_dot_of_its_rule(figure, trials):
    [axis] = figure(speculation_views.p_values_figure(trials))
    assert len(axis.collections[0].get_offsets()) == 4 * 12
    assert [text.get_text() for text in axis.get_legend().get_texts()] == list(speculation.RULES)
    [axis] = figure(speculation_views.overlap_figure(trials))
    assert len(axis.collections[0].get_offsets()) == 2 * 12


def test_the_place_from_near_by_is_the_one_of_half_overlap(figure, trials):
    [axis] = figure(speculation_views.frequencies_figure(trials))
    place = np.abs(trials.overlap - 0.5).argmin()
    p, q = trials.pairs[place]
    first = np.argsort(-np.maximum(p, q))[0]
    assert [bars.patches[0].get_height() for bars in axis.containers[:2]] == pytest.approx([p[first], q[first]])
    assert len(axis.containers) == 4 and all(len(bars.patches) == 7 for bars in axis.containers)


def test_the_sentences_say_what_the_tables_show(trials, tests):
    target = SimpleNamespace(config={"num_hidden_layers": 30}, weights_gib=0.25)
    draft = SimpleNamespace(weights_gib=0.2)
    values = speculation_views.values(WANTED, trials, tests, target, draft)
    assert values["rate_gap"] == pytest.approx(0.00735, abs=1e-5) and values["folklore_k"] == 3
    assert (values["vocab_target"], values["vocab_draft"]) == (152064, 151936)
    assert (values["verdict_accept_or_correct"], values["verdict_accept_all"]) == ("not rejected", "rejected")
    assert (values["target_layers"], values["draft_layers"]) == (30, 26) and values["own_cost"] == 0.8
    assert values["kept"] == trials.kept(RIGHT).mean() and values["alpha_max"] == trials.overlap.max()
