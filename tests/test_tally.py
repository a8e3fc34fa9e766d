"""Evaluation in each task, on a network whose outputs are its inputs: by hand, and the same where clients count."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from fedalloy.federation.core import Method, State
from fedalloy.federation.evaluation import at_client, distinct, evaluate, from_clients, miscounted
from fedalloy.federation.setting import Setting, Site
from fedalloy.storage.run_files import check_description, check_record

SHARED = "shared"


class Both(Method):
    """The network as it is, for all and as each client's own."""

    def models(self, s):
        return {SHARED: {"weight": torch.eye(s["outputs"])}}

    def personal(self, me):
        return {"weight": torch.eye(me.classes)}


def made(rows, tests, outputs, task, checks=None, **given):
    """A setting with these tests, of inputs that are the logits, and targets."""
    dtype = torch.int64 if task == "classes" else torch.float32

    def samples(x, y):
        found = rows(x, [0] * len(x)) if len(x) else rows([[0.0] * outputs], [0]).subset([])
        target = torch.tensor(y, dtype=dtype)
        if task != "classes":
            target = target.reshape(-1, outputs)
        return dataclasses.replace(found, y=target if len(x) else target.new_zeros(1, *target.shape[1:]))

    train = samples([[0.0] * outputs] * 2, [0, 1] if task == "classes" else [[0.0] * outputs] * 2)
    checks = checks or [None] * len(tests)
    sites = [Site(train, samples(*test), c and samples(*c)) for test, c in zip(tests, checks, strict=True)]
    return Setting(
        sites=sites, networks=[lambda: nn.Linear(outputs, outputs, bias=False)], classes=outputs, task=task, **given
    )


def viewed(setting: Setting) -> dict[str, Any]:
    """The view of all, which must be that of each client's own, the same where clients count, and a valid record."""
    state = State(1, {"outputs": setting.classes})
    views = evaluate(setting, Both(), state, {})
    which, kept = distinct(Both().models(state))
    counts = {k: at_client(setting, Both(), k, 1, {}, kept) for k in setting.ids}
    assert [miscounted(setting, k, found, kept) for k, found in counts.items()] == [None] * len(counts)
    assert from_clients(setting, which, kept, counts) == views
    assert {**views["personal"], "test": None} == {**views[SHARED], "test": None}
    record = json.loads(json.dumps({"round": 1, "views": views}, allow_nan=False))
    check_record("it", record, len(setting.sites))
    details = {name: view["details"] for name, view in record["views"].items()}
    sizes = {"test_sizes": [len(site.test) for site in setting.sites]}
    named = {"format": 1, "name": "both", "label": "Both", "seed": 0}
    check_description("it", {**named, "clients": sizes, "last": {"round": 1, "views": details}})
    return views[SHARED]


# The difference of two logits is the log odds of class 1.
BINARY = [
    ([[0, 2.0], [0, 0.5], [0, -1.0], [0, -2.0], [0, 1.0]], [1, 1, 1, 0, 0]),
    ([[0, 1.0], [0, -1.0]], [1, 1]),  # one class only
    ([], []),
]


def test_two_classes_by_hand(rows) -> None:
    view = viewed(made(rows, BINARY, 2, "classes"))
    clients = view["clients"]
    assert clients["accuracy"] == [0.6, 0.5, None]
    assert clients["auc"] == [pytest.approx(4 / 6, abs=1e-5), None, None]  # pairs: 2 1, 0.5 1, -1 1 against 1 and -2
    assert clients["sensitivity"] == [pytest.approx(2 / 3, abs=1e-5), 0.5, None]
    assert clients["specificity"] == [0.5, None, None]
    assert view["sensitivity"] == pytest.approx(3 / 5)
    assert view["specificity"] == 0.5
    assert view["auc"] == pytest.approx(4 / 6)  # only client 0 has one
    top = [1 / (1 + math.exp(-abs(odds))) for odds in (2, 0.5, 1, 2, 1)]
    # Bins of 0.8808 (twice, both right), 0.6225 (right) and 0.7311 (twice, both wrong).
    first = (abs(2 * top[0] - 2) + abs(top[1] - 1) + abs(2 * top[2])) / 5
    assert clients["ece"] == pytest.approx([first, abs(2 * top[2] - 1) / 2, None], abs=1e-5)
    assert view["ece"] == pytest.approx((5 * first + 2 * abs(top[2] - 0.5)) / 7, abs=1e-6)
    assert view["details"]["confusions"] == [[[1, 1], [1, 2]], [[0, 0], [1, 1]], [[0, 0], [0, 0]]]
    assert clients["balanced"] == [pytest.approx((1 / 2 + 2 / 3) / 2, abs=1e-5), None, None]  # one class only: none
    # Recalls of 1 of 2 and 2 of 3, with two more samples each, one of them found: 2 of 4 and 3 of 5.
    spread = (0.25 / 2 + 3 / 5 * 2 / 5 / 3) ** 0.5 / 2
    assert clients["balanced_error"] == [pytest.approx(spread, abs=1e-5), None, None]
    assert view["balanced"] == pytest.approx((1 / 2 + 3 / 5) / 2)
    assert view["balanced_error"] == pytest.approx((0.25 / 2 + 4 / 7 * 3 / 7 / 5) ** 0.5 / 2)
    assert view["details"]["intervals"]["specificity"][1] is None
    low, high = view["details"]["intervals"]["auc"][0]
    assert low < 4 / 6 < high
    assert "task" not in view


def test_a_threshold_moves_the_rates_but_not_the_accuracy(rows) -> None:
    plain, strict = (viewed(made(rows, BINARY, 2, "classes", threshold=t)) for t in (0.5, 0.8))  # odds of 1.386
    assert strict["clients"]["sensitivity"] == [pytest.approx(1 / 3, abs=1e-5), 0.0, None]
    assert strict["clients"]["specificity"] == [1.0, None, None]
    assert strict["amp"] == plain["amp"]
    assert strict["auc"] == plain["auc"]


def test_a_probability_must_exceed_the_threshold(rows) -> None:
    """Log odds of exactly 0 are a probability of exactly one half: the answer is negative, as argmax says too."""
    view = viewed(made(rows, [([[0.0, 0.0], [0, 1.0], [0, -1.0]], [1, 1, 0])], 2, "classes"))
    assert (view["sensitivity"], view["specificity"]) == (0.5, 1.0)
    both = viewed(made(rows, [([[0.0], [1.0], [-1.0]], [[1], [1], [0]])], 1, "labels"))
    assert (both["sensitivity"], both["specificity"]) == (0.5, 1.0)


def test_areas_are_weighed_by_the_size_of_the_tests(rows) -> None:
    large = ([[0, 2.0], [0, 1.0], [0, 3.0], [0, 0.5]], [1, 0, 0, 0])  # above two of three
    small = ([[0, 1.0], [0, 0.0]], [1, 0])
    view = viewed(made(rows, [large, small], 2, "classes"))
    assert view["auc"] == pytest.approx((4 * 2 / 3 + 2 * 1) / 6)


def test_three_classes_by_hand(rows) -> None:
    x = [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 0, 0]]
    view = viewed(made(rows, [(x, [0, 1, 1, 1])], 3, "classes", checks=[(x, [0, 1, 2, 1])]))
    # Class 0: positive 1st, ties with the 4th, above the others. Class 1: one of three is above, two are equal.
    assert view["clients"]["auc"] == [pytest.approx(((2 + 0.5) / 3 + (1 + 2 / 2) / 3) / 2, abs=1e-5)]
    assert view["sensitivity"] == pytest.approx((1 + 1 / 3) / 2)
    assert view["specificity"] == pytest.approx((2 / 3 + 1 + 3 / 4) / 3)
    assert view["validation"] == 0.75


LABELS = [
    ([[1.0, -1.0], [2.0, 1.0], [-1.0, 3.0], [-2.0, -2.0]], [[1, 0], [0, 1], [0, 1], [1, 0]]),
    ([[1.0, 1.0]], [[1, 1]]),
    ([], []),
]


def test_labels_by_hand(rows) -> None:
    view = viewed(made(rows, LABELS, 2, "labels", checks=[LABELS[0], None, LABELS[1]]))
    clients = view["clients"]
    assert view["task"] == "labels"
    assert clients["accuracy"] == [0.75, 1.0, None]
    assert clients["subset"] == [0.5, 1.0, None]
    assert clients["auc"] == [(0.25 + 1.0) / 2, None, None]  # 1 above -1 only, of four pairs; both above both
    assert view["amp"] == pytest.approx((4 * 0.75 + 1) / 5)
    assert view["subset"] == pytest.approx(3 / 5)
    # Label 0: 2 hits, 1 miss, 1 false alarm; label 1: 3 hits.
    assert view["macro_f1"] == pytest.approx((4 / 6 + 1) / 2)
    assert view["validation"] == pytest.approx((4 * 0.75 + 1) / 5)
    # Label 0: 2 of 3 found and 1 of 2 spared; label 1: all. A client has none for a label that all its samples have.
    assert view["balanced"] == pytest.approx(((2 / 3 + 1 / 2) / 2 + 1) / 2)
    assert clients["balanced"] == [pytest.approx((1 / 2 + 1) / 2), None, None]
    # Errors of 1 of 2 twice, and of 2 of 2 twice; labels err together.
    errors = [(2 * r * (1 - r) / 2) ** 0.5 / 2 for r in (2 / 4, 3 / 4)]
    assert clients["balanced_error"] == [pytest.approx(sum(errors) / 2, abs=1e-5), None, None]
    lost = [math.log1p(math.exp(-v)) for v in (1, 1, -2, 1, 1, 3, -2, 2)]
    assert clients["loss"][0] == pytest.approx(sum(lost) / 2 / 4, rel=1e-6)
    assert view["details"]["confusions"][0] == [[[1, 1], [1, 1]], [[2, 0], [0, 2]]]


NUMBERS = [
    ([[1.0], [3.0], [3.0], [5.0]], [[1.0], [2.0], [3.0], [6.0]]),
    ([[9.0], [9.0]], [[0.0], [2.0]]),
    ([[4.0]], [[5.0]]),  # no variance, no R2
    ([], []),
]


def test_numbers_by_hand(rows) -> None:
    view = viewed(made(rows, NUMBERS, 1, "numbers", checks=[NUMBERS[0], NUMBERS[1], NUMBERS[2], None]))
    clients = view["clients"]
    assert view["task"] == "numbers"
    assert clients["accuracy"] == [pytest.approx(1 - 2 / 14), pytest.approx(-64.0), None, None]
    assert clients["size"] == [4, 2, 1, 0]
    assert clients["mae"] == [0.5, 8.0, 1.0, None]
    assert clients["rmse"] == pytest.approx([math.sqrt(0.5), math.sqrt(65), 1.0, None], abs=1e-4)
    assert view["mae"] == pytest.approx((4 * 0.5 + 2 * 8 + 1) / 7)
    assert view["rmse"] == pytest.approx(math.sqrt((2 + 130 + 1) / 7))
    assert view["amp"] == pytest.approx((4 * (1 - 2 / 14) - 2 * 64) / 6)  # client 2 has no R2
    assert (view["wlp"], view["worst_client"]) == (pytest.approx(-64.0), 1)
    assert view["validation"] == pytest.approx(view["amp"])
    assert view["macro_f1"] is None
    assert "confusion" not in view["details"]
    low, high = view["details"]["intervals"]["mae"][0]
    assert (low, high) == pytest.approx((0.5 - 3.182446 * 0.288675, 0.5 + 3.182446 * 0.288675), abs=1e-4)
    assert view["details"]["intervals"]["accuracy"][0][1] <= 1


@pytest.mark.parametrize(("task", "tests", "outputs"), [("labels", LABELS, 2), ("numbers", NUMBERS, 1)])
def test_a_model_that_diverged_has_no_figures_but_a_record(rows, task, tests, outputs) -> None:
    broken = [([[math.nan] * outputs for _ in x], y) for x, y in tests]
    view = viewed(made(rows, broken, outputs, task))
    assert view["loss"] is None
    assert view.get("auc") is None


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_a_client_whose_model_diverged_is_not_left_out_of_a_mean(rows, task) -> None:
    tests, outputs = {"classes": (BINARY, 2), "numbers": (NUMBERS, 1)}[task]
    (x, y), *others = tests
    view = viewed(made(rows, [*others, ([[math.nan] * outputs] * len(x), y)], outputs, task))
    means = ("auc", "ece") if task == "classes" else ("amp", "alma", "wlp", "mae", "rmse", "loss")
    assert [view[name] for name in means] == [None] * len(means)
    if task == "numbers":
        assert view["worst_client"] == 3
        assert view["clients"]["accuracy"][0] is not None


def test_tests_that_are_all_empty(rows) -> None:
    for task, outputs in (("classes", 3), ("labels", 2), ("numbers", 2)):
        view = viewed(made(rows, [([], []), ([], [])], outputs, task))
        assert view["amp"] is None
        assert view["clients"]["accuracy"] == [None, None]


@pytest.mark.parametrize(
    ("task", "key", "value", "words"),
    [
        ("classes", "auc", torch.tensor([1.5], dtype=torch.float64), "outside"),
        ("classes", "auc", torch.tensor([-0.5], dtype=torch.float64), "outside"),
        ("classes", "auc", torch.tensor([math.nan], dtype=torch.float64), "finite"),
        ("classes", "calibration", 1.5, "above 1"),
        ("classes", "decided", torch.tensor([4, 0]), "exceeds"),
        ("classes", "rows", torch.ones(2), "unexpected"),
        ("labels", "exact", 9, "above 4"),
        ("labels", "confusion", torch.ones(2, 2, 2, dtype=torch.int64) * 2, "samples, not 4"),
        ("numbers", "r2", 1.5, "above 1"),
        ("numbers", "r2", math.nan, "finite"),
        ("numbers", "absolute", -1.0, "below 0"),
    ],
)
def test_the_gate_refuses_counts_that_cannot_be(rows, task, key, value, words) -> None:
    tests, outputs = {"classes": (BINARY, 2), "labels": (LABELS, 2), "numbers": (NUMBERS, 1)}[task]
    setting = made(rows, tests, outputs, task)
    kept = Both().models(State(1, {"outputs": outputs}))
    found = at_client(setting, Both(), 0, 1, {}, kept)
    assert miscounted(setting, 0, found, kept) is None
    forged = copy.deepcopy(found)
    forged["models"][SHARED][key] = value
    assert words in (miscounted(setting, 0, forged, kept) or "")
