"""Write docs/methods.md, and the tables in docs/experiments.md and docs/metrics.md, from the code they describe.

Run it from the project's root: `python tools/make_docs.py`. The same code gives the same pages; only what comes with
fedalloy is described. Options come from their declarations; one without a meaning is refused.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalloy.base.options import kind, options_of, toml
from fedalloy.base.text import listed
from fedalloy.cli.method_page import FOLLOWS, by_variant_of
from fedalloy.config.sections import CLOSED, Choice, ClientPart, DataPart, Experiment, PartitionPart, PublicPart
from fedalloy.data import NORMALISATIONS, datasets, files
from fedalloy.data.partition import partitions
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Method
from fedalloy.federation.metrics import METRICS
from fedalloy.methods import methods
from fedalloy.nets.architectures import ModelPart
from fedalloy.nets.models import models
from fedalloy.report.listing import used

DOCS = Path(__file__).parents[1] / "docs"
EXPERIMENTS = DOCS.parent / "src" / "fedalloy" / "experiments"

# The variants of a method, by whose choices they are; the last four are papers that compared it with their own.
PAPERS = {"fedkf": "FedKF", "kdia": "KDIA", "dafkd": "DaFKD", "knfu": "KnFu"}
WHOSE = {"paper": "paper", "reference": "its authors' code", **PAPERS}
# The beginnings of names of experiment files, and of the methods that are their paper's own.
FILES = {"fedkf": "FedKF", "kdia": "KDIA", "dafkd": "DaFKD", "knfu": "KnFu", "fedmd-global": "FedMD+Global"}

SECTIONS: Mapping[str, type] = {
    "top": Experiment,
    "data": DataPart,
    "clients": ClientPart,
    "partition": PartitionPart,
    "public": PublicPart,
    "models": ModelPart,
    **CLOSED,
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
    heading = ("Method", "Paper", "Distils", "Public set", "Any network")
    lines = [
        [
            f"[`{name}`](#{name})",
            card.paper,
            card.distils,
            yes(card.public),
            yes(card.any_network),
        ]
        for name, cls in shown.items()
        for card in [cls.card]
    ]
    runs = compared()
    sections = [section(name, cls, runs.get(name, [])) for name, cls in shown.items()]
    return "\n\n".join([INTRODUCTION, table(heading, lines), TASKS_SECTION, tasks_table(shown), *sections]) + "\n"


TASKS_SECTION = """\
## Tasks

What a method can learn: one class for each sample, several labels for each sample (`task="labels"`), or numbers
(`task="numbers"`, regression). A method that cannot learn what the data holds is refused before any work, with the
names of those that can. A client's loss on its own samples is cross-entropy, binary cross-entropy (mean over the
labels) or squared error. What methods exchange beyond classes is ours, not their papers': probabilities of each label,
which are learned by binary KL, or predictions, which are learned by squared error. An option that makes no sense for a
task is refused."""


def tasks_table(shown: Mapping[str, type[Method]]) -> str:
    """Which method can learn which task, from the cards."""
    rows = [[f"[`{name}`](#{name})", *(yes(task in cls.card.tasks) for task in TASKS)] for name, cls in shown.items()]
    return table(("Method", *(task.capitalize() for task in TASKS)), rows)


INTRODUCTION = """\
# Methods

<!-- Made by tools/make_docs.py from the methods' cards and docstrings; edit those instead. -->

Each method is one file in [src/fedalloy/methods](../src/fedalloy/methods). `fedalloy list` shows them all,
`fedalloy list kdia` shows one with its options, and `fedalloy list --where any_network=yes` shows only the methods that
let clients have different networks. For a text entry, `yes` means that it is not empty, `no` that it is empty, and any
other word is a substring search. "Distils" says what a method distils, and into what; "public set" whether the
experiment needs one ([how to give it](experiments.md#a-public-set)); "any network" whether clients may have different
networks. In the sections below, "up" and "down" are what travels in a round, to the server and to a client; the bytes
of a run are counted, see [metrics](metrics.md#costs). What leaves a client is what training sends. Evaluation also
sends counts, even under `local`: `fedalloy list --privacy` and [deploy.md](deploy.md#what-evaluation-sends) say which.

Options are keys of `[method]`, or of the method's own table under `[methods]`. Their tables have up to four columns of
values:

* **Recommended**: the default.
* **Paper**: what the text of the method's paper says, with `variant = "paper"`.
* **Its authors' code**: what the authors' public code does, with `variant = "reference"`.
* **As the five papers compared it**: how FedKF, FedMD+Global, KnFu, KDIA or DaFKD ran the method as a baseline, with
  the variant of its name (`variant = "kdia"`) or in its file under [experiments](../src/fedalloy/experiments). A file
  may be smaller than the paper's experiment, which it then says.

An empty cell is as recommended, and a column without any value is left out.

"The code" is a paper's public code, "the paper" its text. If the full text of a method's paper was not at hand, its
section says so; what is said of such a paper comes from its code and from papers that cite it. Where a description says
that something is left out or has no option, a paper's setting that needs it cannot be run."""


def section(name: str, cls: type[Method], runs: Sequence[Compared]) -> str:
    """What a method's docstring says, without its doctest, and its options with their meanings."""
    prose = re.split(r"^>>> ", inspect.getdoc(cls) or "", maxsplit=1, flags=re.MULTILINE)[0].strip()
    card = cls.card
    facts = [
        f"* Up: {card.up}. Down: {card.down}.",
        f"* What leaves a client: {card.leaves_client}.",
        f"* What a client remembers between rounds: {card.remembers}.",
        f"* What it uses of [[aggregation]](experiments.md#aggregation): {used(cls)}.",
    ]
    readings = DOCS / "readings" / f"{name}.md"
    more = [f"[Readings and differences](readings/{name}.md)"] if readings.exists() else []
    if more and UNREAD.search(readings.read_text(encoding="utf-8")) and not UNREAD.search(prose):
        more.insert(0, "The full text of its paper was not at hand.")
    words = [word for found in options_of(cls) for word in found.variants if word in PAPERS]
    papers = list(dict.fromkeys([*(run.paper for run in runs), *(PAPERS[word] for word in words)]))
    if papers:
        more.append(f"Compared by {listed(papers)}.")
    found = options_table(cls, runs)
    return "\n\n".join(
        [f"## {name}", f"**{cls.label}.** {prose}", "\n".join(facts), *more, *([found] if found else [])]
    )


UNREAD = re.compile(r"full\s+text\s+(was|is|could)\s+not")


def options_table(cls: type[Method], runs: Sequence[Compared]) -> str:
    """A method's options with the values of its variants, and how papers compared it; empty if there is nothing."""
    options = options_of(cls)
    missing = [found.name for found in options if not found.meaning]
    if missing:
        raise SystemExit(f"{cls.name}.{missing[0]} has no meaning; declare it with option(...)")
    told = [found.variants for found in options] + [
        values for key in FOLLOWS for _, values in [by_variant_of(cls, key)]
    ]
    words = dict.fromkeys(word for values in told for word in values if word not in PAPERS)
    own = [*(word for word in WHOSE if word in words), *(word for word in words if word not in WHOSE)]
    rows = [
        [
            f"`{found.name}`",
            f"{found.meaning}<br><sub>{kind(found.hint)}</sub>",
            f"`{toml(found.default)}`",
            *(f"`{toml(found.variants[word])}`" if word in found.variants else "" for word in own),
            as_compared(found.name, runs, found.variants),
        ]
        for found in options
    ]
    follows = {key: (usual, values) for key in FOLLOWS for usual, values in [by_variant_of(cls, key)] if values}
    for key in dict.fromkeys([*follows, *(key for run in runs for key in run.values if "." in key)]):
        part, _, name = key.partition(".")
        shared = {x.name: x for x in options_of(SECTIONS[part])}[name]
        about = f"{shared.meaning}<br><sub>{kind(shared.hint)}</sub>"
        usual, values = follows.get(key, (shared.default, {}))
        ways = [f"`{toml(values[word])}`" if word in values else "" for word in own]
        rows.append([f"`{key}`", about, f"`{toml(usual)}`", *ways, as_compared(key, runs, values)])
    if not rows:
        return ""
    heading = [
        "Option",
        "Meaning",
        "Recommended",
        *(WHOSE.get(word, word).capitalize() for word in own),
        "As the five papers compared it",
    ]
    if not any(row[-1] for row in rows):
        heading, rows = heading[:-1], [row[:-1] for row in rows]
    return table(heading, rows)


@dataclass(frozen=True)
class Compared:
    """How an experiment runs a method of another paper than its own: the paper, a label, and the keys it sets."""

    paper: str
    label: str  # empty if the experiment runs the method once
    values: Mapping[str, Any]


def compared() -> dict[str, list[Compared]]:
    """What the committed experiments set for methods that are not their paper's own, by method."""
    found: dict[str, list[Compared]] = {}
    for file in sorted(EXPERIMENTS.glob("*.toml")):
        whose = next((word for word in FILES if file.name.startswith(word)), None)
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        if whose is None or not content.get("published"):  # it follows none of the five papers
            continue
        tables = [(part.get("name", key), key, part) for key, part in content.get("methods", {}).items()]
        for name, key, part in tables:
            if not name.startswith(whose):
                label = key if sum(name == other for other, *_ in tables) > 1 and key != name else ""
                values = flat({k: v for k, v in part.items() if k != "name"})
                found.setdefault(name, []).append(Compared(FILES[whose], label, values))
    return found


def as_compared(key: str, runs: Sequence[Compared], variants: Mapping[str, Any] | None = None) -> str:
    """The values with which papers compared a method, from its variants and from experiments.

    >>> as_compared("mu", [Compared("FedKF", "", {"mu": 0.001}), Compared("DaFKD", "", {})], {"kdia": 1.0})
    'KDIA: `1.0`; FedKF: `0.001`'
    """
    said: dict[str, dict[str, None]] = {}
    for word, value in (variants or {}).items():
        if word in PAPERS:
            said.setdefault(PAPERS[word], {})[f"`{toml(value)}`"] = None
    for run in runs:
        value = run.values.get(key)
        told = key == "variant" and PAPERS.get(value or "") == run.paper  # the options say what it means
        if value is not None and not told:
            aside = f" ({run.label})" if run.label else ""
            said.setdefault(run.paper, {})[f"`{toml(value)}`{aside}"] = None
    return "; ".join(f"{paper}: {', '.join(values)}" for paper, values in said.items())


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def keys_table(cls: type) -> str:
    """The keys of one section: type, default, meaning."""
    apart = {*SECTIONS, "model", "method", "methods", "published"} if cls is Experiment else set()
    options = [found for found in options_of(cls) if found.name not in {"options", *apart}]
    missing = [found.name for found in options if not found.meaning]
    if missing:
        raise SystemExit(f"{cls.__name__}.{missing[0]} has no meaning; declare it with option(...)")
    rows = [
        [f"`{o.name}`", kind(o.hint).replace(Choice.__name__, "text or table"), f"`{toml(o.default)}`", o.meaning]
        for o in options
    ]
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
        for file in [*published, *compact]:
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
