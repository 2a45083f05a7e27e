"""A cell that passes every check of its certificate: tests change one thing in it."""

from serving_study.engines import base

N, TOKENS, CONCURRENCY = 8, 12, 2
TTFT, ITL = 0.05, 0.01
E2E = TTFT + ITL * (TOKENS - 1)
DURATION = N / CONCURRENCY * E2E


def good(technique="none", k=0):
    """A cell of eight requests, two at a time, and its records."""
    requests = [
        {
            "start_s": (index // CONCURRENCY) * E2E,
            "ttft_s": TTFT,
            "itls_s": [ITL] * (TOKENS - 1),
            "input_tokens": 30,
            "output_tokens": TOKENS,
            "error": None,
            "text_sane": True,
        }
        for index in range(N)
    ]
    speculation = {}
    if technique != "none":
        speculation = {
            "drafts": 40,
            "drafted_tokens": 40 * k,
            "accepted_tokens": 40,
            "acceptance_rate": 1 / k,
            "acceptance_length": 2.0,
            "acceptance_by_position": [0.6, 0.3, 0.1][:k],
        }
    cell = {
        "technique": technique,
        "k": k,
        "concurrency": CONCURRENCY,
        "asked": {"prompts": N, "output_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0},
        "result": {
            "completed": N,
            "failed": 0,
            "duration": DURATION,
            "total_input_tokens": 30 * N,
            "output_throughput": N * TOKENS / DURATION,
            "mean_e2el_ms": 1000 * E2E,
            "mean_ttft_ms": 50.0,
            "median_ttft_ms": 50.0,
        },
        "counters": {
            base.PROMPT_TOKENS: 240.0,
            base.FINISHED_REQUESTS: 8.0,
            base.PREFIX_HITS: 0.0,
            base.EXTERNAL_HITS: 0.0,
            base.PREFIX_QUERIES: 240.0,
            "finished": {"length": 8.0},
            base.TTFT: {"count": 8.0, "sum_s": 0.384},
        },
        "speculation": speculation,
        "client": {"wall_s": DURATION, "cpu_s": 0.1 * DURATION, "median_lag_ms": 0.1, "p99_lag_ms": 2.0},
        "machine": {"samples": 5, "cpu_busy": 0.5, "cpu_steal": 0.0, "load_average": 1.0},
        "server": {"owns_port": True, "alive": True, "pid": 1},
        "labels": {"host": "cpu", "weights": "real", "acceptance": None},
    }
    return cell, requests


GPU = {
    "samples": 5,
    "cpu_steal": 0.0,
    "gpus": [
        {
            "index": 0,
            "min_sm_clock_mhz": 1500,
            "max_sm_clock_mhz": 2040,
            "mean_utilisation": 95.0,
            "throttle_reasons": 0,
        }
    ],
}
