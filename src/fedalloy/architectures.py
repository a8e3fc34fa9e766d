"""Which client has which network: by its id, by its share of the clients, or by what it can afford."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedalloy.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """One of several networks: a registered name with its options, and who has it.

    `clients` names ids; `share` takes that share of all clients, in ascending id, from those nobody has named. Networks
    with neither are dealt to the clients that are left, in equal runs or by their budget.
    """

    name: str
    clients: tuple[int, ...] | None = None
    share: float | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.clients is not None and self.share is not None:
            raise UsageError(f"models: '{self.name}' has both clients and share; give one of them, or neither")
        if self.share is not None and not 0 < self.share <= 1:
            raise UsageError(f"models: the share of '{self.name}' is {self.share}; it must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What clients can afford: parameters, or FLOPs for one sample; each takes the largest network within its limit.

    `limits` holds one number for each client, or a few that are dealt in equal runs, in ascending id.
    """

    unit: Literal["parameters", "flops"] = "parameters"
    limits: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits) <= 0:
            raise UsageError("budget.limits must hold positive numbers, one for each client or for each tier")


def assign(parts: Sequence[ModelPart], clients: int, budget: Budget | None, costs: Sequence[float]) -> list[int]:
    """The number of each client's network; `costs` are the networks' sizes in the budget's unit.

    >>> small, large = ModelPart(name="mlp"), ModelPart(name="wrn")
    >>> assign([small, large], 4, None, [])
    [0, 0, 1, 1]
    >>> assign([small, large], 3, Budget(limits=(50.0, 100.0, 70.0)), [10, 80])
    [0, 1, 0]
    >>> assign([ModelPart(name="mlp", clients=(2,)), ModelPart(name="wrn", share=0.75)], 4, None, [])
    [1, 1, 0, 1]
    """
    chosen: dict[int, int] = {}
    for number, part in enumerate(parts):
        for client in part.clients or ():
            if not 0 <= client < clients:
                raise UsageError(f"models: there is no client {client}; ids run from 0 to {clients - 1}")
            if client in chosen:
                raise UsageError(f"models: client {client} is given two networks; name it once")
            chosen[client] = number
    left = [client for client in range(clients) if client not in chosen]
    for number, part in enumerate(parts):
        if part.share is not None:
            wanted = round(part.share * clients)
            chosen |= dict.fromkeys(left[:wanted], number)
            left = left[wanted:]
    free = [number for number, part in enumerate(parts) if part.clients is None and part.share is None]
    if left and not free:
        raise UsageError(f"models: client {left[0]} has no network; name it under clients, or raise a share")
    if budget is None:
        chosen |= {client: free[place * len(free) // len(left)] for place, client in enumerate(left)}
    else:
        chosen |= {client: _affordable(client, clients, parts, free, budget, costs) for client in left}
    return [chosen[client] for client in range(clients)]


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
