"""Options that several verbs share, and how they are read."""

import ast
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ParameterError

if TYPE_CHECKING:
    from ..hardware import prices


SectionNumber = Annotated[
    str, typer.Argument(metavar="SECTION", help="the section's number, as `serving-study sections` lists them")
]
HourlyPrice = Annotated[
    float | None,
    typer.Option(
        "--price", help="US dollars an hour, for the cost of a million output tokens; the known price when not given"
    ),
]
FetchPrice = Annotated[
    bool,
    typer.Option("--fetch-price", help="ask the AWS Price List (needs credentials and a network), and keep the answer"),
]
Region = Annotated[str, typer.Option("--region", help="of the price")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object on standard output")]
Pairs = Annotated[
    list[str],
    typer.Option(
        "-p",
        "--parameter",
        metavar="NAME=VALUE",
        help="a parameter of the notebook's header, e.g. -p repeats=2 (repeatable)",
    ),
]
Yaml = Annotated[
    str,
    typer.Option("-y", "--yaml", metavar="YAML", help="parameters as a YAML mapping, for lists: -y '{ks: [1, 3]}'"),
]


def number(text: str) -> int | str:
    if text.isdigit():
        return int(text)
    from ..chapters import sections

    return sections.address(text)


def price_of(host: str, usd_per_hour: float | None, fetch: bool, region: str) -> "prices.Price | None":
    """The given price, else the fetched one if asked for, else the newest known."""
    from ..hardware import prices

    if usd_per_hour is not None:
        return prices.given(host, usd_per_hour)
    return prices.fetch(host, region) if fetch else prices.known(host, region)


def given_parameters(pairs: list[str], text: str) -> dict[str, Any]:
    import yaml

    try:
        given = yaml.safe_load(text) if text else {}
    except yaml.YAMLError as error:
        raise ParameterError(
            "-y is not YAML", value=f"{text} ({str(error).splitlines()[0]})", allowed="-y '{name: value, …}'"
        ) from None
    if not isinstance(given, dict):
        raise ParameterError("-y is not a mapping", value=text, allowed="-y '{name: value, …}'")
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise ParameterError(
                "-p wants a name and a value in one word", value=pair, allowed="-p NAME=VALUE, such as -p repeats=2"
            )
        try:
            given[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[name] = value
    return given
