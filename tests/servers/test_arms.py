"""Which arms section 3 has, and what each says of itself."""

import json

import pytest

from serving_study.chapters import speculation_plan
from serving_study.errors import ModelError, ParameterError
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.models.checkpoints import Model
from serving_study.servers.arm import Arm

CPU = Host("cpu", "x", 2, 8, 8)
GPU = Host("l4x1", "x", 2, 8, 8, (Gpu(0, "NVIDIA L4", 22, 20, "8.9"),))


@pytest.fixture
def model(tmp_path):
    def make(name, vocab_size=100, weights="real"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
        return Model(name, str(folder), folder, weights)

    return make


@pytest.fixture
def make(model):
    target, same, other = model("target"), model("draft"), model("other", 90)

    def made(host=CPU, draft=same, **about):
        return speculation_plan.speculation(
            **{
                "target": target,
                "draft": draft,
                "ks": (1, 3, 5),
                "ngram_ks": (3,),
                "ngram_window": (2, 4),
                "options": {"seed": 1},
                "environment": {"A": 1},
                "host": host,
            }
            | about
        )

    made.other = other
    return made


def test_names_and_order(make):
    found = make()
    assert [arm.name for arm in found] == ["baseline", "ngram-k3", "draft-k1", "draft-k3", "draft-k5", "baseline-again"]
    assert [arm.k for arm in found] == [0, 3, 1, 3, 5, 0]
    assert [arm.technique for arm in found] == ["none", "ngram", "draft", "draft", "draft", "none"]
    assert [arm.acceptance for arm in found] == [None, *["measured"] * 4, None]
    assert {arm.weights for arm in found} == {"real"} and all(
        arm.options == {"seed": 1} and arm.environment == {"A": 1} for arm in found
    )


def test_the_control_is_the_baseline_under_another_name(make):
    first, last = make()[0], make()[-1]
    assert last.repeat_of == "baseline" and last.variant(name="baseline", repeat_of=None) == first
    assert first.identity() != last.identity()


def test_gpus_wanted(make):
    assert {arm.gpus for arm in make(CPU)} == {0} and {arm.gpus for arm in make(GPU)} == {1}


def test_speculative_configurations(make):
    by_name = {arm.name: arm.speculative for arm in make()}
    assert by_name["ngram-k3"] == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    assert (
        set(by_name["draft-k5"]) == {"method", "model", "num_speculative_tokens"}
        and by_name["draft-k5"]["method"] == "draft_model"
    )


def test_another_vocabulary_is_mapped_or_refused(make):
    found = {arm.name: arm.speculative for arm in make(draft=make.other)}
    assert found["draft-k1"]["use_heterogeneous_vocab"] is True and "use_heterogeneous_vocab" not in found["ngram-k3"]
    with pytest.raises(ModelError, match="vocabulary differs"):
        make(draft=make.other, heterogeneous_vocabulary=False)


@pytest.mark.parametrize(
    ("rate", "k", "length"), [(0.53, 3, 2.59), (0.708, 1, 1.708), (0.0, 5, 1.0), (1.0, 5, 6.0), (1 / 3, 3, 2.0)]
)
def test_prescribed_acceptance_becomes_a_length(make, rate, k, length):
    found = {arm.name: arm for arm in make(prescribed={f"draft-k{k}": rate})}
    arm = found[f"draft-k{k}"]
    assert (
        arm.speculative["rejection_sample_method"] == "synthetic"
        and arm.speculative["synthetic_acceptance_length"] == length
    )
    assert arm.acceptance == "prescribed"
    others = [other for name, other in found.items() if name != arm.name]
    assert all(
        "rejection_sample_method" not in (other.speculative or {}) and other.acceptance != "prescribed"
        for other in others
    )


def test_a_prescription_for_the_baseline_changes_nothing(make):
    assert make(prescribed={"baseline": 0.5, "no-such-arm": 0.5}) == make()


def test_the_vocabulary_control_takes_the_middle_k_and_its_prescription(make, model):
    found = make(control=model("same"), prescribed={"draft-k3": 0.5})
    assert [arm.name for arm in found][-2] == "draft-k3-same-vocabulary"
    assert found[-2].speculative["synthetic_acceptance_length"] == 2.5 and found[-2].draft.name == "same"
    assert "draft-k5-same-vocabulary" in [arm.name for arm in make(ks=(1, 5), control=found[-2].draft)]


def test_only_keeps_the_named_in_their_order(make):
    assert [arm.name for arm in make(only=["draft-k3", "baseline"])] == ["baseline", "draft-k3"]


def test_an_unknown_arm_lists_those_there_are(make):
    with pytest.raises(ParameterError, match="unknown arm: draft-k9, eagle") as caught:
        make(only=["baseline", "draft-k9", "eagle"])
    assert caught.value.allowed == "baseline, ngram-k3, draft-k1, draft-k3, draft-k5, baseline-again"


def test_random_in_either_model_is_random(model):
    real, random = model("real"), model("random", weights="random")
    assert [
        Arm.of("a", real).weights,
        Arm.of("a", random).weights,
        Arm.of("a", real, draft=random).weights,
        Arm.of("a", real, draft=real).weights,
    ] == ["real", "random", "random", "real"]


def test_identity_is_free_of_paths_and_full_of_what_decides(make, tmp_path):
    found = {arm.name: arm for arm in make()}
    assert str(tmp_path) not in json.dumps([arm.identity() for arm in found.values()])
    arm = found["draft-k3"]
    variants = [
        arm.variant(options={"seed": 2}),
        arm.variant(environment={}),
        arm.variant(gpus=2),
        arm.variant(engine="sglang"),
        arm.variant(speculative=arm.speculative | {"num_speculative_tokens": 4}),
        arm.variant(draft=None),
        arm.variant(name="x"),
    ]
    assert len({json.dumps(variant.identity(), sort_keys=True) for variant in [arm, *variants]}) == 8
