"""Experiments: TOML files and key=value overrides, checked before anything runs; unknown keys name the nearest one."""

from __future__ import annotations

import dataclasses
import inspect
import os
import stat
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Interval

from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import GROUPS, Aggregation
from fedalloy.base.checked import construct, refuse_unknown, refuse_unwritable, shown, type_hints, typed_value
from fedalloy.base.layout import Layout
from fedalloy.base.options import Count, Positive, Share, option, options_of, resolve, sections_of
from fedalloy.base.registry import LONGEST
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method, hyper_parameters, methods
from fedalloy.federation.metrics import PublishedMetric, StopMetric
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.nets.architectures import Budget, ModelPart
from fedalloy.storage.results import Selection, check_word
from fedalloy.storage.spill import parse_size
from fedalloy.storage.store import METHOD_PARTS
from fedalloy.train.fit import LocalWork
from fedalloy.train.privacy import Privacy

T = TypeVar("T")

# The range of numpy's legacy generator, with which some published splits were made.
Seed = Annotated[int, Interval(ge=0, lt=2**32)]
LARGEST_FILE = 1_000_000  # bytes; our longest has a few thousand
LEAST_MEMORY = 10**6  # bytes


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """Which data: a registered name or the path of an .npz file; other keys are options of that data set."""

    name: str = option("fashion-mini", "a registered data set, or the path of an `.npz` file")
    size: Annotated[int, Interval(ge=1, le=1024)] | None = option(None, "resize images to this many pixels a side")
    augment: str = option("none", "random changes of training images, by the name of a recipe")
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        resolve(self, "data")


@dataclass(frozen=True, kw_only=True)
class PartitionPart:
    """How the data is split among clients; other keys are options of that partition.

    `test = "local"` holds out `test_fraction` of each client's rows as its local test; `"official"` draws each client's
    local test from the data's test split by the client's classes; `"global"` tests every client on all of that split.
    `seed` defaults to the experiment's.
    """

    name: str = option("dirichlet", "a registered partition")
    clients: int = option(10, "how many clients; `natural` takes the number from the data instead")
    seed: Seed | None = option(None, "a seed for the split alone; unset: the experiment's")
    test: Literal["local", "official", "global"] = option("local", "where a client's local test comes from")
    test_fraction: float = option(0.2, "the share of a client's rows that is its local test, with `local`")
    test_samples: int | None = option(None, "rows of each local test with `official`; unset: test rows / clients")
    validation: float = option(0.0, "the share of a client's training rows that is set aside for validation")
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        resolve(self, "partition")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A registered name and its options; a method may also set its own keys of [aggregation] and [cache]."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    aggregation: Mapping[str, Any] = field(default_factory=dict)
    cache: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PublicPart:
    """A public set: another data set by name, or `data = "own"` to set aside rows of the private data.

    `classes = "added"` gives another data set's classes their own outputs, after the private ones. A prediction on
    private data is then the best of all outputs, or of the private ones with `answers = "private"`.
    """

    data: str = option("own", 'a data set by name or path, or `"own"` for rows of the private data')
    samples: Count = option(1000, "how many rows it has")
    labelled: bool = option(False, "whether methods may use its labels")
    holder: Literal["server", "all"] = option("all", "who holds it: the server alone, or the clients too")
    classes: Literal["shared", "added"] = option("shared", "whether its classes are the private ones, or get outputs")
    answers: Literal["all", "private"] = option(
        "all", "outputs that a prediction is chosen from, if classes were added"
    )
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        resolve(self, "public")
        if self.classes == "added" and self.data == "own":
            raise UsageError("public.classes = 'added' needs another data set; write public.data, or leave it out")
        if self.answers == "private" and self.classes == "shared":
            raise UsageError("public.answers = 'private' goes with public.classes = 'added'; leave it out")


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a run ends early: a target is met, nothing has improved for `patience` rounds, or a budget is used up.

    The metric is a fraction of 1, taken from the best of the method's views.
    """

    metric: StopMetric = option("amp", "the metric of `target` and `patience`")
    target: Share | None = option(None, "stop as soon as the metric reaches this share of 1")
    patience: Count | None = option(None, "stop when this many evaluations in a row brought no new best")
    bytes: Count | None = option(None, "stop when this many bytes were sent, up and down, framing included")
    seconds: Positive | None = option(None, "stop after this much time")

    def __post_init__(self) -> None:
        resolve(self, "stop")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A paper's table, shown next to our figures; `where` gives the values of other keys for which it holds.

    `round` is the round that the paper reports, from which ours are taken: "last", "best by amp", "best by test",
    "best by validation" or "mean of last 10". Each row is a method's label, its view, and one text per metric as
    printed in the paper, in our table's units.
    """

    source: str
    metrics: tuple[PublishedMetric, ...]
    rows: tuple[tuple[str, ...], ...]
    where: Mapping[str, str | int | float] = field(default_factory=dict)
    round: Selection = "last"

    def __post_init__(self) -> None:
        check_word(self.round, "published.round")
        for row in self.rows:
            if len(row) != 2 + len(self.metrics):
                raise UsageError(
                    f"published: the row {list(row)} has {len(row)} entries; give the method, the view "
                    f"and {len(self.metrics)} figures ({', '.join(self.metrics)})"
                )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything needed to reproduce a run.

    >>> experiment({"method": {"name": "fedprox", "mu": 0.1}, "rounds": 5}).method.options
    {'mu': 0.1}
    >>> experiment({"round": 5})
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: the experiment has no key 'round'; did you mean 'rounds'?
    """

    rounds: Count = option(20, "how many rounds to run")
    seed: Seed = option(0, "where every random stream starts: split, initial model, active clients, batches")
    evaluate_every: Count = option(1, "evaluate after every so many rounds; the last round is always evaluated")
    start: str | None = option(None, "a `.safetensors` file with the weights to start from, instead of random ones")
    engine: Literal["auto", "pool", "threads", "serial", "flower"] = option(
        "auto", "what carries the messages; `auto` takes the pool where it pays. All give the same bits"
    )
    workers: Count | None = option(None, "how many clients run side by side; unset: one per core")
    memory: str | int | None = option(
        None, "RAM for clients' last models and memories, such as `4GB`; the rest goes to temporary files"
    )
    layout: Layout = option("auto", "memory layout of the networks; it changes the last bits")
    device: str = option("cpu", "where data and networks lie: `cpu` or `cuda` (not tried on a GPU yet)")
    data: DataPart = field(default_factory=DataPart)
    partition: PartitionPart = field(default_factory=lambda: PartitionPart(options={"alpha": 0.1}))
    model: Choice = field(default_factory=lambda: Choice(name="lenet5"))
    models: tuple[ModelPart, ...] = ()
    budget: Budget | None = None
    method: Choice = field(default_factory=lambda: Choice(name="fedavg"))
    methods: Mapping[str, Choice] = field(default_factory=dict)
    training: LocalWork = field(default_factory=LocalWork)
    participation: Participation = field(default_factory=Participation)
    quorum: Quorum = field(default_factory=Quorum)
    aggregation: Aggregation = field(default_factory=Aggregation)
    cache: Cache = field(default_factory=Cache)
    privacy: Privacy | None = None
    public: PublicPart | None = None
    stop: Stop = field(default_factory=Stop)
    published: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        resolve(self, "")
        if self.memory is not None:
            _check_memory(self.memory)
        if self.budget is not None and not self.models:
            raise UsageError("[budget] chooses among several networks; give them under [[models]]")
        self._check_tiers()
        waits = self.stop.target is not None or self.stop.patience is not None
        if waits and self.stop.metric == "validation" and self.partition.validation == 0:
            raise UsageError("stop.metric = 'validation' needs a validation share; write partition.validation = 0.1")

    def _check_tiers(self) -> None:
        by_tier = [part for part in self.models if part.tier is not None]
        if self.participation.tiers is None and by_tier:
            raise UsageError(
                f"models: '{by_tier[0].name}' has tier = {by_tier[0].tier}, but no client has a tier; "
                "write participation.tiers, one number for each client"
            )
        if self.participation.tiers is not None and not by_tier and self.participation.policy != "weakest":
            raise UsageError(
                f'participation.tiers has no effect with policy = "{self.participation.policy}"; write '
                'participation.policy = "weakest", give a [[models]] table a tier, or leave tiers out'
            )

    def to_dict(self) -> dict[str, Any]:
        """The experiment as it would be written in a file, with all defaults."""
        return {key: value for key, value in _plain(self).items() if value not in (None, {}, [])}


# Sections whose other keys are options of the thing they name.
_OPEN = {"data": DataPart, "partition": PartitionPart, "model": Choice, "method": Choice, "public": PublicPart}
_CLOSED = {
    "training": LocalWork,
    "participation": Participation,
    "quorum": Quorum,
    "aggregation": Aggregation,
    "cache": Cache,
    "privacy": Privacy,
    "stop": Stop,
    "budget": Budget,
}
_NAMED_BY = {"public": "data"}  # the others have their name under `name`


def experiment(values: Mapping[str, Any]) -> Experiment:
    """Check and build an experiment from nested values, as read from TOML; `fedalloy table` handles [[axes]]."""
    refuse_unwritable(values, "the experiment")
    values = {key: value for key, value in values.items() if key != "axes"}
    known = [f.name for f in dataclasses.fields(Experiment)]
    _refuse_misplaced(values, known)
    refuse_unknown(values, known, "the experiment")
    built: dict[str, Any] = {}
    for key, value in values.items():
        value = _table(key, value)
        if not isinstance(value, Mapping) and (key in _OPEN or key in _CLOSED or key == "methods"):
            raise UsageError(f"{key} = {shown(value)} must be a table; write [{key}]")
        if key in _OPEN:
            built[key] = _open_section(_OPEN[key], {**_default_name(key), **value}, key)
        elif key in _CLOSED:
            built[key] = construct(_CLOSED[key], value, key)
        elif key in _LISTS:
            built[key] = tuple(_LISTS[key](part) for part in _tables(key, value))
        elif key == "methods":
            built[key] = {name: _labelled(name, part) for name, part in value.items()}
        else:
            built[key] = value
    if "partition" in values and "alpha" not in built["partition"].options and built["partition"].name == "dirichlet":
        built["partition"] = dataclasses.replace(
            built["partition"], options={"alpha": 0.1, **built["partition"].options}
        )
    exp = construct(Experiment, built, "")
    for key in ("aggregation", "cache"):
        refuse_unknown({key: 1} if getattr(exp.model, key) else {}, ["name"], "model")
    for choice in (exp.method, *exp.methods.values()):
        make_method(exp, choice)
    return exp


def _refuse_misplaced(values: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a key that belongs in a section, and name that section."""
    sections: Mapping[str, type] = {**_CLOSED, **_OPEN}
    for key in values:
        homes = [
            f"{name}.{key}" for name, part in sections.items() if key in {f.name for f in dataclasses.fields(part)}
        ]
        if key not in known and homes and key not in ("name", "options"):
            raise UsageError(f"the experiment has no key {shown(key)}; write {' or '.join(homes)}")


def recorded(meta: Mapping[str, Any]) -> Experiment:
    """The experiment of a run as stored in `run.json`; a method that is unknown here came from a plug-in."""
    import fedalloy.methods  # noqa: F401  # registers the built-in methods

    part = meta["experiment"].get("method")
    name = part.get("name") if isinstance(part, Mapping) else part
    if isinstance(name, str) and name not in methods:
        raise UsageError(
            f"the run's method {name[:LONGEST]!r} is not built in; a plug-in's method needs --plugin FILE.py, "
            "and in Python its file must be imported first"
        )
    return experiment(meta["experiment"])


def _tables(key: str, value: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, Sequence) or not all(isinstance(part, Mapping) for part in value):
        raise UsageError(f"{key} must be tables; write [[{key}]]")
    return value


def _published(part: Mapping[str, Any]) -> Published:
    rows = part.get("rows", ())
    if isinstance(rows, list):
        rows = tuple(tuple(row) if isinstance(row, list) else row for row in rows)
    return construct(Published, {**part, "rows": rows}, "published")


def _one_of_several(part: Mapping[str, Any]) -> ModelPart:
    return _open_section(ModelPart, part, "models")


_LISTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {"published": _published, "models": _one_of_several}


def make_method(exp: Experiment, choice: Choice | None = None) -> Method:
    """The experiment's method, or another choice, with checked options and the experiment's sections.

    >>> make_method(experiment({"method": {"name": "fedprox", "mu": 0.1}, "aggregation": {"clip": 1.0}})).mu
    0.1
    """
    import fedalloy.methods  # noqa: F401  # registers the built-in methods

    choice = choice or exp.method
    cls = methods[choice.name]
    _refuse_moved(cls, choice)
    return _made(_Plan(cls, choice, {name: _own_section(exp, choice, cls, name) for name in sections_of(cls)}))


def _refuse_moved(cls: type[Method], choice: Choice) -> None:
    """Refuse an option that is a key of a section, and name that section."""
    own = [found.name for found in options_of(cls)]
    for section in ("aggregation", "cache"):
        if (given := getattr(choice, section)) and section not in sections_of(cls):
            raise UsageError(f"{choice.name} does not use [{section}]; leave out {section}.{next(iter(given))}")
    for section in sections_of(cls):
        for key in (f.name for f in dataclasses.fields(_CLOSED[section])):
            if key in choice.options and key not in own:
                raise UsageError(f"{choice.name} has no key {shown(key)}; write {section}.{key}")


class _Plan(NamedTuple):
    """What a method is built from; plans are compared as written, so 1, 1.0 and True differ."""

    cls: type[Method]
    choice: Choice
    sections: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Plan) and self.cls is other.cls and repr(self) == repr(other)


@lru_cache(maxsize=64)
def _made(plan: _Plan) -> Method:
    """A method; since it is a frozen value, it is built once and reused."""
    return construct(plan.cls, plan.choice.options, plan.choice.name, **plan.sections)


def _own_section(exp: Experiment, choice: Choice, cls: type[Method], name: str) -> Any:
    """A section of the experiment, with the keys that a method sets itself.

    In a comparison, the common aggregation rule applies to the methods that use it.
    """
    common, own = getattr(exp, name), getattr(choice, name)
    if isinstance(common, Aggregation) and choice is not exp.method:
        common = common.only(cls.takes)
    if not own:
        return common
    plain = dataclasses.asdict(type(common)())
    replaced = {part: plain[part] for key, parts in GROUPS.items() if key in own for part in parts if part in plain}
    return construct(type(common), {**dataclasses.asdict(common), **replaced, **own}, name)


def made_from(values: Mapping[str, Any]) -> Method:
    """The method of an experiment that is known only as values, for example a server's."""
    return make_method(experiment({key: values[key] for key in sorted(METHOD_PARTS & values.keys())}))


def naming(exp: Experiment, method: Method) -> Experiment:
    """An experiment with the method that is actually used: its options and sections, with all defaults.

    >>> method = make_method(Experiment(), Choice(name="fedavg", aggregation={"clip": 2.0}))
    >>> naming(Experiment(), method).aggregation.clip
    2.0
    """
    choice = Choice(name=method.name, options=hyper_parameters(method))
    sections = {name: getattr(method, name) for name in sections_of(method)}
    return dataclasses.replace(exp, method=choice, methods={}, **sections)  # they belong to this method only


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


def check_options(
    part: DataPart | PartitionPart | PublicPart | Choice | ModelPart,
    maker: Callable[..., Any],
    where: str,
    given: Collection[str] = (),
) -> dict[str, Any]:
    """A section's options; refuse any that is not a keyword of the named thing's factory, or has the wrong type.

    `given` are the keywords that users cannot choose.

    >>> def ring(*, classes: int, radius: float = 1.0): ...
    >>> check_options(Choice(name="ring", options={"radius": 2}), ring, "model", given=["classes"])
    {'radius': 2.0}
    >>> check_options(Choice(name="ring", options={"raduis": 2}), ring, "model", given=["classes"])
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: model has no key 'raduis'; did you mean 'radius'?
    """
    takes = [key for key in inspect.signature(maker).parameters if key not in given]
    refuse_unknown(part.options, [*_own_keys(type(part)), *takes], where)
    hints = type_hints(maker)
    return {key: typed_value(hints.get(key, Any), value, f"{where}.{key}") for key, value in part.options.items()}


def read(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment file and apply key=value overrides."""
    return experiment(override(read_toml(path), overrides))


def read_toml(path: str | Path, what: str = "experiment file") -> dict[str, Any]:
    """The values in a TOML file."""
    name = f"the {what} {shown(str(path))}"
    try:
        look = os.stat(path)
        if look.st_size > LARGEST_FILE:
            raise UsageError(f"{name} has {look.st_size:,} bytes; it may have {LARGEST_FILE:,}")
        if not (stat.S_ISREG(look.st_mode) or stat.S_ISDIR(look.st_mode)):  # reading might never end
            raise UsageError(f"{name} cannot be read: it is a pipe or a device")
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"there is no {what} {shown(str(path))}") from error
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply") from error
    except ValueError as error:  # bytes that are not UTF-8, a number with thousands of digits, an invalid path
        raise UsageError(f"{name} cannot be read: {error}") from error


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply `key=value` texts; a dotted key sets a key in a table, and `method=fedprox` chooses a name.

    A method listed under [methods] is chosen with its options from there.

    >>> override({"training": {"lr": 0.1}}, ["training.lr=0.01", "method=fedprox", "method.mu=1.0"])
    {'training': {'lr': 0.01}, 'method': {'name': 'fedprox', 'mu': 1.0}}
    >>> override({"partition": {"name": "dirichlet", "alpha": 0.1, "clients": 5}}, ["partition=iid"])
    {'partition': {'name': 'iid', 'clients': 5}}
    >>> override({"methods": {"mild": {"name": "fedprox", "mu": 0.001}}}, ["method=mild"])["method"]
    {'name': 'fedprox', 'mu': 0.001}
    """
    out: dict[str, Any] = {key: _table(key, value) for key, value in values.items()}
    for text in overrides:
        key, sign, raw = text.partition("=")
        if not sign or not key:
            raise UsageError(f"'{text}' is not an override; write key=value, for instance training.lr=0.01")
        put(out, key, _value(raw))
    return out


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a value under a dotted key; tables on the way are copied, not modified.

    >>> values = {"training": {"lr": 0.1}}
    >>> put(values, "training.batch", 8)
    >>> values
    {'training': {'lr': 0.1, 'batch': 8}}
    """
    *path, last = key.split(".")
    if not path and key in _OPEN and isinstance(value, str):
        path, last = [key], _NAMED_BY.get(key, "name")
        before = values.get(key, {})
        if isinstance(before, Mapping) and before.get(last) != value:
            # The number of clients is kept for another partition, but not the options of the old one.
            values[key] = {k: v for k, v in before.items() if k in _own_keys(_OPEN[key])}
            listed = values.get("methods") if key == "method" else None
            if isinstance(listed, Mapping) and isinstance(own := listed.get(value), Mapping):
                values[key], value = own, own.get("name", value)
    node = values
    for part in path:
        inner = node.get(part, {})
        if not isinstance(inner, Mapping):
            raise UsageError(f"'{key}' cannot be set: {part} is not a table")
        node[part] = dict(inner)
        node = node[part]
    node[last] = value


def _table(key: str, value: Any) -> Any:
    """Expand `method = "fedprox"`, which is short for a table with only that name."""
    return {_NAMED_BY.get(key, "name"): value} if key in _OPEN and isinstance(value, str) else value


def _default_name(key: str) -> dict[str, str]:
    """Read `method.momentum = 0.5` without a name as an option of the default method."""
    return {"name": getattr(Experiment(), key).name} if key in ("method", "model") else {}


def _value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return raw  # a bare word is a string; so is anything unreadable, which is then refused as a string


def _own_keys(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls) if f.name != "options"]


def _open_section(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    known = _own_keys(cls)
    own = {key: value for key, value in values.items() if key in known}
    return construct(cls, {**own, "options": {k: v for k, v in values.items() if k not in known}}, where)


def _labelled(label: str, part: Any) -> Choice:
    if not isinstance(part, Mapping):
        raise UsageError(f"methods.{label} must be a table; write [methods.{label}]")
    return _open_section(Choice, {"name": label, **part}, f"methods.{label}")


def _check_memory(size: str | int) -> None:
    found = parse_size(size)
    if 0 < found < LEAST_MEMORY:  # 4 was meant as 4GB
        raise UsageError(
            f'memory = {size!r} is {found:,} bytes; give at least 1 MB, for instance memory = "4GB", or 0 to keep '
            "nothing in RAM"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, DataPart | PartitionPart | Choice | PublicPart | ModelPart):
        own = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "options"}
        # Options that are None are kept, since None may not be their default.
        return {k: v for k, v in own.items() if v not in (None, {})} | _plain(value.options)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {k: v for k, v in own.items() if v is not None}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    return value
