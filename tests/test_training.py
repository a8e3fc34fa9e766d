"""Local work: batches, steps, rates and optimisers by hand; orders that nothing else can shift."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedalloy.base import rng, tree
from fedalloy.base.layout import laid_out
from fedalloy.base.tree import equal
from fedalloy.errors import UsageError
from fedalloy.federation.setting import Site
from fedalloy.train.fit import FlatSGD, LocalWork, batches, fit, load, params, predict
from fedalloy.train.losses import ce


def sizes_of(n, size, steps, drop_last=False):
    return [len(b) for b in batches(n, size, steps, torch.Generator().manual_seed(0), drop_last)]


def trained(setting, client=0, round=1, **options):
    """A client's network after one round of local work, and the inputs of its batches."""
    me = setting.client(client, round, {})
    net, seen = me.build(), []

    def loss(x, y):
        seen.append(x.clone())
        return ce(net(x), y)

    fit(net, me, loss, **options)
    return params(net), seen


@pytest.fixture
def one_weight(rows, logistic, small_setting):
    """x = 2, class 1, from w = 0: the gradient is -1 in the first step and -2 (1 - sigmoid(2 w)) in general."""

    def make(**work):
        data = rows([[2.0]] * 3, [1] * 3)
        given = {"work": "fixed_steps", "steps": 1, "batch": 3, "lr": 0.1, **work}
        return small_setting([], sites=[Site(data, data)], networks=[logistic], classes=2, work=LocalWork(**given))

    return make


def gradient(w):
    return -2 / (1 + math.exp(2 * w))


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "size", "drop_last", "cuts"),
    [
        (8, 4, False, [4, 4]),
        (9, 4, False, [4, 5]),  # a last batch of one joins the one before it
        (10, 4, False, [4, 4, 2]),
        (9, 4, True, [4, 4]),
        (11, 4, True, [4, 4]),
        (3, 4, False, [3]),  # fewer samples than a batch make one smaller batch,
        (3, 4, True, [3]),  # also where partial batches are dropped
        (1, 4, False, [1]),
        (5, 4, False, [5]),
        (3, 1, False, [1, 1, 1]),
    ],
)
def test_batch_sizes(n, size, drop_last, cuts):
    assert sizes_of(n, size, len(cuts), drop_last) == cuts
    assert sizes_of(n, size, 2 * len(cuts), drop_last) == cuts * 2
    assert LocalWork(batch=size, drop_last=drop_last).steps_for(n=n, mean_size=0) == len(cuts)


@given(st.integers(1, 60), st.integers(1, 20), st.booleans())
def test_every_pass_meets_each_sample_once_in_batches_of_more_than_one(n, size, drop_last):
    steps = LocalWork(batch=size, drop_last=drop_last).steps_for(n=n, mean_size=0)
    met = list(batches(n, size, steps, torch.Generator().manual_seed(0), drop_last))
    everything = torch.cat(met).tolist()
    assert len(everything) == len(set(everything))
    assert len(everything) == (n if not drop_last or n <= size else n - n % size)
    assert all(len(b) <= size + 1 for b in met)
    if min(n, size) > 1:
        assert all(len(b) >= 2 for b in met)


def test_passes_are_shuffled_anew_and_end_with_the_steps():
    first, second, third = torch.stack(list(batches(50, 50, 3, torch.Generator().manual_seed(0))))
    assert first.sort().values.tolist() == list(range(50))
    assert first.tolist() != second.tolist() != third.tolist()
    assert sizes_of(10, 4, 5) == [4, 4, 2, 4, 4]


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "steps"), [pytest.param(9_984, 70, id="EMNIST letters, 10 %"), pytest.param(40_000, 310, id="CIFAR")]
)
def test_equal_steps_of_fedkf(train, steps):
    # 20 clients, batches of 64, 10 epochs of 7 and of 31 batches, for small and large clients alike.
    work = LocalWork(work="equal_steps", epochs=10, batch=64)
    assert {work.steps_for(n=n, mean_size=train / 20) for n in (195, 640, 4000)} == {steps}


def test_equal_steps_of_the_published_emnist_split(rows, logistic, small_setting):
    published = [401, 542, 814, 948, 800, 582, 676, 635, 677, 743, 537, 274, 495, 919, 622, 506, 537, 523, 765, 484]
    sites = []
    for size in published:
        data = rows([[0.0]] * (size * 8 // 10), [0] * (size * 8 // 10))
        sites.append(Site(data, data))
    work = LocalWork(work="equal_steps", epochs=10, batch=64)
    setting = small_setting([], sites=sites, networks=[logistic], classes=2, work=work)
    assert {setting.steps(k) for k in setting.ids} == {70}


def test_equal_steps_are_at_least_one_a_pass():
    assert LocalWork(work="equal_steps", epochs=3, batch=64).steps_for(n=5, mean_size=10.0) == 3


def test_fixed_steps_and_epochs():
    assert LocalWork(work="fixed_steps", steps=20, epochs=7).steps_for(n=5, mean_size=1) == 20
    assert LocalWork(epochs=3, batch=10).steps_for(n=25, mean_size=1000) == 9


@pytest.mark.parametrize("work", [{"epochs": 2}, {"work": "fixed_steps", "steps": 5}, {"work": "equal_steps"}])
def test_the_meter_counts_the_steps_taken(work, small_setting):
    setting = small_setting([10, 30], work=LocalWork(batch=4, **work))
    me = setting.client(0, 1, {})
    net = me.build()
    fit(net, me, lambda x, y: ce(net(x), y))
    assert me.meter.steps == me.steps == setting.steps(0)
    fit(net, me, lambda x, y: ce(net(x), y), steps=2)
    assert me.meter.steps == me.steps + 2


# --- rates -----------------------------------------------------------------------------------------------------------


def test_decay_by_hand():
    assert [LocalWork(lr=0.1, lr_decay=0.5).lr_at(t) for t in (1, 2, 3)] == pytest.approx([0.1, 0.05, 0.025])


def test_cosine_by_hand():
    work = LocalWork(lr=0.1, schedule="cosine", horizon=12)
    cosines = {1: 1, 5: 0.5, 7: 0, 9: -0.5, 13: -1, 20: -1}
    assert [work.lr_at(t) for t in cosines] == pytest.approx([0.05 * (1 + c) for c in cosines.values()], abs=1e-12)


def test_steps_by_hand():
    work = LocalWork(lr=0.1, schedule="step", step_every=10, step_factor=0.1, lr_decay=1.0)
    assert [work.lr_at(t) for t in (1, 10, 11, 20, 21)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


def test_schedule_and_decay_multiply():
    work = LocalWork(lr=0.8, lr_decay=0.5, schedule="step", step_every=2, step_factor=0.1)
    assert work.lr_at(3) == pytest.approx(0.8 * 0.25 * 0.1)


def test_the_rounds_rate_is_the_one_used(one_weight):
    assert trained(one_weight(lr_decay=0.5), round=3)[0]["w"].item() == pytest.approx(0.025, abs=1e-8)


# --- optimisers ------------------------------------------------------------------------------------------------------


def test_sgd_by_hand(one_weight):
    w = 0.1
    assert trained(one_weight())[0]["w"].item() == pytest.approx(w, abs=1e-8)
    assert trained(one_weight(steps=2))[0]["w"].item() == pytest.approx(w - 0.1 * gradient(w), abs=1e-7)


def test_momentum_by_hand(one_weight):
    w, v = 0.1, -1.0
    v = 0.9 * v + gradient(w)
    assert trained(one_weight(steps=2, momentum=0.9))[0]["w"].item() == pytest.approx(w - 0.1 * v, abs=1e-7)


def test_weight_decay_by_hand(one_weight):
    w = 0.1
    decayed = w - 0.1 * (gradient(w) + 0.5 * w)
    assert trained(one_weight(steps=2, weight_decay=0.5))[0]["w"].item() == pytest.approx(decayed, abs=1e-7)


def test_adams_first_step_has_the_length_of_the_rate(one_weight):
    # Whatever the gradient (-1 here), the first step is lr * g / |g|.
    assert trained(one_weight(optimiser="adam", lr=0.03))[0]["w"].item() == pytest.approx(0.03, abs=1e-6)
    assert trained(one_weight(optimiser="sgd", lr=0.03))[0]["w"].item() == pytest.approx(0.03, abs=1e-8)
    two_adam, two_sgd = (trained(one_weight(optimiser=o, lr=0.03, steps=2))[0]["w"].item() for o in ("adam", "sgd"))
    assert two_adam == pytest.approx(0.06, abs=1e-4)
    assert two_sgd == pytest.approx(0.03 - 0.03 * gradient(0.03), abs=1e-7)


@pytest.mark.parametrize(("clip", "expected"), [(0.25, 0.025), (1.0, 0.1), (5.0, 0.1)])
def test_clipping_by_hand(one_weight, clip, expected):
    assert trained(one_weight(clip=clip))[0]["w"].item() == pytest.approx(expected, abs=1e-6)


def test_clipping_is_of_the_norm_over_all_parameters(small_setting):
    setting = small_setting([6], work=LocalWork(batch=6, lr=1.0, clip=0.01))
    start, end = params(setting.client(0, 1, {}).build()), trained(setting)[0]
    assert math.sqrt(sum(float(((end[n] - start[n]) ** 2).sum()) for n in start)) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_optimiser_state_does_not_outlive_the_round(one_weight, optimiser):
    """Two rounds of one step: momentum would show in the second, and Adam's would not be of full length."""

    def two_rounds(momentum):
        setting = one_weight(momentum=momentum, optimiser=optimiser)
        net = setting.client(0, 1, {}).build()
        for t in (1, 2):
            fit(net, setting.client(0, t, {}), lambda x, y: ce(net(x), y))
        return net.w.item()

    expected = 0.1 - 0.1 * gradient(0.1) if optimiser == "sgd" else 0.2
    assert two_rounds(0.9) == two_rounds(0.0)
    assert two_rounds(0.9) == pytest.approx(expected, abs=1e-6)


def test_frozen_parameters_are_not_trained(small_setting, small):
    def network():
        net = small()
        net.body.requires_grad_(False)
        return net

    setting = small_setting([8], networks=[network], work=LocalWork(batch=4, lr=0.1, weight_decay=0.1))
    start, end = params(setting.client(0, 1, {}).build()), trained(setting)[0]
    assert torch.equal(end["body.weight"], start["body.weight"])
    assert not torch.equal(end["out.weight"], start["out.weight"])


# --- streams ---------------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_its_address(small_setting):
    setting = small_setting([10, 10], work=LocalWork(epochs=2, batch=4), seed=7)
    _, seen = trained(setting, client=1, round=3)
    order = rng.generator(7, "batches", 3, 1)
    expected = [setting.sites[1].train.take(p)[0] for p in batches(10, 4, 6, order)]
    assert [x.tolist() for x in seen] == [x.tolist() for x in expected]


def test_nothing_drawn_elsewhere_shifts_a_client(small_setting, small):
    setting = small_setting([10, 10], networks=[small], work=LocalWork(batch=4, lr=0.1))
    alone = trained(setting, client=1)[0]
    torch.rand(13)  # on purpose
    trained(setting, client=0)
    assert equal(trained(setting, client=1)[0], alone)


def test_rounds_clients_stages_and_seeds_have_orders_of_their_own(small_setting, rows):
    data = rows([[float(i), 0.0, 0.0, 0.0] for i in range(30)], [0] * 30)
    sites = [Site(data, data), Site(data, data)]

    def order(seed=0, **options):
        setting = small_setting([], sites=sites, work=LocalWork(batch=30), seed=seed)
        return tuple(trained(setting, **options)[1][0][:, 0].tolist())

    orders = [order(), order(client=1), order(round=2), order(stage="second phase"), order(seed=1)]
    assert len(set(orders)) == 5
    assert order() == orders[0]


def test_augmentation_draws_from_a_stream_beside_the_order(small_setting):
    drawn = []

    def curious(x, noise):
        drawn.append(torch.rand(len(x), generator=noise))
        return x

    work = LocalWork(epochs=2, batch=4, lr=0.1)
    plain, watched = small_setting([10], work=work), small_setting([10], work=work, augment=curious)
    assert equal(trained(plain)[0], trained(watched)[0])
    stream = rng.generator(0, "batches/augment", 1, 0)
    assert all(torch.equal(d, torch.rand(len(d), generator=stream)) for d in drawn)
    assert len(drawn) == 6


def test_augmentation_reaches_the_loss(small_setting):
    setting = small_setting([8], work=LocalWork(batch=8), augment=lambda x, noise: x * 0 + 3)
    assert torch.equal(trained(setting)[1][0], torch.full((8, 4), 3.0))


# --- BatchNorm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("batch", [1, 4])
def test_no_size_breaks_batch_norm(n, batch, small_setting, small):
    setting = small_setting([n], networks=[lambda: small(batch_norm=True)], work=LocalWork(batch=batch, lr=0.1))
    end, _ = trained(setting)
    assert all(torch.isfinite(t).all() for t in end.values())
    assert int(end["norm.num_batches_tracked"]) == (0 if 1 in (n, batch) else setting.steps(0))


# --- predict, params, load -------------------------------------------------------------------------------------------


def test_predict_is_in_order_in_eval_mode_and_in_one_piece(small_setting, small):
    data = small_setting([11]).sites[0].train
    net = small(batch_norm=True, dropout=0.5)
    net.train()
    logits = predict(net, data, batch=4)
    assert torch.allclose(logits, net.eval()(data.inputs), atol=1e-6)
    assert not logits.requires_grad
    assert int(net.norm.num_batches_tracked) == 0


def test_params_are_a_copy_with_buffers_and_load_puts_them_back(small):
    net = small(batch_norm=True)
    held = params(net)
    assert set(held) == set(net.state_dict())
    with torch.no_grad():
        net.body.weight.zero_()
    assert held["body.weight"].abs().sum() > 0
    assert not any(t.requires_grad for t in held.values())
    assert equal(params(load(net, held)), held)


def test_weights_that_do_not_fit_are_refused(small):
    with pytest.raises(UsageError, match=r"these weights do not fit the network: .*size mismatch"):
        load(small(), {**small().state_dict(), "out.bias": torch.zeros(7)})
    with pytest.raises(UsageError, match=r"these weights do not fit the network: .*norm"):
        load(small(batch_norm=True), nn.Module.state_dict(small()))


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("epochs", 0, "training.epochs = 0 must be at least 1"),
        ("batch", 0, "training.batch = 0 must be at least 1"),
        ("lr", 0.0, r"training\.lr = 0\.0 must"),
        ("lr", math.nan, r"training\.lr = nan must"),
        ("lr_decay", -1, r"training\.lr_decay = -1 must"),
        ("momentum", 1.0, r"training\.momentum = 1\.0 must"),
        ("weight_decay", -0.1, r"training\.weight_decay = -0\.1 must"),
        ("clip", 0.0, r"training\.clip = 0\.0 must"),
    ],
)
def test_impossible_work_is_refused_in_a_sentence(option, value, sentence):
    with pytest.raises(UsageError, match=sentence):
        LocalWork(**{option: value})


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_flat_sgd_is_torchs_sgd_number_by_number(momentum, weight_decay, layout):
    x, y = torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3
    ends = []
    for flat in (True, False):
        with rng.seeded(0, "net"):
            net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        net = laid_out(net, layout)
        parameters = list(net.parameters())
        optimiser = (
            FlatSGD(parameters, 0.1, momentum, weight_decay)
            if flat
            else torch.optim.SGD(parameters, lr=0.1, momentum=momentum, weight_decay=weight_decay)
        )
        for _ in range(4):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        ends.append(params(net))
    assert tree.equal(*ends)


def test_parameters_of_different_kinds_do_not_lie_in_one_vector():
    assert FlatSGD.fits([nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4))])
    assert not FlatSGD.fits([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))])
    assert not FlatSGD.fits([nn.Parameter(torch.ones(4, 4)[:, ::2])])
