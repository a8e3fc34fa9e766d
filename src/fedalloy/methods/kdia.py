"""KDIA: all clients' last models, weighted by three frequencies, teach the active ones; generated features even out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedalloy.aggregation.averaging import average, shares
from fedalloy.aggregation.robust import bounded
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import Contract, like
from fedalloy.knowledge.pictures import Features
from fedalloy.knowledge.trifreqs import Frequency, Mean, tri_freqs
from fedalloy.methods.fedavg import CacheInit, FedAvg
from fedalloy.nets.ensemble import stacked_heads
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import FeatureNet, in_two_parts
from fedalloy.train.fit import aside, batches, fit, frozen, load, params
from fedalloy.train.losses import ce, kl
from fedalloy.train.optimisers import adam


@method(
    "kdia",
    label="KDIA",
    card=Card(
        paper="Ma, preprint submitted to Elsevier",
        up="model, n",
        down="model, teacher, generator",
        distils="a weighted average of all clients' last models, on the client's own data, into each client's model",
        features=True,
        quick={"noise": 4, "generator_width": 8, "generator_epochs": 2, "generator_batches": 3, "generator_batch": 4},
    ),
)
class KDIA(FedAvg):
    """Inequitable aggregation: the active clients make the student, all clients' last models the teacher.

    The student, the view `student`, is FedAvg's average. The teacher, the view `teacher`, weighs every client's last
    model by how lately it took part, how often, and how much data it has (`triFreqs`, Eq. 5 to 10). A client minimises
    CE + lambda_kd KL(teacher || student) at temperature tau, without a factor tau^2 (Eq. 11), plus lambda_gen times the
    CE of its head on features that the server's generator makes for uniformly drawn labels (Eq. 12, which writes the
    whole network where only the head can be meant). A term whose weight is 0 is left out, and what it needs is neither
    made nor sent.

    The paper's lambda_gen is 0.01, 1.0 and 0.01 for Dirichlet partitions of beta 0.1, 0.5 and 5.0. Its generator is
    almost ten times its classifier, so that 11.6 times what FedAvg sends goes down; `generator_width = 128` makes it
    nine times smaller.

    `variant` chooses where the paper and its code differ, and a switch given by hand overrides it:

    | switch | recommended | paper | reference (the code) |
    |---|---|---|---|
    | `kd_direction` | forward (Eq. 11) | forward | reverse: KL(student || teacher) |
    | `generator_epochs` x `generator_batches` | 10 x 200 | 10 x 200 | 20 x 100 |

    For the paper's ablations, `freqs` takes one frequency alone, `mean = "arithmetic"` the arithmetic mean, and
    `labels = "batch"` the unadjusted generation of FedGen and FedCG: labels of the client's real batch and, at the
    server, labels drawn batch by batch instead of one balanced pool a round. Where these give weight to clients not yet
    seen, they hold the first model; in the code each holds a random network of its own.

    Chosen without an option: the heads' logits are weighted by p_k, as in the code (Eq. 3 divides by K again, which
    shrinks them); the constant of Eq. 4 stands under the inverted ratio, as in the code, where the paper adds it to the
    distance of the features; the server's pool holds as many labels as an epoch consumes (Algorithm 1 asks for
    fewer), clients draw fresh noise for every batch, and one whose epoch is a single batch (Algorithm 2: with fewer
    samples than a batch) draws fresh labels for every epoch. Contrary to the paper, neither does the teacher become
    FedAvg's average when all take part, unless all hold equally much data, nor is the geometric mean robust to zeros: a
    client that was never seen weighs nothing. The teacher is always summed exactly, whatever `exact_up_to` says. The
    paper's output is the better of student and teacher; here both are views, and none is chosen. Its Theorem 1
    (convergence) is tested nowhere. KDIA's loader drops the last, smaller batch of a pass where beta is at least 0.5
    (`training.drop_last`).

    With `lambda_kd = 0` and `lambda_gen = 0` training is FedAvg's, and the view `teacher` still weighs all clients:
    that is the control that tells what distillation adds from what averaging adds.

    >>> KDIA(variant="reference").schedule, KDIA(variant="reference", generator_epochs=5).schedule
    ((20, 100), (5, 100))
    """

    lambda_kd: float = 0.5
    lambda_gen: float = 0.01
    tau: float = 2.0
    mean: Mean = "geometric"
    freqs: Frequency = "all"
    labels: Literal["uniform", "batch"] = "uniform"
    noise: int = 100
    generator_width: int = 512
    generator_batch: int = 64
    generator_lr: float = 1e-3
    generator_weight_decay: float = 1e-5
    variant: Literal["recommended", "paper", "reference"] = "recommended"
    kd_direction: Literal["forward", "reverse"] | None = None
    generator_epochs: int | None = None
    generator_batches: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_bounds("the teacher weighs the clients' models by their frequencies", "combine")
        if not self.oca:
            raise UsageError("kdia.oca = false is impossible: the teacher is an average of all clients")
        for name in ("lambda_kd", "lambda_gen", "generator_weight_decay"):
            if getattr(self, name) < 0:
                raise UsageError(f"kdia.{name} = {getattr(self, name)} must not be negative")
        for name in ("tau", "generator_lr"):
            if getattr(self, name) <= 0:
                raise UsageError(f"kdia.{name} = {getattr(self, name)} must be positive")
        for name, least in (("noise", 1), ("generator_width", 4), ("generator_epochs", 1), ("generator_batches", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise UsageError(f"kdia.{name} = {getattr(self, name)} must be at least {least}")
        if self.generator_batch < 2 or self.generator_batch % 2:
            raise UsageError(
                f"kdia.generator_batch = {self.generator_batch} cannot be halved, as the diversity loss does; "
                f"write an even number"
            )

    @property
    def reverse(self) -> bool:
        """Whether the divergence runs from the student to the teacher."""
        return (self.kd_direction or ("reverse" if self.variant == "reference" else "forward")) == "reverse"

    @property
    def schedule(self) -> tuple[int, int]:
        """The generator's epochs a round, and the batches of each."""
        epochs, per_epoch = (20, 100) if self.variant == "reference" else (10, 200)
        return self.generator_epochs or epochs, self.generator_batches or per_epoch

    def empty_slots(self) -> CacheInit:
        """Clients not yet seen hold the first model."""
        return self.cache_init or "init_model"

    # --- the server (Algorithm 1) ---------------------------------------------------------------------------------

    def init(self, fed: Federation) -> Tree:
        """One model for all; nobody has taken part: t_k = -1 in the paper, whose rounds count from 0."""
        never = torch.zeros(len(fed.sizes), dtype=torch.int64)
        state = {**super().init(fed), "last": never, "times": never.clone()}
        if self.lambda_gen:
            state["generator"] = params(self.new_generator(fed, in_two_parts(fed.build(), self.name)))
        return state

    def round(self, s: State, fed: Federation) -> State:
        """One round: send student, teacher and generator, train, combine (lines 2 to 18)."""
        sent = {"model": s["model"]}
        sent |= {"teacher": self.overall(s)} if self.lambda_kd else {}
        sent |= {"generator": s["generator"]} if self.lambda_gen else {}
        replies = fed.ask("train", fed.sample(), **sent)
        if not replies:
            return s.next()
        taught = {"generator": self.teach(s, replies, fed)} if self.lambda_gen else {}
        return s.next(model=self.aggregate(s, replies, fed), **self.cached(s, replies), **taught)

    def cached(self, s: State, replies: Sequence[Message]) -> Mapping[str, Any]:
        """Keep the active clients' models, and note that they took part (lines 7 and 8)."""
        active = [r.client for r in replies]
        last, times = s["last"].clone(), s["times"].clone()
        last[active] = s.round + 1
        times[active] += 1
        fresh = {str(r.client): self.stored(w) for r, w in zip(replies, self.received(s, replies), strict=True)}
        return {"cache": {**s["cache"], **fresh}, "last": last, "times": times}

    def overall(self, s: State) -> Tree:
        """The teacher, theta_T = sum_k F_k theta_k over the last known models of all clients (Eq. 10)."""
        seen = sorted(int(k) for k in s["cache"])
        if not seen:
            return s["model"]  # type: ignore[no-any-return]  # a state's entries are untyped
        slots = self.empty_slots()
        clients = seen if slots == "seen_only" else list(range(len(s["sizes"])))
        columns = [s[name][clients].tolist() for name in ("last", "times", "sizes")]
        freqs = bounded(tri_freqs(*columns, mean=self.mean, use=self.freqs), s.body.get("cap"))
        weight = dict(zip(clients, freqs, strict=True))
        models, weights = [s["cache"][str(k)] for k in seen], [weight.pop(k) for k in seen]
        unseen = sum(weight.values())
        if unseen > 0:  # they all hold the same model, so that they enter as one term
            models, weights = [*models, s["start"] if slots == "init_model" else s["model"]], [*weights, unseen]
        return average(models, weights, s["model"])

    def teach(self, s: State, replies: Sequence[Message], fed: Federation) -> Tree:
        """The generator after this round's steps against the active clients' heads (lines 11 to 18, Eq. 3 and 4)."""
        net = in_two_parts(fed.build(), self.name)
        heads = stacked_heads(net, self.received(s, replies))
        counts = [r["counts"] for r in replies] if self.weights == "disco" else []
        generator = load(self.new_generator(fed, net), s["generator"]).train()
        optimiser = adam(generator.parameters(), self.generator_lr, self.generator_weight_decay)  # afresh every round
        device, noise = next(generator.parameters()).device, fed.rng("generator/noise")
        weights = self.bounded_weights([r["n"] for r in replies], counts, fed.cap)
        p = torch.tensor(shares(weights), device=device)
        for labels in self.server_labels(fed):
            y = labels.to(device, non_blocking=True)
            eps = torch.randn(len(y), self.noise, generator=noise).to(device, non_blocking=True)
            z = generator(eps, y)
            with fed.meter.paused():
                logits = torch.tensordot(p, heads(z), 1)
            fed.meter.count(logits, 0.5 * len(p))  # however many heads one product evaluates, each is half a pass
            optimiser.zero_grad()
            (ce(logits, y) + diversity_loss(eps, z)).backward()  # type: ignore[no-untyped-call]  # torch's
            optimiser.step()
            fed.meter.steps += 1
        return params(generator)

    def server_labels(self, fed: Federation) -> Iterator[Tensor]:
        """The labels of each of the generator's batches: one pool a round, shuffled anew in every epoch."""
        epochs, per_epoch = self.schedule
        draw, batch = fed.rng("generator/labels"), self.generator_batch
        if self.labels == "uniform":
            return _from_pool(fed.classes, batch * per_epoch, batch, epochs * per_epoch, draw)
        return (torch.randint(fed.classes, (batch,), generator=draw) for _ in range(epochs * per_epoch))

    def models(self, s: State) -> Mapping[str, Tree]:
        """The average of the active clients, and the weighted one of all; the paper reports the better."""
        return {"student": s["model"], "teacher": self.overall(s)}

    # --- a client (Algorithm 2) -----------------------------------------------------------------------------------

    def accepts(self, action: str, me: Client) -> Contract:
        """Student, teacher and generator, those that are used."""
        contract = dict(super().accepts(action, me))
        if self.lambda_kd:
            contract["teacher"] = contract["model"]
        if self.lambda_gen:
            contract["generator"] = like(params(self.new_generator(me, in_two_parts(me.build(), self.name))))
        return contract

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE + lambda_kd KL + lambda_gen CE of the head on generated features (Eq. 13)."""
        net = me.net(msg["model"])
        teacher = frozen(me.net(msg["teacher"])) if self.lambda_kd else None
        generated = self.generated(me, in_two_parts(net, self.name), msg["generator"]) if self.lambda_gen else None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            total = ce(logits, y)
            if teacher is not None:
                total = total + self.lambda_kd * self.distance(teacher(x), logits)
            if generated is not None:
                total = total + self.lambda_gen * generated(y)
            return total

        fit(net, me, loss)
        return reply(model=params(net), **self.about(me))

    def distance(self, teacher: Tensor, student: Tensor) -> Tensor:
        """KL(P || Q) of teacher and student at temperature tau (Eq. 11); the code exchanges the two."""
        return kl(student, teacher, self.tau) if self.reverse else kl(teacher, student, self.tau)

    def generated(self, me: Client, net: FeatureNet, weights: Tree) -> Callable[[Tensor], Tensor]:
        """The CE of the head on one batch of generated features (Eq. 12), as a function of the real batch's labels."""
        generator = frozen(load(self.new_generator(me, net), weights))
        noise, dropout = me.rng("generator/noise"), me.rng("generator/dropout")
        pool = client_labels(me)

        def loss(real: Tensor) -> Tensor:
            labels = next(pool).to(real.device, non_blocking=True) if self.labels == "uniform" else real
            eps = torch.randn(len(labels), self.noise, generator=noise).to(real.device, non_blocking=True)
            z = generator(eps, labels)
            with aside(net.head, dropout):
                return ce(net.head(z), labels)

        return loss

    def new_generator(self, where: Client | Federation, net: FeatureNet) -> nn.Module:
        """The untrained generator for this network's features, at a client or at the server."""
        make = partial(ConditionalGenerator, net.feature_shape, where.classes, self.noise, self.generator_width)
        return where.generator(make)

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The clients' weights in the teacher, and the generated features."""
        made = Features(self.new_generator, s["generator"]) if self.lambda_gen else "lambda_gen = 0 makes no features"
        options = {"mean": self.mean, "use": self.freqs, "seen_only": self.empty_slots() == "seen_only"}
        return {"trifreqs": options, "similarity": made}


def client_labels(me: Client) -> Iterator[Tensor]:
    """The labels for each batch's generated features: as many as an epoch has samples, shuffled in every epoch.

    A client whose epoch is a single batch gets fresh ones in every epoch instead (Algorithm 2, lines 2 to 5). By the
    letter it has at most a batch of samples (n <= batch; the paper: fewer). Here one sample more is a single batch too,
    since a last batch of one sample joins the one before it.
    """
    n, batch, draw = me.n, me.work.batch, me.rng("generator/labels")
    visited = n - n % batch if me.work.drop_last and n > batch else n
    joined = n % batch == 1
    if visited <= batch + joined:
        return iter(torch.randint(me.classes, (me.steps, visited), generator=draw))
    return _from_pool(me.classes, visited, batch, me.steps, draw)


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """|eps_1 - eps_2| / |z_1 - z_2| of the batch's two halves (Eq. 4): small where noise makes a difference.

    As in the code, the distances are means over all numbers and the constant stands under the inverted ratio.

    >>> round(diversity_loss(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])).item(), 4)
    0.5
    """
    (eps_1, eps_2), (z_1, z_2) = noise.chunk(2), features.chunk(2)
    return 1 / ((z_1 - z_2).abs().mean() / (eps_1 - eps_2).abs().mean() + 1e-5)


def _from_pool(classes: int, size: int, batch: int, steps: int, draw: torch.Generator) -> Iterator[Tensor]:
    pool = torch.randint(classes, (size,), generator=draw)
    return (pool[positions] for positions in batches(size, batch, steps, draw))
