"""Every method learns every task that its card claims, and refuses the others before any work."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedalloy import compare, from_arrays
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.tree import Tree, equal
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.data.samples import TASKS, Dataset, Task
from fedalloy.engine.serial import Serial
from fedalloy.errors import UsageError
from fedalloy.federation.core import Message, Method, State, act, quick
from fedalloy.federation.core import run as run_method
from fedalloy.federation.setting import Setting
from fedalloy.methods import DSFL, FedDF, FedMD, FedMDGlobal, methods
from fedalloy.methods.soft_labels import SoftLabels
from fedalloy.run.runner import refuse_unfit
from fedalloy.train.fit import load, params, predict
from fedalloy.train.losses import soft_answers, soft_loss, task_loss

OURS = [name for name, cls in methods.items() if cls.__module__.startswith("fedalloy.")]


def data(task: Task, rows: int = 160) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    scores = x @ rng.normal(size=(6, 3))
    y: dict[Task, Any] = {"classes": scores.argmax(1), "labels": scores > 0.5, "numbers": scores[:, :2] / 2}
    return from_arrays(x, y[task], task=task, mean=[0.0] * 6, std=[1.0] * 6)


def setting(task: Task, **more: Any) -> Setting:
    exp = {
        "data": "tiny",
        "model": {"name": "mlp", "hidden": [8]},
        "partition": {"name": "iid", "clients": 3},
        "training": {"epochs": 2, "batch": 8, "lr": 0.1},
        "public": {"data": "own", "samples": 30, "labelled": True},
        **more,
    }
    return build(experiment(exp), data(task)).setting


def played(method: Method, where: Setting, rounds: int) -> tuple[State, Serial]:
    engine = Serial(where)
    return run_method(method, engine, rounds), engine


def leaves(tree: Tree) -> list[Tensor]:
    found: list[Tensor] = []
    for value in tree.values():
        found += leaves(value) if isinstance(value, dict) else [value] if isinstance(value, Tensor) else []
    return found


def test_loss(method: Method, where: Setting, state: State, engine: Serial) -> float:
    """The mean loss of the clients' own models, or of the common one, on their test samples."""
    losses = []
    for k, site in enumerate(where.sites):
        me = where.client(k, state.round, engine.memories.get(k, {}))
        weights = method.personal(me) or next(iter(method.models(state).values()))
        outputs = predict(load(where.build(k), weights), site.test)
        losses.append(float(task_loss(where.task, outputs, site.test.labels)))
    return sum(losses) / len(losses)


test_loss.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", OURS)
def test_a_method_learns_what_its_card_claims_and_refuses_the_rest(name: str, task: Task) -> None:
    cls = methods[name]
    if task not in cls.card.tasks:
        with pytest.raises(UsageError, match=rf"{name} cannot learn.*use one of: .*fedavg.*knfu"):
            refuse_unfit(cls(), setting(task))
        return
    if task == "classes":  # the contract of methods is checked with classes elsewhere
        return
    where, method = setting(task), quick(cls)
    refuse_unfit(method, where)
    state, engine = played(method, where, 2)
    assert state.round == 2
    kept = [*leaves(state.body), *(t for memory in engine.memories.values() for t in leaves(memory))]
    assert kept
    assert all(bool(torch.isfinite(t).all()) for t in kept if t.is_floating_point())
    assert math.isfinite(test_loss(method, where, state, engine))


@pytest.mark.parametrize("task", ["labels", "numbers"])
@pytest.mark.parametrize("name", ["fedavg", "knfu", "fedmd", "ds-fl", "fedgkd", "feddf"])
def test_the_loss_falls(name: str, task: Task) -> None:
    where = setting(task, training={"epochs": 2, "batch": 8, "lr": 0.5 if task == "labels" else 0.1})
    method = quick(methods[name])
    start = test_loss(method, where, *played(method, where, 0))
    assert test_loss(method, where, *played(method, where, 6)) < 0.8 * start


@pytest.mark.parametrize("task", ["labels", "numbers"])
@pytest.mark.parametrize("name", ["knfu", "fedmd-knfu", "ds-fl"])
def test_a_client_approaches_the_answers_that_it_is_sent(name: str, task: Task) -> None:
    method = methods[name](ce_on="none", tune_epochs=20, tune_lr=0.5 if task == "labels" else 0.1)
    assert isinstance(method, SoftLabels)
    me = setting(task).client(0, 1, {})
    me = replace(me, memory={"model": params(me.build())})
    public = method.part(me)
    target = soft_answers(task, 3 * (public.labels * 2 - 1) if task == "labels" else public.labels)
    before = predict(me.build(), public.samples)
    tuned = act(method, me, Message("tune", 0, {"soft": target})).keep
    assert tuned is not None
    after = predict(me.net(tuned["model"]), public.samples)
    assert soft_loss(task, target, after) < 0.9 * soft_loss(task, target, before)


@pytest.mark.parametrize("name", ["fedkf", "fedftg", "data-free"])
def test_a_table_is_not_told_to_resize_its_images(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_unfit(quick(methods[name]), setting("classes"))
    assert "size" not in str(refused.value)
    assert "fedavg" in str(refused.value)


def test_numbers_are_not_softened_before_they_are_remembered() -> None:
    """LwoF's temperature is one of probabilities: of numbers the loss is the squared error, whatever rho is."""
    method = FedMDGlobal(lwof=True, rho=4.0)
    known, found = torch.tensor([[1.0]]), torch.tensor([[3.0]])
    assert float(method.forgetting(method.soften(known, "numbers"), found, "numbers")) == 4.0


def test_a_student_of_numbers_learns_their_squared_error() -> None:
    apart = FedDF().apart(torch.tensor([[1.0], [1.0]]), torch.tensor([[4.0], [1.0]]), "numbers")
    assert float(apart) == 4.5


def test_class_weights_are_not_of_public_samples() -> None:
    """A client whose own classes are rare learns public labels as they come."""
    where = setting("classes", training={"epochs": 1, "batch": 8, "class_weights": "balanced"})
    me, seen = where.client(0, 1, {}), []

    class Watched(FedMD):
        def converge(self, net, me, samples, *rest):  # type: ignore[no-untyped-def]
            seen.append(me.class_weights)

    assert where.public is not None
    Watched().learn_public(me.build(), me, where.public)
    assert me.class_weights is not None
    assert seen == [None]


def test_class_weights_are_not_of_public_labels_in_fine_tuning() -> None:
    method = methods["fedmd-knfu"](ce_on="public", tune_epochs=2)
    assert isinstance(method, SoftLabels)
    tuned = []
    for weights in ({}, {"class_weights": "balanced"}):
        me = setting("classes", training={"epochs": 1, "batch": 8, **weights}).client(0, 1, {})
        me = replace(me, memory={"model": params(me.build())})
        public = method.part(me)
        kept = act(method, me, Message("tune", 0, {"soft": torch.full((len(public.samples), 3), 1 / 3)})).keep
        assert kept is not None
        tuned.append(kept["model"])
    assert equal(*tuned)


def test_the_server_means_numbers_and_shares_of_labels() -> None:
    soft = torch.tensor([[[0.2, 0.9]], [[0.6, 0.5]]])
    rule = methods["ds-fl"](ensemble="mean")
    assert isinstance(rule, DSFL)
    for task in ("labels", "numbers"):
        assert torch.allclose(rule.global_labels(soft, task), torch.tensor([[0.4, 0.7]]))  # type: ignore[arg-type]
    sharp = DSFL(temperature=0.1).global_labels(soft, "labels")
    assert torch.allclose(sharp, torch.tensor([[-2.0, 4.0]]).sigmoid())
    assert torch.allclose(DSFL().global_labels(soft, "numbers"), torch.tensor([[0.4, 0.7]]))


def test_options_that_need_classes_are_refused_for_other_tasks() -> None:
    for task, method in [
        ("numbers", methods["fedmd"](consensus_of="probabilities")),
        ("labels", methods["fedmd"](clip_logits=3.0)),
        ("numbers", methods["fedmd-global"](loss="ce")),
        ("labels", methods["fedgkd"](variant="kdia")),
        ("numbers", methods["knfu"](temperature=2.0)),
        ("labels", methods["feddf"](ensemble="entropy")),
        ("numbers", methods["feddf"](ensemble="probabilities")),
    ]:
        with pytest.raises(UsageError, match=rf"^{method.name}\.\w+ = .*(write|leave it out)"):
            setting(task).check(method)  # type: ignore[arg-type]


def test_disco_weights_need_classes() -> None:
    with pytest.raises(UsageError, match=r"disco.*classes"):
        setting("numbers").check(methods["fedavg"](aggregation=Aggregation(weights="disco")))


def test_compare_refuses_before_the_first_run() -> None:
    begun: list[str] = []
    exp = {"data": "tiny", "model": "mlp", "partition": {"name": "iid", "clients": 3}, "rounds": 1}

    def begin(label: str, seed: int) -> Any:
        begun.append(label)

    with pytest.raises(UsageError, match=r"kdia cannot learn.*fedavg"):
        compare(exp, ["fedavg", "kdia"], dataset=data("numbers"), begin=begin)
    assert not begun


def test_partitions_by_class_are_refused() -> None:
    with pytest.raises(UsageError, match=r"dirichlet.*iid, quantity, natural"):
        setting("labels", partition={"name": "dirichlet", "clients": 3, "alpha": 0.5})
    assert len(setting("numbers", partition={"name": "quantity", "clients": 3, "beta": 1.0}).sites) == 3
