"""DaFKD's Theorems 1 and 2."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from fedalloy.theory import (
    dafkd,
    dafkd_bound,
    dafkd_theorem1_f,
    dafkd_theorem1_pg,
    dafkd_theorem2,
    dafkd_theorem2_limit,
)
from fedalloy.theory.dafkd import EXAMPLE, best_generator, best_scores, distance, divergence, outlier, problems, slopes
from fedalloy.theory.dafkd_bound import bound, memorised_loss, rare_kind, weights


def test_the_discriminators_are_as_the_theorem_says() -> None:
    assert dafkd_theorem1_f().holds


def test_a_wrong_formula_for_discriminators_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(clients: NDArray[np.float64], generator: NDArray[np.float64]) -> NDArray[np.float64]:
        return best_scores(clients, 1.001 * generator)

    monkeypatch.setattr(dafkd, "best_scores", wrong)
    assert not dafkd_theorem1_f().holds


def test_the_counterexample_is_exact() -> None:
    first, second = slopes(EXAMPLE, [Fraction(2, 3), Fraction(1, 3)])
    assert first != second
    assert best_generator(EXAMPLE)[0] == pytest.approx((1 + math.sqrt(13)) / 6, rel=1e-12)
    assert not dafkd_theorem1_pg().holds


def test_divergence_is_the_mean_of_jensen_shannon_divergences() -> None:
    def relative(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
        return float((p * np.log(p / q)).sum())

    for clients in problems(5):
        g = clients[0] / 2 + 0.1
        halves = [(relative(p, (p + g) / 2) + relative(g, (p + g) / 2)) / 2 for p in clients]
        assert divergence(clients, g) == pytest.approx(np.mean(halves), rel=1e-9)


def test_no_other_generator_is_better() -> None:
    rng = np.random.default_rng(0)
    for clients in problems(20):
        found = best_generator(clients)
        assert found.sum() == pytest.approx(1, abs=1e-12)
        least = divergence(clients, found)
        for other in rng.dirichlet(np.ones(5), size=50):
            for step in (1e-3, 0.1, 1.0):
                assert divergence(clients, (1 - step) * found + step * other) >= least - 1e-15


def test_p_g_is_p_where_no_two_clients_share_samples_and_the_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = tuple(tuple(int(i == j) for j in range(3)) for i in range(3))
    assert distance(best_generator(apart), np.full(3, 1 / 3)) < 1e-12
    monkeypatch.setattr(dafkd, "EXAMPLE", ((1, 0), (0, 1)))
    monkeypatch.setattr(dafkd, "problems", lambda: np.array([apart], dtype=np.float64))
    assert dafkd_theorem1_pg().holds


def test_a_rare_kind_nearly_vanishes() -> None:
    for clients in (3, 6, 12):
        g = best_generator(outlier(clients))[1]
        assert (((1 - g) / (2 - g)) ** (clients - 1)) == pytest.approx(g / (1 + g), rel=1e-6)


def test_theorem2_is_broken_twice() -> None:
    found = dafkd_theorem2()
    assert not found.holds
    numbers = found.numbers
    assert numbers["memorising: least loss of the ensemble"] > numbers["memorising: bound"]
    assert numbers["unlimited data: loss with the generator's optimum"] > numbers["unlimited data: bound"]
    assert numbers["unlimited data: loss with p_g = p"] <= numbers["unlimited data: bound"]


@pytest.mark.parametrize("left", ["memorising", "the generator"])
def test_each_counterexample_suffices(monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    if left == "memorising":
        monkeypatch.setattr(dafkd_bound, "best_generator", lambda clients: clients.mean(0))
    else:
        monkeypatch.setattr(dafkd_bound, "memorised_loss", lambda *_: 0.0)
    assert not dafkd_theorem2().holds
    monkeypatch.setattr(dafkd_bound, "best_generator", lambda clients: clients.mean(0))
    monkeypatch.setattr(dafkd_bound, "memorised_loss", lambda *_: 0.0)
    assert dafkd_theorem2().holds


def test_models_that_memorise_lose_at_least_as_much_as_said() -> None:
    clients, samples, kinds = 2, 1000, 100_000
    labels = np.arange(kinds) % 2
    for seed in range(3):
        seen = np.random.default_rng(seed).integers(kinds, size=(clients, samples))
        answers = np.zeros((clients, kinds))
        for k in range(clients):
            answers[k, seen[k]] = labels[seen[k]]
            assert abs(answers[k] - labels)[seen[k]].max() == 0  # no training loss
        lost = abs(answers.mean(0) - labels).mean()
        assert lost >= memorised_loss(clients, samples, kinds) > bound(0.0, clients, samples)


def test_the_steps_of_the_proof_hold_for_p_g_equal_to_p_and_not_for_the_optimum() -> None:
    for clients in problems(100):
        mean, k = clients.mean(0), len(clients)
        assert best_scores(clients, mean).sum(0).min() >= k / (k + 1)
        assert (weights(clients, mean) * mean <= (k + 1) / k * clients + 1e-15).all()
    clients, _ = rare_kind(0.001)
    mean, k = clients.mean(0), len(clients)
    assert (weights(clients, mean) * mean <= (k + 1) / k * clients + 1e-15).all()
    assert not (weights(clients, best_generator(clients)) * mean <= (k + 1) / k * clients).all()


def test_theorem2_holds_with_unlimited_data_and_p_g_equal_to_p() -> None:
    assert dafkd_theorem2_limit().holds


def test_a_bound_without_its_factor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dafkd_bound, "bound", lambda loss, clients: bound(loss, clients) / (clients + 1))
    assert not dafkd_theorem2_limit().holds
