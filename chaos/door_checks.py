"""What another machine can reach of a deployment: the answers of the door, of open ports, of a site's ports."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import httpx
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from network import Network

from fedalloy.deploy import keys
from fedalloy.deploy.door import FLEET
from fedalloy.deploy.preflight import refusal

PORTS = range(1, 65536)
TRICKS = (  # other ways to write a path behind the door
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet%2f../control/list-runs",
    "//v1/control/list-runs",
    "/V1/control/list-runs",
    "/./v1/control/list-runs",
    "/v1/control/list-runs?x=/v1/fleet/",
    "/v1/control/list-runs;/v1/fleet/",
    "/v1/control/list-runs#/v1/fleet/",
    "/",
)
SPOOFED = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "X-Real-IP": "127.0.0.1"}


def paths() -> list[str]:
    """Return every path of Flower's application, the fleet's included, as Flower itself lists them."""
    app = create_app()
    plain = {str(route.path) for route in app.routes if hasattr(route, "path")}  # its own pages, such as /docs
    found = sorted(plain | set(app.openapi()["paths"]))
    for part in (FLEET, "/v1/control/", "/v1/runtime/"):
        if not any(path.startswith(part) for path in found):
            raise LookupError(f"Flower lists no path below {part}")  # the checks would check nothing
    return found


def status(address: tuple[str, int], authority: Path, path: str, method: str = "POST", **headers: str) -> int:
    """Return the door's answer to one request."""
    context = ssl.create_default_context(cafile=str(authority))
    line = http.client.HTTPSConnection(*address, timeout=10, context=context)
    try:
        line.putrequest(method, path, skip_accept_encoding=True)
        for name, value in {"content-type": "application/x-protobuf", "content-length": "0", **headers}.items():
            line.putheader(name.replace("_", "-"), value)
        line.endheaders()
        return line.getresponse().status
    finally:
        line.close()


def behind_the_door(address: tuple[str, int], authority: Path) -> Iterator[tuple[str, str | None]]:
    """Yield each request that must be refused with 403, and what is wrong with the answer."""
    hidden = [path for path in paths() if not path.startswith(FLEET)]
    tries = [(path, method, {}) for path in (*hidden, *TRICKS) for method in ("GET", "POST")]
    tries += [(path, "POST", SPOOFED) for path in hidden]
    for path, method, headers in tries:
        code = status(address, authority, path, method, **headers)
        what = f"{method} {path}{', forwarded' if headers else ''}"
        yield what, None if code == 403 else f"answered {code}"


def without_a_key(address: tuple[str, int], authority: Path, node: int) -> Iterator[tuple[str, str | None]]:
    """Yield each fleet request of an unregistered key and of no key, and what is wrong with the answer."""
    for path in (path for path in paths() if path.startswith(FLEET)):
        code = status(address, authority, path)
        yield f"{path} without a key", None if 400 <= code < 500 else f"answered {code}"
    private, public = generate_key_pairs()
    own, other = public_key_to_bytes(public), Node(node_id=node)
    asked = {
        "RegisterNode": RegisterNodeFleetRequest(public_key=own),
        "ActivateNode": ActivateNodeRequest(public_key=own, heartbeat_interval=30),
        "PullMessages": PullMessagesRequest(node=other),
        "PushMessages": PushMessagesRequest(node=other),
    }
    sign = [NodeAuthHttpInterceptor(private, public)]
    with FleetHttpClient.from_server_address(f"{address[0]}:{address[1]}", False, str(authority), sign) as client:
        for name, request in asked.items():
            try:
                getattr(client, name)(request)
                yield f"{name} with an unregistered key", "was accepted"
            except httpx.HTTPStatusError:
                yield f"{name} with an unregistered key", None


def without_tls(address: tuple[str, int]) -> str | None:
    """Return what is wrong with the answer to plain HTTP, which must be none."""
    with socket.create_connection(address, 10) as line:
        line.sendall(b"GET /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            return "answered plain HTTP" if line.recv(100).startswith(b"HTTP") else None
        except ConnectionResetError:
            return None


def open_ports(host: str, ports: Iterable[int] = PORTS) -> list[int]:
    """Return the TCP ports of a host that accept connections from here."""
    found = []
    for port in ports:
        with socket.socket() as trial:
            trial.settimeout(2)
            answer = trial.connect_ex((host, port))
        if answer == 0:
            found.append(port)
        elif answer != errno.ECONNREFUSED:
            raise OSError(answer, f"port {port} of {host}: {errno.errorcode.get(answer, answer)}")
    return found


def checked(
    net: Network,
    server: str,
    address: tuple[str, int],
    authority: Path,
    sites: dict[str, int],
    node: int,
    scratch: Path,
) -> Iterator[tuple[str, str | None]]:
    """Yield every check and what is wrong, from the addresses of two sites and of the server.

    `sites` has the port on its own loopback of each site; `node` is the id of a registered node.
    """
    here, there, *_ = sites
    yield from net.on(here, lambda: list(behind_the_door(address, authority)))
    yield from net.on(here, lambda: list(without_a_key(address, authority, node)))
    yield "plain HTTP", net.on(here, partial(without_tls, address))
    other = scratch / "other-ca.crt"
    other.write_bytes(keys.authority().pair.public)
    code, said = net.on(here, lambda: refusal(*address, str(other)))
    yield "another authority", None if code else f"accepted: {said}"
    found = net.on(here, lambda: open_ports(address[0]))
    yield f"{len(PORTS):,} ports of the server", None if found == [address[1]] else f"open: {found}"
    for seen_from in (server, there):
        found = net.on(seen_from, lambda: open_ports(net.hosts[here]))
        yield f"{len(PORTS):,} ports of {here}, from {seen_from}", None if not found else f"open: {found}"
    loop = net.on(here, lambda: open_ports("127.0.0.1", [sites[here]]))  # it is there, but for nobody else
    yield f"port {sites[here]} on the loopback of {here}", None if loop else "is closed"
    code = net.on(server, lambda: status(("127.0.0.1", address[1]), authority, "/v1/control/list-runs"))
    yield "the server's own machine passes the door", None if code != 403 else "answered 403"
