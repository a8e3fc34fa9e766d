"""Write docs/methods.md, a page for each method, and tables in other pages, from the code they describe.

Run it from the project's root: `python tools/make_docs.py`. The same code gives the same pages; only what comes with
fedalloy is described. Options come from their declarations; one without a meaning is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from method_options import SECTIONS, compared, table, yes
from method_pages import method_page

import fedalloy
from fedalloy.aggregation import averaging
from fedalloy.base import options, tree
from fedalloy.base.options import kind, options_of, toml
from fedalloy.base.text import MISSING
from fedalloy.cli.method_page import first_line
from fedalloy.config.sections import Choice, Experiment
from fedalloy.data import NORMALISATIONS, datasets, files, partition
from fedalloy.data.partition import partitions
from fedalloy.data.samples import TASKS
from fedalloy.federation.core import Method
from fedalloy.federation.metrics import METRICS
from fedalloy.methods import methods
from fedalloy.nets.models import models
from fedalloy.report.listing import GROUPS, group
from fedalloy.reproduce.catalogue import Item, Paper, papers
from fedalloy.reproduce.verdicts import reached
from fedalloy.train import fit, losses

DOCS = Path(__file__).parents[1] / "docs"
RUNS = DOCS.parent / "results" / "runs"


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Every generated page as it should be."""
    filled = [DOCS / name for name in ("experiments.md", "metrics.md", "choose.md")]
    return {
        DOCS / "methods.md": methods_page(),
        DOCS / "api.md": api_page(),
        **{DOCS / "methods" / f"{name}.md": text for name, text in method_pages().items()},
        **{page: with_tables(page.read_text(encoding="utf-8")) for page in filled},
    }


def method_pages() -> dict[str, str]:
    """The page of each method, by name."""
    runs = compared()
    return {name: method_page(name, cls, runs.get(name, [])) for name, cls in shown_methods().items()}


def with_tables(text: str) -> str:
    """A page with the tables between its markers made anew."""
    makers: dict[str, Callable[[], str]] = {
        **{f"keys of {section}": lambda cls=cls: keys_table(cls) for section, cls in SECTIONS.items()},  # type: ignore[misc]
        "partitions": partitions_table,
        "models": models_table,
        "data sets": datasets_table,
        "files": files_table,
        "metrics": metrics_table,
        **{f"methods: {key}": lambda key=key: group_table(key) for key in GROUPS},  # type: ignore[misc]
        "figures": figures_tables,
    }

    def fill(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n\n{makers[found[1]]()}\n\n<!-- end of table -->"

    return re.sub(r"<!-- table: (.+?) -->.*?<!-- end of table -->", fill, text, flags=re.DOTALL)


def methods_page() -> str:
    """The page about methods: one table of all cards, then what each docstring says."""
    shown = shown_methods()
    heading = ("Method", "Paper", "Distils", "Public set", "Any network")
    lines = [
        [link(name), cls.card.paper, cls.card.distils, yes(cls.card.public), yes(cls.card.any_network)]
        for name, cls in shown.items()
    ]
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *(f"methods/{name}" for name in shown), "```"])
    parts = [INTRODUCTION, table(heading, lines), OPTIONS_SECTION, TASKS_SECTION, tasks_table(shown), toctree]
    return "\n\n".join(parts) + "\n"


def shown_methods() -> dict[str, type[Method]]:
    """The methods that come with fedalloy."""
    return {name: cls for name, cls in methods.items() if ours(cls)}


def ours(thing: Any) -> bool:
    """Whether it comes with fedalloy; a plug-in of the reader's is not part of the docs."""
    return str(thing.__module__).startswith("fedalloy.")


def link(name: str) -> str:
    """A link to a method's page."""
    return f"[`{name}`](methods/{name}.md)"


def group_table(key: str) -> str:
    """The methods of a group, by what an experiment must have for them."""
    rows = [
        [link(name), cls.card.brief, ", ".join(cls.card.tasks), yes(cls.card.private), cls.card.leaves_client]
        for name, cls in shown_methods().items()
        if group(cls.card) == key
    ]
    return table(("Method", "Idea", "Learns", "Allows `[privacy]`", "Leaves a client"), rows)


def figures_tables() -> str:
    """The published tables of which enough runs are recorded: our means over seeds, by setting."""
    return "\n\n".join(found for paper in papers().values() for item in paper.items if (found := figures(paper, item)))


def figures(paper: Paper, item: Item) -> str:
    """A table's means over seeds where two methods or more have every seed; empty if there is no such setting."""
    if not item.id.startswith("table") or item.metrics[0] not in METRICS:
        return ""
    found = reached(item, RUNS)
    means = {
        (row.label, column): sum(values.values()) / len(values)
        for row in item.rows
        for column in found.columns
        if len(values := found.values(row, column)) >= len(found.seeds) > 1
    }
    columns = [c for c in found.columns if sum(column == c for _, column in means) > 1]
    rows = [row for row in item.rows if any((row.label, column) in means for column in columns)]
    if not columns:
        return ""
    body = [
        [r.label, *(f"{means[r.label, c]:.1f}" if (r.label, c) in means else MISSING for c in columns)] for r in rows
    ]
    where = f"[{paper.name}, {item.heading}](reproduction/{paper.id}.md#{item.id})"
    told = f"{where}. {METRICS[item.metrics[0]].heading}, mean over {len(found.seeds)} seeds, scale `{found.scale}`."
    return f"{told}\n\n{table(('Method', *columns), body)}"


def api_page() -> str:
    """The reference: what `import fedalloy` gives, and the modules that methods and other parts are written with."""
    told: dict[str, list[str]] = {title: [] for title in TOPICS.values()}
    for name in fedalloy.__all__:
        if not name.startswith("__"):
            package = getattr(fedalloy, name).__module__.split(".")[1]
            told.setdefault(TOPICS.get(package, package.capitalize()), []).append(name)
    parts = [API_INTRODUCTION]
    for title, names in told.items():
        rows = [[f"`{name}`", first_line(getattr(fedalloy, name))] for name in names]
        parts += [f"## {title}", table(("Name", "What it is"), rows), described(names)]
    parts.append(EXTENSIONS_SECTION)
    for module in EXTENSIONS:
        names = [name for name, thing in vars(module).items() if defined_in(module, name, thing)]
        rows = [[f"`{name}`", first_line(getattr(module, name))] for name in names]
        automatic = f"```{{eval-rst}}\n.. automodule:: {module.__name__}\n   :members:\n```"
        parts += [f"### {module.__name__}", table(("Name", "What it is"), rows), automatic]
    return "\n\n".join(parts) + "\n"


API_INTRODUCTION = """\
# API reference

<!-- Made by tools/make_docs.py from docstrings; edit those instead. -->

Everything in the first sections can be imported from `fedalloy`, where it is loaded when it is first used. The classes
of the methods too: `from fedalloy import FedProx`; they are described on [their pages](methods.md). What is not on this
page may change without notice."""

EXTENSIONS_SECTION = """\
## What parts are written with

These modules are imported by their names, as the [examples](../examples/own_method.py) do."""

TOPICS = {
    "run": "Running",
    "config": "Experiments",
    "data": "Data",
    "nets": "Networks",
    "federation": "Methods",
    "check": "Checks",
    "tuning": "Fair tuning",
    "storage": "Finished runs",
    "report": "Results and reports",
    "errors": "Errors",
}
EXTENSIONS = (fit, losses, averaging, options, tree, partition)


def described(names: Iterable[str]) -> str:
    """Directives that make the site show docstrings and signatures."""
    lines = []
    for name in names:
        thing = getattr(fedalloy, name)
        kind = "exception" if is_error(thing) else "class" if inspect.isclass(thing) else "function"
        lines += [f".. auto{kind}:: fedalloy.{name}", *(["   :members:"] if kind == "class" else []), ""]
    return "\n".join(["```{eval-rst}", *lines[:-1], "```"])


def is_error(thing: object) -> bool:
    """Whether it is an exception."""
    return inspect.isclass(thing) and issubclass(thing, Exception)


def defined_in(module: ModuleType, name: str, thing: Any) -> bool:
    """Whether a name is a public function or class that a module defines."""
    made = inspect.isfunction(thing) or inspect.isclass(thing)
    return made and not name.startswith("_") and thing.__module__ == module.__name__


TASKS_SECTION = """\
## Tasks

What a method can learn: one class for each sample, several labels for each sample (`task="labels"`), or numbers
(`task="numbers"`, regression). A method that cannot learn what the data holds is refused before any work, with the
names of those that can. A client's loss on its own samples is cross-entropy, binary cross-entropy (mean over the
labels) or squared error. What methods exchange beyond classes is ours, not their papers': probabilities of each label,
which are learned by binary KL, or predictions, which are learned by squared error and standardised as the
[numbers to predict](own_data.md#several-labels-or-numbers) are. An option that makes no sense for a
task is refused."""


def tasks_table(shown: Mapping[str, type[Method]]) -> str:
    """Which method can learn which task, from the cards."""
    rows = [[link(name), *(yes(task in cls.card.tasks) for task in TASKS)] for name, cls in shown.items()]
    return table(("Method", *(task.capitalize() for task in TASKS)), rows)


INTRODUCTION = """\
# Methods

<!-- Made by tools/make_docs.py from the methods' cards and docstrings; edit those instead. -->

Each method is one file in [src/fedalloy/methods](../src/fedalloy/methods). `fedalloy list` shows them all,
`fedalloy list kdia` shows one with its options, and `fedalloy list --where any_network=yes` shows only the methods that
let clients have different networks. For a text entry, `yes` means that it is not empty, `no` that it is empty, and any
other word is a substring search. "Distils" says what a method distils, and into what; "public set" whether the
experiment needs one ([how to give it](experiments.md#a-public-set)); "any network" whether clients may have different
networks. [Choose a method](choose.md) orders them by what an experiment has.

On a method's page, "up" and "down" are what travels in a round, to the server and to a client; the bytes of a run are
counted, see [metrics](metrics.md#costs). What leaves a client is what training sends. Evaluation also sends counts,
even under `local`: `fedalloy list --privacy` and [deploy.md](deploy.md#what-evaluation-sends) say which.

"The code" is a paper's public code, "the paper" its text. If the full text of a method's paper was not at hand, its
page says so; what is said of such a paper comes from its code and from papers that cite it. Where a description says
that something is left out or has no option, a paper's setting that needs it cannot be run."""

OPTIONS_SECTION = """\
## Options

Options are keys of `[method]`, or of the method's own table under `[methods]`. Their tables have up to four columns of
values:

* **Recommended**: the default.
* **Paper**: what the text of the method's paper says, with `variant = "paper"`.
* **Its authors' code**: what the authors' public code does, with `variant = "reference"`.
* **As the five papers compared it**: how FedKF, FedMD+Global, KnFu, KDIA or DaFKD ran the method as a baseline, with
  the variant of its name (`variant = "kdia"`) or in its file under [experiments](../src/fedalloy/experiments). A file
  may be smaller than the paper's experiment, which it then says.

An empty cell is as recommended, and a column without any value is left out."""


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


def arguments(function: Callable[..., Any], skip: Iterable[str] = ()) -> str:
    """The options of a function with their defaults."""
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in skip:
            value = parameter.default
            odd = {inspect.Parameter.empty: " (must be given)", None: ""}
            shown.append(f"`{name}`{odd[value]}" if value in odd else f"`{name}={toml(value)}`")
    return ", ".join(shown) or "none"


if __name__ == "__main__":
    main()
