"""Names for methods, models, data sets and partitions; an unknown name is answered with the nearest one.

A registered thing is found by name from the command line and from an experiment file, it is listed by
`fedalloy list`, and the test-suite runs over everything that is registered.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedalloy.errors import UsageError

T = TypeVar("T")

LONGEST = 100  # letters of an unknown name that are looked at and shown


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping from names to things, which grows by its `register` decorator.

    >>> shapes: Registry[type] = Registry("shape")
    >>> @shapes.register("square")
    ... class Square: ...
    >>> shapes["square"] is Square
    True
    >>> shapes["sqare"]
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: there is no shape 'sqare'; did you mean 'square'?
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}
        self._homes: dict[str, str] = {}

    def register(self, name: str, by: object = None) -> Callable[[T], T]:
        """Give a thing its name; a name that another thing already has is refused.

        `by` is the function or class that the thing was made from, where it is neither itself.
        """

        def add(thing: T) -> T:
            home = _home(thing if by is None else by)
            # The same definition met twice (a notebook cell run again, a reloaded module) replaces the old one.
            if name in self._things and self._homes[name] != home:
                raise UsageError(f"the {self.kind} name '{name}' is taken by {self._homes[name]}; choose another name")
            self._things[name], self._homes[name] = thing, home
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        if name in self._things:
            return self._things[name]
        hint = suggest(name, self._things)
        own = "" if hint.endswith("?") else "; one of your own needs --plugin FILE.py"
        raise UsageError(f"there is no {self.kind} {name[:LONGEST]!r}; {hint}{own}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def __len__(self) -> int:
        return len(self._things)

    def __contains__(self, name: object) -> bool:
        return name in self._things


def suggest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """Say which known name was probably meant, or list them all.

    >>> suggest("fedavgg", ["fedavg", "local"])
    "did you mean 'fedavg'?"
    >>> suggest("x", ["fedavg", "local"])
    'choose one of: fedavg, local'
    """
    near = difflib.get_close_matches(name[:LONGEST], list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"choose one of: {', '.join(sorted(known))}"


def refuse_unknown_choices(thing: object, where: str) -> None:
    """Refuse a dataclass field that is none of the words its type allows.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Walk:
    ...     pace: Literal["slow", "fast"] = "slow"
    >>> refuse_unknown_choices(Walk("fst"), "walk")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: walk.pace = 'fst' is unknown; did you mean 'fast'?
    """
    for name, hint in get_type_hints(type(thing)).items():
        value = getattr(thing, name, None)
        choices = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]  # `Literal[...] | None` too
        others = [part for part in get_args(hint) if get_origin(part) is not Literal and part is not type(None)]
        if get_origin(hint) is not Literal and (value is None or (others and not isinstance(value, str))):
            continue  # nothing was chosen, or a number where the type is `float | Literal[...]`
        words = [str(word) for part in choices for word in get_args(part)]
        if choices and value not in words:
            raise UsageError(f"{where}.{name} = {value!r} is unknown; {suggest(str(value), words)}")


def refuse_idle(thing: object, where: str, serves: Mapping[str, Sequence[object]]) -> None:
    """Refuse a dataclass field that was given, but says something only with certain choices of another field.

    `serves` names for such a field the other one and these choices; without any, the other one must only be given.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Walk:
    ...     pace: Literal["slow", "fast"] = "slow"
    ...     breaths: int = 1
    >>> refuse_idle(Walk(breaths=2), "walk", {"breaths": ("pace", "fast")})
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: walk.breaths has no effect without pace = 'fast'; leave it out
    """
    defaults = {f.name: f.default for f in fields(thing)}  # type: ignore[arg-type]  # @method makes it a dataclass
    for name, (other, *choices) in serves.items():
        choice = getattr(thing, str(other))
        works = choice in choices if choices else choice is not None
        if not works and getattr(thing, name) != defaults[name]:
            words = " or ".join("true" if word is True else repr(word) for word in choices)
            needed = f"{other} = {words}" if words else other
            raise UsageError(f"{where}.{name} has no effect without {needed}; leave it out")


def _home(thing: object) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', repr(thing))}"
