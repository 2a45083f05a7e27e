"""The life of an arm's server: preflight, start, ready, stop, memory given back.

Ready means that one real request came back with tokens from the model that was asked for, through a port that our own
process group holds; a health page answers long before that, and another job's server may answer in our place. A server
is started under a warden (`warden.py`), so that nothing of it outlives the harness.

    with servers.serve(arm, host, environment, folder) as server:
        requests to server.url
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .. import engines, paths
from ..engines import logs, vllm
from ..engines.arms import Arm
from ..environments import Environment, variables
from ..errors import HostError, LoadError, ServerError
from ..hardware import hosts
from ..hardware.hosts import Host
from . import language, metrics

WARDEN = Path(__file__).with_name("warden.py")
LAST_LINES = 20
GRACE_S = 30.0
LAST_WORDS_S = 3.0
PROBE_PROMPT = "The capital of France is"
PROBE_TOKENS = 24
UNSAID = "the log does not say why"
SCRATCH_GIB = 2.0  # of disk, for an arm that writes there
WORKER_GIB = 0.7  # of each further process that computes
PROCESSES_GIB, IMPORTED_GIB = (
    2.2,
    1.6,
)  # three processes of a server: with a model of a few hundred million parameters, and before it


@dataclass
class Server:
    """A running server: where it answers, its process group, the figures of its start, and what the server beside it
    said of itself.
    """

    arm: Arm
    url: str
    port: int
    pid: int
    log: Path
    warden: subprocess.Popen
    began: float
    start: dict = field(default_factory=dict)
    sidecar: dict = field(default_factory=dict)
    frozen_s: float = 0.0
    _frozen_at: float | None = None
    _bound: dict = field(default_factory=dict)

    def alive(self) -> bool:
        return self.warden.poll() is None

    def require_alive(self, within_s: float = 0.0) -> None:
        """Raises ServerError with the cause when the server has ended, or ends within so many seconds."""
        try:
            self.warden.wait(within_s)
        except subprocess.TimeoutExpired:
            return
        raise died(self.arm, self.log, self.warden.returncode)

    @property
    def frozen(self) -> bool:
        return self._frozen_at is not None

    def freeze(self) -> None:
        """Stop every process of the server where it is (SIGSTOP): it takes no time from the one that is measured."""
        if self.alive() and not self.frozen:
            self._frozen_at = time.monotonic()
            self.bind_again()
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        if self.frozen:
            self.frozen_s += time.monotonic() - self._frozen_at
            self._frozen_at = None
            self._signal(signal.SIGCONT)

    def unbind(self) -> None:
        """Let those of its processes that are bound to one core use every core, until `bind_again`.

        vLLM's CPU worker is bound to its first core before it imports anything; two of them would import on the same
        one."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if len(bound := os.sched_getaffinity(process.pid)) == 1:
                        self._bound[process.pid] = bound
                        os.sched_setaffinity(process.pid, hosts.cores())

    def bind_again(self) -> None:
        """Undo `unbind`."""
        while self._bound:
            pid, bound = self._bound.popitem()
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, bound)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def owns_port(self) -> bool | None:
        """Whether the listeners on our ports, those of the server beside it included, belong to our process group; None
        when the system does not say.
        """
        owners = [_owner_group(port, self.pid) for port in self.ports()]
        return False if False in owners else None if None in owners else True

    def ports(self) -> list[int]:
        """The engine's port, and those of the server beside it."""
        return [self.port, *(self.sidecar[name] for name in ("message_port", "http_port") if self.sidecar)]

    @property
    def sidecar_url(self) -> str | None:
        return f"http://127.0.0.1:{self.sidecar['http_port']}" if self.sidecar else None


def free_port() -> int:
    """A port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_port(port: int) -> None:
    """Raises HostError naming the holder when something listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            holder = _holder(port)
            raise HostError(
                "the port is busy",
                value=f"{port}{f', held by {holder}' if holder else ''}",
                allowed="a free port, or port = 0 for any",
                next=f"ss -ltnp 'sport = :{port}'",
            ) from None


def check_memory(arm: Arm, host: Host) -> None:
    """Raises HostError when less memory is free than the server will ask for at once."""
    if host.gpus:
        share = arm.options.get("gpu_memory_utilization", 0.9)
        for gpu in hosts.detect().gpus[: max(arm.gpus, 1)]:
            wanted = share * gpu.memory_gib
            if gpu.free_gib < wanted:
                raise HostError(
                    f"too little free memory on GPU {gpu.index}",
                    value=f"{gpu.free_gib:.2f} of {gpu.memory_gib:.2f} GiB free, {wanted:.2f} wanted; "
                    f"holders: {_gpu_holders(gpu.index)}",
                    allowed=f"gpu_memory_utilization below {gpu.free_gib / gpu.memory_gib:.2f}",
                    next="nvidia-smi",
                )
        return
    wanted, free = cpu_memory_gib(arm), hosts.free_memory_gib()
    if free < wanted:
        raise HostError(
            "too little free memory",
            value=f"{free:.1f} GiB free, about {wanted:.1f} wanted",
            allowed="a smaller kv_cache_gib or model",
            next="free -h",
        )


def cpu_memory_gib(arm: Arm) -> float:
    """What the arm's server takes of a CPU host's memory, about, GiB: float32 weights, KV cache, three processes."""
    weights = sum(model.weights_gib or 0 for model in (arm.model, arm.draft) if model)
    copies, ranks = arm.copies * 2 * weights, arm.ranks * float(arm.environment.get("VLLM_CPU_KVCACHE_SPACE", 4))
    beside = arm.sidecar.memory_gib if arm.sidecar else 0.0
    return copies + ranks + arm.replicas * PROCESSES_GIB + (arm.ranks - arm.replicas) * WORKER_GIB + beside


def check_disk(folder: Path, wanted_gib: float = 0.2) -> None:
    """Raises HostError when the disk that holds `folder` is nearly full."""
    free = shutil.disk_usage(folder).free / hosts.GIB
    if free < wanted_gib:
        raise HostError(
            "the disk is nearly full",
            value=f"{free:.2f} GiB free at {folder}",
            allowed=f"{wanted_gib} GiB",
            next=f"df -h {folder}",
        )


def launch(arm: Arm, host: Host, environment: Environment, folder: Path, *, port: int = 0) -> Server:
    """Start `arm`'s server and return at once; `folder` gets `server.log`.

    Raises HostError, before anything starts, for a busy port, too little memory or disk, or a variable of the caller
    that would break it. The caller has to `stop` it.
    """
    variables.check()
    if port:
        check_port(port)
    check_memory(arm, host)
    folder.mkdir(parents=True, exist_ok=True)
    check_disk(folder)
    port = port or free_port()
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
        check_disk(place, SCRATCH_GIB)
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
        tidy_log(server.log)
        if server.arm.sidecar and (beside := server.log.with_name(f"{server.arm.sidecar.kind}.log")).is_file():
            tidy_log(beside)
    return time.monotonic() - began


def tidy_log(log: Path, keep: int = 400) -> None:
    """Take this machine's paths out of a finished log, and the middle out of a very long one: logs are published with
    results.
    """
    lines = logs.read(log).splitlines()
    if len(lines) > 2 * keep:
        lines = [*lines[:keep], f"[{len(lines) - 2 * keep} lines left out]", *lines[-keep:]]
    log.write_text(tidied("\n".join(lines) + "\n"))


def tidied(text: str) -> str:
    """A server's words without colours and without this machine's paths."""
    text = logs.plain(text)
    home = os.path.expanduser("~")
    for path, name in ((paths.CACHE, ".cache"), (paths.RESULTS, "results"), (paths.ROOT, "."), (home, "~")):
        if len(str(path)) > 1:  # a user without a home, as some containers' are, has `/` or `~`
            text = text.replace(str(path), name)
    text = re.sub(r"(?:/[\w.+-]+)+/(?=(?:site-packages|dist-packages|vllm|torch|transformers)/)", "…/", text)
    return re.sub(r"(?:/[\w.+-]+)+/bin/(?=python)", "", text)


def wait_for_gpu_memory(host: Host, baseline_gib: list[float], timeout_s: float = 60) -> float:
    """Wait until each GPU's free memory is back within 0.5 GiB of `baseline_gib`; returns the seconds waited.

    Raises HostError naming what still holds it.
    """
    began = time.monotonic()
    while host.gpus:
        free = [gpu.free_gib for gpu in hosts.detect().gpus]
        if all(now >= before - 0.5 for now, before in zip(free, baseline_gib, strict=False)):
            break
        if time.monotonic() - began > timeout_s:
            raise HostError(
                "GPU memory did not come back after a server ended",
                value=f"free {free} GiB, before {baseline_gib}; holders: {_gpu_holders(0)}",
                next="nvidia-smi",
            )
        time.sleep(0.1)
    return time.monotonic() - began


def complete(url: str, model: str, prompt: str, max_tokens: int, timeout_s: float, **extra) -> dict:
    """One /v1/completions request at temperature 0, not streamed. Raises OSError or ValueError when it fails."""
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **extra}).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, {"Content-Type": "application/json", "Connection": "close"}
    )
    with metrics.DIRECT.open(request, timeout=timeout_s) as answer:
        return json.load(answer)


def fill(server: Server, prompt: str, what: str) -> None:
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
                last_lines=tail(server.log),
            )
        try:
            with metrics.DIRECT.open(f"{server.url}/health", timeout=2):
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
                f"port {port} is held by {_holder(port)}"
                for port in server.ports()
                if _owner_group(port, server.pid) is False
            ),
            log=server.log,
            last_lines=tail(server.log),
        )
    try:
        for _ in range(server.arm.replicas):  # they take turns
            answer = complete(
                server.url,
                server.arm.model.name,
                PROBE_PROMPT,
                PROBE_TOKENS,
                max(5.0, min(300.0, deadline - time.monotonic())),
            )
    except (OSError, ValueError) as error:
        server.require_alive(LAST_WORDS_S)
        detail = (
            error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else str(error)
        )
        raise ServerError(
            f"{server.arm.name}: the first request failed",
            reason=f"{type(error).__name__}: {detail}",
            log=server.log,
            last_lines=tail(server.log),
        ) from None
    tokens, text = answer["usage"]["completion_tokens"], answer["choices"][0]["text"]
    if answer.get("model") != server.arm.model.name or tokens < 1:
        raise ServerError(
            f"{server.arm.name}: the answer is not ours",
            reason=f"model {answer.get('model')!r}, {tokens} tokens; wanted {server.arm.model.name!r}",
            log=server.log,
            last_lines=tail(server.log),
        )
    garbage = None if server.arm.weights == "random" else language.fault(text)
    sane = None if server.arm.weights == "random" else garbage is None
    if garbage:
        raise ServerError(
            f"{server.arm.name}: the text that comes back is not language",
            reason=f"{garbage}: {text[:120]!r}",
            log=server.log,
            last_lines=tail(server.log),
        )
    log = logs.read(server.log)
    if problem := engine.ineffective(server.arm, log):
        raise ServerError(
            f"{server.arm.name}: the server does not have the settings it was given",
            reason=problem,
            log=server.log,
            last_lines=tail(server.log),
        )
    figures = engine.parse_start(log) | ({"sidecar_s": server.sidecar["ready_s"]} if server.sidecar else {})
    return {
        **figures,
        "healthy_s": healthy_s,
        "startup_s": time.monotonic() - began,
        "probe_text": text,
        "probe_sane": sane,
    }


def died(arm: Arm, log: Path, code: int | None) -> ServerError:
    """The error for a server that ended by itself, with the cause from its log where it is a known one."""
    unsaid = vllm.BUS_ERROR if code == 256 - signal.SIGBUS else f"{_signal_of(code)}{UNSAID}"
    reason = engines.get(arm.engine).cause(logs.read(log)) or unsaid
    return ServerError(f"{arm.name}: the server ended", reason=reason, log=log, last_lines=tail(log), exit_code=code)


def _signal_of(code: int | None) -> str:
    """A process that a signal ended passes its number on through its warden's exit code, modulo 256."""
    try:
        return f"ended by {signal.Signals(256 - code).name}; " if code and 192 <= code < 256 else ""
    except ValueError:
        return ""


def tail(log: Path, lines: int = LAST_LINES) -> tuple[str, ...]:
    """The last lines of a log."""
    return tuple(line[:300] for line in logs.read(log).splitlines()[-lines:])


def _listeners(port: int):
    return [
        connection
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]


def _owner_group(port: int, group: int) -> bool | None:
    try:
        pids = {connection.pid for connection in _listeners(port)} - {None}
    except psutil.AccessDenied:
        return None
    if not pids:
        return None
    try:
        return all(os.getpgid(pid) == group for pid in pids)
    except ProcessLookupError:
        return None


def _holder(port: int) -> str | None:
    try:
        for connection in _listeners(port):
            if connection.pid:
                process = psutil.Process(connection.pid)
                return f"{process.name()} (pid {process.pid})"
    except psutil.Error:
        pass
    return None


def _gpu_holders(index: int) -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        holders = [f"pid {process.pid}" for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return ", ".join(holders) or "none that NVML shows"
    except pynvml.NVMLError as error:
        return f"unknown ({error})"
