"""Measuring one cell: a load on a running server, its counters before and after, the evidence, the certificate.

>>> measure_cell(run, cell, server, generator, timing)               # doctest: +SKIP
"""

import time
from collections.abc import Sequence

from .. import engines, files
from ..engines import logs
from ..errors import LoadError, ServerError
from ..loads import Generator, Load
from ..results import certificates
from ..results.store import Run
from ..servers import client, lifetime, metrics
from ..servers.arm import Arm
from ..servers.fleet import Fleet
from . import mechanisms, records
from .plan import Cell
from .progress import Progress

WARMUP_TOKENS, WARMUP_SEED = 8, 7


def warm_up(
    arm: Arm, loads: tuple[Load, ...], server: Fleet, generator: Generator, progress: Progress, timing: dict
) -> None:
    """One short load at the highest concurrency: the first requests of a path are slow and are never counted. The probe
    that found the server ready has been the first one alone in flight.
    """
    began = time.monotonic()
    progress.show("warming up", arm=arm.name)
    most = max(load.concurrency for load in loads)
    generator.run(
        Load(most, max(2, min(most, 64)), loads[0].dataset, WARMUP_TOKENS, loads[0].temperature, True, WARMUP_SEED),
        server,
        tokenizer=str(arm.model.folder),
    )
    timing["warm-up"] += time.monotonic() - began


def measure_cell(
    run: Run,
    cell: Cell,
    server: Fleet,
    generator: Generator,
    timing: dict,
    *,
    life: int = 1,
    sitting: int | None = None,
    idle: Sequence[Fleet] = (),
) -> None:
    """Measure `cell` in a server's `life` and store it. In a `sitting` it shares its block's time with other arms,
    whose `idle` servers stand still meanwhile.

    Raises ServerError for a server that is dead afterwards, LoadError for a load that cannot be driven."""
    began, tokenizer = time.monotonic(), str(cell.arm.model.folder)
    load = cell.load.dataset.sized(cell.load, server.start)
    for prompt in load.dataset.primers(load, tokenizer, cell.repeat):
        server.fill(prompt, "a prefix to be found by the load")
    engine, mechanism = engines.get(cell.arm.engine), mechanisms.of(cell.arm.technique)
    before = _scrape(server)
    looked = mechanism.look(cell.arm, server, server.host, before)
    idle_s = -sum(fleet.cpu_s() for fleet in idle)
    with server.sampler() as sampler:
        answer = generator.run(load, server, tokenizer=tokenizer, repeat=cell.repeat)
    idle_s += sum(fleet.cpu_s() for fleet in idle)
    after = _scrape(server)
    result, requests = records.split(answer["result"], answer.get("watched"))
    load_s = result.get("duration") or 0.0
    counters = metrics.difference(before, after, engine.COUNTERS)
    looked_again = mechanism.look(cell.arm, server, server.host, after)
    evidence = {
        "key": cell.key,
        "host": server.host.name,
        "section": cell.section,
        "run": run.name,
        "arm": cell.arm.name,
        **cell.arm.columns(),
        "engine": cell.arm.engine,
        "engine_version": server.engine_version,
        "load": cell.load.name,
        "concurrency": cell.load.concurrency,
        "repeat": cell.repeat,
        "life": life,
        "sitting": sitting,
        "at": files.now(),
        "seed": cell.load.seed_of(cell.repeat),
        "asked": {
            "prompts": load.prompts,
            "output_tokens": cell.load.output_tokens,
            "ignore_eos": cell.load.ignore_eos,
            "temperature": cell.load.temperature,
            **({"output_spread": cell.load.output_spread} if cell.load.output_spread else {}),
        },
        "result": result,
        "steady": certificates.steady_rates(requests, cell.load.concurrency),
        "counters": counters,
        "speculation": metrics.acceptance(before, after, engine.COUNTERS),
        "reuse": load.dataset.evidence(
            load, metrics.block_tokens(before, engine.COUNTERS), server.start.get("kv_cache_tokens")
        ),
        "client": answer["client"],
        "machine": sampler.summary(),
        **({"idle": {"servers": len(idle), "cpu_s": round(idle_s, 3)}} if idle else {}),
        **mechanism.evidence(cell.arm, looked, looked_again, counters),
        "server": {"owns_port": server.owns_port(), "alive": _alive(server), "pid": server.pid},
        "labels": server.labels,
    }
    cell_s = time.monotonic() - began
    evidence["timing"] = {"load_s": load_s, "cell_s": cell_s, "overhead_s": cell_s - load_s}
    evidence["certificate"] = mechanisms.certify(evidence, requests)
    run.write_cell(evidence, requests)
    timing["load"] += load_s
    if not evidence["server"]["alive"]:  # all later cells of a dead engine would be 0
        server.require_alive(client.LAST_WORDS_S)
        raise ServerError(
            f"{cell.name}: the server does not answer after the load",
            reason="no token came back after the load",
            log=server.log,
            last_lines=logs.tail(server.log),
        )


def _scrape(server: Fleet) -> metrics.Snapshot:
    """The counters; a server that does not answer because it is ending is a dead server, with its own cause."""
    try:
        return server.counters()
    except LoadError:
        server.require_alive(client.LAST_WORDS_S)
        raise


def _alive(server: Fleet) -> bool:
    """One more token, asked for after the load."""
    try:
        return all(
            client.complete(server.url, server.arm.model.name, lifetime.PROBE_PROMPT, 1, 60)["usage"][
                "completion_tokens"
            ]
            == 1
            for _ in range(server.arm.replicas)
        )
    except (OSError, ValueError, KeyError):
        return False
