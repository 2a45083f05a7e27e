"""`Load`, one traffic pattern, and `Generator`, which drives it with `vllm bench serve` against every engine.

The generator is one long-lived worker in the engine's environment (`engine_side/bench_worker.py`), since its imports
take 7 to 15 seconds. What can mislead: `vllm bench serve` returns normally when every request failed; its result is
evidence to be checked.
"""

import contextlib
import json
import os
import random
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import engines
from ..engines import base, vllm
from ..engines.logs import tail
from ..environments import ENGINE_SIDE, Environment
from ..errors import LoadError, ServerError
from ..servers import client
from ..servers.fleet import Fleet
from . import prompts
from .datasets import Dataset
from .prompts import Exact

PERCENTILES = "50,95,99"


@dataclass(frozen=True)
class Load:
    """`prompts` requests from `dataset`, at most `concurrency` in flight, sent as fast as that allows.

    `output_tokens` is every answer's length (None: the dataset's own), or their mean: with `output_spread` they lie
    evenly within that share of it, in an order drawn for each cell, so that answers do not end together. With
    `ignore_eos` the model may not stop earlier. `temperature` None leaves sampling to the server's defaults."""

    concurrency: int
    prompts: int
    dataset: Dataset | Exact
    output_tokens: int | None = None
    temperature: float | None = None
    ignore_eos: bool = True
    seed: int = 42
    output_spread: float = 0.0

    @property
    def name(self) -> str:
        return ",".join(filter(None, (self.dataset.label, f"concurrency={self.concurrency}")))

    def identity(self) -> dict:
        identity = {**asdict(self), "dataset": self.dataset.identity()}
        return identity if self.output_spread else {k: v for k, v in identity.items() if k != "output_spread"}

    def seed_of(self, repeat: int) -> int:
        """Each cell draws its own prompts; all arms draw the same."""
        return random.Random(f"{self.seed}/{self.concurrency}/{repeat}").randrange(2**31)

    def lengths(self, repeat: int) -> list[int]:
        """The answers' lengths, their mean exactly `output_tokens`."""
        widest = self.output_spread * self.output_tokens
        offsets = (round(widest * (2 * place + 1 - self.prompts) / self.prompts) for place in range(self.prompts))
        lengths = [self.output_tokens + offset for offset in offsets]
        random.Random(f"{self.seed_of(repeat)}/lengths").shuffle(lengths)
        return lengths

    def longest(self, tokenizer: str, repeats: Sequence[int]) -> int:
        """Tokens of its longest request, prompt and answer, at most."""
        return self.dataset.longest(self, tokenizer, repeats)

    def arguments(
        self, *, url: str, model: str, tokenizer: str, repeat: int, api: Sequence[str] = vllm.BENCH
    ) -> list[str]:
        """The command line for `vllm bench serve`; `api` are its options for an engine's API."""
        words = [
            *api,
            "--base-url",
            url,
            "--model",
            model,
            "--tokenizer",
            tokenizer,
        ]
        words += self.dataset.arguments(self, tokenizer, repeat)
        words += [
            "--num-prompts",
            str(self.prompts),
            "--max-concurrency",
            str(self.concurrency),
            "--seed",
            str(self.seed_of(repeat)),
        ]
        words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", PERCENTILES]
        words += ["--save-detailed", "--disable-tqdm", "--ready-check-timeout-sec", "0", "--header", "Connection=close"]
        if self.output_spread:
            words += [Exact.length_option, "-1"]  # the lengths that stand in the file
        elif self.output_tokens is not None:
            words += [self.dataset.length_option, str(self.output_tokens)]
        if self.temperature is not None:
            words += ["--temperature", str(self.temperature)]
        if self.ignore_eos:
            words.append("--ignore-eos")
        return words


class Generator:
    """The worker, started at once and again when it has ended. A context manager; one load at a time.

    Loads and answers are numbered: a load that was given up is answered later, and its answer must not pass for the
    next one's."""

    def __init__(self, environment: Environment, log: Path):
        self.environment, self.log, self._loads = environment, log, 0
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [self.environment.python, ENGINE_SIDE / "bench_worker.py", self.log],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={
                **{name: value for name, value in os.environ.items() if name not in base.DROPPED},
                **vllm.caches(),
                "NO_COLOR": "1",
                "VLLM_LOGGING_COLOR": "0",
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "VLLM_NO_USAGE_STATS": "1",
                "PYTHONDONTWRITEBYTECODE": "",
                "CUDA_VISIBLE_DEVICES": "",
                "no_proxy": "127.0.0.1",
                "NO_PROXY": "127.0.0.1",
            },
        )
        self._buffer, self.import_s = b"", None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self) -> None:
        """End the worker, even during a load."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        prompts.forget()

    def wait_until_ready(self, timeout_s: float = 180) -> float:
        """Wait for the imports; returns their seconds."""
        if self.import_s is None:
            self.import_s = self._answer(time.monotonic() + timeout_s, None)["import_s"]
        return self.import_s

    def run(self, load: Load, server: Fleet, *, tokenizer: str, repeat: int = 0, timeout_s: float = 3600) -> dict:
        """Drive `load` against `server`; returns the worker's `{"result": …, "client": …}`.

        Where the data set asks for requests one by one, `watched` has the server's counters after each. Raises
        ServerError when the server dies meanwhile, LoadError when the load fails or does not end in time."""
        if self._process.poll() is not None:
            self.close()
            self._start()
        self.wait_until_ready()
        engine = engines.get(server.arm.engine)
        watched = engine.COUNTERS.watched
        arguments = load.arguments(
            url=server.url, model=server.arm.model.name, tokenizer=tokenizer, repeat=repeat, api=engine.BENCH
        )
        self._loads += 1
        with contextlib.suppress(BrokenPipeError):  # the answer says how the worker ended
            self._process.stdin.write(
                json.dumps(
                    {"id": self._loads, "arguments": arguments}
                    | ({"watch": list(watched.values())} if load.concurrency == 1 and load.dataset.sequence else {})
                ).encode()
                + b"\n"
            )
            self._process.stdin.flush()
        deadline = time.monotonic() + timeout_s
        while (answer := self._answer(deadline, server)).get("id") != self._loads:
            pass
        if answer.get("watched"):
            answer["watched"] = [{name: row[sample] for name, sample in watched.items()} for row in answer["watched"]]
        if not answer["ok"]:
            server.require_alive(client.LAST_WORDS_S)  # a server that is dying says why, the generator does not
            raise LoadError(f"the load {load.name} could not be driven", value=answer["error"], next=f"less {self.log}")
        return answer

    def _answer(self, deadline: float, server: Fleet | None) -> dict:
        while b"\n" not in self._buffer:
            if server is not None and not server.alive():
                raise server.death()
            if time.monotonic() > deadline:
                if server is None:
                    raise LoadError(
                        "the load generator did not get ready",
                        value="its imports took too long",
                        next=f"less {self.log}",
                    )
                raise ServerError(
                    f"{server.arm.name}: the load did not end",
                    reason="the server stopped answering within the time allowed",
                    log=server.log,
                    last_lines=tail(server.log),
                )
            if select.select([self._process.stdout], [], [], 0.2)[0]:
                chunk = os.read(self._process.stdout.fileno(), 1 << 20)
                if not chunk:
                    lines = "\n".join(f"    | {line}" for line in tail(self.log))
                    raise LoadError(
                        "the load generator ended",
                        value=f"exit code {self._process.wait()}\n{lines}",
                        next=f"less {self.log}",
                    )
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)
