"""Which client has which network: by its id, its tier, its share of the clients, or what it can afford."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

from fedalloy.base.options import Positive, Share, option, resolve
from fedalloy.errors import UsageError

MOST_NAMED = 10  # tiers in a sentence


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """One of several networks: a registered name with its options, and who has it.

    `clients` names ids; `tier` takes the clients of that tier (`participation.tiers`) that nobody has named; `share`
    takes that share of all clients, in ascending id, from those that are left. Networks with none of these are dealt to
    the clients that are left then, in equal runs or by their budget.
    """

    name: str = option(MISSING, "a registered network; its options follow")
    clients: tuple[int, ...] | None = option(None, "the ids of the clients that have it")
    tier: int | None = option(None, "the clients with this number in `participation.tiers` have it, unless named")
    share: Share | None = option(None, "the share of all clients that have it, in ascending id, from those left")
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> list[str]:
        """The keys that say who has it."""
        return [key for key in ("clients", "tier", "share") if getattr(self, key) is not None]

    def __post_init__(self) -> None:
        resolve(self, "models")
        if len(self.given) > 1:
            raise UsageError(f"models: '{self.name}' has both {' and '.join(self.given)}; give one of them, or none")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What clients can afford: parameters, or FLOPs for one sample; each takes the largest network within its limit.

    `limits` holds one number for each client, or a few that are dealt in equal runs, in ascending id.
    """

    unit: Literal["parameters", "flops"] = option("parameters", "what is limited: parameters, or FLOPs of a sample")
    limits: tuple[Positive, ...] = option(MISSING, "one limit for each client, or a few that are dealt in equal runs")

    def __post_init__(self) -> None:
        resolve(self, "budget")
        if not self.limits:
            raise UsageError("budget.limits is empty; give one limit for each client, or a few")


def assign(
    parts: Sequence[ModelPart], clients: int, budget: Budget | None, costs: Sequence[float], tiers: Sequence[int] = ()
) -> list[int]:
    """The number of each client's network; `costs` are the networks' sizes in the budget's unit, `tiers` the clients'.

    >>> small, large = ModelPart(name="mlp"), ModelPart(name="wrn")
    >>> assign([small, large], 4, None, [])
    [0, 0, 1, 1]
    >>> assign([small, large], 3, Budget(limits=(50.0, 100.0, 70.0)), [10, 80])
    [0, 1, 0]
    >>> assign([ModelPart(name="mlp", clients=(2,)), ModelPart(name="wrn", share=0.75)], 4, None, [])
    [1, 1, 0, 1]
    >>> assign([ModelPart(name="mlp", tier=0), large], 4, None, [], tiers=[0, 1, 0, 2])
    [0, 1, 0, 1]
    """
    chosen = _by_tier(parts, tiers) | _by_id(parts, clients)  # a client's name goes before its tier
    chosen |= _by_share(parts, clients, [client for client in range(clients) if client not in chosen])
    left = [client for client in range(clients) if client not in chosen]
    free = [number for number, part in enumerate(parts) if not part.given]
    if left and not free:
        raise UsageError(
            f"models: client {left[0]} has no network; name it under clients, raise a share, or add a table that takes "
            "the rest"
        )
    if budget is None:
        chosen |= {client: free[place * len(free) // len(left)] for place, client in enumerate(left)}
    elif not left:
        raise UsageError("budget: nobody is left for [budget]: all have their networks by [[models]]; leave it out")
    else:
        chosen |= {client: _affordable(client, clients, parts, free, budget, costs) for client in left}
    _refuse_unused(parts, {*chosen.values(), *(free if budget is not None else ())})
    return [chosen[client] for client in range(clients)]


def _by_id(parts: Sequence[ModelPart], clients: int) -> dict[int, int]:
    chosen: dict[int, int] = {}
    for number, part in enumerate(parts):
        for client in part.clients or ():
            if not 0 <= client < clients:
                raise UsageError(f"models: there is no client {client}; ids run from 0 to {clients - 1}")
            if client in chosen:
                raise UsageError(f"models: client {client} is given two networks; name it once")
            chosen[client] = number
    return chosen


def _by_tier(parts: Sequence[ModelPart], tiers: Sequence[int]) -> dict[int, int]:
    chosen: dict[int, int] = {}
    for number, part in enumerate(parts):
        if part.tier is None:
            continue
        members = [client for client, tier in enumerate(tiers) if tier == part.tier]
        if not members:
            known = [str(tier) for tier in sorted(set(tiers))]
            named = ", ".join(known[:MOST_NAMED] + (["..."] if len(known) > MOST_NAMED else []))
            raise UsageError(f"models: nobody is of tier {part.tier}; participation.tiers has {named}")
        if members[0] in chosen:
            raise UsageError(f"models: tier {part.tier} is given two networks; name it once")
        chosen |= dict.fromkeys(members, number)
    return chosen


def _by_share(parts: Sequence[ModelPart], clients: int, left: Sequence[int]) -> dict[int, int]:
    total = sum(part.share for part in parts if part.share is not None)
    if total > 1 + 1e-9:  # three thirds may come out a little above
        raise UsageError(f"models: the shares add up to {total:.6g}; they may add up to 1")
    chosen: dict[int, int] = {}
    before = 0.0
    for number, part in enumerate(parts):
        if part.share is not None:
            # The ends are rounded, not the lengths, so that shares of 1 together leave nobody out.
            wanted = round((before + part.share) * clients) - round(before * clients)
            chosen |= dict.fromkeys(left[len(chosen) : len(chosen) + wanted], number)
            before += part.share
    return chosen


def _refuse_unused(parts: Sequence[ModelPart], used: Collection[int]) -> None:
    for number, part in enumerate(parts):
        if number not in used:
            raise UsageError(
                f"models: no client has table {number + 1}, '{part.name}'; name clients for it or raise its share, or "
                "leave it out"
            )


def _affordable(
    client: int, clients: int, parts: Sequence[ModelPart], free: Sequence[int], budget: Budget, costs: Sequence[float]
) -> int:
    if len(budget.limits) > clients:
        raise UsageError(f"budget.limits has {len(budget.limits)} numbers for {clients} clients")
    limit = budget.limits[client * len(budget.limits) // clients]
    within = [number for number in free if costs[number] <= limit]
    if not within:
        cheapest = min(free, key=lambda number: costs[number])
        raise UsageError(
            f"budget: client {client} can afford {limit:,.0f} {budget.unit}, but the smallest network, "
            f"'{parts[cheapest].name}', has {costs[cheapest]:,.0f}; add a smaller one under [[models]]"
        )
    return max(within, key=lambda number: costs[number])
