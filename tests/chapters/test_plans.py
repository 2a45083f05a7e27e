"""What a plan, and with it run.json, says of weights and prompts that are not those asked for."""

import json
from pathlib import Path

import pytest

from serving_study import environments
from serving_study.chapters import plans
from serving_study.chapters import speculation_plan as speculation
from serving_study.chapters.kv_cache import plan as kv_cache
from serving_study.chapters.kv_cache.plan import KvCache
from serving_study.chapters.parallelism import plan as parallelism
from serving_study.chapters.parallelism.plan import Parallelism
from serving_study.chapters.speculation_plan import SpeculativeDecoding
from serving_study.environments import Environment
from serving_study.errors import ModelError, ParameterError
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.models import checkpoints, embedded, hub

ENVIRONMENT = Environment("vllm", Path("/engine/bin/python"), "3.12", {"vllm": "0.32.0"})
H200 = Host("h200x1", "x", 16, 128, 128, (Gpu(0, "h200", 139.8, 139.8, "9.0"),), "570")
WHY = "name look-up failed"
PLANS = {
    3: lambda **given: speculation.plan(SpeculativeDecoding(**given), H200, say=lambda line: None),
    5: lambda **given: parallelism.plan(Parallelism(**given), H200, say=lambda line: None),
    7: lambda **given: kv_cache.plan(KvCache(**given), H200, say=lambda line: None),
}


@pytest.fixture(autouse=True)
def unreached(monkeypatch, cache, tmp_path):
    """A GPU host whose hub is out of reach; what it is asked for is returned."""
    folder = tmp_path / "embedded"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    monkeypatch.setattr(embedded, "folder", lambda say=print: folder)
    monkeypatch.setattr(environments, "has", lambda name: True)
    monkeypatch.setattr(environments, "ensure", lambda *_: ENVIRONMENT)
    asked = []

    def fetch(environment, repository, **_):
        asked.append(repository)
        return hub.Fetched(None, WHY, out_of_reach=True)

    monkeypatch.setattr(hub, "fetch", fetch)
    return asked


@pytest.mark.parametrize("section", PLANS)
def test_random_weights_in_place_of_real_ones_are_noted_with_the_reason(section):
    (note,) = [note for note in PLANS[section]().notes if note.startswith("random weights")]
    assert "Qwen/Qwen2.5-7B-Instruct could not be fetched: name look-up failed" in note


@pytest.mark.parametrize("section", PLANS)
def test_random_weights_as_asked_are_noted_without_one(section, unreached):
    (note,) = [note for note in PLANS[section](weights="random").notes if note.startswith("random weights")]
    assert "Qwen/Qwen2.5-7B-Instruct" in note and "fetched" not in note
    assert not any(name.startswith("Qwen/") for name in unreached)


@pytest.mark.parametrize("section", PLANS)
def test_real_weights_as_asked_are_an_error_with_the_reason(section):
    with pytest.raises(ModelError, match="this model cannot be fetched: .*name look-up failed"):
        PLANS[section](weights="real")


@pytest.mark.parametrize("section", (3, 5))
def test_prompts_in_sharegpts_place_are_noted_with_the_reason(section):
    notes = PLANS[section]().notes
    assert "the book's own prompts in ShareGPT's place, which could not be fetched: name look-up failed" in notes
    assert not any("ShareGPT" in note for note in PLANS[section](dataset="own").notes)


def test_a_draft_alone_with_random_weights_is_noted_and_refused_where_real_ones_are_asked_for(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"vocab_size": 151936}))
    (target / "model.safetensors").write_bytes(b"x")
    named = {"model": str(target), "draft_model": "Qwen/Qwen2.5-0.5B-Instruct"}
    notes = PLANS[3](**named).notes
    assert any("Qwen/Qwen2.5-0.5B-Instruct could not be fetched: name look-up failed" in note for note in notes)
    (target.parent / "draft").mkdir()
    (target.parent / "draft" / "config.json").write_text(json.dumps({"vocab_size": 151936}))
    with pytest.raises(ParameterError, match="real weights were asked for and are not within reach: draft"):
        PLANS[3](**named | {"draft_model": str(target.parent / "draft"), "weights": "real"})


def test_what_is_said_of_real_weights_is_nothing():
    real = checkpoints.Model("a/b", "a/b", Path("x"))
    assert plans.random_notes([real], "text is not") == []
