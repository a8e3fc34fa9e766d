"""Checks of the values that options may take; each refusal says what to write instead."""

from __future__ import annotations

import numpy as np

from fedalloy.errors import UsageError


def whole(option: str, value: object, least: int = 1) -> int:
    """Return a whole number that is not below `least`.

    >>> whole("width", 0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: width=0 is impossible; write a whole number from 1 on
    """
    # In Python True is an int, and a count taken from an array is numpy's.
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{option}={value!r} is impossible; write a whole number from {least} on")
    return int(value)


def wholes(option: str, value: object) -> tuple[int, ...]:
    """Return a list of whole numbers, each from 1 on, as a tuple.

    >>> wholes("blocks", [1, 2, 1])
    (1, 2, 1)
    """
    if not isinstance(value, list | tuple):
        raise UsageError(f"{option}={value!r} is impossible; write a list of whole numbers, such as [1, 1, 1]")
    return tuple(whole(option, part) for part in value)


def share(option: str, value: object) -> float:
    """Return a number from 0 on and below 1.

    >>> share("dropout", 1.0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: dropout=1.0 is impossible; write a number from 0 on and below 1
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UsageError(f"{option}={value!r} is impossible; write a number from 0 on and below 1")
    return float(value)


def flag(option: str, value: object) -> bool:
    """Return a truth value; a text such as "false" would count as true and is refused.

    >>> flag("bias", True)
    True
    """
    if not isinstance(value, bool):
        raise UsageError(f"{option}={value!r} is impossible; write true or false")
    return value


def multiple_of_4(size: int) -> None:
    """Refuse images that two halvings do not divide, or shrink to a point.

    On one pixel a normalisation by channel returns its bias whatever the image is, so 4 x 4 is too small.

    >>> multiple_of_4(30)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: size=30 is impossible; resize the images to 28, 32 or another multiple of 4 from 8 on
    """
    if size % 4 or size < 8:
        raise UsageError(f"size={size} is impossible; resize the images to 28, 32 or another multiple of 4 from 8 on")
