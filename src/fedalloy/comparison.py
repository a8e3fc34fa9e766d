"""Compare methods: the same setting, the same clients in every round, several seeds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedalloy.build import Built, build
from fedalloy.config import Choice, Experiment, build_method, experiment
from fedalloy.core import hyper_parameters
from fedalloy.data.samples import Dataset
from fedalloy.errors import UsageError
from fedalloy.results import Run, read
from fedalloy.runner import Say, Watch, one_thread, resume, simulate

Begin = Callable[[str, int], Watch]


def compare(
    exp: Experiment | Mapping[str, Any],
    choices: Mapping[str, Choice] | None = None,
    *,
    seeds: Sequence[int] | None = None,
    folder: str | Path | None = None,
    dataset: Dataset | None = None,
    network: Any = None,
    begin: Begin | None = None,
    say: Say = lambda _: None,
) -> list[Run]:
    """Run several methods on one experiment; with a folder, finished runs are kept and unfinished ones go on.

    The methods are those under the experiment's `methods`, unless `choices` names others by their label; `begin` is
    called with the label and seed of each run and returns what watches its rounds.

    >>> exp = {"data": "tiny", "model": "mlp", "rounds": 1, "methods": {"local": {}, "fedprox": {"mu": 0.1}}}
    >>> [run.label for run in compare(exp)]
    ['Local', 'FedProx']
    """
    exp = exp if isinstance(exp, Experiment) else experiment(exp)
    chosen = dict(choices or exp.methods or {exp.method.name: exp.method})
    labels = {key: build_method(choice).label if key == choice.name else key for key, choice in chosen.items()}
    runs = []
    for seed in seeds if seeds is not None else [exp.seed]:
        one = dataclasses.replace(exp, seed=seed, methods={})
        with one_thread():
            built = build(one, dataset, network)
            for choice in chosen.values():
                built.setting.check(build_method(choice))
        for key, choice in chosen.items():
            watch = begin(labels[key], seed) if begin is not None else None
            place = Path(folder) / f"{slug(key)}-seed{seed}" if folder is not None else None
            this = dataclasses.replace(one, method=choice)
            runs.append(_run(this, labels[key], place, built, dataset, network, watch, say))
    return runs


def _run(
    exp: Experiment,
    label: str,
    place: Path | None,
    built: Built,
    dataset: Dataset | None,
    network: Any,
    watch: Watch | None,
    say: Say,
) -> Run:
    if place is None or not (place / "run.json").exists():
        return simulate(exp, place, label=label, built=built, watch=watch)
    _refuse_other(exp, place)
    return resume(place, rounds=exp.rounds, dataset=dataset, network=network, watch=watch, say=say)


def _refuse_other(exp: Experiment, place: Path) -> None:
    there = dict(read(place).meta["experiment"])
    method = build_method(exp.method)
    wanted = dataclasses.replace(exp, method=Choice(name=method.name, options=hyper_parameters(method))).to_dict()
    for key in sorted({*there, *wanted} - {"rounds"}):
        if there.get(key) != wanted.get(key):
            raise UsageError(f"'{place}' holds a run with another {key}; choose another folder")


def slug(label: str) -> str:
    """A label as a folder's name.

    >>> slug("FedProx mu=1")
    'fedprox-mu-1'
    """
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "run"
