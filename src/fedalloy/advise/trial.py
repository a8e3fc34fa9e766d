"""The short comparison behind the advice: which methods fit, and as many of them as a stated time allows.

Training alone and FedAvg are always compared. The others are tried for one round each, in the order of how much they
do beside training. Those that are quick are compared in full at once, the others then, the fastest first, while there
is time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedalloy.config.build import Built
from fedalloy.config.sections import Choice, Experiment
from fedalloy.errors import FedalloyError, UsageError
from fedalloy.federation.core import methods as registered
from fedalloy.run.comparison import Begin, examined, refuse, run_methods
from fedalloy.run.runner import Watch
from fedalloy.storage.results import Run

ALONE, PLAIN = "local-converged", "fedavg"
ALWAYS = (ALONE, PLAIN)
TRIAL_ROUNDS = 1
TRIALS = 0.3  # of the time may be spent on finding out how long methods take
QUICK = 0.1  # of the time that is left: a method that takes less is compared at once
OVERRUN = 3  # times what its first round promised may a method take before it is given up
LEAST = 2.0  # seconds that it may take in any case


@dataclass(frozen=True)
class Trial:
    """The runs that were made, and why the other methods were not run."""

    runs: tuple[Run, ...]
    built: Built  # of the first seed
    unfit: Mapping[str, str]  # method -> why it cannot be used here
    slow: Mapping[str, float]  # method -> seconds that its comparison would take; 0 if even that was not measured
    seconds: float


def candidates(exp: Experiment) -> dict[str, Choice]:
    """The methods that might be used, by their cards: those of the experiment, or else all but bounds and controls.

    >>> from fedalloy.config.experiment import experiment
    >>> found = candidates(experiment({}))
    >>> "fedavg" in found, "knfu" in found, "centralised" in found, "fedkf-server" in found
    (True, True, False, False)
    """
    own = {exp.method.name: exp.method, **exp.methods}
    if exp.methods:
        return {name: own.get(name, Choice(name=name)) for name in dict.fromkeys([*ALWAYS, *exp.methods])}
    usual = [name for name, method in registered.items() if method.card.role == "method"]
    ranked = sorted(usual, key=lambda name: (registered[name].card.distils != "no", registered[name].card.features))
    return {name: own.get(name, Choice(name=name)) for name in dict.fromkeys([*ALWAYS, *ranked])}


def tried(
    exp: Experiment,
    seeds: Sequence[int],
    seconds: float,
    folder: Path,
    begin: Begin | None = None,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Trial:
    """Compare as many fitting methods as `seconds` allow, with every seed; finished runs in the folder are reused."""
    start = clock()
    found = candidates(exp)
    refused, built = examined(exp, found, seeds, folder)
    everyone = [key for key in refused if key not in found]
    refuse({key: refused[key] for key in everyone})
    fit = {key: choice for key, choice in found.items() if key not in refused}
    if not fit.keys() - {ALONE}:
        why = next(iter(refused.values()), None)
        raise UsageError(f"no method can be used with this data: {why}") from why
    first = [key for key in ALWAYS if key in fit]
    runs = run_methods(exp, {key: fit[key] for key in first}, built, folder=folder, begin=begin)
    left, spent = seconds - (clock() - start), 0.0
    slow: dict[str, float] = {}
    waiting: dict[str, float] = {}

    def compared(key: str, cost: float) -> list[Run]:
        """A method's runs; none if they take far longer than its first round promised, or longer than there is."""
        begun = clock()
        until = min(start + seconds, begun + max(OVERRUN * cost, LEAST))
        try:
            return run_methods(exp, {key: fit[key]}, built, folder=folder, begin=_limited(begin, until, clock))
        except _LateError:
            slow[key] = max(cost, clock() - begun)
            return []

    for key, choice in fit.items():
        if key in first:
            continue
        if spent > left * TRIALS:
            slow[key] = 0.0
            continue
        began = clock()
        cost = _cost(exp, key, choice, built, clock)
        spent += clock() - began
        if cost is None:
            slow[key] = 0.0
        elif cost <= QUICK * (seconds - (clock() - start)):  # before a slow method's trial takes the time
            runs += compared(key, cost)
        else:
            waiting[key] = cost
    for key, cost in sorted(waiting.items(), key=lambda pair: pair[1]):
        if clock() - start + cost > seconds:
            slow[key] = cost
            continue
        runs += compared(key, cost)
    for sentence in sorted({f"{key}: {slow[key]:.0f} s" for key in slow if slow[key]}):
        say(f"not compared, since it would take too long: {sentence} or more")
    unfit = {key: str(error) for key, error in refused.items() if key in found}
    return Trial(tuple(runs), built[seeds[0]], unfit, slow, clock() - start)


class _LateError(Exception):
    """A comparison takes too long."""


def _limited(begin: Begin | None, until: float, clock: Callable[[], float]) -> Begin:
    """Watch runs like `begin`, and end them after the first round that ends later than `until`."""

    def begun(label: str, seed: int) -> Watch:
        watch = begin(label, seed) if begin is not None else lambda _: None

        def after(record: Mapping[str, Any]) -> None:
            watch(record)
            if clock() > until:
                raise _LateError

        return after

    return begun


def _cost(
    exp: Experiment, key: str, choice: Choice, built: Mapping[int, Built], clock: Callable[[], float]
) -> float | None:
    """How long a method's comparison with all seeds would take, from one round; None if that round fails."""
    seed, one = next(iter(built.items()))
    short = replace(exp, rounds=TRIAL_ROUNDS, evaluate_every=TRIAL_ROUNDS, engine="serial", workers=None)
    began = clock()
    try:
        (run,) = run_methods(short, {key: choice}, {seed: one})
    except FedalloyError:
        return None
    per_round = [float(record["seconds"]["total"]) for record in run.rounds]
    setup = max(0.0, clock() - began - sum(per_round))
    return len(built) * (setup + exp.rounds * max(per_round))
