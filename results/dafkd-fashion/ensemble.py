"""What FedDF's average, its teachers' ensemble and its student are worth on the test set, round by round.

python results/dafkd-fashion/ensemble.py experiments/dafkd-fashion.toml 14
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedalloy.base.tree import Tree
from fedalloy.config.build import build
from fedalloy.config.experiment import read
from fedalloy.config.methods import make_method
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Federation, Message, State
from fedalloy.methods.feddf import FedDF
from fedalloy.train.fit import load, predict


def main(file: str, rounds: int) -> None:
    """Run FedDF as the file has it and print five accuracies a round, then their means."""
    exp = read(file, ["method=feddf"])
    setting = build(exp).setting
    test = setting.holdout
    assert test is not None
    found: list[list[float]] = []

    def accuracy(outputs: Tensor) -> float:
        return 100 * float((outputs.argmax(1) == test.labels).double().mean())

    class Watched(FedDF):
        def distil(self, models: Mapping[str, Tree], replies: Sequence[Message], fed: Federation) -> dict[str, Tree]:
            outputs = torch.stack([predict(load(fed.build(r.client), r["model"]), test) for r in replies])
            distilled = super().distil(models, replies, fed)
            found.append(
                [
                    sum(map(accuracy, outputs)) / len(outputs),
                    accuracy(predict(load(fed.build(), models["0"]), test)),
                    accuracy(outputs.mean(0)),
                    accuracy(outputs.softmax(2).mean(0)),
                    accuracy(predict(load(fed.build(), distilled["0"]), test)),
                ]
            )
            return distilled

    feddf = make_method(exp)
    watched = Watched(**{name: getattr(feddf, name) for name in exp.method.options})
    engine = Serial(setting)
    state = State(0, watched.init(engine.open(watched, 0)))
    print("round  clients  average  mean logits  mean probabilities  student")
    for number in range(1, rounds + 1):
        state = watched.round(state, engine.open(watched, number))
        _show(number, found[-1])
    _show("mean", torch.tensor(found).mean(0).tolist())


def _show(what: object, figures: Sequence[float]) -> None:
    print(f"{what!s:>5}" + "".join(f"{x:{w}.1f}" for x, w in zip(figures, (9, 9, 13, 20, 9), strict=True)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
