"""KnFu and its FedMD, written once more from the paper's equations, and compared over three rounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedalloy.methods.fedmd_knfu import FedMDKnFu
from fedalloy.methods.knfu import KnFu


def epd(answers: Tensor) -> list[float]:
    """Eq. 5."""
    return [sum(row[j] for row in answers.tolist()) / len(answers) for j in range(answers.shape[1])]


def divergence(a: list[float], b: list[float]) -> float:
    """KL(a || b), Eq. 6."""
    return sum(p * (math.log(max(p, 1e-12)) - math.log(max(q, 1e-12))) for p, q in zip(a, b, strict=True))


def mixtures(answers: dict[int, Tensor], beta: float, direction: str) -> dict[int, Tensor]:
    """Eqs. 5 to 9: what each client is sent."""
    p = {n: epd(f) for n, f in answers.items()}
    sent = {}
    for n in answers:
        pairs = {m: (n, m) if direction == "own_to_other" else (m, n) for m in answers if m != n}
        w = {m: 1 / max(divergence(p[a], p[b]) ** 2, 1e-12) for m, (a, b) in pairs.items()}
        w[n] = beta * max(w.values()) if w else 1.0
        sent[n] = sum((w[m] / sum(w.values())) * answers[m] for m in w)
    return sent


def eq_10(z: Tensor, y: Tensor, fused: Tensor, temperature: float, weight: float, labels: bool) -> Tensor:
    """CE + weight KL(fused || own), both sides softened; classes are summed, samples averaged."""
    target = fused ** (1 / temperature)
    target = target / target.sum(1, keepdim=True)
    log_q = z / temperature - torch.logsumexp(z / temperature, 1, keepdim=True)
    kl = (target * (target.log() - log_q)).sum(1).mean()
    ce = (torch.logsumexp(z, 1) - z[torch.arange(len(z)), y]).mean()
    return (ce if labels else 0) + weight * kl


def tune(world: Any, tools: Any, o: dict[str, Any], t: int, n: int, net: nn.Module, fused: Tensor, kept: Any) -> Any:
    """Step 4, fine-tuning on the public samples."""
    at, x = world.drawn(t, o["samples"], o["policy"])
    labels, weight = world.public.labels[at], o["temperature"] ** 2 if o["kd_weight"] is None else o["kd_weight"]
    batch = o["tune_batch"] or world.work.batch
    draws = world.draws("tune", t, n, len(x), batch, epochs=o["tune_epochs"], steps=o["tune_steps"])
    own = tools.beside(world, net, t, n, len(draws))

    def loss(z: Tensor, rows: Tensor) -> Tensor:
        total = eq_10(z, labels[rows], fused[rows], o["temperature"], weight, o["ce_on"] == "public")
        return total + next(own) if o["ce_on"] == "local" else total

    return tools.steps(net, x, draws, loss, world.optimiser(net, t, o["tune_lr"], kept))


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int, plain_mean: bool) -> dict[int, nn.Module]:
    """Algorithm 1 in plain torch."""
    o = {"persist": False, "tune_epochs": 1, "tune_steps": 0, "tune_batch": None, "tune_lr": None, "temperature": 1.0}
    o |= {"kd_weight": None, "ce_on": "public", "beta": 10.0, "direction": "own_to_other", "samples": None}
    o |= {"policy": "fresh", **given}
    nets, kept = world.nets(), dict[int, Any]()
    for t in range(1, rounds + 1):
        _, x = world.drawn(t, o["samples"], o["policy"])
        answers = {}
        for n in world.active(t):
            kept[n] = tools.local_work(world, nets[n], t, n, kept.get(n) if o["persist"] else None)  # Eq. 3
            answers[n] = tools.logits(nets[n], x).softmax(1)  # Eq. 4
        mean = sum(answers.values()) / len(answers)
        sent = dict.fromkeys(answers, mean) if plain_mean else mixtures(answers, o["beta"], o["direction"])
        for n in world.active(t):
            kept[n] = tune(world, tools, o, t, n, nets[n], sent[n], kept[n] if o["persist"] else None)
    return nets


SHARED = [
    {},
    {"temperature": 2.5},
    {"kd_weight": 0.25},
    {"temperature": 3.0, "kd_weight": 0.5, "ce_on": "none"},
    {"ce_on": "local"},
    {"persist": True},
    {"persist": True, "tune_lr": 0.02, "tune_batch": 5, "tune_epochs": 2},
    {"tune_lr": 0.02, "tune_batch": 7},
    {"tune_steps": 5},
    {"samples": 8, "tune_epochs": 3},
    {"samples": 8, "policy": "fixed"},
    {"samples": 8, "policy": "stratified"},
]


@pytest.mark.parametrize("options", [*SHARED, {"beta": 0.0}, {"beta": 0.7, "direction": "other_to_own"}], ids=str)
def test_knfu_is_the_papers(options, world, tools):
    here = world()
    ran = here.run(KnFu(**options), 3)
    nets = repeated(here, tools, options, 3, plain_mean=False)
    assert max(tools.farthest(ran.memories[n]["model"], nets[n]) for n in nets) < 1e-9


@pytest.mark.parametrize("options", SHARED, ids=str)
def test_fedmd_as_knfu_has_it(options, world, tools):
    here = world()
    ran = here.run(FedMDKnFu(**options), 3)
    nets = repeated(here, tools, options, 3, plain_mean=True)
    assert max(tools.farthest(ran.memories[n]["model"], nets[n]) for n in nets) < 1e-9
