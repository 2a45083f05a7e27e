"""Every error that the harness raises on purpose, as one small tree.

Each says what happened, the offending value, what is allowed, and the next command:

    raise ParameterError("unknown section", value=13, allowed="2, 3", next="make help")

prints as

    unknown section: 13
      allowed: 2, 3
      next:    make help
"""

import difflib
from collections.abc import Iterable


class StudyError(Exception):
    """An error that a user can act on; the command line prints it without a traceback and exits with 2."""

    def __init__(self, what: str, *, value: object = None, allowed: object = None, next: str | None = None):
        self.what, self.value, self.allowed, self.next = what, value, allowed, next
        lines = [what if value is None else f"{what}: {value}"]
        if allowed is not None:
            lines.append(f"  allowed: {allowed}")
        if next is not None:
            lines.append(f"  next:    {next}")
        super().__init__("\n".join(lines))


def near(value: object, names: Iterable[str]) -> str | None:
    """`did you mean g6.xlarge?`, for an error's `next`; None where no name is similar."""
    by_lower = {name.lower(): name for name in names}
    matches = (
        difflib.get_close_matches(str(value).lower(), by_lower, n=3)
        or [name for name in by_lower if name.startswith(str(value).lower())][:3]
    )
    return f"did you mean {' or '.join(by_lower[name] for name in matches)}?" if matches else None


class ParameterError(StudyError):
    """A parameter, section, arm or option that does not exist or has the wrong type."""


class HostError(StudyError):
    """This machine lacks what was asked for: memory, GPUs, a port, disk."""


class ModelError(StudyError):
    """A model folder or hub id that cannot be used, or two models that do not go together."""


class EngineEnvironmentError(StudyError):
    """An engine's Python environment is missing, mixed or broken."""


class DatasetError(StudyError):
    """A dataset that is missing or malformed, or whose digest is not the pinned one."""


class LoadError(StudyError):
    """A load that could not be driven against a server."""


class StoreError(StudyError):
    """Results that cannot be written or read."""


class BookError(StudyError):
    """A chapter that cannot be published, or a book that cannot be built."""


class ServerError(StudyError):
    """A server that did not start, died or stopped answering.

    `reason` is the cause in one line (`out of memory: tried to allocate 270.00 MiB of 22.06 GiB`), `last_lines` the end
    of its log."""

    def __init__(
        self,
        what: str,
        *,
        reason: str,
        log: object = None,
        last_lines: tuple[str, ...] = (),
        exit_code: int | None = None,
        next: str | None = None,
    ):
        self.reason, self.log, self.last_lines, self.exit_code = reason, log, tuple(last_lines), exit_code
        tail = "".join(f"\n    | {line}" for line in self.last_lines)
        code = "" if exit_code is None else f" (exit code {exit_code})"
        super().__init__(f"{what}{code}: {reason}{tail}", next=next or (f"less {log}" if log else None))


class PriceError(StudyError):
    """A price that is missing, unusable, or could not be fetched."""


class PriceListError(PriceError):
    """The AWS Price List could not be asked; `why` (no credentials, no permission, no network) in a few words."""

    def __init__(self, what: str, *, why: str, **details):
        self.why = why
        super().__init__(what, **details)
