"""A server that an engine needs beside it, and then the engine's own: one is up before the other starts, and neither
outlives the other.

    python beside.py --name lmcache --log lmcache.log \
        -- python -m … server --port {message_port} --http-port {http_port} --- python -m … serve MODEL

`{message_port}` and `{http_port}` stand for free ports, the same in both commands. The first server is up when its
/healthcheck answers 200; what its /config then says is printed in one line, for the harness to hold against what was
asked for, and the engine starts. What the first server prints goes to LOG, the engine's lines to where this program's
go. Ports are chosen and given up again before they are bound: a server that finds its own taken ends, and with it
everything. When one ends, the other is ended too; the exit code is that of the first to end, and never 0 for the server
beside. Standard library alone.
"""

import argparse
import json
import signal
import subprocess
import sys
import time

from local_ports import fetch, free_ports

MARK = "beside: "
PATIENCE_S, POLL_S, LAST_LINES = 2.0, 0.1, 12


def filled(words: list[str], ports: dict[str, int]) -> list[str]:
    """A command with its ports in place of their names."""
    for name, port in ports.items():
        words = [word.replace("{" + name + "}", str(port)) for word in words]
    return words


def last_lines(log: str) -> list[str]:
    with open(log, encoding="utf-8", errors="replace") as file:
        return [line.rstrip() for line in file.read().splitlines() if line.strip()][-LAST_LINES:]


class Pair:
    """The two servers, and whether somebody has told this program to end."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.told, self.ports = (
            options,
            False,
            dict(zip(("message_port", "http_port"), free_ports(2), strict=True)),
        )
        self.beside, self.engine = None, None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "told", True))

    def run(self) -> int:
        with open(self.options.log, "ab") as log:
            self.beside = subprocess.Popen(
                filled(self.options.beside, self.ports), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            return self._run()
        finally:
            self._end()

    def _run(self) -> int:
        began, waited = time.monotonic(), 0.0
        while not self._answers():
            if self.told or self.beside.poll() is not None:
                return self._lost()
            step = time.monotonic()
            time.sleep(POLL_S)
            waited += min(
                time.monotonic() - step, 1.0
            )  # whoever is stopped for a minute (SIGSTOP) has not waited for one
            if waited > self.options.ready_s:
                return self._say(f"did not get ready within {self.options.ready_s:g} s", 1)
        about = {
            "name": self.options.name,
            **self.ports,
            "ready_s": round(time.monotonic() - began, 2),
            "settings": json.loads(fetch(self.ports["http_port"], "/config")),
        }
        print(MARK + json.dumps(about), flush=True)
        self.engine = subprocess.Popen(filled(self.options.engine, self.ports), stdin=subprocess.DEVNULL)
        while self.engine.poll() is None and self.beside.poll() is None and not self.told:
            time.sleep(POLL_S)
        if self.engine.poll() is not None:
            return self.engine.returncode
        return self._lost()

    def _answers(self) -> bool:
        """Whether the server beside is up; a stranger on its port does not count as long as ours is about to find that
        out.
        """
        try:
            fetch(self.ports["http_port"], "/healthcheck", 5)
            return self.beside.poll() is None
        except OSError:
            return False

    def _lost(self) -> int:
        if self.told:
            return 0
        return self._say(f"ended with exit code {self.beside.returncode}", self.beside.returncode or 1)

    def _say(self, what: str, code: int) -> int:
        """What happened to the server beside, after its last lines: whoever looks for a cause finds the last error."""
        lines = last_lines(self.options.log)
        print(
            "".join(f"    | {line}\n" for line in lines)
            + f"RuntimeError: {self.options.name}, which the engine needs beside it, {what}: "
            f"{lines[-1] if lines else 'it printed nothing'}",
            flush=True,
        )
        return code

    def _end(self) -> None:
        """End both. Whoever told this program told the whole group: they get their time before they are told again."""
        left = [server for server in (self.engine, self.beside) if server]
        deadline = time.monotonic() + PATIENCE_S
        while self.told and any(server.poll() is None for server in left) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for server in left:
            if server.poll() is None:
                server.terminate()
        for server in left:
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--name", required=True)
    parser.add_argument("--log", required=True, help="where the server beside writes")
    parser.add_argument("--ready-s", type=float, default=180, help="seconds within which it has to answer")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if "---" not in words:
        parser.error("two commands are wanted, with --- between them")
    options.beside, options.engine = words[: words.index("---")], words[words.index("---") + 1 :]
    code = Pair(options).run()
    sys.exit(code if code >= 0 else 256 + code)


if __name__ == "__main__":
    main()
