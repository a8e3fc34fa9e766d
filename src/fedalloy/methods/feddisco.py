"""FedDisco: clients whose labels are far from uniform weigh less in the average."""

from __future__ import annotations

from fedalloy.aggregation.rule import Weights
from fedalloy.federation.core import Card, method
from fedalloy.methods.fedavg import FedAvg


@method(
    "feddisco",
    label="FedDisco",
    card=Card(
        brief="weights by how even labels are",
        paper="Ye et al., ICML 2023",
        leaves_client="model weights, number of samples, once how far its labels are from uniform",
    ),
)
class FedDisco(FedAvg):
    """FedAvg with weights by size that are lowered by how far a client's labels are from uniform.

    It is FedAvg with `aggregation.weights = "disco"`, which serves under every method that averages; the options are
    those of [aggregation], `disco_a` to `disco_normalise`. a = b = 0 is FedAvg. A client computes its discrepancy and
    sends it once, after its first reply. If a and d leave no weight above zero, the sizes are the weights. The view
    `oca` weighs all clients seen so far in the same way.

    >>> FedDisco().aggregation.weights, FedDisco().aggregation.disco_a
    ('disco', 0.5)
    """

    takes = frozenset({"weights=disco", "clip"})

    @property
    def usual_weights(self) -> Weights:
        """FedDisco's."""
        return "disco"
