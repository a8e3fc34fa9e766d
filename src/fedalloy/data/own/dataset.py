"""A user's own files as a data set, and what can be told about them without reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedalloy.base.checked import shown
from fedalloy.base.text import listed, shortened
from fedalloy.data.columns import Column, Impute, Recipe
from fedalloy.data.own.clients import find_sources
from fedalloy.data.own.hugging_face import has_images
from fedalloy.data.own.names import toml
from fedalloy.data.own.read import read_own
from fedalloy.data.own.wanted import Format, Own, Wanted
from fedalloy.data.readers import open_npz
from fedalloy.data.samples import Dataset, Task
from fedalloy.errors import DataError, FedalloyError

SUFFIXES = (".csv", ".parquet", ".npz")


def is_own(name: str) -> bool:
    """Return whether a name is the path of own data: something that exists, or a file of a known kind."""
    try:
        return name.lower().endswith(SUFFIXES) or "/" in name or Path(name).exists()
    except OSError:  # a name that is too long for a path
        return False


def own_dataset(
    source: Path | Sequence[tuple[str, Path]],
    *,
    size: int | None = None,
    agreed: Format | None = None,
    labelled: bool = True,
    label: str | tuple[str, ...] | None = None,
    drop: str | tuple[str, ...] = (),
    client: str | None = None,
    categorical: str | tuple[str, ...] = (),
    impute: Impute | None = None,
    task: Task = "classes",
    classes: int | None = None,
    names: tuple[str, ...] = (),
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    categories: Mapping[str, list[str]] | None = None,
    label_mean: tuple[float, ...] | None = None,
    label_std: tuple[float, ...] | None = None,
) -> Dataset:
    """Read own files; the keyword arguments are the keys of [data].

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "north.csv"
    >>> _ = file.write_text("age,ill\\n61,yes\\n47,no\\n")
    >>> data = own_dataset(file)
    >>> data.name, data.label_names, data.columns
    ('north', ('no', 'yes'), (Column(name='age', categories=None),))
    """
    given = {key: tuple(part) for key, part in (categories or {}).items()}
    wanted = Wanted(
        label=label,
        drop=_list(drop),
        client=client,
        categorical=tuple(dict.fromkeys([*_list(categorical), *given])),
        impute=impute,
        task=task,
        classes=classes,
        names=names,
        size=size,
        labelled=labelled,
    )
    own = read_own(source, wanted, agreed)
    _refuse_strange(own, given)
    if mean is not None and std is not None and not own.columns:  # one number stands for all channels
        mean, std = (value * own.x.shape[1] if len(value) == 1 else value for value in (mean, std))
    targets = own.format.label_names if own.format.task == "numbers" else ()
    recipe = Recipe(impute, mean, std, given, targets, label_mean, label_std)
    return to_dataset(own, recipe, _name(source))


def _refuse_strange(own: Own, given: Mapping[str, Sequence[str]]) -> None:
    """Refuse categories that the experiment does not name: all of the column's inputs would be 0, without a word."""
    for place, column in enumerate(own.columns):
        strange = [name for name in column.categories or () if name not in given.get(column.name, (name,))]
        if not strange:
            continue
        whose, rows = "", own.x[:, place, 0, 0] == (column.categories or ()).index(strange[0])
        if own.client_ids is not None and own.client_names and rows.any():
            whose = f"of {own.client_names[own.client_ids[rows][0]]} "
        raise DataError(
            f"column {shown(column.name)} {whose}has {shown(listed(strange[:5]))}, which is not in data.categories; "
            f"correct the file, or add {toml(strange)}"
        )


def _list(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """One name or several."""
    return (names,) if isinstance(names, str) else names


def _name(source: Path | Sequence[tuple[str, Path]]) -> str:
    return shortened(source.resolve().stem) if isinstance(source, Path) else "clients"


def to_dataset(own: Own, recipe: Recipe, name: str) -> Dataset:
    """What was read, with inputs that are still to be prepared."""
    channels = own.x.shape[1]
    return Dataset(
        name,
        own.x,
        own.y,
        own.x_test,
        own.y_test,
        len(own.format.label_names),
        (0.0,) * channels,
        (1.0,) * channels,
        own.format.label_names,
        own.client_ids,
        client_names=own.client_names,
        task=own.format.task,
        columns=own.columns or tuple(Column(f"channel {place}") for place in range(channels)),
        recipe=recipe,
        own_tests=own.tests,
        said=own.said,
    )


@dataclass(frozen=True)
class Glance:
    """What the names of files tell: whether they are several clients, and whether they are tables."""

    clients: bool
    table: bool


def glance(source: Path | Sequence[tuple[str, Path]], client: str | None = None) -> Glance:
    """Look at own files without reading them; what is wrong with them is told when they are read.

    >>> glance(Path("nowhere.csv"))
    Glance(clients=False, table=True)
    """
    try:
        found, _ = find_sources(source)
    except (FedalloyError, OSError):
        first = source if isinstance(source, Path) else Path(source[0][1] if source else "")
        return Glance(client is not None, first.suffix.lower() in (".csv", ".parquet"))
    several = client is not None or found[0].name is not None
    if found[0].kind == "hugging face":
        return Glance(several, not has_images(found[0].path))
    if found[0].kind != "npz":
        return Glance(several, found[0].kind in ("csv", "parquet"))
    try:
        with open_npz(found[0].path) as held:
            x = next((key for key in ("x", "x_train") if key in held.files), None)
            return Glance(several or "client" in held.files, x is not None and held[x].ndim == 2)
    except Exception:  # a damaged file can raise anything
        return Glance(several, False)
