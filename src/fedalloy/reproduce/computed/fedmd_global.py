"""FedMD+Global's claims that are not differences of two rows: parameters, and what alpha does to a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedalloy.nets.models import create, parameter_count
from fedalloy.reproduce.catalogue import paper
from fedalloy.reproduce.computed.answer import Computed
from fedalloy.reproduce.results import Results

NONE = Computed(None, None, "No runs are recorded.")
EPOCHS = ("5", "10")


def parameters(_: Results | None) -> Computed:
    """Table 1: the clients' networks together are smaller than FedAvg's with 60 and with 100 % of the clients."""
    options = paper("fedmd-global").item("table1").options or {}
    counts = {
        (method, party): _parameters(networks)
        for (method, party, *_), networks in zip(options["rows"], options["networks"], strict=True)
    }
    ours = counts["Ours", "Total"]
    some, every = (counts["FedAvg", f"{share} total"] for share in ("60%", "100%"))
    text = (
        f"The 20 clients' networks have {_millions(ours)} million parameters, "
        f"FedAvg's {_millions(some)} million with 60 % and {_millions(every)} million with 100 % of the clients."
    )
    return Computed(None, ours < min(some, every), text)


def dropping_by_alpha(results: Results | None) -> Computed:
    """What FedAvg loses with 40 % instead of all clients, at alpha 0.1 minus at 0.5."""
    text = "What FedAvg loses with 40 % instead of all clients, at alpha 0.1 minus at 0.5"
    return _by_alpha(results, "FedAvg", ("FedAvg (100%)", "FedAvg (40%)"), text)


def lwof_gain_by_alpha(results: Results | None) -> Computed:
    """What personalised models gain by LwoF, at alpha 0.1 minus at 0.5."""
    text = "What personalised models gain by LwoF, at alpha 0.1 minus at 0.5"
    return _by_alpha(results, "Personalised", ("LwoF", "Ours"), text)


def _by_alpha(results: Results | None, label: str, methods: tuple[str, str], text: str) -> Computed:
    """A row's difference between two methods, at alpha 0.1 minus at 0.5; the least over the numbers of epochs."""
    if results is None or not results.runs:
        return NONE
    row, least = results.item.row(label), dict.fromkeys(results.seeds, float("inf"))
    signs = {(methods[0], "0.1"): 1, (methods[1], "0.1"): -1, (methods[0], "0.5"): -1, (methods[1], "0.5"): 1}
    there = False
    for epochs in EPOCHS:
        columns = {f"{method}, {alpha}, {epochs}": sign for (method, alpha), sign in signs.items()}
        if not set(columns) <= set(results.columns):
            continue
        there, found = True, {column: results.values(row, column) for column in columns}
        for seed in results.seeds:
            if lacking := [column for column in columns if seed not in found[column]]:
                return Computed(None, None, f"Missing runs with seed {seed}: {'; '.join(lacking)}.")
            difference = sum(sign * found[column][seed] for column, sign in columns.items())
            least[seed] = min(least[seed], difference)
    if not there:
        return Computed(None, None, "The four columns that it compares are not run at this scale.")
    return Computed(least, None, text)


def _parameters(networks: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> int:
    """How many parameters one network has, or several with how many `times` each is counted."""
    total = 0
    for network in [networks] if isinstance(networks, Mapping) else networks:
        with torch.device("meta"):  # nothing is drawn and no memory taken
            made = create(**{key: value for key, value in network.items() if key != "times"})
        total += int(network["times"]) * parameter_count(made)
    return total


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f}"
