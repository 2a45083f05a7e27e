"""A server that speaks enough of vLLM's completions API for the harness and for the real `vllm bench serve`, and fails
on command.

    python fake_engine.py --port 8000 --model fake --fault short
    python fake_engine.py --listen 8000 --weights fake                  # the same in another engine's words

It streams words as tokens, counts under vLLM's counter names at /metrics, and prints a vLLM start's lines. A prompt's
tokens are its words unless TOKENIZER names a tokenizer.json. What happens is appended to JOURNAL, one JSON line an
event; `--lives 1` keeps a fault to the first life, counted there. A file SWITCH plants faults in the middle of a life:
[{"who": ARM, "fault": "short"}], with "after": 10 from the eleventh stream on. Standard library alone."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULTS = (
    # while it starts
    "oom dies-at-start slow-start silent probe-hangs probe-500 probe-garbage probe-empty wrong-model "
    # under load
    "dies-after oom-after hangs short error-event http-500 refuses-some garbage warm no-drafts "
    "spurious-drafts dead-after miscounts no-hits no-tier idle-rank lost-rank "
    "ignores-term escapee"  # when it ends
).split()
WORDS = "the river turns under an old bridge and every boat that passes slows down to listen".split()
GARBAGE = ["\ufffd", "}{", "\u0000", "##", "\ufffd\ufffd"]
START = """\
INFO 08-01 10:00:00 [api_server.py:100] vLLM API server version 0.32.0
INFO 08-01 10:00:01 [gpu_model_runner.py:2000] Model loading took 0.25 GiB memory and 0.500000 seconds
INFO 08-01 10:00:02 [kv_cache_utils.py:1000] GPU KV cache size: 12,288 tokens
INFO 08-01 10:00:02 [kv_cache_utils.py:1001] Maximum concurrency for 2,048 tokens per request: 6.00x
"""


@dataclass(frozen=True)
class Dialect:
    """In which words an engine is asked, counts, logs and names its processes."""

    port: str = "--port"
    model: str = "--model"
    ranks: str = "--tensor-parallel-size"
    health: str = "/health"
    empty: str = "/reset_prefix_cache"
    title: str = "VLLM::Worker_TP{}"
    start: str = START
    out_of_memory: str = (Path(__file__).with_name("fixtures") / "logs" / "gpu-oom.log").read_text()
    crash: str = (
        "ERROR 08-01 10:00:09 [core.py:900] EngineCore encountered a fatal error.\n"
        "RuntimeError: Worker failed with error 'illegal memory access'"
    )
    refusal: str = "EngineCore encountered an issue"
    sample: dict = field(default_factory=dict)  # vLLM's names of samples, and labels, to its own

    def counted(self, text: str) -> str:
        """A page of counters in its own names."""
        for name, own in self.sample.items():
            text = text.replace(name, own)
        return text


VLLM = Dialect()
OTHER = Dialect(
    "--listen",
    "--weights",
    "--shards",
    "/alive",
    "/forget",
    "other-shard-{}",
    "[other] weights loaded: 0.25 GiB\n[other] cache: 12,288 tokens for 6.00 requests\n",
    "[other] FATAL device memory exhausted: wanted 2.00 GiB, 0.50 GiB left\n",
    "[other] FATAL a shard is lost: access to memory that is not its own",
    "no shard answers",
    {
        "vllm:prompt_tokens": "other_read_tokens",
        "vllm:generation_tokens": "other_written_tokens",
        "vllm:prefix_cache_queries": "other_looked_up",
        "vllm:prefix_cache_hits": "other_found",
        "vllm:external_prefix_cache_hits": "other_fetched",
        "vllm:spec_decode_num_drafts": "other_guesses",
        "vllm:spec_decode_num_draft_tokens": "other_guessed_tokens",
        "vllm:spec_decode_num_accepted_tokens_per_pos": "other_kept_at",
        "vllm:spec_decode_num_accepted_tokens": "other_kept_tokens",
        "vllm:request_success": "other_answers",
        "vllm:time_to_first_token_seconds": "other_first_token_seconds",
        "vllm:e2e_request_latency_seconds": "other_answer_seconds",
        "vllm:request_queue_time_seconds": "other_waiting_seconds",
        "vllm:cache_config_info": "other_cache",
        "vllm:": "other_",
        "finished_reason=": "why=",
        "position=": "place=",
        "block_size=": "page=",
    },
)

RANK = """
import sys, time
for line in sys.stdin:
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass
    print(flush=True)
"""


class Rank:
    """A process that computes, named as its engine names its own: for each request that it is given it takes 20 ms of
    processor time.
    """

    def __init__(self, title: str):
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [title, "-c", RANK],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        note("child", child=self.process.pid)

    def work(self) -> None:
        with self.lock:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            self.process.stdout.readline()

    def lose(self) -> None:
        with self.lock:
            self.process.kill()
            self.process.wait()


class State:
    """The options, the counters, and what was asked so far."""

    def __init__(self, options, dialect: Dialect):
        self.options, self.dialect, self.lock, self.streams = options, dialect, threading.Lock(), 0
        self.own_fault = (
            options.fault if options.lives is None or _earlier_lives(options.fault) < options.lives else None
        )
        self.prompt = self.generated = self.finished = self.queries = self.hits = self.ttft_s = 0
        self.drafts = self.drafted = 0
        self.per_position = [0] * options.k
        self.ranks = [Rank(dialect.title.format(number)) for number in range(options.tensor_parallel_size or 0)]
        self.device, self.below, self.external = (
            {},
            set(),
            0,
        )  # blocks, each by all words up to its end; the oldest first

    @property
    def fault(self) -> str | None:
        """The option's, else the one that is switched on for this arm now."""
        switch = switched(os.environ.get("ARM"))
        return self.own_fault or (switch["fault"] if switch and self.streams > switch.get("after", -1) else None)

    def text(self) -> str:
        rows = {
            "vllm:prompt_tokens_total": self.prompt,
            "vllm:generation_tokens_total": self.generated,
            "vllm:prefix_cache_queries_total": self.queries,
            "vllm:prefix_cache_hits_total": self.hits,
            "vllm:num_preemptions_total": 0,
        }
        if self.options.tier:
            rows["vllm:external_prefix_cache_hits_total"] = self.external
        if self.options.k or self.fault == "spurious-drafts":
            rows |= {
                "vllm:spec_decode_num_drafts_total": self.drafts,
                "vllm:spec_decode_num_draft_tokens_total": self.drafted,
                "vllm:spec_decode_num_accepted_tokens_total": sum(self.per_position),
            }
        lines = []
        for name, value in rows.items():
            lines.append(f"# TYPE {name.removesuffix('_total')} counter")
            lines.append(f'{name}{{engine="0",model_name="{self.options.model}"}} {float(value)}')
        lines.append("# TYPE vllm:cache_config_info gauge")
        lines.append(f'vllm:cache_config_info{{block_size="{self.options.block}",engine="0"}} 1.0')
        lines.append("# TYPE vllm:request_success counter")
        for reason, value in (("stop", 0), ("length", self.finished)):
            lines.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}"}} {float(value)}')
        if self.options.k:
            lines.append("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter")
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{position}"}} {float(value)}'
                for position, value in enumerate(self.per_position)
            ]
        for name in (
            "vllm:time_to_first_token_seconds",
            "vllm:e2e_request_latency_seconds",
            "vllm:request_queue_time_seconds",
        ):
            spent = self.ttft_s if name.startswith("vllm:time") else 0.0
            lines.append(
                f'# TYPE {name} histogram\n{name}_bucket{{le="+Inf"}} {float(self.finished)}\n{name}_count '
                f"{float(self.finished)}\n{name}_sum {spent}"
            )
        return self.dialect.counted("\n".join(lines) + "\n")

    def compute(self) -> None:
        """The ranks' part of a request; a fault spares or ends the last one's."""
        fault = self.fault
        if fault == "lost-rank" and self.ranks[-1].process.poll() is None:
            self.ranks[-1].lose()
        for rank in self.ranks[:-1] if fault in ("idle-rank", "lost-rank") else self.ranks:
            rank.work()

    def found(self, text: str) -> tuple[int, int]:
        """Tokens of a prompt that the device and the tier below it give back; afterwards both hold its blocks, the
        device as many as it has room for.
        """
        words, size = _words_of(text), self.options.block
        blocks = [tuple(words[: end + size]) for end in range(0, len(words) - size + 1, size)]
        usable = blocks[: (len(words) - 1) // size]
        device = next((index for index, block in enumerate(usable) if block not in self.device), len(usable))
        external = (
            next(
                (index for index, block in enumerate(usable[device:]) if block not in self.below), len(usable) - device
            )
            if self.options.tier
            else 0
        )
        for block in blocks:
            self.device.pop(block, None)
            self.device[block] = True
            self.below.add(block)
        while len(self.device) > self.options.kv_blocks:
            self.device.pop(next(iter(self.device)))
        return (0 if self.fault == "no-hits" else device * size), (0 if self.fault == "no-tier" else external * size)

    def count(self, prompt: int, made: int, text: str = "") -> None:
        with self.lock:
            if self.options.caching:
                device, external = self.found(text)
                self.hits, self.external = self.hits + device, self.external + external
            self.prompt += prompt * 2 if self.fault == "miscounts" else prompt
            self.queries += prompt
            self.hits += prompt // 2 if self.fault == "warm" else 0
            self.generated += made
            self.finished += 1
            self.ttft_s += 0.048
            k = self.options.k
            if k and self.fault != "no-drafts" and made:
                rounds = max(1, made // 2)
                self.drafts += rounds
                self.drafted += rounds * k
                for position in range(k):
                    self.per_position[position] += rounds // (position + 2)
            if self.fault == "spurious-drafts":
                self.drafts, self.drafted = self.drafts + 1, self.drafted + 1


def note(event: str, **about) -> None:
    if journal := os.environ.get("JOURNAL"):
        with open(journal, "a") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), **about}) + "\n")


def switched(who: str | None) -> dict | None:
    """What is planted for `who` now."""
    try:
        switches = json.loads(Path(os.environ.get("SWITCH", "")).read_text())
    except OSError:
        return None
    return next((switch for switch in switches if switch["who"] == who), None)


def _earlier_lives(fault: str) -> int:
    journal = Path(os.environ.get("JOURNAL", ""))
    events = [json.loads(line) for line in journal.read_text().splitlines()] if journal.is_file() else []
    return sum(event["event"] == "server" and event["fault"] == fault for event in events)


def _tokens_of(prompt: str) -> int:
    return max(1, len(_words_of(prompt)))


def _words_of(prompt: str) -> list:
    place = os.environ.get("TOKENIZER")
    return _tokenizer(place).encode(prompt).ids if place else prompt.split()


_tokenizers: dict = {}


def _tokenizer(place: str):
    if place not in _tokenizers:
        from tokenizers import Tokenizer

        _tokenizers[place] = Tokenizer.from_file(place)
    return _tokenizers[place]


def _die(state, last_words: str) -> None:
    """End at once. Requests come two at a time, and only one of them may say why."""
    with state.lock:
        print(last_words, flush=True)
        os._exit(1)


def handler(state: State):
    refusal = {"error": {"message": state.dialect.refusal, "code": 500}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/metrics":
                return self._send(200, state.text().encode(), "text/plain; version=0.0.4; charset=utf-8")
            if self.path == state.dialect.health:
                return self._send(200, b"")
            if self.path == "/v1/models":
                entry = {"id": state.options.model, "object": "model", "max_model_len": state.options.context}
                return self._send(200, json.dumps({"object": "list", "data": [entry]}).encode())
            self._send(404, b"{}")

        def do_POST(self):
            if self.path == state.dialect.empty:
                with state.lock:
                    state.device.clear()
                return self._send(200, b'{"success": true}')
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions":
                return self._send(404, b'{"error": {"message": "not found"}}')
            if body["model"] != state.options.model:
                return self._send(
                    404, json.dumps({"error": {"message": f"The model `{body['model']}` does not exist."}}).encode()
                )
            (self._stream if body.get("stream") else self._whole)(body)

        def _whole(self, body):
            fault = state.fault
            note("probe", max_tokens=body["max_tokens"])
            if fault == "probe-hangs":
                time.sleep(3600)
            if fault == "probe-500" or fault == "dead-after" and state.streams:
                return self._send(500, json.dumps(refusal).encode())
            made = 0 if fault == "probe-empty" else body["max_tokens"]
            text = " ".join((GARBAGE if fault == "probe-garbage" else WORDS)[index % 5] for index in range(made))
            model = "somebody-else" if fault == "wrong-model" else state.options.model
            prompt = _tokens_of(body["prompt"])
            state.count(prompt, made, body["prompt"])
            usage = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
            self._send(
                200,
                json.dumps(
                    {"model": model, "choices": [{"index": 0, "text": text, "finish_reason": "length"}], "usage": usage}
                ).encode(),
            )

        def _stream(self, body):
            with state.lock:
                state.streams += 1
                number = state.streams
            fault = state.fault
            note(
                "stream",
                max_tokens=body["max_tokens"],
                temperature=body.get("temperature"),
                ignore_eos=body.get("ignore_eos"),
                prompt=body["prompt"][:60],
            )
            if fault == "dies-after" and number > state.options.after:
                _die(state, state.dialect.crash)
            if fault == "oom-after":
                _die(state, state.dialect.out_of_memory)
            while state.fault == "hangs" and number > state.options.after:
                time.sleep(0.05)
            if fault == "http-500" or fault == "refuses-some" and number % 2:
                return self._send(500, json.dumps(refusal).encode())
            wanted = body["max_tokens"]
            made = wanted // 2 if fault in ("short", "error-event") else wanted
            prompt = _tokens_of(body["prompt"])
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Connection", "close")
            self.end_headers()
            state.compute()
            words = GARBAGE if fault == "garbage" else WORDS
            for index in range(made):
                time.sleep(state.options.token_s)
                last = index + 1 == made and fault != "error-event"
                self._event(
                    {
                        "model": state.options.model,
                        "choices": [
                            {
                                "index": 0,
                                "text": words[index % len(words)] + " ",
                                "finish_reason": "length" if last else None,
                            }
                        ],
                    }
                )
            if fault == "error-event":
                state.count(prompt, made)
                return self._event(refusal)
            # Counted before the client hears of the end, so that the counters of a finished load are complete.
            state.count(prompt, made, body["prompt"])
            self._event(
                {
                    "model": state.options.model,
                    "choices": [],
                    "usage": {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made},
                }
            )
            self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, content):
            self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")
            self.wfile.flush()

        def _send(self, status, content, kind="application/json"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    return Handler


class Quiet(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128

    def handle_error(self, request, client_address):
        print(f"INFO client left: {sys.exc_info()[1]!r}", flush=True)


def painted(text: str, colours: int) -> str:
    """`text` as a program writes it that FORCE_COLOR was set for."""
    return re.sub(r"(\([A-Z]\w+ pid=\d+\)|[\d.,]+)", "\x1b[1;36m\\1\x1b[0m", text) if colours else text


def main() -> None:
    dialect = OTHER if OTHER.port in sys.argv else VLLM
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument(dialect.port, dest="port", type=int, required=True)
    parser.add_argument(dialect.model, dest="model", required=True)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--after", type=int, default=0, help="streams that succeed before dies-after and hangs")
    parser.add_argument("--lives", type=int, help="the fault goes away after so many lives")
    parser.add_argument("--k", type=int, default=0)
    parser.add_argument("--token-s", type=float, default=0.0)
    parser.add_argument("--caching", type=int, default=0, help="1: a prefix cache")
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--kv-blocks", type=int, default=768)
    parser.add_argument("--context", type=int, default=2048, help="tokens of the longest request")
    parser.add_argument("--tier", type=int, default=0, help="1: what the device loses is found below it")
    parser.add_argument(dialect.ranks, dest="tensor_parallel_size", type=int, help="so many processes beside this one")
    parser.add_argument("--colours", type=int, default=0, help="1: what is printed at the start has colours in it")
    parser.add_argument("--variant", help="means nothing: tells arms apart")
    state = State(options := parser.parse_args(), dialect)
    note("server", arm=os.environ.get("ARM"), port=options.port, fault=options.fault)
    if state.fault == "oom":
        print(painted(dialect.out_of_memory, options.colours), flush=True)
        sys.exit(1)
    if state.fault == "dies-at-start":
        print("something odd happened", flush=True)
        sys.exit(3)
    if state.fault == "slow-start":
        time.sleep(1.5)
    if state.fault == "silent":
        time.sleep(3600)
    if state.fault in ("ignores-term", "escapee"):
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=state.fault == "escapee")
        note("child", child=child.pid)
    if state.fault == "ignores-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(
        painted(dialect.start.replace("12,288", f"{options.block * options.kv_blocks:,}"), options.colours), flush=True
    )
    Quiet(("127.0.0.1", options.port), handler(state)).serve_forever()


if __name__ == "__main__":
    main()
