"""Judge stored results: two studies against each other, and one host's cells by the checks as they are now."""

import json
from typing import Annotated

import typer

from .. import paths
from ..errors import ParameterError
from . import options


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="HOST, HOST/RUN or reference/HOST")],
    b: Annotated[str, typer.Argument(metavar="B", help="the same, to compare A with")],
    section: Annotated[str, typer.Option("--section", help="the section's number")] = "3",
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", help="relative difference that still reproduces; 0.05 when not given")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say which figures of A reproduce those of B.

    Exit status: 0 nothing differs, 1 something does, 3 nothing is comparable.
    """
    from ..analysis import verdicts
    from ..chapters.parallelism import splits

    number, tolerance = options.number(section), verdicts.TOLERANCE if tolerance is None else tolerance
    if not 0 <= tolerance < 1:
        raise ParameterError(
            "--tolerance cannot be used", value=tolerance, allowed="from 0 to below 1, a relative difference"
        )
    judged = splits.verdicts_by_model if number == splits.SECTION else verdicts.verdicts
    table = judged(verdicts.study(a, number), verdicts.study(b, number), tolerance=tolerance)
    counts = {
        verdict: int((table["verdict"] == verdict).sum())
        for verdict in (verdicts.REPRODUCES, verdicts.DIFFERS, verdicts.NOT_COMPARABLE)
    }
    if as_json:
        print(
            json.dumps(
                {
                    "a": a,
                    "b": b,
                    "section": number,
                    "tolerance": tolerance,
                    "counts": counts,
                    "verdicts": json.loads(table.to_json(orient="records")),
                },
                indent=1,
            )
        )
    else:
        for name in dict.fromkeys((a, b)):
            print("\n".join(verdicts.machine_lines(name, number)))
        for row in table[table["verdict"] != verdicts.NOT_COMPARABLE].itertuples():
            print(
                f"{row.verdict:<14}  {row.kind:<8}  {row.metric:<22}  {row.arm:<16}  concurrency "
                f"{row.concurrency:<3}  {row.a:.5g} against {row.b:.5g} ({row.change:+.1%}): {row.why}"
            )
        for why, rows in table[table["verdict"] == verdicts.NOT_COMPARABLE].groupby("why", sort=False):
            print(f"{verdicts.NOT_COMPARABLE:<14}  {len(rows)} figures: {why}")
        print(
            ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            if len(table)
            else "no figure is in both"
        )
    raise typer.Exit(1 if counts[verdicts.DIFFERS] else 0 if counts[verdicts.REPRODUCES] else 3)


def certify(
    host: Annotated[str, typer.Argument(help="a host under data/results")], section: options.SectionNumber
) -> None:
    """Judge a host's stored cells again by the checks as they are now."""
    from ..measure import mechanisms
    from ..results import store

    known = store.Store(store.host_named(host, options.number(section), paths.RESULTS), options.number(section))
    if not known.runs():
        raise ParameterError(
            "no results",
            value=known.folder,
            allowed=", ".join(store.measured_hosts(root=paths.RESULTS)),
            next=f"make run SECTION={section}",
        )
    print(f"{known.certify(mechanisms.certify)} verdicts changed")
