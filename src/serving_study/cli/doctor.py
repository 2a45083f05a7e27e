"""Look for every known trap."""

import json
from typing import Annotated

import typer

from ..doctor import findings
from . import options


def doctor(
    section: Annotated[
        str,
        typer.Argument(metavar="[SECTION]", help="also look at what this section would measure", show_default=False),
    ] = "",
    as_json: options.AsJson = False,
    imports: Annotated[
        bool,
        typer.Option(
            "--imports/--no-imports", help="try the engine's imports where that is not known yet (20 s, once)"
        ),
    ] = True,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="also measure memory bandwidth, matrix rate and copies (seconds each), for predictions; a "
            "busy machine is refused",
        ),
    ] = False,
) -> None:
    """Look for every known trap before anything starts; installs nothing.

    Exit status: 0 nothing fails, 1 something does.
    """
    from ..doctor import checks as doctors

    all_findings = doctors.look(options.number(section) if section else None, imports=imports)
    added, measured = doctors.probe() if probe else ([], None)
    all_findings += added
    probe_record = {"probe": measured and measured.as_dict()} if probe else {}
    print(
        json.dumps(findings.as_dict(all_findings) | probe_record, indent=1)
        if as_json
        else "\n".join([*findings.lines(all_findings), findings.summary(all_findings)])
    )
    raise typer.Exit(1 if findings.counts(all_findings)[findings.FAIL] else 0)
