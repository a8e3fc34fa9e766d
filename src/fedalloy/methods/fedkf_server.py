"""FedKF with one generator on the server: the design that FedKF's paper rejects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fedalloy.base.options import Number, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Client, Federation, Message, Reply, State, action, method, reply
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.coverage import note_coverage
from fedalloy.knowledge.data_free import judged
from fedalloy.methods.fedkf import QUICK, FedKF
from fedalloy.train.beside import normal
from fedalloy.train.fit import fit, frozen, load, params


@method(
    "fedkf-server",
    label="FedKF (server's generator)",
    card=Card(
        role="control",
        brief="FedKF, its generator at the server",
        paper="Zhou et al., IoT-J 2023 (rejected there)",
        distils="the average of all clients' last models, on the server's images, into each client's model",
        features=True,
        quick={**QUICK, "server_steps": 2},
    ),
)
class FedKFServer(FedKF):
    """FedKF whose server trains one generator against the teacher and sends it to the clients.

    Clients use the generator as it is, in eval mode, and remember nothing. The rest is FedKF's.

    >>> FedKFServer(variant="reference").adversarial
    False
    """

    server_steps: Number = option(0, "steps of the generator in a round; 0: as many as the busiest client takes")
    adversarial: Literal[False] = option(False, "always false: on the server there is no student to work against")
    order: Literal["generator_first"] = option("generator_first", "always so: the server trains before it sends")

    def init(self, fed: Federation) -> Tree:
        """FedKF's start, and the generator's."""
        return {**super().init(fed), "generator": params(self.new_generator(fed)), "moments": {}}

    def round(self, s: State, fed: Federation) -> State:
        """Train the generator, then let the clients train with it."""
        if not self.distils(fed.round):
            return super().round(s, fed)
        teacher = self.teacher(s)
        made = self.trained_generator(s, fed, teacher.get("teacher", s["model"]))
        sent = {"model": s["model"], **teacher, "generator": made["generator"]}
        return self.averaged(s, fed.ask("train", fed.sample(), **sent), fed, **made)

    def trained_generator(self, s: State, fed: Federation, weights: Tree) -> dict[str, Any]:
        """The generator and its moments, some steps of L_G (Eq. 5) further."""
        teacher = frozen(load(fed.build(), weights))
        generator = self.resumed(fed, s.body)
        noise, device, seen = fed.rng("generator"), next(teacher.parameters()).device, list[Tensor]()
        for _ in range(self.server_steps or max((fed.steps(k) for k in fed.sample()), default=0)):
            images = generator(normal(self.generated(fed.work.batch, fed.work), self.noise, noise, device))
            generator.step(self.generator_loss(batch := judged(teacher, images)))
            seen.append(batch.answers.detach())
        if seen:
            note_coverage(fed, torch.cat(seen))
        return self.kept(generator)

    @action("model, teacher? if distils, generator if distils -> model, n, counts if tells_counts")
    def train(self, me: Client, msg: Message) -> Reply:
        """Local SGD on L = L_CE + gamma L_KL (Eq. 8), with images of the server's generator."""
        if not self.distils(me.round):
            return super().train(me, msg)
        student, teacher = me.net(msg["model"]), frozen(me.net(msg["teacher" if "teacher" in msg else "model"]))
        generator = frozen(load(self.new_generator(me), msg["generator"]))
        noise, dropout = me.rng("generator"), me.rng("dropout/generated")

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = normal(self.generated(len(x), me.work), self.noise, noise, x.device)
            batch = judged(teacher, generator(z))
            return self.fusion_loss(me, student, batch, dropout, x, y)

        fit(student, me, loss)
        return reply(model=params(student), **self.about(me))

    def example(self, name: str, party: Client | Federation) -> Any:
        """A generator is like the one that all begin with."""
        return params(self.new_generator(party)) if name == "generator" else super().example(name, party)

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """The images of the server's generator."""
        return super().pictures(s, {SERVER: {"generator": s["generator"]}})
