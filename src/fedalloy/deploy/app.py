"""The two apps that Flower starts: `server` next to the SuperLink, `client` at each site."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedalloy.base.files import PRIVATE, write_atomically
from fedalloy.base.plugins import blamed, load_file, load_installed
from fedalloy.config.experiment import read
from fedalloy.config.methods import make_method
from fedalloy.config.sections import Experiment
from fedalloy.deploy.audit import site_log, witnessed
from fedalloy.deploy.events import events_file, tell
from fedalloy.deploy.folder import Deployment, Say, read_deployment
from fedalloy.deploy.link import bound_nodes
from fedalloy.deploy.pauses import soon_again
from fedalloy.deploy.settings import known_sizes, with_sizes, without_sizes
from fedalloy.deploy.site import agreed_experiment, refuse_another, site_setting
from fedalloy.engine.flower.carrier import Flower
from fedalloy.engine.flower.claims import Introduction, unlike
from fedalloy.engine.flower.client import PARTITION, client_app
from fedalloy.engine.flower.roster import introductions
from fedalloy.errors import FedalloyError, UsageError
from fedalloy.federation.quorum import QuorumError
from fedalloy.federation.setting import Setting
from fedalloy.run.runner import resume, simulate
from fedalloy.storage.audit import AuditLog
from fedalloy.storage.store import begun, described

PATIENCE = 600.0  # seconds to wait for sites that are not connected yet

server = ServerApp()


@server.main()
def conduct(grid: Grid, context: Context) -> None:
    """Run the deployment's experiment, or resume it, and report how it ended."""
    deployment = read_deployment(os.environ["FEDALLOY_DEPLOYMENT"])
    file = events_file(deployment, context.run_id)
    soon_again()
    try:
        conducted(grid, deployment, partial(tell, file, "said"))
    except FedalloyError as error:
        tell(file, "failed", str(error), code=error.code)
        raise
    except Exception as error:
        trace = file.with_suffix(".log")  # Flower does not keep the output of an app
        write_atomically(trace, traceback.format_exc().encode(), PRIVATE)
        whose = blamed(error) or f"{type(error).__name__}: {error} (a bug in fedalloy)"
        tell(file, "failed", f"{whose}; see {trace} for the traceback")
        raise
    tell(file, "ended")


def conducted(grid: Grid, deployment: Deployment, say: Say) -> None:
    """Ask the sites what data they have, then run the experiment with messages that Flower carries."""
    load_installed()
    for plugin in deployment.plugins:
        load_file(plugin)
    exp, bound = read(deployment.experiment), bound_nodes(deployment)
    built = without_sizes(exp, deployment.sites)
    if deployment.names:
        built = replace(built, setting=replace(built.setting, names=deployment.names))
    if begun(deployment.run):
        built = with_sizes(built, known_sizes(described(deployment.run)))
        resume(deployment.run, built=built, engine=_engine(grid, built.setting, exp, deployment, say), say=say)
    else:
        built = with_sizes(built, present(grid, exp, deployment, bound, built.setting, say))
        simulate(exp, deployment.run, built=built, engine=_engine(grid, built.setting, exp, deployment, say), say=say)


def _engine(grid: Grid, setting: Setting, exp: Experiment, deployment: Deployment, say: Say) -> Flower:
    witness = partial(witnessed, deployment)
    return Flower(grid, setting, exp, say=say, bound=bound_nodes(deployment), witness=witness)


def present(
    grid: Grid, exp: Experiment, deployment: Deployment, bound: Mapping[int, int], setting: Setting, say: Say
) -> Mapping[int, Introduction]:
    """Return what each site says it has, within the deployment's limits; from here on it is fixed."""
    told = make_method(exp).tells_counts

    def judge(one: Introduction) -> str | None:
        most = deployment.limit(one.client)
        parts = {"training": one.train, "test": one.test, "validation": one.validation}
        for part, count in parts.items():
            if count > most:
                return f"claims {count:,} {part} samples, but most_samples in deployment.toml allows {most:,}"
        if told and not one.counts:
            return f"did not send its label counts, which {exp.method.name} needs"
        return unlike(one, setting)

    roster = introductions(grid, exp, deployment.sites, PATIENCE, say, bound, judge, deployment.names)
    missing = [deployment.label(k) for k in range(deployment.sites) if k not in roster.known]
    if missing:
        why = "".join(f"; {deployment.label(k)}: {one.reason}" for k, one in sorted(roster.refused.items()))
        raise QuorumError(
            f"not enough sites: {', '.join(missing)} of {deployment.sites} did not introduce themselves{why}"
        )
    return roster.known


def setting_of(context: Context, asked: dict[str, Any]) -> tuple[int, Setting, Path]:
    """Return a site's number, its setting and its memory folder; refuse a server with a different experiment."""
    folder = _folder(context)
    refuse_another(agreed(context), asked)
    client, setting = site_setting(folder, int(context.node_config["num-partitions"]))
    if client != context.node_config[PARTITION]:
        raise UsageError(
            f"client = {client} in site.toml, but start.sh has {context.node_config[PARTITION]}; use the same number "
            "in both"
        )
    return client, setting, folder / "memory"


def agreed(context: Context) -> Experiment:
    """Return the experiment in a site's folder."""
    return agreed_experiment(_folder(context))


def _folder(context: Context) -> Path:
    return Path(str(context.node_config["site"]))


def audit(context: Context) -> AuditLog:
    """Return a site's audit log."""
    return site_log(_folder(context), int(context.node_config[PARTITION]))


client = client_app(setting_of, agreed, audit)
