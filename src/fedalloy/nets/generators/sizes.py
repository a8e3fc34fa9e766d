"""Which sizes of images a generator cannot make."""

from __future__ import annotations

from fedalloy.errors import UsageError


def cannot_make(generator: str, height: int, across: int, sizes: str) -> UsageError:
    """The refusal of a size; rows of a table, which no size turns into images, are sent elsewhere.

    >>> print(cannot_make("image generator doubles its images twice", 6, 6, "a multiple of 4"))  # doctest: +ELLIPSIS
    the image generator doubles its images twice and cannot make 6 x 6 pixels; resize the images to a multiple of 4, ...
    """
    if height == across == 1:
        return UsageError(
            f"the {generator}, but this data has columns and no images; use a method that draws none, such as fedavg, "
            "fedprox, fedgkd or fedgen"
        )
    return UsageError(
        f"the {generator} and cannot make {height} x {across} pixels; resize the images to {sizes}, for example [data] "
        "size = 32"
    )
