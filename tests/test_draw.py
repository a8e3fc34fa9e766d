"""`fedalloy draw` and `fedalloy list --privacy`: what is drawn is what the run's folder holds, and refusals say why."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedalloy.report.draw as drawing
from fedalloy.base import rng, tree
from fedalloy.base.plugins import load_file
from fedalloy.cli.main import main
from fedalloy.config import build as build_module
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.data import load_data
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import methods
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.trifreqs import tri_freqs
from fedalloy.methods import DaFKD
from fedalloy.report.draw import draw
from fedalloy.run.opened import open_run
from fedalloy.run.runner import simulate
from fedalloy.storage.store import Store
from fedalloy.train.fit import params

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 2,
    "evaluate_every": 9,
    "partition": {"name": "iid", "clients": 3},
    "participation": {"policy": "trace", "trace": [[0, 1, 2], [1, 2]]},
    "engine": "serial",
}
SMALL = ("method.noise=6", "method.width=4")
Make = Callable[..., Path]


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data = load_data("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The folder of a small run; the same one each time it is asked for."""
    made: dict[tuple[str, ...], Path] = {}

    def make(*changes: str) -> Path:
        if changes not in made:
            made[changes] = tmp_path_factory.mktemp("runs") / "run"
            simulate(experiment(override(TINY, changes)), made[changes])
        return made[changes]

    return make


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """What the functions that count and draw were given; nothing is written, which takes longest."""
    seen: dict[str, tuple[Any, ...]] = {}

    def watch(name: str) -> None:
        real = getattr(drawing, name)

        def watched(*args: Any, **named: Any) -> Any:
            seen[name] = args
            return real(*args, **named)

        monkeypatch.setattr(drawing, name, watched)

    kinds = ("generated", "averages", "trifreqs", "similarity", "importance")
    for name in ("labelled_images", *(f"{kind}_picture" for kind in kinds)):
        watch(name)
    monkeypatch.setattr(drawing, "save", lambda figure, path: path)
    return seen


def restored(folder: Path) -> Any:
    return open_run(folder).last()


def images_of(folder: Path, owner: int) -> torch.Tensor:
    """The images that a generator of a run makes for its picture."""
    run = open_run(folder)
    state, memories = run.last()
    offered, setting = run.method.pictures(state, memories)["generated"], run.build().setting
    stream = rng.generator(run.experiment.seed, "draw", state.round, owner)
    me = setting.client(max(owner, 0), state.round, {})
    made: torch.Tensor = offered.sample(me, offered.generators[owner], stream, 1000)
    return made


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedkf", "fedkf-minus"])
def test_a_clients_generator_and_its_teacher(
    run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path, name: str
) -> None:
    folder = run(f"method={name}", *SMALL)
    state, memories = restored(folder)
    assert sorted(memories) == [1, 2]  # the first round, in which client 0 took part, has no distillation
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert draw(folder, out=tmp_path / "out") == [tmp_path / "out" / f"{n}.png" for n in ("generated", "averages")]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    images, teacher = given["labelled_images"]
    assert torch.equal(images, images_of(folder, 1))
    views = open_run(folder).method.models(state)
    assert tree.equal(params(teacher), views["oca" if name == "fedkf" else "aca"])
    assert not tree.equal(views["oca"], views["aca"])
    samples, counts, names = given["generated_picture"]
    assert sum(counts) == 1000
    assert [len(some) for some in samples] == [min(n, 8) for n in counts]
    assert names[0] == "T-shirt/top"
    draw(folder, 2, tmp_path / "other")
    assert torch.equal(given["labelled_images"][0], images_of(folder, 2))
    offered = open_run(folder).method.pictures(state, memories)["generated"].generators
    assert all(tree.equal(offered[k], memories[k]["generator"]) for k in (1, 2))


def test_real_averages_are_those_of_all_training_data(
    run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path
) -> None:
    folder = run("method=fedkf", *SMALL)
    draw(folder, out=tmp_path)
    data, split = load_data("tiny"), build_module.build(experiment(override(TINY, ["method=fedkf", *SMALL]))).partition
    rows = np.concatenate(split.train)
    coats = data.x[rows[data.y[rows] == 4]]
    assert given["averages_picture"][1][4].numpy() == pytest.approx(coats.mean(0) / 255, abs=1e-6)


def test_the_same_run_gives_the_same_pictures(run: Make, tmp_path: Path) -> None:
    first, again = (draw(run("method=fedkf", *SMALL), out=tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_the_servers_generator(run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path) -> None:
    folder = run("method=fedkf-server", *SMALL)
    draw(folder, out=tmp_path)
    assert torch.equal(given["labelled_images"][0], images_of(folder, SERVER))
    with pytest.raises(UsageError, match="--client"):
        draw(folder, 1)


def test_data_free_distillation_is_drawn_too(run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path) -> None:
    folder = run("method=data-free", *SMALL, "method.teacher_rounds=1", "method.steps=2")
    draw(folder, out=tmp_path)
    images, teacher = given["labelled_images"]
    assert torch.equal(images, images_of(folder, SERVER))
    assert tree.equal(params(teacher), restored(folder)[0]["model"])


def test_what_has_no_generator_says_so(run: Make, tmp_path: Path) -> None:
    folder = run("method=fedkf", *SMALL)
    for client, parts in ((0, "client 0 .*1, 2$"), (3, "client 3 .*from 0 to 2$")):
        with pytest.raises(UsageError, match=parts):
            draw(folder, client)
    with pytest.raises(UsageError, match=r"fedkf .*--central"):
        draw(folder, central=folder)
    with pytest.raises(UsageError, match=r"fedkf .*round 2$"):
        draw(run("method=fedkf", *SMALL, "rounds=1"))
    with pytest.raises(UsageError, match=r"no client .*generator"):
        draw(run("method=fedkf", *SMALL, "participation.trace=[[0], []]"))
    others = ("data-free", "fedkf", "fedkf-minus", "fedkf-server", "kdia", "knfu")
    able = [name for name in methods if name.startswith("dafkd") or name in others]
    with pytest.raises(UsageError, match=f"fedavg .*: {', '.join(able)}"):
        draw(run("method=fedavg"))
    with pytest.raises(DataError, match=r"run\.json cannot be read"):
        draw(tmp_path)


def test_other_data_is_refused(run: Make, tmp_path: Path) -> None:
    data = load_data("tiny")
    with pytest.raises(DataError, match="'tiny'"):
        draw(run("method=fedkf", *SMALL), out=tmp_path, dataset=replace(data, x=255 - data.x))


# --- KDIA -------------------------------------------------------------------------------------------------------------

KDIA = (
    "method=kdia", "method.noise=4", "method.generator_width=8", "method.generator_epochs=1",
    "method.generator_batches=2", "method.generator_batch=4",
)  # fmt: skip
LOSSY = ("rounds=4", "participation.late_drop=0.4")


def test_the_weights_are_those_of_the_checkpoint(run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path) -> None:
    folder, said = run(*KDIA, *LOSSY), []
    assert draw(folder, out=tmp_path, say=said.append) == [tmp_path / "trifreqs.png"]
    assert len(said) == 1
    assert said[0].startswith("no similarity.png")
    assert "--central" in said[0]
    weights, present, sizes = given["trifreqs_picture"]
    state = restored(folder)[0]
    assert any(record["lost"] for record in Store(folder).records())
    assert [sum(k in ids for ids in present) for k in range(3)] == state["times"].tolist()
    expected = tri_freqs(state["last"].tolist(), state["times"].tolist(), state["sizes"].tolist())
    assert weights.shape == (4, 3)
    assert weights[-1].tolist() == expected
    assert list(sizes) == state["sizes"].tolist()


def test_similarity_to_a_central_networks_features(
    run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path
) -> None:
    folder, central = run(*KDIA, *LOSSY), run("method=centralised")
    assert [path.name for path in draw(folder, out=tmp_path, central=central)] == ["trifreqs.png", "similarity.png"]
    values, names = given["similarity_picture"]
    assert len(values) == len(names) == 10
    assert all(0 <= value <= 1 for value in values)  # features after a ReLU, and after a sigmoid
    draw(folder, out=tmp_path, central=run("method=centralised", "rounds=1"))
    assert given["similarity_picture"][0] != values
    with pytest.raises(UsageError, match="--compare has no effect without --central"):
        draw(folder, out=tmp_path, compare="maps")


def test_whole_maps_are_another_comparison(run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path) -> None:
    maps = ("model=simple-cnn", "data.size=20")  # of 2 x 2 pixels
    folder, central = run(*KDIA, *LOSSY, *maps), run("method=centralised", *maps)
    found = []
    for compare in ("channel_means", "maps", None):
        draw(folder, out=tmp_path, central=central, compare=compare)
        found.append(given["similarity_picture"][0])
    assert found[0] == found[2]
    assert found[0] != found[1]


def test_what_cannot_be_compared_is_refused(run: Make, tmp_path: Path) -> None:
    folder = run(*KDIA, *LOSSY)
    for central, sentence in (
        (run("method=fedavg"), "fedavg; --central"),
        (run("method=centralised", "data.size=4"), "size of the images; --central"),
        (run("method=centralised", "model.hidden=[4]"), "model; --central"),
    ):
        with pytest.raises(UsageError, match=sentence):
            draw(folder, out=tmp_path, central=central)
    with pytest.raises(UsageError, match=r"kdia .*--client"):
        draw(folder, 0)
    assert not list(tmp_path.iterdir())


def test_without_generated_features_only_the_weights(run: Make, tmp_path: Path) -> None:
    said: list[str] = []
    bare = run(*KDIA, "method.lambda_gen=0")
    assert [path.name for path in draw(bare, out=tmp_path, central=run("method=centralised"), say=said.append)] == [
        "trifreqs.png"
    ]
    assert len(said) == 1
    assert said[0].startswith("no similarity.png: lambda_gen = 0")


# --- DaFKD ------------------------------------------------------------------------------------------------------------

DAFKD = (
    "method=dafkd", "method.noise=4", "method.generator_width=8",
    "method.distil_samples=40", "method.distil_batch=8", "method.distil_steps=3",
)  # fmt: skip
PREDICTIONS = ["method=dafkd-predictions", *DAFKD[1:]]
FEATURES = ["method=dafkd-features", *DAFKD[1:], "method.generator_width=128"]  # which images alone have


def test_importance_beside_the_clients_data(run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path) -> None:
    folder, said = run(*DAFKD), []
    names = ("importance", "generated", "averages")
    assert draw(folder, out=tmp_path, say=said.append) == [tmp_path / f"{name}.png" for name in names]
    assert said == []
    importance, counts, classes = given["importance_picture"]
    state = restored(folder)[0]
    assert importance.tolist() == state["importance"].tolist()
    assert importance.any(1).tolist() == [False, True, True]  # client 0 was not there in the last round
    labels, split = load_data("tiny").y, build_module.build(experiment(override(TINY, DAFKD))).partition
    assert counts.tolist() == [np.bincount(labels[rows], minlength=10).tolist() for rows in split.train]
    assert classes[0] == "T-shirt/top"


def test_the_averaged_generators_images_as_the_global_model_sees_them(
    run: Make, given: dict[str, tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = run(*DAFKD), []
    real = DaFKD.made

    def watched(self: DaFKD, *args: Any) -> Any:
        made.append((args[1], real(self, *args)))
        return made[-1][1]

    monkeypatch.setattr(DaFKD, "made", watched)
    draw(folder, out=tmp_path)
    (weights, images), state = made[0], restored(folder)[0]
    labelled, net = given["labelled_images"]
    assert tree.equal(weights, state["generator"])
    assert tree.equal(params(net), state["model"])
    assert len(images) == 1000
    assert torch.equal(labelled, images)
    assert given["generated_picture"][1] == torch.bincount(net(images).argmax(1), minlength=10).tolist()


@pytest.mark.parametrize(
    ("options", "names", "lacking"),
    [
        (
            PREDICTIONS,
            ["generated", "averages"],
            "importance",
        ),
        (
            [*DAFKD, "method.kd_start=3"],
            ["generated", "averages"],
            "importance",
        ),
        (
            FEATURES,
            ["importance"],
            "generated",
        ),
    ],
    ids=["predictions", "too early", "features"],
)
def test_a_picture_that_is_missing_says_why(
    run: Make,
    given: dict[str, tuple[Any, ...]],
    tmp_path: Path,
    options: list[str],
    names: list[str],
    lacking: str,
) -> None:
    said: list[str] = []
    assert [path.stem for path in draw(run(*options), out=tmp_path, say=said.append)] == names
    assert len(said) == 1
    assert said[0].startswith(f"no {lacking}.png: ")


def test_dafkd_without_anything_to_draw(run: Make) -> None:
    bare = run(*FEATURES, "method.distil_steps=0")
    with pytest.raises(UsageError, match=r"no importance\.png: .*; no generated\.png: "):
        draw(bare)
    with pytest.raises(UsageError, match=r"dafkd-features .*--central"):
        draw(bare, central=bare)
    with pytest.raises(UsageError, match=r"dafkd .*--client"):
        draw(run(*DAFKD), client=0)


# --- the commands -----------------------------------------------------------------------------------------------------


def test_the_command(run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run(*KDIA, *LOSSY), folder)
    with pytest.raises(SystemExit, match="0"):
        main(["draw", str(folder)])
    assert capsys.readouterr().out.splitlines()[-1] == f"written: {folder / 'trifreqs.png'}"
    assert (folder / "trifreqs.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="2"):
        main(["draw", str(run("method=fedavg"))])
    assert capsys.readouterr().err.startswith("fedalloy: fedavg has no pictures")


def test_what_leaves_a_client(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["list", "--privacy"])
    said = " ".join(capsys.readouterr().out.split())
    assert "confusion matrix" in said
    assert re.search(r"local, local-converged leaves: nothing\..* evaluates its own\.", said)  # but counts leave
    assert said.count('weights = "disco"') == 1
    with pytest.raises(SystemExit, match="0"):
        main(["list", "--privacy", "--where", "any_network=yes"])
    assert "disco" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["list", "models", "--privacy"])
    assert "--privacy" in capsys.readouterr().err


def test_knfu_shows_who_learned_from_whom(tmp_path: Path) -> None:
    exp = {"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 4, "alpha": 0.5}, "method": "knfu"}
    simulate({**exp, "public": {"samples": 20, "labelled": True}}, tmp_path / "run")
    paths = draw(tmp_path / "run")
    assert [path.name for path in paths] == ["fusion.png", "epd.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    with pytest.raises(UsageError, match=r"knfu .*--client"):
        draw(tmp_path / "run", client=1)


# --- a method of one's own --------------------------------------------------------------------------------------------

PLUGIN = """
import torch
from torch import nn
from fedalloy import Card, Client, method
from fedalloy.federation.setting import SERVER
from fedalloy.knowledge.pictures import Images, from_noise
from fedalloy.methods import FedAvg


class Blobs(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape, self.layer = shape, nn.Linear(3, shape[0] * shape[1] * shape[2])

    def forward(self, z):
        return self.layer(z).view(len(z), *self.shape)


@method("painter", label="Painter", card=Card(paper="none", up="model, n", down="model"))
class Painter(FedAvg):
    kind: str = "generated"

    def new_generator(self, me):
        return me.generator(lambda: Blobs(me.shape))

    def init(self, fed):
        return {**super().init(fed), "blobs": self.new_generator(fed).state_dict()}

    def pictures(self, s, memories):
        made = Images(from_noise(self.new_generator, 3), {SERVER: s["blobs"]}, s["model"])
        shares = torch.eye(3)[:, :, None].expand(-1, -1, 4).reshape(3, 12)[:, :10]
        return {self.kind: made, "importance": shares, "fusion": torch.eye(3), "epd": "nothing was predicted"}
"""


def test_a_plugins_method_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "painter.py").write_text(PLUGIN)
    load_file(tmp_path / "painter.py")
    try:
        simulate(experiment(override(TINY, ["method=painter"])), tmp_path / "run")
        said: list[str] = []
        paths = draw(tmp_path / "run", say=said.append)
        assert [path.stem for path in paths] == ["generated", "averages", "importance", "fusion"]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
        assert said == ["no epd.png: nothing was predicted"]
        simulate(experiment(override(TINY, ["method=painter", "method.kind=generatd"])), tmp_path / "odd")
        with pytest.raises(UsageError, match=r"painter.*'generatd'.*'generated'"):
            draw(tmp_path / "odd")
    finally:
        del methods._things["painter"]  # type: ignore[attr-defined]
