"""The contract of a method: what ours and a user's must keep, so that any engine can carry it, exactly.

`check_method` puts a method through two small federations and breaks something on the way: the order in which clients
run, the objects behind the messages, the run itself, the replies. A method that keeps the contract does not notice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedalloy import rng, tree
from fedalloy.core import Card, Client, Message, Method, Network, Reply, State, act, initial, run
from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.engine.base import Answer, Round
from fedalloy.engine.serial import Serial
from fedalloy.errors import FedalloyError
from fedalloy.evaluation import evaluate
from fedalloy.models import FeatureNet, create
from fedalloy.participation import Participation
from fedalloy.setting import SERVER, Setting, Site
from fedalloy.training import LocalWork, load
from fedalloy.tree import Tree

STATE = "the server's state"
PURE = "an action may use only `me` and its message, and round() only its state, `fed` and the replies"
KEEP = "keep what must last in the State or in reply(keep=...)"
COPY = "work on a copy (params, clone, a new dict)"


class ContractError(FedalloyError):
    """A method that breaks the contract: which rule, where, and what to do."""

    code = 6


def check_method(method: Method, setting: Setting | None = None) -> None:
    """Put a method through all rules of the contract; the first one that it breaks is raised as a ContractError.

    Without a setting it makes two small ones itself: a perceptron, and a network with BatchNorm and dropout.

    >>> from fedalloy.methods import FedAvg
    >>> check_method(FedAvg(weights="uniform"))
    """
    checks_passed(method, setting)


def checks_passed(method: Method, setting: Setting | None = None) -> list[str]:
    """Check a method and tell what was checked, one line a rule."""
    cases = [Case(method, s) for s in ([setting] if setting is not None else small_settings())]
    with _one_thread(), _global_streams_restored():
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
    """What a rule asks for, in one line."""
    return (check.__doc__ or "").splitlines()[0].rstrip(".")


# --- small federations ------------------------------------------------------------------------------------------------


def small_settings() -> list[Setting]:
    """Six clients with 1 to 33 samples of 4 classes, half of them active: once a perceptron, once with BatchNorm.

    Everybody holds a public set with labels; that a method can do without it is a rule of its own.
    """
    sizes = [9, 1, 12, 17, 20, 33]
    pool = _noise("private", sum(sizes) + 4 * len(sizes))
    parts = torch.split(torch.arange(len(pool)), [part for n in sizes for part in (n, 4)])
    sites = [Site(pool.subset(train), pool.subset(test)) for train, test in zip(parts[::2], parts[1::2], strict=True)]
    return [
        Setting(
            sites=sites,
            networks=[network],
            classes=4,
            seed=1,
            work=LocalWork(batch=8, lr=0.05, momentum=0.5),
            participation=Participation(policy="fraction", fraction=0.5),
            public=PublicSet(_noise("public", 24), labelled=True, holder="all"),
        )
        for network in (_perceptron, _with_batch_norm)
    ]


def _noise(name: str, n: int) -> Samples:
    x = torch.randn(n, 1, 8, 8, generator=rng.generator(0, "check", name))
    return Samples(x, torch.arange(n) % 4, torch.arange(n))


def _perceptron() -> nn.Module:
    return create("mlp", classes=4, channels=1, size=8, hidden=16)


def _with_batch_norm() -> nn.Module:
    features = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    # Dropout draws from torch's global stream, which the loop must have seeded wherever a network is trained.
    return FeatureNet(features, nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 4)), (64,))


def _bare(network: Network) -> Network:
    """The same network without its `features` and `head`, under other names."""
    return lambda: nn.Sequential(network())


# --- a run under observation ------------------------------------------------------------------------------------------


class Probe(Serial):
    """The serial engine, noting what is asked and answered; each rule changes one of its steps."""

    advice = ""  # what to do about a fault that shows only on this engine

    def __init__(self, setting: Setting, memories: dict[int, Tree] | None = None) -> None:
        super().__init__(setting, memories)
        self.asked: dict[int, set[int]] = {}
        self.answers: dict[str, bytes] = {}

    def order(self, messages: Sequence[Message]) -> Iterable[Message]:
        """The messages as they are carried out."""
        return messages

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        """One client carries out one message."""
        return act(method, me, message)

    def between(self, old: State, new: State) -> State:
        """What the next round starts from; `old` is what this round started from."""
        del old
        return new

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        """Let clients act, and note their answers."""
        for message in self.order(messages):
            self.asked.setdefault(round, set()).add(message.client)
            me = self.setting.client(message.client, round, self.memories.get(message.client, {}))
            with _located(_place(me, message), self.advice):
                answer = self.act(method, me, message)
            number = sum(name.endswith(f"client {me.id}") for name in self.answers) + 1
            self.answers[f"answer {number}, to '{message.action}', of client {me.id}"] = tree.encode(answer.body)
            yield Answer(message.client, answer, me.meter)


@dataclass(frozen=True)
class Trace:
    """All that a run left behind: for each round the answers, the state and the memories, as bytes."""

    engine: Probe
    state: State
    rounds: dict[int, dict[str, bytes]]
    changed: Sequence[str] = field(default_factory=list)

    def saved(self, round: int) -> tuple[State, dict[int, Tree]]:
        """State and memories as they were after a round, read back from their bytes."""
        notes = self.rounds[round]
        memories = {k: tree.decode(notes[_memory(k)]) for k in self.engine.setting.ids if _memory(k) in notes}
        return State(round, tree.decode(notes[STATE])), dict(memories)


def trace(method: Method, engine: Probe, rounds: int, state: State | None = None) -> Trace:
    """Run a method to the given round, checking after each that what it left is a tree of finite numbers."""
    notes: dict[int, dict[str, bytes]] = {}
    before = _looks(method)
    for t in range(0 if state is None else state.round + 1, rounds + 1):
        engine.answers.clear()
        with _located(f"round {t}, the server's {'round' if t else 'init'}()", engine.advice):
            new = run(method, engine, t, state, watch=lambda *_: True)
            if not isinstance(new, State) or new.round != t:
                raise ContractError(f"round {t}: round() returned {_short(new)}; return s.next(...), exactly once")
            tree.check(new.body, "state")
        left = {STATE: new.body, **{_memory(k): engine.memories[k] for k in sorted(engine.memories)}}
        for what, body in left.items():
            _check_finite(body, f"round {t}, {what}", engine.advice)
        notes[t] = {**engine.answers, **{what: tree.encode(body) for what, body in left.items()}}
        state = engine.between(state or new, new)
    assert state is not None
    changed = [name for name, look in _looks(method).items() if before.get(name) != look]
    return Trace(engine, state, notes, changed)


def _same(plain: Trace, other: Trace, advice: str) -> None:
    """Refuse two runs that differ in a round they share; the first difference is told."""
    for t in sorted(plain.rounds.keys() & other.rounds.keys()):
        a, b = plain.rounds[t], other.rounds[t]
        # Answers stand before the state and the memories that follow from them: the first difference is the cause.
        for what in [*a, *(set(b) - set(a))]:
            if a.get(what) != b.get(what):
                key = _first_difference(a.get(what), b.get(what))
                raise ContractError(f"round {t}, {what}: {key} is not what it was in a plain run; {advice}")


def _first_difference(a: bytes | None, b: bytes | None) -> str:
    left, right = ({} if x is None else dict(tree.leaves(tree.decode(x))) for x in (a, b))
    for key in sorted(left.keys() | right.keys()):
        if key not in left or key not in right or not tree.equal({"": left[key]}, {"": right[key]}):
            return f"key '{key}'"
    return "it"


def _check_finite(body: Tree, where: str, advice: str = "") -> None:
    for key, leaf in tree.leaves(body):
        if not (leaf.isfinite().all() if isinstance(leaf, Tensor) else isinstance(leaf, str) or math.isfinite(leaf)):
            raise ContractError(f"{where}: key '{key}' is not finite; {advice or 'look for a division by zero'}")


def _looks(method: Method) -> dict[str, str]:
    """The method object's and its classes' attributes, as text: none may change."""
    own = {f"self.{name}": repr(value) for name, value in vars(method).items()}
    shared = {
        f"{cls.__name__}.{name}": repr(value)
        for cls in type(method).__mro__
        for name, value in vars(cls).items()
        if not name.startswith("__")
    }
    return own | shared


@contextmanager
def _located(where: str, advice: str) -> Iterator[None]:
    """Turn whatever fails inside into a sentence that says where."""
    try:
        yield
    except ContractError:
        raise
    except FedalloyError as error:
        raise ContractError("; ".join(filter(None, [f"{where}: {error}", advice]))) from error
    except Exception as error:
        raise ContractError(f"{where}: {type(error).__name__}: {error}; {advice or 'this must run'}") from error


def _place(me: Client, message: Message) -> str:
    return f"round {me.round}, action '{message.action}' of client {me.id}"


def _memory(client: int) -> str:
    return f"the memory of client {client}"


def _short(value: object) -> str:
    return f"a State of round {value.round}" if isinstance(value, State) else f"a {type(value).__name__}"


# --- the rules --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A method in a setting, with its plain run of four rounds, which the rules compare others with."""

    method: Method
    setting: Setting

    @cached_property
    def plain(self) -> Trace:
        """Four rounds on the serial engine."""
        return trace(self.method, Probe(self.setting), 4)


Rule = Callable[[Case], None]


def check_is_a_frozen_dataclass(case: Case) -> None:
    """A frozen dataclass whose hyper-parameters have defaults, with a name, a label and a full card."""
    cls = type(case.method)
    if not getattr(vars(cls).get("__dataclass_params__"), "frozen", False):
        raise ContractError(f"class {cls.__name__} is not a frozen dataclass; put @method(...) above it")
    for f in fields(cls):  # type: ignore[arg-type]  # just seen to be a dataclass
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
    """models() and personal() give finite weights that fit the networks, at least one, and change nothing."""
    _check_models(case.method, case.plain)


def _check_models(method: Method, run: Trace) -> None:
    setting, state = run.engine.setting, run.state
    before = tree.encode(state.body)
    with _located(f"models() after round {state.round}", "give whole state dicts by the names of their views"):
        shared = dict(method.models(state))
        _check_unchanged(before, state.body, "models(): the state")
        for view, weights in shared.items():
            load(initial(setting.network(SERVER), setting.seed), weights)
            _check_finite(weights, f"models(), view '{view}'")
    own = [_check_personal(method, run, k) for k in setting.ids]
    if len(set(own)) > 1:
        raise ContractError(
            f"personal() gives client {own.index(True)} a model, but client {own.index(False)} none; "
            "give a client that never took part the model it would start from"
        )
    if not (shared or own[0]):
        raise ContractError("neither models() nor personal() gives a model; there is nothing to evaluate")


def _check_personal(method: Method, run: Trace, client: int) -> bool:
    me = run.engine.setting.client(client, run.state.round, run.engine.memories.get(client, {}))
    before = tree.encode(me.memory)
    with _located(f"personal() of client {client}", "give a whole state dict, or None for all clients"):
        weights = method.personal(me)
        _check_unchanged(before, me.memory, f"personal(): {_memory(client)}")
        if weights is not None:
            me.net(weights)
            _check_finite(weights, f"personal() of client {client}")
    return weights is not None


def check_needs_no_more_than_its_card_says(case: Case) -> None:
    """It runs without public data, without `features` and `head`, among different networks, as its card says."""
    card = case.method.card
    setting = small_settings()[0]
    networks = [_with_batch_norm, _perceptron] if card.any_network else [_with_batch_norm]
    if not card.features:
        networks = [_bare(network) for network in networks]
    setting = replace(
        setting,
        networks=[networks[k % len(networks)] for k in setting.ids],
        public=setting.public if card.public else None,
    )
    got = f"public={card.public}, features={card.features}, any_network={card.any_network}"
    try:
        _check_models(case.method, trace(case.method, Probe(setting), 2))
    except ContractError as error:
        raise ContractError(f"with what its card asks for ({got}), {error}; ask for what it needs") from error


class _Guarded(Probe):
    """Compares what an action and the server were given with what it is afterwards."""

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
            _check_unchanged(before[what], body, f"{_place(me, message)}: {what}")
        if answer.keep is not None:
            self.kept[me.id] = tree.encode(answer.keep)
        return answer

    def between(self, old: State, new: State) -> State:
        where = f"round {new.round}, the server's round()"
        if self.start:
            _check_unchanged(self.start, old.body, f"{where}: the state it was given")
        for k, kept in self.kept.items():
            _check_unchanged(kept, self.memories[k], f"{where}: {_memory(k)}, shared with its reply,")
        self.start = tree.encode(new.body)
        return new


def check_changes_nothing_in_place(case: Case) -> None:
    """Actions leave message, memory and data as they were; the server leaves its old state and the replies' owners so.

    To send or keep a tensor that one was given is fine: only a change through such a shared tensor is a fault, and it
    shows here, or when everything goes through bytes.
    """
    trace(case.method, _Guarded(case.setting), 2)


def _data(samples: Samples) -> Tree:
    return {"x": samples.x, "y": samples.y, "index": samples.index}


def _check_unchanged(before: bytes, body: Tree, what: str) -> None:
    after = tree.encode(body)
    if after != before:
        raise ContractError(f"{what} was changed in place at {_first_difference(before, after)}; {COPY}")


class _Undrawn(Probe):
    """Looks at the global random streams after every action and every round."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.outside = _global_streams()

    def act(self, method: Method, me: Client, message: Message) -> Reply:
        before = _global_streams()
        answer = super().act(method, me, message)
        _check_undrawn(before, _place(me, message), "me.rng(purpose)")
        return answer

    def between(self, old: State, new: State) -> State:
        _check_undrawn(self.outside, f"round {new.round}, the server", "fed.rng(purpose)")
        return super().between(old, new)


def _check_undrawn(before: dict[str, object], where: str, instead: str) -> None:
    for name, stream in _global_streams().items():
        if stream != before[name]:
            raise ContractError(f"{where}: {name}'s global stream was drawn from; use {instead} instead")


def check_draws_from_no_global_stream(case: Case) -> None:
    """The global random streams of torch, numpy and Python are left alone."""
    trace(case.method, _Undrawn(case.setting), 2)


def check_is_repeatable(case: Case) -> None:
    """Two runs of three rounds give the same bits, whatever the global seeds: state, memories and replies."""
    with _global_streams_restored():
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002  # the very stream that a method must not use
        torch.manual_seed(7)
        second = trace(case.method, Probe(case.setting), 3)
    _same(case.plain, second, f"a second run, with other global seeds, differs: {PURE}")


class _Backwards(Probe):
    advice = PURE

    def order(self, messages: Sequence[Message]) -> Iterable[Message]:
        return list(reversed(messages))


def check_does_not_depend_on_the_order_of_clients(case: Case) -> None:
    """Clients that run in another order give the same bits."""
    _same(case.plain, trace(case.method, _Backwards(case.setting), 2), f"clients ran in another order: {PURE}")


class _Wired(Probe):
    """Everything goes through bytes, as between machines and through a checkpoint."""

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
    _same(case.plain, trace(case.method, _Wired(case.setting), 3), _Wired.advice)


def check_resumes(case: Case) -> None:
    """Two rounds, a checkpoint and two more rounds by a fresh object are four rounds, bit for bit."""
    fresh: Method = replace(case.method)  # type: ignore[type-var]  # seen to be a dataclass
    state, memories = case.plain.saved(2)
    resumed = trace(fresh, Probe(case.setting, memories), 4, state)
    _same(case.plain, resumed, f"it was resumed after round 2: {KEEP}")
    with _located("the evaluation after round 4", "mend models() or personal()"):
        views = [
            evaluate(case.setting, method, run.state, run.engine.memories)
            for method, run in ((case.method, case.plain), (fresh, resumed))
        ]
    if views[0] != views[1]:
        raise ContractError(f"round 4: the resumed run is evaluated otherwise; {KEEP}")


class _Lossy(Probe):
    """Some clients act, but their replies are lost; or they were never there, and the server knows it."""

    advice = "build on the replies that came, never on those asked, and return s.next() when there are none"

    def __init__(self, setting: Setting, lost: Callable[[int, int], bool], *, never_there: bool = False) -> None:
        super().__init__(setting)
        self.lost, self.never_there = lost, never_there

    def open(self, method: Method, round: int) -> Round:
        return _Told(self, method, round) if self.never_there else super().open(method, round)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer]:
        reached = [m for m in messages if not (self.never_there and self.lost(round, m.client))]
        return [a for a in super().carry(method, round, reached) if not self.lost(round, a.client)]


class _Told(Round):
    """The server does not even sample the clients whose replies would be lost."""

    def sample(self, *, by_size: bool = False) -> list[int]:
        assert isinstance(self.engine, _Lossy)
        return [k for k in super().sample(by_size=by_size) if not self.engine.lost(self.round, k)]


def check_survives_lost_replies(case: Case) -> None:
    """Replies are lost, all of a round's too; who is not heard does not count, and a silent round moves no model."""
    lossy = Probe(_half_lost(case.setting))
    lossy.advice = _Lossy.advice
    trace(case.method, lossy, 2)
    silent = trace(case.method, _Lossy(case.setting, lambda round, _: round % 2 == 1), 3)
    for t in (t for t in (1, 3) if t in silent.engine.asked):
        with _located(f"models() after round {t}, in which nobody answered", _Lossy.advice):
            before, after = (case.method.models(silent.saved(t - past)[0]) for past in (1, 0))
            for view, weights in after.items():
                if view not in before or not tree.equal(before[view], weights):
                    raise ContractError(f"round {t}: nobody answered, but the model '{view}' moved; {_Lossy.advice}")
    unheard = set(sorted(case.plain.engine.asked.get(1, set()))[1::2])
    if unheard:
        _check_unheard_do_not_count(case, unheard)


def _half_lost(setting: Setting) -> Setting:
    return replace(setting, participation=replace(setting.participation, late_drop=0.5))


def _check_unheard_do_not_count(case: Case, unheard: set[int]) -> None:
    """That clients trained and were lost must be, to the server, the same as that they were never there."""
    real = trace(case.method, _Lossy(case.setting, lambda _, client: client in unheard), 1)
    without = trace(case.method, _Lossy(case.setting, lambda _, client: client in unheard, never_there=True), 1)
    a, b = real.rounds[1][STATE], without.rounds[1][STATE]
    if a != b:
        who = ", ".join(map(str, sorted(unheard)))
        raise ContractError(
            f"round 1: the replies of clients {who} were lost, but {_first_difference(a, b)} of the server's state is "
            f"not what it is without these clients; {_Lossy.advice}"
        )


class _Weighed(Probe):
    """Weighs what is really sent against the ledger; replies that are lost do not arrive and do not count."""

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
    """Pooled data is no message: what the ledger counts for it is taken as sent."""

    def pool(self) -> Samples:
        assert isinstance(self.engine, _Weighed)
        before = self.ledger.up.total()
        data = super().pool()
        self.engine.up += self.ledger.up.total() - before
        return data


def check_sends_what_the_ledger_counts(case: Case) -> None:
    """The ledger's bytes are those of the encoded messages and of the replies that arrived."""
    trace(case.method, _Weighed(_half_lost(case.setting)), 2)


def _weight(body: Tree) -> int:
    return len(tree.encode(body)) if body else 0


CHECKS: list[Rule] = [
    check_is_a_frozen_dataclass,
    check_leaves_trees_and_advances_by_one,
    check_has_no_state_of_its_own,
    check_gives_models_that_load,
    check_needs_no_more_than_its_card_says,
    check_changes_nothing_in_place,
    check_draws_from_no_global_stream,
    check_is_repeatable,
    check_does_not_depend_on_the_order_of_clients,
    check_survives_bytes,
    check_resumes,
    check_survives_lost_replies,
    check_sends_what_the_ledger_counts,
]
"""The rules in the order in which they are tried: a broken rule hides those below it, so the plainest come first."""


# --- the surroundings -------------------------------------------------------------------------------------------------


def _global_streams() -> dict[str, object]:
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # only looked at
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (kind, np.asarray(keys).tobytes(), *rest),
        "random": random.getstate(),
    }


@contextmanager
def _global_streams_restored() -> Iterator[None]:
    kept: tuple[Tensor, Any, Any] = (torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        random.setstate(kept[2])


@contextmanager
def _one_thread() -> Iterator[None]:
    """On networks as small as these, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


__all__ = [
    "CHECKS",
    "Case",
    "ContractError",
    "Rule",
    "check_method",
    "checks_passed",
    "rule_name",
    "rule_text",
    "small_settings",
]
