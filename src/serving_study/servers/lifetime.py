"""An arm's processes from their start to their end.

Ready means that a real request came back with tokens from the right model, through a port that our own process group
holds: a health page answers long before that, and another job's server may answer in our place.

    with lifetime.serve(arm, host, plan.environment_of, folder) as server:
        requests to server.url
"""

import contextlib
import json
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from .. import engines
from ..engines import base
from ..errors import ServerError
from ..hardware.hosts import Host
from . import client, fleet, language, preflight
from .arm import Arm
from .fleet import Fleet

PROBE_PROMPT = "The capital of France is"
PROBE_TOKENS = 24


@contextmanager
def serve(
    arm: Arm,
    host: Host,
    environment_of: fleet.EnvironmentOf,
    folder: Path,
    *,
    port: int = 0,
    timeout_s: float = 1200,
    launched: Fleet | None = None,
    next_server: Fleet | None = None,
):
    """Start `arm`'s processes (or continue those `launched` earlier), each with the interpreter that `environment_of`
    has for it, wait until they answer, yield them, and stop them.

    `next_server` is another arm's that starts at the same time; it is frozen once it loads weights, or once this one is
    ready. Raises HostError before anything starts, ServerError when a process dies or never answers."""
    server = launched or fleet.launch(arm, host, environment_of, folder, port=port)
    try:
        server.thaw()
        server.start = _wait_until_ready(server, timeout_s, next_server)
        yield server
    finally:
        fleet.stop(server)


def _wait_until_ready(server: Fleet, timeout_s: float, next_server: Fleet | None) -> dict:
    engine, began = engines.get(server.arm.engine), server.began + server.frozen_s
    deadline = began + timeout_s
    while True:
        server.require_alive()
        if time.monotonic() > deadline:
            raise server.error("the server did not get ready", f"no answer within {timeout_s:.0f} s")
        server.advance()
        server.look()
        try:
            client.get(f"{server.url}{engine.HEALTH}", 2)
            break
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        if next_server:
            server.unbind()
            _go_on(next_server)
    if next_server:
        next_server.freeze()
    server.bind_again()
    healthy_s = time.monotonic() - began
    if server.owns_port() is False:
        raise server.error(
            "another process answers on our port",
            "; ".join(
                f"port {port} is held by {preflight.holder(port)}"
                for process in server.running
                for port in process.ports
                if preflight.owner_group(port, process.pid) is False
            ),
        )
    text, sane = _first_answer(server, deadline)
    log = server.text()
    if problem := engine.ineffective(server.arm.server, log) or _ineffective_cache(server):
        raise server.error("the server does not have the settings it was given", problem)
    startup_s = time.monotonic() - began
    return {
        **engine.start_figures(log),
        **({"started_from": "template"} if server.from_template else {}),
        **({"sidecar_s": server.cache_ready_s} if server.arm.sidecar else {}),
        "healthy_s": healthy_s,
        "startup_s": startup_s,
        "phases": server.phases(healthy_s, startup_s),
        "settings": _settings(server, log),
        "probe_text": text,
        "probe_sane": sane,
    }


def _settings(server: Fleet, log: str) -> dict:
    """What the started server says of its settings; a report that does not come leaves its settings out."""
    engine, reports = engines.get(server.arm.engine), {}
    for path in engine.REPORTS:
        with contextlib.suppress(OSError, ValueError):
            reports[path] = json.loads(client.get(f"{server.url}{path}", 10))
    return engine.settings(server.arm.server, log, reports)


def _go_on(server: Fleet) -> None:
    """Advance the next arm's processes as far as their weights; a failure is reported in their own turn."""
    with contextlib.suppress(ServerError):
        if not server.frozen:
            server.advance()
    if server.look() != base.IMPORTS:
        server.freeze()
    elif not server.frozen:
        server.unbind()


def _ineffective_cache(server: Fleet) -> str | None:
    cache = server.arm.sidecar
    return engines.CACHE_SERVERS[cache.engine].ineffective(cache, server.settings) if cache else None


def _first_answer(server: Fleet, deadline: float) -> tuple[str, bool | None]:
    """The text of a first request to each server, and whether it is language (None with random weights).

    Raises ServerError for no answer, and for one that is not ours."""
    try:
        for _ in range(server.arm.replicas):  # they take turns
            answer = client.complete(
                server.url,
                server.arm.model.name,
                PROBE_PROMPT,
                PROBE_TOKENS,
                max(5.0, min(300.0, deadline - time.monotonic())),
            )
    except (OSError, ValueError) as error:
        server.require_alive(client.LAST_WORDS_S)
        detail = (
            error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else str(error)
        )
        raise server.error("the first request failed", f"{type(error).__name__}: {detail}") from None
    tokens, text = answer["usage"]["completion_tokens"], answer["choices"][0]["text"]
    if answer.get("model") != server.arm.model.name or tokens < 1:
        raise server.error(
            "the answer is not ours",
            f"model {answer.get('model')!r}, {tokens} tokens; wanted {server.arm.model.name!r}",
        )
    garbage = None if server.arm.weights == "random" else language.fault(text)
    if garbage:
        raise server.error("the text that comes back is not language", f"{garbage}: {text[:120]!r}")
    return text, None if server.arm.weights == "random" else True
