"""What a page's sentences take from its results: values by name, glued for `{glue:text}`.

A number is glued as a float, since `{glue:text}` formats what it is given and a numpy scalar prints with its type. What
can mislead: a bool is a number to Python and is refused, since no sentence says `True`.

    >>> prose.glue({"weights_gib": 14.29, "host_name": "g6.xlarge"})                         # doctest: +SKIP
"""

import numbers
from collections.abc import Mapping

from ..errors import ParameterError


def glue(values: Mapping[str, object]) -> None:
    """Glue every value under its name, without showing it: numbers as floats, words as they are.

    Raises ParameterError for anything else, before the first is glued.
    """
    from myst_nb import glue as glue_one

    plain = {name: plain_value(name, value) for name, value in values.items()}
    for name, value in plain.items():
        glue_one(name, value, display=False)


def plain_value(name: str, value: object) -> float | str:
    """A Python float or a string, the two that prose can format."""
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    raise ParameterError(
        f"the value {name} cannot stand in a sentence",
        value=f"{value!r} ({type(value).__name__})",
        allowed="a number or a string",
    )
