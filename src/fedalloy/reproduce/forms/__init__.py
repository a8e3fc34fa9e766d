"""The forms of tables and figures: functions from an item's results to what is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

EXTRACTS: dict[str, Callable[[Path], dict[str, Any]]] = {}
