"""Files that are either there, whole, or not there; weights as safetensors, which cannot execute anything."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedalloy.errors import DataError, StorageError, UsageError

if TYPE_CHECKING:
    from torch import Tensor


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
        with contextlib.suppress(OSError):  # the folder itself may be what is wrong
            temporary.unlink(missing_ok=True)
        raise StorageError(f"'{path}' cannot be written: {error.strerror or error}") from error


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the folder '{folder}' cannot be made: {error.strerror or error}") from error


def as_json(value: Any) -> bytes:
    """A value as the content of a JSON file.

    >>> as_json({"hidden": {3}})
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: this cannot be recorded as JSON (Object of type set is not JSON serializable); use \
numbers, strings, lists and tables
    """
    try:
        return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"this cannot be recorded as JSON ({error}); use numbers, strings, lists and tables"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_atomically(path, as_json(value))


def write_weights(weights: Mapping[str, Tensor], path: Path, about: Mapping[str, str]) -> None:
    """Write a model's weights, with strings that say what they are."""
    import safetensors.torch

    # Clones, because two names of one tensor cannot be stored.
    data = safetensors.torch.save({name: t.detach().clone() for name, t in weights.items()}, metadata=dict(about))
    write_atomically(path, data)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read weights that `write_weights` or anybody else's safetensors wrote."""
    import safetensors.torch

    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"there is no model file '{path}'") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"the model file '{path}' cannot be read: {error}") from error


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
