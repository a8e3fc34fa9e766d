"""Find the files of clients: one path, a folder of files or of folders, or a list of names and paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.base.text import listed, name_fault
from fedalloy.data.own.hugging_face import is_hugging_face
from fedalloy.data.own.images import files, folders, image_files, is_split
from fedalloy.errors import DataError, UsageError

Kind = Literal["csv", "parquet", "npz", "images", "hugging face"]
SUFFIXES: dict[str, Kind] = {".csv": "csv", ".parquet": "parquet", ".npz": "npz"}
KINDS = "a .csv, .parquet or .npz file, a folder of images with a sub-folder for each class, or a Hugging Face folder"
# Files that may be data of a client: to pass over them would lose the client without a word.
_DATA_TOO = frozenset(
    f".{end}"
    for end in (
        *("tsv", "txt", "dat", "data", "xlsx", "xls", "ods", "json", "jsonl", "feather", "arrow", "npy", "h5", "hdf5"),
        *("pkl", "pickle", "pt", "sav", "dta", "sas7bdat", "rds", "rdata", "db", "sqlite"),
        *("gz", "bz2", "xz", "zst", "zip", "tar"),
    )
)


@dataclass(frozen=True)
class Source:
    """One path to read, and the name of its client, if it is one of several."""

    path: Path
    kind: Kind
    name: str | None = None


def find_sources(source: Path | Sequence[tuple[str, Path]]) -> tuple[list[Source], tuple[str, ...]]:
    """Return what is to be read, in the order of the clients, and sentences on what is not."""
    if isinstance(source, Path):
        return _found(source)
    if not source:
        raise UsageError("the list of clients is empty; write a name and a path for each of them")
    if fault := name_fault([name for name, _ in source]):
        raise UsageError(f"[[clients]]: {fault}; give each client a name of its own")
    paths: dict[Path, str] = {}
    for name, path in source:
        if path.resolve() in paths:
            raise UsageError(
                f"the clients {shown(paths[path.resolve()])} and {shown(name)} have the same {quoted(path)}"
            )
        paths[path.resolve()] = name
    return [Source(path, _kind(path), name) for name, path in source], ()


def _kind(path: Path) -> Kind:
    """Return the kind of a single source."""
    if not path.exists():
        raise DataError(f"there is no data at {quoted(path)}; write the path of {KINDS}")
    if path.is_dir():
        if is_hugging_face(path):
            return "hugging face"
        if _has_images(path):
            return "images"
        if image_files(path):
            raise DataError(f"{quoted(path)} has images without a class; put them into a sub-folder for each class")
        held = [one.name for one in files(path)[:3]]
        has = f"only has {listed([shown(name) for name in held])}" if held else "is empty"
        raise DataError(f"{quoted(path)} {has}, but it must be {KINDS}, or a folder with one of these for each client")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{quoted(path)} is not {KINDS}")
    if not path.is_file():  # reading a pipe might never end
        raise DataError(f"{quoted(path)} is not a file; write the path of {KINDS}")
    return SUFFIXES[path.suffix.lower()]


def _has_images(path: Path) -> bool:
    """Return whether a folder has images in sub-folders, perhaps within `train`."""
    return any(image_files(folder) for folder in folders(path / "train" if is_split(path) else path))


def _found(path: Path) -> tuple[list[Source], tuple[str, ...]]:
    if not path.is_dir() or is_hugging_face(path) or _has_images(path):
        if path.is_dir():
            _refuse_data_beside(path)
            _refuse_uneven(path)
        return [Source(path, _kind(path))], _unused(path)
    data = [file for file in files(path) if file.suffix.lower() in SUFFIXES]
    others = [file for file in files(path) if file not in data]
    if not data and not folders(path):
        return [Source(path, _kind(path))], ()  # which refuses it
    _refuse_mixture(path, data, others)
    beneath = data or folders(path)
    sources = [Source(one, _kind(one), one.stem if data else one.name) for one in beneath]
    kinds = {one.kind for one in sources}
    if len(kinds) > 1:
        raise DataError(f"{quoted(path)} has clients of several kinds, {listed(sorted(kinds))}; use one kind for all")
    if fault := name_fault([one.name or "" for one in sources]):
        raise DataError(f"{quoted(path)}: {fault}; rename the file, whose name is its client's")
    said = (f"not read: {', '.join(shown(file.name) for file in others[:10])}",) if others else ()
    return sources if len(sources) > 1 else [Source(beneath[0], sources[0].kind)], said


def _refuse_mixture(path: Path, data: Sequence[Path], others: Sequence[Path]) -> None:
    suffixes = sorted({file.suffix.lower() for file in data})
    if len(suffixes) > 1:
        raise DataError(
            f"{quoted(path)} has files of several kinds, {listed(suffixes)}; each would be a client, so keep one kind, "
            "or list the clients with their files in [[clients]]"
        )
    if data and folders(path):
        raise DataError(
            f"{quoted(path)} has data files and the folder {shown(folders(path)[0].name)}; each would be a client, so "
            "keep only files or only folders, or list the clients in [[clients]]"
        )
    _refuse_data(others)


def _refuse_data_beside(path: Path) -> None:
    if not is_hugging_face(path):
        _refuse_data([file for file in files(path) if file.suffix.lower() in (*SUFFIXES, ".arrow")])


def _refuse_data(others: Sequence[Path]) -> None:
    for file in others:
        notes = file.stem.casefold().startswith(("readme", "licen", "copying", "notes"))
        if file.suffix.lower() in {*_DATA_TOO, *SUFFIXES} and not notes:
            raise DataError(
                f"{quoted(file)} lies beside other data, but a folder has clients of one kind; remove it, or save it "
                "like the others"
            )


def _refuse_uneven(path: Path) -> None:
    """Refuse a folder in which some sub-folders are classes and others have classes inside."""
    if is_hugging_face(path) or is_split(path):
        return
    for folder in folders(path):
        if not image_files(folder) and (_has_images(folder) or is_hugging_face(folder)):
            raise DataError(
                f"{quoted(folder)} has sub-folders with data, but folders beside it have images; use a folder for each "
                "class, or a folder for each client with a folder for each class inside"
            )


def _unused(path: Path) -> tuple[str, ...]:
    if not path.is_dir() or is_hugging_face(path) or not is_split(path):
        return ()
    names = [folder.name for folder in folders(path) if folder.name not in ("train", "test")]
    return tuple(f"{quoted(path / name)} is not used" for name in names)
