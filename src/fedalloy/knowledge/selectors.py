"""Selective-FD's two selectors: on which public samples a client votes, and which ensemble labels are clear."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from fedalloy.base.options import Count, Positive, Probability, by_variant, option
from fedalloy.data.public import PublicSet
from fedalloy.federation.core import Client, Method
from fedalloy.knowledge.density import REFERENCE_WIDTH, Width, select
from fedalloy.knowledge.exchange import numbered, public_part

KULSIF = ("client_selector", "kulsif")


@dataclass(frozen=True, kw_only=True)
class Selectors(Method):
    """A client-side and a server-side selector, with their options."""

    client_selector: Literal["kulsif", "label_match", "none"] = by_variant(
        "kulsif",
        "vote where a sample resembles one's own, where the model predicts its label, or everywhere",
        knfu="label_match",
    )
    q: Probability = option(
        0.25, "quantile of its own samples' density ratios that a sample must exceed", only_with=KULSIF
    )
    width: Width = option(
        REFERENCE_WIDTH, "width of the kernel: a number, or a part of the median distance", only_with=KULSIF
    )
    lam: Positive | None = option(None, "KuLSIF's regulariser; unset: 1 / sqrt(auxiliary)", only_with=KULSIF)
    auxiliary: Count = option(250, "uniform samples that the density is compared with", only_with=KULSIF)
    known_share: Annotated[float, Interval(gt=0, lt=1)] = option(
        0.05, "share of a client's samples that the ratio is fitted to; the others calibrate", only_with=KULSIF
    )
    known_least: Count = by_variant(
        50, "fewest samples that it is fitted to, up to half of a client's", only_with=KULSIF, reference=1
    )
    server_selector: Literal["l1", "entropy", "none"] = by_variant(
        "l1", "how clear ensemble labels are recognised", reference="none", knfu="entropy"
    )
    tau_server: Annotated[float, Interval(ge=0, le=2)] = option(
        2.0, "largest L1 distance from a one-hot vector; 2 keeps everything", only_with=("server_selector", "l1")
    )
    max_entropy: Probability = option(
        0.5,
        "largest entropy, as a share of the largest possible; 1 keeps everything",
        only_with=("server_selector", "entropy"),
    )

    def familiar(self, me: Client) -> Tensor:
        """Which samples of the whole public set resemble the client's own, by their density ratio (KuLSIF)."""
        return select(
            me.train.inputs,
            public_part(me, None, "all").inputs,
            me.rng("selector"),
            q=self.q,
            width=self.width,
            lam=self.lam,
            auxiliary=self.auxiliary,
            share=self.known_share,
            least=self.known_least,
        )

    def competent(self, me: Client, part: PublicSet, soft: Tensor, familiar: Tensor | None) -> Tensor:
        """mask_k: on which of a round's samples the client votes, given its answers and the samples familiar to it."""
        if familiar is not None:
            whole = public_part(me, None, "all").samples
            return familiar[numbered(whole).y[part.samples.index]]
        if self.client_selector == "label_match":
            return soft.argmax(1) == part.labels
        return torch.ones(len(soft), dtype=torch.bool, device=soft.device)

    def clear(self, q: Tensor) -> Tensor:
        """Which ensemble labels are not ambiguous."""
        if self.server_selector == "l1":
            return l1_to_one_hot(q) <= self.tau_server
        if self.server_selector == "entropy":
            guess = math.log(q.shape[1])
            entropy: Tensor = torch.special.entr(q).sum(1).clamp_max(guess)  # rounding could lift it above a guess's
            return entropy <= self.max_entropy * guess
        return torch.ones(len(q), dtype=torch.bool, device=q.device)


def l1_to_one_hot(q: Tensor) -> Tensor:
    """The L1 distance of each distribution from the nearest one-hot vector, which is 2 (1 - max_c q_c).

    >>> l1_to_one_hot(torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    tensor([0.5000, 0.0000])
    """
    return 2 * (1 - q.max(1).values)
