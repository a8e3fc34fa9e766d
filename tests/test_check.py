"""The contract: every registered method keeps it, and every rule bites."""

import random
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedalloy.methods  # noqa: F401  # registers them all
from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.check import method as check
from fedalloy.check.method import Case, ContractError, check_method, checks_passed, rule_name, rule_text, small_settings
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Message, Method, action, methods, quick, reply
from fedalloy.federation.gate import Sized, like, whole
from fedalloy.methods import QFFL, FedAvg, Local
from fedalloy.train.fit import fit, params
from fedalloy.train.losses import ce

bad = dataclass(frozen=True, kw_only=True)  # what @method does, without the registry


@pytest.mark.parametrize("name", list(methods))
def test_registering_a_method_is_being_tested(name):
    check_method(quick(methods[name]))


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(cache=Cache(oca=False)),
        FedAvg(aggregation=Aggregation(weights="uniform"), cache=Cache(unseen="init_model")),
        QFFL(q=1.0, sampling="size"),
    ],
    ids=repr,
)
def test_options_keep_the_contract(method):
    check_method(method, small_settings()[0])


def first(model):
    return next(iter(model.values()))


# --- methods that each break one rule ---------------------------------------------------------------------------------


class NotADataclass(FedAvg):
    pass


def test_a_method_that_is_not_frozen_cannot_be_written():
    with pytest.raises(TypeError, match="non-frozen"):

        @dataclass(kw_only=True)
        class NotFrozen(Method):
            name, label, card = "not-frozen", "Not frozen", FedAvg.card


@bad
class NoDefault(FedAvg):
    mu: float


@bad
class NoLabel(FedAvg):
    label = ""


@bad
class BlankCard(FedAvg):
    card = Card(paper="", up="model", down="model")


@bad
class SecretlyPublic(FedAvg):
    @action
    def train(self, me, msg):
        return reply(model=msg["model"], n=len(me.public.samples))


@bad
class SecretlyFeatures(FedAvg):
    @action
    def train(self, me, msg):
        net = me.net(msg["model"])
        fit(net, me, lambda x, y: ce(net.head(net.features(x)), y))
        return reply(model=params(net), n=me.n)


@bad
class AveragesAnyNetwork(FedAvg):
    card = replace(FedAvg.card, any_network=True)


@bad
class CountsClassesForOutputs(FedAvg):
    def round(self, s, fed):
        if list(s["model"].values())[-1].shape != (fed.classes,):
            raise ValueError("no row for each class")
        return super().round(s, fed)


@bad
class NumbersAsKeys(FedAvg):
    def cached(self, s, replies):
        return {"cache": {r.client: r["model"] for r in replies}}


@bad
class SendsGradients(FedAvg):
    @action
    def train(self, me, msg):
        return reply(model=dict(me.net(msg["model"]).named_parameters()), n=me.n)


@bad
class StandsStill(FedAvg):
    def round(self, s, fed):
        super().round(s, fed)
        return s


@bad
class Leaps(FedAvg):
    def round(self, s, fed):
        return super().round(s, fed).next()


@bad
class ReturnsNothing(FedAvg):
    def round(self, s, fed):
        super().round(s, fed)


@bad
class Explodes(FedAvg):
    @action
    def train(self, me, msg):
        return reply(model={name: w / 0 for name, w in msg["model"].items()}, n=me.n)


@bad
class SetsAnAttribute(FedAvg):
    def round(self, s, fed):
        self.best = 1
        return super().round(s, fed)


@bad
class ForcesAnAttribute(FedAvg):
    def round(self, s, fed):
        object.__setattr__(self, "best", s.round)
        return super().round(s, fed)


@bad
class CountsOnItsClass(FedAvg):
    seen = 0

    def round(self, s, fed):
        type(self).seen += 1
        return super().round(s, fed)


@bad
class FillsAClassDict(FedAvg):
    seen = {}  # noqa: RUF012

    def round(self, s, fed):
        self.seen[s.round] = 1
        return super().round(s, fed)


@bad
class ChangesItsMessage(FedAvg):
    @action
    def train(self, me, msg):
        first(msg["model"]).mul_(0.5)
        return super().train(me, msg)


@bad
class ChangesItsMemory(Local):
    @action
    def train(self, me, msg):
        answer = super().train(me, msg)
        if me.memory:
            first(me.memory["model"]).mul_(0.5)
        return answer


@bad
class FillsItsMemory(Local):
    @action
    def train(self, me, msg):
        me.memory["model"] = params(me.build())
        return reply()


@bad
class ChangesItsData(FedAvg):
    @action
    def train(self, me, msg):
        me.train.x.mul_(1.5)
        return super().train(me, msg)


@bad
class ChangesTheState(FedAvg):
    def round(self, s, fed):
        new = super().round(s, fed)
        first(s["model"]).mul_(0.5)
        return new


@bad
class ChangesWhatAClientKeeps(FedAvg):
    @action
    def train(self, me, msg):
        answer = super().train(me, msg)
        return reply(**answer.body, keep={"model": answer.body["model"]})

    def aggregate(self, s, replies, fed):
        first(replies[0]["model"]).mul_(0.5)
        return super().aggregate(s, replies, fed)


@bad
class DrawsFromPython(FedAvg):
    @action
    def train(self, me, msg):
        return reply(model=msg["model"], n=random.randint(1, 9))  # on purpose


@bad
class DrawsFromNumpy(FedAvg):
    def aggregate(self, s, replies, fed):
        weights = list(np.random.rand(len(replies)))  # noqa: NPY002  # on purpose
        return average([r["model"] for r in replies], weights, s["model"])


TICKS = Counter()


@bad
class CountsItsRuns(FedAvg):
    def init(self, fed):
        TICKS["runs"] += 1
        return {**super().init(fed), "run": TICKS["runs"]}


@bad
class WeighsByArrival(FedAvg):
    def round(self, s, fed):
        TICKS["arrived"] = 0
        return super().round(s, fed)

    @action
    def train(self, me, msg):
        TICKS["arrived"] += 1
        return reply(model=super().train(me, msg).body["model"], n=TICKS["arrived"])


@bad
class SumsInTheOrderOfADict(FedAvg):
    def aggregate(self, s, replies, fed):
        cache = self.cached(s, replies)["cache"]
        return {name: sum(model[name] for model in cache.values()) / len(cache) for name in s["model"]}


REMEMBERED = {}


@bad
class RemembersElsewhere(FedAvg):
    def init(self, fed):
        REMEMBERED.clear()
        return super().init(fed)

    @action
    def train(self, me, msg):
        REMEMBERED[me.id] = REMEMBERED.get(me.id, 0) + 1
        return reply(model=super().train(me, msg).body["model"], n=REMEMBERED[me.id])


@bad
class CrashesOnSilence(FedAvg):
    def round(self, s, fed):
        replies = fed.ask("train", fed.sample(), model=s["model"])
        return s.next(loss=sum(r["n"] for r in replies) / len(replies))


@bad
class RefusesSilence(FedAvg):
    def round(self, s, fed):
        replies = fed.ask("train", fed.sample(), model=s["model"])
        return s.next(model=self.aggregate(s, replies, fed))


@bad
class NanOnSilence(FedAvg):
    def round(self, s, fed):
        replies = fed.ask("train", fed.sample(), model=s["model"])
        return s.next(size=torch.tensor([float(r["n"]) for r in replies]).mean())


@bad
class MovesInSilence(FedAvg):
    def round(self, s, fed):
        new = super().round(s, fed)
        return replace(new, body={**new.body, "model": {name: w * 0.5 for name, w in new["model"].items()}})


@bad
class DividesByThoseAsked(FedAvg):
    def aggregate(self, s, replies, fed):
        mean = average([r["model"] for r in replies], [1] * len(replies), s["model"])
        return {name: w * len(replies) / len(fed.sample()) for name, w in mean.items()}


SIDE_CHANNEL = {}


@bad
class SendsBesideTheWire(FedAvg):
    def round(self, s, fed):
        SIDE_CHANNEL.clear()
        return super().round(s, fed)

    @action
    def train(self, me, msg):
        SIDE_CHANNEL[me.id] = me.n
        return super().train(me, msg)

    def aggregate(self, s, replies, fed):
        weights = [sum(SIDE_CHANNEL.values()) + r["n"] for r in replies]
        return average([r["model"] for r in replies], weights, s["model"])


@bad
class HidesItsTraffic(FedAvg):
    def round(self, s, fed):
        new = super().round(s, fed)
        fed.ledger.down.clear()
        return new


@bad
class EvaluatesDestructively(FedAvg):
    def models(self, s):
        first(s["model"]).mul_(0.5)
        return {"global": s["model"]}


@bad
class EvaluatesHalfAModel(FedAvg):
    def models(self, s):
        return {"global": {"head": first(s["model"])}}


@bad
class PersonalForSome(Local):
    def personal(self, me):
        return me.memory.get("model")

    @action
    def train(self, me, msg):
        return reply(keep={"model": params(me.build())} if me.id != 3 else None)


@bad
class NothingToEvaluate(Local):
    def personal(self, me):
        return None

    @action
    def train(self, me, msg):
        return reply()


@bad
class ExpectsAnotherSize(FedAvg):
    def expects(self, message, fed):
        return {**super().expects(message, fed), "n": whole(1000)}


@bad
class ExpectsAnything(FedAvg):
    """It sends the model under another name than it comes back, so that the gate cannot compare the two."""

    def round(self, s, fed):
        replies = fed.ask("train", fed.sample(), start=s["model"])
        return s.next(model=self.aggregate(s, replies, fed), **self.cached(s, replies)) if replies else s.next()

    @action
    def train(self, me, msg):
        return super().train(me, Message(msg.action, msg.client, {"model": msg["start"]}))

    def expects(self, message, fed):
        return dict.fromkeys(("model", "n"), lambda value: None)

    def accepts(self, action, me):
        return {"start": like(params(me.build()))}


@bad
class SendsMoreThanItAccepts(FedAvg):
    def round(self, s, fed):
        fed.ask("train", fed.sample(), model=s["model"], more=1)
        return s.next()


@bad
class AcceptsLessThanItSends(FedAvg):
    def accepts(self, action, me):
        return {"model": Sized(lambda value: None, {"w": torch.zeros(1)})}


@bad
class StagesForSome(Local):
    def stages(self, me):
        return {"before": self.personal(me)} if me.id != 3 else {}


@bad
class ForgetsOnTheWay(FedAvg):
    extra: int = 0

    def __reduce__(self):
        return type(self), ()

    @action
    def train(self, me, msg):
        answer = super().train(me, msg)
        return reply(**{**answer.body, "n": answer.body["n"] + self.extra})

    def expects(self, message, fed):
        return {**super().expects(message, fed), "n": whole(1, 1000)}


@bad
class ReadsOutputs(FedAvg):
    @action
    def train(self, me, msg):
        answer = super().train(me, msg)
        return reply(**{**answer.body, "n": answer.body["n"] + me.outputs})

    def expects(self, message, fed):
        return {**super().expects(message, fed), "n": whole(1, 1000)}


FAULTS = [
    (NotADataclass(), check.check_is_a_frozen_dataclass, "class NotADataclass .*put @method"),
    (NoDefault(mu=1.0), check.check_is_a_frozen_dataclass, "the hyper-parameter 'mu' has no default"),
    (NoLabel(), check.check_is_a_frozen_dataclass, "class NoLabel has no label; give it one in @method"),
    (BlankCard(), check.check_is_a_frozen_dataclass, "the card's 'paper' is empty"),
    (
        SecretlyPublic(),
        check.check_needs_no_more_than_its_card_says,
        "public=None.*'train' of client 3: AttributeError",
    ),
    (SecretlyFeatures(), check.check_needs_no_more_than_its_card_says, "features=False.*has no attribute 'head'"),
    (AveragesAnyNetwork(), check.check_needs_no_more_than_its_card_says, "any_network=True.*do not fit the network"),
    (
        CountsClassesForOutputs(),
        check.check_tells_outputs_from_classes,
        r"adds classes, .* no row for each class.* \(fed.outputs\)",
    ),
    (NumbersAsKeys(), check.check_leaves_trees_and_advances_by_one, "state/cache: key 3 must be a non-empty string"),
    (SendsGradients(), check.check_leaves_trees_and_advances_by_one, "client 3: reply/model/.* gradient .*; detach it"),
    (StandsStill(), check.check_leaves_trees_and_advances_by_one, r"returned no State of round 1; return s.next\("),
    (Leaps(), check.check_leaves_trees_and_advances_by_one, r"returned no State of round 1; return s.next\("),
    (ReturnsNothing(), check.check_leaves_trees_and_advances_by_one, r"returned no State of round 1; return s.next\("),
    (Explodes(), check.check_expects_what_it_gets, "client 3, because model .* is not finite; fix the action, or"),
    (SetsAnAttribute(), check.check_leaves_trees_and_advances_by_one, "FrozenInstanceError: .* 'best'"),
    (ForcesAnAttribute(), check.check_has_no_state_of_its_own, r"self.best changed during a run; keep .* reply\(keep"),
    (CountsOnItsClass(), check.check_has_no_state_of_its_own, "CountsOnItsClass.seen changed during a run"),
    (FillsAClassDict(), check.check_has_no_state_of_its_own, "FillsAClassDict.seen changed during a run"),
    (ChangesItsMessage(), check.check_changes_nothing_in_place, "client 3: its message was .* 'model/.*'; work on"),
    (ChangesItsMemory(), check.check_changes_nothing_in_place, "round 2, .* client 3: its memory was .* 'model/.*'"),
    (FillsItsMemory(), check.check_changes_nothing_in_place, "round 1, action 'train' of client 3: its memory was"),
    (ChangesItsData(), check.check_changes_nothing_in_place, "its data was changed in place at key 'x'"),
    (ChangesTheState(), check.check_changes_nothing_in_place, "server.*state it was given was .* 'model/.*'"),
    (ChangesWhatAClientKeeps(), check.check_changes_nothing_in_place, "the memory of client 3, shared with its reply,"),
    (DrawsFromPython(), check.check_draws_from_no_global_stream, "client 3: random's global stream .* use me.rng"),
    (DrawsFromNumpy(), check.check_draws_from_no_global_stream, "server: numpy's global stream .* use fed.rng"),
    (CountsItsRuns(), check.check_is_repeatable, "round 0, the server's state: key 'run' .* a second run, with other"),
    (
        WeighsByArrival(),
        check.check_does_not_depend_on_the_order_of_clients,
        "answer 1, to 'train', of client 3: key 'n'",
    ),
    (SumsInTheOrderOfADict(), check.check_survives_bytes, "round 3, .* keys come sorted"),
    (ForgetsOnTheWay(extra=5), check.check_acts_alike_in_another_process, "round 1, answer 1, .*: key 'n'"),
    (RemembersElsewhere(), check.check_resumes, "round 3, answer 1, .*: key 'n' .* resumed after round 2: keep what"),
    (
        CrashesOnSilence(),
        check.check_survives_lost_replies,
        r"round 1.*ZeroDivisionError.*return s.next\(\) when there",
    ),
    (RefusesSilence(), check.check_survives_lost_replies, r"round 1.*weights must be.*return s.next\(\) when there"),
    (NanOnSilence(), check.check_survives_lost_replies, r"the server's size is not finite.*; .*return s.next\(\)"),
    (MovesInSilence(), check.check_survives_lost_replies, "round 1: nobody answered, but the model 'aca' moved"),
    (DividesByThoseAsked(), check.check_survives_lost_replies, "clients 4 were lost, but key 'model/.*never on those"),
    (SendsBesideTheWire(), check.check_survives_lost_replies, "not what it is without these clients"),
    (HidesItsTraffic(), check.check_sends_what_the_ledger_counts, r"bytes went down, but the ledger counts 0"),
    (
        EvaluatesDestructively(),
        check.check_gives_models_that_load,
        r"models\(\): the state was changed in place at key",
    ),
    (EvaluatesHalfAModel(), check.check_gives_models_that_load, r"models\(\) after round 4: .* do not fit the network"),
    (PersonalForSome(), check.check_gives_models_that_load, "client 0 a model, but client 3 none; give a client that"),
    (NothingToEvaluate(), check.check_gives_models_that_load, "there is nothing to evaluate"),
    (StagesForSome(), check.check_gives_models_that_load, r"stages\(\) gives client 0 the views .* give every client"),
    (ExpectsAnotherSize(), check.check_expects_what_it_gets, r"'train' of client 3, because n is 17, below 1000"),
    (
        SendsMoreThanItAccepts(),
        check.check_accepts_what_it_is_sent,
        r"round 1, action 'train' of client 3: accepts\(\) refuses .* because it has the unexpected key 'more'; "
        "fix round",
    ),
    (AcceptsLessThanItSends(), check.check_accepts_what_it_is_sent, r"bytes travel .* more than accepts\(\) allows"),
    (ExpectsAnything(), check.check_survives_bad_replies, "(cache|model)/.* is not finite"),
]


def name_of(value):
    return type(value).__name__ if isinstance(value, Method) else ""


@pytest.mark.parametrize(("method", "rule", "sentence"), FAULTS, ids=name_of)
def test_a_broken_rule_is_named_with_its_place_and_remedy(method, rule, sentence):
    with pytest.raises(ContractError, match=f"^{method.name} breaks the rule '{rule_name(rule)}': .*{sentence}"):
        check_method(method, small_settings()[0])


def test_every_rule_has_a_fault_that_it_finds():
    assert {rule for _, rule, _ in FAULTS} == set(check.CHECKS)


def test_a_field_that_the_pool_forgets_would_show(monkeypatch):
    check_method(ReadsOutputs(), small_settings()[0])
    whole_setting = check.unpack
    monkeypatch.setattr(check, "unpack", lambda cargo: replace(whole_setting(cargo), space=None))
    with pytest.raises(ContractError, match=r"acts alike in another process.*key 'n'"):
        check_method(ReadsOutputs(), small_settings()[0])


def test_the_rules_are_told_one_line_each():
    lines = checks_passed(Local(), small_settings()[0])
    assert len(lines) == len(check.CHECKS) == 18
    assert lines[0].startswith("is a frozen dataclass: A frozen dataclass whose hyper-parameters have defaults")
    assert all(rule_text(rule) for rule in check.CHECKS)


def test_a_missing_dropout_seed_would_show():
    nets = [setting.networks[0]() for setting in small_settings()]
    assert [any(isinstance(m, torch.nn.Dropout) for m in net.modules()) for net in nets] == [False, True]
    assert [any(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules()) for net in nets] == [False, True]


def test_small_settings_meet_the_hard_cases():
    for setting in small_settings():
        seen = [setting.active(round) for round in (1, 2, 3, 4)]
        assert min(setting.sizes) == 1
        assert any(setting.sizes[k] == 1 for ids in seen for k in ids)  # a client with one sample takes part
        assert all(len(ids) == 3 for ids in seen)
        assert max(setting.steps(k) for k in setting.ids) >= 4


def test_a_users_own_setting_is_used_and_an_unfit_one_is_the_users_fault():
    setting = replace(small_settings()[0], public=None)

    @bad
    class NeedsPublic(FedAvg):
        card = replace(FedAvg.card, public=True)

    check_method(NeedsPublic(), small_settings()[0])
    with pytest.raises(UsageError, match="needs a public set"):
        check_method(NeedsPublic(), setting)
    case = Case(FedAvg(), setting)
    assert case.plain.engine.setting is setting
    assert case.plain.engine.asked == {t: set(setting.active(t)) for t in (1, 2, 3, 4)}


def test_the_surroundings_are_left_as_they_were():
    threads = torch.get_num_threads()
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002
    check_method(FedAvg(), small_settings()[0])
    with pytest.raises(ContractError):
        check_method(DrawsFromNumpy(), small_settings()[0])
    after = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]
    assert torch.get_num_threads() == threads


def test_the_faults_are_not_registered():
    assert all(not cls.__module__.endswith("test_check") for cls in methods.values())
