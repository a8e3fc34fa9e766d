"""What every client sends besides its method's replies, key by key: the single source for lists, reports and docs.

A test compares it with the messages of real runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedalloy.federation.core import Method

OFF = "not evaluated: evaluation on private rows is off under [privacy]"

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

STATISTICS = {
    "rows": "how many training rows it has",
    "present": "in how many of them each column has a value",
    "total": "the sum of each column of numbers and the sum of its squares",
    "values": "the names of the categories that it has and, with data.impute, how often each occurs",
    "histogram": 'with data.impute = "median", a histogram of each column of numbers, with bins two per cent wide',
    "frequent": 'with data.impute = "most_frequent", each number of a column and how often it occurs, at most 64',
}
"""Told once, before the first round, of tables and images whose statistics the experiment leaves open."""

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
        f"Before the first round, a client with a table tells, once: {_all(STATISTICS)}; and of images the sums alone. "
        "If the experiment has constants instead, it tells nothing; under [privacy], it must have them.",
        f"A client on another machine also sends, once: {_all(INTRODUCTION)}; with each reply: {_all(REPLY)}; and a "
        "sentence if something fails.",
    ]


def _all(sent: Mapping[str, str]) -> str:
    return ", ".join(sent.values())
