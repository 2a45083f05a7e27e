"""What a page's sentences take: numbers as floats, words as they are."""

import math

import myst_nb
import numpy as np
import pytest

from serving_study.analysis import prose
from serving_study.errors import ParameterError


@pytest.fixture
def glued(monkeypatch):
    """What was glued, by name."""
    kept = {}
    monkeypatch.setattr(myst_nb, "glue", lambda name, value, display: kept.update({name: (value, display)}))
    return kept


def test_numbers_are_glued_as_floats_and_words_as_they_are(glued):
    prose.glue({"a": np.int64(8), "b": 14.5, "c": np.float32(0.5), "d": float("nan"), "host": "g6.xlarge"})
    assert {name: type(value) for name, (value, _) in glued.items()} == dict.fromkeys("abcd", float) | {"host": str}
    assert glued["a"] == (8.0, False) and glued["c"] == (0.5, False) and math.isnan(glued["d"][0])
    assert glued["host"] == ("g6.xlarge", False)


@pytest.mark.parametrize("value", [True, None, [1], np.array([1.0])])
def test_what_no_sentence_can_say_is_refused_before_anything_is_glued(glued, value):
    with pytest.raises(ParameterError, match="the value second cannot stand in a sentence") as caught:
        prose.glue({"first": 1, "second": value})
    assert caught.value.allowed == "a number or a string" and not glued
