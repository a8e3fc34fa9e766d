"""One file per method, each to be read beside its paper's algorithm; importing this package registers them all."""

from fedalloy.core import methods
from fedalloy.methods.centralised import Centralised
from fedalloy.methods.fedavg import FedAvg
from fedalloy.methods.fedavgm import FedAvgM
from fedalloy.methods.fedprox import FedProx
from fedalloy.methods.local import Local
from fedalloy.methods.qffl import QFFL

__all__ = ["QFFL", "Centralised", "FedAvg", "FedAvgM", "FedProx", "Local", "methods"]
