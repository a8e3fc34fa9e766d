"""FedDisco: clients whose labels are far from uniform weigh less in the average."""

from __future__ import annotations

from fedalloy.aggregation.rule import Weights
from fedalloy.federation.core import Card, method
from fedalloy.methods.fedavg import FedAvg


@method(
    "feddisco",
    label="FedDisco",
    card=Card(paper="Ye et al., ICML 2023", leaves_client="model weights, number of samples of each class"),
)
class FedDisco(FedAvg):
    """FedAvg with weights by size that are lowered by how far a client's labels are from uniform.

    It is FedAvg with `aggregation.weights = "disco"`, which serves under every method that averages; the options are
    those of [aggregation], `disco_a` to `disco_normalise`. a = b = 0 is FedAvg. b draws the weights together even where
    all labels are uniform: of 10 active clients, b = 0.1 makes half of the mass uniform. The paper's formula does not
    divide the discrepancies by their sum; the authors' code does so for `kl`, and has its results from it, but not for
    the other metrics: a and b mean something else in each. To follow the code there, write `disco_normalise = false`.

    If a and d leave no weight above zero, the sizes are the weights (the authors' code fails). The view `oca` weighs
    all clients seen so far in the same way, by the counts they sent. Counts are sent with every reply, 8 bytes a class;
    by accounts of the paper, whose full text was not at hand, a client sends its discrepancy alone, and once. The
    weights are the same, but here the server learns each client's whole class histogram.

    >>> FedDisco().aggregation.weights, FedDisco().aggregation.disco_a
    ('disco', 0.5)
    """

    takes = frozenset({"weights=disco", "clip"})

    @property
    def usual_weights(self) -> Weights:
        """FedDisco's."""
        return "disco"
