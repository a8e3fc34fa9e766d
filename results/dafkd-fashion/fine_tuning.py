"""What FedFTG's fine-tuning does to the average on the test set, and what it learns from.

Goes on with a finished run for some rounds, without writing anything:

    python results/dafkd-fashion/fine_tuning.py RUN 3
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from finished import accuracy, go_on, opened
from torch import Tensor

from fedalloy.base.tree import Tree
from fedalloy.federation.core import Federation, Message, State
from fedalloy.methods import FedFTG
from fedalloy.train.fit import load, predict


def main(folder: Path, rounds: int) -> None:
    """Print, for each round, accuracies before and after fine-tuning, and how its images are seen."""
    exp, engine, state, test = opened(folder)
    right = partial(accuracy, test=test)

    seen: list[Tensor] = []  # whether the clients see an image as its label, of each step of the generator
    agreed: list[Tensor] = []  # whether the average does as the clients do, of each of its own steps

    class Watched(FedFTG):
        def step(self, s: State, mean: Tree, replies: Sequence[Message], fed: Federation) -> dict[str, Any]:
            seen.clear()
            agreed.clear()
            done = super().step(s, mean, replies, fed)
            before, after = (predict(load(fed.build(), w), test) for w in (mean, done["model"]))
            clients = torch.stack([predict(load(fed.build(), r["model"]), test) for r in replies])
            print(f"round {fed.round}: average {right(before):.1f}, fine-tuned {right(after):.1f}; ", end="")
            print(f"mean of the clients' logits {right(clients.mean(0)):.1f}, ", end="")
            print(f"of their probabilities {right(clients.softmax(2).mean(0)):.1f}")
            for name, out in (("average", before), ("fine-tuned", after)):
                print(f"  classes that the {name} sees: {out.argmax(1).bincount(minlength=10).tolist()}")
            known, first, last = (
                100 * float(part.double().mean()) for part in (torch.cat(seen), agreed[0], agreed[-1])
            )
            print(f"  images: the weighted clients see {known:.0f} % as their labels, and the average agrees ", end="")
            print(f"with them: {first:.0f} % at its first step, {last:.0f} % at its last")
            return done

        def hardness(self, answers: Tensor, said: Tensor, y: Tensor, a: Tensor) -> Tensor:
            seen.append((a[:, :, None] * answers.softmax(2)).sum(0).argmax(1) == y)
            return super().hardness(answers, said, y, a)

        def student_loss(self, answers: Tensor, said: Tensor, a: Tensor) -> Tensor:
            mixed = (a[:, :, None] * answers.softmax(2)).sum(0)
            agreed.append(mixed.argmax(1) == said.argmax(1))
            return super().student_loss(answers, said, a)

    go_on(Watched(**exp.method.options), engine, state, rounds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
