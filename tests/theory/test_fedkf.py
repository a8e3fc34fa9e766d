"""FedKF's lemma and bound."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fedalloy.theory import fedkf, fedkf_bound, fedkf_lemma1
from fedalloy.theory.fedkf import CLIENTS, accuracy, all_shares, chance_below, lowest_of, mixture


def test_lemma1_holds_and_is_tight() -> None:
    finding = fedkf_lemma1()
    assert finding.holds
    assert finding.numbers["lowest accuracy on a mixture"] == finding.numbers["accuracy on the worst client"] == 0.6
    assert finding.numbers["mixtures tried"] == 91  # 14 choose 2


def test_every_mixture_is_a_distribution_and_obeys_eq_11() -> None:
    for shares in all_shares(3):
        mixed = mixture(shares)
        assert sum(mixed) == sum(shares) == 1
        assert accuracy(mixed) == sum(s * accuracy(client) for s, client in zip(shares, CLIENTS, strict=True))


def test_lemma1_fails_for_what_is_no_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    def extrapolated(clients: int) -> list[list[Fraction]]:
        return [[Fraction(3, 2), Fraction(0), Fraction(-1, 2)]]

    monkeypatch.setattr(fedkf, "all_shares", extrapolated)
    assert not fedkf_lemma1().holds


def test_chance_below_agrees_with_draws() -> None:
    drawn = np.random.default_rng(0).binomial(100, 0.6, size=200_000)
    assert chance_below(Fraction(3, 5)) == pytest.approx((drawn < 60).mean(), abs=0.005)


def test_bound_holds() -> None:
    finding = fedkf_bound()
    assert finding.holds
    assert (
        finding.numbers["FM over two domains, the worst and the best client"] > finding.numbers["FM over the 3 clients"]
    )


def test_bound_fails_if_shares_do_not_sum_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedkf, "lowest_of", lambda accuracies, domains: 0.9 * lowest_of(accuracies, domains))
    assert not fedkf_bound().holds
