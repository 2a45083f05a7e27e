"""Requests to a server of ours, without any proxy."""

import json
import urllib.error
import urllib.request

# Our servers are on this machine; a proxy from the environment would be measured too.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
LAST_WORDS_S = 3.0


def get(url: str, timeout_s: float) -> str:
    """The answer to a GET. Raises OSError (urllib.error.URLError is one) without an answer or for a status other than
    200.
    """
    with DIRECT.open(urllib.request.Request(url, headers={"Connection": "close"}), timeout=timeout_s) as answer:
        return answer.read().decode()


def post(url: str, body: dict, timeout_s: float) -> dict:
    """The JSON that a POST of JSON is answered with. Raises OSError or ValueError when it fails."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", "Connection": "close"}
    )
    with DIRECT.open(request, timeout=timeout_s) as answer:
        return json.load(answer)


def complete(url: str, model: str, prompt: str, max_tokens: int, timeout_s: float, **extra) -> dict:
    """One /v1/completions request at temperature 0, not streamed. Raises OSError or ValueError when it fails."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **extra}
    return post(f"{url}/v1/completions", body, timeout_s)
