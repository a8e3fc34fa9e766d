"""Checks of option values; each error says what to write instead."""

from __future__ import annotations

import numpy as np

from fedalloy.errors import UsageError


def whole(option: str, value: object, least: int = 1) -> int:
    """Return an integer of at least `least`.

    >>> whole("width", 0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: width=0 is invalid; write an integer of at least 1
    """
    # In Python True is an int, and a count from an array is a NumPy integer.
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{option}={value!r} is invalid; write an integer of at least {least}")
    return int(value)


def wholes(option: str, value: object) -> tuple[int, ...]:
    """Return a list of integers of at least 1 as a tuple.

    >>> wholes("blocks", [1, 2, 1])
    (1, 2, 1)
    """
    if not isinstance(value, list | tuple):
        raise UsageError(f"{option}={value!r} is invalid; write a list of integers, for example [1, 1, 1]")
    return tuple(whole(option, part) for part in value)


def share(option: str, value: object) -> float:
    """Return a number that is at least 0 and less than 1.

    >>> share("dropout", 1.0)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: dropout=1.0 is invalid; write a number that is at least 0 and less than 1
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UsageError(f"{option}={value!r} is invalid; write a number that is at least 0 and less than 1")
    return float(value)


def flag(option: str, value: object) -> bool:
    """Return a boolean; a string like "false" would count as true and is refused.

    >>> flag("bias", True)
    True
    """
    if not isinstance(value, bool):
        raise UsageError(f"{option}={value!r} is invalid; write true or false")
    return value


def multiple_of_4(size: int) -> None:
    """Refuse image sizes that cannot be halved twice, or that would shrink to one pixel.

    On one pixel, a normalisation per channel returns its bias for any image, so 4 x 4 is too small.

    >>> multiple_of_4(30)
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: size=30 is invalid; resize the images to 28, 32 or another multiple of 4 (at least 8)
    """
    if size % 4 or size < 8:
        raise UsageError(f"size={size} is invalid; resize the images to 28, 32 or another multiple of 4 (at least 8)")
