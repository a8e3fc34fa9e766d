"""Observers are told what happens in a run, such as to hand its numbers to a tracker, and cannot change it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from fedalloy.base.plugins import named
from fedalloy.errors import ObserverWarning, UsageError
from fedalloy.storage.results import Run


@runtime_checkable
class Observer(Protocol):
    """Is told of a run's beginning, its rounds and its end; a subclass overrides what it wants to know.

    An observer has no influence on a run: it gets copies, its time is not counted as the run's, and an exception in it
    becomes one `ObserverWarning` that names it, after which it is told nothing more about this run. (To end a run after
    a round, raise an exception in `watch`.) Of several runs, as in `compare`, it is told one after the other.

    >>> from fedalloy import simulate
    >>> class Best(Observer):
    ...     def begin(self, run):
    ...         self.amp = max((r["views"]["aca"]["amp"] for r in run.rounds), default=0.0)
    ...     def round(self, record):
    ...         self.amp = max(self.amp, record["views"]["aca"]["amp"])
    >>> best = Best()
    >>> run = simulate({"data": "tiny", "model": "mlp", "rounds": 2}, observers=[best])
    >>> best.amp >= run.at("aca", "amp")
    True
    """

    def begin(self, run: Run) -> None:
        """A run begins; if it is resumed, `run.rounds` has the rounds that were completed before."""

    def round(self, record: Mapping[str, Any]) -> None:
        """A round is complete and, if the run has a folder, saved; `record` is its line in `rounds.jsonl`."""

    def end(self, run: Run, error: BaseException | None) -> None:
        """The run ends with all its rounds, or because of an error or an interruption."""


def refuse_others(observers: Sequence[Observer]) -> None:
    """Refuse what cannot be told anything, before a run begins."""
    given = observers if isinstance(observers, Sequence) else [observers]
    for one in given:
        if isinstance(one, type) or not isinstance(one, Observer):
            what = f"the class {one.__name__}" if isinstance(one, type) else f"{one!r:.80}"
            raise UsageError(f"observers has {what}, which has no begin, round and end; give a list of objects that do")
    if given is not observers:
        raise UsageError("observers must be a list; write observers=[...]")


@contextmanager
def attended(
    observers: Sequence[Observer],
    meta: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    folder: str | Path | None,
) -> Iterator[Audience]:
    """Tell observers of a run's beginning, with these records, and of its end, with what these have become."""
    audience = Audience(observers)

    def run() -> Run:
        return deepcopy(Run(meta, tuple(records), None if folder is None else Path(folder)))

    audience.tell("begin", run)
    try:
        yield audience
    except BaseException as error:
        audience.tell("end", run, error)
        raise
    audience.tell("end", run, None)


class Audience:
    """The observers of one run, without those that have failed."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._left = list(observers)

    def round(self, record: Mapping[str, Any]) -> None:
        """Tell all that a round is complete."""
        self.tell("round", lambda: deepcopy(record))

    def tell(self, what: Literal["begin", "round", "end"], told: Callable[[], Any], *more: Any) -> None:
        """Tell all, each with a copy of its own."""
        for one in list(self._left):
            try:
                getattr(one, what)(told(), *more)
            except (Exception, SystemExit) as error:  # but not Ctrl-C, which is for the run
                self._left = [other for other in self._left if other is not one]
                said = f"the observer {type(one).__name__} failed in {what}, and is told nothing more about this run"
                with suppress(ObserverWarning):  # where warnings are errors
                    warnings.warn(f"{said}: {named(error)}", ObserverWarning, stacklevel=2)
