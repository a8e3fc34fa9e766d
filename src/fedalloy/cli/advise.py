"""The command `advise`: should these clients federate, for whom does it pay, and with which method?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedalloy.cli.answers import answers
from fedalloy.cli.terminal import (
    as_typed,
    chosen_seeds,
    fresh,
    load_plugins,
    plugged,
    resumable,
    say,
    screen,
    write_page,
)
from fedalloy.errors import FedalloyError, UsageError

if TYPE_CHECKING:
    from fedalloy.advise.advice import Advice
    from fedalloy.run.comparison import Begin

ROUNDS = 20  # if the experiment does not say


@click.command("advise")
@click.argument("data", metavar="DATA|EXPERIMENT.toml")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--minutes", type=float, default=2.0, show_default=True, help="How long the comparison may take.")
@click.option(
    "--seeds", "-s", metavar="N", default="3", show_default=True, help="A number of seeds (3), or a list (0,1,7)."
)
@click.option("--out", "-o", metavar="FOLDER", help="Where to write.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE.py", help="A Python file with your own methods.")
@answers
def advise(
    data: str, overrides: tuple[str, ...], minutes: float, seeds: str, out: str | None, plugins: tuple[str, ...]
) -> dict[str, Any]:
    """Advise whether to federate, and how.

    \b
      fedalloy advise hospitals/ data.label=diagnosis --minutes 5

    DATA is what `data=` takes: the path of a file or folder, or the name of a data set. An experiment file works too.
    The result is one page, and an experiment file with which to go on.
    """
    load_plugins(plugins)
    from fedalloy.advise.advice import advice, commands
    from fedalloy.advise.look import look
    from fedalloy.advise.page import page
    from fedalloy.advise.trial import tried
    from fedalloy.base.files import make_folder, write_atomically
    from fedalloy.config.experiment import experiment
    from fedalloy.config.overrides import override, read_toml
    from fedalloy.report.tables import parts_of

    if not 0 < minutes < 7 * 24 * 60:
        raise UsageError(f"--minutes {minutes:g} must be above 0 and at most a week; write for example --minutes 5")
    given: dict[str, Any] = read_toml(data) if data.endswith(".toml") else {"data": data}
    values = override(given, overrides)
    exp = experiment({"rounds": ROUNDS, **values})
    chosen = chosen_seeds(seeds, exp.seed)
    folder = Path(out) if out else fresh(Path(), "fedalloy-advice")
    words = ["advise", data, *overrides, "--minutes", f"{minutes:g}", "--seeds", seeds, *plugged(plugins)]
    ours = not folder.exists()
    make_folder(folder)
    try:
        with resumable(*words, "--out", str(folder)):
            trial = tried(exp, chosen, minutes * 60, folder / "runs", _progress(minutes * 60, exp.rounds), say)
    except FedalloyError:
        if ours and not any(folder.iterdir()):
            folder.rmdir()  # nothing was written, since the files or the keys are not right yet
        raise
    advised = advice(look(trial.built), trial)
    write_page(list(trial.runs), folder / "report.html", as_typed(*words))
    file = folder / "experiment.toml"
    write_atomically(file, _settled(values, advised).encode())
    told = commands(advised, str(file), len(advised.clients.body), chosen, exp.rounds, plugged(plugins))
    title = f"Should {Path(data).stem} federate?"
    text = page(advised, told, title=title, seconds=trial.seconds, seeds=chosen, rounds=exp.rounds)
    write_atomically(folder / "advice.html", text.encode())
    console = screen()
    console.print(advised.clients.table())
    for sentence in advised.data:
        say(sentence)
    if advised.gains is not None:
        console.print(advised.gains.table())
    for part in (advised.verdict, *advised.method, *advised.costs, *advised.sure):
        say(part)
    for what, lines in told.items():
        say("\n".join([f"\n{what}:", *(f"  {line}" for line in lines)]))
    say(f"\nadvice: {folder / 'advice.html'}")
    tables = {"clients": advised.clients, "gains": advised.gains}
    return {
        **{name: getattr(advised, name) for name in ("verdict", "chosen", "compared")},
        **{name: getattr(advised, name) for name in ("data", "method", "costs", "leaves", "sure", "untried")},
        **{name: one and parts_of(one) for name, one in tables.items()},
        "commands": told,
        "files": [folder / "advice.html", folder / "report.html", file],
    }


def _progress(seconds: float, rounds: int) -> Begin:
    """Print a line when a run begins: how much of the time is used, and which run it is; in a log, also on its way."""
    from fedalloy.report.progress import watched

    start = time.monotonic()

    def begin(label: str, seed: int) -> Any:
        say(f"[{time.monotonic() - start:4.0f} of {seconds:.0f} s] {label}, seed {seed}")
        return watched(label, seed, rounds) or (lambda _: None)

    return begin


def _settled(values: Mapping[str, Any], advised: Advice) -> str:
    """The experiment as a file, with the advised method and its options, which [methods] may have under another key."""
    import tomli_w

    rest = {key: value for key, value in values.items() if key not in ("method", "methods")}
    chosen, label = advised.chosen, advised.found[0].label if advised.found else ""
    given, own = values.get("methods", {}), values.get("method", {})
    options: Mapping[str, Any] = own if isinstance(own, Mapping) and own.get("name") == chosen else {}
    for key, table in given.items() if isinstance(given, Mapping) else ():
        if table.get("name", key) == chosen and key in (chosen, label):
            options = table
    return tomli_w.dumps({"rounds": ROUNDS, **rest, "method": {**options, "name": chosen or "fedavg"}})
