"""Centralised: the pooled data, the active clients' budget, the data counted once."""

from __future__ import annotations

import torch

from fedalloy.base.tree import equal
from fedalloy.federation.participation import Participation
from fedalloy.methods import Centralised, FedAvg
from fedalloy.train.fit import LocalWork


def test_it_takes_the_steps_of_the_active_clients_together(small_setting, play):
    trace = [[0, 1, 2], [2], []]
    setting = small_setting(
        [8, 12, 30], work=LocalWork(epochs=2, batch=4), participation=Participation(policy="trace", trace=trace)
    )
    ours, federated = play(Centralised(), setting, 3), play(FedAvg(), setting, 3)
    steps = [r.ledger.server.steps for r in ours.rounds]
    assert steps == [2 * (2 + 3 + 8), 2 * 8, 0]
    assert steps == [r.ledger.clients.steps for r in federated.rounds]
    assert equal(ours.states[3]["model"], ours.states[2]["model"])


def test_the_data_is_counted_once(small_setting, play):
    ledgers = [r.ledger for r in play(Centralised(), small_setting([8, 12]), 3).rounds]
    assert [dict(ledger.up) for ledger in ledgers] == [{"data": 20 * (4 * 4 + 8)}, {}, {}]
    assert all(not ledger.down for ledger in ledgers)


def test_one_full_batch_step_is_gradient_descent_on_everything(small_setting, play):
    one_step = LocalWork(work="fixed_steps", steps=1, batch=100, lr=0.1)
    together = small_setting([8, 12], work=one_step, participation=Participation(policy="trace", trace=[[0]]))
    apart = small_setting([8, 12], work=one_step)
    ours, federated = play(Centralised(), together, 1).model, play(FedAvg(), apart, 1).model
    assert all(torch.allclose(ours[name], t, rtol=0, atol=1e-6) for name, t in federated.items())


def test_every_method_starts_from_the_same_model(small_setting, play):
    setting = small_setting([8, 12])
    starts = [play(m, setting, 0).states[0]["model"] for m in (Centralised(), FedAvg())]
    assert equal(*starts)
    assert list(Centralised().models(play(Centralised(), setting, 0).states[0])) == ["global"]
