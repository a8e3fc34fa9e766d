"""What is tuned: ranges and lists of values, and which methods of a comparison each of them touches."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedalloy.aggregation.rule import GROUPS
from fedalloy.base import rng
from fedalloy.base.checked import refuse_unknown, shown
from fedalloy.base.options import options_of, sections_of
from fedalloy.base.registry import suggest
from fedalloy.config.methods import cache_keys, make_method
from fedalloy.config.overrides import read_value
from fedalloy.config.sections import CLOSED, Choice, Experiment, own_keys
from fedalloy.errors import UsageError
from fedalloy.federation.core import methods

SHARED = ("training", "aggregation", "cache")  # sections of which a method can set its own keys
WORDS = ("log", "linear")
DIGITS = 3  # significant ones of a value from a range


@dataclass(frozen=True)
class Axis:
    """One key and the values that may be tried for it: a list, or a range of which both ends belong to it."""

    key: str
    scale: Literal["list", "log", "linear"] = "list"
    values: tuple[Any, ...] = ()  # of a list
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # a range of whole numbers only

    @property
    def size(self) -> float:
        """How many values there are; infinite for a range of real numbers."""
        if self.scale == "list":
            return len(self.values)
        return self.high - self.low + 1 if self.whole else math.inf

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that must be allowed for all others to be."""
        return self.values if self.scale == "list" else (self.low, self.high)

    def draw(self, seed: int, number: int) -> Any:
        """The value of this number; it depends on the key, so a shared axis takes the same values for all methods.

        >>> [Axis("fedprox.mu", "log", low=0.001, high=1.0).draw(0, number) for number in range(3)]
        [0.00156, 0.049, 0.565]
        """
        share = float(rng.numpy_generator(seed, "tune", self.key, number).random())
        if self.scale == "list":
            return self.values[int(share * len(self.values))]
        low, high = self.low, self.high + (1 if self.whole else 0)
        if self.scale == "log":
            found = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            found = low + share * (high - low)
        return min(int(found), int(self.high)) if self.whole else self.rounded(found)

    def rounded(self, value: float) -> float:
        """A value of the range with a few significant digits, so that what is printed is what was run."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def points(self) -> tuple[Any, ...]:
        """Every value, for a grid.

        >>> axis("training.lr", "0.001..0.1:3").points()
        (0.001, 0.01, 0.1)
        """
        if self.scale == "list":
            return self.values
        if not self.whole:
            raise UsageError(
                f"{self.key} = {self}: a grid needs a number of values; write {self.low:g}..{self.high:g}:5, or a list"
            )
        return tuple(range(int(self.low), int(self.high) + 1))

    def __str__(self) -> str:
        if self.scale == "list":
            return ", ".join(map(str, self.values))
        kind = "whole numbers" if self.whole else "numbers"
        return f"{kind} from {self.low:g} to {self.high:g}, {self.scale}{'-uniform' if self.scale == 'log' else ''}"


Space = tuple[Axis, ...]


def parted_words(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Separate the overrides of an experiment from the ranges and lists to tune.

    >>> parted_words(["rounds=5", "fedprox.mu=0.001..1", "training.batch=8,16", "data=../mine.csv", "data.drop=[a,b]"])
    (['rounds=5', 'data=../mine.csv', 'data.drop=[a,b]'], {'fedprox.mu': '0.001..1', 'training.batch': '8,16'})
    """
    overrides: list[str] = []
    ranges: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        listed = "," in value and not any(sign in value for sign in "[]{}\"'")
        if not (listed or _is_range(value)):
            overrides.append(word)
        elif (own := key.removeprefix("methods.")) in ranges:
            raise UsageError(f"{own} is tuned twice, also with {ranges[own]}; leave {word} out")
        else:
            ranges[own] = value
    return overrides, ranges


def space_of(given: Mapping[str, Any]) -> Space:
    """The axes of a space, as texts (`"0.001..1"`, `"8,16"`) or lists of values.

    >>> [str(one) for one in space_of({"fedprox.mu": "0.001..1", "training.epochs": "1..5", "training.batch": [8, 16]})]
    ['numbers from 0.001 to 1, log-uniform', 'whole numbers from 1 to 5, linear', '8, 16']
    """
    return tuple(axis(key, value) for key, value in given.items())


def axis(key: str, given: Any) -> Axis:
    """One axis: `a..b` (log-uniform; linear between whole numbers), `a..b:linear`, `a..b:log`, `a..b:5`, or a list.

    >>> axis("training.momentum", "0.0..0.9:linear")
    Axis(key='training.momentum', scale='linear', values=(), low=0.0, high=0.9, whole=False)
    >>> axis("fedprox.mu", "0.0..1.0")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: fedprox.mu = 0.0..1.0: a log-uniform range must lie above 0; write 0.0..1.0:linear, or \
begin it above 0
    """
    key = key.removeprefix("methods.")  # as an override would name it
    if isinstance(given, str) and _is_range(given):
        return _range(key, given)
    if isinstance(given, str):
        values: tuple[Any, ...] = tuple(read_value(part.strip()) for part in given.split(",") if part.strip())
    elif isinstance(given, Sequence):
        values = tuple(given)
    else:
        raise UsageError(f"{key} = {shown(given)} is no range; write a list of values, or a range such as '0.001..1'")
    if not values:
        raise UsageError(f"{key} has no values to try; write a list such as 0.1,1 or a range such as 0.001..1")
    if twice := [value for i, value in enumerate(values) if value in values[:i]]:
        raise UsageError(f"{key} lists {shown(twice[0])} twice; leave one of them out")
    return Axis(key, values=values)


def _is_range(text: str) -> bool:
    first, dots, _ = text.partition("..")
    return bool(dots) and _number(first) is not None


def _number(text: str) -> float | None:
    """A finite number, whole if it is written so; None for anything else."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            found = kind(text)
            return found if math.isfinite(found) else None
    return None


def _range(key: str, given: str) -> Axis:
    first, _, rest = given.partition("..")
    last, *words = rest.split(":")
    low, high = _number(first), _number(last)
    if low is None or high is None:
        raise UsageError(f"{key} = {given}: {shown(last)} is not a number; write a range such as 0.001..1")
    if low >= high:
        raise UsageError(f"{key} = {given} is empty; write the smaller number first, and another one last")
    counts = [int(word) for word in words if word.isdecimal()]
    scales = [word for word in words if word in WORDS]
    if len(counts) + len(scales) < len(words) or len(counts) > 1 or len(scales) > 1 or min(counts, default=2) < 2:
        raise UsageError(
            f"{key} = {given}: after a range come `log` or `linear` and, for a grid, how many values, at least 2; "
            f"write {first}..{last}:log:5"
        )
    whole = isinstance(low, int) and isinstance(high, int)
    log = "log" in scales or not (scales or whole)
    if log and low <= 0:
        raise UsageError(
            f"{key} = {given}: a log-uniform range must lie above 0; write {first}..{last}:linear, or begin it above 0"
        )
    made = Axis(key, "log" if log else "linear", low=low, high=high, whole=whole)
    return replace(made, scale="list", values=_spaced(made, counts[0])) if counts else made


def _spaced(one: Axis, count: int) -> tuple[Any, ...]:
    """This many values of a range, evenly spaced, ends included."""
    places = [i / (count - 1) for i in range(count)]
    if one.scale == "log":
        found = [one.low * (one.high / one.low) ** place for place in places]
    else:
        found = [one.low + place * (one.high - one.low) for place in places]
    rounded = [round(x) if one.whole else one.rounded(x) for x in found]
    return tuple(dict.fromkeys([one.low, *rounded[1:-1], one.high]))


@dataclass(frozen=True)
class Touched:
    """A method and the axes that touch it, each with the path in the method's table that it sets."""

    choice: Choice
    axes: Space = ()
    paths: Sequence[str] = ()

    @property
    def size(self) -> float:
        """How many settings there are; one if no axis touches the method."""
        return math.prod(one.size for one in self.axes)

    def grid(self) -> Iterator[dict[str, Any]]:
        """All combinations of the axes' values; the first axis varies slowest."""
        for found in itertools.product(*(one.points() for one in self.axes)):
            yield dict(zip((one.key for one in self.axes), found, strict=True))

    def at(self, values: Mapping[str, Any]) -> Choice:
        """The method with these values, by the keys of their axes."""
        choice = self.choice
        for one, path in zip(self.axes, self.paths, strict=True):
            if one.key not in values:
                continue
            section, dot, name = path.partition(".")
            where, key = (section, name) if dot else ("options", path)
            changed: dict[str, Any] = {where: {**getattr(choice, where), key: values[one.key]}}
            choice = replace(choice, **changed)
        return choice


def touched(exp: Experiment, choices: Mapping[str, Choice], space: Space) -> dict[str, Touched]:
    """Which axes touch each method: a method's own before those that methods share.

    `training.lr` is shared by all methods that do not set it themselves, `method.mu` by all that have such an option;
    `fedprox.mu` and `fedprox.training.lr` belong to one method.

    >>> from fedalloy.config.experiment import experiment
    >>> exp = experiment({"methods": {"fedavg": {}, "fedprox": {}, "qffl": {"training": {"lr": 0.1}}}})
    >>> found = touched(exp, exp.methods, space_of({"training.lr": "0.01..1", "fedprox.mu": "0.001..1"}))
    >>> [[axis.key for axis in one.axes] for one in found.values()]
    [['training.lr'], ['training.lr', 'fedprox.mu'], []]
    """
    for one in space:
        _check_key(one, choices)
    found = {key: _touched(exp, key, choice, space) for key, choice in choices.items()}
    for one in space:
        if not any(one in where.axes for where in found.values()):
            raise UsageError(f"{one.key} has no effect on {', '.join(choices)}; leave it out")
    return found


def _check_key(one: Axis, choices: Mapping[str, Choice]) -> None:
    head, _, rest = one.key.partition(".")
    part, _, inner = rest.partition(".")
    if head in SHARED:
        refuse_unknown({rest: 0}, own_keys(CLOSED[head]), head)
    elif head == "method":
        known = [name for choice in choices.values() for name in _options(choice)]
        refuse_unknown({rest: 0}, list(dict.fromkeys(known)), "method")
    elif head not in choices:
        homes = [f"{section}.{head}" for section in SHARED if head in own_keys(CLOSED[section])]
        homes += ["method." + head] if any(head in _options(choice) for choice in choices.values()) else []
        if homes and not rest:
            raise UsageError(f"{one.key} is not a key of the experiment; write {homes[0]}")
        raise UsageError(
            f"{one.key} cannot be tuned: only methods' options and keys of [training], [aggregation] and [cache] can, "
            f"since all else is what methods are compared on; {suggest(head, [*choices, 'method', *SHARED])}"
        )
    elif not rest:
        raise UsageError(f"{one.key} names a method, but not what to tune of it; write {head}.OPTION={one}")
    elif part in SHARED and inner:
        refuse_unknown({inner: 0}, own_keys(CLOSED[part]), f"{head}.{part}")
    else:
        refuse_unknown({rest: 0}, _options(choices[head]), head)


def _options(choice: Choice) -> list[str]:
    return [option.name for option in options_of(methods[choice.name])]


def _touched(exp: Experiment, key: str, choice: Choice, space: Space) -> Touched:
    places: dict[str, Axis] = {}
    for one in sorted(space, key=lambda one: one.key.startswith(f"{key}.")):  # its own replace shared ones
        head, _, rest = one.key.partition(".")
        if head == key or (head == "method" and rest in _options(choice)):
            places[rest] = one
        elif head in SHARED and _shares(exp, choice, head, rest):
            places[one.key] = one
    pairs = sorted(((one, path) for path, one in places.items()), key=lambda pair: space.index(pair[0]))
    return Touched(choice, tuple(one for one, _ in pairs), tuple(path for _, path in pairs))


def _shares(exp: Experiment, choice: Choice, section: str, key: str) -> bool:
    """Whether a key of a common section has an effect on a method."""
    cls = methods[choice.name]
    if key in getattr(choice, section):
        return False
    if section == "cache":
        return key in cache_keys(make_method(exp, choice))
    if section == "aggregation":
        group = next((name for name, parts in GROUPS.items() if key in parts), None)
        taken = any(name == group or name.startswith(f"{group}=") for name in cls.takes)
        return section in sections_of(cls) and (group is None or taken)
    return True
