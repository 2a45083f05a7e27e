"""Prompts of exact lengths: their tokens, what they share, and what is expected of a cache."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from fake_study import model, tokenizer

from serving_study.errors import DatasetError
from serving_study.loads import Load, prompts
from serving_study.loads.prompts import SharedPrefix, WorkingSet
from serving_study.models import embedded


@pytest.fixture
def folder(tmp_path):
    """A model's folder with a tokenizer whose tokens are words."""
    place = model(tmp_path).folder
    tokenizer(place)
    return place


def load(dataset, concurrency=1, count=5, output_tokens=1, **about):
    return Load(concurrency, count, dataset, output_tokens, 0.0, **about)


def common(texts):
    """Words that all texts begin with."""
    return next(
        (index for index, words in enumerate(zip(*map(str.split, texts), strict=False)) if len(set(words)) > 1), None
    )


def test_every_prompt_has_its_length_and_shares_its_prefix_alone(folder):
    texts = SharedPrefix(101, 20).texts(load(SharedPrefix(101, 20)), str(folder), 0)
    assert [len(text.split()) for text in texts] == [121] * 5
    assert 101 <= common(texts) < 121 and len(set(texts)) == 5


def test_the_real_tokenizer_counts_the_same(tmp_path):
    from tokenizers import Tokenizer

    place = embedded.folder()
    texts = SharedPrefix(3001, 20, sequence=True).texts(load(SharedPrefix(3001, 20, sequence=True)), str(place), 0)
    counted = Tokenizer.from_file(str(place / "tokenizer.json"))
    assert [len(counted.encode(text).ids) for text in texts] == [3021] * 5
    first = [counted.encode(text).ids[:3001] for text in texts]
    assert all(ids == first[0] for ids in first)


@pytest.mark.parametrize(("share", "sharing"), [(0.0, 0), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_a_share_of_the_requests_begins_alike_and_the_others_differ_from_the_first_block_on(folder, share, sharing):
    made = SharedPrefix(64, 8, share)
    texts = made.texts(load(made, 2, 8), str(folder), 0)
    beginnings = [" ".join(text.split()[:2]) for text in texts]
    assert sorted(map(beginnings.count, set(beginnings)), reverse=True) == ([sharing] if sharing else []) + [1] * (
        8 - sharing
    )
    primers = made.primers(load(made, 2, 8), str(folder), 0)
    assert len(primers) == bool(sharing) and all(
        " ".join(text.split()[:64]) in {" ".join(other.split()[:64]) for other in texts} for text in primers
    )
    assert not set(primers) & set(texts)


def test_cells_and_lengths_share_nothing(folder):
    kinds = [
        SharedPrefix(64, 8),
        SharedPrefix(64, 8, 0.5),
        SharedPrefix(64, 8, sequence=True),
        SharedPrefix(65, 8),
        WorkingSet(64, 8, 1.0),
    ]
    texts = [
        made.texts(load(made, seed=seed), str(folder), repeat)[0]
        for made in kinds
        for repeat in range(2)
        for seed in (42, 43)
    ]
    assert len({" ".join(text.split()[:2]) for text in texts}) == len(texts)
    again = kinds[0].texts(load(kinds[0]), str(folder), 0)
    assert again == kinds[0].texts(load(kinds[0]), str(folder), 0)  # every arm gets the same


def test_a_working_set_is_sized_from_the_cache_that_was_measured(folder):
    made = WorkingSet(512, 20, 2.0)
    sized = made.sized(load(made, count=2), {"kv_cache_tokens": 3072})
    assert (sized.prompts, sized.dataset.prefixes) == (24, 12)
    texts = sized.dataset.texts(sized, str(folder), 0)
    beginnings = [" ".join(text.split()[:512]) for text in texts]
    assert beginnings[:12] == beginnings[12:] and len(set(beginnings)) == 12 and len(set(texts)) == 24
    assert not any(
        first.split()[1] == second.split()[1] for first, second in pairwise(beginnings[:12])
    )  # what tells them apart stands in front
    assert made.sized(load(made, count=2), {"kv_cache_tokens": 100}).dataset.prefixes == 1
    with pytest.raises(DatasetError, match="the working set cannot be sized"):
        made.sized(load(made), {})


EXPECTED = [
    (SharedPrefix(3001, 20, sequence=True), 5, 16, 4 * 2992),
    (SharedPrefix(3001, 20, sequence=True), 5, 128, 4 * 2944),
    (SharedPrefix(256, 20, 0.5), 8, 16, 4 * 256),
    (SharedPrefix(256, 20, 0.0), 8, 16, 0),
    (SharedPrefix(100, 20, 1.0), 8, 128, 0),
    (WorkingSet(512, 20, 1.0, prefixes=6), 12, 128, 6 * 512),
    (WorkingSet(512, 20, 1.0, rounds=3, prefixes=4), 12, 128, 8 * 512),
]


@pytest.mark.parametrize(("made", "count", "block", "tokens"), EXPECTED)
def test_expected_hits_are_whole_blocks_of_what_was_there_before(made, count, block, tokens):
    about = made.evidence(load(made, count=count), block, 4096)
    assert (
        about["expected_tokens"] == tokens
        and about["capacity_tokens"] == 4096
        and about["prompt_tokens"] == made.tokens
    )
    assert made.evidence(load(made, count=count), None, None)["expected_tokens"] is None


def test_the_command_line_and_the_file(folder, cache):
    made = SharedPrefix(40, 8, sequence=True)
    words = load(made).arguments(url="http://127.0.0.1:8000", model="m", tokenizer=str(folder), repeat=0)
    place = words[words.index("--dataset-path") + 1]
    assert place.startswith(str(cache)) and " ".join(words).endswith(
        f"--seed {load(made).seed_of(0)} --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles "
        "50,95,99 --save-detailed --disable-tqdm --ready-check-timeout-sec 0 --header Connection=close "
        "--custom-output-len 1 --temperature 0.0 --ignore-eos"
    )
    assert (
        f"--dataset-name custom --dataset-path {place} --skip-chat-template --disable-shuffle "
        "--no-oversample --num-prompts 5" in " ".join(words)
    )
    assert [json.loads(line)["prompt"] for line in Path(place).read_text().splitlines()] == made.texts(
        load(made), str(folder), 0
    )


def test_names_and_keys_tell_loads_apart():
    kinds = [
        SharedPrefix(64, 8),
        SharedPrefix(64, 8, 0.5),
        SharedPrefix(64, 8, sequence=True),
        SharedPrefix(64, 9),
        WorkingSet(64, 8, 1.0),
        WorkingSet(64, 8, 2.0),
        WorkingSet(64, 8, 1.0, rounds=3),
    ]
    assert len({json.dumps(load(made).identity()) for made in kinds}) == len(kinds)
    assert [load(made).name for made in kinds[:3]] == [
        "prefix=64,share=1,concurrency=1",
        "prefix=64,share=0.5,concurrency=1",
        "sequence,prefix=64,concurrency=1",
    ]
    assert (
        load(WorkingSet(64, 8, 1.0, about_tokens=5)).identity() == load(kinds[4]).identity()
    )  # an estimate decides nothing


def test_what_a_tokenizer_cannot_make_is_refused(folder, tmp_path, monkeypatch):
    with pytest.raises(DatasetError, match="need the model's tokenizer"):
        SharedPrefix(64, 8).texts(load(SharedPrefix(64, 8)), str(tmp_path / "nowhere"), 0)
    with pytest.raises(DatasetError, match="the prefix is too short: 1 tokens"):
        SharedPrefix(1, 8).texts(load(SharedPrefix(1, 8)), str(folder), 0)
    prompts._tokenizer.cache_clear()
    monkeypatch.setattr(prompts, "WORDS", ["the", "of"])
    with pytest.raises(DatasetError, match="too few of the words: 2 of 2"):
        SharedPrefix(64, 8).texts(load(SharedPrefix(64, 8)), str(folder), 0)
    prompts._tokenizer.cache_clear()
