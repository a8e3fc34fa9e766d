"""Trees: nested dicts of tensors, numbers and strings, the only data structure that is sent or stored.

A tree is written in the safetensors format: tensors under their path (`model/conv.weight`), numbers, strings and empty
branches in the header. Nothing executable is ever written or read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedalloy.errors import DataError, UsageError

Leaf: TypeAlias = Tensor | int | float | str
Tree: TypeAlias = Mapping[str, Any]  # of leaves and trees; a recursive alias would require casts at every access

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Walk over all leaves with their paths; an empty branch is not a leaf.

    >>> list(leaves({"n": 3, "model": {"bias": 0.5}}))
    [('n', 3), ('model/bias', 0.5)]
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def check(tree: Tree, where: str = "tree") -> None:
    """Refuse anything that is not a nested dict of tensors, ints, floats and strings."""
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise UsageError(f"{where}: key {key!r} must be a non-empty string without '/'")
        if key == "__metadata__":
            raise UsageError(f"{where}: the key '__metadata__' is reserved by the file format; choose another")
        if isinstance(value, Mapping):
            check(value, f"{where}/{key}")
        elif isinstance(value, Tensor):
            if value.dtype not in DTYPES:
                raise UsageError(f"{where}/{key}: {value.dtype} cannot be sent; use one of {', '.join(_names())}")
            if value.requires_grad:
                raise UsageError(f"{where}/{key}: a tensor that requires a gradient cannot be sent; detach it")
        elif isinstance(value, bool) or not isinstance(value, int | float | str):
            kind = type(value).__name__
            raise UsageError(
                f"{where}/{key}: a value of type {kind} cannot be sent; use a tensor, an int, a float or a string"
            )
        elif isinstance(value, str) and not _is_text(value):
            raise UsageError(f"{where}/{key}: this string is not valid Unicode and cannot be sent")


def leaf_bytes(leaf: Leaf) -> int:
    """Return the payload of one leaf: the size of its elements, 8 bytes for a number, UTF-8 for a string.

    >>> leaf_bytes(torch.zeros(10)), leaf_bytes(3), leaf_bytes("ab")
    (40, 8, 2)
    """
    if isinstance(leaf, Tensor):
        return leaf.numel() * leaf.element_size()
    return len(leaf.encode()) if isinstance(leaf, str) else 8


def clone(tree: Tree) -> dict[str, Any]:
    """Copy a tree so that no tensor shares memory with the original."""
    return {
        key: clone(value) if isinstance(value, Mapping) else value.clone() if isinstance(value, Tensor) else value
        for key, value in tree.items()
    }


def to_device(tree: Tree, device: str | torch.device) -> dict[str, Any]:
    """Move the tensors of a tree to a device; tensors that are already there are not copied."""
    return {
        key: to_device(v, device) if isinstance(v, Mapping) else v.to(device) if isinstance(v, Tensor) else v
        for key, v in tree.items()
    }


def encode(tree: Tree) -> bytes:
    """Write a tree as safetensors bytes.

    >>> decode(encode({"n": 3, "model": {"w": torch.ones(2)}}))
    {'model': {'w': tensor([1., 1.])}, 'n': 3}
    """
    head, tensors = header(tree)
    return b"".join([struct.pack("<Q", len(head)), head, *(_raw(t) for t in tensors)])


def framing_bytes(tree: Tree) -> int:
    """Return how many bytes `encode` adds to the leaves: names, shapes, numbers as text; an empty tree is not sent.

    >>> body = {"n": 3, "model": {"w": torch.ones(2)}}
    >>> len(encode(body)) == framing_bytes(body) + sum(leaf_bytes(leaf) for _, leaf in leaves(body))
    True
    """
    if not tree:
        return 0
    head, tensors = header(tree)
    payload = sum(leaf_bytes(leaf) for _, leaf in leaves(tree))
    return 8 + len(head) + sum(leaf_bytes(t) for t in tensors) - payload


def decode(data: bytes, most: int | None = None) -> dict[str, Any]:
    """Read what `encode` wrote; keys come back sorted.

    A header of more than `most` bytes is refused without parsing it: as objects, names take far more memory than as
    bytes. safetensors refuses a header that does not account for all bytes that follow, before it creates a tensor.
    """
    try:
        size = struct.unpack("<Q", data[:8])[0]
        if most is not None and size > most:
            raise DataError(f"its names and shapes take {size:,} bytes; at most {most:,} are allowed")
        head = json.loads(data[8 : 8 + size])
        flat: dict[str, Any] = dict(safetensors.torch.load(data))
        flat.update(json.loads(head.get("__metadata__", {}).get("leaves", "{}")))
        found = unflatten(flat)
        check(found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error, SafetensorError) as error:
        raise DataError(f"these bytes are not a tree: {error!s:.300}") from error
    return found


def digest(tree: Tree) -> str:
    """Return a hash of names, shapes, dtypes and bits; the order of keys does not matter.

    >>> digest({"a": 1, "b": torch.ones(2)}) == digest({"b": torch.ones(2), "a": 1})
    True
    """
    return hashlib.sha256(encode(tree)).hexdigest()


def equal(a: Tree, b: Tree) -> bool:
    """Return whether two trees have the same bits."""
    return digest(a) == digest(b)


def _is_text(value: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _names() -> list[str]:
    return [str(dtype).removeprefix("torch.") for dtype in DTYPES]


def _raw(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""


def header(tree: Tree) -> tuple[bytes, list[Tensor]]:
    """Return the header of a tree's encoding, and its tensors in the order in which they follow it."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for path, leaf in _with_empty_branches(tree):
        if isinstance(leaf, Tensor):
            tensors[path] = leaf
        else:
            rest[path] = leaf
    # Widest elements first, to keep every tensor aligned; then by name, so that equal trees give equal bytes.
    order = sorted(tensors, key=lambda path: (-tensors[path].element_size(), path))
    head: dict[str, Any] = {"__metadata__": {"leaves": json.dumps(rest, sort_keys=True)}}
    offset = 0
    for path in order:
        end = offset + leaf_bytes(tensors[path])
        head[path] = {
            "dtype": DTYPES[tensors[path].dtype],
            "shape": list(tensors[path].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(head, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8), [tensors[path] for path in order]


def _with_empty_branches(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _with_empty_branches(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Build a tree from leaves by path, with sorted keys."""
    root: dict[str, Any] = {}
    for path in sorted(flat):
        *branches, name = path.split("/")
        node = root
        for branch in branches:
            node = node.setdefault(branch, {})
            if not isinstance(node, dict):
                raise DataError(f"these bytes are not a tree: '{path}' is below a leaf")
        node[name] = flat[path]
    return root
