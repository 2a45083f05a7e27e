"""An EAGLE-3 head for a target: its cost, what is refused before training, the training, and the folder that vLLM
loads.

It learns from the answers of `distillation` and is served with the method `eagle3`. What can mislead: the head has no
embedding of its own and is no model by itself; its figures hold for the hidden states of its target. A pass reads 3d²
+ 2ds(h + 2g) + hsd + 3dm + Vd weights: width d, feed-forward width m, h query and g key heads of size s, V tokens of
vocabulary, and three of the target's states (3d², only in the first pass of a round). For SmolLM2-135M-Instruct and V
= 8,192 that is 9.81 million of the target's 134.5 million.

    >>> eagle.train(recipe.resolved(shipped=False), eagle.Head()).folder              # doctest: +SKIP
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from ... import environments, files, paths
from ...errors import ModelError, ParameterError
from ...hardware import hosts
from ...models import embedded
from ...models.checkpoints import Model
from . import distillation, draft_sizes, drafts
from .recipe import Distillation

SCRIPT = environments.ENGINE_SIDE / "training" / "train_eagle.py"
TARGETS = ("llama",)  # of which a head was trained and served
OF_STUDENT = (
    "name",
    "layers",
    "width",
    "heads",
    "kv_heads",
    "intermediate",
    "tie_embeddings",
    "initial_embedding",
    "loss",
)
BATCH_CHUNK = 512


@dataclass(frozen=True)
class Head:
    """What a head needs beside a `Distillation`'s answers, budget, learning rate and seed; the student's sizes do not
    matter.
    """

    name: str | None = None
    draft_vocabulary: int = 8192  # of the target's tokens, those most frequent in its answers
    layers: tuple[int, ...] | None = (
        None  # whose states are read, 1 being the first; None: three, evenly, the last one included
    )
    intermediate: int | None = None  # None: the target's
    unroll: int = 3  # steps that a round is trained for
    unroll_decay: float = 0.8  # weight of a step in the loss, against the step before it
    states_minutes: float = 7.0  # for the target's states: training has those answers that were read by then
    memory_gib: float = 2.0  # for the states, which stay in memory


def resolved(head: Head, wanted: Distillation, target: Model) -> Head:
    """`head` with all values set.

    Raises ParameterError for impossible values, ModelError for a target of another kind."""
    config = target.config
    if (
        config.get("model_type") not in TARGETS
        or (config.get("rope_scaling") or {}).get("rope_type", "default") != "default"
    ):
        raise ModelError(
            "no EAGLE-3 head can be made for this kind of target here",
            value=f"{target.name}: {config.get('model_type')}, rope_scaling {config.get('rope_scaling')}",
            allowed=f"{', '.join(TARGETS)}, without rope_scaling",
            next=f"-p target={embedded.NAME}",
        )
    depth = config["num_hidden_layers"]
    evenly = tuple(sorted({max(1, depth * part // 3) for part in (1, 2, 3)}))
    head = replace(
        head,
        name=head.name or f"{target.folder.name.lower()}-eagle3",
        layers=tuple(head.layers or evenly),
        intermediate=head.intermediate or config["intermediate_size"],
    )
    for name, allowed, fine in (
        (
            "name",
            "letters, digits, '.', '_' and '-'",
            all(character.isalnum() or character in "._-" for character in head.name),
        ),
        ("draft_vocabulary", f"from 1 to {config['vocab_size']}", 1 <= head.draft_vocabulary <= config["vocab_size"]),
        (
            "layers",
            f"from 1 to {depth}, ascending, {depth} among them",
            list(head.layers) == sorted(set(head.layers)) and head.layers[0] >= 1 and head.layers[-1] == depth,
        ),
        ("intermediate", "1 or more", head.intermediate >= 1),
        ("unroll", "from 1 to 8", 1 <= head.unroll <= 8),
        ("unroll_decay", "above 0, at most 1", 0 < head.unroll_decay <= 1),
        ("states_minutes", "above 0", head.states_minutes > 0),
        ("memory_gib", "above 0", head.memory_gib > 0),
    ):
        if not fine:
            raise ParameterError(
                f"parameter {name} cannot be used",
                value=getattr(head, name),
                allowed=allowed,
                next="correct it, then the same command again",
            )
    return head


def config(head: Head, target: dict) -> dict:
    """The head's config.json, in the format that vLLM takes without a `speculators` wrapper."""
    kept = (
        "vocab_size",
        "max_position_embeddings",
        "bos_token_id",
        "eos_token_id",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
    )
    return {name: target[name] for name in kept if name in target} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "intermediate_size": head.intermediate,
        "head_dim": target.get("head_dim") or target["hidden_size"] // target["num_attention_heads"],
        "rope_theta": target.get("rope_theta") or (target.get("rope_parameters") or {}).get("rope_theta", 10000.0),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "draft_vocab_size": head.draft_vocabulary,
        "eagle_aux_hidden_state_layer_ids": list(head.layers),
        "num_aux_hidden_states": len(head.layers),
        "fc_norm": True,
        "norm_before_residual": False,
        "torch_dtype": "bfloat16",
    }


def parameters(config: dict) -> int:
    """Weights of a head that the first pass of a round reads, without norms and the tables between vocabularies."""
    width, size, states = config["hidden_size"], config["head_dim"], len(config["eagle_aux_hidden_state_layer_ids"])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    return (
        states * width**2
        + 2 * width * size * (heads + 2 * kv_heads)
        + heads * size * width
        + 3 * width * config["intermediate_size"]
        + config["draft_vocab_size"] * width
    )


def cost_ratio(config: dict, target: dict, k: int = 1) -> float:
    """A pass of the head in target passes by bytes, averaged over a round of k; a lower bound."""
    first = len(config["eagle_aux_hidden_state_layer_ids"]) * config["hidden_size"] ** 2
    return (parameters(config) - first * (k - 1) / k) * draft_sizes.BF16 / draft_sizes.size(target).bytes_a_pass


def memory_gib(head: Head, wanted: Distillation, target: Model) -> float:
    """Peak memory of training: states, target, the head with gradients and moments, and one batch's activations."""
    target_config, own = target.config, config(head, target.config)
    per_token = (
        (3 + 24 * head.unroll) * target_config["hidden_size"]
        + 4 * head.unroll * head.intermediate
        + head.unroll * target_config["num_attention_heads"] * wanted.context * 4
    )
    logits = 8 * BATCH_CHUNK * head.draft_vocabulary + 4 * wanted.context * target_config["vocab_size"]
    return (
        head.memory_gib
        + (
            4 * draft_sizes.size(target_config).parameters
            + 16 * parameters(own)
            + 4 * wanted.batch_tokens * per_token
            + 4 * logits
        )
        / 2**30
    )


def check(head: Head, wanted: Distillation, target: Model, host: hosts.Host) -> None:
    """Raises ModelError or HostError for a target that no head can be made for, too little memory, or a checkpoint of
    another run.
    """
    distillation.check_target(target, "a head")
    distillation.check_memory(
        "head",
        memory_gib(head, wanted, target),
        host,
        next=f"a smaller memory_gib (now {head.memory_gib:g}) or batch_tokens (now {wanted.batch_tokens})",
    )
    standing = json.loads(json.dumps(identity(head, wanted, target)))
    distillation.check_standing(_named(head, wanted), standing, other_name="another name of the head")


def identity(head: Head, wanted: Distillation, target: Model) -> dict:
    """What decides the weights, as one flat mapping."""
    kept = {name: value for name, value in distillation.identity(wanted, target).items() if name not in OF_STUDENT}
    return kept | {f"head_{name}": value for name, value in asdict(head).items() if name != "name"}


def specification(head: Head, wanted: Distillation, target: Model, host: hosts.Host) -> dict:
    """The specification that the engine-side script reads."""
    common = {
        name: value
        for name, value in distillation.specification(_named(head, wanted), target, host).items()
        if name not in (*OF_STUDENT[1:], "student")
    }
    own = {name: getattr(head, name) for name in ("unroll", "unroll_decay", "states_minutes", "memory_gib")}
    return (
        common
        | own
        | {
            "config": config(head, target.config),
            "states_layers": list(head.layers),
            "identity": json.loads(json.dumps(identity(head, wanted, target))),
        }
    )


def train(wanted: Distillation, head: Head, *, say: Callable[[str], None] = print) -> drafts.Trained:
    """The head, trained unless it exists; missing answers are written first, and a killed run continues."""
    host, environment, target = distillation.begun(wanted, say)
    head = resolved(head, wanted, target)
    check(head, wanted, target, host)
    named = _named(head, wanted)
    folder = distillation.work_folder(named)
    if wanted.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    spec = specification(head, wanted, target, host)
    files.write(folder / "identity.json", spec["identity"])
    if not (folder / "training.json").is_file():
        if not (distillation.data_folder(wanted, target) / "answers" / "done.json").is_file():
            files.write(folder / "spec.json", distillation.specification(named, target, host))
            distillation.run_stages(environment, folder, ("prompts", "answers"), say)
        files.write(folder / "spec.json", spec)
        distillation.run_stages(environment, folder, ("states", "train"), say, SCRIPT)
    return pack(head, wanted, target)


def pack(head: Head, wanted: Distillation, target: Model) -> drafts.Trained:
    """A folder that vLLM loads with the method `eagle3`, under `.cache/models/NAME`."""
    work, out = distillation.work_folder(_named(head, wanted)), paths.CACHE / "models" / head.name
    head_config = config(head, target.config)

    with files.whole_folder(out) as unfinished:
        (unfinished / "config.json").write_text(json.dumps(head_config, indent=2) + "\n")
        for name in ("model.safetensors", "training.json"):
            shutil.copy(work / name, unfinished / name)
        (unfinished / "README.md").write_text(card(head, target, files.read(work / "training.json"), head_config))
    return drafts.load(out)


def card(head: Head, target: Model, training: dict, head_config: dict) -> str:
    """A packed head's README.md."""
    data, looks = training["data"], [entry for entry in training["log"] if entry["event"] == "held_out"]
    licence = "Apache-2.0, as its target's" if target.name == embedded.NAME else "that of its target"
    rows = [
        f"| {k} | {figures['acceptance_rate']:.3f} | {figures['tokens_a_round']:.2f} | "
        f"{', '.join(f'{value:.3f}' for value in figures['by_position'])} |"
        for k, figures in looks[-1]["rounds"].items()
    ]
    return "\n".join(
        [
            f"# {head.name}",
            "",
            f"An EAGLE-3 head for {target.name} ({target.revision or 'local weights'}, digest "
            f"`{target.identity()['weights_digest']}`): one layer that reads the states of its layers "
            f"{', '.join(map(str, head.layers))}",
            f"and proposes {head.draft_vocabulary:,} of its {head_config['vocab_size']:,} tokens, "
            f"{parameters(head_config) / 1e6:.2f} million weights, bf16. It has no embedding of its own: the "
            "engine lends it the target's.",
            f"A pass reads {cost_ratio(head_config, target.config):.3f} of what the target's reads. Of no use "
            "with another target.",
            "",
            f"Trained on {data['answers']:,} of the target's own answers ({data['answer_tokens']:,} tokens) "
            f"by {data['writer']}, {training['steps']:,} steps, {training['tokens']:,} tokens,",
            f"{training['elapsed_s'] / 60:.1f} minutes on {training['versions']['device']} (torch "
            f"{training['versions']['torch']}), {head.unroll} steps unrolled. Served as",
            '`--speculative-config \'{"method": "eagle3", "model": FOLDER, "num_speculative_tokens": 3}\'`.',
            "",
            f"On {data['held_out_prompts']} prompts never trained on (a share of {looks[-1]['covered']:.3f} "
            "of their answers' tokens is in the head's vocabulary):",
            "",
            "| k | acceptance rate, temperature 0 | tokens a round | by position |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            f"Licence: {licence}. The whole log is `training.json`.",
            "",
        ]
    )


def _named(head: Head, wanted: Distillation) -> Distillation:
    return wanted.replaced(name=head.name)
