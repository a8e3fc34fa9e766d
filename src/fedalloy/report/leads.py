"""How far each method is from the best one: paired differences over seeds, beside the spread between clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedalloy.base.text import MISSING, all_shortened, number, series_names
from fedalloy.federation.metrics import METRICS, heading_of
from fedalloy.report.marks import Difference, differences
from fedalloy.report.table import contenders
from fedalloy.report.tables import Table
from fedalloy.report.trained import Doubts
from fedalloy.storage.rows import CombinedRow, Row, agreed, combine

RECORD = (
    *("metric", "better", "worse", "seeds", "lead", "low", "high"),
    *("p", "p_holm", "improvement", "beyond_noise"),
)


@dataclass(frozen=True)
class Rivals:
    """The lines that compete in one metric, best first, with the difference between each two of them by name.

    `apart[a, b]` is how far a is better than b: a positive mean favours a, also if lower values are better.
    """

    metric: str
    heading: str
    factor: float  # for differences as a table shows them
    lines: Mapping[str, CombinedRow]
    apart: Mapping[tuple[str, str], Difference]

    @property
    def seeds(self) -> int:
        """The largest number of seeds of a line."""
        return max((len(line.seeds) for line in self.lines.values()), default=0)


def rivals(
    rows: Iterable[Row], names: Mapping[str, str] | None = None, doubts: Doubts | None = None, metric: str = ""
) -> Rivals:
    """The lines of one selection that compete in a metric, by default the first of the comparison's table."""
    rows = list(rows)
    leading, lines = agreed(row.leads for row in rows), combine(rows)
    metric = metric or leading.first
    known = METRICS[metric]
    sign = -1.0 if known.better == "low" else 1.0
    competing = [lines[i] for i in contenders(lines, names, doubts) if _finite(lines[i].each(metric))]
    competing.sort(key=lambda line: sign * _mean(line, metric), reverse=True)
    titles = series_names((line.label, line.view) for line in lines)
    short = all_shortened(titles.values())
    keys = [short[titles[line.label, line.view]] for line in competing]
    found = differences([{seed: sign * value for seed, value in line.each(metric).items()} for line in competing])
    return Rivals(
        metric,
        heading_of(metric, leading.task),
        known.factor,
        dict(zip(keys, competing, strict=True)),
        {(keys[a], keys[b]): one for (a, b), one in found.items()},
    )


def leads_table(found: Rivals) -> Table | None:
    """The lead of the best line over each other one; None with a single seed or a single line.

    Beside each lead stands the spread between the line's clients, which the seeds do not show.
    """
    if found.seeds < 2 or len(found.lines) < 2:
        return None
    best, *others = found.lines
    body = [
        (
            name,
            *_told(found.apart.get((best, name)), found.factor),
            _between_clients(found.lines[name]),
        )
        for name in others
    ]
    notes = [
        f"Differences are paired by seed; intervals are Student's t without correction; p is that of a paired t-test "
        f"after Holm's correction for {len(found.apart)} pair{'' if len(found.apart) == 1 else 's'}.",
        "P(better): how often a run of the best has a better value than a run of the line. Clients: the standard "
        f"deviation of accuracy between clients, mean over seeds; that of {best} is "
        f"{_between_clients(found.lines[best])}.",
    ]
    return Table(
        f"Lead of {best} over each other line, {found.heading}, over {found.seeds} seeds",
        ("Over", "Lead", "95 % interval", "p", "P(better)", "Clients"),
        body,
        notes,
    )


def records(found: Rivals) -> list[dict[str, str | float | bool | None]]:
    """One flat record for each pair of lines, the better one first, for JSON or a data frame."""
    return [
        dict(
            zip(
                RECORD,
                (
                    *(found.metric, better, worse, one.interval.n),
                    *map(_plain, (one.interval.mean, one.interval.low, one.interval.high, one.p, one.adjusted)),
                    *(one.improvement, one.beyond_noise),
                ),
                strict=True,
            )
        )
        for (better, worse), one in found.apart.items()
    ]


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _told(one: Difference | None, factor: float) -> tuple[str, str, str, str]:
    if one is None:  # no common seed
        return MISSING, MISSING, MISSING, MISSING
    low, mean, high = (number(factor * x) for x in (one.interval.low, one.interval.mean, one.interval.high))
    interval = MISSING if MISSING in (low, high) else f"{low} to {high}"
    return mean, interval, _p(one.adjusted), number(one.improvement)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else number(value, 3)


def _between_clients(line: CombinedRow) -> str:
    fairness = list(line.each("fm").values())
    return number(100 * math.fsum(map(math.sqrt, fairness)) / len(fairness)) if fairness else MISSING


def _mean(line: CombinedRow, metric: str) -> float:
    values = line.each(metric).values()
    return math.fsum(values) / len(values)


def _finite(values: Mapping[int, float]) -> bool:
    return bool(values) and all(map(math.isfinite, values.values()))
