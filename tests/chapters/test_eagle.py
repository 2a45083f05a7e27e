"""An EAGLE-3 head's cost by arithmetic, what is refused before training, what the script is told, and the packed
folder.
"""

import json
from dataclasses import replace

import pytest
from tiny_training import LOOK, SMOL, TRAINING, shaped_target

from serving_study import environments, files
from serving_study.chapters import speculation_plan
from serving_study.chapters.drafts import distillation, eagle, recipe
from serving_study.errors import HostError, ModelError, ParameterError
from serving_study.hardware import hosts
from serving_study.models import checkpoints
from serving_study.theory import speculation

HOST = hosts.Host("cpu", "a processor", 2, 16.0, 12.0)


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    monkeypatch.setattr(hosts, "detect", lambda profile="auto": HOST)


@pytest.fixture
def target(tmp_path):
    """A folder with the embedded model's shape, weights that nobody reads, and a tokenizer of three tokens."""
    return checkpoints.resolve(str(shaped_target(tmp_path / "target")))


def wanted(**given):
    return recipe.resolved(shipped=False, **given)


def resolved(target, **given):
    return eagle.resolved(eagle.Head(**given), wanted(), target)


def test_what_a_pass_costs_is_the_sum_of_its_matrices(target):
    """The figures of the module's docstring, from the shapes that vLLM gives the head."""
    config = eagle.config(resolved(target), SMOL)
    states, attention, output, feed_forward, vocabulary = (
        3 * 576 * 576,
        1152 * (9 + 2 * 3) * 64,
        576 * 576,
        3 * 576 * 1536,
        8192 * 576,
    )
    assert [round(part / 1e6, 3) for part in (states, attention, output, feed_forward, vocabulary)] == [
        0.995,
        1.106,
        0.332,
        2.654,
        4.719,
    ]
    assert eagle.parameters(config) == states + attention + output + feed_forward + vocabulary
    assert eagle.cost_ratio(config, SMOL) == pytest.approx(0.0729, abs=1e-4)
    assert eagle.cost_ratio(config, SMOL, 3) == pytest.approx((eagle.parameters(config) - 2 / 3 * states) / 134_515_008)
    assert speculation.break_even(1, eagle.cost_ratio(config, SMOL)) == pytest.approx(0.0729, abs=1e-4)
    student = distillation.draft_sizes.student_config(wanted(), SMOL)
    assert eagle.cost_ratio(config, SMOL, 3) < 0.7 * distillation.draft_sizes.cost_ratio(student, SMOL)


def test_values_that_are_left_out_follow_the_target(target):
    head = resolved(target)
    assert (head.name, head.layers, head.intermediate) == ("target-eagle3", (10, 20, 30), 1536)
    config = eagle.config(head, SMOL)
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["num_hidden_layers"] == 1
    assert config["eagle_aux_hidden_state_layer_ids"] == [10, 20, 30] and config["num_aux_hidden_states"] == 3
    assert {name: config[name] for name in ("vocab_size", "hidden_size", "rope_theta", "rms_norm_eps")} == {
        name: SMOL[name] for name in ("vocab_size", "hidden_size", "rope_theta", "rms_norm_eps")
    }
    assert eagle.config(resolved(target, layers=[29, 30]), SMOL)["num_aux_hidden_states"] == 2


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"name": "../x"}, "name"),
        ({"draft_vocabulary": 0}, "draft_vocabulary"),
        ({"draft_vocabulary": 49_153}, "draft_vocabulary"),
        ({"layers": (0, 30)}, "layers"),
        ({"layers": (2, 31)}, "layers"),
        ({"layers": (20, 10, 30)}, "layers"),
        ({"layers": (10, 20)}, "layers"),
        ({"intermediate": -1}, "intermediate"),
        ({"unroll": 0}, "unroll"),
        ({"unroll": 9}, "unroll"),
        ({"unroll_decay": 0}, "unroll_decay"),
        ({"unroll_decay": 1.5}, "unroll_decay"),
        ({"states_minutes": 0}, "states_minutes"),
        ({"memory_gib": 0}, "memory_gib"),
    ],
)
def test_values_that_no_head_can_have(target, given, name):
    with pytest.raises(ParameterError, match=f"parameter {name} cannot be used") as caught:
        resolved(target, **given)
    assert caught.value.allowed and caught.value.next


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"model_type": "gemma3"}, "target: gemma3, rope_scaling None"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "target: llama, rope_scaling {'rope_type': 'llama3'}"),
    ],
)
def test_kinds_of_targets_that_are_refused(target, other, said):
    (target.folder / "config.json").write_text(json.dumps(SMOL | other))
    with pytest.raises(ModelError, match="no EAGLE-3 head can be made for this kind of target") as caught:
        resolved(checkpoints.resolve(str(target.folder)))
    assert caught.value.value == said and caught.value.next


def test_too_little_memory_is_said_before_training(target, cache):
    head = resolved(target)
    eagle.check(head, wanted(), target, replace(HOST, free_memory_gib=6.0))
    with pytest.raises(HostError, match=r"too little host memory to train this head: 1.0 GiB free") as caught:
        eagle.check(head, wanted(), target, replace(HOST, free_memory_gib=1.0))
    assert "memory_gib (now 2)" in caught.value.next
    with pytest.raises(HostError):
        eagle.check(replace(head, memory_gib=11.0), wanted(), target, HOST)


def test_targets_without_weights_or_a_tokenizer(target, cache):
    head = resolved(target)
    (target.folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        eagle.check(head, wanted(), target, HOST)
    (target.folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="random weights give none"):
        eagle.check(head, wanted(), checkpoints.resolve(str(target.folder)), HOST)


@pytest.mark.parametrize(
    ("of_head", "of_budget", "said"),
    [
        ({"unroll": 2}, {}, "head_unroll 3 (now 2)"),
        ({"layers": (30,)}, {}, "head_layers [10, 20, 30] (now [30])"),
        ({}, {"seed": 1}, "seed 42 (now 1)"),
    ],
)
def test_a_checkpoint_of_another_run_under_the_same_name(target, cache, of_head, of_budget, said):
    head = resolved(target)
    files.write(
        distillation.work_folder(wanted(name=head.name)) / "identity.json", eagle.identity(head, wanted(), target)
    )
    eagle.check(head, wanted(width=128), target, HOST)  # the student's size does not decide a head
    with pytest.raises(ModelError) as caught:
        eagle.check(replace(head, **of_head), wanted(**of_budget), target, HOST)
    assert caught.value.value == said and "fresh=True" in caught.value.next
    eagle.check(replace(head, name="another", **of_head), wanted(**of_budget), target, HOST)


def test_what_the_script_is_told(target, cache):
    spec = eagle.specification(resolved(target), wanted(), target, HOST)
    student = distillation.specification(wanted(), target, HOST)
    assert (
        spec["data"] == student["data"] and spec["work"] != student["work"]
    )  # the same answers, a work folder of its own
    assert (
        spec["states_layers"] == [10, 20, 30] and spec["unroll"] == 3 and "student" not in spec and "width" not in spec
    )
    assert json.loads(json.dumps(spec))["identity"] == spec["identity"]


def test_answers_are_written_by_the_students_script_and_states_by_its_own(target, cache, monkeypatch):
    ran = []
    monkeypatch.setattr(environments, "ensure", lambda *_: None)
    monkeypatch.setattr(
        distillation,
        "run_stages",
        lambda environment, folder, stages, say, script=distillation.SCRIPT: ran.append(
            (script.name, stages, sorted(files.read(folder / "spec.json").keys() & {"student", "states_layers"}))
        ),
    )
    monkeypatch.setattr(eagle, "pack", lambda *_: None)
    asked = wanted(target=str(target.folder))
    eagle.train(asked, eagle.Head())
    assert ran == [
        ("train_draft.py", ("prompts", "answers"), ["student"]),
        ("train_eagle.py", ("states", "train"), ["states_layers"]),
    ]
    files.write(distillation.data_folder(asked, target) / "answers" / "done.json", {})
    eagle.train(asked, eagle.Head())
    assert [name for name, *_ in ran[2:]] == ["train_eagle.py"]
    files.write(distillation.work_folder(wanted(name="target-eagle3")) / "training.json", {})
    eagle.train(asked, eagle.Head())
    assert len(ran) == 3


def test_the_packed_folder_and_its_card(target, cache):
    training = TRAINING | {"data": TRAINING["data"] | {"writer": "vllm"}, "log": [LOOK | {"covered": 0.97}]}
    head, asked = resolved(target), wanted()
    work = distillation.work_folder(asked.replaced(name=head.name))
    files.write(work / "training.json", training)
    (work / "model.safetensors").write_bytes(b"head" * 1000)
    packed = eagle.pack(head, asked, target)
    assert {file.name for file in packed.folder.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "training.json",
    }
    assert packed.model.weights == "real" and packed.positions()["position 1"].tolist() == [0.6]
    checkpoints.check_draft(target, packed.model, heterogeneous=False)
    card = (packed.folder / "README.md").read_text()
    for said in (
        "states of its layers 10, 20, 30",
        "8,192 of its 49,152 tokens, 9.81 million weights",
        "reads 0.073 of",
        "596 of the target's own answers (9,000 tokens) by vllm",
        "9 steps, 900 tokens,\n1.5 minutes on cpu",
        "a share of 0.970",
        "| 1 | 0.600 | 1.60 | 0.600 |",
        target.identity()["weights_digest"],
    ):
        assert said in card, said


def test_the_arms_of_a_head(target):
    about = {
        "target": target,
        "draft": target,
        "ngram_ks": (),
        "ngram_window": (2, 4),
        "options": {},
        "environment": {},
        "host": HOST,
    }
    assert not [arm.name for arm in speculation_plan.speculation(ks=(1, 3), **about) if "eagle" in arm.name]
    found = {arm.name: arm for arm in speculation_plan.speculation(ks=(1, 3), eagle=target, **about)}
    assert list(found) == ["baseline", "draft-k1", "draft-k3", "eagle3-k1", "eagle3-k3", "baseline-again"]
    assert found["eagle3-k3"].speculative == {"method": "eagle3", "model": target.source, "num_speculative_tokens": 3}
    assert (
        found["eagle3-k3"].technique == "draft"
        and found["eagle3-k3"].draft is target
        and found["eagle3-k3"].identity()["speculative"]["method"] == "eagle3"
    )
