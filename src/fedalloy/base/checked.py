"""Validate external values: types and known keys; invalid values raise a one-sentence error."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from fedalloy.base.registry import suggest
from fedalloy.errors import UsageError

T = TypeVar("T")

DEEPEST = 16  # nesting levels of tables and lists; an experiment needs four
LONGEST_KEY = 100  # characters
LONGEST_TEXT = 500
LONGEST_SHOWN = 200
_MANY: Mapping[Any, str] = {int: "integers", float: "numbers", str: "strings"}


def construct(cls: type[T], values: Mapping[str, Any], where: str, **built: Any) -> T:
    """Build a dataclass from values of the right types; raise a one-sentence error for anything else.

    `built` contains fields that are already checked and not among the values.
    """
    fields = [f for f in dataclasses.fields(cls) if f.name not in built]  # type: ignore[arg-type]  # dataclasses only
    refuse_unknown(values, [f.name for f in fields], where or "the experiment")
    hints = type_hints(cls)
    typed = {key: typed_value(hints[key], value, f"{where}.{key}" if where else key) for key, value in values.items()}
    for f in fields:
        if f.init and f.name not in typed and f.default is f.default_factory is dataclasses.MISSING:
            raise UsageError(f"{where}: '{f.name}' is missing; add it")
    return cls(**typed, **built)


def type_hints(thing: Any) -> dict[str, Any]:
    """Return the types of a function's or a dataclass's arguments by name, with their limits, as far as known."""
    return _type_hints(thing.func if isinstance(thing, functools.partial) else thing)


@functools.cache
def _type_hints(thing: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except NameError:  # annotations that exist for the type checker only
        return {}


def typed_value(hint: Any, value: Any, where: str) -> Any:
    """Return the value if it has this type; integers are accepted as floats, and lists as tuples.

    >>> typed_value(float, 2, "training.lr")
    2.0
    """
    if isinstance(value, list) and any(typing.get_origin(part) is tuple for part in (hint, *typing.get_args(hint))):
        value = tuple(value)  # TOML and JSON only have lists
    try:
        return _adapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{step}]" for step in first["loc"] if isinstance(step, int))
        wanted = dict.fromkeys(
            _a_list(hint, e["loc"]) if _is_no_list(e) else _plainly(e["msg"].removeprefix("Input should be "))
            for e in error.errors()
        )
        raise UsageError(f"{where}{place} = {shown(first['input'])} must be {' or '.join(wanted)}") from error
    except PydanticUserError:  # a dataclass or model with its own config: already built and checked
        return value


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False))


def _plainly(limit: str) -> str:
    """Shorten pydantic's wording of a limit."""
    return limit.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


def _is_no_list(error: Mapping[str, Any]) -> bool:
    """Return whether pydantic expected a list; it has several error types for this."""
    return error["type"] in ("tuple_type", "sequence_str") or error.get("ctx", {}).get("class") == "Sequence"


def _a_list(hint: Any, place: Sequence[int | str]) -> str:
    """Describe the list expected at this place of a value; files have no tuples."""
    found = [part for part in (hint, *typing.get_args(hint)) if _is_list(part)]
    inner = typing.get_args(found[0])[0] if found else Any
    steps = [step for step in place if isinstance(step, int)]
    if steps:
        return _a_list(inner, steps[1:])
    if typing.get_origin(inner) is typing.Annotated:
        inner = typing.get_args(inner)[0]  # without its limits
    many = "lists" if _is_list(inner) else _MANY.get(inner)
    return f"a list of {many}" if many else "a list"


def _is_list(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def refuse_unknown(values: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuse a key that is not known and name the nearest one."""
    for key in values:
        if key not in known:
            hint = suggest(str(key), list(known)) if known else "it has no keys"
            raise UsageError(f"{where} has no key {shown(key)}; {hint}")


def refuse_unwritable(value: Any, where: str, around: tuple[int, ...] = ()) -> None:
    """Refuse values that no sensible file contains, so that later checks can safely traverse and print them."""
    if not around and not isinstance(value, Mapping):
        raise UsageError(f"{where} is of type {type(value).__name__}, but must be a table")
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise UsageError(f"{where} is an integer that does not fit into 64 bits; write a smaller one")
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise UsageError(f"{where} has {len(value):,} characters; at most {LONGEST_TEXT:,} are allowed")
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = ((str(place), part) for place, part in enumerate(value))
    if id(value) in around or (inner and len(around) == DEEPEST):
        raise UsageError(f"{where} is nested too deeply; at most {DEEPEST} levels of tables and lists are allowed")
    for key, part in inner:
        if not isinstance(key, str) or not key.isprintable() or len(key) > LONGEST_KEY:
            raise UsageError(
                f"{where}: the key {shown(key)} must be a string of at most {LONGEST_KEY} printable characters"
            )
        refuse_unwritable(part, f"{where}.{key}" if around else key, (*around, id(value)))


def shown(value: Any) -> str:
    """Return the repr of a value for use in a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."
