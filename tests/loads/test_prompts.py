"""data/prompts: the committed conversations are what their script makes, in ShareGPT's format, with the spread they
claim.
"""

import hashlib
import json
import runpy
import shutil

import pytest

from serving_study.paths import DATA

FOLDER = DATA / "prompts"
COMMITTED = (FOLDER / "conversations.json").read_bytes()
CONVERSATIONS = json.loads(COMMITTED)
PROMPTS = [c["conversations"][0]["value"] for c in CONVERSATIONS]
ANSWERS = [c["conversations"][1]["value"] for c in CONVERSATIONS]


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(FOLDER / "make_prompts.py"))


@pytest.fixture
def copy(tmp_path):
    for name in ("conversations.json", "README.md"):
        shutil.copy(FOLDER / name, tmp_path / name)
    return tmp_path


def test_regenerates_byte_for_byte(script):
    assert script["render"](script["compose"]()) == COMMITTED
    assert script["render"](script["compose"]()) == COMMITTED  # no state is left over from the first time


def test_is_sharegpt_format():
    assert isinstance(CONVERSATIONS, list) and len(COMMITTED) < 1_000_000
    for conversation in CONVERSATIONS:
        assert set(conversation) == {"id", "conversations"}
        turns = conversation["conversations"]
        assert len(turns) in (2, 4, 6), conversation["id"]
        assert [turn["from"] for turn in turns] == ["human", "gpt"] * (len(turns) // 2)
        for turn in turns:
            assert set(turn) == {"from", "value"}
            assert turn["value"] and turn["value"] == turn["value"].strip(), conversation["id"]
            assert not any(rest in turn["value"] for rest in ("{", "}")) or "```" in turn["value"], (
                "an unfilled template"
            )


def test_count_and_uniqueness():
    assert len(CONVERSATIONS) == 300
    assert len({c["id"] for c in CONVERSATIONS}) == 300
    assert len(set(PROMPTS)) >= 240
    assert len({json.dumps(c["conversations"]) for c in CONVERSATIONS}) == 300
    assert len(set(ANSWERS)) >= 285
    assert sum(len(c["conversations"]) > 2 for c in CONVERSATIONS) >= 90


@pytest.mark.parametrize(
    ("texts", "q", "low", "high"),
    [
        (PROMPTS, 0, 3, 8),
        (PROMPTS, 0.25, 12, 25),
        (PROMPTS, 0.5, 25, 40),
        (PROMPTS, 0.75, 45, 100),
        (PROMPTS, 1, 400, 700),
        (ANSWERS, 0, 3, 10),
        (ANSWERS, 0.25, 50, 90),
        (ANSWERS, 0.5, 100, 150),
        (ANSWERS, 0.75, 140, 220),
        (ANSWERS, 1, 400, 600),
    ],
)
def test_spread_of_lengths_in_words(script, texts, q, low, high):
    assert low <= script["quantile"]([len(text.split()) for text in texts], q) <= high


def test_passes_the_filter_of_vllm_bench():
    """At least 4 tokens each, at most 1,024 in the prompt and 2,048 in both; a token is at least a digit or about 3
    letters.
    """

    def most_tokens(text):
        return len(text) / 3.6 + sum(c.isdigit() for c in text)

    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        assert len(prompt.split()) >= 4 and len(answer.split()) >= 4, prompt
        assert most_tokens(prompt) <= 1024, prompt[:80]
        assert most_tokens(prompt) + most_tokens(answer) <= 2048, prompt[:80]


def test_many_answers_copy_from_their_prompts():
    """What n-gram speculation needs: runs of eight words of the answer that stand in the prompt."""

    def copied(prompt, answer):
        words, source = answer.split(), " ".join(prompt.split())
        return any(" ".join(words[i : i + 8]) in source for i in range(len(words) - 7))

    assert 60 <= sum(copied(p, a) for p, a in zip(PROMPTS, ANSWERS, strict=True)) <= 150


def test_readme_states_digest_and_statistics(script):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"`{hashlib.sha256(COMMITTED).hexdigest()}`" in text
    assert script["statistics"](COMMITTED) in text


def test_check_accepts_what_is_committed(script, copy, capsys):
    assert script["main"](["--check", "--folder", str(copy)]) == 0
    assert capsys.readouterr().err == ""


def test_check_catches_a_modified_file(script, copy, capsys):
    path = copy / "conversations.json"
    path.write_bytes(COMMITTED.replace(b"sunlight", b"moonlight", 1))
    assert script["main"](["--check", "--folder", str(copy)]) == 1
    assert capsys.readouterr().err == (
        f"differs from what make_prompts.py makes: {path}\n  next:    python3 data/prompts/make_prompts.py\n"
    )


def test_check_catches_a_missing_file_and_a_stale_readme(script, copy, capsys):
    (copy / "conversations.json").unlink()
    readme = copy / "README.md"
    digest = hashlib.sha256(COMMITTED).hexdigest()
    readme.write_text(readme.read_text(encoding="utf-8").replace(digest, "0" * 64), encoding="utf-8")
    assert script["main"](["--check", "--folder", str(copy)]) == 1
    errors = capsys.readouterr().err
    assert f"missing: {copy / 'conversations.json'}" in errors and f"stale sha256 digest: {readme}" in errors


def test_write_restores_both_files(script, copy):
    readme = (copy / "README.md").read_bytes()
    (copy / "conversations.json").write_text("[]")
    (copy / "README.md").write_bytes(readme.replace(b"300 conversations, ", b"299 conversations, ", 1))
    assert script["main"](["--folder", str(copy)]) == 0
    assert (copy / "conversations.json").read_bytes() == COMMITTED
    assert (copy / "README.md").read_bytes() == readme
