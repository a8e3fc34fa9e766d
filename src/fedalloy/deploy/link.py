"""Communicate with a deployment's SuperLink on the machine that it runs on.

Flower's own command does the same, but takes a second or more to start, and a run is polled every few seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from fedalloy.base.files import PRIVATE, as_json, write_atomically
from fedalloy.deploy.folder import Deployment
from fedalloy.errors import FedalloyError, StorageError, UsageError

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient


class LinkError(FedalloyError):
    """The SuperLink does not answer, or refuses a request."""

    code = 4


def need_flower() -> None:
    """Raise an error if Flower is not installed."""
    try:
        version("flwr")
    except PackageNotFoundError as error:
        raise UsageError(
            'a deployment needs Flower; install it with `pip install ".[flower]"` in a clone of the repository'
        ) from error


@contextmanager
def connected(deployment: Deployment) -> Iterator[ControlHttpClient]:
    """Connect to the SuperLink's interface for operators; errors become a `LinkError` with one sentence."""
    need_flower()
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    local = ["127.0.0.1", "localhost"]  # must not go through a proxy
    os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*local, *filter(None, os.environ.get("NO_PROXY", "").split(","))]))
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    authority = deployment.server / "ca.crt"
    try:
        certificates = authority.read_bytes()
        client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{deployment.port}",
            insecure=False,
            root_certificates=certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="fedalloy")],
        )
    except (OSError, ssl.SSLError, UnicodeDecodeError) as error:
        raise StorageError(f"'{authority}' cannot be used as this deployment's certificate: {error}") from error
    try:
        with client:
            yield client
    except httpx.HTTPError as error:
        raise LinkError(_reason(error, deployment)) from error


def _reason(error: Exception, deployment: Deployment) -> str:
    response = getattr(error, "response", None) if hasattr(error, "_response") or hasattr(error, "response") else None
    if response is not None:
        said = " ".join("".join(c if c.isprintable() else " " for c in response.text).split())
        return f"the SuperLink refused the request: {said[:300] or response.status_code}"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"the server at port {deployment.port} does not have a certificate from this deployment's authority"
    return (
        f"the SuperLink does not answer at port {deployment.port}; start it with "
        f"`fedalloy deploy up {deployment.folder.name}`"
    )


def register(deployment: Deployment) -> None:
    """Register the key of each site with the SuperLink, and store which node belongs to each key.

    A site is identified by its key.
    """
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

    keys: dict[bytes, int] = {}
    for number in range(deployment.sites):
        key = _public_key(deployment.server / "sites" / f"site-{number}.pub", number)
        if key in keys:
            raise StorageError(f"sites {keys[key]} and {number} have the same key in '{deployment.server / 'sites'}'")
        keys[key] = number
    with connected(deployment) as client:
        known = {node.public_key: node.node_id for node in client.ListNodes(ListNodesRequest()).nodes_info}
        for key in keys.keys() - known.keys():
            known[key] = client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id
    found = {str(number): str(known[key]) for key, number in keys.items()}
    write_atomically(_nodes(deployment), as_json(found), PRIVATE)


def _public_key(file: Path, number: int) -> bytes:
    """Read a site's public key and return it in the format that Flower expects."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except OSError as error:
        raise StorageError(f"'{file}' does not exist; put the public key of site {number} there") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise StorageError(f"'{file}' is not a public key in OpenSSH format: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise StorageError(f"'{file}' is not an ECDSA key; create one with `ssh-keygen -t ecdsa -b 384`")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def bound_nodes(deployment: Deployment) -> dict[int, int]:
    """Return the site of each registered node, by Flower's node id, which stays the same across reconnections."""
    return {int(node): int(number) for number, node in node_ids(deployment).items()}


def node_ids(deployment: Deployment) -> dict[str, str]:
    """Return Flower's node id of each site, as assigned at registration."""
    file = _nodes(deployment)
    found: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return found


def site_states(deployment: Deployment) -> dict[int, str]:
    """Return the state of each site: `online`, `offline`, `registered` (never seen) or `not registered`."""
    return {number: state for number, (state, _) in nodes(deployment).items()}


def nodes(deployment: Deployment) -> dict[int, tuple[str, float]]:
    """Return the state of each site, and since when it has been connected."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with connected(deployment) as client:
        listed = {str(node.node_id): node for node in client.ListNodes(ListNodesRequest()).nodes_info}
    found = {}
    for number in range(deployment.sites):
        node = listed.get(node_ids(deployment).get(str(number), ""))
        since = node.last_activated_at if node is not None else ""
        when = datetime.fromisoformat(since).timestamp() if since else 0.0
        found[number] = (str(node.status) if node is not None else "not registered", when)
    return found


def submit(deployment: Deployment) -> str:
    """Submit the app to the SuperLink and return Flower's id of the run."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.fab_pb2 import Fab

    content = build_fab_from_disk(deployment.app)
    fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
    with connected(deployment) as client:
        return str(client.StartRun(StartRunRequest(fab=fab)).run_id)


def run_status(deployment: Deployment, run: str) -> tuple[str, str]:
    """Return the state of a run (`pending`, `starting`, `running`, `finished`) and Flower's details about it."""
    from flwr.proto.control_pb2 import ListRunsRequest

    with connected(deployment) as client:
        found = client.ListRuns(ListRunsRequest(run_id=int(run))).run_dict.get(int(run))
    return ("unknown", "") if found is None else (found.status.status, found.status.details)


def cancel(deployment: Deployment, run: str) -> None:
    """Stop a run."""
    from flwr.proto.control_pb2 import StopRunRequest

    with connected(deployment) as client:
        client.StopRun(StopRunRequest(run_id=int(run)))


def _nodes(deployment: Deployment) -> Path:
    return deployment.state / "nodes.json"
