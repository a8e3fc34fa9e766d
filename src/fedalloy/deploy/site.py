"""A site's side of a deployment: its `site.toml`, and the setting of its client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalloy.base.checked import construct
from fedalloy.base.plugins import load_file, load_installed
from fedalloy.config.experiment import made_from, read
from fedalloy.config.methods import for_method, make_method
from fedalloy.config.overrides import read_toml
from fedalloy.config.sections import Experiment
from fedalloy.deploy.agreed import AGREED, frame
from fedalloy.deploy.settings import for_share, for_site
from fedalloy.deploy.site_data import read_samples
from fedalloy.errors import UsageError
from fedalloy.federation.setting import Setting
from fedalloy.storage.store import FREE, METHOD_PARTS


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


def site_setting(folder: Path, sites: int) -> tuple[int, Setting]:
    """Return a site's client number and its setting, from its folder and its data."""
    site, exp = read_site(folder), agreed_experiment(folder)
    if site.client >= sites:
        raise UsageError(f"client = {site.client} in site.toml, but there are {sites} sites, numbered from 0")
    if site.share is not None:
        if exp.data.name == AGREED:
            raise UsageError(
                'share = ... in site.toml requires a named data set in the experiment; write data = "FILE"'
            )
        return site.client, for_share(exp, site.client, site.share)
    if exp.data.name != AGREED:
        raise UsageError(
            f'data = ... in site.toml requires data.name = "{AGREED}" in the experiment, which has '
            f"'{exp.data.name}'; write share = {site.client}"
        )
    assert site.data is not None
    own = read_samples(folder / site.data, frame(exp.data), label=site.label, size=exp.data.size)
    return site.client, for_site(exp, site.client, sites, own)


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
