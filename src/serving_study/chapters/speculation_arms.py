"""The arms of speculation: a baseline, look-ups and drafts at several k, and the baseline again."""

from collections.abc import Sequence

from ..errors import ParameterError
from ..hardware.hosts import Host
from ..models.checkpoints import Model, check_draft
from ..servers.arm import TRUNCATED, Arm, again


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
    """`baseline`, `ngram-k3` for each n-gram k, `draft-k1` … for each k, and the baseline again.

    `ngram_window` is (shortest, longest) match in tokens; `prescribed` maps an arm's name to the acceptance rate that
    the engine produces, for random weights. Arms at the middle k: `control`, a draft of the target's own vocabulary,
    shows whether mapping vocabularies costs anything; `truncated` what a bad draft costs. `eagle` is an EAGLE-3 head of
    the target, for each k. `synchronous_control` adds the baseline as vLLM runs a target with a draft model: without
    asynchronous scheduling, on the older model runner. `only` keeps the named arms.

    Raises ParameterError for a draft that cannot serve this target, and for an unknown name in `only`."""
    gpus = min(1, len(host.gpus)) if host.gpus else 0
    baseline = Arm.of("baseline", target, options=options, environment=environment, gpus=gpus)
    shortest, longest = ngram_window
    check_draft(target, draft, heterogeneous=heterogeneous_vocabulary)
    vocabulary = {"use_heterogeneous_vocab": True} if draft.vocab_size != target.vocab_size else {}
    middle = sorted(ks)[len(ks) // 2] if ks else None

    def drafting(name: str, model: Model, k: int, distinction: str | None = None, **more) -> Arm:
        config = {"method": "draft_model", "model": model.source, "num_speculative_tokens": k} | more
        return baseline.variant(
            name=name,
            speculative=config,
            draft=model,
            technique="draft",
            acceptance="measured",
            distinction=distinction,
        )

    arms = [baseline]
    for k in ngram_ks:
        config = {
            "method": "ngram",
            "num_speculative_tokens": k,
            "prompt_lookup_max": longest,
            "prompt_lookup_min": shortest,
        }
        arms.append(baseline.variant(name=f"ngram-k{k}", speculative=config, technique="ngram", acceptance="measured"))
    arms += [drafting(f"draft-k{k}", draft, k, **vocabulary) for k in ks]
    if control and ks:
        arms.append(drafting(f"draft-k{middle}-same-vocabulary", control, middle, "same-vocabulary"))
        prescribed = (prescribed or {}) | {arms[-1].name: (prescribed or {}).get(f"draft-k{middle}")}
    if truncated and ks:
        arms.append(drafting(f"draft-k{middle}-truncated", truncated, middle, TRUNCATED))
    arms += [drafting(f"eagle3-k{k}", eagle, k, "eagle3", method="eagle3") for k in (ks if eagle else ())]
    arms = [_prescribe(arm, (prescribed or {}).get(arm.name)) for arm in arms]
    if synchronous_control:
        arms.append(
            baseline.variant(
                name="baseline-synchronous",
                distinction="synchronous",
                options=options | {"async_scheduling": False},
                environment=environment | {"VLLM_USE_V2_MODEL_RUNNER": "0"},
            )
        )
    arms.append(again(baseline))
    names = [arm.name for arm in arms]
    if unknown := [name for name in only or () if name not in names]:
        raise ParameterError(
            "unknown arm", value=", ".join(unknown), allowed=", ".join(names), next="make plan SECTION=3"
        )
    return tuple(arm for arm in arms if only is None or arm.name in only)


def _prescribe(arm: Arm, rate: float | None) -> Arm:
    """Options with which the engine accepts drafts at `rate` (accepted / drafted), whatever the models say."""
    if rate is None or not arm.k:
        return arm
    config = arm.speculative | {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": round(1 + rate * arm.k, 4),
    }
    return arm.variant(speculative=config, acceptance="prescribed")
