"""The texts that a draft learns from: prompts, part of them written by the target, and the target's answers.

Whether a prompt is held out is decided by the digest of its words, so no text is ever on both sides. Everything is
written in parts, each whole or absent, and no part twice. An answer ends with the end-of-turn token, which a draft has
to learn too, unless it reached its longest length.
"""

import hashlib
import json
import os
import re
import time
from pathlib import Path

import numpy as np

MARK = "MARKOFTHEUSERSTURN"
FEWEST_CHARACTERS = 12


class Refusal(Exception):
    """`errors.StudyError` for a script: what happened, the value, what is allowed, the next command."""

    def __init__(self, what, value=None, allowed=None, next=None):
        super().__init__(what)
        self.about = {"what": what, "value": value, "allowed": allowed, "next": next}


def write_whole(file: Path, write) -> None:
    """Call `write` with a temporary path, which then replaces `file`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{os.getpid()}.{file.name}")
    try:
        write(temporary)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(file: Path, content) -> None:
    write_whole(file, lambda temporary: temporary.write_text(json.dumps(content, ensure_ascii=False)))


def held_out(text: str, seed: int, share: float) -> bool:
    """Whether a prompt is kept out of training; its case and spacing do not matter."""
    words = " ".join(text.lower().split())
    return int(hashlib.sha256(f"{seed}:{words}".encode()).hexdigest()[:8], 16) / 2**32 < share


def open_turn(tokenizer) -> list[int]:
    """The tokens before a user's words, which the target continues to write a prompt."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
    before, mark, _ = text.partition(MARK)
    if not mark or not before:
        raise Refusal(
            "the target's chat template has no open user turn",
            value=text[:80],
            allowed="a template that begins the user's turn with a token of its own",
            next="choose another target",
        )
    return tokenizer(before, add_special_tokens=False)["input_ids"]


def templated(tokenizer, question: str) -> str:
    """A prompt in the chat template, the answer's turn open."""
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )


def asked(tokenizer, question: str) -> list[int]:
    """The tokens of a templated prompt."""
    return tokenizer(templated(tokenizer, question), add_special_tokens=False)["input_ids"]


def prompts(spec: dict, tokenizer, writer, tell) -> list[dict]:
    """All prompts as {text, own, held_out}: those of the conversations' file, and `spec["prompts"]` distinct ones that
    the target writes, in at most half of `spec["answer_minutes"]`.
    """
    file = Path(spec["data"]) / "prompts.json"
    if file.is_file():
        return json.loads(file.read_text())
    rows, seen = [], set()
    for conversation in json.loads(Path(spec["conversations"]).read_text()):
        _add(rows, seen, conversation["conversations"][0]["value"], True, spec)
    own, wanted = len(rows), len(rows) + spec["prompts"]
    beginning, part = open_turn(tokenizer), 0
    writer()  # an engine's start is not time for prompts
    began = time.monotonic()
    while len(rows) < wanted and part < 20 + 4 * spec["prompts"] // spec["part"]:
        if part and time.monotonic() - began > 30 * spec["answer_minutes"]:
            break
        place = Path(spec["data"]) / "prompts" / f"part-{part:04d}.json"
        if not place.is_file():
            written = writer().write(
                [beginning] * spec["part"], [1.0] * spec["part"], spec["prompt_tokens"], spec["seed"] * 1000 + part
            )
            ended = [tokens[:-1] for tokens in written if tokens and tokens[-1] in spec["ends"]]
            write_json(place, [tokenizer.decode(tokens) for tokens in ended])
        for text in json.loads(place.read_text()):
            if len(rows) < wanted and not any(token in text for token in tokenizer.all_special_tokens):
                _add(rows, seen, text.strip(), False, spec)
        part += 1
        tell("progress", stage="prompts", done=len(rows) - own, total=spec["prompts"])
    if not any(row["held_out"] for row in rows) or all(row["held_out"] for row in rows):
        raise Refusal(
            "no prompt is left for training, or none to hold out",
            value=f"{len(rows)} prompts, a share of {spec['held_out']} held out",
            allowed="at least one of either",
            next="-p prompts=MORE, or another held_out",
        )
    write_json(file, rows)
    return rows


def _add(rows, seen, text, own, spec) -> None:
    words = " ".join(text.lower().split())
    if words not in seen and len(text) >= FEWEST_CHARACTERS and re.search(r"[^\W\d_]", text):
        seen.add(words)
        rows.append({"text": text, "own": own, "held_out": held_out(text, spec["seed"], spec["held_out"])})


def jobs(spec: dict, rows: list[dict], lengths: list[int]) -> list[tuple[int, float]]:
    """(prompt, temperature) of every answer: first the held-out prompts to be evaluated, own ones first, then the rest
    shuffled.
    """
    fits = [index for index, length in enumerate(lengths) if length <= spec["context"] - 16]
    apart = [index for index in fits if rows[index]["held_out"]]
    own, others = ([index for index in apart if rows[index]["own"] is kind] for kind in (True, False))
    half = spec["evaluated"] // 2
    apart = own[: max(half, spec["evaluated"] - len(others))] + others
    temperatures = [0.0] + [1.0] * spec["samples"]
    first = [(index, temperature) for index in apart[: spec["evaluated"]] for temperature in (0.0, 1.0)]
    rest = [(index, temperature) for index in fits if not rows[index]["held_out"] for temperature in temperatures]
    order = np.random.default_rng(spec["seed"]).permutation(len(rest))
    return first + [rest[position] for position in order]


def answers(spec: dict, tokenizer, writer, tell) -> None:
    """The target's answers at temperature 0 and 1, in parts; ends after `spec["answer_minutes"]`, but never before the
    held-out ones.
    """
    folder, rows = Path(spec["data"]) / "answers", json.loads((Path(spec["data"]) / "prompts.json").read_text())
    if (folder / "done.json").is_file():
        return
    questions = [asked(tokenizer, row["text"]) for row in rows]
    wanted = jobs(spec, rows, [len(question) for question in questions])
    apart = sum(rows[index]["held_out"] for index, _ in wanted)
    writer()
    began, tokens, parts = time.monotonic(), 0, -(-len(wanted) // spec["part"])
    for part in range(parts):
        place, pairs = folder / f"part-{part:04d}.npz", wanted[part * spec["part"] : (part + 1) * spec["part"]]
        if not place.is_file():
            if time.monotonic() - began > 60 * spec["answer_minutes"] and part * spec["part"] > 2 * apart:
                break
            sequences = writer().write(
                [questions[index] for index, _ in pairs],
                [temperature for _, temperature in pairs],
                spec["answer_tokens"],
                spec["seed"] * 1000 + 500 + part,
            )
            arrays = {
                "prompt": np.array([index for index, _ in pairs], np.int32),
                "temperature": np.array([temperature for _, temperature in pairs], np.float32),
                "length": np.array(list(map(len, sequences)), np.int32),
            }
            arrays["tokens"] = np.array([token for answer in sequences for token in answer], np.int32)
            write_whole(place, lambda temporary, arrays=arrays: _save(temporary, arrays))
        tokens += int(np.load(place)["length"].sum())
        tell(
            "progress",
            stage="answers",
            done=part + 1,
            total=parts,
            tokens=tokens,
            seconds=round(time.monotonic() - began, 1),
        )
    write_json(folder / "done.json", {"parts": len(list(folder.glob("part-*.npz"))), "tokens": tokens})


def _save(file: Path, arrays: dict) -> None:
    with open(file, "wb") as out:
        np.savez(out, **arrays)


def examples(spec: dict, tokenizer) -> tuple[list[dict], list[dict]]:
    """(training, held out): {tokens, start, temperature, own, prompt}; `tokens[start:]` is the answer, cut to the
    context.
    """
    rows = json.loads((Path(spec["data"]) / "prompts.json").read_text())
    cache: dict[int, list[int]] = {}
    parted: tuple[list, list] = ([], [])
    for place in sorted((Path(spec["data"]) / "answers").glob("part-*.npz")):
        with np.load(place) as stored:
            columns = {name: stored[name] for name in stored.files}
        ends = np.cumsum(columns["length"])
        for number, (index, temperature) in enumerate(
            zip(columns["prompt"].tolist(), columns["temperature"].tolist(), strict=True)
        ):
            answer = columns["tokens"][ends[number] - columns["length"][number] : ends[number]].tolist()
            question = cache.setdefault(index, asked(tokenizer, rows[index]["text"]) if index not in cache else None)
            tokens = (question + answer)[: spec["context"]]
            if len(tokens) > len(question):
                example = {
                    "tokens": tokens,
                    "start": len(question),
                    "temperature": temperature,
                    "own": rows[index]["own"],
                    "prompt": rows[index]["text"],
                }
                parted[rows[index]["held_out"]].append(example)
    return parted


class TransformersWriter:
    """Batches through `generate`, wherever transformers works."""

    name = "transformers"

    def __init__(self, spec: dict, tell):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch, self.spec, self.device = torch, spec, spec["device"]
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(spec["target"], dtype=dtype).to(self.device).eval()

    def write(self, prompts, temperatures, longest, seed):
        torch, sequences = self.torch, [None] * len(prompts)
        torch.manual_seed(seed)
        order = sorted(range(len(prompts)), key=lambda index: (temperatures[index], len(prompts[index])))
        while order:
            warm = temperatures[order[0]] > 0
            batch = [index for index in order[: self.spec["batch"]] if (temperatures[index] > 0) == warm]
            order = order[len(batch) :]
            widest = max(len(prompts[index]) for index in batch)
            ids = torch.tensor(
                [[self.spec["ends"][0]] * (widest - len(prompts[index])) + prompts[index] for index in batch]
            )
            seen = torch.tensor([[0] * (widest - len(prompts[index])) + [1] * len(prompts[index]) for index in batch])
            choice = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if warm else {"do_sample": False}
            with torch.inference_mode():
                out = self.model.generate(
                    ids.to(self.device),
                    attention_mask=seen.to(self.device),
                    max_new_tokens=longest,
                    eos_token_id=self.spec["ends"],
                    pad_token_id=self.spec["ends"][0],
                    **choice,
                )
            for index, tokens in zip(batch, out[:, widest:].tolist(), strict=True):
                end = next(
                    (position + 1 for position, token in enumerate(tokens) if token in self.spec["ends"]), len(tokens)
                )
                sequences[index] = tokens[:end]
        return sequences


class VllmWriter:
    """vLLM's offline engine in this process, so that nothing outlives it."""

    name = "vllm"

    def __init__(self, spec: dict, tell):
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from vllm import LLM, SamplingParams

        # Each process samples anew: without this a resumed run would write its first prompts again.
        already = len(list(Path(spec["data"]).glob("*/part-*")))
        options = (
            {"dtype": "bfloat16", "gpu_memory_utilization": 0.6}
            if spec["device"] == "cuda"
            else {"dtype": "float32", "enforce_eager": True}
        )
        self.kind = SamplingParams
        self.engine = LLM(
            model=spec["target"],
            max_model_len=spec["context"] + spec["answer_tokens"],
            max_num_seqs=spec["batch"],
            seed=spec["seed"] + already,
            enable_prefix_caching=False,
            **options,
        )

    def write(self, prompts, temperatures, longest, seed):
        wanted = [
            self.kind(temperature=temperature, max_tokens=longest, detokenize=False) for temperature in temperatures
        ]
        outputs = self.engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], wanted, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


def make_writer(spec: dict, tell):
    """vLLM on a GPU; transformers where vLLM does not start, and on a CPU, where its start costs more than the
    answers.
    """
    kinds = {"vllm": VllmWriter, "transformers": TransformersWriter}
    chosen = spec["writer"] if spec["writer"] != "auto" else "vllm" if spec["device"] == "cuda" else "transformers"
    try:
        writer = kinds[chosen](spec, tell)
    except Exception as error:
        if spec["writer"] != "auto" or chosen == "transformers":
            raise
        tell(
            "note",
            text=f"vLLM's engine does not start ({type(error).__name__}: {str(error)[:200]}): transformers "
            "writes instead",
        )
        writer = TransformersWriter(spec, tell)
    write_json(Path(spec["data"]) / "writer.json", {"name": writer.name})
    tell("writer", name=writer.name)
    return writer
