"""Section 4's views of the draft that ships, before it is served: the figures that the published chapter shows."""

import matplotlib.pyplot as plt
import pytest

from serving_study.analysis import plots
from serving_study.chapters import sections
from serving_study.chapters.drafts import draft_views, drafts, recipe, served_drafts
from serving_study.models import checkpoints


@pytest.fixture(scope="module")
def wanted():
    return recipe.resolved(**sections.header(sections.get(4)) | {"host": "cpu"})


@pytest.fixture(scope="module")
def target(wanted):
    return checkpoints.planned(wanted.target)


@pytest.fixture(scope="module")
def trained(wanted):
    return drafts.load(checkpoints.SHIPPED / checkpoints.TRAINED)


def shown(styler):
    rows = styler._translate(False, False)["body"]
    return [[cell["display_value"] for cell in row if cell["is_visible"]] for row in rows]


def test_every_caption_says_where_the_draft_was_trained(trained, wanted, target):
    assert trained.device == "NVIDIA H200"
    both = served_drafts.side_by_side(trained, target)
    for table in (
        draft_views.sources_table(trained),
        draft_views.rounds_table(trained),
        draft_views.side_by_side_table(both, trained, target),
    ):
        assert "trained on NVIDIA H200" in table.caption


def test_the_sources_of_held_out_prompts(trained):
    assert shown(draft_views.sources_table(trained)) == [
        ["data/prompts", "0.488", "0.729"],
        ["written by the target", "0.526", "0.761"],
    ]


def test_the_sizes_beside_the_wanted_one_are_narrower_than_the_target(wanted, target):
    widths = [change["width"] for change in draft_views.other_sizes(wanted, target) if "width" in change]
    assert widths == [64, 128, 192, 512]
    table = draft_views.sizes_table(wanted, target)
    assert (3, 256) in set(zip(table.data["layers"], table.data["width"], strict=True))


def test_odd_heads_have_no_other_widths(wanted, target):
    odd = wanted.replaced(heads=3, width=192, kv_heads=1)
    assert draft_views.other_sizes(odd, target) == [{"layers": 1}, {"layers": 6}]


def test_the_prediction_is_tokens_over_the_cost_of_a_round(trained):
    frame = draft_views.predicted(trained, 0.1).set_index("k")
    tokens = trained.last["rounds"]["3"]["tokens_a_round"]
    assert frame.loc[3, "speed-up"] == pytest.approx(tokens / 1.3)
    assert frame.loc[3, "if c were twice that"] == pytest.approx(tokens / 1.6)


def test_what_the_sentences_say(trained, wanted, target):
    values = draft_views.values(trained, wanted, target, served_tokens=200)
    assert {name: round(float(value), 3) for name, value in values.items()} == {
        "head_share": 85.896,
        "million": 14.649,
        "pass_mib": 27.941,
        "target_mib": 256.567,
        "cost": 0.109,
        "even_percent": 10.89,
        "million_tokens": 64.509,
        "acceptance": 0.512,
        "acceptance_before": 0.017,
        "agreement": 0.747,
        "answer_tokens": wanted.answer_tokens,
        "served_tokens": 200,
    }


def test_the_training_figure_draws_where_it_breaks_even(trained, wanted, target):
    with plt.rc_context():
        plots.setup()
        left, right = draft_views.training_figure(trained, wanted, target).axes
    plt.close("all")
    assert len(left.lines[0].get_xdata()) == len(trained.steps())
    assert right.lines[-1].get_ydata()[0] == pytest.approx(draft_views.break_even(wanted, target))
    assert right.lines[-1].get_label() == "breaks even at k = 1"
