"""Which samples a server can judge its students by: a share of the public set, or rows of the task itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from fedalloy.base import rng
from fedalloy.base.options import Count, Fraction, option
from fedalloy.data.samples import Samples
from fedalloy.errors import UsageError
from fedalloy.federation.core import Federation, Method

EVERY, PATIENCE = 100, 1_000  # as in FedDF's commands


@dataclass(frozen=True, kw_only=True)
class Validated(Method):
    """A method whose server may keep the best student of a distillation instead of the last."""

    validation_on: Literal["public", "task"] = option(
        "public", "validate on a share of the public set, or on the server's rows of the task (`public.task_samples`)"
    )
    validation: Fraction = option(
        0.0, "share of a labelled public set to choose the best student by", only_with=("validation_on", "public")
    )
    check_every: Count = option(EVERY, "steps between two validations")
    patience: Count = option(PATIENCE, "steps without a better validation after which a student stops")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual in (("check_every", EVERY), ("patience", PATIENCE)):
            if not self.validation and self.validation_on == "public" and getattr(self, name) != usual:
                raise UsageError(f"{self.name}.{name} has no effect without validation; leave it out")

    def parts(self, fed: Federation) -> tuple[Samples, Samples | None]:
        """The public inputs to distil on, and samples with labels to validate on, the same in every round."""
        assert fed.public is not None
        public, samples = fed.public, fed.public.samples
        if self.validation_on == "task":
            if public.task is None:
                raise UsageError(
                    f"{self.name}.validation_on = 'task' needs rows of the task; write public.task_samples = 1000"
                )
            return samples, public.task
        if not self.validation:
            return samples, None
        if not public.labelled:
            raise UsageError(
                f"{self.name}.validation needs labels; write public.labelled = true, or leave validation out"
            )
        if not public.shared_labels:
            raise UsageError(
                f"{self.name}.validation = {self.validation} would judge by the public labels, which are of another "
                f"data set; write {self.name}.validation_on = 'task' and public.task_samples, or leave validation out"
            )
        size = round(self.validation * len(samples))
        if not 0 < size < len(samples):
            raise UsageError(
                f"{self.name}.validation = {self.validation} leaves nothing of {len(samples)} public samples"
            )
        shuffled = torch.randperm(len(samples), generator=rng.generator(fed.seed, self.name, "validation"))
        return samples.subset(shuffled[size:]), samples.subset(shuffled[:size])
