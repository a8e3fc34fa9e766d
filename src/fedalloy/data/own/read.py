"""Read a user's own files, in a simulation (all of them) and at a real site (one of them)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.base.text import listed, name_fault
from fedalloy.data.columns import Column
from fedalloy.data.own.clients import Source, find_sources
from fedalloy.data.own.hugging_face import read_hugging_face
from fedalloy.data.own.images import read_images
from fedalloy.data.own.labels import class_names, class_numbers, said_of_classes
from fedalloy.data.own.names import Named, naturally
from fedalloy.data.own.npz import read_npz
from fedalloy.data.own.parquet import read_parquet
from fedalloy.data.own.parts import Held, Part
from fedalloy.data.own.roles import Layout, layout_of
from fedalloy.data.own.tables import read_csv
from fedalloy.data.own.unified import inputs_of, unified
from fedalloy.data.own.wanted import Format, Own, Wanted, checked
from fedalloy.data.readers import reading
from fedalloy.data.samples import Array
from fedalloy.errors import DataError, UsageError


def read_own(source: Path | Sequence[tuple[str, Path]], wanted: Wanted, agreed: Format | None = None) -> Own:
    """Read one file or folder, or those of several clients; `agreed` is what a site's file must have.

    >>> import tempfile
    >>> there = Path(tempfile.mkdtemp())
    >>> _ = (there / "north.csv").write_text("age,ill\\n61,yes\\n47,no\\n")
    >>> _ = (there / "south.csv").write_text("ill,age\\nno,33\\n")
    >>> own = read_own(there, Wanted())
    >>> own.x[:, 0, 0, 0].tolist(), own.y.tolist(), own.client_ids.tolist(), own.client_names
    ([61.0, 47.0, 33.0], [1, 0, 0], [0, 0, 1], ('north', 'south'))
    >>> own.said[0]
    "the label is the column 'ill'"
    """
    wanted = checked(wanted, agreed)
    with reading(source if isinstance(source, Path) else Path("[[clients]]"), "your own data"):
        sources, said = find_sources(source)
        if wanted.client is not None and len(sources) > 1:
            raise UsageError(f"data.client = {shown(wanted.client)}, but each file is a client already; remove it")
        held = _all(sources, wanted, agreed)
        _check_drop(wanted, agreed, held)
        return _combined(sources, held, wanted, agreed, said)


def _all(sources: Sequence[Source], wanted: Wanted, agreed: Format | None) -> list[Held]:
    layout, held = layout_of(agreed), list[Held]()
    for source in sources:
        with reading(source.path, "your own data"):
            held.append(_one(source, wanted, layout, agreed))
        layout = layout or held[0].layout
    return held


def _one(source: Source, wanted: Wanted, layout: Layout | None, agreed: Format | None) -> Held:
    path = source.path
    if source.kind == "images":
        return read_images(path, wanted, agreed)
    if source.kind == "hugging face":
        return read_hugging_face(path, wanted, layout, agreed)
    if source.kind == "npz":
        return read_npz(path, wanted, layout)
    if agreed is not None and not agreed.columns:
        raise DataError(f"{quoted(path)} contains a table, but the clients agreed on images")
    return read_csv(path, wanted, layout) if source.kind == "csv" else read_parquet(path, wanted, layout)


def _check_drop(wanted: Wanted, agreed: Format | None, held: Sequence[Held]) -> None:
    """Refuse a dropped column that no file has, which is probably misspelt; one of several files may lack it."""
    seen = {name for one in held for name in one.seen}
    for name in wanted.drop:
        if agreed is None and name not in seen:
            where = quoted(held[0].train.path) if len(held) == 1 else "any file"
            raise UsageError(f"data.drop: there is no column {shown(name)} in {where}; remove or correct it")


def _combined(
    sources: Sequence[Source], held: Sequence[Held], wanted: Wanted, agreed: Format | None, said: tuple[str, ...]
) -> Own:
    several = sources[0].name is not None
    tested = [one.test is not None for one in held]
    if several and any(tested) and not all(tested):
        with_, without = sources[tested.index(True)], sources[tested.index(False)]
        raise DataError(
            f"{quoted(with_.path)} has a test part, but {quoted(without.path)} has none; "
            "give one to all clients or none"
        )
    parts = [part for one in held for part in (one.train, one.test) if part is not None]
    columns = unified(parts, agreed)
    if not columns and wanted.impute is not None:
        raise UsageError(f"data.impute = {shown(wanted.impute)}, but images have no missing values; remove it")
    names, targets = _targets(parts, wanted, agreed)
    inputs = inputs_of(parts, columns, agreed, wanted)
    shape = inputs[0].shape[1:]
    if not columns and wanted.size is not None:
        shape = (shape[0], wanted.size, wanted.size)
    form = agreed or Format(
        tuple(column.name for column in columns),
        tuple(column.name for column in columns if column.categories is not None),
        names,
        wanted.task,
        tuple(shape),
    )
    told = (*_said(held, columns, inputs, form, wanted), *said)
    if several:
        ids = np.repeat(
            [k for k, one in enumerate(held) for part in (one.train, one.test) if part is not None],
            [len(part.x) for part in parts],
        ).astype(np.int64)
        tests = np.repeat(
            [part is one.test for one in held for part in (one.train, one.test) if part is not None],
            [len(part.x) for part in parts],
        )
        x, y = np.concatenate(inputs), np.concatenate(targets)
        if any(one.train.clients is not None for one in held):
            raise DataError(f"{quoted(held[0].train.path)} has an array client, but each file is a client already")
        clients = tuple(str(source.name) for source in sources)
        return Own(x, y, form, columns, None, None, ids, clients, tests if any(tested) else None, told)
    client_ids, client_names = _clients(held[0].train, agreed)
    x_test, y_test = (inputs[1], targets[1]) if tested[0] else (None, None)
    return Own(inputs[0], targets[0], form, columns, x_test, y_test, client_ids, client_names, None, told)


def _targets(parts: Sequence[Part], wanted: Wanted, agreed: Format | None) -> tuple[tuple[str, ...], list[Array]]:
    """Return the names of classes, labels or numbers, and each part's targets; zeros if labels are not read."""
    if not wanted.labelled:
        assert agreed is not None
        names = agreed.label_names
        kinds = {"classes": ((), np.int64)}.get(wanted.task, ((len(names),), np.float32))
        return names, [np.zeros((len(part.x), *kinds[0]), kinds[1]) for part in parts]
    if wanted.task == "classes":
        names = class_names(parts, wanted, agreed)
        return names, [class_numbers(part, names, wanted, agreed) for part in parts]
    targets = [part.y for part in parts if not isinstance(part.y, Named)]
    count = targets[0].shape[1]
    default = parts[0].targets or tuple(map(str, range(count)))
    names = agreed.label_names if agreed is not None else wanted.names or default
    for part, target in zip(parts, targets, strict=True):
        if target.shape[1] != len(names):
            raise DataError(
                f"{quoted(part.path)} has {target.shape[1]} {wanted.task} to predict, but there are "
                f"{len(names)} names: {shown(', '.join(names))}"
            )
    return names, list(targets)


def _clients(part: Part, agreed: Format | None) -> tuple[Array | None, tuple[str, ...]]:
    """Return the client of each row and the clients' names in natural order, if one file has several clients."""
    if part.clients is None or agreed is not None:  # a site is one client, whatever its file says
        return None, ()
    if not isinstance(part.clients, Named):
        return part.clients, ()
    if part.clients_ordered:
        return part.clients.codes, part.clients.names
    names = tuple(sorted(part.clients.names, key=naturally))
    if fault := name_fault(names):
        raise DataError(f"{quoted(part.path)}: {fault}; rename the client")
    return part.clients.of(names), names


def _said(
    held: Sequence[Held], columns: Sequence[Column], inputs: Sequence[Array], form: Format, wanted: Wanted
) -> list[str]:
    said = []
    if not wanted.labels and (targets := held[0].train.targets):
        said.append(f"the label is the column {shown(listed(targets))}")
    if form.task == "classes":
        said.append(said_of_classes(form.label_names))
    rows = sum(len(x) for x in inputs)
    missing = {
        column.name: sum(int(np.isnan(x[:, place]).sum()) for x in inputs) for place, column in enumerate(columns)
    }
    if any(missing.values()):
        told = [f"{name} ({count:,})" for name, count in missing.items() if count]
        said.append(f"missing values in {rows:,} rows: {listed(told)}")
    if wanted.drop:
        said.append(f"dropped: {', '.join(wanted.drop)}")
    return [*said, *dict.fromkeys(sentence for one in held for sentence in one.train.said)]
