"""The density ratio: the linear system, known densities, the quantile rule, small clients, images of other classes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.base import tree
from fedalloy.base.rng import generator
from fedalloy.data import load_data, tensors
from fedalloy.errors import DataError, UsageError
from fedalloy.knowledge.density import (
    Ratio,
    fit_ratio,
    kernel_width,
    ratio_at,
    select,
    split_known,
    threshold,
    uniform_in_box,
)


def kernel(a, b, s):
    """The Gaussian kernel by its definition, for every pair."""
    return torch.exp(-(a[:, None] - b[None]).square().sum(2) / (2 * s * s))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed, "normal"), dtype=torch.float64)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=generator(seed, "uniform"), dtype=torch.float64)


def rank_correlation(a, b):
    return torch.corrcoef(torch.stack([x.argsort().argsort().double() for x in (a, b)]))[0, 1].item()


@pytest.fixture(scope="module")
def fashion():
    """Embedded Fashion-MNIST: training images and labels, test images and labels (30 of each class)."""
    train, test = tensors(load_data("fashion-mini"))
    x_test, y_test = test.take(torch.cat([(test.y == label).nonzero().flatten()[:30] for label in range(10)]))
    return train.x, train.y, x_test, y_test


def kept(fashion, own_classes, size, **options):
    """The shares of test images that a client with these classes keeps: of its own classes, and of the others."""
    x, y, x_test, y_test = fashion
    own, stream = torch.tensor(own_classes), generator(0, "client", *own_classes)
    rows = torch.isin(y, own).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=stream)[:size]]
    mask, at_home = select(x[rows], x_test, stream, **options), torch.isin(y_test, own)
    return mask[at_home].double().mean().item(), mask[~at_home].double().mean().item()


# The estimator


def test_one_known_and_one_auxiliary_sample_by_hand():
    # One width apart, so that k(x, y) = exp(-1/2) and (1 + 1/2) alpha = -2 exp(-1/2).
    fitted = fit_ratio(torch.tensor([[3.0]]), torch.tensor([[1.0]]), width=2.0, lam=0.5)
    alpha = -4 / 3 * math.exp(-0.5)
    assert fitted.weights.tolist() == pytest.approx([alpha, 2.0])
    at = ratio_at(fitted, torch.tensor([[3.0], [1.0]])).tolist()
    assert at == pytest.approx([alpha * math.exp(-0.5) + 2, alpha + 2 * math.exp(-0.5)])


@pytest.mark.parametrize(("d", "s"), [(1, 0.3), (2, 0.5), (20, 5.0)])
def test_alpha_solves_the_linear_system(d, s):
    n, m, lam = 80, 30, 0.1
    auxiliary, known = uniform(n, d), uniform(m, d, seed=1) / 2
    alpha = fit_ratio(known, auxiliary, s, lam).weights[:n]
    left = (kernel(auxiliary, auxiliary, s) / n + lam * torch.eye(n)) @ alpha
    right = -kernel(auxiliary, known, s).sum(1) / (n * m * lam)
    assert right.abs().min() > 1e-6
    assert (left - right).abs().max() < 1e-8 * right.abs().max()


def test_the_linear_system_on_images(fashion):
    known, auxiliary = fashion[0][:40].flatten(1).double(), normal(60, 784)
    alpha = fit_ratio(known, auxiliary, 30.0).weights[:60]
    left = (kernel(auxiliary, auxiliary, 30.0) / 60 + 60**-0.5 * torch.eye(60)) @ alpha
    right = -kernel(auxiliary, known, 30.0).sum(1) / (60 * 40 * 60**-0.5)
    assert (left - right).abs().max() < 1e-8 * right.abs().max()


def test_the_estimate_is_the_sum_over_both_kinds_of_samples():
    known, auxiliary, x = uniform(5, 2), uniform(7, 2, seed=1), uniform(11, 2, seed=2)
    fitted = fit_ratio(known, auxiliary, 0.4, lam=0.2)
    alpha = fitted.weights[:7]
    expected = kernel(x, auxiliary, 0.4) @ alpha + kernel(x, known, 0.4).sum(1) / (5 * 0.2)
    assert torch.allclose(ratio_at(fitted, x), expected, rtol=1e-12)


def test_the_estimate_minimises_the_objective():
    # lam what + mean_i what(x_i) k(., x_i) = mean_j k(., y_j) at the minimum, so that alpha_i = -what(x_i) / (n lam).
    auxiliary = uniform(50, 2)
    fitted = fit_ratio(uniform(30, 2, seed=1) / 2, auxiliary, 0.5, lam=0.05)
    assert torch.allclose(fitted.weights[:50], -ratio_at(fitted, auxiliary) / (50 * 0.05), rtol=1e-9)


def bell(x):
    """The standard normal density relative to the uniform one over [-4, 4]."""
    return 8 * torch.exp(-x.square() / 2).flatten() / math.sqrt(2 * math.pi)


def test_a_normal_density_in_one_dimension():
    # Samples at even steps of probability, so that nothing is left to chance.
    even = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    known, auxiliary = torch.special.ndtri(even)[:, None], 8 * even[:, None] - 4
    x = torch.linspace(-3, 3, 101, dtype=torch.float64)[:, None]
    found = ratio_at(fit_ratio(known, auxiliary, width=0.6, lam=0.001), x)
    assert rank_correlation(found, bell(x)) > 0.99
    assert (found - bell(x)).abs().max() < 0.05  # of a ratio that rises to 3.19


def test_a_density_in_two_dimensions():
    # Roots of uniform numbers have density 2x, so that the ratio over the unit square is 4xy.
    known, auxiliary, x = uniform(2000, 2).sqrt(), uniform(600, 2, seed=1), 0.1 + 0.8 * uniform(500, 2, seed=2)
    true = 4 * x.prod(1)
    found = ratio_at(fit_ratio(known, auxiliary, width=0.3), x)
    assert rank_correlation(found, true) > 0.98
    assert (found - true).abs().mean() < 0.12
    assert found.mean().item() == pytest.approx(true.mean().item(), abs=0.1)


def test_more_samples_bring_the_estimate_nearer():
    x = torch.linspace(-3, 3, 101, dtype=torch.float64)[:, None]

    def error(size):
        known, auxiliary = normal(size, 1).clamp(-4, 4), uniform(size, 1) * 8 - 4
        return (ratio_at(fit_ratio(known, auxiliary, width=0.6), x) - bell(x)).abs().mean().item()

    assert error(30) > 1.5 * error(150) > 2 * error(750)


def test_a_uniform_client_has_a_ratio_of_one():
    fitted = fit_ratio(uniform(1000, 1), uniform(500, 1, seed=1), width=0.3)
    assert ratio_at(fitted, torch.linspace(0.2, 0.8, 13)[:, None]).tolist() == pytest.approx([1.0] * 13, abs=0.1)


@pytest.mark.parametrize("chunk", [1, 7, 30, 1000])
def test_chunks_do_not_change_the_estimate(chunk):
    fitted = fit_ratio(normal(40, 5), normal(60, 5, seed=1), width=1.5)
    x = normal(100, 5, seed=2)
    assert torch.allclose(ratio_at(fitted, x, chunk=chunk), ratio_at(fitted, x), rtol=1e-10, atol=1e-12)


def test_no_samples_have_no_ratios():
    fitted = fit_ratio(normal(4, 3), normal(5, 3, seed=1), width=1.5)
    assert ratio_at(fitted, torch.empty(0, 3)).shape == (0,)


def test_float32_counts_as_the_same_numbers_in_float64():
    known, auxiliary, x = (normal(20, 1, 2, 3, seed=k).float() for k in range(3))
    single = ratio_at(fit_ratio(known, auxiliary, 2.0), x)
    double = ratio_at(fit_ratio(known.double(), auxiliary.double(), 2.0), x.double())
    assert single.dtype == torch.float64
    assert torch.equal(single, double)
    masks = [select(known.to(kind), x.to(kind), generator(0, "s")) for kind in (torch.float32, torch.float64)]
    assert torch.equal(*masks)


def test_a_ratio_is_a_tree_and_comes_back():
    fitted = fit_ratio(normal(4, 3), normal(5, 3, seed=1), width=1.5)
    again = Ratio(**tree.decode(tree.encode(vars(fitted))))
    x = normal(6, 3, seed=2)
    assert torch.equal(ratio_at(again, x), ratio_at(fitted, x))


# Auxiliary samples and the width


def test_auxiliary_samples_fill_the_box_evenly():
    drawn = uniform_in_box(20_000, 3, (-2.0, 4.0), generator(0, "box"))
    assert drawn.shape == (20_000, 3)
    assert drawn.min() >= -2
    assert drawn.max() < 4
    assert drawn.mean(0).tolist() == pytest.approx([1.0] * 3, abs=0.05)
    assert drawn.var(0).tolist() == pytest.approx([3.0] * 3, abs=0.1)


def test_the_box_is_the_clients_own_range_unless_given():
    own, proxy = torch.tensor([[0.0], [1.0], [0.5], [0.4], [0.6], [0.5]]), torch.linspace(-1, 2, 200)[:, None]
    options = {"width": 0.3, "auxiliary": 40}
    default = select(own, proxy, generator(0, "s"), **options)
    assert torch.equal(default, select(own, proxy, generator(0, "s"), box=(0.0, 1.0), **options))
    assert not torch.equal(default, select(own, proxy, generator(0, "s"), box=(-1.0, 0.6), **options))


def test_the_median_width_by_hand():
    known = torch.tensor([[0.0], [1.0], [4.0]])  # distances 1, 3, 4
    assert kernel_width(known, "median") == 3.0
    assert kernel_width(known, "median/8") == 0.375
    assert kernel_width(known, 7) == 7.0


def test_copies_of_a_sample_do_not_make_the_width_zero():
    known = torch.tensor([[1.0]] * 9 + [[3.0]])  # 36 distances of 0, 9 of 2
    assert kernel_width(known, "median") == 2.0


@pytest.mark.parametrize("known", [torch.ones(1, 4), torch.ones(5, 4)])
def test_without_a_distance_the_width_is_the_references(known):
    assert kernel_width(known, "median") == 5.0
    assert kernel_width(known, "median/8") == 5.0


# The threshold


@pytest.mark.parametrize(("count", "left"), [(4, 3), (8, 6), (100, 75), (1000, 750)])
def test_the_first_quartile_keeps_three_quarters(count, left):
    scores = normal(count)
    assert int((scores > threshold(scores, 0.25)).sum()) == left


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.floats(0, 1))
def test_the_quantile_rule_holds_up_to_ties_and_one_sample(values, q):
    scores = torch.tensor(values, dtype=torch.float64)
    tau, slack = threshold(scores, q), 1 / len(values) + 1e-9
    assert (scores > tau).double().mean().item() <= 1 - q + slack
    assert (scores >= tau - 1e-9).double().mean().item() >= 1 - q - slack


def test_the_rule_keeps_its_share_of_the_remaining_samples():
    own, stream = normal(400, 3), generator(0, "s")
    known, rest = split_known(400, generator(0, "s"))
    assert (len(known), len(rest)) == (50, 350)
    mask = select(own, own[rest], stream, width=1.0, q=0.25)
    assert int(mask.sum()) == 262  # of 350: those above the value at 0.25 * 349 = 87.25


def test_a_ratio_at_the_threshold_is_not_above_it():
    own = normal(10, 3)
    _, rest = split_known(10, generator(0, "s"))
    mask = select(own, own[rest], generator(0, "s"), width=1.0, q=0.25)  # the second of 5 is the quantile itself
    assert int(mask.sum()) == 3


def test_fewer_are_kept_as_q_grows():
    own, proxy = normal(100, 2), 3 * normal(300, 2, seed=1)
    masks = [select(own, proxy, generator(0, "s"), width=1.0, q=q) for q in (0.0, 0.1, 0.25, 0.5, 0.9, 1.0)]
    counts = [int(mask.sum()) for mask in masks]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[3] > counts[5]
    for wide, narrow in itertools.pairwise(masks):
        assert not (narrow & ~wide).any()  # what a strict threshold keeps, a mild one keeps too


# Clients of any size


@pytest.mark.parametrize(
    ("count", "known"), [(1, 1), (2, 1), (3, 1), (4, 2), (50, 25), (99, 49), (100, 50), (1000, 50), (5400, 270)]
)
def test_how_many_samples_are_known(count, known):
    drawn, rest = split_known(count, generator(0, "split"))
    assert len(drawn) == known
    assert sorted([*drawn.tolist(), *rest.tolist()]) == list(range(count))


def test_the_share_alone_as_in_the_reference():
    assert len(split_known(1000, generator(0, "split"), share=0.05, least=1)[0]) == 50
    assert len(split_known(10, generator(0, "split"), share=0.05, least=1)[0]) == 1


def test_known_samples_are_drawn_from_all_over_the_data():
    # Clients' samples often lie sorted by class, and the first ones would know the first class only.
    known, _ = split_known(1000, generator(0, "split"))
    assert known.max() > 900
    assert known.min() < 100


def test_a_client_with_one_sample_abstains():
    mask = select(torch.ones(1, 3), torch.cat([torch.ones(1, 3), normal(20, 3)]), generator(0, "s"))
    assert mask.dtype == torch.bool
    assert mask.tolist() == [False] * 21


@pytest.mark.parametrize("rule", [5.0, "median", "median/8"])
def test_a_client_with_two_samples_keeps_what_is_nearer_than_they_are(rule):
    own, proxy = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.linspace(-3, 4, 71)[:, None] * torch.tensor([[1.0, 0.0]])
    stream = generator(0, "s")
    known = own[split_known(2, generator(0, "s"))[0]]
    mask = select(own, proxy, stream, width=rule, box=(100.0, 101.0))  # far away, so that only the known sample counts
    distances = torch.cdist(proxy, known).flatten()
    assert mask[distances < 0.99].all()
    assert not mask[distances > 1.01].any()


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("rule", [5.0, "median", "median/8"])
def test_small_clients_of_images(fashion, count, rule):
    own_share, other_share = kept(fashion, [1], count, width=rule)
    assert 0 < own_share < 1
    assert other_share < own_share


def test_a_client_of_equal_samples_works():
    assert not select(torch.ones(6, 3), normal(20, 3), generator(0, "s"), width="median").any()


# Other classes, on real images


def test_images_of_another_class_are_rejected(fashion):
    x, y, x_test, y_test = fashion
    trousers = x[y == 1][:300]
    mask = select(trousers, x_test, generator(0, "s"))
    assert mask[y_test == 1].double().mean() > 0.6
    for other in (0, 2, 4, 5, 6, 7, 8, 9):  # all but dresses, which do look like trousers
        assert mask[y_test == other].double().mean() < 0.1


@pytest.mark.parametrize("rule", [5.0, "median/8"])
def test_clients_with_one_class_know_it(fashion, rule):
    shares = torch.tensor([kept(fashion, [label], 200, width=rule) for label in range(10)])
    own, other = shares.mean(0).tolist()
    assert 0.65 < own < 0.85
    assert other < 0.2


def test_with_several_classes_a_narrow_kernel_is_needed(fashion):
    # The median distance is then that between classes, and whatever lies between them looks familiar.
    def rejected_apart(rule):
        shares = [kept(fashion, [a, (a + 5) % 10], 200, width=rule) for a in range(5)]
        own, other = torch.tensor(shares).mean(0).tolist()
        return own - other

    reference, eighth, median = rejected_apart(5.0), rejected_apart("median/8"), rejected_apart("median")
    assert reference > median + 0.1
    assert eighth == pytest.approx(reference, abs=0.05)


def test_the_same_stream_gives_the_same_mask():
    own, proxy = normal(30, 2), normal(50, 2, seed=1)
    before = torch.random.get_rng_state()
    assert torch.equal(select(own, proxy, generator(1, "s")), select(own, proxy, generator(1, "s")))
    assert torch.equal(torch.random.get_rng_state(), before)


# Refusals


def test_samples_of_another_size_are_refused():
    with pytest.raises(UsageError, match="2 numbers"):
        select(normal(10, 2), normal(5, 3), generator(0, "s"))


def test_a_client_without_samples_is_refused():
    with pytest.raises(DataError, match="no samples"):
        select(torch.empty(0, 2), normal(5, 2), generator(0, "s"))


def test_samples_that_are_not_finite_are_refused():
    own = normal(10, 2)
    own[3, 1] = math.nan
    with pytest.raises(DataError, match="NaN"):
        select(own, normal(5, 2), generator(0, "s"))


def test_a_proxy_sample_that_is_not_finite_is_rejected_alone():
    own, proxy = normal(40, 2), normal(50, 2, seed=1)
    clean = select(own, proxy, generator(0, "s"), width=1.0)
    broken = proxy.clone()
    broken[int(clean.nonzero()[0])] = math.nan
    mask = select(own, broken, generator(0, "s"), width=1.0)
    assert int((mask != clean).sum()) == 1


def test_a_width_at_which_every_kernel_is_zero_is_refused():
    own = 1000 * normal(10, 2)
    with pytest.raises(UsageError, match="median/8"):
        select(own, own, generator(0, "s"), width=1.0)
    assert select(own, own, generator(0, "s"), width="median/8").any()
