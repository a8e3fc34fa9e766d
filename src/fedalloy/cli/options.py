"""Arguments and options that several commands share."""

import click

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
SEEDS = click.option(
    "--seeds",
    "-s",
    metavar="N",
    default="1",
    show_default=True,
    help="A number of seeds (3), or a list of seeds (0,1,7).",
)
METHODS = click.option(
    "--methods", "-m", metavar="A,B,...", help="Names of methods, separated by commas. Default: those under [methods]."
)
