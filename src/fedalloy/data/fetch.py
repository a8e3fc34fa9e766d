"""Find a published file on this computer, or download it once and check it.

Locations are tried in this order: the folder named by the environment variable FEDALLOY_DATA, a folder of the operating
system, fedalloy's cache, the publishers' addresses. The hash is always checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import pooch  # type: ignore[import-untyped]

from fedalloy.errors import DataError

_OFFLINE: ContextVar[bool] = ContextVar("offline", default=False)


@contextmanager
def offline() -> Iterator[None]:
    """Use only files that are on this computer: a file that would be downloaded is a DataError.

    >>> with offline():
    ...     fetch(RemoteFile("data.zip", "somewhere", "md5:0", ("https://example.org/data.zip",)))
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: data.zip is not on this computer
    """
    token = _OFFLINE.set(True)
    try:
        yield
    finally:
        _OFFLINE.reset(token)


@dataclass(frozen=True)
class RemoteFile:
    """One published file: its name, its possible locations, and its hash.

    `home` is its folder in the cache and below FEDALLOY_DATA. `hash` is written as "md5:..." or "sha256:...". `layouts`
    are other locations for it below FEDALLOY_DATA. `system` are folders of the operating system, whose packagers may
    have compressed the same content again: those hashes are in `repacked`.
    """

    name: str
    home: str
    hash: str
    urls: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    repacked: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Return the folder for downloads."""
    return Path(pooch.os_cache("fedalloy"))


def find(file: RemoteFile) -> Path | None:
    """Return the path of the file on this computer, with its hash checked, or None if it is not there."""
    for path in _places(file):
        if path.is_file():
            _check(path, file)
            return path
    return None


def fetch(file: RemoteFile) -> Path:
    """Return the path of the file on this computer; download it if necessary."""
    return find(file) or _download(file)


def _places(file: RemoteFile) -> list[Path]:
    own = os.environ.get("FEDALLOY_DATA")
    if own and not Path(own).expanduser().is_dir():
        raise DataError(f"FEDALLOY_DATA is '{own}', which is not a folder; correct or unset it")
    inside = [f"{file.home}/{file.name}", *file.layouts]
    return [
        *(Path(own).expanduser() / place for place in inside if own),
        *(Path(folder) / file.name for folder in file.system),
        cache_folder() / file.home / file.name,
    ]


def _check(path: Path, file: RemoteFile) -> None:
    def actual(known: str) -> str:
        kind = known.partition(":")[0]
        return f"{kind}:{pooch.file_hash(str(path), alg=kind)}"

    if not any(actual(known) == known for known in (file.hash, *file.repacked)):
        raise DataError(
            f"'{path}' is corrupt or a different file: its hash is {actual(file.hash)} instead of {file.hash}; "
            f"delete it and run again, or replace it with the published {file.name}"
        )


def _download(file: RemoteFile) -> Path:
    if _OFFLINE.get():
        raise DataError(f"{file.name} is not on this computer")
    import requests  # imported here, as in pooch: only a download needs it

    folder = cache_folder() / file.home
    failures = []
    for url in file.urls:
        try:
            # pooch writes to a temporary file and moves it here only if the hash matches.
            return Path(pooch.retrieve(url, known_hash=file.hash, fname=file.name, path=str(folder)))
        except (OSError, ValueError) as error:  # requests' own errors are OSErrors; a wrong hash is a ValueError
            unreachable = isinstance(error, requests.exceptions.ConnectionError)
            failures.append(f"{url}: {'no connection' if unreachable else error}")
    raise DataError(
        f"{file.name} is not on this computer and could not be downloaded ({'; '.join(failures) or 'no address'}); "
        f"put it into '{folder}', or into '{file.home}' in a folder that the environment variable FEDALLOY_DATA names"
    )
