"""KnFu: fuse, for each client, the answers of the clients that resemble it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedalloy.base.options import NotNegative, option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Federation, Message, State, method
from fedalloy.knowledge.fusion import Direction, divergences_of, epd, fuse, fusion_weights
from fedalloy.methods.soft_labels import CARD, SoftLabels


@method(
    "knfu",
    label="KnFu",
    card=replace(
        CARD,
        brief="each client mixes what suits it",
        paper="Seyedmohammadi, Atapour, Abouei and Mohammadi, arXiv 2403.11892, 2024",
        distils="a mixture of all active clients' answers, its own for each client, on public samples",
    ),
)
class KnFu(SoftLabels):
    """Each client learns most from itself, and more from clients with similar average answers than from others.

    A round (Algorithm 1), for the clients n that take part:

    1. Local training: cross-entropy on the client's own data (Eq. 3).
    2. Extraction: F_n, the probabilities of its model for the public samples (Eq. 4).
    3. Fusion, on the server: the mean answer p_n of each client (EPD, Eq. 5), the distances between them (Eq. 6), and
       a mixture F_n^agg of all answers for each client (Eqs. 7 to 9).
    4. Fine-tuning on the public samples: CE(labels) + lambda^2 KL(F_n^agg || own answer) (Eq. 10).

    An entry of p_n below 1e-12 counts as 1e-12 in the logarithms of Eq. 6, and so does a squared distance in Eq. 7.
    The server keeps the last round's `weights` (clients by clients) and `epd` (clients by outputs), with zeros for
    clients that were absent.

    The paper is about classes. For other tasks Eq. 6 is ours: the KL of each label's mean probability, summed over the
    labels; and for numbers, that of normal distributions with the mean and variance of a client's predictions, summed
    over the numbers, which does not depend on their units. `epd` is then not kept.

    >>> KnFu(direction="other_to_own").beta
    10.0
    """

    beta: NotNegative = option(10.0, "how much a client's own answers count beside the nearest client's; 0: not at all")
    direction: Direction = option("own_to_other", "order of the two distributions in Eq. 6")

    def fuse(self, replies: Sequence[Message], fed: Federation) -> tuple[Mapping[int, Tree], Mapping[str, Any]]:
        """Each client's own mixture of the answers that came."""
        soft = torch.stack([r["soft"] for r in replies])
        p = epd(soft)  # Eq. 5
        d = divergences_of(fed.task, soft, self.direction)  # Eq. 6
        weights = fusion_weights(d, self.beta)  # Eqs. 7 and 8
        fused = fuse(weights, soft).to(soft.dtype)  # Eq. 9
        here, clients = torch.tensor([r.client for r in replies]), len(fed.sizes)
        notes = {"weights": p.new_zeros(clients, clients)}
        notes["weights"][here[:, None], here] = weights
        if fed.task == "classes":
            notes["epd"] = p.new_zeros(clients, p.shape[1])
            notes["epd"][here] = p
        return {r.client: {"soft": answers} for r, answers in zip(replies, fused, strict=True)}, notes

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """Which client learned from which in the last round, and what each predicted."""
        if "weights" not in s.body:
            return {"fusion": "no client has answered yet"}
        return {"fusion": s["weights"], "epd": s.body.get("epd", "clients did not predict classes")}
