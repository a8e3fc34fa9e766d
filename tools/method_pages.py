"""One page for each method, docs/methods/NAME.md, from its card, docstrings, options, code and results."""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from method_options import PAPERS, Compared, options_table, table

from fedalloy.base.options import options_of
from fedalloy.base.text import listed
from fedalloy.check.steps import rounds_of
from fedalloy.cli.method_page import commands, first_line, reproduced, travelling
from fedalloy.federation.core import Method, quick
from fedalloy.federation.disclosure import evaluated
from fedalloy.report.listing import needs, used

ROOT = Path(__file__).parents[1]
READINGS = ROOT / "docs" / "readings"
PLACE = re.compile(r"\b(Eqs?\.|Algorithm \d|Theorem|Lemma|[Ll]ines? \d)")  # a place in a paper
UNREAD = re.compile(r"full\s+text\s+(was|is|could)\s+not")
SHARED = ("fedalloy.knowledge.", "fedalloy.aggregation.")  # packages of equations that methods import


def method_page(name: str, cls: type[Method], runs: Sequence[Compared]) -> str:
    """The page of one method."""
    file = Path(inspect.getfile(cls)).relative_to(ROOT / "src").as_posix()
    parts = [
        f"# {cls.label}",
        "<!-- Made by tools/make_docs.py from the method's card, docstrings and options; edit those instead. -->",
        f"{_sentence(cls.card.paper)} In the terminal: `fedalloy list {name}`.",
        prose(cls),
        "## A round",
        *round_parts(cls),
        "## What it needs and sends",
        facts(cls),
    ]
    if found := options_table(cls, runs):
        parts += ["## Options", "[What the columns mean](../methods.md#options).", found]
    if told := reproduced(name):
        page = f"[Every claim, table and figure](../reproduction/{name}.md)."
        parts += ["## What came out here", " ".join([*told, page])]
    parts += ["## The code"]
    if rows := places(cls):
        parts += [
            "What the paper writes, and the lines that do it:",
            table(("In the paper", "In the code", "File"), rows),
        ]
    parts += [
        f"[{file}](../../src/{file}):",
        f"```{{literalinclude}} ../../src/{file}\n:language: python\n:start-at: '@method('\n```",
    ]
    return "\n\n".join([*parts, "## Read more", *more(name, cls, runs)]) + "\n"


def prose(cls: type[Method]) -> str:
    """What a method's docstring says, without its doctest."""
    return re.split(r"^>>> ", inspect.getdoc(cls) or "", maxsplit=1, flags=re.MULTILINE)[0].strip()


def round_parts(cls: type[Method]) -> Iterator[str]:
    """A round step by step: what clients are asked, and what travels, as seen in a small federation."""
    yield first_line(cls.round)
    told = rounds_of(quick(cls))
    for place, (first, steps) in enumerate(told):
        if len(told) > 1:
            last = told[place + 1][0] - 1 if place + 1 < len(told) else None
            yield (
                f"From round {first} on:"
                if last is None
                else f"Round {first}:"
                if last == first
                else f"Rounds {first} to {last}:"
            )
        if not steps:
            yield "Clients are not asked anything."
        else:
            yield "\n".join(
                f"{number}. `{step.action}`: {first_line(getattr(cls, step.action))}<br>"
                f"Down: {travelling(step.down)}. Up: {travelling(step.up)}."
                for number, step in enumerate(steps, start=1)
            )
    after = getattr(cls, "step", None)
    if after is not None and not after.__module__.startswith("fedalloy.knowledge"):
        yield f"The server, then: {first_line(after)}"


def facts(cls: type[Method]) -> str:
    """What a method needs, and what it sends, from its card."""
    card = cls.card
    said = {
        "Needs": "; ".join(needs(card)),
        "Learns": ", ".join(card.tasks),
        "Distils": card.distils,
        "Up": card.up,
        "Down": card.down,
        "What leaves a client": card.leaves_client,
        "In evaluation": f"[counts](../deploy.md#what-evaluation-sends) of {evaluated(cls)} model",
        "What a client remembers between rounds": card.remembers,
        "What it uses of [[aggregation]](../experiments.md#aggregation)": used(cls),
    }
    return "\n".join(f"* {key}: {value}." for key, value in said.items())


def _compared_by(cls: type[Method], runs: Sequence[Compared]) -> list[str]:
    """The papers that compared a method with their own."""
    words = [word for found in options_of(cls) for word in found.variants if word in PAPERS]
    return list(dict.fromkeys([*(run.paper for run in runs), *(PAPERS[word] for word in words)]))


def places(cls: type[Method]) -> list[list[str]]:
    """The equations and lines of the paper that the code names: in the method's classes, and in what they import."""
    rows: dict[tuple[str, ...], None] = {}
    for thing in [*_classes(cls), *_imported(cls)]:
        file = Path(inspect.getfile(thing)).relative_to(ROOT / "src").as_posix()
        link = f"[{Path(file).name}](../../src/{file})"
        rows |= {(place, code, link): None for place, code in named_places(inspect.getsource(thing))}
    return [list(row) for row in rows]


def named_places(source: str) -> Iterator[tuple[str, str]]:
    """Places in a paper that code names: in comments, with the line, and in docstrings, with what the function does."""
    source = textwrap.dedent(source)
    found: list[tuple[int, str, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and (doc := ast.get_docstring(node)):
            for place in re.findall(r"\(([^()]+)\)", first_sentence := doc.split("\n")[0]):
                if PLACE.search(place):
                    found.append((node.lineno, place, f"`{node.name}`: {first_sentence.replace(f' ({place})', '')}"))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        code = token.line[: token.start[1]].strip()
        if token.type == tokenize.COMMENT and code and PLACE.match(text):
            found.append((token.start[0], text, f"`{code}`"))
    yield from ((place, code) for _, place, code in sorted(found, key=lambda each: each[0]))


def _classes(cls: type[Method]) -> list[type]:
    """A method and the methods and parts that it is made of."""
    return [each for each in cls.__mro__ if each.__module__.startswith(("fedalloy.methods.", *SHARED))]


def _imported(cls: type[Method]) -> list[object]:
    """The functions of equations that a method's file uses by name."""
    names = vars(sys.modules[cls.__module__]).values()
    return [each for each in names if inspect.isfunction(each) and each.__module__.startswith(SHARED)]


def more(name: str, cls: type[Method], runs: Sequence[Compared]) -> Iterator[str]:
    """Where there is more to read, and a command to try."""
    readings = READINGS / f"{name}.md"
    if readings.exists():
        yield f"[Readings and differences](../readings/{name}.md): what the paper and its code say, and what we chose."
        if UNREAD.search(readings.read_text(encoding="utf-8")) and not UNREAD.search(prose(cls)):
            yield "The full text of its paper was not at hand."
    if papers := _compared_by(cls, runs):
        yield f"Compared by {listed(papers)}."
    yield "\n".join(["```", *commands(cls), "```"])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
