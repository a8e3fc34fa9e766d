"""Actions: what a client may be asked to do, with a declaration of what travels for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from fedalloy.errors import UsageError
from fedalloy.federation.gate import Check, like

F = TypeVar("F", bound=Callable[..., Any])

# How the names in messages are written for readers; other names are used as they are.
WORDS = {
    "counts": "label counts",
    "discrepancy": "how far labels are from uniform, once",
    "soft": "soft labels of public samples",
    "logits": "logits on public samples",
    "labels": "label distribution",
    "answers": "labels of selected public samples",
    "number": "a random number",
    "head": "discriminator's head",
    "scores": "scores of generated samples",
}


@dataclass(frozen=True)
class Part:
    """One name in a message: required, optional, or present under a condition."""

    name: str
    optional: bool
    condition: str | None

    def applies(self, method: Any, round: int) -> bool:
        """Whether the part travels in a round, by the method's attribute of this name or its function of the round."""
        if self.condition is None:
            return True
        found = getattr(method, self.condition)
        return bool(found(round) if callable(found) else found)


@dataclass(frozen=True)
class Travels:
    """What is sent to a client with an action, and what it returns."""

    down: tuple[Part, ...]
    up: tuple[Part, ...]


@overload
def action(declared: F) -> F: ...
@overload
def action(declared: str) -> Callable[[F], F]: ...
def action(declared: Any) -> Any:
    """Mark a method's function as something that a client may be asked to do; nothing else can be asked for.

    The declaration says what travels, "what it is sent -> what it answers", and replies and messages are checked
    against it. A message's name with `?` may be missing. `teacher if lambda_kd` travels only if the method's
    attribute is true, or its function of the round returns true. Each name must be known to `Method.example`, except
    `n` and `counts`, the client's sample counts, and networks that are returned under the name they were sent by.

    >>> class Method:
    ...     @action("model, teacher? -> model, n")
    ...     def train(self, me, msg): ...
    >>> [part.name for part in travels(Method, "train").up]
    ['model', 'n']

    An action that overrides another without a declaration inherits the declaration. Without any declaration, replies
    only need to be finite.
    """
    if not isinstance(declared, str):
        declared.__dict__["is_action"] = True
        return declared
    down, arrow, up = declared.partition("->")
    if not arrow:
        raise UsageError(f"@action({declared!r}) must say what travels: 'what it is sent -> what it answers'")
    travelling = Travels(_parts(down), _parts(up))
    if any(part.optional for part in travelling.up):
        raise UsageError(f"@action({declared!r}): a reply's name is required or has a condition, never '?'")

    def mark(function: F) -> F:
        function.__dict__["is_action"], function.__dict__["travels"] = True, travelling
        return function

    return mark


def _parts(text: str) -> tuple[Part, ...]:
    found = []
    for piece in filter(None, map(str.strip, text.split(","))):
        match = re.fullmatch(r"(\w+)(\?)?(?: if (\w+))?", piece)
        if match is None:
            raise UsageError(f"@action: {piece!r} must be a name, a name with '?', or 'name if condition'")
        found.append(Part(match[1], match[2] is not None, match[3]))
    return tuple(found)


def is_action(function: object) -> bool:
    """Whether a client may be asked to do this."""
    return bool(getattr(function, "is_action", False))


def travels(cls: type, name: str) -> Travels | None:
    """What a class's action declares; an override without a declaration inherits that of the overridden action."""
    found = (getattr(base.__dict__.get(name), "travels", None) for base in cls.__mro__)
    return next((declared for declared in found if declared is not None), None)


def in_words(parts: Iterable[Part], method: object = None) -> str:
    """What travels, for a card, without the names that a method never sends as they are.

    >>> in_words([Part("model", False, None), Part("counts", True, None)])
    'model, label counts (sometimes)'
    """
    found = dict.fromkeys(
        WORDS.get(part.name, part.name) + (" (sometimes)" if part.optional or _by_round(part, method) else "")
        for part in parts
        if part.condition is None or getattr(method, part.condition, True)
    )
    return ", ".join(found) or "nothing"


def _by_round(part: Part, method: object) -> bool:
    return part.condition is not None and callable(getattr(method, part.condition, None))


def as_check(example: Any) -> Check:
    """A check unchanged, or for an example the check that a value is like it."""
    return example if callable(example) else like(example)
