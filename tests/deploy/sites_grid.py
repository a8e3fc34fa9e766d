"""A Grid in this process whose nodes are the sites of a deployment, with its real folders."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "flower"))  # for local_grid and hostile

from flwr.app import Context, Message
from hostile import changed
from local_grid import LocalGrid

from fedalloy.base.files import write_json
from fedalloy.deploy import app
from fedalloy.deploy.folder import Deployment


def grid_of(deployment: Deployment, fault: Any = None) -> LocalGrid:
    """A Grid whose nodes are registered as the deployment's sites."""

    def client(message: Message, context: Context) -> Message:
        place = {**context.node_config, "site": str(deployment.site(int(context.node_config["partition-id"])))}
        return app.client(message, dataclasses.replace(context, node_config=place))

    grid = LocalGrid(client, deployment.sites, fault)  # type: ignore[arg-type]
    write_json(deployment.state / "nodes.json", {str(number): str(node) for node, number in grid.nodes.items()})
    return grid


class Killed(BaseException):
    """What nothing in the library may catch."""


class Mortal:
    """Lets so many answers through, and then the server dies."""

    def __init__(self, answers: int) -> None:
        self.left = answers

    def __call__(self, client: int, answer: Message) -> Message:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return answer


__all__ = ["Killed", "Mortal", "changed", "grid_of"]
