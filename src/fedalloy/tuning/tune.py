"""Tune methods: the same budget for each, judged on validation shares; then the chosen settings are tested."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedalloy.base.files import as_json, locked, make_folder, read_file, write_atomically
from fedalloy.base.text import listed
from fedalloy.config.build import Built, Shelf
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import for_method, make_method
from fedalloy.config.overrides import at
from fedalloy.config.sections import Choice, Experiment
from fedalloy.data.samples import Dataset
from fedalloy.errors import CheckpointError, DataError, UsageError
from fedalloy.federation.core import Network
from fedalloy.federation.quorum import QuorumError
from fedalloy.federation.setting import Site
from fedalloy.run.comparison import Begin, chosen, examined, label_of, refuse, run_methods, trained
from fedalloy.run.runner import refuse_unfit, versions
from fedalloy.storage.differences import differing
from fedalloy.storage.results import Selection, check_word
from fedalloy.storage.store import FREE, Say
from fedalloy.train.fit import one_thread
from fedalloy.tuning.result import Tuned
from fedalloy.tuning.search import Kind, search, version
from fedalloy.tuning.space import Space, Touched, space_of, touched
from fedalloy.tuning.trials import Budget, Trial, best_of, budget_of, cpu_seconds, judged, record, recorded

VALIDATION = 0.2  # the share that is set aside if the experiment does not say
FRESH = 3  # seeds of the test, if none are given
PLAN = "tuning.json"
AS_IT_IS = ("rounds", "methods")  # keys that are free in a run, but not in a tuning


@dataclass(frozen=True)
class Plan:
    """What is tuned and how: all that decides which settings are tried and which is chosen."""

    exp: Experiment
    methods: Mapping[str, Touched]
    space: Space
    budget: Budget
    search: Kind
    select: Selection
    seeds: Sequence[int]  # of the test

    def told(self, built: Built) -> dict[str, Any]:
        """The plan as it is recorded, with what its data is and what computes it."""
        told = {key: value for key, value in self.exp.to_dict().items() if key not in FREE - set(AS_IT_IS)}
        choices = replace(self.exp, methods={key: one.choice for key, one in self.methods.items()}).to_dict()["methods"]
        return {
            "experiment": {**told, "methods": choices},
            "space": {axis.key: str(axis) for axis in self.space},
            "budget": str(self.budget),
            "search": version(self.search),
            "select": self.select,
            "digests": dict(built.digests),
            "versions": versions(private=self.exp.privacy is not None),
        }


def tune(
    exp: Experiment | Mapping[str, Any],
    space: Mapping[str, Any],
    budget: int | str,
    methods: Sequence[str] | None = None,
    *,
    search: Kind = "random",
    seeds: Sequence[int] | None = None,
    select: Selection = "last",
    folder: str | Path | None = None,
    dataset: Dataset | None = None,
    network: Network | None = None,
    begin: Begin | None = None,
    say: Say = lambda _: None,
) -> Tuned:
    """Tune the methods of an experiment with the same budget each, and compare the chosen settings on the test.

    `space` maps keys to lists of values or to ranges such as `"0.001..1"`; `budget` is a number of runs for each
    method, or `"600s"`, CPU seconds. Trials have the experiment's seed and see no test sample; `seeds` are those of the
    test, by default the three that follow. With a folder, trials and runs that are there are not repeated.

    >>> exp = {"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 2, "alpha": 5.0}}
    >>> tuned = tune(exp, {"training.lr": [0.0001, 0.1]}, budget=2, seeds=[1])
    >>> tuned.best["fedavg"].values, len(tuned.trials)
    ({'training.lr': 0.1}, 2)
    """
    exp, notes = _validated(exp)
    choices = chosen(exp, methods)
    axes = space_of(space)
    seeds = [exp.seed + 1 + i for i in range(FRESH)] if seeds is None else list(seeds)
    plan = Plan(exp, touched(exp, choices, axes), axes, budget_of(budget), search, select, seeds)
    _check_plan(plan)
    shelf = Shelf()
    found, built = examined(exp, choices, [exp.seed, *seeds], None, dataset, network, shelf)
    refuse(found)
    own = blind(built.pop(exp.seed))
    _check_settings(plan, own)
    del built  # the splits of the test are made again when it is their turn
    notes += _notes(plan, own)
    for sentence in notes:
        say(sentence)
    place = None if folder is None else Path(folder)
    if place is not None:
        make_folder(place)
    with locked(place / "tuning.lock") if place is not None else nullcontext():
        old = [] if place is None else _begun(place, plan, own)
        trials = {key: _tuned(plan, key, own, place, old, say) for key in choices}
        best = {key: _chosen(key, some) for key, some in trials.items()}
        settled = {key: plan.methods[key].at(trial.values) for key, trial in best.items()}
        runs_in = None if place is None else place / "runs"
        found, built = examined(exp, settled, seeds, runs_in, dataset, network, shelf)
        refuse(found)
        runs = run_methods(exp, settled, built, folder=runs_in, begin=begin, say=say)
    return Tuned(
        trials=tuple(trial for some in trials.values() for trial in some),
        best=best,
        runs=tuple(runs),
        labels={key: label_of(key, choice) for key, choice in choices.items()},
        budget=plan.budget,
        select=select,
        experiment=replace(exp, methods=settled),
        notes=(*notes, *_endings(plan, trials)),
    )


def _validated(exp: Experiment | Mapping[str, Any]) -> tuple[Experiment, list[str]]:
    """The experiment with a validation share by which runs stop, and with one split for all seeds; and what changed."""
    given = exp.partition.validation or None if isinstance(exp, Experiment) else at(exp, "partition.validation")
    if given is not None and not given:
        raise UsageError(
            f"partition.validation = {given!r}, but methods are tuned on validation data; write partition.validation = "
            f"{VALIDATION}, or leave it out"
        )
    exp = exp if isinstance(exp, Experiment) else experiment(exp)
    notes = []
    if given is None:
        exp = replace(exp, partition=replace(exp.partition, validation=VALIDATION))
        notes.append(
            f"Validation: {VALIDATION:.0%} of each client's training rows, since the experiment does not say; write "
            f"partition.validation to change it."
        )
    stop = exp.stop
    if (stop.target is not None or stop.patience is not None) and stop.metric != "validation":
        exp = replace(exp, stop=replace(stop, metric="validation"))
        notes.append(f"Runs stop by validation data, not by stop.metric = '{stop.metric}', a score of the test.")
    if exp.partition.test == "local" and exp.partition.seed is None:  # another split would test on rows of the trials
        exp = replace(exp, partition=replace(exp.partition, seed=exp.seed))
    return exp, notes


def blind(built: Built) -> Built:
    """What was built, without any test sample: what is evaluated in it is the validation share alone."""
    sites = built.setting.sites
    if not any(site.validation for site in sites):
        raise UsageError(
            "no client has a validation sample, because partition.validation leaves too few rows; write a larger "
            "partition.validation, or use fewer clients"
        )
    nothing = sites[0].train.subset(torch.empty(0, dtype=torch.int64))
    kept = [Site(site.train, nothing, site.validation) for site in sites]
    return replace(built, setting=replace(built.setting, sites=kept, holdout=None))


def _check_plan(plan: Plan) -> None:
    """Refuse a plan that would choose by the test, has no fresh seed, or does not fit into its budget."""
    exp = plan.exp
    check_word(plan.select, "--select")
    if plan.select in ("best by amp", "best by test"):
        raise UsageError(
            f"--select '{plan.select}' would choose by the test; write 'last', 'best by validation' or a mean"
        )
    if exp.engine == "flower":
        raise UsageError("engine = 'flower' evaluates the test at its clients; write engine = 'auto' to tune")
    if not plan.seeds or exp.seed in plan.seeds or len(set(plan.seeds)) < len(plan.seeds):
        raise UsageError(
            f"the seeds of the test are {listed(list(map(str, plan.seeds))) or 'missing'}; write different ones, and "
            f"not seed = {exp.seed}, with which methods are tuned"
        )
    version(plan.search)
    if plan.search != "grid":
        return
    for key, one in plan.methods.items():
        cells = math.prod(len(axis.points()) for axis in one.axes)
        if plan.budget.unit == "runs" and cells > plan.budget.amount:
            raise UsageError(
                f"the grid of {key} has {cells} cells, but the budget is {plan.budget}; write --budget {cells} or "
                "fewer values, or search at random"
            )


def _check_settings(plan: Plan, built: Built) -> None:
    """Refuse values that a method does not take, before any trial: the ends of each range, and all values of lists."""
    for one in plan.methods.values():
        for axis in one.axes:
            usual = {other.key: other.ends[0] for other in one.axes}
            for value in axis.ends:
                _refuse_setting(plan.exp, one.at({**usual, axis.key: value}), built)


def _refuse_setting(exp: Experiment, choice: Choice, built: Built) -> None:
    own = for_method(exp, choice)
    with one_thread():
        refuse_unfit(make_method(exp, choice), trained(built, own).setting)


def _begun(folder: Path, plan: Plan, built: Built) -> list[Trial]:
    """The trials that a tuning with this plan has recorded in a folder; a folder with another one is refused."""
    file, told = folder / PLAN, json.loads(as_json(plan.told(built)))
    if not file.exists():
        if any(folder.glob("*.json*")):
            raise UsageError(f"'{folder}' holds something else; choose another folder")
        write_atomically(file, as_json(told))
        return []
    try:
        old = json.loads(read_file(file))
        changed = differing([old, told], ())
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{file} does not describe a tuning; restore it, or choose another folder") from error
    if changed:
        lines = [f"  {key}: {was!s:.60} -> {now!s:.60}" for key, (was, now) in sorted(changed.items())[:10]]
        raise CheckpointError("\n".join([f"'{folder}' holds another tuning; choose another folder:", *lines]))
    return recorded(folder)


def _tuned(plan: Plan, key: str, built: Built, folder: Path | None, old: Sequence[Trial], say: Say) -> list[Trial]:
    """All trials of a method; those that are recorded are not run again."""
    known = {(trial.method, trial.number): trial for trial in reversed(old)}
    proposals = search(plan.search, plan.methods[key], plan.exp.seed, key)
    trials: list[Trial] = []
    values = next(proposals, None)
    while values is not None and plan.budget.allows(trials):
        number = len(trials) + 1
        trial = known.get((key, number))
        if trial is None:
            trial = _tried(plan, key, number, values, built)
            if folder is not None:
                record(folder, trial)
            say(f"{trial.method}, trial {number}: {trial.setting}: {trial.outcome}")
        elif dict(trial.values) != values:
            raise DataError(
                f"'{folder}': trial {number} of {key} is recorded with {trial.setting}, but is another one; restore "
                "the file, or choose another folder"
            )
        trials.append(trial)
        try:
            values = proposals.send(trial.score)
        except StopIteration:
            values = None
    return trials


def _tried(plan: Plan, key: str, number: int, values: Mapping[str, Any], built: Built) -> Trial:
    before, exp, failed = cpu_seconds(), plan.exp, ""
    score, view, rounds = None, "", 0
    try:
        (run,) = run_methods(exp, {key: plan.methods[key].at(values)}, {exp.seed: built})
    except QuorumError as error:  # the method diverged, or too few clients answered
        failed = str(error)
    else:
        (score, view), rounds = judged(run, plan.select), len(run.rounds)
        failed = "" if score is not None else "it has no validation score"
    return Trial(
        method=key,
        number=number,
        values=values,
        score=score,
        view=view,
        rounds=rounds,
        cpu_seconds=round(cpu_seconds() - before, 3),
        seed=exp.seed,
        failed=failed,
    )


def _chosen(key: str, trials: Sequence[Trial]) -> Trial:
    found = best_of(trials)
    if found is None:
        raise UsageError(
            f"all {len(trials)} trials of {key} failed, the first with {trials[0].setting} because {trials[0].failed}; "
            "choose other ranges"
        )
    return found


def _notes(plan: Plan, built: Built) -> list[str]:
    """What holds for the whole tuning."""
    exp, rows = plan.exp, sum(len(site.validation or ()) for site in built.setting.sites)
    seeds = listed(list(map(str, plan.seeds)))
    same = (
        "the test rows of its split, which no trial has seen"
        if exp.partition.test == "local"
        else "the data's own test rows, which no trial has seen"
    )
    notes = [
        f"Each method may use {plan.budget}, {plan.search} search. Trials have seed {exp.seed} and are judged on "
        f"{rows:,} validation rows; the test is not evaluated.",
        f"The test has seed{'s' if len(plan.seeds) > 1 else ''} {seeds}, on {same}.",
    ]
    if exp.privacy is not None:
        notes.append("Each trial spends the privacy budget of a run; tables show that of the tested runs alone.")
    if idle := [key for key, one in plan.methods.items() if not one.axes]:
        notes.append(f"No range touches {listed(idle)}: one trial each.")
    return notes


def _endings(plan: Plan, trials: Mapping[str, Sequence[Trial]]) -> list[str]:
    """What is worth knowing about some methods' trials."""
    notes = []
    for key, some in trials.items():
        if plan.budget.unit == "runs" and plan.methods[key].axes and len(some) < plan.budget.amount:
            notes.append(f"{key} has {len(some)} settings, fewer than its budget.")
        if plan.budget.unit != "runs" and (spent := plan.budget.spent(some)) > plan.budget.amount:
            notes.append(f"{key} used {spent:.0f} CPU seconds, more than its budget, since trials are not cut short.")
        if failed := [trial for trial in some if trial.score is None]:
            notes.append(f"{len(failed)} of {len(some)} trials of {key} failed, the first because {failed[0].failed}.")
    return notes
