"""A disk that fails at a chosen call: the process is killed, a write torn, an error reported, or it is full."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from fedalloy.errors import StorageError

T = TypeVar("T")
FAULTS = ("killed", "torn", "error", "full")


class KilledError(BaseException):
    """The process is dead: nothing catches this, and nothing is written any more."""


class Disk:
    """The calls that change files below a folder; call number `at` fails.

    `killed` is before the call, which is also after the previous one; `torn` is in the middle of a write; `error` is
    EIO once, and `full` is ENOSPC from then on.
    """

    CHANGING = ("open", "write", "fsync", "ftruncate", "replace", "unlink", "mkdir", "rmdir")
    GROWING = ("create", "write", "fsync", "replace", "mkdir")  # what a full disk refuses

    def __init__(self, folder: Path, at: int = 0, fault: str = "") -> None:
        self.folder, self.at, self.fault = str(folder), at, fault
        self.calls: list[str] = []
        self.dead = self.full = False
        self.handles: set[int] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Intercept the library's system calls, and then simulate the end of the process."""
        real = os.close

        def close(handle: int) -> None:
            self.handles.discard(handle)
            real(handle)

        with ExitStack() as stack:
            stack.callback(self.end)
            for name in self.CHANGING:
                stack.enter_context(patch.object(os, name, self._watched(name, getattr(os, name))))
            stack.enter_context(patch.object(os, "close", close))
            yield

    def end(self) -> None:
        """Do what the kernel does when a process ends: close its files and release its locks."""
        for handle in self.handles:
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *rest: Any, **named: Any) -> Any:
            mine = what in self.handles if isinstance(what, int) else str(what).startswith(self.folder)
            if not mine:
                return real(what, *rest, **named)
            kind = "create" if name == "open" and rest[0] & os.O_CREAT else name
            self.calls.append(kind)
            if len(self.calls) == self.at and self.fault in ("killed", "torn"):
                self.dead = True
                if self.fault == "torn":
                    real(what, rest[0][: len(rest[0]) // 2])
            if self.dead:
                raise KilledError
            if len(self.calls) == self.at and self.fault == "error":
                raise OSError(errno.EIO, "Input/output error")
            if self.full and kind in self.GROWING:
                raise OSError(errno.ENOSPC, "No space left on device")
            if len(self.calls) == self.at and self.fault == "full":
                self.full = True
                if kind != "write":
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(what, rest[0][: len(rest[0]) // 2])  # the system writes what fits
            result = real(what, *rest, **named)
            if name == "open":
                self.handles.add(result)
            return result

        return call


def disturbed(disk: Disk, work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Call a function while the disk fails, then simulate the end of the process."""
    with disk.installed():
        try:
            return work(), None
        except (KilledError, StorageError) as error:
            return None, error


def points(calls: Sequence[str], fault: str) -> list[int]:
    """Return the numbers of the calls that can fail in this way."""
    meets = {"torn": ("write",), "full": Disk.GROWING}
    return [number for number, kind in enumerate(calls, start=1) if kind in meets.get(fault, (kind,))]
