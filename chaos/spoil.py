"""What malformed replies are made with: a place in an honest one, and something else to stand there."""

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
    older: Body | None  # this client's reply to it in the round before
    elsewhere: Body | None  # this client's reply to another question of this round


Kind = Callable[[Honest, random.Random], Any]
"""Makes another reply of an honest one, or `NO_PLACE` where that one has nothing to be spoiled in this way."""

NO_PLACE = object()
NAN, INF = float("nan"), float("inf")


# --- somewhere in a reply ---------------------------------------------------------------------------------------------


def places(body: Body, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every table and leaf below a body, with the way to it."""
    for key, value in body.items():
        yield (*at, key), value
        if isinstance(value, Mapping):
            yield from places(value, (*at, key))


def put(body: Body, path: Path, value: Any) -> dict[str, Any]:
    """The body with another value at a place."""
    first, *rest = path
    return {**body, first: put(body[first], tuple(rest), value) if rest else value}


def tensor(change: Callable[[Tensor], Any], fits: Callable[[Tensor], bool] = lambda _: True) -> Kind:
    """Something else in the place of a tensor that fits."""

    def kind(honest: Honest, dice: random.Random) -> Any:
        found = [(path, t) for path, t in places(honest.body) if isinstance(t, Tensor) and fits(t)]
        if not found:
            return NO_PLACE
        path, t = dice.choice(found)
        return put(honest.body, path, change(t.clone()))

    return kind


def table(change: Callable[[dict[str, Any], random.Random], Any]) -> Kind:
    """Something else in the place of a table within the reply."""

    def kind(honest: Honest, dice: random.Random) -> Any:
        found = [(path, t) for path, t in places(honest.body) if isinstance(t, Mapping) and t]
        if not found:
            return NO_PLACE
        path, t = dice.choice(found)
        return put(honest.body, path, change(dict(t), dice))

    return kind


def network(change: Callable[[str, Tensor], Tensor], fits: Callable[[str], bool] = lambda _: True) -> Kind:
    """Other numbers in a network that came back under the name with which one was sent, tensor by tensor."""

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
    """Another body; `filled`: only where the honest one holds something."""
    return lambda honest, dice: change(dict(honest.body), dice) if honest.body or not filled else NO_PLACE


def under(key: str, change: Callable[[Any], Any]) -> Kind:
    """Something else under this name of a reply, where it is there."""
    return lambda honest, _: {**honest.body, key: change(honest.body[key])} if key in honest.body else NO_PLACE


# --- what may stand there ---------------------------------------------------------------------------------------------


def one(value: float) -> Callable[[Tensor], Tensor]:
    """One number of a tensor is this."""

    def change(t: Tensor) -> Tensor:
        flat = t.reshape(-1)
        flat[len(flat) // 2] = value
        return flat.reshape(t.shape)

    return change


def is_float(t: Tensor) -> bool:
    """Whether NaN could stand in it."""
    return t.is_floating_point() and t.numel() > 0


def has_rows(t: Tensor) -> bool:
    """Whether it has a first axis with something on it."""
    return t.dim() > 0 and len(t) > 0


def is_distributions(t: Tensor) -> bool:
    """Whether each row is a distribution."""
    return t.dim() == 2 and has_rows(t) and is_float(t) and bool(((t.sum(1) - 1).abs() < 1e-4).all())


def as_type(dtype: torch.dtype) -> Kind:
    """The same numbers, as another kind of number."""
    return tensor(lambda t: t.to(dtype), lambda t: t.dtype != dtype)


def nested(depth: int) -> dict[str, Any]:
    """Tables within tables."""
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


def cyclic(body: dict[str, Any]) -> dict[str, Any]:
    """A table that holds itself."""
    body["self"] = body
    return body


def renamed(body: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """One name is another."""
    old = dice.choice(sorted(body))
    return {f"{key}x" if key == old else key: value for key, value in body.items()}


def without_one(body: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """One name is missing."""
    body.pop(dice.choice(sorted(body)))
    return body


class Trap(Mapping[str, Any]):
    """A table that fails when it is looked into."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("looked into")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("walked over")

    def __len__(self) -> int:
        return 3


class Unspeakable:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("shown")

    __str__ = __repr__


def below_one_negative(t: Tensor) -> Tensor:
    """Rows that sum to 1, with a number below 0 in each."""
    t[:, 0], t[:, 1:] = -0.5, 1.5 / (t.shape[1] - 1)
    return t
