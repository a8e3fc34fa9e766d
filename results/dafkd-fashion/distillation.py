"""What DaFKD's distillation does to the average on the test set, and what its teachers are worth there.

Goes on with a finished run for some rounds, without writing anything:

    python results/dafkd-fashion/distillation.py RUN 3
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fedalloy.knowledge.importance import ensemble, importance
from finished import accuracy, go_on, opened
from torch import Tensor

from fedalloy.base.tree import Tree
from fedalloy.federation.core import Federation, Message
from fedalloy.knowledge.game import opinions
from fedalloy.methods import DaFKD
from fedalloy.train.fit import load, predict


def main(folder: Path, rounds: int) -> None:
    """Print, for each round, accuracies before and after distillation and how the pseudo set is spread over classes."""
    exp, engine, state, test = opened(folder)
    right = partial(accuracy, test=test)

    class Watched(DaFKD):
        def distil(self, fed: Federation, replies: Sequence[Message], model: Tree, generator: Tree) -> dict[str, Any]:
            done = super().distil(fed, replies, model, generator)
            two = self.two_heads(fed)
            both = [opinions(two.load(r["model"], r["head"]), test.inputs) for r in replies]
            scores, logits = (torch.stack(part) for part in zip(*both, strict=True))
            alike, domains = importance(torch.ones_like(scores)), importance(scores)
            before, after = (right(predict(load(fed.build(), w), test)) for w in (model, done["model"]))
            print(f"round {fed.round}: average {before:.1f}, distilled {after:.1f}; teachers on the test set: ", end="")
            print(f"alike {right(ensemble(alike, logits)):.1f}, weighted {right(ensemble(domains, logits)):.1f}")
            return done

        def teacher(
            self, fed: Federation, replies: Sequence[Message], x: Tensor, **made_from: Any
        ) -> tuple[Tensor, dict[str, Any]] | None:
            found = super().teacher(fed, replies, x, **made_from)
            assert found is not None
            print(f"  pseudo samples by the teacher's class: {found[0].argmax(1).bincount(minlength=10).tolist()}")
            return found

    go_on(Watched(**exp.method.options), engine, state, rounds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
