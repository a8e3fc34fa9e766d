"""Options: limits as types, a meaning beside each, and defaults that depend on `variant`.

An option is a field of a dataclass. Its type says which values it takes, `option` its default and its meaning, and
`by_variant` also what the paper or its code has in place of the default. `resolve` checks them all in one place.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, MultipleOf

from fedalloy.base.checked import type_hints, typed_value
from fedalloy.errors import UsageError

T = TypeVar("T")

NotNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Interval(gt=0, le=1)]
Fraction = Annotated[float, Interval(ge=0, lt=1)]
Probability = Annotated[float, Interval(ge=0, le=1)]
Number = Annotated[int, Ge(0)]
Count = Annotated[int, Ge(1)]
Several = Annotated[int, Ge(2)]
Even = Annotated[int, Ge(2), MultipleOf(2)]

Variant = Literal["recommended", "paper", "reference"]


@dataclass(frozen=True, eq=False)
class ByVariant:
    """The defaults of an option, by variant; `resolve` puts one of them in its place."""

    usual: Any
    others: Mapping[str, Any]

    def of(self, variant: object) -> Any:
        """The default of a variant."""
        return self.others.get(variant, self.usual) if isinstance(variant, str) else self.usual


@dataclass(frozen=True)
class Option:
    """An option as lists and docs show it."""

    name: str
    hint: Any
    default: Any
    meaning: str
    variants: Mapping[str, Any]


def option(default: Any, meaning: str, *, only_with: tuple[Any, ...] | None = None, repeats: bool = False) -> Any:
    """Declare an option with its default (MISSING: it must be given) and its meaning in one line.

    `only_with` names another option and the values with which this one has an effect; it is refused otherwise. Without
    any value, the other one must only be given; None among the values stands for one that is not chosen yet. An option
    that `repeats` says how often something is done in a round: twice the number takes twice the time.

    >>> @dataclass
    ... class Walk:
    ...     pace: Literal["slow", "fast"] = option("slow", "how to walk")
    ...     breaths: Count = option(1, "pauses on the way", only_with=("pace", "fast"))
    ...     def __post_init__(self) -> None:
    ...         resolve(self, "walk")
    >>> Walk(breaths=0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: walk.breaths = 0 must be at least 1
    >>> Walk(breaths=2)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: walk.breaths has no effect without pace = 'fast'; leave it out
    """
    return field(default=default, metadata={"meaning": meaning, "only_with": only_with, "repeats": repeats})


def by_variant(
    usual: Any, meaning: str, *, only_with: tuple[Any, ...] | None = None, repeats: bool = False, **others: Any
) -> Any:
    """Declare an option whose default depends on `variant`.

    >>> @dataclass
    ... class Walk:
    ...     variant: Variant = "recommended"
    ...     steps: Count = by_variant(10, "how far", paper=20)
    ...     def __post_init__(self) -> None:
    ...         resolve(self, "walk")
    >>> Walk().steps, Walk(variant="paper").steps, Walk(variant="paper", steps=5).steps
    (10, 20, 5)
    """
    about = {"meaning": meaning, "only_with": only_with, "repeats": repeats}
    return field(default=ByVariant(usual, others), metadata=about)


def section(make: Callable[[], T]) -> T:
    """Declare a field that is not an option: a part of the experiment that has a section of its own."""
    found: T = field(default=make(), metadata={"section": True})
    return found


def resolve(thing: Any, where: str, *, derived: bool = False) -> None:
    """Give a dataclass the defaults of its variant, and refuse values outside the limits of their types.

    If it may be `derived` from another one by a change of some values, the others may have lost their effect; whoever
    takes it from a user then calls `refuse_idle`.
    """
    hints, fields = type_hints(type(thing)), _options(thing)
    variant, place = getattr(thing, "variant", ""), f"{where}." if where else ""
    for f in fields:
        if isinstance(value := getattr(thing, f.name), ByVariant):
            object.__setattr__(thing, f.name, value.of(variant))
    for f in fields:
        hint = hints.get(f.name, Any)
        if "meaning" in f.metadata or any(get_origin(part) is Literal for part in (hint, *get_args(hint))):
            typed_value(hint, getattr(thing, f.name), f"{place}{f.name}")
    if not derived:
        refuse_idle(thing, where)


def refuse_idle(thing: Any, where: str) -> None:
    """Refuse a value that differs from its default and has no effect, by `only_with`."""
    variant, place = getattr(thing, "variant", ""), f"{where}." if where else ""
    for f in _options(thing):
        if f.metadata.get("only_with") and getattr(thing, f.name) != _default(f, variant):
            _refuse_without(thing, f"{place}{f.name}", *f.metadata["only_with"])


def options_of(thing: Any) -> list[Option]:
    """The options of a dataclass, or of a type that is one.

    >>> @dataclass
    ... class Walk:
    ...     steps: Count = option(10, "how far")
    >>> [(found.name, found.default, found.meaning) for found in options_of(Walk)]
    [('steps', 10, 'how far')]
    """
    hints = type_hints(thing if isinstance(thing, type) else type(thing))
    return [
        Option(
            f.name,
            hints.get(f.name, Any),
            f.default.usual if isinstance(f.default, ByVariant) else f.default,
            f.metadata.get("meaning", ""),
            f.default.others if isinstance(f.default, ByVariant) else {},
        )
        for f in _options(thing)
    ]


def repeated(thing: Any) -> list[str]:
    """The options of a dataclass that say how often something is done in a round.

    >>> @dataclass
    ... class Walk:
    ...     steps: Count = option(10, "how far", repeats=True)
    ...     pace: Positive = option(1.0, "how fast")
    >>> repeated(Walk)
    ['steps']
    """
    return [f.name for f in _options(thing) if f.metadata.get("repeats")]


def without_effect(cls: Any, values: Mapping[str, Any]) -> list[str]:
    """The options of a dataclass that have no effect with these values of other options, by `only_with`.

    >>> @dataclass
    ... class Walk:
    ...     pace: Literal["slow", "fast"] = option("slow", "how to walk")
    ...     breaths: Count = option(1, "pauses on the way", only_with=("pace", "fast"))
    >>> without_effect(Walk, {"pace": "slow"}), without_effect(Walk, {"pace": "fast"})
    (['breaths'], [])
    """
    bound = [(f.name, *f.metadata["only_with"]) for f in _options(cls) if f.metadata.get("only_with")]
    return [name for name, other, *choices in bound if other in values and not _chosen(values[other], choices)]


def toml(value: Any) -> str:
    """A value as TOML writes it.

    >>> toml(True), toml("mean"), toml([1, 2]), toml(None)
    ('true', '"mean"', '[1, 2]', 'unset')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml, value))}]"
    return "unset" if value is None else "required" if value is dataclasses.MISSING else str(value)


def kind(hint: Any) -> str:
    """A type in words, with its limits.

    >>> kind(Share), kind(Count | None), kind(Literal["a", "b"])
    ('number in (0, 1]', 'whole number, at least 1', '"a", "b"')
    """
    inner = [part for part in get_args(hint) if part is not type(None)]
    origin = get_origin(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if origin is Annotated:
        return kind(inner[0]) + "".join(map(_limit, inner[1:]))
    if origin is Literal:
        return ", ".join(map(toml, inner))
    if isinstance(hint, types.UnionType) or origin is Union:
        return " or ".join(map(kind, inner))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list ({kind(inner[0])} each)"
    return getattr(hint, "__name__", str(hint))


_WORDS: Mapping[Any, str] = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def _limit(limit: Any) -> str:
    if isinstance(limit, Interval):
        low, high = ("(", limit.gt) if limit.gt is not None else ("[", limit.ge)
        top, end = (limit.lt, ")") if limit.lt is not None else (limit.le, "]")
        return f" in {low}{high}, {top}{end}"
    if isinstance(limit, MultipleOf):
        return f", a multiple of {limit.multiple_of}"
    if isinstance(limit, Ge | Gt):
        return f", at least {limit.ge}" if isinstance(limit, Ge) else f" above {limit.gt}"
    return ""


def sections_of(cls: Any) -> list[str]:
    """The names of a dataclass's fields that are sections of the experiment."""
    return [f.name for f in dataclasses.fields(cls) if "section" in f.metadata]


def _options(thing: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(thing) if f.init and "section" not in f.metadata]


def _default(f: dataclasses.Field[Any], variant: str) -> Any:
    return f.default.of(variant) if isinstance(f.default, ByVariant) else f.default


def _refuse_without(thing: Any, name: str, other: str, *choices: Any) -> None:
    if not _chosen(getattr(thing, other), choices):
        known = [word for part in _parts(type_hints(type(thing)).get(other)) for word in get_args(part)]
        told = [word for word in choices if word is not None and (word in known or not known)]
        words = " or ".join("true" if word is True else repr(word) for word in told)
        needed = f"{other} = {words}" if words else other
        raise UsageError(f"{name} has no effect without {needed}; leave it out")


def _parts(hint: Any) -> list[Any]:
    """The literals that a type consists of."""
    return [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]


def _chosen(value: Any, choices: Sequence[Any]) -> bool:
    """Whether another option has a value with which this one has an effect."""
    return value in choices if choices else value is not None
