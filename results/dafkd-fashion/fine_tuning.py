"""What FedFTG's fine-tuning does to the average on the test set, and what it learns from.

Goes on with a finished run for some rounds, without writing anything:

    python results/dafkd-fashion/fine_tuning.py RUN 3
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedalloy.build import build
from fedalloy.config import recorded
from fedalloy.core import Federation, Message, State
from fedalloy.engine.serial import Serial
from fedalloy.methods import FedFTG
from fedalloy.store import Store, described
from fedalloy.training import load, predict
from fedalloy.tree import Tree


def main(folder: Path, rounds: int) -> None:
    """Print, for each round, accuracies before and after fine-tuning, and how its images are seen."""
    exp = recorded(described(folder))
    setting = build(exp).setting
    saved = Store(folder).restore()
    test = setting.holdout
    assert test is not None
    assert saved is not None
    state, memories = saved

    def accuracy(outputs: Tensor) -> float:
        return 100 * float((outputs.argmax(1) == test.labels).double().mean())

    seen: list[Tensor] = []  # whether the clients see an image as its label, of each step of the generator
    agreed: list[Tensor] = []  # whether the average does as the clients do, of each of its own steps

    class Watched(FedFTG):
        def fine_tuned(self, s: State, average: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Tree]:
            seen.clear()
            agreed.clear()
            done = super().fine_tuned(s, average, replies, fed)
            before, after = (predict(load(fed.build(), w), test) for w in (average, done["model"]))
            clients = torch.stack([predict(load(fed.build(), r["model"]), test) for r in replies])
            print(f"round {fed.round}: average {accuracy(before):.1f}, fine-tuned {accuracy(after):.1f}; ", end="")
            print(f"mean of the clients' logits {accuracy(clients.mean(0)):.1f}, ", end="")
            print(f"of their probabilities {accuracy(clients.softmax(2).mean(0)):.1f}")
            for name, out in (("average", before), ("fine-tuned", after)):
                print(f"  classes that the {name} sees: {out.argmax(1).bincount(minlength=10).tolist()}")
            known, first, last = (
                100 * float(part.double().mean()) for part in (torch.cat(seen), agreed[0], agreed[-1])
            )
            print(f"  images: the weighted clients see {known:.0f} % as their labels, and the average agrees ", end="")
            print(f"with them: {first:.0f} % at its first step, {last:.0f} % at its last")
            return done

        def recognition(self, answers: Tensor, y: Tensor, a: Tensor) -> Tensor:
            seen.append((a[:, :, None] * answers.softmax(2)).sum(0).argmax(1) == y)
            return super().recognition(answers, y, a)

        def student_loss(self, answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
            mixed = (a[:, :, None] * answers.softmax(2)).sum(0)
            agreed.append(mixed.argmax(1) == said.argmax(1))
            return super().student_loss(answers, said, a)

    method = Watched(**exp.method.options)
    engine = Serial(setting, memories)
    for number in range(state.round + 1, state.round + 1 + rounds):
        state = method.round(state, engine.open(method, number))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
