"""FedDisco's weights against Ye et al., ICML 2023, written again in NumPy, with the discrepancy told once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedalloy.aggregation.rule import Aggregation
from fedalloy.methods import FedDisco

ROUNDS = 4


def client(world, w, t, k):
    return world.train(world.net(w), t, world.batches(t, k), lambda net, x, y: F.cross_entropy(net(x), y))


def discrepancy(world, k, metric):
    """d_k: how far the client's labels are from uniform ones."""
    labels = np.bincount(world.data(k)[1].numpy(), minlength=3) / world.size(k)
    uniform = np.full(3, 1 / 3)
    if metric == "kl":
        some = labels > 0
        return float((labels[some] * np.log(labels[some] / uniform[some])).sum())
    if metric == "cosine":
        return float(1 - labels @ uniform / np.linalg.norm(labels) / np.linalg.norm(uniform))
    return float(np.linalg.norm(labels - uniform, ord={"l1": 1, "l2": 2}[metric]))


def shares(world, clients, a, b, metric, normalise):
    """p_k ~ relu(n_k - a d_k + b), where n_k is the share of the samples; by size, if nothing is left."""
    n = np.array([world.size(k) for k in clients], dtype=float)
    n /= n.sum()
    d = np.array([discrepancy(world, k, metric) for k in clients])
    d = d / d.sum() if normalise and d.sum() else d
    p = np.maximum(n - a * d + b, 0)
    return (p if p.sum() else n).tolist()


def rounds(world, tools, *rule):
    w, last, found = world.start().state_dict(), {}, []
    for t in range(1, ROUNDS + 1):
        active = tools.turns[t - 1]
        last |= {k: client(world, w, t, k) for k in active}
        w = tools.mean([last[k] for k in active], shares(world, active, *rule))
        found.append((w, tools.mean([last[k] for k in sorted(last)], shares(world, sorted(last), *rule))))
    return found


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, (0.5, 0.1, "kl", True)),
        ({"disco_a": 0.0, "disco_b": 0.0}, (0.0, 0.0, "kl", True)),
        ({"disco_normalise": False}, (0.5, 0.1, "kl", False)),
        ({"disco_metric": "l1"}, (0.5, 0.1, "l1", True)),
        ({"disco_metric": "l1", "disco_normalise": False}, (0.5, 0.1, "l1", False)),
        ({"disco_metric": "l2"}, (0.5, 0.1, "l2", True)),
        ({"disco_metric": "cosine", "disco_normalise": False, "disco_a": 2.0}, (2.0, 0.1, "cosine", False)),
        ({"disco_a": 1.4, "disco_b": 0.0}, (1.4, 0.0, "kl", True)),  # some have no weight
        ({"disco_a": 50.0, "disco_b": 0.0}, (50.0, 0.0, "kl", True)),  # nobody has
    ],
)
def test_four_rounds(options, rule, world, tools):
    here = world()
    ran = here.run(FedDisco(aggregation=Aggregation(weights="disco", **options)), ROUNDS)
    for t, (aca, oca) in enumerate(rounds(here, tools, *rule), start=1):
        assert tools.farthest(ran.view(t), aca) < 1e-12
        assert tools.farthest(ran.view(t, "oca"), oca) < 1e-12


def test_the_default_rule_is_that_of_the_code(world, tools):
    here = world()
    ran = here.run(FedDisco(), 1)
    assert tools.farthest(ran.view(1), rounds(here, tools, 0.5, 0.1, "kl", True)[0][0]) < 1e-12


def test_a_client_tells_its_discrepancy_once_and_no_histogram(world, tools):
    ran = world().run(FedDisco(), ROUNDS)
    told = [(t, k, body) for t, k, action, body in ran.answers if action != "train"]
    assert [(t, k) for t, k, _ in told] == [(1, 0), (1, 1), (1, 2), (2, 3)]
    for _, k, body in told:
        (value,) = body.values()
        assert isinstance(value, float) or (isinstance(value, torch.Tensor) and value.numel() == 1)
        assert float(value) == pytest.approx(discrepancy(world(), k, "kl"), abs=1e-12)
    assert all(set(body) == {"model", "n"} for _, _, action, body in ran.answers if action == "train")
