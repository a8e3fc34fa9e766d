"""How the command ends: an error is one sentence on stderr, with an exit status for its kind."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click

from fedalloy.base.text import listed
from fedalloy.cli.hints import as_option, takers
from fedalloy.cli.terminal import ENDINGS, orderly_end
from fedalloy.errors import FedalloyError, InterruptionError, ObserverWarning, PluginError, Signalled

DEBUG = "--debug"
WHOLE = "--debug shows the full traceback"


def carry_out(command: click.Command, given: list[str]) -> NoReturn:
    """Run a command with the given arguments, and exit."""
    debug = DEBUG in given  # before the command or after it
    with orderly_end(), _warnings_in_one_line():
        try:
            command.main([word for word in given if word != DEBUG], prog_name="fedalloy", standalone_mode=False)
        except FedalloyError as error:
            _fail(_refusal(error), error.code, debug, error)
        except (click.exceptions.Abort, KeyboardInterrupt) as error:  # click turns KeyboardInterrupt into Abort
            cause = error.__cause__ or error
            _fail(*_interruption(cause), debug, cause)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
        except click.NoSuchOption as error:
            _fail(_as_override(error, given), 2, debug, error)
        except click.ClickException as error:
            _fail(_with_help(error), 2, debug, error)
        except BaseException as error:
            _fail(*_fault(error), debug, error)
    sys.exit(0)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings of fedalloy as one line, without the line of code that they come from."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, ObserverWarning):
                click.echo(f"fedalloy: {_printable(str(message))}", err=True)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _refusal(error: FedalloyError) -> str:
    """Return the message of an error; an error in a client's code has a note, and a traceback to show."""
    from fedalloy.base.plugins import sentence

    noted = error.code == FedalloyError.code and hasattr(error, "__notes__")
    return f"{sentence(error)}; {WHOLE}" if noted else sentence(error)


def _interruption(error: BaseException) -> tuple[str, int]:
    """Return the message and exit status of an interruption; a plug-in may have raised KeyboardInterrupt itself."""
    from fedalloy.base.plugins import blamed

    if isinstance(error, Signalled):
        return "interrupted", ENDINGS[error.number].code
    return ("interrupted", InterruptionError.code) if blamed(error) is None else _fault(error)


def _fault(error: BaseException) -> tuple[str, int]:
    """Return the message and exit status of an unexpected error: from a plug-in, the system or fedalloy."""
    from fedalloy.base.plugins import blamed, named

    if (sentence := blamed(error)) is not None:
        return f"{sentence}; {WHOLE}", PluginError.code
    if isinstance(error, SystemExit):
        raise error  # raised by a command
    if isinstance(error, BrokenPipeError):
        sys.exit(0)
    if isinstance(error, OSError):
        behind = error.__context__
        while behind is not None:  # if the terminal was closed, printing the last messages fails too
            if isinstance(behind, InterruptionError):
                return f"{behind}", behind.code
            if isinstance(behind, Signalled):
                return _interruption(behind)
            behind = behind.__context__
        return f"'{error.filename}': {error.strerror}" if error.filename else str(error), 4
    return f"{named(error)} (a bug in fedalloy); --debug shows the traceback", 1


def _as_override(error: click.NoSuchOption, given: Sequence[str]) -> str:
    """Explain an unknown option; if it is a key of the experiment, say how to write it."""
    if error.ctx is None or not any(param.name == "overrides" for param in error.ctx.command.params):
        return _with_help(error)
    words = [*(part for word in given for part in word.split("=", 1)), "..."]
    instead = as_option(error.option_name, words[words.index(error.option_name) + 1], error.ctx.command)
    if instead is None:
        return _with_help(error)
    what = "an option of another command" if instead.startswith("--") else "a key of the experiment, not an option"
    return f"{error.option_name} is {what}; write {instead}"


def _with_help(error: click.ClickException) -> str:
    """The message of a wrong use, and where the right one is shown."""
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")
    if context is None:
        return message
    if isinstance(error, click.NoSuchOption) and (others := takers(error.option_name, context)):
        message = f"{message}; it is an option of {listed(others)}"
    joint = "" if message.endswith("?") else ";"
    return f"{message}{joint} `{context.command_path} --help` shows how to write it"


def _fail(sentence: str, code: int, debug: bool, error: BaseException | None = None) -> NoReturn:
    with suppress(OSError):  # the terminal may be gone
        if debug and error is not None:
            import traceback

            for line in "".join(traceback.format_exception(error)).splitlines():
                click.echo(_printable(line.expandtabs()), err=True)
        click.echo(f"fedalloy: {_printable(sentence)}", err=True)
    sys.exit(code)


def _printable(sentence: str) -> str:
    """Make a message safe to print: quoted text cannot break lines, move the cursor or fill the screen.

    >>> _printable("there is no 'a\\x1bb\\nc'; these are:\\n  one")
    "there is no 'a?b?c'; these are:\\n  one"
    """
    lines = re.split(r"\n(?=  )", re.sub(r"\S{300,}", lambda word: f"{word[0][:297]}...", sentence))
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in line) for line in lines)
