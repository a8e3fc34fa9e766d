"""The gate's share of a round's time, in the same run: FedAvg with LeNet-5, ten clients with 500 images each.

What counts as the gate is all that stands between an answer's arrival and its use: making the contract of what the
server knows, and holding the reply against it. Both times are the processor's, of one thread, so that what else the
machine does disturbs neither.

    python chaos/gate_price.py --count 20 --save        so many rounds
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
from harness import run_from_command_line, show, single

from fedalloy import rng
from fedalloy.build import build
from fedalloy.config import experiment
from fedalloy.core import Message, State
from fedalloy.data import from_arrays
from fedalloy.engine.base import Answer, Round
from fedalloy.engine.serial import Serial
from fedalloy.methods import FedAvg
from fedalloy.setting import Setting
from fedalloy.training import one_thread

LIMIT = 0.03
CLIENTS, IMAGES = 10, 500


def main(count: int, seed: int, *, save: bool = False, images: int = IMAGES) -> dict[str, Any]:
    """The share of each of so many rounds; the first, which warms up, does not count."""
    begin = time.monotonic()
    shares = measured(_setting(seed, images), count)
    facts = {"median": statistics.median(shares), "largest": max(shares), "limit": LIMIT, "images": images}
    too_much = int(facts["median"] > LIMIT)
    report = single("gate-price", seed, too_much, count=count, begin=begin, save=save, **facts)
    show(report)
    return {"gate-price": report}


class Timed(Round):
    """A round that knows how long the gate took."""

    gate = 0.0

    def _fault(self, answer: Answer, message: Message) -> str | None:
        begin = time.thread_time()
        try:
            return super()._fault(answer, message)
        finally:
            self.gate += time.thread_time() - begin


def measured(setting: Setting, rounds: int) -> list[float]:
    """The gate's share of the time of each round."""
    method, engine = FedAvg(), Serial(setting)
    shares: list[float] = []
    with one_thread():
        state = State(0, method.init(engine.open(method, 0)))
        for number in range(1, rounds + 2):
            fed = Timed(engine, method, number)
            begin = time.thread_time()
            state = method.round(state, fed)
            shares.append(fed.gate / (time.thread_time() - begin))
            assert not fed.quarantined
    return shares[1:]


def _setting(seed: int, images: int) -> Setting:
    """Random pixels: the time of a step does not depend on what they show."""
    pixels = rng.numpy_generator(seed, "chaos").integers(256, size=(CLIENTS * images, 1, 28, 28), dtype=np.uint8)
    exp = experiment(
        {
            "model": "lenet5",
            "partition": {"name": "iid", "clients": CLIENTS, "test_fraction": 0.0},
            "training": {"epochs": 2, "batch": 64, "momentum": 0.9},
        }
    )
    return build(exp, from_arrays(pixels, np.arange(len(pixels)) % 10)).setting


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_from_command_line(main, 20)
