"""FedAvg in pfl: one of two ranks, which share out the clients of a round; run by `bench/peers.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from shared import Clock, data, network, task
from torch import Tensor, nn


class Net(nn.Module):
    """The network with the two methods that pfl asks for; it counts what pfl does with it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.steps = self.evaluations = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.evaluations += 1
        return {}


class Rounds(TrainingProcessCallback):
    """Times every round and sees to it that none but the first is evaluated."""

    def __init__(self, clock: Clock, net: Net) -> None:
        self.clock, self.net = clock, net

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.clock.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.end(self.net.steps)
        assert central_iteration == 0 or not self.net.evaluations
        self.net.steps = self.net.evaluations = 0
        if central_iteration + 1 < task().rounds:
            self.clock.begin()
        return False, Metrics()


def main() -> None:
    work, (x, y), net = task(), data(), Net()
    users = [PyTorchTensorDataset((x[k], y[k])) for k in range(work.clients)]
    clients = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(work.clients))))
    model = PyTorchModel(
        net,
        local_optimizer_create=partial(torch.optim.SGD, momentum=work.momentum),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.active,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=clients, val_data=clients),
        model,
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.lr),
        callbacks=[Rounds(Clock("pfl"), net)],
    )


if __name__ == "__main__":
    main()
