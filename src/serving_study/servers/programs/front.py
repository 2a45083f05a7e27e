"""One port before several servers of one model, which take turns: connection 1 goes to the first, connection 2 to the
second, and round again.

    python front.py PORT HEALTH SERVER_PORT SERVER_PORT …

Bytes are passed on as they come, so that a stream is not buffered; who sends `Connection: close` with each request, as
the book's load generator does, has each request balanced. Two paths are answered here: HEALTH is 200 when every
server's is, and /metrics is all servers' samples with a label `replica`. Standard library alone."""

import asyncio
import re
import signal
import sys
import urllib.request

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{)?", re.MULTILINE)


def fetch(port: int, path: str, timeout_s: float = 10) -> str:
    """The answer to a GET. Raises OSError (urllib.error.URLError is one) where there is none, or not with 200."""
    with DIRECT.open(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Connection": "close"}), timeout=timeout_s
    ) as answer:
        return answer.read().decode()


def labelled(text: str, replica: int) -> str:
    """Samples in Prometheus' text format with the label `replica` put first."""
    return SAMPLE.sub(lambda match: f'{match[1]}{{replica="{replica}"' + ("," if match[2] else "}"), text)


class Front:
    """The port that clients know."""

    def __init__(self, ports: list[int], health: str = "/health"):
        self.ports, self.health, self.turn = ports, health, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n")
            path = head.split(b" ")[1].decode() if head.count(b" ") > 1 else ""
            if path in (self.health, "/metrics"):
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
            )  # the client has gone: tell the server, which would work for nobody
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            back.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()


async def run(port: int, health: str, ports: list[int]) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = await asyncio.start_server(Front(ports, health).serve, "127.0.0.1", port, backlog=1024)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), sys.argv[2], [int(word) for word in sys.argv[3:]]))
