"""Clients' gains as two small tables: a summary for each method, and each client with the leading method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from fedalloy.base.text import MISSING, all_shortened, number, shortened
from fedalloy.report.gains import Gains, leading
from fedalloy.storage.rows import Leads

ALL, ENDS = 30, 10  # how many clients a terminal lists; if there are more, how many from either end


@dataclass(frozen=True)
class Listing:
    """A table as text: title, headings, lines (words first, then numbers), and a note."""

    title: str
    headings: Sequence[str]
    body: Sequence[Sequence[str]]
    words: int  # how many columns hold words
    note: str

    @property
    def notes(self) -> Sequence[str]:
        """The note, if there is one, as other tables have it."""
        return [self.note] if self.note else []

    def table(self) -> Table:
        """For a terminal."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
        table.title, table.title_style = Text(self.title), ""
        table.caption, table.caption_justify = Text(self.note, style="dim"), "left"
        for i, heading in enumerate(self.headings):
            if i < self.words:
                table.add_column(heading, overflow="fold")  # on a narrow terminal words wrap, numbers never
            else:
                above = heading.replace("Over ", "Over\n")  # long names must leave room for those of the clients
                table.add_column(above, justify="right", no_wrap=True, overflow="ellipsis")
        for line in self.body:
            table.add_row(*map(Text, line))
        return table


def summary(found: Sequence[Gains]) -> Listing:
    """One line for each method and reference: how many clients gain and lose, and by how much."""
    shown = all_shortened(name for one in found for name in (one.name, one.reference))
    body = [
        [
            *(shown[one.name], shown[one.reference]),
            *(_counted(one, side) for side in (one.gaining, one.losing)),
            *(signed(float(measure(one.points))) for measure in (np.median, np.min, np.max)),
        ]
        for one in found
    ]
    return Listing(
        f"Gains of the clients, in percentage points of {(found[0].leads if found else Leads()).score}",
        ("Method", "Over", "Gain", "Lose", "Median", "Lowest", "Highest"),
        body,
        words=2,
        note="In parentheses: those by more than two standard errors.",
    )


def each_client(found: Sequence[Gains], most: int | None = None) -> Listing:
    """One line for each client with the leading method, largest loss first; beyond `most`, ten from either end."""
    both = leading(found)
    first = both[0]
    spread = bool(np.isfinite(first.spread).any())
    order = np.argsort(first.points, kind="stable").tolist()
    shown = all_shortened(first.clients)
    places = [dict(zip(one.clients, range(len(one.clients)), strict=True)) for one in both]
    body = [
        [
            shown[first.clients[k]],
            *([first.networks[k]] if first.networks else []),
            *(_cell(one, place.get(first.clients[k])) for one, place in zip(both, places, strict=True)),
            *([number(first.spread[k], 1)] if spread else []),
            number(first.accuracy[k], 1),
            number(first.train[k], 0),
        ]
        for k in order
    ]
    note = "± is one standard error, from the size of the client's test"
    note += " and the spread over seeds." if first.seeds > first.splits else "."
    if most is not None and len(body) > most:
        body[ENDS:-ENDS] = [["…"] * len(body[0])]
        note = f"The {ENDS} largest losses and the {ENDS} largest gains of {len(order)} clients. {note}"
    if spread:
        note += f" SD is the standard deviation of the gain over {shortened(first.reference)} over {first.seeds} seeds."
    headings = (
        *("Client", *(["Network"] if first.networks else [])),
        *(f"Over {shortened(one.reference)}" for one in both),
        *(["SD"] if spread else []),
        *(f"{_capital(first.leads.score)} %", "Trained on"),
    )
    words = 2 if first.networks else 1
    return Listing(f"Each client with {shortened(first.name)}", headings, body, words=words, note=note)


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def who_gains(one: Gains) -> str:
    """Whether small or large clients gain; empty if all gain or all lose, or if sizes are unknown."""
    sizes = [one.train[side] for side in (one.gaining, one.losing)]
    if not all(len(side) and np.isfinite(side).all() for side in sizes):
        return ""
    gain, lose = (f"{np.median(side):,.0f}" for side in sizes)
    return f"Clients that gain over {one.reference} hold a median of {gain} training samples, those that lose {lose}."


def signed(points: float) -> str:
    """A gain with its sign; zero has none.

    >>> signed(2.41), signed(-0.3), signed(0.001)
    ('+2.4', '-0.3', '0.0')
    """
    text = number(points, 1)
    return f"+{text}" if float(text) > 0 else text


def _counted(one: Gains, side: Sequence[int]) -> str:
    return f"{len(side)} ({one.clear[side].sum()})"


def _cell(one: Gains, place: int | None) -> str:
    return MISSING if place is None else f"{signed(one.points[place])} ± {number(one.errors[place], 1)}"
