"""The command line: demo, run, compare, tune, reproduce, list, report, export-table, check, doctor and the others.

Heavy imports stay inside the commands, so that `fedalloy --help` is fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from fedalloy import __version__
from fedalloy.cli.advise import advise
from fedalloy.cli.answers import Answer, answers
from fedalloy.cli.deploy import COMMANDS as DEPLOY
from fedalloy.cli.ending import carry_out
from fedalloy.cli.hints import NearestGroup, refuse_file, refuse_no_file
from fedalloy.cli.new import new
from fedalloy.cli.reproduce import reproduce
from fedalloy.cli.terminal import (
    as_typed,
    chosen_seeds,
    fresh,
    given_experiment,
    load_plugins,
    named_methods,
    parted,
    plugged,
    read_runs,
    refuse_idle_method,
    refuse_select,
    resumable,
    say,
    screen,
    selecting,
    show,
    tracked,
    words_of,
    write_page,
)
from fedalloy.cli.tune import tune
from fedalloy.errors import FedalloyError, UsageError

if TYPE_CHECKING:
    from fedalloy.config.sections import Experiment
    from fedalloy.report.results import Form
    from fedalloy.run.observer import Observer
    from fedalloy.storage.results import Run

FILE = click.argument("file", metavar="[EXPERIMENT.toml]", required=False)
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
PLUGIN = click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE.py",
    help="A Python file that registers your own methods, models, data sets or partitions.",
)
OUT = click.option("--out", "-o", metavar="FOLDER", help="Where to write.")
TRACK = click.option(
    "--track",
    "tracks",
    multiple=True,
    metavar="TRACKER=FOLDER",
    help="Also write each round's numbers for tensorboard, mlflow, wandb or trackio. May be repeated.",
)
SELECT = click.option(
    "--select",
    metavar="ROUND",
    default="last",
    show_default=True,
    help="Which round to report: 'last', 'best by amp', 'best by test', 'best by validation' or 'mean of last 10'.",
)


@click.group(cls=NearestGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fedalloy")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Federated learning for clients that differ, using knowledge distillation and fusion.

    \b
      fedalloy demo                             compare methods in a minute
      fedalloy list                             all methods; `list NAME` shows one
      fedalloy compare --methods fedavg,kdia    compare some of them
      fedalloy new method my-idea               begin with one of your own
    """


@cli.command()
@OUT
@click.option("--hospitals", is_flag=True, help="Five hospitals with a file of patients each, instead of images.")
def demo(out: str | None, hospitals: bool) -> None:
    """Compare methods on built-in data, offline.

    \b
      fedalloy demo
      fedalloy demo --hospitals

    It takes less than a minute. With --hospitals, it copies five files of patients and goes from there to a comparison,
    in less than half a minute; the commands to deploy it follow.
    """
    from fedalloy.base.files import write_atomically
    from fedalloy.config import experiment as config

    if hospitals:
        _demo_hospitals(Path(out) if out else fresh(Path(), "fedalloy-hospitals"))
        return
    folder = Path(out) if out else fresh(Path(), "fedalloy-demo")
    source = Path(__file__).with_name("demo.toml")
    exp = config.read(source)
    _compare(exp, None, [exp.seed], folder, "last", "demo")
    write_atomically(folder / "demo.toml", source.read_bytes())
    say(f"""
What next?
  Open {folder / "report.html"} in a browser: learning curves, results of every client, and what was sent.
  fedalloy compare {folder / "demo.toml"} --seeds 3     the same with three splits; change anything in the file
  fedalloy list                                   all available methods
  fedalloy export {folder / "runs" / f"fedavg-seed{exp.seed}"} --view oca     the trained model as a file""")


def _demo_hospitals(folder: Path) -> None:
    """Copy the hospitals' files, compare methods on them, and say how to go on to a deployment."""
    from fedalloy.base.files import make_folder, write_atomically
    from fedalloy.config import experiment as config
    from fedalloy.config.overrides import override, read_toml
    from fedalloy.data.catalogue import HOSPITALS

    files = folder / "hospitals"
    make_folder(files)
    for table in sorted(HOSPITALS.iterdir()):
        write_atomically(files / table.name, table.read_bytes())
    source = Path(__file__).with_name("hospitals.toml").read_text(encoding="utf-8")
    text = source.replace('name = "hospitals"', f"name = {json.dumps(str(files))}")
    file = folder / "hospitals.toml"
    write_atomically(file, text.encode())
    exp = config.experiment(override(read_toml(file), ()))
    _compare(exp, None, [0, 1, 2], folder, "last", "demo --hospitals")
    say(f"""
What next?
  Open {folder / "report.html"} in a browser: each hospital's gain, and metrics for decisions.
  fedalloy advise {files} data.label=diagnosis data.impute=mean     should these hospitals federate, and how?
  fedalloy deploy init {file} --out lab     the same files at five sites (pip install ".[flower]"), then:
  fedalloy deploy up lab --local 5 && fedalloy deploy run lab && fedalloy deploy down lab""")


@cli.command("run")
@FILE
@OVERRIDES
@OUT
@PLUGIN
@TRACK
@click.option(
    "--profile", is_flag=True, help="Show where the time was spent: clients, server, evaluation, checkpoints."
)
@answers
def run_command(
    file: str | None,
    overrides: tuple[str, ...],
    out: str | None,
    plugins: tuple[str, ...],
    tracks: tuple[str, ...],
    profile: bool,
) -> dict[str, Any]:
    """Run one method.

    \b
      fedalloy run method=fedprox method.mu=0.1 rounds=30
      fedalloy run examples/experiment.toml data=mnist --out runs/mnist

    Without a file, the built-in data and defaults are used. KEY=VALUE changes any key: `method=fedprox method.mu=0.1`.
    To resume an interrupted run, give the same folder.
    """
    file, overrides = parted(file, overrides)
    exp = given_experiment(file, overrides, plugins)
    from fedalloy.config.build import build
    from fedalloy.config.methods import make_method
    from fedalloy.report.progress import Display
    from fedalloy.report.trackers import tracker
    from fedalloy.run.comparison import key_of, label_of, slug
    from fedalloy.run.cost import shock
    from fedalloy.run.runner import resume as go_on
    from fedalloy.run.runner import settled, simulate

    observers = [tracker(text) for text in tracks]
    key = key_of(exp)
    label = label_of(key, exp.method)
    folder = Path(out) if out else fresh(Path("runs"), f"{slug(key)}-seed{exp.seed}")
    method = make_method(exp)
    built = build(exp)  # before the clock starts: the first round's time is the first estimate
    begun = _begun(settled(exp, built, method), folder)
    for sentence in built.dataset.said:
        say(sentence)
    if not begun and (told := shock(label, method, built.setting, rounds=exp.rounds, prefix="method.")):
        say(told)
    with Display(1, exp.rounds) as display, resumable("resume", str(folder), *plugged(plugins), *tracked(tracks)):
        watch = display.begin(label, exp.seed)
        if begun:
            run = go_on(folder, rounds=exp.rounds, built=built, watch=watch, observers=observers, say=say)
        else:
            run = simulate(exp, folder, label=label, built=built, watch=watch, observers=observers, say=say)
    answer = show([run])
    if profile:
        from fedalloy.report.profile import phases, profile_table

        screen().print(profile_table(run))
        answer["profile"] = phases(run)
    page = write_page([run], folder / "report.html", as_typed("run", *words_of(file, overrides, plugins)))
    return answer | {"report": page}


@cli.command()
@FILE
@OVERRIDES
@click.option(
    "--methods", "-m", metavar="A,B,...", help="Names of methods, separated by commas. Default: those under [methods]."
)
@click.option(
    "--seeds",
    "-s",
    metavar="N",
    default="1",
    show_default=True,
    help="A number of seeds (3), or a list of seeds (0,1,7).",
)
@SELECT
@OUT
@PLUGIN
@TRACK
@answers
def compare(
    file: str | None,
    overrides: tuple[str, ...],
    methods: str | None,
    seeds: str,
    select: str,
    out: str | None,
    plugins: tuple[str, ...],
    tracks: tuple[str, ...],
) -> dict[str, Any]:
    """Compare methods on one experiment.

    \b
      fedalloy compare --methods local-converged,fedavg,kdia --seeds 3
      fedalloy compare examples/experiment.toml partition.alpha=0.1

    All methods use the same data and the same clients in every round. The table shows the mean and spread over seeds.
    To resume an interrupted comparison, give the same folder.
    """
    from fedalloy.report.trackers import tracker
    from fedalloy.storage.results import check_word

    check_word(select, "--select")
    file, overrides = parted(file, overrides)
    exp = given_experiment(file, overrides, plugins)
    observers = [tracker(text) for text in tracks]
    names = named_methods(methods)
    refuse_idle_method(exp, overrides, names)
    if names is None and not exp.methods:
        # Add the bounds; under [privacy] neither of these two is available.
        beside = ("local-converged", "centralised") if exp.privacy is None else ("local",)
        names = list(dict.fromkeys([beside[0], exp.method.name, *beside[1:]]))
    folder = Path(out) if out else fresh(Path("runs"), f"compare-{Path(file).stem if file else 'defaults'}")
    words = [*words_of(file, overrides, plugins), *(["--methods", methods] if methods else []), "--seeds", seeds]
    words += [*selecting(select), *tracked(tracks)]
    return _compare(exp, names, chosen_seeds(seeds, exp.seed), folder, select, "compare", *words, observers=observers)


@cli.command("table")
@click.argument("file", metavar="EXPERIMENT.toml")
@OVERRIDES
@click.option(
    "--seeds",
    "-s",
    metavar="N",
    default="1",
    show_default=True,
    help="A number of seeds (3), or a list of seeds (0,1,7).",
)
@SELECT
@OUT
@PLUGIN
@answers
def table_command(
    file: str, overrides: tuple[str, ...], seeds: str, select: str, out: str | None, plugins: tuple[str, ...]
) -> dict[str, Any]:
    """Run an experiment in every cell of its [[axes]].

    \b
      fedalloy table knfu-mnist rounds=5

    The result is a table like a paper's, with the published figures next to ours, which are from the round that the
    paper reports; --select is for cells without published figures. To resume an interrupted table, give the same
    folder.
    """
    refuse_no_file(file)
    parted(file, overrides)
    load_plugins(plugins)
    from fedalloy.base.files import make_folder, write_atomically
    from fedalloy.config.build import Shelf, build
    from fedalloy.config.experiment import experiment
    from fedalloy.config.grid import cells
    from fedalloy.config.overrides import override, read_toml
    from fedalloy.report.grid_table import grid
    from fedalloy.report.progress import Display
    from fedalloy.report.published import holding, with_published
    from fedalloy.report.tables import parts_of
    from fedalloy.run import comparison
    from fedalloy.storage.results import check_word

    check_word(select, "--select")
    axes, found = cells(override(read_toml(file), overrides))
    experiments = [experiment(cell.values) for cell in found]
    compared = [bool(holding(comparison.planned(exp))) for exp in experiments]
    if select != "last" and all(compared):
        raise UsageError(
            f"--select '{select}' has no effect, because every cell has a published table, which names its round; "
            "leave it out, or change published.round"
        )
    refuse_idle_method(experiments[0], overrides, has_names=False)
    folder = Path(out) if out else fresh(Path("runs"), f"table-{Path(file).stem}")
    chosen = chosen_seeds(seeds, experiments[0].seed)
    plan = [
        (cell, exp, comparison.chosen(exp), folder / comparison.slug(cell.name))
        for cell, exp in zip(found, experiments, strict=True)
    ]
    shelf = Shelf()
    refused: dict[str, FedalloyError] = {}
    for i, (cell, exp, choices, place) in enumerate(plan):  # mistakes in the last cell are found before all others run
        wrong, tried = comparison.examined(exp, choices, chosen, place, shelf=shelf)
        refused |= {", ".join(filter(None, [f"cell '{cell.name}'", what])): error for what, error in wrong.items()}
        if tried and not compared[i]:
            refuse_select(select, exp, tried.values())
    comparison.refuse(refused)
    make_folder(folder)
    made: dict[str, list[Run]] = {}  # by what they compute: a method that an axis does not touch runs once
    runs: list[str] = []
    before: set[str] = set()
    for cell, exp, choices, _ in plan:
        labels = {comparison.computed_by(exp, *pair): comparison.label_of(*pair) for pair in choices.items()}
        runs += [f"{cell.name}: {label}" for _ in chosen for key, label in labels.items() if key not in before]
        before |= labels.keys()
    words = ["table", *words_of(file, overrides, plugins), "--seeds", seeds]
    words += selecting(select)
    lines = []
    with Display(runs, experiments[0].rounds) as display, resumable(*words, "--out", str(folder)):
        for cell, exp, choices, place in plan:
            begin = partial(_begin_cell, display.begin, cell.name)
            asked = {key: comparison.computed_by(exp, key, choice) for key, choice in choices.items()}
            lacking = {key: choice for key, choice in choices.items() if asked[key] not in made}
            # Split again: the networks and partitions of all cells might not fit into memory at once.
            ones = [replace(exp, seed=seed) for seed in chosen] if lacking else []
            built = {one.seed: build(one, given=shelf.take(one)) for one in ones}
            done = comparison.run_methods(exp, lacking, built, folder=place, begin=begin, say=say)
            made |= {asked[key]: done[i :: len(lacking)] for i, key in enumerate(lacking)}
            here = [run for key in choices for run in made[asked[key]]]
            lines.append((cell.labels, with_published(here, exp.to_dict().get("published", []))))
    result = grid(axes, lines, selection=select)
    screen().print(result.table())
    for note in result.notes:
        say(note)
    write_atomically(folder / "table.md", result.markdown().encode())
    say(f"written: {folder / 'table.md'}")
    return parts_of(result) | {"file": folder / "table.md"}


def _begin_cell(begin: Callable[[str, int], Any], cell: str, label: str, seed: int) -> Any:
    return begin(f"{cell}: {label}", seed)


@cli.command()
@click.argument("folder", metavar="RUN")
@click.option("--rounds", type=int, metavar="N", help="Continue to this round instead of the planned one.")
@PLUGIN
@TRACK
@answers
def resume(folder: str, rounds: int | None, plugins: tuple[str, ...], tracks: tuple[str, ...]) -> dict[str, Any]:
    """Resume an interrupted run.

    \b
      fedalloy resume runs/fedavg-seed0
      fedalloy resume runs/fedavg-seed0 --rounds 100

    The result has the same bits as if the run had never stopped.
    """
    load_plugins(plugins)
    from fedalloy.report.progress import Display
    from fedalloy.report.trackers import tracker
    from fedalloy.run.runner import completed
    from fedalloy.run.runner import resume as go_on
    from fedalloy.storage.store import described

    before = described(folder)
    if rounds is not None and 0 < rounds < (done := completed(folder)):
        raise UsageError(f"'{folder}' has completed {done} rounds; write --rounds {done} or more")
    total = rounds or before["experiment"]["rounds"]
    observers = [tracker(text) for text in tracks]
    with Display(1, total) as display, resumable("resume", folder, *plugged(plugins), *tracked(tracks)):
        watch = display.begin(before["label"], before["seed"])
        run = go_on(folder, rounds=rounds, watch=watch, observers=observers, say=say)
    answer = show([run])
    page = write_page([run], Path(folder) / "report.html", as_typed("resume", folder, *plugged(plugins)))
    return answer | {"report": page}


@cli.command("list")
@click.argument("what", metavar="[methods|models|data|partitions|NAME]", default="methods")
@click.option("--where", "filters", multiple=True, metavar="KEY=VALUE", help="Only methods whose card says this.")
@click.option("--privacy", is_flag=True, help="What leaves a client, and what it is sent, under each method.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
@PLUGIN
def list_command(what: str, filters: tuple[str, ...], privacy: bool, as_json: bool, plugins: tuple[str, ...]) -> None:
    """List methods, models, data and partitions, or show one.

    \b
      fedalloy list                   all methods, by what they need
      fedalloy list kdia              one method: its round and its options
      fedalloy list models            models; also: data, partitions
      fedalloy list --where any_network=yes --where distils=generated

    --where looks at a method's card. For a text, `yes` means that it is not empty, `no` that it is empty, and any other
    word is a substring search.
    """
    load_plugins(plugins)
    from fedalloy.report.listing import KINDS, THINGS, chosen, entry, listing, nameless, one_thing

    if what not in KINDS and (filters or privacy):
        raise UsageError(f"--where and --privacy go with the list of methods, not with {what!r}; leave them out")
    width = screen().width
    if what in KINDS:
        shown = listing(what, filters, privacy=privacy, width=width)
        names = [*(chosen(filters) if what == "methods" else THINGS[what])]
        if as_json:
            say(json.dumps([entry(what, name) for name in names], indent=1))
        else:
            say(shown if names else f"no method matches {' and '.join(filters)}; `fedalloy list` shows all methods")
        return
    from fedalloy.methods import methods

    home = next((kind for kind, things in THINGS.items() if what in things), None)
    if what in methods:
        from fedalloy.cli.method_page import method_data, method_page

        if as_json:
            say(json.dumps([method_data(what)], indent=1))
        else:
            screen().print(method_page(what, width), highlight=False)
    elif home is None:
        raise nameless(what)
    else:
        say(json.dumps([entry(home, what)], indent=1) if as_json else one_thing(what, width))


@cli.command()
@FILE
@OVERRIDES
@OUT
@PLUGIN
@answers
def partition(
    file: str | None, overrides: tuple[str, ...], out: str | None, plugins: tuple[str, ...]
) -> dict[str, Any]:
    """Show how an experiment's data is split among clients.

    \b
      fedalloy partition data=mnist partition.clients=20 partition.alpha=0.1

    It prints statistics and draws figures.
    """
    exp = given_experiment(*parted(file, overrides), plugins)
    from fedalloy.base.files import make_folder, write_json
    from fedalloy.config.build import build
    from fedalloy.report.partition_plot import bubble_plot, heat_map
    from fedalloy.report.plots import save

    built = build(exp)
    say(built.card.describe(built.setting.names))
    for sentence in built.dataset.said:
        say(sentence)
    folder = Path(out or "partition")
    make_folder(folder)
    names = built.dataset.label_names
    for name, draw in (("bubbles", bubble_plot), ("heatmap", heat_map)):
        for kind in ("png", "svg"):
            save(draw(built.card.counts, names), folder / f"{name}.{kind}")
    write_json(folder / "partition.json", built.card.to_json(indices=True))
    say(f"written: {folder}/bubbles.png, heatmap.png (and .svg), partition.json")
    return built.card.to_json()


@cli.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True)
@SELECT
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="METRIC=SHARE",
    help="Show how many rounds each run took to reach this, for example test=0.55; 0.75 alone is AMP. May be repeated.",
)
@click.option(
    "--published",
    metavar="EXPERIMENT.toml",
    help="Take the published tables from this file, instead of those that the runs recorded.",
)
@click.option("--out", "-o", metavar="FILE.html", default="report.html", show_default=True, help="Where to write.")
@answers
def report(
    folders: tuple[str, ...], select: str, targets: tuple[str, ...], published: str | None, out: str
) -> dict[str, Any]:
    """Write a report on finished runs.

    \b
      fedalloy report runs/compare-defaults --select "best by test"

    A folder that contains several runs stands for all of them.
    """
    from fedalloy.report.published import read_published, with_published
    from fedalloy.report.targets import parse_target
    from fedalloy.storage.results import check_word

    check_word(select, "--select")
    wanted = [parse_target(text) for text in targets]
    runs = read_runs(folders)
    words = ["report", *folders, *selecting(select)]
    words += [word for text in targets for word in ("--target", text)]
    if published is not None:
        runs = with_published(runs, read_published(published))
        words += ["--published", published]
    answer = show(runs, select, wanted)
    return answer | {"report": write_page(runs, Path(out), as_typed(*words), select, wanted)}


@cli.command("export-table")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["latex", "csv", "md", "json"]),
    default="latex",
    show_default=True,
    help="latex needs \\usepackage{booktabs}; csv and json have every digit.",
)
@SELECT
@click.option("--out", "-o", metavar="FILE", help="Where to write. Default: print it.")
def export_table(folders: tuple[str, ...], form: Form, select: str, out: str | None) -> None:
    """Write a table of finished runs, for example in LaTeX.

    It has the comparison of the methods, for a paper, a page or a program.

    RUN is a run, a folder that contains runs, or a quoted pattern ("runs/*").
    """
    from fedalloy.report.results import load
    from fedalloy.storage.results import check_word

    check_word(select, "--select")
    text = load(folders).exported(form, select)
    if out is None:
        click.echo(text, nl=False)
        return
    from fedalloy.base.files import make_folder, write_atomically

    make_folder(Path(out).parent)
    write_atomically(Path(out), text.encode())
    say(f"written: {out}")


@cli.command("draw")
@click.argument("folder", metavar="RUN")
@click.option(
    "--client",
    type=int,
    metavar="N",
    help="The client whose generator to draw, if clients have their own. Default: the first that has one.",
)
@click.option("--central", metavar="RUN", help="A run of `centralised` on the same data, for KDIA's real features.")
@click.option(
    "--compare",
    type=click.Choice(["channel_means", "maps"]),
    help="What of KDIA's features is compared: means over space, as in its Fig. 7 (default), or whole maps.",
)
@click.option("--out", "-o", metavar="FOLDER", help="Where to write. Default: the run's folder.")
@PLUGIN
def draw_command(
    folder: str,
    client: int | None,
    central: str | None,
    compare: Literal["channel_means", "maps"] | None,
    out: str | None,
    plugins: tuple[str, ...],
) -> None:
    """Draw what a run produces besides a model.

    \b
      fedalloy draw runs/kdia-seed0

    Generated images by class (FedKF, DaFKD), and the clients' weights (KDIA, DaFKD, KnFu).
    """
    load_plugins(plugins)
    from fedalloy.report.draw import draw

    paths = draw(folder, client, out, central=central, compare=compare, say=say)
    say(f"written: {', '.join(map(str, paths))}")


@cli.command()
@click.argument("folder", metavar="RUN")
@click.option(
    "--view", metavar="VIEW", help="Which model to export: aca, oca, global, personal, ... Default: the first."
)
@click.option("--client", type=int, metavar="N", help="The client whose model to export, if the view is personal.")
@click.option("--out", "-o", metavar="FILE.safetensors", help="Where to write. Default: in the run's folder.")
@PLUGIN
def export(folder: str, view: str | None, client: int | None, out: str | None, plugins: tuple[str, ...]) -> None:
    """Write a trained model as safetensors.

    \b
      fedalloy export runs/fedavg-seed0 --view oca

    It also prints the code that loads the model.
    """
    load_plugins(plugins)
    from fedalloy.report.export import export_model

    path, lines = export_model(Path(folder), view, client, Path(out) if out else None)
    again = f"`fedalloy run EXPERIMENT.toml start={path}`"
    say(f"written: {path}\n\n{lines}\n\nTo start a run from this model: {again}.")


@cli.command()
@click.argument("name", metavar="METHOD")
@PLUGIN
@answers
def check(name: str, plugins: tuple[str, ...]) -> dict[str, Any]:
    """Check that a method keeps the contract.

    \b
      fedalloy check fedavg
      fedalloy check my-idea --plugin my_idea.py

    Exactness and resuming depend on it.
    """
    load_plugins(plugins)
    from fedalloy.check.method import checks_passed
    from fedalloy.config.methods import make_method
    from fedalloy.config.sections import Choice, Experiment
    from fedalloy.methods import methods

    refuse_file(name)
    options = methods[name].card.quick
    if options:
        say(f"with {', '.join(f'{key} = {value}' for key, value in options.items())}")
    passed = checks_passed(make_method(Experiment(), Choice(name=name, options=dict(options))))
    for line in passed:
        say(f"ok  {line}")
    return {"method": name, "options": dict(options), "passed": passed}


@cli.command()
@click.argument("paths", metavar="[FOLDER]...", nargs=-1)
@PLUGIN
@answers
def doctor(paths: tuple[str, ...], plugins: tuple[str, ...]) -> Answer:
    """Check this machine and its data, or folders.

    \b
      fedalloy doctor
      fedalloy doctor runs

    A folder may contain a run, several runs or data sets. Nothing is written.
    """
    from fedalloy.base.plugins import load_file
    from fedalloy.check.doctor import examine, exit_code

    for file in plugins:
        load_file(file)  # an installed plug-in that fails is a finding, not a reason to stop
    findings = examine(paths)
    for finding in findings:
        say(str(finding))
    found = [{"level": one.level, "what": one.what, "sentence": one.sentence} for one in findings]
    return Answer({"findings": found}, SystemExit(exit_code(findings)))


@cli.command("bench-attacks")
@FILE
@OVERRIDES
@click.option(
    "--methods", "-m", metavar="A,B,...", help="Names of methods, separated by commas. Default: those under [methods]."
)
@click.option("--attacks", "-a", metavar="A,B,...", help="Names of attacks, separated by commas. Default: all.")
@click.option("--fraction", default=0.3, show_default=True, help="The share of clients that attack.")
@click.option(
    "--seeds",
    "-s",
    metavar="N",
    default="1",
    show_default=True,
    help="A number of seeds (3), or a list of seeds (0,1,7).",
)
@click.option("--out", "-o", metavar="FILE.json", help="Where to write the results.")
@answers
def bench_attacks(
    file: str | None,
    overrides: tuple[str, ...],
    methods: str | None,
    attacks: str | None,
    fraction: float,
    seeds: str,
    out: str | None,
) -> dict[str, Any]:
    """Measure how much accuracy methods keep under attack.

    \b
      fedalloy bench-attacks --methods fedavg,qffl --attacks sign-flip,nan

    Each method runs with and without the options that limit an attacker, once without attackers and once under each
    attack: sign-flip, scaled-logits, rank-flip, inflated-scores, label-flip, free-rider, nan.
    """
    from fedalloy.check.attack_bench import bench_experiment, report_attacks

    file, overrides = parted(file, overrides)
    exp = bench_experiment(file, overrides)
    some = [[part.strip() for part in text.split(",")] if text else None for text in (methods, attacks)]
    refuse_idle_method(exp, overrides, some[0])
    return report_attacks(
        exp, some[0], some[1], fraction, chosen_seeds(seeds, exp.seed), Path(out) if out else None, screen(), say
    )


cli.add_command(advise)
cli.add_command(new)
cli.add_command(reproduce)
cli.add_command(tune)
cli.add_command(
    NearestGroup("deploy", DEPLOY, help="Run an experiment at real sites with Flower. Each site keeps its data.")
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; errors are printed as one sentence on stderr and set the exit status."""
    carry_out(cli, list(sys.argv[1:] if arguments is None else arguments))


def _compare(
    exp: Experiment,
    names: list[str] | None,
    seeds: list[int],
    folder: Path,
    select: str,
    *words: str,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    from fedalloy.base.files import make_folder, write_json
    from fedalloy.base.plain import plain
    from fedalloy.report.compared import compared
    from fedalloy.report.improvement_plot import improvement_picture
    from fedalloy.report.leads import leads_table
    from fedalloy.report.partition_plot import bubble_plot
    from fedalloy.report.plots import save
    from fedalloy.report.progress import Display
    from fedalloy.report.published import with_published
    from fedalloy.run import comparison

    choices = comparison.chosen(exp, names)
    refused, built = comparison.examined(exp, choices, seeds, folder / "runs")
    comparison.refuse(refused)  # before anything is written
    refuse_select(select, exp, built.values())
    first = built[seeds[0]]
    say(first.card.describe(first.setting.names))
    make_folder(folder)
    save(bubble_plot(first.card.counts, first.dataset.label_names), folder / "split.png")
    say(f"figure of the split: {folder / 'split.png'}\n")
    for told in comparison.shocks(exp, choices, first, folder / "runs"):
        say(told)
    labels = [comparison.label_of(key, choice) for key, choice in choices.items()] * len(seeds)
    with Display(labels, exp.rounds) as display, resumable(*words, "--out", str(folder)):
        runs = comparison.run_methods(
            exp, choices, built, folder=folder / "runs", begin=display.begin, observers=observers, say=say
        )
    runs = with_published(runs, exp.to_dict().get("published", []))  # as the file has them now
    answer = show(runs, select)
    write_json(folder / "table.json", plain(answer["table"]))
    rivals = compared(runs, select).rivals()
    if leads_table(rivals) is not None:
        save(improvement_picture(rivals), folder / "improvement.png")
        say(f"probability of improvement: {folder / 'improvement.png'}")
    return answer | {"report": write_page(runs, folder / "report.html", as_typed(*words), select)}


def _begun(exp: Experiment, folder: Path) -> bool:
    """Return whether a folder contains a run of this experiment, and say so; refuse a run of another experiment."""
    from fedalloy.run.runner import is_whole, refuse_other, refuse_shorter
    from fedalloy.storage.store import begun, described

    if not begun(folder):
        return False
    refuse_other(exp, folder)
    refuse_shorter(exp.rounds, folder)
    meta = described(folder)
    enough = meta.get("stopped_by") != "rounds" or meta["experiment"]["rounds"] >= exp.rounds
    if not (meta["status"] == "done" and enough):
        said = "resuming it"
    elif is_whole(folder):
        said = "it is finished and will not be run again"
    else:
        said = "it is finished, but its last part is damaged and will be computed again"
    say(f"'{folder}' contains this run: {said}")
    return True
