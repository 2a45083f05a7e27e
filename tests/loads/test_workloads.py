"""data/prompts/workloads: the files are what their script makes, differ as they claim, and are dealt out fairly."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
from fake_study import model, tokenizer

from serving_study.errors import DatasetError
from serving_study.loads import Load, datasets, workloads
from serving_study.paths import DATA

SCRIPT = DATA / "prompts" / "make_workloads.py"
SETS = {
    name: [
        tuple(turn["value"] for turn in row["conversations"])
        for row in json.loads((workloads.FOLDER / f"{name}.json").read_bytes())
    ]
    for name in workloads.NAMES
}


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(workloads.FOLDER, tmp_path / "workloads")


def test_regenerates_byte_for_byte(script, copy, capsys):
    assert script["main"](["--check", "--folder", str(copy)]) == 0 and capsys.readouterr().err == ""
    assert set(script["compose"]()) == set(workloads.NAMES)


def test_check_catches_a_changed_file_a_missing_one_and_a_stale_readme(script, copy, capsys):
    changed, missing, readme = copy / "chat.json", copy / "retrieval.json", copy / "README.md"
    changed.write_bytes(changed.read_bytes().replace(b"lamp", b"lump", 1))
    missing.unlink()
    readme.write_text(readme.read_text().replace("48", "49", 1))
    assert script["main"](["--check", "--folder", str(copy)]) == 1
    assert capsys.readouterr().err == (
        f"differs from what make_workloads.py makes: {changed}\nmissing: {missing}\nstale statistics: {readme}\n"
        "  next:    python3 data/prompts/make_workloads.py\n"
    )
    assert script["main"](["--folder", str(copy)]) == 0 and script["main"](["--check", "--folder", str(copy)]) == 0


@pytest.mark.parametrize("name", workloads.NAMES)
def test_prompts_are_distinct_and_short_enough(name):
    prompts = [prompt for prompt, _ in SETS[name]]
    assert len(set(prompts)) == len(prompts) == 48
    assert max(map(len, prompts)) < 3000 and all(answer for _, answer in SETS[name])


def test_they_differ_in_how_much_of_an_answer_stands_in_its_prompt(script):
    shares = {name: sum(script["copied"](*pair) for pair in pairs) / len(pairs) for name, pairs in SETS.items()}
    assert shares["chat"] < 0.02 and all(shares[name] > 0.7 for name in workloads.NAMES if name != "chat")


def test_the_answers_are_right(script):
    """An edit is made and nothing else, and a quotation is a quotation."""
    for prompt, answer in SETS["code-edits"]:
        code = prompt.split("```")[1].split("\n", 1)[1]
        edited = answer.split("```")[1].split("\n", 1)[1]
        differing = len(set(code.splitlines()) ^ set(edited.splitlines()))
        assert edited != code and 0 < differing <= 2 * len(code.splitlines())
        if prompt.startswith("Put a comment"):
            assert edited.endswith(code)
    for prompt, answer in SETS["quoted-summaries"]:
        assert all(line.strip('"') in prompt for line in answer.splitlines())
    for prompt, answer in SETS["retrieval"]:
        number, sentences = answer.removeprefix("[").split("] says: ")
        [passage] = [line for line in prompt.splitlines() if line.startswith(f"[{number}] ")]
        assert all(part.strip() in passage for part in sentences.strip('"').split(". ") if part)


def test_no_draft_has_been_trained_on_them():
    trained_on = datasets.OWN.read_text(encoding="utf-8")
    for pairs in SETS.values():
        for prompt, _ in pairs:
            assert json.dumps(prompt, ensure_ascii=False)[1:-1] not in trained_on
    documents = runpy.run_path(str(SCRIPT.parent / "workload_bank.py"))["DOCUMENTS"]
    assert not [text for document in documents for text in document["sentences"] if text in trained_on]


def load(dataset, count=4, concurrency=1, **about):
    return Load(concurrency, count, dataset, 8, 0.0, **about)


def test_no_prompt_comes_twice_before_all_have_come_once():
    chat = workloads.workload("chat")
    hands = [chat.dealt(load(chat, 5), block) for block in range(20)]
    dealt = [prompt for hand in hands for prompt in hand]
    assert len(set(dealt[:48])) == 48 and len(set(dealt[48:96])) == 48 and dealt[:48] != dealt[48:96]
    assert chat.dealt(load(chat, 5), 3) == hands[3] and chat.dealt(load(chat, 5, seed=43), 3) != hands[3]


@pytest.fixture
def folder(tmp_path):
    place = model(tmp_path).folder
    tokenizer(place)
    return place


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_a_chat_template_is_used_where_there_is_one(folder, cache, spread):
    code = workloads.workload("code-edits")
    one = load(code, output_spread=spread)
    words = one.arguments(url="http://x", model="m", tokenizer=str(folder), repeat=2)
    assert "--skip-chat-template" in words and words[words.index("--dataset-name") + 1] == "custom"
    assert words[words.index("--custom-output-len") + 1] == ("-1" if spread else "8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    words = one.arguments(url="http://x", model="m", tokenizer=str(folder), repeat=2)
    assert "--skip-chat-template" not in words
    rows = list(map(json.loads, Path(words[words.index("--dataset-path") + 1]).read_text().splitlines()))
    assert [row["prompt"] for row in rows] == code.dealt(one, 2) and sum(row["output_tokens"] for row in rows) == 32


def test_a_template_in_a_file_of_its_own_counts(folder):
    assert not workloads.has_template(folder)
    (folder / workloads.TEMPLATE).write_text("{{ messages }}")
    assert workloads.has_template(folder)


def test_a_load_is_named_after_its_text():
    code = workloads.workload("code-edits")
    assert load(code, concurrency=4).name == "code-edits,concurrency=4"
    assert code.identity() == {"name": "code-edits", "sha256": code.sha256} and len(code.sha256) == 64


def test_an_unknown_workload_is_refused():
    with pytest.raises(DatasetError, match="no such workload: poems") as caught:
        workloads.workload("poems")
    assert caught.value.allowed == "chat, retrieval, quoted-summaries, code-edits"
