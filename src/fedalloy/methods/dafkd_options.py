"""DaFKD's options, among them all that its paper and its code do differently."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from fedalloy.errors import UsageError
from fedalloy.knowledge.importance import Ensemble, Scaling
from fedalloy.methods.fedavg import FedAvg, Weights
from fedalloy.nets.generators.adversarial import Kind


@dataclass(frozen=True)
class Switches:
    """What the paper and its code do differently, or the paper does not say."""

    weights: Weights = "uniform"
    personal_heads: bool = True
    adversarial: float = 1.0
    saturating: bool = True
    gradient_penalty: float = 0.0
    gan_window: Literal["always", "early"] = "always"
    generator_lr: float = 1e-3
    generator_weight_decay: float = 1e-3
    generator_kind: Kind = "conditional"
    pseudo_from: Literal["new", "old"] = "new"
    kd_start: int = 1
    ensemble: Ensemble = "prob"
    tau: float = 1.0
    kd_scale: Scaling = "plain"
    student_mode: Literal["train", "eval"] = "train"
    distil_steps: int = 200
    distil_optimiser: Literal["sgd", "adam"] = "sgd"
    distil_lr: float = 0.01


VARIANTS = {
    "recommended": Switches(student_mode="eval"),
    "paper": Switches(),
    "reference": Switches(
        weights="size",
        personal_heads=False,
        adversarial=2.0,  # the two means are added up, so that each term weighs twice what it does in Eq. 2
        saturating=False,
        gradient_penalty=0.3,
        gan_window="early",
        generator_lr=1e-4,
        generator_weight_decay=1e-4,
        generator_kind="unconditional",
        pseudo_from="old",
        kd_start=2,
        ensemble="logit",
        tau=20.0,
        kd_scale="tau2_mean",
        distil_steps=1600,
        distil_optimiser="adam",
        distil_lr=1e-4,
    ),
}


@dataclass(frozen=True, kw_only=True)
class DaFKDOptions(FedAvg):
    """The options of `dafkd`, whose docstring explains them; a switch that is None is the variant's.

    >>> DaFKDOptions(variant="reference").use.tau, DaFKDOptions(variant="reference", tau=2.0).use.tau
    (20.0, 2.0)
    """

    sharing: bool = True
    shared_layers: int | None = None
    correlation: bool = True
    generator_output: Literal["images", "features"] = "images"
    upload: Literal["head", "scores", "predictions"] = "head"
    max_share: float = 1.0
    noise: int = 100
    generator_width: int = 128
    distil_samples: int = 1280
    distil_batch: int = 32
    oca: bool = False  # the clients' average is only where distillation starts
    variant: Literal["recommended", "paper", "reference"] = "recommended"
    weights: Weights | None = None  # type: ignore[assignment]  # None: as the variant says
    personal_heads: bool | None = None
    adversarial: float | None = None
    saturating: bool | None = None
    gradient_penalty: float | None = None
    gan_window: Literal["always", "early"] | None = None
    generator_lr: float | None = None
    generator_weight_decay: float | None = None
    generator_kind: Kind | None = None
    pseudo_from: Literal["new", "old"] | None = None
    kd_start: int | None = None
    ensemble: Ensemble | None = None
    tau: float | None = None
    kd_scale: Scaling | None = None
    student_mode: Literal["train", "eval"] | None = None
    distil_steps: int | None = None
    distil_optimiser: Literal["sgd", "adam"] | None = None
    distil_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = ("clip",) if self.combine == "krum" else ("combine", "clip")
        self.refuse_bounds("every client's model teaches the average too; max_share or combine = 'krum' bound", *bounds)
        for name in ("generator_weight_decay", "adversarial", "gradient_penalty", "distil_steps", "shared_layers"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"dafkd.{name} = {getattr(self, name)} must not be negative")
        for name in ("generator_lr", "distil_lr", "tau"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise UsageError(f"dafkd.{name} = {value} must be positive")
        for name, least in (("noise", 1), ("generator_width", 2), ("distil_samples", 2), ("distil_batch", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"dafkd.{name} = {getattr(self, name)} must be at least {least}")
        if not 0 < self.max_share <= 1:
            raise UsageError(f"dafkd.max_share = {self.max_share} must lie in (0, 1]; 1 is no limit")
        if not self.sharing and self.shared_layers:
            raise UsageError("dafkd.sharing = false shares no layers; leave out shared_layers")
        if self.generator_output == "features" and (not self.sharing or self.shared_layers is not None):
            raise UsageError(
                "dafkd.generator_output = 'features' leaves nothing but heads to judge what was generated; "
                "leave out sharing and shared_layers"
            )
        if self.upload != "head" and not self.use.personal_heads:
            raise UsageError(f"dafkd.upload = '{self.upload}' keeps heads on clients; write personal_heads = true")
        if self.upload == "predictions" and (self.use.ensemble == "logit" or self.max_share < 1):
            raise UsageError(
                "dafkd.upload = 'predictions' sends scores times probabilities, from whose sum neither weighted logits "
                "nor a limited share can be found; write ensemble = 'prob' and max_share = 1, or upload = 'scores'"
            )

    @property
    def use(self) -> Switches:
        """The variant's switches, with those given by hand."""
        given = {f.name: getattr(self, f.name) for f in fields(Switches)}
        return replace(VARIANTS[self.variant], **{name: value for name, value in given.items() if value is not None})
