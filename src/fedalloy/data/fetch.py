"""Find a published file on this computer, or download it once and check what came.

Places are tried in this order: the folder named by the environment variable FEDALLOY_DATA, a folder of the operating
system, fedalloy's cache, the publishers' addresses. Wherever a file comes from, its hash is checked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pooch  # type: ignore[import-untyped]

from fedalloy.errors import DataError


@dataclass(frozen=True)
class RemoteFile:
    """One published file: its name, where it may lie or be had, and the hash that proves it.

    `home` is the folder it lies in, in the cache and below FEDALLOY_DATA. `hash` is written as "md5:..." or
    "sha256:...". `layouts` are other places for it below FEDALLOY_DATA; `system` are folders of the operating system,
    whose packagers may have packed the same content anew: those hashes are in `repacked`.
    """

    name: str
    home: str
    hash: str
    urls: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    repacked: tuple[str, ...] = ()


def cache_folder() -> Path:
    """The folder in which downloads are kept."""
    return Path(pooch.os_cache("fedalloy"))


def find(file: RemoteFile) -> Path | None:
    """Where the file already lies on this computer, its hash checked; None if it is nowhere."""
    for path in _places(file):
        if path.is_file():
            _check(path, file)
            return path
    return None


def fetch(file: RemoteFile) -> Path:
    """The path of the file on this computer, downloaded if it has to be."""
    return find(file) or _download(file)


def _places(file: RemoteFile) -> list[Path]:
    own = os.environ.get("FEDALLOY_DATA")
    if own and not Path(own).expanduser().is_dir():
        raise DataError(f"FEDALLOY_DATA names '{own}', which is not a folder; correct or unset it")
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
            f"'{path}' is corrupt or another file: its hash is {actual(file.hash)} instead of {file.hash}; "
            f"delete it and run again, or put the published {file.name} in its place"
        )


def _download(file: RemoteFile) -> Path:
    import requests  # here, as in pooch: only a download needs it

    folder = cache_folder() / file.home
    failures = []
    for url in file.urls:
        try:
            # pooch writes to a temporary file and moves it here only if the hash is right.
            return Path(pooch.retrieve(url, known_hash=file.hash, fname=file.name, path=str(folder)))
        except (OSError, ValueError) as error:  # requests' own errors are OSErrors; a wrong hash is a ValueError
            unreachable = isinstance(error, requests.exceptions.ConnectionError)
            failures.append(f"{url}: {'no connection' if unreachable else error}")
    raise DataError(
        f"{file.name} is not on this computer and could not be downloaded ({'; '.join(failures) or 'no address'}); "
        f"put it into '{folder}', or into '{file.home}' below a folder of yours that the variable FEDALLOY_DATA names"
    )
