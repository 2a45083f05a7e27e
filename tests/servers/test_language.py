"""Language in every script, and the garbage that a real engine sent."""

import json
from pathlib import Path

import pytest

from serving_study.measure import records
from serving_study.results import certificates
from serving_study.servers import language

TEXTS = Path(__file__).parents[1] / "fixtures" / "texts"
SCRIPTS = json.loads((TEXTS / "scripts.json").read_text())
GARBAGE = json.loads((TEXTS / "garbage.json").read_text())
TARGET = json.loads((TEXTS / "target.json").read_text())


def texts(rows, max_tokens):
    return [row["text"] for row in rows if row["max_tokens"] == max_tokens]


@pytest.mark.parametrize(
    "text",
    [
        " Paris.\n\nThe answer is: 2018-01-22 12:1",  # what the embedded model says
        " Paris. It is the capital of France",
        "def add(a, b):\n    return a + b  # the sum",
        "프랑스의 수도는 파리입니다",
        "Die Hauptstadt ist Paris",
        "巴黎是法国的首都",
        "パリはフランスの首都です。",
        "La capitale de la France\u202f? C’est\u00a0: Paris\u202f!",
        "Paris.\r\nThe capital of France.\r\n",
        "1789, 1848, 1871",
        "1 2 3 4 5 6 7",
        "123456789012345678901234567890123456789012345678901234567890",
        "a b c d e f g h",
        '{"city": "Paris", "country": "France", "population": 2102650}',
        '[{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}, {"id": 5}, {"id": 6}]',
        "| a | b |\n|---|---|\n| 1 | 2 |\n--------------------------------------------------\n",
        "Contents\nIntroduction ........................ 3",
        "for (int i = 0; i < n; i++) {\n\tsum += x[i];\n}\n",
        "پایتخت فرانسه پاریس است و می\u200cدانیم",
        "🗼 Paris 👩\u200d👩\u200d👧",
        "x = ∑ᵢ aᵢ²",
        "Ja.",
        "42",
        "Paris" + "\n" * 20,
    ],
)
def test_sane(text):
    assert language.fault(text) is None and language.is_sane(text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_sane_in_every_script_and_wherever_it_is_cut(name):
    text = SCRIPTS[name]
    assert language.fault(text) is None
    for characters in (2, 9, 24, 80, 240):
        assert language.fault(text[:characters]) is None, characters
    for lost in (1, 2, 3):  # bytes of the last character, and of those before it
        cut = text.rstrip(" .。།።").encode()[:-lost].decode(errors="replace")
        assert language.fault(cut) is None, lost


def test_there_are_twelve_scripts_and_more():
    assert len({name.split("(")[-1].rstrip(")") for name in SCRIPTS}) >= 20


def test_sane_with_the_last_character_in_pieces():
    for pieces in (1, 2, 3):
        assert language.is_sane("巴黎是法国的首都" + pieces * "\ufffd")
    assert language.fault("巴黎是法国的首都" + 4 * "\ufffd") == "1 of 9 are control or replacement characters"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no letter and no digit"),
        ("   \n", "no letter and no digit"),
        ("}{ }{ ## }{", "no letter and no digit"),
        ("." * 24, "no letter and no digit"),
        ("\ufffd\ufffd the river", "2 of 12 are control or replacement characters"),
        ("the river\x00turns", "1 of 15 are control or replacement characters"),
        ("\U000d0aa7 the \ue000", "2 of 7 are control or replacement characters"),
        ("Paris" + "!" * 24, "'!' over and over"),
        ("the the the the the", "'the' over and over"),
        ("1" * 24, "'1' over and over"),
        ("inginginginginging", "'ing' over and over"),
        ("的" * 12, "'的' over and over"),
        ("The end " + "." * 200, "'.' over and over"),
        ("assistant\n" * 9, "'assistant' over and over"),
    ],
)
def test_garbage_says_what_it_is(text, fault):
    assert language.fault(text) == fault and not language.is_sane(text)


def test_a_text_that_repeats_itself_is_language():
    """As the target does at temperature 0."""
    assert language.is_sane(" I saw a ship with a sail." * 8)
    assert all(map(language.is_sane, texts(TARGET, 24) + texts(TARGET, 96)))
    assert all(language.are_sane(texts(TARGET, 24))) and all(language.are_sane(texts(TARGET, 96)))


def test_word_salad_of_the_real_engine():
    """Ninety-six tokens are enough to tell by, twenty-four are once a load's answers are held together."""
    long, short = texts(GARBAGE, 96), texts(GARBAGE, 24)
    assert len(long) == len(short) == 20
    faults = [language.fault(text) for text in long]
    assert sum(fault is not None and "words hardly one comes twice" in fault for fault in faults) == 17
    assert not any(language.are_sane(short))
    assert language.are_sane(short[:1]) == [True]  # nineteen words alone are no evidence


def test_word_salad_does_not_make_garbage_of_whole_answers_beside_it():
    prose = [" ".join(SCRIPTS[name].split()[:40]) for name in ("Finnish (Latin)", "Russian (Cyrillic)", "Greek")]
    assert all(language.are_sane(prose))
    assert language.are_sane([*texts(GARBAGE, 24), texts(TARGET, 96)[1]])[-1]


def test_the_certificate_of_a_load_uses_the_same_judge():
    """Its `text` check reads what `records` kept of each answer."""

    def share(answers):
        lists = {
            name: [value] * len(answers)
            for name, value in (
                ("input_lens", 4),
                ("output_lens", 24),
                ("ttfts", 0.1),
                ("itls", [0.1]),
                ("start_times", 1.0),
                ("errors", ""),
            )
        }
        _, requests = records.split({"generated_texts": list(answers), **lists})
        cell = {"labels": {"weights": "real"}, "asked": {"output_tokens": 24}}
        return certificates._text(cell, requests)

    assert share(texts(GARBAGE, 24)).as_dict() == {
        "name": "text",
        "outcome": "fail",
        "evidence": "0% of 20 answers read as language",
    }
    assert share(texts(TARGET, 24)).outcome == "pass"
    assert share([text[:60] for text in SCRIPTS.values()]).evidence == "100% of 25 answers read as language"
