"""Partitions: published sizes, exact counts, limits, properties, and the sentences that refuse."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedalloy.data import load_data, partitioners
from fedalloy.data.catalogue import drawn_per_class
from fedalloy.data.partition import local_split, partitions, split
from fedalloy.data.partition_fixed import class_priors, dirichlet_fixed, draw_tests
from fedalloy.data.partition_legacy import dirichlet_dominant
from fedalloy.data.partitioners import classes, dirichlet, iid, natural, quantity
from fedalloy.errors import UsageError

EMNIST = np.repeat(np.arange(26), 480)
CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)
SMALL = np.repeat(np.arange(10), 100)

# Client sizes of FedKF's published routine with RandomState(123456), 20 clients and labels in ascending order (for
# others it gives another split), then the heterogeneity it reaches: mean classes per client and mean share of a
# client's largest class.
PUBLISHED = [
    (EMNIST, 1, "510 554 530 646 642 571 715 678 735 781 578 524 650 546 572 761 618 723 572 574", 25.3, 0.14),
    (EMNIST, 0.1, "401 542 814 948 800 582 676 635 677 743 537 274 495 919 622 506 537 523 765 484", 11.4, 0.46),
    (EMNIST, 0.01, "447 985 540 501 575 856 1205 517 950 905 407 448 480 480 540 244 505 458 464 973", 4.0, 0.76),
    (
        CIFAR10,
        1,
        "2074 3661 2330 1659 2768 2244 1942 2560 3097 2665 2471 2292 2360 2646 2728 2342 2653 2744 2469 2295",
        10,
        0.28,
    ),
    (
        CIFAR10,
        0.1,
        "1924 2223 1760 2036 1638 2227 3684 3728 2679 3101 2510 1700 2414 2103 2186 3984 2581 1018 4022 2482",
        5.6,
        0.70,
    ),
    (
        CIFAR10,
        0.01,
        "2499 1581 2477 2502 2518 3422 2499 2491 2526 2485 2753 3480 2498 1860 2437 1944 1839 3507 2811 1871",
        2.9,
        0.93,
    ),
    (
        CIFAR100,
        1,
        "2211 2612 2521 2571 2210 2377 2414 2626 2591 2634 2764 2614 2336 2502 2439 2375 2316 2519 2441 2927",
        95.8,
        0.05,
    ),
    (
        CIFAR100,
        0.1,
        "2376 2524 2753 2389 2573 2243 2650 2619 2998 2596 2497 2022 2539 2960 2431 1869 1900 2679 2216 3166",
        45.5,
        0.14,
    ),
    (
        CIFAR100,
        0.01,
        "2291 2806 2696 1856 2582 3071 2463 2311 2783 2421 2240 2402 2518 2272 2475 2278 2820 2338 2840 2537",
        15.0,
        0.20,
    ),
]

COMPLETE = [
    ("dirichlet", {"alpha": 0.3, "min_size": 1}),
    ("dirichlet", {"alpha": 0.3, "min_size": 1, "balanced": False}),
    ("dirichlet-dominant", {"alpha": 0.3}),
    ("quantity", {"beta": 1.0, "min_size": 1}),
    ("classes", {"per_client": 2}),
    ("iid", {}),
]


def sizes(rows):
    return [len(mine) for mine in rows]


def count(labels, rows):
    return np.array([np.bincount(labels[mine], minlength=labels.max() + 1) for mine in rows])


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# FedKF's partition and local split -------------------------------------------------------------------------------


@pytest.mark.parametrize(("labels", "alpha", "published", "class_mean", "share"), PUBLISHED)
def test_dominant_gives_the_published_sizes(labels, alpha, published, class_mean, share):
    rows = dirichlet_dominant(labels, 20, seed=123456, alpha=alpha)
    assert sizes(rows) == [int(size) for size in published.split()]
    held = count(labels, rows)
    assert (held > 0).sum(axis=1).mean() == pytest.approx(class_mean, abs=0.0501)
    assert (held.max(axis=1) / held.sum(axis=1)).mean() == pytest.approx(share, abs=0.00501)
    # Nobody falls below 195 rows to train on, so a batch of 64 is always full.
    assert min(len(local_split(mine, client_id=k)[0]) for k, mine in enumerate(rows)) >= 195


def by_the_book(lists, clients, alpha, seed):
    """FedKF's split of a dict from class to rows, as its code does it, step by step on plain lists."""
    old, classes = np.random.RandomState(seed), len(lists)
    sizes = [min(classes, clients - start) for start in range(0, clients, classes)]
    parts = {}
    for name, rows in lists.items():  # in the order of the dict
        old.shuffle(rows)
        counts = [int(size / clients * len(rows)) for size in sizes]
        counts[old.randint(len(sizes))] += len(rows) - sum(counts)
        parts[name] = [rows[sum(counts[:g]) : sum(counts[: g + 1])] for g in range(len(sizes))]
    hands = []
    for g, size in enumerate(sizes):
        group, led = [[] for _ in range(size)], set()
        for name in sorted(parts):  # in ascending order
            rows = parts[name][g]
            while (shares := old.dirichlet([alpha] * size)).argmax() in led:
                pass
            led = led | {shares.argmax()} if len(led) + 1 < size else set()
            counts = [int(share * len(rows)) for share in shares]
            counts[old.randint(size)] += len(rows) - sum(counts)
            for k in range(size):
                group[k] += rows[sum(counts[:k]) : sum(counts[: k + 1])]
        hands += group
    return hands


def lists_of(labels):
    """The rows of each class, as a dict in the order of first appearance."""
    found = {}
    for row, label in enumerate(labels.tolist()):
        found.setdefault(label, []).append(row)
    return found


@pytest.mark.parametrize("seed", [0, 7, 123456])
@pytest.mark.parametrize(("classes", "clients"), [(10, 20), (26, 20), (10, 10), (5, 13), (3, 29)])
def test_dominant_is_fedkfs_procedure_draw_for_draw(classes, clients, seed):
    labels = np.append(classes - 1, np.random.default_rng(seed).integers(0, classes, 2_000))
    walked = lists_of(labels)
    assert same(dirichlet_dominant(labels, clients, seed=seed, alpha=0.3), by_the_book(walked, clients, 0.3, seed))
    ascending = by_the_book(dict(sorted(lists_of(labels).items())), clients, 0.3, seed)
    assert same(dirichlet_dominant(labels, clients, seed=seed, alpha=0.3, order="label"), ascending)
    assert not same(dirichlet_dominant(labels, clients, seed=seed, alpha=0.3), ascending)


@pytest.mark.parametrize("seed", [0, 123456])
def test_letters_drawn_and_split_are_fedkfs_draw_for_draw(seed):
    labels = np.random.default_rng(seed).integers(0, 26, 6_000)
    old, drawn = np.random.RandomState(seed), {}
    for name, rows in lists_of(labels).items():
        old.shuffle(rows)
        drawn[name] = rows[:100]
    picked = drawn_per_class(labels, 100, seed)
    ours = dirichlet_dominant(labels[picked], 20, seed=seed, alpha=0.1)
    assert same([picked[mine] for mine in ours], by_the_book(drawn, 20, 0.1, seed))


@pytest.mark.real
@pytest.mark.skipif("FEDALLOY_DATA" not in os.environ, reason="FEDALLOY_DATA names no folder")
@pytest.mark.parametrize(("order", "first"), [("appearance", [502, 614, 637, 418]), ("label", [631, 518, 370, 588])])
def test_real_letters_are_split_as_in_fedkfs_code(order, first):
    letters = load_data("emnist-letters")
    if len(letters.y) != 10_000:
        pytest.skip("these are the sizes for the 10,000 letters of the compact file")
    for y in (letters.y, load_data("emnist-letters", per_class=480, pick="random", pick_seed=123456).y):
        rows = dirichlet_dominant(y, 20, seed=123456, alpha=0.1, order=order)
        assert sizes(rows)[:4] == first


def test_dominant_lets_every_client_of_a_group_lead_once():
    rows = dirichlet_dominant(CIFAR10, 10, seed=3, alpha=0.05)
    assert sorted(count(CIFAR10, rows).argmax(axis=0)) == list(range(10))


def test_dominant_survives_an_alpha_so_small_that_the_legacy_generator_divides_zero_by_zero():
    rows = dirichlet_dominant(SMALL, 10, seed=0, alpha=1e-4)
    assert sizes(rows) == [100] * 10


def test_local_split_is_the_legacy_shuffle_of_the_client_id():
    rows = np.arange(100, 111)
    train, test = local_split(rows, client_id=7)
    shuffled = np.random.RandomState(7).permutation(rows)
    assert train.tolist() == shuffled[:8].tolist()  # floor(0.8 * 11)
    assert test.tolist() == shuffled[8:].tolist()


@pytest.mark.parametrize(
    ("n", "fraction", "expected"), [(0, 0.8, 0), (1, 0.8, 1), (2, 0.1, 1), (10, 0.1, 1), (5, 1, 5)]
)
def test_local_split_leaves_no_client_without_a_row_to_train_on(n, fraction, expected):
    train, test = local_split(np.arange(n), client_id=0, fraction=fraction)
    assert (len(train), len(test)) == (expected, n - expected)


# Class-wise Dirichlet --------------------------------------------------------------------------------------------


def test_dirichlet_on_cifar10_with_100_clients_is_as_small_as_the_papers_are():
    held = [sizes(dirichlet(CIFAR10, 100, seed=seed, alpha=0.1)) for seed in range(10)]
    assert all(sum(one) == 50_000 and min(one) >= 10 for one in held)
    assert 12 <= np.mean([min(one) for one in held]) <= 24  # about 18
    assert 4 <= np.mean([sum(size < 64 for size in one) for one in held]) <= 12  # about 7
    assert 100 <= min(sizes(dirichlet(CIFAR10, 100, seed=0, alpha=0.5))) <= 180  # about 130
    assert 320 <= min(sizes(dirichlet(CIFAR10, 100, seed=0, alpha=5))) <= 400  # about 350


def test_a_client_that_holds_its_share_gets_nothing_more():
    held = count(CIFAR10, dirichlet(CIFAR10, 20, seed=1, alpha=0.1))
    before = np.cumsum(held, axis=1) - held
    assert not held[before >= 50_000 / 20].any()
    plain = count(CIFAR10, dirichlet(CIFAR10, 20, seed=1, alpha=0.1, balanced=False))
    before = np.cumsum(plain, axis=1) - plain
    assert plain[before >= 50_000 / 20].any()


def test_balanced_counts_follow_the_law_of_zeroing_and_renormalising():
    def by_zeroing(rng):
        held = np.zeros(5, dtype=int)
        for size in (300, 300, 300):
            q = rng.dirichlet(np.full(5, 0.5)) * (held < 900 / 5)
            held += np.diff(np.floor(np.cumsum(q / q.sum())[:-1] * size), prepend=0, append=size).astype(int)
        return np.sort(held)

    def ours(rng):
        return np.sort(partitioners._draw_counts(rng, [300] * 3, 5, 0.5, balanced=True).sum(axis=1))

    a, b = (np.mean([draw(np.random.default_rng(i)) for i in range(1500)], axis=0) for draw in (by_zeroing, ours))
    np.testing.assert_allclose(a, b, atol=9)  # means of 1500 sizes whose deviation is below 90: 9 is over 2.7 sigma


def test_alpha_near_zero_gives_each_class_to_one_client():
    held = count(SMALL, dirichlet(SMALL, 4, seed=0, alpha=1e-6, min_size=0, balanced=False))
    assert sorted(held.max(axis=0)) == [100] * 10


@pytest.mark.parametrize(
    "rows",
    [
        dirichlet(CIFAR10, 10, seed=0, alpha=1e6),
        dirichlet_dominant(CIFAR10, 10, seed=0, alpha=1e6),
        quantity(CIFAR10, 10, seed=0, beta=1e6),
        dirichlet_fixed(CIFAR10, 10, seed=0, alpha=1e6, samples=5000),
        iid(CIFAR10, 10, seed=0),
        classes(CIFAR10, 10, seed=0, per_client=10),
    ],
    ids=["dirichlet", "dominant", "quantity", "fixed", "iid", "classes"],
)
def test_an_infinite_alpha_tends_to_equal_shares_of_everything(rows):
    np.testing.assert_allclose(sizes(rows), 5000, rtol=0.01)
    np.testing.assert_allclose(count(CIFAR10, rows), 500, atol=110)  # five deviations of a random count


def test_the_search_for_a_minimum_size_ends_in_a_sentence(monkeypatch):
    monkeypatch.setattr(partitioners, "MOST_DRAWS", 20)
    with pytest.raises(UsageError, match=r"\b20 draws.*alpha = 0\.001.*\b90\b.*1,000 rows.*raise alpha"):
        dirichlet(SMALL, 10, seed=0, alpha=0.001, min_size=90, balanced=False)
    with pytest.raises(UsageError, match=r"raise beta.*min_size.*\b10 clients"):
        quantity(SMALL, 10, seed=0, beta=0.01, min_size=90)


# The others ------------------------------------------------------------------------------------------------------


def test_quantity_skews_sizes_and_leaves_labels_alone():
    rows = quantity(CIFAR10, 10, seed=0, beta=0.5)
    assert max(sizes(rows)) > 4 * min(sizes(rows))
    largest = count(CIFAR10, rows)[np.argmax(sizes(rows))]
    np.testing.assert_allclose(largest / largest.sum(), 0.1, atol=0.02)


@pytest.mark.parametrize(("clients", "per_client", "holders"), [(10, 2, {2}), (5, 2, {1}), (7, 3, {2, 3})])
def test_classes_are_held_evenly(clients, per_client, holders):
    held = count(SMALL, classes(SMALL, clients, seed=0, per_client=per_client))
    assert set((held > 0).sum(axis=1)) == {per_client}
    assert set((held > 0).sum(axis=0)) == holders
    for column in held.T:
        assert np.ptp(column[column > 0]) <= 1


def test_iid_cuts_equal_parts_and_natural_follows_the_ids():
    assert sizes(iid(SMALL[:11], 3, seed=0)) == [4, 4, 3]
    ids = np.array([30, 10, 20, 10, 30])
    rows = natural(np.zeros(5, np.int64), 3, seed=0, ids=ids)
    assert [sorted(mine.tolist()) for mine in rows] == [[1, 3], [2], [0, 4]]


def test_fixed_gives_exact_sizes_without_repeats_and_disjoint_while_rows_last():
    rows = dirichlet_fixed(CIFAR10, 20, seed=0, alpha=1.0, samples=500)
    assert sizes(rows) == [500] * 20
    assert len(np.unique(np.concatenate(rows))) == 20 * 500


def test_fixed_deals_a_class_again_when_it_has_run_out_but_never_twice_to_one_client():
    rows = dirichlet_fixed(SMALL, 20, seed=0, alpha=1.0, samples=200)  # 4,000 rows from 1,000
    assert sizes(rows) == [200] * 20
    assert all(len(np.unique(mine)) == 200 for mine in rows)


def test_fixed_fills_up_from_other_classes_only_when_a_client_wants_more_than_a_class_has():
    held = count(SMALL, dirichlet_fixed(SMALL, 5, seed=0, alpha=1e-6, samples=150))
    assert (held.max(axis=1) == 100).all()
    assert (held.sum(axis=1) == 150).all()


def test_fixed_with_alpha_near_zero_gives_one_class_to_each_client():
    held = count(CIFAR10, dirichlet_fixed(CIFAR10, 20, seed=0, alpha=1e-6, samples=100))
    assert (held.max(axis=1) == 100).all()


def test_fixed_follows_its_priors_in_training_and_in_the_test():
    part = split(
        CIFAR10,
        name="dirichlet-fixed",
        clients=6,
        seed=2,
        alpha=0.5,
        samples=2000,
        test_labels=CIFAR10,
        test_samples=2000,
    )
    assert part.test_from == "official"
    assert part.priors is not None
    np.testing.assert_array_equal(part.priors, class_priors(CIFAR10, 6, seed=2, alpha=0.5))
    np.testing.assert_allclose(count(CIFAR10, part.train) / 2000, part.priors, atol=0.05)
    np.testing.assert_allclose(count(CIFAR10, part.test) / 2000, part.priors, atol=0.05)
    assert sizes(part.train) == [2000] * 6


def test_a_class_missing_from_the_data_is_never_drawn():
    labels = SMALL[SMALL != 4]
    assert (class_priors(labels, 5, seed=0, alpha=0.1)[:, 4] == 0).all()
    for name, options in COMPLETE:
        assert sum(sizes(partitions[name](labels, 5, seed=0, **options))) == 900


def test_a_test_set_that_lacks_rows_gives_fewer_and_keeps_the_mixture():
    tests = draw_tests(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0, 0, 0, 2]), seed=0, samples=4)
    assert [sorted(mine.tolist()) for mine in tests] == [[], [0, 1, 2]]


# Properties ------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    labels=st.lists(st.integers(0, 4), min_size=60, max_size=200).map(lambda drawn: np.array(drawn, dtype=np.int64)),
    clients=st.integers(3, 8),
    seed=st.integers(0, 2**32 - 1),
    which=st.sampled_from(COMPLETE),
)
def test_every_row_goes_to_exactly_one_client_and_the_seed_decides(labels, clients, seed, which):
    name, options = which
    if name == "classes":
        options = {"per_client": len(np.unique(labels))}
    rows = partitions[name](labels, clients, seed=seed, **options)
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(labels)))
    assert all(mine.dtype == np.int64 for mine in rows)
    assert min(sizes(rows)) >= options.get("min_size", 0)
    assert same(rows, partitions[name](labels, clients, seed=seed, **options))


@pytest.mark.parametrize(("name", "options"), [*COMPLETE, ("dirichlet-fixed", {"alpha": 0.3, "samples": 50})])
def test_another_seed_gives_another_partition(name, options):
    first, second = (partitions[name](SMALL, 5, seed=seed, **options) for seed in (0, 1))
    assert any(set(a.tolist()) != set(b.tolist()) for a, b in zip(first, second, strict=True))


def test_every_registered_partition_is_in_the_lists_above():
    assert {name for name, _ in COMPLETE} | {"dirichlet-fixed", "natural"} == set(partitions)


@settings(max_examples=40)
@given(
    clients=st.integers(1, 60),
    test_fraction=st.floats(0, 0.99),
    validation=st.floats(0, 0.99),
    seed=st.integers(0, 1000),
)
def test_split_keeps_every_row_once_and_trains_everybody(clients, test_fraction, validation, seed):
    part = split(
        SMALL[::16], name="iid", clients=clients, seed=seed, test_fraction=test_fraction, validation=validation
    )
    everything = np.concatenate([part.rows(client) for client in range(part.clients)])
    assert sorted(everything.tolist()) == list(range(63))
    assert min(sizes(part.train)) >= 1


# split -----------------------------------------------------------------------------------------------------------


def test_split_uses_the_local_split_and_records_all_options():
    part = split(CIFAR10, name="dirichlet", clients=10, seed=5, alpha=np.float64(0.5))
    rows = dirichlet(CIFAR10, 10, seed=5, alpha=0.5)
    for k, mine in enumerate(rows):
        train, test = local_split(mine, client_id=k)
        np.testing.assert_array_equal(part.train[k], train)
        np.testing.assert_array_equal(part.test[k], test)
        assert len(part.val[k]) == 0
    assert part.options == {"alpha": 0.5, "min_size": 10, "balanced": True}
    assert type(part.options["alpha"]) is float
    assert (part.name, part.seed, part.clients, part.test_from, part.priors) == ("dirichlet", 5, 10, "train", None)


def test_a_validation_share_is_taken_from_training_only():
    plain, with_val = (split(SMALL, name="iid", clients=4, seed=0, validation=share) for share in (0.0, 0.25))
    assert same(plain.test, with_val.test)
    assert sizes(with_val.train) == [150] * 4
    assert sizes(with_val.val) == [50] * 4
    for k in range(4):
        assert sorted([*with_val.train[k], *with_val.val[k]]) == sorted(plain.train[k])


def test_an_official_test_leaves_all_rows_to_training_and_follows_the_clients_mixture():
    part = split(SMALL, name="classes", clients=5, seed=0, per_client=2, test_labels=SMALL[::2], test_samples=40)
    assert sizes(part.train) == [200] * 5
    assert sizes(part.test) == [40] * 5
    assert same([part.rows(k) for k in range(5)], part.train)
    assert ((count(SMALL[::2], part.test) > 0) == (count(SMALL, part.train) > 0)).all()


def test_an_official_test_is_shared_equally_unless_told_otherwise():
    part = split(SMALL, name="iid", clients=20, seed=0, test_labels=SMALL)
    assert sizes(part.test) == [50] * 20


def test_natural_ids_are_not_recorded_as_an_option():
    part = split([0, 1, 0, 1], name="natural", clients=2, seed=0, ids=["a", "a", "b", "b"], test_fraction=0.5)
    assert part.options == {}
    assert [sorted(part.rows(k).tolist()) for k in range(2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"alpha": 0}, r"alpha = 0 .*1e-6.*1e6.*alpha=0\.5"),
        ({"alpha": -1.0}, r"alpha = -1\.0 "),
        ({"alpha": float("nan")}, "alpha = nan "),
        ({"alpha": "0.1"}, r"alpha = '0\.1' "),
        ({"clients": 0}, r"clients = 0 .*at least 1\b"),
        ({"clients": 2.5}, r"clients = 2\.5 .*integer"),
        ({"clients": 1001}, r"\b1001 clients.*\b1000 rows.*clients=1000\b"),
        ({"test_fraction": 1.0}, r"test_fraction = 1\.0 .*\b0\b.*\b1\b"),
        ({"test_fraction": -0.1}, r"test_fraction = -0\.1 "),
        ({"validation": 1}, r"validation = 1 .*\b0\b.*\b1\b"),
        ({"validation": "some"}, "validation = 'some' "),
        ({"alhpa": 1}, "'dirichlet'.*'alhpa'.*'alpha'"),
        ({"ids": SMALL}, "'dirichlet'.*'ids'.*alpha, balanced, min_size"),
        ({"name": "dirichelt"}, "'dirichelt'.*'dirichlet'"),
        (
            {"min_size": 300},
            r"1,000 rows.*\b4 clients.*\b300\b.*clients = 3\b.*min_size = 250\b",
        ),
        ({"test_samples": 5}, "test_samples .*test_labels"),
        ({"test_labels": [0, 1], "test_samples": 5}, r"test_samples = 5 .*from 1 to 2\b"),
        ({"test_labels": []}, "test_labels must be"),
    ],
)
def test_split_refuses_with_a_sentence(changes, sentence):
    call = {"name": "dirichlet", "clients": 4, "seed": 0, "alpha": 0.5, **changes}
    with pytest.raises(UsageError, match=sentence):
        split(SMALL, **call)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"name": "dirichlet"}, r"'dirichlet'.*alpha.*alpha=\.\.\."),
        ({"name": "dirichlet-fixed"}, r"'dirichlet-fixed'.*alpha and samples.*alpha=\.\.\."),
        (
            {"name": "dirichlet-fixed", "alpha": 1, "samples": 1001},
            r"samples = 1001 .*from 1 to 1000\b",
        ),
        ({"name": "dirichlet-dominant", "alpha": 1, "seed": -1}, "seed = -1 .*'dirichlet-dominant'.*4294967295"),
        ({"name": "dirichlet-dominant", "alpha": 1, "order": "lable"}, "order = 'lable'.*appearance"),
        ({"name": "iid", "alpha": 1}, "'iid'.*'alpha'"),
        ({"name": "natural"}, "'natural'.*ids"),
        ({"name": "natural", "ids": SMALL}, r"\b10\b.*clients = 4.*clients=10\b"),
        ({"name": "natural", "ids": SMALL[:7]}, r"\b7 ids.*\b1000 rows"),
        (
            {"name": "classes", "per_client": 2},
            r"\b4 clients.*\b2 classes.*\b10 .*per_client=3\b",
        ),
        (
            {"name": "classes", "per_client": 11},
            r"per_client = 11 .*from 1 to 10\b",
        ),
        ({"name": "classes", "per_client": True}, "per_client = True .*integer"),
        (
            {"name": "dirichlet", "alpha": 1e-6, "min_size": 0, "balanced": False, "clients": 30},
            r"client \d+ \(and \d+ more\).*alpha.*clients",
        ),
    ],
)
def test_each_partition_refuses_with_a_sentence(call, sentence):
    with pytest.raises(UsageError, match=sentence):
        split(SMALL, **{"clients": 4, "seed": 0, **call})


@pytest.mark.parametrize("labels", [[], [[0, 1]], [0.5, 1.0], [-1, 0], ["a", "b"]])
def test_labels_must_be_class_numbers(labels):
    with pytest.raises(UsageError, match=r"labels must be .*class numbers"):
        split(labels, name="iid", clients=1, seed=0)
