"""The core types and the loop: a method acts on clients only through messages, whatever engine carries them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Protocol, TypeVar, dataclass_transform

import torch
from torch import Tensor, nn

from fedalloy.aggregation.rule import Aggregation, Weights
from fedalloy.base import rng, tree
from fedalloy.base.layout import Layout, laid_out
from fedalloy.base.options import options_of, resolve, section
from fedalloy.base.plugins import by_signal, named
from fedalloy.base.registry import Registry
from fedalloy.base.tree import Tree
from fedalloy.data.public import Holder, PublicSet
from fedalloy.data.samples import Samples, Scale, Task
from fedalloy.errors import UsageError
from fedalloy.federation.actions import action, as_check, in_words, is_action, travels
from fedalloy.federation.gate import Check, Contract, counts, finite, like, optional, whole
from fedalloy.federation.quorum import QuorumError
from fedalloy.train.costs import Meter, metered
from fedalloy.train.fit import LocalWork, address_dropout, load, params
from fedalloy.train.losses import balanced_weights, task_loss
from fedalloy.train.noise import secret_seed
from fedalloy.train.privacy import Account, accounted, rolled_back

if TYPE_CHECKING:
    from fedalloy.federation.engine import Engine
    from fedalloy.federation.participation import Participation

Network = Callable[[], nn.Module]
Augmentation = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Message:
    """What travels between the server and one client; `fed.ask` checks what is sent, and the gate what comes back.

    >>> Message("train", 3, {"n": 5})["n"]
    5
    """

    action: str
    client: int
    body: Tree

    def __getitem__(self, key: str) -> Any:
        return self.body[key]

    def __contains__(self, key: str) -> bool:
        return key in self.body


@dataclass(frozen=True)
class Reply:
    """What a client's action returns: the answer, and what the client remembers (None: as before).

    The body and the memory are `checked` once, when the reply is created, to be trees; the gate does not repeat the
    check. A modified copy counts as unchecked.
    """

    body: Tree
    keep: Tree | None = None
    checked: bool = field(default=False, init=False, compare=False, repr=False)

    def check(self) -> Reply:
        """Refuse a body or a memory that is not a tree."""
        tree.check(self.body, "reply")
        tree.check(self.keep or {}, "memory")
        return self.known()

    def known(self) -> Reply:
        """Mark the reply as already checked, in another process of this program."""
        object.__setattr__(self, "checked", True)
        return self


def reply(*, keep: Tree | None = None, **body: Any) -> Reply:
    """Answer the server with `body` and replace the client's memory by `keep`."""
    return Reply(body, keep)


@dataclass(frozen=True)
class Client:
    """What a client action sees: its data, its memory and its random streams; none of these leave the device."""

    id: int
    round: int
    seed: int
    train: Samples
    classes: int
    work: LocalWork
    steps: int
    network: Network
    memory: Tree = field(default_factory=dict)
    public: PublicSet | None = None
    augment: Augmentation | None = None
    layout: Layout = "auto"
    scale: Scale = field(default_factory=Scale)
    meter: Meter = field(default_factory=Meter)
    account: Account | None = None
    outputs: int = 0  # of a network; 0: as many as there are classes
    name: str = ""  # if it has one
    task: Task = "classes"

    def __post_init__(self) -> None:
        if self.outputs == 0:
            object.__setattr__(self, "outputs", self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: channels, height, width."""
        return tuple(self.train.x.shape[1:])

    @property
    def n(self) -> int:
        """Number of training samples."""
        return len(self.train)

    @property
    def label(self) -> str:
        """This client as messages speak of it: by its name, if it has one."""
        return self.name or f"client {self.id}"

    @cached_property
    def class_weights(self) -> Tensor | None:
        """How much each class counts in the client's loss; None: all the same."""
        if self.work.class_weights is None:
            return None
        return balanced_weights(self.task, self.train.labels, self.outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a network's outputs on targets of the client's own, by task and class weights.

        Under [privacy] it is still a mean of one term per sample. For public labels, which the weights are not about,
        use `task_loss`.
        """
        return task_loss(self.task, outputs, targets, self.class_weights)

    def rng(self, purpose: str) -> torch.Generator:
        """This client's random stream for a purpose in this round; if its noise is secret, it cannot be reproduced."""
        return rng.generator(self.secret_or(self.seed), purpose, self.round, self.id)

    def secret_or(self, seed: int) -> int:
        """The seed, or a secret one if the noise must be secret.

        Dropout masks depend on a sample's position in its batch. Anyone who knows the masks can tell who else was
        drawn, and sampling then no longer amplifies privacy.
        """
        return secret_seed() if self.account is not None and self.account.secret else seed

    def build(self) -> nn.Module:
        """The client's network before any training; the same for all clients with the same architecture."""
        net = address_dropout(initial(self.network, self.seed, self.layout, self.train.x.device), self.rng("dropout"))
        return metered(net, self.meter)

    def net(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The client's network with a copy of these weights."""
        return load(self.build(), weights)

    def random_net(self) -> nn.Module:
        """A random network of this client's own, which no other client has and which is the same in every round."""
        net = random_network(self.network, self.seed, self.id, self.layout, self.train.x.device)
        return metered(address_dropout(net, self.rng("dropout")), self.meter)

    def generator(self, make: Network) -> nn.Module:
        """A generator before any training, the same for all clients and the server."""
        return initial_generator(make, self.seed, self.layout, self.train.x.device, self.meter)


@dataclass(frozen=True)
class State:
    """The server's entire memory; together with the clients' memories it forms the checkpoint."""

    round: int
    body: Tree

    def __getitem__(self, key: str) -> Any:
        return self.body[key]

    def next(self, **changes: Any) -> State:
        """The state after this round: the round number plus one, with some entries replaced."""
        return State(self.round + 1, {**self.body, **changes})


@dataclass(frozen=True)
class Generation:
    """A state and the matching client memories, to which a run can roll back."""

    state: State
    memories: Mapping[int, Tree]


class Federation(Protocol):
    """The server's only way to act during one round."""

    @property
    def round(self) -> int:
        """The round's number; rounds count from 1, and 0 is the start."""

    @property
    def seed(self) -> int:
        """The experiment's seed."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def outputs(self) -> int:
        """Number of outputs of a network: the classes, plus any added by the public set."""

    @property
    def task(self) -> Task:
        """What the networks predict: a class, labels or numbers."""

    @property
    def work(self) -> LocalWork:
        """The clients' local work."""

    @property
    def sizes(self) -> Sequence[int]:
        """Number of training samples of each client: the server's roster."""

    def label_counts(self, client: int) -> Tensor:
        """A client's training samples per class, for methods whose clients report them (`tells_counts`)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: channels, height, width."""

    @property
    def scale(self) -> Scale:
        """How inputs were normalised."""

    @property
    def public(self) -> PublicSet | None:
        """The public set, if there is one."""

    @property
    def meter(self) -> Meter:
        """Counts the server's own forward and backward passes."""

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """Groups of clients whose networks have the same structure, names and shapes."""

    def build(self, client: int | None = None) -> nn.Module:
        """The network of the server, or of a client, before any training."""

    def random_net(self, client: int) -> nn.Module:
        """A random network of this client's own: `Client.random_net`."""

    def generator(self, make: Network) -> nn.Module:
        """A generator before any training, the same for all clients and the server."""

    def sample(self, *, by_size: bool = False) -> list[int]:
        """The clients of this round, in ascending order, without stragglers; the same for every method."""

    def stragglers(self) -> Mapping[int, int]:
        """The clients of this round that have time for some of their epochs only, and for how many."""

    def steps(self, client: int) -> int:
        """Number of optimiser steps that this client takes in a round."""

    def rng(self, purpose: str) -> torch.Generator:
        """The server's random stream for a purpose in this round."""

    def ask(self, action: str, clients: Iterable[int] | Mapping[int, Tree], /, **body: Any) -> list[Message]:
        """Send each client the body (and its entry of a mapping); replies come in ascending id and may be fewer."""

    def note(self, name: str, value: float) -> None:
        """Record a number about this round under `notes`, such as how many samples survived a selection."""

    def skip(self, reason: str) -> NoReturn:
        """End the round: it is recorded as skipped and changes nothing."""

    @property
    def trained(self) -> bool:
        """Whether any client has returned a valid reply in this round, and so could act on what it was sent."""

    @property
    def untrainable(self) -> bool:
        """Whether more clients failed on what they were sent in this round than succeeded."""

    def go_back(self, trusted: Generation) -> State:
        """Use the state of an earlier generation as this round's state; the rollback is recorded."""

    def pool(self) -> Samples:
        """All clients' training data in one place; only possible in a simulation, and counted as upload."""

    def learner(self, samples: Samples, steps: int) -> Client:
        """The server as a learner on the given samples, with this experiment's local work."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Describes a method for lists, docs and checks; a card contains no code.

    `brief` is the idea in a few words, as lists show it; by default the method's label.
    `quick` holds options with which the method's checks take seconds; they must still exercise everything it does.
    `private` means that clients learn from their samples only through `fit`, with a loss that is a mean of one term per
    sample (plus terms without data), and send nothing else about them but their number: [privacy] then covers
    the method, except with the options in `private_except`. `up` and `down`, what travels, default to the actions'
    declarations. `once` means that all the work is done in the first round, and the
    run ends after it. `role` is "bound" for what methods are compared with (alone, pooled), and "control" for a changed
    form of a method that its paper compares it with. `tasks` are those that the method can learn.
    """

    paper: str
    brief: str = ""
    up: str = ""
    down: str = ""
    distils: str = "no"
    leaves_client: str = "model weights, number of samples"
    public: bool = False
    clients_hold_public: bool = False
    any_network: bool = False
    features: bool = False
    remembers: str = "nothing"
    private: bool = False
    private_except: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False
    role: Literal["method", "bound", "control"] = "method"
    tasks: tuple[Task, ...] = ("classes",)
    quick: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated method: a server part and client actions, with hyper-parameters but no state.

    `aggregation` is the experiment's rule for combining what clients send; `takes` names the keys of it that the
    method's server uses, such as `weights`, `combine` (or only `combine=krum`) and `clip`.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    card: ClassVar[Card]
    takes: ClassVar[frozenset[str]] = frozenset()

    aggregation: Aggregation = section(Aggregation)

    def __post_init__(self) -> None:
        name = getattr(self, "name", type(self).__name__)  # an unregistered class has no name
        resolve(self, name)
        for key in self.aggregation.idle(self.takes):
            value = getattr(self.aggregation, key)
            raise UsageError(f"{name} does not use aggregation.{key} = {value!r}; leave it out")
        if self.aggregation.weights is None and {"weights", f"weights={self.usual_weights}"} & self.takes:
            object.__setattr__(self, "aggregation", replace(self.aggregation, weights=self.usual_weights))

    @property
    def usual_weights(self) -> Weights:
        """How clients are weighted if [aggregation] does not say."""
        return "size"

    def init(self, fed: Federation) -> Tree:
        """The server's memory before the first round."""
        raise UsageError(f"the method {self.name} has no init(self, fed); it returns the server's first memory")

    def round(self, s: State, fed: Federation) -> State:
        """One round: ask clients, combine, return the next state."""
        raise UsageError(f"the method {self.name} has no round(self, s, fed); it returns s.next(...)")

    def leaves(self) -> str:
        """What leaves a client, in words; override it if the method's options change what the card says."""
        return self.card.leaves_client

    @property
    def needs_public(self) -> Holder | None:
        """Who must hold a public set, if anybody; override it if the method's options change what the card says."""
        return ("all" if self.card.clients_hold_public else "server") if self.card.public else None

    @property
    def tells_counts(self) -> bool:
        """Whether clients report how many samples of each class they hold; they do so once and cannot change it."""
        return False

    def uncovered(self) -> str | None:
        """The option, if any, that uses clients' samples outside private training, as the start of a sentence."""
        if self.aggregation.weights == "disco":
            return "aggregation.weights = 'disco' uses a client's samples"
        for option, value in self.card.private_except.items():
            if getattr(self, option) == value:
                return f"{self.name}.{option} = {value!r} uses a client's samples"
        return None

    def idle(self, participation: Participation) -> str | None:
        """The option that was chosen but has no effect with this [participation], if any, as a clause that says so."""
        return None

    def unfit_for(self, task: Task) -> str | None:
        """The option that does not go with this task, although its card lists it, as a clause that says why."""
        return None

    def expects(self, message: Message, fed: Federation) -> Contract | None:
        """What the reply to a message must contain, key by key; None if the action does not declare what travels.

        A reply that violates this contract never reaches `round`; the client counts as absent. The contract is built
        from what the server knows: what it sent, its roster, and `example`.
        """
        declared = travels(type(self), message.action)
        if declared is None:
            return None
        known = self.known(message, fed)
        return {
            part.name: known.get(part.name) or as_check(self.example(part.name, fed))
            for part in declared.up
            if part.applies(self, fed.round)
        }

    def known(self, message: Message, fed: Federation) -> dict[str, Check]:
        """Checks that the server knows for any reply: the client's sample counts, and the networks that it was sent."""
        told = {"counts": counts(fed.label_counts(message.client))} if self.tells_counts else {}
        n = fed.sizes[message.client]
        sent = {key: like(value) for key, value in message.body.items() if isinstance(value, Mapping)}
        return {"n": whole(n, n), **told, **sent}

    def accepts(self, action: str, me: Client) -> Contract | None:
        """What a client must be sent with an action; None if the action does not declare it.

        A client on another machine refuses a message that violates this contract, and does not act. It is built from
        what the client knows.
        """
        declared = travels(type(self), action)
        if declared is None:
            return None
        return {
            part.name: optional(check) if part.optional else check
            for part in declared.down
            if part.applies(self, me.round)
            for check in [as_check(self.example(part.name, me))]
        }

    def example(self, name: str, party: Client | Federation) -> Any:
        """An example of what travels under a name: a tree of the same shapes, or a check from gate.py.

        By default a model or a teacher, with the shapes of the party's own network.
        """
        if name in ("model", "teacher"):
            return params(party.build())
        raise UsageError(f"{self.name} declares that '{name}' travels; override example() to say what it is like")

    def models(self, s: State) -> Mapping[str, Tree]:
        """The models that could be deployed now, by view name.

        A view called `group 1` belongs to that group of `fed.groups` and its network; others belong to the server's.
        Clients on other machines evaluate at most three, plus one for each group.
        """
        return {}

    def personal(self, me: Client) -> Tree | None:
        """The model that this client would use itself, if the method gives it one."""
        return None

    def stages(self, me: Client) -> Mapping[str, Tree]:
        """Other models of this client that are worth measuring, by view, such as the one before its local update."""
        return {}

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """What `fedalloy draw` can show besides the models: data by kind of picture, see `knowledge/pictures.py`.

        A string instead of the data says why the picture is not available.
        """
        return {}


def group_of(view: str) -> int | None:
    """The number of the group that a view belongs to, if its name says so.

    >>> group_of("group 1"), group_of("global")
    (1, None)
    """
    word, _, number = view.partition(" ")
    return int(number) if word == "group" and number.isdecimal() else None


methods: Registry[type[Method]] = Registry("method")
M = TypeVar("M", bound=Method)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def method(name: str, *, label: str, card: Card) -> Callable[[type[M]], type[M]]:
    """Register a method under its name; the class becomes a frozen dataclass of its hyper-parameters."""

    def add(cls: type[M]) -> type[M]:
        frozen = dataclass(frozen=True, kw_only=True)(cls)
        frozen.name, frozen.label, frozen.card = name, label, card
        frozen.card = _complete(card, frozen)
        methods.register(name)(frozen)
        return frozen

    return add


def _complete(card: Card, cls: type[Method]) -> Card:
    """The card, with its idea in a few words, and with what travels filled in from the actions' declarations."""
    declared = [found for name in dir(cls) if (found := travels(cls, name)) is not None]
    try:
        usual: Method | None = cls()
    except (UsageError, TypeError):  # it has an option without a default
        usual = None
    up, down = (in_words((part for found in declared for part in getattr(found, way)), usual) for way in ("up", "down"))
    return replace(card, brief=card.brief or cls.label, up=card.up or up, down=card.down or down)


def quick(method: type[Method]) -> Method:
    """A method with the options that make a trial run quick."""
    return method(**method.card.quick)


def hyper_parameters(method: Method) -> dict[str, Any]:
    """A method's hyper-parameters by name."""
    return {found.name: getattr(method, found.name) for found in options_of(method)}


def act(method: Method, me: Client, message: Message, *, alone: bool = True) -> Reply:
    """Let a client carry out a message; every engine uses this function.

    If a client is alone in its process, torch's global stream is seeded, for layers that use no other. Any failure,
    including a reply that is not a tree, gets a note that names the client and the action. An exception that would end
    more than the action, such as SystemExit, becomes an ordinary error.
    """
    do = getattr(method, message.action, None)
    if not is_action(do):
        raise UsageError(f"{method.name} has no action '{message.action}'; mark it with @action")

    def answered() -> Reply:
        assert do is not None
        found = do(me, message)
        if not isinstance(found, Reply):
            raise UsageError(f"{method.name}.{message.action} returned {type(found).__name__}; return reply(...)")
        return found

    with rng.seeded(me.secret_or(me.seed), message.action, me.round, me.id) if alone else nullcontext():
        try:
            return (answered() if me.account is None else accounted(method, me, answered, Reply)).check()
        except BaseException as error:
            if by_signal(error):
                raise
            raise _told(error, f"{me.label}, action '{message.action}'")  # noqa: B904  # mostly the same error


def _told(error: BaseException, note: str) -> Exception:
    """A client code's error, with a note, in a form that every engine can raise."""
    if isinstance(error, Exception) and not isinstance(error, _MEANS_ELSE):
        told: Exception = error
    else:
        told = RuntimeError(f"it raised {named(error)}")
        told.__cause__ = error
    BaseException.add_note(told, note)  # its class may override add_note
    return told.with_traceback(error.__traceback__)


_MEANS_ELSE = (StopIteration, QuorumError, EOFError, BrokenPipeError)  # to a loop, to `run` and to the command line
_BUILDING = threading.Lock()  # clients in threads share the one global stream that layers are initialised from


def initial(
    network: Network,
    seed: int,
    layout: Layout = "auto",
    device: str | torch.device = "cpu",
    purpose: str = "init",
) -> nn.Module:
    """Build a network on its device in its memory layout; its initial weights depend on the seed only."""
    with _BUILDING, rng.seeded(seed, purpose):
        return laid_out(network().to(device), layout)


def random_network(
    network: Network, seed: int, client: int, layout: Layout = "auto", device: str | torch.device = "cpu"
) -> nn.Module:
    """Build a client's own random network; even where a run starts from given weights, this one does not."""
    return initial(getattr(network, "without_start", network), seed, layout, device, f"init/{client}")


def initial_generator(make: Network, seed: int, layout: Layout, device: str | torch.device, meter: Meter) -> nn.Module:
    """Build a generator from a separate stream; its passes are counted separately from the classifier's."""
    return metered(initial(make, seed, layout, device, "generator"), meter, generator=True)


def run(
    method: Method,
    engine: Engine,
    rounds: int,
    state: State | None = None,
    watch: Callable[[State, Federation], bool | None] | None = None,
    settle: Callable[[State], State] = lambda state: state,
) -> State:
    """Run a method to the given round, from its start or from a state; `watch` sees each round and may stop the run.

    A round without a quorum leaves the state and the memories unchanged, except for the privacy spent; so does a round
    after which the server's state is not finite. If clients could not train what they were sent, the run rolls back,
    once, to the newest generation that they could train: a client's reply may have corrupted what came after it.
    `settle` receives the first state and that of each round; it may move tensors elsewhere but must not change a bit.
    """
    if state is None:
        fed = engine.open(method, 0)
        with rng.seeded(fed.seed, "server", 0):
            state = State(0, method.init(fed))
    state = settle(state)
    while state.round < rounds:
        fed = engine.open(method, state.round + 1)
        before = Generation(state, dict(engine.memories))
        with rng.seeded(fed.seed, "server", fed.round):  # as in `act`: dropout and new layers use no other stream
            try:
                state = _after(method, state, fed)
                counts = fed.trained
            except QuorumError:  # the federation has recorded it; nothing from this round is kept
                state, engine.memories = state.next(), rolled_back(before.memories, engine.memories)
                counts = False
        if counts:
            engine.trusted = before
        elif fed.untrainable and engine.trusted is not None:
            state, engine.memories = fed.go_back(engine.trusted), rolled_back(engine.trusted.memories, engine.memories)
            engine.trusted = None
        del before  # nothing else may hold a reference to what this round replaced
        state = settle(state)
        if watch is not None and watch(state, fed):
            break
    return state


def _after(method: Method, before: State, fed: Federation) -> State:
    """The state after a round; the round is skipped if it leaves numbers from which no later round could recover."""
    state = method.round(before, fed)
    if not isinstance(state, State) or state.round != fed.round:
        raise UsageError(f"{method.name}.round() returned no State of round {fed.round}; return s.next(...), once")
    if (place := _not_finite(state.body, before.body)) is not None:
        fed.skip(
            f"the server's {place} is not finite, though every reply was; lower training.lr, or bound what a client "
            "can do by clip or combine"
        )
    return state


def _not_finite(now: Tree, before: Tree) -> str | None:
    """Where a tree is not finite, if anywhere; objects unchanged since the last check are not checked again."""
    for key, value in sorted(now.items()):  # a restored state has its keys in this order
        old = before.get(key)
        if value is old:
            continue
        if isinstance(value, Mapping):
            inner = _not_finite(value, old if isinstance(old, Mapping) else {})
            if inner is not None:
                return f"{key}/{inner}"
        elif not finite(value):
            return key
    return None


__all__ = [
    "Augmentation",
    "Card",
    "Client",
    "Federation",
    "Generation",
    "Message",
    "Method",
    "Network",
    "Reply",
    "State",
    "act",
    "action",
    "hyper_parameters",
    "initial",
    "initial_generator",
    "method",
    "methods",
    "quick",
    "random_network",
    "reply",
    "run",
]
