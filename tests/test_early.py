"""What cannot be carried out is refused before the first round of the first method, with all that is wrong at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from torch import nn

import fedalloy.methods  # noqa: F401  # registers the methods
from fedalloy.check.probe import small_settings, without_features
from fedalloy.cli.main import cli
from fedalloy.config import build as build_module
from fedalloy.config.overrides import override
from fedalloy.data import load_data
from fedalloy.data.samples import Samples
from fedalloy.engine.serial import Serial
from fedalloy.errors import DataError, FedalloyError, UsageError
from fedalloy.federation.core import Method, methods, quick, run
from fedalloy.federation.setting import Setting, Site
from fedalloy.methods import DaFKD, FedDF, FedKF, FedMD, FedMDKnFu, KnFu, SelectiveFD
from fedalloy.nets.models import create
from fedalloy.run import comparison
from fedalloy.run.comparison import compare
from fedalloy.run.runner import refuse_unfit
from fedalloy.train.privacy import Privacy

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 1,
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0},
}
UNLABELLED = {**TINY, "public": {"data": "own", "samples": 40, "labelled": False}}


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


def refusing(name: str) -> dict[str, Any]:
    """An experiment that FedAvg can carry out and this method cannot."""
    card = methods[name].card
    if card.public:
        return TINY
    if not card.private:
        return {**TINY, "privacy": {"noise_multiplier": 1.0}}
    return {**TINY, "methods": {"fedavg": {}, name: {"name": name, "nonsense": 1}}}


def refused(exp: Mapping[str, Any], names: list[str], folder: Path, **given: Any) -> FedalloyError:
    """What a comparison is refused with, no round having run and nothing having been written."""
    rounds: list[object] = []
    with pytest.raises(FedalloyError) as caught:
        compare(exp, names, folder=folder, begin=lambda *_: rounds.append, **given)
    assert rounds == []
    assert not folder.exists()
    return caught.value


@pytest.mark.parametrize("name", [name for name in methods if name != "fedavg"])
def test_no_round_of_another_method_runs_before_a_refusal(name: str, tmp_path: Path) -> None:
    error = refused(refusing(name), ["fedavg", name], tmp_path / "out")
    assert isinstance(error, UsageError)
    assert name in str(error)


def test_a_refusal_of_init_comes_before_another_methods_rounds(tmp_path: Path) -> None:
    error = refused(UNLABELLED, ["fedavg", "knfu"], tmp_path / "out")
    assert isinstance(error, UsageError)
    assert "knfu.ce_on" in str(error)


def test_all_refusals_are_told_at_once(tmp_path: Path) -> None:
    exp = {**UNLABELLED, "methods": {"strict": {"name": "knfu"}, "many": {"name": "ds-fl", "samples": 999}}}
    error = refused(exp, ["fedavgg", "fedavg", "strict", "many", "fedmd"], tmp_path / "out", seeds=[0, 1])
    assert isinstance(error, UsageError)
    first, *lines = str(error).split("\n")
    assert first.endswith(":")
    assert [line.split(":")[0] for line in lines] == ["  fedavgg", "  strict", "  many", "  fedmd"]  # once, not by seed


def test_what_only_a_later_seed_is_refused_comes_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = comparison.build

    def unlucky(exp: Any, *given: Any) -> Any:
        if exp.seed == 7:
            raise DataError("client 3 has no samples")
        return real(exp, *given)

    monkeypatch.setattr(comparison, "build", unlucky)
    error = refused(TINY, ["fedavg", "local"], tmp_path / "out", seeds=[0, 7])
    assert isinstance(error, DataError)
    assert "seed 7: client 3 has no samples" in str(error)


def test_an_engine_that_cannot_carry_it_is_refused(tmp_path: Path) -> None:
    exp = override(TINY, ["engine=serial", "quorum.deadline=60"])
    assert "quorum.deadline" in str(refused(exp, ["fedavg", "local"], tmp_path / "out"))


# --- the commands -----------------------------------------------------------------------------------------------------


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, list(words))
    error = done.exception
    return (error.code, str(error)) if isinstance(error, FedalloyError) else (done.exit_code, done.output)


def toml(path: Path, text: str) -> str:
    path.write_text('data.name = "tiny"\nmodel.name = "mlp"\nrounds = 1\npartition.clients = 4\n' + text)
    return str(path)


UNLABELLED_TOML = 'public = {data = "own", samples = 40, labelled = false}\n'


def test_compare_writes_nothing_where_a_method_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["data=tiny", "model=mlp", "rounds=1", "partition.clients=4", "public.data=own", "public.samples=40"]
    code, said = command(
        "compare", *words, "public.labelled=false", "--methods", "fedavg,knfu,fedmd", "--out", str(out)
    )
    assert code == 2
    assert "knfu.ce_on" in said
    assert "fedmd.pretrain_public" in said
    assert not out.exists()


def test_the_last_cells_refusal_comes_before_the_first_cell_runs(tmp_path: Path) -> None:
    axis = (
        '[[axes]]\nname = "labels"\nvalues = [{label = "with", set = {"public.labelled" = true}}, '
        '{label = "without", set = {"public.labelled" = false}}, {label = "none", set = {"partition.alhpa" = 1}}]\n'
    )
    file = toml(tmp_path / "e.toml", UNLABELLED_TOML + "[methods.fedavg]\n[methods.knfu]\n" + axis)
    out = tmp_path / "out"
    code, said = command("table", file, "--out", str(out))
    assert code == 2
    assert "cell 'without', knfu: knfu.ce_on" in said
    assert "cell 'none': partition has no key 'alhpa'" in said
    assert not out.exists()


def test_deploy_init_refuses_what_the_server_would(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    out = tmp_path / "out"
    rehearsal = toml(tmp_path / "r.toml", UNLABELLED_TOML + '[method]\nname = "knfu"\n')
    code, said = command("deploy", "init", rehearsal, "--sites", "4", "--out", str(out))
    assert (code, "knfu.ce_on" in said, out.exists()) == (2, True, False)
    sites = tmp_path / "s.toml"
    sites.write_text(
        'model.name = "mlp"\npublic = {data = "tiny", samples = 40, labelled = false}\nmethod.name = "knfu"\n'
        '[data]\nname = "sites"\nclasses = 10\nchannels = 1\nsize = 8\n'
    )
    code, said = command("deploy", "init", str(sites), "--sites", "3", "--out", str(out))
    assert (code, "knfu.ce_on" in said, out.exists()) == (2, True, False)
    code, said = command("deploy", "init", str(sites), "public.labelled=true", "--sites", "3", "--out", str(out))
    assert code == 0, said


# --- refused before the first round, or never -------------------------------------------------------------------------


def of_size(setting: Setting, size: int) -> Setting:
    """The same clients, with images of another size."""

    def cut(samples: Samples) -> Samples:
        return Samples(samples.x[:, :, :size, :size].contiguous(), samples.y, samples.index)

    assert setting.public is not None
    return replace(
        setting,
        sites=[Site(cut(site.train), cut(site.test)) for site in setting.sites],
        networks=[lambda: create("mlp", classes=4, channels=1, size=size)],
        public=replace(setting.public, samples=cut(setting.public.samples)),
    )


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten())


SETTINGS: dict[str, Callable[[Setting], Setting]] = {
    "no public set": lambda s: replace(s, public=None),
    "no labels": lambda s: replace(s, public=replace(s.public, labelled=False)),
    "the server's public set": lambda s: replace(s, public=replace(s.public, holder="server")),
    "no features": lambda s: replace(s, networks=[without_features(s.networks[0])]),
    "odd images": lambda s: of_size(s, 6),
    "no linear layer": lambda s: replace(s, networks=[convolutions]),
    "private": lambda s: replace(s, privacy=Privacy(noise_multiplier=1.0)),
}
OPTIONS: list[Method] = [
    *(quick(cls) for cls in methods.values()),
    FedKF(noise=4, width=2),
    FedMD(l2=0.1, samples=8, digest_batch=8, pretrain_public=0, pretrain_private=1, policy="fresh"),
    FedMDKnFu(samples=50),
    FedDF(steps=1, validation=0.5),
    KnFu(samples=100),
    KnFu(ce_on="local"),
    SelectiveFD(client_selector="label_match"),
    replace(quick(DaFKD), shared_layers=7),  # type: ignore[type-var]
]


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("method", OPTIONS, ids=lambda m: m.name)
def test_what_a_method_refuses_it_refuses_before_its_first_round(method: Method, kind: str) -> None:
    setting = SETTINGS[kind](small_settings()[0])
    try:
        refuse_unfit(method, setting)
    except UsageError:
        return
    run(method, Serial(setting), 2)
