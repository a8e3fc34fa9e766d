"""Your own method: the server takes the median of the clients' models, so that no single client can dominate it.

`python examples/own_method.py` checks it and runs it. As a plug-in, every command knows it by name:
`fedalloy compare --plugin examples/own_method.py --methods local,fedavg,median`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedalloy import check_method, simulate
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
from fedalloy.train.fit import fit, params

CARD = Card(paper="Yin et al., ICML 2018", up="model", down="model", leaves_client="model weights")


@method("median", label="Median", card=CARD)
class Median(Method):
    """Take the element-wise median of the active clients' models."""

    server_lr: float = 1.0  # how far the server moves from its model to the median

    def init(self, fed: Federation) -> Tree:
        return {"model": params(fed.build())}

    def round(self, s: State, fed: Federation) -> State:
        replies = fed.ask("train", fed.sample(), model=s["model"])
        if not replies:  # every reply was lost: nothing changes
            return s.next()
        models = [r["model"] for r in replies]
        return s.next(model={name: self.move(old, [m[name] for m in models]) for name, old in s["model"].items()})

    def move(self, old: torch.Tensor, new: list[torch.Tensor]) -> torch.Tensor:
        median = torch.stack(new).median(dim=0).values
        return old + self.server_lr * (median - old) if old.is_floating_point() else median

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        net = me.net(msg["model"])
        fit(net, me, lambda x, y: me.loss(net(x), y))
        return reply(model=params(net))

    def models(self, s: State) -> Mapping[str, Tree]:
        return {"global": s["model"]}


def main() -> None:
    check_method(Median())  # raises an error for the first rule that the method breaks
    run = simulate(
        {
            "method": {"name": "median", "server_lr": 0.8},
            "data": "tiny",
            "partition": {"clients": 5, "alpha": 1.0},
            "model": "mlp",
            "training": {"lr": 0.1, "epochs": 5, "batch": 16},
            "rounds": 5,
        }
    )
    print("accuracy over all clients after each round:", run.series("global", "amp")[1].round(3).tolist())


if __name__ == "__main__":
    main()
