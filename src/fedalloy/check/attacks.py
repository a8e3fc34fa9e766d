"""Attacks: what hostile clients send, or learn from, instead of what honest clients would.

Most attacks are functions of what an honest client would send and of what it was sent; one changes its labels instead.
`Attacked` inserts them between the clients and the server, so that methods and engines stay unchanged. Attackers train
and remember like everyone else; only what they send differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.base import rng
from fedalloy.base.tree import Tree
from fedalloy.data.samples import Samples
from fedalloy.engine.base import Round
from fedalloy.errors import UsageError
from fedalloy.federation.core import Generation, Message, Method, Reply, State
from fedalloy.federation.engine import Answer, Engine, Failure
from fedalloy.federation.setting import Setting

Kind = Literal["parameters", "answers", "scores", "data"]
Forge = Callable[[Tree, Tree], Tree]
"""From what an honest client would send, and the newest of everything that it was sent, to what an attacker sends."""

ANSWERS = ("logits", "soft")  # the names under which logits and probabilities travel
BOOST = 4.0  # factor by which a flipped update is longer than an honest one
LARGE = 1e4  # a logit that no honest network reaches


def parameters(body: Tree, sent: Tree) -> list[str]:
    """The names under which tables of tensors are both sent and returned: models, and perhaps generators.

    >>> parameters({"model": {"w": torch.ones(1)}, "n": 5}, {"model": {"w": torch.zeros(1)}})
    ['model']
    """
    tables = [name for name, value in body.items() if isinstance(value, Mapping)]
    return [name for name in tables if isinstance(sent.get(name), Mapping) and sent[name].keys() == body[name].keys()]


def answers(body: Tree) -> list[str]:
    """The names of logits and probabilities in what is sent.

    >>> answers({"soft": torch.ones(1, 1), "n": 5})
    ['soft']
    """
    return [name for name in ANSWERS if isinstance(body.get(name), Tensor)]


def claims(body: Tree) -> list[str]:
    """The names of entries that say how much the client's answers should count, in each form that DaFKD sends.

    These are scores, the discriminator's head that computes them, or probabilities times scores, which do not sum to 1.

    >>> claims({"scores": torch.ones(1)}), claims({"soft": torch.tensor([[0.25, 0.25]])})
    (['scores'], ['soft'])
    """
    soft = body.get("soft")
    found = {
        "scores": isinstance(body.get("scores"), Tensor),
        "head": isinstance(body.get("head"), Mapping),
        "soft": isinstance(soft, Tensor) and bool(((soft.sum(1) - 1).abs() > 1e-3).any()),
    }
    return [name for name, claimed in found.items() if claimed]


def sign_flip(body: Tree, sent: Tree, boost: float = BOOST) -> Tree:
    """Parameters moved in the opposite direction: w_server - boost (w_k - w_server).

    Flipped updates that are no longer than honest ones only slow down a mean while attackers are a minority.

    >>> sign_flip({"model": {"w": torch.tensor([3.0])}}, {"model": {"w": torch.tensor([1.0])}}, boost=1.0)
    {'model': {'w': tensor([-1.])}}
    """

    def away(new: Tensor, old: Tensor) -> Tensor:
        return old - boost * (new - old) if new.is_floating_point() else new

    flipped = {
        name: {key: away(new, sent[name][key]) for key, new in body[name].items()} for name in parameters(body, sent)
    }
    return {**body, **flipped}


def scaled_logits(body: Tree, _: Tree) -> Tree:
    """All certainty on the class that the client considers least likely: a logit of 1e4 there, or a probability of 1.

    This is LMA, the loss maximisation attack (Roux et al., ICLR 2025), by an attacker that knows only its own answer.

    >>> scaled_logits({"logits": torch.tensor([[0.5, 3.0, -1.0]])}, {})
    {'logits': tensor([[    0.,     0., 10000.]])}
    """
    wrong = {name: _one_hot(body[name], LARGE if name == "logits" else 1.0) for name in answers(body)}
    return {**body, **wrong}


def _one_hot(rows: Tensor, height: float) -> Tensor:
    return F.one_hot(rows.argmin(1), rows.shape[1]).to(rows.dtype) * height


def rank_flip(body: Tree, _: Tree) -> Tree:
    """Every row reversed by rank: the likeliest class gets the smallest number, and so on (FDLA).

    >>> rank_flip({"soft": torch.tensor([[0.5, 0.375, 0.125]])}, {})
    {'soft': tensor([[0.1250, 0.3750, 0.5000]])}
    """
    return {**body, **{name: _upside_down(body[name]) for name in answers(body)}}


def _upside_down(rows: Tensor) -> Tensor:
    values, places = rows.sort(dim=1, stable=True)
    return torch.empty_like(rows).scatter_(1, places, values.flip(1))


def inflated_scores(body: Tree, _: Tree) -> Tree:
    """Claim every sample with the highest possible score, for a classifier whose answers are reversed.

    If the server computes the score itself, the discriminator's head gets a bias that no sample outweighs. The
    classifier's output layer is negated, and so are its logits; products of scores and probabilities are reversed
    by rank, with a sum of 1.

    >>> inflated_scores({"scores": torch.tensor([0.1, 0.7])}, {})
    {'scores': tensor([1., 1.])}
    >>> inflated_scores({"soft": torch.tensor([[0.375, 0.125]])}, {})  # a score of 0.5
    {'soft': tensor([[0.2500, 0.7500]])}
    """
    forge: dict[str, Callable[[Any], Any]] = {
        "scores": torch.ones_like,
        "head": lambda head: _last_layer(head, lambda name, t: torch.full_like(t, LARGE) if name == "bias" else t),
        "soft": lambda soft: _certain(_upside_down(soft)),
    }
    wrong = {name: forge[name](body[name]) for name in claims(body)}
    if isinstance(body.get("model"), Mapping):
        wrong["model"] = _last_layer(body["model"], lambda _, t: -t)
    return {**body, **wrong}


def _last_layer(weights: Tree, change: Callable[[str, Tensor], Tensor]) -> Tree:
    """A network's weights after a change to its last layer, if they show which layer is the head."""
    last = [name.rpartition(".")[0] for name in weights if name.startswith("head.")][-1:]
    layers = {name: name.rpartition(".") for name in weights}
    return {name: change(layers[name][2], t) if layers[name][0] in last else t for name, t in weights.items()}


def _certain(rows: Tensor) -> Tensor:
    """Rows that sum to 1; rows that sum to zero become equal probabilities."""
    mass = rows.sum(1, keepdim=True)
    return torch.where(mass > 0, rows / torch.where(mass > 0, mass, 1), 1 / rows.shape[1])


def nan(body: Tree, sent: Tree) -> Tree:
    """Every number is NaN; the gate must set this aside.

    >>> nan({"model": {"w": torch.tensor([3.0])}, "n": 5}, {})
    {'model': {'w': tensor([nan])}, 'n': 5}
    """

    def spoilt(value: Any) -> Any:
        if isinstance(value, Mapping):
            return nan(value, sent)
        if isinstance(value, Tensor):
            return torch.full_like(value, math.nan) if value.is_floating_point() else value
        return math.nan if isinstance(value, float) else value

    return {name: spoilt(value) for name, value in body.items()}


def free_rider(body: Tree, sent: Tree) -> Tree:
    """What a client that does no work echoes: the model it was sent, the last consensus, or equal probabilities.

    It computes what it was never sent, such as DaFKD's head, as an honest client does.

    >>> free_rider({"logits": torch.tensor([[0.5, 3.0]])}, {})
    {'logits': tensor([[0., 0.]])}
    """
    echoes = {name: sent[name] for name in parameters(body, sent)}
    return {**body, **echoes, **{name: _echo(body, sent, name) for name in answers(body)}}


def _echo(body: Tree, sent: Tree, name: str) -> Tensor:
    own, last = body[name], sent.get(name)
    if isinstance(last, Tensor) and last.shape == own.shape:
        return last
    return torch.full_like(own, 0.0 if name == "logits" else 1 / own.shape[1])


def label_flip(setting: Setting, attackers: Collection[int]) -> Setting:
    """The setting in which attackers learn y as classes - 1 - y; no test or validation samples change."""
    flipped: dict[int, Tensor] = {}  # one for each pool of labels; clients share pools

    def wrong(samples: Samples) -> Samples:
        y = flipped.setdefault(id(samples.y), setting.classes - 1 - samples.y)
        return Samples(samples.x, y, samples.index)

    sites = [replace(site, train=wrong(site.train)) if k in attackers else site for k, site in enumerate(setting.sites)]
    return replace(setting, sites=sites)


def honest(body: Tree, _: Tree) -> Tree:
    """What an honest client sends."""
    return body


@dataclass(frozen=True)
class Attack:
    """A kind of attack: what it changes (`on`), and how - what is sent, with `forge`, or the data, with `poison`.

    It works against methods that send such things, and leaves others unchanged.
    """

    name: str
    on: tuple[Kind, ...]
    forge: Forge = honest
    poison: Callable[[Setting, Collection[int]], Setting] | None = None


ATTACKS: Mapping[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("sign-flip", ("parameters",), sign_flip),
        Attack("scaled-logits", ("answers",), scaled_logits),
        Attack("rank-flip", ("answers",), rank_flip),
        Attack("inflated-scores", ("scores",), inflated_scores),
        Attack("label-flip", ("data",), poison=label_flip),
        Attack("free-rider", ("parameters", "answers"), free_rider),
        Attack("nan", ("parameters", "answers"), nan),
    )
}


def how_many(clients: int, fraction: float) -> int:
    """Number of clients that attack: round(fraction * K).

    >>> how_many(10, 0.25)
    3
    """
    return math.floor(fraction * clients + 0.5) if math.isfinite(fraction) else 0


def choose_attackers(clients: int, fraction: float, seed: int) -> list[int]:
    """The attackers in ascending order: the first round(fraction * K) of a permutation; at least 1, fewer than half.

    >>> choose_attackers(10, 0.3, seed=0), choose_attackers(10, 0.1, seed=0)
    ([1, 8, 9], [1])
    """
    count = how_many(clients, fraction)
    if count < 1 or 2 * count >= clients:
        raise UsageError(
            f"a fraction of {fraction} makes {count} of {clients} clients attackers; at least one must be, and fewer "
            "than half, since no combination of all withstands a majority"
        )
    order: list[int] = rng.numpy_generator(seed, "attackers").permutation(clients).tolist()
    return sorted(order[:count])


class Attacked:
    """An engine with some attacking clients: their replies are changed on the way to the server, before the gate.

    `kinds` collects what any client has sent up, to show which attacks could change it.
    """

    def __init__(self, engine: Engine, forge: Forge = honest, attackers: Collection[int] = ()) -> None:
        self.engine, self.setting, self.workers = engine, engine.setting, engine.workers
        self.forge, self.attackers = forge, frozenset(attackers)
        self.kinds: set[Kind] = set()
        self._sent: dict[int, Tree] = {}  # to each attacker, the newest under each name

    @property
    def memories(self) -> dict[int, Tree]:
        """What the clients remember."""
        return self.engine.memories

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self.engine.memories = memories

    @property
    def trusted(self) -> Generation | None:
        """The generation to which the run can roll back."""
        return self.engine.trusted

    @trusted.setter
    def trusted(self, trusted: Generation | None) -> None:
        self.engine.trusted = trusted

    @property
    def remote(self) -> bool:
        """Whether clients keep their data and memories to themselves."""
        return self.engine.remote

    def begin(self, folder: Path | None) -> None:
        """Start a run."""
        self.engine.begin(folder)

    def evaluate(self, method: Method, state: State) -> dict[str, Any]:
        """The record of a round's views."""
        return self.engine.evaluate(method, state)

    def open(self, method: Method, round: int) -> Round:
        """Start a round."""
        return Round(self, method, round)

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Answer | Failure]:
        """Let clients act, and let attackers change their replies."""
        sent = {message.client: message.body for message in messages}
        for k in self.attackers & sent.keys():
            self._sent[k] = {**self._sent.get(k, {}), **sent[k]}
        for answer in self.engine.carry(method, round, messages):
            if isinstance(answer, Failure):
                yield answer
                continue
            body = answer.reply.body
            self.kinds |= {"parameters"} if parameters(body, sent[answer.client]) else set()
            self.kinds |= {"answers"} if answers(body) else set()
            self.kinds |= {"scores"} if claims(body) else set()
            if answer.client in self.attackers:
                forged = Reply(self.forge(body, self._sent[answer.client]), answer.reply.keep)
                answer = replace(answer, reply=forged)
            yield answer
