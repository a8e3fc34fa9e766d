"""From an experiment to its setting: load the data, split it, make the networks."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedalloy.base import rng
from fedalloy.base.checked import shown
from fedalloy.base.files import file_digest, read_weights
from fedalloy.base.text import listed
from fedalloy.config.conditions import GIVEN
from fedalloy.config.methods import for_method
from fedalloy.config.sections import Choice, DataPart, Experiment, PartitionPart, PublicPart, check_options
from fedalloy.data.augment import augmentation
from fedalloy.data.card import PartitionCard, card, fingerprint
from fedalloy.data.catalogue import GIVEN as OWN_GIVEN
from fedalloy.data.catalogue import LISTED, load_data, reader
from fedalloy.data.columns import Preparation, Recipe, agree, summarise, without_few
from fedalloy.data.label_space import LabelSpace
from fedalloy.data.own.dataset import is_own, own_dataset
from fedalloy.data.own.wanted import Format
from fedalloy.data.partition import Partition, complete, partitions, split, strata
from fedalloy.data.public import PublicSet, assert_disjoint
from fedalloy.data.samples import Dataset, Samples, tensors
from fedalloy.data.statistics import Statistics, gathered, refuse_apart
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import Augmentation, Network, initial
from fedalloy.federation.setting import SERVER, Setting, Site
from fedalloy.nets import models
from fedalloy.nets.architectures import ModelPart, assign
from fedalloy.nets.models import parameter_count
from fedalloy.train.costs import forward_flops
from fedalloy.train.fit import load as load_weights

PUBLIC_LIKE = ("label", "drop", "categorical", "impute", "task", "names", "categories")  # keys of [data] for [public]


@dataclass(frozen=True)
class Built:
    """A setting and what it was built from; `data` and `model` name what was used, even if the user provided it."""

    setting: Setting
    data: DataPart
    model: Choice
    dataset: Dataset
    partition: Partition
    card: PartitionCard
    digests: Mapping[str, str]
    statistics: Statistics | None = None  # of the clients' columns, if their rows had to be prepared

    @cached_property
    def network(self) -> nn.Module:
        """The server's initial network; all networks have been tried before this."""
        return tried(self.setting)


class Other(NamedTuple):
    """Another data set's samples, what the outputs mean with them, and whether their labels are the task's classes."""

    samples: Samples
    space: LabelSpace | None
    shared_labels: bool


class Pools(NamedTuple):
    """All rows as networks take them; `other` is the complete other data set that provides the public samples."""

    train: Samples
    holdout: Samples | None
    other: Other | None


@dataclass(frozen=True)
class Loaded:
    """An experiment's data before anything is drawn from it; all its seeds share it.

    There are no `pools` yet if rows must be prepared first, which depends on who has which rows for training.
    """

    data: Dataset
    pools: Pools | None
    digest: str


def loaded(exp: Experiment, dataset: Dataset | None = None) -> Loaded:
    """Load the data that an experiment names, or use the given data set instead."""
    _refuse_other_kinds(dataset, None)
    data = _load(exp) if dataset is None else dataset
    return Loaded(data, pools_of(exp, data) if data.recipe is None else None, _data_digest(data))


def pools_of(exp: Experiment, data: Dataset, preparation: Preparation | None = None) -> Pools:
    """The rows of a data set, which has been prepared if need be, and of the public set's data."""
    pool, holdout = tensors(data, size=exp.data.size)
    pool, holdout = _moved(pool, exp.device), _moved(holdout, exp.device) if holdout is not None else None
    return Pools(pool, holdout, other_data(exp, data, pool, preparation))


def statistics_of(exp: Experiment, data: Dataset, rows: Sequence[NDArray[np.int64]]) -> Statistics:
    """What the clients tell about their training rows, which are given, and what follows from it."""
    assert data.recipe is not None
    if exp.privacy is not None:
        refuse_statistics(data)
    told = [without_few(summarise(data.x[mine], data.columns, data.recipe, data.y[mine])) for mine in rows]
    refuse_apart(dict(enumerate(told)), data.columns, data.client_names if len(data.client_names) == len(told) else ())
    return gathered(told, data.columns, data.recipe)


def refuse_statistics(data: Dataset) -> None:
    """Refuse data whose preparation would tell exact statistics of private rows."""
    assert data.recipe is not None
    if data.recipe.asks_inputs(data.columns):
        raise UsageError(
            f"the columns of '{data.name}' would be prepared with exact statistics of the clients' rows, which "
            "[privacy] does not cover; write constants: data.mean and data.std with one number for each column of "
            'numbers, data.categories with the names for each column of categories, and no data.impute but "mean"; if '
            "there are numbers to predict, also data.label_mean and data.label_std"
        )
    if data.recipe.asks(data.columns):
        raise UsageError(
            f"the numbers to predict of '{data.name}' would be standardised with exact statistics of the clients' "
            "rows, which [privacy] does not cover; write constants: data.label_mean and data.label_std with one number "
            f"for each of {shown(listed(data.recipe.targets))}"
        )


class Shelf:
    """Caches the data that was loaded last, since successive experiments mostly differ in something else."""

    def __init__(self) -> None:
        self._held: tuple[object, Loaded] | None = None

    def take(self, exp: Experiment, dataset: Dataset | None = None) -> Loaded:
        """An experiment's data, loaded unless it is cached."""
        wanted = (exp.data, exp.public, exp.device, id(dataset))
        if self._held is None or self._held[0] != wanted:
            self._held = None  # there may not be enough memory for two
            self._held = wanted, loaded(exp, dataset)
        return self._held[1]


def build(
    exp: Experiment,
    dataset: Dataset | None = None,
    network: Network | None = None,
    given: Loaded | None = None,
) -> Built:
    """Build what an experiment names; a given data set or network replaces the named one.

    `given` is its data, if it has been loaded before, possibly for another seed.
    """
    _refuse_other_kinds(dataset, network)
    given = loaded(exp, dataset) if given is None else given
    data, pools, statistics = given.data, given.pools, None
    aside, held = _set_aside(data, exp)
    rows = np.setdiff1d(np.arange(len(data.y)), np.concatenate([aside, held]))
    part = _divide(data, rows, exp.partition, _split_seed(exp))
    if pools is None:
        statistics = statistics_of(exp, data, [rows[mine] for mine in part.train])
        data = data.prepared(statistics.preparation)
        pools = pools_of(exp, data, statistics.preparation)
    pool, holdout = pools.train, pools.holdout
    public, space = public_of(exp, pools.other, pool, aside, held)
    everywhere = exp.partition.test == "global"
    setting = setting_of(
        exp,
        data,
        pool,
        [_site(pool, holdout, rows, part, k, everywhere) for k in range(part.clients)],
        public,
        space,
        network=network,
        holdout=None if everywhere else holdout,
        names=_names(data, rows, exp.partition),
        statistics={} if statistics is None else statistics.bytes,
    )
    if len(aside) or len(held):
        withheld = torch.from_numpy(np.concatenate([aside, held]))
        assert_disjoint(withheld, {k: _all_rows(site) for k, site in enumerate(setting.sites)})
    digests = {"data": given.digest, "partition": fingerprint(part)}
    if public is not None:
        digests["public set"] = _digest(public.inputs.cpu().numpy(), public.samples.labels.cpu().numpy())
        if public.task is not None:
            digests["server's rows"] = _digest(public.task.inputs.cpu().numpy(), public.task.labels.cpu().numpy())
    return Built(
        setting=setting,
        data=exp.data if dataset is None else replace(exp.data, name=dataset.name, options={}),
        model=exp.model if network is None else Choice(name=_name(network)),
        dataset=data,
        partition=part,
        card=card(part, data.y[rows], data.classes, data.task),
        digests=digests,
        statistics=statistics,
    )


def setting_of(
    exp: Experiment,
    data: Dataset,
    pool: Samples,
    sites: Sequence[Site],
    public: PublicSet | None,
    space: LabelSpace | None,
    *,
    network: Network | None = None,
    holdout: Samples | None = None,
    names: Sequence[str] = (),
    statistics: Mapping[str, Mapping[str, int]] | None = None,
) -> Setting:
    """The setting of an experiment with these sites; only the form of a sample matters in `data` and `pool`."""
    outputs = data.classes if space is None else space.outputs
    server = _started(network or network_of(exp.model, data, pool, outputs), exp.start)
    return Setting(
        sites=sites,
        networks=networks_of(exp, data, pool, outputs, len(sites)) if differing(exp) else [server],
        server=server if differing(exp) else None,
        classes=data.classes,
        task=data.task,
        seed=exp.seed,
        work=for_method(exp).training,
        participation=exp.participation,
        quorum=exp.quorum,
        privacy=exp.privacy,
        public=public,
        holdout=holdout,
        augment=augmentation(exp.data.augment, data.black),
        layout=exp.layout,
        scale=data.scale,
        targets=data.targets,
        space=space,
        amp_weights=exp.amp_weights,
        threshold=0.5 if exp.threshold is None else exp.threshold,
        private_answers=exp.public is not None and exp.public.answers == "private",
        names=names,
        statistics=statistics or {},
    )


def _refuse_other_kinds(dataset: object, network: object) -> None:
    if dataset is not None and not isinstance(dataset, Dataset):
        raise UsageError(
            f"dataset is a {type(dataset).__name__}; write dataset=from_arrays(x, y), from_torch(pairs) or "
            "load_data(name)"
        )
    if network is not None and (isinstance(network, nn.Module) or not callable(network)):
        raise UsageError(
            f"network is a {type(network).__name__}, but must be a function that makes one, since the server and every "
            "client need their own; write network=lambda: nn.Sequential(...), or the name of a class of yours"
        )


def _moved(samples: Samples, device: str) -> Samples:
    try:
        return samples.to(device)
    except (RuntimeError, AssertionError) as error:  # an unknown name, or no such hardware
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UsageError(f"device = '{device}', but this machine has no CUDA device; write \"cpu\"") from error
        raise UsageError(f'device = \'{device}\' cannot be used here; write "cpu" or "cuda"') from error


def check_names(exp: Experiment) -> None:
    """Refuse names and options that do not exist, without loading any data.

    >>> check_names(Experiment(partition=PartitionPart(name="iid", options={"alhpa": 1.0})))
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: partition has no key 'alhpa'; choose one of: clients, name, seed, test, \
test_fraction, test_samples, validation
    """
    check_options(exp.data, own_dataset if exp.data.name == LISTED else reader(exp.data.name), "data", OWN_GIVEN)
    augmentation(exp.data.augment, ())
    options = _partition_options(exp.partition)
    complete(exp.partition.name, options if exp.partition.name != "natural" else {**options, "ids": ()})
    for part in exp.models:
        _model_options(part, "models")
    for client in exp.clients:
        if client.network is not None:
            _model_options(client.network, "clients.network")
    _model_options(exp.model, "model")
    if exp.public is not None:
        _public_options(exp.public)


def _partition_options(part: PartitionPart) -> dict[str, Any]:
    return check_options(part, partitions[part.name], "partition", GIVEN["partition"])


def _model_options(choice: Choice | ModelPart, where: str) -> dict[str, Any]:
    factory = models.models[choice.name]
    added = {key: int for key in models.options_of(choice.name) if key not in inspect.signature(factory).parameters}
    return check_options(choice, factory, where, GIVEN["model"], added)


def _public_options(part: PublicPart) -> dict[str, Any]:
    # Rows of the private data have no options.
    return check_options(part, reader(part.data) if part.data != "own" else lambda: None, "public", OWN_GIVEN)


def _load(exp: Experiment) -> Dataset:
    part = exp.data
    if part.name == LISTED:
        files = [(client.name, Path(client.data)) for client in exp.clients if client.data is not None]
        return own_dataset(files, size=part.size, **check_options(part, own_dataset, "data", OWN_GIVEN))
    options = check_options(part, reader(part.name), "data", OWN_GIVEN)
    return _read(part.name, {**options, **({"size": part.size} if is_own(part.name) else {})})


def _read(name: str, options: Mapping[str, Any]) -> Dataset:
    try:
        return load_data(name, **options)
    except OSError as error:
        raise UsageError(f"the data set '{name}' cannot be read: {error.strerror}") from error


def networks_of(exp: Experiment, data: Dataset, pool: Samples, outputs: int, clients: int) -> list[Network]:
    """Each client's network; equal networks are the same object, which is how they are recognised as equal."""
    exp.participation.check(clients)  # its tiers may say which client has which
    if exp.clients:
        return _own_networks(exp, data, pool, outputs)
    makers = [network_of(part, data, pool, outputs, "models") for part in exp.models]
    costs: list[float] = []
    if exp.budget is not None:
        example = pool.take([0])[0]
        size = parameter_count if exp.budget.unit == "parameters" else partial(forward_flops, example=example)
        costs = [size(initial(maker, exp.seed, device=example.device)) for maker in makers]
    dealt = assign(exp.models, clients, exp.budget, costs, exp.participation.tiers or ())
    return [makers[number] for number in dealt]


def differing(exp: Experiment) -> bool:
    """Whether clients have networks of their own."""
    return bool(exp.models) or any(client.network is not None for client in exp.clients)


def _own_networks(exp: Experiment, data: Dataset, pool: Samples, outputs: int) -> list[Network]:
    """The networks that [[clients]] gives, or that of [model] where it gives none."""
    wanted = [exp.model if client.network is None else client.network for client in exp.clients]
    makers: list[tuple[Choice, Network]] = []
    for choice in wanted:
        if not any(choice == known for known, _ in makers):
            makers.append((choice, network_of(choice, data, pool, outputs, "clients.network")))
    return [next(maker for known, maker in makers if known == choice) for choice in wanted]


def network_of(choice: Choice | ModelPart, data: Dataset, pool: Samples, outputs: int, where: str = "model") -> Network:
    """The factory of the chosen network for these samples and this number of outputs."""
    options = _model_options(choice, where)
    _, channels, height, width = pool.x.shape

    if height != width:
        raise UsageError(
            f"the images of '{data.name}' are {height} x {width}, but the model '{choice.name}' needs square ones; "
            f"write data.size = {max(height, width)}"
        )
    # A partial can be sent to another process; a nested function cannot.
    return partial(_created, choice.name, classes=outputs, channels=channels, size=height, **options)


def _created(name: str, **options: Any) -> nn.Module:
    try:
        return models.create(name, **options)
    except UsageError as error:
        if "resize the images" not in str(error):
            raise
        raise UsageError(f"{error} with data.size, or write model = 'mlp', which takes any size") from None
    except (RuntimeError, MemoryError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is too large"
        raise UsageError(f"the model '{name}' cannot be built with these options: {reason[:200]}") from error


def network_name(network: Network) -> str:
    """The registered name of a network of [[models]], or that of a function of the user's."""
    return str(network.args[0]) if isinstance(network, partial) and network.func is _created else _name(network)


def _name(network: Network) -> str:
    name = getattr(network, "__name__", "")
    return name if name.isidentifier() else "network"


def tried(setting: Setting) -> nn.Module:
    """The server's initial network, after passing one sample through it and through every client's network.

    This finds a mismatch before a run starts.
    """
    x = setting.sites[0].train.take([0])[0]
    if setting.augment is not None:
        x = _augmented(setting.augment, x, setting.seed)
    owners = {network: k for k, network in enumerate(setting.networks)} | {setting.network(SERVER): SERVER}
    return {k: _answers(setting.build(k), x, setting.outputs) for k in owners.values()}[SERVER]


def _answers(net: nn.Module, x: Tensor, classes: int) -> nn.Module:
    try:
        with torch.no_grad():
            out = net.eval()(x)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"the network cannot take inputs of shape {_shape(x)}: {error}") from error
    if tuple(out.shape) != (1, classes):
        raise UsageError(
            f"the network answers an input with an output of shape {_shape(out)}; "
            f"it must be one number for each of the {classes} classes"
        )
    return net


def _augmented(augment: Augmentation, x: Tensor, seed: int) -> Tensor:
    try:
        return augment(x, rng.generator(seed, "trial"))
    except RuntimeError as error:
        raise UsageError(f"data.augment does not work on inputs of shape {_shape(x)}: {error}") from error


def _shape(batch: Tensor) -> str:
    return " x ".join(str(n) for n in batch.shape[1:]) or "one number"


def _divide(data: Dataset, rows: NDArray[np.int64], part: PartitionPart, seed: int) -> Partition:
    given = _partition_options(part)
    clients = part.clients
    if part.name == "natural":
        if data.client_ids is None:
            raise UsageError(
                f"the data set '{data.name}' does not say which client a row belongs to; use another partition"
            )
        given["ids"] = data.client_ids[rows]
        clients = len(np.unique(given["ids"]))
    if part.test != "local":
        if data.y_test is None:
            raise UsageError(f"partition.test = '{part.test}', but the data set '{data.name}' has no test split")
        given["test_labels"] = strata(part.name, data.y_test, data.task)
        given["test_samples"] = part.test_samples
    if part.test_samples is not None and part.test != "official":
        raise UsageError("partition.test_samples goes with partition.test = 'official'; write test_fraction instead")
    divided = split(
        strata(part.name, data.y[rows], data.task),
        name=part.name,
        clients=clients,
        seed=seed,
        test_fraction=part.test_fraction,
        validation=part.validation,
        own_tests=data.own_tests[rows] if data.own_tests is not None and part.test == "local" else None,
        **given,
    )
    if part.test == "global":
        assert data.y_test is not None
        return replace(divided, test=(np.arange(len(data.y_test)),) * divided.clients)
    return divided


def _names(data: Dataset, rows: NDArray[np.int64], part: PartitionPart) -> tuple[str, ...]:
    """The clients' names, if they are the data set's own clients; one whose rows are all set aside is not a client."""
    if part.name != "natural" or data.client_ids is None or not data.client_names:
        return ()
    return tuple(data.client_names[id] for id in np.unique(data.client_ids[rows]).tolist())


def _site(
    pool: Samples, holdout: Samples | None, rows: NDArray[np.int64], part: Partition, k: int, everywhere: bool
) -> Site:
    def of(positions: NDArray[np.int64]) -> Samples:
        return pool.subset(torch.from_numpy(rows[positions]))

    if part.test_from == "official":
        assert holdout is not None
        test = holdout if everywhere else holdout.subset(torch.from_numpy(part.test[k]))
    else:
        test = of(part.test[k])
    return Site(of(part.train[k]), test, of(part.val[k]) if len(part.val[k]) else None)


def _set_aside(data: Dataset, exp: Experiment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the private data that no client has: those of a public set, and those that the server validates on."""
    part = exp.public
    if part is None:
        return np.arange(0), np.arange(0)
    _public_options(part)
    own = part.samples if part.data == "own" else 0
    if own + part.task_samples >= len(data.y):
        taken = {"public.samples": own, "public.task_samples": part.task_samples}
        keys = " and ".join(f"{key} = {rows}" for key, rows in taken.items() if rows)
        largest = max(taken, key=lambda key: taken[key])
        raise UsageError(
            f"{keys} leaves nothing of the {len(data.y)} rows for the clients; write fewer, for example "
            f"{largest} = {max(1, len(data.y) // 10)}"
        )
    aside = _from_each_class(data, np.arange(len(data.y)), own, rng.numpy_generator(_split_seed(exp), "public rows"))
    rest = np.setdiff1d(np.arange(len(data.y)), aside)
    stream = rng.numpy_generator(_split_seed(exp), "server's rows")
    return aside, _from_each_class(data, rest, part.task_samples, stream)


def _split_seed(exp: Experiment) -> int:
    """The seed that decides who owns which row of the private data, the public set and the server included."""
    return exp.seed if exp.partition.seed is None else exp.partition.seed


def _from_each_class(
    data: Dataset, rows: NDArray[np.int64], wanted: int, stream: np.random.Generator
) -> NDArray[np.int64]:
    """Some of these rows, the same number from each class, drawn at random; where there are no classes, any rows."""
    shuffled = rows[stream.permutation(len(rows))]
    if data.task != "classes":
        return np.sort(shuffled[:wanted])
    # Take the first of every class, then the second of every class, and so on.
    rank = np.empty(len(rows), dtype=np.int64)
    for label in range(data.classes):
        mine = np.flatnonzero(data.y[shuffled] == label)
        rank[mine] = np.arange(len(mine))
    return np.sort(shuffled[np.argsort(rank, kind="stable")[:wanted]])


def public_of(
    exp: Experiment,
    other: Other | None,
    pool: Samples,
    aside: Sequence[int] | NDArray[np.int64] = (),
    held: Sequence[int] | NDArray[np.int64] = (),
) -> tuple[PublicSet | None, LabelSpace | None]:
    """The public set, from the rows set aside or from another data set, and what the networks' outputs mean.

    Outputs mean more than the private classes only if the other data set has its own classes.
    """
    part = exp.public
    if part is None:
        return None, None
    task = pool.subset(torch.as_tensor(held)) if len(held) else None
    known = partial(PublicSet, labelled=part.labelled, holder=part.holder, task=task)
    if other is None:
        assert len(aside)
        return known(pool.subset(torch.as_tensor(aside))), None
    order = torch.randperm(len(other.samples), generator=rng.generator(exp.seed, "public rows"))
    rows = other.samples.subset(order[: part.samples])
    return known(rows, shared_labels=other.shared_labels), other.space


def other_data(
    exp: Experiment, data: Dataset, pool: Samples, preparation: Preparation | None = None, folder: Path = Path()
) -> Other | None:
    """All samples of the data set that an experiment's public set comes from, if it is another one.

    They are prepared as the clients' rows are; the path of a file is relative to `folder`.
    """
    part = exp.public
    if part is None or part.data == "own":
        return None
    if is_own(part.data):
        other = _own_public(exp, data, preparation, folder)
    else:
        other = _read(part.data, _public_options(part))
        if other.recipe is not None:
            other = _prepared_alike(other, preparation, data.name)
        elif preparation is not None and other.task == "numbers" and other.classes == data.classes:
            other = other.standardised(preparation)
    if np.array_equal(other.x, data.x):  # a different shape is found without looking at any sample
        raise UsageError(
            f"the public set '{part.data}' holds the same samples as the private data '{data.name}', whose clients "
            'would give theirs away; write public.data = "own", which sets rows of it aside, or name another data set'
        )
    if other.x.shape[1] != data.x.shape[1]:
        raise UsageError(
            f"the public set '{part.data}' has {other.x.shape[1]} channels and '{data.name}' {data.x.shape[1]}; "
            "choose one with the same number"
        )
    if part.samples > len(other.y):
        raise UsageError(
            f"public.samples = {part.samples}, but '{part.data}' has {len(other.y)}; write that many or fewer"
        )
    if part.labelled and (other.task, other.y.shape[1:]) != (data.task, data.y.shape[1:]):
        raise UsageError(
            f"the labels of the public set '{part.data}' are not of the same kind as those of '{data.name}'; "
            "write public.labelled = false, or name another data set"
        )
    if part.classes == "added" and data.task != "classes":
        raise UsageError(f"public.classes = 'added' needs classes, but '{data.name}' has none; leave it out")
    # Use the private statistics, so that all networks see inputs on one scale.
    size = None if other.x.shape[2:] == tuple(pool.x.shape[2:]) else pool.x.shape[-1]
    everything, _ = tensors(replace(other, mean=data.mean, std=data.std), size=size)
    space = None
    if part.classes == "added":
        space = LabelSpace((("private", data.classes), ("public", other.classes)))
        everything = replace(everything, y=everything.y + space.index("public", 0))
    elif part.labelled and other.classes > data.classes:
        raise UsageError(
            f"the public set '{part.data}' has {other.classes} classes and '{data.name}' {data.classes}; "
            "write public.classes = 'added' to give them outputs of their own"
        )
    named_otherwise = bool(data.label_names and other.label_names and data.label_names != other.label_names)
    return Other(_moved(everything, exp.device), space, shared_labels=space is None and not named_otherwise)


def _own_public(exp: Experiment, data: Dataset, preparation: Preparation | None, folder: Path) -> Dataset:
    """A public set from own files, which are read and prepared like the private ones.

    What [public] does not say about them, such as the label's column, is as in [data].
    """
    part = exp.public
    assert part is not None
    like_data = {key: exp.data.options[key] for key in PUBLIC_LIKE if key in exp.data.options}
    alike = replace(part, options={**(like_data if preparation is not None else {}), **part.options})
    options = _public_options(alike)
    agreed = None
    if preparation is not None and part.classes == "shared":
        names = [column.name for column in preparation.columns]
        coded = [column.name for column in preparation.columns if column.categories is not None]
        table = data.x.shape[2:] == (1, 1)
        shape = (len(names), 1, 1) if table else tuple(data.x.shape[1:])
        outputs = data.label_names or tuple(str(number) for number in range(data.classes))
        agreed = Format(tuple(names) if table else (), tuple(coded), outputs, data.task, shape)
    elif part.classes == "shared":
        options = {"classes": data.classes, **options}
    path = folder / part.data
    if part.sha256 is not None and (found := file_digest(path)) != part.sha256:
        raise DataError(
            f"the public set '{part.data}' has the SHA-256 {found[:16]}..., but public.sha256 begins with "
            f"{part.sha256[:16]}; use the file that everybody has"
        )
    labelled = part.labelled or agreed is None
    other = own_dataset(path, size=exp.data.size, agreed=agreed, labelled=labelled, **options)
    return _prepared_alike(other, preparation, exp.data.name)


def _prepared_alike(other: Dataset, preparation: Preparation | None, name: str) -> Dataset:
    """A public set with inputs prepared as the clients' are; if theirs need no preparation, by its own statistics."""
    if preparation is None:
        return other.prepared(agree([summarise(other.x, other.columns, Recipe())], other.columns, Recipe()))
    theirs, ours = ([column.name for column in columns] for columns in (other.columns, preparation.columns))
    if theirs != ours:
        raise UsageError(
            f"the public set '{other.name}' has the columns {shown(listed(theirs))}, but '{name}' has "
            f"{shown(listed(ours))}; name one with the same columns"
        )
    return other.prepared(preparation)


def _started(network: Network, start: str | None) -> Network:
    if start is None:
        return network
    return _Started(network, read_weights(start))


@dataclass(frozen=True, eq=False)
class _Started:
    """A network that starts from these weights; like a partial, it can be sent to another process."""

    without_start: Network
    weights: Mapping[str, Tensor]

    def __call__(self) -> nn.Module:
        return load_weights(self.without_start(), self.weights)


def _all_rows(site: Site) -> Tensor:
    shared = [s for s in (site.train, site.validation, site.test) if s is not None and s.x is site.train.x]
    return torch.cat([s.index for s in shared])


def _data_digest(data: Dataset) -> str:
    scale = np.array([data.classes, *data.mean, *data.std])
    if data.recipe is not None:
        read_as = repr((data.columns, data.recipe)).encode()
        scale = np.concatenate([scale, np.frombuffer(hashlib.sha256(read_as).digest(), np.uint8)])
    return _digest(scale, *(a for a in (data.x, data.y, data.x_test, data.y_test) if a is not None))


def _digest(*arrays: NDArray[Any]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(str((array.shape, array.dtype)).encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
