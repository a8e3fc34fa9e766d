"""KDIA's Theorem 1 and the problem on which it is tested."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedalloy.theory import kdia, kdia_assumption2, kdia_theorem1, kdia_theorem1_proof
from fedalloy.theory.kdia import MU, simulate
from fedalloy.theory.kdia_toy import (
    EACH,
    INPUTS,
    LARGEST,
    OPTIMUM,
    Constants,
    constants,
    distilled,
    expected_loss,
    gradients,
    loss,
    pulled,
    sigmoid,
)

GRID = np.linspace(-LARGEST, LARGEST, 401)


def test_gradients_are_the_derivatives_of_the_loss() -> None:
    h = 1e-6
    for theta in (-1.7, 0.1, 1.4):
        assert gradients(theta).mean() == pytest.approx((loss(theta + h) - loss(theta - h)) / (2 * h), abs=1e-8)


def test_constants_are_valid_and_attained() -> None:
    known = constants()
    slopes = np.array([gradients(theta) for theta in GRID])
    curvature = np.diff(slopes, axis=0) / np.diff(GRID)[:, None]
    assert known.lowest <= curvature.min() <= 1.05 * known.lowest
    assert 0.999 * known.L <= curvature.max() <= known.L
    outputs = sigmoid(np.multiply.outer(GRID, INPUTS))
    assert min(outputs.min(), (1 - outputs).min()) == pytest.approx(known.delta)
    change = math.sqrt(2) * abs(np.diff(outputs, axis=0)).max() / (GRID[1] - GRID[0])
    assert 0.999 * known.L_h <= change <= known.L_h
    off = abs(GRID - OPTIMUM) > 1e-3
    ratio = (slopes[off] ** 2).mean(1) / slopes[off].mean(1) ** 2
    assert ratio.max() <= known.B**2 * (1 + 1e-12)


def test_rho_is_fedprox_with_the_theorems_constants() -> None:
    known, gamma, sampled = constants(), 0.03, 7
    mu = known.strength(MU)
    bar = mu + known.lowest
    expected = (
        1 / mu
        - gamma * known.B / mu
        - known.B * (1 + gamma) * math.sqrt(2) / (bar * math.sqrt(sampled))
        - known.L * known.B * (1 + gamma) / (bar * mu)
        - known.L * (1 + gamma) ** 2 * known.B**2 / (2 * bar**2)
        - known.L * known.B**2 * (1 + gamma) ** 2 / (bar**2 * sampled) * (2 * math.sqrt(2 * sampled) + 2)
    )
    assert known.rho(MU, gamma, sampled) == pytest.approx(expected, rel=1e-12)


def test_expected_loss_is_the_mean_over_all_choices() -> None:
    models = np.array([-1.0, -0.5, 0.0, 0.7, 1.5])
    clients = np.repeat(models, EACH)
    chosen = np.array(list(itertools.combinations(clients, 3)))
    assert expected_loss(models, sampled=3) == pytest.approx(loss(chosen.mean(1)).mean(), rel=1e-12)


def test_solutions_stay_where_the_constants_are_valid() -> None:
    for anchor in (-LARGEST, LARGEST):
        for found in (pulled(anchor, 3.0), distilled(anchor, 3.0)):
            assert abs(found).max() <= LARGEST


def test_the_squared_distance_bounds_the_divergence() -> None:
    teacher, student = sigmoid(1.3 * INPUTS), sigmoid(np.multiply.outer(GRID, INPUTS))
    divergence = teacher * np.log(teacher / student) + (1 - teacher) * np.log((1 - teacher) / (1 - student))
    pull = constants().strength(MU) / 2 * (GRID - 1.3) ** 2
    assert (MU / 2 * divergence.T - pull).max() <= 1e-15


def test_theorem1_is_broken_with_a_teacher_and_a_student() -> None:
    finding = kdia_theorem1()
    assert not finding.holds
    broken, rises = (value for name, value in finding.numbers.items() if name.startswith("rounds "))
    assert broken > rises > 0


def test_nothing_is_broken_if_the_teacher_is_the_student(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_only(last: list[int], counts: list[int], sizes: list[int]) -> list[float]:
        newest = [t == max(last) for t in last]
        return [chosen / sum(newest) for chosen in newest]

    monkeypatch.setattr(kdia, "tri_freqs", last_only)
    run = simulate()
    assert np.allclose(run.student, run.teacher)
    assert (run.slack > 0).all()


def test_theorem1_holds_where_its_proof_applies() -> None:
    finding = kdia_theorem1_proof()
    assert finding.holds
    assert finding.numbers["smallest factor by which the decrease exceeds rho"] > 1


@pytest.mark.parametrize("wrong", ["without its subtracted terms", "five times too large"])
def test_a_wrong_rho_is_found(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = Constants.rho

    def rho(self: Constants, mu: float, gamma: float = 0.0) -> float:
        return 5 * right(self, mu, gamma) if wrong.startswith("five") else 1 / self.strength(mu)

    monkeypatch.setattr(Constants, "rho", rho)
    assert not kdia_theorem1_proof().holds


def test_assumption2_fails_for_kdias_objective_and_not_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not kdia_assumption2().holds
    monkeypatch.setattr(kdia, "distilled", lambda anchor, mu: pulled(anchor, constants().strength(mu)))
    assert kdia_assumption2().holds
