"""What a hasty person types: each wrong input is answered in one sentence that names what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedalloy.cli.main import main
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.errors import UsageError

FILES = ("--out", "nowhere")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def fed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Answer]:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Answer:
        with pytest.raises(SystemExit) as left:
            main(words)
        caught = capsys.readouterr()
        return Answer(int(left.value.code or 0), caught.out, caught.err)

    return call


# What was typed, and patterns of what the answer must name; the longest says how much it may list.
TYPED: list[tuple[str, str]] = [
    # a key without its section, an option without its thing, a key that is nearly one
    ("run lr=0.1", r"'lr'.*write training\.lr$"),
    ("run alpha=0.5", r"'alpha'.*write partition\.alpha$"),
    ("run epoch=3", r"'epoch'.*training\.epochs"),
    ("run fraction=0.5", r"'fraction'.*participation\.fraction or quorum\.fraction$"),
    ("run mu=0.1", r"'mu'.*fedprox.*method=fedprox method\.mu"),
    ("run method=fedprox mu=0.1", r"'mu'.*write method\.mu$"),
    ("run hidden=[8] model=mlp", r"'hidden'.*write model\.hidden$"),
    ("run hospital=3", r"'hospital'"),
    ("run fedprox.mu=0.1", r"'fedprox'.*method=fedprox method\.mu=.*methods\.fedprox\.mu"),
    ("compare --methods fedavg,fedprox fedprox.mu=0.1", r"'fedprox'.*methods\.fedprox\.mu"),
    ("run --lr 0.1", r"--lr .*write training\.lr=0\.1$"),
    ("run --lr=0.1", r"--lr .*write training\.lr=0\.1$"),
    ("run --epochs 3", r"--epochs .*write training\.epochs=3$"),
    ("run --clients 5", r"--clients .*write partition\.clients=5$"),
    ("run training.lr", r"'training\.lr' .*training\.lr=VALUE"),
    ("run rounds", r"'rounds' .*rounds=VALUE"),
    ("run lr = 0.1", r"without spaces.*training\.lr=0\.1"),
    ("run method = fedprox", r"without spaces.*method=fedprox"),
    ("run training=0.1", r"\[training\].*\blr\b"),
    ("run participation=0.2", r"\[participation\].*\bfraction\b"),
    # a name where a file or a key was meant
    ("run fedavg", r"'fedavg'.*method=fedavg"),
    ("run fedprox rounds=2", r"'fedprox'.*method=fedprox"),
    ("run mnist", r"'mnist'.*data=mnist"),
    ("run lenet5", r"'lenet5'.*model=lenet5"),
    ("run iid", r"'iid'.*partition=iid"),
    ("partition mnist", r"'mnist'.*data=mnist"),
    ("run demo", r"'demo'.*`fedalloy demo`"),
    ("run compare", r"'compare'.*`fedalloy compare`"),
    ("run own.py", r"'own\.py'.*--plugin own\.py"),
    ("run fedavg fedprox", r"fedalloy compare --methods fedavg,fedprox"),
    ("compare fedavg", r"'fedavg'.*--methods fedavg$"),
    ("compare fedavg fedprox", r"--methods fedavg,fedprox$"),
    ("compare fedavg,fedprox", r"--methods fedavg,fedprox$"),
    ("compare --methods fedavg fedprox", r"--methods fedavg,fedprox$"),
    ("bench-attacks fedavg", r"--methods fedavg$"),
    ("compare --method fedavg", r"--methods fedavg$"),
    ("compare methods=fedavg,fedprox", r"--methods fedavg,fedprox$"),
    ("compare data=tiny fedavg", r"--methods fedavg$"),
    ("run data=tiny fedprox", r"'fedprox'.*method=fedprox"),
    ("advise fedavg", r"data set 'fedavg'.*path of a file"),
    ("advise data=mnist", r"'data=mnist'.*'mnist'"),
    # an unknown method, and an option of another one
    ("run method=fedproxx", r"'fedproxx'.*'fedprox'.*--plugin"),
    ("run method=my-idea", r"'my-idea'.*--plugin"),
    ("list my-idea", r"'my-idea'.*--plugin"),
    ("check my-idea", r"'my-idea'.*--plugin"),
    ("check own.py", r"'own\.py'.*--plugin own\.py"),
    ("compare --methods all", r"method 'all'.*--plugin"),
    ("run method=fedprox method.tau=2", r"fedprox .*'tau'.*an option of .*feddf.*; fedprox .*mu, stragglers"),
    ("run method.mu=0.1", r"fedavg .*'mu'.*method=fedprox"),
    ("compare --methods fedprox method.mu=0.1", r"write methods\.fedprox\.mu=0\.1$"),
    ("run method=kdia method.lr=0.1", r"kdia .*'lr'.*training\.lr"),
    ("run method=feddf", r"feddf .*public set.*public=own"),
    ("run --plugin nowhere.py", r"'nowhere\.py'.*fedalloy new method"),
    ("run --plugin my-idea", r"'my-idea'"),
    ("run device=gpu", r"device = 'gpu'.*\"cpu\" or \"cuda\"$"),
    # commands and their own arguments
    ("fedavg", r"'fedavg'.*fedalloy run method=fedavg"),
    ("train", r"'train'.*'run'"),
    ("help", r"'help'.*fedalloy --help"),
    ("version", r"'version'.*fedalloy --version"),
    ("dmeo", r"'dmeo'.*'demo'"),
    ("exp.toml", r"'exp\.toml'.*fedalloy run exp\.toml"),
    ("data=mnist", r"'data=mnist'.*fedalloy run data=mnist"),
    ("report", r"RUN.*fedalloy report --help"),
    ("export", r"RUN.*fedalloy export --help"),
    ("resume", r"RUN.*fedalloy resume --help"),
    ("check --plugin own.py", r"METHOD.*fedalloy check --help"),
    ("list fedavg kdia", r"kdia.*fedalloy list --help"),
    ("report --html", r"--html.*fedalloy report --help"),
    ("doctor --all", r"--all.*fedalloy doctor --help"),
    ("list metrics", r"'metrics'.*models, data, partitions"),
    ("table rounds=2", r"'rounds=2'.*EXPERIMENT\.toml"),
    ("deploy init", r"EXPERIMENT\.toml.*fedalloy deploy init --help"),
    ("deploy init exp.toml", r"--out.*fedalloy deploy init --help"),
    ("deploy start", r"'start'.*did you mean"),
    ("deploy up lab", r"lab.*fedalloy deploy init"),
    ("reproduce table1", r"'table1'.*fedalloy reproduce dafkd table1"),
    ("reproduce fedprox", r"'fedprox'.*kdia, knfu"),
    ("new", r"KIND.*fedalloy new --help"),
    ("run kdia-cifar", r"'kdia-cifar'.*'kdia-cifar10'"),
    ("run method=fedavg,fedprox", r"fedalloy compare --methods fedavg,fedprox$"),
    ("compare method=fedavg,fedprox", r"write --methods fedavg,fedprox$"),
    ("compare --methods ,", r"--methods ','.*--methods fedavg"),
    ("run --seeds 3", r"--seeds.*option of .*compare"),
    ("new methode idea", r"'methode'.*method"),
]


@pytest.mark.parametrize(("line", "wanted"), TYPED, ids=[line for line, _ in TYPED])
def test_what_a_hasty_person_types_is_answered_with_what_to_write(
    fed: Callable[..., Answer], tmp_path: Path, line: str, wanted: str
) -> None:
    (tmp_path / "own.py").write_text("")
    before = sorted(tmp_path.rglob("*"))
    answer = fed(*line.split())
    assert answer.code in (2, 3), answer
    assert re.search(wanted, answer.err.rstrip("\n")), answer.err
    assert answer.err.startswith("fedalloy: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    assert len(answer.err) < 500
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"lr": 0.1}, "training.lr"),
        ({"alpha": 0.1}, "partition.alpha"),
        ({"method": {"name": "fedprox", "tau": 1.0}}, "tau"),
        ({"method": "nearly"}, "--plugin"),
    ],
)
def test_python_gets_the_same_hints(values: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        experiment(values)


def test_a_hint_can_be_followed() -> None:
    """What is written instead of the wrong words is accepted."""
    for words in (["training.lr=0.1"], ["partition.alpha=0.5"], ["method=fedprox", "method.mu=0.1"]):
        experiment(override({}, words))


def test_the_smallest_data_needs_no_word_about_its_network() -> None:
    assert experiment({"data": "tiny"}).model.name == "mlp"
    assert experiment({"data": "tiny", "model": "resnet8"}).model.name == "resnet8"
    assert experiment({"data": "mnist"}).model.name == "lenet5"
