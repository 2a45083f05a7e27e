"""The life of an arm's server: start, ready, stop.

Ready means that one real request came back with tokens from the model that was asked for, through a port that our own
process group holds; a health page answers long before that, and another job's server may answer in our place. A server
is started under a warden (`programs/warden.py`), so that nothing of it outlives the harness.

    with fleet.serve(arm, host, environment, folder) as server:
        requests to server.url
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from .. import engines, paths
from ..engines import logs, vllm
from ..environments import Environment, variables
from ..errors import ServerError
from ..hardware.hosts import Host
from . import client, language, preflight
from .arm import Arm
from .server import WARDEN, Server

GRACE_S = 30.0
PROBE_PROMPT = "The capital of France is"
PROBE_TOKENS = 24


def launch(arm: Arm, host: Host, environment: Environment, folder: Path, *, port: int = 0) -> Server:
    """Start `arm`'s server and return at once; `folder` gets `server.log`.

    Raises HostError, before anything starts, for a busy port, too little memory or disk, or a variable of the caller
    that would break it. The caller has to `stop` it.
    """
    variables.check()
    if port:
        preflight.check_port(port)
    preflight.check_memory(arm, host)
    folder.mkdir(parents=True, exist_ok=True)
    preflight.check_disk(folder)
    port = port or preflight.free_port()
    engine = engines.get(arm.engine)
    log = folder / "server.log"
    began = time.monotonic()
    command = [
        word.replace("{folder}", str(folder.resolve())) for word in engine.command(arm, environment.python, port)
    ]
    log.write_text(f"$ {shlex.join(command)}\n")
    place = scratch(arm) if arm.scratch else None
    if place:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        preflight.check_disk(place, preflight.SCRATCH_GIB)
    warden = subprocess.Popen(
        [sys.executable, str(WARDEN.resolve()), str(GRACE_S), str(log.resolve()), *command],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=whole_environment(arm, host, environment),
    )
    return Server(arm, f"http://127.0.0.1:{port}", port, int(warden.stdout.readline() or 0), log, warden, began)


def whole_environment(arm: Arm, host: Host, environment: Environment) -> dict[str, str]:
    """The whole environment of an arm's server: the caller's, without what would put colours into its log, and what the
    engine needs.
    """
    callers = {name: value for name, value in os.environ.items() if name not in vllm.DROPPED}
    return callers | engines.get(arm.engine).environment(arm, host, environment.python)


def scratch(arm: Arm) -> Path:
    """Where an arm's server writes to disk: emptied before each start, so that nothing of an earlier one is found in
    it.
    """
    return paths.CACHE / "scratch" / arm.name


@contextmanager
def serve(
    arm: Arm,
    host: Host,
    environment: Environment,
    folder: Path,
    *,
    port: int = 0,
    timeout_s: float = 1200,
    launched: Server | None = None,
    beside: Server | None = None,
):
    """Start `arm`'s server, or go on with one `launched` earlier, wait until it answers, yield it, and stop it whatever
    happens.

    `beside` is a server that starts at the same time: it gets as far as its weights, or as this one's being ready, and
    is frozen there. Raises HostError before anything starts, ServerError when the server dies or never answers."""
    server = launched or launch(arm, host, environment, folder, port=port)
    try:
        server.thaw()
        server.start = _wait_until_ready(server, engines.get(arm.engine), timeout_s, beside)
        yield server
    finally:
        stop(server)


def stop(server: Server) -> float:
    """End the server and everything it started; returns the seconds that took."""
    began = time.monotonic()
    if server.warden.stdin and not server.warden.stdin.closed:
        server.warden.stdin.close()
    try:
        server.warden.wait(GRACE_S + 30)
    except subprocess.TimeoutExpired:
        server.warden.kill()
        server.warden.wait()
    server.warden.stdout.close()
    if server.arm.scratch:
        shutil.rmtree(scratch(server.arm), ignore_errors=True)
    with contextlib.suppress(OSError):  # a full disk has its own error, which this one would hide
        logs.tidy_log(server.log)
        if server.arm.sidecar and (beside := server.log.with_name(f"{server.arm.sidecar.engine}.log")).is_file():
            logs.tidy_log(beside)
    return time.monotonic() - began


def _wait_until_ready(server: Server, engine, timeout_s: float, beside: Server | None) -> dict:
    began = server.began + server.frozen_s
    deadline = began + timeout_s
    while True:
        server.require_alive()
        if time.monotonic() > deadline:
            raise ServerError(
                f"{server.arm.name}: the server did not get ready",
                reason=f"no answer within {timeout_s:.0f} s",
                log=server.log,
                last_lines=logs.tail(server.log),
            )
        try:
            with client.DIRECT.open(f"{server.url}/health", timeout=2):
                break
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        if beside:
            server.unbind()
            if engines.get(beside.arm.engine).is_loading(logs.read(beside.log)):
                beside.freeze()
            elif not beside.frozen:
                beside.unbind()
    if beside:
        beside.freeze()
    server.bind_again()
    healthy_s = time.monotonic() - began
    server.sidecar = engine.sidecar(logs.read(server.log)) or {} if server.arm.sidecar else {}
    if server.owns_port() is False:
        raise ServerError(
            f"{server.arm.name}: another process answers on our port",
            reason="; ".join(
                f"port {port} is held by {preflight.holder(port)}"
                for port in server.ports()
                if preflight.owner_group(port, server.pid) is False
            ),
            log=server.log,
            last_lines=logs.tail(server.log),
        )
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
        raise ServerError(
            f"{server.arm.name}: the first request failed",
            reason=f"{type(error).__name__}: {detail}",
            log=server.log,
            last_lines=logs.tail(server.log),
        ) from None
    tokens, text = answer["usage"]["completion_tokens"], answer["choices"][0]["text"]
    if answer.get("model") != server.arm.model.name or tokens < 1:
        raise ServerError(
            f"{server.arm.name}: the answer is not ours",
            reason=f"model {answer.get('model')!r}, {tokens} tokens; wanted {server.arm.model.name!r}",
            log=server.log,
            last_lines=logs.tail(server.log),
        )
    garbage = None if server.arm.weights == "random" else language.fault(text)
    sane = None if server.arm.weights == "random" else garbage is None
    if garbage:
        raise ServerError(
            f"{server.arm.name}: the text that comes back is not language",
            reason=f"{garbage}: {text[:120]!r}",
            log=server.log,
            last_lines=logs.tail(server.log),
        )
    log = logs.read(server.log)
    if problem := engine.ineffective(server.arm, log):
        raise ServerError(
            f"{server.arm.name}: the server does not have the settings it was given",
            reason=problem,
            log=server.log,
            last_lines=logs.tail(server.log),
        )
    figures = engine.parse_start(log) | ({"sidecar_s": server.sidecar["ready_s"]} if server.sidecar else {})
    return {
        **figures,
        "healthy_s": healthy_s,
        "startup_s": time.monotonic() - began,
        "probe_text": text,
        "probe_sane": sane,
    }
