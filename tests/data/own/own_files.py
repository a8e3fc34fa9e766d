"""What the tests of own files share: how files are written and refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedalloy.data.own import Format, Own, Wanted, read_own
from fedalloy.errors import FedalloyError


def written(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def savez(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def png(colour: Any = 0, *, size: tuple[int, int] = (4, 4), mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, "PNG")
    return file.getvalue()


def table(own: Own) -> list[list[float]]:
    return own.x[:, :, 0, 0].tolist()  # type: ignore[no-any-return]


def refused(
    path: Any, *named: str, agreed: Format | None = None, error: type[FedalloyError] = FedalloyError, **wanted: Any
) -> str:
    """The one sentence with which files are refused; it contains all of `named`."""
    with pytest.raises(error) as caught:
        read_own(path, Wanted(**wanted), agreed)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert len(sentence) < 900
    assert [word for word in named if word not in sentence] == []
    return sentence
