"""A site's data, what it lets a server do, and the settings on both sides."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.config.sections import DataPart
from fedalloy.deploy.agreed import read_site_data
from fedalloy.deploy.preflight import main as preflight
from fedalloy.deploy.settings import Amount, for_server, for_share, known_sizes
from fedalloy.deploy.site import refuse_another, site_setting
from fedalloy.errors import DataError, UsageError
from fedalloy.run.runner import describe, settled

AGREED = {"name": "sites", "classes": 2, "channels": 1, "size": 4, "mean": [0.5], "std": [0.25], "names": ["no", "yes"]}
OWN = {"rounds": 2, "data": AGREED, "model": {"name": "mlp"}}
SHARED = {"rounds": 2, "data": {"name": "tiny"}, "model": {"name": "mlp"}, "partition": {"clients": 3}}


def _agreed(**more: object) -> DataPart:
    return experiment({**OWN, "data": {**AGREED, **more}}).data


def _site(folder: Path, text: str, exp: dict[str, object]) -> Path:
    import tomli_w

    folder.mkdir(exist_ok=True)
    (folder / "site.toml").write_text(text)
    (folder / "experiment.toml").write_text(tomli_w.dumps(exp))
    return folder


def _npz(file: Path, n: int = 10, side: int = 4, **more: np.ndarray) -> Path:
    x = np.full((n, side, side), 255, np.uint8)
    np.savez(file, x_train=x, y_train=np.arange(n) % 2, **more)
    return file


def test_an_npz_file_is_normalised_as_agreed(tmp_path: Path) -> None:
    file = _npz(tmp_path / "a.npz", x_test=np.zeros((3, 4, 4), np.uint8), y_test=np.array([0, 1, 1]))
    client, setting = site_setting(_site(tmp_path / "s", f'client = 1\ndata = "{file}"', OWN), 3)
    own = setting.sites[client]
    assert client == 1
    assert (len(own.train), len(own.test)) == (10, 3)
    assert own.train.inputs.unique().tolist() == [2.0]  # (255 / 255 - 0.5) / 0.25
    assert own.test.inputs.unique().tolist() == [-2.0]
    assert (setting.scale.mean, setting.scale.std) == ((0.5,), (0.25,))
    assert len(setting.sites) == 3


def test_without_a_test_part_a_share_is_drawn_and_nothing_is_used_twice(tmp_path: Path) -> None:
    file = _npz(tmp_path / "a.npz", n=100)
    exp = {**OWN, "partition": {"test_fraction": 0.3, "validation": 0.1}}
    _, setting = site_setting(_site(tmp_path / "s", f'client = 0\ndata = "{file}"', exp), 2)
    own = setting.sites[0]
    assert own.validation is not None
    parts = [own.train.index, own.test.index, own.validation.index]
    assert [len(part) for part in parts] == [63, 30, 7]
    assert torch.cat(parts).sort().values.tolist() == list(range(100))


def test_a_csv_file_is_read_by_its_label_column(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("age,verdict,weight\n1,yes,2.5\n3,no,4\n5,1,6\n")
    table = DataPart(name="sites", options={"columns": ("age", "weight"), "names": ("no", "yes")})
    found = read_site_data(file, table, label="verdict")
    assert found.x.shape == (3, 2, 1, 1)
    assert found.x[:, :, 0, 0].tolist() == [[1.0, 2.5], [3.0, 4.0], [5.0, 6.0]]
    assert found.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_of_images_is_read_by_class(channels: int, tmp_path: Path) -> None:
    from PIL import Image

    for split, name, level in (("train", "no", 0), ("train", "yes", 255), ("test", "yes", 255)):
        folder = tmp_path / split / name
        folder.mkdir(parents=True)
        Image.new("RGB", (6, 8), (level,) * 3).save(folder / "1.png")
    found = read_site_data(tmp_path, _agreed(channels=channels))
    assert found.x.shape == (2, channels, 4, 4)
    assert found.y.tolist() == [0, 1]
    assert found.x.reshape(2, -1).mean(axis=1).tolist() == [0, 255]
    assert found.y_test is not None
    assert found.y_test.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "exp", "sentence"),
    [
        ("client = 0", OWN, r"either data.*share"),
        ('client = 0\ndata = "a.npz"\nshare = 0', OWN, r"either data.*share"),
        ("client = 5\nshare = 0", SHARED, r"client = 5.*\b3 sites"),
        ("client = 0\nshare = 0", OWN, r'share.*write data = "FILE"'),
        ('client = 0\ndata = "a.npz"', SHARED, "write share = 0"),
        ("client = 0\nshare = 9", SHARED, r"share = 9.*\b3 shares"),
        ("client = 0\nshares = 0", SHARED, "shares.*'share'"),
        ("client = ", SHARED, "site.toml"),
        ("client = " + "9" * 5000, SHARED, "site.toml"),
        ("client = " + "[" * 50_000, SHARED, "site.toml"),
    ],
)
def test_a_site_file_that_does_not_fit_is_refused(
    text: str, exp: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        site_setting(_site(tmp_path / "s", text, exp), 3)


def test_a_share_is_what_a_simulation_deals_out_and_the_others_are_blank() -> None:
    exp = experiment(SHARED)
    whole, mine = build(exp).setting, for_share(exp, 1, 1)
    assert torch.equal(mine.sites[1].train.inputs, whole.sites[1].train.inputs)
    assert torch.equal(mine.sites[1].test.labels, whole.sites[1].test.labels)
    assert mine.sizes == whole.sizes
    assert not mine.sites[0].train.inputs.any()


def test_the_server_knows_sizes_alone() -> None:
    exp = experiment(SHARED)
    whole = build(exp).setting
    amounts = {k: Amount(len(site.train), len(site.test)) for k, site in enumerate(whole.sites)}
    built = for_server(exp, amounts)
    assert built.setting.sizes == whole.sizes
    assert [len(site.test) for site in built.setting.sites] == [len(site.test) for site in whole.sites]
    assert not any(site.train.inputs.any() or site.test.labels.any() for site in built.setting.sites)
    assert built.setting.sites[0].train.x.untyped_storage().nbytes() <= 4 * 64  # one sample, however many there are
    assert torch.equal(next(built.setting.build(-1).parameters()), next(whole.build(-1).parameters()))


def test_the_server_of_own_data_says_nothing_of_classes_and_can_go_on_without_a_site() -> None:
    exp = experiment({**OWN, "partition": {"validation": 0.1}})
    amounts = {0: Amount(10, 3, 1), 1: Amount(20, 5, 2), 2: Amount(7, 2)}
    from fedalloy.config.methods import make_method

    built = for_server(exp, amounts)
    about = describe(settled(exp, built, make_method(exp)), built, "FedAvg")
    assert about["clients"]["train_sizes"] == [10, 20, 7]
    assert about["clients"]["class_counts"] == [[0, 0]] * 3
    assert known_sizes(about) == {k: dataclasses.replace(amount, counts=[0, 0]) for k, amount in amounts.items()}


def test_a_site_refuses_an_experiment_it_did_not_agree_to() -> None:
    agreed = experiment(SHARED)
    refuse_another(agreed, experiment({**SHARED, "rounds": 50, "engine": "serial"}).to_dict())
    for change in (
        {"method": "dafkd"},
        {"seed": 1},
        {"training": {"epochs": 5}},
        {"method": {"name": "fedprox", "mu": 1.0}},
    ):
        with pytest.raises(UsageError, match=rf"\({next(iter(change))}\)"):
            refuse_another(agreed, experiment({**SHARED, **change}).to_dict())
    with pytest.raises(UsageError, match="seed"):
        refuse_another(agreed, {k: v for k, v in agreed.to_dict().items() if k != "seed"})


def test_what_is_wrong_with_a_sites_data_is_said_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedalloy.deploy.preflight.refusal", lambda *_: (0, "the server is the right one"))
    site = _site(tmp_path / "s", 'client = 1\ndata = "a.npz"', OWN)
    assert preflight("fl.example.org", "8443", str(site), "3") == DataError.code
    assert "a.npz" in capsys.readouterr().err
    _npz(site / "a.npz", x_test=np.zeros((3, 4, 4), np.uint8), y_test=np.array([0, 1, 1]))
    assert preflight("fl.example.org", "8443", str(site), "3") == 0
    assert re.search(r"site 1\D+10 training samples\D+3 test samples", capsys.readouterr().err)
    assert preflight("fl.example.org", "8443", str(site), "1") == UsageError.code  # there is no client 1 of one
    (site / "site.toml").write_text("client = ")
    assert preflight("fl.example.org", "8443", str(site), "3") == UsageError.code
    assert "site.toml" in capsys.readouterr().err


def test_a_share_of_the_experiments_own_data_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedalloy.deploy.preflight.refusal", lambda *_: (0, "the server is the right one"))
    site = _site(tmp_path / "s", "client = 1\nshare = 1", SHARED)
    assert preflight("127.0.0.1", "8443", str(site), "3") == 0
    assert capsys.readouterr().err == "fedalloy: the server is the right one\n"
