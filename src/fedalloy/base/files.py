"""Atomic and durable file operations; weights as safetensors, which cannot execute code."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedalloy.errors import DataError, SecurityError, StorageError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

NO_LINKS = "a run only writes into its own folder; remove the link"
PRIVATE = 0o600  # the mode of files that only their owner may read; other files follow the umask
LONGEST_PATH = 300  # characters of a path in a message


def quoted(path: Path | str) -> str:
    """Quote a path for a message: always on one line, and a very long path without its beginning.

    >>> print(quoted("a\\nb.csv"), quoted(Path("n" * 400 + ".npz"))[:8])
    'a\\nb.csv' '...nnnn
    """
    text = repr(str(path))
    return text if len(text) <= LONGEST_PATH else f"'...{text[3 - LONGEST_PATH :]}"


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file so that a crash leaves the old or the new one, never a part: temporary, fsync, rename, fsync."""
    temporary = temporary_of(path)
    with _said(path, "written"):
        try:
            temporary.unlink(missing_ok=True)
            _write(temporary, data, os.O_EXCL, mode)  # a new file, never the target of a link of this name
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):  # the folder itself may be the problem
                os.unlink(temporary)
            raise
        sync_folder(path.parent)


def read_file(path: Path) -> bytes:
    """Read a regular file; pipes and devices are refused, since reading them might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError(f"'{path}' is not a file")
    try:
        return path.read_bytes()
    except MemoryError as error:
        raise DataError(f"'{path}' does not fit into memory") from error


def refuse_executable(path: Path, data: bytes) -> None:
    """Refuse a file that begins like a pickle or a torch.save file: reading it would execute code.

    >>> refuse_executable(Path("model.pt"), b"\\x80\\x04K\\x01.")
    Traceback (most recent call last):
    ...
    fedalloy.errors.SecurityError: 'model.pt' is a pickle, which can execute code when it is read; write \
weights as safetensors and data as an .npz file of numbers
    """
    # Safetensors files begin with the length of a header, which can be any number, followed by the header's brace.
    pickled = data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and data[4:9] != b"\0\0\0\0{"
    first = data[30 : 30 + int.from_bytes(data[26:28], "little")] if data[:4] == b"PK\x03\x04" else b""
    if pickled or first.endswith(b".pkl"):
        raise SecurityError(
            f"'{path}' is a pickle, which can execute code when it is read; write weights as safetensors and "
            "data as an .npz file of numbers"
        )


def beginning(path: Path) -> bytes:
    """Read the first bytes of a file, which identify its format."""
    with path.open("rb") as file:
        return file.read(1000)


def temporary_of(path: Path) -> Path:
    """Return where a file is written before it is renamed; what a crash leaves there can be discarded."""
    return path.with_name(f".{path.name}.part")


def append_line(path: Path, line: str) -> None:
    """Append one line durably to a file that only its owner may read."""
    with _said(path, "written"):
        new = not path.exists()
        _write(path, f"{line}\n".encode(), os.O_APPEND, PRIVATE)
        if new:
            sync_folder(path.parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its parents if they do not exist."""
    with _said(folder, "created", "the folder "):
        if not folder.is_dir():
            if not folder.parent.exists():
                make_folder(folder.parent)
            folder.mkdir(mode, exist_ok=True)
            sync_folder(folder.parent)


def move(file: Path, folder: Path) -> None:
    """Move a file into a folder, replacing an existing one."""
    with _said(file, "moved"):
        os.replace(file, folder / file.name)
        sync_folder(folder)


def remove_file(file: Path) -> None:
    """Remove a file if it exists; if a crash restores it, it is removed again later."""
    with _said(file, "removed"):
        file.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file that names its holder; the lock is released when this process ends for any reason.

    Only the holder removes the file; one that a killed process left behind does not block anyone.
    """
    with _said(path, "locked"):
        handle = _lock(path)
    try:
        yield
    finally:
        try:
            with contextlib.suppress(OSError):
                os.unlink(path)
        finally:
            os.close(handle)


def _lock(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file that was opened here; then the name is free or belongs to
            # another file.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    os.ftruncate(handle, 0)
                    os.write(handle, f"{os.getpid()}\n".encode())
                    return handle
        except BlockingIOError as error:
            holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
            os.close(handle)
            raise UsageError(
                f"'{path.parent}' is being written by process {holder or 'with unknown id'}; wait until it ends, or "
                "choose another folder"
            ) from error
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def as_json(value: Any) -> bytes:
    """Encode a value as the contents of a JSON file.

    >>> as_json({"hidden": {3}})
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: this value cannot be stored as JSON (Object of type set is not JSON serializable); use \
numbers, strings, lists and tables
    """
    try:
        return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"this value cannot be stored as JSON ({error}); use numbers, strings, lists and tables"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_atomically(path, as_json(value))


def write_weights(weights: Mapping[str, Tensor], path: Path, about: Mapping[str, str]) -> None:
    """Write a model's weights, with strings that describe them."""
    import safetensors.torch

    # Clones, because one tensor cannot be stored under two names.
    data = safetensors.torch.save({name: t.detach().clone() for name, t in weights.items()}, metadata=dict(about))
    end = 8 + int.from_bytes(data[:8], "little")
    # Safetensors writes the strings in arbitrary order; sorting makes equal models equal files.
    head = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    write_atomically(path, len(head).to_bytes(8, "little") + head + data[end:])


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read weights from a safetensors file."""
    import safetensors.torch

    try:
        if Path(path).is_file():
            refuse_executable(Path(path), beginning(Path(path)))
        return safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"the model file '{path}' does not exist") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"the model file '{path}' cannot be read: {error!s:.300}") from error


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(path: Path, data: bytes, flag: int, mode: int) -> None:
    # Opening a pipe of this name would block until someone reads it; O_NONBLOCK makes it an error.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | flag, mode)
    try:
        rest = memoryview(data)
        while rest:  # the system may write fewer bytes than given
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _said(path: Path, done: str, what: str = "") -> Iterator[None]:
    """Turn an OSError into a one-sentence error."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise SecurityError(f"'{path}' is a link; {NO_LINKS}") from error
        raise StorageError(f"{what}'{path}' cannot be {done}: {error.strerror or error}") from error


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{quoted(path)} cannot be read: {error.strerror}; check the path") from error
