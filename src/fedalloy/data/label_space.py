"""The mapping from classes to network outputs if several data sets with different classes are combined."""

from __future__ import annotations

from dataclasses import dataclass

from fedalloy.base.registry import suggest
from fedalloy.errors import UsageError


@dataclass(frozen=True)
class LabelSpace:
    """The classes of several data sets in one output layer: the private ones first, then the public ones.

    >>> space = LabelSpace((("cifar10", 10), ("cifar100", 20)))
    >>> space.outputs, space.index("cifar100", 3), space.columns("cifar10")
    (30, 13, slice(0, 10, None))
    """

    parts: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.parts]
        if not names or len(set(names)) < len(names) or min(classes for _, classes in self.parts) < 1:
            raise UsageError(f"a label space needs data sets with different names and at least one class, not {names}")

    @property
    def outputs(self) -> int:
        """The number of outputs that a network needs."""
        return sum(classes for _, classes in self.parts)

    def columns(self, name: str) -> slice:
        """Return the outputs for the classes of a data set."""
        start = 0
        for other, classes in self.parts:
            if other == name:
                return slice(start, start + classes)
            start += classes
        raise UsageError(f"the label space has no data set '{name}'; {suggest(name, [n for n, _ in self.parts])}")

    def index(self, name: str, label: int) -> int:
        """Return the output for a label of a data set."""
        columns = self.columns(name)
        if not 0 <= label < columns.stop - columns.start:
            raise UsageError(f"'{name}' has no label {label}; its labels are 0 to {columns.stop - columns.start - 1}")
        return int(columns.start) + label
