"""Which settings are tried, in which order: all of a grid, random ones, or those that Optuna suggests.

A search yields the values to try and is sent their validation score, or None if the trial failed. It depends on the
seed and the scores only, so that a search that is resumed with the recorded scores goes on as it would have.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Generator
from typing import Any, Literal

from fedalloy.base.rng import derive
from fedalloy.errors import UsageError
from fedalloy.tuning.space import Axis, Touched

Kind = Literal["random", "grid", "optuna"]
Search = Generator[dict[str, Any], float | None, None]
REPEATS = 1000  # suggestions in a row that were tried before: then nothing is left to try


def search(kind: Kind, what: Touched, seed: int, method: str) -> Search:
    """A search over the settings of one method; one that no axis touches has a single setting."""
    if kind == "grid" or not what.axes:
        return _in_order(what)
    return _at_random(what, seed) if kind == "random" else _by_optuna(what, derive(seed, "tune", method) % 2**32)


def _in_order(what: Touched) -> Search:
    for values in what.grid():
        _ = yield values


def _at_random(what: Touched, seed: int) -> Search:
    """Different settings; the draws of an axis are the same for all methods that it touches."""
    seen: set[str] = set()
    number = repeats = 0
    while len(seen) < what.size and repeats < REPEATS:
        values = {axis.key: axis.draw(seed, number) for axis in what.axes}
        number += 1
        repeats += 1
        if repr(values) not in seen:
            seen.add(repr(values))
            repeats = 0
            yield values


def _by_optuna(what: Touched, seed: int) -> Search:
    """Optuna's tree-structured Parzen estimator; a setting that it suggests again is not tried again."""
    optuna = _optuna()
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    known: dict[str, float | None] = {}
    repeats = 0
    while len(known) < what.size and repeats < REPEATS:
        asked = study.ask()
        values = {axis.key: _suggested(asked, axis) for axis in what.axes}
        repeats += 1
        if repr(values) not in known:
            known[repr(values)] = yield values
            repeats = 0
        score = known[repr(values)]
        if score is None:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, score)


def _suggested(asked: Any, axis: Axis) -> Any:
    log = axis.scale == "log"
    if axis.scale == "list":
        return axis.values[asked.suggest_categorical(axis.key, range(len(axis.values)))]
    if axis.whole:
        return asked.suggest_int(axis.key, axis.low, axis.high, log=log)
    return axis.rounded(asked.suggest_float(axis.key, axis.low, axis.high, log=log))


def version(kind: Kind) -> str:
    """What decides which settings are suggested besides the seed and the scores."""
    return f"optuna {importlib.metadata.version('optuna')}" if kind == "optuna" and _optuna() else kind


def _optuna() -> Any:
    try:
        optuna: Any = importlib.import_module("optuna")  # an extra
    except ImportError as error:
        raise UsageError(
            'this search needs Optuna; install it with `pip install ".[optuna]"` in a clone of the repository'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
