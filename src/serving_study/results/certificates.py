"""The checks that a cell must pass before its figure is shown, each from evidence and never from an exit code.

`certify` takes a cell's evidence (counters, records, samples) and returns a verdict: `fail` when a check failed,
`unknown` when one could not be made, else `pass`. A failed cell stays on disk and in the certificate table, and is kept
out of every comparison. Unknown is not passed, and says what was missing.

    >>> certify(cell, requests)["verdict"]                         # doctest: +SKIP
    'pass'
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from ..engines import base

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"

INPUT_TOLERANCE = 0.01
ATTAINMENT = 0.99
COLD_HIT_SHARE = 0.0
# the steady window in median latencies: in a shorter one, no request lived its whole life under the load that the cell
# is named after
STEADY_LATENCIES = 1.0
# the whole run's output rate over the steady window's: below half, the figure is more of ramp and drain than of that
# load
STEADY_RATE = 0.5
CLIENT_CPU_SHARE = 0.8
CLIENT_LAG_MS = 25.0
CLIENT_SHARE = 0.05  # of a request's time that the client may add: throughput cannot be off by more
TTFT_GAP_SHARE, TTFT_GAP_MS = 0.25, 25.0  # beyond it the client's TTFT is not the server's
STEAL_SHARE = 0.05
SANE_SHARE = 0.5
ACTIVE_UTILISATION, ACTIVE_SHARE = (
    5.0,
    0.05,
)  # of a GPU in percent, and of the busiest rank's processor time: below it a rank took no part
IDENTITY_TOLERANCE = 0.01
REUSING = (
    "prefix",
    "offload",
)  # techniques whose arms are about the cache: on the device alone, or with a tier below it
TIERS = ("memory", "disk")  # in this order, which a stored cell does not keep
PLACES = 5  # of a second in the records: what is summed from them is rounded as they are, or its last digits decide
FITS = 0.9  # of the capacity: a working set up to it fits, one from its inverse on does not
CHUNKS = (
    0.8  # of the expected hits that an arm with a tier must have: tiers keep larger pieces than the device's blocks
)
TOKENISE_MS = 0.01  # of each token of a made prompt: the server turns the text into tokens before its own clock starts
TEXT_TOKENS = 4  # answers below it are no text to be judged
THROTTLE = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
POWER_CAP = 0x4


@dataclass(frozen=True)
class Check:
    """One check's outcome and the evidence for it."""

    name: str
    outcome: str
    evidence: str

    def as_dict(self) -> dict:
        return {"name": self.name, "outcome": self.outcome, "evidence": self.evidence}


def certify(cell: dict, requests: list[dict]) -> dict:
    """`{"verdict": …, "checks": […]}` for a cell and its requests' records."""
    checks = [check(cell, requests) for check in CHECKS]
    outcomes = {check.outcome for check in checks if check.name not in PARTIAL}
    verdict = FAIL if FAIL in outcomes else UNKNOWN if UNKNOWN in outcomes else PASS
    return {"verdict": verdict, "checks": [check.as_dict() for check in checks]}


def why(certificate: dict) -> str:
    """The failed checks' evidence in one line, else the unknown ones'; empty for a pass."""
    for outcome in (FAIL, UNKNOWN):
        found = [
            f"{check['name']}: {check['evidence']}" for check in certificate["checks"] if check["outcome"] == outcome
        ]
        if found:
            return "; ".join(found)
    return ""


def latency_s(request: dict) -> float:
    """End-to-end latency of one request, from its record; exact, since Python's own sum differs between versions."""
    return math.fsum((request["ttft_s"], *request["itls_s"]))


def steady_window(requests: list[dict], concurrency: int) -> tuple[float, float] | None:
    """Seconds from and to between which as many requests were in flight as the load allows; None when that never
    happened.
    """
    ends = [round(request["start_s"] + latency_s(request), PLACES) for request in requests]
    edges = sorted([(end, -1) for end in ends] + [(request["start_s"], 1) for request in requests])
    flying, full = 0, None
    for at, step in edges:
        flying += step
        if flying >= min(concurrency, len(requests)):
            full = at
            break
    if full is None:
        return None
    # From the first answer after the last start on, a free slot cannot be filled again.
    last_start = max(request["start_s"] for request in requests)
    return full, max(full, min(end for end in ends if end >= last_start))


def within(requests: list[dict], window: tuple[float, float]) -> dict:
    """What happened inside a window: `seconds`, `lived_s` (request-seconds in flight), `made` and `read` (output and
    input tokens).

    Tokens are spread evenly over a request's pieces (a round of speculation sends several in one); the prompt counts
    where the first token comes."""
    low, high = window
    inside = lambda at: low < round(at, PLACES) <= high  # noqa: E731
    lived = made = read = 0.0
    for request in requests:
        start, end = request["start_s"], request["start_s"] + latency_s(request)
        lived += max(0.0, min(high, end) - max(low, start))
        at, each = start + request["ttft_s"], (request["output_tokens"] - 1) / max(1, len(request["itls_s"]))
        if inside(at):
            made, read = made + request["output_tokens"] - each * len(request["itls_s"]), read + request["input_tokens"]
        for gap in request["itls_s"]:
            at += gap
            made += each * inside(at)
    return {"seconds": high - low, "lived_s": lived, "made": made, "read": read}


def _requests(cell, requests) -> Check:
    asked, result = cell["asked"]["prompts"], cell["result"]
    errors = [request["error"] for request in requests if request["error"]]
    empty = sum(request["output_tokens"] == 0 for request in requests)
    done, failed = result.get("completed"), result.get("failed")
    evidence = f"{done} of {asked} completed, {failed} failed, {len(errors)} ended in an error, {empty} empty" + (
        f" ({errors[0][:120]})" if errors else ""
    )
    good = done == asked == len(requests) and not failed and not errors and not empty
    return Check("requests", PASS if good else FAIL, evidence)


def _attainment(cell, requests) -> Check:
    if not cell["asked"]["ignore_eos"]:
        return Check("output attainment", UNKNOWN, "the model was free to stop early (ignore_eos is off)")
    wanted = cell["asked"]["output_tokens"]
    made = sum(request["output_tokens"] for request in requests)
    if wanted is not None:
        share = made / (wanted * len(requests)) if requests else 0
        return Check(
            "output attainment",
            PASS if ATTAINMENT <= share <= 2 - ATTAINMENT else FAIL,
            f"{made} of {wanted * len(requests)} tokens",
        )
    reasons = cell["counters"].get("finished") or {}
    if not reasons:
        return Check("output attainment", UNKNOWN, "the server does not count how requests finished")
    stopped = sum(count for reason, count in reasons.items() if reason != "length")
    return Check(
        "output attainment",
        PASS if not stopped else FAIL,
        f"{sum(reasons.values()):.0f} requests finished, {stopped:.0f} of them before their length",
    )


def _input_tokens(cell, requests) -> Check:
    client, server = cell["result"].get("total_input_tokens"), cell["counters"].get(base.PROMPT_TOKENS)
    if not client or server is None:
        return Check("input tokens", UNKNOWN, f"client {client}, server {server}")
    return Check(
        "input tokens",
        PASS if abs(server - client) <= INPUT_TOLERANCE * client else FAIL,
        f"client counted {client}, server {server:.0f}",
    )


def _identity_of_server(cell, requests) -> Check:
    served, done, owns = (
        cell["counters"].get(base.FINISHED_REQUESTS),
        cell["result"].get("completed"),
        cell["server"]["owns_port"],
    )
    evidence = (
        f"port {'ours' if owns else 'not ours' if owns is False else 'owner unknown'}; our server "
        f"finished {served if served is None else int(served)}, the client {done}"
    )
    if owns is False or (served is not None and served != done):
        return Check("server", FAIL, evidence)
    return Check("server", UNKNOWN if owns is None or served is None else PASS, evidence)


def _cold(cell, requests) -> Check:
    """Caches hold nothing of a cell's prompts before it; of an arm that is about the cache, `_reuse` compares the hits
    with those expected.
    """
    hits, external, queries = (
        cell["counters"].get(name) for name in (base.PREFIX_HITS, base.EXTERNAL_HITS, base.PREFIX_QUERIES)
    )
    if hits is None:
        return Check("cold caches", UNKNOWN, "the server has no prefix-cache counters")
    evidence = f"{hits:.0f} device and {external or 0:.0f} external hits in {queries or 0:.0f} queried tokens"
    if cell["technique"] in REUSING:
        return Check(
            "cold caches",
            PASS,
            f"{evidence}; the arm is about the cache, so that the mechanism is where they are judged",
        )
    share = (hits + (external or 0)) / queries if queries else float(hits + (external or 0) > 0)
    return Check("cold caches", PASS if share <= COLD_HIT_SHARE else FAIL, evidence)


def _mechanism(cell, requests) -> Check:
    speculation, technique, k = cell["speculation"] or {}, cell["technique"], cell["k"]
    drafts, drafted = speculation.get("drafts", 0), speculation.get("drafted_tokens", 0)
    if technique in REUSING and not drafts:
        return _reuse(cell)
    if technique == "parallel" and not drafts:
        return _parallel(cell)
    if technique in ("none", "parallel", *REUSING):
        return Check("mechanism", PASS if not drafts else FAIL, f"{drafts} drafts, none wanted")
    positions = speculation.get("acceptance_by_position", [])
    evidence = (
        f"{drafts} drafts, {drafted} tokens drafted, {speculation.get('accepted_tokens', 0)} "
        f"accepted; by position {', '.join(f'{rate:.3f}' for rate in positions) or 'none'}"
    )
    if not drafts:
        return Check("mechanism", FAIL, evidence)
    falling = all(later <= earlier + 1e-9 for earlier, later in zip(positions, positions[1:], strict=False))
    within = (
        drafted <= drafts * k and all(0 <= rate <= 1 for rate in positions) and 0 <= speculation["acceptance_rate"] <= 1
    )
    every = technique != "draft" or drafted == drafts * k
    return Check("mechanism", PASS if falling and within and every and len(positions) == k else FAIL, evidence)


def _reuse(cell) -> Check:
    """Hits are those of arithmetic: whole blocks of each prefix that was there before. Where a working set is above the
    capacity, the device must have lost some of it; what a tier below gave back makes up for it in the arms that have
    one, and nowhere else.
    """
    about, counters, tier = cell.get("reuse") or {}, cell["counters"], cell["technique"] == "offload"
    hits, external, expected = (
        counters.get(base.PREFIX_HITS),
        counters.get(base.EXTERNAL_HITS) or 0,
        about.get("expected_tokens"),
    )
    if expected is None or hits is None:
        return Check(
            "mechanism",
            UNKNOWN,
            f"expected hits {expected}, device hits {hits}: the server's block size or its counters are missing",
        )
    needed, capacity = about.get("working_set_tokens"), about["capacity_tokens"]
    evidence = (
        f"{hits:.0f} device and {external:.0f} external hits, {expected} tokens repeated in blocks "
        f"of {about['block_tokens']}"
    )
    evidence += f"; working set of {needed} tokens, capacity of {capacity}" if needed else ""
    moved = cell.get("moved") or {}
    evidence += "".join(
        f"; {tier}: {_mib(found['in_bytes'])} in and {_mib(found['out_bytes'])} out"
        for tier, found in sorted(moved.get("tiers", {}).items(), key=lambda tier: TIERS.index(tier[0]))
    )
    if external and moved.get("out_bytes") == 0:
        return Check("mechanism", FAIL, f"{evidence}: hits were counted and nothing came back")
    read, asked = counters.get(base.PROMPT_TOKENS), about["prompt_tokens"] * cell["asked"]["prompts"]
    if read is not None and read != asked:
        return Check(
            "mechanism",
            FAIL,
            f"prompts of {about['prompt_tokens']} tokens asked for, {asked} in all, {read:.0f} read; {evidence}",
        )
    if not tier and external:
        return Check("mechanism", FAIL, f"{evidence}: this arm has no tier below the device")
    if needed is None or not capacity or needed <= FITS * capacity:
        good = hits + external >= CHUNKS * expected and hits + external <= expected if tier else hits == expected
        return Check("mechanism", PASS if good else FAIL, evidence)
    if needed < capacity / FITS:
        return Check(
            "mechanism",
            PASS if hits + external <= expected else FAIL,
            f"{evidence}: as large as the cache, so that what stays is not told beforehand",
        )
    evicted = hits < expected
    good = evicted and (not tier or 0 < external <= expected)
    return Check("mechanism", PASS if good else FAIL, f"{evidence}; {'evicted' if evicted else 'nothing was evicted'}")


def _mib(size_bytes: float | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**20:,.1f} MiB"


def _parallel(cell) -> Check:
    """As many processes compute as were asked for, and as many of them took part as requests in flight can reach."""
    about, gpus = cell.get("ranks") or {}, cell["machine"].get("gpus")
    processes, wanted = about.get("processes", []), about.get("wanted")
    if not wanted:
        return Check("mechanism", UNKNOWN, "the server's processes were not looked at")
    needed = wanted // about["copies"] * min(about["copies"], cell["concurrency"])
    if gpus is not None:
        seen = [gpu["mean_utilisation"] for gpu in gpus[:wanted]]
        needed = min(needed, len(gpus))  # those of other nodes are not seen from here
        active = (
            None
            if None in seen or not cell["machine"]["samples"]
            else sum(share >= ACTIVE_UTILISATION for share in seen)
        )
        evidence = f"GPUs at {', '.join('unknown' if share is None else f'{share:.0f} %' for share in seen)}"
        evidence += "".join(
            f"; GPU {index} sent {found['sent'] / 2**30:.2f} GiB over NVLink"
            for index, found in (about.get("nvlink_bytes") or {}).items()
        )
    else:
        busiest = max((process["cpu_s"] for process in processes), default=0.0)
        active = sum(process["cpu_s"] >= ACTIVE_SHARE * busiest for process in processes) if busiest else None
        evidence = ", ".join(
            f"{process['name'].split('::')[-1]} {process['cpu_s']:.1f} s of processor" for process in processes
        )
    evidence = (
        f"{len(processes)} of {wanted} ranks have a process; "
        f"{'unknown' if active is None else active} active, {needed} needed ({evidence or 'none'})"
    )
    if processes and len(processes) != wanted or active is not None and active < needed:
        return Check("mechanism", FAIL, evidence)
    return Check("mechanism", PASS if processes and active is not None else UNKNOWN, evidence)


def _steady(cell, requests) -> Check:
    duration = cell["result"].get("duration") or 0
    window = steady_window(requests, cell["concurrency"])
    if window is None or not duration:
        return Check("steady window", FAIL, f"never {cell['concurrency']} requests in flight")
    inside, typical = within(requests, window), statistics.median(map(latency_s, requests))
    steady = inside["made"] / inside["seconds"] if inside["seconds"] else 0.0
    whole = sum(request["output_tokens"] for request in requests) / duration
    good = typical > 0 and inside["seconds"] >= STEADY_LATENCIES * typical and whole >= STEADY_RATE * steady
    evidence = (
        f"{inside['seconds']:.2f} of {duration:.2f} s with {cell['concurrency']} in flight, "
        f"{inside['seconds'] / typical if typical else 0:.1f} median latencies; {steady:.1f} tok/s then, "
        f"{whole:.1f} over all"
    )
    return Check("steady window", PASS if good else FAIL, evidence)


def _one_token(cell) -> bool:
    return cell["asked"]["output_tokens"] == 1


def _tokenising_ms(cell) -> float:
    """What the text of a made prompt may take before the server's clock starts; 0 where prompts are a data set's."""
    return TOKENISE_MS * (cell.get("reuse") or {}).get("prompt_tokens", 0)


def _client(cell, requests) -> Check:
    client, ttft = cell["client"], cell["counters"].get(base.TTFT)
    if not client.get("wall_s") or client.get("p99_lag_ms") is None:
        return Check("client", UNKNOWN, "the load generator did not report on itself")
    share, lag = client["cpu_s"] / client["wall_s"], client["p99_lag_ms"]
    evidence = f"client used {share:.0%} of a core, its event loop late by {lag:.1f} ms (p99)"
    gap_bad = False
    if ttft and ttft["count"] and cell["result"].get("mean_ttft_ms"):
        gap, whole = (
            cell["result"]["mean_ttft_ms"] - 1000 * ttft["sum_s"] / ttft["count"],
            cell["result"].get("mean_e2el_ms"),
        )
        gap_bad = (
            bool(whole) and gap - _tokenising_ms(cell) > CLIENT_SHARE * whole and not _one_token(cell)
        )  # one token's gap is judged as TTFT
        evidence += f"; {gap:.1f} ms of a request's {whole or 0:.0f} ms pass before the server sees it"
    typical = cell["result"].get("median_ttft_ms") or 0
    bad = share > CLIENT_CPU_SHARE or lag > max(CLIENT_LAG_MS, 0.25 * typical) or gap_bad
    return Check("client", FAIL if bad else PASS, evidence)


def _ttft(cell, requests) -> Check:
    """Bears on TTFT alone: what passes before the server sees a request is in the client's TTFT and nowhere else."""
    ttft, mine = cell["counters"].get(base.TTFT), cell["result"].get("mean_ttft_ms")
    if not ttft or not ttft["count"] or mine is None:
        return Check("TTFT", UNKNOWN, "the server has no histogram of it")
    theirs = 1000 * ttft["sum_s"] / ttft["count"]
    good = mine - theirs <= max(TTFT_GAP_MS, TTFT_GAP_SHARE * theirs) + _tokenising_ms(cell)
    return Check(
        "TTFT",
        PASS if good else FAIL,
        f"mean {mine:.1f} ms here, {theirs:.1f} ms by the server"
        + ("" if good else ": TTFT is withheld, the cell's other figures stand"),
    )


def _clocks(cell, requests) -> Check:
    machine = cell["machine"]
    if "gpus" in machine:
        masks = [gpu["throttle_reasons"] for gpu in machine["gpus"]]
        if not machine["samples"] or None in masks:
            return Check("clocks", UNKNOWN, "NVML did not say why clocks were lowered")
        reasons = sorted({name for bit, name in THROTTLE.items() for mask in masks if mask & bit})
        clocks = ", ".join(
            f"GPU {gpu['index']} {gpu['min_sm_clock_mhz']}–{gpu['max_sm_clock_mhz']} MHz"
            + ("" if gpu["mean_utilisation"] is None else f" at {gpu['mean_utilisation']:.0f} %")
            for gpu in machine["gpus"]
        )
        capped = "; power cap reached" if any(mask & POWER_CAP for mask in masks) else ""
        return Check(
            "clocks", FAIL if reasons else PASS, f"{clocks}{capped}" + (f"; {', '.join(reasons)}" if reasons else "")
        )
    steal = machine.get("cpu_steal")
    if steal is None:
        return Check("clocks", UNKNOWN, "no processor times")
    return Check(
        "clocks",
        PASS if steal <= STEAL_SHARE else FAIL,
        f"load average {machine.get('load_average')}, {steal:.1%} of the processor taken by other machines",
    )


def _records(cell, requests) -> Check:
    """The records add up to the result: tokens, and latency × occupancy (output_throughput = L / r)."""
    result, duration = cell["result"], cell["result"].get("duration")
    tokens = sum(request["output_tokens"] for request in requests)
    if not duration or not tokens or not result.get("output_throughput"):
        return Check("records", FAIL, "no tokens or no time")
    total = math.fsum(map(latency_s, requests))
    occupancy, residence = total / duration, total / tokens
    error = abs(occupancy / residence / result["output_throughput"] - 1)
    latency_error = abs(1000 * total / len(requests) / result["mean_e2el_ms"] - 1) if result.get("mean_e2el_ms") else 0
    good = error <= IDENTITY_TOLERANCE and latency_error <= IDENTITY_TOLERANCE
    return Check(
        "records",
        PASS if good else FAIL,
        f"L = {occupancy:.3f}, r = {1000 * residence:.3f} ms, L/r within {error:.2%} of the output "
        f"throughput, latencies within {latency_error:.2%}",
    )


def _text(cell, requests) -> Check:
    if cell["labels"]["weights"] == "random":
        return Check("text", PASS, "random weights: no language is expected")
    if 0 < (cell["asked"]["output_tokens"] or 0) < TEXT_TOKENS:
        return Check(
            "text",
            PASS,
            f"answers of {cell['asked']['output_tokens']} tokens are no text; the start's first answer was judged",
        )
    judged = [request["text_sane"] for request in requests if request["text_sane"] is not None]
    if not judged:
        return Check("text", UNKNOWN, "no text was kept")
    share = sum(judged) / len(judged)
    return Check(
        "text", PASS if share >= SANE_SHARE else FAIL, f"{share:.0%} of {len(judged)} answers read as language"
    )


def _after(cell, requests) -> Check:
    return Check(
        "alive afterwards",
        PASS if cell["server"]["alive"] else FAIL,
        "one more token came back" if cell["server"]["alive"] else "no token came back after the load",
    )


CHECKS: tuple[Callable[[dict, list[dict]], Check], ...] = (
    _requests,
    _attainment,
    _input_tokens,
    _identity_of_server,
    _cold,
    _mechanism,
    _text,
    _records,
    _steady,
    _client,
    _ttft,
    _clocks,
    _after,
)
PARTIAL = {
    "TTFT": "_ttft_ms"
}  # checks that withhold some of a cell's figures, by the end of their names, and not the cell


def withheld(certificate: dict | None) -> tuple[str, ...]:
    """The ends of the names of those figures of a cell that a check of theirs alone keeps back."""
    return tuple(
        PARTIAL[check["name"]]
        for check in (certificate or {}).get("checks", ())
        if check["name"] in PARTIAL and check["outcome"] == FAIL
    )
