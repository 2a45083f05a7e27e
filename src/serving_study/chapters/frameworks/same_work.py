"""Whether servers of different engines did the same work: text under greedy decoding, tokens counted, tokenizers, and
what a second client sees.

Rounding differs between engines, so that texts part where two tokens are almost equally probable. How much rounding
there is, the answers themselves say: as long as two servers have written the same, the gap between a step's two best
tokens ought to be the same, and what it differs by is rounding. A parting whose two tokens are no further apart than
the largest such difference is *within rounding*; one beyond it is other work. What can mislead: after a parting the
prompts differ, so that only the first one of an answer says anything; with random weights all gaps are small.

    >>> same_work.texts(results.answers(), "vllm")                                             # doctest: +SKIP
"""

import math
from collections.abc import Mapping
from statistics import median

import numpy as np
import pandas

from ...analysis import comparisons
from ...engines import base
from ...loads.questions import BENCH, OPENAI
from ...servers.answers import readable

WITHIN, BEYOND, UNTOLD = "within rounding", "beyond rounding", "not told"
CLIENT_METRICS = ("median_ttft_ms", "median_itl_ms")


def failed(answers: Mapping[str, dict], what: str) -> dict[str, str]:
    """Arms that could not be asked a thing (`texts`, `tokenizer`, `clients`), each with the reason."""
    return {
        arm: record[what]["failed"]
        for arm, record in answers.items()
        if isinstance(record[what], dict) and "failed" in record[what]
    }


def texts(answers: Mapping[str, dict], baseline: str) -> pandas.DataFrame:
    """One row an arm against the baseline: `answers`, `equal` (share with the same text), `parted`, `median_token` (at
    which they part), how many partings are `within` rounding, `beyond` it and `untold`, and the rounding itself:
    `steps` written alike, `rounding_median` and `rounding_largest` (nats).
    """
    columns = ["arm", "answers", "equal", "parted", "median_token", "within", "beyond", "untold"]
    columns += ["steps", "rounding_median", "rounding_largest"]
    rows, apart = [], partings(answers, baseline)
    for arm, record in _answered(answers, baseline).items():
        pairs = list(zip(answers[baseline]["texts"], record["texts"], strict=True))
        own = apart[apart["arm"] == arm]
        noise = _rounding(pairs)
        counts = own["verdict"].value_counts()
        rows.append(
            {
                "arm": arm,
                "answers": len(pairs),
                "equal": sum(one["text"] == other["text"] for one, other in pairs) / len(pairs),
                "parted": len(own),
                "median_token": own["token"].median() if len(own) else math.nan,
                "within": int(counts.get(WITHIN, 0)),
                "beyond": int(counts.get(BEYOND, 0)),
                "untold": int(counts.get(UNTOLD, 0)),
                "steps": len(noise),
                "rounding_median": median(noise) if noise else math.nan,
                "rounding_largest": max(noise, default=math.nan),
            }
        )
    return pandas.DataFrame(rows, columns=columns)


def partings(answers: Mapping[str, dict], baseline: str) -> pandas.DataFrame:
    """One row an answer whose text is not the baseline's: `prompt`, `token` (its number, from 1), what each server
    chose there (`baseline_token`, `arm_token`), by how much each preferred its own (`baseline_gap`, `arm_gap`, nats;
    NaN where the other's token was not among the candidates), their sum `apart`, the largest `rounding`, `verdict`.
    """
    rows = []
    for arm, record in _answered(answers, baseline).items():
        pairs = list(zip(answers[baseline]["texts"], record["texts"], strict=True))
        largest = max(_rounding(pairs), default=math.nan)
        for number, (one, other) in enumerate(pairs, 1):
            if one["text"] == other["text"]:
                continue
            place = _first_difference(one["steps"], other["steps"])
            row = {"arm": arm, "prompt": number, "token": math.nan, "rounding": largest, "verdict": UNTOLD}
            if place is not None:
                mine, its = one["steps"][place], other["steps"][place]
                gaps = _gap(mine, its["token"]), _gap(its, mine["token"])
                row |= {"token": place + 1, "baseline_token": mine["token"], "arm_token": its["token"]}
                row |= {"baseline_gap": gaps[0], "arm_gap": gaps[1], "apart": sum(gaps)}
                row["verdict"] = _judged(sum(gaps), largest, bool(mine["candidates"] and its["candidates"]))
            rows.append(row)
    columns = ["arm", "prompt", "token", "baseline_token", "arm_token", "baseline_gap", "arm_gap", "apart"]
    return pandas.DataFrame(rows, columns=[*columns, "rounding", "verdict"])


def counts(answers: Mapping[str, dict], baseline: str) -> pandas.DataFrame:
    """One row an arm: prompt and answer tokens of the questions by the servers' `usage` and by their counters, and
    whether the counters agree with the usage, and the usage of prompts with the baseline's.
    """
    rows = []
    own = None
    for arm in dict.fromkeys([baseline, *answers]):
        record = answers.get(arm)
        if not record or isinstance(record["texts"], dict):
            continue
        read = [answer["prompt_tokens"] for answer in record["texts"]]
        own = read if arm == baseline else own
        made = sum(answer["output_tokens"] for answer in record["texts"])
        counted = record["counters"]
        agree = [
            None if counted[name] is None else counted[name] == value
            for name, value in ((base.PROMPT_TOKENS, sum(read)), (base.GENERATED_TOKENS, made))
        ]
        rows.append(
            {
                "arm": arm,
                "prompt_tokens": sum(read),
                "prompt_counter": counted[base.PROMPT_TOKENS],
                "answer_tokens": made,
                "answer_counter": counted[base.GENERATED_TOKENS],
                "counters": "not told" if None in agree else "agree" if all(agree) else "differ",
                "prompts": "as the baseline's"
                if read == own
                else "other lengths than the baseline's"
                if own
                else "not told",
            }
        )
    columns = ["arm", "prompt_tokens", "prompt_counter", "answer_tokens", "answer_counter", "counters", "prompts"]
    return pandas.DataFrame(rows, columns=columns)


def tokenizers(answers: Mapping[str, dict], baseline: str) -> pandas.DataFrame:
    """One row an arm: `texts` that went through its tokenizer, the share that came back `whole`, and the share with the
    `same` tokens as the baseline's (NaN where the baseline was not asked); `failed` where it could not be asked.
    """
    rows, own = [], answers.get(baseline, {}).get("tokenizer")
    for arm, record in answers.items():
        trips = record["tokenizer"]
        if isinstance(trips, dict):
            rows.append({"arm": arm, "failed": trips["failed"]})
            continue
        same = math.nan
        if isinstance(own, list):
            same = float(np.mean([one["ids"] == other["ids"] for one, other in zip(own, trips, strict=True)]))
        rows.append(
            {"arm": arm, "texts": len(trips), "whole": float(np.mean([trip["whole"] for trip in trips])), "same": same}
        )
    return pandas.DataFrame(rows, columns=["arm", "texts", "whole", "same", "failed"])


def clients(answers: Mapping[str, dict], cells: pandas.DataFrame) -> pandas.DataFrame:
    """One row an arm and latency: medians over rounds by both clients, the second's multiple of the first's with its
    interval, the `floor` (a fraction: what twins differ by at concurrency 1), and whether they `agree` within it.
    """
    rows = []
    for arm, record in answers.items():
        if not record["clients"] or "failed" in record["clients"]:
            continue
        rounds = pandas.DataFrame(record["clients"]["rounds"]).astype({"round": int})
        for metric in CLIENT_METRICS:
            by_client = rounds.dropna(subset=[metric]).pivot(index="round", columns="client", values=metric)
            if not {BENCH, OPENAI} <= set(by_client):
                continue
            ratio, low, high = comparisons.ratio(by_client[OPENAI], by_client[BENCH])
            floors = comparisons.floor(cells, metric) if metric in cells and len(cells) else {}
            floor = math.expm1(floors[min(floors)]) if floors else math.nan
            rows.append(
                {
                    "arm": arm,
                    "metric": metric,
                    BENCH: by_client[BENCH].median(),
                    OPENAI: by_client[OPENAI].median(),
                    **{"ratio": ratio, "low": low, "high": high, "floor": floor},
                    "agree": _agree(ratio, low, high, floor),
                }
            )
    columns = ["arm", "metric", BENCH, OPENAI, "ratio", "low", "high", "floor", "agree"]
    return pandas.DataFrame(rows, columns=columns)


def _agree(ratio: float, low: float, high: float, floor: float) -> str:
    if math.isnan(floor):
        return "not decided: no twin bounds the floor"
    if abs(math.log(ratio)) <= math.log1p(floor):
        return "within the floor"
    if not math.isnan(low) and low <= 1 <= high:
        return "not decided: the interval has 1 in it"
    return f"{'longer' if ratio > 1 else 'shorter'} by the second client"


def _answered(answers: Mapping[str, dict], baseline: str) -> dict[str, dict]:
    """The arms beside the baseline whose texts can be held against its."""
    if baseline not in answers or isinstance(answers[baseline]["texts"], dict):
        return {}
    return {arm: record for arm, record in answers.items() if arm != baseline and isinstance(record["texts"], list)}


def _first_difference(one: list[dict], other: list[dict]) -> int | None:
    """The first step whose tokens differ, of those whose text can be read; None where one answer is the other's start,
    or a server told no steps.
    """
    for place, (mine, its) in enumerate(zip(one, other, strict=False)):
        if mine["token"] != its["token"] and readable(mine["token"]) and readable(its["token"]):
            return place
    return None


def _rounding(pairs: list[tuple[dict, dict]]) -> list[float]:
    """What the gap between a step's two best tokens differs by, at each step before two answers part (nats)."""
    noise = []
    for one, other in pairs:
        last = _first_difference(one["steps"], other["steps"])
        for mine, its in list(zip(one["steps"], other["steps"], strict=False))[:last]:
            rivals = [token for token in mine["candidates"] if token != mine["token"] and token in its["candidates"]]
            if mine["token"] == its["token"] and rivals:
                rival = max(rivals, key=mine["candidates"].get)
                noise.append(abs(_gap(mine, rival) - _gap(its, rival)))
    return noise


def _gap(step: dict, rival: str) -> float:
    """By how much the logarithm of the chosen token's probability is above that of another; NaN where the server did
    not tell it.
    """
    return step["logprob"] - step["candidates"].get(rival, math.nan)


def _judged(apart: float, largest: float, told: bool) -> str:
    if not told or math.isnan(largest):
        return UNTOLD
    return WITHIN if apart <= largest else BEYOND  # NaN: not among the best, and so further apart than any of them
