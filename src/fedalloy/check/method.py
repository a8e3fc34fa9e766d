"""The contract of a method: the rules that built-in and user methods must follow, so that any engine runs them exactly.

`check_method` runs a method in two small federations and changes something on the way: the order in which clients
run, the objects behind the messages, the run itself, the replies. The results of a correct method do not change.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields, replace

import numpy as np
import torch

from fedalloy.base import tree
from fedalloy.base.tree import Tree
from fedalloy.check.probe import (
    COPY,
    KEEP,
    PURE,
    Case,
    ContractError,
    Probe,
    Rule,
    Trace,
    first_difference,
    global_streams,
    global_streams_restored,
    located,
    memory_of,
    perceptron,
    place,
    require_finite,
    require_same,
    setting_with_public_classes,
    small_settings,
    trace,
    with_batch_norm,
    without_features,
)
from fedalloy.check.replies import (
    check_accepts_what_it_is_sent,
    check_expects_what_it_gets,
    check_survives_bad_replies,
    check_survives_lost_replies,
    half_lost,
)
from fedalloy.data.samples import Samples
from fedalloy.engine.base import Round
from fedalloy.engine.cargo import pack, release, unpack
from fedalloy.federation.core import Card, Client, Message, Method, Reply, State
from fedalloy.federation.evaluation import evaluate
from fedalloy.federation.setting import Setting
from fedalloy.train.fit import one_thread


def check_method(method: Method, setting: Setting | None = None) -> None:
    """Check a method against all rules of the contract; the first violation is raised as a ContractError.

    Without a setting it creates two small ones: a perceptron, and a network with BatchNorm and dropout.

    >>> from fedalloy.methods import FedAvg
    >>> check_method(FedAvg())
    """
    checks_passed(method, setting)


def checks_passed(method: Method, setting: Setting | None = None) -> list[str]:
    """Check a method and report what was checked, one line per rule."""
    cases = [Case(method, s) for s in ([setting] if setting is not None else small_settings())]
    with one_thread(), global_streams_restored():
        for check in CHECKS:
            for case in cases:
                try:
                    check(case)
                except ContractError as error:
                    name = getattr(method, "name", type(method).__name__)
                    raise ContractError(f"{name} breaks the rule '{rule_name(check)}': {error}") from error
    return [f"{rule_name(check)}: {rule_text(check)}" for check in CHECKS]


def rule_name(check: Rule) -> str:
    """The name of a rule.

    >>> rule_name(check_survives_lost_replies)
    'survives lost replies'
    """
    return check.__name__.removeprefix("check_").replace("_", " ")


def rule_text(check: Rule) -> str:
    """What a rule requires, in one line."""
    return (check.__doc__ or "").splitlines()[0].rstrip(".")


def check_is_a_frozen_dataclass(case: Case) -> None:
    """A frozen dataclass whose hyper-parameters have defaults, with a name, a label and a full card."""
    cls = type(case.method)
    if not getattr(vars(cls).get("__dataclass_params__"), "frozen", False):
        raise ContractError(f"class {cls.__name__} is not a frozen dataclass; put @method(...) above it")
    for f in fields(cls):
        if f.init and f.default is MISSING and f.default_factory is MISSING:
            raise ContractError(f"the hyper-parameter '{f.name}' has no default; give it the paper's")
    for name, kind in (("name", str), ("label", str), ("card", Card)):
        if not (isinstance(getattr(case.method, name, None), kind) and getattr(case.method, name)):
            raise ContractError(f"class {cls.__name__} has no {name}; give it one in @method(...)")
    blank = [f.name for f in fields(Card) if getattr(case.method.card, f.name) == ""]
    if blank:
        raise ContractError(f"the card's '{blank[0]}' is empty; say what it is, if only 'nothing'")


def check_leaves_trees_and_advances_by_one(case: Case) -> None:
    """It runs; state, memories and messages are trees of finite numbers; every round advances by exactly one."""
    case.setting.check(case.method)
    assert case.plain.state.round == 4


def check_has_no_state_of_its_own(case: Case) -> None:
    """The method object and its class are after a run what they were before it."""
    if case.plain.changed:
        raise ContractError(f"{case.plain.changed[0]} changed during a run; {KEEP}")


def check_gives_models_that_load(case: Case) -> None:
    """models(), personal() and stages() give finite weights that fit the networks, and change nothing."""
    _check_models(case.method, case.plain)


def _check_models(method: Method, run: Trace) -> None:
    setting, state = run.engine.setting, run.state
    before = tree.encode(state.body)
    with located(f"models() after round {state.round}", "give whole state dicts by the names of their views"):
        shared = dict(method.models(state))
        _check_unchanged(before, state.body, "models(): the state")
        for view, weights in shared.items():
            setting.fitting(weights, view)
            require_finite(weights, f"models(), view '{view}'")
    found = [_check_own(method, run, k) for k in setting.ids]
    own = ["" in views for views in found]
    if len(set(own)) > 1:
        raise ContractError(
            f"personal() gives client {own.index(True)} a model, but client {own.index(False)} none; "
            "give a client that never took part the model it would start from"
        )
    odd = next((k for k in setting.ids if found[k] != found[0]), None)
    if odd is not None:
        raise ContractError(
            f"stages() gives client 0 the views {sorted(found[0])} and client {odd} {sorted(found[odd])}; "
            "give every client the same, with the model it would start from where there is no other"
        )
    if not (shared or own[0]):
        raise ContractError("neither models() nor personal() gives a model; there is nothing to evaluate")


def _check_own(method: Method, run: Trace, client: int) -> set[str]:
    """The names of the client's own models; that of personal() is empty."""
    me = run.engine.setting.client(client, run.state.round, run.engine.memories.get(client, {}))
    before = tree.encode(me.memory)
    found: dict[str, Tree] = {}
    with located(f"personal() of client {client}", "give a whole state dict, or None for all clients"):
        weights = method.personal(me)
        _check_unchanged(before, me.memory, f"personal(): {memory_of(client)}")
        found |= {} if weights is None else {"": weights}
    with located(f"stages() of client {client}", "give whole state dicts by the names of their views"):
        found |= method.stages(me)
        _check_unchanged(before, me.memory, f"stages(): {memory_of(client)}")
    for view, weights in found.items():
        where = f"stages() of client {client}, view '{view}'" if view else f"personal() of client {client}"
        with located(where, "give a whole state dict"):
            me.net(weights)
            require_finite(weights, where)
    return set(found)


def check_needs_no_more_than_its_card_says(case: Case) -> None:
    """It runs without public data, without `features` and `head`, among different networks, as its card says."""
    card = case.method.card
    setting = small_settings()[0]
    networks = [with_batch_norm, perceptron] if card.any_network else [with_batch_norm]
    if not card.features:
        networks = [without_features(network) for network in networks]
    setting = replace(
        setting,
        networks=[networks[k % len(networks)] for k in setting.ids],
        public=setting.public if case.method.needs_public else None,
    )
    got = f"public={case.method.needs_public}, features={card.features}, any_network={card.any_network}"
    try:
        _check_models(case.method, trace(case.method, Probe(setting), 2))
    except ContractError as error:
        raise ContractError(f"with what its card asks for ({got}), {error}; ask for what it needs") from error


def check_tells_outputs_from_classes(case: Case) -> None:
    """It runs where a public set adds classes: networks have more outputs than the clients have classes."""
    try:
        _check_models(case.method, trace(case.method, Probe(setting_with_public_classes()), 2))
    except ContractError as error:
        advice = "networks may have more outputs (fed.outputs) than the clients have classes (fed.classes)"
        raise ContractError(f"with a public set that adds classes, {error}; {advice}") from error


class _Guarded(Probe):
    """Compares the inputs of an action and of the server with what they are afterwards."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.kept: dict[int, bytes] = {}
        self.start = b""

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        given: dict[str, Tree] = {"its message": message.body, "its memory": me.memory, "its data": _data(me.train)}
        if me.public is not None:
            given["the public set"] = _data(me.public.samples)
        before = {what: tree.encode(body) for what, body in given.items()}
        answer = super().act(method, me, message)
        for what, body in given.items():
            _check_unchanged(before[what], body, f"{place(me, message)}: {what}")
        if answer.keep is not None:
            self.kept[me.id] = tree.encode(answer.keep)
        return answer

    def between(self, old: State, new: State) -> State:
        where = f"round {new.round}, the server's round()"
        if self.start:
            _check_unchanged(self.start, old.body, f"{where}: the state it was given")
        for k, kept in self.kept.items():
            _check_unchanged(kept, self.memories[k], f"{where}: {memory_of(k)}, shared with its reply,")
        self.start = tree.encode(new.body)
        return new


def check_changes_nothing_in_place(case: Case) -> None:
    """Actions do not change the message, the memory or the data; the server does not change its old state.

    Sending or keeping a received tensor is allowed. Only a change through such a shared tensor is a fault; it is found
    here, or when everything goes through bytes.
    """
    trace(case.method, _Guarded(case.setting), 2)


def _data(samples: Samples) -> Tree:
    return {"x": samples.x, "y": samples.y, "index": samples.index}


def _check_unchanged(before: bytes, body: Tree, what: str) -> None:
    after = tree.encode(body)
    if after != before:
        raise ContractError(f"{what} was changed in place at {first_difference(before, after)}; {COPY}")


class _Undrawn(Probe):
    """Checks the global random streams after every action and every round."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.outside = global_streams()

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        before = global_streams()
        answer = super().act(method, me, message)
        _check_undrawn(before, place(me, message), "me.rng(purpose)")
        return answer

    def between(self, old: State, new: State) -> State:
        _check_undrawn(self.outside, f"round {new.round}, the server", "fed.rng(purpose)")
        return super().between(old, new)


def _check_undrawn(before: dict[str, object], where: str, instead: str) -> None:
    for name, stream in global_streams().items():
        if stream != before[name]:
            raise ContractError(f"{where}: {name}'s global stream was used; use {instead} instead")


def check_draws_from_no_global_stream(case: Case) -> None:
    """The global random streams of torch, numpy and Python are left alone."""
    trace(case.method, _Undrawn(case.setting), 2)


def check_is_repeatable(case: Case) -> None:
    """Two runs of three rounds give the same bits, whatever the global seeds: state, memories and replies."""
    with global_streams_restored():
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002  # the very stream that a method must not use
        torch.manual_seed(7)
        second = trace(case.method, Probe(case.setting), 3)
    require_same(case.plain, second, f"a second run, with other global seeds, differs: {PURE}")


class _Backwards(Probe):
    advice = PURE

    def order(self, messages: Sequence[Message]) -> Iterable[Message]:
        return list(reversed(messages))


def check_does_not_depend_on_the_order_of_clients(case: Case) -> None:
    """Clients that run in another order give the same bits."""
    require_same(case.plain, trace(case.method, _Backwards(case.setting), 2), f"clients ran in another order: {PURE}")


class _Wired(Probe):
    """Sends everything through bytes, as between machines and through a checkpoint."""

    advice = "after bytes, keys come sorted and no two tensors share memory: rely on neither"

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        me = replace(me, memory=tree.decode(tree.encode(me.memory)))
        answer = super().act(method, me, replace(message, body=tree.decode(tree.encode(message.body))))
        keep = None if answer.keep is None else tree.decode(tree.encode(answer.keep))
        return Reply(tree.decode(tree.encode(answer.body)), keep)

    def between(self, old: State, new: State) -> State:
        return State(new.round, tree.decode(tree.encode(super().between(old, new).body)))


def check_survives_bytes(case: Case) -> None:
    """Messages, replies, memories and the state go through bytes without a bit of difference."""
    require_same(case.plain, trace(case.method, _Wired(case.setting), 3), _Wired.advice)


class _Elsewhere(Probe):
    """Runs clients as in another process: on the setting that a pool worker unpacks, with a copy of the method."""

    advice = "a client in another process has a copy of the method and of `me`, and nothing else of this one"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        cargo = pack(setting)
        self.there = unpack(cargo)
        release(cargo)

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        there = self.there.client(me.id, me.round, self.memories.get(me.id, {}))
        return super().act(copy.deepcopy(method), replace(there, meter=me.meter), message)


def check_acts_alike_in_another_process(case: Case) -> None:
    """Clients in a worker of the pool give the same bits, also where a public set adds classes."""
    added = setting_with_public_classes()
    for plain, setting in ((case.plain, case.setting), (trace(case.method, Probe(added), 2), added)):
        require_same(plain, trace(case.method, _Elsewhere(setting), 2), _Elsewhere.advice)


def check_resumes(case: Case) -> None:
    """Two rounds, a checkpoint and two more rounds by a fresh object are four rounds, bit for bit."""
    fresh: Method = replace(case.method)
    state, memories = case.plain.saved(2)
    resumed = trace(fresh, Probe(case.setting, memories), 4, state)
    require_same(case.plain, resumed, f"it was resumed after round 2: {KEEP}")
    with located("the evaluation after round 4", "fix models() or personal()"):
        views = [
            evaluate(case.setting, method, run.state, run.engine.memories)
            for method, run in ((case.method, case.plain), (fresh, resumed))
        ]
    if views[0] != views[1]:
        raise ContractError(f"round 4: the resumed run gives another evaluation; {KEEP}")


class _Weighed(Probe):
    """Compares what is really sent with the ledger; lost replies do not arrive and do not count."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.down = self.up = 0
        self.rounds: list[Round] = []

    def open(self, method: Method, round: int) -> Round:
        self.down = self.up = 0
        self.rounds.append(_Pooled(self, method, round))
        return self.rounds[-1]

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        answer = super().act(method, me, message)
        self.down += _weight(message.body)
        if not self.setting.participation.lost(client=me.id, round=me.round, seed=me.seed):
            self.up += _weight(answer.body)
        return answer

    def between(self, old: State, new: State) -> State:
        ledger = self.rounds[-1].ledger
        for way, really, counted in (("down", self.down, ledger.down), ("up", self.up, ledger.up)):
            if really != counted.total():
                raise ContractError(
                    f"round {new.round}: {really} bytes went {way}, but the ledger counts {counted.total()}; "
                    "let everything travel by fed.ask, and leave fed.ledger alone"
                )
        return super().between(old, new)


class _Pooled(Round):
    """Pooled data is not a message: its size in the ledger is taken as sent."""

    def pool(self) -> Samples:
        assert isinstance(self.engine, _Weighed)
        before = self.ledger.up.total()
        data = super().pool()
        self.engine.up += self.ledger.up.total() - before
        return data


def check_sends_what_the_ledger_counts(case: Case) -> None:
    """The ledger's bytes are those of the encoded messages and of the replies that arrived."""
    trace(case.method, _Weighed(half_lost(case.setting)), 2)


def _weight(body: Tree) -> int:
    return len(tree.encode(body)) if body else 0


CHECKS: list[Rule] = [
    check_is_a_frozen_dataclass,
    check_leaves_trees_and_advances_by_one,
    check_has_no_state_of_its_own,
    check_gives_models_that_load,
    check_needs_no_more_than_its_card_says,
    check_tells_outputs_from_classes,
    check_changes_nothing_in_place,
    check_draws_from_no_global_stream,
    check_is_repeatable,
    check_does_not_depend_on_the_order_of_clients,
    check_survives_bytes,
    check_resumes,
    check_acts_alike_in_another_process,
    check_expects_what_it_gets,
    check_accepts_what_it_is_sent,
    check_survives_lost_replies,
    check_survives_bad_replies,
    check_sends_what_the_ledger_counts,
]
"""The rules in the order in which they are tried: a broken rule hides those below it, so the plainest come first."""
