"""Bring the inputs of several files into one form: the same columns and categories, or the same kind of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedalloy.base.files import quoted
from fedalloy.data.columns import Column
from fedalloy.data.own.names import Named, in_order
from fedalloy.data.own.parts import Part
from fedalloy.data.own.wanted import Format, Wanted
from fedalloy.data.samples import Array
from fedalloy.errors import DataError


def unified(parts: Sequence[Part], agreed: Format | None) -> tuple[Column, ...]:
    """Return the columns of all parts with the categories of all parts; () for images."""
    tables = [bool(part.columns) for part in parts]
    if any(tables) and not all(tables):
        table, images = parts[tables.index(True)], parts[tables.index(False)]
        raise DataError(f"{quoted(table.path)} contains a table, but {quoted(images.path)} contains images")
    if agreed is not None and bool(agreed.columns) != tables[0]:
        found, wanted = ("a table", "images") if tables[0] else ("images", "tables")
        raise DataError(f"{quoted(parts[0].path)} contains {found}, but the clients agreed on {wanted}")
    columns = []
    for same in zip(*(part.columns for part in parts), strict=True):
        held = [column.categories for column in same if column.categories is not None]
        names = in_order({name for names in held for name in names}) if held else None
        columns.append(Column(same[0].name, names))
    return tuple(columns)


def inputs_of(parts: Sequence[Part], columns: Sequence[Column], agreed: Format | None, wanted: Wanted) -> list[Array]:
    """Return each part's inputs, N x C x H x W, with codes of these columns' categories."""
    return [_coded(part, columns) for part in parts] if columns else _images(parts, agreed, wanted)


def _coded(part: Part, columns: Sequence[Column]) -> Array:
    x = part.x
    for place, (own, to) in enumerate(zip(part.columns, columns, strict=True)):
        if own.categories is not None and own.categories != to.categories:
            missing = np.isnan(x[:, place])
            codes = np.where(missing, -1, np.nan_to_num(x[:, place])).astype(np.int64)
            x[:, place] = np.where(missing, np.nan, Named(codes, own.categories).of(to.categories or ()))
    return x[:, :, None, None]


def _images(parts: Sequence[Part], agreed: Format | None, wanted: Wanted) -> list[Array]:
    channels = agreed.shape[0] if agreed is not None else max(part.x.shape[1] for part in parts)
    out, first = [], parts[0]
    for part in parts:
        x = part.x
        if x.dtype != first.x.dtype:
            raise DataError(
                f"{quoted(part.path)} has values of dtype {x.dtype}, but {quoted(first.path)} of {first.x.dtype}; "
                "save both as uint8 pixels or both as float32"
            )
        if x.shape[1] == 1 and channels == 3:  # grey images among coloured ones
            x = np.repeat(x, 3, axis=1)
        if x.shape[1] != channels:
            other = "the clients agreed on" if agreed is not None else f"{quoted(first.path)} has"
            raise DataError(f"{quoted(part.path)} has images with {x.shape[1]} channels, but {other} {channels}")
        out.append(x)
    for part, x in zip(parts, out, strict=True):
        if x.shape[2:] != out[0].shape[2:]:
            raise _sizes(part, x, f"{quoted(first.path)} has", out[0].shape[2:])
        if agreed is not None and wanted.size is None and x.shape[1:] != agreed.shape:
            raise _sizes(part, x, "the clients agreed on", agreed.shape[1:])
    return out


def _sizes(part: Part, x: Array, whose: str, size: Sequence[int]) -> DataError:
    return DataError(
        f"{quoted(part.path)} has images of {x.shape[3]} x {x.shape[2]} pixels, but {whose} {size[1]} x {size[0]}; "
        "resize them, or write data.size for files that are images"
    )
