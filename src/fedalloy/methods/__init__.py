"""One file per method, each to be read beside its paper's algorithm; importing this package registers them all.

May import everything up to knowledge.
"""

from fedalloy.federation.core import methods
from fedalloy.methods.centralised import Centralised
from fedalloy.methods.dafkd import DaFKD
from fedalloy.methods.dafkd_features import DaFKDFeatures
from fedalloy.methods.dafkd_no_correlation import DaFKDNoCorrelation
from fedalloy.methods.dafkd_predictions import DaFKDPredictions
from fedalloy.methods.dafkd_scores import DaFKDScores
from fedalloy.methods.data_free_kd import DataFreeKD
from fedalloy.methods.dsfl import DSFL
from fedalloy.methods.fedavg import FedAvg
from fedalloy.methods.fedavg_local_start import FedAvgLocalStart
from fedalloy.methods.fedavgm import FedAvgM
from fedalloy.methods.fedcog import FedCOG
from fedalloy.methods.feddf import FedDF
from fedalloy.methods.feddisco import FedDisco
from fedalloy.methods.fedftg import FedFTG
from fedalloy.methods.fedgen import FedGen
from fedalloy.methods.fedgkd import FedGKD
from fedalloy.methods.fedkf import FedKF
from fedalloy.methods.fedkf_minus import FedKFMinus
from fedalloy.methods.fedkf_server import FedKFServer
from fedalloy.methods.fedmd import FedMD
from fedalloy.methods.fedmd_global import FedMDGlobal
from fedalloy.methods.fedmd_knfu import FedMDKnFu
from fedalloy.methods.fedprox import FedProx
from fedalloy.methods.kdia import KDIA
from fedalloy.methods.knfu import KnFu
from fedalloy.methods.local import Local
from fedalloy.methods.local_converged import LocalConverged
from fedalloy.methods.moon import MOON
from fedalloy.methods.qffl import QFFL
from fedalloy.methods.selective_fd import SelectiveFD

__all__ = [
    "DSFL",
    "KDIA",
    "MOON",
    "QFFL",
    "Centralised",
    "DaFKD",
    "DaFKDFeatures",
    "DaFKDNoCorrelation",
    "DaFKDPredictions",
    "DaFKDScores",
    "DataFreeKD",
    "FedAvg",
    "FedAvgLocalStart",
    "FedAvgM",
    "FedCOG",
    "FedDF",
    "FedDisco",
    "FedFTG",
    "FedGKD",
    "FedGen",
    "FedKF",
    "FedKFMinus",
    "FedKFServer",
    "FedMD",
    "FedMDGlobal",
    "FedMDKnFu",
    "FedProx",
    "KnFu",
    "Local",
    "LocalConverged",
    "SelectiveFD",
    "methods",
]
