"""Whether servers ran on equal terms: each setting as the started servers report it, and a verdict on each line.

A line is *equal*; or *mapped*, where engines call different things by one number, or one thing by two; or *cannot be
equal*, with the reason; or *differs without a word*. Words are data (`data/frameworks/settings.csv`, each with the
place that it rests on), or the header's `differences`. Context and KV capacity have none there: a pair that differs in
these is not compared, unless the header says why it should be. What can mislead: what a server does not report is
missing and not equal.

    >>> settings.lines(settings.reported(results), "vllm")                                     # doctest: +SKIP
"""

from collections.abc import Mapping

import pandas

from ... import paths
from ...engines import base

WORDS = paths.DATA / "frameworks" / "settings.csv"
EQUAL, MAPPED, CANNOT, UNSAID = "equal", "mapped", "cannot be equal", "differs without a word"
REQUIRED = ("max_model_len", "kv_cache_tokens")
CLOSE = 0.01  # of the KV cache's tokens: a block that one engine keeps for itself is no other capacity
SAME_TYPES = {"bf16": "bfloat16", "f16": "float16", "fp16": "float16", "half": "float16", "f32": "float32"}
NAMES = {
    "dtype": "type of weights",
    "kv_cache_dtype": "type of the KV cache",
    "max_model_len": "longest context (tokens)",
    "max_num_seqs": "requests at once",
    "max_batched_tokens": "tokens of a step",
    "chunked_prefill": "chunked prefill",
    "prefix_caching": "prefix cache",
    "memory_share": "share of GPU memory",
    "kv_cache_tokens": "KV cache (tokens)",
    "block_tokens": "block of the KV cache (tokens)",
    "attention_backend": "attention",
    "cuda_graphs": "graphs",
    "threads": "threads",
    "scheduling": "scheduling",
    "speculation": "speculation",
    "seed": "seed",
}


def words() -> pandas.DataFrame:
    """The stated words: `setting`, `engine`, `relation` (`mapped`, `cannot`), `words`, `place`."""
    return pandas.read_csv(WORDS, keep_default_na=False)


def reported(results) -> pandas.DataFrame:
    """Setting down, arm across: what the newest started server of each arm of a plan says (`of_starts`)."""
    plan, known = results.plan, results.store.starts_by_key()
    return of_starts({arm.name: known.get(plan.arm_key(arm)) for arm in plan.arms})


def of_starts(starts: Mapping[str, dict | None]) -> pandas.DataFrame:
    """The same of start records by arm; servers that reported nothing are left out. The frame's `attrs` have the arms'
    `engines`.
    """
    told = {arm: start for arm, start in starts.items() if start and (start.get("figures") or {}).get("settings")}
    columns = {
        arm: {name: start["figures"]["settings"].get(name) for name in base.SETTINGS} for arm, start in told.items()
    }
    frame = pandas.DataFrame(columns, index=list(base.SETTINGS), dtype=object)
    frame.attrs["engines"] = {arm: start["engine"] for arm, start in told.items()}
    return frame


def lines(
    frame: pandas.DataFrame, baseline: str, *, differences: Mapping[str, str] | None = None, stated=None
) -> pandas.DataFrame:
    """One row a setting that any server reports: `setting`, the arms' values, `verdict`, `because`.

    `differences` are settings that the reader accepts, each with why; `stated` is the table of `words`."""
    stated = words() if stated is None else stated
    known = {(row.setting, row.engine): (row.relation, row.words) for row in stated.itertuples()}
    engines, rows = frame.attrs["engines"], []
    for setting in frame.index:
        values = {arm: _plain(frame.loc[setting, arm]) for arm in frame}
        if baseline not in values or all(value is None for value in values.values()):
            continue
        unlike = [arm for arm in values if not alike(setting, values[baseline], values[arm])]
        told = {
            engine: known[setting, engine] for engine in dict.fromkeys(engines.values()) if (setting, engine) in known
        }
        verdict, because = _verdict(setting, unlike, values, engines, told, baseline, (differences or {}).get(setting))
        rows.append({"setting": setting, **values, "verdict": verdict, "because": because})
    return pandas.DataFrame(rows, columns=["setting", *frame.columns, "verdict", "because"])


def _verdict(setting, unlike, values, engines, told, baseline, accepted) -> tuple[str, str]:
    said = "; ".join(f"{engine}: {words}" for engine, (_, words) in told.items())
    if not unlike:
        return (MAPPED, said) if told else (EQUAL, "")
    if accepted:
        return MAPPED, f"accepted: {accepted}" + (f"; {said}" if said else "")
    # A line is explained by words on the arm that differs, or on the baseline where that is the one without a value.
    silent = [
        arm
        for arm in unlike
        if engines[arm] not in told and not (values[baseline] is None and engines[baseline] in told)
    ]
    if silent:
        named = ", ".join(f"{arm} {'does not say' if values[arm] is None else values[arm]}" for arm in silent)
        return UNSAID, f"{named}; {baseline} {'does not say' if values[baseline] is None else values[baseline]}"
    return (CANNOT if any(relation == "cannot" for relation, _ in told.values()) else MAPPED), said


def refused(frame: pandas.DataFrame, baseline: str, differences: Mapping[str, str] | None = None) -> dict[str, str]:
    """Arms that may not be compared with the baseline, each with the reason: their context or KV capacity differs, or
    is not reported, and nobody said why that is to be accepted.
    """
    reasons = {}
    for setting in REQUIRED:
        if setting in (differences or {}) or baseline not in frame:
            continue
        own = _plain(frame.loc[setting, baseline])
        for arm in frame:
            value = _plain(frame.loc[setting, arm])
            if arm != baseline and not alike(setting, own, value):
                shown = ["not reported" if one is None else f"{one:,}" for one in (value, own)]
                reasons.setdefault(
                    arm, f"{NAMES[setting]}: {shown[0]} against {shown[1]} of {baseline}, without a word"
                )
    return reasons


def comparable(cells: pandas.DataFrame, refusals: Mapping[str, str]) -> pandas.DataFrame:
    """The cells of arms that are not refused."""
    return cells[~cells["arm"].isin(list(refusals))]


def alike(setting: str, one: object, other: object) -> bool:
    """Whether two reported values are the same; None is like nothing, not even None."""
    if one is None or other is None:
        return False
    if setting == "kv_cache_tokens":
        return abs(one - other) <= CLOSE * max(one, other)
    return one == other


def _plain(value: object) -> object:
    """A reported value with its usual spelling; None where it is missing."""
    if value is None or isinstance(value, float) and pandas.isna(value):
        return None
    if isinstance(value, str):
        value = value.removeprefix("torch.")
        return SAME_TYPES.get(value, value)
    return value
