"""FedProx against Li et al., MLSys 2020, Eq. 2 and Algorithm 2, written again in plain torch."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from fedalloy.base.rng import numpy_generator
from fedalloy.federation.participation import Participation
from fedalloy.methods import FedAvg, FedProx
from fedalloy.train.fit import LocalWork

ROUNDS, EPOCHS = 2, 4


def client(world, w, t, k, mu, epochs):
    """h_k(v; w) = F_k(v) + mu / 2 |v - w|^2 (Eq. 2), for so many epochs."""

    def h(net, x, y):
        pull = sum(((p - w[name]) ** 2).sum() for name, p in net.named_parameters())
        return F.cross_entropy(net(x), y) + mu / 2 * pull

    return world.train(world.net(w), t, world.batches(t, k, epochs), h)


def stragglers(share, t, chosen, epochs):
    """A share of the round's clients, each with 1 to E epochs, all equally likely (Sec. 5.2)."""
    slow = numpy_generator(3, "stragglers", t).choice(chosen, int(share * len(chosen) + 0.5), replace=False).tolist()
    return {k: int(numpy_generator(3, "epochs", t, k).integers(1, epochs, endpoint=True)) for k in slow}


def rounds(world, tools, mu, partial=True, share=0.0):
    """All clients of a round are averaged by size, whatever they had time for; or those that made all epochs."""
    w, found = world.start().state_dict(), []
    for t in range(1, ROUNDS + 1):
        chosen = tools.turns[t - 1]
        slow = stragglers(share, t, chosen, world.setting.work.epochs)
        kept = [k for k in chosen if partial or k not in slow]
        w = tools.mean([client(world, w, t, k, mu, slow.get(k)) for k in kept], [world.size(k) for k in kept])
        found.append(w)
    return found


@pytest.mark.parametrize(
    ("options", "mu"), [({}, 0.01), ({"variant": "fedkf"}, 0.001), ({"mu": 3.0}, 3.0), ({"mu": 0.0}, 0.0)]
)
def test_the_pull(options, mu, world, tools):
    here = world()
    ran = here.run(FedProx(**options), ROUNDS)
    for t, w in enumerate(rounds(here, tools, mu), start=1):
        assert tools.farthest(ran.view(t), w) < 1e-12
    assert tools.farthest(ran.view(ROUNDS), rounds(here, tools, mu + 0.001)[-1]) > 1e-6  # the comparison can fail


@pytest.mark.parametrize(("share", "work"), [(0.3, "epochs"), (0.7, "epochs"), (0.7, "equal_steps")])
def test_stragglers(share, work, world, tools):
    """FedProx averages what they have done; FedAvg and `drop` leave them out."""
    turns = Participation(policy="trace", trace=tools.turns, stragglers=share)
    here = world(work=LocalWork(work=work, epochs=EPOCHS, batch=4, lr=0.1, momentum=0.5), participation=turns)
    drawn = [stragglers(share, t, tools.turns[t - 1], EPOCHS) for t in range(1, ROUNDS + 1)]
    assert [len(slow) for slow in drawn] == [{0.3: 1, 0.7: 2}[share]] * ROUNDS
    for method, mu, partial in (
        (FedProx(mu=2.0), 2.0, True),
        (FedProx(mu=2.0, stragglers="drop"), 2.0, False),
        (FedAvg(), 0.0, False),
    ):
        ran = here.run(method, ROUNDS)
        assert [fed.late for fed in ran.rounds] == [set(slow) for slow in drawn]
        for t, w in enumerate(rounds(here, tools, mu, partial, share), start=1):
            assert tools.farthest(ran.view(t), w) < 1e-12


def test_the_draw_of_stragglers(world):
    """Over many rounds: as many as the share says, anew in each round, from 1 to E epochs."""
    setting = world(participation=Participation(stragglers=0.5), work=LocalWork(epochs=EPOCHS)).setting
    drawn = [setting.late(t, range(4)) for t in range(1, 200)]
    assert all(slow == stragglers(0.5, t, range(4), EPOCHS) for t, slow in enumerate(drawn, start=1))
    assert {epochs for slow in drawn for epochs in slow.values()} == set(range(1, EPOCHS + 1))
    assert len({tuple(slow) for slow in drawn}) == 6  # every pair of four
