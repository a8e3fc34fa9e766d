"""`--help` of every command: one sentence, an example that is a valid command, options that say what they do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from fedalloy.cli.main import cli


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = dict(commands(cli))


def told(*words: str) -> str:
    return CliRunner().invoke(cli, [*words, "--help"], prog_name="fedalloy", terminal_width=80).output


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_a_help_page_fits_and_is_whole(path: tuple[str, ...]) -> None:
    page = told(*path)
    assert max(map(len, page.splitlines())) <= 80
    assert "..." not in page.partition("Commands:")[2]
    first = (EVERY[path].help or "").split("\n\n")[0]
    assert first.rstrip().endswith(".")
    for option in EVERY[path].params:
        if isinstance(option, click.Option):
            assert (option.help or "").endswith((".", ")")), option.name


@pytest.mark.parametrize("path", [path for path in EVERY if not isinstance(EVERY[path], click.Group)], ids=" ".join)
def test_a_help_page_has_an_example_that_can_be_typed(path: tuple[str, ...]) -> None:
    lines = re.findall(rf"^ +fedalloy ({' '.join(path)}\b[^\n]*)", told(*path), re.MULTILINE)
    assert lines
    for line in lines:
        words = shlex.split(line.split("   ")[0])[len(path) :]
        EVERY[path].make_context(" ".join(path), words)
