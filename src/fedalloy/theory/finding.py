"""What a check of a theoretical statement found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Whether a statement held in everything that was tried, what was tried in words, and the numbers behind it.

    >>> Finding(True, "Two is less than three.", {"two": 2.0}).holds
    True
    """

    holds: bool
    text: str
    numbers: Mapping[str, float]
