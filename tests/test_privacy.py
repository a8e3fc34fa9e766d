"""DP-SGD at the clients: the private step, what it costs, who may use it, and that nothing spent is forgotten."""

from __future__ import annotations

import importlib.metadata
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape
from rich.console import Console
from torch import Tensor, nn

pytest.importorskip("opacus")
dp_accounting = pytest.importorskip("dp_accounting")

from fedalloy import check_method, compare, experiment, resume, simulate  # noqa: E402
from fedalloy.aggregation.rule import Aggregation  # noqa: E402
from fedalloy.base import tree  # noqa: E402
from fedalloy.check.doctor import examine  # noqa: E402
from fedalloy.check.probe import small_settings  # noqa: E402
from fedalloy.data.public import PublicSet  # noqa: E402
from fedalloy.data.samples import Samples  # noqa: E402
from fedalloy.engine.base import Round  # noqa: E402
from fedalloy.engine.pool import Pool  # noqa: E402
from fedalloy.engine.serial import Serial  # noqa: E402
from fedalloy.engine.threads import Threads  # noqa: E402
from fedalloy.errors import CheckpointError, UsageError  # noqa: E402
from fedalloy.federation.core import Client, Message, Method, Reply, State, methods, run  # noqa: E402
from fedalloy.federation.engine import Answer  # noqa: E402
from fedalloy.federation.participation import Participation  # noqa: E402
from fedalloy.federation.quorum import Quorum, QuorumError  # noqa: E402
from fedalloy.federation.setting import Setting, pooled  # noqa: E402
from fedalloy.methods import FedAvg, FedMD, FedMDGlobal, FedMDKnFu, FedProx, KnFu, Local  # noqa: E402
from fedalloy.report.html import render  # noqa: E402
from fedalloy.report.progress import Display  # noqa: E402
from fedalloy.report.spent import WHY, epsilon_of  # noqa: E402
from fedalloy.storage.results import Run  # noqa: E402
from fedalloy.storage.store import Store  # noqa: E402
from fedalloy.train.fit import LocalWork, fit, params  # noqa: E402
from fedalloy.train.losses import ce, sq_dist  # noqa: E402
from fedalloy.train.privacy import (  # noqa: E402
    LEDGER,
    Account,
    Privacy,
    PrivateSteps,
    check_network,
    epsilon,
    run_address,
)

TINY: dict[str, Any] = {"data": "tiny", "model": "mlp", "partition": {"clients": 4, "alpha": 1.0}, "engine": "serial"}
DISCO = Aggregation(weights="disco")
ONCE = LocalWork(work="fixed_steps", steps=1, batch=2, lr=0.1)


def without_noise(most: float = 1e6) -> Privacy:
    """What a user cannot have: an experiment without noise is refused."""
    privacy = Privacy(max_grad_norm=most)
    object.__setattr__(privacy, "noise_multiplier", 0.0)
    return privacy


def client(samples: Samples, network: Callable[[], nn.Module], privacy: Privacy | None, **options: Any) -> Client:
    given = {"id": 0, "round": 1, "seed": 0, "classes": 2, "work": ONCE, "steps": 1, **options}
    account = None if privacy is None else Account(privacy)
    return Client(train=samples, network=network, account=account, **given)


def images(n: int) -> Samples:
    stream = torch.Generator().manual_seed(1)
    return Samples(torch.randn(n, 1, 8, 8, generator=stream), torch.arange(n) % 3, torch.arange(n))


def convolutions() -> nn.Module:
    parts = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*parts, nn.Conv2d(6, 5, 1), nn.Flatten(), nn.Linear(20, 3))


def private_setting(privacy: Privacy | None = None, **options: Any) -> Setting:
    return replace(small_settings()[0], privacy=privacy or Privacy(), **options)


def spent(engine: Any) -> dict[int, int]:
    """The steps on each client's account."""
    return {k: Account(Privacy(), memory[LEDGER]).steps for k, memory in engine.memories.items() if LEDGER in memory}


def watched(method: Method, engine: Any, rounds: int) -> tuple[State, list[Round]]:
    """The end of a run, and its rounds."""
    seen: list[Any] = []
    return run(method, engine, rounds, watch=lambda _, fed: seen.append(fed)), seen


# --- the step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_without_noise_and_clipping_it_is_plain_training(layout: Any, optimiser: Any) -> None:
    work = LocalWork(work="fixed_steps", steps=3, batch=16, lr=0.05, momentum=0.5, weight_decay=0.01)
    if optimiser == "adam":
        work = LocalWork(work="fixed_steps", steps=3, batch=16, lr=1e-3, optimiser="adam")
    found = []
    for privacy in (None, without_noise()):
        me = client(images(12), convolutions, privacy, work=work, steps=3, classes=3, layout=layout)
        net = me.build()
        fit(net, me, lambda x, y, net=net: ce(net(x), y))  # type: ignore[misc]  # the loop's own network
        found.append(params(net))
    # Batches of all 12 samples, in another order: sums differ in the last bits.
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=2e-4, atol=1e-6)


def test_a_batch_is_divided_by_the_size_it_was_expected_to_have(small: Callable[..., nn.Module]) -> None:
    x, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    pool = Samples(x, y, torch.arange(20))
    me = client(pool, lambda: small(dropout=0.5), without_noise(), work=replace(ONCE, batch=4), classes=3)
    plain, net = me.build().train(), me.build().train()
    ce(plain(x[:3]), y[:3]).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    step = PrivateSteps(net, me, pool, 1)
    step.backward(lambda x, y: ce(net(x), y), pool.take, torch.arange(3))
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        torch.testing.assert_close(p.grad, q.grad * 3 / 4)


def test_each_sample_is_clipped_by_itself(logistic: type[nn.Module], rows: Callable[..., Samples]) -> None:
    # At w = 0 the gradient of CE is x/2 for class 0 and -x/2 for class 1: here 4, -0.5 and -3, clipped to 1, -0.5, -1.
    me = client(rows([[8.0], [1.0], [6.0]], [0, 1, 1]), logistic, without_noise(1.0), work=replace(ONCE, batch=3))
    net = me.build()
    fit(net, me, lambda x, y: ce(net(x), y))
    assert net.state_dict()["w"].item() == pytest.approx(-0.1 * (1 - 0.5 - 1) / 3)


def test_the_norm_is_one_over_all_parameters(rows: Callable[..., Samples]) -> None:
    # Logits (0, 0): the gradient is (1/2, -1/2) for the biases and 6 times that for the weights, of norm sqrt(37 / 2).
    me = client(rows([[6.0]], [1]), lambda: nn.Linear(1, 2), without_noise(0.5), work=replace(ONCE, lr=1.0))
    net = me.net({"weight": torch.zeros(2, 1), "bias": torch.zeros(2)})
    fit(net, me, lambda x, y: ce(net(x), y))
    share = 0.5 / math.sqrt(37 / 2)
    assert net.state_dict()["bias"].tolist() == pytest.approx([-share / 2, share / 2])
    assert net.state_dict()["weight"].flatten().tolist() == pytest.approx([-3 * share, 3 * share])


def test_a_gradient_that_is_not_finite_counts_as_none(logistic: type[nn.Module], rows: Callable[..., Samples]) -> None:
    me = client(rows([[float("inf")], [1.0]], [0, 1]), logistic, without_noise(1.0))
    net = me.build()
    fit(net, me, lambda x, y: ce(net(x), y))
    assert net.state_dict()["w"].item() == pytest.approx(0.1 * 0.5 / 2)


@pytest.mark.parametrize("secret", [False, True])
def test_the_noise_has_its_standard_deviation_and_never_returns(secret: bool) -> None:
    pool = Samples(torch.zeros(10, 100), torch.zeros(10, dtype=torch.int64), torch.arange(10))
    privacy = Privacy(noise_multiplier=1.5, max_grad_norm=0.2)
    me = client(pool, lambda: nn.Linear(100, 100, bias=False), privacy, work=replace(ONCE, batch=4, lr=1.0))
    assert me.account is not None
    me.account.secret = secret
    steps = []
    for _ in range(2):  # the same stage in the same round
        net = me.net({"weight": torch.zeros(100, 100)})
        fit(net, me, lambda x, y, net=net: ce(net(x), y))  # type: ignore[misc]  # the loop's own network
        steps.append(net.state_dict()["weight"].flatten())
    for moved in steps:  # inputs are zero: there is nothing but noise
        assert moved.std().item() == pytest.approx(1.5 * 0.2 / 4, rel=0.03)
        assert abs(moved.mean().item()) < 4 * 1.5 * 0.2 / 4 / 100
    assert abs(torch.corrcoef(torch.stack(steps))[0, 1].item()) < 0.05


@pytest.mark.parametrize("secret", [False, True])
def test_batches_are_drawn_sample_by_sample(secret: bool, small: Callable[[], nn.Module]) -> None:
    pool = Samples(torch.zeros(1000, 4), torch.zeros(1000, dtype=torch.int64), torch.arange(1000))
    me = client(pool, small, Privacy(), work=replace(ONCE, batch=100))
    assert me.account is not None
    me.account.secret = secret
    drawn = list(PrivateSteps(me.build(), me, pool, 400).batches())
    sizes = torch.tensor([float(len(positions)) for positions in drawn])
    assert abs(sizes.mean().item() - 100) < 4 * math.sqrt(90 / 400)
    assert sizes.var().item() == pytest.approx(90, rel=0.3)  # binomial; a shuffled pass would have 0
    often = torch.bincount(torch.cat(drawn), minlength=1000).double()
    assert often.var().item() == pytest.approx(400 * 0.1 * 0.9, rel=0.2)
    assert all(len(set(positions.tolist())) == len(positions) for positions in drawn)


@pytest.mark.parametrize("x", [0.0, 7.0])
def test_an_empty_batch_is_noise_and_what_has_no_data(x: float) -> None:
    pool = Samples(torch.full((9, 4), x), torch.zeros(9, dtype=torch.int64), torch.arange(9))
    me = client(pool, lambda: nn.Linear(4, 2), without_noise(), work=replace(ONCE, batch=1))
    net = me.net({"weight": torch.ones(2, 4), "bias": torch.ones(2)})
    sent = {"weight": torch.full((2, 4), 0.4), "bias": torch.zeros(2)}
    steps = PrivateSteps(net, me, pool, 1)
    nothing = torch.tensor([], dtype=torch.int64)
    steps.backward(lambda x, y: ce(net(x), y) + 0.5 * sq_dist(net, sent), pool.take, nothing)
    gradients = {name: p.grad for name, p in net.named_parameters()}
    assert torch.equal(gradients["weight"], torch.ones(2, 4) - 0.4)  # type: ignore[arg-type]  # to the bit, whatever x
    assert torch.equal(gradients["bias"], torch.ones(2))  # type: ignore[arg-type]


def test_what_is_counted_does_not_tell_how_many_were_drawn() -> None:
    """Counts travel with a reply, and sampling protects only while nobody knows who was drawn."""
    pool = Samples(torch.ones(9, 4), torch.zeros(9, dtype=torch.int64), torch.arange(9))
    counts = []
    for drawn in ([], [3], list(range(9))):
        me = client(pool, lambda: nn.Linear(4, 2), Privacy(), work=replace(ONCE, batch=3))
        net = me.build()
        steps = PrivateSteps(net, me, pool, 1)
        positions = torch.tensor(drawn, dtype=torch.int64)
        steps.backward(lambda x, y, net=net: ce(net(x), y), pool.take, positions)  # type: ignore[misc]
        counts.append(me.meter)
    assert counts[0] == counts[1] == counts[2]
    # Three samples are expected: a product of 4 x 2 weights forward and one for their gradient.
    assert (counts[0].forward, counts[0].flops) == (1, 3 * 2 * 8 * 2)


def test_a_term_without_data_is_not_clipped(logistic: type[nn.Module], rows: Callable[..., Samples]) -> None:
    me = client(rows([[8.0], [-4.0]], [0, 0]), logistic, without_noise(1.0))
    net = me.net({"w": torch.tensor([0.0])})
    fit(net, me, lambda x, y: ce(net(x), y) + 25 * sq_dist(net, {"w": torch.tensor([2.0])}))
    assert net.state_dict()["w"].item() == pytest.approx(-0.1 * ((1 - 1) / 2 + 50 * (0 - 2)))


def test_a_network_is_as_it_was_afterwards(small: Callable[[], nn.Module]) -> None:
    me = client(Samples(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64), torch.arange(4)), small, Privacy())
    net = me.build()
    fit(net, me, lambda x, y: ce(net(x), y))
    fit(net, me, lambda x, y: ce(net(x), y))
    assert net(torch.ones(2, 4)).grad_fn is not None  # no longer cut
    assert me.account is not None
    assert me.account.steps == 2


@pytest.mark.parametrize(
    "loss",
    [
        lambda net, x, y: ce(net(x), y) + net(x + 1).square().mean(),
        lambda net, x, y: ce(net(x.flip(0)), y),
        lambda net, x, y: ce(net(x), y) + net.body(x).square().mean(),
        lambda net, x, y: net.out(net.body(x)).square().mean(),
    ],
)
def test_a_loss_that_goes_around_the_network_is_refused(
    loss: Callable[[Any, Tensor, Tensor], Tensor], small: Callable[[], nn.Module]
) -> None:
    four = Samples(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    me = client(four, small, Privacy(), work=replace(ONCE, batch=4))
    net = me.build()
    with pytest.raises(UsageError, match=r"\[privacy\] needs a loss .*network"):
        fit(net, me, lambda x, y: loss(net, x, y))


# --- what it costs --------------------------------------------------------------------------------------------------

CASES = [(1.0, 0.1, 100), (0.7, 0.01, 5000), (4.0, 0.5, 30), (1.0, 1.0, 3), (0.5, 0.25, 1), (2.0, 1e-3, 20000)]


@pytest.mark.parametrize(("noise", "rate", "steps"), CASES)
def test_epsilon_is_that_of_dp_accounting(noise: float, rate: float, steps: int) -> None:
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    theirs = dp_accounting.rdp.RdpAccountant().compose(event, steps).get_epsilon(1e-5)
    ours = epsilon({repr(noise): {repr(rate): steps}}, 1e-5)
    assert theirs - 1e-12 <= ours <= theirs + 1e-6


def test_epsilon_is_about_that_of_opacus() -> None:
    other = pytest.importorskip("opacus.accountants").RDPAccountant()
    other.history = [(1.0, 0.1, 100), (1.0, 0.02, 300)]
    assert epsilon({"1.0": {"0.1": 100, "0.02": 300}}, 1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=1e-3)


def test_different_steps_are_added_up() -> None:
    accountant = dp_accounting.rdp.RdpAccountant()
    for noise, rate, steps in CASES:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps)
    ours: dict[str, dict[str, int]] = {}
    for noise, rate, steps in CASES:
        ours.setdefault(repr(noise), {})[repr(rate)] = steps
    assert epsilon(ours, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-6)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([0.1, 0.02, 1.0]), st.integers(1, 400)), min_size=1, max_size=6))
def test_epsilon_never_falls(charges: list[tuple[float, int]]) -> None:
    account = Account(Privacy())
    before = 0.0
    for rate, steps in charges:
        account.charge(rate, steps)
        after = epsilon(account.spent, 1e-5)
        assert after >= before
        before = after
    assert account.steps == sum(steps for _, steps in charges)


# --- the account ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_the_account_counts_steps_on_private_data_only(own: bool) -> None:
    setting = private_setting(participation=Participation())
    if own:  # public samples that lie in the same pool as the private ones
        setting = replace(setting, public=PublicSet(pooled([site.test for site in setting.sites]), True, "all"))
    engine = Serial(setting)
    run(FedMD(**{**FedMD.card.quick, "held_out": 0.0}), engine, 2)
    # Two epochs of pre-training and one in each of two rounds, all in batches of 8.
    assert spent(engine) == {k: 4 * setting.steps(k) for k in setting.ids}
    assert engine.memories[5][LEDGER] == {"1.0": {repr(8 / 33): 4 * 4}}


def test_a_method_does_not_see_the_account() -> None:
    setting = private_setting(participation=Participation())
    engine = Serial(setting)
    run(FedAvg(), engine, 1)
    assert engine.memories[0].keys() == {LEDGER}
    assert setting.client(0, 2, engine.memories[0]).memory == {}


@pytest.mark.parametrize("late_drop", [0.5, 0.999999])
def test_who_is_not_heard_has_spent_all_the_same(late_drop: float) -> None:
    counts = []
    for participation in (Participation(), Participation(late_drop=late_drop)):
        engine = Serial(private_setting(participation=participation))
        run(FedAvg(), engine, 2)
        counts.append(spent(engine))
    assert counts[0] == counts[1]
    assert set(counts[0]) == set(range(6))


def test_a_round_without_quorum_is_paid_for() -> None:
    setting = private_setting(participation=Participation(late_drop=0.999999), quorum=Quorum())
    engine = Serial(setting)
    run(Local(), engine, 2, State(0, {}))
    assert {k: memory.keys() for k, memory in engine.memories.items()} == {k: {LEDGER} for k in range(6)}
    assert spent(engine) == {k: 2 * setting.steps(k) for k in setting.ids}


class Spoiling(Serial):
    """Client 3 answers with NaN."""

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        for a in super().carry(method, round, messages):
            bad = {
                key: v if isinstance(v, int) else {k: t * math.nan for k, t in v.items()}
                for key, v in a.reply.body.items()
            }
            yield replace(a, reply=Reply(bad, a.reply.keep)) if a.client == 3 else a


def test_who_is_set_aside_has_spent_and_remembers_nothing_else() -> None:
    setting = private_setting(participation=Participation())
    engine = Spoiling(setting)
    _, rounds = watched(FedAvg(), engine, 2)
    assert [bad["client"] for fed in rounds for bad in fed.quarantined] == [3, 3]
    assert engine.memories[3].keys() == {LEDGER}
    assert spent(engine)[3] == 2 * setting.steps(3)


def test_a_method_may_not_use_the_reserved_key() -> None:
    class Sly(Local):
        def train(self, me: Client, msg: Message) -> Reply:
            return Reply({}, {LEDGER: {}})

        train.is_action = True  # type: ignore[attr-defined]

    with pytest.raises(UsageError, match=rf"{LEDGER}.*\[privacy\]"):
        run(Sly(), Serial(private_setting()), 1, State(0, {}))


def test_two_runs_of_one_comparison_draw_different_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    real = torch.randn

    def noted(*args: Any, **options: Any) -> Tensor:
        drawn.append(real(*args, **options))
        return drawn[-1]

    monkeypatch.setattr(torch, "randn", noted)
    exp = {**TINY, "rounds": 1, "privacy": {}, "methods": {"mild": {"name": "fedprox", "mu": 0.7}}}
    found = []
    for names in (["fedavg", "fedprox", "mild"], ["fedavg", "fedprox", "mild"]):
        drawn.clear()
        runs = compare(exp, names)
        found.append(torch.cat([one.flatten().double() for one in drawn]))
    assert [run.label for run in runs] == ["FedAvg", "FedProx", "mild"]
    assert torch.equal(*found)  # a rehearsal can be repeated
    parts = found[0].view(3, -1)
    assert parts.shape[1] > 1000
    assert not any(torch.isin(parts[a], parts[b]).any() for a, b in ((0, 1), (0, 2), (1, 2)))


def test_an_option_written_as_another_kind_of_number_is_the_same_run() -> None:
    work, privacy = LocalWork(), Privacy()
    assert run_address(FedProx(mu=1), work, privacy) == run_address(FedProx(mu=1.0), work, privacy)
    assert run_address(FedProx(mu=1.0), work, privacy) != run_address(FedProx(mu=0.5), work, privacy)


def test_a_rehearsal_is_labelled_wherever_its_epsilon_is_shown() -> None:
    done = simulate({**TINY, "rounds": 1, "privacy": {}})
    assert done.rounds[-1]["noise"] == "rehearsed"
    assert "(rehearsal)" in epsilon_of(done.rounds[-1])
    page = render([done], title="Private")
    assert "(rehearsal)" in page
    assert str(escape(WHY)) in page
    real = Run(done.meta, tuple({**record, "noise": "secret"} for record in done.rounds))
    page = render([real], title="Private")
    assert "(rehearsal)" not in page
    assert str(escape(WHY)) not in page
    stream = StringIO()
    with Display(1, 1, Console(file=stream, width=120, force_terminal=True)) as display:
        display.begin("FedAvg", 0)(done.rounds[-1])
    assert "(rehearsal)" in stream.getvalue()


# --- engines, resuming, records -------------------------------------------------------------------------------------


def digests(engine: Any) -> dict[int, str]:
    return {k: tree.digest(memory) for k, memory in engine.memories.items()}


def test_threads_give_the_same_bits_and_accounts() -> None:
    setting = private_setting()
    for method in (FedProx(mu=0.1), KnFu()):
        engine, other = Serial(setting), Threads(setting, workers=2)
        assert tree.equal(run(method, engine, 2).body, run(method, other, 2).body)
        assert digests(other) == digests(engine)
        assert spent(engine)


def test_the_pool_gives_the_same_bits_and_accounts() -> None:
    setting = private_setting(Privacy(budget=6.0), participation=Participation())
    with Pool(setting, workers=1) as pool:
        for method in (FedAvg(), KnFu()):
            engine, pool.memories = Serial(setting), {}
            (end, rounds), (same, others) = watched(method, engine, 2), watched(method, pool, 2)
            assert tree.equal(end.body, same.body)
            assert digests(pool) == digests(engine)
            assert [fed.spent for fed in rounds] == [fed.spent for fed in others]
            assert rounds[1].spent  # who declines is heard through the pipe too


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_resumed_run_has_the_same_bits_and_accounts(method: str, tmp_path: Path) -> None:
    exp = {
        **TINY,
        "method": method,
        "rounds": 4,
        "privacy": {"noise_multiplier": 0.8},
        "participation": {"policy": "fraction", "fraction": 0.5, "late_drop": 0.3},
        "quorum": {"fraction": 0.0},
    }
    whole = simulate(exp, tmp_path / "whole")
    simulate({**exp, "rounds": 2}, tmp_path / "resumed")
    resumed = resume(tmp_path / "resumed", rounds=4)
    kept = [Store(tmp_path / name).restore() for name in ("whole", "resumed")]
    assert kept[0] is not None
    assert kept[1] is not None
    assert tree.equal(kept[0][0].body, kept[1][0].body)
    assert kept[0][1].keys() == kept[1][1].keys()
    assert all(tree.equal(kept[0][1][k], kept[1][1][k]) for k in kept[0][1])
    assert [r["epsilons"] for r in whole.rounds] == [r["epsilons"] for r in resumed.rounds]
    for before, after in pairwise(resumed.rounds):
        assert all(a >= b for a, b in zip(after["epsilons"], before["epsilons"], strict=True))
    last = resumed.rounds[-1]
    assert last["epsilon"] == max(last["epsilons"]) > 0
    assert last["epsilons"] == [epsilon(kept[1][1].get(k, {}).get(LEDGER, {}), 1e-5) for k in range(4)]


def test_a_kill_between_record_and_checkpoint_costs_nothing_twice(tmp_path: Path) -> None:
    exp = {**TINY, "rounds": 3, "privacy": {}}
    whole = simulate(exp, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "000003.json").unlink()  # round 3 was recorded, but never committed
    again = resume(tmp_path / "run")
    assert [r["epsilons"] for r in again.rounds] == [r["epsilons"] for r in whole.rounds]


def test_private_training_keeps_the_contract() -> None:
    check_method(FedAvg(), private_setting())


@pytest.mark.parametrize(
    "method", [Local(second_phase=1), FedMDGlobal(**FedMDGlobal.card.quick, held_out=0.0, lwof=True)]
)
def test_methods_with_several_phases_pay_for_each(method: Method) -> None:
    setting = private_setting(participation=Participation())
    engine = Serial(setting)
    run(method, engine, 1)
    phases = 2 if method.name == "local" else 3  # two epochs of pre-training and the local update
    assert spent(engine) == {k: phases * setting.steps(k) for k in setting.ids}


def test_without_the_section_nothing_is_different() -> None:
    run_ = simulate({**TINY, "rounds": 1}).rounds[0]
    assert not {"epsilon", "epsilons", "spent"} & run_.keys()
    assert "privacy" not in experiment(TINY).to_dict()
    engine = Serial(small_settings()[0])
    run(FedAvg(), engine, 1)
    assert engine.memories == {}


def test_a_run_goes_on_with_the_same_opacus_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    made = simulate({**TINY, "rounds": 1, "privacy": {}}, folder=folder)
    assert made.meta["versions"]["opacus"] == importlib.metadata.version("opacus")
    assert "opacus" not in simulate({**TINY, "rounds": 1}).meta["versions"]

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(CheckpointError, match=r"opacus has changed: .* now it is missing"):
        resume(folder, rounds=2)
    assert "the run was made with opacus" in " ".join(str(finding) for finding in examine([folder]))


# --- the budget -----------------------------------------------------------------------------------------------------


def test_a_client_stops_before_its_budget_is_exceeded() -> None:
    setting = private_setting(Privacy(budget=9.0), participation=Participation())
    engine = Serial(setting)
    _, rounds = watched(FedAvg(), engine, 6)
    stopped = [fed.spent for fed in rounds]
    assert stopped[0] == set()
    assert stopped[-1]  # some, and nobody comes back
    assert all(a <= b for a, b in pairwise(stopped))
    for k in setting.ids:
        ledger = engine.memories[k][LEDGER]
        assert epsilon(ledger, 1e-5) <= 9.0
        if k in stopped[-1]:
            ((noise, ((rate, steps),)),) = [(noise, by.items()) for noise, by in ledger.items()]
            assert epsilon({noise: {rate: steps + setting.steps(k)}}, 1e-5) > 9.0
    reasons = {bad["reason"] for fed in rounds for bad in fed.quarantined}
    assert reasons == {"one more round would exceed its privacy budget of 9.0"}


def test_a_client_without_budget_counts_as_absent() -> None:
    setting = private_setting(Privacy(budget=9.0), participation=Participation())
    state, rounds = watched(FedAvg(), Serial(setting), 5)
    there = [[k for k in setting.ids if k not in fed.spent] for fed in rounds]
    assert all(there)
    without = replace(setting, privacy=Privacy(), participation=Participation(policy="trace", trace=there))
    assert tree.equal(run(FedAvg(), Serial(without), 5).body, state.body)


def test_a_run_ends_when_all_budgets_are_spent() -> None:
    done = simulate({**TINY, "rounds": 50, "privacy": {"budget": 12.0}})
    assert done.meta["stopped_by"] == "privacy"
    assert len(done.rounds) < 50
    assert done.rounds[-1]["epsilon"] <= 12.0
    assert {k for record in done.rounds for k in record.get("spent", [])} == {0, 1, 2, 3}


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_budget_that_does_not_pay_for_one_round_is_an_error(rounds: int, tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match=r"privacy\.budget = 0\.1 .*one round"):
        simulate({**TINY, "rounds": rounds, "privacy": {"budget": 0.1}}, tmp_path / "run")
    with pytest.raises(QuorumError, match=r"privacy\.budget = 0\.1 .*one round"):
        resume(tmp_path / "run")


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"max_grad_norm": 0.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"budget": 0.0},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"privacy.{next(iter(wrong))} = "):
        Privacy(**wrong)


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(
        UsageError, match="privacy has no key 'noise'; choose one of: budget, delta, max_grad_norm, noise_multiplier"
    ):
        experiment({"privacy": {"noise": 1.0}})


def test_methods_are_private_only_where_it_was_shown() -> None:
    shown = {"fedavg", "fedprox", "fedavgm", "local", "fedmd", "fedmd-knfu", "fedmd-global", "knfu", "ds-fl"}
    assert {
        name for name, cls in methods.items() if cls.__module__.startswith("fedalloy.") and cls.card.private
    } == shown


@pytest.mark.parametrize("name", ["qffl", "dafkd", "fedgen", "moon", "feddisco", "centralised"])
def test_other_methods_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be run with \\[privacy\\].*use one of: .*fedavg"):
        simulate({**TINY, "method": name, "rounds": 1, "privacy": {}})


@pytest.mark.parametrize("method", [FedAvg(aggregation=DISCO), FedProx(aggregation=DISCO), KnFu(ce_on="local")])
def test_options_that_leak_are_refused(method: Method) -> None:
    with pytest.raises(UsageError, match="in a way that \\[privacy\\] does not cover"):
        private_setting().check(method)


def test_holding_private_samples_out_is_refused() -> None:
    method = FedMD(**{**FedMD.card.quick, "held_out": 0.2, "held_out_least": 1})
    with pytest.raises(UsageError, match=r"neither public nor all of its own .*write held_out = 0"):
        run(method, Serial(private_setting(participation=Participation())), 1)
    with pytest.raises(UsageError, match=r"held_out = 0\.2 \(write 0\) uses a client's samples in a way"):
        private_setting().check(method)  # and so before the first round
    private_setting().check(FedMDKnFu())
    with pytest.raises(UsageError, match=r"converged_by = 'training' .* uses a client's samples in a way"):
        private_setting().check(FedMD(**FedMD.card.quick, converged_by="training"))


def test_batch_norm_is_refused() -> None:
    with pytest.raises(UsageError, match=r'without BatchNorm.*write model.norm = "group"'):
        replace(small_settings()[1], privacy=Privacy()).check(FedAvg())
    with pytest.raises(UsageError, match="without BatchNorm"):
        check_network(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)))


def test_what_opacus_cannot_train_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\[privacy\].*'running_mean'"):
        check_network(nn.InstanceNorm1d(2, affine=True, track_running_stats=True))
    with pytest.raises(UsageError, match="cannot train this network"):
        check_network(nn.LSTM(2, 2))


@pytest.mark.parametrize("library", ["opacus.validators", "dp_accounting"])
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=r"needs (opacus|dp_accounting); pip install .*\[privacy\]"):
        simulate({**TINY, "rounds": 1, "privacy": {}})
