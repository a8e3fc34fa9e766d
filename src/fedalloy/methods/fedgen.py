"""FedGen: the server's generator of features carries what the clients' heads know to other clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.aggregation.averaging import shares
from fedalloy.aggregation.robust import bounded_counts
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.gate import Contract, array, like, optional
from fedalloy.methods.fedavg import FedAvg
from fedalloy.nets.ensemble import stacked_heads
from fedalloy.nets.generators import FeatureGenerator
from fedalloy.nets.models import FeatureNet, in_two_parts
from fedalloy.train.fit import aside, fit, frozen, load, params
from fedalloy.train.losses import ce, kl
from fedalloy.train.optimisers import adam, kept_moments

LabelKind = Literal["counts", "counts_by_size", "uniform"]


@method(
    "fedgen",
    label="FedGen",
    card=Card(
        paper="Zhu et al., ICML 2021",
        up="model, n, label counts",
        down="model, generator, label distribution",
        distils="all clients' heads, on generated features, into each client's head",
        leaves_client="model weights, number of samples, how many samples of each class",
        features=True,
        quick={"noise": 4, "hidden": 16, "generator_steps": 2, "generator_batch": 8},
    ),
)
class FedGen(FedAvg):
    """FedAvg whose clients train their heads also on features that the server generates.

    After each round the server teaches its generator G(eps, y), from noise and a label to a feature, to please together
    the heads of the clients that replied. In the next round a client minimises CE on its data plus `weight` times the
    CE of its head on features whose labels are distributed as in the data of those that replied; a class that none of
    them holds does not occur. G is frozen, and the gradient reaches the head only. In the first round, or until a first
    reply has come, there is no generator yet: clients are sent what FedAvg sends and train as in FedAvg, but their
    label counts go up from the first round on.

    `variant` chooses among readings, and a switch given by hand overrides it. The reference is FedKF's code, whose
    tables hold FedGen's published figures here. The full text of FedGen's paper was not at hand: the column "paper" is
    a reading from its code and from papers that cite it, and probably not all of it. In particular the paper may
    average models and logits with equal weights, start with uniform labels, and use its generator from round 1.

    | switch | recommended | paper | reference |
    |---|---|---|---|
    | `distribution`: of the noise | uniform in [0, 1) | normal | uniform |
    | `labels`: their distribution follows | counts | counts | counts_by_size: each client's counts times its size |

    The label counts are those of a client's whole training set; both codes count the labels of the round's batches.

    FedGen's own code differs more. These differences are options:

    * `server_loss = "weighted_ce"` adds up the heads' losses, each weighted by the client's share of the samples with
      that label, where every count starts at 1. So it was intended there; a slip in broadcasting multiplies the means
      instead. The default averages the heads' logits first, with the weights of the models' average.
    * `labels = "uniform"` draws equally often every label that a client which replied holds (there: whose largest count
      exceeds the 1 from which it starts), at the server and at the clients. There the clients draw from the labels of
      the whole federation, which nobody knows here.
    * `generator_lr_decay = 0.98`: in round t the generator's rate is `generator_lr` times its power t - 1.
    * `latent_kl` is its client loss: the CE on generated features is weighted by alpha_t = max(1e-4, 10 * 0.98^t), and
      beta_t KL(head(G(eps, y)) || h(x)), y the real batch's labels, is added, where beta_t starts from `latent_weight`
      (10 on MNIST, 1 on EMNIST). Here t is 1 in the first round; FedGen's server counts from 0.
    * `generator_weight_decay = 0.01`, `generator_batch = 32`, and `relu = false` since its features have passed none.

    These are not: its end of generated features after 20 local steps, which are all it takes by default; and where the
    network is cut, in that code before one linear layer on 32 features, here where the model has its head, which for
    `simple-cnn` is the whole stack of linear layers. FedKF's features have passed a ReLU, and for CIFAR its code takes
    `noise = 64` and `hidden = 512`.

    >>> FedGen(variant="paper").noise_kind, FedGen(variant="paper", distribution="uniform").noise_kind
    ('normal', 'uniform')
    """

    weight: float = 1.0
    diversity: float = 1.0
    noise: int = 32
    hidden: int = 256
    relu: bool = True
    generator_lr: float = 1e-4
    generator_lr_decay: float = 1.0
    generator_weight_decay: float = 0.0
    generator_steps: int = 50
    generator_batch: int = 64
    server_loss: Literal["avg_logits", "weighted_ce"] = "avg_logits"
    latent_kl: bool = False
    latent_weight: float = 1.0
    variant: Literal["recommended", "paper", "reference"] = "recommended"
    distribution: Literal["uniform", "normal"] | None = None
    labels: LabelKind | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_bounds("the generator learns from the mean of the clients' heads", "combine")
        for name in ("weight", "diversity", "generator_weight_decay"):
            if getattr(self, name) < 0:
                raise UsageError(f"fedgen.{name} = {getattr(self, name)} must not be negative")
        for name, least in (("noise", 1), ("hidden", 1), ("generator_steps", 1), ("generator_batch", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"fedgen.{name} = {getattr(self, name)} must be at least {least}")
        for name in ("generator_lr", "generator_lr_decay", "latent_weight"):
            if getattr(self, name) <= 0:
                raise UsageError(f"fedgen.{name} = {getattr(self, name)} must be positive")

    @property
    def noise_kind(self) -> Literal["uniform", "normal"]:
        """The distribution of the noise."""
        return self.distribution or ("normal" if self.variant == "paper" else "uniform")

    @property
    def label_kind(self) -> LabelKind:
        """What the distribution of the labels follows."""
        return self.labels or ("counts_by_size" if self.variant == "reference" else "counts")

    def init(self, fed: Federation) -> Tree:
        """FedAvg's start; the generator comes with the first replies."""
        in_two_parts(fed.build(), self.name)
        return super().init(fed)

    def round(self, s: State, fed: Federation) -> State:
        """One round: send, train, teach the generator, average."""
        sent = {name: s[name] for name in ("model", "generator", "labels") if name in s.body}
        replies = fed.ask("train", fed.sample(), **sent)
        if not replies:
            return s.next()
        taught = self.teach(s, replies, fed)
        return s.next(model=self.aggregate(s, replies, fed), **taught, **self.cached(s, replies))

    @property
    def tells_counts(self) -> bool:
        """The generator's labels follow the clients' label counts."""
        return True

    def accepts(self, action: str, me: Client) -> Contract:
        """As under FedAvg; once there is a generator, also that and the shares of the labels."""
        generator = params(self.new_generator(me, in_two_parts(me.build(), self.name)))
        labels = array(me.classes, least=0.0, most=1.0)
        return {**super().accepts(action, me), "generator": optional(like(generator)), "labels": optional(labels)}

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on CE(h(x), y) + weight * CE(head(G(eps, y~)), y~), y~ drawn from the distribution received."""
        net = in_two_parts(me.net(msg["model"]), self.name)
        if "generator" not in msg:
            fit(net, me, lambda x, y: ce(net(x), y))
            return reply(model=params(net), **self.about(me))
        generator = frozen(load(self.new_generator(me, net), msg["generator"]))
        stream, dropout = me.rng("generated"), me.rng("generated/dropout")
        shared = msg["labels"].cpu()  # streams draw there
        alpha = _decayed(10.0, me.round) if self.latent_kl else 1.0

        def generated(labels: Tensor) -> Tensor:
            with torch.no_grad():
                features: Tensor = generator(self.noise_for(labels, stream), labels)
                return features

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            drawn = torch.multinomial(shared, len(y), replacement=True, generator=stream).to(y.device)
            with aside(net.head, dropout):
                extra = alpha * ce(net.head(generated(drawn)), drawn)
                if self.latent_kl:
                    with torch.no_grad():
                        target = net.head(generated(y))
                    extra = extra + _decayed(self.latent_weight, me.round) * kl(target, logits)
            return ce(logits, y) + self.weight * extra

        fit(net, me, loss)
        return reply(model=params(net), **self.about(me))

    def teach(self, s: State, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
        """The generator after `generator_steps` steps of its Adam, whose moments last, against the replies' heads."""
        net = in_two_parts(fed.build(), self.name)
        heads = stacked_heads(net, self.received(s, replies))
        sizes, counts = [r["n"] for r in replies], [r["counts"] for r in replies]
        by_size, uniform = self.label_kind == "counts_by_size", self.label_kind == "uniform"
        a = shares(self.bounded_weights(sizes, counts, fed.cap))
        labels = label_distribution(counts, sizes if by_size else None, uniform, fed.cap)
        held = bounded_counts(counts, fed.cap)
        generator = self.new_generator(fed, net).train()
        if "generator" in s.body:
            load(generator, s["generator"])
        rate = self.generator_lr * self.generator_lr_decay**s.round  # rounds before this one
        optimiser = adam(generator.parameters(), rate, self.generator_weight_decay, s.body.get("moments"))
        device, stream = next(generator.parameters()).device, fed.rng("generated")
        for _ in range(self.generator_steps):
            y = torch.multinomial(labels, self.generator_batch, replacement=True, generator=stream).to(device)
            eps = self.noise_for(y, stream)
            z = generator(eps, y)
            with fed.meter.paused():
                logits = heads(z)
            for of_one in logits:
                fed.meter.count(of_one, 0.5)  # however many heads one product evaluates, each is half a pass
            together = weighted_ce(logits, y, held) if self.server_loss == "weighted_ce" else average_ce(logits, y, a)
            loss = together + self.diversity * diversity_loss(eps, z)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
            fed.meter.steps += 1
        return {"generator": params(generator), "moments": kept_moments(optimiser), "labels": labels}

    def new_generator(self, where: Client | Federation, net: FeatureNet) -> nn.Module:
        """The untrained generator for this network's features, at a client or at the server."""
        return where.generator(
            partial(FeatureGenerator, net.feature_shape, where.classes, self.noise, self.hidden, self.relu)
        )

    def noise_for(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """One row of noise for each label."""
        draw = torch.randn if self.noise_kind == "normal" else torch.rand
        return draw(len(labels), self.noise, generator=stream).to(labels.device)


def label_distribution(
    counts: Sequence[Tensor], sizes: Sequence[int] | None = None, uniform: bool = False, cap: float | None = None
) -> Tensor:
    """The labels' shares among these clients' samples; with sizes, each client's counts are multiplied by its own.

    A label that none of them holds has probability 0; `uniform` makes those of all others equal. No client has a larger
    share in them than `cap`.

    >>> label_distribution([torch.tensor([10, 0]), torch.tensor([0, 30])])
    tensor([0.2500, 0.7500])
    >>> label_distribution([torch.tensor([10, 0]), torch.tensor([0, 30])], sizes=[10, 30])
    tensor([0.1000, 0.9000])
    >>> label_distribution([torch.tensor([10, 0]), torch.tensor([0, 30])], uniform=True)
    tensor([0.5000, 0.5000])
    """
    parts = [c.double() * n for c, n in zip(counts, sizes or [1] * len(counts), strict=True)]
    total = sum(bounded_counts(parts, cap))
    assert isinstance(total, Tensor)
    if uniform:
        total = (total > 0).double()
    return (total / total.sum()).float().cpu()


def average_ce(logits: Tensor, labels: Tensor, weights: Sequence[float]) -> Tensor:
    """CE(sum_k a_k head_k(z), y): the heads' logits (K, B, classes) are averaged before the softmax.

    >>> average_ce(torch.tensor([[[4.0, 0.0]], [[0.0, 4.0]]]), torch.tensor([0]), [0.5, 0.5])
    tensor(0.6931)
    """
    return ce(torch.tensordot(logits.new_tensor(weights), logits, 1), labels)


def weighted_ce(logits: Tensor, labels: Tensor, counts: Sequence[Tensor]) -> Tensor:
    """sum_k mean_b weight[y_b, k] CE(head_k(z_b), y_b), the weight being client k's share of the samples labelled y_b.

    Counts start at 1, so that a client without that label has a small say.

    >>> one_sure, other_wrong = torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]])
    >>> heads = torch.stack([one_sure, other_wrong])
    >>> weighted_ce(heads, torch.tensor([0]), [torch.tensor([2, 0]), torch.tensor([0, 9])])
    tensor(12.5000)
    """
    table = torch.stack(list(counts)).to(logits) + 1
    weights = (table / table.sum(0))[:, labels]
    losses = torch.stack([F.cross_entropy(of_one, labels, reduction="none") for of_one in logits])
    return (weights * losses).sum(0).mean()


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """exp(-mean_ij(|eps_i - eps_j|^2 |z_i - z_j|)): in (0, 1], and 1 where different noise gives equal features.

    The distances are means over their coordinates, squared for the noise and absolute for the features; the mean runs
    over all pairs of a batch, i = j included.

    >>> diversity_loss(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])).log()
    tensor(-1.)
    """
    # By matrix products, torch's default for large batches, a row would not be at distance zero from itself.
    apart = torch.cdist(noise, noise, compute_mode="donot_use_mm_for_euclid_dist").square() / noise.shape[1]
    z = features.flatten(1)
    return (-(apart * torch.cdist(z, z, p=1) / z.shape[1]).mean()).exp()


def _decayed(start: float, round: int) -> float:
    """The schedule of both weights in FedGen's own client loss; rounds count from 1, there from 0."""
    return max(1e-4, start * 0.98**round)
