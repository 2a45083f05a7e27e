"""The checks that a cell must pass before its figure is shown, each from evidence and never from an exit code.

`certify` returns a verdict on a cell's evidence (counters, records, samples): `fail` when a check failed, `unknown`
when one could not be made, else `pass`. Unknown is not passed. A failed cell stays on disk and in the certificate
table, and takes part in no comparison.

    >>> certify(cell, requests, mechanism)["verdict"]              # doctest: +SKIP
    'pass'
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..engines import base

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"

INPUT_TOLERANCE = 0.01
ATTAINMENT = 0.99
COLD_HIT_SHARE = 0.0
# Least length of the steady window, in median latencies: in a shorter one no request lives wholly under the full load.
STEADY_LATENCIES = 1.0
# Least output rate of the whole run over the steady window's: below half, ramp and drain dominate the figure.
STEADY_RATE = 0.5
CLIENT_CPU_SHARE = 0.8
CLIENT_LAG_MS = 25.0
LOOKS_FOR_P99 = 1000  # at the client's event loop: ten of them then lie beyond
CLIENT_SHARE = 0.05  # of a request's time that the client may add; it bounds the error of throughput
TTFT_GAP_SHARE, TTFT_GAP_MS = 0.25, 25.0  # beyond it the client's TTFT is not the server's
STEAL_SHARE = 0.05
IDLE_CPU_S = 0.02  # two ticks of the kernel's clock
SANE_SHARE = 0.5
IDENTITY_TOLERANCE = 0.01
PLACES = 5  # decimals of seconds in the records; sums are rounded alike, or their last digits would decide
TOKENISE_MS = 0.01  # by token of a made prompt: the server tokenises before its clock starts
TEXT_TOKENS = 4  # shorter answers are not judged as text
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


class Mechanism(Protocol):
    """What a certificate needs of an arm's mechanism: its check, and whether the arm is about the cache, so that this
    check judges the hits.
    """

    about_cache: bool

    def check(self, cell: dict) -> Check: ...


def certify(cell: dict, requests: list[dict], mechanism: Mechanism) -> dict:
    """`{"verdict": …, "checks": […]}` for a cell, its requests' records and its arm's mechanism
    (`measure.mechanisms.certify` finds that).
    """
    checks = [check(cell, requests) for check in OF_TRAFFIC]
    checks += [_idle(cell)] if "idle" in cell else []
    checks += [_cold(cell, mechanism.about_cache), mechanism.check(cell)]
    checks += [check(cell, requests) for check in OF_FIGURES]
    outcomes = {check.outcome for check in checks if check.name not in PARTIAL}
    verdict = FAIL if FAIL in outcomes else UNKNOWN if UNKNOWN in outcomes else PASS
    return {"verdict": verdict, "checks": [check.as_dict() for check in checks]}


def why(certificate: dict) -> str:
    """The evidence of the failed checks in one line, else of the unknown ones; empty for a pass."""
    for outcome in (FAIL, UNKNOWN):
        evidence = [
            f"{check['name']}: {check['evidence']}" for check in certificate["checks"] if check["outcome"] == outcome
        ]
        if evidence:
            return "; ".join(evidence)
    return ""


def latency_s(request: dict) -> float:
    """End-to-end seconds of one request, from its record; summed exactly, since `sum` differs between Python
    versions.
    """
    return math.fsum((request["ttft_s"], *request["itls_s"]))


def steady_window(requests: list[dict], concurrency: int) -> tuple[float, float] | None:
    """(from, to) in seconds: while as many requests were in flight as the load allows; None if that never happened."""
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
    # After the first answer behind the last start, a free slot stays free.
    last_start = max(request["start_s"] for request in requests)
    return full, max(full, min(end for end in ends if end >= last_start))


def within(requests: list[dict], window: tuple[float, float]) -> dict:
    """What happened inside a window: `seconds`, `lived_s` (request-seconds in flight), `made` and `read` (output and
    input tokens).

    A request's tokens are spread evenly over its pieces (a round of speculation sends several in one); its prompt
    counts at its first token."""
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


def steady_rates(requests: list[dict], concurrency: int) -> dict | None:
    """Of the steady window alone: its `seconds`, how many `median_latencies` it lasts, `output_throughput` and
    `total_token_throughput` in tokens a second; None where the load was never full.
    """
    window = steady_window(requests, concurrency)
    if window is None:
        return None
    inside, typical = within(requests, window), statistics.median(map(latency_s, requests))
    seconds, made, read = inside["seconds"], inside["made"], inside["read"]
    return {
        "seconds": round(seconds, PLACES),
        "median_latencies": seconds / typical if typical else 0.0,
        "output_throughput": made / seconds if seconds else 0.0,
        "total_token_throughput": (made + read) / seconds if seconds else 0.0,
    }


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
    """The answers are our server's: the port is its own, and it counts as many as came; one that counts no requests, as
    many tokens.
    """
    counters, result, owns = cell["counters"], cell["result"], cell["server"]["owns_port"]
    served, done = counters.get(base.FINISHED_REQUESTS), result.get("completed")
    made, got = counters.get(base.GENERATED_TOKENS), result.get("total_output_tokens")
    if served is None and made is not None and got:
        agree = abs(made - got) <= INPUT_TOLERANCE * got
        counts = f"made {made:.0f} tokens, the client got {got}"
    else:
        agree = None if served is None else served == done
        counts = f"finished {served if served is None else int(served)}, the client {done}"
    evidence = f"port {'ours' if owns else 'not ours' if owns is False else 'owner unknown'}; our server {counts}"
    if False in (owns, agree):
        return Check("server", FAIL, evidence)
    return Check("server", UNKNOWN if None in (owns, agree) else PASS, evidence)


def _cold(cell, about_cache: bool) -> Check:
    """Caches must hold nothing of a cell's prompts before it; hits of an arm about the cache are judged by its
    mechanism.
    """
    hits, external, queries = (
        cell["counters"].get(name) for name in (base.PREFIX_HITS, base.EXTERNAL_HITS, base.PREFIX_QUERIES)
    )
    if hits is None:
        return Check("cold caches", UNKNOWN, "the server has no prefix-cache counters")
    evidence = f"{hits:.0f} device and {external or 0:.0f} external hits in {queries or 0:.0f} queried tokens"
    if about_cache:
        return Check(
            "cold caches",
            PASS,
            f"{evidence}; the arm is about the cache, so that the mechanism is where they are judged",
        )
    share = (hits + (external or 0)) / queries if queries else float(hits + (external or 0) > 0)
    return Check("cold caches", PASS if share <= COLD_HIT_SHARE else FAIL, evidence)


def _steady(cell, requests) -> Check:
    duration = cell["result"].get("duration") or 0
    steady = steady_rates(requests, cell["concurrency"])
    if steady is None or not duration:
        return Check("steady window", FAIL, f"never {cell['concurrency']} requests in flight")
    rate, latencies = steady["output_throughput"], steady["median_latencies"]
    whole = sum(request["output_tokens"] for request in requests) / duration
    good = latencies >= STEADY_LATENCIES and whole >= STEADY_RATE * rate
    evidence = (
        f"{steady['seconds']:.2f} of {duration:.2f} s with {cell['concurrency']} in flight, "
        f"{latencies:.1f} median latencies; {rate:.1f} tok/s then, {whole:.1f} over all"
    )
    return Check("steady window", PASS if good else FAIL, evidence)


def _one_token(cell) -> bool:
    return cell["asked"]["output_tokens"] == 1


def _tokenising_ms(cell) -> float:
    """The time that a made prompt's text may take before the server's clock starts; 0 for prompts of a data set."""
    return TOKENISE_MS * (cell.get("reuse") or {}).get("prompt_tokens", 0)


def _idle(cell: dict) -> Check:
    """Of the servers that live beside the measured one: that they stood still."""
    servers, spent_s = cell["idle"]["servers"], cell["idle"]["cpu_s"]
    evidence = f"{servers} other servers had {spent_s:g} s of processor time during the load"
    return Check("idle servers", FAIL if spent_s > IDLE_CPU_S else PASS, evidence)


def _client(cell, requests) -> Check:
    client, ttft = cell["client"], cell["counters"].get(base.TTFT)
    if not client.get("wall_s") or client.get("p99_lag_ms") is None:
        return Check("client", UNKNOWN, "the load generator did not report on itself")
    # The p99 of a short load rests on a stall or two, which are noise and no slow client.
    percentile = "p90" if client.get("looks", LOOKS_FOR_P99) < LOOKS_FOR_P99 else "p99"
    share, lag = client["cpu_s"] / client["wall_s"], client[f"{percentile}_lag_ms"]
    evidence = f"client used {share:.0%} of a core, its event loop late by {lag:.1f} ms ({percentile})"
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
    """Concerns TTFT alone: time that passes before the server sees a request is in no other figure of the client."""
    ttft, client_ms = cell["counters"].get(base.TTFT), cell["result"].get("mean_ttft_ms")
    if not ttft or not ttft["count"] or client_ms is None:
        return Check("TTFT", UNKNOWN, "the server has no histogram of it")
    server_ms = 1000 * ttft["sum_s"] / ttft["count"]
    good = client_ms - server_ms <= max(TTFT_GAP_MS, TTFT_GAP_SHARE * server_ms) + _tokenising_ms(cell)
    return Check(
        "TTFT",
        PASS if good else FAIL,
        f"mean {client_ms:.1f} ms here, {server_ms:.1f} ms by the server"
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
    """The records must add up to the result: tokens, and latency × occupancy (output_throughput = L / r)."""
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


OF_TRAFFIC: tuple[Callable[[dict, list[dict]], Check], ...] = (
    _requests,
    _attainment,
    _input_tokens,
    _identity_of_server,
)
OF_FIGURES: tuple[Callable[[dict, list[dict]], Check], ...] = (
    _text,
    _records,
    _steady,
    _client,
    _ttft,
    _clocks,
    _after,
)
PARTIAL = {"TTFT": "_ttft_ms"}  # checks that withhold only the figures with these name endings, not the cell


def withheld(certificate: dict | None) -> tuple[str, ...]:
    """The name endings of the figures that a partial check withholds from a cell."""
    return tuple(
        PARTIAL[check["name"]]
        for check in (certificate or {}).get("checks", ())
        if check["name"] in PARTIAL and check["outcome"] == FAIL
    )
