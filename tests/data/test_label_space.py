"""Which output means which class."""

from __future__ import annotations

import pytest

from fedalloy.data.label_space import LabelSpace
from fedalloy.errors import UsageError

CIFAR = LabelSpace((("cifar10", 10), ("cifar100", 20)))


def test_private_classes_come_first() -> None:
    assert CIFAR.outputs == 30
    assert [CIFAR.index("cifar10", label) for label in (0, 9)] == [0, 9]
    assert [CIFAR.index("cifar100", label) for label in (0, 19)] == [10, 29]
    assert CIFAR.columns("cifar10") == slice(0, 10)
    assert CIFAR.columns("cifar100") == slice(10, 30)


@pytest.mark.parametrize("label", [-1, 20])
def test_labels_that_do_not_exist_are_refused(label: int) -> None:
    with pytest.raises(UsageError, match=rf"'cifar100'.* {label}\b.*0 to 19\b"):
        CIFAR.index("cifar100", label)


def test_unknown_data_sets_name_the_nearest() -> None:
    with pytest.raises(UsageError, match="'cifar100'"):
        CIFAR.columns("cifar1000")


@pytest.mark.parametrize("parts", [(), (("a", 2), ("a", 3)), (("a", 0),)])
def test_spaces_that_mean_nothing_are_refused(parts: tuple[tuple[str, int], ...]) -> None:
    with pytest.raises(UsageError, match=r"label space.*different names"):
        LabelSpace(parts)
