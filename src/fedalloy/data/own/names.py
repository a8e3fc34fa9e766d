"""Names in files: of classes, categories and clients, and which values are missing.

How a value is written does not depend on the other values, because sites cannot see each other's: 1, 1.0 and "1" are
all "1" everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})  # in any case
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)(\.\d*)?", re.ASCII)


@dataclass(frozen=True, eq=False)
class Named:
    """A column of names: for each row the position of its name, or -1 where it is missing."""

    codes: NDArray[np.int64]
    names: tuple[str, ...]

    def of(self, order: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions in another list of names; -1 where it does not have the name."""
        place = {name: k for k, name in enumerate(order)}
        to = np.array([*(place.get(name, -1) for name in self.names), -1], np.int64)
        return to[self.codes]


def named(codes: NDArray[np.int64], values: Sequence[Any]) -> Named:
    """Write different values in one way; `codes` are positions in `values`, or -1 where a value is missing.

    >>> found = named(np.array([0, 1, 2, 3]), ["2", " 1.0", "1", "NA"])
    >>> found.codes.tolist(), found.names
    ([1, 0, 0, -1], ('1', '2'))
    """
    clean = [written(value) for value in values]
    names = in_order({name for name in clean if name is not None})
    place: dict[str | None, int] = {name: k for k, name in enumerate(names)}
    to = np.array([*(place.get(name, -1) for name in clean), -1], np.int64)
    return Named(to[codes], names)


def is_missing(text: str) -> bool:
    """Return whether a cell has no value; `None` is what programs write for it, but `none` is a word, as in no pain.

    >>> is_missing(" NA"), is_missing("None"), is_missing("none")
    (True, True, False)
    """
    return text.strip().casefold() in _MISSING or text.strip() == "None"


def written(value: Any) -> str | None:
    """Return the name that a value of a file stands for; None if it is missing.

    >>> written("1.50"), written(1.0), written("007"), written(True), written("FALSE"), written("N/A")
    ('1.5', '1', '007', 'true', 'false', None)
    """
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    if isinstance(value, float | np.floating):
        value = int(value) if np.isfinite(value) and value == int(value) else value
    text = str(value).strip()
    folded = text.casefold()
    if is_missing(text):
        return None
    if folded in ("true", "false"):
        return folded
    if _DECIMAL.fullmatch(text):
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    return text


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names: numbers by their value, others alphabetically, so that false comes before true.

    >>> in_order({"10", "9"}), in_order({"b", "a10", "a9"})
    (('9', '10'), ('a10', 'a9', 'b'))
    """
    held = sorted(names)
    return tuple(sorted(held, key=float) if all(map(is_number, held)) else held)


def naturally(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return the key that sorts names as people do, with site2 before site10.

    >>> sorted(["site10", "site2", "Site1"], key=naturally)
    ['Site1', 'site2', 'site10']
    """
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    key = [(0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part.casefold()) for part in parts]
    return (*key, (2, 0, name))


def is_number(text: str) -> bool:
    """Return whether text is a finite number; 1_000 is one in Python only.

    >>> is_number("-1.5e3"), is_number("1_000"), is_number("nan"), is_number("IV")
    (True, False, False, False)
    """
    try:
        return bool(np.isfinite(float(text))) and "_" not in text
    except ValueError:
        return False


def toml(names: Iterable[str]) -> str:
    """Write names as a list of an experiment's file, for sentences that say what to write.

    >>> toml(["sex", "chest pain"])
    '["sex", "chest pain"]'
    """
    held = list(dict.fromkeys(names))
    return json.dumps(held[:5], ensure_ascii=False)[:-1] + (", ...]" if len(held) > 5 else "]")
