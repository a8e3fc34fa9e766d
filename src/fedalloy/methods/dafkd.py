"""DaFKD: clients' domain discriminators say, sample by sample, whose model should teach the average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.robust import nearest
from fedalloy.aggregation.rule import Weights
from fedalloy.base.options import Count, Variant, by_variant, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.averaged import models
from fedalloy.knowledge.coverage import note_coverage
from fedalloy.knowledge.game import GENERATED, Game, opinions
from fedalloy.knowledge.pictures import Images
from fedalloy.knowledge.teaching import Teaching
from fedalloy.methods.fedavg import FedAvg
from fedalloy.train.fit import params

CARD = Card(
    brief="teachers weighted sample by sample",
    paper="Wang et al., CVPR 2023",
    distils="the active clients' models, weighted sample by sample, on generated images, into their average",
    leaves_client="model weights, a generator of its data, how like its data a sample is, number of samples",
    features=True,
    remembers="its discriminator's head",
    quick={"noise": 4, "generator_width": 8, "distil_samples": 12, "distil_batch": 4, "distil_steps": 3},
)


@method("dafkd", label="DaFKD", card=CARD)
class DaFKD(Game, Teaching, FedAvg):
    """Distil the clients' models into their average, each weighted by how like its own data a sample is.

    A client trains three networks: the classifier w_k, a discriminator theta_k^d that tells its data from generated
    samples, and the generator theta_k^g (`knowledge/game.py`). Discriminator and classifier share all layers but the
    last. The server averages models and generators, makes `distil_samples` samples, and weighs each client's answer to
    a sample by what the client's discriminator makes of it. The average learns the weighted answers
    (`knowledge/teaching.py`). A discriminator's head stays with its client until the client's next round. The state's
    `importance` holds each client's mean weight for each class in the last distillation. With
    `pseudo_samples = "public"`, rows of the public set take the place of generated samples, and there is no generator.

    The paper's ablations are `shared_layers = 0` and `dafkd-no-correlation`; `dafkd-scores`, `dafkd-predictions` and
    `dafkd-features` disclose less. With `aggregation.combine = "krum"`, clients whose models lie farthest from the
    others' neither enter the averages nor teach.

    >>> DaFKD(variant="reference").tau, DaFKD(variant="reference", tau=2.0).tau
    (20.0, 2.0)
    """

    takes = frozenset({"weights", "combine=krum"})
    keeps_cache = False  # the clients' average is only where distillation starts

    variant: Variant = option("recommended", "whose choices: ours, the paper's or its code's")
    common_head: bool = by_variant(False, "one discriminator's head for all, averaged like the model", reference=True)
    pseudo_from: Literal["new", "old"] = by_variant(
        "new",
        "make samples with the new generator, or with the one that was sent out",
        reference="old",
        only_with=GENERATED,
    )
    kd_start: Count = by_variant(1, "first round with distillation", reference=2)

    @property
    def usual_weights(self) -> Weights:
        """Eq. 4 and 6 average uniformly, the code by size."""
        return "size" if self.variant == "reference" else "uniform"

    def distils(self, round: int) -> bool:
        """Whether there is distillation in a round."""
        return self.distil_steps > 0 and round >= self.kd_start

    def shown(self, round: int) -> bool:
        """Whether heads travel to the server in a round."""
        return self.common_head or self.distils(round)

    def init(self, fed: Federation) -> Tree:
        """One model and one generator for all (line 2)."""
        head = self.example("head", fed)  # refuses what no discriminator can share, before any client has worked
        common = {"head": head} if self.common_head else {}
        generator = {"generator": self.example("generator", fed)} if self.generates else {}
        return {**super().init(fed), **generator, **common}

    def round(self, s: State, fed: Federation) -> State:
        """Send, train, average, distil (Algorithm 1, lines 3 to 14)."""
        common = {name: s[name] for name in ("model", "generator", "head") if name in s.body}
        s, replies = self.told(s, self.trusted(s, fed.ask("train", fed.sample(), **common)), fed)
        if not replies:
            return s.next()
        weights = self.aggregation.bounded([r["n"] for r in replies], self.discrepancies(s, replies))
        new = {name: average([r[name] for r in replies], weights, old) for name, old in common.items()}  # Eq. 4 and 6
        if self.distils(fed.round):
            source = new if self.pseudo_from == "new" else s
            new |= self.distil(fed, replies, new["model"], source["generator"] if self.generates else None)
        return s.next(**new, **self.cached(s, replies))

    def trusted(self, s: State, replies: Sequence[Message]) -> Sequence[Message]:
        """All replies, or those of the clients that Krum keeps."""
        if self.aggregation.combine != "krum":
            return replies
        return [replies[place] for place in nearest(models(replies), s["model"], self.aggregation.trim)]

    def distil(
        self, fed: Federation, replies: Sequence[Message], model: Tree, generator: Tree | None
    ) -> dict[str, Any]:
        """The average after learning from the clients, and how much each of them counted (lines 11 to 13)."""
        number = int(torch.randint(2**62, (), generator=fed.rng("pseudo set")))
        made_from: dict[str, Any] = {} if generator is None else {"generator": generator, "number": number}
        x = self.pseudo_set(fed, **made_from)  # line 11
        found = self.teacher(fed, replies, x, **made_from)  # line 12
        if found is None:
            return {}
        teacher, table = found
        note_coverage(fed, teacher)
        return {"model": self.distilled(fed, model, x, teacher), **table}  # line 13

    def teacher(
        self, fed: Federation, replies: Sequence[Message], x: Tensor, **made_from: Any
    ) -> tuple[Tensor, dict[str, Any]] | None:
        """The clients' weighted answers to the samples, and the table of importance; None where none can be had."""
        two = self.two_heads(fed)
        both = [opinions(two.load(r["model"], r["head"]), x) for r in replies]
        scores, logits = (torch.stack(part) for part in zip(*both, strict=True))
        return self.weighted(fed, replies, scores, logits)  # Eq. 7

    @action(
        "model, generator if generates, head if common_head"
        " -> model, generator if generates, head if shown, n, counts if tells_counts"
    )
    def train(self, me: Client, msg: Message) -> Reply:
        """Classifier, discriminator and generator, trained together (lines 15 to 26)."""
        two = self.two_heads(me)
        two.load(msg["model"], {**me.memory, **msg.body}.get("head", two.own_weights()))  # lines 17 and 18
        made = self.play(me, two, msg.body.get("generator"))  # lines 19 to 25
        head = {"head": two.own_weights()}
        sent = {"model": params(two.net), **made, **self.about(me)}
        shown = head if self.shown(me.round) else {}
        return reply(**sent, **shown, keep=None if self.common_head else head)

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The clients' importance for each class, and the images of the averaged generator."""
        told = s.body.get("importance", "nothing was distilled yet")
        if not self.generates:
            return {"importance": told, "generated": "public rows take the place of generated samples"}
        return {"importance": told, "generated": Images(self.images, {SERVER: s["generator"]}, s["model"])}

    def images(self, me: Client, weights: Tree, stream: torch.Generator, n: int) -> Tensor:
        """Images made as those for the distillation are."""
        return self.made(me, weights, int(torch.randint(2**62, (), generator=stream)), n)
