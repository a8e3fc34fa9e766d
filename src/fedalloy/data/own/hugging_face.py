"""Read a folder that Hugging Face `datasets` wrote with save_to_disk, without that library.

A Dataset is a folder with Arrow streams, whose names are in `state.json` and whose features are in
`dataset_info.json`; a DatasetDict has such a folder for each split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted, read_file
from fedalloy.base.text import LONGEST_NAME
from fedalloy.data.own.arrow import as_table, library, refuse_large
from fedalloy.data.own.images import channels_of, pixels, stacked
from fedalloy.data.own.names import toml
from fedalloy.data.own.parts import Held, Part, clients_of, part_of, targets_of
from fedalloy.data.own.roles import Layout, Roles, roles
from fedalloy.data.own.wanted import Format, Wanted
from fedalloy.data.readers import reading
from fedalloy.data.samples import Array
from fedalloy.errors import DataError

_LARGEST_JSON = 10_000_000  # bytes


def is_hugging_face(path: Path) -> bool:
    """Return whether a folder was written with save_to_disk."""
    return (path / "dataset_dict.json").is_file() or (
        (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    )


def has_images(path: Path) -> bool:
    """Return whether a folder that was written with save_to_disk has a column of images, without reading its rows."""
    file = path / ("train" if (path / "dataset_dict.json").is_file() else "") / "dataset_info.json"
    try:
        features = _json(file).get("features")
    except (DataError, OSError):  # told when the data is read
        return False
    return isinstance(features, dict) and any(
        isinstance(one, dict) and one.get("_type") == "Image" for one in features.values()
    )


def read_hugging_face(path: Path, wanted: Wanted, layout: Layout | None, agreed: Format | None) -> Held:
    """Read a Dataset, or the splits `train` and `test` of a DatasetDict."""
    if not (path / "dataset_dict.json").is_file():
        return _dataset(path, wanted, layout, agreed)
    splits = _json(path / "dataset_dict.json").get("splits")
    if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
        raise DataError(f"{quoted(path)} has no list of splits in dataset_dict.json; write it with save_to_disk")
    if "train" not in splits:
        raise DataError(f"{quoted(path)} has the splits {shown(', '.join(splits))}, but no split 'train'")
    held = _dataset(path / "train", wanted, layout, agreed)
    others = [name for name in splits if name not in ("train", "test")]
    if others:
        said = f"{quoted(path)}: the splits {shown(', '.join(others))} are not used"
        held = replace(held, train=replace(held.train, said=(*held.train.said, said)))
    if "test" not in splits:
        return held
    test = _dataset(path / "test", wanted, layout or held.layout, agreed).train
    return replace(held, test=replace(test, clients=None, said=()))


def _dataset(path: Path, wanted: Wanted, layout: Layout | None, agreed: Format | None) -> Held:
    features = _json(path / "dataset_info.json").get("features")
    if not isinstance(features, dict) or not all(isinstance(one, dict) for one in features.values()):
        raise DataError(f"{quoted(path)} has no features in dataset_info.json; write it with save_to_disk")
    table = _streams(path)
    header = table.column_names
    classes = {
        name: _class_names(path, name, one) for name, one in features.items() if one.get("_type") == "ClassLabel"
    }
    kept = [name for name in classes if name in header and name not in (*wanted.drop, wanted.client)]
    chosen = roles(path, header, wanted, layout, last=kept[0] if len(kept) == 1 else None)
    pictures = [name for name in chosen.inputs if features.get(name, {}).get("_type") == "Image"]
    declared = classes.get(chosen.labels[0], ()) if wanted.task == "classes" else ()
    own = Layout(chosen.inputs, f"{quoted(path)} has", chosen.labels, agreed=layout is not None and layout.agreed)
    if pictures:
        part = _images(path, table, chosen, wanted, classes, agreed, pictures[0])
    else:
        part = part_of(as_table(path, table, chosen, wanted, classes), chosen, wanted)
    return Held(replace(part, declared=declared), None, own, frozenset(header))


def _images(
    path: Path,
    table: Any,
    chosen: Roles,
    wanted: Wanted,
    classes: dict[str, tuple[str, ...]],
    agreed: Format | None,
    picture: str,
) -> Part:
    """Read a table whose only input is a column of images."""
    others = [name for name in chosen.inputs if name != picture]
    if others:
        raise DataError(
            f"{quoted(path)} has a column {shown(others[0])} besides the images and their label; "
            f"write data.drop = {toml([*wanted.drop, *others])}"
        )
    channels = channels_of(path, agreed)
    beside = replace(chosen, inputs=())
    labels = as_table(path, table, beside, wanted, classes)
    if not labels.rows:
        raise DataError(f"{quoted(path)} has no rows")
    read = (
        pixels(data, path, f"the image of row {row}", channels, wanted.size)
        for row, data in enumerate(_image_bytes(path, picture, table.column(picture)))
    )
    x: Array = stacked(path, read, [f"row {row}" for row in range(labels.rows)])
    return Part(
        path,
        x,
        targets_of(labels, beside, wanted),
        labels.place,
        targets=chosen.labels,
        clients=clients_of(labels, beside),
    )


def _image_bytes(path: Path, name: str, column: Any) -> Iterator[bytes]:
    row = 0
    for chunk in column.chunks:
        for data in chunk.field("bytes"):
            if not data.is_valid:  # a path in the file could be that of any file here
                raise DataError(
                    f"{quoted(path)}: row {row}, column {shown(name)} has no image in the file itself; save it again "
                    "with save_to_disk, which puts images into the file"
                )
            yield data.as_py()
            row += 1


def _class_names(path: Path, column: str, feature: dict[str, Any]) -> tuple[str, ...]:
    names = feature.get("names")
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable() for name in names)
        or len(set(names)) != len(names)
    ):
        raise DataError(f"{quoted(path)}: the names of the classes of column {shown(column)} are not different names")
    return tuple(names)


def _streams(path: Path) -> Any:
    """Read the Arrow streams of a Dataset."""
    what = "a Hugging Face folder"
    arrow, ipc = library("pyarrow", what), library("pyarrow.ipc", what)
    listed = _json(path / "state.json").get("_data_files")
    found = [one.get("filename") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    names = [name for name in found if isinstance(name, str) and name == Path(name).name]
    if not names or len(names) != len(found):
        raise DataError(f"{quoted(path)} has no list of files in state.json; write it with save_to_disk")
    for name in names:
        if not (path / name).is_file():
            raise DataError(f"{quoted(path / name)} is not a file, but state.json names it")
    refuse_large(path, sum((path / name).stat().st_size for name in names))
    tables = []
    for name in names:
        with (
            reading(path / name, "an Arrow stream"),
            (path / name).open("rb") as stream,
            ipc.open_stream(stream) as held,
        ):
            tables.append(held.read_all())
    return arrow.concat_tables(tables)


def _json(path: Path) -> dict[str, Any]:
    with reading(path, "JSON"):
        if path.is_file() and path.stat().st_size > _LARGEST_JSON:
            raise DataError(f"{quoted(path)} is too large; write it with save_to_disk")
        held = json.loads(read_file(path))
        if not isinstance(held, dict):
            raise DataError(f"{quoted(path)} is not a JSON object; write it with save_to_disk")
        return held
