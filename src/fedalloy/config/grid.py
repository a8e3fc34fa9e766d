"""An experiment along axes: one comparison for each combination of their values, as in the tables of papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedalloy.config.overrides import put
from fedalloy.errors import UsageError


@dataclass(frozen=True)
class Cell:
    """One combination: its label along each axis, and the experiment's values there."""

    labels: tuple[str, ...]
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The cell in a word or two, for a folder and a heading."""
        return ", ".join(self.labels)


def cells(values: Mapping[str, Any]) -> tuple[list[str], list[Cell]]:
    """The names of an experiment's axes and its cells; the first axis varies slowest.

    Each axis has a name and values; a value has a label and the keys that it sets.

    >>> axes = [{"name": "alpha", "values": [{"label": "0.1", "set": {"partition.alpha": 0.1}}]}]
    >>> names, found = cells({"rounds": 5, "axes": axes})
    >>> names, found[0].labels, found[0].values
    (['alpha'], ('0.1',), {'rounds': 5, 'partition': {'alpha': 0.1}})
    """
    rest = {key: value for key, value in values.items() if key != "axes"}
    axes = [_axis(axis) for axis in _tables(values.get("axes", []), "axes")]
    if not axes:
        raise UsageError("the experiment has no [[axes]]; write some, or use `fedalloy compare`")
    found = []
    for chosen in product(*(points for _, points in axes)):
        here: dict[str, Any] = dict(rest)
        for _, changes in chosen:
            for key, value in changes.items():
                put(here, key, value)
        found.append(Cell(tuple(label for label, _ in chosen), here))
    return [name for name, _ in axes], found


def _axis(axis: Mapping[str, Any]) -> tuple[str, list[tuple[str, Mapping[str, Any]]]]:
    if set(axis) != {"name", "values"} or not isinstance(axis["name"], str):
        raise UsageError("each of [[axes]] needs a name and values, and nothing else")
    points = []
    for point in _tables(axis["values"], f"the values of the axis '{axis['name']}'"):
        if (
            set(point) != {"label", "set"}
            or not isinstance(point["label"], str)
            or not isinstance(point["set"], Mapping)
        ):
            raise UsageError(f"a value of the axis '{axis['name']}' needs a label and what it sets: {{label, set}}")
        points.append((point["label"], point["set"]))
    if len({label for label, _ in points}) < len(points) or not points:
        raise UsageError(f"the axis '{axis['name']}' needs values with different labels")
    return axis["name"], points


def _tables(value: Any, what: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, Sequence) or not all(isinstance(part, Mapping) for part in value):
        raise UsageError(f"{what} must be a list of tables")
    return value
