"""`Finding`: the outcome of one check, and how findings are shown, counted and acted on.

`ok`, `warn` (the run goes on, with figures that may be worse) or `fail` (the run would break off or measure something
else).

    >>> print(*lines([Finding("port", "8000 is free")]), sep="\n")
    ok    port: 8000 is free
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from ..errors import HostError, StudyError

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """One check: its subject, what was found, what is wanted, and the next command."""

    what: str
    found: str
    wanted: str = ""
    outcome: str = OK
    fix: str = ""


def of_error(what: str, error: Exception, outcome: str = FAIL, fix: str = "") -> Finding:
    """An error as a finding."""
    if not isinstance(error, StudyError):
        return Finding(what, f"{type(error).__name__}: {error}", "", outcome, fix)
    return Finding(
        what,
        error.what if error.value is None else f"{error.what}: {error.value}",
        str(error.allowed or ""),
        outcome,
        error.next or fix,
    )


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """The findings as text; what is wanted and the fix only where something is wrong."""
    for finding in findings:
        yield f"{finding.outcome:<4}  {finding.what}: {finding.found}"
        if finding.outcome != OK:
            yield from (
                f"        {name:<7} {text}"
                for name, text in (("wanted:", finding.wanted), ("fix:", finding.fix))
                if text
            )


def counts(findings: list[Finding]) -> dict[str, int]:
    return {outcome: sum(finding.outcome == outcome for finding in findings) for outcome in (OK, WARN, FAIL)}


def summary(findings: list[Finding]) -> str:
    count = counts(findings)
    words = (
        f"{count[outcome]} {name}{'' if count[outcome] == 1 else 's'}"
        for outcome, name in ((WARN, "warning"), (FAIL, "failure"))
    )
    return f"{len(findings)} checks: {count[OK]} ok, {', '.join(words)}"


def as_dict(findings: list[Finding]) -> dict:
    return {"findings": [asdict(finding) for finding in findings], "counts": counts(findings)}


def require(findings: list[Finding]) -> None:
    """Raises HostError with the failures and their fixes, if there are any."""
    failures = [finding for finding in findings if finding.outcome == FAIL]
    if failures:
        named = "".join(f"\n    {failure.what}: {failure.found}\n      fix: {failure.fix}" for failure in failures)
        raise HostError(
            f"nothing was started, since {len(failures)} of {len(findings)} checks failed",
            value=named,
            next="correct these, then the same command again; serving-study doctor SECTION looks again",
        )
