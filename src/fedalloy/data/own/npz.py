"""Read an .npz file: arrays `x` and `y`, or `x_train` and `y_train`, perhaps with a test part and clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.base.text import LONGEST_NAME, name_fault
from fedalloy.data.arrays import as_inputs, as_labels, as_targets
from fedalloy.data.own.names import Named, named
from fedalloy.data.own.parts import Held, Part, Place, Table, part_of
from fedalloy.data.own.roles import Layout, roles
from fedalloy.data.own.wanted import Wanted
from fedalloy.data.readers import open_npz
from fedalloy.data.samples import Array
from fedalloy.errors import DataError, UsageError

_PAIRS = (("x", "y"), ("x_train", "y_train"))
_OTHERS = ("x_test", "y_test", "client", "client_names", "columns")


def read_npz(path: Path, wanted: Wanted, layout: Layout | None) -> Held:
    """Read an .npz file; with two axes `x` is a table, with three or four it is images."""
    if wanted.labels:
        raise UsageError(f"{quoted(path)}: an .npz file has its labels in the array y; remove data.label")
    with open_npz(path) as held:
        known = {*_OTHERS, *(name for pair in _PAIRS for name in pair)}
        arrays = {name: held[name] for name in held.files if name in known}
    pair = next((pair for pair in _PAIRS if set(pair) <= arrays.keys()), None)
    if pair is None:
        raise DataError(
            f"{quoted(path)} has no arrays x and y, and no x_train and y_train; "
            "write it with numpy.savez_compressed(path, x=inputs, y=labels)"
        )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{quoted(path)} has only one of x_test and y_test; write both or none")
    train, own = _part(path, arrays, pair, wanted, layout)
    train = replace(train, clients=_clients(path, arrays, train), clients_ordered="client_names" in arrays)
    test = _part(path, arrays, ("x_test", "y_test"), wanted, own)[0] if "x_test" in arrays else None
    if test is not None:
        test = replace(test, clients=None)
    seen = frozenset(_columns(path, arrays, arrays[pair[0]].shape[1])) if own is not None else frozenset[str]()
    return Held(train, test, own, seen)


def _part(
    path: Path, arrays: Mapping[str, Array], pair: tuple[str, str], wanted: Wanted, layout: Layout | None
) -> tuple[Part, Layout | None]:
    """Return the samples of two arrays and, if they are a table, its columns."""
    x, y = arrays[pair[0]], arrays[pair[1]]
    if x.dtype.kind not in "buif":
        raise DataError(f"{quoted(path)}: {pair[0]} has dtype {x.dtype}, but inputs must be numbers")
    if x.ndim not in (2, 3, 4) or x.size == 0:
        raise DataError(
            f"{quoted(path)}: {pair[0]} has shape {x.shape}, but it must be N x D, N x H x W or N x C x H x W"
        )
    if y.shape[:1] != x.shape[:1]:
        raise DataError(f"{quoted(path)}: {pair[0]} has shape {x.shape}, but {pair[1]} has shape {y.shape}")

    def place(row: int) -> str:
        return f"row {row} of {pair[1]}"

    targets, numbered = _targets(path, y, wanted, place), y.dtype.kind in "iuf"
    if x.ndim > 2:
        return Part(path, _images(path, pair[0], x, wanted), targets, place, numbered=numbered), None
    header = _columns(path, arrays, x.shape[1])
    chosen = roles(path, header, wanted, layout, labelled=False)
    values = {name: x[:, header.index(name)] for name in chosen.read}
    cells = {
        name: _names(column) if chosen.named(name, wanted.task) else column.astype(np.float64)
        for name, column in values.items()
    }
    table = Table(path, len(x), cells, lambda row: f"row {row} of {pair[0]}")
    part = replace(part_of(table, chosen, wanted, targets), place=place, numbered=numbered)
    own = Layout(chosen.inputs, f"{quoted(path)} has", agreed=layout is not None and layout.agreed)
    return part, own


def _images(path: Path, name: str, x: Array, wanted: Wanted) -> Array:
    if wanted.client is not None or wanted.categorical or wanted.drop:
        raise UsageError(
            f"{quoted(path)} contains images, which have no columns; remove data.client, data.categorical and data.drop"
        )
    images = as_inputs(path.name, x.astype(np.float32) if x.dtype.kind == "b" else x)
    if images.dtype == np.float32 and not (sound := np.isfinite(images).all(axis=(1, 2, 3))).all():
        row = np.flatnonzero(~sound)[0]
        raise DataError(f"{quoted(path)}: row {row} of {name} contains NaN or infinity; remove or correct it")
    return images


def _columns(path: Path, arrays: Mapping[str, Array], width: int) -> list[str]:
    """Return the names of a table's columns: the array `columns`, or else numbers."""
    if "columns" not in arrays:
        return [str(place) for place in range(width)]
    names = arrays["columns"]
    if names.dtype.kind != "U" or names.shape != (width,):
        raise DataError(f"{quoted(path)}: the array columns must be {width} names, one for each column of x")
    return [str(name).strip() for name in names]


def _names(values: Array) -> Named:
    different, codes = np.unique(values, return_inverse=True)
    return named(codes.reshape(-1).astype(np.int64), list(different))


def _targets(path: Path, y: Array, wanted: Wanted, place: Place) -> Named | NDArray[np.float32]:
    if wanted.task == "classes":
        flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if flat.dtype.kind not in "buifU" or flat.ndim != 1:
            raise DataError(
                f"{quoted(path)}: the labels have dtype {y.dtype} and shape {y.shape}, but they must be one number or "
                "one name for each row"
            )
        found = _names(flat)
        _refuse(path, found.codes < 0, place, "has no label; fill it in or remove the row")
        for code, name in enumerate(found.names):
            if len(name) > LONGEST_NAME or not name.isprintable():
                _refuse(path, found.codes == code, place, f"has the label {shown(name)}, which is no name for a class")
        return found
    targets = as_targets(path.name, y, wanted.task)
    if wanted.task == "labels":
        _refuse(path, ~((targets == 0) | (targets == 1)).all(axis=1), place, "has a label that is neither 0 nor 1")
    fault = "has NaN or infinity as a number to predict; correct it or remove the row"
    _refuse(path, np.any(~np.isfinite(targets), axis=1), place, fault)
    return targets


def _refuse(path: Path, bad: NDArray[np.bool_], place: Place, fault: str) -> None:
    if bad.any():
        raise DataError(f"{quoted(path)}: {place(int(np.flatnonzero(bad)[0]))} {fault}")


def _clients(path: Path, arrays: Mapping[str, Array], train: Part) -> Named | NDArray[np.int64] | None:
    """Return the client of each training row, if the file has an array of them."""
    if "client" not in arrays:
        if "client_names" in arrays:
            raise DataError(f"{quoted(path)} has client_names, but no array client with the client of each row")
        return train.clients if isinstance(train.clients, Named) else None
    if train.clients is not None:
        raise UsageError(f"{quoted(path)} has an array client; remove it, or remove data.client")
    held = arrays["client"]
    if held.shape != train.x.shape[:1]:
        raise DataError(f"{quoted(path)}: client has shape {held.shape}, but there are {len(train.x)} training rows")
    if held.dtype.kind == "U":
        found = _names(held)
        _refuse(path, found.codes < 0, lambda row: f"row {row} of client", "is empty; write the name of its client")
        return found
    ids = as_labels(path.name, held)
    if "client_names" not in arrays:
        return ids
    names = tuple(map(str, arrays["client_names"].reshape(-1).tolist()))
    if fault := name_fault(names):
        raise DataError(f"{quoted(path)}: {fault}; rename it in client_names")
    fault = f"is not the position of one of the {len(names)} client_names"
    _refuse(path, (ids < 0) | (ids >= len(names)), lambda row: f"row {row} of client", fault)
    return Named(ids, names)
