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


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int) -> tuple[dict[int, nn.Module], nn.Module]:
    o = {"persist": False, "tune_epochs": 1, "tune_steps": 0, "tune_batch": None, "tune_lr": None, "ensemble": "era"}
    o |= {"temperature": 0.1, "kd_weight": 1.0, "ce_on": "none", "samples": None, "policy": "fresh", **given}
    nets, server, kept = world.nets(), world.server(), dict[int, Any]()
    batch = o["tune_batch"] or world.work.batch
    for t in range(1, rounds + 1):
        at, x = world.drawn(t, o["samples"], o["policy"])
        labels, answers = world.public.labels[at], []
        for k in world.active(t):
            own, y = world.own(k)
            draws = world.draws("batches", t, k, len(y), world.work.batch, epochs=world.work.epochs)
            optimiser = world.optimiser(nets[k], t, kept=kept.get(k) if o["persist"] else None)

            def local(z: Tensor, rows: Tensor, y: Tensor = y) -> Tensor:
                return nn.functional.cross_entropy(z, y[rows])

            kept[k] = tools.steps(nets[k], own, draws, local, optimiser)
            answers.append(tools.logits(nets[k], x).softmax(1))
        soft = ensemble(answers, o["ensemble"], o["temperature"])

        def distil(z: Tensor, rows: Tensor, soft: Tensor = soft) -> Tensor:
            return soft_label_loss(z, soft[rows])

        draws = world.draws("tune", t, -1, len(x), batch, epochs=o["tune_epochs"], steps=o["tune_steps"])
        tools.steps(server, x, draws, distil, world.optimiser(server, t, o["tune_lr"]))
        for k in world.active(t):
            net, (own, y) = nets[k], world.own(k)
            draws = world.draws("tune", t, k, len(x), batch, epochs=o["tune_epochs"], steps=o["tune_steps"])
            beside = iter(world.draws("tune/own", t, k, len(y), world.work.batch, steps=len(draws)))

            def tune(
                z: Tensor, rows: Tensor, net: nn.Module = net, own: Tensor = own, y: Tensor = y, soft: Tensor = soft
            ) -> Tensor:
                total = o["kd_weight"] * soft_label_loss(z, soft[rows])
                if o["ce_on"] == "public":
                    total = total + nn.functional.cross_entropy(z, labels[rows])
                if o["ce_on"] == "local":
                    mine = next(beside)
                    total = total + nn.functional.cross_entropy(net(own[mine]), y[mine])
                return total

            optimiser = world.optimiser(net, t, o["tune_lr"], kept[k] if o["persist"] else None)
            kept[k] = tools.steps(net, x, draws, tune, optimiser)
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
