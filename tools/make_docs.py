"""Write docs/methods.md, and the tables in docs/experiments.md and docs/metrics.md, from the code they describe.

Run it from the project's root: `python tools/make_docs.py`. The same code gives the same pages; only what comes with
fedalloy is described. Options come from their declarations; one without a meaning is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.options import kind, options_of, toml
from fedalloy.config.sections import DataPart, Experiment, PartitionPart, PublicPart, Stop
from fedalloy.data import NORMALISATIONS, datasets, files
from fedalloy.data.partition import partitions
from fedalloy.federation.core import Method
from fedalloy.federation.metrics import METRICS
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.methods import methods
from fedalloy.nets.architectures import Budget, ModelPart
from fedalloy.nets.models import models
from fedalloy.report.listing import used
from fedalloy.train.fit import LocalWork
from fedalloy.train.privacy import Privacy

DOCS = Path(__file__).parents[1] / "docs"

SECTIONS = {
    "top": Experiment,
    "data": DataPart,
    "partition": PartitionPart,
    "training": LocalWork,
    "participation": Participation,
    "quorum": Quorum,
    "aggregation": Aggregation,
    "cache": Cache,
    "privacy": Privacy,
    "public": PublicPart,
    "models": ModelPart,
    "budget": Budget,
    "stop": Stop,
}


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Every generated page as it should be."""
    filled = [DOCS / "experiments.md", DOCS / "metrics.md"]
    return {
        DOCS / "methods.md": methods_page(),
        **{page: with_tables(page.read_text(encoding="utf-8")) for page in filled},
    }


def with_tables(text: str) -> str:
    """A page with the tables between its markers made anew."""
    makers: dict[str, Callable[[], str]] = {
        **{f"keys of {section}": lambda cls=cls: keys_table(cls) for section, cls in SECTIONS.items()},  # type: ignore[misc]
        "partitions": partitions_table,
        "models": models_table,
        "data sets": datasets_table,
        "files": files_table,
        "metrics": metrics_table,
    }

    def fill(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n\n{makers[found[1]]()}\n\n<!-- end of table -->"

    return re.sub(r"<!-- table: (.+?) -->.*?<!-- end of table -->", fill, text, flags=re.DOTALL)


def methods_page() -> str:
    """The page about methods: one table of all cards, then what each docstring says."""
    shown = {name: cls for name, cls in methods.items() if ours(cls)}
    heading = (
        "Method",
        "Paper",
        "Up",
        "Down",
        "What leaves a client",
        "Distils",
        "Public set",
        "Any network",
        "Options",
    )
    lines = [
        [
            f"[`{name}`](#{name})",
            card.paper,
            card.up,
            card.down,
            card.leaves_client,
            card.distils,
            yes(card.public),
            yes(card.any_network),
            ", ".join(f"`{found.name}`" for found in options_of(cls)) or "none",
        ]
        for name, cls in shown.items()
        for card in [cls.card]
    ]
    return "\n\n".join([INTRODUCTION, table(heading, lines), *(section(n, c) for n, c in shown.items())]) + "\n"


INTRODUCTION = """\
# Methods

<!-- Made by tools/make_docs.py from the methods' cards and docstrings; edit those instead. -->

Each method is one file in [src/fedalloy/methods](../src/fedalloy/methods). `fedalloy list` shows them all,
`fedalloy list kdia` shows one with its options, and `fedalloy list --where any_network=yes` shows only the methods that
let clients have different networks. For a text entry, `yes` means that it is not empty, `no` that it is empty, and any
other word is a substring search. "Up" and "down" say what travels in a round, to the server and to a client; the bytes
of a run are counted, see [metrics](metrics.md#costs). "What leaves a client" is what training sends. Evaluation also
sends counts, even under `local`: `fedalloy list --privacy` and [deploy.md](deploy.md#what-evaluation-sends) say which.
"Public set" says whether the experiment needs one ([how to give it](experiments.md#a-public-set)).

Options are keys of `[method]`, or of the method's own table under `[methods]`.

"The code" is a paper's public code, "the paper" its text. Of MOON, FedGen, FedGKD, FedDisco and FedCOG the full text
was not at hand; what is said of these papers comes from their code and from papers that cite them. Where a description
says that something is left out or has no option, a paper's setting that needs it cannot be run."""


def section(name: str, cls: type[Method]) -> str:
    """What a method's docstring says, without its doctest, and its options with their meanings."""
    prose = re.split(r"^>>> ", inspect.getdoc(cls) or "", maxsplit=1, flags=re.MULTILINE)[0].strip()
    remembers = f"Between rounds a client remembers: {cls.card.remembers}."
    readings = DOCS / "readings" / f"{name}.md"
    more = [f"[Readings and differences](readings/{name}.md)"] if readings.exists() else []
    rule = f"Of [[aggregation]](experiments.md#aggregation) it uses {used(cls)}."
    parts = [f"## {name}", f"**{cls.label}.** {prose}", remembers, rule, *more]
    return "\n\n".join([*parts, options_table(cls)] if options_of(cls) else parts)


def options_table(cls: type[Method]) -> str:
    """A method's options: meaning, values, default, and the defaults of its variants."""
    options = options_of(cls)
    missing = [found.name for found in options if not found.meaning]
    if missing:
        raise SystemExit(f"{cls.name}.{missing[0]} has no meaning; declare it with option(...)")
    variants = list(dict.fromkeys(variant for found in options for variant in found.variants))
    heading = ("Option", "Meaning", "Values", "Default", *variants)
    return table(
        heading,
        (
            [
                f"`{found.name}`",
                found.meaning,
                kind(found.hint),
                f"`{toml(found.default)}`",
                *(f"`{toml(found.variants[v])}`" if v in found.variants else "" for v in variants),
            ]
            for found in options
        ),
    )


def keys_table(cls: type) -> str:
    """The keys of one section: type, default, meaning."""
    apart = {*SECTIONS, "model", "method", "methods", "published"} if cls is Experiment else set()
    options = [found for found in options_of(cls) if found.name not in {"options", *apart}]
    missing = [found.name for found in options if not found.meaning]
    if missing:
        raise SystemExit(f"{cls.__name__}.{missing[0]} has no meaning; declare it with option(...)")
    rows = [[f"`{o.name}`", kind(o.hint), f"`{toml(o.default)}`", o.meaning] for o in options]
    return table(("Key", "Values", "Default", "Meaning"), rows)


def partitions_table() -> str:
    """The partitions with their options."""
    skip = ("labels", "clients", "seed", "ids")
    rows = [[f"`{n}`", arguments(f, skip), first_line(f)] for n, f in partitions.items() if ours(f)]
    return table(("Name", "Options", "What it does"), rows)


def models_table() -> str:
    """The networks with their options."""
    skip = ("classes", "channels", "size")
    rows = [[f"`{n}`", arguments(f, skip), first_line(f)] for n, f in models.items() if ours(f)]
    return table(("Name", "Options", "What it is"), rows)


def datasets_table() -> str:
    """The data sets with their options, sources and licences."""
    rows = []
    for name, held in datasets.items():
        if ours(held.read):
            presets = [f'"{preset}"' for known, preset in NORMALISATIONS if known == name]
            options = arguments(held.read).replace('`normalise="default"`', f"`normalise`: {', '.join(presets)}")
            rows.append([f"`{name}`", options, held.about, held.source, held.licence])
    return table(("Name", "Options", "What it is", "Source", "Licence"), rows)


def files_table() -> str:
    """Where each published file may lie below FEDALLOY_DATA, and what proves it."""
    rows = []
    for name, (published, compact) in files.SETS.items():
        for file in [*published, *([compact] if compact else [])]:
            places = ", ".join(f"`{place}`" for place in dict.fromkeys((f"{file.home}/{file.name}", *file.layouts)))
            proof = file.hash.partition(":")
            rows.append([f"`{name}`", places, f"{proof[0]} {proof[2][:12]}…", "yes" if file.urls else "no"])
    return table(("Data set", "Places below `FEDALLOY_DATA`", "Hash", "Downloaded"), rows)


def metrics_table() -> str:
    """The metrics: their names, columns, units and directions."""
    units = {"percent": "percent", "thousandths": "times 1000", "number": "as it is", "count": "whole number"}
    units |= {"client": "client id", "bytes": "bytes", "seconds": "seconds", "power": "three digits"}
    sources = {"view": "record of each round", "curve": "curve of a view", "run": "all rounds"}
    rows = [
        [f"`{name}`", one.heading, units[one.unit], one.better or "-", sources[one.source], one.meaning]
        for name, one in METRICS.items()
    ]
    return table(("Name", "Column", "Written as", "Better", "From", "Meaning"), rows)


def ours(thing: Any) -> bool:
    """Whether it comes with fedalloy; a plug-in of the reader's is not part of the docs."""
    return str(thing.__module__).startswith("fedalloy.")


def arguments(function: Callable[..., Any], skip: Iterable[str] = ()) -> str:
    """The options of a function with their defaults."""
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in skip:
            value = parameter.default
            odd = {inspect.Parameter.empty: " (must be given)", None: ""}
            shown.append(f"`{name}`{odd[value]}" if value in odd else f"`{name}={toml(value)}`")
    return ", ".join(shown) or "none"


def first_line(thing: object) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def yes(flag: bool) -> str:
    """A truth value in a word."""
    return "yes" if flag else "no"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    main()
