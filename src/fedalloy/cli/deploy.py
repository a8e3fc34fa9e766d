"""The commands of `fedalloy deploy`; their imports happen when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedalloy.cli.answers import Answer, answers
from fedalloy.cli.terminal import as_typed, load_plugins, parted, resumable, say, screen, show, write_page
from fedalloy.errors import UsageError

if TYPE_CHECKING:
    from fedalloy.deploy.folder import Deployment

FOLDER = click.argument("folder", metavar="DEPLOYMENT", default=".")


@click.command("init")
@click.argument("file", metavar="EXPERIMENT.toml")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", "-o", metavar="FOLDER", required=True, help="Where to write: a new or empty folder.")
@click.option("--sites", type=int, help="How many sites take part; by default, as many as the data has clients.")
@click.option(
    "--address",
    default="127.0.0.1:8443",
    show_default=True,
    help="The address at which sites will reach the SuperLink.",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE.py",
    help="A Python file that is copied into each site's folder.",
)
def init_command(
    file: str, overrides: tuple[str, ...], out: str, sites: int | None, address: str, plugins: tuple[str, ...]
) -> None:
    """Create the folder of a deployment.

    \b
      fedalloy deploy init examples/experiment.toml --out lab --sites 3

    It has the app, certificates, keys, start scripts and one folder per site.

    An experiment on own files gives each site their format and, in a rehearsal, the path of its file. One on a named
    data set creates a rehearsal only, in which each site takes its share of that data. With data.name = "sites" each
    site uses its own data.
    """
    from fedalloy.deploy.link import need_flower

    need_flower()
    from fedalloy.config.overrides import override, read_toml, table
    from fedalloy.data.catalogue import AGREED, LISTED, datasets
    from fedalloy.data.own.dataset import is_own
    from fedalloy.deploy.init import CAP, init

    if parted(file, overrides)[0] is None:
        raise UsageError(
            f"deploy init needs an experiment file as its first argument, but '{file}' is an override; write the "
            "experiment that you have simulated into a file, such as experiment.toml"
        )
    load_plugins(plugins)
    values = override(read_toml(file), overrides)
    made = init(values, out, sites, address, plugins)
    name = table("data", values.get("data", {})).get("name", LISTED if "clients" in values else "")
    say(f"written: {out}, with one folder per site in {Path(out) / 'sites'}")
    if "cap" not in values.get("aggregation", {}):
        say(
            f"aggregation.cap = {CAP} was added: no site has a larger share of the weight; write 1.0 to trust "
            "reported sizes"
        )
    if name != AGREED:
        say(f"to rehearse: `fedalloy deploy up {out} --local {made.sites}`, then `fedalloy deploy run {out}`")
    if name in (AGREED, LISTED) or (name not in datasets and is_own(name)):
        say(
            "send each site its folder through a channel you trust; there, set the data's path in site.toml and run "
            "start.sh"
        )
        say(f"on this machine: `fedalloy deploy up {out}`, then `fedalloy deploy run {out}`")


@click.command("up")
@FOLDER
@click.option("--local", type=int, default=0, metavar="N", help="Also start the first N sites here, for a rehearsal.")
def up_command(folder: str, local: int) -> None:
    """Start a deployment's server here.

    \b
      fedalloy deploy up lab
      fedalloy deploy up lab --local 3

    These are the SuperLink and its SuperExec; the sites' keys are registered. Running processes are left alone.
    """
    from fedalloy.deploy.control import up
    from fedalloy.deploy.folder import read_deployment

    up(read_deployment(folder), local, say)


@click.command("run")
@FOLDER
@answers
def run_command(folder: str) -> dict[str, Any]:
    """Run the experiment at the sites.

    \b
      fedalloy deploy run lab

    It shows progress and results. An interrupted run is resumed.
    """
    from fedalloy.deploy.folder import read_deployment

    return _conduct(read_deployment(folder), "run", folder)


@click.command("resume")
@FOLDER
@answers
def resume_command(folder: str) -> dict[str, Any]:
    """Resume a run after processes have died here.

    \b
      fedalloy deploy resume lab

    They are restarted, and the run goes on from its last round.
    """
    from fedalloy.deploy.control import revive
    from fedalloy.deploy.folder import read_deployment
    from fedalloy.errors import UsageError
    from fedalloy.storage.store import begun

    deployment = read_deployment(folder)
    if not begun(deployment.run):
        raise UsageError(f"'{folder}' has no run to resume; start one with `fedalloy deploy run {folder}`")
    revive(deployment, say)
    return _conduct(deployment, "resume", folder)


@click.command("status")
@FOLDER
@answers
def status_command(folder: str) -> dict[str, Any]:
    """Show how the sites and the run are doing.

    \b
      fedalloy deploy status lab

    The state of the link and of each site, the round, and the last error.
    """
    from rich.table import Table

    from fedalloy.deploy.control import status
    from fedalloy.deploy.folder import read_deployment

    table, found = Table(show_header=False), status(read_deployment(folder))
    for what, how in found:
        table.add_row(what, how)
    screen().print(table, highlight=False, markup=False)
    return {"status": [{"what": what, "state": how} for what, how in found]}


@click.command("down")
@FOLDER
def down_command(folder: str) -> None:
    """Stop everything that `up` has started.

    \b
      fedalloy deploy down lab
    """
    from fedalloy.deploy.control import down
    from fedalloy.deploy.folder import read_deployment

    down(read_deployment(folder), say)


@click.command("revoke")
@click.argument("folder", metavar="DEPLOYMENT")
@click.argument("site", metavar="SITE")
def revoke_command(folder: str, site: str) -> None:
    """Revoke a site's key, from this moment on.

    \b
      fedalloy deploy revoke lab 2

    SITE is a number, site-NUMBER or the site's name.

    A run in progress goes on without the site. `rotate --reinstate` gives it a new key.
    """
    from fedalloy.deploy.folder import read_deployment
    from fedalloy.deploy.rotation import revoke

    deployment = read_deployment(folder)
    revoke(deployment, deployment.number(site), say)


@click.command("rotate")
@click.argument("folder", metavar="DEPLOYMENT")
@click.argument("site", metavar="SITE")
@click.option("--public-key", metavar="FILE", help="The public part of a key that the site has created itself.")
@click.option("--reinstate", is_flag=True, help="Let a revoked site take part again.")
def rotate_command(folder: str, site: str, public_key: str | None, reinstate: bool) -> None:
    """Replace a site's key.

    \b
      fedalloy deploy rotate lab 2

    The old one is never valid again. SITE can also be `server`, to renew its certificate.
    """
    from fedalloy.deploy.folder import read_deployment
    from fedalloy.deploy.rotation import renew_server, rotate

    deployment = read_deployment(folder)
    if site == "server":
        if public_key is not None or reinstate:
            raise UsageError("--public-key and --reinstate are for sites; leave them out to renew the certificate")
        renew_server(deployment, say)
    else:
        file = None if public_key is None else Path(public_key)
        rotate(deployment, deployment.number(site), say, file, reinstate=reinstate)


@click.command("audit")
@click.argument("path", metavar="PATH", default=".")
@click.option("--head", "heads", multiple=True, metavar="LINE:HASH", help="A head that you have noted earlier.")
@answers
def audit_command(path: str, heads: tuple[str, ...]) -> Answer:
    """Verify and show the audit log of a site.

    \b
      fedalloy deploy audit lab/sites/site-1

    PATH is the site's folder, or a deployment with sites in it.

    The exit status is 1 if a line was changed, removed or inserted, or if a noted head is not in the log.
    """
    from fedalloy.deploy.audit import audited, rows, site_label, site_names, table
    from fedalloy.errors import FedalloyError

    found = audited(Path(path), heads)
    names = site_names(Path(path))
    called = {key: site_label(names, *key) for key in found}
    for (folder, number), one in found.items():
        name = called[folder, number]
        beside = "" if name == folder.name else f"{folder.name}, "
        screen().print(table(f"{name} ({beside}client {number})", one).rich())
        if one.fault is None:
            say(f"head of {name}: {one.head}")  # in one piece, to be copied
    if not found:
        say("no site here has an audit log yet; it begins with the first message")
    told = [
        {"site": folder.name, "name": called[folder, number], "client": number, "intact": one.fault is None,
         "fault": one.fault, "head": one.head, "notes": one.notes, "rows": rows(one.entries)}
        for (folder, number), one in found.items()
    ]  # fmt: skip
    broken = (
        FedalloyError(f"the audit log of {called[key]} is not intact: {one.fault}")
        for key, one in found.items()
        if one.fault is not None
    )
    return Answer(told, next(broken, None))


@click.command("report")
@click.argument("path", metavar="PATH", default=".")
@click.option("--out", "-o", default="", metavar="FILE", help="Where to write; of several sites, a folder.")
@click.option("--alone", is_flag=True, help="Also train a model on the site's own rows, to compare with.")
def report_command(path: str, out: str, alone: bool) -> None:
    """Write a site's own page from its audit log.

    \b
      fedalloy deploy report lab/sites/site-1

    It says what the site was asked, sent and gained, without asking the server.

    PATH is the site's folder, or a deployment with sites in it, each of which gets its page. By default this is
    report.html in the site's folder.
    """
    from fedalloy.deploy.site_report import write_pages

    for page in write_pages(Path(path), out, say, alone=alone):
        say(f"written: {page}")


def _conduct(deployment: Deployment, command: str, folder: str) -> dict[str, Any]:
    """Submit the app, or follow the run in progress, and show the results at the end."""
    from fedalloy.base.plugins import load_file, load_installed
    from fedalloy.config.experiment import read
    from fedalloy.config.methods import make_method
    from fedalloy.deploy.control import follow, submitted
    from fedalloy.report.progress import Display
    from fedalloy.storage.results import read as read_run
    from fedalloy.storage.store import begun, described

    load_installed()
    for plugin in deployment.plugins:
        load_file(plugin)
    exp = read(deployment.experiment)
    if begun(deployment.run) and described(deployment.run)["status"] == "done":
        say("the run is finished and will not be run again")
    else:
        run = submitted(deployment, say)
        with Display(1, exp.rounds) as display, resumable("deploy", "resume", folder):
            follow(deployment, run, display.begin(make_method(exp).label, exp.seed), say)
    runs = [read_run(deployment.run)]
    answer = show(runs)
    page = write_page(runs, deployment.run / "report.html", as_typed("deploy", command, deployment.folder.name))
    return answer | {"report": page}


COMMANDS: dict[str, click.Command] = {
    str(each.name): each
    for each in (
        init_command,
        up_command,
        run_command,
        status_command,
        resume_command,
        down_command,
        revoke_command,
        rotate_command,
        audit_command,
        report_command,
    )
}
