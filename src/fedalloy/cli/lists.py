"""The command `list`: everything that is registered.

Heavy imports stay inside the command, so that `fedalloy --help` is fast.
"""

from __future__ import annotations

import json

import click

from fedalloy.cli.options import PLUGIN
from fedalloy.cli.terminal import (
    load_plugins,
    say,
    screen,
)
from fedalloy.errors import UsageError


@click.command("list")
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


COMMANDS = (list_command,)
