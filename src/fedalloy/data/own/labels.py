"""The classes of all files in one order, and the number of each row's class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.base.text import shortened
from fedalloy.data.own.names import Named, in_order, is_number, toml
from fedalloy.data.own.parts import Part
from fedalloy.data.own.wanted import Format, Wanted
from fedalloy.errors import DataError

_FEW = 20  # so many classes are never too many


def class_names(parts: Sequence[Part], wanted: Wanted, agreed: Format | None) -> tuple[str, ...]:
    """Return the names of the classes in their order: as agreed, as the experiment says, or as found in the files."""
    found = in_order({name for part in parts for name in _occurring(part)})
    if agreed is not None:
        return agreed.label_names
    if len(found) < 2:
        raise DataError(
            f"{quoted(parts[0].path)}: all labels are {shown(next(iter(found), ''))}, but a classifier needs at least "
            "2 classes; name another column with data.label"
        )
    if wanted.names:
        return wanted.names
    if wanted.classes is not None:
        return tuple(map(str, range(wanted.classes)))
    declared = {part.declared for part in parts}
    if len(declared) == 1 and (names := declared.pop()):
        return names
    rows = sum(len(part.x) for part in parts)
    numbers = all(map(is_number, found))
    if len(found) > _FEW and (
        2 * len(found) > rows or (numbers and not all(float(name).is_integer() for name in found))
    ):
        raise DataError(
            f"{quoted(parts[0].path)}: the label has {len(found):,} different values in {rows:,} rows, such as "
            f'{shown(found[0])}; write data.task = "numbers" if it is a number to predict, or name another column with '
            "data.label"
        )
    if numbers and found[0] == "0" and any(part.numbered for part in parts):
        _refuse_gaps(parts[0], found)
    _refuse_unlike(parts)
    return found


def _refuse_unlike(parts: Sequence[Part]) -> None:
    """Refuse files that write the same classes differently: each way of writing would become a class of its own.

    One file writes numbers and another names, or the same name in upper and in lower case. A file that has both means
    both, and `data.names` says that all of them are classes.
    """
    held = [(part, names) for part in parts if (names := _occurring(part))]
    numbered = next((one for one in held if all(map(is_number, one[1]))), None)
    worded = next((one for one in held if not any(map(is_number, one[1]))), None)
    if numbered is not None and worded is not None:
        _refuse_pair(worded, numbered, worded[1][0], numbered[1][0])
    spelt: dict[str, tuple[tuple[Part, list[str]], str]] = {}
    for one in held:
        for name in one[1]:
            other, before = spelt.setdefault(name.casefold(), (one, name))
            if name != before and not any({name, before} <= set(names) for _, names in held):
                _refuse_pair(other, one, before, name)


def _refuse_pair(one: tuple[Part, list[str]], other: tuple[Part, list[str]], first: str, second: str) -> NoReturn:
    both = in_order({*one[1], *other[1]})
    raise DataError(
        f"{quoted(one[0].path)} has the class {shown(first)} where {quoted(other[0].path)} has {shown(second)}, so "
        f"they would be different classes; write the same names in all files, or data.names = {toml(both)} if they are"
    )


def _refuse_gaps(part: Part, found: Sequence[str]) -> None:
    if found[-1] != str(len(found) - 1) and float(found[-1]).is_integer():
        raise DataError(
            f"{quoted(part.path)}: the labels are {shown(', '.join(found))}, but class numbers from 0 must have no "
            f"gaps; write data.classes = {int(float(found[-1])) + 1} if the missing classes exist but have no rows"
        )


def _occurring(part: Part) -> list[str]:
    assert isinstance(part.y, Named)
    return [part.y.names[code] for code in np.unique(part.y.codes)]


def class_numbers(part: Part, names: Sequence[str], wanted: Wanted, agreed: Format | None) -> NDArray[np.int64]:
    """Return the number of each row's class; numbers stand for the names in their order if no name is a number."""
    assert isinstance(part.y, Named)
    numbers = part.y.of(names)
    if not any(map(is_number, names)):
        numbers = np.where(numbers < 0, part.y.of([str(k) for k in range(len(names))]), numbers)
    stray = np.flatnonzero(numbers < 0)
    if stray.size:
        label = part.y.names[part.y.codes[stray[0]]]
        known = shown(", ".join(names))
        if agreed is not None:
            reason = f"the clients agreed on {known}"
        elif wanted.names:
            reason = f"data.names has {known}; correct the label, or add it to data.names"
        else:
            reason = (
                f"with data.classes = {len(names)} labels are numbers from 0 to {len(names) - 1}; or use data.names"
            )
        raise DataError(f"{quoted(part.path)}: {part.place(int(stray[0]))} has class {shown(label)}, but {reason}")
    return numbers


def said_of_classes(names: Sequence[str]) -> str:
    """Say which number each class has.

    >>> said_of_classes(["absent", "present"])
    'classes: 0 = absent, 1 = present'
    """
    if list(names) == [str(k) for k in range(len(names))]:
        return f"classes: {len(names)}, numbered as in the data"
    pairs = [f"{k} = {shortened(name)}" for k, name in enumerate(names)]
    return f"classes: {', '.join(pairs if len(pairs) <= _FEW else [*pairs[: _FEW - 1], '...', pairs[-1]])}"
