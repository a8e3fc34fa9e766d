"""The commands that look at data and results: `partition`, `report`, `export-table`, `draw` and `export`.

Heavy imports stay inside the commands, so that `fedalloy --help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fedalloy.cli.answers import answers
from fedalloy.cli.options import FILE, OUT, OVERRIDES, PLUGIN, SELECT
from fedalloy.cli.terminal import (
    as_typed,
    given_experiment,
    load_plugins,
    parted,
    read_runs,
    say,
    selecting,
    show,
    write_page,
)

if TYPE_CHECKING:
    from fedalloy.report.results import Form


@click.command()
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


@click.command()
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


@click.command("export-table")
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

    \b
      fedalloy export-table runs --format latex --out table.tex

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


@click.command("draw")
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


@click.command()
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


COMMANDS = (
    partition,
    report,
    export_table,
    draw_command,
    export,
)
