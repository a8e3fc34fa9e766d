"""What methods that average models share: the cache, the server's step, and what clients report about their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedalloy.aggregation.averaging import discrepancy, largest_discrepancy
from fedalloy.aggregation.cache import Cache, Unseen
from fedalloy.base.options import section
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Client, Federation, Message, Method, Reply, State, action, reply
from fedalloy.federation.gate import Contract, real


@dataclass(frozen=True, kw_only=True)
class Averaged(Method):
    """A method whose server averages the active clients' models, by [aggregation] and with the [cache].

    A round of such a method ends with `averaged`. Override `aggregate` for another average, `step` for a server that
    does more with it, `overall` for another average of the cache.
    """

    takes = frozenset({"weights", "combine", "clip"})
    keeps_cache: ClassVar[bool] = True  # unless [cache] says otherwise

    cache: Cache = section(Cache)

    def __post_init__(self) -> None:
        super().__post_init__()
        oca = self.keeps_cache if self.cache.oca is None else self.cache.oca
        kept = replace(self.cache, oca=True, unseen=self.cache.unseen or self.usual_unseen) if oca else Cache(oca=False)
        object.__setattr__(self, "cache", kept)

    @property
    def usual_unseen(self) -> Unseen:
        """What the cache holds for clients not yet seen, if [cache] does not say."""
        return "seen_only"

    def averaged(self, s: State, replies: Sequence[Message], fed: Federation, **changes: Any) -> State:
        """The state after these replies; without any, the model stays unchanged."""
        s, replies = self.told(s, replies, fed)
        if not replies:
            return s.next(**changes)
        stepped = self.step(s, self.aggregate(s, replies, fed), replies, fed)
        return s.next(**stepped, **self.cached(s, replies), **changes)

    def aggregate(self, s: State, replies: Sequence[Message], fed: Federation) -> Tree:
        """w^{t+1} = sum_k (n_k / n) w_k over the active clients; with bounds, as [aggregation] says."""
        sizes, apart = [r["n"] for r in replies], self.discrepancies(s, replies)
        return self.aggregation.average(models(replies), sizes, s["model"], apart)

    def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """What the server makes of the average: by default, the next model."""
        return {"model": mean}

    def cached(self, s: State, replies: Sequence[Message]) -> dict[str, Any]:
        """The cache with the active clients' new models."""
        clients = [r.client for r in replies]
        kept = dict(zip(clients, self.aggregation.clipped(models(replies), s["model"]), strict=True))
        return self.cache.updated(s.body, s.round + 1, self.aggregation, kept)

    def overall(self, s: State) -> Tree:
        """OCA: the average of every client's last known model."""
        return self.cache.overall(s.body, self.aggregation)

    def models(self, s: State) -> Mapping[str, Tree]:
        """The average of the active clients (`aca`) and, with the cache, that of all clients (`oca`)."""
        return {"aca": s["model"], "oca": self.overall(s)} if self.cache.oca else {"aca": s["model"]}

    @property
    def tells_discrepancy(self) -> bool:
        """Whether each client tells, once, how far its labels are from uniform; the server may know from its counts."""
        return self.aggregation.weights == "disco" and not self.tells_counts

    def told(self, s: State, replies: Sequence[Message], fed: Federation) -> tuple[State, Sequence[Message]]:
        """The state with the discrepancies that FedDisco's weights need, and the replies of clients that have told it.

        A client is asked when it first replies; what it says then is kept, and it is not asked again. `averaged` calls
        this; a method that averages by itself must do so, too.
        """
        if self.aggregation.weights != "disco":
            return s, replies
        known: dict[str, float] = dict(s.body.get("discrepancy", {}))
        new = [r for r in replies if str(r.client) not in known]
        if self.tells_discrepancy and new:
            known |= {str(r.client): r["discrepancy"] for r in fed.ask("tell", [r.client for r in new])}
        elif new:
            known |= {str(r.client): discrepancy(r["counts"], self.aggregation.disco_metric) for r in new}
        return State(s.round, {**s.body, "discrepancy": known}), [r for r in replies if str(r.client) in known]

    def discrepancies(self, s: State, replies: Sequence[Message]) -> list[float]:
        """How far each client's labels are from uniform, if the weights depend on it."""
        return [s["discrepancy"][str(r.client)] for r in replies] if self.aggregation.weights == "disco" else []

    @action("-> discrepancy if tells_discrepancy")
    def tell(self, me: Client, msg: Message) -> Reply:
        """How far the client's labels are from uniform; nothing if the weights do not depend on it."""
        if not self.tells_discrepancy:
            return reply()
        return reply(discrepancy=discrepancy(me.train.counts(me.classes), self.aggregation.disco_metric))

    def example(self, name: str, party: Client | Federation) -> Any:
        """No labels are farther from uniform than those of a single class."""
        if name == "discrepancy":
            return real(0.0, largest_discrepancy(party.classes, self.aggregation.disco_metric) + 1e-9)
        return super().example(name, party)

    def about(self, me: Client) -> dict[str, Any]:
        """What a client reports about its data."""
        return {"n": me.n, "counts": me.train.counts(me.classes)} if self.tells_counts else {"n": me.n}

    def expects(self, message: Message, fed: Federation) -> Contract:
        """As the action declares; an action without a declaration answers like FedAvg's clients."""
        usual = {name: check for name, check in self.known(message, fed).items() if name in ("model", "n", "counts")}
        return super().expects(message, fed) or usual

    def leaves(self) -> str:
        """What leaves a client, in words."""
        usual = super().leaves()
        told = self.tells_discrepancy and "uniform" not in usual
        return f"{usual}, once how far its labels are from uniform" if told else usual


def models(replies: Sequence[Message]) -> list[Tree]:
    """The models that were returned, in ascending client id."""
    return [r["model"] for r in replies]


def label_counts(replies: Sequence[Message]) -> list[Tensor]:
    """The label counts that were returned, if clients report them."""
    return [r["counts"] for r in replies if "counts" in r]
