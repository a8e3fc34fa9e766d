"""The experiment file of FedKF's tables is FedKF's setting, down to the published sizes and active clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedalloy.config.build import build
from fedalloy.config.experiment import read
from fedalloy.config.methods import make_method
from fedalloy.config.sections import Experiment
from fedalloy.data import from_arrays

FILE = Path(__file__).parents[1] / "src" / "fedalloy" / "experiments" / "fedkf-emnist.toml"


@pytest.fixture(scope="module")
def exp() -> Experiment:
    return read(FILE)


def test_letters_and_split_are_drawn_with_fedkfs_seed(exp: Experiment) -> None:
    drawn = {"per_class": 480, "pick": "random", "pick_seed": 123456, "normalise": "fedkf"}
    assert (exp.data.name, exp.data.size, exp.data.options) == ("emnist-letters", 32, drawn)
    assert (exp.partition.seed, exp.partition.options) == (123456, {"alpha": 0.1, "order": "appearance"})
    assert (exp.seed, exp.rounds, exp.amp_weights) == (123456, 100, "test")


def test_clients_steps_and_active_sets_are_the_published_ones(exp: Experiment) -> None:
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(26), 480))
    letters = from_arrays(np.zeros((len(y), 1, 4, 4), np.uint8), y, name="blank")
    setting = build(exp, letters).setting
    sizes = [len(site.train) + len(site.test) for site in setting.sites]
    assert sizes[:10] == [401, 542, 814, 948, 800, 582, 676, 635, 677, 743]
    assert sizes[10:] == [537, 274, 495, 919, 622, 506, 537, 523, 765, 484]
    assert {setting.steps(k) for k in setting.ids} == {70}
    published = [[19, 13, 12, 9], [6, 8, 12, 17], [5, 3, 0, 8], [18, 7, 14, 11], [13, 14, 7, 10]]
    assert [setting.active(t) for t in range(1, 6)] == [sorted(ids) for ids in published]


def test_methods_are_as_fedkf_compared_them(exp: Experiment) -> None:
    made = {name: make_method(exp, choice) for name, choice in exp.methods.items()}
    assert list(made) == ["fedavg", "fedprox", "fedgen", "fedgkd", "qffl", "fedkf-minus", "fedkf"]
    assert (made["fedprox"].mu, made["qffl"].q) == (1e-3, 1e-4)
    assert (made["fedgkd"].gamma, made["fedgkd"].start, made["fedgkd"].buffer) == (1e-3, "full_buffer", 5)
    assert exp.methods["qffl"].training == {"work": "epochs"}
    assert made["fedgen"].labels == "counts_by_size"
    for name in ("fedkf", "fedkf-minus"):
        ours = made[name]
        assert (ours.variant, ours.gamma, ours.lambda_1, ours.lambda_2) == ("reference", 1.0, 0.1, 0.1)
        assert (ours.width, ours.noise, ours.generator_lr, ours.keep_moments) == (128, 100, 1e-3, True)
