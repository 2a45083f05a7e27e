"""`engine_side/bench_worker.py`'s protocol without vLLM: real requests, made-up times.

Requests go to the server as `vllm bench serve` sends them, and its notion of success is kept (a stream with one token
in it succeeded, however it ended). Times are made up (50 ms to the first token, 10 ms between tokens, no gaps), so that
no test of the harness depends on how busy the machine is. A load for the concurrency in CRASH ends the worker. A file
SWITCH plants a fault while it runs: [{"who": "load generator", "fault": "slow"}] (it reports that it was busy and late)
or "dies"."""

import argparse
import json
import os
import random
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

TTFT_S, ITL_S = 0.05, 0.01


def main() -> None:
    lines: Queue = Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    _note("worker")
    print(json.dumps({"ready": True, "import_s": 0.01}), flush=True)
    while True:
        request = json.loads(lines.get())
        try:
            answer = {"ok": True, **_run(request["arguments"], request.get("watch"))}
        except (Exception, SystemExit) as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer | {name: request[name] for name in ("id",) if name in request}), flush=True)


def _note(event: str, **about) -> None:
    if journal := os.environ.get("JOURNAL"):
        with open(journal, "a") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), **about}) + "\n")


def _read(lines: Queue) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in (
        "backend",
        "base-url",
        "endpoint",
        "model",
        "tokenizer",
        "dataset-name",
        "dataset-path",
        "percentile-metrics",
        "metric-percentiles",
        "header",
    ):
        parser.add_argument(f"--{name}")
    for name in (
        "num-prompts",
        "max-concurrency",
        "seed",
        "ready-check-timeout-sec",
        "sharegpt-output-len",
        "custom-output-len",
    ):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--temperature", type=float)
    for name in (
        "save-detailed",
        "disable-tqdm",
        "ignore-eos",
        "skip-chat-template",
        "disable-shuffle",
        "no-oversample",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args(arguments)


def _run(arguments: list[str], watch: list[str] | None = None) -> dict:
    options = _options(arguments)
    _note("load", concurrency=options.max_concurrency, prompts=options.num_prompts, seed=options.seed)
    fault = _switched()
    if os.environ.get("CRASH") == str(options.max_concurrency) or fault == "dies":
        print("Segmentation fault", file=sys.stderr)
        open(sys.argv[1], "a").write("Segmentation fault\n")
        os._exit(139)
    watched = [_counters(options, watch)] if watch else []

    def ask(row):
        answer = _ask(options, *row)
        if watch:
            watched.append(_counters(options, watch))
        return answer

    with ThreadPoolExecutor(options.max_concurrency) as pool:
        answers = list(pool.map(ask, _prompts(options)[: options.num_prompts]))
    free, starts = [0.0] * options.max_concurrency, []
    for answer in answers:
        slot = free.index(min(free))
        starts.append(1000.0 + free[slot])
        free[slot] += answer["ttft"] + sum(answer["itls"])
    duration, good = max(free) or 1e-6, [answer for answer in answers if answer["success"]]
    made, read = sum(answer["made"] for answer in good), sum(answer["read"] for answer in good)
    latencies = [answer["ttft"] + sum(answer["itls"]) for answer in good]
    mean = 1000 * sum(latencies) / len(good) if good else 0.0
    result = {
        "num_prompts": options.num_prompts,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "duration": duration,
        "total_input_tokens": read,
        "total_output_tokens": made,
        "request_throughput": len(good) / duration,
        "output_throughput": made / duration,
        "total_token_throughput": (made + read) / duration,
        "mean_ttft_ms": 1000 * TTFT_S if good else 0.0,
        "median_ttft_ms": 1000 * TTFT_S if good else 0.0,
        "median_tpot_ms": 1000 * ITL_S if good else 0.0,
        "mean_e2el_ms": mean,
        "median_e2el_ms": mean,
        "input_lens": [answer["read"] for answer in answers],
        "output_lens": [answer["made"] for answer in answers],
        "ttfts": [answer["ttft"] for answer in answers],
        "itls": [answer["itls"] for answer in answers],
        "start_times": starts,
        "generated_texts": [answer["text"] for answer in answers],
        "errors": [answer["error"] for answer in answers],
    }
    share, lag_ms = (0.97, 60.0) if fault == "slow" else (0.1, 1.0)
    return {
        "result": result,
        "client": {"wall_s": duration, "cpu_s": share * duration, "median_lag_ms": 0.1 * lag_ms, "p99_lag_ms": lag_ms},
    } | ({"watched": watched} if watch else {})


def _prompts(options) -> list[tuple[str, int]]:
    """Texts and the lengths of their answers: shuffled from ShareGPT's format, as they stand from JSON lines."""
    with open(options.dataset_path) as file:
        if options.dataset_name == "custom":
            length = options.custom_output_len  # -1: those that stand in the file
            rows = map(json.loads, file)
            return [(row["prompt"], row["output_tokens"] if length == -1 else length) for row in rows]
        rows = [row["conversations"] for row in json.load(file) if len(row["conversations"]) >= 2]
    random.Random(options.seed).shuffle(rows)
    return [(row[0]["value"], options.sharegpt_output_len or len(row[1]["value"].split())) for row in rows]


def _counters(options, names: list[str]) -> dict:
    with urllib.request.urlopen(options.base_url + "/metrics", timeout=600) as answer:
        lines = answer.read().decode().splitlines()
    found = {
        name: [float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
        for name in names
    }
    return {name: sum(values) if values else None for name, values in found.items()}


def _switched() -> str | None:
    try:
        with open(os.environ.get("SWITCH", "")) as file:
            switches = json.load(file)
    except OSError:
        return None
    return next((switch["fault"] for switch in switches if switch["who"] == "load generator"), None)


def _ask(options, prompt: str, length: int) -> dict:
    answer = {"success": False, "made": 0, "read": 0, "ttft": 0.0, "itls": [], "text": "", "error": ""}
    body = {
        "model": options.model,
        "prompt": prompt,
        "max_tokens": length,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= {
        name: value
        for name, value in (("temperature", options.temperature), ("ignore_eos", options.ignore_eos or None))
        if value is not None
    }
    request = urllib.request.Request(
        options.base_url + options.endpoint,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Connection": "close"},
    )
    chunks = 0
    try:
        with urllib.request.urlopen(request, timeout=600) as stream:
            for line in stream:
                content = line.decode().strip().removeprefix("data: ")
                if not content or content == "[DONE]":
                    continue
                data = json.loads(content)
                if data.get("choices"):
                    chunks += 1
                    answer["text"] += data["choices"][0].get("text") or ""
                elif data.get("usage"):
                    answer["made"], answer["read"] = data["usage"]["completion_tokens"], data["usage"]["prompt_tokens"]
    except urllib.error.HTTPError as error:
        error.close()
        return answer | {"error": error.reason}
    except OSError as error:
        return answer | {"error": f"{type(error).__name__}: {error}"}
    if not chunks:
        return answer | {"error": "Never received a valid chunk to calculate TTFT."}
    # Without a usage message vLLM counts the text's own tokens.
    return answer | {"success": True, "made": answer["made"] or chunks, "ttft": TTFT_S, "itls": [ITL_S] * (chunks - 1)}


if __name__ == "__main__":
    main()
