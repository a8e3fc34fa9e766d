"""Random contracts and random objects, many of which almost satisfy a contract."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from spoil import INF, NAN, Trap, Unspeakable, cyclic, nested
from torch import Tensor, nn

from fedalloy.federation.gate import Check, Contract, array, counts, like, probabilities, real, whole
from fedalloy.methods.selective_fd import selected

NAMES = ("model", "n", "counts", "soft", "loss", "answers", "w", "", "a/b", "\ud800", "\x1b[2J", "__metadata__")
CHECKS: dict[str, Check] = {
    "model": like({"w": torch.zeros(2, 3), "b": torch.zeros(3), "steps": torch.tensor(4)}),
    "n": whole(1, 50),
    "counts": counts(torch.tensor([2, 3, 4, 0])),
    "soft": probabilities(2, 3),
    "loss": array(least=0.0),
    "answers": selected(3, 2, "soft"),
    "w": real(0, 1),
}
TYPES = (
    torch.float32,
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.bool,
)
SHAPES = ((), (1,), (3,), (2, 3), (2, 2), (4,), (0,), (3, 2), (1 << 40,), (1,) * 60)


def a_contract(dice: random.Random) -> Contract | None:
    """Return None, an empty contract, or one with some checks."""
    if dice.random() < 0.15:
        return None
    return {name: CHECKS[name] for name in dice.sample(sorted(CHECKS), dice.randrange(4))}


def an_object(dice: random.Random, depth: int = 0) -> Any:
    """Return a tree, almost a tree, or something else."""
    if depth < 3 and dice.random() < (0.9 if depth == 0 else 0.3):
        names = [dice.choice(NAMES) for _ in range(dice.randrange(4))]
        return {name if dice.random() < 0.95 else a_leaf(dice, str): _fitting(name, dice, depth) for name in names}
    return a_leaf(dice)


def _fitting(name: str, dice: random.Random, depth: int) -> Any:
    """Often return what the contract expects under this name."""
    if dice.random() < 0.4:
        return an_object(dice, depth + 1)
    good: dict[str, Any] = {
        "model": {"w": a_tensor(dice, (2, 3)), "b": a_tensor(dice, (3,)), "steps": torch.tensor(dice.randrange(9))},
        "n": dice.randrange(60),
        "counts": torch.tensor([dice.randrange(4) for _ in range(4)]),
        "soft": torch.full((2, 3), 1 / 3),
        "loss": torch.tensor(dice.choice((0.5, -0.5, NAN))),
        "answers": {"mask": torch.tensor([True, False, True]), "soft": torch.full((2, 2), dice.choice((0.5, 0.4)))},
        "w": dice.choice((0.5, 1, 2.5)),
    }
    return good.get(name, 0)


def a_tensor(dice: random.Random, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return a tensor of any shape and dtype; a large one takes no memory."""
    shape = dice.choice(SHAPES) if shape is None else shape
    value = dice.choice((0, 1, 1, 0.25, -1, NAN, INF, -INF, 1e-42, 3e38))
    dtype = dice.choice(TYPES)
    number = torch.tensor(value).nan_to_num(0, 9, -9) if not dtype.is_floating_point else torch.tensor(value)
    made = number.to(dtype).expand(shape)
    if dice.random() < 0.2 and made.numel() < 100:
        strange = dice.choice(("sparse", "meta", "gradient", "parameter", "complex"))
        if strange == "sparse":
            return made.to_sparse()
        if strange == "meta":
            return made.to("meta")
        if strange == "complex":
            return made.to(torch.complex64)
        if dtype.is_floating_point:
            return nn.Parameter(made.clone()) if strange == "parameter" else made.clone().requires_grad_()
    return made


def a_leaf(dice: random.Random, *but: type) -> Any:
    """Return anything that is not a plain table, and that can be a key if strings are excluded."""
    keys: list[Any] = [
        None,
        True,
        0,
        -1,
        10**5000,
        2.5,
        NAN,
        INF,
        b"bytes",
        (1, "a"),
        frozenset(),
        Unspeakable,
        object(),
    ]
    if str in but:
        return dice.choice(keys)
    texts = ["", "text", "\ud800", "\x00", "long " * 10_000]
    loops = [cyclic({}), nested(dice.choice((3, 40, 2_000))), Trap(), Unspeakable(), [[]], {1, 2}, np.ones(3), range(3)]
    return dice.choice([*keys, *texts, *loops, *(a_tensor(dice) for _ in range(8))])


__all__ = ["a_contract", "an_object"]
