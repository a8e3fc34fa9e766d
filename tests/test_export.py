"""Exported models: the bits of the checkpoint, and lines that really load them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from torch import Tensor, nn

from fedalloy.base import tree
from fedalloy.base.files import read_weights
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.data import load_data
from fedalloy.errors import DataError, StorageError, UsageError
from fedalloy.report.export import export_model
from fedalloy.run.opened import open_run
from fedalloy.run.runner import simulate
from fedalloy.storage.results import read
from fedalloy.storage.store import Store

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [8, 8]},
    "rounds": 2,
    "partition": {"name": "iid", "clients": 3},
    "participation": {"policy": "trace", "trace": [[0, 1]]},
}


class Own(nn.Module):
    """A network without features and head."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.only(x.flatten(1))
        return out


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "fedavg"
    simulate(TINY, folder)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "local"
    simulate(override(TINY, ["method=local"]), folder)
    return folder


def run_lines(lines: str, path: Path, monkeypatch: pytest.MonkeyPatch, **names: Any) -> nn.Module:
    monkeypatch.chdir(path.parent)
    Path("paste.py").write_text(lines)
    net = runpy.run_path("paste.py", init_globals=names)["net"]
    assert isinstance(net, nn.Module)
    return net


def test_the_exported_model_is_that_of_the_checkpoint(averaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Store(averaged).restore()
    assert saved is not None
    path, lines = export_model(averaged)
    assert path == averaged / "aca.safetensors"
    assert tree.equal(read_weights(path), saved[0]["model"])
    with safetensors.safe_open(path, "pt") as file:
        about = file.metadata()
    scale = {name: json.dumps(list(getattr(load_data("tiny"), name))) for name in ("mean", "std")}
    names = json.dumps(list(load_data("tiny").label_names))
    assert about == {"method": "fedavg", "view": "aca", "round": "2", "model": "mlp", "outputs": names, **scale}
    net = run_lines(lines, path, monkeypatch)
    assert not net.training
    assert tree.equal(dict(net.state_dict()), saved[0]["model"])


def test_the_lines_normalise_as_the_run_did(averaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lines = export_model(averaged)
    monkeypatch.chdir(averaged)
    Path("paste.py").write_text(lines)
    probabilities = runpy.run_path("paste.py")["probabilities"]
    data = load_data("tiny")
    assert data.x_test is not None
    assert data.y_test is not None
    answers = probabilities(torch.from_numpy(data.x_test).float() / 255)
    right = float((answers.argmax(1) == torch.from_numpy(data.y_test)).double().mean())
    assert right == pytest.approx(read(averaged).rounds[-1]["views"]["aca"]["test"])


def test_the_lines_build_the_network_that_the_weights_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [{"name": "mlp", "hidden": [5], "clients": [0]}, {"name": "mlp", "hidden": [6, 6], "clients": [1, 2]}]
    simulate({**TINY, "models": own, "method": "local"}, tmp_path / "run")
    for client, hidden in ((0, [5]), (2, [6, 6])):
        path, lines = export_model(tmp_path / "run", client=client)
        assert f"hidden={hidden}" in lines
        assert tree.equal(dict(run_lines(lines, path, monkeypatch).state_dict()), read_weights(path))


def test_the_lines_build_the_network_that_works_like_the_clients(tmp_path: Path) -> None:
    """Equal names and shapes of weights are not enough: GroupNorm of eight groups, or of one for each channel."""
    kinds = ("group", "instance")
    own = [{"name": "resnet8", "width": 16, "norm": kind, "clients": [k]} for k, kind in enumerate(kinds)]
    values = {**TINY, "rounds": 1, "models": [*own, {"name": "mlp"}], "public": {"samples": 20}}
    simulate({**values, "method": "local"}, tmp_path / "run")
    for client, kind in enumerate(kinds):
        assert f"norm='{kind}'" in export_model(tmp_path / "run", client=client)[1]
    quick = {"name": "feddf", "steps": 1, "batch": 4}
    simulate({**values, "method": quick}, tmp_path / "groups")
    for view, words in (("group 0", "norm='group'"), ("group 1", "norm='instance'"), ("group 2", '"mlp"')):
        assert words in export_model(tmp_path / "groups", view)[1]


def test_a_view_and_a_place_can_be_chosen(averaged: Path, tmp_path: Path) -> None:
    path, lines = export_model(averaged, "oca", path=tmp_path / "mine.safetensors")
    assert path == tmp_path / "mine.safetensors"
    assert f'load_file("{tmp_path}/mine.safetensors")' in lines
    assert "hidden=[8, 8]" in lines


def test_a_clients_own_model(alone: Path) -> None:
    saved = Store(alone).restore()
    assert saved is not None
    path, _ = export_model(alone, client=1)
    assert path == alone / "personal-1.safetensors"
    assert tree.equal(read_weights(path), saved[1][1]["model"])
    # Client 2 never took part: its model is the common start.
    untrained = read_weights(export_model(alone, "personal", 2)[0])
    assert not tree.equal(untrained, saved[1][1]["model"])
    other = read_weights(export_model(alone, client=2, path=alone / "again.safetensors")[0])
    assert tree.equal(untrained, other)


def test_exporting_changes_nothing_in_the_run(averaged: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in averaged.rglob("*.json*")}
    export_model(averaged)
    assert {path: path.stat().st_mtime_ns for path in averaged.rglob("*.json*")} == before


def test_a_network_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(TINY, tmp_path / "run", network=Own)
    path, lines = export_model(tmp_path / "run")
    assert "create" not in lines
    net = run_lines(lines, path, monkeypatch, Own=Own)
    assert net(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_what_is_not_there_is_said(averaged: Path, alone: Path, tmp_path: Path) -> None:
    for given, sentence in (
        ((averaged, "ocaa"), "has no view 'ocaa'; did you mean 'oca'"),
        ((averaged, None, 0), "fedavg .*--client"),
        ((alone,), "local .*--client"),
        ((alone, None, 3), "there is no client 3 in .*; clients go from 0 to 2"),
        ((alone, "aca", 1), "has no view 'aca'; choose one of: personal"),
    ):
        with pytest.raises(UsageError, match=sentence):
            export_model(*given)
    with pytest.raises(DataError, match=r"run\.json cannot be read"):
        export_model(tmp_path)
    with pytest.raises(StorageError, match="cannot be written"):
        export_model(averaged, path=averaged / "run.json" / "x.safetensors")


def test_a_run_without_a_round_has_no_model(tmp_path: Path) -> None:
    from fedalloy.config.build import build
    from fedalloy.methods import FedAvg
    from fedalloy.run.runner import describe, settled

    exp = experiment(TINY)
    built = build(exp)
    Store(tmp_path / "run").create(describe(settled(exp, built, FedAvg()), built, "FedAvg"))
    with pytest.raises(DataError, match="has not completed a round"):
        export_model(tmp_path / "run")


def test_a_model_of_a_table_takes_rows_as_they_are_in_the_files(tmp_path: Path) -> None:
    rows = ["age,sex,ill"] + [f"{30 + k},{'fm'[k % 2]},{'yes' if k % 3 else 'no'}" for k in range(30)]
    for name in ("north", "south"):
        (tmp_path / "h").mkdir(exist_ok=True)
        (tmp_path / "h" / f"{name}.csv").write_text("\n".join(rows) + "\n")
    data = {"name": str(tmp_path / "h"), "categorical": ["sex"], "impute": "mean"}
    simulate({"data": data, "rounds": 1}, tmp_path / "run")
    _, lines = export_model(tmp_path / "run")
    names: dict[str, Any] = {}
    exec(lines, names)
    known, unknown = {"age": 40, "sex": "f"}, {"age": None, "sex": ""}
    assert names["answers"]([known, unknown]).sum(1).tolist() == pytest.approx([1.0, 1.0])
    setting = open_run(tmp_path / "run").build().setting
    x = torch.cat([site.train.inputs for site in setting.sites])
    first = names["table_inputs"]([dict(zip(("age", "sex"), line.split(",")[:2], strict=True)) for line in rows[1:]],
                                  names["columns"])  # fmt: skip
    assert all(any(torch.equal(row, mine) for mine in first) for row in x)
