"""A site's own side: what its `site.toml` says, and the setting that its client acts in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalloy.base.checked import construct
from fedalloy.base.plugins import load_file, load_installed
from fedalloy.config.experiment import METHOD_PARTS, Experiment, made_from, make_method, read, read_toml
from fedalloy.deploy.agreed import AGREED, frame
from fedalloy.deploy.settings import for_share, for_site
from fedalloy.deploy.site_data import read_samples
from fedalloy.errors import UsageError
from fedalloy.federation.setting import Setting
from fedalloy.storage.store import FREE


@dataclass(frozen=True, kw_only=True)
class SiteFile:
    """What `site.toml` says: which client this is, and its data or, in a rehearsal, its share of the experiment's."""

    client: int
    data: str | None = None
    label: str | None = None
    share: int | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.share is None):
            raise UsageError('site.toml must say either data = "FILE" or, in a rehearsal, share = NUMBER')
        if self.client < 0:
            raise UsageError(f"client = {self.client} in site.toml must not be negative")


def read_site(folder: Path) -> SiteFile:
    """What the `site.toml` in a folder says."""
    return construct(SiteFile, read_toml(folder / "site.toml", "site file"), "site.toml")


def site_setting(folder: Path, sites: int) -> tuple[int, Setting]:
    """The client that a site is, and its setting, from what was handed to it and the data it has."""
    site, exp = read_site(folder), agreed_experiment(folder)
    if site.client >= sites:
        raise UsageError(f"client = {site.client} in site.toml, but there are {sites} sites, from 0 on")
    if site.share is not None:
        if exp.data.name == AGREED:
            raise UsageError('share = ... in site.toml goes with a named data set; write data = "FILE"')
        return site.client, for_share(exp, site.client, site.share)
    if exp.data.name != AGREED:
        raise UsageError(
            f'data = ... in site.toml goes with data.name = "{AGREED}" in the experiment, which has '
            f"'{exp.data.name}'; write share = {site.client}"
        )
    assert site.data is not None
    own = read_samples(folder / site.data, frame(exp.data), label=site.label, size=exp.data.size)
    return site.client, for_site(exp, site.client, sites, own)


def agreed_experiment(folder: Path) -> Experiment:
    """The experiment that a site was handed, its plug-ins loaded."""
    load_installed()
    for file in sorted((folder / "plugins").glob("*.py")):
        load_file(file)
    return read(folder / "experiment.toml")


def refuse_another(agreed: Experiment, asked: Mapping[str, Any]) -> None:
    """Refuse a server that runs another experiment than the one this site was handed; only rounds may be added.

    >>> refuse_another(experiment({"rounds": 3}), experiment({"rounds": 30}).to_dict())
    >>> refuse_another(experiment({}), experiment({"method": "dafkd"}).to_dict())
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: the server runs another experiment than this site agreed to (method); nothing was done
    """
    here = json.loads(json.dumps(agreed.to_dict()))
    differing = [key for key in sorted({*here, *asked} - FREE - METHOD_PARTS) if here.get(key) != asked.get(key)]
    # The server may write a method's defaults out.
    if made_from(asked) != make_method(agreed):
        differing.append("method")
    if differing:
        raise UsageError(
            f"the server runs another experiment than this site agreed to ({', '.join(differing)}); nothing was done"
        )
