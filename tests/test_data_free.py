"""The losses that judge a generator: their ends, their signs and what their names promise."""

from __future__ import annotations

import math

import pytest
import torch

from fedalloy.knowledge.data_free import activation_loss, entropy_loss, judged, one_hot_loss
from fedalloy.nets.models import create
from fedalloy.train.fit import frozen


def logits(rows: list[list[float]]) -> torch.Tensor:
    """Answers with exactly these probabilities."""
    return torch.tensor(rows).log()


@pytest.mark.parametrize("classes", [2, 10, 26])
def test_entropy_is_0_for_all_classes_alike_and_1_for_one_class(classes):
    every = torch.eye(classes) * 100  # each sample is sure, and together they cover all classes
    single = torch.eye(classes)[:1].expand(8, -1) * 1000
    assert entropy_loss(every).item() == pytest.approx(0, abs=1e-6)
    assert entropy_loss(single).item() == pytest.approx(1, abs=1e-6)
    assert entropy_loss(every, normalised=False).item() == pytest.approx(-math.log(classes), abs=1e-5)
    assert entropy_loss(single, normalised=False).item() == pytest.approx(0, abs=1e-6)


def test_entropy_is_that_of_the_mean_answer_by_hand():
    answers = logits([[0.9, 0.1], [0.5, 0.5]])  # mean (0.7, 0.3)
    plain = 0.7 * math.log(0.7) + 0.3 * math.log(0.3)
    assert entropy_loss(answers, normalised=False).item() == pytest.approx(plain, abs=1e-6)
    assert entropy_loss(answers).item() == pytest.approx(1 + plain / math.log(2), abs=1e-6)


def test_a_class_that_is_never_made_gives_no_nan():
    answers = (torch.tensor([[1e4, 0.0, -1e4]])).requires_grad_()
    entropy_loss(answers).backward()
    assert answers.grad is not None
    assert answers.grad.isfinite().all()


def test_one_hot_by_hand():
    assert one_hot_loss(logits([[0.8, 0.2], [0.4, 0.6]])).item() == pytest.approx(
        -(math.log(0.8) + math.log(0.6)) / 2, abs=1e-6
    )


def test_activation_of_a_map_and_of_a_vector():
    feature = torch.tensor([[[1.0, -1.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 4.0]]])
    assert activation_loss(feature).item() == -1.0
    assert activation_loss(feature, summed=True).item() == -4.0


def test_a_frozen_teacher_passes_gradients_to_images_and_takes_none():
    teacher = frozen(create("lenet5", classes=4, channels=1, size=32))
    images = torch.randn(3, 1, 32, 32, requires_grad=True, generator=torch.Generator().manual_seed(0))
    _, feature, answers = judged(teacher, images)
    assert torch.equal(answers, teacher(images))
    (one_hot_loss(answers) + activation_loss(feature)).backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
    assert all(p.grad is None for p in teacher.parameters())
