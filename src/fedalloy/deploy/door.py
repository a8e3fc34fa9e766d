"""Flower's SuperLink behind a door: other machines reach what sites need, and nothing else.

One port carries three interfaces. Sites need /v1/fleet/, where a registered key is asked for. By the two others whoever
can reach the port registers keys and starts apps, whose code then runs at every site, so they answer this machine only.
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
    """Whether a peer may ask for a path.

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
    """An application that answers strangers only where they may pass."""

    async def door(scope: Scope, receive: Any, send: Send) -> None:
        peer = (scope.get("client") or ("",))[0]
        if scope["type"] == "lifespan" or (scope["type"] == "http" and may_pass(scope["path"], peer)):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    return door


def main() -> None:
    """Run `flower-superlink` with its own arguments, guarded."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import flower_superlink

    run = uvicorn.run
    # Flower has no public way to put anything before its application; that it still calls this is tested.
    uvicorn.run = lambda app, **options: run(guarded(app), **options)
    flower_superlink()


if __name__ == "__main__":
    main()
