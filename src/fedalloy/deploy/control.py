"""Start a deployment, run, follow and resume its experiment, and stop it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedalloy.base.files import write_json
from fedalloy.base.text import client_label
from fedalloy.deploy import link, processes
from fedalloy.deploy.events import events, events_file
from fedalloy.deploy.folder import Deployment, Say
from fedalloy.deploy.site_keys import REVOKED, is_revoked, revoked_sites
from fedalloy.errors import CheckpointError, DataError, FedalloyError, UsageError
from fedalloy.federation.quorum import QuorumError

SUPERLINK, SUPEREXEC = "superlink", "superexec"
START = 180.0  # seconds until a process must be ready
LOOK = 0.3  # seconds between two reads of a run's files
ASK = 5.0  # seconds between two requests to the SuperLink
KINDS: Mapping[int, type[FedalloyError]] = {
    kind.code: kind for kind in (UsageError, DataError, CheckpointError, QuorumError)
}

Watch = Callable[[Mapping[str, Any]], None]


def up(deployment: Deployment, local: int, say: Say) -> None:
    """Start the server's processes and, for a rehearsal, the first `local` sites; leave running processes alone."""
    link.need_flower()
    if not 0 <= local <= deployment.sites:
        raise UsageError(f"--local {local}: this deployment has {deployment.sites} sites")
    here = [k for k in range(local) if not is_revoked(deployment, k)]
    names = [SUPERLINK, SUPEREXEC, *map(site_name, here)]
    missing = [name for name in names if not processes.is_running(deployment.state, name)]
    processes.stop(deployment.state, missing)  # a process that died may have left child processes behind
    ports = {SUPERLINK: deployment.port} | {site_name(k): deployment.runtime_port(k) for k in here}
    processes.refuse_busy("127.0.0.1", [ports[name] for name in missing if name in ports])
    for name in (SUPERLINK, SUPEREXEC):
        if name in missing:
            _start(deployment, name)
        if name == SUPERLINK:
            _wait(deployment, name, lambda: processes.answers(deployment.port))
        state = "started" if name in missing else "was running"
        say(f"{name:<12} {state}" + (f", at {deployment.address}" if name == SUPERLINK else ""))
    link.register(deployment)
    started = time.time()
    for name in names[2:]:
        if name in missing:
            _start(deployment, name)
    for k in here:
        _await_site(deployment, k, started if site_name(k) in missing else 0.0)
        say(f"{deployment.label(k):<12} online")
    for k in revoked_sites(deployment):
        say(f"{deployment.label(k):<12} {REVOKED}")


def start_site(deployment: Deployment, number: int, since: float) -> None:
    """Start a site on this machine, and wait until it has connected."""
    _start(deployment, site_name(number))
    _await_site(deployment, number, since)


def _await_site(deployment: Deployment, number: int, since: float) -> None:
    """Wait until a site has connected after the time `since`.

    The SuperLink considers a killed site connected for another minute, and refuses it until then.
    """
    name, taken, end = site_name(number), False, time.monotonic() + START
    while time.monotonic() < end:
        state, connected = link.nodes(deployment)[number]
        running = processes.is_running(deployment.state, name)
        if running and state == "online" and connected >= since:
            return
        if not running:
            if state != "online" and not taken:
                raise _not_started(deployment, name)
            taken = state == "online"
            time.sleep(5 * LOOK)
            processes.stop(deployment.state, [name])
            _start(deployment, name)
        time.sleep(LOOK)
    raise link.LinkError(f"{name} was not connected after {START:.0f} s; state/{name}.log may show why")


def _start(deployment: Deployment, name: str) -> None:
    script = deployment.server / f"{name}.sh"
    if name.startswith("site-"):
        script = deployment.folder / "sites" / name / "start.sh"
    if not script.is_file():
        raise UsageError(
            f"'{script}' does not exist; if this site's folder was handed over, start it there, otherwise create the "
            "deployment again"
        )
    processes.start(script, name, deployment.state)


def _wait(deployment: Deployment, name: str, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end:
        if ready():
            return
        if not processes.is_running(deployment.state, name):
            raise _not_started(deployment, name)
        time.sleep(LOOK)
    raise link.LinkError(f"{name} was not ready after {START:.0f} s; state/{name}.log may show why")


def _not_started(deployment: Deployment, name: str) -> link.LinkError:
    said = processes.last_line(deployment.state, name)
    return link.LinkError(f"{name} did not start: {said or 'no output'}; see state/{name}.log")


def down(deployment: Deployment, say: Say) -> None:
    """Stop everything that `up` has started, sites first."""
    running = processes.known(deployment.state)
    current = _current(deployment)
    if current and processes.is_running(deployment.state, SUPERLINK):
        with suppress(link.LinkError):  # a SuperLink that does not answer is stopped anyway
            if _is_under_way(deployment, current):
                link.cancel(deployment, current)
    order = sorted(running, key=lambda name: (name == SUPERLINK, name == SUPEREXEC, name))
    for name in order:
        ended = processes.stop(deployment.state, [name])
        say(f"{_label(deployment, name):<12} {'stopped' if ended else 'was not running'}")
    if not running:
        say("nothing was running")


def submitted(deployment: Deployment, say: Say) -> str:
    """Return the id of the current run, or submit one; a new run needs all sites, a resumed one at least one.

    Revoked sites do not count, unless too few are left for a quorum.
    """
    from fedalloy.storage.store import begun  # takes seconds, because of torch

    current = _current(deployment)
    if current and _is_under_way(deployment, current):
        say("the run is in progress; following it")
        return current
    states = link.site_states(deployment)
    revoked = [k for k, state in states.items() if state == REVOKED]
    if revoked:
        _refuse_too_few(deployment, revoked)
        say(f"revoked: {', '.join(map(deployment.label, revoked))}; the run goes on without")
    counted = {k: state for k, state in states.items() if state != REVOKED}
    away = [f"{deployment.label(k)} is {state}" for k, state in counted.items() if state != "online"]
    if away and (len(away) == len(counted) or not begun(deployment.run)):
        raise UsageError(f"not all sites are online: {', '.join(away)}; start them, then try again")
    for sentence in away:
        say(f"{sentence}; the run continues without it until it is back")
    run = link.submit(deployment)
    write_json(deployment.state / "current.json", {"run": run})
    return run


def _refuse_too_few(deployment: Deployment, revoked: list[int]) -> None:
    """Refuse a run in which every round would be skipped because too few sites are left."""
    from fedalloy.config.experiment import read

    exp, left = read(deployment.experiment), deployment.sites - len(revoked)
    needed = max(1, exp.quorum.needed(deployment.sites))
    if left == 0 or (exp.participation.policy == "full" and left < needed):
        raise QuorumError(
            f"not enough sites: {', '.join(map(deployment.label, revoked))} of {deployment.sites} are revoked, and "
            f"quorum.fraction = {exp.quorum.fraction:g} needs {needed}; give a site a new key with `fedalloy deploy "
            f"rotate {deployment.folder.name} SITE --reinstate`, or create a deployment without the revoked sites"
        )


def revive(deployment: Deployment, say: Say) -> None:
    """Restart the processes that `up` had started on this machine and that have died since."""
    names = processes.known(deployment.state)
    sites = [int(name.removeprefix("site-")) for name in names if name.startswith("site-")]
    for name in names:
        if not processes.is_running(deployment.state, name):
            say(
                f"{_label(deployment, name):<12} had died: {processes.last_line(deployment.state, name) or 'no output'}"
            )
    up(deployment, 1 + max(sites, default=-1), say)


def follow(deployment: Deployment, run: str, watch: Watch, say: Say) -> None:
    """Show a run until it ends; raise the error of a run that fails."""
    file, told, shown, asked = events_file(deployment, run), 0, 0, time.monotonic()
    silent = False
    while True:
        for record in _records(deployment)[shown:]:
            shown += 1
            watch(record)
        for event in events(file, told):
            told += 1
            if event["kind"] == "ended":
                return
            if event["kind"] == "failed":
                raise KINDS.get(event.get("code", 0), FedalloyError)(event["text"])
            say(event["text"])
        if time.monotonic() - asked > ASK:
            asked = time.monotonic()
            silent = _refuse_ended(deployment, run, file, told, silent, say)
        time.sleep(LOOK)


def _refuse_ended(deployment: Deployment, run: str, file: Path, told: int, silent: bool, say: Say) -> bool:
    """Raise if the run has died without reporting how it ended; return whether the SuperLink does not answer."""
    again = f"`fedalloy deploy resume {deployment.folder.name}` continues from the last round"
    here = processes.known(deployment.state)
    for name in (SUPERLINK, SUPEREXEC):
        if name in here and not processes.is_running(deployment.state, name):
            raise link.LinkError(f"the {name} has died; {again}")
    try:
        state, details = link.run_status(deployment, run)
    except link.LinkError as error:
        if not silent:
            say(f"{error}; waiting for it")
        return True
    if state == "finished" and not list(events(file, told)):
        raise link.LinkError(f"the server's part of the run has died ({details or 'no reason given'}); {again}")
    return False


def _is_under_way(deployment: Deployment, run: str) -> bool:
    if any(event["kind"] in ("ended", "failed") for event in events(events_file(deployment, run))):
        return False  # Flower notices a moment later
    return link.run_status(deployment, run)[0] in ("pending", "starting", "running")


def _current(deployment: Deployment) -> str:
    file = deployment.state / "current.json"
    return str(json.loads(file.read_text())["run"]) if file.exists() else ""


def _records(deployment: Deployment) -> list[dict[str, Any]]:
    file = deployment.run / "rounds.jsonl"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


def _label(deployment: Deployment, process: str) -> str:
    """Return what a process is called in sentences: a site's by the site's name."""
    return {site_name(k): deployment.label(k) for k in range(deployment.sites)}.get(process, process)


def site_name(number: int) -> str:
    """Return the name of a site's process."""
    return f"site-{number}"


def status(deployment: Deployment) -> list[tuple[str, str]]:
    """Return the state of the link and of each site, the round, and the last error."""
    rows = []
    for name in (SUPERLINK, SUPEREXEC):
        if name in processes.known(deployment.state):
            alive = processes.is_running(deployment.state, name)
            rows.append((name, "running" if alive else f"died: {processes.last_line(deployment.state, name)}"))
    try:
        sites = link.site_states(deployment)
        rows.append(("link", f"answers at {deployment.address}"))
    except link.LinkError as error:
        sites = {k: REVOKED if is_revoked(deployment, k) else "unknown" for k in range(deployment.sites)}
        rows.append(("link", str(error)))
    rows += [(deployment.label(k), state) for k, state in sites.items()]
    records = _records(deployment)
    rows.append(("round", f"{records[-1]['round']} done" if records else "none finished yet"))
    return [*rows, ("last error", last_fault(deployment, records))]


def last_fault(deployment: Deployment, records: list[dict[str, Any]]) -> str:
    """Return the last error as one line."""
    current = _current(deployment)
    failed = [e["text"] for e in events(events_file(deployment, current)) if e["kind"] == "failed"] if current else []
    if failed:
        return str(failed[-1])
    for record in reversed(records):
        for bad in record.get("quarantined", [])[-1:]:
            return f"round {record['round']}, {client_label(deployment.names, bad['client'])}: {bad['reason']}"
        if record.get("skipped"):
            return f"round {record['round']} was skipped: {record['skipped']}"
    return "none"
