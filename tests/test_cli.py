"""The command line as a user meets it: what it prints, what it writes, what it refuses and with which exit code."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedalloy
from fedalloy.base.options import options_of, toml
from fedalloy.base.plugins import PREFIX
from fedalloy.base.text import MISSING, TIMES
from fedalloy.check.attacks import ATTACKS
from fedalloy.cli.main import main
from fedalloy.config import build as build_module
from fedalloy.config import experiment as config
from fedalloy.config import overrides
from fedalloy.config.methods import make_method
from fedalloy.config.overrides import override, read_toml
from fedalloy.config.sections import Experiment
from fedalloy.data import load_data
from fedalloy.federation import core
from fedalloy.methods import FedAvg
from fedalloy.report import html, progress
from fedalloy.storage.results import read

TINY = ("data=tiny", "model=mlp", "model.hidden=[8]", "partition.clients=4", "partition.alpha=1.0", "rounds=2")


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data, real = load_data("tiny"), build_module.load_data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda name, **given: data if name == "tiny" else real(name, **given))
        yield


@pytest.fixture(autouse=True)
def fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that takes half a minute tells of its progress on stderr; here, only errors are looked for."""
    monkeypatch.setattr(progress, "SELDOM", math.inf)


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def fed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Call the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> Answer:
        with pytest.raises(SystemExit) as left:
            main(words)
        caught = capsys.readouterr()
        return Answer(int(left.value.code or 0), caught.out, caught.err)

    return call


@pytest.fixture
def quick(fed: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The same, with a page that says only how it was made; drawing a real one takes longer than these runs."""

    def page(runs: object, path: Path, *, command: str, selection: str, targets: object) -> Path:
        path.write_text(command)
        return path

    monkeypatch.setattr(html, "write_report", page)
    return fed


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small run, made once; tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("made") / "run"
    fedalloy.simulate(config.experiment(override({}, TINY)), folder)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


# --- run, resume, compare ---------------------------------------------------------------------------------------------


def test_run_writes_a_run_a_table_and_a_report(fed: Command, tmp_path: Path) -> None:
    answer = fed("run", *TINY, "method=fedprox", "method.mu=1")
    assert (answer.code, answer.err) == (0, "")
    assert "FedProx" in answer.out
    assert "AMP %" in answer.out
    assert "report: runs/fedprox-seed0/report.html" in answer.out
    kept = read(tmp_path / "runs" / "fedprox-seed0")
    assert len(kept.rounds) == 2
    assert kept.meta["experiment"]["method"]["mu"] == 1.0
    assert kept.meta["experiment"]["model"] == {"name": "mlp", "hidden": [8]}
    page = (tmp_path / "runs" / "fedprox-seed0" / "report.html").read_text()
    assert "fedalloy run data=tiny model=mlp" in page


def test_a_second_run_gets_a_folder_of_its_own(quick: Command, tmp_path: Path) -> None:
    for _ in range(3):
        quick("run", *TINY, "rounds=1")
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["fedavg-seed0", "fedavg-seed0-2", "fedavg-seed0-3"]


def test_run_reads_a_file_and_overrides_it(quick: Command, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        'rounds = 1\ndata = "tiny"\nmodel = "mlp"\n[partition]\nname = "iid"\nclients = 3\n'
    )
    assert quick("run", "my.toml", "partition.clients=2", "--out", "here").code == 0
    meta = read(tmp_path / "here").meta
    assert (meta["experiment"]["rounds"], meta["experiment"]["partition"]["clients"]) == (1, 2)


def test_run_takes_a_users_file_with_natural_clients(quick: Command, tmp_path: Path) -> None:
    rows = np.arange(60)
    np.savez(tmp_path / "my.npz", x=np.random.default_rng(0).random((60, 4, 4)), y=rows % 3, client=rows % 5)
    (tmp_path / "my.toml").write_text(
        'rounds = 1\ndata = {name = "my.npz"}\nmodel = "mlp"\npartition = {name = "natural"}\n'
    )
    assert quick("run", "my.toml", "-o", "out").code == 0
    assert read(tmp_path / "out").meta["clients"]["train_sizes"] == [9] * 5


def test_a_folder_with_a_run_is_not_overwritten(quick: Command, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    answer = quick("run", *TINY, "seed=1", "--out", str(run))
    assert answer.code == 5
    assert f"'{run}' holds a run of a different experiment; choose another folder:\n  seed: 0 -> 1\n" in answer.err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    answer = quick("run", *TINY, "--out", str(run))
    assert answer.code == 0
    assert re.match(f"'{run}' contains this run: .*finished", answer.out)
    (run / "report.html").unlink()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_resume_goes_on(quick: Command, run: Path) -> None:
    answer = quick("resume", str(run))
    assert answer.code == 0
    assert answer.err == "FedAvg, seed 0: already finished\n"
    answer = quick("resume", str(run), "--rounds", "3")
    assert (answer.code, answer.err) == (0, "")
    assert len(read(run).rounds) == 3
    assert (run / "report.html").exists()
    answer = quick("resume", str(run), "--rounds", "1")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"fedalloy: '{run}' has completed 3 rounds; write --rounds 3 or more\n"
    answer = quick("run", *TINY, "rounds=1", "--out", str(run))
    assert (answer.code, answer.out) == (2, "")
    told = f"'{run}' has completed 3 rounds; write rounds = 3 or more, or choose another folder"
    assert answer.err == f"fedalloy: {told}\n"


def test_run_saves_a_method_of_the_file_under_its_label(quick: Command, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('[methods.strong]\nname = "fedprox"\nmu = 1.0\n[methods.fedprox]\n')
    words = ("run", "my.toml", *TINY, "rounds=1")
    assert "\nstrong " in quick(*words, "method=strong").out
    quick(*words, "method=fedprox")
    quick(*words, "method=strong", "method.mu=2.0")
    labels = {folder.name: read(folder).label for folder in (tmp_path / "runs").iterdir()}
    assert labels == {"strong-seed0": "strong", "fedprox-seed0": "FedProx", "fedprox-seed0-2": "FedProx"}


def test_skipped_rounds_are_told(fed: Command) -> None:
    words = ("quorum.fraction=1", "participation.late_drop=0.2")
    sentence = "FedAvg, seed 0: round 2 of 2 was skipped "
    answer = fed("run", *TINY, *words, "--out", "run")
    assert answer.code == 0
    assert f"\n{sentence}" in answer.out
    assert sentence in Path("run/report.html").read_text()


def test_compare_shows_means_over_seeds_and_goes_on(fed: Command, tmp_path: Path) -> None:
    words = ("compare", *TINY, "--methods", "local,fedavg", "--seeds", "2", "--out", "out")
    first = fed(*words)
    assert (first.code, first.err) == (0, "")
    assert "±" in first.out
    for words_of_gain in ("Gains of the clients", "Each client with FedAvg", "No verdict: FedAvg"):
        assert words_of_gain in first.out
    assert sorted(p.name for p in (tmp_path / "out" / "runs").iterdir()) == [
        *("fedavg-seed0", "fedavg-seed1", "local-seed0", "local-seed1")
    ]
    assert {"split.png", "table.json", "report.html"} <= set(files(tmp_path / "out"))
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [(line["label"], line["view"], line["seeds"]) for line in table] == [
        *(("Local, equal rounds", "personal", 2), ("FedAvg", "aca", 2), ("FedAvg", "oca", 2))
    ]
    shutil.rmtree(tmp_path / "out" / "runs" / "fedavg-seed1")
    again = fed(*words)
    assert again.err.count("already finished") == 3
    assert json.loads((tmp_path / "out" / "table.json").read_text())[1]["amp"] == table[1]["amp"]
    # Another experiment does not touch what is there.
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    other = fed(*words, "training.lr=0.5")
    assert other.code == 5
    assert "holds a run of a different experiment; choose another folder:\n  training.lr: " in other.err
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_compare_without_methods_sets_the_bounds_beside_the_method(quick: Command, tmp_path: Path) -> None:
    assert quick("compare", *TINY, "rounds=1", "method=fedprox", "method.mu=3", "-s", "5,").code == 2
    assert quick("compare", *TINY, "rounds=1", "method=fedprox", "method.mu=3", "-s", "5,6").code == 0
    runs = tmp_path / "runs" / "compare-defaults" / "runs"
    assert sorted(p.name for p in runs.iterdir()) == [
        *("centralised-seed5", "centralised-seed6", "fedprox-seed5", "fedprox-seed6"),
        *("local-converged-seed5", "local-converged-seed6"),
    ]
    assert read(runs / "fedprox-seed5").meta["experiment"]["method"]["mu"] == 3.0


def test_under_privacy_compare_sets_beside_the_method_what_can_be_private(quick: Command, tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    assert quick("compare", *TINY, "rounds=1", "privacy.noise_multiplier=1.0", "--out", "both").code == 0
    assert {path.name for path in (tmp_path / "both" / "runs").iterdir()} == {"local-seed0", "fedavg-seed0"}


def test_compare_takes_a_method_that_it_is_told_to_run(quick: Command, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(
        'data = "tiny"\nmodel = "mlp"\nrounds = 1\n[partition]\nclients = 3\nalpha = 1.0\n'
        "[methods.local]\n[methods.fedprox]\nmu = 0.5\n"
    )
    words = ("method=fedavgm", "method.momentum=0.5", "--methods", "local,fedavgm", "--out", "out")
    assert quick("compare", "two.toml", *words).code == 0
    assert read(tmp_path / "out" / "runs" / "fedavgm-seed0").meta["experiment"]["method"]["momentum"] == 0.5


def test_the_demo_in_small(fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(path: str | Path) -> Experiment:
        words = ["rounds=1", "data=tiny", "partition.samples=10", "partition.test_samples=5", "public.samples=50"]
        return config.experiment(override(read_toml(path), words))

    monkeypatch.setattr(config, "read", small)
    (tmp_path / "runs" / "mine").mkdir(parents=True)  # where a demo into this folder keeps its own
    (tmp_path / "fedalloy-demo").mkdir()
    answer = fed("demo")
    assert (answer.code, answer.err) == (0, "")
    for words in ("What next?", "KDIA", "KnFu", "FedMD+Global", "Centralised", "20 clients", "split.png"):
        assert words in answer.out
    assert (tmp_path / "fedalloy-demo-2" / "report.html").exists()
    assert "fedalloy-demo-2/report.html" in answer.out
    assert fed("demo", "--out", ".").code == 0
    assert (tmp_path / "runs" / "mine").is_dir()
    export = next(line for line in answer.out.splitlines() if "fedalloy export" in line).split()
    assert fed(*export[1:5]).code == 0  # what it proposes works


def test_ctrl_c_says_how_to_go_on(quick: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FedAvg.round

    def stopped(self: FedAvg, s: Any, fed: Any) -> Any:
        if fed.round == 2:
            raise KeyboardInterrupt
        return real(self, s, fed)

    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "round", stopped)
        answer = quick("run", *TINY, "--out", "a run")
        assert answer.code == 130
        assert re.match("fedalloy: interrupted.*`fedalloy resume 'a run'`", answer.err.splitlines()[-1])
        many = quick("compare", *TINY, "-m", "fedavg,local", "--out", "many")
        assert many.code == 130
        assert "--methods fedavg,local --seeds 1 --out many`" in many.err.splitlines()[-1]
    assert len(read(tmp_path / "a run").rounds) == 1
    assert quick("resume", "a run").code == 0
    assert len(read(tmp_path / "a run").rounds) == 2
    assert quick("compare", *TINY, "-m", "fedavg,local", "--out", "many").code == 0


# --- the other commands -----------------------------------------------------------------------------------------------


def test_lists(fed: Command) -> None:
    methods = fed("list").out
    assert methods == fed("list", "methods").out
    for name in ("fedavg", "fedprox", "local"):
        assert name in methods
    able = fed("list", "--where", "any_network=yes").out
    assert "local" in able
    assert "fedprox" not in able
    assert "fedprox" in fed("list", "--where", "any_network=no", "--where", "paper=mlsys").out
    assert "simple-cnn" in fed("list", "models").out
    assert "fashion-mini" in fed("list", "data").out
    partitions = fed("list", "partitions").out
    assert "dirichlet-fixed" in partitions
    options = " ".join(fed("list", "dirichlet").out.split())
    assert "alpha (must be given) min_size = 10 balanced = true" in options
    assert "ids" not in fed("list", "natural").out  # they come from the data


def test_a_list_can_be_filtered_by_yes_no_and_words(fed: Command) -> None:
    def names(*filters: str) -> set[str]:
        out = fed("list", *(word for text in filters for word in ("--where", text))).out
        return {line.split()[0] for line in out.splitlines() if line.startswith("  ")}

    assert {"fedkf", "fedgkd"} <= names("public=no", "distils=yes")
    assert {"fedavg", "local"} <= names("distils=no")
    assert not names("distils=yes") & names("distils=no")
    assert names("distils=yes") | names("distils=no") == names() == names("paper=yes")
    assert "local" in names("up=no")  # it says that nothing is sent
    assert "fedkf" in names("distils=generated images")
    assert "fedavg" not in names("remembers=yes")
    nothing = fed("list", "--where", "public=yes", "--where", "distils=no")
    assert (nothing.code, nothing.out.count("\n")) == (0, 1)
    assert re.match(r"no method .*public=yes and distils=no\b", nothing.out)


def test_what_a_list_says_of_options_can_be_typed(fed: Command) -> None:
    for name, cls in core.methods.items():
        said = fed("list", name).out
        assert not re.search(r"= (None|True|False)\b", said)
        typed = {found.name: toml(found.default) for found in options_of(cls)}
        assert all(re.search(rf"\b{option}\b", said) for option in typed)
        words = [f"method.{option}={value}" for option, value in typed.items() if value != "unset"]
        assert make_method(config.experiment(override({}, [f"method={name}", *words]))) == cls()


def test_partition_shows_the_split(fed: Command, tmp_path: Path) -> None:
    answer = fed("partition", "data=tiny", "partition.clients=4", "partition.alpha=1.0", "--out", "split")
    assert answer.code == 0
    assert "600 rows of 10 classes on 4 clients" in answer.out
    assert files(tmp_path / "split") == ["bubbles.png", "bubbles.svg", "heatmap.png", "heatmap.svg", "partition.json"]
    card = json.loads((tmp_path / "split" / "partition.json").read_text())
    assert sorted(row for part in card["indices"].values() for rows in part for row in rows) == list(range(600))


def test_report_finds_runs_and_writes_one_page(fed: Command, run: Path, tmp_path: Path) -> None:
    answer = fed("report", str(tmp_path), "--out", "page.html", "--select", "best by amp")
    assert answer.code == 0
    assert "FedAvg" in answer.out
    assert "<html" in (tmp_path / "page.html").read_text()


def test_report_tells_runs_of_one_method_apart(fed: Command, run: Path, tmp_path: Path) -> None:
    for number, words in enumerate((["seed=1"], ["training.lr=0.5"], ["method=fedprox", "training.lr=0.5"])):
        fedalloy.simulate(config.experiment(override({}, (*TINY, *words))), tmp_path / str(number))
    answer = fed("report", str(run), "0")
    assert "±" in answer.out
    assert "training.lr" not in answer.out
    answer = fed("report", str(run), "0", "1")
    assert "FedAvg, training.lr = 0.05  ACA" in answer.out
    assert "FedAvg, training.lr = 0.5   ACA" in answer.out
    assert "compare:" not in answer.out
    assert "FedAvg, training.lr = 0.5 (ACA)" in Path("report.html").read_text()
    sentence = "not comparable: training.lr is 0.05 (FedAvg), 0.5 (FedProx)."
    assert sentence in fed("report", str(run), "2").out
    assert sentence in Path("report.html").read_text()
    assert fed("report", str(run), "1", "1").code == 0  # it is one run, however often it is named
    shutil.copytree("1", "copy")
    answer = fed("report", str(run), "1", "copy")
    assert answer.code == 2
    assert "have the same experiment and the seed 0 ('1' and 'copy'); leave one of them out" in answer.err


@pytest.mark.parametrize("word", ["best by validation", "best", "mean of last 1"])
def test_a_round_that_cannot_be_selected_is_refused(fed: Command, run: Path, word: str) -> None:
    answer = fed("report", str(run), "--select", word)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert word in answer.err
    assert not Path("report.html").exists()


def test_compare_reports_the_selected_round_and_knows_before_if_it_cannot(fed: Command, tmp_path: Path) -> None:
    words = ("compare", *TINY, "rounds=3", "--methods", "fedavg", "--out", "out")
    for word in ("best by validation", "best on test"):
        answer = fed(*words, "--select", word)
        assert answer.code == 2
        assert f"'{word}'" in answer.err
        assert not (tmp_path / "out").exists()
    answer = fed(*words, "--select", "mean of last 2")
    assert answer.code == 0
    assert "Scores: means over the last 2 evaluated rounds" in answer.out
    (line,) = [x for x in json.loads((tmp_path / "out" / "table.json").read_text()) if x["view"] == "aca"]
    amps = fedalloy.storage.results.read(tmp_path / "out" / "runs" / "fedavg-seed0").series("aca", "amp")[1]
    assert (line["selection"], line["amp"]) == ("mean of last 2", pytest.approx(amps[-2:].mean()))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Scores are means over the last 2 evaluated rounds" in page
    assert "--select &#39;mean of last 2&#39;" in page


def test_report_takes_published_tables_from_a_file(fed: Command, run: Path, tmp_path: Path) -> None:
    assert "Compared with" not in fed("report", str(run)).out
    table = 'source = "Paper"\nround = "best by amp"\nmetrics = ["amp"]\nrows = [["FedAvg", "aca", "99.9"]]\n'
    Path("paper.toml").write_text(f"rounds = 7\n[[published]]\n{table}")
    answer = fed("report", str(run), "--published", "paper.toml")
    assert "99.9" in answer.out
    assert "Compared with Paper; ours: best by amp" in Path("report.html").read_text()
    Path("paper.toml").write_text("rounds = 7\n")
    assert "no [[published]] tables" in fed("report", str(run), "--published", "paper.toml").err


def test_report_counts_the_rounds_to_targets(fed: Command, run: Path) -> None:
    answer = fed("report", str(run), "--target", "0.01", "--target", "wlp=1.0")
    (line,) = [
        line
        for line in answer.out.split("Rounds to reach a target")[1].splitlines()
        if " 1.0" in line and "ACA" in line
    ]
    assert line.split()[2:] == ["1", f"1.0{TIMES}", ">", "2", MISSING]  # any AMP is above one per cent
    assert [fed("report", str(run), "--target", word).code for word in ("tset=0.5", "75")] == [2, 2]


def test_export_writes_a_model_that_a_run_can_start_from(quick: Command, run: Path) -> None:
    answer = quick("export", str(run), "--view", "oca")
    assert answer.code == 0
    assert 'create("mlp", classes=10, channels=1, size=8, hidden=[8])' in answer.out
    assert quick("run", *TINY, f"start={run / 'oca.safetensors'}", "--out", "next").code == 0


def test_check_tells_what_was_checked(fed: Command) -> None:
    answer = fed("check", "local")
    assert answer.code == 0
    assert answer.out.count("ok  ") > 5


def test_a_plugin_serves_every_command(quick: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedalloy.data.partition import partitions

    monkeypatch.setattr(partitions, "_things", dict(partitions._things))  # type: ignore[attr-defined]
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom fedalloy.data.partition import partitions\n\n\n"
        '@partitions.register("of-the-test")\ndef cards(labels, clients, *, seed):\n    """Deal like cards."""\n'
        "    return [np.arange(k, len(labels), clients) for k in range(clients)]\n"
    )
    split = ("data=tiny", "partition=of-the-test", "partition.clients=3")
    assert "there is no partition 'of-the-test'" in quick("partition", *split).err
    assert "600 rows of 10 classes on 3 clients" in quick("partition", *split, "--plugin", "mine.py").out
    assert "Deal like cards." in quick("list", "partitions", "--plugin", "mine.py").out
    assert quick("run", *split, "model=mlp", "rounds=1", "--out", "out", "--plugin", "mine.py").code == 0
    assert "--plugin mine.py" in (tmp_path / "out" / "report.html").read_text()
    assert quick("resume", "out", "--rounds", "2", "--plugin", "mine.py").code == 0


BAD = '''
from fedalloy import Card, FedAvg, action, method


@method("badm", label="Bad", card=Card(paper="none", up="model, n", down="model"))
class Bad(FedAvg):
    """Fails at one client."""

    @action
    def train(self, me, msg):
        if me.id == 3:
            {}["oops"]
        return super().train(me, msg)


@method("bads", label="Bad", card=Card(paper="none", up="model, n", down="model"))
class BadServer(FedAvg):
    """Fails at the server."""

    def aggregate(self, s, replies, fed):
        raise FileNotFoundError("gone")
'''


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Methods are as they are now again when this is called, and after the test."""
    before = dict(core.methods._things)  # type: ignore[attr-defined]

    def forget() -> None:
        monkeypatch.setattr(core.methods, "_things", dict(before))
        for name in [name for name in sys.modules if name.startswith(PREFIX)]:
            del sys.modules[name]

    forget()
    yield forget
    forget()


@pytest.fixture
def bad(tmp_path: Path, forget: Callable[[], None]) -> Path:
    (tmp_path / "badm.py").write_text(BAD)
    return tmp_path / "badm.py"


@pytest.mark.parametrize("engine", ["serial", "threads", "pool"])
def test_what_a_plugin_does_wrong_is_told_with_its_line(fed: Command, bad: Path, engine: str) -> None:
    words = ("run", *TINY, "method=badm", "--plugin", bad.name, f"engine={engine}", "workers=1", "--out", "out")
    answer = fed(*words)
    place = "fedalloy: badm.py, line 12: KeyError: 'oops' (client 3, action 'train'); --debug "
    assert (answer.code, answer.err[: len(place)], answer.err.count("\n")) == (1, place, 1)
    assert 'badm.py", line 12, in train' in fed("--debug", *words).err


def test_what_a_plugin_does_wrong_at_the_server_is_no_fault_of_the_disk(fed: Command, bad: Path) -> None:
    answer = fed("run", *TINY, "method=bads", "--plugin", bad.name, "--out", "out")
    assert answer.code == 1
    assert answer.err.startswith("fedalloy: badm.py, line 21: FileNotFoundError: gone; --debug")


def test_a_run_of_a_plugin_says_that_it_needs_it_again(
    quick: Command, tmp_path: Path, forget: Callable[[], None]
) -> None:
    (tmp_path / "half.py").write_text(
        "from fedalloy import Card, FedAvg, method\n\n\n"
        '@method("halfway", label="Half", card=Card(paper="none", up="model, n", down="model"))\n'
        'class Half(FedAvg):\n    """FedAvg under another name."""\n'
    )
    plugin = ("--plugin", "half.py")
    assert quick("run", *TINY, "method=halfway", *plugin, "--out", "out").code == 0
    for command in ("resume", "export", "doctor", "draw"):
        forget()
        answer = quick(command, "out")
        assert answer.code == 2
        assert "method 'halfway' is not built in; a plug-in's method needs --plugin" in answer.out + answer.err
        told = quick(command, "out", *plugin)
        assert "halfway has no pictures" in told.err if command == "draw" else told.code == 0
    forget()
    assert quick("report", "out").code == 0  # a page needs no method
    assert quick("run", *TINY, "method=halfway").err.endswith("selective-fd; one of your own needs --plugin FILE.py\n")


def test_nobody_tested_is_one_line_and_no_warning(fed: Command, recwarn: pytest.WarningsRecorder) -> None:
    answer = fed("run", *TINY, "rounds=1", "partition.test_fraction=0", "--out", "out")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.count("No client has test samples") == 1
    assert not recwarn.list


def test_a_method_without_the_public_set_it_needs(
    fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedalloy.federation.core import methods

    monkeypatch.setattr(methods, "_things", dict(methods._things))  # type: ignore[attr-defined]
    (tmp_path / "needy.py").write_text(
        "from fedalloy import Card, FedAvg, method\n\n\n"
        '@method("needy", label="Needy", card=Card(paper="none", up="model, n", down="model", public=True))\n'
        'class Needy(FedAvg):\n    """Wants a public set."""\n'
    )
    answer = fed("run", *TINY, "method=needy", "--plugin", "needy.py", "--out", "out")
    assert (answer.code, answer.err) == (
        2,
        "fedalloy: needy needs a public set; add one under [public], for instance public=own\n",
    )
    assert [name for name in files(tmp_path) if "__pycache__" not in name] == ["needy.py"]  # which Python may leave


# --- what is refused --------------------------------------------------------------------------------------------------

# What was typed, the exit status, and a pattern of what the one line names: keys, values, and what to write instead.
WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("rnu",), 2, r"'rnu'.*'run'"),
    (("xyz",), 2, r"'xyz'.*bench-attacks, check, "),
    (("run", "--ouut", "x"), 2, r"'--ouut'"),
    (("run", "missing.toml"), 2, r"'missing\.toml'"),
    (("run", "broken.toml"), 2, r"'broken\.toml'.*TOML"),
    (("run", "good.toml", "rounds"), 2, r"'rounds'.*rounds=VALUE"),
    (("run", "round=3"), 2, r"'round'.*'rounds'"),
    (("run", "method=fedproxx"), 2, r"'fedproxx'.*'fedprox'"),
    (("run", "method=fedprox", "method.mue=1"), 2, r"fedprox.*'mue'.*'mu'"),
    (("run", "training.lr=fast"), 2, r"training\.lr = 'fast'.*number"),
    (("run", "training=3"), 2, r"training = 3.*\[training\]"),
    (("run", "rounds=2.5"), 2, r"rounds = 2\.5.*integer"),
    (("run", "rounds=true"), 2, r"rounds = True.*integer"),
    (("run", "data=tiny", "partition.alpha=0"), 2, r"alpha = 0\.0.*1e-6.*1e6"),
    (("run", "participation.fraction=2"), 2, r"participation\.fraction = 2"),
    (("run", "data=tiny", "partition.clients=601"), 2, r"\b601 clients.*\b600 rows"),
    (("run", "data=tinny"), 2, r"data set 'tinny'.*'tiny'"),
    (("run", "data=tiny", "model=mpl"), 2, r"model 'mpl'.*'mlp'"),
    (("run", "data=tiny", "partition=iidd"), 2, r"partition 'iidd'.*'iid'"),
    (("run", "data=missing.npz"), 3, r"no data at 'missing\.npz'.*\.npz file"),
    (("run", "data=some.csv"), 3, r"no data at 'some\.csv'.*\.csv"),
    (("run", "method=qqq"), 2, r"method 'qqq'.*: .*fedavg"),
    (("run", "data=broken.npz"), 3, r"'broken\.npz' cannot be read.*intact copy"),
    (("run", "data=labels.npz", "data.classes=2"), 3, r"'labels\.npz'.*row 0 of y.*'7'.*data\.classes = 2"),
    (("run", "data=tiny", "model=mlp", "start=no.safetensors"), 3, r"'no\.safetensors'"),
    (("run", "data=sites"), 2, r"'sites'.*path of a file or folder"),
    (("run", *TINY, "--out", "good.toml/x"), 4, r"folder 'good\.toml/x'.*Not a directory"),
    (("run", *TINY, "--out", "."), 2, r"'\.' is not empty.*'broken\.npz'.*\b4 more"),
    (("run", "--rounds", "3"), 2, r"--rounds .*write rounds=3\n"),
    (("compare", "--training.lr=0.1", "-s", "2"), 2, r"--training\.lr .*write training\.lr=0\.1\n"),
    (("run", "--rounds"), 2, r"--rounds .*write rounds=\.\.\."),
    (("report", "--rounds", "3"), 2, r"'--rounds'"),
    (("run", "participation.fraction=0.5"), 2, r'participation\.fraction .*policy = "full".*write '),
    (("run", "memory=4"), 2, r"memory = 4 .*\b1 MB"),
    (("compare", "two.toml", "method=qffl"), 2, r"method=qffl .*\[methods\].*write --methods qffl\n"),
    (("compare", "two.toml", "method.mu=3"), 2, r"method\.mu=3 .*write methods\.fedprox\.mu=3\n"),
    (
        ("compare", "two.toml", "-m", "local,fedavg", "method=qffl"),
        2,
        r"method=qffl .*--methods.*write --methods local,fedavg,qffl\n",
    ),
    (("bench-attacks", "method=qffl"), 2, r"method=qffl .*\[methods\].*write --methods qffl\n"),
    (("run", "--plugin", "missing.py"), 2, r"plug-in 'missing\.py'"),
    (("compare", *TINY, "--seeds", "x"), 2, r"--seeds x .*\(3\).*\(0,1,7\)"),
    (("compare", *TINY, "--seeds", "0"), 2, r"--seeds 0 .*\(3\).*different.*\(0,1,7\)"),
    (("compare", *TINY, "--seeds", "1,1"), 2, r"--seeds 1,1 .*\(3\).*different.*\(0,1,7\)"),
    (("compare", *TINY, "--methods", "fedavgg"), 2, r"method 'fedavgg'.*'fedavg'"),
    (("compare", *TINY, "--out", "good.toml/x"), 4, r"folder 'good\.toml/x'.*Not a directory"),
    (("partition", "data=tiny", "--out", "good.toml/x"), 4, r"folder 'good\.toml/x'"),
    (("resume", "nowhere"), 3, r"nowhere/run\.json.*No such file or directory"),
    (("resume", "good.toml"), 3, r"good\.toml/run\.json.*Not a directory"),
    (("report", "nowhere"), 3, r"nowhere/run\.json"),
    (("export", "nowhere"), 3, r"nowhere/run\.json"),
    (("list", "method"), 2, r"'method'.*'methods'"),
    (("list", "--where", "any_netwrk=yes"), 2, r"--where any_netwrk=yes.*'any_netwrk'.*'any_network'"),
    (("list", "--where", "any_network"), 2, r"--where any_network\b.*any_network=yes or no"),
    (("list", "--where", "public=maybe"), 2, r"--where public=maybe.*public=yes or no"),
    (("list", "models", "--where", "public=yes"), 2, r"--where .*methods"),
    (("check", "fedavgg"), 2, r"method 'fedavgg'.*'fedavg'"),
]


@pytest.mark.parametrize(("words", "code", "sentence"), WRONG, ids=[" ".join(words) for words, _, _ in WRONG])
def test_bad_input_gets_one_sentence_and_leaves_nothing(
    fed: Command, tmp_path: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    (tmp_path / "good.toml").write_text('data = "tiny"\nmodel = "mlp"\nrounds = 1\n')
    (tmp_path / "two.toml").write_text('data = "tiny"\nmethod = "fedprox"\n[methods.local]\n[methods.fedavg]\n')
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and then nothing")
    np.savez(tmp_path / "labels.npz", x=np.zeros((4, 2, 2)), y=np.array([7, 0, 0, 1]))
    before = sorted(tmp_path.rglob("*"))
    answer = fed(*words)
    assert answer.code == code
    assert re.match(f"fedalloy: .*{sentence}", answer.err), answer.err
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_view_is_answered_with_the_nearest(fed: Command, run: Path) -> None:
    answer = fed("export", str(run), "--view", "ocaa")
    assert (answer.code, "did you mean 'oca'?" in answer.err) == (2, True)
    assert not list(run.glob("*.safetensors"))


def test_damaged_checkpoints(quick: Command, run: Path) -> None:
    newest, before = (run / "checkpoints" / f"{n:06d}.safetensors" for n in (2, 1))
    newest.write_bytes(newest.read_bytes()[:-1])
    answer = quick("resume", str(run))
    assert answer.code == 0
    assert (
        "the checkpoint of round 2 cannot be used: the hash of 000002.safetensors is not the one in the manifest"
        in answer.out
    )
    for file in (newest, before):
        file.write_bytes(b"")
    answer = quick("resume", str(run))
    assert answer.code == 5
    assert answer.err.startswith(
        f"fedalloy: no checkpoint in '{run}/checkpoints' is intact; start again in another folder"
    )


def test_changed_data_is_refused(quick: Command, tmp_path: Path) -> None:
    rows = np.arange(60)
    x = np.random.default_rng(0).random((60, 4, 4))
    words = ("data=my.npz", "model=mlp", "partition=iid", "partition.clients=3", "rounds=1", "--out", "out")
    np.savez(tmp_path / "my.npz", x=x, y=rows % 3)
    assert quick("run", *words).code == 0
    x[59, 3, 3] += 1e-3
    np.savez(tmp_path / "my.npz", x=x, y=rows % 3)
    answer = quick("resume", "out", "--rounds", "2")
    assert answer.code == 5
    assert answer.err.startswith("fedalloy: data has changed: the run was made with ")
    assert len(read(tmp_path / "out").rounds) == 1


def test_a_changed_version_is_refused(fed: Command, run: Path) -> None:
    meta = json.loads((run / "run.json").read_text())
    meta["versions"]["torch"] = "1.0"
    (run / "run.json").write_text(json.dumps(meta))
    answer = fed("resume", str(run), "--rounds", "3")
    assert answer.code == 5
    assert answer.err.startswith("fedalloy: torch has changed: the run was made with 1.0, now it is 2.")


def test_a_changed_plugin_is_refused(quick: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedalloy.data.partition import partitions

    without = dict(partitions._things)
    monkeypatch.setattr(partitions, "_things", dict(without))
    file = Path("split.py")
    text = (
        "import numpy as np\nfrom fedalloy.data.partition import partitions\n\n\n"
        '@partitions.register("of-this-test")\ndef cards(labels, clients, *, seed):\n    """Deal like cards."""\n'
        "    return [np.arange(k, len(labels), clients) for k in range(clients)]\n"
    )
    file.write_text(text)
    plugin, split = ("--plugin", "split.py"), ("data=tiny", "model=mlp", "rounds=1", "partition=of-this-test")
    assert quick("run", *split, "partition.clients=3", *plugin, "--out", "out").code == 0
    assert list(read("out").meta["versions"])[-1] == "plug-in split.py"
    assert quick("resume", "out", "--rounds", "2", *plugin).code == 0
    file.write_text(f"{text}# mended\n")
    answer = quick("resume", "out", "--rounds", "3", *plugin)
    assert answer.code == 5
    assert answer.err.startswith("fedalloy: plug-in split.py has changed: the run was made with ")
    monkeypatch.setattr(partitions, "_things", without)
    monkeypatch.delitem(sys.modules, "fedalloy_plugin_split")
    file.rename("other.py")
    answer = quick("resume", "out", "--rounds", "3", "--plugin", "other.py")
    assert answer.err.startswith("fedalloy: plug-in other.py has changed: the run was made without it, now it is ")


def test_debug_may_stand_after_the_command(quick: Command) -> None:
    for words in (("--debug", "report", "nowhere"), ("report", "nowhere", "--debug")):
        answer = quick(*words)
        assert (answer.code, "Traceback" in answer.err) == (3, True)


def test_a_fault_of_ours_is_called_one_and_can_be_looked_into(fed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(overrides, "override", fail)
    answer = fed("run")
    assert answer.code == 1
    assert re.fullmatch(r"fedalloy: ZeroDivisionError: oh \W*a bug in fedalloy\W.*--debug.*\n", answer.err)
    assert "Traceback" in fed("--debug", "run").err


def test_a_disk_that_fails_is_no_fault_of_ours(fed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "somewhere")

    monkeypatch.setattr(overrides, "override", fail)
    answer = fed("run")
    assert (answer.code, answer.err) == (4, "fedalloy: 'somewhere': Permission denied\n")


# --- help and version -------------------------------------------------------------------------------------------------


def test_version_and_help(fed: Command) -> None:
    assert fed("--version").out == f"fedalloy, version {fedalloy.__version__}\n"
    assert fed("--help").out == fed("-h").out == fed().out
    assert fed().code == 0
    words = "demo run compare table resume list partition report draw export check doctor bench-attacks"
    for command in words.split():
        assert command in fed("--help").out
        assert fed(command, "--help").code == 0


def test_help_says_what_may_be_left_out_and_what_attacks_there_are(fed: Command) -> None:
    for command in ("run", "compare", "partition", "bench-attacks"):
        assert f"Usage: fedalloy {command} [OPTIONS] [EXPERIMENT.toml] [KEY=VALUE]...\n" in fed(command, "--help").out
    assert "Usage: fedalloy table [OPTIONS] EXPERIMENT.toml [KEY=VALUE]...\n" in fed("table", "--help").out
    assert "..." not in fed("--help").out.partition("Commands:")[2]  # every summary is whole
    told = " ".join(fed("bench-attacks", "--help").out.split())
    assert f"under each attack: {', '.join(ATTACKS)}." in told


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys\nfrom fedalloy.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('loaded:', [m for m in ('torch', 'numpy', 'pydantic', 'matplotlib', 'rich') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "loaded: []"


def test_the_installed_command(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("fedalloy")
    good = subprocess.run([command, "run", *TINY], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert files(tmp_path / "runs" / "fedavg-seed0")[-1] == "run.json"
    bad = subprocess.run([command, "rnu"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "fedalloy: there is no command 'rnu'; did you mean 'run'?\n"
