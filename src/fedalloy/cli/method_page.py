"""The page of one method in the terminal: its idea, its round, its options, what it costs, and what came out here."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, cast, get_args

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedalloy.base.options import Option, kind, options_of, sections_of, toml
from fedalloy.base.plugins import PREFIX, named
from fedalloy.check.steps import rounds_of
from fedalloy.federation.actions import WORDS
from fedalloy.federation.core import Method, quick
from fedalloy.federation.disclosure import evaluated
from fedalloy.methods import methods
from fedalloy.report.listing import NARROWEST, WIDEST, entry, needs, used

FOLLOWS = ("aggregation.weights", "cache.unseen")  # keys that a variant may change, though they are no options of it


def method_page(name: str, width: int = 80) -> Group:
    """All there is to say of one method.

    >>> len(method_page("fedavg").renderables) > 10
    True
    """
    room = min(max(width, NARROWEST), WIDEST)
    return Group(*_parts(methods[name], room))


def method_data(name: str) -> dict[str, Any]:
    """The same as data: its entry in the list, and its rounds."""
    told = [
        {"from": first, "steps": [{"action": step.action, "down": [*step.down], "up": [*step.up]} for step in steps]}
        for first, steps in rounds_of(quick(methods[name]))
    ]
    return {**entry("methods", name), "rounds": told}


def _parts(cls: type[Method], width: int) -> Iterator[RenderableType]:
    card = cls.card
    yield from _wrapped(f"{cls.label} ({cls.name}): {card.paper}", width, style="bold")
    yield from _wrapped(idea(cls), width)
    yield Text("\nA round", style="bold")
    yield from _round(cls, width)
    yield Text("\nWhat it needs and sends", style="bold")
    ways = {
        "Needs": "; ".join(needs(card)),
        "Learns": ", ".join(card.tasks),
        "Distils": card.distils,
        "A client remembers": card.remembers,
        "Leaves a client": f"{card.leaves_client}; in evaluation, counts of {evaluated(cls)} model (list --privacy)",
        "Uses of [aggregation]": used(cls),
    }
    for key, value in ways.items():
        yield from _wrapped(f"{key}: {value}", width, "  ", "    ")
    options = options_of(cls)
    yield Text("\nOptions: method.KEY=VALUE" if options else "\nIt has no options of its own.", style="bold")
    for option in options:
        yield from _option(option, width)
    if (table := _variants(cls)) is not None:
        yield Text("\nWhere the variants differ: method.variant=NAME", style="bold")
        yield table
    if lines := reproduced(cls.name):
        yield Text("\nWhat came out here", style="bold")
        for line in lines:
            yield from _wrapped(line, width, "  ", "  ")
    yield Text("\nTry it", style="bold")
    for line in commands(cls):
        yield Text(f"  {line}")
    yield Text("\nRead more", style="bold")
    for line in _sources(cls):
        yield from _wrapped(line, width, "  ", "    ")


def idea(cls: type[Method]) -> str:
    """The first two sentences of a method's description.

    >>> idea(methods["fedmd-global"])[:38]
    'FedMD with a model on the server, whic'
    """
    prose = re.split(r"^>>> ", inspect.getdoc(cls) or "", maxsplit=1, flags=re.MULTILINE)[0]
    text = " ".join(part.replace("\n", " ") for part in prose.strip().split("\n\n")[:2] if not part.startswith("1."))
    return " ".join(re.split(r"(?<=[.!?])\s+(?=[A-Z])", text)[:2])


def _round(cls: type[Method], width: int) -> Iterator[RenderableType]:
    """A round step by step, as it happens in a small federation."""
    yield from _wrapped(first_line(cls.round), width, "  ", "  ")
    try:
        told = rounds_of(quick(cls))
    except Exception as error:  # a method of the user's own may fail; `check` says more
        yield from _wrapped(
            f"(It cannot be shown: {named(error)}; try `fedalloy check {cls.name}`.)", width, "  ", "  "
        )
        return
    for place, (first, steps) in enumerate(told):
        if len(told) > 1:
            last = told[place + 1][0] - 1 if place + 1 < len(told) else None
            until = f"Round {first}" if last == first else f"From round {first} on" if last is None else ""
            yield Text(f"  {until or f'Rounds {first} to {last}'}:")
        if not steps:
            yield from _wrapped("Clients are not asked anything.", width, "    ", "    ")
        for number, step in enumerate(steps, start=1):
            does = first_line(getattr(cls, step.action))
            yield from _wrapped(f"{number}. {step.action}: {does}", width, "    ", "       ")
            yield from _wrapped(f"down: {travelling(step.down)}; up: {travelling(step.up)}", width, " " * 7, " " * 7)
    after = getattr(cls, "step", None)
    if after is not None and not after.__module__.startswith("fedalloy.knowledge"):
        yield from _wrapped(f"The server, then: {first_line(after)}", width, "    ", "       ")


def travelling(names: Mapping[str, bool]) -> str:
    """What travels, in words."""
    said = [f"{WORDS.get(name, name)}{'' if always else ' (some clients)'}" for name, always in names.items()]
    return ", ".join(said) or "nothing"


def _option(option: Option, width: int) -> Iterator[RenderableType]:
    """An option in two lines: its value and its limits, and its meaning."""
    yield from _wrapped(f"{option.name} = {toml(option.default)}  ({kind(option.hint)})", width, "  ", "      ")
    yield from _wrapped(option.meaning, width, "      ", "      ")


def _variants(cls: type[Method]) -> Table | None:
    """The options in which variants differ, with the value of each; None if there is nothing to show."""
    told = {option.name: (option.default, dict(option.variants)) for option in options_of(cls) if option.variants}
    told |= {key: (usual, values) for key in FOLLOWS for usual, values in [by_variant_of(cls, key)] if values}
    if not told:
        return None
    names = sorted({name for _, values in told.values() for name in values}, key=lambda name: (name != "paper", name))
    table = Table("variant", "recommended", *names, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for key, (usual, values) in told.items():
        table.add_row(f"  {key}", *(toml(values.get(name, usual)) for name in ("recommended", *names)))
    return table


def by_variant_of(cls: type[Method], key: str) -> tuple[Any, dict[str, Any]]:
    """A method's usual value of a section's key, and those of its variants that have another."""
    part, _, name = key.partition(".")
    words = [word for found in options_of(cls) if found.name == "variant" for word in get_args(found.hint)]
    if not words or part not in sections_of(cls):
        return None, {}
    usual, *others = [getattr(getattr(cast(Any, cls)(variant=word), part), name) for word in words]
    return usual, {word: value for word, value in zip(words[1:], others, strict=True) if value != usual}


def reproduced(name: str) -> list[str]:
    """How many claims of the method's paper came out here, if it is one of those that are reproduced."""
    from fedalloy.reproduce.catalogue import papers
    from fedalloy.reproduce.verdicts import counted, shipped

    if name not in papers():
        return []
    paper = papers()[name]
    claims = [claim for claim in paper.claims if not claim.ours]
    counts = counted(shipped(), claims)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return [f"Of {len(claims)} claims of its paper: {said}. `fedalloy reproduce {name}` shows each."]


def commands(cls: type[Method]) -> list[str]:
    """Commands that can be typed as they are."""
    public = " public=own" if cls.card.public else ""
    labelled = " public.labelled=true" if cls.card.public and _wants_labels(cls) else ""
    beside = ["fedavg"] if cls.name != "fedavg" else ["local-converged"]
    plugin = f" --plugin {file}" if (file := _plugin(cls)) else ""
    return [f"fedalloy compare --methods {','.join([*beside, cls.name])}{public}{labelled}{plugin}"]


def _wants_labels(cls: type[Method]) -> bool:
    return any(option.name == "ce_on" and option.default == "public" for option in options_of(cls))


def _sources(cls: type[Method]) -> list[str]:
    """Where there is more to read."""
    code = f"its code: {inspect.getfile(cls)}"
    return [code] if _plugin(cls) else [f"docs/methods/{cls.name}.md, and from there how its paper was read", code]


def _plugin(cls: type[Method]) -> str:
    """The file of a method of the user's own; empty for one that comes with fedalloy."""
    return str(inspect.getfile(cls)) if cls.__module__.startswith(PREFIX) else ""


def first_line(thing: object) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def _wrapped(text: str, width: int, first: str = "", rest: str = "", style: str = "") -> Iterator[Text]:
    for line in textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False):
        yield Text(line, style=style)
