"""FedMD+Global, written once more from Algorithm 1 and Eqs. 1 to 4, and compared over three rounds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedalloy.base.rng import generator
from fedalloy.methods.fedmd_global import FedMDGlobal


def eq_1(z: Tensor, target: Tensor, loss: str, reduction: str) -> Tensor:
    """The distance from the consensus: an L1 norm, or one of footnote 1's."""
    total: Any = 0
    for own, wanted in zip(z, target, strict=True):
        if loss == "l1":
            norm = (own - wanted).abs().sum()
            total = total + (norm if reduction == "sum_class" else norm / len(own))
        elif loss == "l2":
            total = total + (own - wanted).square().sum() / len(own)
        else:
            total = total - (wanted.softmax(0) * own.log_softmax(0)).sum()
    found: Tensor = total / len(z)
    return found


def eq_3(z: Tensor, before: Tensor, rho: float) -> Tensor:
    """Cross-entropy between the answers of the model copied from the global update and of the one in training."""
    p = (before / rho).exp() / (before / rho).exp().sum(1, keepdim=True)
    q = (z / rho).exp() / (z / rho).exp().sum(1, keepdim=True)
    return -(p * q.log()).sum() / len(z)


def average(answers: list[Tensor], of: str, clip: float | None) -> Tensor:
    """Global knowledge: the plain mean over the clients that answered."""
    if of == "probabilities":
        return torch.stack([z.softmax(1) for z in answers]).mean(0).log()
    if of == "centred":
        answers = [z - z.mean(0) for z in answers]
    if clip is not None:
        answers = [(z - z.mean(1, keepdim=True)).clamp(-clip, clip) for z in answers]
    return torch.stack(answers).mean(0)


@contextmanager
def norms_as_they_are(net: nn.Module, kept: bool) -> Iterator[None]:
    """BatchNorm uses the statistics that it has, and keeps them, whatever mode the network is put into."""
    norms = [m.eval() for m in net.modules() if isinstance(m, nn.BatchNorm1d) and kept]
    for norm in norms:
        norm.__dict__["train"] = lambda mode=True: None
    yield
    for norm in norms:
        del norm.__dict__["train"]


def global_update(
    world: Any, tools: Any, o: dict[str, Any], t: int, k: int, net: nn.Module, knowledge: Tensor, epochs: int
) -> None:
    """A client's, or the server's, approach to the global knowledge."""
    _, x = world.drawn(t, o["samples"], o["policy"])
    draws = world.draws("digest", t, k, len(x), o["digest_batch"], epochs=epochs)

    def loss(z: Tensor, rows: Tensor) -> Tensor:
        return eq_1(z, knowledge[rows], o["loss"], o["l1_reduction"])

    with norms_as_they_are(net, o["freeze_norm"] and k >= 0):
        tools.steps(net, x, draws, loss, world.optimiser(net, t))


def local_update(world: Any, tools: Any, o: dict[str, Any], t: int, k: int, net: nn.Module) -> None:
    """Eq. 2, or Eq. 4 with learning without forgetting."""
    x, y = world.own(k)
    before = tools.logits(copy.deepcopy(net), x)
    draws = world.draws("batches", t, k, len(y), world.work.batch, epochs=world.work.epochs)

    def loss(z: Tensor, rows: Tensor) -> Tensor:
        eq_2 = nn.functional.cross_entropy(z, y[rows])
        return eq_2 + o["beta"] * eq_3(z, before[rows], o["rho"]) if o["lwof"] else eq_2

    tools.steps(net, x, draws, loss, world.optimiser(net, t))


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Algorithm 1 in plain torch: the models of every view."""
    o = {"digest_epochs": 5, "digest_batch": 64, "server_digest_epochs": None, "samples": None, "policy": "fresh"}
    o |= {"consensus_of": "logits", "clip_logits": None, "loss": "l1", "l1_reduction": "mean", "lwof": False}
    o |= {"beta": 1.0, "rho": 2.0, "init_global": "random", "freeze_norm": False}
    o |= {"pretrain_public": 20, "pretrain_private": 25, **given}
    nets, server, initial, distilled = world.nets(), world.server(), dict[int, Any](), dict[int, Any]()
    shared = (world.public.inputs, world.public.labels)
    for t in range(1, rounds + 1):
        _, x = world.drawn(t, o["samples"], o["policy"])
        answers = []
        for k in world.active(t):
            if k not in initial:
                tools.pretrain(world, nets[k], (t, k), shared, "public", o)
                tools.pretrain(world, nets[k], (t, k), world.own(k), "private", o)
                initial[k] = copy.deepcopy(nets[k])
            answers.append(tools.logits(nets[k], x))
        knowledge = average(answers, o["consensus_of"], o["clip_logits"])
        if t == 1 and o["init_global"] == "public":
            tools.pretrain(world, server, (t, -1), shared, "public", o)
        epochs = o["digest_epochs"] if o["server_digest_epochs"] is None else o["server_digest_epochs"]
        global_update(world, tools, o, t, -1, server, knowledge, epochs)
        for k in world.active(t):
            global_update(world, tools, o, t, k, nets[k], knowledge, o["digest_epochs"])
            distilled[k] = copy.deepcopy(nets[k])
            local_update(world, tools, o, t, k, nets[k])
    return {"model": nets, "initial": initial, "distilled": distilled, "server": server}


FEW = {"pretrain_public": 2, "pretrain_private": 3, "digest_epochs": 2, "digest_batch": 5}
LWOF = {**FEW, "lwof": True}
OPTIONS = [
    {},
    FEW,
    {**FEW, "l1_reduction": "sum_class"},
    {**FEW, "loss": "l2"},
    {**FEW, "loss": "ce"},
    {**FEW, "server_digest_epochs": 4},
    {**FEW, "server_digest_epochs": 0},
    {**FEW, "consensus_of": "centred"},
    {**FEW, "consensus_of": "probabilities"},
    {**FEW, "consensus_of": "centred", "clip_logits": 0.2},
    {**FEW, "clip_logits": 0.2},
    {**FEW, "init_global": "public"},
    {**FEW, "freeze_norm": True},
    {**FEW, "samples": 7},
    {**FEW, "samples": 7, "policy": "fixed"},
    LWOF,
    {**LWOF, "beta": 0.4, "rho": 3.5},
    {**LWOF, "freeze_norm": True, "rho": 0.5},
    {"pretrain_public": 0, "pretrain_private": 0, "lwof": True},
]


def farthest(world: Any, tools: Any, method: FedMDGlobal, options: dict[str, Any]) -> float:
    """The largest difference between fedalloy's models and ours."""
    ran, ours = world.run(method, 3), repeated(world, tools, options, 3)
    own = [
        tools.farthest(ran.memories[k][view], ours[view][k])
        for view in ("model", "initial", "distilled")
        for k in ours["initial"]
    ]
    return max(*own, tools.farthest(ran.states[-1]["model"], ours["server"]))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fedmd_global_is_the_papers(options, world, tools):
    assert farthest(world(), tools, FedMDGlobal(**options), options) < 1e-9


@pytest.mark.parametrize("options", [FEW, LWOF, {**FEW, "loss": "ce"}], ids=str)
def test_the_variant_takes_eq_1_literally_and_draws_samples(options, world, tools):
    given = {"samples": 9, **options}
    method = FedMDGlobal(variant="paper", **given)
    assert FedMDGlobal(variant="paper").samples == 5000
    assert farthest(world(), tools, method, {"l1_reduction": "sum_class", **given}) < 1e-9


def test_the_copy_sees_the_same_augmented_samples(world, tools):
    """With augmentation, both sides of Eq. 3 answer on the inputs of the batch, as they were changed."""
    here = world(augment=lambda x, stream: x + torch.randn(x.shape, generator=stream))
    nothing = {"pretrain_public": 0, "pretrain_private": 0, "digest_epochs": 0}
    ran = here.run(FedMDGlobal(lwof=True, **nothing), 1)
    for k, net in list(here.nets().items())[:2]:
        (x, y), before = here.own(k), copy.deepcopy(net)
        noise, optimiser = generator(here.setting.seed, "batches/augment", 1, k), here.optimiser(net, 1)
        for rows in here.draws("batches", 1, k, len(y), here.work.batch, epochs=here.work.epochs):
            changed = x[rows] + torch.randn(len(rows), 4, generator=noise)
            z = net.train()(changed)
            optimiser.zero_grad()
            (nn.functional.cross_entropy(z, y[rows]) + eq_3(z, tools.logits(before, changed), 2.0)).backward()
            optimiser.step()
        assert tools.farthest(ran.memories[k]["model"], net) < 1e-9
