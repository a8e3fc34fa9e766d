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

from fedalloy.base.files import PRIVATE, as_json, locked, write_atomically
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.site_keys import REVOKED, is_revoked, nodes_file, settle, valid_keys
from fedalloy.errors import FedalloyError, StorageError, UsageError

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

UNREGISTERED = "unregistered"  # Flower's word for a node whose key is not accepted any more


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
    """Make the SuperLink accept the key of each site that is not revoked, and no other key."""
    with locked(lock_file(deployment)):
        settle(deployment, range(deployment.sites))
        reconcile(deployment)


def reconcile(deployment: Deployment) -> None:
    """Unregister all keys that are not valid (any more), register those that are, and store the node of each site.

    A site is identified by its key. Old keys go first, so that an old and a new key are never valid at the same time.
    """
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest

    keys = valid_keys(deployment)
    with connected(deployment) as client:
        listed = client.ListNodes(ListNodesRequest()).nodes_info
        known = {node.public_key: node.node_id for node in listed if node.status != UNREGISTERED}
        gone = {node.public_key for node in listed} - known.keys()
        for key, number in keys.items():
            if key in gone:
                raise StorageError(
                    f"the key of site {number} was unregistered before, and the SuperLink does not accept it again; "
                    f"create another with `fedalloy deploy rotate {deployment.folder.name} site-{number}`"
                )
        for key in known.keys() - keys.keys():
            client.UnregisterNode(UnregisterNodeRequest(node_id=known[key]))
        for key in keys.keys() - known.keys():
            known[key] = client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id
    found = {str(number): str(known[key]) for key, number in keys.items()}
    write_atomically(nodes_file(deployment), as_json(found), PRIVATE)


def lock_file(deployment: Deployment) -> Path:
    """Return the file that a command locks while it changes keys."""
    return deployment.state / "keys.lock"


def bound_nodes(deployment: Deployment) -> dict[int, int]:
    """Return the site of each registered node, by Flower's node id, which stays the same across reconnections."""
    found = {int(node): int(number) for number, node in node_ids(deployment).items()}
    return {node: number for node, number in found.items() if not is_revoked(deployment, number)}


def node_ids(deployment: Deployment) -> dict[str, str]:
    """Return Flower's node id of each site, as assigned at registration."""
    file = nodes_file(deployment)
    found: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return found


def site_states(deployment: Deployment) -> dict[int, str]:
    """Return the state of each site: `online`, `offline`, `registered` (never seen), `not registered` or `revoked`."""
    return {number: state for number, (state, _) in nodes(deployment).items()}


def nodes(deployment: Deployment) -> dict[int, tuple[str, float]]:
    """Return the state of each site, and since when it has been connected."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with connected(deployment) as client:
        listed = {str(node.node_id): node for node in client.ListNodes(ListNodesRequest()).nodes_info}
    found = {}
    for number in range(deployment.sites):
        if is_revoked(deployment, number):
            found[number] = (REVOKED, 0.0)
            continue
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
