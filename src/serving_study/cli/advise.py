"""The measured arms that meet targets."""

import json
from typing import Annotated

import typer

from . import options


def advise(
    slo: Annotated[
        list[str],
        typer.Option(
            "--slo",
            metavar="NAME=MS",
            help="a target, e.g. ttft_p99_ms=500 or tpot_p50_ms=40: ttft, tpot, itl or e2el, its p50, p95, "
            "p99 or mean (repeatable)",
        ),
    ] = [],  # noqa: B006
    host: Annotated[
        list[str],
        typer.Option(
            "--host", help="a host with results, or one to predict for; this machine when not given (repeatable)"
        ),
    ] = [],  # noqa: B006
    section: Annotated[str, typer.Option("--section", help="the section's number")] = "3",
    price: options.HourlyPrice = None,
    fetch_price: options.FetchPrice = False,
    region: options.Region = "us-east-1",
    as_json: options.AsJson = False,
) -> None:
    """Rank the measured arms that meet targets, and show those that miss.

    Exit status: 0 a measured arm meets every target, 1 none does, 3 nothing is measured and the answer is a prediction.
    """
    from ..chapters.choosing import advice, advice_text
    from ..hardware import hosts

    wanted, own = advice.targets(slo), hosts.detect().name
    of_hosts = [
        advice.of_host(
            name, options.number(section), wanted, price=options.price_of(name, price, fetch_price, region), own=own
        )
        for name in host or [own]
    ]
    if as_json:
        print(json.dumps([one.as_dict() for one in of_hosts] if len(of_hosts) > 1 else of_hosts[0].as_dict(), indent=1))
    else:
        print("\n\n".join("\n".join(advice_text.lines(one)) for one in of_hosts))
        print("\n".join(advice_text.across(of_hosts)))
    raise typer.Exit(
        0 if any(one.found for one in of_hosts) else 1 if any(one.basis == "measured" for one in of_hosts) else 3
    )
