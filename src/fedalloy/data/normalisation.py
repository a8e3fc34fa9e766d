"""The normalisation constants of each paper and data set, by (data set, preset)."""

from __future__ import annotations

from fedalloy.base.registry import suggest
from fedalloy.errors import UsageError

Constants = tuple[tuple[float, ...], tuple[float, ...]]

_HALF_GREY: Constants = ((0.5,), (0.5,))
_FEDKF_CIFAR: Constants = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_CIFAR100: Constants = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_FASHION: Constants = ((0.2860,), (0.3530,))

# `default` is a data set's own mean and std over all training pixels. A paper's preset is what its code used: FedKF's
# std for CIFAR is a mean of per-image values, and its constants for CIFAR-100 are those of CIFAR-10.
NORMALISATIONS: dict[tuple[str, str], Constants] = {
    ("mnist", "default"): ((0.1307,), (0.3081,)),
    ("mnist", "dafkd"): _HALF_GREY,  # to [-1, 1], the range of DaFKD's tanh generators
    ("fashion-mnist", "default"): _FASHION,
    ("fashion-mnist", "dafkd"): _HALF_GREY,
    ("fashion-mini", "default"): _FASHION,
    ("fashion-mini", "dafkd"): _HALF_GREY,
    ("emnist-letters", "default"): ((0.1722,), (0.3309,)),
    ("emnist-letters", "fedkf"): ((0.1739,), (0.3170,)),  # of images already resized to 32 x 32
    ("emnist-letters", "dafkd"): _HALF_GREY,
    ("svhn", "default"): ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    ("svhn", "dafkd"): ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ("cifar10", "default"): ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ("cifar10", "fedkf"): _FEDKF_CIFAR,
    ("cifar10", "kdia"): ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    ("cifar100", "default"): _CIFAR100,
    ("cifar100", "fedkf"): _FEDKF_CIFAR,
    ("cifar100", "kdia"): _CIFAR100,
    ("cinic10", "default"): ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)),
    ("cinic10", "kdia"): ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)),
}


def normalisation(dataset: str, preset: str = "default") -> Constants:
    """Return the mean and std of a data set's channels for a preset.

    >>> normalisation("cifar100", "kdia")
    ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    >>> normalisation("mnist", "kdia")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: data set 'mnist' has no normalisation 'kdia'; choose one of: dafkd, default
    """
    if (dataset, preset) in NORMALISATIONS:
        return NORMALISATIONS[dataset, preset]
    known = [preset for name, preset in NORMALISATIONS if name == dataset]
    raise UsageError(f"data set '{dataset}' has no normalisation '{preset}'; {suggest(preset, known)}")
