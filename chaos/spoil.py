"""Tools for malformed replies: a place in an honest reply, and something to put there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Body = Mapping[str, Any]
Path = tuple[str, ...]


@dataclass(frozen=True)
class Honest:
    """An honest reply, and what else a hostile client may have seen or overheard."""

    body: Body
    message: Body
    others: list[Body]  # other clients' replies to the same question
    older: Body | None  # this client's reply to it in the previous round
    elsewhere: Body | None  # this client's reply to another question of this round


Kind = Callable[[Honest, random.Random], Any]
"""Changes an honest reply, or returns `NO_PLACE` if it has nothing to change in this way."""

NO_PLACE = object()
NAN, INF = float("nan"), float("inf")


# --- somewhere in a reply ---------------------------------------------------------------------------------------------


def places(body: Body, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every table and leaf below a body, with its path."""
    for key, value in body.items():
        yield (*at, key), value
        if isinstance(value, Mapping):
            yield from places(value, (*at, key))


def put(body: Body, path: Path, value: Any) -> dict[str, Any]:
    """Return the body with another value at a place."""
    first, *rest = path
    return {**body, first: put(body[first], tuple(rest), value) if rest else value}


def tensor(change: Callable[[Tensor], Any], fits: Callable[[Tensor], bool] = lambda _: True) -> Kind:
    """Replace a matching tensor by something else."""

    def kind(honest: Honest, dice: random.Random) -> Any:
        found = [(path, t) for path, t in places(honest.body) if isinstance(t, Tensor) and fits(t)]
        if not found:
            return NO_PLACE
        path, t = dice.choice(found)
        return put(honest.body, path, change(t.clone()))

    return kind


def table(change: Callable[[dict[str, Any], random.Random], Any]) -> Kind:
    """Replace a table within the reply by something else."""

    def kind(honest: Honest, dice: random.Random) -> Any:
        found = [(path, t) for path, t in places(honest.body) if isinstance(t, Mapping) and t]
        if not found:
            return NO_PLACE
        path, t = dice.choice(found)
        return put(honest.body, path, change(dict(t), dice))

    return kind


def network(change: Callable[[str, Tensor], Tensor], fits: Callable[[str], bool] = lambda _: True) -> Kind:
    """Change the numbers of a network that is returned under the name it was sent with, tensor by tensor."""

    def kind(honest: Honest, dice: random.Random) -> Any:
        found = [
            key
            for key, value in honest.body.items()
            if isinstance(value, Mapping) and isinstance(honest.message.get(key), Mapping) and any(map(fits, value))
        ]
        if not found:
            return NO_PLACE
        key = dice.choice(found)
        return {**honest.body, key: {name: change(name, t) for name, t in honest.body[key].items()}}

    return kind


def top(change: Callable[[dict[str, Any], random.Random], Any], *, filled: bool = False) -> Kind:
    """Replace the body; `filled`: only if the honest one is not empty."""
    return lambda honest, dice: change(dict(honest.body), dice) if honest.body or not filled else NO_PLACE


def under(key: str, change: Callable[[Any], Any]) -> Kind:
    """Replace the value under this name of a reply, if it exists."""
    return lambda honest, _: {**honest.body, key: change(honest.body[key])} if key in honest.body else NO_PLACE


# --- what may stand there ---------------------------------------------------------------------------------------------


def one(value: float) -> Callable[[Tensor], Tensor]:
    """Set one number of a tensor to this value."""

    def change(t: Tensor) -> Tensor:
        flat = t.reshape(-1)
        flat[len(flat) // 2] = value
        return flat.reshape(t.shape)

    return change


def is_float(t: Tensor) -> bool:
    """Return whether a tensor can contain NaN."""
    return t.is_floating_point() and t.numel() > 0


def has_rows(t: Tensor) -> bool:
    """Return whether a tensor has a non-empty first axis."""
    return t.dim() > 0 and len(t) > 0


def is_distributions(t: Tensor) -> bool:
    """Return whether each row is a distribution."""
    return t.dim() == 2 and has_rows(t) and is_float(t) and bool(((t.sum(1) - 1).abs() < 1e-4).all())


def as_type(dtype: torch.dtype) -> Kind:
    """Convert the numbers to another dtype."""
    return tensor(lambda t: t.to(dtype), lambda t: t.dtype != dtype)


def nested(depth: int) -> dict[str, Any]:
    """Return nested tables."""
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


def cyclic(body: dict[str, Any]) -> dict[str, Any]:
    """Return a table that contains itself."""
    body["self"] = body
    return body


def renamed(body: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Change one name."""
    old = dice.choice(sorted(body))
    return {f"{key}x" if key == old else key: value for key, value in body.items()}


def without_one(body: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Remove one name."""
    body.pop(dice.choice(sorted(body)))
    return body


class Trap(Mapping[str, Any]):
    """A table that raises when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("looked into")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("walked over")

    def __len__(self) -> int:
        return 3


class Unspeakable:
    """An object without a repr."""

    def __repr__(self) -> str:
        raise RuntimeError("shown")

    __str__ = __repr__


def below_one_negative(t: Tensor) -> Tensor:
    """Return rows that sum to 1, with a negative number in each."""
    t[:, 0], t[:, 1:] = -0.5, 1.5 / (t.shape[1] - 1)
    return t
