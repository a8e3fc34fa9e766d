"""A deployment on this machine, three sites with TLS and keys, and everything that can happen to it.

    python chaos/flower.py                    # kills, stragglers, hostile replies, strangers, an impostor
    python chaos/flower.py link strangers     # some of them

Each line says what was done, what the user saw, and whether the model equals that of an undisturbed run. Every message
starts a Python process at each site, so a line takes half a minute, and more on a busy machine. Only 127.0.0.1 is
contacted. The exit status is 1 if anything ended differently from what is expected.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from fedalloy.base import plugins, tree
from fedalloy.config.experiment import experiment
from fedalloy.deploy import control, keys, processes
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init, with_cap
from fedalloy.errors import FedalloyError
from fedalloy.federation.core import methods
from fedalloy.run.runner import simulate
from fedalloy.storage.store import Store

SITES = 3
VICTIM = 1
PORT = 18600
HOSTILE = Path(__file__).with_name("hostile_method.py")
PROC = Path("/proc")


def settings(method: str, /, **more: Any) -> dict[str, Any]:
    """Return a tiny experiment of a method."""
    import fedalloy.methods  # noqa: F401  # registers them

    card = methods[method].card
    public = {"public": {"data": "own", "samples": 40, "labelled": True}} if card.public else {}
    return {
        "rounds": 2,
        "evaluate_every": 10,  # only the last round
        "data": {"name": "tiny"},
        "model": {"name": "mlp"},
        "partition": {"clients": SITES, "alpha": 1.0},
        "training": {"batch": 16},
        "method": {"name": method, **card.quick},
        **public,
        **more,
    }


@dataclass
class Rehearsal:
    """A deployment that runs one experiment after the other, without a restart."""

    deployment: Deployment
    scratch: Path
    said: list[str] = field(default_factory=list)

    def give(self, values: Mapping[str, Any]) -> None:
        """Give all sites another experiment, and remove the previous run."""
        shutil.rmtree(self.deployment.run, ignore_errors=True)
        files = [self.deployment.experiment]
        for k in range(SITES):
            shutil.rmtree(self.deployment.site(k) / "memory", ignore_errors=True)
            files.append(self.deployment.site(k) / "experiment.toml")
        for file in files:
            file.write_text(tomli_w.dumps(dict(with_cap(values))))
        self.said.clear()

    def run(self, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Run the experiment, with `meanwhile` in parallel; return the model's digest, or why there is none."""
        beside = threading.Thread(target=meanwhile, daemon=True)
        try:
            run = control.submitted(self.deployment, self.said.append)
            beside.start()
            control.follow(self.deployment, run, lambda _: None, self.said.append)
        except FedalloyError as error:
            self.said.append(str(error))
        if beside.ident is not None:
            beside.join(120)
        return digest(self.deployment.run)

    def rounds(self) -> int:
        """Return how many rounds are done."""
        file = self.deployment.run / "rounds.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def after_round(self, number: int) -> None:
        """Wait until a round is done."""
        end = time.monotonic() + 900
        while self.rounds() < number and time.monotonic() < end:
            time.sleep(0.1)


def digest(folder: Path) -> str:
    """Return the digest of the server's state after a run's last round."""
    try:
        found = Store(folder).restore()
    except (FedalloyError, OSError) as error:
        return f"none: {error}"
    return "none" if found is None else f"round {found[0].round}: {tree.digest(found[0].body)}"


def alone(values: Mapping[str, Any], scratch: Path) -> str:
    """Return the digest of the same experiment with `fedalloy run`, serially."""
    folder = Path(tempfile.mkdtemp(dir=scratch)) / "run"
    simulate(experiment({**with_cap(values), "engine": "serial"}), folder)
    return digest(folder)


@contextmanager
def rehearsal(port: int) -> Iterator[Rehearsal]:
    """Start a deployment, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="fedalloy-chaos-") as scratch:
        deployment = init(settings("fedavg"), Path(scratch) / "lab", SITES, f"127.0.0.1:{port}", [HOSTILE])
        try:
            control.up(deployment, SITES, lambda _: None)
            yield Rehearsal(deployment, Path(scratch))
        finally:
            control.down(deployment, lambda _: None)


def row(what: str, saw: Sequence[str], ended: str, seconds: float) -> None:
    """Print one line of the report."""
    line = next(iter(saw), "nothing")
    sys.stdout.write(f"{what:<60} | {line[:110]:<110} | {ended:<36} | {seconds:5.0f} s\n")
    sys.stdout.flush()


def kill_site(lab: Rehearsal) -> str:
    """A SuperNode is killed in the second round and restarted."""
    values = settings("fedavg", rounds=3)
    lab.give(values)

    def meanwhile() -> None:
        lab.after_round(1)
        kill(leader(lab, control.site_name(VICTIM)))
        time.sleep(2)
        control.revive(lab.deployment, lambda _: None)

    return equal_or_without(lab.run(meanwhile), values, lab)


def kill_app(lab: Rehearsal) -> str:
    """The process that trains at a site is killed in the second round."""
    values = settings("fedavg", rounds=3)
    lab.give(values)

    def meanwhile() -> None:
        group = leader(lab, control.site_name(VICTIM))
        lab.after_round(1)
        old = children(group, "flwr-clientapp")  # they have answered and are about to end
        kill(child(group, "flwr-clientapp", old))

    # If killed before training, Flower restarts it; if killed later, it misses the round.
    return equal_or_without(lab.run(meanwhile), values, lab)


def hostile(lab: Rehearsal) -> str:
    """A site raises, sends NaN, sends nothing, sends garbage, each in a separate round."""
    values = settings("fedavg", rounds=5, method={"name": "chaos-hostile", "victim": VICTIM})
    lab.give(values)
    honest = {**values, "method": {"name": "chaos-hostile", "victim": -1}}
    honest["participation"] = {"policy": "trace", "trace": [[0, 1, 2]] + [[0, 2]] * 4}
    return compared(lab.run(), [alone(honest, lab.scratch)], ["equal to a run without it"])


def straggler(lab: Rehearsal) -> str:
    """A site sleeps beyond the deadline in the second round."""
    lab.give(settings("fedavg", rounds=1))
    begin = time.monotonic()
    lab.run()
    deadline = 2 * (time.monotonic() - begin)  # a whole run of one round takes longer than any message
    values = settings("fedavg", rounds=3, method={"name": "chaos-straggler", "victim": VICTIM, "sleep": 1.5 * deadline})
    values["quorum"] = {"deadline": deadline}
    lab.give(values)
    honest = {**values, "method": {**values["method"], "victim": -1}}
    return compared(lab.run(), [without(honest, 2, lab)], ["equal to a run without it in round 2"])


def kill_link(lab: Rehearsal) -> str:
    """The SuperLink is killed in the second round; `deploy resume` follows."""
    values = settings("fedavg", rounds=3)
    lab.give(values)

    def meanwhile() -> None:
        lab.after_round(1)
        kill(leader(lab, control.SUPERLINK))

    lab.run(meanwhile)
    said = list(lab.said)
    control.revive(lab.deployment, lambda _: None)
    found = lab.run()
    lab.said[:] = said
    return compared(found, [alone(values, lab.scratch)], ["equal"])


def kill_server_app(lab: Rehearsal) -> str:
    """The server's part of the run is killed in the second round; `deploy resume` follows."""
    values = settings("knfu", rounds=3)
    lab.give(values)

    def meanwhile() -> None:
        lab.after_round(1)
        kill(child(leader(lab, control.SUPEREXEC), "flwr-serverapp"))

    lab.run(meanwhile)
    said = list(lab.said)
    found = lab.run()
    lab.said[:] = said
    return compared(found, [alone(values, lab.scratch)], ["equal"])


def strangers(lab: Rehearsal) -> str:
    """During a run: a site with a wrong authority, one with an unregistered key, one without TLS."""
    values = settings("fedavg")
    lab.give(values)
    seen: list[str] = []

    def meanwhile() -> None:
        for number, (what, change) in enumerate(STRANGERS.items()):
            seen.append(f"{what}: {refused(lab, change, number)}")

    found = lab.run(meanwhile)
    lab.said[:] = ["; ".join(seen)]
    if len(seen) < len(STRANGERS) or any("NOT REFUSED" in line for line in seen):
        return "NOT REFUSED"
    return compared(found, [alone(values, lab.scratch)], ["equal"])


def impostor(lab: Rehearsal) -> str:
    """A site claims to be another one; afterwards it is itself again."""
    values = settings("fedavg")
    lab.give(values)
    site, name = lab.deployment.site(VICTIM), control.site_name(VICTIM)
    files = {site / "site.toml": "client = ", site / "start.sh": "partition-id="}
    before = {file: file.read_text() for file in files}
    for file, key in files.items():
        file.write_text(before[file].replace(f"{key}{VICTIM}", f"{key}0"))
    processes.stop(lab.deployment.state, [name])
    control.up(lab.deployment, SITES, lambda _: None)
    refused_run, said = lab.run(), list(lab.said)
    for file, text in before.items():
        file.write_text(text)
    processes.stop(lab.deployment.state, [name])
    control.up(lab.deployment, SITES, lambda _: None)
    found = lab.run()
    lab.said[:] = said
    if not refused_run.startswith("none") or not any(
        f"client {VICTIM}" in line and "client 0" in line for line in said
    ):
        return "NOT REFUSED"
    return compared(found, [alone(values, lab.scratch)], ["refused, then equal"])


def _wrong_authority(site: Path) -> None:
    (site / "ca.crt").write_bytes(keys.authority().pair.public)


def _unknown_key(site: Path) -> None:
    (site / "node.key").write_bytes(keys.node_key().private)


def _plaintext(site: Path) -> None:
    script = (site / "start.sh").read_text().replace('--root-certificates "$HERE/ca.crt"', "--insecure")
    (site / "start.sh").write_text(script.replace('--auth-supernode-private-key "$HERE/node.key"', ""))


STRANGERS = {"wrong CA": _wrong_authority, "unregistered key": _unknown_key, "plaintext": _plaintext}


def refused(lab: Rehearsal, change: Callable[[Path], None], number: int) -> str:
    """Start a site that must be refused; return its output."""
    site = lab.scratch / f"stranger-{number}"
    shutil.copytree(lab.deployment.site(VICTIM), site, ignore=shutil.ignore_patterns("flwr", "memory"))
    port = lab.deployment.runtime_port(VICTIM)
    script = (site / "start.sh").read_text().replace(str(port), str(port + 10 + number))
    (site / "start.sh").write_text(script)
    change(site)
    with (site / "log").open("w") as log:
        process = subprocess.Popen(
            ["/bin/sh", str(site / "start.sh")],
            stdout=log,
            stderr=log,
            env=processes.environment(),
            start_new_session=True,
        )
        try:
            code = process.wait(180)
            return f"exit {code}"
        except subprocess.TimeoutExpired:
            return "still trying, never accepted" if "SuperNode ID" not in (site / "log").read_text() else "NOT REFUSED"
        finally:
            end_group(process.pid)


def end_group(pid: int) -> None:
    """Kill what is left of a process that was started here."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def leader(lab: Rehearsal, name: str) -> int:
    """Return the process that `up` started under a name."""
    return int((lab.deployment.state / f"{name}.pid").read_text().split()[0])


def child(group: int, command: str, old: Collection[int] = ()) -> int:
    """Wait for a new process of a group that runs a command."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if found := set(children(group, command)) - set(old):
            return min(found)
        time.sleep(0.05)
    raise TimeoutError(f"{command} did not appear")


def children(group: int, command: str) -> list[int]:
    """Return the processes of a group that run a command."""
    found = []
    for folder in PROC.iterdir():
        try:
            if not folder.name.isdecimal():
                continue
            words = (folder / "cmdline").read_bytes() + (folder / "comm").read_bytes()  # a fork has only the latter
            if command.encode() in words and os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def kill(pid: int) -> None:
    """Kill a process."""
    os.kill(pid, signal.SIGKILL)


def without(values: Mapping[str, Any], number: int, lab: Rehearsal) -> str:
    """Return the digest of the run in which the victim misses one round."""
    everyone = list(range(SITES))
    trace = [[k for k in everyone if k != VICTIM or t != number] for t in range(1, values["rounds"] + 1)]
    return alone({**values, "participation": {"policy": "trace", "trace": trace}}, lab.scratch)


def equal_or_without(found: str, values: Mapping[str, Any], lab: Rehearsal) -> str:
    """Check that a fault in the second round cost the victim that round, or nothing."""
    expected = [alone(values, lab.scratch), without(values, 2, lab)]
    return compared(found, expected, ["equal", "equal to a run without it in round 2"])


def compared(found: str, expected: Sequence[str], words: Sequence[str]) -> str:
    """Return what a digest is equal to."""
    return next(
        (word for other, word in zip(expected, words, strict=True) if other == found), f"NOT EQUAL ({found[:20]})"
    )


FAULTS: Mapping[str, Callable[[Rehearsal], str]] = {
    "site": kill_site,
    "app": kill_app,
    "hostile": hostile,
    "straggler": straggler,
    "link": kill_link,
    "server": kill_server_app,
    "strangers": strangers,
    "impostor": impostor,
}


def try_faults(names: Sequence[str], port: int) -> int:
    """Test each fault in a separate run; return how many ended differently from what is expected."""
    plugins.load_file(HOSTILE)
    wrong = 0
    with rehearsal(port) as lab:
        for name in names or FAULTS:
            begin = time.monotonic()
            try:
                control.up(lab.deployment, SITES, lambda _: None)  # the previous fault may have left dead processes
                ended = FAULTS[name](lab)
            except (FedalloyError, OSError) as error:
                ended = f"NOT ENDED: {error}"
            wrong += "NOT" in ended
            row((FAULTS[name].__doc__ or name).split(";")[0].strip(".")[:60], lab.said, ended, time.monotonic() - begin)
            for line in lab.said[1:]:
                sys.stdout.write(f"{'':<60} | {line[:110]}\n")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if try_faults(sys.argv[1:], int(os.environ.get("FEDALLOY_CHAOS_PORT", PORT))) else 0)
