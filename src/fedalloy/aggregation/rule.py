"""How much each client counts, and what limits one client's influence: [aggregation] of an experiment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Interval

from fedalloy.aggregation import robust
from fedalloy.aggregation.averaging import Discrepancy, disco_weights
from fedalloy.aggregation.robust import Combine
from fedalloy.base.options import NotNegative, Positive, Share, option, resolve
from fedalloy.base.tree import Tree
from fedalloy.errors import UsageError

Weights = Literal["size", "uniform", "disco"]
# The keys that a method's server may not use, each with its dependent keys.
GROUPS = {
    "weights": ("weights", "disco_a", "disco_b", "disco_metric", "disco_normalise"),
    "combine": ("combine", "trim"),
    "clip": ("clip",),
}


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """The server's rule for combining what clients send, the same under every method.

    `combine` takes the weighted `mean`, or a robust rule with equal weights, since clients report their own
    sizes: the coordinate-wise `median` or `trimmed` mean (Yin et al., ICML 2018), or `krum`, the mean without
    the clients that are farthest from the others (multi-Krum, Blanchard et al., NeurIPS 2017). With fewer than 1 /
    `trim` clients, no client is dropped and nothing is limited. See `fedalloy.aggregation.robust`.

    `weights = "disco"` lowers the weight of clients whose labels are far from uniform (FedDisco, Ye et al., ICML 2023):
    p_k ~ relu(n_k - a d_k + b), where n_k is a client's share of the samples and d_k its discrepancy. The paper's
    formula does not divide d_k by the sum over the active clients; the authors' code does so for `kl` only. Each
    client computes its d_k itself, and sends it once.

    A method refuses the keys that its server would not use.

    >>> Aggregation(cap=0.5).bounded([48, 1_000_000, 48])
    [0.25, 0.5, 0.25]
    """

    weights: Weights | None = option(None, "what clients are weighted by; unset: as the method's paper does")
    disco_a: NotNegative = option(
        0.5, "how much a client's label discrepancy counts", only_with=("weights", "disco", None)
    )
    disco_b: NotNegative = option(0.1, "constant that is added for every client", only_with=("weights", "disco", None))
    disco_metric: Discrepancy = option("kl", "how the discrepancy is measured", only_with=("weights", "disco", None))
    disco_normalise: bool = option(True, "divide discrepancies by their sum", only_with=("weights", "disco", None))
    combine: Combine = option("mean", "the weighted mean, or a robust rule")
    trim: Annotated[float, Interval(ge=0, lt=0.5)] = option(
        0.2, "share of clients that a robust rule drops", only_with=("combine", "trimmed", "krum")
    )
    clip: Positive | Literal["median"] | None = option(None, "longest update; longer ones are scaled down to it")
    cap: Share | None = option(None, "largest share of the weight that one client's size can give it")
    max_distance: Positive = option(
        100.0, "refuse a network farther from the one that was sent than this many times its norm"
    )

    def __post_init__(self) -> None:
        resolve(self, "aggregation")
        if self.combine != "mean" and self.weights == "disco":
            raise UsageError(
                f"aggregation.weights = 'disco' has no effect with combine = '{self.combine}', which gives "
                "all clients the same weight; leave one of the two out"
            )

    def idle(self, takes: Collection[str]) -> list[str]:
        """The given keys that a server does not use; `takes` names those that it uses, as `combine` or `combine=krum`.

        >>> Aggregation(combine="trimmed", trim=0.3).idle({"weights", "combine=krum"})
        ['combine', 'trim']
        """
        plain, found = Aggregation(), []
        for key, parts in GROUPS.items():
            untouched = getattr(self, key) == getattr(plain, key) and any(name.startswith(f"{key}=") for name in takes)
            if not untouched and not {key, f"{key}={getattr(self, key)}"} & set(takes):
                found += [part for part in parts if getattr(self, part) != getattr(plain, part)]
        return found

    def only(self, takes: Collection[str]) -> Aggregation:
        """This rule without the keys that a server does not use."""
        plain = Aggregation()
        return replace(self, **{key: getattr(plain, key) for key in self.idle(takes)})

    def weigh(self, sizes: Sequence[int], discrepancies: Sequence[float] = ()) -> list[float]:
        """The weight of each client, neither capped nor normalised; only FedDisco's weights use discrepancies."""
        if self.weights == "disco":
            return disco_weights(sizes, discrepancies, self.disco_a, self.disco_b, self.disco_normalise)
        return [1.0] * len(sizes) if self.weights == "uniform" else [float(n) for n in sizes]

    def bounded(self, sizes: Sequence[int], discrepancies: Sequence[float] = ()) -> Sequence[float]:
        """The weight of each client, none of them more than `cap` of the total."""
        return robust.bounded(self.weigh(sizes, discrepancies), self.cap)

    def clipped(self, models: Sequence[Tree], server: Tree) -> Sequence[Tree]:
        """The models, with updates longer than `clip` scaled down to it."""
        return models if self.clip is None else robust.clip_norm(models, server, self.clip)

    def combined(self, models: Sequence[Tree], weights: Sequence[float], server: Tree) -> dict[str, Any]:
        """Several models combined into one, by `combine`."""
        return robust.combined(models, weights, server, self.combine, self.trim)

    def average(
        self, models: Sequence[Tree], sizes: Sequence[int], server: Tree, discrepancies: Sequence[float] = ()
    ) -> dict[str, Any]:
        """w = sum_k (n_k / n) w_k over models in ascending client id, with all bounds."""
        return self.combined(self.clipped(models, server), self.bounded(sizes, discrepancies), server)

    @property
    def needs_every_model(self) -> bool:
        """Whether the cached models are needed one by one, because their sum is not enough."""
        return self.combine != "mean" or (self.cap is not None and self.weights != "uniform")
