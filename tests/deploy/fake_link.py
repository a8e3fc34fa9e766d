"""A SuperLink that only knows keys, with Flower's rules: a key that was unregistered is never accepted again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class FakeLink:
    """`before` is called before each change, and may raise."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.nodes: list[Any] = []
        self.before = before
        self.most = 0  # keys that were accepted at the same time

    def accepted(self) -> dict[bytes, int]:
        return {node.public_key: node.node_id for node in self.nodes if node.status != "unregistered"}

    def ListNodes(self, _: Any) -> Any:  # noqa: N802  # Flower's name
        return SimpleNamespace(nodes_info=list(self.nodes))

    def RegisterNode(self, request: Any) -> Any:  # noqa: N802
        self.before()
        assert all(node.public_key != request.public_key for node in self.nodes)
        self.nodes.append(
            SimpleNamespace(
                public_key=request.public_key, node_id=2**63 + len(self.nodes), status="online", last_activated_at=""
            )
        )
        self.most = max(self.most, len(self.accepted()))
        return SimpleNamespace(node_id=self.nodes[-1].node_id)

    def UnregisterNode(self, request: Any) -> None:  # noqa: N802
        self.before()
        (node,) = (node for node in self.nodes if node.node_id == request.node_id and node.status != "unregistered")
        node.status = "unregistered"
