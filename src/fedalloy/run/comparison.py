"""Compare methods: the same setting, the same clients in every round, several seeds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from fedalloy.config.build import Built, Shelf, build, check_names
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import cache_keys, for_method, given_keys, make_method, naming
from fedalloy.config.sections import Choice, Experiment
from fedalloy.data.samples import Dataset
from fedalloy.engine.choose import engine_for, kind_for
from fedalloy.errors import CheckpointError, DataError, FedalloyError, SecurityError, StorageError, UsageError
from fedalloy.federation.core import Method, Network
from fedalloy.federation.core import methods as registered
from fedalloy.run.cost import shock
from fedalloy.run.observer import Observer, refuse_others
from fedalloy.run.runner import Watch, completed, refuse_other, refuse_shorter, refuse_unfit, resume, settled, simulate
from fedalloy.storage.results import Run
from fedalloy.storage.store import FREE, Say, begun
from fedalloy.train.fit import one_thread

Begin = Callable[[str, int], Watch]


def compare(
    exp: Experiment | Mapping[str, object],
    methods: Sequence[str] | None = None,
    *,
    seeds: Sequence[int] | None = None,
    folder: str | Path | None = None,
    dataset: Dataset | None = None,
    network: Network | None = None,
    begin: Begin | None = None,
    observers: Sequence[Observer] = (),
    say: Say = lambda _: None,
) -> list[Run]:
    """Run several methods on one experiment; with a folder, finished runs are reused and unfinished ones resumed.

    `methods` names methods of the experiment or registered ones; by default, all of the experiment are run. `begin` is
    called with the label and seed of each run and returns the function that watches its rounds. `observers` are told of
    all runs, one after the other.

    >>> exp = {"data": "tiny", "model": "mlp", "rounds": 1, "methods": {"fedprox": {"mu": 0.1}}}
    >>> [run.label for run in compare(exp, ["local", "fedprox"])]
    ['Local, equal rounds', 'FedProx']
    """
    refuse_others(observers)
    exp = exp if isinstance(exp, Experiment) else experiment(exp)
    choices, each = chosen(exp, methods), seeds if seeds is not None else [exp.seed]
    found, built = examined(exp, choices, each, folder, dataset, network)
    refuse(found)
    return run_methods(exp, choices, built, folder=folder, begin=begin, observers=observers, say=say)


def run_methods(
    exp: Experiment,
    choices: Mapping[str, Choice],
    settings: Mapping[int, Built],
    *,
    folder: str | Path | None = None,
    begin: Begin | None = None,
    observers: Sequence[Observer] = (),
    say: Say = lambda _: None,
) -> list[Run]:
    """Run what `examined` has approved, on what it built for each seed."""
    made = {key: make_method(exp, choice) for key, choice in choices.items()}
    runs = []
    for sentence in next(iter(settings.values())).dataset.said if settings else ():
        say(sentence)
    for key, method in made.items():
        for name in sorted({"combine", "clip"} - choices[key].aggregation.keys()):
            if (asked := getattr(exp.aggregation, name)) != getattr(method.aggregation, name):
                say(f"{label_of(key, choices[key])} does not use aggregation.{name} = {asked!r}")
        unused = [name for name in given_keys(exp.cache) if name not in cache_keys(method)]
        for name in (name for name in unused if not choices[key].cache):
            say(f"{label_of(key, choices[key])} does not use cache.{name} = {getattr(exp.cache, name)!r}")
    for seed, built in settings.items():
        for keys in trained_alike(exp, choices):
            one = replace(for_method(exp, choices[keys[0]]), seed=seed)
            here = trained(built, one)
            # Finished runs are only read again, which needs no workers.
            left = max(exp.rounds - _done(_place(folder, key, seed)) for key in keys)
            methods = [made[key] for key in keys]
            with engine_for(methods, here.setting, left, exp.engine, exp.workers, say, one) as engine:
                for key, method in zip(keys, methods, strict=True):
                    label = label_of(key, choices[key])
                    watch = begin(label, seed) if begin is not None else None
                    place = _place(folder, key, seed)
                    if place is not None and begun(place):
                        run = resume(
                            place,
                            rounds=exp.rounds,
                            built=here,
                            engine=engine,
                            watch=watch,
                            observers=observers,
                            say=say,
                        )
                    else:
                        run = simulate(
                            naming(replace(for_method(exp, choices[key]), seed=seed), method),
                            place,
                            method=method,
                            label=label,
                            built=here,
                            engine=engine,
                            watch=watch,
                            observers=observers,
                        )
                    runs.append(run)
    return runs


def shocks(exp: Experiment, choices: Mapping[str, Choice], built: Built, folder: str | Path | None = None) -> list[str]:
    """A sentence on each method that will cost far more than FedAvg, of those that have rounds left to be made."""
    found = []
    for key, choice in choices.items():
        here = trained(built, for_method(exp, choice))
        left = exp.rounds - _done(_place(folder, key, exp.seed))
        prefix = f"methods.{key}." if key.isidentifier() or key == choice.name else ""
        found.append(shock(label_of(key, choice), make_method(exp, choice), here.setting, rounds=left, prefix=prefix))
    return [told for told in found if told]


def trained_alike(exp: Experiment, choices: Mapping[str, Choice]) -> list[list[str]]:
    """The keys of successive methods that train alike: an engine carries one [training] only.

    >>> exp = experiment({"methods": {"fedavg": {}, "fedprox": {}, "qffl": {"training": {"epochs": 2}}}})
    >>> trained_alike(exp, exp.methods)
    [['fedavg', 'fedprox'], ['qffl']]
    """
    groups = groupby(choices, lambda key: for_method(exp, choices[key]).training)
    return [list(keys) for _, keys in groups]


def trained(built: Built, exp: Experiment) -> Built:
    """What was built, with the local work of this experiment's method."""
    work, setting = for_method(exp).training, built.setting
    return built if setting.work == work else replace(built, setting=replace(setting, work=work))


def chosen(exp: Experiment, names: Sequence[str] | None = None) -> dict[str, Choice]:
    """The methods of a comparison by key: those named, or else all of the experiment's own.

    >>> chosen(experiment({"methods": {"mild": {"name": "fedprox", "mu": 0.001}}}), ["mild", "local"])["mild"].name
    'fedprox'
    """
    own = {exp.method.name: exp.method, **exp.methods}
    if names is None:
        return dict(exp.methods or own)
    return {name: own.get(name, Choice(name=name)) for name in names}


def key_of(exp: Experiment) -> str:
    """The key of the experiment's method under [methods]; if it is not there, its name.

    >>> methods = {"mild": {"name": "fedprox", "mu": 0.001}}
    >>> [key_of(experiment({"method": {"name": "fedprox", "mu": mu}, "methods": methods})) for mu in (0.001, 1.0)]
    ['mild', 'fedprox']
    """
    keys = [key for key, choice in exp.methods.items() if choice == exp.method]
    return keys[0] if keys and exp.method.name not in keys else exp.method.name


def label_of(key: str, choice: Choice) -> str:
    """The label of a method in tables: its own, or its key if that is not its name."""
    return registered[choice.name].label if key == choice.name else key


def computed_by(exp: Experiment, key: str, choice: Choice) -> str:
    """A text that is equal for two methods if their runs would be: the key, and the experiment that a run would record.

    In a sweep, a method that an axis does not touch computes the same in several cells.

    >>> one, other = (experiment({"methods": {"fedavg": {}, "fedprox": {"mu": mu}}}) for mu in (0.01, 1.0))
    >>> [computed_by(one, key, one.methods[key]) == computed_by(other, key, other.methods[key]) for key in one.methods]
    [True, False]
    """
    told = naming(for_method(exp, choice), make_method(exp, choice)).to_dict()
    return json.dumps([key, {name: value for name, value in told.items() if name not in FREE - {"rounds"}}])


def planned(exp: Experiment) -> list[Run]:
    """The runs that a comparison would make with the experiment's own seed, without their rounds.

    >>> [(run.label, run.meta["experiment"]["rounds"]) for run in planned(experiment({"rounds": 5}))]
    [('FedAvg', 5)]
    """
    return [
        Run(
            {
                "name": choice.name,
                "label": label_of(key, choice),
                "experiment": naming(for_method(exp, choice), make_method(exp, choice)).to_dict(),
            },
            (),
        )
        for key, choice in chosen(exp).items()
    ]


Refusals = Mapping[str, FedalloyError]
"""Errors by what they concern: a method's key, a seed, or an empty string for everything."""


def examined(
    exp: Experiment,
    choices: Mapping[str, Choice],
    seeds: Sequence[int],
    folder: str | Path | None = None,
    dataset: Dataset | None = None,
    network: Network | None = None,
    shelf: Shelf | None = None,
) -> tuple[Refusals, dict[int, Built]]:
    """Everything that would fail later, and what was built for each seed; nothing is written.

    Each method is made and tried with each seed: an error that came only when a method's turn comes would waste the
    rounds of those before it. All seeds share the data, which is taken from the shelf.
    """
    shelf = Shelf() if shelf is None else shelf
    found: dict[str, FedalloyError] = {}
    methods: dict[str, Method] = {}
    built: dict[int, Built] = {}
    for key, choice in choices.items():
        with _noted(found, key):
            methods[key] = make_method(exp, choice)
    with _noted(found):
        _refuse_shared_folders(choices)
        if dataset is None and network is None:
            check_names(exp)  # needs no data, which may be slow to load
    for seed in seeds if "" not in found else ():
        with _noted(found, f"seed {seed}" if built else ""), one_thread():
            one = replace(exp, seed=seed, methods={})
            here = build(one, dataset, network, shelf.take(one, dataset))
            _ = here.network  # all networks are tried for it
            kind_for(list(methods.values()), here.setting, exp.rounds, exp.engine, exp.workers, one)
            built[seed] = here
            for key, method in methods.items():
                with _noted(found, key):
                    own = replace(for_method(exp, choices[key]), seed=seed)
                    refuse_unfit(method, trained(here, own).setting)
                    place = _place(folder, key, seed)
                    if place is not None and begun(place):
                        refuse_other(settled(own, here, method), place)
                        refuse_shorter(exp.rounds, place)
    return found, built


@contextmanager
def _noted(found: dict[str, FedalloyError], what: str = "") -> Iterator[None]:
    """Note an error instead of raising it; only the first of each kind is kept."""
    try:
        yield
    except FedalloyError as error:
        found.setdefault(what, error)


def refuse(found: Refusals) -> None:
    """Raise the errors that were found, if any: a single one as it is, several as a list."""
    if not found:
        return
    if len(found) == 1:
        ((what, error),) = found.items()
        if what in str(error):  # its message says what it concerns
            raise error
        raise _kind(found)(f"{what}: {error}") from error
    lines = [f"{what}: {error}" if what else f"{error}" for what, error in found.items()]
    raise _kind(found)("\n  ".join(["this cannot be run as written:", *lines]))


def _kind(found: Refusals) -> type[FedalloyError]:
    kinds = (UsageError, CheckpointError, SecurityError, DataError, StorageError, FedalloyError)
    return next(kind for kind in kinds if any(isinstance(error, kind) for error in found.values()))


def _refuse_shared_folders(choices: Mapping[str, Choice]) -> None:
    places: dict[str, str] = {}
    for key in choices:
        other = places.setdefault(slug(key), key)
        if other != key:
            raise UsageError(f"the methods '{other}' and '{key}' would share the folder '{slug(key)}'; rename one")


def _place(folder: str | Path | None, key: str, seed: int) -> Path | None:
    return Path(folder) / f"{slug(key)}-seed{seed}" if folder is not None else None


def _done(place: Path | None) -> int:
    return completed(place) if place is not None and begun(place) else 0


def slug(label: str) -> str:
    """A label as the name of a folder or file, without path separators.

    >>> slug("FedProx mu=1"), slug("../../etc/passwd"), len(slug("long " * 100))
    ('fedprox-mu-1', 'etc-passwd', 64)
    """
    name = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "run"
    # The hash keeps long labels distinct.
    return name if len(name) <= 64 else f"{name[:55]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
