"""FedGen: losses and steps by hand, what makes it FedAvg, what the generator learns from, and what it all costs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.tree import digest, equal
from fedalloy.check.method import check_method, small_settings
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, State, hyper_parameters, initial
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Site
from fedalloy.knowledge.server_generator import average_ce, diversity_loss, label_distribution, weighted_ce
from fedalloy.methods import FedAvg, FedGen
from fedalloy.nets.generators import FeatureGenerator
from fedalloy.nets.models import FeatureNet, create
from fedalloy.train.fit import LocalWork, frozen, load, params

SMALL = {"noise": 3, "hidden": 8, "generator_steps": 3, "generator_batch": 6}


def plain():
    """Four inputs, five features after a ReLU, three classes."""
    return FeatureNet(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Sequential(nn.Linear(5, 3)), (5,))


def rich():
    """BatchNorm and dropout on both sides of the cut, where a second pass would leave a trace."""
    features = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.ReLU())
    head = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    return FeatureNet(features, head, (5,))


def close(a, b, atol=1e-6):
    return all(torch.allclose(t.double(), b[name].double(), rtol=0, atol=atol) for name, t in a.items())


# The losses


def test_label_distribution_by_hand():
    counts = [torch.tensor([6, 2, 0]), torch.tensor([0, 2, 0])]
    assert label_distribution(counts).tolist() == pytest.approx([0.6, 0.4, 0.0])
    # By size: 8 (6, 2, 0) + 2 (0, 2, 0) = (48, 20, 0).
    assert label_distribution(counts, [8, 2]).tolist() == pytest.approx([48 / 68, 20 / 68, 0.0])
    # Uniformly over the labels that somebody holds, however few: counts from 1, the largest of label 2 is not above 1.
    assert label_distribution(counts, uniform=True).tolist() == [0.5, 0.5, 0.0]
    assert label_distribution(counts).dtype == label_distribution(counts, uniform=True).dtype == torch.float32


def test_averaged_logits_by_hand():
    # Heads say (ln 3, 0) and (0, ln 9); with a = (3/4, 1/4) the mean is (0.75 ln 3, 0.5 ln 3).
    logits = torch.tensor([[[math.log(3), 0.0]], [[0.0, math.log(9)]]])
    expected = math.log(1 + math.exp((0.5 - 0.75) * math.log(3)))
    assert average_ce(logits, torch.tensor([0]), [0.75, 0.25]).item() == pytest.approx(expected, abs=1e-6)


def test_equal_heads_speak_as_one():
    logits = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6) % 3
    together = average_ce(logits.expand(4, 6, 3), labels, [0.1, 0.2, 0.3, 0.4])
    assert together.item() == pytest.approx(F.cross_entropy(logits[0], labels).item(), abs=1e-6)
    counts = [torch.tensor([5, 1, 2]), torch.tensor([0, 3, 2]), torch.tensor([1, 1, 4]), torch.tensor([2, 0, 0])]
    per_label = weighted_ce(logits.expand(4, 6, 3), labels, counts)  # the weights of a label sum to one
    assert per_label.item() == pytest.approx(F.cross_entropy(logits[0], labels).item(), abs=1e-6)


def test_weighted_ce_weighs_each_label_by_itself():
    # CE of head k on samples (0, 1): (a, b) and (c, d). Counting from 1, the clients hold 8 to 1 and 2 to 4.
    logits = torch.tensor([[[0.0, 1.0], [0.5, 0.0]], [[2.0, 0.0], [0.0, 3.0]]])
    labels, counts = torch.tensor([0, 1]), [torch.tensor([7, 1]), torch.tensor([0, 3])]
    (a, b), (c, d) = ((math.log(1 + math.exp(x)) for x in pair) for pair in ((1.0, 0.5), (-2.0, -3.0)))
    ours = weighted_ce(logits, labels, counts).item()
    assert ours == pytest.approx((8 / 9 * a + 2 / 6 * b) / 2 + (1 / 9 * c + 4 / 6 * d) / 2, abs=1e-6)
    # In FedGen's code, the weights fall together to a product of means by a slip in broadcasting.
    means = weighted_ce(logits, labels, counts, by_sample=False).item()
    assert means == pytest.approx((a + b) / 2 * (8 / 9 + 2 / 6) / 2 + (c + d) / 2 * (1 / 9 + 4 / 6) / 2, abs=1e-6)
    assert abs(ours - means) > 0.03


def test_weighted_ce_weighs_all_alike_where_nobody_has_a_label():
    counts = [torch.tensor([2, 0, 1]), torch.tensor([2, 0, 3])]
    sure_and_not = torch.tensor([[[0.0, 50.0, 0.0]], [[50.0, 0.0, 0.0]]])
    assert weighted_ce(sure_and_not, torch.tensor([1]), counts).item() == pytest.approx(25.0)


def test_diversity_by_hand():
    noise, features = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 3.0]])
    # Two of the four pairs differ: mean square 5, mean distance 2.
    assert diversity_loss(noise, features).item() == pytest.approx(math.exp(-2 * 5 * 2 / 4), rel=1e-5)


@pytest.mark.parametrize("rows", [2, 64])
def test_diversity_lies_in_0_1_and_is_1_where_rows_coincide(rows):
    draw = torch.Generator().manual_seed(rows)
    noise, features = torch.rand(rows, 4, generator=draw), torch.randn(rows, 2, 3, 3, generator=draw)
    assert 0 < diversity_loss(noise, features).item() < 1
    assert diversity_loss(noise[:1].expand(rows, 4), features).item() == 1.0
    assert diversity_loss(noise, features[:1].expand(rows, 2, 3, 3)).item() == 1.0


def test_diversity_pushes_features_apart():
    noise, features = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(diversity_loss(noise, features), features)
    assert gradient[0] > 0 > gradient[1]


# The client


@pytest.fixture
def skewed(small_setting):
    """Four clients, two of them active in each round."""
    return small_setting(
        [5, 9, 12, 7],
        networks=[plain],
        work=LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.9, weight_decay=1e-3),
        participation=Participation(policy="fraction", fraction=0.5),
    )


features = partial(FeatureGenerator, (5,), 3, 3, 8)


def constant_generator(feature, **options):
    """A generator whose features are the same for all noise and labels."""
    make = FeatureGenerator((len(feature),), 2, **options)
    nn.init.zeros_(make.out.weight)
    make.out.bias.data = torch.tensor(feature)
    return params(make)


def test_a_step_by_hand(rows, small_setting):
    # Untrained head, one real sample with feature (0, 0) of class 0, one generated feature (2, 4) of class 1:
    # p = 1/2, so that the biases' gradients are (-1/2, 1/2) + 3 (1/2, -1/2) and the weights' 3 (1/2, -1/2) x (2, 4).
    data = rows([[0.0, 0.0]], [0])

    def network():
        return FeatureNet(nn.Sequential(nn.ReLU()), nn.Sequential(nn.Linear(2, 2)), (2,))

    setting = small_setting(
        [], sites=[Site(data, data)], networks=[network], classes=2, work=LocalWork(batch=1, lr=0.1)
    )
    body = {
        "model": {"head.0.weight": torch.zeros(2, 2), "head.0.bias": torch.zeros(2)},
        "generator": constant_generator([2.0, 4.0], noise=3, hidden=8),
        "labels": torch.tensor([0.0, 1.0]),
    }
    sent = FedGen(weight=3.0, **SMALL).train(setting.client(0, 2, {}), Message("train", 0, body)).body
    assert torch.allclose(sent["model"]["head.0.bias"], torch.tensor([-0.1, 0.1]))
    assert torch.allclose(sent["model"]["head.0.weight"], torch.tensor([[-0.3, -0.6], [0.3, 0.6]]))
    assert sent["n"] == 1
    assert sent["counts"].tolist() == [1, 0]
    assert sent.keys() == {"model", "n", "counts"}


# FedGen's code counts rounds from 0. In round 2000 the first weight has reached its floor.
@pytest.mark.parametrize(
    ("t", "weight", "alpha", "beta"),
    [(2, 5.0, 5 * 0.98, 3 * 0.98), (2000, 5.0, 1e-4, 1e-4), (9, 0.0, 0.0, 3 * 0.98**8)],
)
def test_the_latent_term_by_hand(t, weight, alpha, beta, rows, small_setting):
    # The head is the identity. Real feature (1, 0); G gives (2, 4) for both terms.
    data = rows([[1.0, 0.0]], [0])

    def network():
        return FeatureNet(nn.Sequential(nn.ReLU()), nn.Sequential(nn.Linear(2, 2)), (2,))

    setting = small_setting(
        [], sites=[Site(data, data)], networks=[network], classes=2, work=LocalWork(batch=1, lr=0.1)
    )
    body = {
        "model": {"head.0.weight": torch.eye(2), "head.0.bias": torch.zeros(2)},
        "generator": constant_generator([2.0, 4.0], noise=3, hidden=8),
        "labels": torch.tensor([1.0, 0.0]),
    }
    method = FedGen(weight=weight, decay=0.98, latent_weight=3.0, **SMALL)
    sent = method.train(setting.client(0, t, {}), Message("train", 0, body)).body
    # Of the first class: p of the real logits, q of the generated ones; the gradients of the logits' first part are
    # p - 1 for CE, p - q for KL with q as its target, q - 1 for CE on the generated feature with label 0.
    p, q = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(2))
    bias = (p - 1) + alpha * (q - 1) + beta * (p - q)
    assert torch.allclose(sent["model"]["head.0.bias"], torch.tensor([-0.1 * bias, 0.1 * bias]), atol=1e-5)


def test_the_gradient_of_generated_features_reaches_the_head_only(skewed):
    one_step = replace(skewed, work=LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.1))
    generator = params(initial(features, 0))  # one in some hundred makes nothing but zeros
    body = {"model": params(initial(plain, 0)), "generator": generator, "labels": torch.ones(3) / 3}
    ours, fedavg = (
        m.train(one_step.client(0, 2, {}), Message("train", 0, body)).body["model"]
        for m in (FedGen(weight=5.0, **SMALL), FedAvg())
    )
    same = {name: torch.equal(t, fedavg[name]) for name, t in ours.items()}
    assert same == {"features.0.weight": True, "features.0.bias": True, "head.0.weight": False, "head.0.bias": False}


def test_the_label_distribution_is_what_labels_are_drawn_from(skewed):
    # A head that learns from one generated label only comes to prefer it.
    body = {"model": params(initial(plain, 0)), "generator": params(initial(features, 0))}
    biases = []
    for label in range(3):
        only = F.one_hot(torch.tensor(label), 3).float()
        msg = Message("train", 0, {**body, "labels": only})
        biases.append(FedGen(weight=50.0, **SMALL).train(skewed.client(0, 2, {}), msg).body["model"]["head.0.bias"])
    assert [int(b.argmax()) for b in biases] == [0, 1, 2]


def test_the_generator_answers_in_eval_mode_and_does_not_change(skewed, monkeypatch):
    answering = []

    def noted(net):
        answering.append((net, digest(net.state_dict())))
        return frozen(net)

    monkeypatch.setitem(FedGen.train.__globals__, "frozen", noted)
    sent = params(initial(features, 0))
    before = digest(sent)
    body = {"model": params(initial(plain, 0)), "generator": sent, "labels": torch.ones(3) / 3}
    FedGen(**SMALL).train(skewed.client(0, 2, {}), Message("train", 0, body))
    [(generator, loaded)] = answering
    assert not generator.training
    # With BatchNorm's statistics, which a pass in training mode would move in the client's copy.
    assert digest(generator.state_dict()) == loaded == before == digest(sent)


# The degenerate cases


def averaging(state):
    return {name: state[name] for name in ("model", "cache")}


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("network", [plain, rich])
def test_weight_zero_is_fedavg_bit_for_bit(network, optimiser, skewed, play):
    setting = replace(skewed, networks=[network], work=replace(skewed.work, optimiser=optimiser))
    zero, some, fedavg = (
        play(m, setting, 3)
        for m in (
            FedGen(weight=0.0, decay=0.9, **SMALL),
            FedGen(weight=0.0, latent_weight=0.5, **SMALL),
            FedAvg(),
        )
    )
    for a, b in zip(zero.states, fedavg.states, strict=True):
        assert equal(averaging(a), averaging(b))
    assert not equal(some.model, fedavg.model)
    assert zero.rounds[2].ledger.passes()["clients"]["generator_forward"] > 0  # the term was there, and weighed nothing


def test_the_first_round_is_fedavg_and_the_second_is_not(skewed, play):
    ours, fedavg = (play(m, replace(skewed, networks=[rich]), 2) for m in (FedGen(weight=9.0, **SMALL), FedAvg()))
    assert equal(averaging(ours.states[1]), averaging(fedavg.states[1]))
    assert not equal(ours.model, fedavg.model)
    first, second = (dict(r.ledger.down) for r in ours.rounds)
    assert first == dict(fedavg.rounds[0].ledger.down)
    assert second["generator"] > 0


def test_it_stays_fedavg_until_a_reply_has_come(skewed, play):
    silent = replace(skewed, participation=replace(skewed.participation, late_drop=0.999999))
    played = play(FedGen(**SMALL), silent, 2)
    assert played.rounds[1].lost
    assert equal(played.states[0].body, played.states[2].body)
    assert "generator" not in played.rounds[1].ledger.down


def test_from_round_one_clients_learn_from_an_untrained_generator_with_uniform_labels(skewed, play):
    played = play(FedGen(start_round=1, weight=9.0, **SMALL), skewed, 1)
    start = played.states[0]
    assert start["labels"].tolist() == pytest.approx([1 / 3] * 3)
    assert equal(start["generator"], params(initial(features, skewed.seed, purpose="generator")))
    assert played.rounds[0].ledger.down["generator"] > 0
    assert played.rounds[0].ledger.clients.generator_forward > 0
    assert not equal(played.model, play(FedAvg(), skewed, 1).model)


def test_generated_features_may_start_later(skewed, play):
    late, soon = (play(FedGen(start_round=t, **SMALL), skewed, 3) for t in (3, 2))
    assert equal(averaging(late.states[2]), averaging(play(FedAvg(), skewed, 2).states[2]))
    assert ["generator" in r.ledger.down for r in late.rounds] == [False, False, True]
    assert equal(late.states[1].body, soon.states[1].body)  # the generator learns from the first round on


def test_generated_features_may_end_within_a_round(skewed):
    generator = params(initial(features, 0))
    body = {"model": params(initial(plain, 0)), "generator": generator, "labels": torch.ones(3) / 3}

    def trained(steps, **options):
        setting = replace(skewed, work=LocalWork(work="fixed_steps", steps=steps, batch=4, lr=0.1))
        me = setting.client(0, 2, {})
        return FedGen(**SMALL, **options).train(me, Message("train", 0, body)).body["model"], me.meter

    (all_steps, meter), (few, few_meter), (one, _) = trained(3), trained(3, generated_steps=1), trained(1)
    assert (meter.generator_forward, few_meter.generator_forward) == (3, 1)
    assert equal(trained(1, generated_steps=1)[0], one)
    assert not equal(few, all_steps)


def test_features_are_those_of_the_last_layer(small_setting, play):
    """The generator then makes the last layer's inputs, and only that layer learns from them."""
    setting = small_setting([6, 8], networks=[rich], work=LocalWork(batch=4, lr=0.1))
    method = FedGen(cut="last", weight=5.0, **SMALL)
    states = play(method, setting, 1).states
    assert states[1]["generator"]["out.bias"].shape == (6,)
    one_step = replace(setting, work=LocalWork(work="fixed_steps", steps=1, batch=4, lr=0.1))
    body = {"model": params(initial(rich, 0)), "generator": states[1]["generator"], "labels": torch.ones(3) / 3}
    ours, fedavg = (
        m.train(one_step.client(0, 2, {}), Message("train", 0, body)).body["model"] for m in (method, FedAvg())
    )
    assert {name for name, t in ours.items() if not torch.equal(t, fedavg[name])} == {"head.4.weight", "head.4.bias"}
    whole = FedGen(weight=5.0, **SMALL)
    assert whole.new_generator(Serial(setting).open(whole, 1)).shape == (5,)


def test_both_views(skewed, play):
    method = FedGen(**SMALL)
    state = play(method, skewed, 3).states[-1]
    assert method.models(state).keys() == {"aca", "oca"}
    assert FedGen(cache=Cache(oca=False), **SMALL).models(State(0, {"model": state["model"]})).keys() == {"aca"}


# The server


def taught(method, setting, rounds=1):
    """The server's states after each round, and the replies to each."""
    engine, states, heard = Serial(setting), [], []
    state = State(0, method.init(engine.open(method, 0)))
    for t in range(1, rounds + 1):
        fed = engine.open(method, t)
        ask = fed.ask
        fed.ask = lambda *args, _ask=ask, **body: heard.append(_ask(*args, **body)) or heard[-1]
        state = method.round(state, fed)
        states.append(state)
    return states, heard


@pytest.mark.parametrize("network", [plain, rich])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"diversity": 0.0, "weights": "uniform"},
        {"server_loss": "weighted_ce", "generator_weight_decay": 0.01},
        {"server_loss": "weighted_ce", "labels": "uniform", "generator_lr_decay": 0.5},
        {"variant": "fedkf"},
        {"variant": "paper", "relu": False},
        {"variant": "paper", "weights": "size", "start_round": 2},
        {"logits": "uniform"},
        {"logits": "size", "weights": "uniform"},
        {"variant": "reference"},
    ],
    ids=str,
)
def test_the_generator_learns_as_written(options, network, skewed):
    """Two rounds of the server's part, written plainly: head by head, one Adam that is never taken apart."""
    setting = replace(skewed, networks=[network])
    rule = Aggregation(weights=options.get("weights"))
    method = FedGen(**SMALL, **{name: value for name, value in options.items() if name != "weights"}, aggregation=rule)
    states, heard = taught(method, setting, 2)
    engine = Serial(setting)
    variant, written = options.get("variant"), dict(options)
    if variant == "reference":
        written |= {"relu": False, "server_loss": "weighted_means", "labels": "uniform", "cut": "last"}
        written |= {"generator_weight_decay": 0.01, "generator_lr_decay": 0.98}
    last = written.get("cut") == "last"
    shape = network().projected_shape if last else (5,)
    start = params(
        initial(partial(FeatureGenerator, shape, 3, 3, 8, written.get("relu", True)), setting.seed, purpose="generator")
    )
    generator = load(FeatureGenerator(shape, 3, 3, 8, written.get("relu", True)), start)
    optimiser = torch.optim.Adam(
        generator.parameters(), lr=1e-4, weight_decay=written.get("generator_weight_decay", 0.0)
    )
    for t, (state, replies) in enumerate(zip(states, heard, strict=True), 1):
        counts, n = torch.stack([r["counts"] for r in replies]).double(), torch.tensor([r["n"] for r in replies])
        default = "uniform" if variant == "paper" else options.get("weights", "size")
        a = n / n.sum() if options.get("logits", default) == "size" else torch.ones(len(n)) / len(n)
        mixed = (counts * n[:, None] if variant == "fedkf" else counts).sum(0)
        mixed = mixed.sign() if written.get("labels") == "uniform" else mixed
        optimiser.param_groups[0]["lr"] = 1e-4 * written.get("generator_lr_decay", 1.0) ** (t - 1)
        labels = (mixed / mixed.sum()).float()
        assert torch.allclose(state["labels"], labels)
        assert state["labels"].sum().item() == pytest.approx(1.0, abs=1e-6)
        nets = [load(network(), r["model"]).eval() for r in replies]
        stream = engine.open(method, t).rng("generated")
        for _ in range(3):
            y = torch.multinomial(labels, 6, replacement=True, generator=stream)
            draw = torch.randn if variant == "paper" else torch.rand
            eps = draw(6, 3, generator=stream)
            z = generator(eps, y)
            answers = [net.output(z) if last else net.head(z) for net in nets]
            if written.get("server_loss", "avg_logits") != "avg_logits":
                loss, smooth = torch.tensor(0.0), counts + 1
                for k, answer in enumerate(answers):
                    each = F.cross_entropy(answer, y, reduction="none")
                    weight = torch.stack([smooth[k, label] / smooth[:, label].sum() for label in y])
                    by_sample = written["server_loss"] == "weighted_ce"
                    loss = loss + ((each * weight).mean() if by_sample else each.mean() * weight.mean())
            else:
                loss = F.cross_entropy(sum(a[k] * answer for k, answer in enumerate(answers)), y)
            pairs = [(eps[i] - eps[j]).square().mean() * (z[i] - z[j]).abs().mean() for i in range(6) for j in range(6)]
            optimiser.zero_grad()
            (loss + options.get("diversity", 1.0) * torch.exp(-sum(pairs) / 36)).backward()
            optimiser.step()
        ours = dict(state["generator"])
        for name in ("hidden.0.bias", "hidden.1.running_mean"):
            del ours[name]  # BatchNorm takes this bias away: its gradient is rounding, which Adam blows up
        assert close(ours, params(generator))
    assert not close(start, states[0]["generator"], atol=1e-4)
    assert state["moments"]["0"]["step"].item() == 6  # Adam went on where it was


def test_the_heads_come_to_recognise_generated_features(skewed):
    method = FedGen(noise=3, hidden=32, generator_steps=200, generator_batch=32, generator_lr=1e-2, relu=False)
    work = LocalWork(epochs=30, batch=4, lr=0.1)
    (state,), (replies,) = taught(method, replace(skewed, work=work))
    generator = load(FeatureGenerator((5,), 3, 3, 32, relu=False), state["generator"]).eval()
    y = torch.multinomial(state["labels"], 200, replacement=True, generator=torch.Generator().manual_seed(1))
    z = generator(torch.rand(200, 3, generator=torch.Generator().manual_seed(2)), y)
    n = sum(r["n"] for r in replies)
    logits = sum(r["n"] / n * load(plain(), r["model"]).head(z) for r in replies)
    assert (logits.argmax(1) == y).float().mean() > 0.95


# Costs


@pytest.fixture
def letters(small_setting, random_sites):
    sites = random_sites([4, 6], shape=(1, 32, 32), classes=26)
    network = lambda: create("lenet5", classes=26, channels=1, size=32)  # noqa: E731
    return small_setting([], sites=sites, networks=[network], classes=26, work=LocalWork(epochs=2, batch=2))


def test_bytes(letters, play):
    model, generator = 252_264, 46_456 * 4 + 2 * 256 * 4 + 8  # BatchNorm's statistics, and its counter in eight bytes
    first, second = (r.ledger for r in play(FedGen(generator_steps=1), letters, 2).rounds)
    for ledger in (first, second):
        up = dict(ledger.up)
        assert up.pop("framing") > 0
        assert up == {"weights": 2 * model, "counts": 2 * 26 * 8, "scalars": 2 * 8}
    assert first.down["weights"] == first.down.total() - first.down["framing"] == 2 * model
    assert second.down["weights"] == 2 * model
    assert second.down["generator"] == 2 * generator
    assert second.down.total() - second.down["framing"] == 2 * (model + generator + 26 * 4)
    assert (model + generator + 26 * 4) / model == pytest.approx(1.745, abs=1e-3)


def test_passes(letters, play):
    first, second = (r.ledger for r in play(FedGen(generator_steps=4), letters, 2).rounds)
    steps = 2 * (2 + 3)
    assert (first.clients.steps, first.clients.forward, first.clients.backward) == (steps, steps, steps)
    assert first.clients.generator_forward == 0
    assert (second.clients.steps, second.clients.forward, second.clients.backward) == (steps, 1.5 * steps, 1.5 * steps)
    assert (second.clients.generator_forward, second.clients.generator_backward) == (steps, 0)


@pytest.mark.parametrize("network", [plain, rich])
def test_the_server_passes_each_head_in_each_step(network, skewed, play):
    # A product for all heads and one head after the other count alike: half a pass for each of two clients.
    for ledger in (r.ledger for r in play(FedGen(**SMALL), replace(skewed, networks=[network]), 2).rounds):
        server = ledger.server
        assert (server.steps, server.generator_forward, server.generator_backward) == (3, 3, 3)
        assert (server.forward, server.backward) == (3 * 2 * 0.5, 3 * 2 * 0.5)


# The contract


OTHERS = [{"variant": v} for v in ("paper", "reference", "fedkf", "dafkd")]


@pytest.mark.parametrize("options", [*OTHERS, {"aggregation": Aggregation(weights="disco")}], ids=str)
def test_contract(options):
    check_method(FedGen(noise=2, hidden=4, generator_steps=1, generator_batch=4, **options))


@pytest.mark.parametrize(
    ("variant", "differs"),
    [
        ("recommended", {}),
        ("paper", {"distribution": "normal", "logits": "uniform", "start_round": 1, "weights": "uniform"}),
        (
            "reference",
            {
                "weight": 10.0,
                "latent_weight": 1.0,
                "decay": 0.98,
                "generated_steps": 20,
                "cut": "last",
                "relu": False,
                "labels": "uniform",
                "server_loss": "weighted_means",
                "generator_lr_decay": 0.98,
                "generator_weight_decay": 0.01,
                "generator_batch": 32,
            },
        ),
        ("fedkf", {"labels": "counts_by_size"}),
        ("dafkd", {"generator_kind": "perceptron", "noise": 100, "hidden": 128, "generator_lr": 1e-3}),
    ],
)
def test_variants(variant, differs):
    def chosen(method):
        return {**hyper_parameters(method), "weights": method.aggregation.weights, "variant": ""}

    ours, theirs = chosen(FedGen()), chosen(FedGen(variant=variant))
    assert {name: value for name, value in theirs.items() if value != ours[name]} == differs
    assert FedGen(variant=variant, noise=5, labels="counts", relu=True).labels == "counts"


def test_weights_of_logits_without_a_mean_of_logits_are_refused():
    with pytest.raises(UsageError, match=r"^fedgen\.logits has no effect without server_loss = 'avg_logits'"):
        FedGen(logits="uniform", server_loss="weighted_ce")


def test_a_network_without_a_cut_is_refused(small_setting, small, play):
    with pytest.raises(UsageError, match="fedgen needs a network in two parts"):
        play(FedGen(), small_setting([4, 4], networks=[small]), 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight", -1.0),
        ("diversity", -0.5),
        ("generator_weight_decay", -1.0),
        ("generator_batch", 1),
        ("generator_steps", 0),
        ("noise", 0),
        ("hidden", 0),
        ("generator_lr", 0.0),
        ("generator_lr_decay", 0.0),
        ("labels", "count"),
    ],
)
def test_impossible_options_are_refused(name, value):
    with pytest.raises(UsageError, match=rf"^fedgen\.{name} = {value!r} must"):
        FedGen(**{name: value})


def test_dafkds_comparison_has_dafkds_generator(play):
    """Two embeddings before the layers, and its rate; the rest is ours."""
    method = FedGen(variant="dafkd", hidden=4, noise=6)
    assert (method.generator_lr, FedGen(variant="dafkd").noise, FedGen(variant="dafkd").hidden) == (1e-3, 100, 128)
    setting = small_settings()[0]
    generator = play(method, setting, 2).states[-1]["generator"]
    assert generator["of_label.weight"].shape == (4, setting.classes)
    assert generator["of_noise.weight"].shape == (4, 6)
    assert "of_label.weight" not in play(FedGen(hidden=4, noise=6), setting, 2).states[-1]["generator"]
