"""The command line: all commands in one group, and how it starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from fedalloy import __version__
from fedalloy.cli import deploy, lists, results, runs, tools
from fedalloy.cli.advise import advise
from fedalloy.cli.ending import carry_out
from fedalloy.cli.hints import NearestGroup
from fedalloy.cli.new import new
from fedalloy.cli.reproduce import reproduce
from fedalloy.cli.tune import tune


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


for command in (*runs.COMMANDS, *results.COMMANDS, *lists.COMMANDS, *tools.COMMANDS, advise, new, reproduce, tune):
    cli.add_command(command)
cli.add_command(
    NearestGroup(
        "deploy",
        deploy.COMMANDS,
        help="Run an experiment at real sites with Flower. Each site keeps its data.",
    )
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; errors are printed as one sentence on stderr and set the exit status."""
    carry_out(cli, list(sys.argv[1:] if arguments is None else arguments))
