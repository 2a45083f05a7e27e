"""Imports once what every server needs, and forks for each of them before any model is loaded.

    python template.py MODULE …

Two thirds of a start are imports: the server's, its engine's and its workers', one after the other. Here a server is a
fork of a process that has done them, and so is every process that it starts by multiprocessing's `spawn`: such a
process is asked of a helper, which was forked before the server ran a line of its own, and gets the environment, the
folder and the descriptors that a new interpreter would have got. The engine is not touched.

Standard input is a Unix socket of whole messages; the first one out says that the imports are done. Each one in
({"warden": FILE, "words": ["-m", …], "log": FILE, "grace_s": 30, "environment": {…}, "folder": FOLDER}) brings four
descriptors (the warden's standard input, output and error, and where it writes its exit code) and is answered by the
warden's process id. When the socket closes this ends, and what it forked lives on. Standard library alone.

What can mislead: OpenMP reads its variables once, at the first import of torch, and must be made to read them again in
each fork; NumPy's OpenBLAS keeps idle threads, which it ends itself before a fork."""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import multiprocessing.spawn
import multiprocessing.util
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
OMP_PAUSE_HARD = 2
LONGEST, MOST_DESCRIPTORS = 1 << 20, 64
LIBC = ctypes.CDLL(None)


class Server(BaseException):
    """Raised in a server's process, through the frames of the warden that forked it."""


class Child:
    """A forked process: what the warden asks of a `subprocess.Popen`."""

    def __init__(self, pid: int):
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # the warden reaped it among what it adopted
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def main() -> list[str]:
    """Serve requests until the socket closes; returns in a forked process alone, with the words to be run."""
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[0] = os.getcwd()
    with contextlib.suppress(ImportError):  # which finds its place before the first variable only as they are now
        import setproctitle

        setproctitle.getproctitle()
    cores, before, own = os.sched_getaffinity(0), dict(os.environ), _descriptors()
    began = time.perf_counter()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what no collection looks at stays shared; an engine that serves leaves it out itself
    kept = _descriptors() - own
    imported = {
        name: os.environ.get(name) for name in {*before, *os.environ} if os.environ.get(name) != before.get(name)
    }
    wake = _reaping()
    channel.send(json.dumps({"ready": True, "import_s": time.perf_counter() - began}).encode())
    while True:
        ready, _, _ = select.select([channel, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap()
        if channel not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, LONGEST, MOST_DESCRIPTORS)
        if not message:
            os._exit(0)
        sys.stdout.flush()
        if pid := os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(json.dumps({"pid": pid}).encode())
            continue
        request = json.loads(message)
        os.setsid()
        _place(descriptors, (0, 1, 2, 3))
        _close_all_but({0, 1, 2, 3, *kept})
        _default_signals()
        for name, value in imported.items():
            request["environment"].pop(name, None)
            if value is not None:
                request["environment"][name] = value
        _move(request)
        try:
            _warden(request)
        except Server:
            _close_all_but({0, 1, 2, *kept})
            return _settled(request["words"], kept, cores)


def _warden(request: dict) -> None:
    """Be a server's warden, to its end. Raises Server in the server's own process."""
    words = [request["warden"], str(request["grace_s"]), request["log"], *request["words"]]
    sys.argv = words
    _title(["python", *words])

    def start(command: list[str], log) -> Child:
        if pid := os.fork():
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # whoever of the two comes first
            return Child(pid)
        os.setpgid(0, 0)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _place([os.open(os.devnull, os.O_RDONLY), os.dup(log.fileno()), os.dup(log.fileno())], (0, 1, 2))
        _default_signals()
        raise Server

    code = runpy.run_path(request["warden"])["main"](start)
    with contextlib.suppress(OSError):  # nobody is left to read it
        os.write(3, str(code & 0xFF).encode())
    os._exit(code & 0xFF)


def _settled(words: list[str], kept: set[int], cores: set[int]) -> list[str]:
    """What a process is to run once it has its helper, its OpenMP and its `spawn`; in what the helper forks, those
    words.
    """
    while True:
        helper, spawned = _helper(kept)
        if spawned is None:
            break
        words = spawned
    os.sched_setaffinity(0, cores)
    if pause := getattr(LIBC, "omp_pause_resource_all", None):
        pause(OMP_PAUSE_HARD)
        LIBC.omp_get_max_threads()  # starts anew, with the variables as they are now
    _spawn_by(helper)
    return words


def _helper(kept: set[int]) -> tuple[socket.socket | None, list[str] | None]:
    """Fork a helper, and return the socket to it; in what the helper forks, None and the words to be run."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the helper forks becomes our child
    if os.fork():
        its.close()
        return ours, None
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    ours.close()
    _title([sys.executable, __file__, "helper"])
    while True:
        message, descriptors, _, _ = socket.recv_fds(its, LONGEST, MOST_DESCRIPTORS)
        if not message:
            os._exit(0)
        read, write = os.pipe()
        if between := os.fork():
            os.waitpid(between, 0)
            os.close(write)
            its.send(os.read(read, 20))
            for descriptor in (read, *descriptors):
                os.close(descriptor)
            continue
        between = os.getpid()
        if pid := os.fork():
            os.write(write, str(pid).encode())
            os._exit(0)
        while os.getppid() == between:  # not before its parent is whoever asked
            time.sleep(0.0005)
        request = json.loads(message)
        _place(descriptors, request["descriptors"])
        _close_all_but({0, 1, 2, *request["descriptors"], *kept})
        _move(request)
        return None, request["words"]


def _spawn_by(helper: socket.socket) -> None:
    """Have multiprocessing's `spawn` ask the helper; where it cannot be asked, a new interpreter is started as ever."""
    new_interpreter, lock = multiprocessing.util.spawnv_passfds, threading.Lock()

    def spawn(path, words, descriptors):
        words = list(map(os.fsdecode, words))
        if "--multiprocessing-fork" in words and os.fsencode(path) == os.fsencode(
            multiprocessing.spawn.get_executable()
        ):
            descriptors = sorted(set(descriptors))
            request = {
                "words": words[words.index("-c") :],
                "descriptors": descriptors,
                "environment": dict(os.environ),
                "folder": os.getcwd(),
            }
            with lock, contextlib.suppress(OSError):
                socket.send_fds(helper, [json.dumps(request).encode()], descriptors)
                if pid := helper.recv(20):
                    return int(pid)
        return new_interpreter(path, words, descriptors)

    multiprocessing.util.spawnv_passfds = spawn


def _run(words: list[str]) -> None:
    """What `python WORDS …` does."""
    _title([sys.executable, *words])
    if words[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *words[2:]]
        exec(words[1], sys.modules["__main__"].__dict__)
    else:
        sys.path[0], sys.argv = os.path.dirname(words[0]), list(words)
        runpy.run_path(words[0], run_name="__main__")


def _title(words: list[str]) -> None:
    """A command line for people, where the environment has what writes one."""
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(" ".join(words))


def _move(request: dict) -> None:
    for name in set(os.environ) - set(request["environment"]):
        del os.environ[name]
    for name, value in request["environment"].items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if request["folder"]:
        os.chdir(request["folder"])


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _reaping() -> int:
    """A descriptor that can be read when a child has ended."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def _close_all_but(kept: set[int]) -> None:
    for descriptor in _descriptors() - kept:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _place(descriptors: list[int], numbers) -> None:
    """Give descriptors these numbers."""
    above = max((*descriptors, *numbers)) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


if __name__ == "__main__":
    _run(main())
