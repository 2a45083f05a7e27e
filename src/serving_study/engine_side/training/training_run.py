"""What the trainings of a draft and of a head share: budget, checkpoints, events, log, and stages.

Checkpoints are written whole; one of another target, size, seed or data is refused. What can mislead: held-out answers
are evaluated between steps, outside the budget of minutes.
"""

import json
import math
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import draft_texts
import numpy as np
import torch
import transformers
from draft_texts import Refusal

WINDOW = 32  # batches whose sequences are sorted by length together
WARM_UP = 0.03  # share of the run in which the learning rate rises
EVENT_S = 1.0


def batches(examples: list[dict], epoch: int, spec: dict) -> list[list[int]]:
    """An epoch's batches of about `batch_tokens` padded tokens, decided by seed and epoch."""
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


def rate(spec: dict, share: float) -> float:
    """The learning rate at a share of the run: a linear rise, then a cosine."""
    if share < WARM_UP:
        return spec["learning_rate"] * max(share, 0.001) / WARM_UP
    return spec["learning_rate"] * 0.5 * (1 + math.cos(math.pi * min(1.0, (share - WARM_UP) / (1 - WARM_UP))))


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


class Run:
    """A training from its beginning or checkpoint to the end of its budget.

    `state` is its progress: steps, tokens, epoch, batch, seconds spent, and the log of its events."""

    def __init__(self, spec: dict, model, optimizer, checkpoint: Checkpoint, saved: dict | None, tell):
        self.spec, self.model, self.optimizer, self.checkpoint, self.tell = spec, model, optimizer, checkpoint, tell
        self.state = {"step": 0, "tokens": 0, "epoch": 0, "batch": 0, "elapsed_s": 0.0, "evaluations": 0, "log": []}
        if saved:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            if "rng" in saved:  # a head's early checkpoints have none: training a head draws no random numbers
                torch.set_rng_state(saved["rng"])
            self.state = saved["state"]
            tell("resumed", step=self.state["step"], tokens=self.state["tokens"])

    def note(self, event: str, **fields) -> None:
        """Print an event and keep it in the log."""
        self.state["log"].append({"event": event, **fields})
        self.tell(event, **fields)

    def look(self, share: float, evaluate) -> None:
        """Note what `evaluate()` says of the held-out answers at this share of the budget."""
        self.note("held_out", step=self.state["step"], tokens=self.state["tokens"], share=round(share, 4), **evaluate())
        self.state["evaluations"] += 1

    def keep(self) -> None:
        self.checkpoint.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "rng": torch.get_rng_state(),
                "state": self.state,
            }
        )
        self.tell("checkpoint", step=self.state["step"], tokens=self.state["tokens"])

    def until_spent(self, training: list[dict], learn, evaluate) -> None:
        """Steps until the token or minute budget is spent, from `state` on.

        `learn(batch, share)` leaves gradients in the model and returns the summed KL and the number of tokens;
        `evaluate()` judges held-out answers, outside the budget."""
        spec, state = self.spec, self.state
        order, order_of = [], None
        began, spent = time.monotonic(), state["elapsed_s"]
        reported, saved, sums = began - EVENT_S, began, [0.0, 0, 0.0]  # the first step is reported at once
        paused = 0.0
        while True:
            state["elapsed_s"] = spent + time.monotonic() - began - paused
            share = min(1.0, max(state["tokens"] / spec["tokens"], state["elapsed_s"] / (60 * spec["minutes"])))
            if share >= state["evaluations"] / spec["evaluations"] and share < 1:
                pause = time.monotonic()
                self.look(share, evaluate)
                paused += time.monotonic() - pause
            if share >= 1:
                break
            if order_of != state["epoch"]:
                order, order_of = batches(training, state["epoch"], spec), state["epoch"]
            for group in self.optimizer.param_groups:
                group["lr"] = rate(spec, share)
            kl, count = learn([training[index] for index in order[state["batch"]]], share)
            norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))
            if not math.isfinite(norm):
                raise Refusal(
                    "training diverged",
                    value=f"step {state['step']}, gradient norm {norm}",
                    allowed="a finite gradient",
                    next="a smaller learning_rate, with fresh=True",
                )
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            state["step"] += 1
            state["tokens"] += count
            state["batch"] += 1
            if state["batch"] == len(order):
                state["epoch"], state["batch"] = state["epoch"] + 1, 0
            sums = [sums[0] + kl, sums[1] + count, max(sums[2], norm)]
            now = time.monotonic()
            if now - reported >= EVENT_S and sums[1]:
                self.note(
                    "step",
                    step=state["step"],
                    tokens=state["tokens"],
                    epoch=state["epoch"],
                    share=round(share, 4),
                    kl=sums[0] / sums[1],
                    gradient_norm=sums[2],
                    learning_rate=rate(spec, share),
                    tokens_per_s=round(sums[1] / (now - reported)),
                )
                reported, sums = now, [0.0, 0, 0.0]
            if now - saved >= spec["checkpoint_s"]:
                self.keep()
                saved = time.monotonic()
        if sums[1]:
            self.note(
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

    def finish(self, data: dict) -> None:
        """Write `training.json`, last of all: its presence means that training ended."""
        versions = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name() if self.spec["device"] == "cuda" else "cpu",
        }
        state = self.state
        draft_texts.write_json(
            Path(self.spec["work"]) / "training.json",
            {
                "identity": self.spec["identity"],
                "versions": versions,
                "data": data,
                "steps": state["step"],
                "tokens": state["tokens"],
                "epochs": state["epoch"],
                "elapsed_s": state["elapsed_s"],
                "log": state["log"],
            },
        )
        self.tell("done", step=state["step"], tokens=state["tokens"], elapsed_s=round(state["elapsed_s"], 1))


def learnt_from(spec: dict, training: list[dict], apart: list[dict]) -> dict:
    """How many prompts and answers there were, and who wrote them."""
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


def write_weights(spec: dict, tensors: dict) -> None:
    """Write `model.safetensors` into the work folder."""
    from safetensors.torch import save_file

    draft_texts.write_whole(
        Path(spec["work"]) / "model.safetensors",
        lambda temporary: save_file(tensors, str(temporary), metadata={"format": "pt"}),
    )


def main(stages) -> None:
    """Run the stages named on the command line; `stages(spec, tell)` has a function of the tokenizer for each."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_input, daemon=True).start()

    def tell(event: str, **fields) -> None:
        print(json.dumps({"event": event, **fields}), file=out)

    spec, code = json.loads(Path(sys.argv[1]).read_text()), 0
    known = stages(spec, tell)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(spec["target"])
        for stage in sys.argv[2:]:
            tell("stage", name=stage, device=spec["device"])
            known[stage](tokenizer)
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
