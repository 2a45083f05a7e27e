"""The workloads under `data/prompts/workloads/`: sets of prompts that differ in how much of an answer stands in its
prompt, each in the model's chat template where it has one.

Prompts are dealt out: a cell takes the next ones of an order that all arms share, so that none comes twice before all
have come once. What can mislead: a server that remembers earlier answers meets the texts of a workload again, under
another request, as it would in use.

    >>> from serving_study.loads import workloads
    >>> workloads.workload("code-edits").label
    'code-edits'
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .. import paths
from ..errors import DatasetError
from . import conversations, datasets, prompts
from .datasets import Dataset

FOLDER = paths.DATA / "prompts" / "workloads"
NAMES = ("chat", "retrieval", "quoted-summaries", "code-edits")
TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class Workload(Dataset):
    """One of the workloads."""

    length_option: ClassVar[str] = "--custom-output-len"

    @property
    def label(self) -> str:
        return self.name

    def arguments(self, load, tokenizer: str, repeat: int) -> list[str]:
        """`vllm bench serve`'s options for the data set, whose file this writes."""
        lengths = load.lengths(repeat) if load.output_spread else [load.output_tokens] * load.prompts
        return prompts.with_lengths(self.dealt(load, repeat), lengths, chat=has_template(Path(tokenizer)))

    def dealt(self, load, repeat: int) -> list[str]:
        """The cell's prompts: the `repeat`-th hand of an order that is drawn anew once all have been dealt."""
        texts = [row["conversations"][0]["value"] for row in conversations.read(self.path.read_bytes(), self.path)[0]]
        hand = []
        for place in range(repeat * load.prompts, (repeat + 1) * load.prompts):
            order = list(range(len(texts)))
            random.Random(f"{load.seed}/{self.name}/{place // len(texts)}").shuffle(order)
            hand.append(texts[order[place % len(texts)]])
        return hand


def workload(name: str) -> Workload:
    """The workload `name`. Raises DatasetError for an unknown or damaged one."""
    if name not in NAMES:
        raise DatasetError("no such workload", value=name, allowed=", ".join(NAMES))
    known = datasets.load(FOLDER / f"{name}.json", name)
    return Workload(name, known.path, known.sha256, known.conversations)


def has_template(folder: Path) -> bool:
    """Whether a model's folder has a chat template."""
    file = folder / "tokenizer_config.json"
    return (folder / TEMPLATE).is_file() or (file.is_file() and bool(json.loads(file.read_text()).get("chat_template")))
