"""The number of usable cores."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many cores this process may use.

    >>> usable_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
