"""A deployment between hosts of their own: a server and three sites in network namespaces, which this test makes."""

from __future__ import annotations

import http.server
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parents[2] / "chaos"))  # as `python chaos/hosts.py` has it

import door_checks
import hosts
import network
from hosts_lab import SITES, deployed

from fedalloy.deploy import keys
from fedalloy.deploy.audit import rows

CUT = 10.0  # seconds


def test_hosts_reach_only_what_the_door_lets_through_and_a_cut_link_changes_no_bit() -> None:
    if reason := network.why_not():
        pytest.skip(reason)
    values = hosts.settings(rounds=2)
    seen: list[hosts.Row] = []
    with deployed(values) as lab:

        def meanwhile() -> None:
            seen.append(hosts.door(lab))
            lab.after_round(1)
            time.sleep(1.0)
            hosts.interrupt(lab, "site-1", CUT)

        found = hosts.judged(lab, values, meanwhile, nobody_lost=True)
        logged = {k: rows(log.entries) for k, log in lab.logs().items()}
    assert seen[0]["right"], seen[0]["ended"]
    assert seen[0]["checks"] > 200
    assert found["right"], f"{found['ended']}; {found['said']}"
    once = {(1, "train"): 1, (2, "train"): 1, (2, "evaluate"): 1}
    for k in range(SITES):  # nothing is lost, and nothing is done twice
        assert {(r["round"], r["action"]): r["answered"] for r in logged[k] if r["action"] != "introduce"} == once
    assert network.ip("netns", "list").count(f"{lab.net.prefix}-") == 0  # nothing stays behind


class Open(http.server.BaseHTTPRequestHandler):
    """A server without a door."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def doorless(tmp_path: Path) -> Iterator[tuple[tuple[str, int], Path]]:
    issuer = keys.authority()
    pair = keys.server_certificate(issuer, "127.0.0.1")
    for name, content in {"ca": issuer.pair.public, "crt": pair.public, "key": pair.private}.items():
        (tmp_path / name).write_bytes(content)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Open)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield ("127.0.0.1", server.server_port), tmp_path / "ca"
    server.shutdown()
    server.server_close()


def test_without_a_door_every_check_of_it_fails(doorless: tuple[tuple[str, int], Path]) -> None:
    address, authority = doorless
    for checks in (door_checks.behind_the_door(address, authority), door_checks.without_a_key(address, authority, 1)):
        assert all(fault is not None for _, fault in checks)
    assert door_checks.open_ports("127.0.0.1", [address[1]]) == [address[1]]
