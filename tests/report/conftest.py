"""Runs and rows made by hand, small enough to check by eye."""

from collections.abc import Callable
from typing import Any

import pytest

from fedalloy.storage.results import Run
from fedalloy.storage.rows import Row


def _row(label: str = "FedAvg", view: str = "oca", seed: int = 0, **values: Any) -> Row:
    cost = {"bytes_up": 500, "bytes_down": 1000, "bytes_total": 1500, "seconds": 3.21, "flops": None}
    measured = {"amp": 0.8, "fm": 0.002, "wlp": 0.6, "worst_client": 7, "bottom10": 0.65, "test": 0.79, "alma": 0.8}
    other = {
        "selection": "last",
        "round": 30,
        "loss": 0.5,
        "stability": None,
        "rounds": 30,
        "gap": None,
    }
    given = {**cost, **measured, **other, **values}
    return Row(label, view, seed, given.pop("selection"), given)


def _run(
    name: str = "fedavg",
    label: str | None = None,
    seed: int = 0,
    views: dict[str, list[list[float]]] | None = None,
    kinds: dict[str, int] | None = None,
    **meta: Any,
) -> Run:
    """Views hold, for each round, the accuracy of each client; every client has ten test samples."""
    views = {"oca": [[0.2, 0.4], [0.6, 0.8]]} if views is None else views
    kinds = {"weights": 100} if kinds is None else kinds
    length = max(len(rounds) for rounds in views.values()) if views else 0
    rounds = [
        {
            "round": t + 1,
            "seconds": {"client": 1.0, "server": 0.5, "evaluation": 0.25, "checkpoint": 0.25, "total": 2.0},
            "bytes": {"down": kinds, "up": {kind: n // 2 for kind, n in kinds.items()}},
            "flops": {"clients": 1.0, "server": 0.0},
            "views": {view: _metrics(accuracies[t]) for view, accuracies in views.items()},
        }
        for t in range(length)
    ]
    described = {
        "experiment": {"data": {"name": "toy"}, "method": {"name": name}, "rounds": length, "seed": seed},
        "clients": {"train_sizes": [30, 10], "test_sizes": [10, 10], "class_counts": [[30, 0], [5, 5]]},
        "partition": {"name": "dirichlet", "options": {"alpha": 0.1}},
        "model": {"name": "mlp", "parameters": 1234},
        "versions": {"fedalloy": "0.1.0", "torch": "2.13.0"},
        "status": "done",
    }
    return Run({"name": name, "label": label or name, "seed": seed, **described, **meta}, tuple(rounds))


def _metrics(accuracy: list[float]) -> dict[str, Any]:
    mean = sum(accuracy) / len(accuracy)
    return {
        "amp": mean,
        "fm": sum((a - mean) ** 2 for a in accuracy) / len(accuracy),
        "wlp": min(accuracy),
        "worst_client": accuracy.index(min(accuracy)),
        "bottom10": min(accuracy),
        "test": None,
        "validation": None,
        "alma": mean,
        "loss": 1 - mean,
        "clients": {"accuracy": accuracy, "loss": [1 - a for a in accuracy], "size": [10] * len(accuracy)},
    }


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    return _row


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    return _run


@pytest.fixture(scope="session")
def comparison() -> list[Run]:
    """Two seeds of a method with two views and of both bounds."""
    return [
        run
        for seed in (0, 1)
        for run in (
            _run("fedavg", "FedAvg", seed, {"aca": [[0.2, 0.4], [0.5, 0.7]], "oca": [[0.3, 0.5], [0.6, 0.8]]}),
            _run("local", "Local", seed, {"personal": [[0.2, 0.2], [0.3, 0.5]]}, {}),
            _run("centralised", "Centralised", seed, {"global": [[0.5, 0.5], [0.9, 0.9]]}, {"data": 10}),
        )
    ]
