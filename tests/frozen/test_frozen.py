"""Every frozen run gives today the numbers that it gave then, to the last bit; see `freeze.py`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for freeze and renames, which are no tests

import renames
from freeze import differing, flat, load, machine, run_case

FROZEN = load()
CASES = {case["id"]: case for case in FROZEN["cases"] if "numbers" in case and case["id"] not in renames.GONE}


@pytest.fixture(scope="module")
def same_arithmetic() -> None:
    here = machine()
    if here != FROZEN["machine"]:
        pytest.skip(f"frozen where torch's own arithmetic is another: {FROZEN['machine']}, here {here}")


@pytest.fixture(autouse=True)
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalloy.train.privacy.run_address", renames.old_address)


def _check(case: Mapping[str, Any], engine: str) -> None:
    if "privacy" in case["experiment"] and not all(map(importlib.util.find_spec, ("opacus", "dp_accounting"))):
        pytest.skip("needs fedalloy[privacy]")
    new = renames.translate(case)
    found = run_case(new["experiment"], engine, renames.old_state, renames.old_memory)
    frozen = renames.without(flat(new["numbers"]), renames.DROPPED)
    lines = differing(frozen, renames.without(flat(found), renames.ADDED))
    if lines:
        pytest.fail(f"{len(lines)} of {len(frozen)} numbers differ:\n" + "\n".join(lines[:40]), pytrace=False)


@pytest.mark.usefixtures("same_arithmetic")
@pytest.mark.parametrize("name", CASES)
def test_the_serial_engine_gives_the_frozen_numbers(name: str) -> None:
    _check(CASES[name], "serial")


@pytest.mark.usefixtures("same_arithmetic")
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case["pool"] and "privacy" not in case["experiment"]]
)
def test_the_pool_gives_the_frozen_numbers(name: str) -> None:
    _check(CASES[name], "pool")
