"""Measures what this machine does at most, for the doctor: a finding for each rate."""

from collections.abc import Iterable

from ..environments import Environment
from ..errors import EngineEnvironmentError, HostError
from ..hardware import rates
from ..hardware.hosts import Host
from ..hardware.rates import Rate, Rates
from .findings import FAIL, WARN, Finding, of_error


def probe(host: Host, environment: Environment | None) -> tuple[list[Finding], Rates | None]:
    """Measure and keep, with a finding for each figure; a busy machine, or one without an engine, gives one finding
    instead.
    """
    if environment is None or environment.vllm is None:
        return [
            Finding(
                "probe",
                "not measured: the engine, whose torch measures, is not installed",
                "an engine's environment",
                FAIL,
                "make run SECTION=3, which installs it",
            )
        ], None
    try:
        rates.quiet(host)
        measured = rates.measure(host, environment)
        rates.keep(measured)
    except (HostError, EngineEnvironmentError, TimeoutError, OSError) as error:
        return [of_error("probe", error, fix="serving-study doctor --probe")], None
    return findings(measured.rates), measured


def findings(measured: Iterable[Rate]) -> list[Finding]:
    """Each figure in words; a warning where it varies much."""
    all_findings = []
    for rate in measured:
        said = (
            f"{rate.device}: {rate.median:.3g} {rate.unit} (quartiles {rate.spread:.0%} apart, "
            f"{len(rate.values)} repeats in {rate.seconds:.1f} s)"
        )
        steady = rate.spread <= rates.STEADY
        all_findings.append(
            Finding(f"probe, {rate.name}", said)
            if steady
            else Finding(
                f"probe, {rate.name}",
                said,
                f"quartiles at most {rates.STEADY:.0%} apart",
                WARN,
                "let the machine rest, then serving-study doctor --probe",
            )
        )
    return all_findings
