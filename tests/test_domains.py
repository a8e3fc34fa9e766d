"""Two heads on one trunk, and the adversarial game: the equations by hand, and where Theorem 1 says it ends."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from fedalloy.errors import UsageError
from fedalloy.knowledge.domains import (
    TwoHeads,
    TwoHeadsOnFeatures,
    discriminator_loss,
    domain_head,
    generator_loss,
    gradient_penalty,
)
from fedalloy.nets.models import create
from fedalloy.nets.models.base import parameter_count
from fedalloy.train.costs import Meter, metered
from fedalloy.train.fit import params

RESNET = partial(create, "resnet11", classes=10, channels=3, size=32)


def two_heads(make=RESNET, shared=None, meter=None):
    net, fresh = make(), make()
    if meter is not None:
        metered(net, meter), metered(fresh, meter)
    return TwoHeads(net, fresh, domain_head(net.projected_shape), shared, meter)


# --- sharing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shared", "own"), [(None, 257), (4, 257), (0, 381_072 + 257), (1, 381_072 - 464 + 257)], ids=str
)
def test_the_discriminator_is_the_classifiers_trunk_and_a_head(shared, own):
    """The trunk has four layers: a convolution with its BatchNorm (464 numbers), and three blocks."""
    two = two_heads(shared=shared)
    assert parameter_count(two) - parameter_count(two.net) == own
    trainable = {name for name, _ in two.named_parameters() if not name.startswith("net.")}
    assert sum(two.own_weights()[name].numel() for name in trainable) == own


@pytest.mark.parametrize(
    ("name", "options", "layers", "own"),
    [
        ("lenet5", {}, 4, 84 + 1),
        ("simple-cnn", {"projection": False}, 4, 84 + 1),
        ("simple-cnn", {}, 6, 256 + 1),
        ("resnet8", {"width": 16}, 4, 64 + 1),
    ],
)
def test_all_layers_but_the_last_are_shared(name, options, layers, own):
    """The paper's section 4.1: every layer before the last fully connected one, wherever a network's features end."""
    make = partial(create, name, classes=10, channels=3, size=32, **options)
    two = two_heads(make)
    assert sum(t.numel() for t in two.own_weights().values()) == own
    two.judge(two.start(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))).sum().backward()
    pulled = {n: p.grad is not None for n, p in two.net.named_parameters()}
    last = f"head.{len(two.net.head) - 1}."
    assert all(got == (not n.startswith(last)) for n, got in pulled.items())
    assert two_heads(make, shared=layers).own_weights().keys() == two.own_weights().keys()
    with pytest.raises(UsageError, match=f"the network has {layers} before its last"):
        two_heads(make, shared=layers + 1)


def test_a_feature_enters_where_features_end():
    two = two_heads(partial(create, "simple-cnn", classes=10, channels=3, size=32))
    behind = TwoHeadsOnFeatures(two.net, two.net, two.head, None)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(behind.start(behind.seen(x)), two.start(two.seen(x)))


def test_shared_layers_are_the_same_storage():
    two = two_heads(shared=1)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    two.judge(two.start(x)).sum().backward()
    pulled = [p.grad is not None for p in two.net.features.parameters()]
    assert pulled[:3] == [True] * 3  # the convolution, its scale and shift
    assert not any(pulled[3:])
    whole = two_heads()
    whole.judge(whole.start(x)).sum().backward()
    assert all(p.grad is not None for p in whole.net.features.parameters())
    assert all(p.grad is None for p in whole.net.head.parameters())


@pytest.mark.parametrize("shared", [None, 0, 1, 2, 3])
def test_the_classifier_is_what_it_was_wherever_it_is_cut(shared):
    make = partial(create, "lenet5", classes=5, channels=1, size=28)
    two, x = two_heads(make, shared), torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(3))
    logits, domain = two.both(two.start(x))
    assert torch.equal(logits, two.net(x))
    assert domain.shape == (3,)


def test_weights_go_in_as_they_came_out():
    one, other = two_heads(shared=2), two_heads(shared=2)
    other.load(params(one.net), one.own_weights())
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    for a, b in zip(one.eval().both(one.start(x)), other.eval().both(other.start(x)), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(UsageError, match="do not fit"):
        other.load(params(one.net), {})


def test_a_map_is_averaged_before_its_head():
    head = domain_head((2, 3, 3))
    head[-1].weight.data, head[-1].bias.data = torch.tensor([[1.0, -2.0]]), torch.tensor([0.5])
    x = torch.stack([torch.full((3, 3), 4.0), torch.arange(9.0).view(3, 3)])[None]
    assert head(x).item() == 4.0 - 2 * 4.0 + 0.5


def test_more_layers_than_there_are_cannot_be_shared():
    with pytest.raises(UsageError, match="shared_layers = 5 is impossible: the network has 4 before its last"):
        two_heads(shared=5)


@pytest.mark.parametrize(("shared", "both"), [(None, 1.0), (0, 2.0), (1, 2.0)])
def test_two_heads_on_one_trunk_are_one_pass(shared, both):
    meter = Meter()
    two, x = (
        two_heads(shared=shared, meter=meter),
        torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5)),
    )
    two.both(two.start(x))
    assert (meter.forward, meter.backward) == (both, both)
    two.judge(two.start(x))
    assert meter.forward == both + 1


# --- the game ---------------------------------------------------------------------------------------------------------


def test_the_losses_by_hand():
    real, made = torch.tensor([0.8, 0.6]).logit(), torch.tensor([0.3, 0.5, 0.9]).logit()
    by_hand = -(math.log(0.8) + math.log(0.6) + math.log(0.7) + math.log(0.5) + math.log(0.1)) / 5
    assert discriminator_loss(real, made).item() == pytest.approx(by_hand, abs=1e-6)
    saturating = (math.log(0.7) + math.log(0.5) + math.log(0.1)) / 3
    assert generator_loss(made).item() == pytest.approx(saturating, abs=1e-6)
    other = -(math.log(0.3) + math.log(0.5) + math.log(0.9)) / 3
    assert generator_loss(made, saturating=False).item() == pytest.approx(other, abs=1e-6)


def test_for_equal_batches_the_loss_is_half_the_sum_of_two_means():
    real, made = (
        torch.randn(7, generator=torch.Generator().manual_seed(6)),
        torch.randn(7, generator=torch.Generator().manual_seed(7)),
    )
    bce = nn.functional.binary_cross_entropy_with_logits
    halves = (bce(real, torch.ones(7)) + bce(made, torch.zeros(7))) / 2
    assert torch.allclose(discriminator_loss(real, made), halves)


def test_logits_far_out_stay_finite():
    far = torch.tensor([-500.0, 500.0], requires_grad=True)
    (discriminator_loss(far, far) + generator_loss(far) + generator_loss(far, saturating=False)).backward()
    assert far.grad.isfinite().all()


def test_the_penalty_takes_one_norm_for_every_pixel():
    """f = sigmoid(w . x) has the slope f (1 - f) w; here w = (3, 4) at one pixel and 0 at the other."""
    w = torch.tensor([[3.0, 0.0], [4.0, 0.0]]).view(1, 2, 1, 2)
    same = torch.zeros(4, 2, 1, 2)  # real and made alike, so that every point between them is at f = 1/2
    found = gradient_penalty(lambda x: (w * x).flatten(1).sum(1), same, same, torch.Generator())
    assert found.item() == pytest.approx(((5 / 4 - 1) ** 2 + 1) / 2, abs=1e-6)


def test_the_penalty_has_finite_gradients_where_nothing_slopes():
    layer = nn.Linear(4, 1)
    nn.init.zeros_(layer.weight)
    gradient_penalty(
        lambda x: layer(x).squeeze(1),
        torch.rand(3, 4, generator=torch.Generator().manual_seed(8)),
        torch.rand(2, 4, generator=torch.Generator().manual_seed(9)),
        torch.Generator(),
    ).backward()
    assert layer.weight.grad.isfinite().all()


# --- Theorem 1 --------------------------------------------------------------------------------------------------------


def test_the_discriminator_of_two_known_distributions_ends_at_their_ratio():
    """f*(x) = p_k / (p_k + p) on five points, with p the mean of the client's distribution and another's."""
    own, other = torch.tensor([40, 30, 20, 10, 0]), torch.tensor([0, 10, 10, 30, 50])
    points = torch.arange(5)
    real = points.repeat_interleave(2 * own)
    made = points.repeat_interleave(own + other)  # both 200 samples, exactly in proportion
    logit = nn.Parameter(torch.zeros(5))
    adam = torch.optim.Adam([logit], lr=0.1)
    for _ in range(400):
        adam.zero_grad()
        discriminator_loss(logit[real], logit[made]).backward()
        adam.step()
    p_k, p = own / 100, (own + other) / 200
    assert torch.allclose(logit.sigmoid(), p_k / (p_k + p), atol=0.01)


def test_the_discriminator_of_two_gaussians_ends_at_their_ratio():
    """N(1, 1) against N(-0.5, 1) by their quantiles: the log ratio is 1.5 x - 0.375, which a linear layer can be."""
    quantiles = torch.distributions.Normal(0, 1).icdf((torch.arange(2000) + 0.5) / 2000)[:, None]
    net = nn.Linear(1, 1)
    adam = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(300):
        adam.zero_grad()
        discriminator_loss(net(quantiles + 1), net(quantiles - 0.5)).backward()
        adam.step()
    assert net.weight.item() == pytest.approx(1.5, abs=0.02)
    assert net.bias.item() == pytest.approx(-0.375, abs=0.02)


def test_the_generator_ends_at_the_mean_only_in_special_cases():
    """Against discriminators at their optimum: Eq. 5's best distribution of three clients' is not their mean."""

    def ends_at(clients):
        p_k = torch.tensor(clients, dtype=torch.float64)
        choice = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        adam = torch.optim.Adam([choice], lr=0.05)
        for _ in range(400):
            p_g = choice.softmax(0)
            f = p_k / (p_k + p_g.detach())
            adam.zero_grad()
            (p_g * torch.log1p(-f * (1 - 1e-12))).sum(1).mean().backward()  # E log(1 - f(g(z))), over all clients
            adam.step()
        return choice.softmax(0)[0].item()

    assert ends_at([[1.0, 0.0], [0.0, 1.0]]) == pytest.approx(0.5, abs=1e-3)
    assert ends_at([[0.7, 0.3]] * 2) == pytest.approx(0.7, abs=1e-3)
    assert ends_at([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]) == pytest.approx(0.7675, abs=2e-3)
