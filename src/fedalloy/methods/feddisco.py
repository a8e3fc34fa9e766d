"""FedDisco: clients whose labels are far from uniform weigh less in the average."""

from __future__ import annotations

from fedalloy.federation.core import Card, method
from fedalloy.methods.fedavg import FedAvg, Weights


@method(
    "feddisco",
    label="FedDisco",
    card=Card(
        paper="Ye et al., ICML 2023",
        up="model, n, label counts",
        down="model",
        leaves_client="model weights, number of samples of each class",
    ),
)
class FedDisco(FedAvg):
    """FedAvg with weights by size that are lowered by how far a client's labels are from uniform.

    The weights are p_k ~ relu(n_k - a d_k + b), scaled to sum to 1. n_k is the client's share of the active clients'
    samples, d_k the discrepancy between its label distribution and the uniform one:

    * `disco_a`: how much the discrepancy counts. a = b = 0 is FedAvg.
    * `disco_b`: what every client has on top. It draws the weights together even where all labels are uniform: of 10
      active clients, b = 0.1 makes half of the mass uniform.
    * `disco_metric`: `kl`, that is KL(client || uniform), or the `l1`, `l2` or `cosine` distance.
    * `disco_normalise`: divide the d_k by their sum over the active clients. The paper's formula does not, the authors'
      code does so for `kl` (and has its results from it), but not for the other metrics: a and b mean something else in
      each. To follow the code there, write `disco_normalise = false`.

    If a and d leave no weight above zero, the sizes are the weights (the authors' code fails). The view `oca` weighs
    all clients seen so far in the same way, by the counts they sent. Counts are sent with every reply, 8 bytes a class;
    by accounts of the paper, whose full text was not at hand, a client sends its discrepancy alone, and once. The
    weights are the same, but here the server learns each client's whole class histogram. The target is always the
    uniform distribution.

    The same weights serve under every method that averages: write `weights = "disco"` under `fedprox` or `moon`, with
    the same options.

    >>> FedDisco().weights, FedDisco().disco_a, FedDisco().disco_b
    ('disco', 0.5, 0.1)
    """

    weights: Weights = "disco"
