"""FedGKD: the buffer and its mean by hand, when the teacher travels, and where it is FedAvg."""

from __future__ import annotations

import math

import pytest
import torch

from fedalloy.base.tree import digest, equal
from fedalloy.errors import UsageError
from fedalloy.federation.core import State
from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Site
from fedalloy.methods import FedAvg, FedGKD
from fedalloy.nets.models import create
from fedalloy.train.fit import LocalWork, frozen


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def answered(method, fake, scalar, values):
    """Play rounds on a fake federation in which one client answers these weights (None: nobody answers)."""
    state = State(0, method.init(fake({}, sizes=[5])))
    asked = []
    for t, value in enumerate(values, start=1):
        fed = fake({} if value is None else {0: {"model": scalar(value), "n": 5}}, sizes=[5], round=t)
        state = method.round(state, fed)
        asked += fed.asked
    return state, [(action, body["teacher"]["w"].item() if "teacher" in body else None) for action, _, body in asked]


# --- the server: a FIFO buffer of the last M trained global models, the current one included --------------------------


def test_the_teacher_is_the_mean_of_the_last_models(fake, scalar):
    state, asked = answered(FedGKD(buffer=3), fake, scalar, [1.0, 4.0, 10.0, 22.0, 0.0])
    assert asked == [
        ("train", None),  # the untrained model teaches nothing
        ("distil", None),  # the only model so far is the one that is sent
        ("distil", 2.5),
        ("distil", 5.0),
        ("distil", pytest.approx(12.0, abs=1e-12)),  # the first model has left
    ]
    assert sorted(m["w"].item() for m in state["recent"].values()) == [0.0, 10.0, 22.0]


def test_the_buffer_leaves_in_order_beyond_nine_rounds(fake, scalar):
    # As texts, "10" stands before "9".
    state, asked = answered(FedGKD(buffer=2), fake, scalar, [float(t) for t in range(1, 13)])
    assert asked[-1] == ("distil", 10.5)
    assert sorted(m["w"].item() for m in state["recent"].values()) == [11.0, 12.0]


def test_fedkfs_code_waits_until_the_buffer_is_full(fake, scalar):
    _, asked = answered(FedGKD(start="full_buffer"), fake, scalar, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert [action for action, _ in asked] == ["train"] * 5 + ["distil"] * 2
    assert [teacher for _, teacher in asked[5:]] == pytest.approx([3.0, 4.0], abs=1e-12)


def test_in_kdias_code_the_received_model_teaches_until_the_buffer_is_full(fake, scalar):
    _, asked = answered(FedGKD(variant="kdia", buffer=3), fake, scalar, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert asked == [("distil", None)] * 3 + [("distil", pytest.approx(v, abs=1e-12)) for v in (2.0, 3.0)]


@pytest.mark.parametrize(("variant", "expected"), [("recommended", 4.0), ("reference", 5.0), ("fedkf", 4.0)])
def test_whose_weights(variant, expected, fake, scalar):
    # Two clients of 3 and 1 samples answer 3 and 7: by size (9 + 7) / 4, with equal weights 10 / 2.
    method = FedGKD(variant=variant)
    fed = fake({0: {"model": scalar(3.0), "n": 3}, 1: {"model": scalar(7.0), "n": 1}}, sizes=[3, 1])
    assert method.round(State(0, method.init(fed)), fed)["model"]["w"].item() == pytest.approx(expected, abs=1e-12)


def test_a_round_without_replies_adds_no_model(fake, scalar):
    state, asked = answered(FedGKD(), fake, scalar, [None, 1.0, None, 4.0])
    assert asked == [("train", None), ("train", None), ("distil", None), ("distil", None)]
    assert sorted(m["w"].item() for m in state["recent"].values()) == [1.0, 4.0]


def test_one_buffered_model_never_travels_twice(fake, scalar):
    _, asked = answered(FedGKD(buffer=1), fake, scalar, [1.0, 2.0, 3.0, 4.0])
    assert asked == [("train", None)] + [("distil", None)] * 3


def test_equal_models_have_themselves_as_mean_and_do_not_travel_twice(small_setting, play):
    # A rate of 1e-30 moves nothing: from round 2 on all buffered models are equal.
    played = play(FedGKD(), small_setting([4, 4], work=LocalWork(lr=1e-30)), 7)
    assert len(played.states[-1]["recent"]) == 5
    assert len({digest(m) for m in played.states[-1]["recent"].values()}) == 1
    assert len({fed.ledger.down["weights"] for fed in played.rounds}) == 1


# --- the client -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "tau"), [(2.0, 1.0), (0.2, 1.0), (3.0, 2.0)])
def test_three_rounds_by_hand(gamma, tau, rows, logistic, small_setting, play):
    # Logits (0, w) and class 0: CE has the gradient s(w), KL(teacher || student) has (s(w/tau) - s(v/tau)) / tau.
    data = rows([[1.0]] * 3, [0] * 3)
    work = LocalWork(work="fixed_steps", steps=1, batch=3, lr=0.5)
    setting = small_setting([], sites=[Site(data, data)], networks=[logistic], classes=2, work=work)
    played = play(FedGKD(gamma=gamma, tau=tau), setting, 3)
    w_1 = -0.5 * sigmoid(0)
    w_2 = w_1 - 0.5 * sigmoid(w_1)  # the teacher is the student: no pull
    pull = (sigmoid(w_2 / tau) - sigmoid((w_1 + w_2) / 2 / tau)) / tau
    w_3 = w_2 - 0.5 * (sigmoid(w_2) + gamma / 2 * pull)
    assert [s["model"]["w"].item() for s in played.states[1:]] == pytest.approx([w_1, w_2, w_3], abs=1e-7)


TEACHER, STUDENT = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, 2.0], [0.0, 0.0]])


def test_distances_by_hand():
    # Squared error: differences (2, -2) and (0, 4), the mean of (4, 4, 0, 16).
    assert FedGKD(distance="mse").apart(TEACHER, STUDENT).item() == 6.0
    # Twice the softmax, tau = 2: the teacher says (s(1), s(-1)) and (s(-2), s(2)), the student (s(-1), s(1)), (.5, .5).
    first = math.log(1 + math.exp(sigmoid(1) - sigmoid(-1))) - sigmoid(-1) * (sigmoid(1) - sigmoid(-1))
    twice = FedGKD(variant="kdia").apart(TEACHER, STUDENT).item()
    assert twice == pytest.approx((first + math.log(2)) / 2, abs=1e-6)


def test_taking_the_softmax_twice_all_but_removes_the_pull():
    def pull(**options):
        student = torch.zeros(1, 10, requires_grad=True)
        FedGKD(**options).apart(torch.eye(10)[:1], student).backward()
        return student.grad.norm().item()

    # At equal probabilities of C classes a softmax passes on 1 / C of a gradient, and each division by tau half of it.
    assert pull(variant="kdia") == pytest.approx(pull(tau=2.0) / 10, rel=1e-5)


@pytest.mark.parametrize(
    "options", [{"distance": "mse", "tau": 2.0}, {"variant": "kdia", "distance": "mse", "tau": 3.0}]
)
def test_a_temperature_without_softmax_is_refused(options):
    with pytest.raises(UsageError, match=r"fedgkd\.tau has no effect without distance = "):
        FedGKD(**options)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_gamma_zero_is_fedavg_bit_for_bit(batch_norm, optimiser, small_setting, small, play):
    setting = small_setting(
        [5, 9, 12, 7],
        networks=[lambda: small(batch_norm=batch_norm, dropout=0.2)],
        work=LocalWork(epochs=2, batch=4, lr=0.05, momentum=0.9, weight_decay=1e-3, optimiser=optimiser),
        participation=Participation(policy="fraction", fraction=0.5),
    )
    plain, without, taught = (play(m, setting, 4) for m in (FedAvg(), FedGKD(gamma=0.0), FedGKD(gamma=1.0)))
    for a, b in zip(plain.states, without.states, strict=True):
        assert equal(a.body, {key: entry for key, entry in b.body.items() if key != "recent"})
    assert not equal(plain.model, taught.model)
    assert equal(plain.states[1]["model"], taught.states[1]["model"])  # nothing teaches in round 1


def test_of_one_buffered_model_the_first_step_has_no_pull(small_setting, play):
    def models(steps):
        setting = small_setting([5, 9], work=LocalWork(work="fixed_steps", steps=steps, batch=20, lr=0.1))
        return play(FedAvg(), setting, 3).model, play(FedGKD(buffer=1, gamma=50.0), setting, 3).model

    plain, taught = models(1)
    assert all(torch.allclose(taught[name], t, rtol=0, atol=1e-5) for name, t in plain.items())
    plain, taught = models(2)
    assert not all(torch.allclose(taught[name], t, rtol=0, atol=1e-3) for name, t in plain.items())


def test_the_teacher_does_not_change_while_it_teaches(small_setting, small, play, monkeypatch):
    teachers = []

    def noted(net):
        teachers.append((net, digest(net.state_dict())))
        return frozen(net)

    monkeypatch.setitem(FedGKD.distil.__globals__, "frozen", noted)
    played = play(FedGKD(), small_setting([6, 8], networks=[lambda: small(batch_norm=True, dropout=0.2)]), 4)
    assert len(teachers) == 2 * 3
    for net, before in teachers:
        assert not net.training
        assert digest(net.state_dict()) == before
    assert all(equal(played.states[3]["recent"][t], played.states[4]["recent"][t]) for t in ("1", "2", "3"))


# --- what it costs ----------------------------------------------------------------------------------------------------

LENET_BYTES = 252_264  # 63,066 parameters of LeNet-5 for 26 letters


@pytest.mark.parametrize(("buffer", "models"), [(1, [1, 1, 1, 1]), (5, [1, 1, 2, 2])])
def test_bytes_and_passes(buffer, models, random_sites, small_setting, play):
    setting = small_setting(
        [],
        sites=random_sites([4, 6], shape=(1, 32, 32), classes=26),
        networks=[lambda: create("lenet5", classes=26, channels=1, size=32)],
        classes=26,
        work=LocalWork(batch=2),
    )
    ledgers = [fed.ledger for fed in play(FedGKD(buffer=buffer), setting, 4).rounds]
    assert [ledger.down["weights"] for ledger in ledgers] == [2 * LENET_BYTES * m for m in models]
    assert all(
        {**ledger.up, "framing": 0} == {"weights": 2 * LENET_BYTES, "scalars": 16, "framing": 0} for ledger in ledgers
    )
    steps = (
        2 + 3
    )  # a step is one pass of the student in both directions and, from round 2 on, one forward of the teacher
    assert [ledger.passes()["clients"]["forward"] for ledger in ledgers] == [steps, 2 * steps, 2 * steps, 2 * steps]
    assert [ledger.passes()["clients"]["backward"] for ledger in ledgers] == [steps] * 4


@pytest.mark.parametrize(("key", "value"), [("buffer", 0), ("gamma", -0.1), ("tau", 0.0), ("start", "later")])
def test_options_have_limits(key, value):
    with pytest.raises(UsageError, match=f"fedgkd.{key} = {value!r}"):
        FedGKD(**{key: value})
