"""The advice as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from fedalloy import __version__
from fedalloy.advise.advice import Advice
from fedalloy.base.text import human_seconds
from fedalloy.report.gains_plot import gain_picture
from fedalloy.report.html import SPOKEN, UNFIT, both_widths


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
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("fedalloy.advise", "."), PackageLoader("fedalloy.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = None
    if advised.found:
        drawn = both_widths(lambda width: gain_picture(advised.found, width=width), "gains", SPOKEN["gains"])
    text = environment.get_template("page.html.j2").render(
        title=title,
        advised=advised,
        gains=drawn,
        commands=commands,
        seconds=human_seconds(seconds),
        seeds=", ".join(map(str, seeds)),
        rounds=rounds,
        report=report,
        version=__version__,
    )
    return UNFIT.sub("?", text)
