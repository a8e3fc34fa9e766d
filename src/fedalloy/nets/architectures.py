"""Assignment of networks to clients: by id, by tier, by share of the clients, or by budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

from fedalloy.base.options import Positive, Share, option, resolve
from fedalloy.errors import UsageError

MOST_NAMED = 10  # tiers in an error message


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """One of several networks: a registered name with its options, and the clients that use it.

    `clients` lists ids. `tier` takes the clients of that tier (`participation.tiers`) that are not listed by id.
    `share` takes that share of all clients, in ascending id, from the remaining ones. Networks with none of these keys
    are assigned to the clients that are left then, in equal consecutive groups or by their budget.
    """

    name: str = option(MISSING, "the name of a registered network; its options follow")
    clients: tuple[int, ...] | None = option(None, "the ids of the clients that use it")
    tier: int | None = option(None, "clients with this number in `participation.tiers` use it, unless listed by id")
    share: Share | None = option(None, "the share of all clients that use it, in ascending id, from the remaining ones")
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> list[str]:
        """The keys that determine its clients."""
        return [key for key in ("clients", "tier", "share") if getattr(self, key) is not None]

    def __post_init__(self) -> None:
        resolve(self, "models")
        if len(self.given) > 1:
            raise UsageError(f"models: '{self.name}' has both {' and '.join(self.given)}; write one of them, or none")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The clients' limits in parameters or FLOPs per sample; each client gets the largest network within its limit.

    `limits` has one number per client, or fewer, which apply to equal consecutive groups in ascending id.
    """

    unit: Literal["parameters", "flops"] = option("parameters", "what is limited: parameters, or FLOPs per sample")
    limits: tuple[Positive, ...] = option(MISSING, "one limit per client, or fewer for equal consecutive groups")

    def __post_init__(self) -> None:
        resolve(self, "budget")
        if not self.limits:
            raise UsageError("budget.limits is empty; write one limit per client, or fewer")


def assign(
    parts: Sequence[ModelPart], clients: int, budget: Budget | None, costs: Sequence[float], tiers: Sequence[int] = ()
) -> list[int]:
    """Return the index of each client's network; `costs` are the networks' sizes in the budget's unit.

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
    chosen = _by_tier(parts, tiers) | _by_id(parts, clients)  # an id takes precedence over a tier
    chosen |= _by_share(parts, clients, [client for client in range(clients) if client not in chosen])
    left = [client for client in range(clients) if client not in chosen]
    free = [number for number, part in enumerate(parts) if not part.given]
    if left and not free:
        raise UsageError(
            f"models: client {left[0]} has no network; list it under clients, raise a share, or add a table for the "
            "remaining clients"
        )
    if budget is None:
        chosen |= {client: free[place * len(free) // len(left)] for place, client in enumerate(left)}
    elif not left:
        raise UsageError("budget: [[models]] already assigns a network to every client; remove [budget]")
    else:
        chosen |= {client: _affordable(client, clients, parts, free, budget, costs) for client in left}
    _refuse_unused(parts, {*chosen.values(), *(free if budget is not None else ())})
    return [chosen[client] for client in range(clients)]


def _by_id(parts: Sequence[ModelPart], clients: int) -> dict[int, int]:
    chosen: dict[int, int] = {}
    for number, part in enumerate(parts):
        for client in part.clients or ():
            if not 0 <= client < clients:
                raise UsageError(f"models: there is no client {client}; ids are 0 to {clients - 1}")
            if client in chosen:
                raise UsageError(f"models: client {client} has two networks; list it once")
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
            raise UsageError(f"models: no client has tier {part.tier}; participation.tiers has {named}")
        if members[0] in chosen:
            raise UsageError(f"models: tier {part.tier} has two networks; list it once")
        chosen |= dict.fromkeys(members, number)
    return chosen


def _by_share(parts: Sequence[ModelPart], clients: int, left: Sequence[int]) -> dict[int, int]:
    total = sum(part.share for part in parts if part.share is not None)
    if total > 1 + 1e-9:  # three thirds may be slightly more than 1
        raise UsageError(f"models: the shares add up to {total:.6g}; they must add up to at most 1")
    chosen: dict[int, int] = {}
    before = 0.0
    for number, part in enumerate(parts):
        if part.share is not None:
            # The ends are rounded, not the lengths, so that shares that add up to 1 cover all clients.
            wanted = round((before + part.share) * clients) - round(before * clients)
            chosen |= dict.fromkeys(left[len(chosen) : len(chosen) + wanted], number)
            before += part.share
    return chosen


def _refuse_unused(parts: Sequence[ModelPart], used: Collection[int]) -> None:
    for number, part in enumerate(parts):
        if number not in used:
            raise UsageError(
                f"models: no client uses table {number + 1}, '{part.name}'; list clients for it, raise its share, or "
                "remove it"
            )


def _affordable(
    client: int, clients: int, parts: Sequence[ModelPart], free: Sequence[int], budget: Budget, costs: Sequence[float]
) -> int:
    if len(budget.limits) > clients:
        raise UsageError(f"budget.limits has {len(budget.limits)} numbers, but there are {clients} clients")
    limit = budget.limits[client * len(budget.limits) // clients]
    within = [number for number in free if costs[number] <= limit]
    if not within:
        cheapest = min(free, key=lambda number: costs[number])
        raise UsageError(
            f"budget: client {client} can afford {limit:,.0f} {budget.unit}, but the smallest network, "
            f"'{parts[cheapest].name}', has {costs[cheapest]:,.0f}; add a smaller one under [[models]]"
        )
    return max(within, key=lambda number: costs[number])
