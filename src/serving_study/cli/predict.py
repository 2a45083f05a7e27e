"""What arithmetic expects of a section on a host."""

import json
from typing import Annotated

import typer

from ..errors import ParameterError
from . import options


def predict(
    host: Annotated[str, typer.Option("--host", help="a host profile (l4x1) or an instance type (g6.xlarge)")],
    section: Annotated[str, typer.Option("--section", help="3 or 5")] = "3",
    model: Annotated[
        str,
        typer.Option(
            "--model", help="the target: a shape that ships, a folder, a config.json, or a hub id in the cache"
        ),
    ] = "Qwen/Qwen2.5-7B-Instruct",
    draft_model: Annotated[
        str, typer.Option("--draft-model", help="section 3's draft, the same way")
    ] = "Qwen/Qwen2.5-0.5B-Instruct",
    acceptance: Annotated[
        list[str],
        typer.Option(
            "--acceptance",
            metavar="ARM=RATE",
            help="the share of drafted tokens that an arm accepts, e.g. draft-k3=0.6, where the reference study has "
            "none for these models, or in place of its (repeatable)",
        ),
    ] = [],  # noqa: B006
    price: options.HourlyPrice = None,
    fetch_price: options.FetchPrice = False,
    region: options.Region = "us-east-1",
    as_json: options.AsJson = False,
) -> None:
    """Say what arithmetic expects of a section on a host, before anything is rented: memory, TPOT, throughput,
    crossover, cost.
    """
    from ..theory import calibration, predictions

    cost = options.price_of(host, price, fetch_price, region)
    frame = predictions.predict(
        host,
        model,
        draft_model,
        section=options.number(section),
        acceptance=rates(acceptance),
        price_per_hour=cost and cost.usd_per_hour,
    )
    if as_json:
        print(
            json.dumps(
                {
                    "host": host,
                    "section": options.number(section),
                    "model": model,
                    "calibrated": calibration.is_calibrated(host),
                    "price": cost and cost.as_dict(),
                    "rows": json.loads(frame.to_json(orient="records")),
                },
                indent=1,
            )
        )
        return
    print(f"section {section} on {host}, {model}: predicted, not measured; {predictions.basis(host)}")
    print(
        f"price: {cost}"
        if cost
        else f"price: none known for {host} in {region}; --price USD_PER_HOUR or --fetch-price adds the cost"
    )
    for arm, rows in frame.groupby("arm", sort=False):
        first = rows.iloc[0]
        if isinstance(first["reason"], str):
            print(f"  {arm:<10} does not start: {first['reason']}")
            continue
        rate = "" if first["acceptance"] != first["acceptance"] else f"; acceptance {first['acceptance']:.1%} assumed"
        ends = "" if first["crossover"] != first["crossover"] else f"; pays below concurrency {first['crossover']:.0f}"
        caveat = predictions.caveat(first["technique"])
        print(
            f"  {arm:<10} {first['weights_gib']:.2f} GiB of weights a GPU, {first['kv_tokens']:,.0f} KV "
            f"tokens, {first['max_concurrency']:.1f} requests of full length{ends}{rate}{caveat}"
        )
        if first["output_throughput"] != first["output_throughput"]:
            print(f"      no acceptance is known for it with these models; --acceptance {arm}=RATE adds its figures")
            continue
        for row in rows.itertuples():
            dollars = f"  {row.usd_per_million:7.2f} USD a million output tokens" if cost else ""
            print(
                f"      concurrency {row.concurrency:<3.0f}  TPOT {row.tpot_ms:7.2f} ms  TTFT "
                f"{row.ttft_ms:6.0f} ms  {row.output_throughput:8.1f} tok/s out ({row.multiple:.2f}×){dollars}"
            )


def rates(pairs: list[str]) -> dict[str, float]:
    """Arm to acceptance rate."""
    by_arm = {}
    for pair in pairs:
        arm, _, rate = pair.partition("=")
        try:
            by_arm[arm] = float(rate)
        except ValueError:
            raise ParameterError(
                "--acceptance wants an arm and a rate", value=pair, allowed="--acceptance draft-k3=0.6"
            ) from None
    return by_arm
