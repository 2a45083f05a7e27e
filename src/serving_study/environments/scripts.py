"""Scripts run by an engine's own interpreter: in a process of their own, with a deadline."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import EngineEnvironmentError

QUIET = {"PYTHONDONTWRITEBYTECODE": "", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


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
