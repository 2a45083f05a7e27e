"""Prompts are a local file with a known digest, or an error that says what else would do."""

import hashlib
import json
from pathlib import Path

import pytest

from serving_study.environments import Environment
from serving_study.errors import DatasetError
from serving_study.loads import datasets
from serving_study.models import hub

ENVIRONMENT = Environment("vllm", Path("/somewhere/python"), "3.12", {})


def conversation(number, turns=2):
    return {
        "id": str(number),
        "conversations": [{"from": ("human", "gpt")[turn % 2], "value": f"text {turn}"} for turn in range(turns)],
    }


def written(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_own_is_the_committed_file():
    found = datasets.resolve("own")
    assert found.path == datasets.OWN and found.conversations == 300
    assert found.identity() == {"name": "own", "sha256": hashlib.sha256(datasets.OWN.read_bytes()).hexdigest()}


def test_a_file_of_the_readers_own(tmp_path):
    file = written(tmp_path / "mine.json", [conversation(1), conversation(2, turns=1)])
    found = datasets.resolve(str(file))
    assert (found.name, found.path, found.conversations) == ("mine.json", file, 2)
    file.write_text(json.dumps([conversation(3)]))
    assert datasets.resolve(str(file)).sha256 != found.sha256


def test_a_missing_file(tmp_path):
    with pytest.raises(DatasetError, match="no such dataset: .*nothing.json") as caught:
        datasets.resolve(str(tmp_path / "nothing.json"))
    assert caught.value.next == f"ls {tmp_path}"


@pytest.mark.parametrize(
    "content", ["not json", '{"a": 1}', "[1]", '[{"id": 1}]', '[{"conversations": 3}]', '["text"]']
)
def test_a_malformed_file(tmp_path, content):
    with pytest.raises(DatasetError, match="not in ShareGPT's format"):
        datasets.load(written(tmp_path / "x.json", content), "x")


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00[")
    with pytest.raises(DatasetError, match="not in ShareGPT's format"):
        datasets.load(tmp_path / "x.json", "x")


@pytest.mark.parametrize("rows", [[], [conversation(1, turns=1)]])
def test_a_file_without_a_usable_conversation(tmp_path, rows):
    with pytest.raises(DatasetError, match="no conversation with two turns"):
        datasets.load(written(tmp_path / "x.json", rows), "x")


def test_a_folder_is_no_dataset(tmp_path):
    with pytest.raises(DatasetError, match="Is a directory"):
        datasets.load(tmp_path, "x")


def test_another_digest_is_refused_and_the_file_left_alone(tmp_path):
    file = written(tmp_path / "x.json", "abc")
    datasets.check_digest(file, hashlib.sha256(b"abc").hexdigest())
    with pytest.raises(DatasetError, match="x.json is not the pinned file: sha256 ba7816bf") as caught:
        datasets.check_digest(file, "0" * 64)
    assert caught.value.allowed == "0" * 64 and file.read_text() == "abc"


def test_cut_keeps_the_first_usable_ones_in_order(tmp_path):
    source = written(tmp_path / "all.json", [conversation(0, 1), *(conversation(n) for n in range(1, 9))])
    out = datasets.cut(source, tmp_path / "cut.json", keep=3)
    assert [row["id"] for row in json.loads(out.read_text())] == ["1", "2", "3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.json", "cut.json"]


def answered(monkeypatch, **found):
    """The hub's answer; returns what it is asked."""
    calls = []

    def fetch(environment, repository, **about):
        calls.append({"repository": repository} | about)
        return hub.Fetched(**({"path": None} | found))

    monkeypatch.setattr(hub, "fetch", fetch)
    return calls


def test_auto_falls_back_to_own_where_the_hub_is_out_of_reach_and_says_why(cache, monkeypatch):
    answered(monkeypatch, reason="connection refused", out_of_reach=True)
    said = []
    found = datasets.resolve("auto", environment=ENVIRONMENT, say=said.append)
    assert (found.name, found.in_place_because) == ("own", "connection refused")
    assert found.identity() == datasets.resolve("own").identity()
    assert said == ["no hub within reach (connection refused): the book's own prompts take ShareGPT's place"]


@pytest.mark.parametrize("name, out_of_reach", [("sharegpt", True), ("sharegpt", False), ("auto", False)])
def test_sharegpt_that_cannot_be_fetched_is_an_error_with_its_reason(cache, monkeypatch, name, out_of_reach):
    answered(monkeypatch, reason="OSError: [Errno 28] No space left on device", out_of_reach=out_of_reach)
    with pytest.raises(DatasetError, match="ShareGPT could not be fetched: .*No space left on device") as caught:
        datasets.resolve(name, environment=ENVIRONMENT)
    assert "dataset = 'own'" in caught.value.next


def test_a_plan_fetches_nothing(cache, monkeypatch):
    calls = answered(monkeypatch)
    found = datasets.resolve("auto", say=lambda _: None)
    assert (found.name, found.in_place_because) == ("own", "nothing is fetched for a plan") and calls == []


def test_sharegpt_is_fetched_checked_and_cut_once(cache, tmp_path, monkeypatch):
    source = written(tmp_path / "all.json", [conversation(n) for n in range(5)])
    calls = answered(monkeypatch, path=source)
    monkeypatch.setattr(datasets, "SHAREGPT_SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
    found = datasets.resolve("auto", environment=ENVIRONMENT, say=lambda _: None)
    assert (found.name, found.conversations) == ("sharegpt", 5) and found.path.parent == cache / "datasets"
    assert found.in_place_because is None and calls[0]["revision"] == datasets.SHAREGPT_REVISION
    assert (calls[0]["file"], calls[0]["kind"]) == (datasets.SHAREGPT_FILE, "dataset")
    assert calls[0]["deadline_s"] == 1800
    assert datasets.resolve("sharegpt") == found and len(calls) == 1


def test_sharegpt_of_another_digest_is_refused_even_for_auto(cache, tmp_path, monkeypatch):
    answered(monkeypatch, path=written(tmp_path / "all.json", [conversation(1)]))
    with pytest.raises(DatasetError, match="is not the pinned file"):
        datasets.resolve("auto", environment=ENVIRONMENT, say=lambda _: None)
    assert not (cache / "datasets").exists()


def test_a_disk_that_does_not_take_the_cut_is_named(tmp_path):
    source = written(tmp_path / "all.json", [conversation(1)])
    with pytest.raises(DatasetError, match="prompts could not be kept: .*File exists") as caught:
        datasets.cut(source, source / "cut.json")
    assert caught.value.next.startswith("df -h")
