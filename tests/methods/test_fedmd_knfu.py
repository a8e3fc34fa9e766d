"""FedMD as KnFu's baseline: the mean of probabilities, beside the same written without it, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedalloy.aggregation.rule import Aggregation
from fedalloy.base import rng
from fedalloy.check.method import check_method
from fedalloy.check.probe import small_settings
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message
from fedalloy.methods.fedmd_knfu import FedMDKnFu
from fedalloy.methods.soft_labels import SoftLabels
from fedalloy.train.fit import LocalWork


@pytest.fixture
def setting(small_setting):
    def make(sizes=(10, 7), labelled=True, **given):
        x = torch.randn(12, 4, generator=rng.generator(1, "public test data"))
        public = PublicSet(Samples(x, torch.arange(12) % 3, torch.arange(12)), labelled, "all")
        work = LocalWork(epochs=2, batch=4, lr=0.1)
        return small_setting(list(sizes), **{"public": public, "work": work, "seed": 3, **given})

    return make


@dataclass(frozen=True, kw_only=True)
class MeanOfSoftLabels(SoftLabels):
    """What the method must be, written without it."""

    name = "mean-of-soft-labels"

    def fuse(self, replies, fed):
        mean = sum(r["soft"].double() for r in replies) / len(replies)
        return {r.client: {"soft": mean.float()} for r in replies}, {}


def test_it_is_soft_labels_with_the_mean(setting, small, play):
    at = setting((10, 7, 1), networks=[lambda: small(batch_norm=True, dropout=0.5), small, small])
    options = {"samples": 6, "tune_epochs": 2, "temperature": 2.0, "kd_weight": 0.5}
    ours, theirs = (play(m, at, 3) for m in (FedMDKnFu(**options), MeanOfSoftLabels(**options)))
    torch.testing.assert_close(ours.engine.memories, theirs.engine.memories)
    assert ours.rounds[0].ledger.up == theirs.rounds[0].ledger.up


def sent(*answers, **rule):
    replies = [Message("learn", k, {"soft": torch.tensor([p])}) for k, p in enumerate(answers)]
    fused, notes = FedMDKnFu(aggregation=Aggregation(**rule)).fuse(replies, None)
    assert notes == {}
    assert sorted(fused) == list(range(len(answers)))
    return fused[0]["soft"]


def test_the_mean_is_one_of_probabilities():
    torch.testing.assert_close(sent([0.9, 0.1], [0.3, 0.7]), torch.tensor([[0.6, 0.4]]))


def test_a_median_of_probabilities_need_not_sum_to_one_and_teaches_as_if_it_did():
    answers = [0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.0, 0.0, 1.0]
    median, logits = sent(*answers, combine="median"), torch.tensor([[1.0, 0.0, -1.0]])
    torch.testing.assert_close(median, torch.tensor([[0.4, 0.2, 0.2]]))
    torch.testing.assert_close(FedMDKnFu().distance(median, logits), FedMDKnFu().distance(median / 0.8, logits))


def test_the_mean_is_a_sum_of_equal_shares_in_float64_cast_once():
    soft = torch.randn(20, 200, 10, generator=rng.generator(1, "answers")).softmax(2)
    fused, _ = FedMDKnFu().fuse([Message("learn", k, {"soft": p}) for k, p in enumerate(soft)], None)
    wanted = sum(p.double() * (1 / 20) for p in soft).float()
    assert torch.equal(fused[0]["soft"], wanted)


def test_public_labels_are_needed_for_the_first_term_only(setting, play):
    with pytest.raises(UsageError, match=r"fedmd-knfu\.ce_on = 'public' needs labels"):
        play(FedMDKnFu(), setting(labelled=False), 0)
    play(FedMDKnFu(samples=8, ce_on="none"), setting(labelled=False), 1)


@pytest.mark.parametrize("rule", [{}, {"combine": "median"}])
def test_it_keeps_the_contract(rule):
    check_method(FedMDKnFu(samples=8, aggregation=Aggregation(**rule)), small_settings()[1])


@pytest.mark.parametrize(("option", "value"), [("samples", 0), ("tune_epochs", -1), ("temperature", 0.0)])
def test_limits_are_declared(option, value):
    with pytest.raises(UsageError, match=rf"fedmd-knfu\.{option} = {value!r} must be"):
        FedMDKnFu(**{option: value})
