"""The distance of honest replies from what was sent: the largest ratio for each method of each committed experiment.

For each network that a client returns, this is ||returned - sent|| / ||sent|| over all float parameters and buffers,
the ratio that `aggregation.max_distance` limits. Every experiment in src/fedalloy/experiments runs for three rounds
with three clients, each with as many rows as a client of the full experiment, and with its networks, local work and
options, so that clients take equally many steps. Methods whose clients return no network are left out. If a data set is
not available, `fashion-mini` replaces it.

    python bench/reply_distance.py          about ten minutes; writes a table
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedalloy.aggregation.rule import Aggregation
from fedalloy.base import rng
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import make_method
from fedalloy.config.overrides import read_toml
from fedalloy.config.sections import Experiment, PartitionPart
from fedalloy.data import load_data
from fedalloy.data.samples import Dataset
from fedalloy.engine.malloc import tune_malloc
from fedalloy.engine.serial import Serial
from fedalloy.errors import FedalloyError
from fedalloy.federation.core import Message, Method, run
from fedalloy.federation.engine import Answer
from fedalloy.federation.gate import relative_distance
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting
from fedalloy.train.fit import one_thread

LIMIT = Aggregation().max_distance
EXPERIMENTS = Path(__file__).parent.parent / "src" / "fedalloy" / "experiments"
ROUNDS, CLIENTS = 3, 3
STAND_IN = "fashion-mini"


class Measuring(Serial):
    """The serial engine, recording the distance of each returned network from the one that was sent."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.ratios: dict[int, float] = {}  # round -> the largest

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        """Let clients act, and measure what they return."""
        sent = {message.client: message.body for message in messages}
        for answer in super().carry(method, round, messages):
            for key, value in answer.reply.body.items():
                old = sent[answer.client].get(key)
                if isinstance(value, dict) and isinstance(old, dict):
                    self.ratios[round] = max(self.ratios.get(round, 0.0), relative_distance(value, old))
            yield answer


def small(exp: Experiment) -> tuple[Experiment, Dataset]:
    """Return the experiment with a few clients, each with as many rows as before, and all of them active."""
    part, options = exp.partition, dict(exp.data.options)
    try:
        data = load_data(exp.data.name, **options)
    except FedalloyError:
        data = load_data(STAND_IN)
    share = CLIENTS / part.clients
    if share < 1:
        order = rng.numpy_generator(0, "bench").permutation(len(data.y))
        aside = exp.public.samples if exp.public is not None and exp.public.data == "own" else 0
        rows = np.sort(order[: min(len(order), round(share * len(data.y)) + aside)])
        data = replace(data, x=data.x[rows], y=data.y[rows])
    fewer = PartitionPart(name=part.name, clients=min(CLIENTS, part.clients), options=part.options)
    return replace(exp, partition=fewer, participation=Participation(), rounds=ROUNDS, engine="serial"), data


def main() -> None:
    """Print one line for each method of each experiment, and the largest ratio."""
    tune_malloc()
    largest = 0.0
    sys.stdout.write("| experiment | method | round 1 | round 2 | round 3 |\n|---|---|---|---|---|\n")
    for file in sorted(EXPERIMENTS.glob("*.toml")):
        whole = experiment(read_toml(file))
        for label, choice in (whole.methods or {whole.method.name: whole.method}).items():
            method = make_method(whole, choice)
            if "model" not in method.card.up:
                continue
            exp, data = small(whole)
            with one_thread():
                engine = Measuring(build(exp, data).setting)
                run(method, engine, ROUNDS)
            cells = " | ".join(f"{engine.ratios[t]:.3f}" for t in sorted(engine.ratios))
            sys.stdout.write(f"| {file.stem} | {label} | {cells} |\n")
            sys.stdout.flush()
            largest = max([largest, *engine.ratios.values()])
    sys.stdout.write(f"\nThe largest is {largest:.3f}; the default, {LIMIT:g}, is {LIMIT / largest:.0f} ")
    sys.stdout.write("times as large.\n")


if __name__ == "__main__":
    main()
