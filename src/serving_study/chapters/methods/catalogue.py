"""The engine's speculative methods: what each drafts from, what it needs, and what of that is not here.

What a method needs is looked for: its name among those that the installed engine has, its model in that engine's
registry, layers in the target's config.json, trained weights in the folders where the book keeps them. What can
mislead: an engine starts a head whose weights are random, and nothing that it proposes is accepted; that is no figure
of the method, so an untrained head is unsupported.

    >>> lacking(BY_NAME["medusa"], Wanted(target, host, accepted))                            # doctest: +SKIP
    'no trained Medusa heads of smollm2-135m-instruct: …'
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...hardware.hosts import Host
from ...models import checkpoints
from ...models.checkpoints import Model

OF_TARGET = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")  # where config.json counts MTP
SCHEDULE = "num_speculative_tokens_per_batch_size"


@dataclass(frozen=True)
class Method:
    """A method: `name` in arms, the engine's own `method`, and the settings that make it another one (`config`).

    `needs` names what `lacking` looks for. `weights` are the trained ones in words; a part of their class's name in the
    engine's registry is `model`. `told_by` is the arm's technique, `apart` its distinction."""

    name: str
    title: str
    method: str
    drafts_from: str
    needs: str = "nothing"
    config: Mapping = field(default_factory=dict)
    told_by: str = "draft"
    apart: str | None = None
    weights: str = ""
    model: str = ""


METHODS = (
    Method(
        "ngram",
        "n-gram look-up",
        "ngram",
        "what followed the last few tokens where they stood before, in the prompt or the answer",
        told_by="ngram",
    ),
    Method(
        "ngram-gpu",
        "n-gram look-up on the GPU",
        "ngram_gpu",
        "the same, searched on the GPU, so that no step waits for the processor",
        needs="gpu",
        told_by="ngram",
        apart="gpu",
    ),
    Method(
        "suffix",
        "suffix decoding",
        "suffix",
        "the most frequent continuation in trees of all suffixes: of this prompt and answer, and of earlier answers",
        needs="extension",
        told_by="suffix",
    ),
    Method(
        "suffix-own",
        "suffix decoding, nothing remembered",
        "suffix",
        "the same trees of this prompt and answer alone",
        needs="extension",
        config={"suffix_decoding_max_cached_requests": 0},
        told_by="suffix",
        apart="own",
    ),
    Method("draft", "draft model", "draft_model", "a small model of the same vocabulary that reads the same text"),
    Method(
        "draft-dynamic",
        "draft model, dynamic length",
        "draft_model",
        "the same draft model, which proposes less the more requests run at once",
        needs="schedule",
        told_by="dynamic",
    ),
    Method(
        "draft-block",
        "draft model, block verification",
        "draft_model",
        "the same draft model, whose proposals are judged together in place of one by one",
        needs="sampling",
        config={"rejection_sample_method": "block"},
        apart="block",
    ),
    Method(
        "draft-parallel",
        "parallel draft (PARD)",
        "draft_model",
        "a draft model that fills all positions of a round in one pass",
        needs="head",
        config={"parallel_drafting": True},
        apart="parallel",
        weights="draft for parallel drafting",
    ),
    Method(
        "eagle",
        "EAGLE",
        "eagle",
        "a layer on the target's last hidden states",
        needs="head",
        apart="eagle",
        weights="EAGLE head",
        model="Eagle",
    ),
    Method(
        "eagle3",
        "EAGLE-3",
        "eagle3",
        "a layer on the hidden states of three of the target's layers",
        needs="head",
        apart="eagle3",
        weights="EAGLE-3 head",
        model="Eagle3",
    ),
    Method(
        "mtp",
        "multi-token prediction",
        "mtp",
        "layers that come with the target and were trained with it",
        needs="layers",
        apart="mtp",
        model="MTP",
    ),
    Method(
        "medusa",
        "Medusa",
        "medusa",
        "one head for each position of a round, on the target's last hidden state",
        needs="head",
        apart="medusa",
        weights="Medusa heads",
        model="Medusa",
    ),
    Method(
        "mlp-speculator",
        "MLP speculator",
        "mlp_speculator",
        "a small network for each position, on the last hidden state and the token before",
        needs="head",
        apart="mlp-speculator",
        weights="MLP speculator",
        model="MLPSpeculator",
    ),
    Method(
        "dflash",
        "DFlash",
        "dflash",
        "a head on the target's hidden states that fills all positions of a round in one pass",
        needs="head",
        apart="dflash",
        weights="DFlash head",
        model="DFlash",
    ),
    Method(
        "dspark",
        "DSpark",
        "dspark",
        "the same in one pass, with a correction of each position by the one before",
        needs="head",
        apart="dspark",
        weights="DSpark head",
        model="DSpark",
    ),
)
BY_NAME = {method.name: method for method in METHODS}
HEADS = tuple(method.name for method in METHODS if method.needs == "head")
# Names that the engine lists among its methods and that draft nothing by themselves.
NO_METHODS = {
    "extract_hidden_states": "writes the target's hidden states to disk",
    "custom_class": "loads a class of the user's own",
}


@dataclass(frozen=True)
class Wanted:
    """What methods are looked for with: the target, the host, what the engine accepts (None: it was not asked), its
    version in words, the sampling temperature, named heads by method, and why the extension is not there.
    """

    target: Model
    host: Host
    accepted: Mapping | None = None
    engine: str = "this engine"
    temperature: float = 0.0
    heads: Mapping[str, Model] = field(default_factory=dict)
    without_extension: str | None = None


def lacking(method: Method, wanted: Wanted) -> str | None:
    """What a method needs and does not have here, with the next step; None where nothing is missing."""
    return _engine_lacks(method, wanted) or LOOKS[method.needs](method, wanted)


def unlisted(accepted: Mapping | None) -> tuple[list[str], list[str]]:
    """Of the methods that the engine names: further names of multi-token prediction, and those that are nobody's here.

    Both are empty where it was not asked."""
    named = (accepted or {}).get("speculative_methods", ())
    known = {method.method for method in METHODS} | set(NO_METHODS)
    rest = sorted(set(named) - known)
    return [name for name in rest if name.endswith("_mtp")], [name for name in rest if not name.endswith("_mtp")]


def _engine_lacks(method: Method, wanted: Wanted) -> str | None:
    accepted = wanted.accepted or {}
    named, classes = accepted.get("speculative_methods"), accepted.get("speculators")
    if named is not None and method.method not in named:
        return f"{wanted.engine} has no method {method.method}"
    if unknown := [key for key in method.config if key not in accepted.get("speculative", method.config)]:
        return f"{wanted.engine} has no {', '.join(unknown)}"
    if classes is not None and method.model and not any(method.model in name for name in classes):
        return (
            f"{wanted.engine} names the method, and its registry of models has none for it "
            f"(no {method.model} among {len(classes)})"
        )
    return None


def _gpu(method: Method, wanted: Wanted) -> str | None:
    return None if wanted.host.gpus else "searches on a GPU, and this host has none; next: run it on a GPU host"


def _extension(method: Method, wanted: Wanted) -> str | None:
    return wanted.without_extension


def _schedule(method: Method, wanted: Wanted) -> str | None:
    accepted = (wanted.accepted or {}).get("speculative")
    return f"{wanted.engine} has no {SCHEDULE}" if accepted is not None and SCHEDULE not in accepted else None


def _sampling(method: Method, wanted: Wanted) -> str | None:
    if not wanted.host.gpus:
        return (
            "is written for the engine's newer model runner alone, which runs on GPUs; the CPU's takes the setting and "
            "ignores it; next: temperature = 0.7 on a GPU host"
        )
    if not wanted.temperature:
        return "accepts at temperature 0 what one-by-one verification does; next: temperature = 0.7"
    return None


def _head(method: Method, wanted: Wanted) -> str | None:
    if method.name in wanted.heads:
        return None
    train = " or make run SECTION=4 ARGS=\"-y '{methods: [draft, eagle3]}'\", which trains one" * (
        method.name == "eagle3"
    )
    name = checkpoints.head_name(wanted.target, method.name)
    return (
        f"no trained {method.weights} of {wanted.target.name}: neither data/models nor the cache has {name}; next: "
        f"heads = {{'{method.name}': FOLDER}}{train}"
    )


def _layers(method: Method, wanted: Wanted) -> str | None:
    config = wanted.target.config
    counts = [part.get(name) for part in (config, config.get("text_config") or {}) for name in OF_TARGET]
    if any(counts):
        return None
    return (
        f"{wanted.target.name} was trained without such layers (its config.json has none of {', '.join(OF_TARGET)}); "
        "next: a target that has them"
    )


LOOKS = {
    "nothing": lambda method, wanted: None,
    "gpu": _gpu,
    "extension": _extension,
    "schedule": _schedule,
    "sampling": _sampling,
    "head": _head,
    "layers": _layers,
}
