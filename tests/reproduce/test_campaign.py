"""The campaign's queue reaches every run of every paper."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fedalloy.reproduce.catalogue import papers
from fedalloy.reproduce.plan import jobs

FILE = Path(__file__).parents[2] / "tools" / "campaign.py"


def queue() -> list[str]:
    spec = importlib.util.spec_from_file_location("campaign", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[str] = module.QUEUE
    return found


def test_every_run_is_reached_and_no_item_is_named_twice() -> None:
    names = queue()
    assert len(set(names)) == len(names)
    planned = {
        f"{paper.id} {item.id}": {job.key for job in jobs(item, "cpu")}
        for paper in papers().values()
        for item in paper.items
    }
    assert set(names) <= set(planned)
    reached = set().union(*(planned[name] for name in names))
    assert {name for name, keys in planned.items() if keys - reached} == set()
