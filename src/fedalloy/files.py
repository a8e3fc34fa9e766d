"""Files that are either there, whole, or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedalloy.errors import StorageError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part: temporary, fsync, rename, fsync."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"'{path}' cannot be written: {error.strerror or error}") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_atomically(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    """Append one line and make it durable."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"'{path}' cannot be written: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
