"""Data sets by name, from files or from your own arrays; partitions, samples, public sets, augmentation.

May import base.
"""

from fedalloy.data.arrays import from_arrays, from_torch
from fedalloy.data.augment import augmentation
from fedalloy.data.catalogue import dataset, datasets, load_data
from fedalloy.data.normalisation import NORMALISATIONS, normalisation
from fedalloy.data.public import PublicSet, assert_disjoint
from fedalloy.data.samples import Dataset, Samples, tensors

__all__ = [
    "NORMALISATIONS",
    "Dataset",
    "PublicSet",
    "Samples",
    "assert_disjoint",
    "augmentation",
    "dataset",
    "datasets",
    "from_arrays",
    "from_torch",
    "load_data",
    "normalisation",
    "tensors",
]
