"""Experiments from tables and files: what is refused and in which words, and that what is accepted comes back whole."""

from __future__ import annotations

import copy
import datetime
import json
import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedalloy.aggregation.cache import Cache
from fedalloy.config import experiment as config
from fedalloy.config.build import check_names
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import make_method
from fedalloy.config.overrides import override
from fedalloy.config.sections import Choice, Experiment, check_options
from fedalloy.errors import FedalloyError, UsageError
from fedalloy.federation.core import Card, Method, method, methods
from fedalloy.methods import FedAvg

EVERYTHING = """
rounds = 3
seed = 7
evaluate_every = 2
start = "first.safetensors"
method = "fedavgm"

[data]
name = "emnist-letters"
size = 32
augment = "cifar10-kdia"
normalise = "fedkf"
per_class = 480

[partition]
name = "dirichlet"
clients = 12
seed = 3
test = "official"
test_samples = 50
validation = 0.1
alpha = 0.5
balanced = false

[model]
name = "mlp"
hidden = [32, 16]

[training]
work = "equal_steps"
epochs = 2
batch = 16
optimiser = "adam"
lr = 1e-3
weight_decay = 1e-5
schedule = "cosine"
clip = 5.0

[participation]
policy = "trace"
trace = [[0, 1], [2]]
late_drop = 0.1

[public]
data = "own"
samples = 100
labelled = true
holder = "server"

[stop]
metric = "validation"
target = 0.9
patience = 5
bytes = 1000000
seconds = 60

[methods.local]
[methods.fedprox]
mu = 1
[methods."strong pull"]
name = "fedprox"
mu = 10.0
"""


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    (tmp_path / "all.toml").write_text(EVERYTHING)
    return tmp_path / "all.toml"


def test_a_file_with_every_section_is_read(everything: Path) -> None:
    exp = config.read(everything)
    assert (exp.rounds, exp.seed, exp.evaluate_every, exp.start) == (3, 7, 2, "first.safetensors")
    assert (exp.data.name, exp.data.size, exp.data.augment) == ("emnist-letters", 32, "cifar10-kdia")
    assert exp.data.options == {"normalise": "fedkf", "per_class": 480}
    assert (exp.partition.clients, exp.partition.seed, exp.partition.test_samples) == (12, 3, 50)
    assert exp.partition.options == {"alpha": 0.5, "balanced": False}
    assert exp.model == Choice(name="mlp", options={"hidden": [32, 16]})
    assert exp.method == Choice(name="fedavgm")
    assert (exp.training.work, exp.training.lr, exp.training.clip) == ("equal_steps", 1e-3, 5.0)
    assert exp.participation.trace == [[0, 1], [2]]
    assert exp.public is not None
    assert (exp.public.samples, exp.public.labelled, exp.public.holder) == (100, True, "server")
    assert (exp.stop.metric, exp.stop.target, exp.stop.patience, exp.stop.bytes) == ("validation", 0.9, 5, 1_000_000)
    assert exp.methods["strong pull"] == Choice(name="fedprox", options={"mu": 10.0})
    assert list(exp.methods) == ["local", "fedprox", "strong pull"]


def test_every_file_of_experiments_can_be_read() -> None:
    for file in (Path(__file__).parents[1] / "src" / "fedalloy" / "experiments").glob("*.toml"):
        config.read(file)


def test_every_recorded_run_has_an_experiment_that_can_still_be_read() -> None:
    files = sorted((Path(__file__).parents[1] / "results" / "runs").glob("*/run.json"))
    assert files
    for file in files:
        meta = json.loads(file.read_text())
        assert config.recorded(meta).rounds == meta["experiment"]["rounds"], file


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["method=fedprox", "method.mu=1"],
        ["data=mnist", "data.normalise=dafkd", "public=tiny", "public.samples=20"],
        ["partition=classes", "partition.per_client=2", "partition.validation=0.5"],
        ["participation.policy=bernoulli", "participation.fraction=0.3"],
        ["stop.patience=3", "stop.seconds=10"],
        ["methods.local.second_phase=2", "start=x.safetensors", "rounds=1"],
        ["model=mlp", "model.hidden=[]", "training.clip=1"],
        ["model.projection=false", "cache.oca=false"],
    ],
)
def test_an_experiment_comes_back_whole(changes: list[str]) -> None:
    exp = experiment(override({}, changes))
    assert experiment(exp.to_dict()) == exp
    assert experiment(copy.deepcopy(exp.to_dict())).to_dict() == exp.to_dict()


def test_a_file_with_every_section_comes_back_whole(everything: Path) -> None:
    exp = config.read(everything)
    assert experiment(exp.to_dict()) == exp


def test_no_values_at_all_are_the_defaults() -> None:
    assert experiment({}) == Experiment()


def test_an_option_that_is_none_is_not_its_default(own_method: type[Method]) -> None:
    exp = experiment({"method": {"name": "of-the-test", "clip": None}})
    assert make_method(exp) == own_method(clip=None)  # type: ignore[call-arg]
    assert experiment(exp.to_dict()) == exp


def test_a_list_fits_an_option_that_is_a_tuple(own_method: type[Method]) -> None:
    exp = experiment({"method": {"name": "of-the-test", "widths": [3, 4]}})
    assert make_method(exp) == own_method(widths=(3, 4))  # type: ignore[call-arg]


def test_options_without_a_name_are_those_of_the_default() -> None:
    found = experiment({"method": {"cache": {"oca": False}}})
    assert found.method == Choice(name="fedavg", cache={"oca": False})
    assert make_method(found) == FedAvg(cache=Cache(oca=False))


def test_a_method_without_what_it_needs_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needy:
        mu: float

    with pytest.raises(UsageError, match=r"needy.*'mu'"):
        config.construct(Needy, {}, "needy")


@pytest.fixture
def own_method() -> Iterator[type[Method]]:
    @method("of-the-test", label="Of the test", card=Card(paper="none", up="nothing", down="nothing"))
    class OfTheTest(Method):
        clip: float | None = 1.0
        widths: tuple[int, ...] = (1, 2)

    yield OfTheTest
    methods._things.pop("of-the-test")  # type: ignore[attr-defined]  # a registry only grows


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"round": 3}, "the experiment has no key 'round'; did you mean 'rounds'?"),
    ({"qqq": 3}, "the experiment has no key 'qqq'; choose one of: aggregation, amp_weights, budget, "),
    ({"method": {"name": "fedprox", "mue": 1}}, "fedprox has no key 'mue'; did you mean 'mu'?"),
    ({"method": "fedproxx"}, "there is no method 'fedproxx'; did you mean 'fedprox'?"),
    ({"methods": {"fedprox": {"mue": 1}}}, "fedprox has no key 'mue'; did you mean 'mu'?"),
    ({"methods": {"mine": {}}}, "there is no method 'mine'; choose one of: "),
    ({"methods": {"fedprox": 0.1}}, "methods.fedprox must be a table; write [methods.fedprox]"),
    ({"methods": ["fedprox"]}, "methods = ['fedprox'] must be a table; write [methods]"),
    ({"training": {"learning_rate": 0.1}}, "training has no key 'learning_rate'; choose one of: batch, "),
    ({"training": {"epoch": 1}}, "training has no key 'epoch'; did you mean 'epochs'?"),
    ({"participation": {"fractoin": 0.1}}, "participation has no key 'fractoin'; did you mean 'fraction'?"),
    ({"stop": {"patiense": 3}}, "stop has no key 'patiense'; did you mean 'patience'?"),
    ({"training": {"lr": "fast"}}, "training.lr = 'fast' must be a valid number"),
    ({"training": {"lr": float("nan")}}, "training.lr = nan must be a finite number"),
    ({"training": {"lr": -1}}, "training.lr = -1 must be greater than 0"),
    ({"training": {"optimiser": "sdg"}}, "training.optimiser = 'sdg' must be 'sgd' or 'adam'"),
    ({"training": 3}, "training = 3 must be a table; write [training]"),
    ({"data": 3}, "data = 3 must be a table; write [data]"),
    ({"stop": "soon"}, "stop = 'soon' must be a table; write [stop]"),
    ({"data": {"name": 3}}, "data.name = 3 must be a valid string"),
    ({"data": {"size": 0}}, "data.size = 0 must be at least 1"),
    ({"rounds": 2.5}, "rounds = 2.5 must be a valid integer"),
    ({"rounds": True}, "rounds = True must be a valid integer"),
    ({"rounds": "3"}, "rounds = '3' must be a valid integer"),
    ({"rounds": 0}, "rounds = 0 must be at least 1"),
    ({"evaluate_every": 0}, "evaluate_every = 0 must be at least 1"),
    ({"seed": -1}, "seed = -1 must be at least 0"),
    ({"partition": {"seed": 2**32}}, "partition.seed = 4294967296 must be less than 4294967296"),
    ({"participation": {"fraction": 0}}, "participation.fraction = 0 must be greater than 0"),
    ({"participation": {"fraction": 1.5}}, "participation.fraction = 1.5 must be at most 1"),
    ({"participation": {"trace": [[0], ["a"]]}}, "participation.trace[1][0] = 'a' must be a valid integer"),
    ({"participation": {"trace": [3]}}, "participation.trace[0] = 3 must be a list of "),
    ({"participation": {"trace": "all"}}, "participation.trace = 'all' must be a list of lists"),
    ({"participation": {"tiers": "0-3"}}, "participation.tiers = '0-3' must be a list of "),
    ({"participation": {"speeds": 1e9}}, "participation.speeds = 1000000000.0 must be a list of numbers"),
    ({"published": [{"source": "a", "metrics": "amp"}]}, "published.metrics = 'amp' must be a list"),
    ({"public": {"samples": 0}}, "public.samples = 0 must be at least 1"),
    ({"public": {"holder": "me"}}, "public.holder = 'me' must be 'server' or 'all'"),
    ({"stop": {"patience": 0}}, "stop.patience = 0 must be at least 1"),
    ({"stop": {"target": 80}}, "stop.target = 80 must be at most 1"),
    ({"stop": {"target": 0.8, "metric": "validation"}}, "stop.metric = 'validation' needs a validation share"),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_what_is_wrong_is_said_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        experiment(values)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert caught.value.code == 2


def test_a_method_of_the_files_own_is_chosen_with_its_options() -> None:
    values: dict[str, Any] = {
        "method": "fedavg",
        "methods": {"fedprox": {"mu": 0.5}, "strong": {"name": "fedprox", "mu": 1.0}},
    }

    def choose(*overrides: str) -> Choice:
        return experiment(override(values, overrides)).method

    assert choose("method=fedprox") == Choice(name="fedprox", options={"mu": 0.5})
    assert choose("method=strong", "method.mu=2.0") == Choice(name="fedprox", options={"mu": 2.0})
    assert choose("method=fedavgm") == Choice(name="fedavgm")
    assert values["methods"]["strong"] == {"name": "fedprox", "mu": 1.0}


def test_overrides_reach_into_tables_and_choose_names() -> None:
    values = {"method": {"name": "fedprox", "mu": 0.1}, "data": "tiny", "training": {"lr": 0.1}}
    words = ["method=fedavg", "data=mnist", "model.hidden=[32,32]", "training.lr=1e-2", "methods.local.second_phase=1"]
    assert override(values, words) == {
        "method": {"name": "fedavg"},
        "data": {"name": "mnist"},
        "training": {"lr": 0.01},
        "model": {"hidden": [32, 32]},
        "methods": {"local": {"second_phase": 1}},
    }
    assert values == {"method": {"name": "fedprox", "mu": 0.1}, "data": "tiny", "training": {"lr": 0.1}}


def test_a_name_written_short_can_be_given_options() -> None:
    assert override({"method": "fedprox"}, ["method.mu=1"]) == {"method": {"name": "fedprox", "mu": 1}}
    assert override({"public": "mnist"}, ["public.samples=5"]) == {"public": {"data": "mnist", "samples": 5}}
    assert override({"method": "fedprox"}, ["method=fedprox"]) == {"method": {"name": "fedprox"}}


def test_the_same_name_again_keeps_the_options() -> None:
    values = {"method": {"name": "fedprox", "mu": 1}}
    assert override(values, ["method=fedprox"]) == values


def test_another_partition_keeps_the_clients_and_drops_the_options() -> None:
    values = {"partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0}}
    assert override(values, ["partition=iid"]) == {"partition": {"name": "iid", "clients": 4}}


@pytest.mark.parametrize(
    ("raw", "value"),
    [("1", 1), ("1.0", 1.0), ("true", True), ("fedavg", "fedavg"), ("'1'", "1"), ("", ""), ("a/b.npz", "a/b.npz")],
)
def test_values_are_read_as_toml_and_words_as_strings(raw: str, value: object) -> None:
    assert override({}, [f"x={raw}"]) == {"x": value}


@pytest.mark.parametrize("text", ["rounds", "=3", ""])
def test_an_override_without_a_sign_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an override; write key=value, for instance training"):
        override({}, [text])


def test_an_override_below_a_number_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be set: rounds is not a table"):
        override({"rounds": 3}, ["rounds.x=1"])


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    for name, sentence in (
        ("missing.toml", "there is no experiment file"),
        ("broken.toml", "is not TOML: Invalid value"),
        ("bytes.toml", "cannot be read: "),
        (".", "is a folder"),
    ):
        with pytest.raises(UsageError, match=sentence):
            config.read(tmp_path / name)


def test_options_are_checked_against_what_makes_the_thing() -> None:
    def ring(*, classes: int, radius: float = 1.0, closed: bool = True) -> None: ...

    def part(**options: Any) -> Choice:
        return Choice(name="ring", options=options)

    assert check_options(part(radius=2, closed=False), ring, "model", ["classes"]) == {"radius": 2.0, "closed": False}
    for options, sentence in (
        ({"radius": "wide"}, "model.radius = 'wide' must be a valid number"),
        ({"closed": "no"}, "model.closed = 'no' must be a valid boolean"),
        ({"classes": 3}, "model has no key 'classes'; "),
        ({"nam": 3}, "model has no key 'nam'; did you mean 'name'"),
    ):
        with pytest.raises(UsageError, match=sentence):
            check_options(part(**options), ring, "model", ["classes"])


def test_annotations_for_the_type_checker_alone_do_no_harm() -> None:
    def ring(*, radius: Radius = 1.0) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert check_options(Choice(name="ring", options={"radius": 2}), ring, "model") == {"radius": 2}


STRANGE = [
    *(None, True, -1, 0, 2**70, 0.5, -1e308, float("nan"), float("inf"), "", "fedavg", "tiny", "x" * 99, [], [[]]),
    *([1, "a"], {}, {"name": 3}, {"name": "fedavg"}, {"": 1}, datetime.date(2020, 1, 1), {"a": {"b": [{}]}}),
]


def _mutate(values: dict[str, Any], dice: random.Random) -> None:
    """Change, add or remove something somewhere in the tables."""
    node = values
    while (below := [v for v in node.values() if isinstance(v, dict)]) and dice.random() < 0.6:
        node = dice.choice(below)
    names = [*node, *values, "mu", "alpha", "nmae", "options", ""]
    key = dice.choice(names)
    if dice.random() < 0.2:
        node.pop(key, None)
    else:
        node[key] = copy.deepcopy(dice.choice(STRANGE))


def test_whatever_stands_in_a_file_is_built_or_refused_in_a_sentence() -> None:
    dice = random.Random(0)
    whole = tomllib.loads(EVERYTHING)
    accepted = 0
    for _ in range(300):
        values = copy.deepcopy(whole)
        for _ in range(dice.choice([1, 1, 2, 5])):
            _mutate(values, dice)
        try:
            exp = experiment(values)
        except FedalloyError:
            continue
        accepted += 1
        assert experiment(exp.to_dict()) == exp
    assert 20 < accepted < 280


@pytest.mark.parametrize(("key", "home"), [("lr", "training.lr"), ("clients", "partition.clients")])
def test_a_key_without_its_section_is_told_where_it_belongs(key: str, home: str) -> None:
    with pytest.raises(UsageError, match=rf"{key}.*{re.escape(home)}\b"):
        experiment({key: 1})


@pytest.mark.parametrize(
    ("values", "text", "after"),
    [
        ({"data": {"name": "emnist-letters", "per_class": 480, "size": 32}}, "data.name=cifar10", {"size": 32}),
        ({"data": {"per_class": 480}}, "data.name=fashion-mini", {"per_class": 480}),  # the default's name
        ({"partition": {"alpha": 0.5, "clients": 3}}, "partition.name=iid", {"clients": 3}),
        ({"model": {"name": "wrn", "depth": 10}}, "model.name=resnet8", {}),
        ({"public": {"data": "cifar100", "labels": "coarse", "samples": 9}}, "public.data=cifar10", {"samples": 9}),
        ({"method": {"name": "fedprox", "mu": 0.1}}, "method.name=moon", {}),
    ],
)
def test_a_name_set_by_its_key_drops_the_options_of_the_old_one(
    values: dict[str, Any], text: str, after: dict[str, Any]
) -> None:
    key, name = text.split("=")
    section, last = key.split(".")
    assert override(values, [text])[section] == {**after, last: name}
    if "name" in values[section] or section != "data":  # and so does the short form
        assert override(values, [f"{section}={name}"]) == override(values, [text])


def test_the_name_of_a_listed_method_can_be_set_too() -> None:
    listed = {"methods": {"mild": {"name": "fedprox", "mu": 0.001, "cache": {"oca": False}}}}
    assert override(listed, ["method.name=mild"])["method"] == listed["methods"]["mild"]
    assert override(listed, ["methods.mild.name=moon"])["methods"]["mild"] == {"name": "moon"}  # the cache was its own


@pytest.mark.parametrize(
    ("section", "before", "text", "after"),
    [
        ("training", {"work": "fixed_steps", "steps": 20, "lr": 0.1}, "work=epochs", {"work": "epochs", "lr": 0.1}),
        ("training", {"optimiser": "sgd", "momentum": 0.9}, "optimiser=adam", {"optimiser": "adam"}),
        ("training", {"schedule": "step", "step_every": 3}, "schedule=step", {"schedule": "step", "step_every": 3}),
        ("aggregation", {"combine": "trimmed", "trim": 0.3}, "combine=median", {"combine": "median"}),
    ],
)
def test_an_override_drops_the_keys_of_the_file_that_have_no_effect_with_it(
    section: str, before: dict[str, Any], text: str, after: dict[str, Any]
) -> None:
    assert override({section: before}, [f"{section}.{text}"]) == {section: after}
    nested = override({"method": {"name": "fedavg", section: before}}, [f"method.{section}.{text}"])
    assert nested["method"][section] == after


@pytest.mark.parametrize(
    "texts",
    [
        ["training.steps=5", "training.work=epochs"],
        ["method.mu=0.1", "method=fedprox"],
        ["data.per_class=5", "data.name=cifar10"],
    ],
)
def test_an_override_that_a_later_one_undoes_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match=texts[0].replace(".", r"\.")):
        override({"data": "mnist"}, texts)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kdia-cifar", "'kdia-cifar10.toml'"),
        ("nothing-like-it", ""),
    ],
)
def test_a_file_that_does_not_exist_is_answered_with_the_nearest(
    name: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kdia-cifar10.toml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"there is no experiment file '{name}'.*{instead}"):
        config.read(name)


def test_a_data_set_that_is_not_known_may_be_a_file() -> None:
    with pytest.raises(UsageError, match=r"'patients'; choose one of: cifar10, .*path of a file"):
        check_names(experiment({"data": "patients"}))
