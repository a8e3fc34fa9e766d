"""BatchNorm under averaging: float statistics are averaged like weights, the integer counter stays the server's."""

from __future__ import annotations

import pytest
import torch

from fedalloy.aggregation.rule import Aggregation
from fedalloy.federation.core import State
from fedalloy.federation.participation import Participation
from fedalloy.knowledge.trifreqs import tri_freqs
from fedalloy.methods import KDIA, QFFL, FedAvg, FedAvgM, FedGKD, FedProx
from fedalloy.nets.models import create
from fedalloy.train.fit import LocalWork

UNIFORM = Aggregation(weights="uniform")
AVERAGING = [FedAvg(), FedAvg(aggregation=UNIFORM), FedProx(mu=0.1), FedAvgM(), FedAvgM(form="ema"), QFFL(q=1.0)]
SIZES = [3, 6]


def resnet11():
    return create("resnet11", classes=3, channels=1, size=8)


def wrn():
    return create("wrn", classes=3, channels=1, size=8, depth=10)


def norms_hold(method, setting, play):
    """Check one round; returns the names of the averaged statistics."""
    start, after = play(method, setting, 1).states
    weights = [0.5, 0.5] if method.aggregation.weights == "uniform" else [1 / 3, 2 / 3]
    clients = [after["cache"][k] for k in ("0", "1")]
    trainable = {name for name, _ in setting.networks[0]().named_parameters()}
    statistics = []
    for name, before in start["model"].items():
        now = after["model"][name]
        if name.endswith("num_batches_tracked"):
            assert [int(c[name]) for c in clients] == [1, 2]
            assert torch.equal(now, before)
            assert now.dtype == torch.int64
        elif name not in trainable:
            mean = sum(p * c[name].double() for p, c in zip(weights, clients, strict=True))
            assert torch.allclose(now.double(), mean, rtol=1e-6, atol=1e-7)
            assert not torch.equal(now, before)
            statistics.append(name)
    assert all((after["model"][name] >= 0).all() for name in statistics if name.endswith("running_var"))
    return statistics


@pytest.mark.parametrize("method", AVERAGING, ids=repr)
def test_a_small_network(method, small_setting, small, play):
    setting = small_setting(SIZES, networks=[lambda: small(batch_norm=True)], work=LocalWork(batch=3, lr=0.1))
    assert norms_hold(method, setting, play) == ["norm.running_mean", "norm.running_var"]


@pytest.mark.parametrize("method", AVERAGING, ids=repr)
@pytest.mark.parametrize(("network", "layers"), [(resnet11, 13), (wrn, 7)])
def test_the_papers_networks(method, network, layers, small_setting, random_sites, play):
    sites = random_sites(SIZES, shape=(1, 8, 8))
    setting = small_setting([], sites=sites, networks=[network], work=LocalWork(batch=3, lr=0.01))
    assert len(norms_hold(method, setting, play)) == 2 * layers


def test_averaged_statistics_are_used_in_evaluation_and_trained_on_from(small_setting, small, play):
    setting = small_setting(SIZES, networks=[lambda: small(batch_norm=True)], work=LocalWork(batch=3, lr=1e-9))
    first, second = (s["model"]["norm.running_mean"] for s in play(FedAvg(), setting, 2).states[1:])
    # With still weights a running mean goes from 0 towards the data's, and further in the second round.
    assert first.norm() > 0
    assert second.norm() > first.norm()


def of_kdia(state):
    """KDIA's teacher, the cached models it is made of, and their weights."""
    seen = sorted(int(k) for k in state["cache"])
    weights = tri_freqs(*(state[name].tolist() for name in ("last", "times", "sizes")))
    return KDIA().overall(state), [state["cache"][str(k)] for k in seen], [weights[k] for k in seen]


def of_fedgkd(state):
    """FedGKD's teacher, and the global models of which it is the mean."""
    models = list(state["recent"].values())
    return FedGKD().teacher(state)["teacher"], models, [1 / len(models)] * len(models)


@pytest.mark.parametrize(
    ("method", "of"), [(KDIA(lambda_gen=0), of_kdia), (FedGKD(), of_fedgkd)], ids=["kdia", "fedgkd"]
)
def test_a_teachers_statistics_are_weighted_like_its_weights(method, of, small_setting, small, play):
    setting = small_setting(
        [3, 6, 9, 12],
        networks=[lambda: small(batch_norm=True)],
        work=LocalWork(batch=3, lr=0.1),
        participation=Participation(policy="fraction", fraction=0.5),
    )
    last = play(method, setting, 3).states[-1]
    server = {**last["model"], "norm.num_batches_tracked": torch.tensor(41)}  # such as no other model has
    teacher, models, weights = of(State(3, {**last.body, "model": server}))
    assert len(models) > 2
    assert sum(weights) == pytest.approx(1)
    assert teacher.pop("norm.num_batches_tracked").item() == 41
    for name, ours in teacher.items():
        mean = sum(p * m[name].double() for p, m in zip(weights, models, strict=True))
        assert torch.allclose(ours.double(), mean, rtol=1e-6, atol=1e-7)
    for name in ("norm.running_mean", "norm.running_var", "out.weight"):
        assert not torch.allclose(teacher[name], server[name], rtol=1e-3)


def test_a_client_with_one_sample_sends_the_statistics_it_received(small_setting, small, play):
    setting = small_setting([1, 6], networks=[lambda: small(batch_norm=True)], work=LocalWork(batch=3, lr=0.1))
    start, after = play(FedAvg(), setting, 1).states
    for name in ("norm.running_mean", "norm.running_var"):
        assert torch.equal(after["cache"]["0"][name], start["model"][name])
    assert not torch.equal(after["cache"]["0"]["out.weight"], start["model"]["out.weight"])
