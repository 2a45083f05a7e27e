"""The book's look of a table, and the id by which its style finds it."""

import re

import pandas
import pytest

from serving_study.analysis import tables

LONG = "Which figures to believe: certified cells of every arm and load"
FRAME = pandas.DataFrame({"arm": ["baseline", "draft-k3"], "ratio": [1.0, 1.25]})


def identifier(styler):
    [found] = re.findall(r'<table id="([^"]+)"', styler.to_html())
    return found


def test_an_id_begins_with_the_caption_and_is_the_same_each_time():
    first = identifier(tables.style(FRAME, LONG))
    assert re.fullmatch(r"T_twhich-figures-to-believe-[0-9a-f]{8}", first)
    assert identifier(tables.style(FRAME.copy(), LONG)) == first


@pytest.mark.parametrize(
    ("frame", "caption"),
    [
        (FRAME, f"{LONG} (h200x1, random weights)"),
        (FRAME.assign(ratio=[1.0, 1.26]), LONG),
        (FRAME.rename(columns={"ratio": "TPOT"}), LONG),
        (FRAME.iloc[:1], LONG),
        (FRAME.iloc[:0], LONG),
    ],
)
def test_tables_that_begin_alike_have_ids_of_their_own(frame, caption):
    assert identifier(tables.style(frame, caption)) != identifier(tables.style(FRAME, LONG))


def test_an_id_is_one_that_a_style_sheet_can_name():
    styled = tables.style(FRAME.set_index("arm"), "“7:1”, 90 % — über <b>alles</b> × 2 #x .y", index=True)
    assert re.fullmatch(r"[\w-]+", identifier(styled))
    assert f"#{identifier(styled)}" in tables.style(FRAME, "x").set_uuid(identifier(styled)[2:]).to_html()
