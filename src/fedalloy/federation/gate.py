"""The gate: what a client's reply must be before a method sees it, and what a client must be sent before it acts.

A contract says what each key may hold. It is built from what the receiver knows - the server from what it sent and its
roster, a client from its own network and public samples - never from what arrived, so that no sender can influence it.
A reply that violates it is set aside with a reason, and the round continues as if that client had been absent; a
message that violates it is answered with a refusal. Between machines, a contract also limits how many
bytes are read at all (`room`). In one process, server and client trust each other: only replies are checked there.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError

Check = Callable[[Any], str | None]
"""Looks at what stands under a key and says what is wrong with it, or nothing."""

Contract = Mapping[str, Check]
SLACK = 1e-3  # how far the sum of a row of probabilities may be from 1
LONGEST = 300  # characters of a reason, which may quote untrusted text
DEEPEST = 32  # levels of nested tables, if no contract says how many there are
MOST = (1 << 63) - 1  # larger whole numbers can be neither written nor computed with
LARGEST = 1 << 30  # numbers in a tensor, if no contract gives its shape
OUTLYING = 10  # times the median distance; honest clients with 20 to 502 samples reached up to 4 times
MOST_BATCHES = 1 << 40  # that a network can have seen
LEAST = 4096  # bytes of names, shapes and numbers that are always read, so that an unexpected name can be reported
NUMBER = -sys.float_info.max  # no valid number is longer as text


@dataclass(frozen=True)
class Sized:
    """A check that also knows the largest value that it accepts; the tensors in it need no data.

    `largest` is None if there is no limit. An `optional` value may be missing.
    """

    check: Check
    largest: Any
    optional: bool = False

    def __call__(self, value: Any) -> str | None:
        """What is wrong with a value, if anything."""
        return self.check(value)


class Room(NamedTuple):
    """How many bytes are read from another machine, and how many of these for names, shapes and numbers."""

    bytes: int
    head: int


def room(contract: Contract | None) -> Room | None:
    """The size in bytes of the largest tree that satisfies a contract; None if it is unknown.

    >>> room({"w": array(1000, 1000), "n": whole(1)})
    Room(bytes=4004104, head=4096)
    """
    if contract is None:
        return None
    largest = {key: check.largest if isinstance(check, Sized) else None for key, check in contract.items()}
    if any(thing is None for thing in largest.values()):
        return None
    text, tensors = tree.header(largest)
    head = max(LEAST, len(text))
    return Room(8 + head + sum(map(tree.leaf_bytes, tensors)), head)


def refusal(
    body: Any,
    contract: Contract | None,
    sent: Mapping[str, Any] | None = None,
    max_distance: float = math.inf,
    *,
    is_tree: bool = False,
) -> str | None:
    """The reason for refusing a reply, as one line, or None; a reply that is not refused is a tree.

    Set `is_tree` if the body is already known to be a tree, to skip that check.

    Without a contract, its numbers must at least be finite. A network returned under the name under which one was sent
    must not be farther from it than `max_distance` times the norm of the one sent (see `relative_distance`).

    >>> refusal({"n": -3}, {"n": whole(1)})
    'n is -3, below 1'
    >>> refusal({"n": 3, "extra": 1}, {"n": whole(1)})
    "it has the unexpected key 'extra'"
    >>> refusal({"model": {"w": torch.ones(4) * 9}}, None, {"model": {"w": torch.ones(4)}}, max_distance=5)
    'model lies 8 times the norm of what was sent from it; aggregation.max_distance is 5'
    >>> refusal(None, {"n": whole(1)})
    'it is a NoneType, not a table'
    """
    try:
        fault = _fault(body, contract)
        if fault is None:
            if not is_tree:
                tree.check(body, "it")
            fault = _strayed(body, sent or {}, max_distance)
    except UsageError as error:
        fault = str(error)
    except Exception as error:  # no reply of one client may end the round for the others
        fault = f"it cannot be checked ({type(error).__name__})"
    return None if fault is None else _line(fault)


def _fault(body: Any, contract: Contract | None) -> str | None:
    if not isinstance(body, Mapping):
        return f"it is a {type(body).__name__}, not a table"
    if contract is None:
        return _unsound(body, "", DEEPEST)
    for key, check in contract.items():
        if key not in body and not (isinstance(check, Sized) and check.optional):
            return f"it lacks '{key}'"
    for key in body:
        if key not in contract:
            return f"it has the unexpected key '{_short(key)}'"
    for key, check in contract.items():
        if key in body and (fault := check(body[key])) is not None:
            return f"{key} {fault}"
    return None


def _unsound(body: Mapping[str, Any], place: str, depth: int) -> str | None:
    """What is wrong with a table, if all that is known is that its numbers must be finite."""
    if depth == 0:
        return f"it is nested more than {DEEPEST} levels deep"
    for key, value in body.items():
        name = f"{place}{key}"
        if isinstance(value, Mapping):
            fault = _unsound(value, f"{name}/", depth - 1)
        elif isinstance(value, Tensor):
            large = value.numel() > LARGEST
            fault = f"{name} has more than {LARGEST:,} numbers" if large else _unreadable(value, f"{name} ")
        else:
            fault = None if finite(value) else f"{name} is not finite"
        if fault is not None:
            return fault
    return None


def _strayed(body: Tree, sent: Tree, most: float) -> str | None:
    """Which network is too far from the one that was sent, if any."""
    if most == math.inf:
        return None
    for key, value in sorted(body.items()):
        if isinstance(value, Mapping) and isinstance(sent.get(key), Mapping):
            ratio = relative_distance(value, sent[key])
            if not ratio <= most:
                return (
                    f"{key} lies {ratio:.4g} times the norm of what was sent from it; "
                    f"aggregation.max_distance is {most:g}"
                )
    return None


def relative_distance(network: Tree, sent: Tree) -> float:
    """||network - sent|| / ||sent|| over all float parameters and buffers that both have, in float64.

    A norm below 1 counts as 1, so that a network that starts at zero can be trained.

    >>> relative_distance({"w": torch.tensor([3.0, 4.0])}, {"w": torch.zeros(2)})
    5.0
    """
    apart, length = 0.0, 0.0
    came = dict(tree.leaves(network))
    for name, old in sorted(tree.leaves(sent)):  # by name and in one layout, so that all engines get the same bits
        new = came.get(name)
        if isinstance(old, Tensor) and isinstance(new, Tensor) and old.is_floating_point() and new.shape == old.shape:
            flat = old.reshape(-1).double()
            length += float(flat.square().sum())
            apart += float((new.reshape(-1).double() - flat).square().sum())
    return math.sqrt(apart) / max(1.0, math.sqrt(length))


def farthest(body: Tree, sent: Tree) -> float | None:
    """The largest `relative_distance` among the networks returned under the names of those that were sent."""
    both = (key for key, value in body.items() if isinstance(value, Mapping) and isinstance(sent.get(key), Mapping))
    return max((relative_distance(body[key], sent[key]) for key in both), default=None)


def strays(distances: Mapping[int, float]) -> dict[int, str]:
    """Which replies are outliers by their distance from what was sent, with the reason for each.

    A single reply can ruin an average while staying within `aggregation.max_distance`: if every bias is far below zero,
    no unit of the network is active any more, and it cannot be trained again. An outlier is farther than ten times the
    median, and farther than the norm of what was sent. With fewer than three replies there are no outliers.

    >>> strays({0: 0.2, 1: 0.3, 2: 8.4})
    {2: 'it lies 8.4 norms from what was sent, where the median of this round is 0.3'}
    """
    if len(distances) < 3:
        return {}
    usual = statistics.median(distances.values())
    return {
        k: f"it lies {distance:.3g} norms from what was sent, where the median of this round is {usual:.3g}"
        for k, distance in distances.items()
        if distance > max(1.0, OUTLYING * usual)
    }


def optional(check: Check) -> Sized:
    """A value that may be missing, but must pass a check if it is present.

    >>> refusal({}, {"n": optional(whole(1))}), refusal({"n": 0}, {"n": optional(whole(1))})
    (None, 'n is 0, below 1')
    """
    return Sized(check, check.largest if isinstance(check, Sized) else None, optional=True)


def like(example: Any) -> Sized:
    """The same names, shapes and kinds of numbers as the example, all of them finite.

    BatchNorm's buffers are recognised by their torch names: a `running_var` is not negative, and
    `num_batches_tracked` is a number of batches.

    >>> model = like({"w": torch.zeros(2), "b": torch.zeros(1)})
    >>> model({"w": torch.tensor([1.0, float("nan")]), "b": torch.zeros(1)})
    'w is not finite'
    >>> model({"w": torch.zeros(1), "b": torch.zeros(1)})
    'w has the shape (1,), not (2,)'
    """

    def check(value: Any) -> str | None:
        return _unlike(value, example, "")

    return Sized(check, _largest(example))


def whole(least: int, most: int = MOST) -> Sized:
    """A whole number within limits.

    >>> whole(1, 5)(7), whole(1)(True), whole(1)(2)
    ('is 7, above 5', 'is a bool, not a whole number', None)
    """

    def check(value: Any) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return f"is a {type(value).__name__}, not a whole number"
        return _outside(value, least, most)

    return Sized(check, NUMBER)


def real(least: float = -math.inf, most: float = math.inf) -> Sized:
    """A finite number within limits.

    >>> real(0)(float("inf")), real(0)(-1.5)
    ('is not finite', 'is -1.5, below 0')
    """

    def check(value: Any) -> str | None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return f"is a {type(value).__name__}, not a number"
        return _outside(value, least, most) if finite(value) else "is not finite"

    return Sized(check, NUMBER)


def array(*shape: int, least: float = -math.inf, most: float = math.inf, dtype: torch.dtype = torch.float32) -> Sized:
    """A tensor of this shape, all of it finite and within limits.

    >>> array(2, least=0, most=1)(torch.tensor([0.5, 1.5]))
    'has numbers outside 0 to 1'
    """
    example = torch.empty(shape, dtype=dtype, device="meta")

    def check(value: Any) -> str | None:
        fault = _unlike(value, example, "")
        if fault is not None or (least == -math.inf and most == math.inf) or not value.numel():
            return fault
        inside = least <= value.min().item() and value.max().item() <= most
        return None if inside else f"has numbers outside {least} to {most}"

    return Sized(check, example)


def probabilities(rows: int, columns: int) -> Sized:
    """A distribution over the columns in each row.

    >>> probabilities(1, 2)(torch.tensor([[0.5, 0.9]]))
    'has rows that do not sum to 1'
    """
    within = array(rows, columns, least=0.0, most=1.0 + SLACK)

    def check(value: Any) -> str | None:
        fault = within(value)
        if fault is None and bool(((value.sum(1) - 1).abs() > SLACK).any()):
            return "has rows that do not sum to 1"
        return fault

    return Sized(check, within.largest)


def counts(known: Tensor) -> Sized:
    """The number of samples of each class, which must be what the client reported at the start.

    >>> counts(torch.tensor([2, 3]))(torch.tensor([3, 2]))
    'are [3, 2], not [2, 3] as at the start'
    """
    within = array(*known.shape, dtype=torch.int64)

    def check(value: Any) -> str | None:
        fault = within(value)
        if fault is None and (found := value.tolist()) != (first := known.tolist()):
            return f"are {found}, not {first} as at the start"
        return fault

    return Sized(check, within.largest)


def _largest(example: Any) -> Any:
    """The largest value that is like an example; None if it holds text, which may be of any length."""
    if isinstance(example, Mapping):
        found = {key: _largest(part) for key, part in example.items()}
        return None if any(part is None for part in found.values()) else found
    return example if isinstance(example, Tensor) else NUMBER if isinstance(example, int | float) else None


def _unlike(value: Any, example: Any, place: str) -> str | None:
    if isinstance(example, Mapping):
        if not isinstance(value, Mapping):
            return f"{place}is a {type(value).__name__}, not a table"
        if value.keys() != example.keys():
            return f"{place}has the wrong keys ({_difference(value, example)})"
        found = (
            _unlike(value[key], part, f"{key} " if not place else f"{place.rstrip()}/{key} ")
            for key, part in sorted(example.items())  # sorted, as in a restored state: the first fault is recorded
        )
        return next((fault for fault in found if fault is not None), None)
    if isinstance(example, Tensor):
        return _unlike_tensor(value, example, place)
    if type(value) is not type(example):
        return f"{place}is a {type(value).__name__}, not a {type(example).__name__}"
    return None if finite(value) else f"{place}is not finite"


def _unlike_tensor(value: Any, example: Tensor, place: str) -> str | None:
    if not isinstance(value, Tensor):
        return f"{place}is a {type(value).__name__}, not a tensor"
    if value.dtype != example.dtype:
        return f"{place}is {str(value.dtype).removeprefix('torch.')}, not {str(example.dtype).removeprefix('torch.')}"
    if value.shape != example.shape:
        return f"{place}has the shape {tuple(value.shape)}, not {tuple(example.shape)}"
    return _unreadable(value, place) or _impossible(value, place)


def _impossible(value: Tensor, place: str) -> str | None:
    """Why a tensor's values are impossible for its name, if they are; its numbers are known to be finite."""
    name = place.rstrip().rpartition(".")[2].rpartition("/")[2]
    if name == "running_var" and value.numel() and value.min().item() < 0:
        return f"{place}is a negative variance"
    if name == "num_batches_tracked" and not 0 <= value.item() <= MOST_BATCHES:
        return f"{place}is {value.item()}, which is not a number of batches"
    return None


def _unreadable(value: Tensor, place: str) -> str | None:
    """Why a tensor's numbers cannot be used, if so; its shape and dtype are known to be right."""
    if value.layout != torch.strided or value.is_meta:
        return f"{place}is not a plain tensor of numbers"
    return None if finite(value) else f"{place}is not finite"


def finite(leaf: Any) -> bool:
    """Whether a leaf of a tree is finite; for a tensor, whether all its numbers are.

    >>> finite(torch.tensor([1.0, float("nan")])), finite(3), finite("text")
    (False, True, True)
    """
    if isinstance(leaf, Tensor):
        # min and max propagate NaN: two passes over the numbers, and no memory for a copy.
        return not (leaf.is_floating_point() and leaf.numel()) or all(
            math.isfinite(end) for end in (leaf.min().item(), leaf.max().item())
        )
    if isinstance(leaf, int):
        return abs(leaf) <= MOST
    return not isinstance(leaf, float) or math.isfinite(leaf)


def _outside(value: float, least: float, most: float) -> str | None:
    if value < least:
        return f"is {_number(value)}, below {least}"
    return f"is {_number(value)}, above {most}" if value > most else None


def _number(value: float) -> str:
    """A number as text; Python refuses to format very long ones."""
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > MOST else str(value)


def _difference(value: Mapping[str, Any], example: Mapping[str, Any]) -> str:
    lacking = example.keys() - value.keys()
    if lacking:
        return f"'{_short(min(lacking))}' is missing"
    return f"unexpected '{_short(min(value.keys() - example.keys(), key=str))}'"


def _short(name: object) -> str:
    text = str(name)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _line(text: str) -> str:
    """Text for records and screens: shortened, and without characters that end a line or move the cursor."""
    cut = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in cut)
