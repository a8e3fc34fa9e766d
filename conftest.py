"""For `tests` and the doctests of `src`: no result may depend on which tests ran before."""

from __future__ import annotations

import os

import pytest
import torch

SEED = int(os.environ.get("FEDALLOY_TEST_SEED", "0"))  # no test may need a certain one


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed torch's global stream, from which layers are initialised; `tests/test_streams.py` forbids other draws."""
    torch.manual_seed(SEED)
