"""Your own arrays and your own network: does it pay for these clinics to train together?

Run it with `python examples/own_data.py`. The arrays here are synthetic; replace them with yours. `client_ids` gives
the client of each row. If you have no ids, omit it and let a partition split the rows: {"partition": {"name":
"dirichlet", "clients": 5, "alpha": 0.5}}.
"""

from __future__ import annotations

import numpy as np
from rich import print
from torch import nn

from fedalloy import compare, from_arrays, rows
from fedalloy.report.table import comparison_table, verdict
from fedalloy.storage.rows import gain_over

MEASUREMENTS, DIAGNOSES = 12, 4


def clinics() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patients of five clinics of different sizes, each with its own distribution of diagnoses and its own devices."""
    draw = np.random.default_rng(0)
    typical = draw.normal(size=(DIAGNOSES, MEASUREMENTS))
    clinic = np.repeat(np.arange(5), [40, 60, 80, 120, 200])
    mixture = draw.dirichlet(np.full(DIAGNOSES, 2.0), size=5)
    diagnosis = np.array([draw.choice(DIAGNOSES, p=mixture[k]) for k in clinic])
    device = draw.normal(scale=0.2, size=(5, MEASUREMENTS))
    noise = draw.normal(scale=1.8, size=(len(clinic), MEASUREMENTS))
    return typical[diagnosis] + device[clinic] + noise, diagnosis, clinic


def network() -> nn.Module:
    """Any module from a batch of inputs to logits; feature vectors have shape N x D x 1 x 1."""
    return nn.Sequential(nn.Flatten(), nn.Linear(MEASUREMENTS, 32), nn.ReLU(), nn.Linear(32, DIAGNOSES))


EXPERIMENT = {
    "rounds": 15,
    "partition": {"name": "natural", "test_fraction": 0.4},
    "training": {"epochs": 2, "batch": 16, "lr": 0.05},
    "methods": {"local-converged": {}, "fedavg": {}, "centralised": {}},
}

if __name__ == "__main__":
    x, y, clinic = clinics()
    data = from_arrays(x, y, client_ids=clinic, name="clinics")
    runs = compare(EXPERIMENT, dataset=data, network=network)

    table = [row for run in runs for row in rows(run)]
    print(comparison_table(table))
    print(verdict(table))
    alone, fedavg, _ = runs
    print("gain of each clinic over training alone:", gain_over(fedavg, alone, "aca", "personal").round(3).tolist())
