"""What a plan says of itself before anything starts: what is measured already, what cannot run here and why, how long
the rest takes, in which order servers live, and how small a difference the host's own noise lets it tell.

    >>> plan_table.show(sections.plan(3), store.Store("cpu", 3))   # doctest: +SKIP
"""

import math
import statistics
from collections.abc import Callable

from ..results.store import Store
from ..servers import preflight
from .plan import SPARE_GIB, Plan


def show(plan: Plan, known: Store, fresh: bool = False, say: Callable[[str], None] = print) -> float:
    """Print arms × cells: what is measured already, what cannot run here and why. Returns the estimated minutes."""
    pending = plan.pending(known, fresh)
    estimate = plan.estimate(known)
    loads = ", ".join(
        f"{load.concurrency}{f' {load.dataset.label}' if load.dataset.label else ''} ({load.prompts} prompts)"
        for load in plan.loads
    )
    say(f"section {plan.section} on {plan.host.name} with {plan.engine_in_words()}; results in {known.folder}")
    say(f"loads: concurrency {loads}")
    lives = f"{plan.lives} {'lives' if plan.lives > 1 else 'life'}"
    say(f"blocks: at least {plan.repeats} in {lives} of each arm's servers; {_order(plan, known)}")
    width = max(len(arm.name) for arm in plan.arms)
    for arm in plan.arms:
        labels = "".join(
            f", {label}"
            for label in (
                f"{arm.weights} weights" if arm.weights == "random" else "",
                "prescribed acceptance" if arm.acceptance == "prescribed" else "",
            )
            if label
        )
        if arm.unsupported:
            say(f"  {arm.name:<{width}}  cannot run here: {arm.unsupported}")
            continue
        left = pending.get(arm.name, [])
        total, missing = len(plan.loads_of(arm)) * plan.repeats, len(left)
        say(
            f"  {arm.name:<{width}}  {total} cells, {total - missing} measured already, {missing} to "
            f"measure, about {estimate.of_arm(left) / 60:.1f} min{labels}"
        )
    for note in plan.notes:
        say(f"  note: {note}")
    minutes = estimate.total(pending) / 60
    say(f"estimated: {minutes:.1f} minutes")
    if plan.minutes:
        say(f"then more blocks of what is not decided, until {plan.minutes:g} minutes are spent")
    if plan.decisions:
        say(f"to be told apart: {_outlook(plan, known)}")
    return minutes


def _order(plan: Plan, known: Store) -> str:
    """In which order servers live, and how many fit beside each other."""
    if not plan.side_by_side:
        return "lives one after the other" + (", every second time backwards" if plan.lives > 1 else "")
    measured = [
        start["figures"].get("memory_gib") or 0.0 for start in known.starts_by_key().values() if start["figures"]
    ]
    each = statistics.median(measured or [0.0]) or max(map(preflight.cpu_memory_gib, plan.supported), default=0.0)
    fit = max(2, int((plan.host.free_memory_gib - SPARE_GIB) / each)) if each else len(plan.supported)
    held = (
        f"about {min(fit, len(plan.supported))} of {len(plan.supported)} fit into {plan.host.free_memory_gib:.1f} GiB"
    )
    return f"servers side by side, all but one frozen: {held}, {each:.1f} GiB each" + (
        "; the others follow, each group beside the baseline" if fit < len(plan.supported) else ""
    )


def _outlook(plan: Plan, known: Store) -> str:
    """The effect that the plan's blocks can decide, by load, from the noise of those that this host had before."""
    frame = plan.frame(plan.stored(known))
    claims = plan.decisions(frame) if len(frame) else None
    claims = None if claims is None else claims[claims["half_width"].notna()]
    if claims is None or not len(claims):
        return "known after the first blocks"
    widths = claims["half_width"] * (claims["blocks"] / plan.repeats).astype(float) ** 0.5
    each = (
        f"{math.expm1(width):.0%} ({load})"
        for load, width in widths.groupby(claims["load"], sort=False).median().items()
    )
    blocks = f"{plan.repeats} block{'s' if plan.repeats > 1 else ''}"
    return f"with {blocks}, by this host's own noise, differences of about {', '.join(each)}"
