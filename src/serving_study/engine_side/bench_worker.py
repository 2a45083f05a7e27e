"""One long-lived `vllm bench serve`: it imports once, then runs one load for each line that it reads.

    python bench_worker.py LOG

JSON lines on standard input ({"id": 1, "arguments": ["--model", …]}) are each answered with a JSON line of the same
id; the first line out says that it is ready. All that vLLM prints goes to LOG. Beside vLLM's result an answer has what
tells a slow client from a slow server: this process's processor time during the load, and how late its event loop woke
up. With "watch": ["NAME", …] it has the server's counters of these names before the first request and after each, for
requests that come one by one. Ends when standard input closes, even during a load.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import threading
import time
import traceback
from queue import Queue

LAG_INTERVAL_S = 0.02


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    lines: Queue = Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    began = time.perf_counter()
    from vllm.benchmarks import serve

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser
    except ImportError:
        Parser = argparse.ArgumentParser
    _remember_tokenizer(serve)
    parser = Parser()
    serve.add_cli_args(parser)
    print(json.dumps({"ready": True, "import_s": time.perf_counter() - began}), file=out)
    while True:
        request = json.loads(lines.get())
        try:
            answer = {"ok": True, **_run(serve, parser, request["arguments"], request.get("watch"))}
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"id": request.get("id"), **answer}), file=out)


def _run(serve, parser, arguments: list[str], names: list[str] | None = None) -> dict:
    ticks: list[tuple[float, float]] = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_INTERVAL_S)
            ticks.append((before, time.perf_counter() - before - LAG_INTERVAL_S))

    async def load() -> dict:
        watcher = asyncio.create_task(watch())
        try:
            return await serve.main_async(parser.parse_args(arguments))
        finally:
            watcher.cancel()

    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    with _watched(serve, names) as counters:
        result = asyncio.run(load())
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    lags = _during(ticks, result)
    client = {
        "wall_s": wall_s,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "median_lag_ms": 1000 * lags[len(lags) // 2] if lags else None,
        "p90_lag_ms": 1000 * lags[int(len(lags) * 0.90)] if lags else None,
        "p99_lag_ms": 1000 * lags[int(len(lags) * 0.99)] if lags else None,
        "looks": len(lags),
    }
    return {"result": result, "client": client} | ({"watched": counters} if names else {})


def _during(ticks: list[tuple[float, float]], result: dict) -> list[float]:
    """How late the event loop was while requests were under way, sorted. Before them the generator reads and tokenises
    prompts, after them it adds up, and is late for both: no request waits for that.
    """
    rows = list(zip(*(result.get(name) or () for name in ("start_times", "ttfts", "itls")), strict=False))
    began = min((start for start, *_ in rows), default=0.0)
    ended = max((start + ttft + sum(itls) for start, ttft, itls in rows), default=float("inf"))
    return sorted(lag for at, lag in ticks if at + LAG_INTERVAL_S + lag >= began and at <= ended)


@contextlib.contextmanager
def _watched(serve, names: list[str] | None):
    """The server's counters `names` before the first request and after each, summed over labels, for requests one by
    one.
    """
    kept, counters = dict(serve.ASYNC_REQUEST_FUNCS), []

    async def scrape(url: str, session) -> dict:
        async with session.get(url.split("/v1/")[0] + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        samples = {name: [line for line in lines if line.split("{")[0].split(" ")[0] == name] for name in names}
        return {
            name: sum(float(line.rsplit(" ", 1)[1]) for line in rows) if rows else None
            for name, rows in samples.items()
        }

    def watching(request):
        async def ask(request_func_input, session, *rest, **named):
            if not counters:
                counters.append(await scrape(request_func_input.api_url, session))
            output = await request(request_func_input, session, *rest, **named)
            counters.append(await scrape(request_func_input.api_url, session))
            return output

        return ask

    if names:
        serve.ASYNC_REQUEST_FUNCS.update({backend: watching(request) for backend, request in kept.items()})
    try:
        yield counters
    finally:
        serve.ASYNC_REQUEST_FUNCS.update(kept)


def _remember_tokenizer(serve) -> None:
    """Keep the tokenizer between loads: loading it takes most of a second."""
    load, kept = serve.get_tokenizer, {}

    def get_tokenizer(name, *positional, **named):
        key = (name, positional, tuple(sorted(named.items())))
        if key not in kept:
            kept[key] = load(name, *positional, **named)
        return kept[key]

    serve.get_tokenizer = get_tokenizer


def _read(lines: Queue) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
