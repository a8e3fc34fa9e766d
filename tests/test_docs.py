"""The documentation says what is so: generated pages, links, commands, experiments and examples are tried."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import click
import pytest

import fedalloy
from fedalloy.base.options import Count, by_variant, option
from fedalloy.cli.main import cli
from fedalloy.config.experiment import experiment
from fedalloy.config.grid import Cell, cells
from fedalloy.config.overrides import override, read_toml
from fedalloy.config.sections import Experiment, check_options
from fedalloy.data.catalogue import LISTED, reader
from fedalloy.data.own.dataset import own_dataset
from fedalloy.data.partition import partitions
from fedalloy.errors import UsageError
from fedalloy.federation.core import methods
from fedalloy.nets.models import models
from fedalloy.report.listing import KINDS, THINGS, listing, nameless
from fedalloy.run.comparison import chosen
from fedalloy.tuning.space import parted_words, space_of, touched

ROOT = Path(__file__).parents[1]
FOLDERS = ("*.md", "guides/*.md", "methods/*.md")
PAGES = [ROOT / "README.md", *(page for each in FOLDERS for page in sorted((ROOT / "docs").glob(each)))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\w+=\S+ )?(?:\.venv/bin/)?fedalloy (.+)$", re.MULTILINE)


def blocks(text: str, *languages: str) -> list[str]:
    return [code for language, code in FENCE.findall(text) if language in languages]


def prose(text: str) -> str:
    return FENCE.sub("", text)


# --- generated pages --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def make_docs() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))  # as if it were run: the other tools are beside it
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools" / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look it up there
    spec.loader.exec_module(made)
    sys.path.remove(str(ROOT / "tools"))
    return made


def test_generated_pages_are_up_to_date(make_docs: Any) -> None:
    stale = [path.name for path, text in make_docs.pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"{', '.join(stale)} is out of date; run `python tools/make_docs.py`"


@pytest.fixture(scope="module")
def method_options(make_docs: Any) -> Any:
    return sys.modules["method_options"]


@dataclass
class Walk:
    """Stands for a method."""

    name: ClassVar[str] = "walk"
    variant: Literal["recommended", "paper", "reference", "kdia"] = option("recommended", "whose choices")
    steps: Count = by_variant(10, "how far", paper=20, reference=30, kdia=40)
    pace: Literal["slow", "fast"] = option("slow", "how fast")


def lines_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_options_of_a_method_say_whose_values_they_are(method_options: Any) -> None:
    runs = [
        method_options.Compared("FedKF", "", {"variant": "reference", "steps": 10, "aggregation.weights": "uniform"}),
        method_options.Compared("KDIA", "", {"variant": "kdia"}),  # what the variant says is not said again
        method_options.Compared("DaFKD", "twice", {"steps": 5}),
    ]
    heading, _, variant, steps, pace, weights = lines_of(method_options.options_table(Walk, runs))
    assert heading == [
        *("Option", "Meaning", "Recommended", "Paper", "Its authors' code", "As the five papers compared it")
    ]
    assert variant[2:] == ['`"recommended"`', "", "", 'FedKF: `"reference"`']
    assert steps[2:] == ["`10`", "`20`", "`30`", "KDIA: `40`; FedKF: `10`; DaFKD: `5` (twice)"]
    assert steps[1].startswith("how far<br>")
    assert pace[2:] == ['`"slow"`', "", "", ""]
    assert (weights[0], weights[-1]) == ("`aggregation.weights`", 'FedKF: `"uniform"`')


def test_columns_without_a_value_are_left_out(method_options: Any) -> None:
    heading, *_ = lines_of(method_options.options_table(methods["moon"], []))
    assert heading == ["Option", "Meaning", "Recommended"]
    assert method_options.options_table(methods["fedavg"], []) == ""


def test_experiments_tell_how_their_papers_compared_other_methods(
    method_options: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published = '[[published]]\nsource = "x"\nmetrics = ["amp"]\nrows = []\n'
    (tmp_path / "kdia-small.toml").write_text(
        "[methods.kdia]\ntau = 2\n[methods.fedprox]\nmu = 0.5\naggregation.weights = 'uniform'\n"
        f"[methods.mild]\nname = 'fedprox'\nmu = 0.1\n{published}"
    )
    (tmp_path / "knfu-search.toml").write_text("[methods.fedprox]\nmu = 7\n")  # publishes nothing
    (tmp_path / "other.toml").write_text(f"[methods.fedprox]\nmu = 8\n{published}")
    monkeypatch.setattr(method_options, "EXPERIMENTS", tmp_path)
    assert method_options.compared() == {
        "fedprox": [
            method_options.Compared("KDIA", "", {"mu": 0.5, "aggregation.weights": "uniform"}),
            method_options.Compared("KDIA", "mild", {"mu": 0.1}),
        ]
    }


def test_every_method_has_a_page_and_every_page_a_method() -> None:
    shown = {name for name, cls in methods.items() if cls.__module__.startswith("fedalloy.")}
    assert {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")} == shown


def test_a_page_tells_the_round_of_its_method_and_the_places_in_its_paper() -> None:
    page = (ROOT / "docs" / "methods" / "knfu.md").read_text(encoding="utf-8")
    asked = re.findall(r"^\d\. `(\w+)`: .*<br>Down: (.*)\. Up: (.*)\.$", page, re.MULTILINE)
    soft = "soft labels of public samples"
    assert asked == [("learn", "nothing", soft), ("tune", soft, "nothing")]
    for equation in ("Eq. 5", "Eq. 6", "Eqs. 7 and 8", "Eq. 9"):
        assert f"| {equation} | " in page


def test_places_in_a_paper_are_found_in_comments_and_docstrings(make_docs: Any) -> None:
    code = """
        def half(x):
            'Half of it (Eq. 2).'
            y = x / 2  # Eq. 3
            # Eq. 4 has no line of its own
            return y  # not Eq. 5
    """
    places = list(sys.modules["method_pages"].named_places(code))
    assert places == [("Eq. 2", "`half`: Half of it."), ("Eq. 3", "`y = x / 2`")]


def test_the_reference_names_everything_that_is_exported() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\.\. auto\w+:: fedalloy\.(\w+)$", page, re.MULTILINE))
    assert described == {name for name in fedalloy.__all__ if not name.startswith("__")}


# --- links ------------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)"', text))


def broken_links(page: Path, text: str) -> list[str]:
    plain = re.sub(r"`[^`]*`", "", prose(text))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", plain) if not re.match(r"https?:|mailto:", link)]
    broken = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path
        headings = anchors(target.read_text(encoding="utf-8") if target.is_file() else text) if anchor else {anchor}
        if not target.exists() or anchor not in headings:
            broken.append(link)
    return broken


@each_page
def test_relative_links_resolve(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "# One\n\n## Is it so?\n\n[a](#is-it-so) [b](#two) [c](README.md) [d](gone.txt) [e](https://example.org)"
    assert broken_links(ROOT / "page.md", text) == ["#two", "gone.txt"]


# --- commands ---------------------------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """Every `fedalloy ...` in a block of commands or in a code span."""
    spans = re.findall(r"`([^`]+)`", prose(text))
    for source in (*blocks(text, "", "sh", "bash", "console"), *spans):
        for line in COMMAND.findall(source.replace("\\\n", " ")):
            yield shlex.split(line, comments=True)


def check_command(words: list[str]) -> None:
    """Refuse a command line whose command, option, key or method does not exist."""
    if words[0].startswith("-"):
        assert words[0] in {"-h", "--help", *(name for option in cli.params for name in option.opts)}
        return
    if words[0] not in cli.commands:
        raise UsageError(f"there is no command '{words[0]}'")
    given = cli.commands[words[0]].make_context(words[0], words[1:]).params
    if "overrides" in given:
        check_parts(_experiment_of(given))
    if given.get("methods") and not given.get("plugins"):
        assert set(given["methods"].split(",")) <= set(methods)
    if "what" in given and given["what"] in KINDS:
        listing(given["what"], given["filters"])
    elif "what" in given and not any(given["what"] in things for things in (methods, *THINGS.values())):
        raise nameless(given["what"])


def _experiment_of(given: dict[str, Any]) -> Experiment:
    file, changes = given.get("file"), list(given["overrides"])
    if "data" in given and not given["data"].endswith(".toml"):  # `advise` takes data, or an experiment
        changes = [f"data={given['data']}", *changes]
    if file is not None and "=" in file:
        file, changes = None, [file, *changes]
    there = file is not None and (ROOT / file).is_file()
    space: dict[str, str] = {}
    if "budget" in given:  # `tune` also takes ranges
        changes, space = parted_words(changes)
    exp = experiment(override(read_toml(ROOT / file) if there else {}, changes))
    touched(exp, chosen(exp), space_of(space))
    return exp


def check_parts(exp: Experiment) -> None:
    """Refuse names and options of data sets, partitions and networks that do not exist; methods are checked already."""
    check_options(exp.data, own_dataset if exp.data.name == LISTED else reader(exp.data.name), "data")
    check_options(exp.partition, partitions[exp.partition.name], "partition")
    check_options(exp.model, models[exp.model.name], "model")
    if exp.public is not None and exp.public.data != "own":
        check_options(exp.public, reader(exp.public.data), "public")


@each_page
def test_commands_exist(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        check_command(words)


def test_there_are_commands_to_check() -> None:
    assert sum(len(list(commands(page.read_text(encoding="utf-8")))) for page in PAGES) >= 15


@pytest.mark.parametrize(
    "line",
    [
        "rnu examples/experiment.toml",
        "compare --mehtods local",
        "run examples/experiment.toml trainin.lr=0.1",
        "run method=fedprox method.nu=1",
        "run partition=iid partition.alpha=1",
        "partition data=minst",
        "list --where colour=red",
        "list fedporx",
        "tune examples/experiment.toml --budget 3 fedprox.nu=0.001..1",
        "report",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises((UsageError, click.UsageError)):
        check_command(shlex.split(line))


# --- experiments and examples -----------------------------------------------------------------------------------------


@each_page
def test_toml_blocks_are_experiments(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "toml"):
        check_parts(experiment(tomllib.loads(block)))


@pytest.mark.parametrize(
    "file", sorted([*ROOT.glob("examples/*.toml"), *ROOT.glob("src/fedalloy/experiments/*.toml")]), ids=str
)
def test_experiment_files_are_experiments(file: Path) -> None:
    values = read_toml(file)
    for cell in cells(values)[1] if "axes" in values else [Cell((), values)]:
        check_parts(experiment(cell.values))


@each_page
def test_python_blocks_run_or_compile(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with `>>>` are run, one after the other in one namespace; others must at least be Python."""
    monkeypatch.chdir(tmp_path)
    for registry in (methods, models, partitions):  # what a page registers is for the page alone
        monkeypatch.setattr(registry, "_things", dict(registry._things))
    shared: dict[str, Any] = {}
    said: list[str] = []
    runner = doctest.DocTestRunner()
    for number, block in enumerate(blocks(page.read_text(encoding="utf-8"), "python"), start=1):
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, {}, f"{page.name}, Python block {number}", page.name, 0)
            test.globs = shared
            runner.run(test, out=said.append, clear_globs=False)
        else:
            compile(block, page.name, "exec")
    assert not said, "".join(said)


def test_examples_run(tmp_path: Path) -> None:
    """Both in one process, since torch loads slowly, and not in this one, since a plug-in registers its method."""
    code = """
import runpy, sys
from fedalloy.federation.core import methods
from fedalloy.base.plugins import load_file
load_file(sys.argv[1] + "/own_method.py")
sys.modules[methods["median"].__module__].main()
runpy.run_path(sys.argv[1] + "/own_data.py", run_name="__main__")
"""
    command = [sys.executable, "-c", code, str(ROOT / "examples")]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    accuracies = [float(number) for number in re.findall(r"each round: \[(.*)\]", done.stdout)[0].split(",")]
    assert len(accuracies) == 5
    assert accuracies[-1] > 0.5
    assert "Local training ran until it" in done.stdout


# --- packaging --------------------------------------------------------------------------------------------------------


def extras_named(text: str) -> set[str]:
    """The extras in a text's `pip install`."""
    groups = re.findall(r"pip install [^\n`]*?\[([\w, -]+)\]", text)
    return {extra.strip() for group in groups for extra in group.split(",")}


def test_extras_that_are_named_exist() -> None:
    files = [*PAGES, ROOT / "CHANGELOG.md", *ROOT.glob("examples/**/*.py"), *ROOT.glob("src/**/*.py")]
    named = {extra for file in files for extra in extras_named(file.read_text(encoding="utf-8"))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert named <= project["optional-dependencies"].keys() | {"{extra}"}
    assert {"flower", "files"} <= named


def test_extras_are_found() -> None:
    assert extras_named('pip install ".[flower, files]"\n`pip install "x[y]"`, [z](w)') == {"flower", "files", "y"}


def test_the_citation_has_this_version() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", cited, re.MULTILINE) == [fedalloy.__version__]


def test_what_language_models_read_has_working_links() -> None:
    assert broken_links(ROOT / "llms.txt", (ROOT / "llms.txt").read_text(encoding="utf-8")) == []


def test_workflows_call_targets_that_exist() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    called = re.findall(r"run: make (\S+)", workflow)
    assert set(called) >= {"test", "docs"}
    assert set(called) <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
