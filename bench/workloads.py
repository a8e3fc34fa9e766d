"""The workloads: federations on random images, because the time of a step does not depend on the pixel values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedalloy.base import rng
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import experiment
from fedalloy.config.sections import Experiment
from fedalloy.data import Dataset, from_arrays
from fedalloy.federation.core import Method
from fedalloy.methods import FedAvg, Local

TEST_SHARE = 0.2  # of each client's rows, for its local test


@dataclass(frozen=True)
class Workload:
    """A federation on random images; every client has `samples` of them for training."""

    name: str
    model: str
    channels: int
    size: int
    samples: int
    clients: int
    active: int
    epochs: int = 2
    batch: int = 64
    classes: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Method = field(default_factory=FedAvg)

    def experiment(self, rounds: int) -> Experiment:
        """The experiment that `simulate` runs."""
        return experiment(
            {
                "rounds": rounds,
                "partition": {"name": "iid", "clients": self.clients, "test_fraction": TEST_SHARE},
                "model": {"name": self.model, **self.options},
                "training": {"epochs": self.epochs, "batch": self.batch, "momentum": 0.9},
                "participation": {"policy": "fraction", "fraction": self.active / self.clients},
            }
        )

    def data(self) -> Dataset:
        """Return random pixels and labels."""
        stream = rng.numpy_generator(0, "bench")
        rows = round(self.clients * self.samples / (1 - TEST_SHARE))
        pixels = stream.integers(256, size=(rows, self.channels, self.size, self.size), dtype=np.uint8)
        return from_arrays(pixels, np.arange(rows) % self.classes)

    def built(self) -> Built:
        """Return the setting of this workload; its network can be sent to a worker."""
        built = build(self.experiment(1), self.data())
        assert set(built.setting.sizes) == {self.samples}
        return built


W1 = Workload("W1", "simple-cnn", 3, 32, samples=500, clients=100, active=10)
W2 = Workload("W2", "lenet5", 1, 28, samples=580, clients=20, active=4)
W3 = Workload(
    "W3", "resnet8", 3, 32, samples=512, clients=20, active=4, epochs=1, options={"norm": "group", "width": 16}
)
W4 = Workload(
    "W4", "knfu-m1", 1, 28, samples=100, clients=20, active=20, epochs=1, batch=16, method=Local(second_phase=1)
)
