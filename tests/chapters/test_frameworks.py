"""Section 8: settings that are equal or said, the same work or other work, and the study's statements with places."""

import json
import math

import matplotlib.pyplot as plt
import pandas
import pytest
from block_cells import cells

from serving_study import engines
from serving_study.chapters.frameworks import features, framework_views, same_work, settings
from serving_study.chapters.frameworks.plan import ENGINES
from serving_study.engines import base
from serving_study.loads.questions import BENCH, OPENAI

WORDS = pandas.DataFrame(
    [
        ("max_batched_tokens", "llama-cpp", "mapped", "of a batch", "README"),
        ("block_tokens", "llama-cpp", "cannot", "the cache is not paged", "README"),
        ("memory_share", "vllm", "mapped", "a bound that is not reached", "source"),
    ],
    columns=["setting", "engine", "relation", "words", "place"],
)
OWN = {
    "dtype": "torch.bfloat16",
    "max_model_len": 2048,
    "kv_cache_tokens": 32896,
    "max_batched_tokens": 2048,
    "block_tokens": 128,
    "prefix_caching": False,
}
OTHER = OWN | {"dtype": "bf16", "kv_cache_tokens": 32768, "block_tokens": None}


def table(own=OWN, other=OTHER, **more):
    frame = pandas.DataFrame({"vllm": own, "llama-cpp": other}, index=list(base.SETTINGS), dtype=object)
    frame.attrs["engines"] = {"vllm": "vllm", "llama-cpp": "llama-cpp"}
    return frame


def verdicts(frame, **more):
    lines = settings.lines(frame, "vllm", stated=WORDS, **more).set_index("setting")
    return lines["verdict"].to_dict(), lines["because"].to_dict()


def test_every_line_is_equal_or_said():
    words, because = verdicts(table())
    assert words == {
        "dtype": settings.EQUAL,  # two spellings of one type
        "max_model_len": settings.EQUAL,
        "max_batched_tokens": settings.MAPPED,  # one number for two things is no equality
        "prefix_caching": settings.EQUAL,
        "kv_cache_tokens": settings.EQUAL,  # but for the block that one engine keeps for itself
        "block_tokens": settings.CANNOT,
    }
    assert because["block_tokens"] == "llama-cpp: the cache is not paged" and not because["dtype"]


def test_a_difference_without_a_word_says_both_values():
    words, because = verdicts(table(other=OTHER | {"prefix_caching": True, "dtype": "f32"}))
    assert words["prefix_caching"] == words["dtype"] == settings.UNSAID
    assert because["prefix_caching"] == "llama-cpp True; vllm False"


def test_what_one_server_does_not_say_is_not_equal():
    words, because = verdicts(table(other={name: value for name, value in OTHER.items() if name != "prefix_caching"}))
    assert words["prefix_caching"] == settings.UNSAID
    assert because["prefix_caching"] == "llama-cpp does not say; vllm False"


def test_a_value_of_one_engine_alone_is_explained_by_its_own_word():
    words, _ = verdicts(table(own=OWN | {"memory_share": 0.9}, other=OTHER))
    assert words["memory_share"] == settings.UNSAID  # the baseline has a value, and the other says nothing of it
    words, _ = verdicts(table(own=OWN, other=OTHER | {"memory_share": 0.9}))
    assert words["memory_share"] == settings.MAPPED


@pytest.mark.parametrize(
    "other, reason",
    [
        ({"kv_cache_tokens": 16384}, "KV cache (tokens): 16,384 against 32,896 of vllm, without a word"),
        ({"max_model_len": 4096}, "longest context (tokens): 4,096 against 2,048 of vllm, without a word"),
        ({"max_model_len": None}, "longest context (tokens): not reported against 2,048 of vllm, without a word"),
    ],
)
def test_a_pair_of_other_capacity_or_context_is_refused_unless_the_reader_says_why(other, reason):
    frame = table(other=OTHER | other)
    assert settings.refused(frame, "vllm") == {"llama-cpp": reason}
    assert settings.refused(frame, "vllm", {next(iter(other)): "a cache of half the size is the question"}) == {}
    words, because = verdicts(frame, differences={next(iter(other)): "it is the question"})
    assert words[next(iter(other))] == settings.MAPPED and "accepted: it is the question" in because[next(iter(other))]


def test_a_refused_arm_is_in_no_comparison():
    frame = cells({("vllm", 1): [100.0], ("llama-cpp", 1): [50.0]})
    assert set(settings.comparable(frame, {"llama-cpp": "…"})["arm"]) == {"vllm"}
    assert settings.refused(table(), "vllm") == {}


def test_a_start_that_reported_nothing_has_no_column():
    told = {"engine": "vllm", "figures": {"settings": {"max_model_len": 2048}}}
    frame = settings.of_starts({"vllm": told, "sglang": None, "llama-cpp": {"engine": "llama-cpp", "figures": {}}})
    assert list(frame) == ["vllm"] and frame.attrs["engines"] == {"vllm": "vllm"}
    assert frame.loc["max_model_len", "vllm"] == 2048 and frame.loc["seed", "vllm"] is None


def test_the_stated_words_are_of_known_settings_and_engines_each_with_its_place():
    stated = settings.words()
    assert set(stated["setting"]) <= set(base.SETTINGS) and set(stated["engine"]) <= set(ENGINES)
    assert set(stated["relation"]) <= {"mapped", "cannot"} and stated["place"].str.len().min() > 5
    assert not stated.duplicated(["setting", "engine"]).any()
    assert not set(stated["setting"]) & set(settings.REQUIRED), "these are the reader's to accept"
    assert set(settings.NAMES) == set(base.SETTINGS)


def step(token, logprob, **others):
    return {"token": token, "logprob": logprob, "candidates": {token: logprob} | others}


def answer(*steps, prompt_tokens=5):
    text = "".join(one["token"] for one in steps)
    return {"text": text, "steps": list(steps), "prompt_tokens": prompt_tokens, "output_tokens": len(steps)}


def record(*answers, counters=None, **more):
    made, read = (sum(one[name] for one in answers) for name in ("output_tokens", "prompt_tokens"))
    counters = {base.PROMPT_TOKENS: read, base.GENERATED_TOKENS: made} | (counters or {})
    trips = [{"ids": [1, 2], "whole": True} for _ in answers]
    return {"texts": list(answers), "counters": counters, "tokenizer": trips, "clients": None} | more


ALIKE = step(" the", -0.5, a=-1.5)
NEARLY = step(" the", -0.52, a=-1.5)  # the gap of the two best differs by 0.02


def test_texts_that_part_over_rounding_are_told_from_other_work():
    own = record(
        answer(ALIKE, step(" cat", -1.00, dog=-1.01)),
        answer(ALIKE, step(" sun", -0.10, moon=-3.0)),
        answer(ALIKE),
    )
    other = record(
        answer(NEARLY, step("dog", -1.005, **{" cat": -1.01})),
        answer(NEARLY, step("moon", -0.2, **{" sun": -2.0})),
        answer(NEARLY),
    )
    apart = same_work.partings({"vllm": own, "llama-cpp": other}, "vllm")
    assert list(apart["verdict"]) == [same_work.WITHIN, same_work.BEYOND] and list(apart["token"]) == [2, 2]
    assert apart["apart"][0] == pytest.approx(0.015) and apart["rounding"][0] == pytest.approx(0.02)
    (row,) = same_work.texts({"vllm": own, "llama-cpp": other}, "vllm").to_dict("records")
    assert (row["answers"], row["parted"], row["within"], row["beyond"]) == (3, 2, 1, 1)
    assert row["equal"] == pytest.approx(1 / 3) and row["steps"] == 3


def test_a_candidate_that_the_other_did_not_name_is_further_apart_than_any_that_it_did():
    pair = [record(answer(ALIKE, step(one, -0.1, xyz=-4.0))) for one in (" cat", " dog")]
    (row,) = same_work.partings(dict(zip(("vllm", "sglang"), pair, strict=True)), "vllm").to_dict("records")
    assert row["verdict"] == same_work.BEYOND and math.isnan(row["apart"])


def test_without_candidates_nothing_is_said_of_rounding():
    bare = [{"token": "x", "logprob": None, "candidates": {}}]
    pair = {"vllm": record(answer(*bare)), "sglang": record(answer({**bare[0], "token": "y"}))}
    assert list(same_work.partings(pair, "vllm")["verdict"]) == [same_work.UNTOLD]


def test_a_token_that_is_a_part_of_a_character_is_no_parting():
    own, other = ([ALIKE, step(half, -1.0), step(last, -1.0, z=-2)] for half, last in (("\ufffd", " a"), ("", " b")))
    pair = {"vllm": record(answer(*own)), "llama-cpp": record(answer(*other))}
    assert list(same_work.partings(pair, "vllm")["token"]) == [3]


def test_tokens_by_usage_and_by_counters():
    own, other = record(answer(ALIKE)), record(answer(ALIKE, prompt_tokens=6), counters={base.GENERATED_TOKENS: None})
    wrong = record(answer(ALIKE), counters={base.PROMPT_TOKENS: 7})
    rows = same_work.counts({"vllm": own, "llama-cpp": other, "sglang": wrong}, "vllm").set_index("arm")
    assert rows["counters"].to_dict() == {"vllm": "agree", "llama-cpp": "not told", "sglang": "differ"}
    assert rows["prompts"]["sglang"] == "as the baseline's" and rows["prompts"]["llama-cpp"].startswith("other lengths")


def test_tokenizers_that_differ_and_one_that_cannot_be_asked():
    own, other = record(answer(ALIKE)), record(answer(ALIKE))
    other["tokenizer"] = [{"ids": [1, 3], "whole": False}]
    silent = record(answer(ALIKE), tokenizer={"failed": "no tokenizer over HTTP"})
    rows = same_work.tokenizers({"vllm": own, "llama-cpp": other, "sglang": silent}, "vllm").set_index("arm")
    assert rows["same"]["vllm"] == 1 and rows["same"]["llama-cpp"] == rows["whole"]["llama-cpp"] == 0
    assert rows["failed"]["sglang"] == "no tokenizer over HTTP"
    assert same_work.failed({"sglang": silent}, "tokenizer") == {"sglang": "no tokenizer over HTTP"}


def two_clients(by_second):
    rounds = [
        {"client": client, "round": number, "median_ttft_ms": 100.0 * factor, "median_itl_ms": 20.0 * factor}
        for number in range(4)
        for client, factor in ((BENCH, 1 + 0.001 * number), (OPENAI, by_second * (1 + 0.002 * number)))
    ]
    return record(answer(ALIKE), clients={"version": "3.57.0", "rounds": rounds})


def test_a_second_client_agrees_within_what_twins_differ_by():
    frame = cells({("vllm", 1): [100.0, 101.0], ("vllm-again", 1): [103.0, 104.0]}, metric="median_ttft_ms")
    frame["repeat_of"] = frame["arm"].map({"vllm-again": "vllm"})
    rows = same_work.clients({"vllm": two_clients(1.01)}, frame).set_index("metric")
    assert rows["agree"]["median_ttft_ms"] == "within the floor" and rows["ratio"]["median_ttft_ms"] > 1
    assert rows["agree"]["median_itl_ms"] == "not decided: no twin bounds the floor"
    rows = same_work.clients({"vllm": two_clients(1.3)}, frame).set_index("metric")
    assert rows["agree"]["median_ttft_ms"] == "longer by the second client"


def test_the_tables_are_made_of_whatever_was_answered():
    frame = cells({("vllm", 1): [100.0, 101.0], ("llama-cpp", 1): [50.0, 51.0]}, metric="median_ttft_ms")
    parted = record(answer(NEARLY, step("<dog>", -1.0, cat=-1.01)), clients={"failed": "no openai"})
    silent = record(answer(ALIKE), tokenizer={"failed": "none"}, texts={"failed": "HTTP Error 400"})
    answers = {"vllm": two_clients(1.0), "llama-cpp": parted, "sglang": silent}
    answers["vllm"]["texts"] = [answer(ALIKE, step("cat", -1.0, **{"<dog>": -1.01}))]
    for styler in (
        framework_views.texts_table(answers, "vllm", "cpu"),
        framework_views.partings_table(answers, "vllm", "cpu"),
        framework_views.work_table(answers, "vllm", "cpu"),
        framework_views.clients_table(answers, frame),
        framework_views.refusals_table({}, "cpu"),
        framework_views.features_table(),
    ):
        assert "<td" in styler.to_html()
    assert "&lt;dog&gt;" in framework_views.partings_table(answers, "vllm", "cpu").to_html()


def test_the_figure_has_twins_and_intervals():
    frame = cells({(arm, c): [100.0 * c, 102.0 * c] for arm in ("vllm", "vllm-again", "llama-cpp") for c in (1, 4)})
    frame["repeat_of"] = frame["arm"].map({"vllm-again": "vllm"})
    figure = framework_views.by_engine(frame, ("output_throughput",))
    (axis,) = figure.axes
    assert len(axis.get_lines()) >= 3 and "vllm-again" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert any(len(bars.get_segments()) for bars in axis.collections if hasattr(bars, "get_segments"))
    plt.close(figure)


def test_the_studys_statements_have_a_verdict_a_version_and_a_place():
    frame = features.table()
    assert tuple(frame.columns) == features.COLUMNS and set(frame["verdict"]) <= set(features.VERDICTS)
    assert set(frame["engine"]) == set(ENGINES) and not frame.duplicated(["feature", "engine"]).any()
    facts = frame[frame["verdict"] != features.OPINION]
    assert facts["place"].str.len().min() > 8 and facts["version"].str.len().min() > 2
    assert all(frame.groupby("feature")["engine"].nunique() == len(ENGINES)), "every statement of every engine"
    figures = features.figures()
    assert figures["statements"] == len(facts) and figures["out_of_date"] + figures["not_so"] + figures["holds"] == len(
        facts
    )


def test_the_engines_are_the_registrys():
    assert set(ENGINES) <= set(engines.ENGINES)
    assert json.dumps(ENGINES)
