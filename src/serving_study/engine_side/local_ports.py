"""Free ports of this machine, and what a server on one of them says.

Standard library alone: the scripts beside it run in the engine's interpreter.
"""

import socket
import urllib.request

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_ports(count: int) -> list[int]:
    """So many ports that nobody had a moment ago: whoever binds one must be ready to find it taken."""
    sockets = [socket.socket() for _ in range(count)]
    for place in sockets:
        place.bind(("127.0.0.1", 0))
    ports = [place.getsockname()[1] for place in sockets]
    for place in sockets:
        place.close()
    return ports


def fetch(port: int, path: str, timeout_s: float = 10) -> str:
    """The answer to a GET. Raises OSError (urllib.error.URLError is one) where there is none, or not with 200."""
    with DIRECT.open(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Connection": "close"}), timeout=timeout_s
    ) as answer:
        return answer.read().decode()
