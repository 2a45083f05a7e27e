"""How good a draft is on held-out answers, by what a server will count.

At temperature 1 a proposal is kept with the overlap of the two distributions, the sum over all tokens of min(p, q). At
temperature 0 it is kept if it is the target's own token, and counts depend on where rounds begin: a round of k
proposals ends at the first refusal, and the next begins behind the target's correction. Inside a round all tokens
before an accepted one are the target's own, so reading the draft once along the target's answer gives what k steps by
itself would.
"""

import torch


def rounds(follows: list[bool], k: int) -> tuple[int, list[int]]:
    """(rounds of k that fit in one answer, how many kept their first, second, … proposal); `follows` is, by token,
    whether the draft names the next one.
    """
    at, count, kept = 0, 0, [0] * k
    while at + k <= len(follows):
        run = next((step for step in range(k) if not follows[at + step]), k)
        for step in range(run):
            kept[step] += 1
        count, at = count + 1, at + run + 1
    return count, kept


@torch.inference_mode()
def compare(teacher, student, example: dict, device: str) -> tuple[list[float], list[bool], list[bool]]:
    """By token of the answer: the overlap, whether both put the same token first, whether the draft puts the answer's
    first.
    """
    tokens = torch.tensor([example["tokens"]], device=device)
    places = slice(example["start"] - 1, tokens.shape[1] - 1)  # the row before a token predicts it
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        p, q = (torch.softmax(model(tokens).logits[0, places].float(), dim=-1) for model in (teacher, student))
    best = q.argmax(-1)
    answer = tokens[0, example["start"] :]
    return torch.minimum(p, q).sum(-1).tolist(), (best == p.argmax(-1)).tolist(), (best == answer).tolist()


def evaluate(teacher, student, examples: list[dict], ks: list[int], device: str) -> dict:
    """`acceptance` on answers at temperature 1, `agreement` on those at 0, each also by kind of prompt; rounds by k."""
    was_training = student.training
    student.eval()
    sums: dict[tuple, list[float]] = {}
    counted = {k: (0, [0] * k) for k in ks}
    for example in examples:
        overlap, agree, follows = compare(teacher, student, example, device)
        warm, source = example["temperature"] > 0, "own" if example["own"] else "written"
        for kind in ("all", source):
            entry = sums.setdefault((warm, kind), [0.0, 0])
            entry[0] += sum(overlap if warm else agree)
            entry[1] += len(overlap)
        if not warm:
            for k in ks:
                count, kept = rounds(follows, k)
                counted[k] = (counted[k][0] + count, [a + b for a, b in zip(counted[k][1], kept, strict=True)])
    student.train(was_training)
    return summary(sums, counted)


def summary(sums: dict[tuple, list[float]], counted: dict[int, tuple[int, list[int]]]) -> dict:
    """An evaluation for the log: `sums` has (total, places) by (warm, kind of prompt), `counted` (rounds, kept by
    position) by k.
    """
    mean = {key: total / places for key, (total, places) in sums.items()}
    by_k = {}
    for k, (count, kept) in counted.items():
        if count:
            by_k[str(k)] = {
                "rounds": count,
                "by_position": [value / count for value in kept],
                "acceptance_rate": sum(kept) / (k * count),
                "tokens_a_round": 1 + sum(kept) / count,
            }
    return {
        "acceptance": mean.get((True, "all")),
        "agreement": mean.get((False, "all")),
        "acceptance_by_source": {kind: mean[True, kind] for kind in ("own", "written") if (True, kind) in mean},
        "agreement_by_source": {kind: mean[False, kind] for kind in ("own", "written") if (False, kind) in mean},
        "positions": {
            "temperature 1": sums.get((True, "all"), [0, 0])[1],
            "temperature 0": sums.get((False, "all"), [0, 0])[1],
        },
        "rounds": by_k,
    }
