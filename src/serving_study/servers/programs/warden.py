"""Runs one server and never outlives the process that asked for it.

    python warden.py GRACE_S LOG COMMAND …

The server gets its own process group and writes to LOG. The warden holds its standard input, whose other end the
harness keeps open: when that closes, however the harness ended, SIGKILL included, the group gets SIGTERM, GRACE_S
seconds, then SIGKILL. It adopts what the server leaves behind (a subreaper), so that an engine process that outlives
its parent is ended too. Its output is the server's process id and, where that ended by itself, when (seconds of the
monotonic clock). Standard library alone; the exit code is the server's. A template (engine_side/template.py) calls
`main` in a fork of its own, and forks the server."""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(start=None) -> int:
    """Run the server that the words name; `start` starts it, where that is not done by a new process here."""
    grace_s, log, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    with open(log, "ab") as output:
        server = (start or _started)(command, output)
    print(server.pid, flush=True)
    while server.poll() is None and not stopping:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        if 0 in ready and not os.read(0, 4096):
            break
    if server.poll() is not None:
        with contextlib.suppress(OSError):
            print(time.monotonic(), flush=True)
    _end(server.pid, grace_s, server)
    return server.returncode if server.returncode is not None else 0


def _started(command: list[str], output) -> subprocess.Popen:
    libc = ctypes.CDLL(None)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )


def _end(group: int, grace_s: float, server: subprocess.Popen) -> None:
    """TERM, wait, KILL, for the group and for everything adopted; returns when nothing of it is left."""
    _kill(group, signal.SIGTERM)
    _kill(group, signal.SIGCONT)  # a server that was frozen could not act on TERM
    deadline = time.monotonic() + grace_s
    while _alive(group, server) and time.monotonic() < deadline:
        time.sleep(0.05)
    while _alive(group, server):
        _kill(group, signal.SIGKILL)
        for child in _children():
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def _kill(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def _alive(group: int, server: subprocess.Popen) -> bool:
    server.poll()
    while True:  # reap what was adopted
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    return bool(_children()) or _group_exists(group)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


if __name__ == "__main__":
    sys.exit(main())
