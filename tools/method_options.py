"""The options of a method as a Markdown table: their values by variant, and as papers compared the method."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalloy.base.options import kind, options_of, toml
from fedalloy.cli.method_page import FOLLOWS, by_variant_of
from fedalloy.config.sections import CLOSED, ClientPart, DataPart, Experiment, PartitionPart, PublicPart
from fedalloy.federation.core import Method
from fedalloy.nets.architectures import ModelPart

EXPERIMENTS = Path(__file__).parents[1] / "src" / "fedalloy" / "experiments"

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


def yes(flag: bool) -> str:
    """A truth value in a word."""
    return "yes" if flag else "no"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
