"""The two apps that Flower starts: `server` next to the SuperLink, `client` at each site."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedalloy.base.files import PRIVATE, write_atomically
from fedalloy.base.plugins import blamed, load_file, load_installed
from fedalloy.config.build import refuse_statistics
from fedalloy.config.experiment import read
from fedalloy.config.methods import make_method
from fedalloy.config.sections import Experiment
from fedalloy.data.columns import Summary
from fedalloy.data.statistics import Statistics, gathered, preparation_text, refuse_apart
from fedalloy.deploy.agreed import AGREED, constants, frame
from fedalloy.deploy.audit import site_log, witnessed
from fedalloy.deploy.events import events_file, tell
from fedalloy.deploy.folder import Deployment, Say, read_deployment
from fedalloy.deploy.link import bound_nodes
from fedalloy.deploy.pauses import soon_again
from fedalloy.deploy.settings import Amount, Sizes, known_sizes, known_statistics, with_sizes, without_sizes
from fedalloy.deploy.site import (
    agreed_experiment,
    keep_preparation,
    keep_told,
    refuse_another,
    site_setting,
    site_summary,
)
from fedalloy.deploy.site_keys import revoked_sites
from fedalloy.engine.flower.carrier import Flower
from fedalloy.engine.flower.claims import Introduction, unlike
from fedalloy.engine.flower.client import PARTITION, client_app
from fedalloy.engine.flower.roster import Keys, Roster, Telling, introduce, introductions, summarise
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
    exp = read(deployment.experiment)
    before = described(deployment.run) if begun(deployment.run) else None
    told: Mapping[int, Summary] = {} if before is not None else summaries(grid, exp, deployment, say)
    statistics = known_statistics(exp, before) if before is not None else agreed_on(exp, told)
    built = without_sizes(exp, deployment.sites, statistics, deployment.server)
    if deployment.names:
        built = replace(built, setting=replace(built.setting, names=deployment.names))
    prepared = None if statistics is None else preparation_text(statistics.preparation)
    if before is not None:
        built = with_sizes(built, known_sizes(before))
    else:
        built = with_sizes(built, present(grid, exp, deployment, built.setting, say, prepared, told))
    engine = Flower(
        grid,
        built.setting,
        exp,
        say=say,
        bound=partial(valid, deployment),
        witness=partial(witnessed, deployment),
        prepared=prepared,
    )
    if before is not None:
        resume(deployment.run, built=built, engine=engine, say=say)
    else:
        simulate(exp, deployment.run, built=built, engine=engine, say=say)


def summaries(grid: Grid, exp: Experiment, deployment: Deployment, say: Say) -> Mapping[int, Summary]:
    """Ask the sites, once, for statistics of their columns; empty if the experiment says all that is needed."""
    if exp.data.name != AGREED or constants(agreed := frame(exp.data)) is not None:
        return {}
    assert agreed.recipe is not None
    if exp.privacy is not None:
        refuse_statistics(agreed)
    question = summarise(agreed.columns, agreed.recipe, prod(agreed.x.shape[2:]))

    def judge(one: Telling) -> str | None:
        return _beyond(deployment, one.client, {"training": one.summary.rows})

    bound = partial(valid, deployment)
    roster = introductions(
        grid, exp, deployment.sites, PATIENCE, say, bound, judge, deployment.names, question=question
    )
    _refuse_missing(roster, deployment, "tell statistics of their columns")
    told = {client: one.summary for client, one in sorted(roster.known.items())}
    refuse_apart(told, agreed.columns, deployment.names)
    return told


def agreed_on(exp: Experiment, told: Mapping[int, Summary]) -> Statistics | None:
    """Return the statistics that follow from what sites told; None if nobody was asked."""
    if not told:
        return None
    agreed = frame(exp.data)
    assert agreed.recipe is not None
    return gathered(list(told.values()), agreed.columns, agreed.recipe)


def _refuse_missing(roster: Roster[Any], deployment: Deployment, what: str) -> None:
    """Refuse to begin without a site that was not revoked."""
    wanted = set(range(deployment.sites)) - set(roster.revoked())
    missing = [deployment.label(k) for k in sorted(wanted - roster.known.keys())]
    if missing:
        why = "".join(f"; {deployment.label(k)}: {one.reason}" for k, one in sorted(roster.refused.items()))
        raise QuorumError(f"not enough sites: {', '.join(missing)} of {deployment.sites} did not {what}{why}")


def valid(deployment: Deployment) -> Keys:
    """Return whose keys are valid at the moment."""
    return Keys(bound_nodes(deployment), revoked_sites(deployment))


def present(
    grid: Grid,
    exp: Experiment,
    deployment: Deployment,
    setting: Setting,
    say: Say,
    prepared: str | None = None,
    summarised: Mapping[int, Summary] = MappingProxyType({}),
) -> Mapping[int, Sizes]:
    """Return what each site says it has, within the deployment's limits; from here on it is fixed.

    A revoked site keeps its number, with one blank sample, and counts as a client that never answers. What a site told
    in `summarised` must be about as many training rows.
    """
    told = make_method(exp).tells_counts

    def judge(one: Introduction) -> str | None:
        parts = {"training": one.train, "test": one.test, "validation": one.validation}
        if (fault := _beyond(deployment, one.client, parts)) is not None:
            return fault
        if one.client in summarised and (rows := summarised[one.client].rows) != one.train:
            return f"claims {one.train:,} training samples, but told statistics of {rows:,}"
        if told and not one.counts:
            return f"did not send its label counts, which {exp.method.name} needs"
        return unlike(one, setting)

    bound, question = partial(valid, deployment), introduce(prepared)
    roster = introductions(
        grid, exp, deployment.sites, PATIENCE, say, bound, judge, deployment.names, question=question
    )
    _refuse_missing(roster, deployment, "introduce themselves")
    absent: dict[int, Sizes] = dict.fromkeys(roster.revoked(), Amount(1, 1))
    return {**roster.known, **absent}


def _beyond(deployment: Deployment, site: int, parts: Mapping[str, int]) -> str | None:
    """Say which number of samples is more than a site may claim."""
    most = deployment.limit(site)
    for part, count in parts.items():
        if count > most:
            return f"claims {count:,} {part} samples, but most_samples in deployment.toml allows {most:,}"
    return None


def setting_of(context: Context, asked: dict[str, Any], prepared: str | None) -> tuple[int, Setting, Path]:
    """Return a site's number, its setting and its memory folder; refuse a server with a different experiment."""
    folder = _folder(context)
    refuse_another(agreed(context), asked)
    client, setting = site_setting(folder, int(context.node_config["num-partitions"]), prepared)
    keep_preparation(folder, _same_number(client, context), prepared, context.run_id)
    return client, setting, folder / "memory"


def summary_of(context: Context, asked: dict[str, Any]) -> tuple[int, Summary]:
    """Return a site's number and what it tells about its training rows; refuse a server with another experiment."""
    refuse_another(agreed(context), asked)
    client, summary = site_summary(_folder(context), int(context.node_config["num-partitions"]))
    keep_told(_folder(context), _same_number(client, context), summary)
    return client, summary


def _same_number(client: int, context: Context) -> int:
    if client != context.node_config[PARTITION]:
        raise UsageError(
            f"client = {client} in site.toml, but start.sh has {context.node_config[PARTITION]}; use the same number "
            "in both"
        )
    return client


def agreed(context: Context) -> Experiment:
    """Return the experiment in a site's folder."""
    return agreed_experiment(_folder(context))


def _folder(context: Context) -> Path:
    return Path(str(context.node_config["site"]))


def audit(context: Context) -> AuditLog:
    """Return a site's audit log."""
    return site_log(_folder(context), int(context.node_config[PARTITION]))


client = client_app(setting_of, agreed, audit, summary_of)
