"""Trees as Flower's records: one array with the bytes of `tree.encode`, and a header of plain values.

A tree is sent in the same format as on disk, not as one array per tensor: every dtype, number and string comes back
exactly, reading never unpickles, equal trees are one object for Flower (which splits, hashes and sends it once), and
its bytes are those that the ledger counts. An empty tree is not sent at all, as in the ledger.

A tree with more bytes than the reader allows, in total or in names and shapes, is not read.
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
KIND = "safetensors"  # Flower's own array reader only knows another kind and refuses this one
LONGEST = 1 << 22  # characters of a string in a header

Header = Mapping[str, str | int | float]


def array(body: Tree) -> Array | None:
    """Encode a tree as a Flower array; messages with the same body may share it.

    >>> array({"n": 3}).shape, array({})
    ((48,), None)
    """
    if not body:
        return None
    data = tree.encode(body)
    return Array("uint8", (len(data),), KIND, data)


def to_records(body: Tree | Array | None, header: Header) -> RecordDict:
    """Create the content of a message from a tree (or the result of `array`) and a header.

    >>> from_records(to_records({"n": 3}, {"round": 1}), Room(100, 100))
    ({'round': 1}, {'n': 3})
    """
    found = body if body is None or isinstance(body, Array) else array(body)
    head = ConfigRecord(dict(header))
    return RecordDict({HEADER: head} if found is None else {HEADER: head, BODY: ArrayRecord({BODY: found})})


def from_records(records: RecordDict, room: Room, longest: int = LONGEST) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the header and the tree of a message; anything else raises a `DataError`."""
    return header_in(records, longest), tree_in(records, room)


def header_in(records: RecordDict, longest: int = LONGEST) -> dict[str, Any]:
    """Read the header of a message; its strings may have at most `longest` characters."""
    if records.keys() - {HEADER, BODY} or not isinstance(records.get(HEADER), ConfigRecord):
        raise DataError("its records are not those of a fedalloy message")
    header = {key: value for key, value in records[HEADER].items() if isinstance(value, str | int | float)}
    letters = max((len(value) for value in header.values() if isinstance(value, str)), default=0)
    if letters > longest:
        raise DataError(f"a string in its header has {letters:,} characters; at most {longest:,} are allowed")
    return header


def tree_in(records: RecordDict, room: Room) -> dict[str, Any]:
    """Read the tree of a message, if it has no more bytes than `room` allows."""
    if BODY not in records:
        return {}
    record = records[BODY]
    if not isinstance(record, ArrayRecord) or list(record) != [BODY]:
        raise DataError("its arrays are not a single tree")
    found = record[BODY]
    if (found.stype, found.dtype, tuple(found.shape)) != (KIND, "uint8", (len(found.data),)):
        raise DataError(f"its array must be {len(found.data)} bytes of {KIND}")
    if len(found.data) > room.bytes:
        raise DataError(f"its tree has {len(found.data):,} bytes; at most {room.bytes:,} are allowed")
    return tree.decode(found.data, room.head)
