"""Parameters of chapters: one pydantic model each, for the header's check, the plan's check, errors and the appendix.

Values are strict: no `"3"` for 3 and no `True` for 1; but 3.0 is 3 for a whole number, and a tuple is a list. None
leaves a value to the host's profile. Rules over several fields are model validators, which skip such values.

    class Loads(Parameters):
        repeats: Positive | None = Field(None, description="how often each cell is measured")
"""

import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import annotated_types
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from ..errors import ParameterError

OUT_OF_BOUNDS = {
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "literal_error",
    "too_short",
    "too_long",
    "string_pattern_mismatch",
    "refused",
}


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _once(values: list) -> list:
    if len(set(values)) != len(values):
        raise PydanticCustomError("refused", "each value once")
    return values


Whole = Annotated[int, BeforeValidator(_whole)]
Number = int | float
Positive = Annotated[Whole, Field(ge=1)]
NotNegative = Annotated[Whole, Field(ge=0)]
Above0 = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(gt=0, le=1)]
Port = Annotated[Whole, Field(ge=0, le=65535)]
Weights = Literal["auto", "real", "random"]
Once = AfterValidator(_once)
PORT = {"allowed": "0 for any free port, or a port number"}


class Parameters(BaseModel):
    """A chapter's parameters; `section` and `verb` are for an error's next command, `profiles` are defaults by kind of
    host.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", protected_namespaces=())
    section: ClassVar[int | str]
    verb: ClassVar[str] = "make plan"
    profiles: ClassVar[dict[str, dict]] = {}

    def __init__(self, **values):
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(type(self), values, error) from None

    @classmethod
    def named(cls, namespace: Mapping[str, Any]) -> Self:
        """A namespace's variables that are parameters."""
        return cls(**{name: namespace[name] for name in cls.model_fields if name in namespace})

    @classmethod
    def spoken(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Strings `true` and `false` as truth values, where such a value is declared and a string is not."""
        hints, words = typing.get_type_hints(cls), {"true": True, "false": False}
        truths = {name for name in values if bool in (typing.get_args(hints.get(name)) or (hints.get(name),))}
        return {
            name: words.get(value, value) if name in truths and isinstance(value, str) else value
            for name, value in values.items()
        }

    def values(self) -> dict[str, Any]:
        """Field to value, not copied."""
        return dict(self)

    def replaced(self, **changes) -> Self:
        """With other values, checked."""
        return type(self)(**self.values() | changes)

    def filled(self, defaults: dict) -> Self:
        """With the defaults where a value is None."""
        return self.replaced(
            **{name: defaults[name] for name, value in self if value is None and defaults.get(name) is not None}
        )

    def require(self, fine: bool, name: str, allowed: str) -> None:
        """Raises ParameterError for the parameter `name` unless `fine`."""
        if not fine:
            raise _out_of_bounds(type(self), name, getattr(self, name), allowed)


def allowed(kind: type[BaseModel], name: str) -> str:
    """A field's bounds in words: `1 or more`, `auto, real, random`."""
    field = kind.model_fields[name]
    if field.json_schema_extra:
        return field.json_schema_extra["allowed"]
    hint = typing.get_type_hints(kind, include_extras=True)[name]
    several = typing.get_origin(typing.get_type_hints(kind)[name]) is list or any(
        typing.get_origin(part) is list for part in typing.get_args(typing.get_type_hints(kind)[name])
    )
    bounds = _bounds(hint) or _bounds(Annotated[hint, *field.metadata] if field.metadata else hint)
    whole = "whole numbers" if "int" in str(hint) and "float" not in str(hint) else "numbers"
    return (
        f"{whole} {'of ' * bounds[0].isdigit()}{bounds}"
        if several and bounds and "Literal" not in str(hint)
        else bounds
    )


def words(kind: Any, several: bool = False) -> str:
    """A type in words: `a whole number or None`, `a list of whole numbers`."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        parts = [part for part in parts if part is not int or float not in parts]
        return " or ".join(words(part, several) for part in parts)
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin is list:
        return f"{'lists' if several else 'a list'} of {words(parts[0], True)}"
    if origin is dict:
        return f"{'mappings' if several else 'a mapping'} of {words(parts[0], True)} to {words(parts[1], True)}"
    names = {int: "a whole number", float: "a number", str: "a string"}
    if kind in names:
        return f"{names[kind][2:]}s" if several else names[kind]
    return {bool: "True or False", type(None): "None"}.get(kind, str(kind))


def check_item(kind: type[BaseModel], item: dict, article: str, noun: str, section: int | str) -> None:
    """Raises ParameterError for a mapping in a list (such as an arm) that does not fit its model."""
    command = f"make plan SECTION={section}"
    try:
        kind(**item)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if any(each["type"] in ("extra_forbidden", "missing") for each in error.errors()):
            raise ParameterError(
                f"{article} {noun} that cannot be read",
                value=item,
                allowed=f"model, and of {', '.join(kind.model_fields)} those that matter",
                next=command,
            ) from None
        name = problem["loc"][0]
        bounds, stated = allowed(kind, name), words(typing.get_type_hints(kind)[name])
        stated = f"{stated} of {bounds}" if stated == "a whole number" and bounds else bounds or stated
        raise ParameterError(
            f"{name} of {article} {noun} cannot be used",
            value=f"{item[name]!r} in {item}",
            allowed=stated,
            next=command,
        ) from None


def _bounds(hint: Any) -> str:
    """The first bounds in a type with annotations; empty where there are none."""
    if typing.get_origin(hint) is Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    limits = {}
    for note in getattr(hint, "__metadata__", ()):
        for limit in (note, *getattr(note, "metadata", ())):
            for kind, attribute in ((annotated_types.Ge, "ge"), (annotated_types.Gt, "gt"), (annotated_types.Le, "le")):
                if isinstance(limit, kind):
                    limits[kind.__name__] = getattr(limit, attribute)
    if "Ge" in limits and "Le" in limits:
        return f"from {limits['Ge']:g} to {limits['Le']:g}"
    parts = [
        text.format(limits[name])
        for name, text in (("Ge", "{:g} or more"), ("Gt", "above {:g}"), ("Le", "at most {:g}"))
        if name in limits
    ]
    return ", ".join(parts) or next((text for part in typing.get_args(hint) if (text := _bounds(part))), "")


def _refusal(kind: type[Parameters], values: dict, error: ValidationError) -> ParameterError:
    problems = error.errors(include_url=False)
    name = problems[0]["loc"][0]
    if problems[0]["type"] == "extra_forbidden":
        return ParameterError("unknown parameter", value=name, allowed=", ".join(kind.model_fields))
    own = [problem for problem in problems if problem["loc"][0] == name]
    if beyond := [problem for problem in own if problem["type"] in OUT_OF_BOUNDS]:
        stated = beyond[0]["msg"] if beyond[0]["type"] == "refused" else allowed(kind, name)
        if kind.model_fields[name].json_schema_extra:
            stated = allowed(kind, name)
        return _out_of_bounds(kind, name, values.get(name), stated)
    value = values.get(name)
    return ParameterError(
        f"parameter {name} has the wrong type",
        value=f"{value!r} ({type(value).__name__})",
        allowed=words(typing.get_type_hints(kind)[name]),
        next=f"-p {name}=VALUE, or -y '{{{name}: …}}' for lists",
    )


def _out_of_bounds(kind: type[Parameters], name: str, value: object, stated: str) -> ParameterError:
    return ParameterError(
        f"parameter {name} cannot be used", value=value, allowed=stated, next=f"{kind.verb} SECTION={kind.section}"
    )
