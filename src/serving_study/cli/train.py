"""Train a draft, or an EAGLE-3 head, for a target, without the rest of section 4."""

from typing import Annotated

import typer

from . import options


def train(
    method: Annotated[
        str,
        typer.Argument(metavar="[draft|eagle3]", help="a model of its own, or a head that reads the target's states"),
    ] = "draft",
    parameter: options.Pairs = [],  # noqa: B006
    yaml: options.Yaml = "",
) -> None:
    """Train what proposes tokens for a target; what stands already is not made again, and a killed run goes on."""
    from ..chapters import sections
    from ..chapters.drafts import distillation, eagle, recipe
    from ..errors import ParameterError

    if method not in ("draft", "eagle3"):
        raise ParameterError("no such method", value=method, allowed="draft, eagle3", next="serving-study train --help")
    values = sections.parameters(sections.get(4), options.given_parameters(parameter, yaml))
    if method == "draft":
        trained = distillation.train(recipe.resolved(**values))
    else:
        trained = eagle.train(recipe.resolved(shipped=False, **values), eagle.Head())
    print(trained.folder)
    for k, look in trained.last["rounds"].items():
        print(f"  k = {k}: acceptance rate {look['acceptance_rate']:.3f} along held-out answers, temperature 0")
