"""A second client: streamed completions by the `openai` package, one after the other, and when each piece came.

    python openai_client.py URL MODEL REQUESTS

REQUESTS is a file with a JSON list of {"prompt": …, "max_tokens": …}. One JSON line comes back: the package's
`version`, and `requests` with `ttft_s`, `itls_s`, `output_tokens` and `prompt_tokens` (by the server's usage) each. A
piece is an event with a choice in it, as for `vllm bench serve`. The first request of a client is slow, and is sent
once more than it is counted.
"""

import json
import sys
import time


def main() -> None:
    url, model, file = sys.argv[1:4]
    import openai

    with open(file, encoding="utf-8") as text:
        wanted = json.load(text)
    client = openai.OpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        default_headers={"Connection": "close"},
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )
    _ask(client, model, wanted[0]["prompt"], 2)
    requests = [_ask(client, model, one["prompt"], one["max_tokens"]) for one in wanted]
    print(json.dumps({"version": openai.__version__, "requests": requests}))


def _ask(client, model: str, prompt: str, tokens: int) -> dict:
    began, times, usage = time.perf_counter(), [], None
    stream = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    for event in stream:
        if event.choices:
            times.append(time.perf_counter())
        usage = event.usage or usage
    return {
        "ttft_s": times[0] - began if times else None,
        "itls_s": [later - earlier for earlier, later in zip(times, times[1:], strict=False)],
        "output_tokens": usage.completion_tokens if usage else None,
        "prompt_tokens": usage.prompt_tokens if usage else None,
    }


if __name__ == "__main__":
    main()
