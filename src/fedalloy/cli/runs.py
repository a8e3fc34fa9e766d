"""The commands that train: `demo`, `run`, `compare`, `table` and `resume`.

Heavy imports stay inside the commands, so that `fedalloy --help` is fast.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedalloy.cli.answers import answers
from fedalloy.cli.hints import refuse_no_file
from fedalloy.cli.options import FILE, METHODS, OUT, OVERRIDES, PLUGIN, SEEDS, SELECT, TRACK
from fedalloy.cli.terminal import (
    as_typed,
    chosen_seeds,
    fresh,
    given_experiment,
    load_plugins,
    named_methods,
    parted,
    plugged,
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
from fedalloy.errors import FedalloyError, UsageError

if TYPE_CHECKING:
    from fedalloy.config.sections import Experiment
    from fedalloy.run.observer import Observer
    from fedalloy.storage.results import Run


@click.command()
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


@click.command("run")
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


@click.command()
@FILE
@OVERRIDES
@METHODS
@SEEDS
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


@click.command("table")
@click.argument("file", metavar="EXPERIMENT.toml")
@OVERRIDES
@SEEDS
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


@click.command()
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


COMMANDS = (
    demo,
    run_command,
    compare,
    table_command,
    resume,
)
