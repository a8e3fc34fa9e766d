"""A run opened from its folder: its experiment, its method and, on request, its last checkpoint and its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedalloy.base.tree import Tree
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import recorded
from fedalloy.config.methods import make_method
from fedalloy.config.sections import Experiment
from fedalloy.data.samples import Dataset
from fedalloy.errors import DataError
from fedalloy.federation.core import Method, Network, State
from fedalloy.storage.store import Say, Store, described


@dataclass(frozen=True)
class Opened:
    """A run as its folder holds it. Nothing is written, and nothing but `run.json` is read until it is needed."""

    folder: Path
    meta: Mapping[str, Any]
    experiment: Experiment
    store: Store

    @cached_property
    def method(self) -> Method:
        """The run's method with its hyper-parameters."""
        return make_method(self.experiment)

    def last(self) -> tuple[State, Mapping[int, Tree]]:
        """The state and the clients' memories after the last completed round; it is an error if there is none."""
        saved = self.store.restore()
        if saved is None:
            raise DataError(f"the run in '{self.folder}' has not completed a round")
        return saved

    def build(self, dataset: Dataset | None = None, network: Network | None = None) -> Built:
        """The run's data and setting; pass the data set or network again if the run had its own."""
        return build(self.experiment, dataset, network)

    def build_same(self, dataset: Dataset | None = None, network: Network | None = None) -> Built:
        """The same, but it is an error if the data has changed since the run."""
        built = self.build(dataset, network)
        if built.digests["data"] != self.meta["digests"].get("data"):
            raise DataError(f"the data set '{built.dataset.name}' is not the one that the run in '{self.folder}' used")
        return built


def open_run(folder: str | Path, say: Say = lambda _: None) -> Opened:
    """Open the run in a folder; `say` is told if `run.json` is damaged and its copy is used.

    >>> open_run("no-such-run")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: no-such-run/run.json cannot be read (No such file or directory); name a folder ...
    """
    meta = described(folder, say)
    return Opened(Path(folder), meta, recorded(meta), Store(Path(folder)))
