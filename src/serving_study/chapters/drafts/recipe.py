"""Section 4's parameters, and their defaults on this host or of the draft that ships.

>>> recipe.resolved(layers=2).name                                                       # doctest: +SKIP
'smollm2-135m-instruct-draft'
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ... import files
from ...chapters.parameters import (
    Above0,
    NotNegative,
    Number,
    Once,
    Parameters,
    Positive,
    Whole,
)
from ...hardware import hosts
from ...models import checkpoints, embedded

HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)  # what vLLM's CPU attention has kernels for


CPU = {
    "prompts": 32,
    "answer_tokens": 64,
    "answer_minutes": 3.0,
    "context": 256,
    "evaluated": 12,
    "evaluations": 3,
    "tokens": 30_000,
    "minutes": 5.0,
    "batch_tokens": 1024,
}


GPU = {
    "prompts": 24_000,
    "answer_tokens": 320,
    "answer_minutes": 4.0,
    "context": 1024,
    "evaluated": 128,
    "evaluations": 8,
    "tokens": 400_000_000,
    "minutes": 10.0,
    "batch_tokens": 32_768,
}


class Distillation(Parameters):
    """Section 4's parameters."""

    section = 4
    verb = "make run"
    profiles = {"cpu": CPU, "gpu": GPU}

    host: str = Field("auto", description='profile of this machine: "auto", its own name, or "cpu"')
    target: str = Field(embedded.NAME, description="to draft for: this one, a folder, or a hub id with real weights")
    name: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = Field(
        None,
        description="the draft's name; None: the target's, with \"-draft\"",
        json_schema_extra={"allowed": "letters, digits, '.', '_' and '-'"},
    )
    methods: Annotated[list[Literal["draft", "eagle3"]], Field(min_length=1), Once] = Field(
        ["draft"], description='"draft"; with "eagle3", a head beside it that reads the target\'s states'
    )
    layers: Positive = Field(3, description="of the student")
    width: Positive = Field(256, description="its hidden size")
    heads: Positive = Field(
        4, description="attention heads; width / heads has to be a size that engines have kernels for"
    )
    kv_heads: Positive = Field(2, description="key-value heads, a divisor of heads")
    intermediate: Positive = Field(640, description="width of the feed-forward part")
    tie_embeddings: bool = Field(True, description="one matrix for input and output embedding")
    initial_embedding: Literal["target", "random"] = Field(
        "target", description='"target": the target\'s embedding, projected to the width; "random"'
    )
    loss: Literal["kl", "tv", "kl-tv"] = Field(
        "kl", description='on the teacher\'s probabilities: "kl", "tv" (total variation), "kl-tv" (from kl to tv)'
    )
    prompts: NotNegative | None = Field(
        None, description="that the target writes itself, beside data/prompts; None: the profile's"
    )
    samples: Positive = Field(1, description="answers a prompt at temperature 1, beside the one at temperature 0")
    prompt_tokens: Positive = Field(128, description="longest prompt that the target may write")
    answer_tokens: Positive | None = Field(None, description="longest answer; None: the profile's")
    answer_minutes: Above0 | None = Field(
        None, description="for answers, half as many for prompts; None: the profile's"
    )
    writer: Literal["auto", "vllm", "transformers"] = Field(
        "auto", description='what generates: "vllm", "transformers", "auto" (vLLM on a GPU)'
    )
    context: Annotated[Whole, Field(ge=64)] | None = Field(
        None, description="tokens read, longer prompts left out; None: the profile's"
    )
    held_out: Annotated[Number, Field(gt=0, le=0.5)] = Field(
        0.1, description="share of the prompts that is never trained on"
    )
    evaluated: Positive | None = Field(None, description="held-out prompts that are looked at; None: the profile's")
    evaluations: Positive | None = Field(None, description="looks at them during training; None: the profile's")
    tokens: Positive | None = Field(None, description="budget in answer tokens; None: the profile's")
    minutes: Above0 | None = Field(None, description="budget in minutes of training; the first of the two ends it")
    batch_tokens: Positive | None = Field(None, description="tokens a step; None: the profile's")
    learning_rate: Annotated[Number, Field(gt=0, le=0.1)] = Field(1e-3, description="its highest value")
    checkpoint_s: Above0 = Field(30.0, description="seconds between checkpoints, from which a killed run goes on")
    ks: Annotated[list[Annotated[Whole, Field(ge=1, le=16)]], Field(min_length=1), Once] = Field(
        [1, 3, 5],
        description="proposals a round",
        json_schema_extra={"allowed": "whole numbers from 1 to 16, each once"},
    )
    truncated: NotNegative = Field(
        4, description="beside it, the target's own first layers as a draft; 0 leaves that look out"
    )
    concurrencies: Annotated[list[Positive], Field(min_length=1), Once] = Field(
        [1, 4],
        description="requests in flight when the target is served with the draft",
        json_schema_extra={"allowed": "whole numbers of 1 or more, each once"},
    )
    repeats: NotNegative = Field(
        6, description="blocks: each measures every cell once; at least so many; 0: the target is not served"
    )
    lives: Positive = Field(2, description="in at least so many lives of each arm's servers")
    serve_minutes: Annotated[Number, Field(ge=0)] = Field(
        15, description="then blocks go on for what is not decided, until so many are spent"
    )
    margin: Annotated[Number, Field(gt=0, le=0.5)] = Field(
        0.03, description="arms whose ratio certainly lies so near to 1 are equal"
    )
    twins: NotNegative = Field(2, description="times that the target alone is measured again, under other names")
    seed: Whole = Field(42, description="of everything that is drawn")
    fresh: bool = Field(False, description="whether to train again what stands already")

    @model_validator(mode="after")
    def _sizes_that_engines_have_kernels_for(self) -> Self:
        self.require("draft" in self.methods, "methods", "draft, or draft and eagle3")
        self.require(self.width % self.heads == 0, "heads", f"a divisor of the width {self.width}")
        sizes = ", ".join(map(str, HEAD_SIZES))
        self.require(self.width // self.heads in HEAD_SIZES, "width", f"heads times one of {sizes}")
        self.require(self.heads % self.kv_heads == 0, "kv_heads", f"a divisor of the {self.heads} heads")
        if None not in (self.batch_tokens, self.context):
            self.require(self.batch_tokens >= self.context, "batch_tokens", f"the context {self.context} or more")
        return self


NOT_DECISIVE = {
    *("host", "fresh", "checkpoint_s", "evaluations", "name", "methods"),
    *("ks", "truncated", "concurrencies", "repeats", "lives", "serve_minutes", "margin", "twins"),
}
DECISIVE = tuple(name for name in Distillation.model_fields if name not in NOT_DECISIVE)


def resolved(wanted: Distillation | None = None, *, shipped: bool = True, **given) -> Distillation:
    """Section 4's parameters with all values set.

    Missing ones are those of the draft that ships under this name if everything given agrees with it, else the host's;
    with `shipped` False always the host's, for what is trained here in any case. Raises ParameterError for unusable
    values."""
    wanted = (wanted or Distillation()).replaced(**given)
    wanted = wanted.filled({"name": f"{wanted.target.rstrip('/').split('/')[-1].lower()}-draft"})
    host = GPU if hosts.detect(wanted.host).gpus else CPU
    if standing := {} if wanted.fresh or not shipped else shipped_training(wanted.name).get("identity"):
        if all(standing.get(name) is not None for name in DECISIVE) and all(
            getattr(wanted, name) in (None, standing[name]) for name in DECISIVE
        ):
            return wanted.filled(standing).filled(host)
    return wanted.filled(host)


def shipped_training(name: str) -> dict:
    """The training log of the draft under `data/models/NAME`; empty without one."""
    file = checkpoints.SHIPPED / name / "training.json"
    return files.read(file) if file.is_file() else {}
