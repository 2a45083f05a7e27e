"""A client that is not the load generator: the same requests by the `openai` package, in an interpreter that has it.

What `vllm bench serve` measures rests on its own streaming code; another implementation that sees the same times says
that they are the server's. It runs with the load generator's interpreter, since vLLM depends on `openai` itself.

    >>> second_client.run(environment, server, load, tokenizer)["requests"][0]["ttft_s"]       # doctest: +SKIP
"""

import json
import tempfile
from pathlib import Path

from ..environments import ENGINE_SIDE, Environment, scripts
from ..errors import EngineEnvironmentError
from ..servers.fleet import Fleet
from . import Load

DIRECT = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", "CUDA_VISIBLE_DEVICES": ""}


def run(
    environment: Environment, server: Fleet, load: Load, tokenizer: str, *, repeat: int = 0, timeout_s: float = 300
) -> dict:
    """`load`'s requests, with the prompts and lengths that the load generator sends, one after the other:
    `{"version": …, "requests": [{"ttft_s", "itls_s", "output_tokens", "prompt_tokens"}, …]}`.

    Raises EngineEnvironmentError where the interpreter has no `openai` or the client fails, TimeoutError when it does
    not end."""
    prompts, lengths = load.dataset.drawn(load, tokenizer, repeat), load.lengths(repeat)
    requests = [{"prompt": prompt, "max_tokens": length} for prompt, length in zip(prompts, lengths, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests.json"
        file.write_text(json.dumps(requests), encoding="utf-8")
        ended = scripts.run(
            environment.python,
            ENGINE_SIDE / "openai_client.py",
            server.url,
            server.arm.model.name,
            file,
            deadline_s=timeout_s,
            variables=scripts.OFFLINE | DIRECT,
        ).check("the second client failed")
    answer = scripts.parsed(ended.lines[-1]) if ended.lines else None
    if not answer or len(answer.get("requests", ())) != len(requests):
        raise EngineEnvironmentError(
            "the second client does not answer its requests",
            value=repr("".join(ended.lines)[-200:]),
            allowed=f"one JSON line with {len(requests)} requests",
            next=f"{environment.python} -c 'import openai; print(openai.__version__)'",
        )
    return answer
