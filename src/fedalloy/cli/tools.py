"""The commands that check: `check`, `doctor` and `bench-attacks`.

Heavy imports stay inside the commands, so that `fedalloy --help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedalloy.cli.answers import Answer, answers
from fedalloy.cli.hints import refuse_file
from fedalloy.cli.options import FILE, METHODS, OVERRIDES, PLUGIN, SEEDS
from fedalloy.cli.terminal import (
    chosen_seeds,
    load_plugins,
    parted,
    refuse_idle_method,
    say,
    screen,
)


@click.command()
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


@click.command()
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


@click.command("bench-attacks")
@FILE
@OVERRIDES
@METHODS
@click.option("--attacks", "-a", metavar="A,B,...", help="Names of attacks, separated by commas. Default: all.")
@click.option("--fraction", default=0.3, show_default=True, help="The share of clients that attack.")
@SEEDS
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


COMMANDS = (
    check,
    doctor,
    bench_attacks,
)
