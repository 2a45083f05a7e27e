"""Why the draft model was slow on the H200: the published figures behind section 3's account, by the names in its
prose.

From `data/results/h200x1/section-3` (with an earlier run at the default temperature), `section-3-draft-graphs` (an
engine with two lines changed), and the profiles beside them (`rounds.json`, by `benchmarks/profile_round.py`).

    python -c "from serving_study.chapters.speculation import draft_cost; print(draft_cost.figures())"
"""

import pandas

from ... import files, paths
from ...analysis import comparisons
from ...results import reference, store
from ...theory import prediction_errors, speculation


def arms() -> pandas.DataFrame:
    """The newest cells of the H200's arms: baseline, look-up, drafts by k, baseline again."""
    frame = store.Store("h200x1", 3, paths.RESULTS_PUBLISHED).newest()
    columns = (frame["repeat_of"].notna(), frame["technique"], frame["arm"])
    rank = [
        (repeated, technique != "none", technique != "ngram", arm)
        for repeated, technique, arm in zip(*columns, strict=True)
    ]
    return (
        frame.assign(rank=rank).sort_values(["rank", "concurrency", "repeat"], ignore_index=True).drop(columns="rank")
    )


def in_blocks() -> pandas.DataFrame:
    """The cells of a later lease: fewer arms, each in several lives one after the other, with two twins."""
    return store.Store("h200x1", "3-blocks", paths.RESULTS_PUBLISHED).newest()


def profiles() -> dict[str, dict]:
    """The profiles of a few steps, by arm."""
    folder = paths.RESULTS_PUBLISHED / "h200x1"
    by_arm = files.read(folder / "section-3" / "rounds.json")
    return by_arm | {
        "draft-k3, its graphs on": files.read(folder / "section-3-draft-graphs" / "rounds.json")["draft-k3"]
    }


def by_formula() -> dict[str, float]:
    """The formula's result for the reference study's draft, from its weights' bytes and its acceptance at k = 1."""
    published = reference.load(3)
    weights = published[published["metric"] == "weights_gib"].groupby("arm")["value"].first()
    rates = published.query("metric == 'acceptance_rate' and concurrency == 1").groupby("arm")["value"].first()
    cost, alpha = weights["draft-k3"] / weights["baseline"] - 1, rates["draft-k1"]
    return {
        "theory_cost": float(cost),
        "theory_alpha": float(alpha),
        "theory_break_even": speculation.break_even(3, cost),
        "theory_speedup": float(speculation.speedup(alpha, 3, cost)),
    }


def figures() -> dict[str, float]:
    """Times in ms, gains as multiples, shares as fractions."""
    fast, graphs = arms(), store.Store("h200x1", "3-draft-graphs", paths.RESULTS_PUBLISHED).newest()
    earlier = (
        store.Store("h200x1", 3, paths.RESULTS_PUBLISHED)
        .cells()
        .query("temperature.isna() and concurrency == 1")
        .set_index("arm")["median_tpot_ms"]
    )
    tpot, better_tpot = (
        comparisons.summary(frame, "median_tpot_ms").set_index(["arm", "concurrency"]) for frame in (fast, graphs)
    )
    output, better = (
        comparisons.summary(frame, "output_throughput").set_index(["arm", "concurrency"])["mean"]
        for frame in (fast, graphs)
    )
    rounds = comparisons.rounds(fast, "baseline").set_index(["arm", "concurrency"])
    l4 = (
        reference.load(3)
        .query("host == 'l4x1' and metric == 'median_tpot_ms' and concurrency == 1")
        .set_index("arm")["value"]
    )
    seen = profiles()
    steps = seen["draft-k3"]["scopes_ms"]["gpu_model_runner: forward"]["count"]
    return {
        "h200_step": tpot.loc[("baseline", 1), "mean"],
        "h200_sync": earlier["baseline-synchronous"],
        "h200_round": rounds.loc[("draft-k3", 1), "step_ms"],
        "h200_draft_tpot": tpot.loc[("draft-k3", 1), "mean"],
        "h200_draft_cv": tpot.loc[("draft-k3", 4), "cv"],
        "h200_step_cv": tpot.loc[("baseline", 4), "cv"],
        "h200_graph_tpot": better_tpot.loc[("draft-k3", 1), "mean"],
        "h200_graph_gain": better["draft-k3", 64] / output["draft-k3", 64],
        "h200_same_draft": seen["draft-k3-same-vocabulary"]["scopes_ms"]["gpu_model_runner: draft"]["mean"],
        "h200_mapped_draft": seen["draft-k3"]["scopes_ms"]["gpu_model_runner: draft"]["mean"],
        "h200_launches": sum(
            count for call, count in seen["draft-k3"]["runtime_calls"].items() if "LaunchKernel" in call
        )
        / steps,
        "h200_busy": seen["draft-k3"]["gpu_busy_ms"] / seen["draft-k3"]["span_ms"],
        "h200_ngram_idle": earlier["ngram-k3"],
        "h200_ngram_gain": output["ngram-k3", 1] / output["baseline", 1],
        "h200_ngram_proposing": rounds.loc[("ngram-k3", 1), "proposing"],
        "l4_step": l4["baseline"],
        "l4_ngram_tpot": l4["ngram-k3"] / l4["baseline"],
        "h200_wait": prediction_errors.wait_shares("h200x1")["draft-k3, its graphs on"],
        **{f"l4_wait_k{k}": prediction_errors.wait_shares("l4x1")[f"draft-k{k}"] for k in (1, 3, 5)},
    }
