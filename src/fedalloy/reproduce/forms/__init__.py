"""The forms of tables and figures: functions from an item's results to what is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from fedalloy.report.tables import Table
from fedalloy.reproduce.forms.figures import EXTRACTS, FIGURES
from fedalloy.reproduce.forms.tables import TABLES
from fedalloy.reproduce.results import Results

__all__ = ["EXTRACTS", "FORMS"]

FORMS: dict[str, Callable[[Results], Sequence[Table | Figure]]] = {**TABLES, **FIGURES}
