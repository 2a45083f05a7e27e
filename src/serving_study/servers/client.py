"""Requests to a server of ours, past any proxy."""

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from ..errors import LoadError

if TYPE_CHECKING:
    from .server import Server

# Our servers are on this machine: a proxy that the environment names is for others, and would be measured along.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
LAST_WORDS_S = 3.0


def complete(url: str, model: str, prompt: str, max_tokens: int, timeout_s: float, **extra) -> dict:
    """One /v1/completions request at temperature 0, not streamed. Raises OSError or ValueError when it fails."""
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **extra}).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, {"Content-Type": "application/json", "Connection": "close"}
    )
    with DIRECT.open(request, timeout=timeout_s) as answer:
        return json.load(answer)


def fill(server: "Server", prompt: str, what: str) -> None:
    """One request for one token, which leaves the prompt's cache behind.

    Raises ServerError of a server that is dead, LoadError (`what` could not be sent) of one that is not.
    """
    try:
        complete(server.url, server.arm.model.name, prompt, 1, 300)
    except (OSError, ValueError) as error:
        server.require_alive(LAST_WORDS_S)
        raise LoadError(
            f"{what} could not be sent", value=f"{type(error).__name__}: {error}", next=f"less {server.log}"
        ) from None
