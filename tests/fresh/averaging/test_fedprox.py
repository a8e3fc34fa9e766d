"""FedProx against Li et al., MLSys 2020, Eq. 2 and Algorithm 2, written again in plain torch."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from fedalloy.federation.participation import Participation
from fedalloy.methods import FedAvg, FedProx
from fedalloy.train.fit import LocalWork

ROUNDS = 2


def client(world, w, t, k, mu, epochs):
    """h_k(v; w) = F_k(v) + mu / 2 |v - w|^2 (Eq. 2), for so many epochs."""

    def h(net, x, y):
        pull = sum(((p - w[name]) ** 2).sum() for name, p in net.named_parameters())
        return F.cross_entropy(net(x), y) + mu / 2 * pull

    return world.train(world.net(w), t, world.batches(t, k, epochs), h)


def rounds(world, tools, mu, partial=True):
    """All clients of a round are averaged by size, whatever they had time for; or those that made all epochs."""
    w, found = world.start().state_dict(), []
    for t in range(1, ROUNDS + 1):
        chosen = world.setting.active(t)
        slow = world.setting.late(t, chosen)
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


@pytest.mark.parametrize(("share", "work"), [(0.5, "epochs"), (0.9, "epochs"), (0.5, "equal_steps")])
def test_stragglers(share, work, world, tools):
    """A share of the clients makes 1 to E epochs (Sec. 5.2); FedAvg and `drop` leave them out."""
    work = LocalWork(work=work, epochs=4, batch=4, lr=0.1, momentum=0.5)
    here = world(work=work, participation=Participation(stragglers=share))
    late = [here.setting.late(t, here.setting.active(t)) for t in range(1, ROUNDS + 1)]
    assert [len(slow) for slow in late] == [{0.5: 2, 0.9: 3}[share]] * ROUNDS
    assert late[0] != late[1]  # each round draws anew
    assert all(1 <= epochs <= 4 for slow in late for epochs in slow.values())
    for method, mu, partial in (
        (FedProx(mu=2.0), 2.0, True),
        (FedProx(mu=2.0, stragglers="drop"), 2.0, False),
        (FedAvg(), 0.0, False),
    ):
        ran = here.run(method, ROUNDS)
        for t, w in enumerate(rounds(here, tools, mu, partial), start=1):
            assert tools.farthest(ran.view(t), w) < 1e-12
