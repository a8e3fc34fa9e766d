"""The option --json: what a command found as JSON, alone on standard output."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import click

from fedalloy.base.plain import as_text


@dataclass(frozen=True)
class Answer:
    """What a command found, and the error or exit with which it ends after it was printed."""

    value: Any
    end: BaseException | None = None


def answers(run: Callable[..., Any]) -> Callable[..., None]:
    """Add the option --json to a command, which returns what it found as plain values, or as an `Answer`.

    With --json, everything that the command and its workers print goes to standard error.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print JSON alone; everything else goes to standard error.")
    @functools.wraps(run)
    def command(*args: Any, as_json: bool = False, **kwargs: Any) -> None:
        with _standard_output_is_error() if as_json else _unchanged():
            found = run(*args, **kwargs)
        answer = found if isinstance(found, Answer) else Answer(found)
        if as_json:
            click.echo(as_text(answer.value))
        if answer.end is not None:
            raise answer.end

    return command


@contextmanager
def _unchanged() -> Iterator[None]:
    yield


@contextmanager
def _standard_output_is_error() -> Iterator[None]:
    """Send what is printed to standard error: by this process, and by processes that it starts."""
    sys.stdout.flush()
    with redirect_stdout(sys.stderr):
        try:
            number = sys.__stdout__.fileno() if sys.__stdout__ is not None else None
            kept = None if number is None else os.dup(number)
        except (io.UnsupportedOperation, OSError):  # there is no such stream
            number = kept = None
        if number is None or kept is None:
            yield
            return
        os.dup2(2, number)
        try:
            yield
        finally:
            os.dup2(kept, number)
            os.close(kept)
