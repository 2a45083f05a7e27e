"""A trained draft as a folder that an engine loads: weights, the target's tokenizer, the training's log, and a card.

What can mislead: acceptance is that of texts like the held-out ones. The book's own prompts share sentences with one
another, so figures of prompts that the target wrote are shown too.

    >>> from serving_study import paths
    >>> from serving_study.chapters.drafts import drafts
    >>> drafts.load(paths.DATA / "models" / "smollm2-135m-instruct-draft").positions()        # doctest: +SKIP
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas

from ... import files, paths
from ...chapters import plans
from ...errors import ModelError
from ...models import checkpoints, embedded
from ...models.checkpoints import Model
from . import draft_sizes
from .recipe import Distillation

LARGEST_FOLDER = 32 * 2**20  # bytes that `data/models/` takes for one draft
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True)
class Trained:
    """A packed draft: its folder, model, and training log."""

    folder: Path
    model: Model
    training: dict

    def steps(self) -> pandas.DataFrame:
        return pandas.DataFrame([entry for entry in self.training["log"] if entry["event"] == "step"])

    def held_out(self) -> pandas.DataFrame:
        """One row an evaluation; the last is of the bf16 weights as packed."""
        rows = [entry for entry in self.training["log"] if entry["event"] == "held_out"]
        return pandas.DataFrame(rows)[["step", "tokens", "share", "acceptance", "agreement"]]

    @property
    def last(self) -> dict:
        return [entry for entry in self.training["log"] if entry["event"] == "held_out"][-1]

    @property
    def device(self) -> str:
        """The device that it was trained on."""
        return self.training["versions"]["device"]

    @property
    def truncated(self) -> dict | None:
        """The same evaluation of the target's first layers as a draft; None where there was none."""
        return next((entry for entry in self.training["log"] if entry["event"] == "truncated"), None)

    def positions(self) -> pandas.DataFrame:
        """One row a k: acceptance by position, rate, and tokens a round, at temperature 0."""
        rows = []
        for k, figures in self.last["rounds"].items():
            row = {
                "k": int(k),
                "rounds": figures["rounds"],
                "acceptance rate": figures["acceptance_rate"],
                "tokens a round": figures["tokens_a_round"],
            }
            rows.append(row | {f"position {place + 1}": value for place, value in enumerate(figures["by_position"])})
        return pandas.DataFrame(rows)


def pack(wanted: Distillation, target: Model, folder: Path) -> Trained:
    """A Hugging Face folder under `.cache/models/NAME` of what was trained in `folder`.

    Raises ModelError for a draft of the embedded model that is too large to ship in `data/models/`."""
    training = files.read(folder / "training.json")
    out = paths.CACHE / "models" / wanted.name

    with files.whole_folder(out) as unfinished:
        for name in TOKENIZER:
            if (target.folder / name).is_file():
                content = json.loads((target.folder / name).read_text())
                (unfinished / name).write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        (unfinished / "config.json").write_text(
            json.dumps(draft_sizes.student_config(wanted, target.config), indent=2) + "\n"
        )
        for name in ("model.safetensors", "training.json", plans.HELD_OUT):
            shutil.copy(folder / name, unfinished / name)
        (unfinished / "README.md").write_text(card(wanted, target, training, unfinished))
        weighs = sum(file.stat().st_size for file in unfinished.iterdir())
        if weighs > LARGEST_FOLDER and target.name == embedded.NAME:
            raise ModelError(
                "the packed draft is too large to ship with the book",
                value=f"{weighs / 2**20:.1f} MiB",
                allowed=f"{LARGEST_FOLDER / 2**20:.0f} MiB or less",
                next="less width, fewer layers, or tie_embeddings=True; fresh=True begins anew",
            )
    return load(out)


def load(folder: Path) -> Trained:
    """A packed draft."""
    return Trained(folder, checkpoints.resolve(str(folder)), files.read(folder / "training.json"))


def card(wanted: Distillation, target: Model, training: dict, folder: Path) -> str:
    """A packed draft's README.md: how it was made, from what, under which licence, digests, results of training."""
    config, data = draft_sizes.student_config(wanted, target.config), training["data"]
    looks = [entry for entry in training["log"] if entry["event"] == "held_out"]
    digests = [
        f"| `{file.name}` | {file.stat().st_size:,} | `{files.digest(file)}` |" for file in sorted(folder.iterdir())
    ]
    ours = target.name == embedded.NAME
    licence = "Apache-2.0, as its target's" if ours else "that of its target"
    by_k = [
        f"| {k} | {figures['acceptance_rate']:.3f} | {figures['tokens_a_round']:.2f} | "
        f"{', '.join(f'{value:.3f}' for value in figures['by_position'])} |"
        for k, figures in looks[-1]["rounds"].items()
    ]
    weighs = draft_sizes.size(config)
    return "\n".join(
        [
            f"# {wanted.name}",
            "",
            f"A draft for speculative decoding with {target.name}: {wanted.layers} layers of width "
            f"{wanted.width} ({weighs.parameters / 1e6:.2f} million weights, bf16), the target's own tokenizer.",
            f"It is of no use by itself. A pass reads {weighs.bytes_a_pass / 2**20:.1f} MiB, "
            f"{draft_sizes.cost_ratio(config, target.config):.3f} of what the target's reads.",
            "",
            "## How it was made",
            "",
            f"Distilled from {target.name} ({target.revision or 'local weights'}, digest "
            f"`{target.identity()['weights_digest']}`) by `notebooks/04-train-a-draft.ipynb`, on the "
            "target's own answers:",
            f"{data['written_prompts']:,} prompts that the target wrote itself and {data['book_prompts']:,} "
            f"of `data/prompts/` (CC0), with {data['answers']:,} answers ({data['answer_tokens']:,} tokens) "
            f"at temperature 0 and 1, by {data['writer']}.",
            f"A share of {wanted.held_out:g} of all prompts was held out, by the digest of their words. "
            f"{data['held_out_prompts']} of them are looked at below;",
            "those of `data/prompts/` among these are in `held-out.json`, in the target's chat template. "
            "The book's prompts share sentences with one another.",
            f"Loss: {wanted.loss} on the teacher's logits at the answers' tokens, seed {wanted.seed}, "
            f"learning rate {wanted.learning_rate:g}, first embedding: {wanted.initial_embedding}.",
            f"{training['steps']:,} steps, {training['tokens']:,} tokens, {training['epochs']} whole "
            f"epochs, {training['elapsed_s'] / 60:.1f} minutes",
            f"on {training['versions']['device']} (torch {training['versions']['torch']}, transformers "
            f"{training['versions']['transformers']}).",
            "",
            "## What it reached on prompts never trained on",
            "",
            "| after tokens | acceptance, temperature 1 | agreement, temperature 0 |",
            "| --- | --- | --- |",
            *(f"| {look['tokens']:,} | {look['acceptance']:.3f} | {look['agreement']:.3f} |" for look in looks),
            "",
            "| k | acceptance rate, temperature 0 | tokens a round | by position |",
            "| --- | --- | --- | --- |",
            *by_k,
            "",
            "The whole log is `training.json`.",
            "",
            "## Licence",
            "",
            f"{licence}.",
            "",
            "## Digests",
            "",
            "| file | bytes | sha256 |",
            "| --- | --- | --- |",
            *digests,
            "",
        ]
    )


def check_tokenizer(target: Model) -> None:
    """Raises ModelError where a target's tokenizer file is missing, larger than the vocabulary, or without a chat
    template.
    """
    from tokenizers import Tokenizer

    file, tokenizer_config = target.folder / "tokenizer.json", target.folder / "tokenizer_config.json"
    if not file.is_file():
        raise ModelError(
            "the target has no tokenizer.json that a student could share",
            value=target.folder,
            allowed="a folder with tokenizer.json",
            next="choose another target, or save its tokenizer with transformers",
        )
    try:
        tokens = Tokenizer.from_file(str(file)).get_vocab_size()
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelError(
            "the target's tokenizer.json cannot be read",
            value=f"{file}: {error}",
            allowed="a file of the tokenizers library",
            next="choose another target",
        ) from None
    if tokens > target.vocab_size:
        raise ModelError(
            "the target's tokenizer has more tokens than its vocabulary",
            value=f"{tokens} and {target.vocab_size}",
            allowed="at most as many",
            next="choose another target",
        )
    template = (
        tokenizer_config.is_file()
        and "chat_template" in json.loads(tokenizer_config.read_text())
        or (target.folder / "chat_template.jinja").is_file()
    )
    if not template:
        raise ModelError(
            "the target has no chat template, so it cannot be asked anything",
            value=target.name,
            allowed="an instruction-tuned target",
            next=f"-p target={embedded.NAME}",
        )
