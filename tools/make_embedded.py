"""Make the data set that comes with fedalloy: the first images of every class of Fashion-MNIST, in file order.

Run it from the project's root: `python tools/make_embedded.py`. The same input gives the same file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedalloy.data.catalogue import first_per_class
from fedalloy.data.fetch import fetch
from fedalloy.data.files import FASHION_MNIST
from fedalloy.data.readers import read_mnist

TRAIN, TEST = 600, 100
OUT = Path(__file__).parents[1] / "src" / "fedalloy" / "data" / "embedded" / "fashion_mini.npz"


def main() -> None:
    """Write the embedded file."""
    whole = read_mnist([fetch(file) for file in FASHION_MNIST])
    assert whole.x_test is not None
    assert whole.y_test is not None
    train, test = first_per_class(whole.y, TRAIN), first_per_class(whole.y_test, TEST)
    np.savez_compressed(
        OUT,
        x=whole.x[train],
        y=whole.y[train].astype(np.uint8),
        x_test=whole.x_test[test],
        y_test=whole.y_test[test].astype(np.uint8),
    )


if __name__ == "__main__":
    main()
