"""KDIA: the three frequencies by hand, the teacher, the generator's training, what clients learn and what travels."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.tree import digest, equal
from fedalloy.check.method import check_method, small_settings
from fedalloy.config.experiment import experiment, make_method, read_toml
from fedalloy.config.grid import cells
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, State
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Site
from fedalloy.knowledge import generated_features
from fedalloy.knowledge.generated_features import client_labels, diversity_loss
from fedalloy.knowledge.similarity import feature_similarity
from fedalloy.knowledge.trifreqs import tri_freqs
from fedalloy.methods import KDIA, FedAvg
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import FeatureNet, create
from fedalloy.train import beside
from fedalloy.train.fit import LocalWork, frozen, load, params
from fedalloy.train.losses import ce

TINY = dict(KDIA.card.quick)  # two epochs of three batches of four
SIZES = (10, 20, 30, 40)
ACTIVE = ({0: 1.0, 1: 2.0}, {0: 3.0, 2: 4.0}, {0: 5.0, 1: 6.0})  # what the clients of three rounds answer


def plain_net(classes=3):
    """Four inputs, a feature of five numbers, a head of two layers."""
    return FeatureNet(
        nn.Sequential(nn.Linear(4, 5), nn.ReLU()),
        nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, classes)),
        (5,),
    )


def rich_net():
    """BatchNorm and dropout on both sides of the cut, where a second pass would leave a trace."""
    features = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.ReLU())
    head = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    return FeatureNet(features, head, (5,))


# --- triFreqs ---------------------------------------------------------------------------------------------------------

VECTOR = {
    ("geometric", "all"): [0.354966, 0.390690, 0.254344, 0.0],
    ("arithmetic", "all"): [0.337874, 0.315652, 0.206277, 0.140198],
    ("geometric", "interval"): [0.413622, 0.413622, 0.152163, 0.020593],
    ("geometric", "participation"): [1 / 2, 1 / 3, 1 / 6, 0.0],
    ("geometric", "number"): [0.1, 0.2, 0.3, 0.4],
}


@pytest.mark.parametrize(("mean", "use"), list(VECTOR))
def test_the_frequencies_by_hand(mean, use):
    """After the paper's rounds 0 to 2 with {0, 1}, {0, 2}, {0, 1}: t_k = 2, 2, 1, -1; our rounds count from 1."""
    ours, papers = (tri_freqs(last, [3, 2, 1, 0], SIZES, mean=mean, use=use) for last in ([3, 3, 2, 0], [2, 2, 1, -1]))
    assert ours == pytest.approx(VECTOR[mean, use], abs=1e-6)
    assert ours == papers


def test_when_all_take_part_the_weights_are_cube_roots_of_the_sizes():
    assert tri_freqs([7] * 4, [7] * 4, SIZES) == pytest.approx([0.189051, 0.238190, 0.272659, 0.300100], abs=1e-6)
    assert tri_freqs([7] * 4, [7] * 4, [25] * 4) == pytest.approx([0.25] * 4, abs=1e-15)
    # n_k / n needs exp(t_k) c_k to go with n_k^2, here by the counts alone.
    assert tri_freqs([7] * 3, [1, 4, 9], [1, 2, 3]) == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=1e-15)


@st.composite
def histories(draw):
    """Rounds of K distinct clients out of N, and the clients' sizes."""
    n = draw(st.integers(1, 8))
    k = draw(st.integers(1, n))
    rounds = draw(st.lists(st.permutations(range(n)).map(lambda ids: ids[:k]), min_size=1, max_size=30))
    sizes = draw(st.lists(st.integers(1, 10**6), min_size=n, max_size=n))
    last, counts = [0] * n, [0] * n
    for t, active in enumerate(rounds, 1):
        for c in active:
            last[c], counts[c] = t, counts[c] + 1
    return last, counts, sizes, k, rounds[-1]


@given(histories())
def test_what_holds_for_every_history(history):
    last, counts, sizes, k, active = history
    weights = tri_freqs(last, counts, sizes)
    assert sum(weights) == pytest.approx(1, abs=1e-12)
    assert [w == 0 for w in weights] == [c == 0 for c in counts]
    assert min(weights) >= 0
    interval, part = (tri_freqs(last, counts, sizes, use=use) for use in ("interval", "participation"))
    assert all(0 < interval[c] <= 1 / k + 1e-12 for c in active)
    assert max(part) <= 1 / k + 1e-12
    assert tri_freqs(last, counts, [1000 * n for n in sizes]) == pytest.approx(weights, abs=1e-12)
    assert sum(tri_freqs(last, counts, sizes, mean="arithmetic")) == pytest.approx(1, abs=1e-12)


def test_long_absences_neither_overflow_nor_vanish():
    assert tri_freqs([2000, 1], [1, 1], [1, 1]) == pytest.approx([1.0, math.exp(-1999 / 3)], rel=1e-12)
    with pytest.raises(UsageError, match="positive sum"):
        tri_freqs([0, 0], [0, 0], [1, 2])


# --- the server -------------------------------------------------------------------------------------------------------


def three_rounds(method, fake, scalar):
    state = State(0, method.init(fake({}, sizes=SIZES)))
    states, sent = [state], []
    for answers in ACTIVE:
        fed = fake(
            {k: {"model": scalar(w), "n": SIZES[k]} for k, w in answers.items()}, sizes=SIZES, round=state.round + 1
        )
        state = method.round(state, fed)
        states.append(state)
        sent.append(fed.asked[0][2])
    return states, sent


def test_three_rounds_by_hand(fake, scalar):
    method = KDIA(lambda_gen=0)
    states, sent = three_rounds(method, fake, scalar)
    assert states[-1]["last"].tolist() == [3, 3, 2, 0]
    assert states[-1]["times"].tolist() == [3, 2, 1, 0]
    views = [method.models(s) for s in states]
    assert [v["student"]["w"].item() for v in views] == pytest.approx([0, 50 / 30, 150 / 40, 170 / 30], abs=1e-12)
    # After the first round cube roots of the sizes; after the second (10 * 2)^(1/3) and (20 / e)^(1/3), (30)^(1/3).
    one = [10 ** (1 / 3), 20 ** (1 / 3)]
    two = [20 ** (1 / 3), (20 / math.e) ** (1 / 3), 30 ** (1 / 3)]
    teachers = [
        0,
        (one[0] * 1 + one[1] * 2) / sum(one),
        (two[0] * 3 + two[1] * 2 + two[2] * 4) / sum(two),
        0.354966 * 5 + 0.390690 * 6 + 0.254344 * 4,
    ]
    assert [v["teacher"]["w"].item() for v in views] == pytest.approx(teachers, abs=1e-5)
    # Each round sends what the round before ended with.
    assert [set(body) for body in sent] == [{"model", "teacher"}] * 3
    assert [body["teacher"]["w"].item() for body in sent] == [v["teacher"]["w"].item() for v in views[:-1]]
    assert [body["model"]["w"].item() for body in sent] == [v["student"]["w"].item() for v in views[:-1]]


def test_clients_not_yet_seen_hold_the_first_model(fake, scalar):
    seen = 0.337874 * 5 + 0.315652 * 6 + 0.206277 * 4  # with the arithmetic mean; the first model is zero
    states, _ = three_rounds(KDIA(lambda_gen=0, mean="arithmetic"), fake, scalar)
    state = states[-1]
    assert KDIA(mean="arithmetic").overall(state)["w"].item() == pytest.approx(seen, abs=1e-5)
    shifted = State(3, {**state.body, "start": scalar(100.0)})
    assert KDIA(mean="arithmetic").overall(shifted)["w"].item() == pytest.approx(seen + 14.0198, abs=1e-3)
    assert equal(KDIA().overall(shifted), KDIA().overall(state))  # under the geometric mean they weigh nothing


def test_clients_not_yet_seen_may_hold_random_networks_of_their_own(fake, scalar):
    random = {"cache": Cache(unseen="random"), "lambda_gen": 0}
    by_mean = KDIA(mean="arithmetic", **random)
    states, _ = three_rounds(by_mean, fake, scalar)
    seen = 0.337874 * 5 + 0.315652 * 6 + 0.206277 * 4
    assert by_mean.overall(states[-1])["w"].item() == pytest.approx(seen + 0.140198 * 103, abs=1e-3)
    assert by_mean.overall(states[0])["w"].item() == 0.0  # before anybody took part, the teacher is the first model
    two = three_rounds(KDIA(freqs="number", **random), fake, scalar)[0][1]  # clients 0 and 1 answered 1 and 2
    expected = 0.1 * 1 + 0.2 * 2 + 0.3 * 102 + 0.4 * 103
    assert KDIA(freqs="number", **random).overall(two)["w"].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("weights", [{}, {"freqs": "participation"}])
def test_random_networks_that_weigh_nothing_are_refused(weights):
    with pytest.raises(UsageError, match=r"cache\.unseen = 'random' has no effect"):
        KDIA(cache=Cache(unseen="random"), **weights)


def test_a_mean_of_one_frequency_is_refused():
    with pytest.raises(UsageError, match=r"kdia\.mean has no effect without freqs = 'all'"):
        KDIA(freqs="interval", mean="arithmetic")


@pytest.mark.parametrize("unseen", ["init_model", "seen_only", "global", "random"])
def test_the_number_alone_is_the_overall_client_average(unseen, fake, scalar):
    by_number, averaged = (
        KDIA(lambda_gen=0, freqs="number", cache=Cache(unseen=unseen)),
        FedAvg(cache=Cache(unseen=unseen)),
    )
    for a, b in zip(three_rounds(by_number, fake, scalar)[0], three_rounds(averaged, fake, scalar)[0], strict=True):
        assert by_number.overall(a)["w"].item() == pytest.approx(averaged.overall(b)["w"].item(), abs=1e-12)


def test_with_equal_sizes_and_everybody_active_teacher_and_student_are_one(small_setting, play):
    method = KDIA(**TINY)
    for sizes, same in (([8, 8, 8], True), ([4, 8, 16], False)):
        last = play(method, small_setting(sizes, networks=[plain_net]), 2).states[-1]
        student, teacher = method.models(last).values()
        assert all(torch.allclose(student[n], teacher[n], atol=1e-6) for n in student) is same


def test_a_silent_round_changes_nothing(fake, scalar):
    method = KDIA(lambda_gen=0)
    state = three_rounds(method, fake, scalar)[0][-1]
    silent = method.round(state, fake({}, sizes=SIZES, round=4))
    assert silent.round == 4
    assert equal(silent.body, state.body)
    assert equal(method.overall(silent), method.overall(state))


# --- what it equals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", small_settings(), ids=["mlp", "batch norm and dropout"])
def test_without_both_terms_the_student_is_fedavgs_bit_for_bit(setting, play):
    plain, off = play(FedAvg(), setting, 3), play(KDIA(lambda_kd=0, lambda_gen=0), setting, 3)
    assert [equal(a["model"], b["model"]) for a, b in zip(plain.states, off.states, strict=True)] == [True] * 4
    assert equal(plain.states[-1]["cache"], off.states[-1]["cache"])
    assert [r.ledger.down for r in plain.rounds] == [r.ledger.down for r in off.rounds]
    for on in (KDIA(lambda_gen=0), KDIA(lambda_kd=0, **TINY)):
        assert not equal(play(on, setting, 1).model, plain.states[1]["model"])


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_in_the_first_round_the_teacher_is_the_student_so_that_distillation_has_no_gradient(
    direction, small_setting, play
):
    method = KDIA(lambda_kd=1000.0, lambda_gen=0, kd_direction=direction)
    for steps, same in ((1, True), (2, False)):
        work = LocalWork(work="fixed_steps", steps=steps, batch=4, lr=0.1)
        setting = small_setting([5, 9], networks=[plain_net], work=work)
        distilled, plain = play(method, setting, 1).model, play(FedAvg(), setting, 1).model
        assert all(torch.allclose(distilled[n], plain[n], rtol=0, atol=1e-4) for n in plain) is same


# --- the loss of a client ---------------------------------------------------------------------------------------------

P, Q = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.8, 0.2]])
FORWARD = 0.9 * math.log(0.9 / 0.8) + 0.1 * math.log(0.1 / 0.2)
REVERSE = 0.8 * math.log(0.8 / 0.9) + 0.2 * math.log(0.2 / 0.1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, FORWARD),
        ({"variant": "paper"}, FORWARD),
        ({"variant": "reference"}, REVERSE),
        ({"kd_direction": "reverse"}, REVERSE),
        ({"variant": "reference", "kd_direction": "forward"}, FORWARD),
    ],
)
def test_the_divergence_by_hand_without_a_factor_of_the_temperature(options, expected):
    logits = (2.0 * Q.log()).requires_grad_()
    distance = KDIA(tau=2.0, **options).distance(2.0 * P.log(), logits)
    assert distance.item() == pytest.approx(expected, abs=1e-6)
    distance.backward()
    assert logits.grad.abs().max() > 0


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def forward_pull(student, teacher, tau):
    """d KL(teacher || student) by the student's first logit, of two classes whose second logit is 0."""
    return (sigmoid(student / tau) - sigmoid(teacher / tau)) / tau


def reverse_pull(student, teacher, tau):
    """d KL(student || teacher), the same: KL = q (log q - log p) + ..., so that dKL/dq is a difference of logits."""
    q = sigmoid(student / tau)
    return q * (1 - q) / tau * (student - teacher) / tau


@pytest.mark.parametrize("tau", [1.0, 2.0, 5.0])
@pytest.mark.parametrize(("direction", "pull"), [("forward", forward_pull), ("reverse", reverse_pull)])
def test_a_step_by_hand(direction, pull, tau, rows, small_setting):
    """Eq. 13 on one sample: the feature (1, 0) of class 0, beside the generated feature (1/2, 1/2).

    The student's head is the identity, the teacher's logits are (3, 0). A head's row gets the gradient of its logit
    times the feature, so that the second column shows the generated feature alone.
    """
    data = rows([[1.0, 0.0]], [0])

    def network():
        return FeatureNet(nn.Sequential(nn.ReLU()), nn.Sequential(nn.Linear(2, 2)), (2,))

    work = LocalWork(batch=1, lr=0.1)
    me = small_setting([], sites=[Site(data, data)], networks=[network], classes=2, work=work).client(0, 2, {})
    generator = ConditionalGenerator((2,), classes=2, noise=4, width=8)
    nn.init.zeros_(generator.layers[-2].weight)  # before the sigmoid, which makes 1/2 of 0
    sent = {
        "model": {"head.0.weight": torch.eye(2), "head.0.bias": torch.zeros(2)},
        "teacher": {"head.0.weight": torch.tensor([[3.0, 0.0], [0.0, 0.0]]), "head.0.bias": torch.zeros(2)},
        "generator": params(generator),
    }
    method = KDIA(lambda_kd=0.7, lambda_gen=0.3, tau=tau, kd_direction=direction, **TINY)
    model = method.train(me, Message("train", 0, sent)).body["model"]
    real = sigmoid(1) - 1 + 0.7 * pull(1.0, 3.0, tau)
    generated = 0.3 * (0.5 - (next(client_labels(me)).item() == 0))
    by_row = torch.tensor([[real + generated / 2, generated / 2, real + generated]])
    moved = torch.cat([model["head.0.weight"] - torch.eye(2), model["head.0.bias"][:, None]], 1)
    assert torch.allclose(moved, -0.1 * torch.cat([by_row, -by_row]), rtol=0, atol=1e-6)


def test_teacher_and_generator_answer_in_eval_mode_and_do_not_change(small_setting, play, monkeypatch):
    answering = []

    def noted(net):
        answering.append((net, digest(net.state_dict())))
        return frozen(net)

    monkeypatch.setitem(KDIA.train.__globals__, "frozen", noted)
    monkeypatch.setattr(generated_features, "frozen", noted)
    play(KDIA(**TINY), small_setting([6, 8], networks=[rich_net]), 2)
    assert [isinstance(net, ConditionalGenerator) for net, _ in answering] == [False, True] * 2 * 2
    for net, before in answering:
        assert not net.training
        assert digest(net.state_dict()) == before


def one_client(small_setting, sizes=(9,), **options):
    return small_setting(sizes, networks=[plain_net], **options).client(0, 1, {})


@pytest.mark.parametrize("labels", ["uniform", "batch"])
def test_the_head_learns_from_generated_features_of_the_labels_asked_for(labels, small_setting):
    me = one_client(small_setting, work=LocalWork(batch=9))
    method = KDIA(labels=labels, **TINY)
    net = me.build()
    generator = method.new_generator(me, net)
    real = torch.tensor([0, 1, 2, 2, 2, 0, 0, 1, 1])
    asked = real if labels == "batch" else next(client_labels(me))
    found = method.generated(me, net, params(generator))(real)
    z = generator.eval()(torch.randn(9, 4, generator=me.rng("generator/noise")), asked).detach()
    assert found.item() == ce(net.head(z), asked).item()
    assert not torch.equal(real, next(client_labels(me)))
    found.backward()
    assert all(p.grad is None for p in net.features.parameters())
    assert all(p.grad is not None for p in net.head.parameters())


def test_generated_features_leave_the_extractor_alone(small_setting, play):
    setting = small_setting([8], networks=[plain_net], work=LocalWork(batch=8, lr=0.1))
    generated, plain = (
        play(KDIA(lambda_kd=0, lambda_gen=5.0, **TINY), setting, 1).model,
        play(FedAvg(), setting, 1).model,
    )
    assert {name: torch.equal(w, plain[name]) for name, w in generated.items()} == {
        name: name.startswith("features.") for name in plain
    }


def test_a_client_changes_nothing_that_it_was_sent(small_setting):
    me = one_client(small_setting)
    method = KDIA(**TINY)
    net = me.build()
    sent = {"model": params(net), "teacher": params(net), "generator": params(method.new_generator(me, net))}
    kept = {name: {key: w.clone() for key, w in part.items()} for name, part in sent.items()}
    answer = method.train(me, Message("train", 0, sent))
    assert equal(sent, kept)  # loading copies; that the copies do not change either is tested above
    assert set(answer.body) == {"model", "n"}
    assert answer.keep is None


# --- labels -----------------------------------------------------------------------------------------------------------


def drawn(small_setting, n, **work):
    me = one_client(small_setting, (n,), work=LocalWork(**{"batch": 4, "epochs": 3, **work}))
    labels = list(client_labels(me))
    assert all(0 <= int(y) < 3 for part in labels for y in part)
    return me, labels


@pytest.mark.parametrize(("n", "cuts"), [(10, [4, 4, 2]), (9, [4, 5]), (8, [4, 4])])
def test_a_clients_pool_holds_as_many_labels_as_it_has_samples(n, cuts, small_setting):
    _, labels = drawn(small_setting, n)
    assert [len(part) for part in labels] == cuts * 3
    epochs = [torch.cat(labels[i * len(cuts) : (i + 1) * len(cuts)]) for i in range(3)]
    assert all(torch.equal(e.sort().values, epochs[0].sort().values) for e in epochs)
    assert not torch.equal(epochs[0], epochs[1])


def test_dropped_samples_get_no_labels(small_setting):
    _, labels = drawn(small_setting, 10, drop_last=True)
    assert [len(part) for part in labels] == [4, 4] * 3
    assert torch.equal(torch.cat(labels[:2]).sort().values, torch.cat(labels[2:4]).sort().values)


@pytest.mark.parametrize(("n", "drop_last"), [(1, False), (3, False), (4, False), (5, False), (5, True)])
def test_a_client_whose_epoch_is_one_batch_draws_labels_for_all_its_epochs(n, drop_last, small_setting):
    me, labels = drawn(small_setting, n, drop_last=drop_last)
    visited = 4 if drop_last else n  # of five samples the last one joins the batch of four, unless it is dropped
    assert [len(part) for part in labels] == [visited] * 3
    expected = torch.randint(3, (3 * visited,), generator=me.rng("generator/labels"))
    assert torch.equal(torch.cat(labels), expected)


def test_with_batches_of_one_sample_two_samples_are_two_batches(small_setting):
    _, labels = drawn(small_setting, 2, batch=1)
    pools = torch.stack(labels).view(3, 2).sort(1).values
    assert torch.equal(pools, pools[:1].expand(3, 2))


def test_the_servers_pool_is_what_an_epoch_consumes(small_setting, play):
    fed = play(FedAvg(), small_setting([3], networks=[plain_net]), 1).rounds[0]
    for method, epochs, per_epoch in ((KDIA(), 10, 200), (KDIA(variant="reference"), 20, 100)):
        labels = torch.stack(list(method.server_labels(fed))).view(epochs, per_epoch * 64)
        first = labels[0].sort().values
        assert all(torch.equal(epoch.sort().values, first) for epoch in labels)
        assert not torch.equal(labels[0], labels[1])
        assert first.unique().tolist() == [0, 1, 2]
        assert first.bincount().min() > per_epoch * 64 / 3 * 0.95
    loose = torch.stack(list(KDIA(labels="batch", **TINY).server_labels(fed))).view(2, 12)
    assert not torch.equal(loose[0].sort().values, loose[1].sort().values)


# --- the generator ----------------------------------------------------------------------------------------------------


def test_where_the_constant_of_equation_4_stands():
    # Distances of 2 between the noises and 0.001 between the features.
    noise, features = (
        torch.tensor([[1.0], [3.0]], dtype=torch.float64),
        torch.tensor([[0.5], [0.501]], dtype=torch.float64),
    )
    assert diversity_loss(noise, features).item() == pytest.approx(1 / (0.0005 + 1e-5), rel=1e-9)  # 1960.8
    assert diversity_loss(noise, features, "distance").item() == pytest.approx(2 / (0.001 + 1e-5), rel=1e-9)  # 1980.2
    # A distance of 1.128379 between normal noises, and 0.00032767 between the features.
    noise, features = (
        torch.tensor([[0.0], [1.128379]], dtype=torch.float64),
        torch.tensor([[0.0], [0.00032767]], dtype=torch.float64),
    )
    found = [diversity_loss(noise, features, at).item() for at in ("ratio", "distance")]
    assert found == pytest.approx([3329.3, 3341.7], abs=0.5)


def test_the_papers_variant_divides_the_logits_by_their_number_too(teaching):
    """The clients hold 10 and 30 samples: p_k / K is 1/8 and 3/8."""
    assert [(KDIA(variant=v).heads, KDIA(variant=v).diversity_eps) for v in ("recommended", "paper", "reference")] == [
        ("sum", "ratio"),
        ("mean", "distance"),
        ("sum", "ratio"),
    ]
    method, played = teaching([10, 30], 1, heads="mean")
    assert taught_by({0: 0.125, 1: 0.375}, method, played, 1, decay=1e-5)
    assert not taught_by({0: 0.25, 1: 0.75}, method, played, 1, decay=1e-5)
    _, away = teaching([10, 30], 1, heads="mean", diversity_eps="distance")
    assert not equal(away.states[1]["generator"], played.states[1]["generator"])


def test_diversity_by_hand():
    noise = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [1.0, 3.0]])  # halves apart by 2, 0, 0, 2: 1 on average
    features = torch.tensor([[0.0], [0.0], [4.0], [-2.0]])  # by 4 and 2: 3
    assert diversity_loss(noise, features).item() == pytest.approx(1 / (3 + 1e-5), rel=1e-6)
    assert diversity_loss(noise, torch.zeros(4, 1)).item() == pytest.approx(1e5, rel=1e-6)


@pytest.fixture
def teaching(monkeypatch, small_setting, play):
    """A run whose server takes SGD, since Adam would turn rounding errors of vanishing gradients into whole steps."""
    sgd = lambda weights, lr, decay, _: torch.optim.SGD(weights, lr=lr, weight_decay=decay)  # noqa: E731
    monkeypatch.setattr(beside, "adam", sgd)

    def teaching(sizes, rounds, **options):
        method = KDIA(**TINY, generator_lr=0.1, **options)
        work = LocalWork(epochs=5, batch=10, lr=0.5)
        participation = Participation(policy="fraction", fraction=2 / len(sizes))
        setting = small_setting(sizes, networks=[plain_net], work=work, participation=participation)
        return method, play(method, setting, rounds)

    return teaching


def taught_by(shares, method, played, t, decay):
    """Whether the generator of round t is what six steps against these clients' heads give, written out one by one."""
    before, after, fed = played.states[t - 1], played.states[t], played.rounds[t - 1]
    generator = load(method.new_generator(fed, plain_net()), before["generator"]).train()
    sgd = torch.optim.SGD(generator.parameters(), lr=0.1, weight_decay=decay)
    heads = {k: load(plain_net(), after["cache"][str(k)]).head.eval() for k in shares}
    noise = fed.rng("generator/noise")
    for y in method.server_labels(fed):
        eps = torch.randn(4, 4, generator=noise)
        z = generator(eps, y)
        loss = ce(sum(share * heads[k](z) for k, share in shares.items()), y) + diversity_loss(eps, z)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    assert not equal(before["generator"], after["generator"])
    written_out = generator.state_dict()
    return all(torch.allclose(w, after["generator"][name], rtol=0, atol=1e-5) for name, w in written_out.items())


@pytest.mark.parametrize(("share", "same"), [(0.25, True), (0.5, False)])
def test_the_generator_meets_the_weighted_logits_of_the_active_heads(share, same, teaching):
    """The clients hold 10 and 30 samples."""
    method, played = teaching([10, 30], 1)
    assert taught_by({0: share, 1: 1 - share}, method, played, 1, decay=1e-5) is same


def test_the_generators_weights_decay(teaching):
    method, played = teaching([10, 30], 1, generator_weight_decay=0.05)
    assert taught_by({0: 0.25, 1: 0.75}, method, played, 1, decay=0.05)
    assert not taught_by({0: 0.25, 1: 0.75}, method, played, 1, decay=0.0)
    assert KDIA().generator_weight_decay == 1e-5


def test_only_the_heads_of_this_round_teach_the_generator(teaching):
    """Two of four clients answer in each round, not the same; the models of the others are cached."""
    sizes = [10, 30, 20, 15]
    method, played = teaching(sizes, 2)
    first, second = (sorted(r.active) for r in played.rounds)
    assert first != second

    def by(clients):
        shares = {k: sizes[k] / sum(sizes[k] for k in clients) for k in clients}
        return taught_by(shares, method, played, 2, decay=1e-5)

    assert by(second)
    assert not by(sorted({*first, *second}))


def test_the_generator_lasts_but_its_adam_does_not(small_setting, play):
    method = KDIA(**TINY | {"generator_epochs": 1, "generator_batches": 1, "generator_weight_decay": 0.0})
    setting = small_setting([10, 30], networks=[plain_net])
    start, first, second = (s["generator"] for s in play(method, setting, 2).states)
    # The first step of a fresh Adam moves every weight by its rate, whatever the gradient.
    for before, now in ((start, first), (first, second)):
        moved = (now["layers.0.weight"] - before["layers.0.weight"]).abs()
        assert moved.max() <= 1.001e-3
        assert (moved > 0.99e-3).float().mean() > 0.9
    assert [int(g["layers.1.num_batches_tracked"]) for g in (start, first, second)] == [0, 1, 2]


def test_it_learns_to_please_the_heads(small_setting, play):
    """The head takes its three inputs, which the generator keeps in (0, 1), for the three classes."""
    options = {"generator_epochs": 5, "generator_batches": 20, "generator_batch": 32, "generator_lr": 0.02}
    method = KDIA(**TINY | options | {"generator_width": 32})

    def three():
        return FeatureNet(nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(3, 3, bias=False)), (3,))

    net = three()
    net.head[0].weight.data = 8 * torch.eye(3)
    fed = play(FedAvg(), small_setting([3], networks=[three]), 1).rounds[0]
    replies = [Message("train", k, {"model": params(net), "n": 5}) for k in (0, 1)]
    before = params(method.new_generator(fed, net))
    after = method.teach(State(0, {"model": params(net), "generator": before}), replies, fed)
    assert all(equal(r["model"], params(net)) for r in replies)
    y, eps = torch.arange(3).repeat(30), torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    losses = []
    for weights in (before, after):
        generator = load(method.new_generator(fed, net), weights).eval()
        losses.append(ce(net.head(generator(eps, y)), y).item())
    assert losses[0] > 1.0
    assert losses[1] < 0.3


@pytest.mark.parametrize("lambda_kd", [0.0, 0.5])
@pytest.mark.parametrize("network", [plain_net, rich_net])
def test_a_generator_that_weighs_nothing_leaves_no_trace(network, lambda_kd, small_setting, play):
    """Neither in streams nor in running statistics, nor, at the server, in the clients' models."""
    setting = small_setting([10, 30], networks=[network], work=LocalWork(epochs=2, batch=5, lr=0.1, momentum=0.9))
    # A weight of 1e-300 is zero in float32, but not in Python, so that the term is there.
    idle, without = (play(KDIA(lambda_kd=lambda_kd, lambda_gen=g, **TINY), setting, 2) for g in (1e-300, 0))
    for a, b in zip(idle.states, without.states, strict=True):
        assert equal({"model": a["model"], "cache": a["cache"]}, {"model": b["model"], "cache": b["cache"]})
    assert idle.rounds[1].ledger.clients.generator_forward > 0


# --- costs ------------------------------------------------------------------------------------------------------------


def test_passes_of_a_local_batch(small_setting, play):
    """Student 1, teacher 1 and head 0.5 forward; student 1 and head 0.5 backward; the generator 1 forward."""
    setting = small_setting([10, 30], networks=[plain_net], work=LocalWork(batch=10, epochs=2))
    ledger = play(KDIA(**TINY), setting, 1).rounds[0].ledger
    assert ledger.clients.steps == 2 * (1 + 3)
    each = {
        name: getattr(ledger.clients, name) / ledger.clients.steps
        for name in ("forward", "backward", "generator_forward", "generator_backward")
    }
    assert each == {"forward": 2.5, "backward": 1.5, "generator_forward": 1.0, "generator_backward": 0.0}
    # The server: six steps, each through the generator and, forth and back, through two heads.
    server = ledger.server
    assert (server.steps, server.forward, server.backward) == (6, 6.0, 6.0)
    assert (server.generator_forward, server.generator_backward) == (6.0, 6.0)


WEIGHTS = 4 * 92_626
GENERATOR = 4 * (890_724 + 2 * (512 + 256 + 128)) + 3 * 8  # with running means and variances, and three counters


@pytest.mark.parametrize(
    ("options", "down"),
    [
        ({}, {"weights": 2 * WEIGHTS, "generator": GENERATOR}),
        ({"lambda_gen": 0}, {"weights": 2 * WEIGHTS}),
        ({"lambda_kd": 0}, {"weights": WEIGHTS, "generator": GENERATOR}),
        ({"lambda_kd": 0, "lambda_gen": 0}, {"weights": WEIGHTS}),
    ],
)
def test_bytes_of_the_papers_networks(options, down, small_setting, random_sites, play):
    setting = small_setting(
        [],
        sites=random_sites([2], shape=(3, 32, 32), classes=10),
        networks=[lambda: create("simple-cnn", classes=10, channels=3, size=32)],
        classes=10,
    )
    method = KDIA(generator_epochs=1, generator_batches=1, generator_batch=2, **options)
    ledger = play(method, setting, 1).rounds[0].ledger
    assert {kind: n for kind, n in ledger.down.items() if kind != "framing"} == down
    assert {kind: n for kind, n in ledger.up.items() if kind != "framing"} == {"weights": WEIGHTS, "scalars": 8}


def test_it_sends_down_11_6_times_what_fedavg_sends():
    assert round((2 * WEIGHTS + GENERATOR) / WEIGHTS, 1) == 11.6


# --- the contract, and what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "reference", "labels": "batch", "mean": "arithmetic"},
        {"variant": "paper", "mean": "arithmetic", "cache": Cache(unseen="random")},
        {"freqs": "interval", "cache": Cache(unseen="global"), "aggregation": Aggregation(weights="uniform")},
        {
            "cache": Cache(unseen="seen_only", dtype="bfloat16"),
            "aggregation": Aggregation(weights="disco", clip="median", cap=0.5),
        },
    ],
    ids=repr,
)
def test_options_keep_the_contract(options):
    check_method(KDIA(**TINY | options), small_settings()[0])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lambda_kd", -1.0),
        ("lambda_gen", -0.1),
        ("tau", 0.0),
        ("generator_lr", 0.0),
        ("generator_weight_decay", -1.0),
        ("noise", 0),
        ("generator_width", 3),
        ("generator_epochs", 0),
        ("generator_batches", 0),
        ("generator_batch", 7),
        ("kd_direction", "backward"),
        ("labels", "balanced"),
        ("mean", "harmonic"),
        ("freqs", "numbers"),
        ("heads", "product"),
        ("diversity_eps", "none"),
        ("variant", "papers"),
    ],
)
def test_options_out_of_limits_are_refused(option, value):
    with pytest.raises(UsageError, match=rf"kdia\.{option} = {value!r}"):
        KDIA(**{option: value})


def test_a_teacher_needs_the_cache():
    with pytest.raises(UsageError, match=r"cache\.oca = false"):
        KDIA(cache=Cache(oca=False))


def test_a_robust_average_is_refused_since_heads_and_teacher_are_weighted_means():
    with pytest.raises(UsageError, match=r"aggregation\.combine = 'median'"):
        KDIA(aggregation=Aggregation(combine="median"))


def test_no_client_is_more_of_the_teacher_than_the_cap(fake, scalar):
    free, held = (KDIA(lambda_gen=0, aggregation=Aggregation(cap=cap)) for cap in (None, 0.35))
    state = three_rounds(free, fake, scalar)[0][-1]
    # Of 0.354966, 0.390690 and 0.254344 two are above 0.35; the third gets what is left.
    assert free.overall(state)["w"].item() == pytest.approx(0.354966 * 5 + 0.390690 * 6 + 0.254344 * 4, abs=1e-5)
    assert held.overall(state)["w"].item() == pytest.approx(0.35 * 5 + 0.35 * 6 + 0.3 * 4, abs=1e-12)


def test_a_network_of_ones_own_must_tell_the_shape_of_its_features(small_setting, small, play):
    with pytest.raises(UsageError, match=r"kdia needs a network in two parts; make .* a FeatureNet"):
        play(KDIA(**TINY), small_setting([3], networks=[small]), 1)


# --- similarity of features -------------------------------------------------------------------------------------------


class Fixed(ConditionalGenerator):
    """Alternates two features for class 0 and gives one each for the others."""

    def forward(self, z, labels):
        table = torch.tensor([[2.0, 0.0], [40.0, 30.0], [1.0, 1.0]])[labels]
        table[(labels == 0) & (torch.arange(len(labels)) % 2 == 1)] = torch.tensor([-3.0, 0.0])
        return table


def test_similarity_by_hand(rows):
    net = FeatureNet(nn.Sequential(), nn.Sequential(nn.Linear(2, 3)), (2,))
    real = rows([[5.0, 0.0], [0.0, 1.0], [3.0, 4.0], [-3.0, -4.0], [3.0, 4.0]], [0, 0, 1, 1, 1])
    generator = Fixed((2,), classes=3, noise=1, width=4)
    for batch in (256, 2):
        found = feature_similarity(generator, net, real, torch.Generator(), per_class=4, batch=batch)
        # Class 0: (1, 0) and (-1, 0) cancel. Class 1: 24/25 twice, -24/25 once. Class 2 has no real features.
        assert found[:2].tolist() == pytest.approx([0.0, 0.96 / 3], abs=1e-12)
        assert found[2].isnan()


class Maps(ConditionalGenerator):
    """For class 0 a map of two channels and two pixels: (4, 0) and (0, 2)."""

    def forward(self, z, labels):
        return torch.tensor([[[[4.0, 0.0]], [[0.0, 2.0]]]]).expand(len(labels), -1, -1, -1)


def test_maps_are_compared_by_the_means_of_their_channels_or_as_a_whole(rows):
    """The real map is (0, 4) and (2, 0): the same means (2, 1), but nowhere the same pixels."""
    net = FeatureNet(nn.Sequential(), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (2, 1, 2))
    generator = Maps((2, 1, 2), classes=2, noise=1, width=4)

    def found(real, **options):
        samples = rows([real], [0])
        return feature_similarity(generator, net, samples, torch.Generator(), 3, **options)[0].item()

    assert found([[[0.0, 4.0]], [[2.0, 0.0]]]) == pytest.approx(1.0, abs=1e-12)
    assert found([[[0.0, 4.0]], [[2.0, 0.0]]], compare="maps") == 0.0
    # Means (1, 2) against (2, 1): 4/5. As a whole, (2, 0, 4, 0) against (4, 0, 0, 2): 8/20.
    assert found([[[2.0, 0.0]], [[4.0, 0.0]]]) == pytest.approx(0.8, abs=1e-12)
    assert found([[[2.0, 0.0]], [[4.0, 0.0]]], compare="maps") == pytest.approx(0.4, abs=1e-12)


def test_similarity_puts_both_networks_into_eval_mode(rows):
    net = FeatureNet(nn.Sequential(nn.BatchNorm1d(2)), nn.Sequential(nn.Linear(2, 3)), (2,))
    generator = ConditionalGenerator((2,), classes=3, noise=2, width=4)
    before = [params(net), params(generator)]
    feature_similarity(generator, net, rows([[1.0, 2.0], [2.0, 1.0]], [0, 1]), torch.Generator())
    assert equal(before[0], params(net))
    assert equal(before[1], params(generator))


def test_lost_replies_do_not_count_as_participation(small_setting, play):
    setting = small_setting(
        [5] * 6, networks=[plain_net], participation=Participation(policy="fraction", fraction=0.5, late_drop=0.5)
    )
    played = play(KDIA(**TINY), setting, 4)
    came = [sorted(r.active - r.lost) for r in played.rounds]
    assert any(r.lost for r in played.rounds)
    assert played.states[-1]["times"].tolist() == [sum(k in ids for ids in came) for k in range(6)]
    assert played.states[-1]["last"].tolist() == [
        max((t for t, ids in enumerate(came, 1) if k in ids), default=0) for k in range(6)
    ]


# --- the experiment file ----------------------------------------------------------------------------------------------


def test_the_cells_of_table_2_have_their_own_settings():
    names, table = cells(
        read_toml(Path(__file__).parents[2] / "src" / "fedalloy" / "experiments" / "kdia-cifar10.toml")
    )
    assert names == ["data", "beta"]
    assert len(table) == 9
    for cell in table:
        exp, beta = experiment(cell.values), float(cell.labels[1])
        assert exp.partition.options["alpha"] == beta
        assert exp.training.drop_last is (beta >= 0.5)
        assert exp.methods["kdia"].options["lambda_gen"] == (1.0 if beta == 0.5 else 0.01)
        assert exp.data.augment == f"{exp.data.name}-kdia"
        control = make_method(exp, exp.methods["control"])
        assert (control.name, control.lambda_kd, control.lambda_gen) == ("kdia", 0, 0)
        held = [
            part.source
            for part in exp.published
            if (part.where["data.name"], part.where["partition.alpha"]) == (exp.data.name, beta)
        ]
        assert held == [f"KDIA, Table 2, {cell.labels[0]}, beta = {cell.labels[1]}, the best of 200 rounds"]
