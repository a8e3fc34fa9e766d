"""Names for methods, models, data sets and partitions; an unknown name is answered with the nearest one.

A registered thing is found by name from the command line and from an experiment file, it is listed by
`fedalloy list`, and the test-suite runs over everything that is registered.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from fedalloy.errors import UsageError

T = TypeVar("T")

LONGEST = 100  # characters of an unknown name that are looked at and shown


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
    fedalloy.errors.UsageError: there is no shape 'sqare'; did you mean 'square'? one of your own needs --plugin FILE.py
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
        own = "one of your own needs --plugin FILE.py"
        raise UsageError(
            f"there is no {self.kind} {name[:LONGEST]!r}; {hint}{' ' if hint.endswith('?') else '; '}{own}"
        )

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


def _home(thing: object) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', repr(thing))}"
