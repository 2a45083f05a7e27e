"""What instances cost an hour."""

import json
import sys
from typing import Annotated

import typer

from . import options


def price(
    instance: Annotated[
        list[str],
        typer.Argument(
            metavar="INSTANCE",
            help="instance types (g6.xlarge) or host profiles (l4x1); all of the table when not given",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    region: options.Region = "us-east-1",
    offline: Annotated[
        bool,
        typer.Option("--offline", help="do not ask AWS: the newest price fetched earlier, or of the table that ships"),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say what instances cost an hour in a region, by the AWS Price List where it can be asked, else by the newest
    price known here.

    On demand, Linux, shared tenancy, in US dollars. Exit status: 0 priced, 2 an instance that was named does not exist
    or has no known price."""
    from ..hardware import prices

    offers, unreachable = prices.offers(instance, region, ask=not offline)
    if offline or unreachable:
        dates = sorted({offer.price.date for offer in offers if offer.price})
        kept = (
            f"what is known here, of {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
            if dates
            else "nothing is known here"
        )
        print(
            f"the AWS Price List was not asked (--offline): {kept}"
            if offline
            else f"the AWS Price List could not be asked ({unreachable}): {kept}",
            file=sys.stderr,
        )
    if as_json:
        print(
            json.dumps(
                {
                    "region": region,
                    "asked": not offline,
                    "unreachable": unreachable,
                    "prices": [offer.as_dict() for offer in offers],
                },
                indent=1,
            )
        )
        return
    cells = [("instance", "GPUs", "GiB each", "USD an hour", "USD a GPU-hour", "region", "date", "source")]
    for offer in offers:
        gpus = (f"{offer.gpus} {offer.gpu}", f"{offer.memory_gib:.1f}") if offer.gpu else ("–", "–")
        cost = (
            (
                f"{offer.price.usd_per_hour:.4f}",
                f"{offer.usd_per_gpu_hour:.4f}" if offer.gpu else "–",
                region,
                offer.price.date,
                offer.price.source,
            )
            if offer.price
            else ("–", "–", region, "–", offer.why)
        )
        cells.append((offer.instance, *gpus, *cost))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print(
            "  ".join(
                f"{cell:>{width}}" if place in (2, 3, 4) else f"{cell:<{width}}"
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )
