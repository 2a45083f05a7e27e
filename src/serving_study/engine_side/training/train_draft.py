"""Distils a small draft from a target on the target's own answers.

    python train_draft.py SPEC.json STAGE [STAGE …] 2>> LOG        # stages: prompts, answers, train

SPEC.json is written by `serving_study.chapters.drafts.distillation`. Events go to standard output, one JSON line each,
the libraries' output to standard error. Ends when standard input closes. The teacher runs beside the student, so no
logits are stored (on a CPU its last hidden states are). Sequences of similar length share a batch, padded on the right,
which a causal model does not see. Checkpoints, budget and log are `training_run`'s.
"""

import copy
from pathlib import Path

import draft_quality
import draft_texts
import numpy as np
import torch
import training_run
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

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
    """The `width` directions in which the rows of an embedding differ most; they keep inner products of rows
    closest.
    """
    if width >= embedding.shape[1]:
        return torch.nn.functional.pad(embedding, (0, width - embedding.shape[1]))
    _, directions = torch.linalg.eigh(embedding.T.double() @ embedding.double())  # ascending
    directions = directions[:, -width:]
    directions *= torch.sign(directions.sum(0))  # a direction's sign is arbitrary, and differs between libraries
    return (embedding.double() @ directions).float()


def divergence(student_logits, teacher_logits, mix: float):
    """(loss summed over rows, KL, total variation); the loss is forward KL, total variation, or both with `mix` of the
    latter.
    """
    log_q, log_p = torch.log_softmax(student_logits, -1), torch.log_softmax(teacher_logits, -1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum()
    variation = 0.5 * (p - log_q.exp()).abs().sum() if mix else None
    loss = kl if not mix else variation if mix == 1 else (1 - mix) * kl + mix * variation
    return loss, kl.detach()


def truncated(teacher, layers: int):
    """The teacher's first layers, sharing its weights: a draft without training."""
    cut, body = copy.copy(teacher), copy.copy(teacher.base_model)
    cut._modules, body._modules = dict(teacher._modules), dict(teacher.base_model._modules)
    body._modules["layers"] = torch.nn.ModuleList(list(teacher.base_model.layers)[:layers])
    cut._modules[teacher.base_model_prefix] = body
    return cut


def padded(batch: list[dict], spec: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, whether an answer's token is expected there), both [texts, longest text], padded on the right."""
    longest = max(len(example["tokens"]) for example in batch)
    tokens = torch.tensor(
        [example["tokens"] + [spec["ends"][0]] * (longest - len(example["tokens"])) for example in batch]
    )
    counted = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, example in enumerate(batch):
        counted[row, example["start"] - 1 : len(example["tokens"]) - 1] = True
    return tokens.to(spec["device"]), counted.to(spec["device"])


def hidden(model, tokens: torch.Tensor, counted: torch.Tensor, spec: dict) -> torch.Tensor:
    """The input of a model's output embedding at the counted places: [places, width], float32."""
    with torch.autocast(spec["device"], torch.bfloat16, enabled=spec["device"] == "cuda"):
        return model.base_model(tokens, use_cache=False).last_hidden_state[counted].float()


def keep_states(teacher, training: list[dict], spec: dict, tell) -> None:
    """Read the teacher's hidden states at each text's answer once, and keep them on disk; on a CPU its passes would be
    most of the work.
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

    The output head sees `chunk` rows at a time, since a whole batch's logits take many GiB; gradients are gathered at
    the student's last hidden state and pass through its layers once."""
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


def variation_share(spec: dict, share: float) -> float:
    return {"kl": 0.0, "tv": 1.0, "kl-tv": share}[spec["loss"]]


def train(spec: dict, tokenizer, tell) -> None:
    """Train until the token or minute budget is spent; writes model.safetensors (bf16), held-out.json and
    training.json.
    """
    device = spec["device"]
    checkpoint = training_run.Checkpoint(spec)
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
    run = training_run.Run(spec, student, optimizer, checkpoint, saved, tell)
    if device == "cpu":
        keep_states(teacher, training, spec, tell)
    data = training_run.learnt_from(spec, training, apart)
    tell("training", **data)

    def evaluate():
        return draft_quality.evaluate(teacher, student, apart, spec["ks"], device)

    def learn(batch, share):
        return step(teacher, student, batch, spec, variation_share(spec, share))

    student.train()
    run.until_spent(training, learn, evaluate)
    # The weights ship as bf16, so the last evaluation is of bf16.
    shipped = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in student.state_dict().items()}
    student.load_state_dict({name: tensor.float() for name, tensor in shipped.items()})
    run.look(1.0, evaluate)
    if spec["truncated"]:
        run.note(
            "truncated",
            layers=spec["truncated"],
            **draft_quality.evaluate(teacher, truncated(teacher, spec["truncated"]), apart, spec["ks"], device),
        )
    finish(spec, shipped, apart, tokenizer)
    run.finish(data)


def finish(spec: dict, tensors: dict, apart: list[dict], tokenizer) -> None:
    """Write the weights, and the held-out prompts in ShareGPT's format, templated: a load generator sends them as they
    are.
    """
    if spec["student"]["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    training_run.write_weights(spec, {name: tensor.cpu() for name, tensor in tensors.items()})
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


def stages(spec: dict, tell) -> dict:
    """The function of each stage, given the tokenizer."""
    made = []

    def writer():
        if not made:
            made.append(draft_texts.make_writer(spec, tell))
        return made[0]

    return {
        "prompts": lambda tokenizer: draft_texts.prompts(spec, tokenizer, writer, tell),
        "answers": lambda tokenizer: draft_texts.answers(spec, tokenizer, writer, tell),
        "train": lambda tokenizer: train(spec, tokenizer, tell),
    }


if __name__ == "__main__":
    training_run.main(stages)
