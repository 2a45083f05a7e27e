"""A draft's size by arithmetic, what is refused before training, the engine-side run as the harness sees it, and the
packed folder.
"""

import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from matplotlib import pyplot
from tiny_training import LOOK, SMOL, TRAINING, shaped_target

from serving_study import environments, files
from serving_study.analysis import claims
from serving_study.chapters import sections, speculation_plan
from serving_study.chapters.drafts import distillation, draft_sizes, draft_views, drafts, plan, recipe, served_drafts
from serving_study.errors import EngineEnvironmentError, HostError, ModelError, ParameterError
from serving_study.hardware import gpus, hosts
from serving_study.loads import datasets
from serving_study.models import checkpoints, embedded
from serving_study.results import old_cells
from serving_study.theory import speculation

HOST = hosts.Host("cpu", "a processor", 2, 16.0, 12.0)
QWEN = json.loads((checkpoints.SHAPES / "qwen2.5-0.5b-instruct" / "config.json").read_text())


@pytest.fixture(autouse=True)
def cpu(monkeypatch, tmp_path):
    """A CPU host, and no draft that ships."""
    monkeypatch.setattr(hosts, "detect", lambda profile="auto": HOST)
    monkeypatch.setattr(checkpoints, "SHIPPED", tmp_path / "none")
    monkeypatch.setenv("SERVING_STUDY_PROGRESS", "/dev/null")


@pytest.fixture
def target(tmp_path):
    """A folder with the embedded model's shape, weights that nobody reads, and a tokenizer of three tokens."""
    folder = shaped_target(tmp_path / "target")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return checkpoints.resolve(str(folder))


def wanted(**given):
    return recipe.resolved(**given)


def config_of(**given):
    return draft_sizes.student_config(wanted(**given), SMOL)


def test_the_header_of_section_4_is_the_dataclass():
    assert set(sections.header(sections.get(4))) == set(recipe.Distillation.model_fields)
    found = sections.parameters(sections.get(4), {"width": 128, "minutes": 1})
    assert recipe.resolved(**found | {"heads": 4}).width == 128
    with pytest.raises(ParameterError, match="parameter ks has the wrong type"):
        sections.parameters(sections.get(4), {"ks": 3})


def test_the_size_of_the_targets_that_ship():
    """Published: 134,515,008 parameters of SmolLM2-135M, 494,032,768 of Qwen2.5-0.5B."""
    smol, qwen = draft_sizes.size(SMOL), draft_sizes.size(QWEN)
    assert smol.parameters == 134_515_008 and smol.bytes_a_pass == 2 * 134_515_008
    assert smol.head_share == pytest.approx(49_152 * 576 / 134_515_008)
    assert qwen.parameters == 494_032_768


def test_the_output_embedding_is_nearly_all_that_a_small_draft_reads():
    config = config_of()
    weighs = draft_sizes.size(config)
    layer = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 640 + 2 * 256
    assert weighs.parameters == 49_152 * 256 + 3 * layer + 256 and weighs.head_share > 0.8
    assert draft_sizes.cost_ratio(config, SMOL) == pytest.approx(weighs.parameters / 134_515_008)
    assert weighs.parameters * 2 < drafts.LARGEST_FOLDER


def test_untied_embeddings_weigh_more_and_cost_the_same():
    tied, untied = draft_sizes.size(config_of()), draft_sizes.size(config_of(tie_embeddings=False))
    assert untied.parameters - tied.parameters == 49_152 * 256 and untied.bytes_a_pass == tied.bytes_a_pass


def test_candidates_are_in_order_of_cost_with_their_break_even():
    table = draft_sizes.candidates(wanted(), SMOL, [{"layers": 1}, {"width": 64, "heads": 2, "kv_heads": 1}])
    assert table["cost ratio"].is_monotonic_increasing and len(table) == 3
    assert table["width"].tolist() == [64, 256, 256]
    for row in table.to_dict("records"):
        assert row["breaks even, k = 1"] == pytest.approx(row["cost ratio"])  # (1 + a) / (1 + c) > 1
        assert row["breaks even, k = 5"] == pytest.approx(speculation.break_even(5, row["cost ratio"]))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"heads": 3}, "heads"),
        ({"heads": 0}, "heads"),
        ({"width": 40, "heads": 4}, "width"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"kv_heads": 0}, "kv_heads"),
        ({"layers": 0}, "layers"),
        ({"intermediate": 0}, "intermediate"),
        ({"loss": "mse"}, "loss"),
        ({"initial_embedding": "zeros"}, "initial_embedding"),
        ({"writer": "sglang"}, "writer"),
        ({"held_out": 0}, "held_out"),
        ({"held_out": 1}, "held_out"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"context": 8}, "context"),
        ({"batch_tokens": 100}, "batch_tokens"),
        ({"ks": []}, "ks"),
        ({"ks": [0]}, "ks"),
        ({"ks": [3, 3]}, "ks"),
        ({"name": "../x"}, "name"),
        ({"tokens": 0}, "tokens"),
        ({"minutes": 0}, "minutes"),
        ({"samples": 0}, "samples"),
        ({"prompts": -1}, "prompts"),
    ],
)
def test_values_that_no_draft_can_have(given, name):
    with pytest.raises(ParameterError, match=f"parameter {name} cannot be used") as caught:
        wanted(**given)
    assert caught.value.allowed and caught.value.next


def test_a_head_is_trained_only_where_the_methods_ask_for_it(monkeypatch):
    asked = []
    monkeypatch.setattr(plan.eagle, "train", lambda wanted, head, *, say: asked.append(wanted) or "head")
    assert plan.head(recipe.Distillation()) is None and not asked
    assert plan.head(recipe.Distillation(methods=["draft", "eagle3"])) == "head"
    assert asked[0].tokens == recipe.CPU["tokens"]
    with pytest.raises(ParameterError, match="parameter methods cannot be used") as caught:
        recipe.Distillation(methods=["eagle3"])
    assert caught.value.allowed == "draft, or draft and eagle3"


def test_defaults_are_the_hosts_profile(monkeypatch):
    assert wanted().tokens == recipe.CPU["tokens"] and wanted(tokens=5).tokens == 5
    assert wanted().name == "smollm2-135m-instruct-draft" == checkpoints.TRAINED
    gpu = replace(HOST, profile="h200x1", gpus=(gpus.Gpu(0, "NVIDIA H200", 139.8, 139.0, "9.0"),))
    monkeypatch.setattr(hosts, "detect", lambda profile="auto": gpu)
    assert wanted().tokens == recipe.GPU["tokens"]


def test_a_good_target_passes(target, cache):
    distillation.check(wanted(), target, HOST)


def test_targets_that_a_student_cannot_share_a_tokenizer_with(target, cache, tmp_path):
    def refused(what):
        with pytest.raises(ModelError, match=what) as caught:
            distillation.check(wanted(), checkpoints.resolve(str(target.folder)), HOST)
        assert caught.value.next

    (target.folder / "config.json").write_text(json.dumps(SMOL | {"vocab_size": 2}))
    refused("the target's tokenizer has more tokens than its vocabulary: 3 and 2")
    (target.folder / "config.json").write_text(json.dumps(SMOL | {"final_logit_softcapping": 30.0}))
    refused("the target changes its logits behind its output embedding: final_logit_softcapping")
    (target.folder / "config.json").write_text(json.dumps(SMOL))
    (target.folder / "tokenizer_config.json").write_text("{}")
    refused("the target has no chat template")
    (target.folder / "tokenizer.json").write_text("{}")
    refused("the target's tokenizer.json cannot be read")
    (target.folder / "tokenizer.json").unlink()
    refused("the target has no tokenizer.json that a student could share")
    (target.folder / "model.safetensors").unlink()
    refused("random weights give none")


def test_sizes_that_are_refused(target, cache):
    embedded_model = checkpoints.Model(embedded.NAME, target.source, target.folder)
    with pytest.raises(ModelError, match="too large to ship with the book") as caught:
        distillation.check(wanted(width=320, heads=5, kv_heads=5), embedded_model, HOST)
    assert caught.value.allowed == "32 MiB or less"
    distillation.check(wanted(width=320, heads=5, kv_heads=5), target, HOST)  # of another target, it need not ship
    with pytest.raises(ModelError, match="the student is wider than its target: 640 and 576"):
        distillation.check(wanted(width=640, heads=10), target, HOST)
    with pytest.raises(ModelError, match="costs more than one of its target"):
        distillation.check(wanted(layers=400), target, HOST)


def test_too_little_memory_is_said_before_training(target, cache):
    distillation.check(wanted(), target, replace(HOST, free_memory_gib=4.0))
    with pytest.raises(HostError, match=r"too little host memory to train this draft: 0.5 GiB free") as caught:
        distillation.check(wanted(), target, replace(HOST, free_memory_gib=0.5))
    assert "batch_tokens=" in caught.value.next
    gpu = replace(HOST, gpus=(gpus.Gpu(0, "NVIDIA L4", 22.0, 3.0, "8.9"),))
    with pytest.raises(HostError, match="too little GPU memory to train this draft: 3.0 GiB free"):
        distillation.check(wanted(batch_tokens=32_768), target, gpu)
    distillation.check(
        wanted(batch_tokens=32_768), target, replace(HOST, gpus=(gpus.Gpu(0, "NVIDIA L4", 22.0, 21.0, "8.9"),))
    )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"width": 128}, "width 256 (now 128)"),
        ({"seed": 1}, "seed 42 (now 1)"),
        ({"layers": 2, "tokens": 9}, "layers 3 (now 2), tokens 30000 (now 9)"),
    ],
)
def test_a_checkpoint_of_another_run_under_the_same_name(target, cache, other, said):
    files.write(distillation.work_folder(wanted()) / "identity.json", distillation.identity(wanted(), target))
    distillation.check(wanted(checkpoint_s=5.0, evaluations=9), target, HOST)  # these do not decide the weights
    with pytest.raises(ModelError) as caught:
        distillation.check(wanted(**other), target, HOST)
    assert caught.value.value == said and "fresh=True" in caught.value.next
    distillation.check(wanted(**other, fresh=True), target, HOST)
    distillation.check(wanted(**other, name="another"), target, HOST)


def test_a_checkpoint_of_another_target(target, cache):
    files.write(distillation.work_folder(wanted()) / "identity.json", distillation.identity(wanted(), target))
    (target.folder / "model.safetensors").write_bytes(b"trained on" * 100)
    with pytest.raises(ModelError, match="target_weights_digest"):
        distillation.check(wanted(), checkpoints.resolve(str(target.folder)), HOST)


def test_what_the_script_is_told(target, cache):
    spec = distillation.specification(wanted(width=128), target, HOST)
    assert spec["ends"] == [2, 0] and spec["device"] == "cpu" and spec["student"]["hidden_size"] == 128
    assert json.loads(json.dumps(spec))["identity"] == spec["identity"]
    other = distillation.specification(wanted(width=192, heads=3, kv_heads=3), target, HOST)
    assert spec["data"] == other["data"] and distillation.data_folder(
        wanted(seed=1), target
    ) != distillation.data_folder(wanted(), target)
    assert Path(spec["conversations"]) == datasets.OWN


SCRIPT = """
import json, sys, time
say = lambda event, **about: print(json.dumps({"event": event, **about}), flush=True)
say("stage", name="train", device="cpu"); print("no event")
say("step", share=0.5, tokens=1000, kl=1.25)
say("held_out", tokens=1000, acceptance=0.25, agreement=0.5)
say("note", text="a note")
{end}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    def with_end(end):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.replace("{end}", end))
        monkeypatch.setattr(distillation, "SCRIPT", script)
        said = []
        distillation.run_stages(
            environments.Environment("x", Path(sys.executable), "3", {}), tmp_path, ["train"], said.append
        )
        return said

    return with_end


def test_events_are_shown(run):
    assert run("") == ["held out, after 1,000 tokens: acceptance 0.250 at temperature 1, agreement 0.500", "a note"]


def test_what_the_script_refuses_is_raised(run):
    with pytest.raises(ModelError, match="no way: 3\n  allowed: 4\n  next:    run"):
        run("say('error', what='no way', value='3', allowed='4', next='run'); sys.exit(3)")


def test_a_script_that_dies_shows_its_last_lines(run, tmp_path):
    with pytest.raises(
        EngineEnvironmentError, match=r"ended early: exit code 7\n    \| CUDA is gone\n  allowed"
    ) as caught:
        run("print('CUDA is gone', file=sys.stderr); sys.exit(7)")
    assert "resumes" in caught.value.next


def test_a_script_that_hangs_is_ended(run, monkeypatch):
    monkeypatch.setattr(distillation, "SILENT_S", 5.0)
    with pytest.raises(EngineEnvironmentError, match="said nothing: for 5.0 s; last: {'event': 'note'"):
        run("time.sleep(600)")


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"student" * 1000)
    (folder / "held-out.json").write_text("[]")
    (folder / "training.json").write_text(json.dumps(TRAINING))
    return folder


def test_the_packed_folder_and_its_card(target, work, cache):
    packed = drafts.pack(wanted(), target, work)
    assert packed.folder == cache / "models" / checkpoints.TRAINED
    assert {file.name for file in packed.folder.iterdir()} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "held-out.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    }
    checkpoints.check_draft(target, packed.model, heterogeneous=False)
    assert packed.model.weights == "real"
    assert json.loads((packed.folder / "tokenizer.json").read_text()) == json.loads(
        (target.folder / "tokenizer.json").read_text()
    )
    card = (packed.folder / "README.md").read_text()
    for said in (
        "3 layers of width 256 (14.65 million weights, bf16)",
        "28 prompts that the target wrote itself and 270 of",
        "596 answers (9,000 tokens) at temperature 0 and 1, by transformers",
        "A share of 0.1 of all prompts was held out",
        "12 of them",
        "Loss: kl",
        "9 steps, 900 tokens",
        "1.5 minutes\non cpu",
        "| 0 | 0.010 | 0.600 |",
        "| 900 | 0.500 | 0.600 |",
        "| 1 | 0.600 | 1.60 | 0.600 |",
        "that of its target",
        hashlib.sha256(b"student" * 1000).hexdigest(),
        target.identity()["weights_digest"],
    ):
        assert said in card, said
    assert (
        packed.last["tokens"] == 900
        and packed.positions()["position 1"].tolist() == [0.6]
        and packed.steps()["kl"].tolist() == [1.0]
    )
    assert packed.held_out()["acceptance"].tolist() == [0.01, 0.5]


def test_a_folder_above_the_limit_is_not_left(target, work, cache, monkeypatch):
    monkeypatch.setattr(drafts, "LARGEST_FOLDER", 5000)
    with pytest.raises(ModelError, match="too large to ship"):
        drafts.pack(wanted(), checkpoints.Model(embedded.NAME, target.source, target.folder), work)
    assert list((cache / "models").iterdir()) == []


def shipped(tmp_path, monkeypatch):
    """data/models with a trained draft in it."""
    folder = tmp_path / "shipped" / checkpoints.TRAINED
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of()))
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    monkeypatch.setattr(checkpoints, "SHIPPED", tmp_path / "shipped")
    return folder


def test_a_draft_that_ships_is_shown_as_it_was_trained(target, tmp_path, cache, monkeypatch):
    big = wanted(
        target=str(target.folder),
        name=checkpoints.TRAINED,
        prompts=24_000,
        tokens=10**9,
        minutes=10.0,
        answer_minutes=4.0,
        answer_tokens=320,
        evaluated=128,
        batch_tokens=32_768,
        context=1024,
    )
    folder = shipped(tmp_path, monkeypatch)
    (folder / "training.json").write_text(json.dumps(TRAINING | {"identity": distillation.identity(big, target)}))
    monkeypatch.setattr(environments, "ensure", lambda *_: None)
    monkeypatch.setattr(distillation, "run_stages", lambda *_: pytest.fail("trained"))
    here = wanted(target=str(target.folder), name=checkpoints.TRAINED)
    assert (here.tokens, here.prompts, here.evaluations) == (10**9, 24_000, recipe.CPU["evaluations"])
    assert wanted(target=str(target.folder), name=checkpoints.TRAINED, shipped=False).prompts == recipe.CPU["prompts"]
    assert distillation.train(here).folder == folder
    for other in ({"width": 128}, {"seed": 1}, {"tokens": 5}, {"fresh": True}):  # of these nothing ships
        assert wanted(target=str(target.folder), name=checkpoints.TRAINED, **other).prompts == recipe.CPU["prompts"]
    (target.folder / "model.safetensors").write_bytes(b"another target" * 100)
    with pytest.raises(pytest.fail.Exception, match="trained"):
        distillation.train(here)


def test_a_draft_that_ships_has_a_name(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="unknown model"):
        checkpoints.resolve(checkpoints.TRAINED)
    folder = shipped(tmp_path, monkeypatch)
    found = checkpoints.resolve(checkpoints.TRAINED)
    assert (found.name, found.folder, found.weights, found.vocab_size) == (checkpoints.TRAINED, folder, "real", 49_152)
    for name in ("", ".", "..", "../shipped", f"x/{checkpoints.TRAINED}"):
        with pytest.raises(ModelError):
            checkpoints.resolve(name)


def test_the_cpu_profile_takes_the_trained_draft_once_it_is_there(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(environments, "has", lambda name: False)

    def names(**given):
        plan = sections.plan(3, dry=True, say=lambda line: None, **given)
        return [arm.name for arm in plan.arms], {arm.name: arm.draft.name for arm in plan.arms if arm.draft}

    expected = ["baseline", "ngram-k3", "draft-k1", "draft-k3", "baseline-again", "baseline-again-2"]
    found, drafts = names(ks=[1, 3])
    assert found == expected and set(drafts.values()) == {speculation_plan.CPU["draft_model"]}
    shipped(tmp_path, monkeypatch)
    found, drafts = names(ks=[1, 3])
    assert found == expected and set(drafts.values()) == {checkpoints.TRAINED}


def test_a_trained_draft_is_asked_what_it_never_saw(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(environments, "has", lambda name: False)

    def dataset(**given):
        return {load.dataset.name for load in sections.plan(3, dry=True, say=lambda line: None, **given).loads}

    assert dataset() == {"own"}
    with pytest.raises(ParameterError, match="no prompts were held out"):
        dataset(dataset="held-out")
    folder = shipped(tmp_path, monkeypatch)
    (folder / "held-out.json").write_text(
        json.dumps([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}])
    )
    assert dataset() == dataset(dataset="held-out") == {"held-out"} and dataset(dataset="own") == {"own"}
    assert dataset(draft_model=speculation_plan.CPU["draft_model"]) == {"own"}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A draft that ships, with looks at k = 1 and 3 along held-out answers, and a frame of two cells an arm as a server
    might have answered.
    """
    monkeypatch.setattr(environments, "has", lambda name: False)
    folder = shipped(tmp_path, monkeypatch)
    (folder / "held-out.json").write_text(
        json.dumps([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}])
    )
    rounds = {
        "1": {"rounds": 10, "by_position": [0.6], "acceptance_rate": 0.6, "tokens_a_round": 1.6},
        "3": {"rounds": 9, "by_position": [0.6, 0.4, 0.2], "acceptance_rate": 0.4, "tokens_a_round": 2.2},
    }
    poor = {
        "3": {"rounds": 9, "by_position": [0.1, 0.0, 0.0], "acceptance_rate": 0.1 / 3, "tokens_a_round": 1.1},
        "1": {"rounds": 9, "by_position": [0.1], "acceptance_rate": 0.1, "tokens_a_round": 1.1},
    }
    log = [
        LOOK | {"rounds": rounds},
        LOOK | {"event": "truncated", "layers": 4, "agreement": 0.1, "acceptance": 0.1, "rounds": poor},
    ]
    (folder / "training.json").write_text(json.dumps(TRAINING | {"log": log}))
    figures = {
        "baseline": (20.0, None, None),
        "baseline-again": (20.1, None, None),
        "draft-k1": (16.0, 0.5, 1.5),
        "draft-k3": (12.5, 0.4, 2.2),
        "draft-k3-truncated": (30.0, 0.05, 1.15),
        "ngram-k3": (21.0, 0.1, 1.3),
    }
    rows = [
        {
            "arm": arm,
            "concurrency": concurrency,
            "repeat": repeat,
            "certificate": "pass",
            "median_tpot_ms": tpot * concurrency + repeat / 10,
            "acceptance_rate": rate,
            "total_output_tokens": 10_010,
            "completed": 10,
            "drafts": round(10_000 / length) if length else None,
            "drafted_tokens": round(10_000 / length) * int(re.search(r"k(\d)", arm)[1]) if length else None,
            "accepted_tokens": 10_000 - round(10_000 / length) if length else None,
        }
        for arm, (tpot, rate, length) in figures.items()
        for concurrency in (1, 4)
        for repeat in (0, 1)
    ]
    return drafts.load(folder), old_cells.with_arm_columns(pandas.DataFrame(rows))


def test_what_a_server_makes_of_a_draft_stands_beside_what_was_predicted(trained):
    draft, frame = trained
    target = checkpoints.Model(embedded.NAME, "x", checkpoints.SHAPES / embedded.NAME)
    table = served_drafts.served(draft, target, frame).set_index("arm")
    assert list(table.index) == ["draft-k1", "draft-k3", "draft-k3-truncated"]  # n-grams have no draft model
    cost = draft_sizes.cost_ratio(draft.model.config, SMOL)
    assert table["predicted_rate"].tolist() == [0.6, 0.4, 0.1 / 3] and table["rate"].tolist() == [0.5, 0.4, 0.05]
    assert (
        table.loc["draft-k3", "predicted"] == pytest.approx(2.2 / (1 + 3 * cost))
        and table.loc["draft-k3-truncated", "cost"] > 2 * cost
    )
    step, tpot = 20.05, 12.55
    assert table.loc["draft-k3", "measured_cost"] == pytest.approx((2.2 * tpot - step) / 3 / step, rel=1e-3)
    assert (
        table.loc["draft-k3", "speedup"] == pytest.approx(step / tpot, rel=5e-3)
        and table.loc["draft-k3", "low"] <= table.loc["draft-k3", "speedup"] <= table.loc["draft-k3", "high"]
    )
    assert table.loc["draft-k3-truncated", "speedup"] < 1
    html = served_drafts.served_table(
        served_drafts.served(draft, target, frame),
        frame.assign(host="cpu", weights="real", acceptance="measured", engine_files="as released"),
    ).to_html()
    assert "draft-k3-truncated" in html and "0.530" not in html and "0.400" in html
    said = served_drafts.finding(
        served_drafts.served(draft, target, frame),
        frame.assign(host="cpu", weights="real", acceptance="measured", engine_files="as released"),
    )
    assert said.startswith(
        "One request at a time (cpu), against no speculation: of 3 comparisons, 2 faster, 1 slower, "
    )
    assert "the trained draft, at its best k of 3, has 40% of the proposals kept, and tokens come 1.60× [" in said
    assert "first layers, as a draft, have 5% of the proposals kept, and tokens come 0.67× [" in said
    assert "] as fast, faster by " in said and "] as fast, slower by " in said
    unsure = served_drafts.served(draft, target, frame).assign(claim=claims.UNDECIDED, more_blocks=7)
    said = served_drafts.finding(unsure, frame.assign(host="cpu"))
    assert "as fast, not decided: about 7 more blocks would; the target's" in said
    marks = served_drafts.marks(served_drafts.side_by_side(draft, target), served_drafts.served(draft, target, frame))
    assert marks["marker"].tolist() == ["o", "s"] * 2 + ["D"] * 3 and marks[marks["marker"] == "D"]["k"].tolist() == [
        1,
        3,
        3,
    ]
    assert speculation.acceptance_rate(marks["alpha"].iloc[5], 3) == pytest.approx(0.4)
    figure = draft_views.surface([1, 3], marks, "cpu")
    drawn = [sum(line.get_marker() == "D" and len(line.get_xdata()) for line in axis.lines) for axis in figure.axes]
    assert drawn == [1, 2]  # each measured mark in the panel of its own k
    pyplot.close(figure)


def test_without_servers_there_is_a_prediction_alone(trained):
    draft, frame = trained
    target = checkpoints.Model(embedded.NAME, "x", checkpoints.SHAPES / embedded.NAME)
    assert served_drafts.served(draft, target, frame.head(0)).empty
    assert (
        served_drafts.finding(served_drafts.served(draft, target, frame.head(0)), frame.head(0))
        == "The target was not served with its draft here."
    )
    figure = draft_views.surface(
        [1],
        served_drafts.marks(
            served_drafts.side_by_side(draft, target), served_drafts.served(draft, target, frame.head(0))
        ),
        "predicted",
    )
    assert len(figure.axes) == 1 and figure.get_supxlabel() == "predicted"
    pyplot.close(figure)


def test_the_target_is_served_with_its_draft_on_held_out_prompts(trained, cache, monkeypatch):
    monkeypatch.setattr(checkpoints.embedded, "folder", lambda say=print: checkpoints.SHAPES / embedded.NAME)
    monkeypatch.setattr(checkpoints.embedded, "first_layers", lambda source, count: source)
    monkeypatch.setattr(
        speculation_plan.plans,
        "environment",
        lambda host, dry, say: environments.Environment("vllm-cpu", Path("python"), "3.12", {}),
    )
    draft, _ = trained
    made = plan.of_draft(wanted(name=checkpoints.TRAINED, concurrencies=[1, 4], repeats=2, ks=[1, 3]), draft)
    assert (made.section, made.repeats, made.parameters["dataset"], made.parameters["draft_model"]) == (
        4,
        2,
        "held-out",
        checkpoints.TRAINED,
    )
    assert [arm.name for arm in made.arms] == [
        "baseline",
        "ngram-k3",
        "draft-k1",
        "draft-k3",
        "draft-k3-truncated",
        "baseline-again",
        "baseline-again-2",
    ]
    assert [(load.concurrency, load.prompts, load.output_tokens, load.dataset.name) for load in made.loads] == [
        (1, 4, 200, "held-out"),
        (4, 8, 200, "held-out"),
    ]
    both = plan.of_draft(wanted(name=checkpoints.TRAINED, ks=[1, 3]), draft, draft)
    assert [arm.speculative["method"] for arm in both.arms if arm.name in ("eagle3-k1", "eagle3-k3")] == ["eagle3"] * 2
    none = plan.of_draft(wanted(name=checkpoints.TRAINED, repeats=0), draft)
    assert not any(none.cells(arm) for arm in none.arms) and none.parameters["repeats"] == 0


def test_the_truncated_arm_is_of_the_middle_k(target):
    about = {
        "target": target,
        "draft": target,
        "ngram_ks": (),
        "ngram_window": (2, 4),
        "options": {},
        "environment": {},
        "host": HOST,
        "truncated": target,
    }
    assert [arm.name for arm in speculation_plan.speculation(ks=(5, 1, 3), **about)][-2] == "draft-k3-truncated"
    assert [arm.name for arm in speculation_plan.speculation(ks=(), **about)] == ["baseline", "baseline-again"]


@pytest.fixture
def quality(monkeypatch):
    """`engine_side/training/draft_texts.py`, which needs no engine."""
    monkeypatch.syspath_prepend(environments.ENGINE_SIDE / "training")
    import draft_texts

    yield draft_texts
    sys.modules.pop("draft_texts")


def test_a_prompt_is_held_out_by_its_words(quality):
    texts = [f"What is the number {number}?" for number in range(4000)]
    share = np.mean([quality.held_out(text, 42, 0.1) for text in texts])
    assert 0.08 < share < 0.12
    assert [quality.held_out(text, 42, 0.1) for text in texts[:50]] == [
        quality.held_out(f" {text.upper()}\n", 42, 0.1) for text in texts[:50]
    ]
    assert [quality.held_out(text, 1, 0.1) for text in texts] != [quality.held_out(text, 42, 0.1) for text in texts]


def test_the_jobs_have_the_held_out_first_and_no_prompt_twice_at_one_temperature(quality):
    rows = [{"text": str(number), "own": number < 20, "held_out": number % 5 == 0} for number in range(100)]
    spec = {"context": 64, "evaluated": 6, "samples": 2, "seed": 3}
    found = quality.jobs(spec, rows, [10] * 99 + [60])
    apart = [index for index, _ in found if rows[index]["held_out"]]
    assert (
        apart == [index for index, _ in found[:12]]
        and len(set(apart)) == 6
        and sum(rows[index]["own"] for index in set(apart)) == 3
    )
    assert {temperature for _, temperature in found[:12]} == {0.0, 1.0}
    rest = found[12:]
    assert (
        len(rest) == 3 * 79
        and 99 not in {index for index, _ in rest}
        and rest == quality.jobs(spec, rows, [10] * 99 + [60])[12:]
    )
