"""How many cores there really are."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """How many cores this process may use.

    >>> usable_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
