"""A table of texts, and how it is written: for a terminal, as Markdown, CSV, LaTeX, HTML and JSON.

Equal tables give equal text.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, count, pairwise
from typing import Any, Literal, Protocol

from rich import box
from rich.console import Console
from rich.table import Table as Terminal
from rich.text import Text

from fedalloy.base.text import MISSING, printable
from fedalloy.errors import UsageError

WIDEST = 10_000  # characters of a line of text
# What LaTeX reads as a command, and signs that its plain fonts lack. A bracket or a star at the start of a line would
# be read as an argument of the line before it.
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "[": "{[}", "]": "{]}",
    "*": "{*}", '"': "''", "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "–": "--", "—": "---", "…": r"\dots{}",  # noqa: RUF001
    "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "→": r"$\to$", "†": r"\dag{}", "‡": r"\ddag{}",
    "·": r"$\cdot$", "²": "$^2$", "³": "$^3$", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$",  # noqa: RUF001
    "δ": r"$\delta$", "ε": r"$\varepsilon$", "λ": r"$\lambda$", "μ": r"$\mu$", "ρ": r"$\rho$", "σ": r"$\sigma$",  # noqa: RUF001
    "τ": r"$\tau$", "ω": r"$\omega$",
}  # fmt: skip
NEGATIVE = re.compile(r"(?<![\w.)-])-(?=\d)")  # a minus sign, not a hyphen
OPENING = re.compile(r'(?<![^\s(])"(?=\S)')  # a quotation mark before a word
MARKED = re.compile(r"([\\|*_`<>\[\]])")  # what Markdown reads as markup


@dataclass(frozen=True)
class Table:
    """A table as text: columns of words first, then those of numbers, which are aligned at the right.

    >>> rows = [("FedAvg", "50.1", "50.41 ± 1.91")]
    >>> table = Table("Accuracy", ("Method", "ours", "paper"), rows, groups=[("", 1), ("0.1", 2)])
    >>> print(table.markdown(), end="")
    **Accuracy**
    <BLANKLINE>
    | Method | 0.1: ours | 0.1: paper |
    | :-- | --: | --: |
    | FedAvg | 50.1 | 50.41 ± 1.91 |
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    words: int = 1  # how many of the first columns hold words
    rules: Sequence[int] = ()  # the indices of rows that are followed by a line
    groups: Sequence[tuple[str, int]] = ()  # headings over the headings: their text and how many columns they span
    aside: bool = False  # belongs to another table: on pages and in files, but not in a terminal
    links: Sequence[str] = ()  # where the first cell of each row leads to, on pages
    best: Collection[tuple[int, int]] = ()  # row and column of each cell that is marked as the best

    def __post_init__(self) -> None:
        width = len(self.headings)
        if self.groups and sum(span for _, span in self.groups) != width:
            raise UsageError(f"the groups of '{self.title}' do not span its {width} columns; give each column one")
        for row in self.rows:
            if len(row) != width:
                raise UsageError(f"a row of '{self.title}' has {len(row)} cells, but there are {width} headings: {row}")
        if self.links and len(self.links) != len(self.rows):
            raise UsageError(f"'{self.title}' has {len(self.links)} links for {len(self.rows)} rows; give each row one")

    @property
    def flat(self) -> list[str]:
        """One heading for each column, which begins with that of its group."""
        above = [text for text, span in self.groups for _ in range(span)] or [""] * len(self.headings)
        return [": ".join(filter(None, pair)) for pair in zip(above, self.headings, strict=True)]

    def fitted(self, width: int) -> list[Table]:
        """The same table in parts, by groups of columns, so that each fits into a terminal of this width.

        >>> wide = Table("Accuracy", ("", "a", "b"), [("x", "1" * 30, "2" * 30)], groups=[("", 1), ("A", 1), ("B", 1)])
        >>> [part.headings for part in wide.fitted(80)], [part.headings for part in wide.fitted(50)]
        ([['', 'a', 'b']], [['', 'a'], ['', 'b']])
        """
        texts = [[*column, heading] for heading, *column in zip(self.headings, *self.rows, strict=True)]
        widths = [max(map(len, column)) + 2 for column in texts]
        first, fixed = self.groups[:1], sum(widths[: self.words])
        if len(self.groups) < 3 or first[0][1] != self.words:
            return [self]
        parts: list[tuple[list[int], list[tuple[str, int]]]] = []
        place, room = self.words, 0
        for text, span in self.groups[1:]:
            needed = max(sum(widths[place : place + span]), len(text) + 2)
            if not parts or needed > room:
                parts.append(([*range(self.words)], list(first)))
                room = width - fixed
            parts[-1][0].extend(range(place, place + span))
            parts[-1][1].append((text, span))
            place, room = place + span, room - needed
        return [
            replace(
                self,
                headings=[self.headings[i] for i in chosen],
                rows=[[row[i] for i in chosen] for row in self.rows],
                groups=groups,
                best=[(row, chosen.index(column)) for row, column in self.best if column in chosen],
                title=self.title if not number else f"{self.title}, continued",
                notes=self.notes if number == len(parts) - 1 else (),
            )
            for number, (chosen, groups) in enumerate(parts)
        ]

    def __str__(self) -> str:
        """As text of its natural width, in which two stars on both sides mark the best, as in Markdown."""
        rows = [list(row) for row in self.rows]
        for row, column in self.best:
            rows[row][column] = f"**{rows[row][column]}**"
        file = io.StringIO()
        Console(file=file, width=WIDEST, color_system=None).print(replace(self, rows=rows, best=(), notes=()).rich())
        lines = [line.rstrip() for line in file.getvalue().rstrip().split("\n")]
        return "\n".join([*lines, *map(printable, self.notes)])

    def rich(self) -> Terminal:
        """For a terminal; on a narrow one cells wrap, so that no digit is hidden."""
        table = Terminal(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        if self.title:
            table.title, table.title_justify, table.title_style = Text(printable(self.title)), "left", ""
        if self.notes:
            notes = "\n".join(printable(note) for note in self.notes)
            table.caption, table.caption_justify = Text(notes, style="dim"), "left"
        above = [part for text, span in self.groups for part in (text, *[""] * (span - 1))]
        for i, heading in enumerate(self.headings):
            lines = [*([above[i]] if self.groups else []), *heading.split("\n")]
            justify: Literal["left", "right"] = "left" if i < self.words else "right"
            table.add_column(Text("\n".join(map(printable, lines))), justify=justify, overflow="fold")
        for number, row in enumerate(self.rows):
            texts = (Text(printable(text), "bold" if self._is_best(number, i) else "") for i, text in enumerate(row))
            table.add_row(*texts, end_section=number in self.rules)
        return table

    def markdown(self) -> str:
        """For a page in Markdown; groups are written into the headings of their columns."""
        sides = [":--" if i < self.words else "--:" for i in range(len(self.headings))]
        lines = [[_marked(text) for text in line] for line in (self.flat, *self.rows)]
        for row, column in self.best:
            lines[1 + row][column] = f"**{lines[1 + row][column]}**"
        for line, link in zip(lines[1:], self.links, strict=False):
            line[0] = f"[{line[0]}]({link})" if link else line[0]
        table = [f"| {' | '.join(line)} |" for line in (lines[0], sides, *lines[1:])]
        notes = ["", *(f"- {_marked(note)}" for note in self.notes)] if self.notes else []
        title = [f"**{_marked(self.title)}**", ""] if self.title else []
        return "\n".join([*title, *table, *notes]) + "\n"

    def csv(self) -> str:
        """For a spreadsheet: one line of headings and the rows; a missing value is empty."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.flat)
        writer.writerows([["" if text == MISSING else text for text in row] for row in self.rows])
        return file.getvalue()

    def parts(self) -> dict[str, Any]:
        """All parts of the table as they are, for a program; `best` has the place of each marked cell."""
        return {
            "title": self.title,
            "headings": list(self.headings),
            "rows": [list(row) for row in self.rows],
            "notes": list(self.notes),
            "groups": [{"heading": text, "columns": span} for text, span in self.groups],
            "best": [{"row": row, "column": column} for row, column in sorted(self.best)],
        }

    def json(self) -> str:
        """All parts of the table as JSON."""
        return json.dumps(self.parts(), ensure_ascii=False, indent=1) + "\n"

    def latex(self) -> str:
        r"""For a paper: a `table` environment that needs `\usepackage{booktabs}`."""
        body = [f"    {line}" for line in self._latex_lines()]
        notes = [rf"  \par\smallskip\footnotesize {_latex(note)}" for note in self.notes]
        sides = "l" * self.words + "r" * (len(self.headings) - self.words)
        return (
            "\n".join(
                [
                    r"\begin{table}",
                    r"  \centering",
                    *([rf"  \caption{{{_latex(self.title)}}}"] if self.title else []),
                    rf"  \begin{{tabular}}{{@{{}}{sides}@{{}}}}",
                    *body,
                    r"  \end{tabular}",
                    *notes,
                    r"\end{table}",
                ]
            )
            + "\n"
        )

    def html(self) -> str:
        """For a page: a fragment in which all texts are escaped; each line in the table begins a new `tbody`."""
        caption = [f"<caption>{_html(self.title)}</caption>"] if self.title else []
        lines = ["<table>", *caption, "<thead>"]
        if self.groups:
            lines.append(f"<tr>{''.join(_html_group(text, span) for text, span in self.groups)}</tr>")
        headings = [f'<th scope="col"{self._word(i)}>{_html(text)}</th>' for i, text in enumerate(self.headings)]
        lines += [f"<tr>{''.join(headings)}</tr>", "</thead>"]
        links, numbers = iter(self.links), count()
        for part in self._bodies():
            lines.append("<tbody>")
            for (first, *others), number in zip(part, numbers, strict=False):
                cells = [f"<td{self._kind(number, i)}>{_html(text)}</td>" for i, text in enumerate(others, start=1)]
                name = f'<a href="{_html(link)}">{_html(first)}</a>' if (link := next(links, "")) else _html(first)
                lines.append(f'<tr><th scope="row"{self._word(0)}>{name}</th>{"".join(cells)}</tr>')
            lines.append("</tbody>")
        lines += ["</table>", *(f'<p class="note">{_html(note)}</p>' for note in self.notes)]
        return "\n".join(lines) + "\n"

    _repr_html_ = html  # in a notebook

    def _latex_lines(self) -> Iterator[str]:
        yield r"\toprule"
        if self.groups:
            yield " & ".join(rf"\multicolumn{{{span}}}{{c}}{{{_latex(text)}}}" for text, span in self.groups) + r" \\"
            ends = accumulate(span for _, span in self.groups)
            parts = [(end - span + 1, end) for (text, span), end in zip(self.groups, ends, strict=True) if text]
            yield " ".join(rf"\cmidrule(lr){{{first}-{last}}}" for first, last in parts)
        yield " & ".join(map(_latex, self.headings)) + r" \\"
        yield r"\midrule"
        for number, row in enumerate(self.rows):
            yield (
                " & ".join(
                    rf"\textbf{{{_latex(text)}}}" if self._is_best(number, i) else _latex(text)
                    for i, text in enumerate(row)
                )
                + r" \\"
            )
            if number in self.rules and number + 1 < len(self.rows):
                yield r"\midrule"
        yield r"\bottomrule"

    def _is_best(self, row: int, column: int) -> bool:
        return (row, column) in self.best

    def _kind(self, row: int, column: int) -> str:
        """The class of a cell, of which the best have their own."""
        return ' class="best"' if self._is_best(row, column) else self._word(column)

    def _bodies(self) -> list[Sequence[Sequence[str]]]:
        """The rows between two lines."""
        inner = sorted(number + 1 for number in self.rules if number + 1 < len(self.rows))
        return [self.rows[a:b] for a, b in pairwise([0, *inner, len(self.rows)])]

    def _word(self, column: int) -> str:
        """The class of a cell: of a column of words, or of the first column of a group."""
        starts = accumulate(span for _, span in self.groups)
        return ' class="word"' if column < self.words else ' class="first"' if column in starts else ""


class Texts(Protocol):
    """Any other table of texts."""

    @property
    def title(self) -> str:
        """What stands above the table."""

    @property
    def headings(self) -> Sequence[str]:
        """One for each column."""

    @property
    def body(self) -> Sequence[Sequence[str]]:
        """The lines."""

    @property
    def notes(self) -> Sequence[str]:
        """What stands below."""


def parts_of(one: Texts) -> dict[str, Any]:
    """All parts of a table of texts, under the same names as those of a `Table`."""
    return Table(one.title, one.headings, one.body, one.notes).parts()


def _marked(text: str) -> str:
    return MARKED.sub(r"\\\1", " ".join(printable(text).split()))


def _latex(text: str) -> str:
    plain = NEGATIVE.sub("−", OPENING.sub("``", " ".join(printable(text).split())))  # noqa: RUF001
    return "".join(LATEX.get(sign, sign) for sign in plain)


def _html(text: str) -> str:
    return escape(printable(text))


def _html_group(text: str, span: int) -> str:
    return f'<th scope="colgroup" colspan="{span}">{_html(text)}</th>' if text else f'<td colspan="{span}"></td>'
