"""From an experiment to its setting: own data, public sets, networks, and what is refused before anything runs."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedalloy.config import build as build_module
from fedalloy.config.build import Built, build, tried
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import make_method
from fedalloy.config.overrides import override
from fedalloy.config.sections import Choice, Experiment
from fedalloy.data import from_arrays, load_data, tensors
from fedalloy.errors import DataError, FedalloyError, UsageError
from fedalloy.federation.core import Card, Method, method, methods
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedAvg, Local
from fedalloy.nets import models

TINY: dict[str, Any] = {"data": "tiny", "model": "mlp", "partition": {"name": "iid", "clients": 4}}


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


def built(*overrides: str, **replacements: Any) -> Built:
    return build(experiment(override(TINY, overrides)), **replacements)


def test_an_experiment_becomes_a_setting() -> None:
    made = built("partition.validation=0.25", "seed=3")
    assert isinstance(tried(made.setting), models.FeatureNet)
    setting = made.setting
    assert setting.sizes == [90, 90, 90, 90]  # 600 rows: 150 each, 30 for the test, a quarter of 120 for validation
    assert [len(site.test) for site in setting.sites] == [30] * 4
    assert [len(site.validation or ()) for site in setting.sites] == [30] * 4
    assert (setting.classes, setting.seed) == (10, 3)
    assert setting.holdout is not None
    assert len(setting.holdout) == 200


def test_official_tests_come_from_the_test_split() -> None:
    setting = built("partition.test=official", "partition.test_samples=12").setting
    assert setting.sizes == [150] * 4
    assert setting.holdout is not None
    for site in setting.sites:
        assert len(site.test) <= 12
        assert site.test.x is setting.holdout.x


def test_images_are_resized() -> None:
    assert built("data.size=12").setting.sites[0].train.x.shape == (600, 1, 12, 12)


def test_equal_experiments_have_equal_digests_and_others_do_not() -> None:
    one, same, other = built(), built(), built("seed=1")
    assert one.digests == same.digests
    assert one.digests["data"] == other.digests["data"]
    assert one.digests["partition"] != other.digests["partition"]
    scaled = dataclasses.replace(load_data("tiny"), mean=(0.0,))
    assert built(dataset=scaled).digests["data"] != one.digests["data"]


WRONG = [
    (["data=tinny"], "there is no data set 'tinny'; did you mean 'tiny'?"),
    (["data.siez=8"], "data has no key 'siez'; did you mean 'size'?"),
    (["data=fashion-mini", "data.normalise=3"], "data.normalise = 3 must be a valid string"),
    (["data=fashion-mini", "data.normalise=kdia"], "data set 'fashion-mini' has no normalisation 'kdia'"),
    (["data.augment=flip"], "there is no augmentation 'flip'"),
    (["model=mpl"], "there is no model 'mpl'; did you mean 'mlp'?"),
    (["model.hiden=3"], "model has no key 'hiden'; did you mean 'hidden'?"),
    (["model.hidden=wide"], "model.hidden = 'wide' must be a valid integer or a list of "),
    (["model.hidden=[0]"], "the model 'mlp' cannot be built: hidden=0 "),
    (["model.classes=3"], "model has no key 'classes'"),
    (["model=simple-cnn"], "the model 'simple-cnn' cannot be built: "),
    (["partition=natural"], "the data set 'tiny' does not say which client a row belongs to"),
    (["partition=iidd"], "there is no partition 'iidd'; did you mean 'iid'?"),
    (["partition.alpha=1"], "partition has no key 'alpha'"),
    (["partition=dirichlet", "partition.alhpa=1"], "partition has no key 'alhpa'; did you mean 'alpha'?"),
    (["partition=dirichlet", "partition.client=1"], "partition has no key 'client'; did you mean 'clients'?"),
    (["partition=dirichlet", "partition.alpha=0"], "alpha = 0.0 must be a number between 1e-6 and 1e6"),
    (["partition=dirichlet", "partition.alpha=-1"], "alpha = -1.0 must be a number between 1e-6 and 1e6"),
    (["partition=dirichlet", "partition.balanced=maybe"], "partition.balanced = 'maybe' must be a valid boolean"),
    (["partition=classes"], "the partition 'classes' needs per_client"),
    (["partition.clients=601"], "601 clients cannot share 600 rows; write clients=600 or fewer"),
    (
        ["partition=dirichlet", "partition.clients=100"],
        "600 rows are too few for 100 clients with at least 10 each; write partition.clients = 60 or fewer, or "
        "partition.min_size = 6 or less",
    ),
    (["partition.clients=0"], "partition.clients = 0 must be "),
    (["partition.test_fraction=1"], "test_fraction = 1.0 must be "),
    (["partition.validation=1"], "validation = 1.0 must be "),
    (["partition.test_samples=5"], "partition.test_samples goes with partition.test = 'official'"),
    (["partition.test=official", "partition.test_samples=0"], "test_samples = 0 must be "),
    (
        ["partition=dirichlet", "partition.alpha=0.001", "partition.min_size=0", "partition.balanced=false"],
        "client 3 would get no rows; raise alpha or lower the number of clients",
    ),
    (["participation.policy=trace", "participation.trace=[[9]]"], "participation.trace names client 9; ids run from"),
    (
        ["participation.policy=weakest", "participation.tiers=[1]"],
        "participation.tiers has 1 entries for 4 clients; give one each",
    ),
    (["public=own", "public.sample=5"], "public has no key 'sample'; did you mean 'samples'?"),
    (["public=own", "public.samples=600"], "public.samples = 600 leaves nothing of the 600 rows for the clients"),
    (
        ["public=own", "public.samples=300", "public.task_samples=300"],
        "public.samples = 300 and public.task_samples = 300 leaves nothing of the 600 rows for the clients",
    ),
    (
        ["public=fashion-mini", "public.samples=7000"],
        "public.samples = 7000, but 'fashion-mini' has 6000; write that many or fewer",
    ),
    (
        ["public=tiny"],
        "the public set 'tiny' holds the same samples as the private data 'tiny', whose clients would give theirs "
        'away; write public.data = "own", which sets rows of it aside, or name another data set',
    ),
    (["public=tinny"], "there is no data set 'tinny'; did you mean 'tiny'?"),
    (["public=fashion-mini", "public.normalize=dafkd"], "public has no key 'normalize'; did you mean 'normalise'?"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_what_cannot_be_built_is_said_in_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        tried(built(*words).setting)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


KEYS = {
    "data": ("name", "size", "augment", "normalise", "nothing"),
    "partition": ("name", "clients", "seed", "test", "test_fraction", "test_samples", "validation", "alpha", "nothing"),
    "model": ("name", "hidden", "width", "nothing"),
    "public": ("data", "samples", "labelled", "holder", "nothing"),
    "participation": ("policy", "fraction", "late_drop", "deadline", "speeds", "tiers", "trace", "nothing"),
}
VALUES = [
    *(-1, 0, 1, 3, 2**40, 0.0, 0.5, float("inf"), True, None, "", "tiny", "iid", "dirichlet", "mlp", "own", "official"),
    *("all", "bernoulli", "fashion-mini", [], [3], [1, 2, 3, 4], [[0]], [[7]], {"name": "iid"}),
]


def test_whatever_stands_in_a_section_is_built_or_refused_in_a_sentence() -> None:
    dice = random.Random(0)
    data, done = load_data("tiny"), 0
    for _ in range(400):
        values = copy.deepcopy({**TINY, "public": {"samples": 5}, "participation": {}})
        section = dice.choice(sorted(KEYS))
        table = values[section] if isinstance(values[section], dict) else {"name": values[section]}
        values[section] = {**table, dice.choice(KEYS[section]): copy.deepcopy(dice.choice(VALUES))}
        try:
            tried(build(experiment(values), dataset=data if section != "data" else None).setting)
        except FedalloyError:
            continue
        done += 1
    assert 20 < done < 150


# --- data of one's own ------------------------------------------------------------------------------------------------


@pytest.fixture
def own_file(tmp_path: Path) -> Callable[..., Path]:
    def write(**arrays: Any) -> Path:
        rows = np.arange(60)
        held = {"x": np.random.default_rng(0).random((60, 4, 4)), "y": rows % 3, "client": rows % 5, **arrays}
        np.savez(tmp_path / "my.npz", **{key: value for key, value in held.items() if value is not None})
        return tmp_path / "my.npz"

    return write


def test_a_users_file_with_natural_clients(own_file: Callable[..., Path]) -> None:
    made = built(f"data={own_file()}", "partition=natural", "partition.clients=10", "partition.test_fraction=0.25")
    assert len(made.setting.sites) == 5
    for k, site in enumerate(made.setting.sites):
        rows = torch.cat([site.train.index, site.test.index])
        assert set((rows % 5).tolist()) == {k}  # every row went to the client that the file says
        assert (len(site.train), len(site.test)) == (9, 3)


@pytest.mark.parametrize(
    ("change", "words", "sentence"),
    [
        ({"y": np.arange(60) % 6}, ["data.classes=3"], r"row 3 of y.*'3'.*data\.classes = 3.*0 to 2\b"),
        ({"y": np.full(60, 5)}, [], "'5'.*2 classes"),
        ({"y": np.arange(60)}, [], r"\b60 different values in 60 rows.*data\.task"),
        ({"y": np.arange(59)}, [], r"\(60, 4, 4\).*\(59,\)"),
        ({"y": np.linspace(0, 1, 60)}, [], r"\b60 different values in 60 rows.*data\.task"),
        ({"y": None}, [], "arrays x and y"),
        ({"client": np.arange(3)}, [], r"client.*\(3,\).*\b60\b"),
        ({"x": np.full((60, 4), np.nan)}, [], r"row 0 of x, column '0'.*data\.impute"),
        ({"x": np.full((60, 4, 4), np.nan)}, [], "row 0 of x.*NaN"),
    ],
)
def test_a_users_file_that_is_wrong_is_refused(
    own_file: Callable[..., Path], change: dict[str, Any], words: list[str], sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        built(f"data={own_file(**change)}", *words)
    assert re.search(sentence, str(caught.value))
    assert caught.value.code == 3


def test_options_of_a_users_file_are_checked(own_file: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="data has no key 'clases'; did you mean 'classes'"):
        built(f"data={own_file()}", "data.clases=3")
    with pytest.raises(UsageError, match=r"data\.classes = 'three' must be a valid integer"):
        built(f"data={own_file()}", "data.classes=three")


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'.*no\.npz'"):
        built(f"data={tmp_path / 'no.npz'}")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(DataError, match=r"'.*broken\.npz' cannot be read"):
        built(f"data={tmp_path / 'broken.npz'}")


def test_oblong_images_need_a_size_or_a_network_of_ones_own() -> None:
    oblong = from_arrays(np.random.default_rng(0).random((40, 6, 4)), np.arange(40) % 2)
    with pytest.raises(UsageError, match=r"are 6 x 4, but the model 'mlp' needs square ones; write data\.size = 6"):
        tried(built(dataset=oblong).setting)
    assert built("data.size=6", dataset=oblong).setting.sites[0].train.x.shape[2:] == (6, 6)
    tried(built(dataset=oblong, network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 2))).setting)


def test_what_is_no_data_set_or_makes_no_network_is_refused_with_what_to_write() -> None:
    x = np.random.default_rng(0).random((40, 6))
    with pytest.raises(UsageError, match=r"dataset is a tuple; write dataset=from_arrays\(x, y\)"):
        built(dataset=(x, np.arange(40) % 2))
    for wrong in (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "mlp"):
        with pytest.raises(UsageError, match=r"must be a function that makes one, .* write network=lambda: "):
            built(network=wrong)


def test_feature_vectors_are_not_resized(own_file: Callable[..., Path]) -> None:
    file = own_file(x=np.random.default_rng(0).random((60, 4)))
    with pytest.raises(UsageError, match=r"feature vectors.*data\.size"):
        built(f"data={file}", "data.size=8")


def test_the_name_of_a_network_of_ones_own_is_that_of_what_makes_it() -> None:
    assert built(network=Other).model.name == "Other"
    assert built(network=lambda: Other()).model.name == "network"
    assert built().model.name == "mlp"


def test_an_augmentation_that_needs_more_pixels_is_refused() -> None:
    features = from_arrays(np.random.default_rng(0).random((40, 6)), np.arange(40) % 2)
    with pytest.raises(UsageError, match=r"data\.augment does not work on inputs of shape 6 x 1 x 1"):
        tried(built("data.augment=cifar10-kdia", dataset=features).setting)


# --- networks ---------------------------------------------------------------------------------------------------------


def test_a_network_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="the network cannot take inputs of shape 1 x 8 x 8: "):
        tried(built(network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(63, 10))).setting)
    with pytest.raises(UsageError, match="an output of shape 9; it must be one number for each of the 10 classes"):
        tried(built(network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9))).setting)


class Other(nn.Module):
    """Not the shape of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.only(x.flatten(1))
        return out


def mixed() -> Setting:
    """Two networks among four clients."""
    setting = built().setting
    return dataclasses.replace(setting, networks=[setting.networks[0], Other, Other, setting.networks[0]])


def test_different_networks_are_refused_by_methods_that_average_and_others_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        mixed().check(FedAvg())
    sentence = "fedavg averages parameters, but the clients' networks differ; use one of: "
    assert str(caught.value).startswith(sentence)
    names, _, comparing = str(caught.value).removeprefix(sentence).partition("; ")
    assert comparing == (
        "to compare with it all the same, run it from a file with one network for all and put both folders side by "
        "side: fedalloy report A B"
    )
    able = names.split(", ")
    assert "local" in able
    for name in able:
        assert methods[name].card.any_network
    mixed().check(Local())


@pytest.fixture
def needy() -> Iterator[type[Method]]:
    @method("needy", label="Needy", card=Card(paper="none", up="nothing", down="nothing", public=True, features=True))
    class Needy(Method): ...

    yield Needy
    methods._things.pop("needy")  # type: ignore[attr-defined]  # a registry only grows


def test_a_method_that_needs_a_public_set_asks_for_one(needy: type[Method]) -> None:
    choice = make_method(Experiment(), Choice(name="needy"))
    with pytest.raises(UsageError, match="needy needs a public set; add one under \\[public\\]"):
        built().setting.check(choice)
    built("public=own", "public.samples=50").setting.check(choice)


def test_a_method_that_needs_features_asks_for_them(needy: type[Method]) -> None:
    with pytest.raises(UsageError, match=r"needy needs a network with features\(x\) and head\(f\)"):
        built("public=own", "public.samples=50", network=Other).setting.check(
            make_method(Experiment(), Choice(name="needy"))
        )


# --- public sets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_own_rows_set_aside_belong_to_nobody_and_are_balanced(partition: str) -> None:
    setting = built("public=own", "public.samples=95", "public.labelled=true", f"partition={partition}").setting
    assert setting.public is not None
    aside = set(setting.public.samples.index.tolist())
    assert len(aside) == 95
    held = [set(torch.cat([site.train.index, site.test.index]).tolist()) for site in setting.sites]
    assert all(aside.isdisjoint(rows) for rows in held)
    assert set().union(*held) | aside == set(range(600))  # and nothing is lost
    counts = setting.public.samples.counts(10).tolist()
    assert sorted(counts) == [9] * 5 + [10] * 5


@pytest.mark.parametrize("public", ["own", "fashion-mini"])
def test_rows_of_the_task_are_the_servers_alone(public: str) -> None:
    setting = built(f"public={public}", "public.samples=50", "public.task_samples=40").setting
    assert setting.public is not None
    task = setting.public.task
    assert task is not None
    rows = set(task.index.tolist())
    assert (len(rows), task.counts(10).tolist()) == (40, [4] * 10)
    held = [set(torch.cat([site.train.index, site.test.index]).tolist()) for site in setting.sites]
    taken = set(setting.public.samples.index.tolist()) if public == "own" else set()
    assert rows.isdisjoint(taken)
    assert all(rows.isdisjoint(mine) for mine in held)
    assert set().union(*held) | rows | taken == set(range(600))
    mine = setting.client(0, 1, {}).public
    assert mine is not None
    assert (len(mine), mine.task) == (50, None)
    others = built(f"public={public}", "public.samples=50", "public.task_samples=40", "seed=1").setting.public
    assert others is not None
    assert others.task is not None
    assert others.task.index.tolist() != task.index.tolist()


def test_whose_classes_the_public_labels_are() -> None:
    """By their names, if both data sets have some: 'tiny' holds clothes, as fashion-mini does."""
    private = load_data("tiny")
    digits = dataclasses.replace(private, label_names=tuple("0123456789"), x=private.x[:, :, ::-1].copy())
    words = ("public=fashion-mini", "public.samples=50", "public.labelled=true")
    for data, more, shared in ((private, (), True), (digits, (), False), (private, ("public.classes=added",), False)):
        public = built(*words, *more, dataset=data).setting.public
        assert public is not None
        assert public.shared_labels is shared


def test_labels_of_a_public_set_are_not_there_unless_asked_for() -> None:
    setting = built("public=own", "public.samples=50", "public.holder=server").setting
    assert setting.public is not None
    assert set(setting.public.samples.labels.tolist()) == {-1}
    assert setting.client(0, 1, {}).public is None
    assert set(setting.sites[0].train.labels.tolist()) == set(range(10))  # the clients keep theirs


def test_rows_set_aside_depend_on_the_seed_only() -> None:
    def rows(*words: str) -> list[int]:
        public = built("public=own", "public.samples=50", *words).setting.public
        assert public is not None
        return public.samples.index.tolist()

    assert rows() == rows("partition.clients=7", "model.hidden=3")
    assert rows() != rows("seed=1")


def test_another_data_set_as_public_is_scaled_like_the_private_one() -> None:
    setting = built("public=fashion-mini", "public.samples=40").setting
    assert setting.public is not None
    assert len(setting.public) == 40
    assert setting.public.inputs.shape == (40, 1, 8, 8)
    private = load_data("tiny")
    scaled, _ = tensors(dataclasses.replace(load_data("fashion-mini"), mean=private.mean, std=private.std), size=8)
    assert torch.equal(setting.public.inputs, scaled.inputs[setting.public.samples.index])
    assert (
        built("public=fashion-mini", "public.samples=40").digests
        == built("public=fashion-mini", "public.samples=40").digests
    )
    assert "public set" in built("public=fashion-mini", "public.samples=40").digests


def test_a_public_set_of_other_channels_is_refused(own_file: Callable[..., Path]) -> None:
    colour = own_file(x=np.zeros((60, 3, 4, 4)))
    with pytest.raises(UsageError, match="has 3 channels and 'tiny' 1; choose one with the same number"):
        built(f"public={colour}", "public.samples=5")


def test_a_file_of_the_private_samples_is_no_public_set(own_file: Callable[..., Path]) -> None:
    private = load_data("tiny")
    for labels, classes in ((private.y, "shared"), (private.y % 3, "added")):
        copied = own_file(x=private.x, y=labels, client=None)
        with pytest.raises(UsageError, match=r"holds the same samples as the private data 'tiny'.* = \"own\""):
            built(f"public={copied}", "public.samples=5", f"public.classes={classes}")
    turned = own_file(x=private.x[..., ::-1], y=private.y, client=None)  # as many, but others
    assert built(f"public={turned}", "public.samples=5").setting.public is not None


# --- starting weights -------------------------------------------------------------------------------------------------


def test_weights_to_start_from_must_fit(tmp_path: Path) -> None:
    from fedalloy.base.files import write_weights

    net = models.create("mlp", classes=10, channels=1, size=8)
    write_weights(net.state_dict(), tmp_path / "w.safetensors", {})
    begun = tried(built(f"start={tmp_path / 'w.safetensors'}").setting)
    assert torch.equal(begun.state_dict()["head.0.weight"], net.state_dict()["head.0.weight"])
    with pytest.raises(UsageError, match="these weights do not fit the network"):
        tried(built(f"start={tmp_path / 'w.safetensors'}", "model.hidden=5").setting)
    with pytest.raises(DataError, match=r"model file .*does not exist"):
        built(f"start={tmp_path / 'no.safetensors'}")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read"):
        built(f"start={tmp_path / 'broken.safetensors'}")


def test_every_client_may_be_tested_on_the_whole_test_split() -> None:
    made = built("partition.test=global")
    sites = made.setting.sites
    assert made.setting.sizes == [150] * 4
    assert all(site.test is sites[0].test for site in sites)  # one object: evaluated once for all
    assert len(sites[0].test) == 200
    assert made.setting.holdout is None
    assert [len(rows) for rows in made.partition.test] == [200] * 4
    with pytest.raises(UsageError, match="test_samples goes with"):
        built("partition.test=global", "partition.test_samples=5")


def test_public_classes_may_have_outputs_of_their_own() -> None:
    words = ["public.data=fashion-mini", "public.classes=added", "public.samples=50"]
    made = built(*words, "public.labelled=true").setting
    assert (made.classes, made.outputs, made.answers) == (10, 20, 20)
    assert made.public is not None
    assert int(made.public.labels.min()) >= 10
    assert int(made.public.labels.max()) < 20
    assert tried(made)(made.sites[0].train.inputs[:1]).shape == (1, 20)
    only = built(*words, "public.answers=private").setting
    assert only.answers == 10


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["public.classes=added"], "needs another data set"),
        (["public.data=fashion-mini", "public.answers=private"], "goes with public.classes = 'added'"),
    ],
)
def test_label_spaces_that_cannot_be_are_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        built(*overrides)


def test_a_registered_public_set_of_a_table_is_prepared_as_the_clients_rows(monkeypatch):
    rng = np.random.default_rng(0)
    private = from_arrays(rng.normal(50, 9, (60, 2)), rng.integers(0, 2, 60), client_ids=np.arange(60) % 3)
    rows = rng.normal(50, 9, (20, 2))
    monkeypatch.setattr(build_module, "load_data", lambda name, **_: from_arrays(rows, np.arange(20) % 2, name=name))
    exp = {"partition": "natural", "model": "mlp", "public": {"data": "mnist", "samples": 20}}
    built = build(experiment(exp), private)
    columns = built.statistics.preparation.columns
    wanted = (rows - [one.mean for one in columns]) / [one.std for one in columns]
    found = built.setting.public.inputs[:, :, 0, 0].numpy()
    np.testing.assert_allclose(np.sort(found, axis=0), np.sort(wanted, axis=0), rtol=1e-4, atol=1e-5)
    wider = lambda name, **_: from_arrays(np.zeros((20, 3)) + rows[:, :1], np.arange(20) % 2, name=name)  # noqa: E731
    monkeypatch.setattr(build_module, "load_data", wider)
    with pytest.raises(UsageError, match="columns"):
        build(experiment(exp), private)
