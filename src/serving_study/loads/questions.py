"""What a started server is asked beside its cells, so that one can see whether it does the same work as the others.

The same prompts at temperature 0 with the candidates of each token, and the server's own counters over them; the same
texts through its own tokenizer and back; and a few requests by a second client in turn with the load generator. What
can mislead: a server that cannot be asked a thing has `failed` with the reason in that thing's place.

    >>> questions.ask(wanted, arm, server, generator)["texts"][0]["text"]                      # doctest: +SKIP
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from .. import engines, files
from ..engines import base
from ..errors import EngineEnvironmentError, LoadError
from ..servers import answers, client, metrics
from ..servers.arm import Arm
from ..servers.fleet import Fleet
from . import Generator, Load, second_client

BENCH, OPENAI = "vllm bench serve", "openai"
ROUNDS_FROM = 1_000  # of repeats: no cell has such prompts


@dataclass(frozen=True)
class Questions:
    """`prompts` are answered with at most `tokens` tokens each. `rounds` times both clients send `load`, which has one
    request in flight; twins of an arm are not asked that.
    """

    prompts: tuple[str, ...]
    tokens: int
    load: Load
    rounds: int

    def identity(self) -> dict:
        """What decides the answers beside the arm."""
        return {
            "prompts": files.key(self.prompts),
            "tokens": self.tokens,
            "load": files.key(self.load.identity()),
            "rounds": self.rounds,
        }


def ask(wanted: Questions, arm: Arm, server: Fleet, generator: Generator) -> dict:
    """All of it: `texts`, `counters`, `tokenizer`, `clients`. Raises ServerError where the server died of it."""
    engine, before = engines.get(arm.engine), metrics.scrape(server.url)
    texts = _or_failed(lambda: answers.ask(server, wanted.prompts, wanted.tokens))
    counted = metrics.difference(before, metrics.scrape(server.url), engine.COUNTERS)
    record = {
        "texts": texts,
        "counters": {name: counted.get(name) for name in (base.PROMPT_TOKENS, base.GENERATED_TOKENS)},
        "tokenizer": _or_failed(lambda: answers.round_trips(server, engine.TOKENIZER, wanted.prompts))
        if engine.TOKENIZER
        else {"failed": f"{engine.TITLE} has no tokenizer over HTTP"},
        "clients": None if arm.repeat_of else _or_failed(lambda: _clients(wanted, arm, server, generator)),
    }
    server.require_alive(client.LAST_WORDS_S)
    return record


def _clients(wanted: Questions, arm: Arm, server: Fleet, generator: Generator) -> dict:
    """Medians of both clients, round by round, each first in every second round."""
    tokenizer, rows, version = str(arm.model.folder), [], None
    for number in range(wanted.rounds):
        repeat = ROUNDS_FROM + number
        for name in (BENCH, OPENAI) if number % 2 == 0 else (OPENAI, BENCH):
            if name == BENCH:
                answer = generator.run(wanted.load, server, tokenizer=tokenizer, repeat=repeat)["result"]
                names = ("ttfts", "itls", "input_lens", "output_lens")
                requests = list(zip(*(answer[name] for name in names), strict=True))
            else:
                answer = second_client.run(generator.environment, server, wanted.load, tokenizer, repeat=repeat)
                version, names = answer["version"], ("ttft_s", "itls_s", "prompt_tokens", "output_tokens")
                requests = [tuple(request[name] for name in names) for request in answer["requests"]]
            rows.append({"client": name, "round": number} | _medians(requests))
    return {"version": version, "rounds": rows}


def _medians(requests: list[tuple]) -> dict:
    """Of a round's requests (first token, gaps, tokens read and made): medians in ms, and sums of tokens."""
    ttfts, itls, read, made = zip(*requests, strict=True)
    gaps = [gap for of_request in itls for gap in of_request]
    return {
        "median_ttft_ms": 1000 * median(ttfts),
        "median_itl_ms": 1000 * median(gaps) if gaps else None,
        "requests": len(requests),
        "input_tokens": None if None in read else sum(read),
        "output_tokens": None if None in made else sum(made),
    }


def _or_failed(asked: Callable[[], list | dict]) -> list | dict:
    """What was asked, or why there is no answer."""
    try:
        return asked()
    except (OSError, ValueError, KeyError, TypeError, LoadError, EngineEnvironmentError) as error:
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
