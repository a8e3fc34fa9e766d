"""KDIA's tables, figures and claims as data."""

from __future__ import annotations

import pytest

from fedalloy.reproduce.catalogue import SCALES, Item, paper
from fedalloy.reproduce.plan import jobs

KDIA = paper("kdia")
RUN = [item for item in KDIA.items if item.rows]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("item", RUN, ids=lambda item: item.id)
def test_every_item_plans_its_runs(item: Item, scale: str) -> None:
    planned = jobs(item, scale)
    assert planned and all(job.key for job in planned)
    assert {job.method for job in planned} == {row.method for row in item.rows}
