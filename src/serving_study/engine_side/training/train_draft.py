"""Distils a small draft from a target on the target's own answers.

    python train_draft.py SPEC.json STAGE [STAGE …] 2>> LOG        # stages: prompts, answers, train

SPEC.json is written by `serving_study.chapters.drafts.distillation`. One JSON line an event goes to standard output;
all that the
libraries print goes to standard error. Ends when standard input closes. The teacher runs beside the student, so that no
logits are stored (on a CPU its last hidden states are); sequences of similar length share a batch and are padded on the
right, which a causal model does not see: no text can look at another's, as it could in packed rows. Checkpoints appear
whole, and one of another target, size, seed or data is refused."""

import copy
import json
import math
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import draft_quality
import draft_texts
import numpy as np
import torch
from draft_texts import Refusal
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

WINDOW = 32  # batches whose sequences are sorted by length together
WARM_UP = 0.03  # share of the run in which the learning rate rises
EVENT_S = 1.0
STATES = 256  # texts whose teacher's states share a file
TOGETHER = 8  # of them in one pass


def make_student(spec: dict, teacher) -> LlamaForCausalLM:
    """A small Llama with the target's vocabulary; its embedding, most of its weights, begins as the target's,
    projected.
    """
    torch.manual_seed(spec["seed"])
    student = LlamaForCausalLM(
        LlamaConfig(**{key: value for key, value in spec["student"].items() if key != "torch_dtype"})
    ).float()
    if spec["initial_embedding"] == "target":
        width = spec["student"]["hidden_size"]
        for ours, theirs in (
            (student.get_input_embeddings(), teacher.get_input_embeddings()),
            (student.get_output_embeddings(), teacher.get_output_embeddings()),
        ):
            ours.weight.data[:] = project(theirs.weight.data.float().cpu(), width)
    return student


def project(embedding: torch.Tensor, width: int) -> torch.Tensor:
    """The `width` directions in which the rows of an embedding differ most: inner products of rows stay as near as that
    width allows.
    """
    if width >= embedding.shape[1]:
        return torch.nn.functional.pad(embedding, (0, width - embedding.shape[1]))
    _, directions = torch.linalg.eigh(embedding.T.double() @ embedding.double())  # ascending
    directions = directions[:, -width:]
    directions *= torch.sign(directions.sum(0))  # a direction's sign is arbitrary, and differs between libraries
    return (embedding.double() @ directions).float()


def batches(examples: list[dict], epoch: int, spec: dict) -> list[list[int]]:
    """The epoch's batches of about `batch_tokens` padded tokens, decided by seed and epoch alone."""
    rng = np.random.default_rng([spec["seed"], epoch])
    order, lengths = rng.permutation(len(examples)), np.array([len(example["tokens"]) for example in examples])
    all_batches, size = [], WINDOW * max(1, spec["batch_tokens"] // int(np.median(lengths)))
    for start in range(0, len(order), size):
        batch: list[int] = []
        for index in sorted(order[start : start + size].tolist(), key=lambda index: (lengths[index], index)):
            if batch and (len(batch) + 1) * lengths[index] > spec["batch_tokens"]:
                all_batches.append(batch)
                batch = []
            batch.append(index)
        all_batches.append(batch)
    return [all_batches[index] for index in rng.permutation(len(all_batches))]


def divergence(student_logits, teacher_logits, mix: float):
    """(loss summed over rows, KL, total variation): the forward KL, total variation, or a mixture with `mix` of the
    latter.
    """
    log_q, log_p = torch.log_softmax(student_logits, -1), torch.log_softmax(teacher_logits, -1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum()
    variation = 0.5 * (p - log_q.exp()).abs().sum() if mix else None
    loss = kl if not mix else variation if mix == 1 else (1 - mix) * kl + mix * variation
    return loss, kl.detach()


def truncated(teacher, layers: int):
    """The teacher after its first layers, sharing its weights: the draft that costs nobody any training."""
    cut, body = copy.copy(teacher), copy.copy(teacher.base_model)
    cut._modules, body._modules = dict(teacher._modules), dict(teacher.base_model._modules)
    body._modules["layers"] = torch.nn.ModuleList(list(teacher.base_model.layers)[:layers])
    cut._modules[teacher.base_model_prefix] = body
    return cut


def padded(batch: list[dict], spec: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, whether an answer's token is expected there), both (texts, longest text), padded on the right."""
    longest = max(len(example["tokens"]) for example in batch)
    tokens = torch.tensor(
        [example["tokens"] + [spec["ends"][0]] * (longest - len(example["tokens"])) for example in batch]
    )
    counted = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, example in enumerate(batch):
        counted[row, example["start"] - 1 : len(example["tokens"]) - 1] = True
    return tokens.to(spec["device"]), counted.to(spec["device"])


def hidden(model, tokens: torch.Tensor, counted: torch.Tensor, spec: dict) -> torch.Tensor:
    """What a model's output embedding is given at the counted places: (places, width), float32."""
    with torch.autocast(spec["device"], torch.bfloat16, enabled=spec["device"] == "cuda"):
        return model.base_model(tokens, use_cache=False).last_hidden_state[counted].float()


def keep_states(teacher, training: list[dict], spec: dict, tell) -> None:
    """Gives each text the teacher's hidden states at its answer, read once and kept on disk: on a CPU its passes would
    be most of the work.
    """
    parts = -(-len(training) // STATES)
    for part in range(parts):
        part_examples = training[part * STATES : (part + 1) * STATES]
        lengths = [len(example["tokens"]) - example["start"] for example in part_examples]
        place = Path(spec["data"]) / "states" / f"part-{part:04d}.npy"
        if not place.is_file():
            part_states: list = [None] * len(part_examples)
            order = sorted(range(len(part_examples)), key=lambda index: len(part_examples[index]["tokens"]))
            for start in range(0, len(order), TOGETHER):
                rows = order[start : start + TOGETHER]
                with torch.inference_mode():
                    states = hidden(teacher, *padded([part_examples[index] for index in rows], spec), spec)
                for index, own in zip(rows, states.split([lengths[index] for index in rows]), strict=True):
                    part_states[index] = own.numpy()
            draft_texts.write_whole(
                place, lambda temporary, states=part_states: _save_array(temporary, np.concatenate(states))
            )
        kept = np.load(place, mmap_mode="r")
        for example, end, length in zip(part_examples, np.cumsum(lengths).tolist(), lengths, strict=True):
            example["states"] = kept[end - length : end]
        tell("progress", stage="states", done=part + 1, total=parts)


def _save_array(file: Path, array: np.ndarray) -> None:
    with open(file, "wb") as out:
        np.save(out, array)


def step(teacher, student, batch: list[dict], spec: dict, mix: float) -> tuple[float, int]:
    """Gradients of one batch; returns the summed KL and the number of answer tokens.

    Logits of a whole batch would take many GiB: the heads see `chunk` rows at a time, whose gradients are gathered at
    the student's last hidden state and go back through its layers once."""
    tokens, counted = padded(batch, spec)
    with torch.no_grad():
        theirs = (
            torch.from_numpy(np.concatenate([example["states"] for example in batch]))
            if "states" in batch[0]
            else hidden(teacher, tokens, counted, spec)
        )
    ours = hidden(student, tokens, counted, spec)
    gathered = ours.detach().requires_grad_()
    head, teacher_head = student.get_output_embeddings().weight, spec["teacher_head"]
    count, total = len(gathered), 0.0
    for start in range(0, count, spec["chunk"]):
        rows = slice(start, start + spec["chunk"])
        loss, kl = divergence(gathered[rows] @ head.T, theirs[rows] @ teacher_head.T, mix)
        (loss / count).backward()
        total += kl
    ours.backward(gathered.grad)
    return float(total), count


def rate(spec: dict, share: float) -> float:
    """Learning rate at a share of the run: up in a straight line, down along a cosine."""
    if share < WARM_UP:
        return spec["learning_rate"] * max(share, 0.001) / WARM_UP
    return spec["learning_rate"] * 0.5 * (1 + math.cos(math.pi * min(1.0, (share - WARM_UP) / (1 - WARM_UP))))


def variation_share(spec: dict, share: float) -> float:
    return {"kl": 0.0, "tv": 1.0, "kl-tv": share}[spec["loss"]]


class Checkpoint:
    """`checkpoint.pt`: everything that the next step depends on, whole or absent."""

    def __init__(self, spec: dict):
        self.file, self.identity = Path(spec["work"]) / "checkpoint.pt", spec["identity"]

    def load(self) -> dict | None:
        """Raises Refusal for a checkpoint of another run."""
        if not self.file.is_file():
            return None
        try:
            saved = torch.load(self.file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise Refusal(
                "the checkpoint cannot be read",
                value=f"{self.file}: {type(error).__name__}",
                allowed="a whole checkpoint",
                next=f"rm {self.file}, then the same command again",
            ) from None
        different = [
            key
            for key in {**self.identity, **saved["identity"]}
            if saved["identity"].get(key) != self.identity.get(key)
        ]
        if different:
            shown = ", ".join(
                f"{key} {saved['identity'].get(key)} (now {self.identity.get(key)})" for key in sorted(different)
            )
            raise Refusal(
                "the checkpoint is of another run",
                value=shown,
                allowed="the same target, size, seed and data",
                next="the same command with fresh=True, or another name",
            )
        return saved

    def save(self, content: dict) -> None:
        draft_texts.write_whole(self.file, lambda temporary: _save(temporary, {"identity": self.identity, **content}))


def _save(file: Path, content: dict) -> None:
    with open(file, "wb") as out:
        torch.save(content, out)
        out.flush()
        os.fsync(out.fileno())


def until_spent(spec: dict, training: list[dict], model, optimizer, state: dict, learn, look, keep, note) -> None:
    """Steps until the token or minute budget is spent, from where `state` stands.

    `learn(batch, share)` leaves gradients in the model and returns the summed KL and the number of tokens;
    `look(share)` evaluates, which does not count as time spent; `keep()` saves."""
    order, order_of = [], None
    began, spent = time.monotonic(), state["elapsed_s"]
    told, saved, sums = began - EVENT_S, began, [0.0, 0, 0.0]  # the first step is told at once
    paused = 0.0
    while True:
        state["elapsed_s"] = spent + time.monotonic() - began - paused
        share = min(1.0, max(state["tokens"] / spec["tokens"], state["elapsed_s"] / (60 * spec["minutes"])))
        if share >= state["evaluations"] / spec["evaluations"] and share < 1:
            pause = time.monotonic()
            look(share)
            paused += time.monotonic() - pause
        if share >= 1:
            break
        if order_of != state["epoch"]:
            order, order_of = batches(training, state["epoch"], spec), state["epoch"]
        for group in optimizer.param_groups:
            group["lr"] = rate(spec, share)
        kl, count = learn([training[index] for index in order[state["batch"]]], share)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if not math.isfinite(norm):
            raise Refusal(
                "training diverged",
                value=f"step {state['step']}, gradient norm {norm}",
                allowed="a finite gradient",
                next="a smaller learning_rate, with fresh=True",
            )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state["step"] += 1
        state["tokens"] += count
        state["batch"] += 1
        if state["batch"] == len(order):
            state["epoch"], state["batch"] = state["epoch"] + 1, 0
        sums = [sums[0] + kl, sums[1] + count, max(sums[2], norm)]
        now = time.monotonic()
        if now - told >= EVENT_S and sums[1]:
            note(
                "step",
                step=state["step"],
                tokens=state["tokens"],
                epoch=state["epoch"],
                share=round(share, 4),
                kl=sums[0] / sums[1],
                gradient_norm=sums[2],
                learning_rate=rate(spec, share),
                tokens_per_s=round(sums[1] / (now - told)),
            )
            told, sums = now, [0.0, 0, 0.0]
        if now - saved >= spec["checkpoint_s"]:
            keep()
            saved = time.monotonic()
    if sums[1]:
        note(
            "step",
            step=state["step"],
            tokens=state["tokens"],
            epoch=state["epoch"],
            share=1.0,
            kl=sums[0] / sums[1],
            gradient_norm=sums[2],
            learning_rate=0.0,
            tokens_per_s=None,
        )


def train(spec: dict, tokenizer, tell) -> None:
    """Train until the token or minute budget is spent; writes model.safetensors (bf16), held-out.json and training.json
    into `work`.
    """
    device = spec["device"]
    checkpoint = Checkpoint(spec)
    saved = checkpoint.load()
    torch.set_float32_matmul_precision("high")
    teacher = (
        AutoModelForCausalLM.from_pretrained(
            spec["target"], dtype=torch.bfloat16 if device == "cuda" else torch.float32
        )
        .to(device)
        .eval()
        .requires_grad_(False)
    )
    training, apart = draft_texts.examples(spec, tokenizer)
    student = make_student(spec, teacher).to(device)
    spec["teacher_head"] = teacher.get_output_embeddings().weight.float()
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=spec["learning_rate"], betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
    )
    state = {"step": 0, "tokens": 0, "epoch": 0, "batch": 0, "elapsed_s": 0.0, "evaluations": 0, "log": []}
    if saved:
        student.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        state = saved["state"]
        tell("resumed", step=state["step"], tokens=state["tokens"])
    if device == "cpu":
        keep_states(teacher, training, spec, tell)
    data = learnt_from(spec, training, apart)
    tell("training", **data)

    def note(event, **fields):
        state["log"].append({"event": event, **fields})
        tell(event, **fields)

    def look(share):
        note(
            "held_out",
            step=state["step"],
            tokens=state["tokens"],
            share=round(share, 4),
            **draft_quality.evaluate(teacher, student, apart, spec["ks"], device),
        )
        state["evaluations"] += 1

    def keep():
        checkpoint.save(
            {
                "model": student.state_dict(),
                "optimizer": optimizer.state_dict(),
                "rng": torch.get_rng_state(),
                "state": state,
            }
        )
        tell("checkpoint", step=state["step"], tokens=state["tokens"])

    def learn(batch, share):
        return step(teacher, student, batch, spec, variation_share(spec, share))

    student.train()
    until_spent(spec, training, student, optimizer, state, learn, look, keep, note)
    # What is shipped is bf16, so bf16 is what the last look is at.
    shipped = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in student.state_dict().items()}
    student.load_state_dict({name: tensor.float() for name, tensor in shipped.items()})
    look(1.0)
    if spec["truncated"]:
        note(
            "truncated",
            layers=spec["truncated"],
            **draft_quality.evaluate(teacher, truncated(teacher, spec["truncated"]), apart, spec["ks"], device),
        )
    finish(spec, shipped, state, apart, data, tokenizer)
    tell("done", step=state["step"], tokens=state["tokens"], elapsed_s=round(state["elapsed_s"], 1))


def learnt_from(spec: dict, training: list[dict], apart: list[dict]) -> dict:
    """How many prompts and answers there really were, and who wrote them."""
    prompts = {example["prompt"]: example["own"] for example in training}
    writer = Path(spec["data"]) / "writer.json"
    return {
        "book_prompts": sum(prompts.values()),
        "written_prompts": len(prompts) - sum(prompts.values()),
        "answers": len(training),
        "answer_tokens": sum(len(example["tokens"]) - example["start"] for example in training),
        "held_out_prompts": len({example["prompt"] for example in apart}),
        "writer": json.loads(writer.read_text())["name"] if writer.is_file() else None,
    }


def finish(spec: dict, tensors: dict, state: dict, apart: list[dict], data: dict, tokenizer) -> None:
    """Weights, the held-out prompts in ShareGPT's format, and last the log, whose presence says that training ended.

    The prompts stand there templated: a load generator sends them to a server's completions as they are, and an answer
    to a bare text is another one."""
    from safetensors.torch import save_file

    if spec["student"]["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    draft_texts.write_whole(
        Path(spec["work"]) / "model.safetensors",
        lambda temporary: save_file(tensors, str(temporary), metadata={"format": "pt"}),
    )
    conversations = [
        {
            "id": f"held-out-{number:03d}",
            "conversations": [
                {"from": "human", "value": draft_texts.templated(tokenizer, example["prompt"])},
                {
                    "from": "gpt",
                    "value": tokenizer.decode(example["tokens"][example["start"] :], skip_special_tokens=True),
                },
            ],
        }
        for number, example in enumerate(example for example in apart if example["temperature"] == 0 and example["own"])
    ]
    draft_texts.write_json(Path(spec["work"]) / "held-out.json", conversations)
    versions = {
        "torch": torch.__version__,
        "transformers": __import__("transformers").__version__,
        "device": torch.cuda.get_device_name() if spec["device"] == "cuda" else "cpu",
    }
    draft_texts.write_json(
        Path(spec["work"]) / "training.json",
        {
            "identity": spec["identity"],
            "versions": versions,
            "data": data,
            "steps": state["step"],
            "tokens": state["tokens"],
            "epochs": state["epoch"],
            "elapsed_s": state["elapsed_s"],
            "log": state["log"],
        },
    )


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_input, daemon=True).start()

    def tell(event: str, **fields) -> None:
        print(json.dumps({"event": event, **fields}), file=out)

    spec = json.loads(Path(sys.argv[1]).read_text())
    made = []

    def writer():
        if not made:
            made.append(draft_texts.make_writer(spec, tell))
        return made[0]

    code = 0
    try:
        tokenizer = AutoTokenizer.from_pretrained(spec["target"])
        for stage in sys.argv[2:]:
            tell("stage", name=stage, device=spec["device"])
            if stage == "prompts":
                draft_texts.prompts(spec, tokenizer, writer, tell)
            elif stage == "answers":
                draft_texts.answers(spec, tokenizer, writer, tell)
            else:
                train(spec, tokenizer, tell)
    except Refusal as refusal:
        tell("error", **refusal.about)
        code = 3
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # an engine's threads would keep the process


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(4)


if __name__ == "__main__":
    main()
