"""A live deployment on 127.0.0.1: a site is revoked during a run, attacks with its old key, and gets a new one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedalloy.deploy import control, keys, link, processes, rotation
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.errors import UsageError

VALUES = {
    "rounds": 100,
    "evaluate_every": 100,
    "data": {"name": "tiny"},
    "model": {"name": "mlp"},
    "partition": {"clients": 2, "alpha": 1.0},
    "training": {"batch": 16},
}


def _free_port() -> int:
    for first in range(31000, 32000, 20):
        try:
            processes.refuse_busy("127.0.0.1", range(first, first + 4))
        except UsageError:
            continue
        return first
    raise AssertionError


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Deployment]:
    made = init(VALUES, tmp_path / "lab", 2, f"127.0.0.1:{_free_port()}")
    try:
        yield made
    finally:
        control.down(made, lambda _: None)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts a site that `up` knows nothing of, as on another machine."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(folder: Path) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{folder.name}-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", str(folder / "start.sh")],
                stdout=log,
                stderr=log,
                env=processes.environment(),
                start_new_session=True,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait(ready: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 240  # a busy machine takes minutes to start a few processes
    while not ready():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def _rounds(lab: Deployment) -> list[dict[str, Any]]:
    file = lab.run / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def _missing(record: dict[str, Any]) -> dict[int, str]:
    return {bad["client"]: bad["reason"] for bad in record.get("quarantined", [])}


def _refused(lab: Deployment, private: bytes, nodes: list[int]) -> list[int]:
    """What the SuperLink answers to Flower's own client with this key, as each of these nodes."""
    key: Any = load_ssh_private_key(private, None)
    codes = []
    with FleetHttpClient.from_server_address(
        lab.address,
        False,
        (lab.server / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())],
    ) as client:
        request = ActivateNodeRequest(public_key=keys.public_of(private), heartbeat_interval=30)
        calls: list[Callable[[], Any]] = [lambda: client.ActivateNode(request)]
        for number in nodes:
            node = Node(node_id=number)
            calls += [
                lambda node=node: client.PullMessages(PullMessagesRequest(node=node)),
                lambda node=node: client.PushMessages(PushMessagesRequest(node=node)),
                lambda node=node: client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=30)),
            ]
        for call in calls:
            try:
                call()
                codes.append(200)
            except httpx.HTTPStatusError as error:
                codes.append(error.response.status_code)
    return codes


def test_a_site_is_revoked_during_a_run_and_comes_back_with_a_new_key(
    lab: Deployment, start: Callable[[Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    control.up(lab, 1, lambda _: None)
    site = start(lab.site(1))
    _wait(lambda: link.site_states(lab)[1] == "online", "site 1 does not connect")
    nodes = {number: node for node, number in link.bound_nodes(lab).items()}
    control.submitted(lab, lambda _: None)
    _wait(lambda: _rounds(lab), "no round")
    assert _missing(_rounds(lab)[0]) == {}

    old = tmp_path / "old"  # an impostor keeps the folder, and claims to be site 0
    shutil.copytree(lab.site(1), old, ignore=shutil.ignore_patterns("flwr", "memory"))
    script = (old / "start.sh").read_text().replace("partition-id=1", "partition-id=0")
    (old / "start.sh").write_text(
        script.replace(f":{lab.runtime_port(1)}", f":{lab.runtime_port(2)}").replace(
            f"--port {lab.runtime_port(1)}", f"--port {lab.runtime_port(2)}"
        )
    )
    (old / "site.toml").write_text("client = 0\nshare = 0\n")

    rotation.revoke(lab, 1, lambda _: None)
    done = len(_rounds(lab))
    assert link.site_states(lab) == {0: "online", 1: "revoked"}
    private = (lab.site(1) / "node.key").read_bytes()
    assert set(_refused(lab, private, [nodes[1], nodes[0]])) == {401}
    impostor = start(old)
    _wait(lambda: len(_rounds(lab)) > done, "the run does not go on")
    assert "revoked" in _missing(_rounds(lab)[-1])[1]
    assert 0 not in _missing(_rounds(lab)[-1])
    _wait(lambda: impostor.poll() is not None, "the impostor was not refused")
    assert link.site_states(lab) == {0: "online", 1: "revoked"}

    _end(site)
    rotation.rotate(lab, 1, lambda _: None, reinstate=True)
    start(lab.site(1))
    _wait(lambda: link.site_states(lab)[1] == "online", "site 1 does not come back")
    (new,) = (node for node, number in link.bound_nodes(lab).items() if number == 1)
    assert new != nodes[1]
    done = len(_rounds(lab))
    _wait(lambda: any(not _missing(record) for record in _rounds(lab)[done:]), "site 1 takes no part")
    assert set(_refused(lab, private, [nodes[1], nodes[0], new])) == {401}
