"""Trains an EAGLE-3 head for a target on the target's own answers, from the target's hidden states.

    python train_eagle.py SPEC.json STAGE [STAGE …] 2>> LOG        # stages: states, train

SPEC.json is written by `serving_study.chapters.drafts.eagle`, the answers by train_draft.py; events and checkpoints are
`training_run`'s. The target's states are computed once, in parts that survive a kill, and kept in memory as bf16: on a
CPU the target's pass over a token costs more than all that the head does with it. What can mislead: held-out rounds are
read along the target's answers, and a proposal counts only if all before it in its round were right, as on a server;
one outside the head's vocabulary is never right.
"""

import json
import time
from pathlib import Path

import draft_texts
import eagle_head
import numpy as np
import torch
import training_run
from draft_quality import summary
from draft_texts import Refusal
from transformers import AutoModelForCausalLM

PART = 32  # answers whose states are written together


def load_target(spec: dict):
    dtype = torch.bfloat16 if spec["device"] == "cuda" else torch.float32
    return (
        AutoModelForCausalLM.from_pretrained(spec["target"], dtype=dtype)
        .to(spec["device"])
        .eval()
        .requires_grad_(False)
    )


def ordered(spec: dict, tokenizer) -> tuple[list[dict], list[dict]]:
    """(training, held out) of `draft_texts.examples`, the former in an order decided by the seed."""
    if not (Path(spec["data"]) / "answers" / "done.json").is_file():
        raise Refusal(
            "the answers are not there yet",
            value=f"{spec['data']}/answers",
            allowed="a folder with done.json",
            next="the stages prompts and answers first",
        )
    training, apart = draft_texts.examples(spec, tokenizer)
    if not training or not apart:
        raise Refusal(
            "nothing to learn from, or nothing held out",
            value=f"{len(training)} and {len(apart)} answers",
            allowed="at least one of either",
            next="-p prompts=MORE",
        )
    return [training[index] for index in np.random.default_rng(spec["seed"]).permutation(len(training))], apart


def states_folder(spec: dict) -> Path:
    return Path(spec["data"]) / f"states-layers={'-'.join(map(str, spec['states_layers']))}-context={spec['context']}"


def states(spec: dict, tokenizer, tell) -> None:
    """The target's states at every token, held-out answers first; ends after `spec["states_minutes"]` or
    `spec["memory_gib"]`.
    """
    training, apart = ordered(spec, tokenizer)
    folder, examples = states_folder(spec), apart + training
    budget, done = {name: spec[name] for name in ("states_minutes", "memory_gib")}, folder / "done.json"
    before = json.loads(done.read_text()) if done.is_file() else {}
    if before and all(before.get(name, 0) >= value for name, value in budget.items()):
        return
    target, began, size, whole = None, time.monotonic(), 0, -(-len(examples) // PART)
    for part in range(whole):
        if part * PART > len(apart) and (
            time.monotonic() - began > 60 * spec["states_minutes"] or size > 2**30 * spec["memory_gib"]
        ):
            break
        place, part_examples = folder / f"part-{part:04d}.pt", examples[part * PART : (part + 1) * PART]
        if not place.is_file():
            if target is None:
                target = load_target(spec)
                read = eagle_head.collect(target, spec["states_layers"])
            content = {
                "length": [len(example["tokens"]) for example in part_examples],
                "states": torch.cat(read_all(read, part_examples, spec)),
            }
            draft_texts.write_whole(place, lambda temporary, content=content: torch.save(content, temporary))
        size += place.stat().st_size
        tell("progress", stage="states", done=part + 1, total=whole, seconds=round(time.monotonic() - began, 1))
    draft_texts.write_json(done, {"parts": len(list(folder.glob("part-*.pt"))), "bytes": size} | budget)


def read_all(read, examples: list[dict], spec: dict) -> list[torch.Tensor]:
    """States of each example, [tokens, layers * width], bf16; examples of similar length share a pass, padded on the
    right.
    """
    example_states: list = [None] * len(examples)
    order = sorted(range(len(examples)), key=lambda index: len(examples[index]["tokens"]))
    while order:
        batch = [order.pop()]
        longest = len(examples[batch[0]]["tokens"])
        while order and (len(batch) + 1) * longest <= spec["batch_tokens"]:
            batch.append(order.pop())
        rows = read(pad([examples[index]["tokens"] for index in batch], spec))
        for row, index in enumerate(batch):
            example_states[index] = rows[row, : len(examples[index]["tokens"])].to("cpu", torch.bfloat16)
    return example_states


def pad(sequences: list[list[int]], spec: dict) -> torch.Tensor:
    longest = max(map(len, sequences))
    return torch.tensor([tokens + [spec["ends"][0]] * (longest - len(tokens)) for tokens in sequences]).to(
        spec["device"]
    )


def with_states(spec: dict, training: list[dict], apart: list[dict]) -> tuple[list[dict], list[dict]]:
    """The examples whose states were computed, with them."""
    examples, computed = apart + training, []
    for place in sorted(states_folder(spec).glob("part-*.pt")):
        content = torch.load(place, weights_only=True)
        part_examples = examples[len(computed) : len(computed) + len(content["length"])]
        if [len(example["tokens"]) for example in part_examples] != content["length"]:
            raise Refusal(
                "the stored states are of other answers",
                value=place,
                allowed="states of the answers beside them",
                next=f"rm -r {place.parent}, then the same command again",
            )
        computed += [
            example | {"states": rows}
            for example, rows in zip(part_examples, content["states"].split(content["length"]), strict=True)
        ]
    if len(computed) <= len(apart):
        raise Refusal(
            "no training answer has its states",
            value=f"{len(computed)} of {len(examples)} answers",
            allowed=f"more than the {len(apart)} held out",
            next="a larger states_minutes or memory_gib",
        )
    return computed[len(apart) :], computed[: len(apart)]


def choose_vocabulary(training: list[dict], spec: dict) -> torch.Tensor:
    """The target's tokens that the head can propose: the most frequent in the answers, in ascending order."""
    counts = np.bincount(
        np.concatenate([example["tokens"][example["start"] :] for example in training]), minlength=spec["vocabulary"]
    )
    counts[spec["ends"]] = counts.max() + 1
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[: spec["config"]["draft_vocab_size"]]))


def step(head, batch: list[dict], spec: dict) -> tuple[float, int]:
    """Gradients of one batch; returns the summed KL of the first step and its number of proposals.

    Logits are made `chunk` rows at a time; gradients are gathered at the hidden states and pass through the layer once.
    A row counts where the text's next token is in the head's vocabulary."""
    device, steps = spec["device"], spec["unroll"]
    tokens, hidden = pad([example["tokens"] for example in batch], spec), pad_states(batch, spec)
    starts, lengths = (
        torch.tensor(values, device=device)
        for values in ([example["start"] for example in batch], [len(example["tokens"]) for example in batch])
    )
    first = int(starts.min()) - 1
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        outputs = head.unroll(tokens, hidden, steps, first)
    gathered, total, counted = [], 0.0, 0
    places = torch.arange(first, tokens.shape[1], device=device)
    for number, output in enumerate(outputs):
        following = places + 2 + number  # the token that is proposed, and whose teacher stands one before it
        fits = (places[None] >= starts[:, None] - 1) & (following[None] < lengths[:, None])
        rows, columns = fits.nonzero(as_tuple=True)
        after = following[columns]
        known = spec["drafted"][tokens[rows, after]]
        rows, columns, after = rows[known], columns[known], after[known]
        chosen = output[rows, columns].float()
        leaf = chosen.detach().requires_grad_()
        weight = spec["unroll_decay"] ** number / max(1, len(rows))
        for start in range(0, len(rows), spec["chunk"]):
            part = slice(start, start + spec["chunk"])
            with torch.no_grad():
                log_p = torch.log_softmax(spec["teacher"](hidden[rows[part], after[part] - 1]), -1)
            log_q = torch.log_softmax(head.lm_head(leaf[part]), -1)
            divergence = (log_p.exp() * (log_p - log_q)).sum()
            (weight * divergence).backward()
            total += float(divergence.detach()) if number == 0 else 0.0
        counted += len(rows) if number == 0 else 0
        if leaf.grad is not None:
            gathered.append((chosen, leaf.grad))
    if gathered:
        torch.autograd.backward(*zip(*gathered, strict=True))
    return total, counted


def pad_states(batch: list[dict], spec: dict) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([example["states"].float() for example in batch], batch_first=True).to(
        spec["device"]
    )


def rounds(follows: list[list[bool]], k: int) -> tuple[int, list[int]]:
    """As `draft_quality.rounds`; `follows[at][step]` is whether proposal `step` of a round that begins at `at` is the
    text's token.
    """
    at, count, kept = 0, 0, [0] * k
    while at + k <= len(follows):
        run = next((number for number in range(k) if not follows[at][number]), k)
        for number in range(run):
            kept[number] += 1
        count, at = count + 1, at + run + 1
    return count, kept


@torch.inference_mode()
def evaluate(head, examples: list[dict], spec: dict) -> dict:
    """As `draft_quality.evaluate`; rounds begin behind the answer's first token, which comes from the target's
    prefill.
    """
    sums: dict[tuple, list[float]] = {}
    counted = {k: (0, [0] * k) for k in spec["ks"]}
    covered = [0, 0]
    for example in examples:
        warm, source = example["temperature"] > 0, "own" if example["own"] else "written"
        tokens, hidden = pad([example["tokens"]], spec), pad_states([example], spec)
        first, length = example["start"] - 1, tokens.shape[1]
        if length - first < 3:
            continue
        outputs = head.unroll(tokens, hidden, 1 if warm else max(spec["ks"]), first)
        rows = length - 2 - first  # rounds whose first proposal is still of this text
        q = head.lm_head(outputs[0][0, :rows])
        p = spec["teacher_whole"](hidden[0, first + 1 : length - 1])
        if warm:
            per_token = (
                torch.minimum(torch.softmax(p, -1)[:, spec["vocabulary_ids"]], torch.softmax(q, -1)).sum(-1).tolist()
            )
        else:
            per_token = (spec["vocabulary_ids"][q.argmax(-1)] == p.argmax(-1)).tolist()
            padded = torch.nn.functional.pad(tokens[0], (0, len(outputs)), value=-1)
            follows = [
                (
                    spec["vocabulary_ids"][head.lm_head(output[0, :rows]).argmax(-1)]
                    == padded[first + 2 + number : first + 2 + number + rows]
                ).tolist()
                for number, output in enumerate(outputs)
            ]
            for k in spec["ks"]:
                count, kept = rounds(list(zip(*follows, strict=True)), k)
                counted[k] = (counted[k][0] + count, [a + b for a, b in zip(counted[k][1], kept, strict=True)])
        covered = [covered[0] + int(spec["drafted"][tokens[0, first + 2 :]].sum()), covered[1] + rows]
        for kind in ("all", source):
            entry = sums.setdefault((warm, kind), [0.0, 0])
            entry[0] += sum(per_token)
            entry[1] += len(per_token)
    return {"covered": covered[0] / max(1, covered[1])} | summary(sums, counted)


def teach(target, vocabulary: torch.Tensor, spec: dict) -> None:
    """Adds to `spec` the teacher's logits from its stored states, over the head's vocabulary and over all tokens."""
    norm, weight, width = (
        target.base_model.norm,
        target.get_output_embeddings().weight.float(),
        spec["config"]["hidden_size"],
    )
    reduced = weight[vocabulary]

    def last(rows):
        return norm(rows[:, -width:].to(weight.device)).float()

    spec["drafted"] = torch.zeros(len(weight), dtype=torch.bool, device=weight.device).index_fill_(0, vocabulary, True)
    spec["vocabulary_ids"], spec["teacher"], spec["teacher_whole"] = (
        vocabulary,
        lambda rows: last(rows) @ reduced.T,
        lambda rows: last(rows) @ weight.T,
    )


def train(spec: dict, tokenizer, tell) -> None:
    """Train until the token or minute budget is spent; writes model.safetensors (bf16) and training.json to `work`."""
    device = spec["device"]
    checkpoint = training_run.Checkpoint(spec)
    saved = checkpoint.load()
    torch.set_float32_matmul_precision("high")
    all_training, all_apart = ordered(spec, tokenizer)
    training, apart = with_states(spec, all_training, all_apart)
    spec["vocabulary"] = spec["config"]["vocab_size"]
    vocabulary = choose_vocabulary(all_training, spec).to(device)
    target = load_target(spec)
    teach(target, vocabulary, spec)
    torch.manual_seed(spec["seed"])
    head = eagle_head.Head(spec["config"], target.get_input_embeddings().weight.float()).to(device)
    head.begin(target, vocabulary)
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=spec["learning_rate"], betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    run = training_run.Run(spec, head, optimizer, checkpoint, saved, tell)
    data = training_run.learnt_from(spec, training, apart)
    tell("training", **data)

    def held_out():
        return evaluate(head, apart, spec)

    run.until_spent(training, lambda batch, share: step(head, batch, spec), held_out)
    shipped = eagle_head.tensors(head, vocabulary, spec["vocabulary"], torch.bfloat16)
    head.load_state_dict({name: tensor.float() for name, tensor in shipped.items() if name not in ("d2t", "t2d")})
    run.look(1.0, held_out)
    training_run.write_weights(spec, shipped)
    run.finish(data)


def stages(spec: dict, tell) -> dict:
    """The function of each stage, given the tokenizer."""
    return {
        "states": lambda tokenizer: states(spec, tokenizer, tell),
        "train": lambda tokenizer: train(spec, tokenizer, tell),
    }


if __name__ == "__main__":
    training_run.main(stages)
