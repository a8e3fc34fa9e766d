"""Write docs/methods.md, and the tables in docs/experiments.md and docs/metrics.md, from the code they describe.

Run it from the project's root: `python tools/make_docs.py`. The same code gives the same pages; only what comes with
fedalloy is described. A key of an experiment that has no sentence here, or a sentence without a key, is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from fedalloy.aggregation.rule import Aggregation
from fedalloy.config.experiment import DataPart, Experiment, PartitionPart, PublicPart, Stop
from fedalloy.data import NORMALISATIONS, datasets, files
from fedalloy.data.partition import partitions
from fedalloy.federation.core import Method
from fedalloy.federation.metrics import METRICS
from fedalloy.federation.participation import Participation
from fedalloy.federation.quorum import Quorum
from fedalloy.methods import methods
from fedalloy.nets.architectures import Budget, ModelPart
from fedalloy.nets.models import models
from fedalloy.train.fit import LocalWork
from fedalloy.train.privacy import Privacy

DOCS = Path(__file__).parents[1] / "docs"

# What each key means. The names, types and defaults come from the code.
SENTENCES: dict[type, dict[str, str]] = {
    Experiment: {
        "rounds": "How many rounds to run.",
        "seed": "Where every random stream starts: split, initial model, active clients, batches.",
        "evaluate_every": "Evaluate after every so many rounds; the last planned round is always evaluated.",
        "start": "A `.safetensors` file with the weights to start from, instead of random ones.",
        "engine": "What carries the messages: `pool` (worker processes), `threads`, `serial`; `auto` takes the pool "
        "where it is worth its start. All give the same bits.",
        "workers": "How many clients run side by side; by default one per core.",
        "memory": "How much RAM the clients' last models and memories may take, for instance `4GB` or `512MiB`; what "
        "comes beyond it lies in temporary files. At least `1MB`, or 0 to keep nothing in RAM. It changes no bit.",
        "layout": "Memory layout of the networks: `auto` is `channels_last` for CNNs without GroupNorm, else `nchw`. "
        "It changes the last bits.",
        "device": "Where data and networks lie: `cpu`, `cuda`; the data is moved there once. Not yet tried on a GPU.",
    },
    DataPart: {
        "name": "A registered data set, or the path of an `.npz` file.",
        "size": "Resize the images to this many pixels on each side; left out, they stay as they are.",
        "augment": "Random changes of training images, by the name of a recipe.",
    },
    PartitionPart: {
        "name": "A registered partition.",
        "clients": "How many clients; `natural` takes the number from the data instead.",
        "seed": "A seed for the split alone; left out, it is the experiment's.",
        "test": "Where a client's local test comes from: its own rows, or a part or all of the data's own test split.",
        "test_fraction": 'The share of a client\'s rows that is its local test, with `test = "local"`.',
        "test_samples": 'Rows of each local test with `test = "official"`; left out, test rows / clients.',
        "validation": "The share of a client's training rows that is set aside for validation.",
    },
    LocalWork: {
        "work": "How the number of optimiser steps of a client is found.",
        "epochs": "Passes over the client's data in one round; also the factor of `equal_steps`.",
        "steps": "Steps in one round, with `fixed_steps`.",
        "batch": "Samples in a batch.",
        "drop_last": "Leave out the last batch of a pass where it is smaller than the others.",
        "optimiser": "The local optimiser; its state is fresh in every round.",
        "lr": "The learning rate.",
        "momentum": "The momentum of `sgd`.",
        "weight_decay": "The weight decay, as the optimiser in torch has it.",
        "lr_decay": "The learning rate of round t is multiplied by `lr_decay` to the power t - 1.",
        "schedule": "How the learning rate changes over rounds, besides `lr_decay`.",
        "horizon": "After this many rounds a `cosine` schedule has fallen to zero.",
        "step_every": "Rounds between two steps of a `step` schedule.",
        "step_factor": "The factor at each step of a `step` schedule.",
        "clip": "The largest norm of a gradient over all parameters; longer ones are shortened to it.",
    },
    Participation: {
        "policy": "Who is asked in a round; see below.",
        "fraction": "The share of the clients, or the probability of each.",
        "late_drop": "The probability that a client trains but its reply is lost.",
        "deadline": "Seconds; a client whose local work would take longer is not asked.",
        "speeds": "FLOP/s of each client; goes with `deadline`.",
        "tiers": "How strong each client is, for `weakest` and `tier` in `[[models]]`; a larger number is stronger.",
        "trace": "The ids of each round, for `trace`; it starts again when it is used up.",
    },
    PublicPart: {
        "data": 'A data set by name or path, or `"own"` for rows of the private data that are set aside.',
        "samples": "How many rows it has.",
        "labelled": "Whether methods may use its labels.",
        "holder": "Who holds it: the server alone, or the clients too.",
        "classes": "Whether its classes are the private ones, or get outputs of their own.",
        "answers": "Among which outputs a prediction on private data is chosen, if classes were added.",
    },
    Quorum: {
        "fraction": "The share of those asked that must answer for a round to count.",
        "skips": "After so many skipped rounds in a row the run stops.",
        "deadline": "Seconds that a client may take (with the pool); left out, nobody is hurried.",
    },
    Aggregation: {
        "cap": "The largest share of the weight that a client can get by its size; left out, there is no limit.",
        "max_distance": "How far a returned network may lie from the one that was sent, in norms of that one.",
    },
    Privacy: {
        "noise_multiplier": "The noise's standard deviation over the largest norm of one sample's gradient.",
        "max_grad_norm": "The norm to which each sample's gradient is shortened.",
        "delta": "The delta of the (epsilon, delta) that is accounted for.",
        "budget": "The epsilon that no client exceeds; one that would is absent from then on.",
    },
    ModelPart: {
        "name": "A registered network; its options follow.",
        "clients": "The ids that have it.",
        "tier": "The clients with this number in `participation.tiers` have it, but for those that are named.",
        "share": "The share of all clients that have it, in ascending id, from those that are left.",
    },
    Budget: {
        "unit": "What is limited: the network's parameters, or the FLOPs of a forward pass of one sample.",
        "limits": "One limit for each client, or a few that are dealt in equal runs, in ascending id.",
    },
    Stop: {
        "metric": "The metric of `target` and `patience`; the best of the method's views counts.",
        "target": "Stop as soon as the metric reaches this.",
        "patience": "Stop when this many evaluations in a row brought no new best.",
        "bytes": "Stop when this many bytes were sent, up and down, framing included.",
        "seconds": "Stop after this much time.",
    },
}

SECTIONS = {
    "top": Experiment,
    "data": DataPart,
    "partition": PartitionPart,
    "training": LocalWork,
    "participation": Participation,
    "quorum": Quorum,
    "aggregation": Aggregation,
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
            ", ".join(f"`{f.name}={toml(f.default)}`" for f in options_of(cls)) or "none",
        ]
        for name, cls in shown.items()
        for card in [cls.card]
    ]
    return "\n\n".join([INTRODUCTION, table(heading, lines), *(section(n, c) for n, c in shown.items())]) + "\n"


INTRODUCTION = """\
# Methods

<!-- Made by tools/make_docs.py from the methods' cards and docstrings; edit those instead. -->

Each method is one file in [src/fedalloy/methods](../src/fedalloy/methods). `fedalloy list` shows the same table, and
`fedalloy list --where any_network=yes` only the methods that let clients have different networks; of a text, `yes`
means that there is one, `no` that there is none, and any other word is searched for in it. "Up" and "down" say what
travels in a round, to the server and to a client; the bytes of a run are counted, see [metrics](metrics.md#costs).
"What leaves a client" is what training sends. Evaluation sends counts besides, also under `local`:
`fedalloy list --privacy` and [deploy.md](deploy.md#what-evaluation-sends) say which. "Public set" says whether the
experiment needs one ([how to give it](experiments.md#a-public-set)).

Options are keys of `[method]`, or of the method's own table under `[methods]`.

"The code" is a paper's public code, "the paper" its text. Of MOON, FedGen, FedGKD, FedDisco and FedCOG the full text
was not at hand; what is said of these papers comes from their code and from papers that cite them. Where a description
says that something is left out or has no option, a paper's setting that needs it cannot be run."""


def section(name: str, cls: type[Method]) -> str:
    """What a method's docstring says, without its doctest, and its options with their types."""
    prose = re.split(r"^>>> ", inspect.getdoc(cls) or "", maxsplit=1, flags=re.MULTILINE)[0].strip()
    hints = typing.get_type_hints(cls)
    rows = [[f"`{f.name}`", kind(hints[f.name]), f"`{toml(f.default)}`"] for f in options_of(cls)]
    remembers = f"Between rounds a client remembers: {cls.card.remembers}."
    parts = [f"## {name}", f"**{cls.label}.** {prose}", remembers]
    return "\n\n".join([*parts, table(("Option", "Type", "Default"), rows)] if rows else parts)


def keys_table(cls: type) -> str:
    """The keys of one section: type, default, meaning."""
    apart = {*SECTIONS, "model", "method", "methods", "published"} if cls is Experiment else set()
    fields = [f for f in dataclasses.fields(cls) if f.name not in {"options", *apart}]
    sentences = SENTENCES[cls]
    if [f.name for f in fields] != list(sentences):
        odd = {f.name for f in fields} ^ set(sentences)
        raise SystemExit(f"the sentences of {cls.__name__} do not follow its keys: {sorted(odd) or 'other order'}")
    hints = typing.get_type_hints(cls)
    rows = [[f"`{f.name}`", kind(hints[f.name]), default(f), sentences[f.name]] for f in fields]
    return table(("Key", "Type", "Default", "Meaning"), rows)


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
    units |= {"client": "client id", "bytes": "bytes", "seconds": "seconds"}
    sources = {"view": "record of each round", "curve": "curve of a view", "run": "all rounds"}
    rows = [
        [f"`{name}`", one.heading, units[one.unit], one.better or "-", sources[one.source], one.meaning]
        for name, one in METRICS.items()
    ]
    return table(("Name", "Column", "Written as", "Better", "From", "Meaning"), rows)


def ours(thing: Any) -> bool:
    """Whether it comes with fedalloy; a plug-in of the reader's is not part of the docs."""
    return str(thing.__module__).startswith("fedalloy.")


def options_of(cls: type[Method]) -> Sequence[dataclasses.Field[Any]]:
    """The hyper-parameters of a method."""
    return dataclasses.fields(cls)  # type: ignore[arg-type]  # @method makes it a dataclass


def arguments(function: Callable[..., Any], skip: Iterable[str] = ()) -> str:
    """The options of a function with their defaults."""
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in skip:
            value = parameter.default
            odd = {inspect.Parameter.empty: " (must be given)", None: ""}
            shown.append(f"`{name}`{odd[value]}" if value in odd else f"`{name}={toml(value)}`")
    return ", ".join(shown) or "none"


def default(field: dataclasses.Field[Any]) -> str:
    """A key's default as it would stand in a file."""
    if field.default is dataclasses.MISSING:
        return "must be given"
    return "left out" if field.default is None else f"`{toml(field.default)}`"


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml, value))}]"
    return "left out" if value is None else str(value)


def kind(hint: Any) -> str:
    """A type in words."""
    words = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    many = {int: "whole numbers", float: "numbers", str: "texts"}
    inner = [part for part in typing.get_args(hint) if part is not type(None)]
    if hint in words:
        return words[hint]
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{toml(choice)}`" for choice in inner)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(kind(part) for part in inner)
    if isinstance(typing.get_origin(hint), type) and issubclass(typing.get_origin(hint), Sequence):
        return f"list of {many[inner[0]]}" if inner[0] in many else kind(inner[0]).replace("list", "list of lists")
    raise SystemExit(f"there are no words yet for the type {hint}")


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
