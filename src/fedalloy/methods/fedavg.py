"""FedAvg, and the cache of last known models (OCA) that works under every averaging method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.aggregation.averaging import Discrepancy, average, disco_weights, weighted_sum
from fedalloy.aggregation.robust import TRIMS, Combine, bounded, check_clip, check_trim, clip_norm, combined
from fedalloy.base.registry import refuse_idle
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.federation.gate import Contract, counts, like, whole
from fedalloy.train.fit import fit, params
from fedalloy.train.losses import ce

CacheInit = Literal["seen_only", "init_model", "global"]
Weights = Literal["size", "uniform", "disco"]
REFRESH = 100  # rounds after which a running sum is taken anew


@method(
    "fedavg",
    label="FedAvg",
    card=Card(
        paper="McMahan et al., AISTATS 2017; the OCA view is T1 of FedKF, Zhou et al., IoT-J 2023",
        up="model, n",
        down="model",
        private=True,
        private_except={"weights": "disco"},
    ),
)
class FedAvg(Method):
    """Average the active clients' models, weighted by their data.

    The view `aca` is the average of the active clients, which is also what the next round starts from. The view `oca`
    (overall client average, FedKF's technique T1) averages the last known model of every client; where it is
    not a teacher it never touches the training, so one run gives both rows of a table.

    FedKF's Algorithm 1 fills the cache of clients not yet seen with the first model (`cache_init = "init_model"`), its
    code leaves them out (`"seen_only"`, the default: in the first rounds the former is mostly an untrained network);
    `"global"` takes the current global model for them.

    The sum over the cache is taken exactly, in ascending id, up to `exact_up_to` clients; beyond, a running sum is
    moved by what the active clients changed and taken anew every 100 rounds. It is as reproducible, but differs from
    the exact one in the last bits. `cache_dtype = "bfloat16"` halves the cache; OCA then carries rounding errors of
    about 0.2 % of each weight, and no longer equals ACA when all clients take part. Neither touches the training,
    except where OCA is the teacher, as in FedKF.

    `weights = "disco"` weighs clients as FedDisco does (Ye et al., ICML 2023), under every method that averages;
    clients then also send how many samples of each class they hold. See `feddisco` for `disco_a` to `disco_normalise`.

    What one client can do to the average can be bounded, under every method that inherits it:

    * `combine`: the weighted `mean`, or the coordinate-wise `median` or `trimmed` mean (Yin et al., ICML 2018), which
      drops the floor(`trim` * K) largest and smallest values of K active clients, or `krum`, the mean without the
      floor(`trim` * K) clients that lie farthest from the others (multi-Krum, Blanchard et al., NeurIPS 2017). With so
      few clients that this is 0, fewer than 1 / `trim`, nobody is dropped and nothing bounded. These three weigh all
      clients alike, whatever `weights` says, since a size is only what a client says; weights by FedDisco are
      therefore refused with them.
    * `clip`: an update longer than this, over all parameters and float buffers, is scaled down to it; `"median"` takes
      the median of the round's norms. The cache holds the models as they then are.

    OCA combines the cache in the same way, and the experiment's `aggregation.cap` limits each client's share of it;
    clients not yet seen count one by one there, so that with `cache_init = "init_model"` the median is the first model
    until half of them were seen. Only the exact sum can do this: more clients than `exact_up_to` are refused. See
    `fedalloy.aggregation.robust` for the details.
    `kdia`, `fedgen` and `fedftg` take `clip` alone, `dafkd` `krum` alone, `qffl` none of these: their servers also use
    the clients' models, or what clients report, in ways of their own, which a robust average would leave unbounded.

    >>> FedAvg(weights="uniform").oca
    True
    """

    weights: Weights = "size"
    oca: bool = True
    cache_init: CacheInit | None = None
    cache_dtype: Literal["float32", "bfloat16"] = "float32"
    exact_up_to: int = 2000
    disco_a: float = 0.5
    disco_b: float = 0.1
    disco_metric: Discrepancy = "kl"
    disco_normalise: bool = True
    combine: Combine = "mean"
    trim: float = 0.2
    clip: float | Literal["median"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_bounds()
        if self.disco_a < 0 or self.disco_b < 0:
            raise UsageError(f"{self.name}.disco_a and disco_b must not be negative")
        if self.weights == "disco" and self.empty_slots() != "seen_only":
            raise UsageError(
                f"{self.name}.weights = 'disco' needs every client's label counts, which clients not yet seen have "
                f"not sent; write cache_init = 'seen_only'"
            )

    def check_bounds(self) -> None:
        """Refuse bounds that are none, and those of which one would make the other idle."""
        check_trim(self.trim, f"{self.name}.trim")
        refuse_idle(self, self.name, TRIMS)
        if self.clip is not None:
            check_clip(self.clip, f"{self.name}.clip")
        if self.combine != "mean" and self.weights == "disco":
            raise UsageError(
                f"{self.name}.combine = '{self.combine}' does not use weights, so that weights = 'disco' would do "
                f"nothing; write combine = 'mean', or weights = 'size'"
            )

    def refuse_bounds(self, why: str, *names: str) -> None:
        """Refuse the named bounds for a method whose server would get around them."""
        for name in names:
            if getattr(self, name) not in ("mean", None):
                raise UsageError(
                    f"{self.name}.{name} = {getattr(self, name)!r} would bound little: {why}; leave it out"
                )

    def needs_every_model(self, cap: float | None) -> bool:
        """Whether OCA must see the cached models one by one, because no sum of them is enough."""
        return self.combine != "mean" or (cap is not None and self.weights != "uniform")

    def empty_slots(self) -> CacheInit:
        """What stands in the cache for clients not yet seen."""
        return self.cache_init or "seen_only"

    def init(self, fed: Federation) -> Tree:
        """The server starts from one common model."""
        if self.oca and self.needs_every_model(fed.cap) and len(fed.sizes) > self.exact_up_to:
            combine = f"{self.name}.combine = '{self.combine}'"
            option = combine if self.combine != "mean" else f"aggregation.cap = {fed.cap}"
            raise UsageError(
                f"{option} needs the exact OCA, but {len(fed.sizes)} clients are more than exact_up_to = "
                f"{self.exact_up_to}; write oca = false, or a larger exact_up_to"
            )
        start = params(fed.build())
        state: dict[str, Any] = {"model": start, "cache": {}}
        if self.oca:
            state["sizes"] = torch.tensor(fed.sizes)
            state |= {"cap": fed.cap} if fed.cap is not None else {}
            state |= {"counts": {}} if self.weights == "disco" else {}
            state |= {"start": start} if self.empty_slots() == "init_model" else {}
        return state

    def round(self, s: State, fed: Federation) -> State:
        """One round: send, train, average, remember."""
        replies = fed.ask("train", fed.sample(), model=s["model"])
        if not replies:
            return s.next()
        return s.next(model=self.aggregate(s, replies, fed), **self.cached(s, replies))

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on cross-entropy, from the received model."""
        net = me.net(msg["model"])
        fit(net, me, lambda x, y: ce(net(x), y))
        return reply(model=params(net), **self.about(me))

    def about(self, me: Client) -> Mapping[str, Any]:
        """What the server is told of a client's data: its size and perhaps its label counts."""
        return {"n": me.n, "counts": me.train.counts(me.classes)} if self.tells_counts else {"n": me.n}

    def leaves(self) -> str:
        """What leaves a client; FedDisco's weights need its label counts besides."""
        usual = super().leaves()
        told = self.tells_counts and "of each class" not in usual
        return f"{usual}, how many samples of each class" if told else usual

    @property
    def tells_counts(self) -> bool:
        """Whether clients say how many samples of each class they hold; FedDisco's weights need that."""
        return self.weights == "disco"

    def expects(self, message: Message, fed: Federation) -> Contract:
        """A model like the one that was sent, of a client with as many samples (of each class) as the roster says."""
        n = fed.sizes[message.client]
        told = {"n": whole(n, n)} | ({"counts": counts(fed.label_counts(message.client))} if self.tells_counts else {})
        return {"model": like(message["model"]), **told}

    def accepts(self, action: str, me: Client) -> Contract:
        """A model like the client's own."""
        return {"model": like(params(me.build()))}

    def aggregate(self, s: State, replies: Sequence[Message], fed: Federation) -> Tree:
        """w^t = sum_k (n_k / n) w_k over the active clients, in ascending id; with bounds, as they say."""
        counts = [r["counts"] for r in replies] if self.weights == "disco" else []
        weights = self.bounded_weights([r["n"] for r in replies], counts, fed.cap)
        return combined(self.received(s, replies), weights, s["model"], self.combine, self.trim)

    def received(self, s: State, replies: Sequence[Message]) -> Sequence[Tree]:
        """The clients' models, their updates clipped if asked for."""
        models = [r["model"] for r in replies]
        return models if self.clip is None else clip_norm(models, s["model"], self.clip)

    def bounded_weights(self, sizes: Sequence[int], counts: Sequence[Tensor], cap: float | None) -> Sequence[float]:
        """The weight of each client, none of them more than `cap` of the whole."""
        return bounded(self.weigh(sizes, counts), cap)

    def weigh(self, sizes: Sequence[int], counts: Sequence[Tensor]) -> list[float]:
        """The weight of each client before normalisation; only FedDisco's look at the label counts."""
        if self.weights == "disco":
            return disco_weights(sizes, counts, self.disco_a, self.disco_b, self.disco_metric, self.disco_normalise)
        return [float(n) for n in sizes] if self.weights == "size" else [1.0] * len(sizes)

    def cached(self, s: State, replies: Sequence[Message]) -> Mapping[str, Tree]:
        """c_k <- w_k for the active clients."""
        if not self.oca:
            return {}
        fresh = {str(r.client): self.stored(w) for r, w in zip(replies, self.received(s, replies), strict=True)}
        cache = {**s["cache"], **fresh}
        if self.weights == "disco":  # they depend on who is there, so that no sum can be carried on
            return {"cache": cache, "counts": {**s["counts"], **{str(r.client): r["counts"] for r in replies}}}
        if len(cache) <= self.exact_up_to:
            return {"cache": cache}
        return {"cache": cache, "sum": self.running_sum(s, cache, fresh)}

    def stored(self, model: Tree) -> Tree:
        """A model as the cache holds it."""
        if self.cache_dtype == "float32":
            return model
        return {name: t.bfloat16() if t.is_floating_point() else t for name, t in model.items()}

    def running_sum(self, s: State, cache: Tree, fresh: Tree) -> Tree:
        """sum_k n_k c_k, moved by what the active clients changed; taken anew every `REFRESH` rounds."""
        weights = self.weigh(s["sizes"].tolist(), [])
        if "sum" not in s.body or (s.round + 1) % REFRESH == 0:
            seen = sorted(int(k) for k in cache)
            return weighted_sum([cache[str(k)] for k in seen], [weights[k] for k in seen])
        moved = [(m, weights[int(k)]) for k, m in sorted(fresh.items(), key=lambda item: int(item[0]))]
        moved += [(s["cache"][k], -weights[int(k)]) for k in sorted(fresh, key=int) if k in s["cache"]]
        return weighted_sum([s["sum"], *(m for m, _ in moved)], [1.0, *(w for _, w in moved)])

    def models(self, s: State) -> Mapping[str, Tree]:
        """The model of the active clients (`aca`) and, with the cache, that of all clients (`oca`)."""
        return {"aca": s["model"], "oca": self.overall(s)} if self.oca else {"aca": s["model"]}

    def overall(self, s: State) -> Tree:
        """OCA: the average over the last known model of every client."""
        seen = sorted(int(k) for k in s["cache"])
        if not seen:
            return s["model"]  # type: ignore[no-any-return]  # a state's entries are untyped
        sizes, slots = s["sizes"].tolist(), self.empty_slots()
        counts = [s["counts"][str(k)] for k in seen] if self.weights == "disco" else []
        cap = s.body.get("cap")
        if self.needs_every_model(cap):
            clients = seen if slots == "seen_only" else range(len(sizes))
            unseen_model = s["start"] if slots == "init_model" else s["model"]
            known = [s["cache"].get(str(k), unseen_model) for k in clients]
            weights = self.bounded_weights([sizes[k] for k in clients], counts, cap)
            return combined(known, weights, s["model"], self.combine, self.trim)
        models, parts = [s["cache"][str(k)] for k in seen], self.weigh([sizes[k] for k in seen], counts)
        if "sum" in s.body:
            models, parts = [{name: t / sum(parts) for name, t in s["sum"].items()}], [sum(parts)]
        if slots != "seen_only" and len(seen) < len(sizes):
            # Clients not yet seen all hold the same model, so that they enter as one term.
            unseen = sum(self.weigh([n for k, n in enumerate(sizes) if str(k) not in s["cache"]], []))
            models, parts = [*models, s["start"] if slots == "init_model" else s["model"]], [*parts, unseen]
        return average(models, parts, s["model"])
