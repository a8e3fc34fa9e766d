"""How the command ends: what went wrong is one sentence on stderr, with an exit code of its kind."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from fedalloy.errors import FedalloyError, InterruptionError, PluginError, TerminationError
from fedalloy.terminal import Terminated, orderly_end

WHOLE = "--debug shows the whole traceback"


def carry_out(command: click.Command, given: list[str]) -> NoReturn:
    """Run a command with what was given to it, and leave."""
    debug = "--debug" in given
    with orderly_end():
        try:
            command.main(given, prog_name="fedalloy", standalone_mode=False)
        except PluginError as error:
            _fail(f"{error}; {WHOLE}", error.code, debug, error)
        except FedalloyError as error:
            _fail(str(error), error.code, debug, error)
        except (click.exceptions.Abort, KeyboardInterrupt) as error:  # click turns the one into the other
            told = isinstance(error, Terminated) or isinstance(error.__cause__, Terminated)
            _fail("interrupted", (TerminationError if told else InterruptionError).code, debug)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
        except click.NoSuchOption as error:
            _fail(_as_override(error, given), 2, debug, error)
        except click.ClickException as error:
            _fail(error.format_message(), 2, debug, error)
        except BrokenPipeError:
            sys.exit(0)
        except Exception as error:
            _fail(*_fault(error), debug, error)
    sys.exit(0)


def _fault(error: Exception) -> tuple[str, int]:
    """Whose fault an error is that is no refusal - a plug-in's, the system's or fedalloy's - and its exit code."""
    from fedalloy.plugins import blamed

    if (sentence := blamed(error)) is not None:
        return f"{sentence}; {WHOLE}", PluginError.code
    if isinstance(error, OSError):
        return f"'{error.filename}': {error.strerror}" if error.filename else str(error), 4
    return f"{type(error).__name__}: {error} - a bug of fedalloy's; --debug shows where", 1


def _as_override(error: click.NoSuchOption, given: Sequence[str]) -> str:
    """What is wrong with an unknown option, and how to write it where it is a key of the experiment."""
    key = error.option_name.lstrip("-")
    takes_keys = error.ctx is not None and any(param.name == "overrides" for param in error.ctx.command.params)
    if not takes_keys or key.split(".")[0] not in _keys():
        return error.format_message()
    words = [*(part for word in given for part in word.split("=", 1)), "..."]
    value = words[words.index(error.option_name) + 1]
    return f"{error.option_name} is a key of the experiment, not an option; write {key}={value}"


def _keys() -> list[str]:
    from dataclasses import fields

    from fedalloy.config import Experiment

    return [f.name for f in fields(Experiment)]


def _fail(sentence: str, code: int, debug: bool, error: BaseException | None = None) -> NoReturn:
    if debug and error is not None:
        import traceback

        traceback.print_exception(error)
    # A bug may need many lines, a worker's for instance.
    click.echo(f"fedalloy: {sentence if code == FedalloyError.code else _printable(sentence)}", err=True)
    sys.exit(code)


def _printable(sentence: str) -> str:
    """A sentence as a screen may have it: what it quotes can neither end a line, move the cursor nor fill the page.

    >>> _printable("there is no 'a\\x1bb\\nc'; these are:\\n  one")
    "there is no 'a?b?c'; these are:\\n  one"
    """
    lines = re.split(r"\n(?=  )", re.sub(r"\S{300,}", lambda word: f"{word[0][:297]}...", sentence))
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in line) for line in lines)
