"""Values as plain JSON, in which a number that is not finite is null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def plain(value: Any) -> Any:
    """A value made of dictionaries, lists, texts and finite numbers; None for other numbers.

    >>> plain({"rounds": (1, float("inf"))})
    {'rounds': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # of NumPy or torch
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return f"{value}" if isinstance(value, PurePath) else value


def as_text(value: Any) -> str:
    """A value as JSON for people and programs.

    >>> print(as_text({"amp": float("nan")}))
    {
     "amp": null
    }
    """
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)
