"""`Arm`: one server configuration, and which arms a technique has.

An arm says everything that decides what its server does. Two arms that differ in nothing but their name are the A/A
pair that gives the noise floor (`repeat_of`)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import ParameterError
from ..hardware.hosts import Host
from ..models.checkpoints import Model, check_draft

# A word in an arm's options, and the distribution that has to be there for it.
BESIDE = {
    "lmcache": "lmcache",
    "nixl": "nixl",
    "mooncake": "mooncake-transfer-engine",
    '"ray"': "ray",
    "bitsandbytes": "bitsandbytes",
    "gguf": "gguf",
    "runai_streamer": "runai-model-streamer",
    "tensorizer": "tensorizer",
    "fastsafetensors": "fastsafetensors",
}


@dataclass(frozen=True)
class Sidecar:
    """A server that an engine's own needs beside it, up before it and ended with it.

    `kind` says which (`lmcache`), `options` are its flags by name without dashes, `version` is its distribution's,
    `memory_gib` about what it takes."""

    kind: str
    options: dict
    version: str | None = None
    memory_gib: float = 0.0

    def identity(self) -> dict:
        return {"kind": self.kind, "version": self.version, "options": self.options}


@dataclass(frozen=True)
class Arm:
    """One server configuration.

    `options` are the engine's flags by name without dashes (`max_model_len`), a value of True being a bare flag;
    `speculative` is vLLM's `--speculative-config`. `technique` is what the certificate expects to see happening
    (`none`, `ngram`, `draft`, `parallel`, `prefix`, `offload`), `replicas` how many servers of the same options take
    turns behind one port, `acceptance` says how drafts are accepted: `measured`, `prescribed`, or None without
    speculation. With `scratch` its server runs in an empty folder that goes when it ends, for what it writes to disk;
    `sidecar` is a server that it needs beside it. `unsupported` holds the reason why the arm cannot exist here."""

    name: str
    model: Model
    engine: str = "vllm"
    options: dict = field(default_factory=dict)
    speculative: dict | None = None
    draft: Model | None = None
    environment: dict = field(default_factory=dict)
    gpus: int = 1
    replicas: int = 1
    scratch: bool = False
    sidecar: Sidecar | None = None
    technique: str = "none"
    acceptance: str | None = None
    repeat_of: str | None = None
    unsupported: str | None = None

    @property
    def k(self) -> int:
        """Draft tokens a round; 0 without speculation."""
        return (self.speculative or {}).get("num_speculative_tokens", 0)

    @property
    def split(self) -> int:
        """Ranks that hold one copy of the model between them."""
        return self.options.get("tensor_parallel_size", 1) * self.options.get("pipeline_parallel_size", 1)

    @property
    def copies(self) -> int:
        """Copies of the model that requests are shared out to."""
        return self.options.get("data_parallel_size", 1) * self.replicas

    @property
    def ranks(self) -> int:
        """Processes that compute: a GPU each, or on a CPU host some cores each."""
        return self.split * self.copies

    @property
    def distributions(self) -> tuple[str, ...]:
        """What must be installed beside the engine for it, by the names of its options: a KV connector's library, a
        sidecar's, a loader's, that of a way to run ranks.
        """
        words = json.dumps([self.options, self.sidecar.kind if self.sidecar else None], default=str).lower()
        return tuple(sorted({name for word, name in BESIDE.items() if word in words}))

    @property
    def weights(self) -> str:
        return "random" if "random" in (self.model.weights, self.draft.weights if self.draft else None) else "real"

    def identity(self) -> dict:
        """What decides a result, free of this machine's paths."""
        speculative = {key: value for key, value in (self.speculative or {}).items() if key != "model"}
        return (
            {
                "name": self.name,
                "engine": self.engine,
                "model": self.model.identity(),
                "draft": self.draft.identity() if self.draft else None,
                "options": self.options,
                "speculative": speculative,
                "environment": self.environment,
                "gpus": self.gpus,
            }
            | ({"replicas": self.replicas} if self.replicas > 1 else {})
            | ({"sidecar": self.sidecar.identity()} if self.sidecar else {})
        )


def again(arm: Arm) -> Arm:
    """The same arm once more, under another name: the A/A control."""
    return replace(arm, name=f"{arm.name}-again", repeat_of=arm.name)


def speculation(
    *,
    target: Model,
    draft: Model,
    ks: Sequence[int],
    ngram_ks: Sequence[int],
    ngram_window: tuple[int, int],
    options: dict,
    environment: dict,
    host: Host,
    heterogeneous_vocabulary: bool = True,
    prescribed: dict | None = None,
    control: Model | None = None,
    truncated: Model | None = None,
    eagle: Model | None = None,
    synchronous_control: bool = False,
    only: Sequence[str] | None = None,
) -> tuple[Arm, ...]:
    """Section 3's arms: `baseline`, `ngram-k3` for each n-gram k, `draft-k1` … for each k, and the baseline again.

    `ngram_window` is (shortest, longest) match in tokens. `prescribed` maps an arm's name to the acceptance rate that
    the engine is told to produce, for random weights. `control` is a draft of the target's own vocabulary, for the
    middle k: does the mapping between vocabularies cost anything? `synchronous_control` adds the baseline as a draft
    model makes vLLM run its target: without asynchronous scheduling, on the older model runner. `truncated` is a poor
    draft beside a trained one, for the middle k: what does a bad draft cost? `eagle` is an EAGLE-3 head of this very
    target, for each k. `only` keeps the named arms."""
    gpus = min(1, len(host.gpus)) if host.gpus else 0
    base = Arm("baseline", target, options=options, environment=environment, gpus=gpus)
    arms = [base]
    shortest, longest = ngram_window
    for k in ngram_ks:
        config = {
            "method": "ngram",
            "num_speculative_tokens": k,
            "prompt_lookup_max": longest,
            "prompt_lookup_min": shortest,
        }
        arms.append(replace(base, name=f"ngram-k{k}", speculative=config, technique="ngram", acceptance="measured"))
    check_draft(target, draft, heterogeneous=heterogeneous_vocabulary)
    for k in ks:
        config = {"method": "draft_model", "model": draft.source, "num_speculative_tokens": k}
        if draft.vocab_size != target.vocab_size:
            config["use_heterogeneous_vocab"] = True
        arms.append(
            replace(base, name=f"draft-k{k}", speculative=config, draft=draft, technique="draft", acceptance="measured")
        )
    if control and ks:
        k = sorted(ks)[len(ks) // 2]
        config = {"method": "draft_model", "model": control.source, "num_speculative_tokens": k}
        arms.append(
            replace(
                base,
                name=f"draft-k{k}-same-vocabulary",
                speculative=config,
                draft=control,
                technique="draft",
                acceptance="measured",
            )
        )
        prescribed = (prescribed or {}) | {arms[-1].name: (prescribed or {}).get(f"draft-k{k}")}
    if truncated and ks:
        k = sorted(ks)[len(ks) // 2]
        config = {"method": "draft_model", "model": truncated.source, "num_speculative_tokens": k}
        arms.append(
            replace(
                base,
                name=f"draft-k{k}-truncated",
                speculative=config,
                draft=truncated,
                technique="draft",
                acceptance="measured",
            )
        )
    for k in ks if eagle else ():
        config = {"method": "eagle3", "model": eagle.source, "num_speculative_tokens": k}
        arms.append(
            replace(
                base, name=f"eagle3-k{k}", speculative=config, draft=eagle, technique="draft", acceptance="measured"
            )
        )
    arms = [_prescribe(arm, (prescribed or {}).get(arm.name)) for arm in arms]
    if synchronous_control:
        arms.append(
            replace(
                base,
                name="baseline-synchronous",
                options=options | {"async_scheduling": False},
                environment=environment | {"VLLM_USE_V2_MODEL_RUNNER": "0"},
            )
        )
    arms.append(again(base))
    if only is not None:
        unknown = [name for name in only if name not in {arm.name for arm in arms}]
        if unknown:
            raise ParameterError(
                "unknown arm",
                value=", ".join(unknown),
                allowed=", ".join(arm.name for arm in arms),
                next="make plan SECTION=3",
            )
        arms = [arm for arm in arms if arm.name in only]
    return tuple(arms)


def _prescribe(arm: Arm, rate: float | None) -> Arm:
    """Make the engine accept drafts at `rate` (accepted / drafted) whatever the models say."""
    if rate is None or not arm.k:
        return arm
    config = arm.speculative | {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": round(1 + rate * arm.k, 4),
    }
    return replace(arm, speculative=config, acceptance="prescribed")
