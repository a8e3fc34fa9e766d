"""Errors are sentences: what is wrong, where, and what to write instead. Each kind has its exit code."""

from __future__ import annotations


class FedalloyError(Exception):
    """Anything fedalloy refuses; the command line prints the sentence and exits with `code`."""

    code = 1


class UsageError(FedalloyError, ValueError):
    """An experiment, an option or a call that cannot be carried out as it is written."""

    code = 2


class DataError(FedalloyError):
    """Data that is missing, corrupt or not what it says it is."""

    code = 3


class StorageError(FedalloyError):
    """A run folder that cannot be written."""

    code = 4


class CheckpointError(FedalloyError):
    """A checkpoint that is damaged or belongs to another experiment."""

    code = 5


class SecurityError(DataError):
    """A file that would execute something when it is read, or a link by which a run would write elsewhere."""

    code = 7


class PluginError(FedalloyError):
    """What a user's own file raised while a client was at work in another process; the sentence says where."""


class InterruptionError(FedalloyError):
    """The user stopped a command that can be resumed; the sentence says how."""

    code = 130


class TerminationError(InterruptionError):
    """As before, but the system told the process to end (SIGTERM)."""

    code = 143


class HangupError(InterruptionError):
    """As before, but the terminal was closed or the connection to it was lost (SIGHUP)."""

    code = 129


class Signalled(KeyboardInterrupt):
    """A signal that ends a command has come: unlike any other KeyboardInterrupt, nobody's code has raised this one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ObserverWarning(UserWarning):
    """An observer of a run failed; the run goes on without it."""
