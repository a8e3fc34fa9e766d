"""Flower's SuperLink behind an access filter: other machines can reach what sites need, and nothing else.

One port carries three interfaces. Sites need /v1/fleet/, which requires a registered key. Through the other two, anyone
who can reach the port can register keys and start apps whose code then runs at every site, so they only answer this
machine. A revoked key opens nothing, even before the SuperLink has been told.
"""

from __future__ import annotations

import binascii
import ipaddress
import os
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from pathlib import Path
from typing import Any

from fedalloy.deploy.site_keys import REVOKED, revoked_keys

FLEET = "/v1/fleet/"
KEY = b"flwr-public-key"  # the header with the key that a request is signed with

Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


def may_pass(path: str, peer: str) -> bool:
    """Return whether a peer may request a path.

    >>> may_pass("/v1/fleet/pull-messages", "10.0.0.7"), may_pass("/v1/control/start-run", "10.0.0.7")
    (True, False)
    >>> may_pass("/v1/control/start-run", "127.0.0.1"), may_pass("/v1/fleet/../control/start-run", "10.0.0.7")
    (True, False)
    """
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or (path.startswith(FLEET) and ".." not in path)


def barred(scope: Scope, revoked: Collection[bytes]) -> bool:
    """Return whether a request is signed with a revoked key."""
    for name, value in scope.get("headers", ()):
        try:
            if name.lower() == KEY and b64decode(value, validate=True) in revoked:
                return True
        except (ValueError, binascii.Error):  # the SuperLink refuses it
            continue
    return False


def keys_in(folder: Path) -> Callable[[], Collection[bytes]]:
    """Return a function that returns the keys in a folder, and reads them again whenever there are other files."""
    names: set[str] = set()
    keys: frozenset[bytes] = frozenset()

    def found() -> Collection[bytes]:
        nonlocal names, keys
        now = set(os.listdir(folder)) if folder.is_dir() else set()
        if now != names:
            names, keys = now, revoked_keys(folder)
        return keys

    return found


def guarded(app: App, revoked: Callable[[], Collection[bytes]] = frozenset) -> App:
    """Wrap an application so that other machines only reach the paths they may request, and revoked keys nothing."""

    async def door(scope: Scope, receive: Any, send: Send) -> None:
        peer = (scope.get("client") or ("",))[0]
        if scope["type"] == "http" and barred(scope, revoked()):
            # A SuperNode that is answered with 401 ends by itself.
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        elif scope["type"] == "lifespan" or (scope["type"] == "http" and may_pass(scope["path"], peer)):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    return door


def main() -> None:
    """Run `flower-superlink` with its own arguments, behind the filter."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import flower_superlink

    run = uvicorn.run
    # Flower has no public way to wrap its application; a test checks that it still calls this.
    revoked = keys_in(Path.cwd() / REVOKED)  # the start script changes to the server's folder
    uvicorn.run = lambda app, **options: run(guarded(app, revoked), **options)
    flower_superlink()


if __name__ == "__main__":
    main()
