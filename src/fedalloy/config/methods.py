"""From an experiment to its methods: whose keys hold, and the method that results."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import GROUPS, Aggregation
from fedalloy.base.checked import construct, shown
from fedalloy.base.options import options_of, refuse_idle, sections_of, without_effect
from fedalloy.config.places import refuse_foreign
from fedalloy.config.sections import CLOSED, Choice, Experiment, own_keys
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method, hyper_parameters, methods
from fedalloy.train.fit import LocalWork

T = TypeVar("T")


def make_method(exp: Experiment, choice: Choice | None = None) -> Method:
    """The experiment's method, or another choice, with checked options and the experiment's sections.

    >>> from fedalloy.config.experiment import experiment
    >>> make_method(experiment({"method": {"name": "fedprox", "mu": 0.1}, "aggregation": {"clip": 1.0}})).mu
    0.1
    """
    import fedalloy.methods  # noqa: F401  # registers the built-in methods

    choice = choice or exp.method
    cls = methods[choice.name]
    _refuse_moved(cls, choice, alone=choice is exp.method)
    sections = {name: _own_section(exp, choice, cls, name) for name in sections_of(cls)}
    return construct(cls, choice.options, choice.name, **sections)


def _refuse_moved(cls: type[Method], choice: Choice, *, alone: bool) -> None:
    """Refuse an option that is a key of a section or an option of another method, and name that place."""
    own = [found.name for found in options_of(cls)]
    for section in ("aggregation", "cache"):
        if (given := getattr(choice, section)) and section not in sections_of(cls):
            raise UsageError(f"{choice.name} does not use [{section}]; leave out {section}.{next(iter(given))}")
    for section in sections_of(cls):
        for key in (f.name for f in dataclasses.fields(CLOSED[section])):
            if key in choice.options and key not in own:
                raise UsageError(f"{choice.name} has no key {shown(key)}; write {section}.{key}")
    refuse_foreign(choice.name, choice.options, alone=alone)


def _own_section(exp: Experiment, choice: Choice, cls: type[Method], name: str) -> Any:
    """A section of the experiment, with the keys that a method sets itself.

    In a comparison, the common aggregation rule applies to the methods that use it.
    """
    common, own = getattr(exp, name), getattr(choice, name)
    if isinstance(common, Aggregation) and choice is not exp.method:
        common = common.only(cls.takes)
    if not own:
        return common
    plain, together = dataclasses.asdict(type(common)()), {**dataclasses.asdict(common), **own}
    dependent = [part for key, parts in GROUPS.items() if key in own for part in parts if part in plain]
    reset = {part: plain[part] for part in (*dependent, *without_effect(type(common), together))}
    found = construct(type(common), {**together, **reset, **own}, name)
    refuse_idle(found, name)
    return found


def for_method(exp: Experiment, choice: Choice | None = None) -> Experiment:
    """The experiment of one method alone, with the method's own keys of [training] in that section.

    A common key that has no effect together with the method's own keys is reset to its default.

    >>> from fedalloy.config.experiment import experiment
    >>> exp = experiment({"training": {"work": "equal_steps", "epochs": 5}, "methods": {"qffl": {}}})
    >>> own = for_method(exp, Choice(name="qffl", training={"work": "fixed_steps", "steps": 3})).training
    >>> own.steps, own.epochs
    (3, 1)
    """
    choice = choice or exp.method
    if not choice.training:
        return dataclasses.replace(exp, method=choice, methods={})
    plain, together = dataclasses.asdict(LocalWork()), {**dataclasses.asdict(exp.training), **choice.training}
    reset = {key: plain[key] for key in without_effect(LocalWork, together) if together[key] != plain[key]}
    own = {**reset, **choice.training}
    work = construct(LocalWork, {**together, **own}, "training")
    return dataclasses.replace(exp, method=dataclasses.replace(choice, training=own), training=work, methods={})


def naming(exp: Experiment, method: Method) -> Experiment:
    """An experiment with the method that is actually used: its options and sections, with all defaults.

    >>> method = make_method(Experiment(), Choice(name="fedavg", aggregation={"clip": 2.0}))
    >>> naming(Experiment(), method).aggregation.clip
    2.0
    """
    exp = for_method(exp)
    choice = Choice(name=method.name, options=hyper_parameters(method), training=exp.method.training)
    sections = {"cache": Cache()} | {name: getattr(method, name) for name in sections_of(method)}
    return dataclasses.replace(exp, method=choice, **sections)  # they belong to this method only


def with_sections(method: Method, exp: Experiment) -> Method:
    """A method made in Python, with the experiment's keys of [aggregation] and [cache] unless it sets them itself."""
    if all(getattr(method, name) == getattr(exp, name) for name in sections_of(method)):
        return method
    plain = dataclasses.replace(method, **{name: type(getattr(exp, name))() for name in sections_of(method)})
    three = {name: [getattr(each, name) for each in (exp, method, plain)] for name in sections_of(method)}
    return dataclasses.replace(method, **{name: _merged(*each) for name, each in three.items()})


def _merged(common: T, own: T, plain: T) -> T:
    """A section of the experiment, updated with the keys in which a method's section differs from the defaults."""
    keys = [f.name for f in dataclasses.fields(common) if getattr(own, f.name) != getattr(plain, f.name)]  # type: ignore[arg-type]
    return dataclasses.replace(common, **{key: getattr(own, key) for key in keys})  # type: ignore[type-var]


def given_keys(section: Any) -> list[str]:
    """The keys of a section that differ from their defaults."""
    plain = type(section)()
    return [f.name for f in dataclasses.fields(section) if getattr(section, f.name) != getattr(plain, f.name)]


def cache_keys(method: Method) -> list[str]:
    """The keys of [cache] that have an effect with a method.

    >>> from fedalloy.methods import DaFKD, FedAvg, KnFu
    >>> cache_keys(KnFu()), cache_keys(DaFKD()), cache_keys(FedAvg())
    ([], ['oca'], ['oca', 'unseen', 'dtype', 'exact_up_to'])
    """
    if "cache" not in sections_of(method):
        return []
    kept: Cache = getattr(method, "cache")  # noqa: B009  # not all methods have one
    idle = without_effect(Cache, {"oca": kept.oca})
    return [key for key in own_keys(Cache) if key not in idle]
