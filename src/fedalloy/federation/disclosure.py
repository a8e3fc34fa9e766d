"""What every client sends besides its method's replies, key by key: the single source for lists, reports and docs.

A test compares it with the messages of real runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedalloy.federation.core import Method

OFF = "not evaluated: evaluation on private rows is off under [privacy]"

STATISTICS = {
    "rows": "how many training rows it has",
    "present": "in how many of them each column has a value",
    "total": "the sum of each column of numbers, of each channel of images, and of each number to predict",
    "squares": "the sum of its squares",
    "histogram": "how many values are in each bin of two per cent, if medians replace missing values",
    "values": "the names of the categories that occur, and how often each does if missing values are replaced; of "
    "numbers, which occur and how often, if the most frequent one replaces missing values",
}
"""Told once, before the first round, about the training rows, where columns, own images or numbers to predict are
prepared with statistics that the experiment does not give; never under [privacy]."""

INTRODUCTION = {
    "client": "its number",
    "train": "how many training rows it has",
    "test": "how many test rows",
    "validation": "how many validation rows",
    "shape": "the shape of one row",
    "classes": "the number of classes",
    "counts": "how many training rows of each class, if the method's replies tell that too",
}
"""Sent once, where clients are on other machines."""

REPLY = {
    "meter": "how many steps and passes it made, and their FLOPs",
    "seconds": "how long it took",
    "digest": "the digest of what it remembers",
    "ledger": "what it has spent of its privacy",
}
"""Sent with each reply, where clients are on other machines."""

EVALUATION = {
    "confusion": "the confusion matrix on its test rows, and with it how many it has of each class",
    "loss": "the summed loss on them",
    "auc": "the AUC of each class on them",
    "calibration": "their calibration error",
    "decided": "how many of either class are right at the threshold, if there are two classes",
    "validation": "the accuracy on its validation rows, if it has any",
}
"""Sent in each round that is evaluated, for each of the models that `evaluated` names."""

LABELS = {
    "confusion": "the confusion matrix of each label",
    "exact": "how many test rows have all labels right",
    "loss": "the summed loss",
    "auc": "the AUC of each label",
    "validation": "the share of right labels in validation rows",
}
"""Sent instead where rows have several labels."""

NUMBERS = {
    "loss": "the summed squared error",
    "r2": "R2",
    "r2_error": "its standard error",
    "absolute": "the mean absolute error",
    "absolute_error": "its standard error",
    "validation": "R2 on validation rows",
}
"""Sent instead where numbers are predicted."""


def evaluated(method: type[Method]) -> str:
    """Which models a client evaluates under a method.

    >>> from fedalloy.methods import FedAvg, Local
    >>> evaluated(FedAvg), evaluated(Local)
    ("the server's", 'its own')
    """
    shared, own = method.models is not Method.models, method.personal is not Method.personal
    return " and ".join([*(["the server's"] if shared else []), *(["its own"] if own else [])])


def always() -> list[str]:
    """What every client sends besides its method's replies, in sentences."""
    return [
        f"Evaluation sends, for each model that a client evaluates: {_all(EVALUATION)}; with several "
        f"labels a row: {_all(LABELS)}; with numbers to predict: {_all(NUMBERS)}. Under [privacy], real sites "
        "evaluate nothing and send none of this; a simulation does, as a rehearsal.",
        "Where the experiment does not say how columns and numbers to predict are prepared, a client tells, once and "
        "before the first round: "
        f"{_all(STATISTICS)}. Under [privacy], nothing of this is told.",
        f"A client on another machine also sends, once: {_all(INTRODUCTION)}; with each reply: {_all(REPLY)}; and a "
        "sentence if something fails.",
    ]


def _all(sent: Mapping[str, str]) -> str:
    return ", ".join(sent.values())
