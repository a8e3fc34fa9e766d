"""What a client counts on its test set in each task, what a server accepts of it, and the record of a view from it.

The counts of one client and one model are a tree: exact numbers from which the record follows, the same wherever they
were counted. Each task has three functions: from logits to counts, from a setting to the contract of counts, and from
all clients' counts to a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedalloy.base.tree import Tree
from fedalloy.federation import intervals, regression
from fedalloy.federation.across import Floats, summarise, weighted
from fedalloy.federation.classification import (
    Counts,
    accuracy_per_client,
    auc,
    balanced_accuracy,
    balanced_error,
    balanced_if_several,
    calibration_error,
    label_balance,
    label_f1,
    label_rates,
    log_odds,
    macro_f1,
    share,
    specificity,
)
from fedalloy.federation.gate import Check, array, optional, real, refusal, whole
from fedalloy.federation.intervals import Interval
from fedalloy.federation.setting import Setting

UNKNOWN = -1.0  # an AUC that there is none of, in a message, where every number is finite
MOST = 200_000  # confusion counts of clients that are kept; of more, only their sum
DIGITS = 6  # significant ones of the clients' other metrics in a record, which would otherwise double in size


def counted(setting: Setting, logits: Tensor, targets: Tensor) -> dict[str, Any]:
    """One client's counts from the outputs of a network for its test samples, all on the CPU."""
    by_task = {"classes": _count_classes, "labels": _count_labels, "numbers": _count_numbers}
    return by_task[setting.task](setting, logits, targets)


def miscount(setting: Setting, counts: Any, size: int) -> str | None:
    """What is wrong with the counts that a client reports for a test set of this size, if anything."""
    # A model that diverged has a NaN or infinite loss; no loss is negative.
    loss: Check = lambda value: None if isinstance(value, float) and not value < 0 else "is not a loss"  # noqa: E731
    classes = setting.classes
    areas = array(_areas(setting), least=UNKNOWN, most=1.0, dtype=torch.float64)
    contract: dict[str, Check] = {"loss": loss}
    if setting.task == "numbers":
        few = {"r2": real(most=1.0), "r2_error": real(0), "absolute": real(0), "absolute_error": real(0)}
        contract |= {name: optional(check) for name, check in few.items()}
        return refusal(counts, contract)
    shape = (classes, setting.answers) if setting.task == "classes" else (classes, 2, 2)
    contract |= {"confusion": array(*shape, least=0, most=size, dtype=torch.int64), "auc": areas}
    if setting.task == "labels":
        contract |= {"exact": whole(0, size)}
    else:
        contract |= {"calibration": optional(real(0, 1))}
        contract |= {"decided": array(2, least=0, most=size, dtype=torch.int64)} if classes == 2 else {}
    fault = refusal(counts, contract)
    if fault is not None:
        return fault
    sums = counts["confusion"].sum() if setting.task == "classes" else counts["confusion"].sum((1, 2))
    if (sums != size).any():
        return f"counts {int(sums.reshape(-1)[0])} samples, not {size}"
    if bool(((counts["auc"] < 0) & (counts["auc"] != UNKNOWN)).any()):
        return "auc has numbers outside 0 to 1"
    if "decided" in counts and bool((counts["decided"] > counts["confusion"].sum(1).flip(0)).any()):
        return "decided exceeds the samples of its class"
    return None


def view_of(setting: Setting, counts: Mapping[int, Tree]) -> dict[str, Any]:
    """The record of a view from the counts of the clients that answered; the others have no samples.

    `details`, the intervals and confusion counts, is kept of a run's last round only.
    """
    by_task = {"classes": _view_of_classes, "labels": _view_of_labels, "numbers": _view_of_numbers}
    score, sizes, pooled, each, details = by_task[setting.task](setting, counts)
    loss = np.zeros(len(setting.sites))
    for k, found in counts.items():
        loss[k] = found["loss"]
    found = summarise(score, loss, sizes, seed=setting.seed, weights=setting.counted_by(sizes.tolist()))
    diverged = np.flatnonzero((sizes > 0) & ~np.isfinite(loss)).tolist()
    if diverged:  # a mean over the others would look better than it is
        pooled |= {name: math.nan for name in ("auc", "ece", "mae", "rmse") if name in pooled}
        if setting.task == "numbers":
            found = {**dict.fromkeys(found, math.nan), "worst_client": diverged[0]}
    with np.errstate(invalid="ignore"):
        mean_loss = loss / sizes
    return {
        **{name: or_none(value) for name, value in {**found, **pooled}.items()},
        "test": None,
        "validation": None,
        **({} if setting.task == "classes" else {"task": setting.task}),
        "clients": {
            "accuracy": [or_none(a) for a in score.tolist()],
            "loss": [or_none(value) for value in mean_loss.tolist()],
            "size": sizes.tolist(),
            **{name: [_short(value) for value in values.tolist()] for name, values in each.items()},
        },
        "details": details if counts else {},
    }


def score_of(setting: Setting, logits: Tensor, targets: Tensor) -> float:
    """The score of a model on samples: its accuracy, the share of right answers about labels, or R2."""
    if setting.task == "classes":
        right: Tensor = logits.argmax(1) == targets
        return float(right.double().mean())
    if setting.task == "labels":
        return float(((logits > _bar(setting)) == (targets > 0.5)).double().mean())
    return regression.r2(logits.cpu().numpy(), targets.cpu().numpy()).value


def or_none(value: float) -> float | None:
    """A number for a record, in which a missing one is None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- one class a sample -----------------------------------------------------------------------------------------------


def _count_classes(setting: Setting, logits: Tensor, targets: Tensor) -> dict[str, Any]:
    predicted = logits.argmax(1)
    places = torch.bincount(targets * setting.answers + predicted, minlength=setting.classes * setting.answers)
    found: dict[str, Any] = {
        "confusion": places.reshape(setting.classes, setting.answers),
        "loss": _in_order(F.cross_entropy(logits, targets, reduction="none") if len(targets) else logits.new_zeros(0)),
    }
    z, y = logits.double().numpy(), targets.numpy()
    odds = log_odds(z) if len(z) else z
    chosen = [1] if setting.classes == 2 else range(setting.classes)
    found["auc"] = _areas_of([auc(odds[:, c], y == c) for c in chosen])
    # The largest log odds are those of the top probability.
    top = odds.max(1) if len(z) else np.zeros(0)
    error = calibration_error(1 / (1 + np.exp(-top)), predicted.numpy() == y)
    if math.isfinite(error):
        found["calibration"] = error
    if setting.classes == 2:
        positive = z[:, 1] - z[:, 0] > _bar(setting)
        found["decided"] = torch.tensor([int((positive & (y == 1)).sum()), int((~positive & (y == 0)).sum())])
    return found


def _view_of_classes(setting: Setting, counts: Mapping[int, Tree]) -> Any:
    confusion = _gathered(setting, counts, "confusion", (setting.classes, setting.answers))
    sizes, present = confusion.sum((1, 2)), confusion.sum(2)
    if setting.classes == 2:
        decided = _gathered(setting, counts, "decided", (2,))
        rates = share(decided[:, 0], present[:, 1]), share(decided[:, 1], present[:, 0])
        pooled_rates = tuple(float(share(decided[:, i].sum(), present[:, 1 - i].sum())) for i in (0, 1))
        sure = [
            [intervals.wilson(r, n) for r, n in zip(rates[i], present[:, 1 - i].tolist(), strict=True)] for i in (0, 1)
        ]
    else:
        rates = balanced_accuracy(confusion), specificity(confusion)
        pooled_rates = float(balanced_accuracy(confusion.sum(0))), float(specificity(confusion.sum(0)))
        sure = []
    positives = present[:, 1:] if setting.classes == 2 else present
    mean_areas, spans = _areas_by_client(setting, counts, positives, sizes)
    errors = np.array([counts[k].get("calibration", math.nan) if k in counts else math.nan for k in setting.ids])
    score = accuracy_per_client(confusion)
    pooled = {
        "balanced": float(balanced_accuracy(confusion.sum(0))),
        "balanced_error": float(balanced_error(confusion.sum(0))),
        "macro_f1": float(macro_f1(confusion.sum(0))),
        "auc": weighted(mean_areas, sizes),
        "sensitivity": pooled_rates[0],
        "specificity": pooled_rates[1],
        "ece": weighted(errors, sizes),
    }
    each = {
        "balanced": balanced_if_several(confusion),
        "balanced_error": balanced_error(confusion),
        "auc": mean_areas,
        "sensitivity": rates[0],
        "specificity": rates[1],
        "ece": errors,
    }
    spread = {
        "accuracy": [intervals.wilson(a, n) for a, n in zip(score.tolist(), sizes.tolist(), strict=True)],
        "balanced": [_balanced_span(one) for one in confusion],
        "auc": spans,
        **(dict(zip(("sensitivity", "specificity"), sure, strict=True)) if sure else {}),
    }
    return score, sizes, pooled, each, _details(spread, confusion)


# --- any of several labels --------------------------------------------------------------------------------------------


def _count_labels(setting: Setting, logits: Tensor, targets: Tensor) -> dict[str, Any]:
    predicted, true = logits > _bar(setting), targets > 0.5
    confusion = [[((true == a) & (predicted == b)).sum(0) for b in (False, True)] for a in (False, True)]
    lost = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)
    z, y = logits.double().numpy(), true.numpy()
    return {
        "confusion": torch.stack([torch.stack(row, -1) for row in confusion], -2),
        "exact": int((predicted == true).all(1).sum()),
        "loss": _in_order(lost),
        "auc": _areas_of([auc(z[:, c], y[:, c]) for c in range(setting.classes)]),
    }


def _view_of_labels(setting: Setting, counts: Mapping[int, Tree]) -> Any:
    confusion = _gathered(setting, counts, "confusion", (setting.classes, 2, 2))
    sizes = confusion[:, 0].sum((1, 2))
    right = confusion[..., 0, 0] + confusion[..., 1, 1]
    score = share(right.sum(1), sizes * setting.classes)
    exact = np.array([counts[k]["exact"] if k in counts else 0 for k in setting.ids])
    subset = share(exact, sizes)
    mean_areas, spans = _areas_by_client(setting, counts, confusion[..., 1, :].sum(-1), sizes)
    found, spared = label_rates(confusion)
    pooled_found, pooled_spared = label_rates(confusion.sum(0))
    balanced, error = label_balance(confusion)
    pooled_balanced, pooled_error = label_balance(confusion.sum(0))
    pooled = {
        "balanced": float(pooled_balanced),
        "balanced_error": float(pooled_error),
        "macro_f1": float(label_f1(confusion.sum(0))),
        "auc": weighted(mean_areas, sizes),
        "sensitivity": float(pooled_found),
        "specificity": float(pooled_spared),
        "subset": float(share(exact.sum(), sizes.sum())),
    }
    each = {
        "balanced": balanced,
        "balanced_error": error,
        "auc": mean_areas,
        "sensitivity": found,
        "specificity": spared,
        "macro_f1": label_f1(confusion),
        "subset": subset,
    }
    spread = {
        # By samples and not by answers: those about one sample depend on each other.
        name: [intervals.wilson(a, n) for a, n in zip(values.tolist(), sizes.tolist(), strict=True)]
        for name, values in (("accuracy", score), ("subset", subset))
    }
    spread["balanced"] = [intervals.mean_of(_balanced_span(label) for label in one) for one in confusion]
    return score, sizes, pooled, each, _details({**spread, "auc": spans}, confusion)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _count_numbers(setting: Setting, logits: Tensor, targets: Tensor) -> dict[str, Any]:
    # Errors are told in the targets' own units; their mean changes no error.
    unit = torch.tensor([target.std for target in setting.targets] or [1.0], dtype=torch.float64)
    logits, targets = logits.double() * unit, targets.double() * unit
    p, y = logits.numpy(), targets.numpy()
    with np.errstate(all="ignore"):  # a network that diverged
        explained, off = regression.r2(p, y), regression.absolute_error(p, y)
        lost = _in_order(((logits - targets) ** 2).mean(1))
    named = {"r2": explained.value, "r2_error": explained.error, "absolute": off.value, "absolute_error": off.error}
    return {"loss": lost, **{name: value for name, value in named.items() if math.isfinite(value)}}


def _view_of_numbers(setting: Setting, counts: Mapping[int, Tree]) -> Any:
    sizes = np.array([len(site.test) if k in counts else 0 for k, site in enumerate(setting.sites)], dtype=np.int64)

    def column(name: str) -> Floats:
        return np.array([counts[k].get(name, math.nan) if k in counts else math.nan for k in setting.ids])

    score, error, off, off_error = (column(name) for name in ("r2", "r2_error", "absolute", "absolute_error"))
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(np.where(sizes > 0, column("loss") / sizes, math.nan))
    square = weighted(root**2, sizes)
    pooled = {
        "balanced": math.nan,
        "macro_f1": math.nan,
        "mae": weighted(off, sizes),
        "rmse": math.sqrt(square) if square >= 0 else math.nan,
    }
    spread = {
        name: [rule(v, e, n) for v, e, n in zip(values.tolist(), errors.tolist(), sizes.tolist(), strict=True)]
        for name, rule, values, errors in (
            ("accuracy", intervals.of_r2, score, error),
            ("mae", intervals.student, off, off_error),
        )
    }
    return score, sizes, pooled, {"error": error, "mae": off, "rmse": root}, _details(spread)


# --- parts of them ----------------------------------------------------------------------------------------------------


def _bar(setting: Setting) -> float:
    """The log odds that a positive answer must exceed."""
    return math.log(setting.threshold / (1 - setting.threshold))


def _areas(setting: Setting) -> int:
    """How many AUCs a client counts: one of two classes says it all."""
    return 1 if setting.task == "classes" and setting.classes == 2 else setting.classes


def _areas_of(values: Sequence[float]) -> Tensor:
    return torch.tensor([UNKNOWN if math.isnan(value) else value for value in values], dtype=torch.float64)


def _in_order(losses: Tensor) -> float:
    """The sum of a client's losses, one after the other, as if all clients' were added up in one pass."""
    total = torch.zeros(1, dtype=torch.float64)
    return float(total.index_add_(0, torch.zeros(len(losses), dtype=torch.int64), losses.double())[0])


def _gathered(setting: Setting, counts: Mapping[int, Tree], name: str, shape: tuple[int, ...]) -> Counts:
    """One count of all clients; those that did not answer have zeros."""
    found = np.zeros((len(setting.sites), *shape), dtype=np.int64)
    for k, one in counts.items():
        found[k] = one[name].numpy()
    return found


def _areas_by_client(
    setting: Setting, counts: Mapping[int, Tree], positives: Counts, sizes: Counts
) -> tuple[Floats, list[Interval]]:
    """The mean of each client's AUCs, over the classes that have one, and its interval.

    An interval is the mean of the classes' intervals.
    """
    areas = np.full((len(setting.sites), _areas(setting)), math.nan)
    for k, one in counts.items():
        values = one["auc"].numpy()
        areas[k] = np.where(values == UNKNOWN, math.nan, values)
    spans: list[Interval] = []
    for k in range(len(areas)):
        both = zip(areas[k].tolist(), positives[k].tolist(), strict=True)
        spans.append(intervals.mean_of(intervals.of_auc(area, m, int(sizes[k]) - m) for area, m in both))
    known = ~np.isnan(areas)
    return share(np.nansum(areas, 1), known.sum(1)), spans


def _balanced_span(confusion: Counts) -> Interval:
    """The interval of one client's balanced accuracy, if it has samples of several classes."""
    if math.isnan(balanced_if_several(confusion)):
        return None
    present = confusion.sum(-1)
    return intervals.of_mean(share(np.diagonal(confusion), present).tolist(), present.tolist())


def _details(spread: Mapping[str, Sequence[Interval]], confusion: Counts | None = None) -> dict[str, Any]:
    """The intervals of the clients' metrics, and their confusion counts where there are any."""
    found: dict[str, Any] = {
        "intervals": {
            name: [None if span is None else [_short(end) for end in span] for span in spans]
            for name, spans in spread.items()
        }
    }
    if confusion is not None:
        found["confusion"] = confusion.sum(0).tolist()
        if confusion.size <= MOST:
            found["confusions"] = confusion.tolist()
    return found


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
