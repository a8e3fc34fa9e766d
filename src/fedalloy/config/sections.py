"""The sections of an experiment, as typed and checked values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Interval

from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.checked import refuse_unknown, type_hints, typed_value
from fedalloy.base.layout import Layout
from fedalloy.base.options import Count, Number, Positive, Share, option, refuse_idle, resolve
from fedalloy.errors import UsageError
from fedalloy.federation.metrics import AmpWeights, PublishedMetric, StopMetric
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.nets.architectures import Budget, ModelPart
from fedalloy.storage.results import Selection, check_word
from fedalloy.storage.spill import parse_size
from fedalloy.train.fit import LocalWork
from fedalloy.train.privacy import Privacy

# The range of numpy's legacy generator, with which some published splits were made.
Seed = Annotated[int, Interval(ge=0, lt=2**32)]
LEAST_MEMORY = 10**6  # bytes


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """Which data: a registered name, or the path of your own file or folder; other keys are options of that data."""

    name: str = option("fashion-mini", "a registered data set, or the path of your own file or folder")
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
    """A registered name and its options; a method may also set its own keys of three sections."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    aggregation: Mapping[str, Any] = field(default_factory=dict)
    cache: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClientPart:
    """One client with its own data: a name, the path of its file or folder, and perhaps a network of its own."""

    name: str = option(MISSING, "what tables, reports and deployments call the client")
    data: str | None = option(None, "the path of its file or folder; at a real site, `site.toml` has it")
    network: Choice | None = option(None, "its network: a name, or a table of name and options; unset: [model]")

    def __post_init__(self) -> None:
        resolve(self, "clients")


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
    sha256: str | None = option(None, "the digest that an own file must have, checked wherever it is read")
    task_samples: Number = option(0, "rows of the private data, with labels, that the server alone has to validate on")
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

    A list stands for any of its values. `round` is the round that the paper reports, from which ours are taken: "last",
    "best by amp", "best by test", "best by validation" or "mean of last 10".

    Each row is a method's label, its view, and one text per metric as printed in the paper, in our table's units.
    """

    source: str
    metrics: tuple[PublishedMetric, ...]
    rows: tuple[tuple[str, ...], ...]
    where: Mapping[str, bool | int | float | str | list[bool | int | float | str]] = field(default_factory=dict)
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

    >>> from fedalloy.config.experiment import experiment
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
    amp_weights: AmpWeights = option(
        "test", "what clients count by in AMP: their test samples (FedKF's code) or training samples (its Definition 1)"
    )
    threshold: Annotated[float, Interval(gt=0, lt=1)] | None = option(
        None, "the probability above which an answer is positive, with two classes or several labels; unset: 0.5"
    )
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
    clients: tuple[ClientPart, ...] = ()
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
        refuse_idle(self.training, "training")
        refuse_idle(self.cache, "cache")
        if self.memory is not None:
            _check_memory(self.memory)
        if self.budget is not None and not self.models:
            raise UsageError("[budget] chooses among several networks; give them under [[models]]")
        if self.models and any(client.network for client in self.clients):
            raise UsageError("both [[models]] and [[clients]] give clients networks; leave one of them out")
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
OPEN = {"data": DataPart, "partition": PartitionPart, "model": Choice, "method": Choice, "public": PublicPart}
CLOSED = {
    "training": LocalWork,
    "participation": Participation,
    "quorum": Quorum,
    "aggregation": Aggregation,
    "cache": Cache,
    "privacy": Privacy,
    "stop": Stop,
    "budget": Budget,
}
NAMED_BY = {"public": "data"}  # the others have their name under `name`


def own_keys(cls: type) -> list[str]:
    """The keys of a section itself, without the options of what it names."""
    return [f.name for f in dataclasses.fields(cls) if f.name != "options"]


def usual_name(section: str) -> str:
    """The name that a section has by default."""
    name: str = PublicPart().data if section == "public" else getattr(Experiment(), section).name
    return name


def check_options(
    part: DataPart | PartitionPart | PublicPart | Choice | ModelPart,
    maker: Callable[..., Any],
    where: str,
    given: Collection[str] = (),
    added: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A section's options; refuse any that is not a keyword of the named thing's factory, or has the wrong type.

    `given` are the keywords that users cannot choose, `added` the types of options that the factory need not know.

    >>> def ring(*, classes: int, radius: float = 1.0): ...
    >>> check_options(Choice(name="ring", options={"radius": 2}), ring, "model", given=["classes"])
    {'radius': 2.0}
    >>> check_options(Choice(name="ring", options={"raduis": 2}), ring, "model", given=["classes"])
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: model has no key 'raduis'; did you mean 'radius'?
    """
    takes = [key for key in inspect.signature(maker).parameters if key not in given]
    refuse_unknown(part.options, [*own_keys(type(part)), *takes, *(added or ())], where)
    hints = {**type_hints(maker), **(added or {})}
    return {key: typed_value(hints.get(key, Any), value, f"{where}.{key}") for key, value in part.options.items()}


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
