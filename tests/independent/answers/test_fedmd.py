"""FedMD, written once more from Li and Wang's Algorithm 1 and the description of their code, and compared."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from fedalloy.methods.fedmd import FedMD


def mean_logits(answers: dict[int, Tensor], of: str = "logits", clip: float | None = None) -> Tensor:
    """Aggregate: the consensus of what clients k sent."""
    total: Any = 0
    for z in answers.values():
        if of == "centred":
            z = z - z.mean(0, keepdim=True)
        if clip is not None:  # bounds what is combined
            z = (z - z.mean(1, keepdim=True)).clamp(-clip, clip)
        total = total + (z.softmax(1) if of == "probabilities" else z) / len(answers)
    found: Tensor = total.log() if of == "probabilities" else total
    return found


def penalty(net: nn.Module, l2: float) -> Tensor | float:
    """The code's L2 regulariser of the last layer's kernel, which Keras adds to every loss."""
    last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    return l2 * sum(w * w for w in last.weight.flatten()) if l2 else 0.0


def transferred(world: Any, tools: Any, o: dict[str, Any], t: int, k: int, net: nn.Module) -> Any:
    """Transfer learning, on the public samples and then on the client's own; returns the last optimiser's state."""
    last = None
    shared = (world.public.inputs, world.public.labels)
    for stage, samples in (("public", shared), ("private", world.own(k))):
        last = tools.pretrain(world, net, (t, k), samples, stage, o, lambda net: penalty(net, o["l2"]))
    return last


def digest(world: Any, tools: Any, o: dict[str, Any], t: int, k: int, net: nn.Module, wanted: Tensor, kept: Any) -> Any:
    """Approach the consensus: the mean absolute error over the batch and all outputs."""
    _, x = world.drawn(t, o["samples"], o["policy"])
    draws = world.draws("digest", t, k, len(x), o["digest_batch"], epochs=o["digest_epochs"])

    def loss(z: Tensor, rows: Tensor) -> Tensor:
        return (z - wanted[rows]).abs().sum() / z.numel() + penalty(net, o["l2"])

    return tools.steps(net, x, draws, loss, world.optimiser(net, t, kept=kept))


def revisit(world: Any, tools: Any, o: dict[str, Any], t: int, k: int, net: nn.Module, kept: Any) -> Any:
    """Train on the client's own data."""
    x, y = world.own(k)
    draws = world.draws("batches", t, k, len(y), world.work.batch, epochs=world.work.epochs)

    def loss(z: Tensor, rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z, y[rows]) + penalty(net, o["l2"])

    return tools.steps(net, x, draws, loss, world.optimiser(net, t, kept=kept))


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int) -> dict[int, nn.Module]:
    """Algorithm 1 in plain torch, with an optimiser for the digest and one for the revisit."""
    o = {"pretrain_public": 20, "pretrain_private": 25, "digest_epochs": 1, "digest_batch": 256, "samples": None}
    o |= {"policy": "stratified", "persist": True, "consensus_of": "logits", "clip_logits": None, "l2": 0.0}
    o |= {"from_pretraining": False, **given}
    nets, digested, revisited = world.nets(), dict[int, Any](), dict[int, Any]()
    begun: set[int] = set()
    for t in range(1, rounds + 1):
        _, x = world.drawn(t, o["samples"], o["policy"])
        answers = {}
        for k in world.active(t):
            if k not in begun:
                begun.add(k)
                last = transferred(world, tools, o, t, k, nets[k])
                if o["from_pretraining"] and o["persist"]:
                    revisited[k] = last
            answers[k] = tools.logits(nets[k], x)  # communicate
        wanted = mean_logits(answers, o["consensus_of"], o["clip_logits"])  # aggregate
        for k in world.active(t):
            digested[k] = digest(world, tools, o, t, k, nets[k], wanted, digested.get(k))
            revisited[k] = revisit(world, tools, o, t, k, nets[k], revisited.get(k))
            if not o["persist"]:
                digested.pop(k)
                revisited.pop(k)
    return nets


FEW = {"pretrain_public": 3, "pretrain_private": 4}
REFERENCE = {"samples": 5, "converged_by": "training", "from_pretraining": True, "l2": 0.001}
OPTIONS = [
    {},
    {**FEW, "digest_epochs": 3, "digest_batch": 5},
    {**FEW, "persist": False},
    {**FEW, "samples": 5, "digest_epochs": 0},
    {**FEW, "samples": 5, "policy": "fresh"},
    {**FEW, "consensus_of": "centred"},
    {**FEW, "consensus_of": "probabilities"},
    {**FEW, "clip_logits": 0.3},
    {**FEW, "clip_logits": 0.3, "consensus_of": "centred"},
    {"pretrain_public": 0, "pretrain_private": 0},
    {"held_out": 0.0},
    {"held_out": 0.3, "held_out_least": 3, "private_batch": 3, "public_batch": 5},
    {"held_out": 0.3, "held_out_least": 1, "private_patience": 2, "private_min_delta": 0.2},
    {"converged_by": "training", "private_patience": 2, "public_min_delta": 0.2},
    {"converged_by": "training", "private_patience": 2, "private_min_delta": 0.0, "public_min_delta": 0.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fedmd_is_the_papers(options, world, tools):
    here = world()
    ran = here.run(FedMD(**options), 3)
    nets = repeated(here, tools, options, 3)
    assert max(tools.farthest(ran.memories[k]["model"], nets[k]) for k in nets) < 1e-9


@pytest.mark.parametrize("options", [{}, {"digest_batch": 4}, {"private_patience": 1}, {"persist": False}], ids=str)
def test_fedmd_is_its_authors_codes(options, world, tools):
    here = world()
    ran = here.run(FedMD(variant="reference", **{"samples": 5, **options}), 3)  # of its 5,000
    nets = repeated(here, tools, {**REFERENCE, **options}, 3)
    assert FedMD(variant="reference").samples == 5000
    assert max(tools.farthest(ran.memories[k]["model"], nets[k]) for k in nets) < 1e-9
