"""Requests to a server, without any proxy."""

import json
import os
import urllib.error
import urllib.request

# Our servers are on this machine; a proxy from the environment would be measured too.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
LAST_WORDS_S = 3.0


def headers() -> dict[str, str]:
    """Of every request; OPENAI_API_KEY is for a server that somebody else started: the load generator sends it too."""
    key = os.environ.get("OPENAI_API_KEY")
    return {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})


def get(url: str, timeout_s: float) -> str:
    """The answer to a GET. Raises OSError (urllib.error.URLError is one) without an answer or for a status other than
    200.
    """
    with DIRECT.open(urllib.request.Request(url, headers=headers()), timeout=timeout_s) as answer:
        return answer.read().decode()


def complete(url: str, model: str, prompt: str, max_tokens: int, timeout_s: float, **extra) -> dict:
    """One /v1/completions request at temperature 0, not streamed. Raises OSError or ValueError when it fails."""
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **extra}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"} | headers())
    with DIRECT.open(request, timeout=timeout_s) as answer:
        return json.load(answer)
