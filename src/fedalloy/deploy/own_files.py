"""From an experiment on own files to one that sites can agree on: the files' format, without their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalloy.base.files import file_digest
from fedalloy.config.build import Built
from fedalloy.config.sections import Experiment
from fedalloy.data.catalogue import AGREED, LISTED
from fedalloy.data.own.clients import find_sources
from fedalloy.data.own.dataset import is_own
from fedalloy.data.samples import Dataset
from fedalloy.errors import UsageError

KEPT = ("label", "drop", "task", "categorical", "categories", "impute", "mean", "std", "label_mean", "label_std")
"""Keys of [data] that stay."""


@dataclass(frozen=True)
class Handed:
    """What `deploy init` writes for an experiment: its values, where each site's data is, and a file for everyone."""

    values: dict[str, Any]
    paths: tuple[str | None, ...] = ()  # by site; None where only the site knows; empty for data with a name
    public: Path | None = None


def has_own_files(exp: Experiment) -> bool:
    """Return whether an experiment's data are files on this machine."""
    return exp.data.name == LISTED or (exp.data.name != AGREED and is_own(exp.data.name))


def handed(values: Mapping[str, Any], exp: Experiment, raw: Dataset | None) -> Handed:
    """Return the experiment that sites get: own files become their format, a public file is handed to everyone.

    `raw` is the data as it was read, if it is own files.
    """
    out, paths = dict(values), tuple[str | None, ...]()
    if raw is not None:
        out["data"], names = _format(exp, raw), list(raw.client_names)
        networks = {client.name: client.network for client in exp.clients if client.network is not None}
        out["clients"] = [{"name": name, **_network(networks.get(name))} for name in names]
        paths = _paths(exp, names)
    public = _public(exp)
    if public is not None:
        out["public"] = {
            **{key: value for key, value in _table(values.get("public")).items() if key != "sha256"},
            "data": f"public{public.suffix.lower()}",
            "sha256": file_digest(public),
        }
    return Handed(out, paths, public)


def refuse_pooled(exp: Experiment, built: Built) -> None:
    """Refuse own files that are not divided by client, since nobody could say which site has which rows."""
    if not built.dataset.client_names or exp.partition.name != "natural":
        raise UsageError(
            f"the rows of '{exp.data.name}' do not belong to named clients, so nobody knows which site has which; give "
            "a folder with a file for each site, [[clients]], or data.client, the column with each row's client"
        )
    if len(built.setting.sites) != len(built.dataset.client_names):
        raise UsageError("all rows of a client are public, so that nothing is left for its site; take fewer rows")


def _format(exp: Experiment, raw: Dataset) -> dict[str, Any]:
    """The keys of [data] that describe the files without their rows."""
    options = {key: exp.data.options[key] for key in KEPT if key in exp.data.options}
    found: dict[str, Any] = {"name": AGREED, **options, "names": list(raw.label_names)}
    if raw.x.shape[2:] == (1, 1):
        found["columns"] = [column.name for column in raw.columns]
        coded = [column.name for column in raw.columns if column.categories is not None]
        return found | ({"categorical": coded} if coded else {})
    size = exp.data.size or raw.x.shape[2]
    augment = {} if exp.data.augment == "none" else {"augment": exp.data.augment}
    return found | {"channels": int(raw.x.shape[1]), "size": int(size), **augment}


def _network(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    return {"network": {"name": choice.name, **choice.options} if choice.options else choice.name}


def _paths(exp: Experiment, names: list[str]) -> tuple[str | None, ...]:
    """Where each client's data is on this machine, if each has a file of its own."""
    if exp.data.name == LISTED:
        return tuple(str(Path(client.data).absolute()) for client in exp.clients if client.data is not None)
    found, _ = find_sources(Path(exp.data.name))
    files = {source.name: str(source.path.absolute()) for source in found}
    return tuple(files.get(name) for name in names)


def _public(exp: Experiment) -> Path | None:
    if exp.public is None or exp.public.data == "own" or not is_own(exp.public.data):
        return None
    path = Path(exp.public.data)
    if not path.is_file():
        raise UsageError(
            f"public.data = '{exp.public.data}' is not a file that can be handed to all sites; save the public samples "
            "as one .csv, .parquet or .npz file"
        )
    return path


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
