"""Flower's SuperLink behind an access filter: other machines can reach what sites need, and nothing else.

One port carries three interfaces. Sites need /v1/fleet/, which requires a registered key. Through the other two, anyone
who can reach the port can register keys and start apps whose code then runs at every site, so they only answer this
machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

FLEET = "/v1/fleet/"

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


def guarded(app: App) -> App:
    """Wrap an application so that other machines only reach the paths they may request."""

    async def door(scope: Scope, receive: Any, send: Send) -> None:
        peer = (scope.get("client") or ("",))[0]
        if scope["type"] == "lifespan" or (scope["type"] == "http" and may_pass(scope["path"], peer)):
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
    uvicorn.run = lambda app, **options: run(guarded(app), **options)
    flower_superlink()


if __name__ == "__main__":
    main()
