"""Servers that take turns behind one port: whose turn it is, that a stream is not held back, and whose counters are
whose.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from serving_study.engines.process import Process
from serving_study.errors import ServerError
from serving_study.servers import fleet, metrics
from serving_study.servers.programs import front

EVENT = b"data: {}\n\n"


def run_apart(coroutine):
    """`asyncio.run` in a thread of its own: in this one the browser's tests may have left an event loop running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


class Upstream:
    """A server that answers with its name, in two pieces, the second when it is told to."""

    def __init__(self, name: str):
        self.name, self.go_on, self.asked = name, asyncio.Event(), []

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head.split()[1])
        if head.startswith("GET /health"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        elif head.startswith("GET /metrics"):
            body = f'# TYPE made counter\nmade_total{{engine="0"}} {len(self.name)}.0\nplain 1\n'.encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        else:
            body = await reader.readexactly(4)
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + self.name.encode() + body + EVENT)
            await writer.drain()
            await self.go_on.wait()
            writer.write(b"data: [DONE]\n\n")
        await writer.drain()


async def behind_one_port(upstreams, clients):
    answering = set()

    def closing(serve):
        """`serve`, whose connection is closed before its task ends: none may outlive the loop."""

        async def handle(reader, writer):
            answering.add(asyncio.current_task())
            try:
                await serve(reader, writer)
            finally:
                await closed(writer)

        return handle

    servers = [await asyncio.start_server(closing(upstream.serve), "127.0.0.1", 0) for upstream in upstreams]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    entrance = await asyncio.start_server(closing(front.Front(ports).serve), "127.0.0.1", 0)
    try:
        return await clients(entrance.sockets[0].getsockname()[1], servers)
    finally:
        for server in [entrance, *servers]:
            server.close()
        _, late = await asyncio.wait(answering, timeout=10) if answering else ((), ())
        assert not late, late


async def closed(writer):
    writer.close()
    with suppress(OSError):  # the other side may have gone first
        await writer.wait_closed()


async def ask(port, path="/v1/completions"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    method = "GET" if path in ("/health", "/metrics") else "POST"
    writer.write(f"{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: 4\r\n\r\n".encode() + b"body")
    return reader, writer


async def whole(port, path):
    reader, writer = await ask(port, path)
    said = (await asyncio.wait_for(reader.read(), 10)).decode()
    await closed(writer)
    return said


def test_connections_take_turns_and_a_stream_is_passed_on_as_it_comes():
    async def clients(port, _):
        seen = []
        for _ in range(4):
            reader, writer = await ask(port)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            first = await asyncio.wait_for(reader.readuntil(EVENT), 10)  # its server has not gone on yet
            seen.append(first.removesuffix(EVENT).decode())
            await closed(writer)
        for upstream in upstreams:
            upstream.go_on.set()
        said = await whole(port, "/v1/completions")
        return seen, said

    async def run():
        upstreams.extend([Upstream("first"), Upstream("second")])
        return await behind_one_port(upstreams, clients)

    upstreams = []
    seen, said = run_apart(run())
    assert seen == ["firstbody", "secondbody", "firstbody", "secondbody"] and said.endswith(
        "firstbodydata: {}\n\ndata: [DONE]\n\n"
    )


class Deserted(Upstream):
    """A server that would stream for ever, and notices when nobody reads any more."""

    async def serve(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + EVENT)
        await reader.read()  # to the connection's end
        self.go_on.set()


def test_a_server_is_told_when_its_client_goes_away():
    async def clients(port, _):
        reader, writer = await ask(port)
        await asyncio.wait_for(reader.readuntil(EVENT), 10)
        await closed(writer)
        await asyncio.wait_for(upstreams[0].go_on.wait(), 10)
        return True

    async def run():
        upstreams.append(Deserted("only"))
        return await behind_one_port(upstreams, clients)

    upstreams = []
    assert run_apart(run())


def test_counters_are_those_of_all_and_add_up():
    said = run_apart(behind_one_port_named("/metrics"))
    snapshot = metrics.parse(said.partition("\r\n\r\n")[2])
    assert (
        snapshot.by_label("made_total", "replica") == {"0": 5.0, "1": 6.0}
        and snapshot.total("made_total") == 11.0
        and snapshot.total("plain") == 2.0
    )


async def behind_one_port_named(path):
    return await behind_one_port([Upstream("first"), Upstream("second")], lambda port, _: whole(port, path))


def test_health_is_that_of_all():
    async def clients(port, servers):
        well = await whole(port, "/health")
        servers[1].close()
        await servers[1].wait_closed()
        return well, await whole(port, "/health")

    async def run():
        return await behind_one_port([Upstream("first"), Upstream("second")], clients)

    well, ill = run_apart(run())
    assert well.startswith("HTTP/1.1 200 OK") and ill.startswith("HTTP/1.1 503 ")


@pytest.mark.parametrize(
    ("ranks", "environment", "shares"),
    [
        (1, {}, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]),
        (2, {"CUDA_VISIBLE_DEVICES": "3,5,6,7"}, [{"CUDA_VISIBLE_DEVICES": "3,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]),
        (
            1,
            {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "CUDA_VISIBLE_DEVICES": ""},
            [{"VLLM_CPU_OMP_THREADS_BIND": "0"}, {"VLLM_CPU_OMP_THREADS_BIND": "1"}],
        ),
    ],
)
def test_each_server_has_gpus_or_cores_of_its_own(ranks, environment, shares):
    server = Process("server", "vllm", options={"tensor_parallel_size": ranks})
    assert [fleet.places(server, environment, first, 2 * ranks) for first in (0, ranks)] == shares


def test_too_few_gpus_for_all():
    server = Process("server", "vllm", options={"tensor_parallel_size": 2})
    with pytest.raises(ServerError, match="4 ranks were asked for, and CUDA_VISIBLE_DEVICES has 3: 0,1,2"):
        fleet.places(server, {"CUDA_VISIBLE_DEVICES": "0,1,2"}, 0, 4)


def test_samples_get_a_label_and_comments_stay():
    assert (
        front.labelled('# HELP a text\n# TYPE a counter\na{x="1"} 2\nb 3\n', 1)
        == '# HELP a text\n# TYPE a counter\na{replica="1",x="1"} 2\nb{replica="1"} 3\n'
    )
