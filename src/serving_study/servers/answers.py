"""What a started server answers to given prompts at temperature 0: the text, token by token with the candidates that it
weighed, and what its own tokenizer makes of a text.

Answers come one after the other, so that no batch changes what is computed. What can mislead: a token that is a part of
a character has no text of its own (empty, or a replacement character), so that tokens are compared by texts where both
can be read.

    >>> answers.ask(server, ["The capital of France is"], 8)[0]["text"]                        # doctest: +SKIP
    ' Paris.'
"""

from collections.abc import Sequence

from ..engines.base import TokenizerApi
from . import client
from .fleet import Fleet

CANDIDATES = 5  # most probable tokens that are asked for beside the chosen one
UNREADABLE = ("", "\ufffd")


def ask(server: Fleet, prompts: Sequence[str], tokens: int, timeout_s: float = 300) -> list[dict]:
    """One answer a prompt: `text`, `finish`, `prompt_tokens` and `output_tokens` by the server's usage, and `steps`.

    Raises OSError or ValueError for a request that fails, KeyError for an answer of another form."""
    rows = []
    for prompt in prompts:
        answer = client.complete(
            server.url, server.arm.model.name, prompt, tokens, timeout_s, logprobs=CANDIDATES, seed=0
        )
        choice, usage = answer["choices"][0], answer["usage"]
        rows.append(
            {
                "text": choice["text"],
                "finish": choice.get("finish_reason"),
                "prompt_tokens": usage["prompt_tokens"],
                "output_tokens": usage["completion_tokens"],
                "steps": steps_of(choice),
            }
        )
    return rows


def steps_of(choice: dict) -> list[dict]:
    """Each token of an answer: `token` (its text), `logprob`, and `candidates`, text to logarithm of the probability.

    OpenAI's API has two forms of them, that of completions and that of chats, and engines answer completions in either.
    Empty where the server tells none."""
    said = choice.get("logprobs") or {}
    if said.get("content") is not None:
        return [
            {
                "token": one["token"],
                "logprob": one["logprob"],
                "candidates": {other["token"]: other["logprob"] for other in one.get("top_logprobs") or ()},
            }
            for one in said["content"]
        ]
    tops = said.get("top_logprobs") or [{}] * len(said.get("tokens") or ())
    return [
        {"token": token, "logprob": logprob, "candidates": dict(candidates or {})}
        for token, logprob, candidates in zip(
            said.get("tokens") or (), said.get("token_logprobs") or (), tops, strict=True
        )
    ]


def readable(token: str) -> bool:
    """Whether a token's text is whole characters."""
    return token not in UNREADABLE and "\ufffd" not in token


def round_trips(server: Fleet, api: TokenizerApi, texts: Sequence[str], timeout_s: float = 60) -> list[dict]:
    """Each text through the server's own tokenizer and back: its token `ids`, and whether the text came back `whole`.

    Raises OSError or ValueError for a request that fails, KeyError for an answer of another form."""
    rows, model = [], {"model": server.arm.model.name}
    for text in texts:
        ids = client.post(f"{server.url}{api.encode}", model | api.extra | {api.text: text}, timeout_s)[api.ids]
        back = client.post(f"{server.url}{api.decode}", model | api.extra_back | {api.ids: ids}, timeout_s)
        rows.append({"ids": ids, "whole": back[api.decoded] == text})
    return rows
