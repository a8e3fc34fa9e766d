"""A deployment between hosts of their own: a server and three sites, each with its address, its folder and no more.

The hosts are network namespaces (`network.py`). They share this machine's files, so each site's folder is moved to a
folder of its host, and its processes are started there as systemd would: again, five seconds after they end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from network import Network, network

from fedalloy.base import tree
from fedalloy.config.experiment import experiment
from fedalloy.deploy import processes
from fedalloy.deploy.audit import authority
from fedalloy.deploy.folder import Deployment, read_deployment
from fedalloy.deploy.init import with_cap
from fedalloy.errors import FedalloyError
from fedalloy.run.runner import simulate
from fedalloy.storage.audit import Verified, verify
from fedalloy.storage.store import Store

SITES = 3
SERVER, PORT = "server", 8443
HOSTS = {SERVER: "10.77.0.1", **{f"site-{k}": f"10.77.0.{10 + k}" for k in range(SITES)}}
FEDALLOY = [sys.executable, "-c", "from fedalloy.cli.main import main; main()"]
START = 180.0  # seconds until all sites are online
LONGEST = 900.0  # seconds that a run may take
SYSTEMD = "while :; do /bin/sh start.sh; sleep 5; done"  # Restart=always, RestartSec=5


class LabError(Exception):
    """Something that must work did not."""


@dataclass
class Lab:
    """A server and three sites, which run one experiment after the other."""

    net: Network
    scratch: Path
    deployment: Deployment
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def site(self, number: int) -> Path:
        """Return a site's folder on its own host."""
        return self.scratch / "hosts" / f"site-{number}" / "fedalloy"

    def fedalloy(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `fedalloy` on the server's host; its output is in `said`."""
        with (self.scratch / "said").open("wb") as file:
            command = self.net.command(SERVER, [*FEDALLOY, *words])
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment())

    def done(self, *words: str) -> None:
        """Run `fedalloy` on the server's host, and raise an error if it fails."""
        process = self.fedalloy(*words)
        try:
            code = process.wait(START + 60)
        except subprocess.TimeoutExpired as late:
            process.kill()
            raise LabError(f"fedalloy {' '.join(words)} did not end: {self.said()}") from late
        if code:
            raise LabError(f"fedalloy {' '.join(words)}: exit status {code}: {self.said()}")

    def said(self) -> str:
        """Return what the last command printed."""
        text = processes.COLOUR.sub("", (self.scratch / "said").read_text(errors="replace"))
        return "\n".join(line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip())

    def up(self) -> None:
        """Start the server, hand each site its folder, start the sites, and wait until they are online."""
        for number in range(SITES):
            self.site(number).parent.mkdir(parents=True)
            shutil.move(self.deployment.site(number), self.site(number))
        self.done("deploy", "up", str(self.deployment.folder))
        for number in range(SITES):
            self.start(number)
        self.await_sites()

    def start(self, number: int) -> None:
        """Start a site on its own host."""
        name, folder = f"site-{number}", self.site(number)
        with (folder.parent / "log").open("ab") as log:
            command = self.net.command(name, ["/bin/sh", "-c", SYSTEMD])
            self.started[name] = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(),
                start_new_session=True,
            )  # fmt: skip

    def power_off(self, number: int) -> None:
        """Kill every process of a site's host at once."""
        process = self.started.pop(f"site-{number}")
        members = self.net.processes(f"site-{number}")  # Flower starts some in sessions of their own
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def states(self) -> dict[str, str]:
        """Return the state of each site, as `deploy status` would show it."""
        from fedalloy.deploy.link import site_states

        found = self.net.on(SERVER, lambda: site_states(self.deployment))
        return {f"site-{number}": state for number, state in found.items()}

    def await_sites(self) -> None:
        """Wait until all sites are online."""
        end = time.monotonic() + START
        while set(self.states().values()) != {"online"}:
            if time.monotonic() > end:
                raise LabError(f"not all sites are online: {self.states()}")
            time.sleep(1.0)

    def down(self) -> None:
        """Stop everything."""
        for name in list(self.started):
            self.power_off(int(name.removeprefix("site-")))
        self.done("deploy", "down", str(self.deployment.folder))

    def give(self, values: Mapping[str, Any]) -> None:
        """Give all hosts another experiment, and remove the previous run."""
        shutil.rmtree(self.deployment.run, ignore_errors=True)
        (self.deployment.state / "audit-heads.json").unlink(missing_ok=True)
        files = [self.deployment.experiment]
        for k in range(SITES):
            shutil.rmtree(self.site(k) / "memory", ignore_errors=True)
            files.append(self.site(k) / "experiment.toml")
        for file in files:
            file.write_text(tomli_w.dumps(with_cap(values)))

    def run(self, values: Mapping[str, Any], meanwhile: Callable[[], None] = lambda: None) -> str:
        """Run an experiment, do something meanwhile, and return the digest of the model, or why there is none."""
        self.give(values)
        self.await_sites()
        process = self.fedalloy("deploy", "run", str(self.deployment.folder))
        try:
            meanwhile()
            process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            return f"NOT ENDED after {LONGEST:.0f} s: {self.said()[-300:]}"
        finally:
            process.kill()
            process.wait()
        return digest(self.deployment.run)

    def records(self) -> list[dict[str, Any]]:
        """Return the rounds so far."""
        file = self.deployment.run / "rounds.jsonl"
        return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []

    def after_round(self, number: int) -> None:
        """Wait until a round is done."""
        end = time.monotonic() + LONGEST
        while len(self.records()) < number:
            if time.monotonic() > end:
                raise LabError(f"round {number} did not end: {self.said()[-300:]}")
            time.sleep(0.05)

    def missed(self) -> dict[int, list[int]]:
        """Return the clients that did not take part, by round."""
        everyone = set(range(SITES))
        present = {record["round"]: set(record["active"]) - _set_aside(record) for record in self.records()}
        return {number: sorted(everyone - those) for number, those in present.items() if those != everyone}

    def logs(self) -> dict[int, Verified]:
        """Verify the audit log of each site, also against what the server has seen of it."""
        file = self.deployment.state / "audit-heads.json"
        heads = json.loads(file.read_text()) if file.exists() else {}
        return {
            k: verify(
                self.site(k) / "memory" / str(k),
                {"client": k, "authority": authority(self.site(k) / "ca.crt")},
                heads.get(str(k), ""),
            )
            for k in range(SITES)
        }

    def alone(self, values: Mapping[str, Any], missed: Mapping[int, list[int]] | None = None) -> str:
        """Return the digest of `fedalloy run` with the same experiment, in which some clients miss some rounds."""
        plain = {key: value for key, value in with_cap(values).items() if key != "quorum"}  # nobody is late here
        if missed:
            rounds = range(1, values["rounds"] + 1)
            trace = [[k for k in range(SITES) if k not in missed.get(number, [])] for number in rounds]
            plain["participation"] = {"policy": "trace", "trace": trace}
        folder = Path(tempfile.mkdtemp(dir=self.scratch)) / "run"
        simulate(experiment({**plain, "engine": "serial"}), folder)
        return digest(folder)


def _set_aside(record: Mapping[str, Any]) -> set[int]:
    return {bad["client"] for bad in record.get("quarantined", ())} | set(record.get("lost", ()))


def digest(folder: Path) -> str:
    """Return the digest of the server's state after a run's last round."""
    try:
        found = Store(folder).restore()
    except (FedalloyError, OSError) as error:
        return f"none: {error}"
    return "none" if found is None else f"round {found[0].round}: {tree.digest(found[0].body)}"


def environment() -> dict[str, str]:
    """Return the environment of all processes: this installation, one thread each."""
    return processes.environment(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")


@contextmanager
def deployed(values: Mapping[str, Any]) -> Iterator[Lab]:
    """Create the hosts and deploy an experiment between them; at the end, remove everything."""
    with tempfile.TemporaryDirectory(prefix="fedalloy-hosts-") as name, network(HOSTS) as net:
        scratch = Path(name)
        lab = Lab(net, scratch, Deployment(scratch / "lab", HOSTS[SERVER], PORT, SITES))
        file = scratch / "experiment.toml"
        file.write_text(tomli_w.dumps(dict(values)))
        try:
            address = f"{HOSTS[SERVER]}:{PORT}"
            words = ("--out", str(lab.deployment.folder), "--sites", str(SITES), "--address", address)
            lab.done("deploy", "init", str(file), *words)
            lab.deployment = read_deployment(lab.deployment.folder)
            lab.up()
            yield lab
        finally:
            net.end()
