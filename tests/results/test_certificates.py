"""Each check passes on a good cell and fails, by name and with its evidence, on the fault that it is for."""

import copy

import pytest
from good_cells import DURATION, E2E, GPU, TOKENS, TTFT, N, good

from serving_study.engines import base
from serving_study.measure import mechanisms
from serving_study.results import certificates
from serving_study.results.certificates import FAIL, PASS, UNKNOWN


def changed(change, technique="none", k=0):
    cell, requests = copy.deepcopy(good(technique, k))
    change(cell, requests)
    found = mechanisms.certify(cell, requests)
    return found, {check["name"]: (check["outcome"], check["evidence"]) for check in found["checks"]}


@pytest.mark.parametrize(("technique", "k"), [("none", 0), ("ngram", 3), ("draft", 1), ("draft", 3)])
def test_a_good_cell_passes_every_check(technique, k):
    found = mechanisms.certify(*good(technique, k))
    assert [check["name"] for check in found["checks"] if check["outcome"] != PASS] == []
    assert found["verdict"] == PASS and certificates.why(found) == "" and len(found["checks"]) == 13
    assert all(check["evidence"] for check in found["checks"])


def at(path, value):
    """A change that puts `value` at a path of the cell."""

    def change(cell, requests):
        place = cell
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def each(**values):
    return lambda cell, requests: [request.update(values) for request in requests]


def last(**values):
    return lambda cell, requests: requests[-1].update(values)


def all_failed(cell, requests):
    cell["result"] |= {"completed": 0, "failed": N}
    cell["counters"][base.FINISHED_REQUESTS] = 0.0
    for request in requests:
        request.update(error="Not Found", output_tokens=0, itls_s=[], ttft_s=0.0)


def one_short(cell, requests):
    for request in requests:
        request["output_tokens"] = 6


def serial(cell, requests):
    """Never two in flight."""
    for index, request in enumerate(requests):
        request["start_s"] = 10.0 * index


def straggler(cell, requests):
    """One long request at the end leaves the load below its concurrency for most of the time."""
    requests[-1]["itls_s"] = [1.0] * (TOKENS - 1)
    cell["result"]["duration"] = requests[-1]["start_s"] + certificates.latency_s(requests[-1])


def gpus(**values):
    return at(("machine",), GPU | {"gpus": [GPU["gpus"][0] | values]})


FAULTS = {
    "404 for every request": (
        "requests",
        all_failed,
        "0 of 8 completed, 8 failed, 8 ended in an error, 8 empty (Not Found)",
    ),
    "one failed": ("requests", at(("result", "failed"), 1), "1 failed"),
    "fewer completed than asked": ("requests", at(("result", "completed"), 7), "7 of 8"),
    "one ended in an error": ("requests", last(error="EngineCore encountered an issue"), "1 ended in an error"),
    "one empty": ("requests", last(output_tokens=0), "1 empty"),
    "a record missing": ("requests", lambda cell, requests: requests.pop(), "8 of 8"),
    "half the tokens": ("output attainment", one_short, "48 of 96 tokens"),
    "too many tokens": ("output attainment", each(output_tokens=14), "112 of 96 tokens"),
    "stopped before its own length": (
        "output attainment",
        lambda cell, requests: (
            cell["asked"].update(output_tokens=None),
            cell["counters"].update(finished={"length": 5.0, "stop": 3.0}),
        ),
        "3 of them before their length",
    ),
    "input counted differently": (
        "input tokens",
        at(("counters", base.PROMPT_TOKENS), 140.0),
        "client counted 240, server 140",
    ),
    "another job's server": ("server", at(("server", "owns_port"), False), "not ours"),
    "answered by another": (
        "server",
        at(("counters", base.FINISHED_REQUESTS), 0.0),
        "our server finished 0, the client 8",
    ),
    "answered by another, of an engine that counts tokens alone": (
        "server",
        lambda cell, requests: (
            cell["counters"].pop(base.FINISHED_REQUESTS),
            cell["counters"].update({base.GENERATED_TOKENS: 0.0}),
            cell["result"].update(total_output_tokens=64),
        ),
        "our server made 0 tokens, the client got 64",
    ),
    "warm cache": ("cold caches", at(("counters", base.PREFIX_HITS), 16.0), "16 device and 0 external hits in 240"),
    "warm external cache": ("cold caches", at(("counters", base.EXTERNAL_HITS), 16.0), "16 external hits"),
    "hits that were not queried": (
        "cold caches",
        lambda cell, requests: cell["counters"].update({base.PREFIX_HITS: 1.0, base.PREFIX_QUERIES: 0.0}),
        "1 device",
    ),
    "drafts in the baseline": ("mechanism", at(("speculation",), {"drafts": 3}), "3 drafts, none wanted"),
    "garbage": ("text", each(text_sane=False), "0% of 8 answers"),
    "mostly garbage": (
        "text",
        lambda cell, requests: [request.update(text_sane=False) for request in requests[:5]],
        "38% of 8",
    ),
    "records that do not add up": ("records", at(("result", "output_throughput"), 200.0), "of the output throughput"),
    "latencies that do not add up": ("records", at(("result", "mean_e2el_ms"), 120.0), "latencies within"),
    "no tokens": ("records", at(("result", "output_throughput"), 0.0), "no tokens or no time"),
    "never full": ("steady window", serial, "never 2 requests in flight"),
    "a long drain": ("steady window", straggler, "tok/s then, 8.3 over all"),
    "no time under load": (
        "steady window",
        lambda cell, requests: [
            request.update(start_s=0.2 * min(index, 6) + 0.15 * (index == 7)) for index, request in enumerate(requests)
        ],
        "0.1 median latencies",
    ),
    "a neighbour that works": (
        "idle servers",
        lambda cell, requests: cell.update(idle={"servers": 3, "cpu_s": 0.4}),
        "3 other servers had 0.4 s",
    ),
    "client busy": ("client", at(("client", "cpu_s"), 0.9 * DURATION), "90% of a core"),
    "client late": ("client", at(("client", "p99_lag_ms"), 40.0), "late by 40.0 ms"),
    "client late in a short load": (
        "client",
        lambda cell, requests: cell["client"].update(looks=90, p90_lag_ms=40.0, p99_lag_ms=90.0),
        "late by 40.0 ms (p90)",
    ),
    "requests late at the server": (
        "client",
        at(("result", "mean_ttft_ms"), 70.0),
        "22.0 ms of a request's 160 ms pass before the server sees it",
    ),
    "thermal slowdown": ("clocks", gpus(throttle_reasons=0x44), "power cap reached; hardware thermal slowdown"),
    "hardware slowdown": ("clocks", gpus(throttle_reasons=0x8), "hardware slowdown"),
    "power brake": ("clocks", gpus(throttle_reasons=0x80), "power brake"),
    "steal": ("clocks", at(("machine", "cpu_steal"), 0.2), "20.0% of the processor taken"),
    "dead afterwards": ("alive afterwards", at(("server", "alive"), False), "no token came back"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_its_check(fault):
    name, change, evidence = FAULTS[fault]
    found, checks = changed(change)
    assert checks[name][0] == FAIL and evidence in checks[name][1]
    assert found["verdict"] == FAIL and f"{name}: {checks[name][1]}" in certificates.why(found)
    if fault not in (
        "404 for every request",
        "one failed",
        "fewer completed than asked",
        "one empty",
        "a record missing",
        "half the tokens",
        "too many tokens",
        "never full",
        "a long drain",
        "records that do not add up",
        "no tokens",
    ):
        assert [other for other, (outcome, _) in checks.items() if outcome != PASS] == [name]


def test_a_ttft_made_by_the_client_withholds_ttft_alone():
    cell, requests = good()
    cell["result"] |= {"mean_ttft_ms": 80.0, "mean_e2el_ms": 1000.0, "output_throughput": 96 / DURATION}
    for request in requests:
        request["itls_s"] = [(1.0 - TTFT) / (TOKENS - 1)] * (TOKENS - 1)
        request["start_s"] *= 1.0 / E2E
    cell["result"] |= {"duration": 4.0, "output_throughput": 24.0}
    found = mechanisms.certify(cell, requests)
    assert found["verdict"] == PASS and certificates.withheld(found) == ("_ttft_ms",)
    evidence = next(check["evidence"] for check in found["checks"] if check["name"] == "TTFT")
    assert evidence.startswith("mean 80.0 ms here, 48.0 ms by the server") and certificates.withheld(None) == ()


def beside_others():
    whole, requests, *rest = good()
    return whole | {"idle": {"servers": 2, "cpu_s": 0.0}}, requests, *rest


def test_every_check_has_a_planted_fault():
    assert {name for name, _, _ in FAULTS.values()} | set(certificates.PARTIAL) == {
        check["name"] for check in mechanisms.certify(*beside_others())["checks"]
    }


def draft(**values):
    return lambda cell, requests: cell["speculation"].update(values)


@pytest.mark.parametrize(
    ("technique", "change"),
    [
        ("draft", at(("speculation",), {})),
        ("ngram", at(("speculation",), {})),
        ("draft", draft(acceptance_by_position=[0.3, 0.6, 0.1])),
        ("draft", draft(acceptance_by_position=[0.6, 0.3])),
        ("draft", draft(acceptance_by_position=[1.2, 0.3, 0.1])),
        ("draft", draft(acceptance_rate=1.3)),
        ("draft", draft(drafted_tokens=100)),
        ("ngram", draft(drafted_tokens=121)),
    ],
)
def test_a_mechanism_that_did_not_happen_as_it_must(technique, change):
    found, checks = changed(change, technique, 3)
    assert checks["mechanism"][0] == FAIL and [name for name, (outcome, _) in checks.items() if outcome != PASS] == [
        "mechanism"
    ]


def test_ngram_may_draft_fewer_tokens_than_k():
    found, checks = changed(draft(drafted_tokens=70), "ngram", 3)
    assert checks["mechanism"][0] == PASS


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("output attainment", at(("asked", "ignore_eos"), False)),
        (
            "output attainment",
            lambda cell, requests: (cell["asked"].update(output_tokens=None), cell["counters"].update(finished={})),
        ),
        ("input tokens", at(("counters", base.PROMPT_TOKENS), None)),
        ("server", at(("server", "owns_port"), None)),
        ("server", at(("counters", base.FINISHED_REQUESTS), None)),
        ("cold caches", at(("counters", base.PREFIX_HITS), None)),
        ("text", each(text_sane=None)),
        ("client", at(("client",), {"wall_s": 1.0, "cpu_s": 0.1, "p99_lag_ms": None})),
        ("clocks", at(("machine", "cpu_steal"), None)),
        ("clocks", gpus(throttle_reasons=None)),
        ("clocks", at(("machine",), GPU | {"samples": 0})),
    ],
)
def test_a_check_that_could_not_be_made_is_unknown_and_not_passed(name, change):
    found, checks = changed(change)
    assert checks[name][0] == UNKNOWN and found["verdict"] == UNKNOWN
    assert certificates.why(found) == f"{name}: {checks[name][1]}"


def test_what_is_allowed():
    def within(cell, requests):
        cell["counters"][base.PROMPT_TOKENS] = 242.0  # under 1% apart
        cell["machine"] = GPU | {
            "gpus": [GPU["gpus"][0] | {"throttle_reasons": 0x4}]
        }  # a power cap is the card's normal state
        for request in requests[:4]:
            request["text_sane"] = False

    assert changed(within)[0]["verdict"] == PASS
    own_lengths = changed(at(("asked", "output_tokens"), None))[1]
    assert own_lengths["output attainment"] == (PASS, "8 requests finished, 0 of them before their length")
    assert (
        changed(
            lambda cell, requests: (cell["labels"].update(weights="random"), each(text_sane=False)(cell, requests))
        )[0]["verdict"]
        == PASS
    )
    assert changed(gpus())[0]["verdict"] == PASS


def test_failure_outweighs_unknown():
    def both(cell, requests):
        cell["server"] = {"owns_port": None, "alive": False}

    found, _ = changed(both)
    assert found["verdict"] == FAIL and certificates.why(found) == "alive afterwards: no token came back after the load"


def test_why_names_all_that_failed():
    found, _ = changed(
        lambda cell, requests: (cell["server"].update(alive=False), each(text_sane=False)(cell, requests))
    )
    assert certificates.why(found).split("; ") == [
        "text: 0% of 8 answers read as language",
        "alive afterwards: no token came back after the load",
    ]


def test_the_steady_window():
    request = {"ttft_s": 1.0, "itls_s": [1.0]}
    rows = [request | {"start_s": start} for start in (0.0, 0.5, 2.1, 2.6)]
    assert certificates.steady_window(rows, 2) == (0.5, pytest.approx(4.1))
    assert certificates.steady_window(rows, 4) is None
    assert certificates.steady_window(rows[:1], 4) == (0.0, 2.0)  # fewer requests than the load's concurrency


def test_a_last_token_is_inside_the_window_that_ends_with_it_whatever_the_last_digits_of_a_sum():
    # 0.1 + 0.2 is not 0.3 in binary: the request that ends the window has all of its tokens in it.
    one = {"start_s": 0.0, "ttft_s": 0.1, "itls_s": [0.2] * 7, "input_tokens": 3, "output_tokens": 8}
    for gaps in ([0.1, 0.2], [0.1] * 9, [0.07, 0.01, 0.29], [1.1, 2.2, 3.3]):
        request = one | {"itls_s": gaps, "output_tokens": len(gaps) + 1}
        window = certificates.steady_window([request], 1)
        assert window == (0.0, round(0.1 + sum(gaps), 5))
        assert certificates.within([request], window)["made"] == pytest.approx(len(gaps) + 1)
    # An end and a start at the same instant: the slot was free before it was filled.
    two = [one | {"itls_s": [0.1, 0.1]}, one | {"start_s": 0.3, "itls_s": [0.1]}]
    assert certificates.steady_window(two, 2) is None


def test_tiers_are_told_in_one_order_however_they_were_stored():
    cell = {
        "technique": "offload",
        "speculation": None,
        "asked": {"prompts": 1},
        "counters": {base.PREFIX_HITS: 16, base.EXTERNAL_HITS: 0, base.PROMPT_TOKENS: 32},
        "reuse": {"expected_tokens": 16, "block_tokens": 16, "capacity_tokens": 64, "prompt_tokens": 32},
    }
    tier = {"in_bytes": 2**20, "out_bytes": 0}
    said = [
        mechanisms.of(cell["technique"]).check(cell | {"moved": {"tiers": dict.fromkeys(names, tier)}}).evidence
        for names in (("memory", "disk"), ("disk", "memory"))
    ]
    assert said[0] == said[1] and said[0].index("memory: 1.0 MiB in") < said[0].index("disk: 1.0 MiB in")


def test_a_stall_of_the_client_in_a_short_load_is_noise():
    cell, requests = good()
    cell["client"] |= {"looks": 90, "p90_lag_ms": 2.0, "p99_lag_ms": 90.0}
    assert mechanisms.certify(cell, requests)["verdict"] == PASS
