"""Trees as Flower's records: one array with the bytes of `tree.encode`, and a header of plain values.

A tree travels as it lies on disk, not as one array for each tensor: every dtype, number and string comes back exactly,
reading never unpickles, equal trees are one object for Flower (which splits, hashes and sends it once), and its bytes
are those that the ledger counts. An empty tree is not sent at all, as the ledger has it.

Nothing is read of a tree that has more bytes, or more of them in names and shapes, than its reader has room for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.errors import DataError
from fedalloy.federation.gate import Room

HEADER, BODY = "fedalloy", "tree"
KIND = "safetensors"  # Flower's own reader of arrays, which knows another kind only, refuses it
LONGEST = 1 << 22  # letters of a text in a header

Header = Mapping[str, str | int | float]


def array(body: Tree) -> Array | None:
    """A tree as an array of Flower's; messages with the same body may share it.

    >>> array({"n": 3}).shape, array({})
    ((48,), None)
    """
    if not body:
        return None
    data = tree.encode(body)
    return Array("uint8", (len(data),), KIND, data)


def to_records(body: Tree | Array | None, header: Header) -> RecordDict:
    """A tree, or one that `array` has made, and a header as the content of a message.

    >>> from_records(to_records({"n": 3}, {"round": 1}), Room(100, 100))
    ({'round': 1}, {'n': 3})
    """
    found = body if body is None or isinstance(body, Array) else array(body)
    head = ConfigRecord(dict(header))
    return RecordDict({HEADER: head} if found is None else {HEADER: head, BODY: ArrayRecord({BODY: found})})


def from_records(records: RecordDict, room: Room, longest: int = LONGEST) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the tree in a message; whatever else somebody sent is refused with a `DataError`."""
    return header_in(records, longest), tree_in(records, room)


def header_in(records: RecordDict, longest: int = LONGEST) -> dict[str, Any]:
    """The header of a message, whose texts may have so many letters."""
    if records.keys() - {HEADER, BODY} or not isinstance(records.get(HEADER), ConfigRecord):
        raise DataError("its records are not those of a fedalloy message")
    header = {key: value for key, value in records[HEADER].items() if isinstance(value, str | int | float)}
    letters = max((len(value) for value in header.values() if isinstance(value, str)), default=0)
    if letters > longest:
        raise DataError(f"a text in its header has {letters:,} letters; at most {longest:,} are read")
    return header


def tree_in(records: RecordDict, room: Room) -> dict[str, Any]:
    """The tree in a message, if it has no more bytes than there is room for."""
    if BODY not in records:
        return {}
    record = records[BODY]
    if not isinstance(record, ArrayRecord) or list(record) != [BODY]:
        raise DataError("its arrays are not one tree")
    found = record[BODY]
    if (found.stype, found.dtype, tuple(found.shape)) != (KIND, "uint8", (len(found.data),)):
        raise DataError(f"its array is not {len(found.data)} bytes of {KIND}, which it must be")
    if len(found.data) > room.bytes:
        raise DataError(f"its tree has {len(found.data):,} bytes; at most {room.bytes:,} are read")
    return tree.decode(found.data, room.head)
