"""KnFu: fuse, for each client, the answers of the clients that resemble it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError
from fedalloy.federation.core import Card, Federation, Message, State, method
from fedalloy.knowledge.fusion import Direction, divergences, epd, fuse, fusion_weights
from fedalloy.methods.soft_labels import SoftLabels


@method(
    "knfu",
    label="KnFu",
    card=Card(
        paper="Seyedmohammadi, Atapour, Abouei and Mohammadi, arXiv 2403.11892, 2024",
        up="soft labels",
        down="soft labels, each client's own",
        distils="a mixture of all active clients' answers, its own for each client, on public samples",
        leaves_client="probabilities for public samples",
        public=True,
        clients_hold_public=True,
        any_network=True,
        remembers="its model",
        private=True,
        private_except={"ce_on": "local"},
    ),
)
class KnFu(SoftLabels):
    """Each client learns most from itself, and from the others the more, the more alike their answers are on average.

    A round (Algorithm 1), for the clients n that take part:

    1. Local training: cross-entropy on the client's own data (Eq. 3).
    2. Extraction: F_n, the probabilities of its model for the public samples (Eq. 4).
    3. Fusion, on the server: p_n, the mean of the rows of F_n (EPD, Eq. 5); d_nm = KL(p_n || p_m) (Eq. 6);
       w_nm = 1 / d_nm^2 (Eq. 7) and w_nn = beta max_m w_nm (Eq. 8); F_n^agg = sum_m w_nm F_m / sum_m w_nm (Eq. 9).
    4. Fine-tuning on the public samples: CE(labels) + lambda^2 KL(F_n^agg || own answer) (Eq. 10).

    Readings chosen, since there is no code of the authors:

    * As printed, the maximum of Eq. 8 is over all clients, n too, whose distance is zero and whose weight is infinite;
      here it is over the others. A squared distance below 1e-12 counts as that, so that twins can be weighed, and so
      does an entry of the EPD in a logarithm.
    * KL(a, b) is KL(a || b) in Eq. 6; `direction = "other_to_own"` turns it round. In Eqs. 2 and 10, where the student
      comes first, it is the usual KL(teacher || student).
    * lambda is a temperature below Eq. 2 and a weight below Eq. 10, and its value is not given: `temperature` is 1, and
      `kd_weight` its square unless given.
    * Eq. 10 takes its labels from the public samples, the text below it from the client's own: `ce_on`.
    * The paper fine-tunes on all of its public set in every round, hence no `samples`; the epochs are not given,
      `tune_epochs = 1` is as many as its local training has.
    * The optimiser begins anew in both phases of every round. With Adam and few samples that is after a few steps.

    With a very large beta every client distils itself; with beta = 0 it learns from others only. There is no `combine`
    to bound one client, since beta does: who pretends to be like another holds at most 1 / (beta + 1) of its mixture,
    c such clients together c / (beta + c); with a small beta that is nearly all of it. The server keeps
    the last round's `weights`, clients by clients, and `epd`, clients by outputs, with zeros for those who were absent.

    >>> KnFu(direction="other_to_own").beta
    10.0
    """

    beta: float = 10.0
    direction: Direction = "own_to_other"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < math.inf:
            raise UsageError(
                f"knfu.beta = {self.beta} must be a number and not negative; 0 leaves out a client's own answers"
            )

    def fuse(self, replies: Sequence[Message], fed: Federation) -> tuple[Mapping[int, Tree], Mapping[str, Any]]:
        """Each client's own mixture of the answers that came (Eqs. 5 to 9)."""
        soft = torch.stack([r["soft"] for r in replies])
        p = epd(soft)  # Eq. 5
        weights = fusion_weights(divergences(p, self.direction), self.beta)  # Eqs. 6 to 8
        fused = fuse(weights, soft).to(soft.dtype)  # Eq. 9
        here, clients = torch.tensor([r.client for r in replies]), len(fed.sizes)
        notes = {"weights": p.new_zeros(clients, clients), "epd": p.new_zeros(clients, p.shape[1])}
        notes["weights"][here[:, None], here] = weights
        notes["epd"][here] = p
        return {r.client: {"soft": answers} for r, answers in zip(replies, fused, strict=True)}, notes

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """Which client learned from which in the last round, and what each predicted."""
        answered = "weights" in s.body
        return {"fusion": s["weights"], "epd": s["epd"]} if answered else {"fusion": "no client has answered yet"}
