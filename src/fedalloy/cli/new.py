"""The command `new`: a short commented file for an idea, and its first test."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from string import Template

import click

from fedalloy.cli.terminal import load_plugins, say
from fedalloy.errors import UsageError

KINDS = ("method", "data", "model", "partition", "experiment")
TEMPLATES = Path(__file__).with_name("templates")


@click.command("new")
@click.argument("kind", metavar="KIND")
@click.argument("name", metavar="NAME")
@click.option("--out", "-o", default=".", metavar="FOLDER", help="Where to write. Default: here.")
def new(kind: str, name: str, out: str) -> None:
    """Write a commented file for an idea, with its first test.

    \b
      fedalloy new method my-idea          my_idea.py and test_my_idea.py
      fedalloy new experiment first        first.toml and test_first.py

    KIND is method, data, model, partition or experiment. The files work as they are: change them step by step.
    """
    refuse_kind(kind)
    load_plugins(())
    refuse_name(kind, name)
    module = name.replace("-", "_")
    words = [word for word in re.split(r"[-_]", name) if word]
    parts = {
        "name": name,
        "module": module,
        "func": module,
        "cls": "".join(word.capitalize() for word in words),
        "label": " ".join(words).capitalize(),
    }
    ending = "toml" if kind == "experiment" else "py"
    folder = Path(out)
    files = {folder / f"{module}.{ending}": f"{kind}.{ending}.txt", folder / f"test_{module}.py": f"test_{kind}.py.txt"}
    there = [str(file) for file in files if file.exists()]
    if there:
        raise UsageError(f"'{there[0]}' exists already; choose another name, or another folder with --out")
    from fedalloy.base.files import make_folder, write_atomically

    make_folder(folder)
    for file, template in files.items():
        text = Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(parts)
        write_atomically(file, text.encode())
    first, test = files
    say("\n".join([f"written: {first} and {test}. Try:", *(f"  {line}" for line in commands(kind, name, first, test))]))


def commands(kind: str, name: str, file: Path, test: Path) -> list[str]:
    """What to type next.

    >>> commands("model", "my-net", Path("my_net.py"), Path("test_my_net.py"))
    ['fedalloy compare --plugin my_net.py model=my-net data=tiny', 'pytest test_my_net.py']
    """
    lines = {
        "method": [
            f"fedalloy check {name} --plugin {file}",
            f"fedalloy compare --plugin {file} --methods fedavg,{name} data=tiny",
        ],
        "data": [
            f"fedalloy partition --plugin {file} data={name} partition.alpha=1",
            f"fedalloy compare --plugin {file} data={name} partition.alpha=1 model=mlp",
        ],
        "model": [f"fedalloy compare --plugin {file} model={name} data=tiny"],
        "partition": [
            f"fedalloy partition --plugin {file} partition={name} data=tiny",
            f"fedalloy compare --plugin {file} partition={name} data=tiny",
        ],
        "experiment": [f"fedalloy partition {file}", f"fedalloy compare {file}"],
    }
    return [*lines[kind], f"pytest {test}"]


def refuse_kind(kind: str) -> None:
    """Refuse what there is no template for."""
    from fedalloy.base.registry import suggest

    if kind not in KINDS:
        raise UsageError(f"there is no template for '{kind}'; {suggest(kind, list(KINDS))}")


def refuse_name(kind: str, name: str) -> None:
    """Refuse a name that cannot be that of a module, or that something else has already.

    >>> refuse_name("method", "fedavg")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: the method name 'fedavg' is taken; choose another one
    """
    from fedalloy.data.catalogue import datasets
    from fedalloy.data.partition import partitions
    from fedalloy.methods import methods
    from fedalloy.nets.models import models

    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,40}", name) or keyword.iskeyword(module) or module.endswith("_"):
        raise UsageError(f"'{name}' cannot be a name; write small letters, digits and hyphens, such as my-idea")
    taken: dict[str, Mapping[str, object]] = {
        "method": methods,
        "data": datasets,
        "model": models,
        "partition": partitions,
    }
    if name in taken.get(kind, {}):
        raise UsageError(f"the {kind} name '{name}' is taken; choose another one")
    if module in {"fedalloy", *sys.stdlib_module_names, *packages_distributions()}:
        raise UsageError(f"'{name}' is the name of a Python module; choose another one, such as my-{name}")
