"""A file of conversations is one that the load generator can send, or an error that names the row and the way out."""

import json
from pathlib import Path

import pytest

from serving_study.errors import DatasetError
from serving_study.loads import Load, conversations, datasets

GOOD = {"id": "1", "conversations": [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Hello."}]}
CHAT = {"messages": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]}


def written(tmp_path, rows, name="x.json"):
    file = tmp_path / name
    file.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    return file


@pytest.mark.parametrize(
    "rows, why",
    [
        ([GOOD, {"id": 2}], "row 2 has 'id' instead of \"conversations\""),
        ([GOOD, {}], 'row 2 has nothing instead of "conversations"'),
        ([GOOD, CHAT], 'row 2 has "messages" instead of "conversations"'),
        ([{"conversations": CHAT["messages"]}], 'turn 1 of row 1 has "role" and "content" instead of "from"'),
        ([{"conversations": [GOOD["conversations"][0], {"from": "gpt"}]}], "turn 2 of row 1 has 'from' instead of"),
        (
            [GOOD, GOOD, {"conversations": [{"from": "human", "value": None}, GOOD["conversations"][1]]}],
            '"value" of turn 1 of row 3 is no text but null',
        ),
        (
            [{"conversations": [GOOD["conversations"][0], {"from": "gpt", "value": 3}]}],
            '"value" of turn 2 of row 1 is no text but a number',
        ),
        ([{"conversations": ["a", "b"]}], "turn 1 of row 1 is no object but text"),
        ([{"conversations": None}], '"conversations" of row 1 is no list but null'),
        ([GOOD, None], "row 2 is no object but null"),
        (["text"], "row 1 is no object but text"),
        ({"a": 1}, "an object instead of a list of conversations"),
        ("null", "null instead of a list of conversations"),
        ('"conversations"', "text instead of a list of conversations"),
        ("not json", "no JSON: Expecting value: line 1 column 1"),
        (json.dumps(GOOD) + '\n{"conversations": [', "line 2: Expecting value"),
    ],
)
def test_what_is_wrong_and_where(tmp_path, rows, why):
    with pytest.raises(DatasetError, match="not in ShareGPT's format") as caught:
        datasets.load(written(tmp_path, rows), "x")
    assert why in str(caught.value.value) and "JSON Lines" in caught.value.allowed


def test_turns_that_the_load_generator_does_not_read_are_no_fault(tmp_path):
    rows = [{"conversations": [*GOOD["conversations"], {"from": "human", "value": None}]}]
    rows += [{"conversations": []}, {"conversations": [{"from": "human", "value": None}]}]
    assert datasets.load(written(tmp_path, rows), "x").conversations == 3


@pytest.mark.parametrize(
    "end", ["\n", "\r\n", "\n\n"], ids=["a line each", "of another system", "with empty lines between"]
)
def test_json_lines_are_read_and_kept_as_the_list_that_is_sent(tmp_path, cache, end):
    second = {"conversations": [{"from": "human", "value": "a\u2028b\x85c"}, {"from": "gpt", "value": "d"}]}
    file = tmp_path / "chats.jsonl"
    file.write_bytes(end.join(json.dumps(row, ensure_ascii=False) for row in (GOOD, second)).encode())
    found = datasets.load(file, "chats.jsonl")
    assert found.conversations == 2 and found.path.parent == cache / "datasets"
    assert json.loads(found.path.read_text()) == [GOOD, second]
    arguments = found.arguments(Load(1, 1, found), "", 0)
    assert arguments == ["--dataset-name", "sharegpt", "--dataset-path", str(found.path)]
    listed = datasets.load(written(tmp_path, [GOOD, second]), "x")
    assert listed.path == tmp_path / "x.json" and listed.sha256 != found.sha256


def test_one_line_and_a_byte_order_mark_are_read_too(tmp_path, cache):
    assert datasets.load(written(tmp_path, json.dumps(GOOD), "one.jsonl"), "x").conversations == 1
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf" + json.dumps([GOOD]).encode())
    marked = datasets.load(tmp_path / "marked.json", "x")
    assert marked.path.parent == cache / "datasets" and json.loads(marked.path.read_bytes()) == [GOOD]


def test_what_is_told_to_convert_a_file_does(tmp_path, capsys, cache):
    rows = [
        {"id": "a", "messages": [{"role": "system", "content": "Be kind."}, *CHAT["messages"]]},
        {"conversations": CHAT["messages"]},
        CHAT["messages"],
        GOOD,
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "?"}]}]
            * 2
        },
        {"messages": [{"role": "user", "content": "call"}, {"role": "assistant", "content": None}]},
        {"messages": [{"role": "assistant", "content": "Hello."}]},
        {"messages": None},
        None,
    ]
    file = written(tmp_path, "\n".join(map(json.dumps, rows)), "chat.jsonl")
    with pytest.raises(DatasetError) as caught:
        datasets.load(file, "x")
    *command, source, to = caught.value.next.split()
    assert command[1:] == ["-m", "serving_study.loads.conversations"] and Path(source) == file
    conversations.main([source, to])
    assert capsys.readouterr().out == f"{to}: 5 of 9 conversations\n"
    made = json.loads(Path(to).read_text())
    assert [row["id"] for row in made] == ["a", "2", "3", "1", "5"]
    assert [row["conversations"] for row in made[:4]] == [GOOD["conversations"]] * 4
    assert made[4]["conversations"] == [{"from": "human", "value": "Hi?"}] * 2
    assert datasets.load(Path(to), "x").conversations == 5


def test_a_conversion_that_cannot_be_says_why(tmp_path):
    with pytest.raises(DatasetError, match="two files are wanted: none"):
        conversations.main([])
    with pytest.raises(DatasetError, match="cannot be converted: .*nothing.json: No such file"):
        conversations.main([str(tmp_path / "nothing.json"), str(tmp_path / "out.json")])
