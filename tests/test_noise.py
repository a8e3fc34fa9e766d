"""Noise at sites is normal, fresh and nobody's to repeat; that of a rehearsal is the same every time."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("cryptography")

from fedalloy.base import rng
from fedalloy.train import noise
from fedalloy.train.noise import Rehearsed, Secret

MANY = 400_000
RARE = 2.6  # of Kolmogorov and Smirnov's test: exceeded once in 400,000 times


def furthest(values: torch.Tensor) -> float:
    """How far the distribution of numbers is from the uniform one, in units in which `RARE` is rare."""
    ordered, places = values.flatten().sort().values, torch.arange(values.numel()) / values.numel()
    return float((ordered - places).abs().max()) * values.numel() ** 0.5


def test_normal_numbers_are_normal() -> None:
    drawn = Secret().normal((2, MANY // 2)).flatten()
    assert drawn.dtype == torch.float64
    assert abs(drawn.mean()) < 5 / MANY**0.5
    assert abs(drawn.var() - 1) < 5 * (2 / MANY) ** 0.5
    assert abs((drawn**4).mean() - 3) < 5 * (96 / MANY) ** 0.5
    assert furthest(torch.special.ndtr(drawn)) < RARE
    beyond = 2 * (1 - torch.special.ndtr(torch.tensor(3.5, dtype=torch.float64))) * MANY  # about 186
    assert abs(int((drawn.abs() > 3.5).sum()) - beyond) < 5 * beyond**0.5
    halves = drawn.view(2, -1)
    assert abs((halves[0] * halves[1]).mean()) < 5 / (MANY / 2) ** 0.5
    assert abs((drawn[1:] * drawn[:-1]).mean()) < 5 / MANY**0.5


def test_uniform_numbers_are_uniform_to_the_last_bit() -> None:
    drawn = Secret().uniform(MANY)
    assert furthest(drawn) < RARE
    assert drawn.min() >= 0
    assert drawn.max() < 1
    last = (drawn * 2.0**53) % 2
    assert set(last.tolist()) == {0.0, 1.0}
    assert abs(last.mean() - 0.5) < 5 / (2 * MANY**0.5)


def test_no_number_comes_twice() -> None:
    source = Secret()
    drawn = torch.cat([source.normal((1000,)) for _ in range(50)])
    assert len(set(drawn.tolist())) == len(drawn)


def test_shapes_of_no_and_of_no_numbers() -> None:
    assert Secret().normal(()).shape == ()
    assert Secret().normal((0, 3)).shape == (0, 3)
    assert Secret().uniform(0).shape == (0,)


def test_every_draw_has_a_key_of_the_systems_and_depends_on_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[int] = []

    def known(count: int) -> bytes:
        keys.append(count)
        return bytes(count)

    monkeypatch.setattr(noise.os, "urandom", known)
    first, second = Secret().normal((50,)), Secret().normal((50,))
    assert keys == [32, 32]
    assert torch.equal(first, second)  # all there is to know is the key
    monkeypatch.undo()
    torch.manual_seed(0)
    third = Secret().normal((50,))
    torch.manual_seed(0)
    assert not torch.equal(third, Secret().normal((50,)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_two_copies_of_a_process_draw_different_noise() -> None:
    source = Secret()
    source.normal((3,))
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, source.normal((3,)).numpy().tobytes())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 24) != source.normal((3,)).numpy().tobytes()


def test_a_rehearsal_draws_the_same_at_the_same_address() -> None:
    def at(address: str) -> Rehearsed:
        return Rehearsed(lambda purpose: rng.generator(0, f"{address}/{purpose}"))

    assert torch.equal(at("a").normal((4,)), at("a").normal((4,)))
    assert torch.equal(at("a").uniform(4), at("a").uniform(4))
    assert not torch.equal(at("a").normal((4,)), at("b").normal((4,)))
