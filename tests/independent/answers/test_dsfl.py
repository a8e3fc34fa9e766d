"""DS-FL, written once more from its description (Itahara et al.): train, answer, sharpen the mean, distil."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedalloy.methods.dsfl import DSFL


def ensemble(answers: list[Tensor], rule: str, temperature: float) -> Tensor:
    """Entropy reduction aggregation: softmax(mean / T) of mean probabilities; or simple aggregation, the mean."""
    mean = torch.stack(answers).mean(0)
    sharp = (mean / temperature).exp()
    return sharp / sharp.sum(1, keepdim=True) if rule == "era" else mean


def soft_label_loss(z: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy with the global soft labels."""
    return -(target * (z - torch.logsumexp(z, 1, keepdim=True))).sum() / len(z)


def distil(
    world: Any, tools: Any, o: dict[str, Any], t: int, k: int, net: nn.Module, soft: Tensor, kept: Any = None
) -> Any:
    """Train a client's network, or the server's, on the open samples with the global soft labels."""
    at, x = world.drawn(t, o["samples"], o["policy"])
    labels, batch = world.public.labels[at], o["tune_batch"] or world.work.batch
    draws = world.draws("tune", t, k, len(x), batch, epochs=o["tune_epochs"], steps=o["tune_steps"])
    own = tools.beside(world, net, t, k, len(draws))

    def loss(z: Tensor, rows: Tensor) -> Tensor:
        if k == -1:  # the server's model learns from soft labels alone
            return soft_label_loss(z, soft[rows])
        total = o["kd_weight"] * soft_label_loss(z, soft[rows])
        if o["ce_on"] == "public":
            total = total + nn.functional.cross_entropy(z, labels[rows])
        return total + next(own) if o["ce_on"] == "local" else total

    return tools.steps(net, x, draws, loss, world.optimiser(net, t, o["tune_lr"], kept))


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int) -> tuple[dict[int, nn.Module], nn.Module]:
    o = {"persist": False, "tune_epochs": 1, "tune_steps": 0, "tune_batch": None, "tune_lr": None, "ensemble": "era"}
    o |= {"temperature": 0.1, "kd_weight": 1.0, "ce_on": "none", "samples": None, "policy": "fresh", **given}
    nets, server, kept = world.nets(), world.server(), dict[int, Any]()
    for t in range(1, rounds + 1):
        _, x = world.drawn(t, o["samples"], o["policy"])
        answers = []
        for k in world.active(t):
            kept[k] = tools.local_work(world, nets[k], t, k, kept.get(k) if o["persist"] else None)
            answers.append(tools.logits(nets[k], x).softmax(1))
        soft = ensemble(answers, o["ensemble"], o["temperature"])
        distil(world, tools, o, t, -1, server, soft)
        for k in world.active(t):
            kept[k] = distil(world, tools, o, t, k, nets[k], soft, kept[k] if o["persist"] else None)
    return nets, server


PAPER = {"tune_epochs": 5, "tune_batch": 50, "tune_lr": 0.1, "samples": 8}
OPTIONS = [
    {},
    {"temperature": 0.4},
    {"ensemble": "mean"},
    {"kd_weight": 0.3, "ce_on": "public"},
    {"ce_on": "local"},
    {"persist": True, "tune_lr": 0.02},
    {"tune_batch": 5, "tune_lr": 0.02, "tune_epochs": 2},
    {"tune_steps": 5},
    {"samples": 7, "policy": "fixed"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ds_fl_is_the_papers(options, world, tools):
    here = world()
    ran, (nets, server) = here.run(DSFL(**options), 3), repeated(here, tools, options, 3)
    assert max(tools.farthest(ran.memories[k]["model"], nets[k]) for k in nets) < 1e-9
    assert tools.farthest(ran.states[-1]["model"], server) < 1e-9


@pytest.mark.parametrize("options", [{}, {"persist": True}, {"ensemble": "mean"}], ids=str)
def test_the_variant_has_the_papers_schedule(options, world, tools):
    here = world()
    assert DSFL(variant="paper").samples == 1000
    ran = here.run(DSFL(variant="paper", samples=8, **options), 3)
    nets, server = repeated(here, tools, {**PAPER, **options}, 3)
    assert max(tools.farthest(ran.memories[k]["model"], nets[k]) for k in nets) < 1e-9
    assert tools.farthest(ran.states[-1]["model"], server) < 1e-9
