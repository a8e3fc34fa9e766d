"""Processes that are started and ended, the door before the SuperLink, and what commands refuse."""

from __future__ import annotations

import asyncio
import http.server
import os
import re
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from fedalloy.base.files import write_json
from fedalloy.cli.main import main
from fedalloy.deploy import control, link, processes
from fedalloy.deploy.door import guarded
from fedalloy.deploy.events import events, events_file, tell
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.deploy.preflight import refusal
from fedalloy.errors import FedalloyError, UsageError

pytest.importorskip("flwr")

TINY = {"rounds": 2, "data": {"name": "tiny"}, "model": {"name": "mlp"}, "partition": {"clients": 2}}


def _free_ports(count: int) -> int:
    """The first of several free ports in a row."""
    for first in range(21000, 60000, 50):
        try:
            processes.refuse_busy("127.0.0.1", range(first, first + count))
        except UsageError:
            continue
        return first
    raise AssertionError


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    return init(TINY, tmp_path / "lab", 2, f"127.0.0.1:{_free_ports(4)}")


def _wait(ready: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_process_is_ended_with_all_it_started(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text('sleep 300 & echo $! > "$(dirname "$0")/child"\nexec sleep 300\n')
    processes.start(script, "a", tmp_path)
    _wait(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    child = int((tmp_path / "child").read_text())
    assert processes.is_running(tmp_path, "a")
    assert (tmp_path / "a.pid").stat().st_mode & 0o777 == 0o600
    os.kill(int((tmp_path / "a.pid").read_text().split()[0]), signal.SIGKILL)
    _wait(lambda: not processes.is_running(tmp_path, "a"))
    assert Path(f"/proc/{child}").exists()  # it was left behind
    assert processes.stop(tmp_path, ["a"]) == ["a"]
    _wait(lambda: not processes._members(child))
    assert processes.known(tmp_path) == []
    assert processes.stop(tmp_path, ["a"]) == []


def test_another_process_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.pid").write_text(f"{os.getpid()} 1\n")  # this process, but of another beginning
    assert not processes.is_running(tmp_path, "a")
    assert processes.stop(tmp_path, ["a"]) == []


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1"):
            processes.refuse_busy("127.0.0.1", [port])


@pytest.mark.parametrize(
    ("path", "peer", "status"),
    [
        ("/v1/fleet/pull-messages", "10.1.2.3", 200),
        ("/v1/control/start-run", "10.1.2.3", 403),
        ("/v1/control/register-node", "10.1.2.3", 403),
        ("/v1/runtime/acquire-task", "10.1.2.3", 403),
        ("/docs", "10.1.2.3", 403),
        ("/v1/fleet/../control/start-run", "10.1.2.3", 403),
        ("/v1/control/start-run", "127.0.0.1", 200),
        ("/v1/control/start-run", "::ffff:127.0.0.1", 200),
        ("/v1/control/start-run", "not an address", 403),
        ("/v1/control/start-run", None, 403),
    ],
)
def test_strangers_reach_the_fleet_alone(path: str, peer: str | None, status: int) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "client": None if peer is None else (peer, 4711)}
    asyncio.run(guarded(app)(scope, None, send))
    assert sent[0]["status"] == status


def test_flower_still_hands_its_application_to_uvicorn_in_the_way_the_door_expects() -> None:
    import inspect

    from flwr.superlink.cli import flower_superlink as command

    module = inspect.getmodule(command)
    assert module is not None
    assert "uvicorn.run(\n        app=fastapi_app" in inspect.getsource(module)
    from flwr.superlink.routers.fleet.router import router

    assert router.prefix == "/v1/fleet"


def _code(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["deploy", *words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", ["up", "run", "status", "resume", "down"])
def test_a_folder_that_is_no_deployment_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _code(command, str(tmp_path)) == 2
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert "is not a deployment" in line


def test_what_is_not_up_says_so(made: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    assert _code("run", str(made.folder)) == 4
    assert "the SuperLink does not answer" in capsys.readouterr().err
    assert _code("resume", str(made.folder)) == 2
    assert "`fedalloy deploy run" in capsys.readouterr().err
    assert _code("status", str(made.folder)) == 0
    assert "unknown" in capsys.readouterr().out
    assert _code("down", str(made.folder)) == 0
    assert "nothing was running" in capsys.readouterr().out
    assert _code("up", str(made.folder), "--local", "3") == 2
    assert "2 sites" in capsys.readouterr().err


def test_up_refuses_a_port_in_use_before_it_starts_anything(
    made: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", made.runtime_port(1)))
        taken.listen()
        assert _code("up", str(made.folder), "--local", "2") == 2
    assert f"port {made.runtime_port(1)} of 127.0.0.1 " in capsys.readouterr().err
    assert processes.known(made.state) == []


def test_a_missing_flower_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(link, "version", missing)
    assert _code("init", "any.toml", "--out", "x", "--sites", "2") == 2
    assert re.search(r"pip install .*\[flower\]", capsys.readouterr().err)


def test_a_link_of_another_authority_is_not_believed(made: Deployment, tmp_path: Path) -> None:
    other = init(TINY, tmp_path / "other", 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other.server / "server.crt", other.server / "server.key")
    server = http.server.HTTPServer(("127.0.0.1", made.port), http.server.BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(link.LinkError, match=rf"port {made.port}.*certificate"):
            link.site_states(made)
        code, sentence = refusal("127.0.0.1", made.port, str(made.site(0) / "ca.crt"))
        assert (code, "is not the one" in sentence) == (2, True)
        assert refusal("127.0.0.1", made.port, str(other.site(0) / "ca.crt"))[0] == 0
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_server_that_is_not_there_yet_is_waited_for(made: Deployment) -> None:
    code, sentence = refusal("127.0.0.1", made.port, str(made.site(0) / "ca.crt"))
    assert (code, "cannot be reached yet" in sentence) == (0, True)
    assert refusal("127.0.0.1", made.port, str(made.site(0) / "node.pub"))[0] == 2


def test_a_run_needs_all_sites(made: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "site_states", lambda _: {0: "online", 1: "registered"})
    with pytest.raises(UsageError, match="site-1 is registered"):
        control.submitted(made, lambda _: None)


def test_a_site_that_dies_at_its_start_is_a_sentence(made: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "nodes", lambda _: {0: ("registered", 0.0)})
    (made.state / "site-0.log").write_text("one\n\x1b[91mERROR\x1b[0m: certificate verify failed\n\n")
    with pytest.raises(link.LinkError, match=r"site-0.*ERROR: certificate verify failed.*state/site-0\.log"):
        control._await_site(made, 0, 1.0)


def test_a_site_that_is_still_taken_for_connected_is_started_until_it_is(
    made: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([("online", 1.0), ("online", 1.0), ("offline", 1.0), ("online", 9.0)])
    started = list[str]()
    monkeypatch.setattr(control, "LOOK", 0.0)
    monkeypatch.setattr(link, "nodes", lambda _: {0: next(looks)})
    monkeypatch.setattr(control, "_start", lambda _, name: started.append(name))
    monkeypatch.setattr(processes, "is_running", lambda *_: len(started) == 3)
    control._await_site(made, 0, 5.0)
    assert started == ["site-0"] * 3


def test_a_run_that_fails_ends_in_its_own_sentence_and_kind(made: Deployment) -> None:
    file, said = events_file(made, "7"), list[str]()
    tell(file, "said", "round 1: the reply of client 1 was set aside")
    tell(file, "failed", "not enough sites: 1 of 2 did not introduce themselves", code=6)
    with pytest.raises(FedalloyError, match="not enough sites") as ended:
        control.follow(made, "7", lambda _: None, said.append)
    assert ended.value.code == 6
    assert said == ["round 1: the reply of client 1 was set aside"]


def test_a_run_that_has_ended_is_not_followed_although_flower_has_not_heard_of_it(
    made: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "run_status", lambda *_: ("running", ""))
    monkeypatch.setattr(link, "site_states", lambda _: {0: "online", 1: "online"})
    monkeypatch.setattr(link, "submit", lambda _: "8")
    write_json(made.state / "current.json", {"run": "7"})
    said: list[str] = []
    assert control.submitted(made, said.append) == "7"
    assert ["following" in line for line in said] == [True]
    tell(events_file(made, "7"), "ended")
    assert control.submitted(made, said.append) == "8"


def test_half_a_line_of_events_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "run-1.jsonl"
    tell(file, "said", "one")
    with file.open("a") as stream:
        stream.write('{"kind": "sa')
    assert [event["text"] for event in events(file)] == ["one"]


def test_the_key_of_a_site_must_be_one_that_flower_takes(made: Deployment) -> None:
    file = made.server / "sites" / "site-0.pub"
    for content, sentence in (
        (b"nonsense", r"site-0\.pub.*OpenSSH"),
        (None, r"site-0\.pub.*put the public key of site 0"),
    ):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        with pytest.raises(FedalloyError, match=sentence):
            link.register(made)


def test_importing_the_commands_does_not_import_flower() -> None:
    import subprocess
    import sys

    code = "import sys, fedalloy.cli.main; sys.exit('flwr' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
