"""The advice as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedalloy import __version__
from fedalloy.advise.advice import Advice
from fedalloy.base.text import human_seconds
from fedalloy.report.client_charts import gain_chart
from fedalloy.report.page import written


def page(
    advised: Advice,
    commands: Mapping[str, Sequence[str]],
    *,
    title: str,
    seconds: float,
    seeds: Sequence[int],
    rounds: int,
    report: str = "report.html",
) -> str:
    """Return the page as text; `report` is the address of the full comparison."""
    return written(
        "fedalloy.advise",
        "page.html.j2",
        title=title,
        advised=advised,
        gains=gain_chart(advised.found, "gains-table") if advised.found else None,
        commands=commands,
        seconds=human_seconds(seconds),
        seeds=", ".join(map(str, seeds)),
        rounds=rounds,
        report=report,
        version=__version__,
    )
