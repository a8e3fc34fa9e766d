"""The command `tune`: the same tuning budget for every method, then a comparison of the chosen settings on the test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fedalloy.cli.terminal import (
    as_typed,
    chosen_seeds,
    fresh,
    load_plugins,
    parted,
    refuse_idle_method,
    resumable,
    say,
    screen,
    selecting,
    show,
    words_of,
    write_page,
)
from fedalloy.errors import UsageError

if TYPE_CHECKING:
    from fedalloy.tuning.result import Tuned


@click.command("tune")
@click.argument("file", metavar="[EXPERIMENT.toml]", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]... KEY=RANGE...")
@click.option("--budget", "-b", required=True, help="For each method: a number of runs (20), or of CPU seconds (600s).")
@click.option(
    "--search",
    type=click.Choice(["random", "grid", "optuna"]),
    default="random",
    show_default=True,
    help="How values are chosen; optuna needs the extra of this name.",
)
@click.option("--methods", "-m", help="Names of methods, separated by commas. Default: those under [methods].")
@click.option(
    "--seeds", "-s", default="3", show_default=True, help="Of the test: a number of fresh seeds (3), or a list (1,2,7)."
)
@click.option(
    "--select",
    metavar="ROUND",
    default="last",
    show_default=True,
    help="Which round counts: 'last', 'best by validation' or 'mean of last 10'.",
)
@click.option("--out", "-o", metavar="FOLDER", help="Where to write.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE.py", help="A Python file with your own methods.")
def tune(
    file: str | None,
    overrides: tuple[str, ...],
    budget: str,
    search: Literal["random", "grid", "optuna"],
    methods: str | None,
    seeds: str,
    select: str,
    out: str | None,
    plugins: tuple[str, ...],
) -> None:
    """Tune methods with the same budget each.

    \b
      fedalloy tune examples/experiment.toml --budget 20 fedprox.mu=0.001..1

    KEY=RANGE is what to try: `fedprox.mu=0.001..1` (log-uniform), `training.lr=0.0..0.1:linear`, `training.epochs=1..5`
    (whole numbers), `training.batch=16,32,64` (a list). `method.mu` is an option of every method that has it. Settings
    are judged on validation data; the chosen ones are then tested with fresh seeds. To resume, give the same folder.
    """
    load_plugins(plugins)
    from fedalloy.base.files import write_atomically, write_json
    from fedalloy.config.experiment import experiment
    from fedalloy.config.overrides import at, override, put, read_toml
    from fedalloy.report.progress import Display
    from fedalloy.report.table import records
    from fedalloy.storage.rows import rows
    from fedalloy.tuning.space import parted_words
    from fedalloy.tuning.tune import tune as tuned_by

    file, overrides = parted(file, overrides)
    plain, space = parted_words(overrides)
    if not space:
        raise UsageError("there is nothing to tune; write a range or a list, such as fedprox.mu=0.001..1")
    values = override(read_toml(file) if file else {}, plain)
    exp = experiment(values)
    names = [name.strip() for name in methods.split(",") if name.strip()] if methods else None
    refuse_idle_method(exp, plain, names)
    folder = Path(out) if out else fresh(Path("runs"), f"tune-{Path(file).stem if file else 'defaults'}")
    tested = chosen_seeds(seeds, exp.seed + 1)
    words = ["tune", *words_of(file, overrides, plugins), "--budget", budget, "--seeds", seeds, "--search", search]
    words += [*(["--methods", methods] if methods else []), *selecting(select)]
    runs = len(names or exp.methods or [exp.method]) * len(tested)
    with Display(runs, exp.rounds) as display, resumable(*words, "--out", str(folder)):
        tuned = tuned_by(
            values, space, budget, names,
            search=search, seeds=tested, select=select, folder=folder, begin=display.begin, say=say,
        )  # fmt: skip
    values.pop("method", None)
    values["methods"] = tuned.experiment.to_dict()["methods"]
    for key in ("partition.validation", "partition.seed", "stop.metric"):  # what tuning may have changed
        if (value := at(tuned.experiment.to_dict(), key)) != at(exp.to_dict(), key):
            put(values, key, value)
    write_atomically(folder / "tuned.toml", toml_of(values))
    write_json(folder / "table.json", records([row for run in tuned.runs for row in rows(run, select)]))
    _show(tuned, folder)
    show(list(tuned.runs), select)
    write_page(list(tuned.runs), folder / "report.html", as_typed(*words), select)
    say(f"chosen settings: {as_typed('compare', str(folder / 'tuned.toml'), '--seeds', ','.join(map(str, tested)))}")


def toml_of(values: Any) -> bytes:
    """Encode an experiment's values as a file; it has no axes, since those are another command's."""
    import tomli_w

    return tomli_w.dumps({key: value for key, value in values.items() if key != "axes"}).encode()


def _show(tuned: Tuned, folder: Path) -> None:
    """Print all trials and what was chosen, and write both, with the pictures of score against budget."""
    from fedalloy.base.files import write_atomically
    from fedalloy.report.svg import save
    from fedalloy.tuning.picture import budget_picture

    tables = [tuned.tried(), tuned.table()]
    for table in tables:
        screen().print(table.rich())
        say("")
    write_atomically(folder / "tuning.md", "\n".join(table.markdown() for table in reversed(tables)).encode())
    for name in ("runs", "cpu"):
        for kind in ("svg", "png"):
            picture = budget_picture(tuned, "runs" if name == "runs" else "CPU seconds")
            save(picture, folder / f"budget-{name}.{kind}")
    say(f"written: {folder}/tuning.md, budget-runs.svg, budget-cpu.svg (and .png)")
