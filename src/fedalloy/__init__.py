"""fedalloy: federated learning when clients differ, by knowledge distillation and fusion.

Everything below is imported when it is first used, so that `import fedalloy` itself costs nothing.

>>> import fedalloy
>>> fedalloy.FedProx(mu=0.1).mu
0.1
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedalloy.check.method import check_method
    from fedalloy.config.experiment import experiment
    from fedalloy.config.sections import Choice, Experiment
    from fedalloy.data import Dataset, Samples, dataset, from_arrays, from_torch, load_data
    from fedalloy.errors import CheckpointError, DataError, FedalloyError, ObserverWarning, StorageError, UsageError
    from fedalloy.federation.core import Card, Client, Federation, Message, Method, Reply, State, action, method, reply
    from fedalloy.methods import *  # noqa: F403  # every method of the library, as `__getattr__` finds them
    from fedalloy.nets.models import FeatureNet, model
    from fedalloy.report.export import export_model
    from fedalloy.report.html import write_report
    from fedalloy.report.results import Results, load
    from fedalloy.report.trackers import MLflow, TensorBoard, Trackio, WandB
    from fedalloy.run.comparison import compare
    from fedalloy.run.cost import Cost, cost_of
    from fedalloy.run.observer import Observer
    from fedalloy.run.runner import resume, simulate
    from fedalloy.storage.results import Run
    from fedalloy.storage.rows import rows
    from fedalloy.tuning.tune import tune

__version__ = "0.1.0"

_HOMES = {
    "fedalloy.check.method": ("check_method",),
    "fedalloy.run.comparison": ("compare",),
    "fedalloy.config.experiment": ("experiment",),
    "fedalloy.config.sections": ("Choice", "Experiment"),
    "fedalloy.federation.core": (
        *("Card", "Client", "Federation", "Message", "Method", "Reply", "State"),
        *("action", "method", "reply"),
    ),
    "fedalloy.data": ("Dataset", "Samples", "dataset", "from_arrays", "from_torch", "load_data"),
    "fedalloy.errors": (
        *("CheckpointError", "DataError", "FedalloyError", "ObserverWarning"),
        *("StorageError", "UsageError"),
    ),
    "fedalloy.report.export": ("export_model",),
    "fedalloy.nets.models": ("FeatureNet", "model"),
    "fedalloy.report.html": ("write_report",),
    "fedalloy.report.results": ("Results", "load"),
    "fedalloy.report.trackers": ("MLflow", "TensorBoard", "Trackio", "WandB"),
    "fedalloy.storage.results": ("Run",),
    "fedalloy.storage.rows": ("rows",),
    "fedalloy.run.cost": ("Cost", "cost_of"),
    "fedalloy.run.observer": ("Observer",),
    "fedalloy.run.runner": ("resume", "simulate"),
    "fedalloy.tuning.tune": ("tune",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Card",
    "CheckpointError",
    "Choice",
    "Client",
    "Cost",
    "DataError",
    "Dataset",
    "Experiment",
    "FeatureNet",
    "FedalloyError",
    "Federation",
    "MLflow",
    "Message",
    "Method",
    "Observer",
    "ObserverWarning",
    "Reply",
    "Results",
    "Run",
    "Samples",
    "State",
    "StorageError",
    "TensorBoard",
    "Trackio",
    "UsageError",
    "WandB",
    "__version__",
    "action",
    "check_method",
    "compare",
    "cost_of",
    "dataset",
    "experiment",
    "export_model",
    "from_arrays",
    "from_torch",
    "load",
    "load_data",
    "method",
    "model",
    "reply",
    "resume",
    "rows",
    "simulate",
    "tune",
    "write_report",
]


def __getattr__(name: str) -> Any:
    # Not the names of our own modules and not private ones: a class of the library's methods, or nothing.
    home = _HOME.get(name, "fedalloy.methods" if name[:1].isupper() else None)
    if home is not None and hasattr(module := importlib.import_module(home), name):
        return getattr(module, name)
    raise AttributeError(f"module 'fedalloy' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
