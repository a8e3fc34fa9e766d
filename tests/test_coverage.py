"""Coverage of pseudo-samples: what is noted, by whom, and that a collapse is told once, and in reports."""

from __future__ import annotations

import pytest
import torch

from fedalloy import simulate
from fedalloy.check.method import small_settings
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import run
from fedalloy.knowledge.coverage import ASKED, COVERED, LARGEST, collapsed, coverage, note_coverage
from fedalloy.methods import DaFKD, methods
from fedalloy.report.facts import warnings

EXPERIMENT = {
    "rounds": 2,
    "engine": "serial",
    "data": {"name": "tiny", "size": 8},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
    "model": {"name": "mlp"},
    "training": {"work": "fixed_steps", "steps": 2, "batch": 8},
    "public": {"data": "own", "samples": 40},
}


@pytest.mark.parametrize(
    ("seen", "found"),
    [([0, 1, 2, 3], (4, 0.25)), ([2, 2, 2, 2], (1, 1.0)), ([4, 4, 1], (2, 2 / 3))],
)
def test_coverage_by_hand(seen, found):
    assert coverage(torch.tensor(seen), classes=5) == found


def test_outputs_that_a_public_set_adds_are_no_classes():
    fed = Serial(small_settings()[0]).open(DaFKD(), 1)  # four classes
    note_coverage(fed, torch.tensor([[0.1, 0.2, 0.0, 0.0, 9.0], [0.1, 0.0, 0.0, 0.3, 9.0]]))
    assert (fed.notes[COVERED], fed.notes[LARGEST]) == (2, 0.5)


@pytest.mark.parametrize(
    ("covered", "largest", "classes", "found"),
    [
        (10, 0.2, 10, False),
        (5, 0.2, 10, False),
        (4, 0.3, 10, True),
        (10, 0.51, 10, True),
        (2, 0.89, 2, False),
        (1, 1.0, 2, True),
        (3, 0.59, 3, False),
        (3, 0.61, 3, True),
    ],
)
def test_when_samples_have_collapsed(covered, largest, classes, found):
    assert collapsed({"notes": {COVERED: covered, LARGEST: largest}}, classes) is found


@pytest.mark.parametrize(
    "name",
    [
        "dafkd",
        "dafkd-no-correlation",
        "dafkd-scores",
        "dafkd-predictions",
        "dafkd-features",
        "fedftg",
        "data-free",
        "fedkf-server",
    ],
)
def test_who_notes_it(name):
    method = {"name": name, **methods[name].card.quick}
    method |= {"kd_start": 1} if name == "fedkf-server" else {}
    rounds = simulate({**EXPERIMENT, "method": method}).rounds
    assert {COVERED, LARGEST} <= set(rounds[-1]["notes"])
    assert 1 <= rounds[-1]["notes"][COVERED] <= 10
    assert 0.1 <= rounds[-1]["notes"][LARGEST] <= 1


def test_without_distillation_nothing_is_noted():
    method = DaFKD(**{**DaFKD.card.quick, "distil_steps": 0})
    noted = []
    run(method, Serial(small_settings()[0]), 1, watch=lambda _, fed: noted.append(fed.notes) or False)
    assert noted == [{}]


@pytest.mark.parametrize("collapses", [True, False])
def test_a_collapse_is_told_once_and_in_reports(collapses, monkeypatch):
    classes = torch.zeros(12).long() if collapses else torch.arange(12) % 10
    real = DaFKD.weighted
    monkeypatch.setattr(DaFKD, "weighted", lambda self, *args: (torch.eye(10)[classes], real(self, *args)[1]))
    said: list[str] = []
    done = simulate({**EXPERIMENT, "method": {"name": "dafkd", **DaFKD.card.quick}}, say=said.append)
    about = [line for line in said if "pseudo-samples" in line]
    assert len(about) == collapses
    told = [line for line in warnings([done]) if "pseudo-samples" in line]
    assert len(told) == collapses
    if collapses:
        assert about[0].startswith("round 1: ")
        assert "cover 1 of 10 classes" in told[0]
        assert "2 of 2 rounds" in told[0]


def test_a_generator_is_not_blamed_for_classes_that_nobody_asked_for():
    notes = {COVERED: 4, LARGEST: 0.3}
    assert collapsed({"notes": notes}, classes=10)
    assert not collapsed({"notes": {**notes, ASKED: 4}}, classes=10)
    assert collapsed({"notes": {**notes, ASKED: 4, COVERED: 1}}, classes=10)


def test_fedftg_asks_for_the_classes_that_active_clients_hold():
    alone = {**EXPERIMENT, "partition": {"name": "classes", "clients": 5, "per_client": 2}}
    alone |= {"participation": {"policy": "fraction", "fraction": 0.2}}
    done = simulate({**alone, "method": {"name": "fedftg", **methods["fedftg"].card.quick}})
    assert [record["notes"][ASKED] for record in done.rounds] == [2, 2]
