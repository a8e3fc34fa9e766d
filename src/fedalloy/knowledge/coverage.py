"""Which classes a round's pseudo-samples cover, in the teachers' eyes, and when they have collapsed to a few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedalloy.federation.core import Federation

COVERED, LARGEST = "classes of pseudo-samples", "largest class share of pseudo-samples"  # notes of a round


def coverage(seen: Tensor, classes: int) -> tuple[int, float]:
    """How many classes occur among the classes that were seen, and the share of the commonest one.

    >>> coverage(torch.tensor([3, 3, 3, 0]), classes=5)
    (2, 0.75)
    """
    counts = torch.bincount(seen, minlength=classes)
    return int((counts > 0).sum()), counts.max().item() / max(1, len(seen))


def note_coverage(fed: Federation, teacher: Tensor) -> None:
    """Note the coverage of a round's samples, from what teachers answered together (N, classes or more outputs)."""
    note_classes(fed, teacher[:, : fed.classes].argmax(1))


def note_classes(fed: Federation, seen: Tensor) -> None:
    """Note it from the classes that teachers saw. A batch alone may be too small to hold even half of many classes."""
    covered, largest = coverage(seen, fed.classes)
    fed.note(COVERED, covered)
    fed.note(LARGEST, largest)


def collapsed(record: Mapping[str, Any], classes: int) -> bool:
    """Whether a round's pseudo-samples covered too little to teach all classes.

    They did if more than half of them were of one class, or if they covered fewer than half of the classes. With two
    or three classes, "more than half" is more than 1.8 times an equal share.

    >>> [collapsed({"notes": {COVERED: 5, LARGEST: share}}, classes=10) for share in (0.5, 0.51)]
    [False, True]
    >>> [collapsed({"notes": {COVERED: n, LARGEST: 0.3}}, classes=10) for n in (5, 4)]
    [False, True]
    >>> collapsed({}, classes=10), collapsed({"notes": {COVERED: 2, LARGEST: 0.8}}, classes=2)
    (False, False)
    """
    notes = record.get("notes", {})
    if COVERED not in notes or LARGEST not in notes:
        return False
    most = max(0.5, 1.8 / classes)
    return bool(notes[LARGEST] > most or 2 * notes[COVERED] < classes)


def in_words(record: Mapping[str, Any], classes: int) -> str:
    """The coverage of a round as the end of a sentence.

    >>> in_words({"notes": {COVERED: 2, LARGEST: 0.997}}, classes=10)
    'cover 2 of 10 classes, and 100 % of them are of one class'
    """
    notes = record["notes"]
    return f"cover {notes[COVERED]:.0f} of {classes} classes, and {100 * notes[LARGEST]:.0f} % of them are of one class"
