"""KnFu and its FedMD, written once more from the paper's equations, and compared over three rounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

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


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int, plain_mean: bool) -> tuple[Any, Any]:
    """Algorithm 1 in plain torch: the clients' networks, and what they were sent last."""
    o = {"persist": False, "tune_epochs": 1, "tune_steps": 0, "tune_batch": None, "tune_lr": None, "temperature": 1.0}
    o |= {"kd_weight": None, "ce_on": "public", "beta": 10.0, "direction": "own_to_other", "samples": None}
    o |= {"policy": "fresh", **given}
    weight = o["temperature"] ** 2 if o["kd_weight"] is None else o["kd_weight"]
    nets, kept, sent = world.nets(), dict[int, Any](), dict[int, Tensor]()
    for t in range(1, rounds + 1):
        at, x = world.drawn(t, o["samples"], o["policy"])
        labels, answers = world.public.labels[at], {}
        for n in world.active(t):
            own, y = world.own(n)

            def eq_3(z: Tensor, rows: Tensor, y: Tensor = y) -> Tensor:
                return torch.nn.functional.cross_entropy(z, y[rows])

            draws = world.draws("batches", t, n, len(y), world.work.batch, epochs=world.work.epochs)
            optimiser = world.optimiser(nets[n], t, kept=kept.get(n) if o["persist"] else None)
            kept[n] = tools.steps(nets[n], own, draws, eq_3, optimiser)
            answers[n] = tools.logits(nets[n], x).softmax(1)  # Eq. 4
        mean = sum(answers.values()) / len(answers)
        sent = dict.fromkeys(answers, mean) if plain_mean else mixtures(answers, o["beta"], o["direction"])
        for n in world.active(t):
            net, (own, y) = nets[n], world.own(n)
            batch = o["tune_batch"] or world.work.batch
            draws = world.draws("tune", t, n, len(x), batch, epochs=o["tune_epochs"], steps=o["tune_steps"])
            beside = iter(world.draws("tune/own", t, n, len(y), world.work.batch, steps=len(draws)))

            def loss(z: Tensor, rows: Tensor, n: int = n, net: Any = net, own: Tensor = own, y: Tensor = y) -> Tensor:
                total = eq_10(z, labels[rows], sent[n][rows], o["temperature"], weight, o["ce_on"] == "public")
                if o["ce_on"] == "local":
                    mine = next(beside)
                    total = total + torch.nn.functional.cross_entropy(net(own[mine]), y[mine])
                return total

            optimiser = world.optimiser(net, t, o["tune_lr"], kept[n] if o["persist"] else None)
            kept[n] = tools.steps(net, x, draws, loss, optimiser)
    return nets, sent


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
    nets, _ = repeated(here, tools, options, 3, plain_mean=False)
    assert max(tools.farthest(ran.memories[n]["model"], nets[n]) for n in nets) < 1e-9


@pytest.mark.parametrize("options", SHARED, ids=str)
def test_fedmd_as_knfu_has_it(options, world, tools):
    here = world()
    ran = here.run(FedMDKnFu(**options), 3)
    nets, _ = repeated(here, tools, options, 3, plain_mean=True)
    assert max(tools.farthest(ran.memories[n]["model"], nets[n]) for n in nets) < 1e-9
