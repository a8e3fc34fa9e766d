"""FedAvg in Flower's simulation: two Ray actors of one CPU, a plain loop as the client; run by `bench/peers.py`."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from typing import Any

import ray
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shared import Clock, data, network, task

BACKEND: Any = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "include_dashboard": False, "_node_ip_address": "127.0.0.1", "log_to_driver": False},
}

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    work, k, net = task(), int(context.node_config["partition-id"]), network()
    x, y = (part[k] for part in data())
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
    steps, stream = 0, torch.Generator().manual_seed(k)
    for _ in range(work.epochs):
        for positions in torch.randperm(len(y), generator=stream).split(work.batch):
            optimiser.zero_grad()
            F.cross_entropy(net(x.index_select(0, positions)), y.index_select(0, positions)).backward()
            optimiser.step()
            steps += 1
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """FedAvg whose clock runs from the sampling of the clients to the new model."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(fraction_train=task().active / task().clients, fraction_evaluate=0.0, min_evaluate_nodes=0)
        self.clock = clock

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.clock.begin()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        self.clock.end(sum(int(reply.content["metrics"]["steps"]) for reply in replies))
        return result


@server.main()
def serve(grid: Grid, _: Context) -> None:
    Timed(Clock("flwr")).start(grid, ArrayRecord(network().state_dict()), num_rounds=task().rounds)


if __name__ == "__main__":
    try:
        run_simulation(server, client, num_supernodes=task().clients, backend_config=BACKEND)
    except Exception:  # the server's thread would wait for ever for clients that never started
        traceback.print_exc()
        ray.shutdown()
        os._exit(1)
