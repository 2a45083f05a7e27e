"""Which model a name means, whether its weights are real, and which pairs go together."""

import json
from pathlib import Path

import pytest

from serving_study.environments import Environment
from serving_study.errors import ModelError
from serving_study.models import checkpoints, embedded, hub
from serving_study.models.checkpoints import Model

ENVIRONMENT = Environment("vllm", Path("/somewhere/python"), "3.12", {})


@pytest.fixture
def tokenizer(tmp_path, cache, monkeypatch):
    """The embedded model as far as random weights need it: its tokenizer."""
    folder = tmp_path / "embedded"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text(f'{{"file": "{name}"}}')
    monkeypatch.setattr(embedded, "folder", lambda say=print: folder)
    return folder


def answered(monkeypatch, **found):
    """The hub's answer; returns what it is asked."""
    calls = []

    def fetch(environment, repository, **about):
        calls.append({"environment": environment, "repository": repository} | about)
        return hub.Fetched(**({"path": None} | found))

    monkeypatch.setattr(hub, "fetch", fetch)
    return calls


def local(tmp_path, name="mine", vocab_size=100, weights=b""):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    if weights:
        (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize("name", ["gpt", "a/b/c", "smollm2-135m", "smollm2-135m-instruct-first-x-layers", ""])
def test_an_unknown_model_is_refused_and_the_forms_named(name):
    with pytest.raises(ModelError) as caught:
        checkpoints.resolve(name)
    assert caught.value.what == ("no model here" if name == "" else "unknown model")
    assert embedded.NAME in caught.value.allowed


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder"])
def test_a_folder_without_config_is_refused(name):
    with pytest.raises(ModelError, match=f"no model here: {name}"):
        checkpoints.resolve(name)


def test_an_existing_folder_without_config_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no model here"):
        checkpoints.resolve(str(tmp_path))


def test_a_folder_has_real_weights_only_where_there_are_files(tmp_path):
    assert checkpoints.resolve(str(local(tmp_path))).weights == "random"
    found = checkpoints.resolve(str(local(tmp_path, "with", weights=b"x" * 2**20)))
    assert (found.name, found.weights, found.vocab_size, found.weights_gib) == ("with", "real", 100, 2**-10)
    assert checkpoints.resolve(str(tmp_path / "mine")).weights_gib is None


def test_the_embedded_model_and_its_cuts(tokenizer, monkeypatch):
    assert checkpoints.resolve(embedded.NAME).source == str(tokenizer)
    asked = []
    monkeypatch.setattr(embedded, "first_layers", lambda folder, count: asked.append((folder, count)) or folder)
    cut = checkpoints.resolve(f"{embedded.NAME}-first-4-layers")
    assert (
        asked == [(tokenizer, 4)]
        and cut.name == f"{embedded.NAME}-first-4-layers"
        and cut.revision == embedded.REQUIREMENT
    )


def test_a_hub_model_is_taken_at_its_pinned_revision(tmp_path, monkeypatch):
    folder = local(tmp_path, "snapshot", 152064, b"x")
    calls = answered(monkeypatch, path=folder)
    found = checkpoints.resolve("Qwen/Qwen2.5-7B-Instruct", environment=ENVIRONMENT)
    revision = checkpoints.REVISIONS["Qwen/Qwen2.5-7B-Instruct"]
    assert (found.weights, found.revision, found.vocab_size) == ("real", revision, 152064)
    assert (calls[0]["repository"], calls[0]["revision"]) == ("Qwen/Qwen2.5-7B-Instruct", revision)
    assert calls[0]["environment"] == ENVIRONMENT and "*.safetensors" in calls[0]["patterns"]
    assert checkpoints.resolve("someone/else", environment=ENVIRONMENT).revision == "snapshot"


def test_out_of_reach_falls_back_to_random_weights_of_the_true_shape(tokenizer, cache, monkeypatch):
    answered(monkeypatch, reason="name look-up failed", out_of_reach=True)
    said = []
    found = checkpoints.resolve("Qwen/Qwen2.5-7B-Instruct", environment=ENVIRONMENT, say=said.append)
    assert found.weights == "random" and found.revision is None and found.weights_gib is None
    assert found.random_because == "name look-up failed" and "random_because" not in found.identity()
    assert found.vocab_size == 152064 and found.config["num_hidden_layers"] == 28
    assert found.folder == cache / "models" / "qwen2.5-7b-instruct-random"
    assert (found.folder / "tokenizer.json").read_text() == (tokenizer / "tokenizer.json").read_text()
    assert said == [
        "Qwen/Qwen2.5-7B-Instruct is out of reach (name look-up failed): random weights of its shape take its place"
    ]


def test_random_weights_as_asked_ask_no_hub(tokenizer, monkeypatch):
    calls = answered(monkeypatch)
    found = checkpoints.resolve("Qwen/Qwen2.5-0.5B-Instruct", environment=ENVIRONMENT, weights="random")
    assert found.weights == "random" and found.random_because is None and calls == []


def test_real_weights_as_asked_are_never_replaced(tokenizer, monkeypatch):
    answered(monkeypatch, reason="connection refused", out_of_reach=True)
    with pytest.raises(ModelError, match="cannot be fetched: Qwen/Qwen2.5-7B-Instruct .connection refused."):
        checkpoints.resolve("Qwen/Qwen2.5-7B-Instruct", environment=ENVIRONMENT, weights="real")


@pytest.mark.parametrize("weights", ["auto", "real"])
@pytest.mark.parametrize(
    "reason",
    [
        "OSError: [Errno 28] No space left on device",
        "ModuleNotFoundError: No module named 'huggingface_hub'",
        "the proxy proxy.example of this environment does not answer: connection refused",
        "not whole within 60 min; the same command again resumes",
    ],
)
def test_any_other_failure_is_an_error_with_its_reason(tokenizer, cache, monkeypatch, reason, weights):
    answered(monkeypatch, reason=reason)
    with pytest.raises(ModelError, match="this model cannot be fetched") as caught:
        checkpoints.resolve("Qwen/Qwen2.5-7B-Instruct", environment=ENVIRONMENT, weights=weights)
    assert caught.value.value == f"Qwen/Qwen2.5-7B-Instruct ({reason})" and "weights = 'random'" in caught.value.allowed
    assert not (cache / "models").exists()


def test_out_of_reach_and_of_unknown_shape(tokenizer, monkeypatch):
    answered(monkeypatch, reason="timed out", out_of_reach=True)
    with pytest.raises(ModelError, match="its shape does not ship with the book: someone/else .timed out.") as caught:
        checkpoints.resolve("someone/else", environment=ENVIRONMENT)
    assert "qwen2.5-7b-instruct" in caught.value.allowed


@pytest.mark.parametrize("weights", ["auto", "real"])
def test_what_the_hub_refuses_is_not_replaced_by_random_weights(tokenizer, monkeypatch, weights):
    answered(monkeypatch, reason="GatedRepoError: 403", refused=True)
    with pytest.raises(ModelError, match="the hub does not give this model: .*403") as caught:
        checkpoints.resolve("Qwen/Qwen2.5-7B-Instruct", environment=ENVIRONMENT, weights=weights)
    assert "hf auth login" in caught.value.next


INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}})


@pytest.mark.parametrize(
    "files, missing",
    [
        ({"model.safetensors": "x"}, "no config.json"),
        ({"config.json": "{}"}, "no safetensors weights"),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, "no safetensors weights"),
        (
            {"config.json": "{}", "model.safetensors.index.json": INDEX, "model-1.safetensors": "x"},
            "no model-2.safetensors and 1 files more",
        ),
        ({"config.json": "{}", "model.safetensors.index.json": "[]"}, "index.json of its snapshot cannot be read"),
    ],
)
def test_half_a_snapshot_is_no_model(tmp_path, tokenizer, monkeypatch, files, missing):
    (tmp_path / "snapshot").mkdir()
    for name, content in files.items():
        (tmp_path / "snapshot" / name).write_text(content)
    answered(monkeypatch, path=tmp_path / "snapshot")
    with pytest.raises(ModelError, match=f"cannot be fetched: Qwen/Qwen2.5-7B-Instruct .*{missing}"):
        checkpoints.resolve("Qwen/Qwen2.5-7B-Instruct", environment=ENVIRONMENT)


def test_planning_makes_nothing(cache, monkeypatch):
    monkeypatch.setattr(embedded, "folder", lambda say=print: pytest.fail("the model was made"))
    for name, vocabulary in (
        ("Qwen/Qwen2.5-7B-Instruct", 152064),
        ("Qwen/Qwen2.5-0.5B-Instruct", 151936),
        (embedded.NAME, 49152),
        (f"{embedded.NAME}-first-4-layers", 49152),
    ):
        assert checkpoints.planned(name).vocab_size == vocabulary
    assert checkpoints.planned("someone/else") is None and not (cache / "models").exists()


def pair(tmp_path, target=152064, draft=151936):
    return checkpoints.resolve(str(local(tmp_path, "target", target))), checkpoints.resolve(
        str(local(tmp_path, "draft", draft))
    )


def test_vocabularies_of_different_size_need_the_mapping(tmp_path):
    target, draft = pair(tmp_path)
    checkpoints.check_draft(target, draft, heterogeneous=True)
    with pytest.raises(ModelError, match="draft has 151936, target has 152064") as caught:
        checkpoints.check_draft(target, draft, heterogeneous=False)
    assert "heterogeneous_vocabulary = True" in caught.value.allowed


def test_vocabularies_of_one_size_need_none(tmp_path):
    checkpoints.check_draft(*pair(tmp_path, 100, 100), heterogeneous=False)


def test_identity_tells_checkpoints_and_shapes_apart_but_not_places(tmp_path):
    def identity(name, vocab_size=100, weights=b"a" * 100):
        folder = local(tmp_path / name.split("/")[0], "m", vocab_size, weights)
        return checkpoints.resolve(str(folder)).identity()

    for name in "abcde":
        (tmp_path / name).mkdir()
    first = identity("a")
    assert identity("b") == first and first["weights"] == "real"
    assert identity("c", vocab_size=101)["shape"] != first["shape"]
    assert identity("d", weights=b"b" * 100)["weights_digest"] != first["weights_digest"]
    assert identity("e", weights=b"")["weights_digest"] is None


def test_the_end_of_a_large_file_counts(tmp_path):
    digests = set()
    for name, last in (("a", b"1"), ("b", b"2")):
        digests.add(
            checkpoints.resolve(str(local(tmp_path, name, weights=b"0" * (3 << 20) + last))).identity()[
                "weights_digest"
            ]
        )
    assert len(digests) == 2


def test_a_model_is_a_value():
    assert Model("a", "b", Path("c")) == Model("a", "b", Path("c")) and hash(Model("a", "b", Path("c")))
