"""`Endpoint`: a server that somebody else started, as loads and cells see a fleet of our own.

What can mislead: a local port may lead to another machine, so that nothing of this one is taken for the server's.

    >>> Endpoint(report, arm, host, environment, log).url                          # doctest: +SKIP
    'http://127.0.0.1:8000'
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from ... import engines
from ...engines.base import Snapshot
from ...environments import Environment
from ...errors import LoadError, ServerError
from ...hardware.hosts import Host
from ...servers import client, metrics
from ...servers.arm import Arm
from .report import ANSWER_S, PROBE_S, STARTED_BY, UNKNOWN, Report, reason


class Unseen:
    """Samples of a machine that nothing is seen of."""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def summary(self) -> dict:
        """None."""
        return {}


@dataclass
class Endpoint:
    """An endpoint with all that a load and a cell ask of a `servers.fleet.Fleet`; what needs its process is None."""

    report: Report
    arm: Arm
    host: Host
    environment: Environment
    log: Path
    start: dict = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    pid: int | None = None

    @property
    def url(self) -> str:
        return self.report.url

    @property
    def engine_version(self) -> str | None:
        return self.report.version

    @property
    def labels(self) -> dict:
        """What a cell's figures are labelled with."""
        return {
            "host": self.host.name,
            "weights": UNKNOWN,
            "acceptance": UNKNOWN,
            "engine": UNKNOWN,
            "started_by": STARTED_BY,
        }

    def sampler(self) -> "Unseen":
        """Nothing of the machine that it runs on is seen from here."""
        return Unseen()

    def counters(self) -> Snapshot:
        """Its counters now; none of an engine that has none. Raises LoadError when it does not answer."""
        counters = engines.get(self.arm.engine).COUNTERS
        return metrics.scrape(self.url, counters.path) if counters.samples else Snapshot({})

    def owns_port(self) -> None:
        """Unknown: its process is not ours."""

    def alive(self) -> bool:
        """Always: its end shows in requests that fail, and in `require_alive`."""
        return True

    def require_alive(self, within_s: float = 0.0) -> None:
        """Raises ServerError unless it answers within so many seconds."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                client.get(f"{self.url}/v1/models", ANSWER_S)
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise ServerError(
                        f"{self.url} does not answer any more",
                        reason=reason(error),
                        next=f"curl {self.url}/v1/models, then the same command again",
                    ) from None
            time.sleep(0.1)

    def death(self) -> ServerError:
        """The error for its end, of which nothing more is known."""
        return ServerError(f"{self.url} ended", reason="its log is not here", next=f"curl {self.url}/v1/models")

    def fill(self, prompt: str, what: str) -> None:
        """Send a request for one token, which leaves the prompt's cache behind. Raises LoadError."""
        try:
            client.complete(self.url, self.arm.model.name, prompt, 1, PROBE_S)
        except (OSError, ValueError) as error:
            raise LoadError(f"{what} could not be sent", value=reason(error)) from None
