"""Create a deployment's folder from an experiment: app, certificates, keys, start scripts, one folder per site."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedalloy.base.files import PRIVATE, make_folder, write_atomically
from fedalloy.config.build import build, loaded, refuse_statistics, tried
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import make_method
from fedalloy.config.sections import Experiment
from fedalloy.data.columns import Preparation, PreparedColumn
from fedalloy.data.statistics import Statistics
from fedalloy.deploy import keys, scripts
from fedalloy.deploy.agreed import AGREED, constants, frame
from fedalloy.deploy.folder import Deployment, parse_address
from fedalloy.deploy.own_files import handed, has_own_files, refuse_pooled
from fedalloy.deploy.settings import refuse_resized, without_sizes
from fedalloy.errors import UsageError
from fedalloy.federation.setting import Setting
from fedalloy.run.runner import refuse_unfit
from fedalloy.train.fit import one_thread

CAP = 0.5  # the largest share of the weight of one site: the size that a site reports cannot be checked
OWNER_ALONE = 0o700
PUBLIC = 0o644
EXECUTABLE = 0o755
UNKNOWN = "?"  # a category while nobody has told which there are

_SHARE = """client = {number}
# A rehearsal: this site takes its share of the experiment's own data, as in `fedalloy run`.
share = {number}
"""
_OWN = """client = {number}
# The path of this site's data: a .csv, .parquet or .npz file, or a folder of images (train/CLASS/*.png,
# test/CLASS/*.png). It is read here and never sent. A relative path is relative to this folder.
data = {data}
# label = "diagnosis"   # if this site calls the column to predict something else than experiment.toml
"""


def init(
    values: Mapping[str, Any],
    out: str | Path,
    sites: int | None = None,
    address: str = "127.0.0.1:8443",
    plugins: Sequence[str | Path] = (),
) -> Deployment:
    """Write a new deployment of an experiment, given as the values of its file; plug-ins must already be loaded.

    An experiment without an `aggregation.cap` gets the default `CAP`. One on own files gets their format instead, which
    all sites must have; without `sites`, each client of the experiment is one.
    """
    import tomli_w

    host, port = parse_address(address)
    exp = experiment(values)
    raw = None
    if has_own_files(exp):
        # Everything that a simulation would refuse is refused here, while the files are at hand.
        given = loaded(exp)
        built, raw = build(exp, given=given), given.data
        refuse_pooled(exp, built)
        with one_thread():
            tried(built.setting)
            refuse_unfit(make_method(exp), built.setting)
        sites = len(built.setting.sites) if sites is None else sites
    if sites is None:
        sites = len(exp.clients) or (len(build(exp).setting.sites) if exp.data.name != AGREED else 0)
    if sites == 0:
        raise UsageError("nobody says how many sites there are; write --sites 3, or [[clients]] with a name for each")
    hand = handed(values, exp, raw)
    values, exp = hand.values, experiment(hand.values)
    if raw is not None:
        refuse_resized(raw, frame(exp.data))
    deployment = Deployment(Path(out).absolute(), host, port, sites)
    names = refuse_undeployable(exp, sites, hand.public).names
    deployment = replace(deployment, names=tuple(names))
    if deployment.folder.exists() and any(deployment.folder.iterdir()):
        raise UsageError(f"'{out}' is not empty; choose another folder; existing keys are never overwritten")
    if port + sites >= 65536:
        raise UsageError(f"ports {port} to {port + sites} are needed; choose an address with a lower port")
    text = tomli_w.dumps(with_cap(values)).encode()
    for folder in (deployment.folder, deployment.server, deployment.state):
        make_folder(folder, OWNER_ALONE)
    make_folder(deployment.app)
    _write(deployment.app / "pyproject.toml", scripts.APP, PUBLIC)
    _write(deployment.experiment, text, PUBLIC)
    authority = keys.authority()
    _server(deployment, authority, plugins)
    for number in range(sites):
        _site(deployment, number, authority, text, _site_file(exp, number, hand.paths), plugins)
    if hand.public is not None and exp.public is not None:
        for folder in (deployment.server, *(deployment.site(number) for number in range(sites))):
            shutil.copyfile(hand.public, folder / exp.public.data)
    _write(deployment.folder / "deployment.toml", deployment.to_toml(), PUBLIC)
    return deployment


def _site_file(exp: Experiment, number: int, paths: Sequence[str | None]) -> str:
    """The contents of a site's site.toml; where its data is, only the site knows, unless the files are here."""
    if exp.data.name != AGREED:
        return _SHARE.format(number=number)
    here = paths[number] if paths else None
    return _OWN.format(number=number, data=json.dumps(here or "data.csv", ensure_ascii=False))


def with_cap(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the default cap on a site's weight to an experiment's values if they have none.

    >>> with_cap({"rounds": 5})["aggregation"], with_cap({"aggregation": {"cap": 1.0}})["aggregation"]
    ({'cap': 0.5}, {'cap': 1.0})
    """
    return {**values, "aggregation": {"cap": CAP, **values.get("aggregation", {})}}


def refuse_undeployable(exp: Experiment, sites: int, public: Path | None = None) -> Setting:
    """Refuse an experiment that cannot run at sites that keep their data, or that the server would refuse later.

    `public` is the file that all sites get as a public set. Returns the setting that it was tried with.
    """
    method, agreed = make_method(exp), exp.data.name == AGREED
    if sites < 2:
        raise UsageError(f"--sites {sites}: a federation needs at least 2 sites")
    if method.card.leaves_client == "all training data":
        raise UsageError(
            f"{method.name} needs all data in one place, but in a deployment the data stays at the sites; choose "
            "another method"
        )
    measured = [key for key in ("target", "patience") if getattr(exp.stop, key) is not None]
    if exp.privacy is not None and measured and exp.stop.metric != "test":
        raise UsageError(
            f"stop.{measured[0]} depends on stop.metric = '{exp.stop.metric}', which sites do not evaluate under "
            f"[privacy]; remove stop.{measured[0]}, or stop by bytes or seconds"
        )
    if exp.start is not None:
        raise UsageError("start names a file on this machine, which the sites do not have; remove it")
    if not agreed and exp.partition.name != "natural" and exp.partition.clients != sites:
        raise UsageError(
            f"the experiment has {exp.partition.clients} clients, but --sites is {sites}; write "
            f"partition.clients = {sites}"
        )
    if agreed:
        if exp.public is not None and exp.public.data == "own":
            raise UsageError(
                "public.data = 'own' takes rows of the private data, which stays at the sites; name a published data "
                "set, or the path of a file that all sites may have"
            )
        if exp.public is not None and exp.public.task_samples:
            raise UsageError(
                f"public.task_samples = {exp.public.task_samples} takes rows of the private data, which stays at the "
                "sites; leave it out"
            )
        if exp.partition.test != "local":
            raise UsageError(f"partition.test = '{exp.partition.test}' needs a common test set; write 'local'")
    if exp.clients and len(exp.clients) != sites:
        raise UsageError(f"the experiment has {len(exp.clients)} [[clients]], but --sites is {sites}; write the same")
    setting = _agreed(exp, sites, public) if agreed else build(exp).setting
    if len(setting.sites) != sites:
        raise UsageError(
            f"the data set '{exp.data.name}' has {len(setting.sites)} clients, but --sites is {sites}; "
            f"write --sites {len(setting.sites)}"
        )
    with one_thread():
        tried(setting)
        refuse_unfit(method, setting)
    return setting


def _agreed(exp: Experiment, sites: int, public: Path | None) -> Setting:
    """The server's setting, with statistics that sites might tell: every column is 0 to 1, every category is "?"."""
    agreed = frame(exp.data)
    assert agreed.recipe is not None
    if exp.privacy is not None:
        refuse_statistics(agreed)
    ready = constants(agreed)
    if ready is None:
        asked = ((column.name, column.categories is not None) for column in agreed.columns)
        ready = Preparation(
            tuple(
                PreparedColumn(name, fill=UNKNOWN, categories=agreed.recipe.categories.get(name, (UNKNOWN,)))
                if coded
                else PreparedColumn(name, fill=0.0)
                for name, coded in asked
            ),
            tuple(PreparedColumn(name) for name in agreed.recipe.targets),
        )
    with TemporaryDirectory() as there:
        if public is not None and exp.public is not None:
            shutil.copyfile(public, Path(there) / exp.public.data)
        return without_sizes(exp, sites, Statistics(ready), Path(there)).setting


def _server(deployment: Deployment, authority: keys.Authority, plugins: Sequence[str | Path]) -> None:
    server = deployment.server
    certificate = keys.server_certificate(authority, deployment.host)
    for name, content in {
        "ca.key": authority.pair.private,
        "server.key": certificate.private,
        "superexec.secret": keys.secret(),
    }.items():
        _write(server / name, content, PRIVATE)
    _write(server / "ca.crt", authority.pair.public, PUBLIC)
    _write(server / "server.crt", certificate.public, PUBLIC)
    _write(server / "superlink.sh", scripts.superlink_script(deployment), EXECUTABLE)
    _write(server / "superexec.sh", scripts.superexec_script(deployment), EXECUTABLE)
    for part in ("superlink", "superexec"):
        _write(server / f"fedalloy-{part}.service", scripts.server_unit(part), PUBLIC)
    make_folder(server / "sites")
    _copy(plugins, server)


def _site(
    deployment: Deployment,
    number: int,
    authority: keys.Authority,
    text: bytes,
    site_file: str,
    plugins: Sequence[str | Path],
) -> None:
    site, key = deployment.site(number), keys.node_key()
    make_folder(site, OWNER_ALONE)
    _write(site / "node.key", key.private, PRIVATE)
    _write(site / "superexec.secret", keys.secret(), PRIVATE)
    _write(site / "node.pub", key.public, PUBLIC)
    _write(deployment.server / "sites" / f"site-{number}.pub", key.public, PUBLIC)
    _write(site / "ca.crt", authority.pair.public, PUBLIC)
    _write(site / "experiment.toml", text, PUBLIC)
    _write(site / "site.toml", site_file, PUBLIC)
    _write(site / "start.sh", scripts.site_script(deployment, number), EXECUTABLE)
    _write(site / f"fedalloy-site-{number}.service", scripts.site_unit(number), PUBLIC)
    _copy(plugins, site)


def _copy(plugins: Sequence[str | Path], folder: Path) -> None:
    """Copy plug-ins into a folder, so that its owner can read them; they are never sent over the network."""
    for file in plugins:
        make_folder(folder / "plugins")
        shutil.copyfile(file, folder / "plugins" / Path(file).name)


def _write(path: Path, content: bytes | str, mode: int) -> None:
    write_atomically(path, content.encode() if isinstance(content, str) else content, mode)
