"""A site's side of a deployment: its `site.toml`, and the setting of its client."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalloy.base.checked import construct
from fedalloy.base.files import PRIVATE, locked, make_folder, write_atomically
from fedalloy.base.plugins import load_file, load_installed
from fedalloy.config.experiment import made_from, read
from fedalloy.config.methods import for_method, make_method
from fedalloy.config.overrides import read_toml
from fedalloy.config.sections import Experiment
from fedalloy.data.columns import Summary
from fedalloy.data.samples import Dataset
from fedalloy.data.statistics import read_preparation, refuse_unagreed, summary_text
from fedalloy.deploy.agreed import AGREED, constants, frame, read_site_data
from fedalloy.deploy.settings import for_share, for_site, split_of, told
from fedalloy.errors import UsageError
from fedalloy.federation.setting import Setting
from fedalloy.storage.store import FREE, METHOD_PARTS, experiment_digest


@dataclass(frozen=True, kw_only=True)
class SiteFile:
    """The contents of `site.toml`: which client this is, and its data or, in a rehearsal, its share."""

    client: int
    data: str | None = None
    label: str | None = None
    share: int | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.share is None):
            raise UsageError('site.toml must have either data = "FILE" or, in a rehearsal, share = NUMBER')
        if self.client < 0:
            raise UsageError(f"client = {self.client} in site.toml must not be negative")


def read_site(folder: Path) -> SiteFile:
    """Read the `site.toml` in a folder."""
    return construct(SiteFile, read_toml(folder / "site.toml", "site file"), "site.toml")


def site_setting(folder: Path, sites: int, prepared: str | None = None) -> tuple[int, Setting]:
    """Return a site's client number and its setting, from its folder and its data.

    `prepared` is how all sites prepare their rows, as the server sent it; an experiment with constants needs none.
    """
    site, exp = _site(folder, sites)
    if site.share is not None:
        return site.client, for_share(exp, site.client, site.share)
    data = own_data(folder, site, exp)
    agreed = frame(exp.data)
    ready = constants(agreed)
    if ready is None:
        if prepared is None:
            raise UsageError("the server's message is refused: it does not say how the sites prepare their rows")
        assert agreed.recipe is not None
        ready = read_preparation(prepared, data.columns, agreed.recipe.targets)
        refuse_unagreed(ready, agreed.recipe)
    return site.client, for_site(exp, site.client, sites, data, ready, folder)


def keep_preparation(folder: Path, client: int, prepared: str | None, run: int) -> None:
    """Write down how the server says that rows are prepared; refuse another preparation in the same Flower run.

    With inputs of its choice, round by round, it could learn of rows what no round tells otherwise. Messages that
    arrive at once take turns. The site also needs the preparation without the server, see `kept_preparation`.
    """
    file, kept = _preparation(folder, client), {"run": run, "prepared": prepared}
    if prepared is None or _kept(file) == kept:
        return
    make_folder(file.parent)
    with locked(file.with_suffix(".lock")):
        before = _kept(file)
        if before.get("run") == run and before.get("prepared") != prepared:
            raise UsageError("the server's message is refused: it prepares rows differently than before in this run")
        write_atomically(file, json.dumps(kept).encode(), PRIVATE)


def keep_told(folder: Path, client: int, summary: Summary) -> None:
    """Write down, before it is sent, what this site tells about its rows; refuse to tell anything else later.

    A server that asks again after a row was added or corrected would see from the difference what is in that row.
    With another experiment of its own, a site tells anew.
    """
    file = folder / "memory" / str(client) / "told.json"
    about = {
        "experiment": experiment_digest({"experiment": agreed_experiment(folder).to_dict()}),
        "told": hashlib.sha256(summary_text(summary).encode()).hexdigest(),
    }
    make_folder(file.parent)
    with locked(file.with_suffix(".lock")):
        before = _kept(file)
        if before.get("experiment") == about["experiment"] and before != about:
            raise UsageError(
                "the rows of this site have changed since it told their statistics, and the difference would reveal "
                "how; restore them, or, if its operator agrees, remove told.json at this site"
            )
        if before != about:
            write_atomically(file, json.dumps(about).encode(), PRIVATE)


def kept_preparation(folder: Path, client: int) -> str | None:
    """Return how rows were prepared when the server asked last, if it was said."""
    prepared = _kept(_preparation(folder, client)).get("prepared")
    return prepared if isinstance(prepared, str) else None


def _kept(file: Path) -> dict[str, Any]:
    """What was written down; nothing if the file is missing or damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _preparation(folder: Path, client: int) -> Path:
    return folder / "memory" / str(client) / "prepared.json"


def site_summary(folder: Path, sites: int) -> tuple[int, Summary]:
    """Return a site's client number and what it tells about its training rows."""
    site, exp = _site(folder, sites)
    if site.share is not None:
        raise UsageError("this site takes a share of the experiment's own data, and has no statistics to tell")
    return site.client, told(exp, site.client, own_data(folder, site, exp))


def site_sizes(folder: Path, sites: int) -> tuple[int, int, int]:
    """Return a site's client number and how many training and test samples it has, without preparing them."""
    site, exp = _site(folder, sites)
    if site.share is not None:
        own = for_share(exp, site.client, site.share).sites[site.client]
        return site.client, len(own.train), len(own.test)
    rows, _, held = split_of(own_data(folder, site, exp), exp, site.client)
    return site.client, len(rows), len(held)


def own_data(folder: Path, site: SiteFile, exp: Experiment) -> Dataset:
    """Read a site's own samples, which must have the agreed format."""
    assert site.data is not None
    return read_site_data(folder / site.data, exp.data, site.label)


def _site(folder: Path, sites: int) -> tuple[SiteFile, Experiment]:
    """Return a site's file and its experiment, if they go together."""
    site, exp = read_site(folder), agreed_experiment(folder)
    if site.client >= sites:
        raise UsageError(f"client = {site.client} in site.toml, but there are {sites} sites, numbered from 0")
    if site.share is not None and exp.data.name == AGREED:
        raise UsageError('share = ... in site.toml requires a named data set in the experiment; write data = "FILE"')
    if site.share is None and exp.data.name != AGREED:
        raise UsageError(
            f'data = ... in site.toml requires data.name = "{AGREED}" in the experiment, which has '
            f"'{exp.data.name}'; write share = {site.client}"
        )
    return site, exp


def agreed_experiment(folder: Path) -> Experiment:
    """Load a site's plug-ins and read its experiment."""
    load_installed()
    for file in sorted((folder / "plugins").glob("*.py")):
        load_file(file)
    return read(folder / "experiment.toml")


def refuse_another(agreed: Experiment, asked: Mapping[str, Any]) -> None:
    """Refuse a server whose experiment differs from this site's own; only the number of rounds may differ.

    >>> from fedalloy import experiment
    >>> refuse_another(experiment({"rounds": 3}), experiment({"rounds": 30}).to_dict())
    >>> refuse_another(experiment({}), experiment({"method": "dafkd"}).to_dict())
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: the server's experiment differs from the one this site agreed to (method); refused
    """
    here = json.loads(json.dumps(for_method(agreed).to_dict()))
    differing = [key for key in sorted({*here, *asked} - FREE - METHOD_PARTS) if here.get(key) != asked.get(key)]
    # The server may write out a method's defaults.
    if made_from(asked) != make_method(agreed):
        differing.append("method")
    if differing:
        raise UsageError(
            f"the server's experiment differs from the one this site agreed to ({', '.join(differing)}); refused"
        )
