"""A model as an engine loads it: its folder or hub id, its shape, and whether its weights are real.

`resolve` takes `smollm2-135m-instruct` (embedded), `smollm2-135m-instruct-first-N-layers` (a truncated draft),
`smollm2-135m-instruct-N-heads` (with heads that add nothing), the name of a folder under `data/models/`, a local folder
with a `config.json`, or a Hugging Face hub id. Where the hub is out of reach and `weights` is `auto`, random weights
take the model's place if its shape ships with the book (`data/models/shapes/`); such a model says `weights: random`
everywhere. Any other failure is an error.

    >>> from serving_study.models import checkpoints
    >>> models.resolve("smollm2-135m-instruct").vocab_size         # doctest: +SKIP
    49152
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .. import paths
from ..environments import Environment
from ..errors import ModelError
from . import configurations, embedded, hub

SHIPPED = paths.DATA / "models"
SHAPES = SHIPPED / "shapes"
TRAINED = f"{embedded.NAME}-draft"
REVISIONS = {
    "Qwen/Qwen2.5-7B-Instruct": "a09a35458c702b33eeacc393d103063234e8bc28",
    "Qwen/Qwen2.5-0.5B-Instruct": "7ae557604adf67be50417f59c2c2f167def9a775",
}
TRUNCATED = re.compile(rf"({re.escape(embedded.NAME)})-first-(\d+)-layers")
FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")  # of a hub model
MORE_HEADS = re.compile(rf"({re.escape(embedded.NAME)})-(\d+)-heads")


@dataclass(frozen=True)
class Model:
    """A model ready to be served: `source` is what the engine is given, `folder` holds at least its config.json,
    `random_because` says why weights are random where real ones were asked for.
    """

    name: str
    source: str
    folder: Path
    weights: str = "real"
    revision: str | None = None
    random_because: str | None = None

    @cached_property
    def config(self) -> dict:
        return json.loads((self.folder / "config.json").read_text())

    @property
    def vocab_size(self) -> int:
        """Raises KeyError where neither the file nor its class has it."""
        if size := self.config.get("vocab_size"):
            return size
        try:
            return configurations.text(self.config)["vocab_size"]
        except ModelError:
            raise KeyError("vocab_size") from None

    @property
    def weights_gib(self) -> float | None:
        """Size of the weight files in GiB; None for random weights."""
        size = sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))
        return size / 2**30 if size else None

    def identity(self) -> dict:
        """What decides a result: name, revision, digest of the shape, kind and digest of the weights."""
        shape = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:16]
        return {
            "name": self.name,
            "revision": self.revision,
            "shape": shape,
            "weights": self.weights,
            "weights_digest": _weights_digest(self.folder),
        }


def resolve(
    name: str,
    *,
    environment: Environment | None = None,
    weights: str = "auto",
    say: Callable[[str], None] = print,
) -> Model:
    """Find `name`, fetched or made where needed. `weights`: `random`, `real`, or `auto` (random where the hub is out of
    reach).

    Raises ModelError for a folder without config.json, for a hub id that cannot be fetched, and for one out of reach
    whose shape does not ship."""
    if match := TRUNCATED.fullmatch(name):
        folder = embedded.first_layers(embedded.folder(say), int(match[2]))
        return Model(name, str(folder), folder, revision=embedded.REQUIREMENT)
    if match := MORE_HEADS.fullmatch(name):
        folder = embedded.with_heads(embedded.folder(say), int(match[2]))
        return Model(name, str(folder), folder, revision=embedded.REQUIREMENT)
    if name == embedded.NAME:
        folder = embedded.folder(say)
        return Model(name, str(folder), folder, revision=embedded.REQUIREMENT)
    if (shipped := SHIPPED / name).parent == SHIPPED and (shipped / "config.json").is_file():
        return Model(name, str(shipped), shipped)
    path = Path(name).expanduser()
    if path.is_absolute() or name.startswith((".", "~")) or path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                "no model here",
                value=name,
                allowed="a folder with a config.json, a hub id, or " + embedded.NAME,
                next=f"ls {name}",
            )
        has_weights = any(path.glob("*.safetensors")) or any(path.glob("*.bin"))
        return Model(path.name, str(path.resolve()), path.resolve(), weights="real" if has_weights else "random")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ModelError(
            "unknown model",
            value=name,
            allowed=f"{embedded.NAME}, {embedded.NAME}-first-N-layers, a folder, or a hub id OWNER/NAME",
            next="make plan SECTION=3",
        )
    if weights == "random" or environment is None:
        return with_random_weights(name, say)
    return _of_hub(name, environment, weights, say)


def _of_hub(name: str, environment: Environment, weights: str, say: Callable[[str], None]) -> Model:
    """The hub's model, or, with `auto` and the hub out of reach, random weights of its shape."""
    revision = REVISIONS.get(name)
    fetched = hub.fetch(environment, name, revision=revision, patterns=FILES, say=say)
    missing = _missing_weights(fetched.path) if fetched.path else None
    if fetched.path and not missing:
        return Model(name, str(fetched.path), fetched.path, revision=revision or fetched.path.name)
    reason = missing or fetched.reason
    if fetched.refused:
        raise ModelError(
            "the hub does not give this model",
            value=f"{name} ({reason})",
            allowed="a public model, or one that your token may read",
            next="hf auth login, then the same command again",
        )
    if weights == "auto" and fetched.out_of_reach:
        say(f"{name} is out of reach ({reason}): random weights of its shape take its place")
        return with_random_weights(name, say, because=reason)
    raise ModelError(
        "this model cannot be fetched",
        value=f"{name} ({reason})",
        allowed="a model that the hub gives within the time limit, a local folder, or weights = 'random'",
        next="mend that, then the same command again; HF_HUB_OFFLINE=1 with weights = 'auto' asks no hub",
    )


def _missing_weights(folder: Path) -> str | None:
    """What a snapshot lacks to be served with real weights, in words; None where it is complete."""
    index = folder / "model.safetensors.index.json"
    try:
        named = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"{index.name} of its snapshot cannot be read"
    absent = [file for file in ("config.json", *sorted(named)) if not (folder / file).is_file()]
    if absent:
        return f"its snapshot has no {absent[0]}" + (f" and {len(absent) - 1} files more" if absent[1:] else "")
    return None if any(folder.glob("*.safetensors")) else "its snapshot has no safetensors weights"


def with_random_weights(name: str, say: Callable[[str], None] = print, *, because: str | None = None) -> Model:
    """A folder with the shape of `name` and the embedded model's tokenizer, for `--load-format dummy`. Raises
    ModelError, with `because`, where the shape does not ship.
    """
    shape = SHAPES / name.split("/")[-1].lower()
    if not shape.is_dir():
        known = ", ".join(sorted(folder.name for folder in SHAPES.iterdir() if folder.is_dir()))
        raise ModelError(
            "this model cannot be fetched, and its shape does not ship with the book",
            value=f"{name} ({because})" if because else name,
            allowed=f"shapes: {known}",
            next="check the network (HF_HUB_OFFLINE, HF_ENDPOINT), or give a local folder",
        )
    out = paths.CACHE / "models" / f"{shape.name}-random"
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(shape / "config.json", out / "config.json")
    missing = [file for file in ("tokenizer.json", "tokenizer_config.json") if not (out / file).is_file()]
    for file in missing:
        shutil.copy(embedded.folder(say) / file, out / file)
    return Model(name, str(out), out, weights="random", random_because=because)


def planned(name: str) -> Model | None:
    """The model for a plan, without fetching or making anything; None when its shape is not known here."""
    match = TRUNCATED.fullmatch(name) or MORE_HEADS.fullmatch(name)
    shape = SHAPES / (match[1] if match else name.split("/")[-1].lower())
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return resolve(name)
    return Model(name, name, shape) if shape.is_dir() else None


def is_here(name: str) -> bool:
    """Whether `resolve` would neither fetch nor make anything for this name."""
    if TRUNCATED.fullmatch(name) or MORE_HEADS.fullmatch(name) or name == embedded.NAME:
        return (paths.CACHE / "models" / name / "model.safetensors").is_file()
    local = [Path(name).expanduser() / "config.json", SHIPPED / name / "config.json"]
    return any(file.is_file() for file in local) or hub.kept_config(name) is not None


def head_name(target: Model, method: str) -> str:
    """How the book names what it trained for a target: `smollm2-135m-instruct-eagle3`."""
    return f"{target.folder.name.lower()}-{method}"


def trained_head(target: Model, method: str) -> Model | None:
    """What the book trained for a target and a method, as it ships or from the cache; None where there is none."""
    name = head_name(target, method)
    folders = (place / name for place in (SHIPPED, paths.CACHE / "models"))
    made = (folder for folder in folders if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")))
    return next((Model(name, str(folder), folder) for folder in made), None)


def short(model: str) -> str:
    """A name for arms: `Qwen/Qwen2.5-14B-Instruct` is `14b`, `Qwen1.5-MoE-A2.7B` is `moe-a2.7b`,
    `smollm2-135m-instruct-12-heads` is `135m-12-heads`.
    """
    name = model.rstrip("/").rsplit("/", 1)[-1].lower()
    size = re.search(r"(?<![\d.a-z])((?:moe-)?a?\d+(?:\.\d+)?[bm])(?![a-z\d])", name)
    heads = MORE_HEADS.fullmatch(name)
    return (size[1] if size else name) + (f"-{heads[2]}-heads" if heads else "")


def check_draft(target: Model, draft: Model, *, heterogeneous: bool) -> None:
    """Raises ModelError when target and draft have vocabularies of different size and `heterogeneous` (the engine's
    mapping between them) is off: a draft proposes token ids.
    """
    if target.vocab_size != draft.vocab_size and not heterogeneous:
        raise ModelError(
            "the draft's vocabulary differs from the target's",
            value=f"{draft.name} has {draft.vocab_size}, {target.name} has {target.vocab_size}",
            allowed="the same size, or heterogeneous_vocabulary = True",
            next="set heterogeneous_vocabulary = True, or choose another draft_model",
        )


def _weights_digest(folder: Path) -> str | None:
    """Digest of the weight files' names, sizes, and first and last MiB: enough to tell checkpoints apart."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}:{file.stat().st_size}".encode())
        with open(file, "rb") as content:
            digest.update(content.read(1 << 20))
            content.seek(-min(1 << 20, file.stat().st_size), os.SEEK_END)
            digest.update(content.read())
    return digest.hexdigest()[:16]
