"""Several servers of one model behind one port, which takes turns: connection 1 goes to the first, connection 2 to the
second, and round again.

    python replicas.py --port 8000 --replicas 2 --ranks 1 -- python -m … serve MODEL --port {port}

Bytes are passed on as they come, so that a stream is not buffered; who sends `Connection: close` with each request, as
the book's load generator does, has each request balanced. Two paths are answered here: /health is 200 when every
server's is, and /metrics is all servers' samples with a label `replica`. Each server gets GPUs or cores of its own
(CUDA_VISIBLE_DEVICES, VLLM_CPU_OMP_THREADS_BIND: REPLICAS × RANKS of them, in order). When one ends, all end with its
exit code. Standard library alone."""

import argparse
import asyncio
import os
import re
import signal
import sys

from local_ports import fetch, free_ports

PATIENCE_S = 2.0
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{)?", re.MULTILINE)


def shares(replicas: int, ranks: int, environment: dict[str, str]) -> list[dict[str, str]]:
    """Each server's own variables: its part of the GPUs, or of the list of cores."""
    name, mark = (
        ("VLLM_CPU_OMP_THREADS_BIND", "|")
        if "VLLM_CPU_OMP_THREADS_BIND" in environment
        else ("CUDA_VISIBLE_DEVICES", ",")
    )
    parts = [part for part in environment.get(name, "").split(mark) if part] or [
        str(index) for index in range(replicas * ranks)
    ]
    if len(parts) < replicas * ranks:
        raise SystemExit(
            f"{replicas} servers of {ranks} ranks were asked for, and {name} has {len(parts)}: {environment[name]}"
        )
    return [{name: mark.join(parts[index * ranks : (index + 1) * ranks])} for index in range(replicas)]


def labelled(text: str, replica: int) -> str:
    """Samples in Prometheus' text format with the label `replica` put first."""
    return SAMPLE.sub(lambda found: f'{found[1]}{{replica="{replica}"' + ("," if found[2] else "}"), text)


class Front:
    """The port that clients know."""

    def __init__(self, ports: list[int]):
        self.ports, self.turn = ports, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n")
            path = head.split(b" ")[1].decode() if head.count(b" ") > 1 else ""
            if path in ("/health", "/metrics"):
                await self._all(path, writer)
            else:
                await self._pass_on(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _all(self, path: str, writer: asyncio.StreamWriter) -> None:
        try:
            texts = await asyncio.gather(*(asyncio.to_thread(fetch, port, path) for port in self.ports))
            status, body = (
                "200 OK",
                "".join(labelled(text, replica) for replica, text in enumerate(texts)) if path == "/metrics" else "",
            )
        except OSError as error:
            status, body = "503 Service Unavailable", f"{error}\n"
        content = body.encode()
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; "
            f"charset=utf-8\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
            + content
        )
        await writer.drain()

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.ports[self.turn % len(self.ports)]
        self.turn += 1
        there, back = await asyncio.open_connection("127.0.0.1", port)
        back.write(head)
        ways = [asyncio.create_task(_copy(reader, back)), asyncio.create_task(_copy(there, writer))]
        try:
            await asyncio.wait(
                ways, return_when=asyncio.FIRST_COMPLETED
            )  # of a client that has gone, the server is told: it works for nobody
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            back.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()


async def run(options: argparse.Namespace) -> int:
    ports = free_ports(options.replicas)
    environments = shares(options.replicas, options.ranks, dict(os.environ))
    servers = [
        await asyncio.create_subprocess_exec(
            *[word.replace("{port}", str(port)) for word in options.command], env=os.environ | mine
        )
        for port, mine in zip(ports, environments, strict=True)
    ]
    end = lambda: [server.terminate() for server in servers if server.returncode is None]  # noqa: E731
    loop, ended = asyncio.get_running_loop(), [asyncio.create_task(server.wait()) for server in servers]
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(
            number, lambda: loop.call_later(PATIENCE_S, end)
        )  # whoever ends the group has told them already
    front = await asyncio.start_server(Front(ports).serve, "127.0.0.1", options.port, backlog=1024)
    try:
        [first, *_], _ = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    finally:
        front.close()
    code = first.result()
    end()
    await asyncio.gather(*ended)
    return code


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=1, help="GPUs or cores of each server")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.command = [word for position, word in enumerate(options.command) if position or word != "--"]
    code = asyncio.run(run(options))
    sys.exit(code if code >= 0 else 256 + code)


if __name__ == "__main__":
    main()
