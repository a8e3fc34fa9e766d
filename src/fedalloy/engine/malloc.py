"""Keep glibc from returning memory to the kernel at every step; does nothing on other systems."""

from __future__ import annotations

import ctypes

_SETTINGS = {-3: 1 << 30, -1: 2**31 - 1, -2: 64 << 20}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD


def tune_malloc() -> bool:
    """Tell glibc to keep freed memory; return whether this worked."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        return all(libc.mallopt(option, value) == 1 for option, value in _SETTINGS.items())
    except (OSError, AttributeError):
        return False
