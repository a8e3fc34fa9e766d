"""Which classes a round's pseudo-samples cover, in the teachers' eyes, and when they have collapsed to a few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedalloy.federation.core import Federation

# Notes of a round.
COVERED, LARGEST = "classes of pseudo-samples", "largest class share of pseudo-samples"
ASKED = "classes asked for"  # if a generator is asked only for classes that active clients hold


def coverage(seen: Tensor, classes: int) -> tuple[int, float]:
    """How many classes occur among the classes that were seen, and the share of the commonest one.

    >>> coverage(torch.tensor([3, 3, 3, 0]), classes=5)
    (2, 0.75)
    """
    counts = torch.bincount(seen, minlength=classes)
    return int((counts > 0).sum()), counts.max().item() / max(1, len(seen))


def note_coverage(fed: Federation, teacher: Tensor, asked: int | None = None) -> None:
    """Note the coverage of a round's samples, from what teachers answered together (N, classes or more outputs).

    `asked` is how many classes the generator was asked for, if not for all. Give all samples of a round: a batch alone
    may be too small to hold even half of many classes.
    """
    note_classes(fed, teacher[:, : fed.classes].argmax(1))
    if asked is not None:
        fed.note(ASKED, asked)


def note_classes(fed: Federation, seen: Tensor) -> None:
    """Note it from the classes that teachers saw."""
    covered, largest = coverage(seen, fed.classes)
    fed.note(COVERED, covered)
    fed.note(LARGEST, largest)


def collapsed(record: Mapping[str, Any], classes: int) -> bool:
    """Whether a round's pseudo-samples covered too little to teach all classes.

    They did if more than half of them were of one class, or if they covered fewer than half of the classes that were
    asked for. With two or three of these, "more than half" is more than 1.8 times an equal share.

    >>> [collapsed({"notes": {COVERED: 5, LARGEST: share}}, classes=10) for share in (0.5, 0.51)]
    [False, True]
    >>> [collapsed({"notes": {COVERED: n, LARGEST: 0.3}}, classes=10) for n in (5, 4)]
    [False, True]
    >>> collapsed({}, classes=10), collapsed({"notes": {COVERED: 2, LARGEST: 0.8}}, classes=2)
    (False, False)
    >>> collapsed({"notes": {COVERED: 4, LARGEST: 0.3, ASKED: 4}}, classes=10)
    False
    """
    notes = record.get("notes", {})
    if COVERED not in notes or LARGEST not in notes:
        return False
    classes = notes.get(ASKED, classes)
    most = max(0.5, 1.8 / classes)
    return bool(notes[LARGEST] > most or 2 * notes[COVERED] < classes)


def in_words(record: Mapping[str, Any], classes: int) -> str:
    """The coverage of a round as the end of a sentence.

    >>> in_words({"notes": {COVERED: 2, LARGEST: 0.997}}, classes=10)
    'cover 2 of 10 classes, and 100 % of them are of one class'
    """
    notes = record["notes"]
    covered, asked, largest = notes[COVERED], notes.get(ASKED, classes), 100 * notes[LARGEST]
    return f"cover {covered:.0f} of {asked:.0f} classes, and {largest:.0f} % of them are of one class"
