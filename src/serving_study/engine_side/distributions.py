"""Writes the next-token distributions of a target and a draft model at the same positions of the same texts.

    python distributions.py TARGET DRAFT CONVERSATIONS POSITIONS OUT.npz

Both models read (float32, on the CPU, temperature 1) the prompts of a ShareGPT-format file followed by its own answers:
each is forced along the text and says, before each token of the answer, what it would put next. POSITIONS of these
places, five in each answer, are kept. OUT.npz holds `target` and `draft`, one row a place and one column a token, and
`names`, where each place is."""

import json
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PER_ANSWER = 5
LONGEST = 320  # tokens of prompt and answer that are read


def texts(tokenizer, conversations, count):
    """`count` conversations, evenly from the file: (name, token ids, index of the answer's first token)."""
    readable = []
    for conversation in conversations:
        question, answer = (turn["value"] for turn in conversation["conversations"][:2])
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        start = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        tokens = tokenizer(prompt + answer, add_special_tokens=False)["input_ids"][:LONGEST]
        if len(tokens) - start >= 4 * PER_ANSWER:
            readable.append((conversation["id"], tokens, start))
    if len(readable) < count:
        sys.exit(f"{count} answers of {4 * PER_ANSWER} tokens or more are needed, the file has {len(readable)}")
    return [readable[index * len(readable) // count] for index in range(count)]


def main() -> None:
    target, draft, file, positions, out = sys.argv[1:]
    positions = int(positions)
    tokenizer = AutoTokenizer.from_pretrained(target)
    with open(file, encoding="utf-8") as content:
        chosen = texts(tokenizer, json.load(content), -(-positions // PER_ANSWER))
    places = [
        (name, tokens, start + (2 * part + 1) * (len(tokens) - start) // (2 * PER_ANSWER))
        for name, tokens, start in chosen
        for part in range(PER_ANSWER)
    ]
    places = places[:positions]
    arrays = {"names": np.array([f"{name}, token {at}" for name, _, at in places])}
    for role, folder in (("target", target), ("draft", draft)):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        rows = []
        with torch.inference_mode():
            for name, tokens, _ in chosen:
                logits = model(torch.tensor([tokens])).logits[0]
                # Row at - 1 is what the model expects at `at`, having read the tokens before it.
                rows += [
                    torch.softmax(logits[at - 1].double(), dim=-1).float().numpy()
                    for place, _, at in places
                    if place == name
                ]
        arrays[role] = np.stack(rows)
        del model
    np.savez(out, **arrays)
    print(json.dumps({"positions": len(places), "vocabulary": [arrays[role].shape[1] for role in ("target", "draft")]}))


if __name__ == "__main__":
    main()
