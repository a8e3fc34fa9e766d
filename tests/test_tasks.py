"""The loss of each task, class weights, and data sets with labels or numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedalloy import from_arrays
from fedalloy.data.card import card
from fedalloy.data.partition import split, strata
from fedalloy.data.samples import Samples
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import Client
from fedalloy.federation.setting import Setting, Site
from fedalloy.knowledge.fusion import divergences_of
from fedalloy.nets import models
from fedalloy.train.fit import LocalWork
from fedalloy.train.losses import balanced_weights, binary_kl, ce, kl, task_loss
from fedalloy.train.privacy import Privacy
from fedalloy.train.scores import effective_size, score, standard_error


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_loss_of_classes_without_weights_is_cross_entropy_to_the_bit() -> None:
    logits, y = draw(7, 3), torch.tensor([0, 1, 2, 2, 1, 0, 0])
    assert torch.equal(task_loss("classes", logits, y), ce(logits, y))


@pytest.mark.parametrize("task", ["classes", "labels", "numbers"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_is_a_mean_of_one_term_per_sample(task: str, weighted: bool) -> None:
    outputs = draw(6, 3)
    y = torch.tensor([0, 0, 0, 0, 1, 2]) if task == "classes" else (draw(6, 3, seed=1) > 0.5).float()
    weights = balanced_weights(task, y, 3) if weighted and task != "numbers" else None  # type: ignore[arg-type]
    each = [task_loss(task, outputs[i : i + 1], y[i : i + 1], weights) for i in range(6)]  # type: ignore[arg-type]
    assert torch.allclose(task_loss(task, outputs, y, weights), torch.stack(each).mean())  # type: ignore[arg-type]


def test_balanced_weights_are_scikit_learns() -> None:
    y = torch.tensor([0] * 6 + [1] * 3 + [3])
    expected = 10 / (3 * np.array([6, 3, 1]))  # compute_class_weight("balanced", ...) over the classes present
    assert torch.allclose(balanced_weights("classes", y, 4)[[0, 1, 3]], torch.tensor(expected).float())
    assert float(balanced_weights("classes", y, 4)[y].mean()) == pytest.approx(1.0)


def test_a_label_that_all_or_no_samples_have_weighs_one() -> None:
    weights = balanced_weights("labels", torch.tensor([[1.0, 0.0], [1.0, 0.0]]), 2)
    assert weights[1, 0] == 1
    assert weights[0, 1] == 1


def test_a_client_weighs_its_own_classes() -> None:
    y = torch.tensor([0, 0, 0, 1])
    train = Samples(draw(4, 2, 1, 1), y, torch.arange(4))
    net = lambda: models.create("mlp", classes=2, channels=2, size=1)  # noqa: E731
    me = Client(0, 1, 0, train, 2, LocalWork(class_weights="balanced"), 1, net)
    logits = draw(4, 2)
    by_hand = (torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0]) * F.cross_entropy(logits, y, reduction="none")).mean()
    assert torch.allclose(me.loss(logits, y), by_hand)
    plain = replace(me, work=LocalWork())
    assert torch.equal(plain.loss(logits, y), ce(logits, y))


def test_class_weights_are_refused_where_they_mean_nothing_or_tell_too_much() -> None:
    numbers, classes = draw(4, 1), torch.tensor([0, 1, 0, 1])
    net = lambda: models.create("mlp", classes=2, channels=2, size=1)  # noqa: E731
    work = LocalWork(class_weights="balanced")
    for y, more, words in [
        (numbers, {"task": "numbers", "classes": 1}, "class_weights.*numbers"),
        (classes, {"privacy": Privacy(), "classes": 2}, r"class_weights.*how many samples.*\[privacy\]"),
    ]:
        samples = Samples(draw(4, 2, 1, 1), y, torch.arange(4))
        with pytest.raises(UsageError, match=words):
            Setting(sites=[Site(samples, samples)], networks=[net], work=work, **more)  # type: ignore[arg-type]


def test_binary_kl_is_the_kl_of_two_classes() -> None:
    p, logits = draw(5, 1).sigmoid(), draw(5, 1, seed=1)
    two, own = torch.cat([p, 1 - p], 1).log(), torch.cat([logits, torch.zeros(5, 1)], 1)
    for tau in (1.0, 3.0):
        assert torch.allclose(binary_kl(p, logits, tau), kl(two, own, tau), atol=1e-6)


def test_distances_between_labels_and_numbers() -> None:
    soft = draw(3, 40, 2).sigmoid()
    d = divergences_of("labels", soft)
    p = soft.double().mean(1)
    by_hand = sum(
        float(a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log()) for a, b in zip(p[0], p[1], strict=True)
    )
    assert float(d[0, 1]) == pytest.approx(by_hand)

    numbers = 3 * draw(3, 40, 2) + torch.tensor([0.0, 1.0, 5.0])[:, None, None]
    d = divergences_of("numbers", numbers)
    normal = [torch.distributions.Normal(a.double().mean(0), a.double().std(0, correction=0)) for a in numbers]
    assert torch.allclose(d[0, 2], torch.distributions.kl_divergence(normal[0], normal[2]).sum())
    assert torch.allclose(divergences_of("numbers", 1000 * numbers), d)  # other units
    assert torch.equal(divergences_of("numbers", numbers, "other_to_own"), d.T)
    assert (d.diagonal().abs() < 1e-12).all()


def test_distances_between_numbers_are_finite_whatever_a_client_sends() -> None:
    wild = torch.stack([torch.zeros(4, 1), torch.full((4, 1), 3e38), draw(4, 1)])
    assert bool(torch.isfinite(divergences_of("numbers", wild)).all())


def test_a_score_with_class_weights_is_balanced_accuracy() -> None:
    """A model that always gives the common class must not be the best that a weighted client can find."""
    targets = torch.tensor([0] * 18 + [1] * 2)
    weights = balanced_weights("classes", targets, 2)
    never, half = torch.tensor([[1.0, 0.0]] * 20), torch.tensor([[0.0, 1.0]] * 9 + [[1.0, 0.0]] * 9 + [[0.0, 1.0]] * 2)
    assert [score("classes", z, targets) for z in (never, half)] == [0.9, 0.55]
    assert [score("classes", z, targets, weights) for z in (never, half)] == pytest.approx([0.5, 0.75])
    # A label that two of twenty have, and one that all have: (1/2 + 1) / 2 if neither answer ever changes.
    labels = torch.stack([targets.float(), torch.ones(20)], 1)
    weights = balanced_weights("labels", labels, 2)
    assert score("labels", torch.tensor([[-1.0, 1.0]] * 20), labels, weights) == pytest.approx(0.75, abs=1e-6)


def test_a_weighted_score_errs_like_that_of_fewer_samples() -> None:
    targets = torch.tensor([0] * 18 + [1] * 2)
    # Ten samples' weight stands on two: (18 * w + 2 * v)^2 / (18 w^2 + 2 v^2) with w = 20/36, v = 5.
    assert effective_size("classes", targets, balanced_weights("classes", targets, 2)) == pytest.approx(
        400 / (18 * (20 / 36) ** 2 + 50), rel=1e-6
    )
    assert effective_size("classes", targets) == 20


def test_scores_rise_with_better_answers_and_are_bounded() -> None:
    y = draw(50, 2)
    near, far = (score("numbers", y + e * draw(50, 2, seed=1), y) for e in (0.1, 0.5))
    assert 1 >= near > far > 0
    assert score("numbers", torch.full((50, 2), float("nan")), y) == score("numbers", 1e9 * y, y) == -1
    assert score("labels", torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])) == 0.5
    assert standard_error("numbers", -0.5, 10) == 0


def test_arrays_with_labels_and_numbers() -> None:
    x = np.zeros((3, 2), np.float32)
    labels = from_arrays(x, [[True, False, True]] * 3, task="labels")
    assert (labels.task, labels.classes, labels.y.dtype) == ("labels", 3, np.float32)
    one = from_arrays(x, [1.5, 2.5, -1.0], task="numbers")
    assert (one.classes, one.y.shape) == (1, (3, 1))
    assert from_arrays(x, np.zeros((3, 4)), x_test=x, y_test=np.ones((3, 4)), task="numbers").classes == 4


@pytest.mark.parametrize(
    ("y", "task", "words"),
    [
        ([0, 1, 1], "labels", "N x L"),
        ([[0, 2]] * 3, "labels", "0 or 1"),
        ([1.0, np.nan, 0.0], "numbers", "finite"),
        ([1e300, 0.0, 0.0], "numbers", "finite"),
        (["a", "b", "c"], "numbers", "must be numbers"),
        ([0, 1, 1], "number", "numbers"),
    ],
)
def test_other_targets_are_refused(y: object, task: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_arrays(np.zeros((3, 2), np.float32), y, task=task)  # type: ignore[arg-type]


def test_cards_of_partitions_without_classes() -> None:
    y = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]], np.float32)
    part = split(strata("iid", y, "labels"), name="iid", clients=2, seed=0)
    made = card(part, y, 2, "labels")
    assert made.counts.sum(0).tolist() == [2, 2]
    assert made.sizes.tolist() == [2, 2]
    assert "labels" in made.describe()
    numbers = card(part, y[:, :1] * 7.5, 1, "numbers")
    assert numbers.counts.tolist() == [[2], [2]]
    assert "class" not in numbers.describe()
