"""A deployment between hosts of their own, and what cut, slow and rebooted machines cost it.

    python chaos/hosts.py                   # everything (about a quarter of an hour)
    python chaos/hosts.py cut slow          # some of it
    python chaos/hosts.py --save            # also write them to results/hosts.json

A server and three sites are network namespaces with addresses of their own, made here and removed at the end. Each line
says what was done, which rounds the sites missed, and which undisturbed run the model equals. It needs root and
iproute2. The exit status is 1 if anything ended differently from what is expected.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from door_checks import checked
from hosts_lab import HOSTS, PORT, SERVER, SITES, Lab, LabError, deployed
from network import NoNamespacesError, Slow, why_not

from fedalloy.base.files import write_atomically
from fedalloy.deploy.link import node_ids
from fedalloy.errors import FedalloyError

RESULTS = Path(__file__).parents[1] / "results" / "hosts.json"
VICTIM = 1
CUT, SERVER_CUT = 60.0, 20.0  # seconds
AMPLE = 600.0  # seconds; nobody misses this deadline
SLOW = Slow()
Row = dict[str, Any]


def settings(rounds: int = 3, deadline: float = AMPLE, method: str = "fedavg") -> dict[str, Any]:
    """Return a tiny experiment."""
    return {
        "rounds": rounds,
        "evaluate_every": 100,  # only the last round
        "data": {"name": "tiny"},
        "model": {"name": "mlp"},
        "partition": {"clients": SITES, "alpha": 1.0},
        "training": {"batch": 16},
        "method": {"name": method},
        "quorum": {"deadline": deadline},
    }


def door(lab: Lab) -> Row:
    """From another address: every path but the fleet's, no key, an unregistered key, no TLS, every port"""
    sites = {f"site-{k}": lab.deployment.runtime_port(k) for k in range(SITES)}
    address, node = (HOSTS[SERVER], PORT), int(node_ids(lab.deployment)["0"])
    tried = list(checked(lab.net, SERVER, address, lab.deployment.server / "ca.crt", sites, node, lab.scratch))
    wrong = [f"{what}: {fault}" for what, fault in tried if fault is not None]
    return {"checks": len(tried), "ended": "; ".join(wrong) or "all refused", "right": not wrong}


def undisturbed(lab: Lab) -> Row:
    """Nothing"""
    return judged(lab, settings(), nobody_lost=True)


def cut(lab: Lab) -> Row:
    """One site's link is cut for a minute in the second round; nobody is too late"""
    act = during_round(lab, 2, lambda: interrupt(lab, f"site-{VICTIM}", CUT))
    return judged(lab, settings(), act, nobody_lost=True)


def cut_late(lab: Lab) -> Row:
    """One site's link is cut for a minute in the second round; the deadline is shorter"""
    values = settings(6, deadline=50.0)
    return judged(lab, values, during_round(lab, 2, lambda: interrupt(lab, f"site-{VICTIM}", CUT)), must_miss=2)


def slow(lab: Lab) -> Row:
    """One site's link is slow: 200 ms, 1 Mbit/s and 1 % loss in each direction"""
    return judged(lab, settings(), nobody_lost=True)


def server_cut(lab: Lab) -> Row:
    """The server is cut off from everybody for 20 s in the second round"""
    return judged(lab, settings(), during_round(lab, 2, lambda: interrupt(lab, SERVER, SERVER_CUT)), nobody_lost=True)


def reboot(lab: Lab) -> Row:
    """A site's host is powered off in the second round and starts again (MOON, which keeps a model at the site)"""
    before: list[str] = []

    def meanwhile() -> None:
        before.append(lab.logs()[VICTIM].head)
        lab.power_off(VICTIM)
        lab.start(VICTIM)

    found = judged(lab, settings(method="moon"), during_round(lab, 2, meanwhile), nobody_lost=True)
    number, _, chain = before[0].partition(":")
    entries = lab.logs()[VICTIM].entries
    goes_on = len(entries) > int(number) and entries[int(number) - 1]["hash"] == chain
    memory = any((lab.site(VICTIM) / "memory" / str(VICTIM)).glob("*.safetensors"))
    found["right"] = found["right"] and goes_on and memory
    found["ended"] += ", audit log and memory continued" if goes_on and memory else ", AUDIT LOG OR MEMORY LOST"
    return found


def during_round(lab: Lab, number: int, act: Callable[[], None]) -> Callable[[], None]:
    """Return what waits until a round has begun and then acts."""

    def meanwhile() -> None:
        lab.after_round(number - 1)
        time.sleep(1.0)
        act()

    return meanwhile


def interrupt(lab: Lab, host: str, seconds: float) -> None:
    """Cut a host's link for some seconds."""
    lab.net.cut(host)
    try:
        time.sleep(seconds)
    finally:
        lab.net.restore(host)


def judged(
    lab: Lab,
    values: Mapping[str, Any],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    nobody_lost: bool = False,
    must_miss: int = 0,
) -> Row:
    """Run an experiment; check who missed which round, all records and audit logs, and the model's digest.

    The model must be that of `fedalloy run` with the same absences. Only the victim may miss a round, it must miss the
    round `must_miss`, if any, and it must take part in the last one.
    """
    begin = time.monotonic()
    found = lab.run(values, meanwhile)
    seconds, missed, rounds = time.monotonic() - begin, lab.missed(), lab.records()
    faults = []
    if found != lab.alone(values, missed):
        faults.append(f"NOT EQUAL ({found[:60]})")
    if nobody_lost and missed:
        faults.append("A ROUND WAS MISSED")
    if any(set(clients) - {VICTIM} for clients in missed.values()) or values["rounds"] in missed:
        faults.append("OTHERS MISSED A ROUND, OR THE SITE DID NOT COME BACK")
    if must_miss and must_miss not in missed:
        faults.append(f"ROUND {must_miss} WAS NOT MISSED")
    if [record["round"] for record in rounds] != list(range(1, values["rounds"] + 1)) or any(
        record.get("skipped") for record in rounds
    ):
        faults.append("A ROUND WAS LOST OR SKIPPED")
    faults += [f"LOG OF SITE {k}: {log.fault}" for k, log in lab.logs().items() if log.fault]
    equal = "equal to `fedalloy run`" + (" without the site in these rounds" if missed else "")
    said = [line for line in lab.said().split("\n") if line.startswith("round ")]
    return {
        "rounds": values["rounds"],
        "deadline": values["quorum"]["deadline"],
        "missed": {f"site-{k}": absent for k in range(SITES) if (absent := [n for n in missed if k in missed[n]])},
        "said": said,
        "digest": found,
        "seconds": round(seconds, 1),
        "ended": "; ".join(faults) or equal,
        "right": not faults,
    }


SCENARIOS: Mapping[str, Callable[[Lab], Row]] = {
    "undisturbed": undisturbed,
    "door": door,
    "cut": cut,
    "cut-late": cut_late,
    "server-cut": server_cut,
    "reboot": reboot,
    "slow": slow,  # the last: the link stays slow
}


def tried(names: Sequence[str], keep: Callable[[str, Row], None]) -> int:
    """Deploy once, try each scenario, and hand each row to `keep`; return how many did not end as expected."""
    wrong = 0
    with deployed(settings()) as lab:
        for name in names or SCENARIOS:
            begin = time.monotonic()
            how = lab.net.slow_link(f"site-{VICTIM}", SLOW) if name == "slow" else ""
            try:
                row = SCENARIOS[name](lab)
            except (LabError, FedalloyError, OSError) as error:
                row = {"ended": f"NOT ENDED: {error}", "right": False}
            row = {"what": (SCENARIOS[name].__doc__ or "").split(".")[0], **({"link": how} if how else {}), **row}
            row.setdefault("seconds", round(time.monotonic() - begin, 1))
            keep(name, row)
            wrong += not row["right"]
            missed = ", ".join(f"{site} misses {rounds}" for site, rounds in row.get("missed", {}).items())
            ended = f"{row['ended']} | {row['seconds']:.0f} s"
            sys.stdout.write(f"{row['what']:<105} | {missed or 'nothing missed':<26} | {ended}\n")
            for line in row.get("said", []):
                sys.stdout.write(f"    {line}\n")
            sys.stdout.flush()
    return wrong


def save(name: str, row: Row) -> None:
    """Add a row to results/hosts.json, with its command, date and machine; rows of other scenarios stay."""
    found: dict[str, Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    about = {
        "command": f"python chaos/hosts.py {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "flwr": version("flwr"),
        },
    }
    found[name] = {**row, **about}
    write_atomically(RESULTS, (json.dumps({k: found[k] for k in SCENARIOS if k in found}, indent=1) + "\n").encode())


def main() -> int:
    """Try what the command line names, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=f"any of {', '.join(SCENARIOS)}")
    parser.add_argument("--save", action="store_true", help="write results/hosts.json")
    given = parser.parse_args()
    if unknown := set(given.names) - set(SCENARIOS):
        parser.error(f"unknown scenarios: {', '.join(sorted(unknown))}")
    if reason := why_not():
        sys.stderr.write(f"chaos/hosts.py cannot run here: {reason}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is removed
    try:
        return 1 if tried(given.names, save if given.save else lambda *_: None) else 0
    except (LabError, NoNamespacesError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
