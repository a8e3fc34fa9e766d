"""Which column of a table is what: an input, a label, the client, or dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.base.text import LONGEST_NAME
from fedalloy.data.own.names import toml
from fedalloy.data.own.wanted import Format, Wanted
from fedalloy.errors import DataError

# What to write if the label has another name, in an experiment and at a site, where columns are agreed on.
_LABEL = {False: "; name the label with data.label", True: "; name the label in site.toml, with label = ..."}
INDEX = "__index_level_"  # how pandas names an index without a name in a .parquet file


@dataclass(frozen=True)
class Roles:
    """The columns of a table by what they are for."""

    inputs: tuple[str, ...]  # in the order of the inputs
    labels: tuple[str, ...] = ()
    client: str | None = None
    categorical: frozenset[str] = frozenset()

    @property
    def read(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.inputs, *self.labels, *([] if self.client is None else [self.client]))

    def named(self, column: str, task: str) -> bool:
        """Return whether a column's values are names rather than numbers."""
        return column in self.categorical or column == self.client or (column in self.labels and task != "numbers")


@dataclass(frozen=True)
class Layout:
    """The columns that a table must have, and whose they are."""

    columns: tuple[str, ...]
    whose: str  # such as "'north.csv' has"
    labels: tuple[str, ...] | None = None  # None: not known
    agreed: bool = False


def layout_of(agreed: Format | None) -> Layout | None:
    """Return the columns that were agreed on, if tables were."""
    if agreed is None or not agreed.columns:
        return None
    labels = agreed.label_names if agreed.task != "classes" else None
    return Layout(agreed.columns, "the clients agreed on", labels, agreed=True)


def check_names(path: Path, header: Sequence[str]) -> None:
    """Refuse columns without a name of their own."""
    seen: set[str] = set()
    for place, name in enumerate(header):
        if not name:
            raise DataError(
                f"{quoted(path)}: column {place + 1} has no name; name it in the first line, or remove it if it only "
                "contains row numbers (pandas: to_csv(..., index=False))"
            )
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise DataError(
                f"{quoted(path)}: column {place + 1} is named {shown(name)}; a name has at most {LONGEST_NAME} "
                "printable characters"
            )
        if name in seen:
            raise DataError(f"{quoted(path)} has two columns named {shown(name)}; rename or remove one of them")
        seen.add(name)


def roles(
    path: Path,
    header: Sequence[str],
    wanted: Wanted,
    layout: Layout | None,
    *,
    last: str | None = None,
    labelled: bool = True,
) -> Roles:
    """Decide what each column is for; `last` is the label if none was named, by default the last column.

    A table that is not `labelled` has its labels elsewhere.

    >>> roles(Path("a.csv"), ["id", "age", "ill"], Wanted(drop=("id",)), None)
    Roles(inputs=('age',), labels=('ill',), client=None, categorical=frozenset())
    """
    check_names(path, header)
    agreed = layout is not None and layout.agreed
    dropped = {*wanted.drop, *(name for name in header if name.startswith(INDEX))}
    client = wanted.client
    if agreed and client is not None:  # a site is one client, whatever its file says
        dropped.add(client)
        client = None
    if not wanted.labelled:
        dropped |= {*wanted.labels}
    named = [*wanted.labels, *([] if client is None else [client])]
    for name in [*named, *(() if agreed else wanted.categorical)]:
        if name not in header and name not in dropped:
            raise _no_column(path, name, header, _LABEL[agreed] if name in wanted.labels else "")
    kept = [name for name in header if name not in dropped and name != client]
    labels: tuple[str, ...] = ()
    if wanted.labelled:
        labels = wanted.labels or (_labels(path, header, kept, layout, last) if labelled else ())
    inputs = [name for name in kept if name not in labels]
    if layout is not None:
        _check_same(path, inputs, wanted, layout)
        inputs = list(layout.columns)
    if not inputs:
        raise DataError(f"{quoted(path)} has no columns to learn from besides {shown(', '.join([*labels, *named]))}")
    categorical = frozenset(wanted.categorical) & frozenset(inputs)
    return Roles(tuple(inputs), labels, client, categorical)


def _labels(
    path: Path, header: Sequence[str], kept: Sequence[str], layout: Layout | None, last: str | None
) -> tuple[str, ...]:
    """Return the label columns if the experiment does not name them."""
    if layout is not None and layout.labels is not None and all(name in kept for name in layout.labels):
        return layout.labels
    if layout is not None and layout.labels is not None and not layout.agreed:
        name = next(name for name in layout.labels if name not in kept)
        raise _no_column(path, name, header, _LABEL[False])
    # The order of columns may differ between files: the label is what is not an agreed column.
    inputs = frozenset(() if layout is None else layout.columns)
    others = [name for name in kept if name not in inputs]
    if not others:
        raise DataError(
            f"{quoted(path)} has no column for the label besides {shown(', '.join(kept)) if kept else 'dropped ones'}; "
            "name it with data.label"
        )
    return (last,) if last in others else (others[-1],)


def _check_same(path: Path, inputs: Sequence[str], wanted: Wanted, layout: Layout) -> None:
    here, there = frozenset(inputs), frozenset(layout.columns)
    missing = [name for name in layout.columns if name not in here]
    extra = [name for name in inputs if name not in there]
    for names, sentence in (
        (missing, "has no column {name}, which {whose}; add it"),
        (extra, "has a column {name} that is not among those {whose}; remove it"),
    ):
        if names:
            said = sentence.format(name=shown(names[0]), whose=layout.whose)
            raise DataError(f"{quoted(path)} {said}, or write data.drop = {toml([*wanted.drop, *names])}")


def _no_column(path: Path, name: str, header: Sequence[str], hint: str) -> DataError:
    return DataError(f"{quoted(path)} has no column {shown(name)}; the columns are {shown(', '.join(header))}{hint}")
