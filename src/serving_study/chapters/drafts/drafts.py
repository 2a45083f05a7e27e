"""A trained draft as a folder that an engine loads: weights, the target's tokenizer, the log of its training, and a
card.

What can mislead: acceptance is only what it is on texts like those that were held out. The book's own prompts share
sentences with one another, so the figures of prompts that the target wrote stand beside them.

    >>> from serving_study import paths
    >>> from serving_study.chapters.drafts import drafts
    >>> drafts.load(paths.DATA / "models" / "smollm2-135m-instruct-draft").positions()        # doctest: +SKIP
"""

import hashlib
import json
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
from pandas.io.formats.style import Styler

from ... import files, paths
from ...analysis import comparisons, tables
from ...errors import ModelError
from ...models import checkpoints, embedded
from ...models.checkpoints import Model
from ...theory import speculation
from . import draft_sizes

if TYPE_CHECKING:
    from .distillation import Distillation

LARGEST_FOLDER = 32 * 2**20  # bytes that `data/models/` takes for one draft
HELD_OUT = "held-out.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True)
class Trained:
    """A packed draft: its folder, its model, and what training said."""

    folder: Path
    model: Model
    training: dict

    def steps(self) -> pandas.DataFrame:
        return pandas.DataFrame([entry for entry in self.training["log"] if entry["event"] == "step"])

    def held_out(self) -> pandas.DataFrame:
        """One row an evaluation; the last one is of the bf16 weights as packed."""
        rows = [entry for entry in self.training["log"] if entry["event"] == "held_out"]
        return pandas.DataFrame(rows)[["step", "tokens", "share", "acceptance", "agreement"]]

    @property
    def last(self) -> dict:
        return [entry for entry in self.training["log"] if entry["event"] == "held_out"][-1]

    @property
    def device(self) -> str:
        """What it was trained on, as training named it."""
        return self.training["versions"]["device"]

    @property
    def truncated(self) -> dict | None:
        """The same look at the target's own first layers as a draft; None where training made none."""
        return next((entry for entry in self.training["log"] if entry["event"] == "truncated"), None)

    def positions(self) -> pandas.DataFrame:
        """Acceptance by position, rate and tokens a round at temperature 0, one row a k."""
        rows = []
        for k, found in self.last["rounds"].items():
            row = {
                "k": int(k),
                "rounds": found["rounds"],
                "acceptance rate": found["acceptance_rate"],
                "tokens a round": found["tokens_a_round"],
            }
            rows.append(row | {f"position {place + 1}": value for place, value in enumerate(found["by_position"])})
        return pandas.DataFrame(rows)


def side_by_side(trained: Trained, target: Model) -> pandas.DataFrame:
    """The trained draft and, where training looked at it, the target's own first layers: bytes, cost, acceptance on the
    same held-out answers.

    One row a draft; `by position` is of the largest k, `best k` and `predicted speed-up` are for one request at
    temperature 0, a pass costing the bytes that it reads."""

    def layers(count):
        return f"{count} layer{'s' if count > 1 else ''}"

    looks = [
        (
            f"trained ({layers(trained.model.config['num_hidden_layers'])}, width "
            f"{trained.model.config['hidden_size']})",
            trained.model.config,
            trained.last,
        )
    ]
    if cut := trained.truncated:
        looks.append(
            (f"the target's first {layers(cut['layers'])}", target.config | {"num_hidden_layers": cut["layers"]}, cut)
        )
    rows = []
    for name, config, look in looks:
        cost = draft_sizes.cost_ratio(config, target.config)
        speeds = {int(k): found["tokens_a_round"] / (1 + int(k) * cost) for k, found in look["rounds"].items()}
        best = max(speeds, key=speeds.get)
        row = {
            "draft": name,
            "MiB a pass": draft_sizes.size(config).bytes_a_pass / 2**20,
            "cost ratio": cost,
            "acceptance, temperature 1": look["acceptance"],
            "agreement, temperature 0": look["agreement"],
        }
        most = look["rounds"][str(max(speeds))]["by_position"]
        rows.append(
            row
            | {
                "by position": ", ".join(f"{value:.2f}" for value in most),
                "breaks even, k = 1": speculation.break_even(1, cost),
                "best k": best,
                "predicted speed-up": speeds[best],
            }
        )
    return pandas.DataFrame(rows)


def served(trained: Trained, target: Model, frame: pandas.DataFrame) -> pandas.DataFrame:
    """What a server made of the trained draft and of the target's first layers, beside what was predicted: one row an
    arm, at the lowest concurrency.

    `rate` is the acceptance rate by the server's counters, `predicted_rate` that along held-out answers. `cost` is a
    draft pass in passes of the target by bytes, `measured_cost` what a step takes beyond a plain one for each proposal
    counted: drafting, checking, and all that an engine does around them. `speedup` is the baseline's median TPOT over
    the arm's with its interval `low`, `high` (`comparisons.compare`), `predicted` the formula's with `cost`."""
    columns = [
        "arm",
        "k",
        "predicted_rate",
        "rate",
        "cost",
        "measured_cost",
        "predicted",
        "speedup",
        "low",
        "high",
        "differs",
    ]
    if frame.empty:
        return pandas.DataFrame(columns=columns)
    lowest = frame[frame["concurrency"] == frame["concurrency"].min()]
    rates = comparisons.summary(lowest, "acceptance_rate").set_index("arm")["mean"]
    rounds = comparisons.rounds(lowest, "baseline").set_index("arm")
    rows = []
    for found in comparisons.compare(lowest, "median_tpot_ms", "baseline").itertuples():
        match = re.fullmatch(r"draft-k(\d+)(-truncated)?", found.arm)
        look = (trained.truncated if match[2] else trained.last) if match else None
        if look is None or found.arm not in rounds.index:
            continue
        k = int(match[1])
        cost = draft_sizes.cost_ratio(
            target.config | {"num_hidden_layers": look["layers"]} if match[2] else trained.model.config, target.config
        )
        told, took = look["rounds"].get(str(k)), rounds.loc[found.arm]
        row = {
            "arm": found.arm,
            "k": k,
            "predicted_rate": told["acceptance_rate"] if told else math.nan,
            "rate": rates[found.arm],
            "cost": cost,
            "measured_cost": took["per_proposal_ms"] / took["plain_ms"],
        }
        rows.append(
            row
            | {
                "predicted": told["tokens_a_round"] / (1 + k * cost) if told else math.nan,
                "speedup": 1 / found.ratio,
                "low": 1 / found.high,
                "high": 1 / found.low,
                "differs": found.differs,
            }
        )
    return pandas.DataFrame(rows, columns=columns)


def served_table(table: pandas.DataFrame, frame: pandas.DataFrame) -> Styler:
    """What `served` found of `frame`, as it is shown: an interval that holds 1 claims nothing."""
    columns = {
        "rate, predicted": "predicted_rate",
        "counted": "rate",
        "cost, by bytes": "cost",
        "measured": "measured_cost",
        "speed-up, predicted": "predicted",
    }
    shown = table[["arm"]].assign(
        **{name: table[column] for name, column in columns.items()},
        **{"of TPOT, measured": [_interval(row) for row in table.itertuples()]},
    )
    formats = dict.fromkeys(list(columns)[:-1], "{:.3f}") | {"speed-up, predicted": "{:.2f}×"}
    return tables.style(
        shown,
        f"One request at a time: what was predicted, and what a server made of it ({tables.labels(frame)})",
        formats,
    )


def _interval(row) -> str:
    return f"{row.speedup:.2f}×" + ("" if math.isnan(row.low) else f" ({row.low:.2f} to {row.high:.2f})")


def finding(found: pandas.DataFrame, frame: pandas.DataFrame) -> str:
    """What `served` found, in sentences; a speed-up that the noise can explain is no speed-up."""
    if found.empty:
        return "The target was not served with its draft here."
    words = []
    for untrained, rows in found.groupby(found["arm"].str.endswith("truncated")):
        best = rows.loc[rows["speedup"].idxmax()]
        whose = (
            "the target's first layers, as a draft, have"
            if untrained
            else f"the trained draft, at its best k of {best['k']}, has"
        )
        words.append(
            f"{whose} {best['rate']:.0%} of the proposals kept, and tokens come "
            f"{comparisons.words(best['speedup'], best['low'], best['high'], best['differs'], 'as fast')}"
        )
    return f"One request at a time ({tables.labels(frame)}), against no speculation: {'; '.join(words)}."


def marks(both: pandas.DataFrame, found: pandas.DataFrame) -> pandas.DataFrame:
    """Both drafts for `plots.surface`: as `side_by_side` predicts them, circles at temperature 0 (filled) and squares
    at 1, and as `served` found them, diamonds at the cost that was measured and the `alpha` that comes to the
    acceptance rate that was counted.
    """
    rows = []
    for draft in both.to_dict("records"):
        rows += [
            {
                "label": draft["draft"],
                "alpha": draft[f"{kind}, temperature {warm}"],
                "cost": draft["cost ratio"],
                "marker": marker,
                "filled": not warm,
                "k": math.nan,
            }
            for kind, warm, marker in (("agreement", 0, "o"), ("acceptance", 1, "s"))
        ]
    for row in found.itertuples():
        name = both["draft"].iloc[-1 if row.arm.endswith("truncated") else 0]
        rows.append(
            {
                "label": name,
                "alpha": speculation.alpha_of(row.rate, row.k),
                "cost": row.measured_cost,
                "marker": "D",
                "filled": True,
                "k": row.k,
            }
        )
    return pandas.DataFrame(rows)


def held_out(draft: Model) -> Path | None:
    """The file of prompts that a draft of this book never saw, in ShareGPT's format; None for any other model."""
    file = draft.folder / HELD_OUT
    return file if file.is_file() else None


def pack(wanted: "Distillation", target: Model, folder: Path) -> Trained:
    """A Hugging Face folder of what was trained in `folder`, under `.cache/models/NAME`: weights, the target's
    tokenizer, log and card.

    Raises ModelError when it is too large for `data/models/` and the draft is of the embedded model, which ships.
    """
    training = files.read(folder / "training.json")
    out = paths.CACHE / "models" / wanted.name

    def write(unfinished: Path) -> None:
        for name in TOKENIZER:
            if (target.folder / name).is_file():
                content = json.loads((target.folder / name).read_text())
                (unfinished / name).write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        (unfinished / "config.json").write_text(
            json.dumps(draft_sizes.student_config(wanted, target.config), indent=2) + "\n"
        )
        for name in ("model.safetensors", "training.json", HELD_OUT):
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

    embedded.whole(out, write)
    return load(out)


def load(folder: Path) -> Trained:
    """A packed draft, as `pack` or the book left it."""
    return Trained(folder, checkpoints.resolve(str(folder)), files.read(folder / "training.json"))


def card(wanted: "Distillation", target: Model, training: dict, folder: Path) -> str:
    """README.md of a packed draft: how it was made, from what, under which licence, digests, what training said."""
    config, data = draft_sizes.student_config(wanted, target.config), training["data"]
    looks = [entry for entry in training["log"] if entry["event"] == "held_out"]
    digests = [
        f"| `{file.name}` | {file.stat().st_size:,} | `{hashlib.sha256(file.read_bytes()).hexdigest()}` |"
        for file in sorted(folder.iterdir())
    ]
    ours = target.name == embedded.NAME
    licence = "Apache-2.0, as its target's" if ours else "that of its target"
    by_k = [
        f"| {k} | {found['acceptance_rate']:.3f} | {found['tokens_a_round']:.2f} | "
        f"{', '.join(f'{value:.3f}' for value in found['by_position'])} |"
        for k, found in looks[-1]["rounds"].items()
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
