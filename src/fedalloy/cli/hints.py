"""What was probably meant by words that a command does not take, and how to write it.

Heavy imports stay inside the functions, so that `fedalloy --help` is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fedalloy.base.registry import suggest
from fedalloy.errors import UsageError

MEANT = {"help": "--help", "version": "--version", "methods": "list", "models": "list models", "datasets": "list data"}
ALIASES = {"train": "run", "fit": "run", "simulate": "run", "plot": "draw", "show": "list", "init": "new"}


class NearestGroup(click.Group):
    """A group that suggests the nearest command if a command is unknown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise an error that suggests one."""
        if args and self.get_command(ctx, args[0]) is None:
            hint = _command_meant(args[0]) if ctx.parent is None else ""
            raise UsageError(f"there is no command '{args[0]}'; {hint or suggest(args[0], list(self.commands))}")
        return super().resolve_command(ctx, args)


def _command_meant(word: str) -> str:
    """What was meant by a word in place of a command; empty if it is nothing but misspelt."""
    from fedalloy.methods import methods

    if word in MEANT:
        return f"write fedalloy {MEANT[word]}"
    if word in ALIASES:
        return f"did you mean '{ALIASES[word]}'?"
    if word in methods:
        return f"write fedalloy run method={word}, or fedalloy list {word}"
    return f"write fedalloy run {word}" if "=" in word or word.endswith(".toml") else ""


def refuse_strays(words: Sequence[str]) -> None:
    """Refuse words that are neither a file nor KEY=VALUE if it is clear what they mean; the command knows the rest."""
    context = click.get_current_context(silent=True)
    if context is None:
        return
    has_methods = any(param.name == "methods" for param in context.command.params)
    given = [name for name in (context.params.get("methods") or "").split(",") if has_methods and name]
    for i, word in enumerate(words):
        if word == "=" and 0 < i < len(words) - 1:
            raise UsageError(f"'=' stands alone; write it without spaces: {_full(words[i - 1])}={words[i + 1]}")
        key, _, value = word.partition("=")
        if (key == "methods" and not value.startswith("{")) or (key == "method" and "," in value):
            raise UsageError(f"{word} does not choose methods; write {_compared(value, has_methods)}")
    _refuse_option(words, given)
    strays = [word for word in words if "=" not in word and not _is_file(word)]
    if strays and (hint := _meant(strays, given, has_methods, context)):
        raise UsageError(hint)


def _meant(strays: Sequence[str], given: Sequence[str], has_methods: bool, context: click.Context) -> str:
    """What words without a key probably mean, as a sentence; empty if that is unknown."""
    from fedalloy.data.catalogue import datasets
    from fedalloy.data.partition import partitions
    from fedalloy.methods import methods
    from fedalloy.nets.models import models

    names = [part.strip() for word in strays for part in word.split(",") if part.strip()]
    first = strays[0]
    if names and all(name in methods for name in names):
        listed = ",".join([*given, *names])
        if has_methods or len(names) > 1:
            return f"'{first}' is not a file; to choose methods, write {_compared(listed, has_methods)}"
        return f"'{first}' is not a file; to choose a method, write method={first}"
    for key, kind, things in (("data", "data set", datasets), ("model", "model", models)):
        if first in things:
            return f"'{first}' is not a file; to choose a {kind}, write {key}={first}"
    if first in partitions:
        return f"'{first}' is not a file; to choose a partition, write partition={first}"
    root = context.find_root().command
    if isinstance(root, click.Group) and first in root.commands:
        return f"'{first}' is not a file; it is a command: write `fedalloy {first}`"
    if first.endswith(".py"):
        return f"'{first}' is not an experiment; write --plugin {first}"
    if _full(first) != first or _is_key(first):
        return f"'{first}' is a key without a value; write {_full(first)}=VALUE"
    return ""


def _refuse_option(words: Sequence[str], names: Sequence[str]) -> None:
    """Refuse `method.mu=1` where --methods lists the methods and nothing says that `method` is one of them."""
    if not names or any(_is_file(word) or word.startswith(("method=", "method.name=")) for word in words):
        return
    from fedalloy.base.options import options_of
    from fedalloy.methods import methods

    for word in words:
        key, _, value = word.partition("=")
        if key.startswith("method."):
            option = key.removeprefix("method.")
            having = [n for n in names if n in methods and option in {o.name for o in options_of(methods[n])}]
            if names != ["fedavg"]:
                wanted = f"methods.{(having or list(names))[0]}.{option}={value}"
                raise UsageError(f"{word} is about no method that --methods names; write {wanted}")


def as_option(option: str, value: str, command: click.Command) -> str | None:
    """How to write a key of the experiment that was written as an option; None if it is none.

    >>> as_option("--lr", "0.1", click.Command("run"))
    'training.lr=0.1'
    """
    key = option.lstrip("-")
    if key in ("method", "methods") and any(param.name == "methods" for param in command.params):
        return f"--methods {value}"
    return f"{_full(key)}={value}" if _full(key) != key or _is_key(key.split(".")[0]) else None


def takers(option: str, context: click.Context) -> list[str]:
    """The other commands that take an option."""
    root = context.find_root().command
    commands = root.commands if isinstance(root, click.Group) else {}
    return [name for name, command in commands.items() if any(option in param.opts for param in command.params)]


def refuse_file(name: str) -> None:
    """Refuse a plug-in's file where the name of a method is wanted."""
    if name.endswith(".py"):
        raise UsageError(f"'{name}' is a file; write the name of a method that it registers, and --plugin {name}")


def refuse_no_file(file: str) -> None:
    """Refuse KEY=VALUE where an experiment file is wanted."""
    if "=" in file and not _is_file(file):
        raise UsageError(f"'{file}' is not a file; write EXPERIMENT.toml before it")


def _compared(names: str, has_methods: bool) -> str:
    return f"--methods {names}" if has_methods else f"fedalloy compare --methods {names}"


def _is_file(word: str) -> bool:
    """Whether a word names an experiment: a file, one that comes with the library, or one that should exist."""
    from fedalloy.config.overrides import shipped

    return (
        word.endswith(".toml")
        or "/" in word
        or shipped(word) != Path(word)
        or (Path(word).is_file() and not (word.endswith(".py")))
    )


def _full(key: str) -> str:
    """A key with its section if just one has it; else the same key."""
    from fedalloy.config.places import places

    found = [] if _is_key(key) and key != "clients" else places(key)  # [[clients]] is a list, and not its length
    return found[0] if len(found) == 1 else key


def _is_key(key: str) -> bool:
    """Whether an experiment has a key; of a dotted one, whether it has the section and the section the key."""
    import dataclasses

    from fedalloy.config.places import SECTIONS
    from fedalloy.config.sections import Experiment

    section, _, rest = key.partition(".")
    if not rest:
        return key in {field.name for field in dataclasses.fields(Experiment)}
    return section in SECTIONS and rest in {field.name for field in dataclasses.fields(SECTIONS[section])}
