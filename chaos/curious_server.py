"""A curious server: it subtracts from each private reply all the noise that it can compute, and examines what is left.

A deployment of two sites with two samples each trains one step per round with DP-SGD, with twenty times as much noise
as gradient. The server has the experiment's file, every message and reply, and run.json; it knows this library, the
time and the process ids. From each reply it subtracts every noise that can be derived from these: that of a rehearsal
with the same seed, at all addresses that this library has ever used, and what torch and NumPy draw from plausible
seeds. It keeps the guess that is closest to the true gradient, which it could not even recognise. Its cosines must be
those that it reaches against fresh noise, which nobody can compute. A control shows that the attack works: against
sites that draw the noise of a rehearsal, it must find every gradient.

    python chaos/curious_server.py --count 200 --save        so many replies
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from harness import HERE, run_from_command_line, show, single
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedalloy.base import rng, tree
from fedalloy.config.experiment import experiment, made_from
from fedalloy.deploy import app
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.deploy.site import site_setting
from fedalloy.engine.flower.client import ACT
from fedalloy.engine.flower.codec import BODY, header_in
from fedalloy.train.noise import Rehearsed
from fedalloy.train.privacy import run_address

sys.path.insert(0, str(HERE.parent / "tests" / "deploy"))
from sites_grid import grid_of  # a Grid in this process

SITES, ROWS = 2, 2
FOUND = 0.999  # the cosine of a recovered gradient
NEAR = 0.5  # the cosine of a partly recovered gradient; a random direction in 1,074 dimensions has 0.03
RARE = 2.6  # critical value of the Kolmogorov-Smirnov test: one honest campaign in 400,000 exceeds it
EXPERIMENT: dict[str, Any] = {
    "seed": 7,
    "data": {"name": "sites", "classes": 2, "channels": 1, "size": 8, "mean": [0.5], "std": [0.25]},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"work": "fixed_steps", "steps": 1, "batch": ROWS, "lr": 0.01},
    "privacy": {"noise_multiplier": 20.0, "max_grad_norm": 0.1},
}


@dataclass(frozen=True)
class Overheard:
    """What the server knows about one reply: headers of question and answer, and the weights before and after."""

    asked: dict[str, Any]
    told: dict[str, Any]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    when: float


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Attack `count` replies, as many with fresh noise, and a few of sites that draw the noise of a rehearsal."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        caught, fresh = attacked(Path(folder) / "secret", count, seed)
        with patch.object(app, "site_setting", rehearsing):
            found, _ = attacked(Path(folder) / "rehearsal", min(count, 10), seed)
    apart = distance(caught, fresh)
    most = RARE * math.sqrt(2 / len(caught))
    blind = sum(cosine < FOUND for cosine in found)
    failures = sum(cosine > NEAR for cosine in caught) + (apart > most) + blind
    facts = {"largest": max(caught), "fresh": max(fresh), "distance": apart, "limit": most, "control": min(found)}
    report = single("curious-server", seed, failures, count=len(caught), begin=begin, save=save, **facts)
    show(report)
    return {"curious-server": report}


def attacked(folder: Path, count: int, seed: int) -> tuple[list[float], list[float]]:
    """Return the best cosine for each reply of a deployment, and for the same replies with fresh noise."""
    rounds = math.ceil(count / SITES)
    made = init({**EXPERIMENT, "rounds": rounds, "evaluate_every": rounds}, folder, SITES)
    stream = rng.numpy_generator(seed, "chaos", "curious server")
    for k in range(SITES):
        pixels = stream.integers(256, size=(ROWS + 1, 8, 8), dtype=np.uint8)
        labels = np.arange(ROWS + 1) % 2
        kept = {"x_test": pixels[ROWS:], "y_test": labels[ROWS:]}
        np.savez(made.site(k) / "data.npz", x_train=pixels[:ROWS], y_train=labels[:ROWS], **kept)
        (made.site(k) / "site.toml").write_text(f'client = {k}\ndata = "data.npz"\n')
    grid = grid_of(made)
    app.conducted(grid, made, lambda _: None)
    caught, fresh = [], []
    network = site_setting(made.site(0), SITES)[1].build(0)
    for one in overheard(grid, [name for name, _ in network.named_parameters()]):
        truth, noises = gradient(made, one), guesses(one)
        caught.append(best(released(one), truth, noises))
        fresh.append(best(truth + _scale() * _unknown(len(truth)), truth, noises))
    return caught[:count], fresh[:count]


def rehearsing(folder: Path, sites: int, prepared: str | None = None) -> tuple[int, Any]:
    """Return a site's setting with the noise of a simulation."""
    client, setting = site_setting(folder, sites, prepared)
    return client, dataclasses.replace(setting, secret_noise=False)


def best(seen: Tensor, truth: Tensor, noises: Sequence[Tensor]) -> float:
    """Return the largest cosine with the true gradient after subtracting one of these noises, or none."""
    left = seen - _scale() * torch.stack([torch.zeros_like(seen), *noises])
    return float(torch.nn.functional.cosine_similarity(left, truth[None]).max())


def released(one: Overheard) -> Tensor:
    """Return the noisy sum of gradients in a reply."""
    moved = flat({name: one.before[name].double() - one.after[name].double() for name in one.before})
    return moved / EXPERIMENT["training"]["lr"] * ROWS


def gradient(made: Deployment, one: Overheard) -> Tensor:
    """Return the sum of the site's clipped gradients, which the noise hides."""
    client, setting = site_setting(made.site(one.asked["client"]), SITES)
    net = setting.fitting(one.before)
    total = torch.zeros(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    for row in range(ROWS):
        x, y = setting.sites[client].train.take([row])
        parts = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
        whole = torch.cat([part.flatten() for part in parts]).double()
        total += whole * min(1.0, EXPERIMENT["privacy"]["max_grad_norm"] / float(whole.norm()))
    return total


def guesses(one: Overheard) -> list[Tensor]:
    """Yield every noise that can be derived from what the server knows."""
    told = json.loads(one.asked["experiment"])
    seed, action, place = told["seed"], one.asked["action"], (one.asked["round"], one.asked["client"])
    steps = sum(n for by in json.loads(one.told["ledger"]).values() for n in by.values())
    shapes = [one.before[name].shape for name in one.before]
    method = made_from(told)
    address = run_address(method, experiment(told).training, experiment(told).privacy)
    found = []
    for taken in range(steps + 1):
        old = rng.generator(seed, f"privacy/{taken}/noise", *place)
        found.append(_cat(torch.randn(shape, generator=old) for shape in shapes))
        now = Rehearsed(lambda purpose, taken=taken: rng.generator(seed, f"{address}/{taken}/{purpose}", *place))
        found.append(_cat(now.normal(shape) for shape in shapes))
    clock = [int(one.when) + late for late in (-2, -1, 0, 1)]
    seeds = [*range(5), seed, *place, os.getpid(), os.getppid(), *clock]
    seeds += [rng.derive(seed, word, *place) for word in (action, "batches", "dropout", "noise")]
    for number in seeds:
        for dtype in (torch.float32, torch.float64):
            stream = torch.Generator().manual_seed(number)
            found.append(_cat(torch.randn(shape, generator=stream, dtype=dtype) for shape in shapes))
        found.append(torch.from_numpy(np.random.default_rng(number).standard_normal(len(found[0]))))
        found.append(torch.from_numpy(np.random.RandomState(number % 2**32).standard_normal(len(found[0]))))
    return found


def overheard(grid: Any, names: Sequence[str]) -> Iterator[Overheard]:
    """Yield every training message with its reply, with the weights in the order of these names."""
    answers = {reply.metadata.reply_to_message_id: reply for reply in grid.received}
    for message in grid.sent:
        if message.metadata.message_type == ACT:
            reply = answers[message.metadata.message_id]
            models = [tree.decode(m.content[BODY][BODY].data)["model"] for m in (message, reply)]
            before, after = ({name: model[name] for name in names} for model in models)
            headers = header_in(message.content), header_in(reply.content)
            yield Overheard(*headers, before, after, reply.metadata.created_at)


def distance(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the Kolmogorov-Smirnov distance between two samples."""
    ends = np.sort([*some, *others])
    shares = [np.searchsorted(np.sort(sample), ends, side="right") / len(sample) for sample in (some, others)]
    return float(np.abs(shares[0] - shares[1]).max())


def flat(weights: dict[str, Tensor]) -> Tensor:
    """Return all weights as one vector."""
    return _cat(weights.values())


def _cat(parts: Any) -> Tensor:
    return torch.cat([part.flatten() for part in parts]).double()


def _scale() -> float:
    return float(EXPERIMENT["privacy"]["noise_multiplier"] * EXPERIMENT["privacy"]["max_grad_norm"])


def _unknown(count: int) -> Tensor:
    """Draw normal numbers that nobody can repeat, independently of the code under test."""
    return torch.from_numpy(np.random.default_rng(secrets.randbits(256)).standard_normal(count))


if __name__ == "__main__":
    run_from_command_line(main, 200)
