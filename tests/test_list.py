"""`fedalloy list`: what fits on a screen, what the page of a method says, and that its examples can be typed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedalloy.base.options import options_of, toml
from fedalloy.check.steps import Step, rounds_of
from fedalloy.cli import method_page
from fedalloy.cli.main import main
from fedalloy.config.experiment import experiment
from fedalloy.config.overrides import override
from fedalloy.data.catalogue import datasets
from fedalloy.data.partition import partitions
from fedalloy.federation.core import quick
from fedalloy.federation.disclosure import evaluated
from fedalloy.methods import methods
from fedalloy.nets.models import models

LINES, WIDTH = 40, 80
Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def call(*words: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(["list", *words])
        caught = capsys.readouterr()
        assert (left.value.code or 0, caught.err) == (0, "")
        return caught.out

    return call


def named(out: str) -> list[str]:
    """The first word of every line that begins with two blanks and a name."""
    return [found[1] for found in re.finditer(r"^  (\S+)", out, re.MULTILINE)]


def test_all_methods_fit_on_a_screen(shown: Shown) -> None:
    out = shown()
    lines = out.rstrip("\n").split("\n")
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert sorted(named(out)) == sorted(methods)
    for name, cls in methods.items():
        line = next(line for line in lines if line.startswith(f"  {name} "))
        assert cls.card.brief in line


def test_methods_are_grouped_by_what_they_need(shown: Shown) -> None:
    group: dict[str, str] = {}
    for part in re.split(r"^(?=\S)", shown(), flags=re.MULTILINE):
        group |= dict.fromkeys(named(part), part.split("\n")[0])
    of_public = {group[name] for name, cls in methods.items() if cls.card.public and cls.card.role == "method"}
    assert [heading.split()[0] for heading in of_public] == ["Public"]
    assert group["fedavg"] == group["fedprox"] != group["kdia"] == group["fedkf"]
    assert group["local"] == group["centralised"] != group["fedavg"]
    assert group["dafkd-scores"] != group["dafkd"]


@pytest.mark.parametrize(("what", "things"), [("models", models), ("data", datasets), ("partitions", partitions)])
def test_the_other_lists_fit_too(shown: Shown, what: str, things: Any) -> None:
    out = shown(what)
    lines = out.rstrip("\n").split("\n")
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert sorted(named(out)) == sorted(things)


def test_what_leaves_a_client_is_said_of_each_method(shown: Shown) -> None:
    out = shown("--privacy")
    assert out.count("\n") < 100
    assert max(map(len, out.split("\n"))) <= WIDTH
    for part in re.split(r"^(?=\S)", out, flags=re.MULTILINE):
        names = [name for name in re.split(r"[,\s]+", part.split("\n  ")[0]) if name in methods]
        said = " ".join(part.split())
        for card, name in ((methods[name].card, name) for name in names):
            assert all(word in said for word in (card.leaves_client, card.up, card.down, evaluated(methods[name])))
    for name in methods:
        assert len(re.findall(rf"(?<![\w-]){name}(?![\w-])", out.split("Evaluation sends")[0])) == 1


@pytest.mark.parametrize("name", list(methods))
def test_the_page_of_a_method(shown: Shown, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but its round, which a test below looks at, and every check of the method goes through."""
    monkeypatch.setattr(method_page, "rounds_of", lambda _: [(1, [Step("act", {"model": True}, {})])])
    monkeypatch.setattr(methods[name], "act", methods[name].round, raising=False)
    cls = methods[name]
    out = shown(name)
    said = " ".join(out.split())
    assert max(map(len, out.split("\n"))) <= WIDTH
    card = cls.card
    assert all(words in said for words in (cls.label, card.paper, card.leaves_client, card.remembers))
    for option in options_of(cls):
        assert f"{option.name} = {toml(option.default)}" in said
        assert option.meaning in said
        assert all(toml(value) in said for value in option.variants.values())
    command = re.search(r"^  (fedalloy compare .*)$", out, re.MULTILINE)
    assert command is not None
    words = shlex.split(command[1])
    assert name in words[words.index("--methods") + 1].split(",")
    experiment(override({}, [f"method={name}", *(word for word in words if "=" in word)]))


def test_the_page_shows_the_variants_side_by_side_where_they_differ(shown: Shown) -> None:
    out = shown("kdia")
    table = out[out.index("variant", out.index("Where the variants differ")) :]
    row = next(line for line in table.split("\n") if "generator_epochs" in line)
    assert row.split() == ["generator_epochs", "10", "10", "20"]
    assert "noise " not in table.split("Try it")[0]
    assert "Where the variants differ" not in shown("fedavg")


def test_the_page_says_what_came_out_here(shown: Shown) -> None:
    from fedalloy.reproduce.verdicts import shipped

    counts = [found.verdict for name, found in shipped().items() if name.startswith("kdia/")]
    out = " ".join(shown("kdia").split())
    assert f"{counts.count('contradicted')} contradicted" in out
    assert "fedalloy reproduce kdia" in out
    assert "fedalloy reproduce" not in shown("fedprox")


def test_a_round_is_told_as_it_happens() -> None:
    told = rounds_of(quick(methods["fedgkd"]))
    assert [(first, [step.action for step in steps]) for first, steps in told] == [
        (1, ["train"]),
        (2, ["distil"]),
        (3, ["distil"]),
    ]
    assert [("teacher" in steps[0].down) for _, steps in told] == [False, False, True]
    ((_, (train, score)),) = rounds_of(quick(methods["dafkd-scores"]))
    assert (train.action, score.action) == ("train", "score")
    assert set(score.up) == {"scores"}
    before, start = rounds_of(quick(methods["fedavg-local-start"]))[0][1]
    assert (before.action, start.action) == ("start", "train")
    (kdia,) = rounds_of(quick(methods["kdia"]))[0][1]
    assert set(kdia.down) == {"model", "teacher", "generator"}
    assert set(kdia.up) == {"model", "n"}
    assert rounds_of(quick(methods["centralised"])) == [(1, [])]


def test_models_data_and_partitions_have_pages_too(shown: Shown) -> None:
    assert "hidden = [64]" in shown("mlp")
    assert "per_class" in shown("mnist")
    assert "licence" in shown("mnist")
    assert "alpha" in shown("dirichlet")


def test_lists_are_data_too(shown: Shown) -> None:
    found = json.loads(shown("--json"))
    assert [each["name"] for each in found] == list(methods)
    (kdia,) = [each for each in found if each["name"] == "kdia"]
    assert kdia["card"]["features"] is True
    assert {option["name"] for option in kdia["options"]} == {option.name for option in options_of(methods["kdia"])}
    (one,) = json.loads(shown("kdia", "--json"))
    assert one == kdia | {"rounds": one["rounds"]}
    assert one["rounds"][0]["steps"][0]["action"] == "train"
    assert [each["name"] for each in json.loads(shown("--json", "--where", "public=yes"))] == [
        name for name, cls in methods.items() if cls.card.public
    ]
    for what, things in (("models", models), ("data", datasets), ("partitions", partitions)):
        assert [each["name"] for each in json.loads(shown(what, "--json"))] == list(things)


def test_a_method_of_ones_own_is_listed_and_has_a_page(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from fedalloy import Card, FedAvg, method\n\n\n"
        '@method("mine-all-mine", label="Mine", card=Card(paper="none"))\nclass Mine(FedAvg):\n    """Mine. Yes."""\n'
    )
    assert "mine-all-mine" in shown("--plugin", str(tmp_path / "mine.py"))
    page = shown("mine-all-mine", "--plugin", str(tmp_path / "mine.py"))
    assert f"--plugin {tmp_path / 'mine.py'}" in " ".join(page.split())
    assert "docs/methods" not in page
