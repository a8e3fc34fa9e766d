"""Who takes part in a round: a policy that depends only on (seed, round), so every method gets the same clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedalloy.base import rng
from fedalloy.base.options import Fraction, Positive, Share, option, resolve
from fedalloy.errors import UsageError

Policy = Literal["full", "fraction", "bernoulli", "weakest", "trace", "legacy"]
USES_FRACTION = ("fraction", "bernoulli", "weakest", "legacy")  # the others refuse it


@dataclass(frozen=True, kw_only=True)
class Participation:
    """A policy, and what may happen to the clients that it chose.

    * `full`: all clients. `fraction`: max(1, round(fraction * K)) without replacement. `bernoulli`: each with
      probability `fraction`, at least one. `weakest`: the weakest clients never take part; round(fraction * K) stay.
      `trace`: the given list of ids for each round, restarted from the beginning at its end. `legacy`: successive
      draws of numpy's old generator, as in FedKF's code.
    * `tiers`: how strong each client is, for `weakest`; an experiment can also assign networks by tier.
    * `deadline`: a client whose local work would take longer than this many seconds never answers; its time is
      FLOPs / speed. `late_drop`: a client trains, but its reply is lost with this probability.
    * `stragglers`: this share of a round's clients, but never all of them, has time for some of the epochs only: a
      number drawn uniformly from 1 to all epochs. Methods do not ask these clients, except for FedProx.

    >>> Participation(policy="weakest", fraction=0.4).active(sizes=[1] * 20, round=1, seed=0)
    [12, 13, 14, 15, 16, 17, 18, 19]
    """

    policy: Policy = option("full", "who is asked in a round")
    fraction: Share = option(1.0, "the share of the clients, or the probability of each")
    late_drop: Fraction = option(0.0, "the probability that a client trains but its reply is lost")
    stragglers: Fraction = option(
        0.0, "the share of a round's clients that are slow: each has time for 1 to `epochs` epochs"
    )
    deadline: Positive | None = option(None, "seconds; a client whose local work would take longer is not asked")
    speeds: Sequence[Positive] | None = option(None, "FLOP/s of each client; goes with `deadline`")
    tiers: Sequence[int] | None = option(None, "how strong each client is, for `weakest` and for `tier` in [[models]]")
    trace: Sequence[Sequence[int]] | None = option(None, "the ids of each round, for `trace`; repeated from its start")

    def __post_init__(self) -> None:
        resolve(self, "participation")
        if (self.deadline is None) != (self.speeds is None):
            raise UsageError("participation.deadline (seconds) and participation.speeds (FLOP/s a client) go together")
        if (self.policy == "trace") != bool(self.trace):
            raise UsageError("participation.policy = 'trace' and a non-empty participation.trace go together")
        if self.fraction != 1 and self.policy not in USES_FRACTION:
            raise UsageError(
                f'participation.fraction has no effect with policy = "{self.policy}"; write participation.policy = '
                '"fraction", or leave fraction at 1.0'
            )

    def check(self, clients: int) -> None:
        """Refuse lists that do not match the number of clients."""
        for name, values in (("speeds", self.speeds), ("tiers", self.tiers)):
            if values is not None and len(values) != clients:
                raise UsageError(f"participation.{name} has {len(values)} entries for {clients} clients; give one each")
        for ids in self.trace or []:
            wrong = [i for i in ids if not 0 <= i < clients]
            if wrong:
                raise UsageError(f"participation.trace names client {wrong[0]}; ids run from 0 to {clients - 1}")

    @property
    def asks_all(self) -> bool:
        """Whether every client is asked in every round."""
        return self.policy == "full" and self.deadline is None and not self.stragglers

    def active(
        self,
        *,
        sizes: Sequence[float],
        round: int,
        seed: int,
        flops: Sequence[float] | None = None,
        by_size: bool = False,
    ) -> list[int]:
        """Ids of the clients that are asked in this round, ascending; `flops` is each client's local work."""
        chosen = self._chosen(sizes, round, seed, by_size)
        if self.deadline is None or self.speeds is None or flops is None:
            return chosen
        return [i for i in chosen if flops[i] / self.speeds[i] <= self.deadline]

    def late(self, active: Sequence[int], *, epochs: int, round: int, seed: int) -> dict[int, int]:
        """The stragglers among a round's clients, in ascending id, each with the epochs that it has time for.

        >>> Participation(stragglers=0.5).late([2, 3, 5, 7], epochs=20, round=1, seed=0)
        {5: 5, 7: 19}
        """
        count = min(int(np.floor(self.stragglers * len(active) + 0.5)), len(active) - 1)
        if count < 1:
            return {}
        drawn = rng.numpy_generator(seed, "stragglers", round).choice(active, count, replace=False)
        return {
            k: int(rng.numpy_generator(seed, "epochs", round, k).integers(1, epochs + 1))
            for k in sorted(drawn.tolist())
        }

    def lost(self, *, client: int, round: int, seed: int) -> bool:
        """Whether this client's reply is lost after it has trained."""
        return self.late_drop > 0 and rng.numpy_generator(seed, "late_drop", round, client).random() < self.late_drop

    def _chosen(self, sizes: Sequence[float], round: int, seed: int, by_size: bool) -> list[int]:
        clients = len(sizes)
        count = max(1, int(np.floor(self.fraction * clients + 0.5)))
        stream = rng.numpy_generator(seed, "sampling", round)
        if self.policy == "fraction":
            odds = np.asarray(sizes, dtype=float) / sum(sizes) if by_size else None
            return sorted(stream.choice(clients, count, replace=False, p=odds).tolist())
        if self.policy == "bernoulli":
            drawn = np.flatnonzero(stream.random(clients) < self.fraction)
            return drawn.tolist() if len(drawn) else [int(stream.integers(clients))]
        if self.policy == "weakest":
            strength = self.tiers if self.tiers is not None else [0] * clients
            strongest_first = sorted(range(clients), key=lambda i: (strength[i], i), reverse=True)
            return sorted(strongest_first[:count])
        if self.policy == "trace":
            assert self.trace is not None
            return sorted(set(self.trace[(round - 1) % len(self.trace)]))
        if self.policy == "legacy":
            return _legacy_draw(seed, clients, count, round)
        return list(range(clients))


def _legacy_draw(seed: int, clients: int, count: int, round: int) -> list[int]:
    """The draw of this round: a function of (seed, round), although the old generator itself has state."""
    stream = np.random.RandomState(seed)
    for _ in range(round):
        drawn = stream.choice(clients, count, replace=False)
    return sorted(drawn.tolist())
