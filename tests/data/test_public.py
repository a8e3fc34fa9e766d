"""Public sets: labels that are not there, subsets that are the same everywhere, and no row in two places."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.data import PublicSet, Samples, assert_disjoint
from fedalloy.data.public import Policy
from fedalloy.errors import UsageError


def public(counts: list[int], *, labelled: bool = True) -> PublicSet:
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    x = torch.arange(float(len(y))).view(-1, 1, 1, 1)
    return PublicSet(Samples(x, y[order], torch.arange(len(y))), labelled, "all")


def rows(part: PublicSet) -> list[int]:
    return part.samples.index.tolist()


def test_an_unlabelled_set_holds_no_labels_at_all() -> None:
    hidden = public([5, 5], labelled=False)
    with pytest.raises(UsageError, match="no labels"):
        _ = hidden.labels
    assert hidden.samples.labels.unique().tolist() == [-1]
    with pytest.raises(UsageError, match=r"'stratified'.*public\.labelled"):
        hidden.subset(0, 0, 4, "stratified")
    part = hidden.subset(0, 0, 4, "fresh")
    with pytest.raises(UsageError, match="no labels"):
        _ = part.labels
    assert public([5, 5]).labels.bincount().tolist() == [5, 5]


def test_policies() -> None:
    data = public([40, 40, 20])
    fixed = [rows(data.subset(t, 0, 10, "fixed")) for t in range(3)]
    assert fixed[0] == fixed[1] == fixed[2]
    fresh = [rows(data.subset(t, 0, 10, "fresh")) for t in range(3)]
    assert fresh[0] != fresh[1] != fresh[2]
    assert rows(data.subset(1, 0, 10, "fresh")) == fresh[1]  # addressed: no matter what was asked before
    assert rows(data.subset(1, 1, 10, "fresh")) != fresh[1]
    assert rows(data.subset(7, 0, 3, "all")) == list(range(100))
    stratified = data.subset(2, 0, 10, "stratified")
    assert stratified.labels.bincount().tolist() == [4, 4, 2]
    assert rows(stratified) != rows(data.subset(3, 0, 10, "stratified"))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda c: sum(c) > 0), st.data())
def test_strata_are_within_one_of_their_share(counts: list[int], draw: st.DataObject) -> None:
    data = public(counts)
    size = draw.draw(st.integers(1, len(data)))
    part = data.subset(0, 0, size, "stratified")
    assert len(part) == size
    assert rows(part) == sorted(set(rows(part)))
    for label, got in enumerate(part.labels.bincount(minlength=len(counts)).tolist()):
        assert abs(got - counts[label] * size / sum(counts)) < 1


def test_a_subset_keeps_inputs_and_labels_together() -> None:
    data = public([6, 6])
    part = data.subset(0, 0, 5, "fresh")
    assert part.inputs.flatten().long().tolist() == rows(part)
    assert torch.equal(part.labels, data.labels[rows(part)])
    assert (part.labelled, part.holder) == (True, "all")


@pytest.mark.parametrize("policy", ["fixed", "fresh", "stratified", "all"])
def test_a_subset_is_of_the_same_kind(policy: Policy) -> None:
    pool = Samples(torch.zeros(6, 1, 2, 2), torch.tensor([0, 1] * 3), torch.arange(6))
    public = PublicSet(pool, labelled=True, holder="all", shared_labels=False, task=pool)
    part = public.subset(round=1, seed=0, size=2, policy=policy)
    assert (part.labelled, part.holder, part.shared_labels, part.task) == (True, "all", False, pool)


def test_wrong_requests() -> None:
    data = public([5])
    for size in (0, 6):
        with pytest.raises(UsageError, match=f" {size} of 5 public samples"):
            data.subset(0, 0, size, "fresh")
    with pytest.raises(UsageError, match="'fresh'"):
        data.subset(0, 0, 2, "frsh")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"holder.*'clients'"):
        PublicSet(data.samples, True, "clients")  # type: ignore[arg-type]


def test_disjoint() -> None:
    assert_disjoint(torch.tensor([0, 9]), {0: torch.tensor([1, 2]), 1: torch.tensor([3])})
    assert_disjoint(torch.tensor([0, 9]), {})
    with pytest.raises(UsageError, match=r"\b2 public samples.*client 4 \(row 9\)"):
        assert_disjoint(torch.tensor([0, 9, 5]), {3: torch.tensor([1]), 4: torch.tensor([2, 9, 0])})
