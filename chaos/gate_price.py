"""The gate's share of a round's time, in the same run, for methods that send models, answers, or models and scores.

FedAvg, FedMD and DaFKD, with LeNet-5 and ten clients with 500 images each; FedMD's public set has 1,000 images, and
DaFKD's options are the defaults. The gate is everything between an answer's arrival and its use: creating the contract
from what the server knows, and checking the reply against it. Both times are CPU times of one thread, so that other
load on the machine does not matter.

    python chaos/gate_price.py --count 20 --save        so many rounds of each
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
from harness import run_from_command_line, show, single

from fedalloy.base import rng
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.data import from_arrays
from fedalloy.engine.base import Round
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Message, Method, State
from fedalloy.federation.engine import Answer
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedAvg, FedMD
from fedalloy.methods.dafkd_scores import DaFKDScores
from fedalloy.train.fit import one_thread

LIMIT = 0.03
CLIENTS, IMAGES, PUBLIC = 10, 500, 1000
METHODS: tuple[Method, ...] = (
    FedAvg(),
    FedMD(pretrain_public=1, pretrain_private=1),  # happens before the first round, which does not count
    DaFKDScores(),  # the variant that sends more back
)


def main(count: int, seed: int, *, save: bool = False, images: int = IMAGES) -> dict[str, Any]:
    """Measure the share in `count` rounds of each method; the first one warms up and does not count."""
    begin = time.monotonic()
    setting = _setting(seed, images)
    shares = {method.label: measured(method, setting, count) for method in METHODS}
    found = {name: {"median": statistics.median(some), "largest": max(some)} for name, some in shares.items()}
    medians = [one["median"] for one in found.values()]
    too_much = sum(median > LIMIT for median in medians)
    facts = {"median": max(medians), "methods": found, "limit": LIMIT, "images": images}
    report = single("gate-price", seed, too_much, count=count * len(found), begin=begin, save=save, **facts)
    show(report)
    return {"gate-price": report}


class Timed(Round):
    """A round that measures how long the gate took."""

    gate = 0.0

    def _fault(self, answer: Answer, message: Message) -> str | None:
        begin = time.thread_time()
        try:
            return super()._fault(answer, message)
        finally:
            self.gate += time.thread_time() - begin


def measured(method: Method, setting: Setting, rounds: int) -> list[float]:
    """Return the gate's share of the time of each round."""
    engine = Serial(setting)
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
    """Return random pixels: the time of a step does not depend on their values."""
    public = PUBLIC * images // IMAGES
    size = (CLIENTS * images + public, 1, 28, 28)
    pixels = rng.numpy_generator(seed, "chaos").integers(256, size=size, dtype=np.uint8)
    exp = experiment(
        {
            "model": "lenet5",
            "partition": {"name": "iid", "clients": CLIENTS, "test_fraction": 0.0},
            "training": {"epochs": 2, "batch": 64, "momentum": 0.9},
            "public": {"data": "own", "samples": public, "labelled": True},
        }
    )
    return build(exp, from_arrays(pixels, np.arange(len(pixels)) % 10)).setting


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_from_command_line(main, 20)
