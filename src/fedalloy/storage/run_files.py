"""The schema of `run.json` and of the lines of `rounds.jsonl`, checked before they are used.

The keys named here are those that reports, plots and tables rely on; other keys may hold any JSON value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from fedalloy.base.checked import shown
from fedalloy.base.text import name_fault
from fedalloy.data.samples import Task
from fedalloy.errors import DataError
from fedalloy.federation.metrics import METRICS, Unit

Shape = Callable[[Any], None]
"""Checks one value and raises `_WrongError` if it is invalid."""

DEEPEST = 20  # levels of nested tables and lists
MANY = 1 << 40  # samples, clients, rounds or classes
LARGEST = (1 << 63) - 1
LONGEST, LONGEST_PLACE = 40, 200  # characters of a key in a message, and of a path of keys


class _WrongError(Exception):
    """An invalid value; the surrounding checks add its path."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.place = what, ""

    def under(self, place: str) -> _WrongError:
        self.place = f"{place}{self.place}"
        return self


def check_description(where: str, meta: Mapping[str, Any]) -> None:
    """Refuse an invalid description of a run, the content of a `run.json`."""
    _checked(where, META, meta)
    clients = meta.get("clients", {})
    lengths = {len(clients[key]) for key in ("train_sizes", "test_sizes", "class_counts", "names") if key in clients}
    if len(lengths) > 1:
        raise _refusal(where, "clients", "has lists of different lengths")
    if fault := name_fault(clients.get("names", ())):
        raise _refusal(where, "clients.names", f"is wrong: {fault}")
    classes = {len(row) for row in clients.get("class_counts", ())} | ({len(clients.get("label_names", ()))} - {0})
    if len(classes) > 1:
        raise _refusal(where, "clients", "has class_counts and label_names of different lengths")
    for name, view in meta.get("last", {}).get("views", {}).items():
        lists = [*view.get("intervals", {}).values(), *([view["confusions"]] if "confusions" in view else [])]
        if lengths and {len(values) for values in lists} - lengths:
            raise _refusal(where, f"last.views.{_key(name)}", "has a list without one value for each client")
    for place, table in enumerate(meta.get("experiment", {}).get("published", ())):
        if any(len(row) != 2 + len(table["metrics"]) for row in table["rows"]):
            raise _refusal(where, f"experiment.published[{place}].rows", "do not have one value for each metric")


def check_drawable(where: str, meta: Mapping[str, Any]) -> None:
    """Refuse a description that lacks what plots of the run need."""
    _checked(where, DRAWN, meta)


def check_record(where: str, record: Any, clients: int | None) -> None:
    """Refuse an invalid record of a round; ids must be below the number of clients, if that is known."""
    _checked(where, RECORD, record)
    ids = [k for key in ("active", "lost", "stragglers") for k in record.get(key, ())]
    ids += [bad["client"] for bad in record.get("quarantined", ())]
    if clients is not None and max(ids, default=0) >= clients:
        raise _refusal(where, "", f"has client {max(ids)}, but clients go from 0 to {clients - 1}")
    for name, view in record.get("views", {}).items():
        lengths = {len(values) for values in view["clients"].values()}
        if lengths - {clients} if clients is not None else len(lengths) > 1:
            raise _refusal(where, f"views.{_key(name)}.clients", "has a list without one value for each client")


def _checked(where: str, shape: Shape, value: Any) -> None:
    try:
        shape(value)
    except _WrongError as wrong:
        raise _refusal(where, wrong.place.removeprefix(".")[:LONGEST_PLACE], wrong.what) from None


def _refusal(where: str, place: str, what: str) -> DataError:
    return DataError(f"{where}: {f'{place} ' if place else ''}{what}; restore the file, or run the experiment again")


# --- shapes -----------------------------------------------------------------------------------------------------------


def number(low: float = -math.inf, high: float = math.inf, *, whole: bool = False, empty: bool = False) -> Shape:
    """A number within these bounds; with `empty`, null is valid too: it was not measured."""
    kinds = int if whole else int | float
    low, high = max(low, -LARGEST if whole else -1e300), min(high, LARGEST if whole else 1e300)

    def check(value: Any) -> None:
        if value is None and empty:
            return
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            name = "a whole number" if whole else "a number"
            raise _WrongError(f"is {shown(value)}, but must be {name} from {low:g} to {high:g}")

    return check


def text(value: Any) -> None:
    """Text that can be written to a file."""
    if not isinstance(value, str):
        raise _WrongError(f"is {shown(value)}, but must be text")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise _WrongError(f"is {shown(value)}, but a lone surrogate is not valid text")


def each(shape: Shape) -> Shape:
    """A list of values of this shape."""

    def check(value: Any) -> None:
        if not isinstance(value, list):
            raise _WrongError(f"is {shown(value)}, but must be a list")
        place = 0
        try:
            for place in range(len(value)):
                shape(value[place])
        except _WrongError as wrong:
            raise wrong.under(f"[{place}]") from None

    return check


def table(needed: Sequence[str] = (), rest: Shape | None = None, **shapes: Shape) -> Shape:
    """A table with these shapes by key; other keys have the shape `rest`, or any."""
    other = rest or anything

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _WrongError(f"is {shown(value)}, but must be a table")
        for key in needed:
            if key not in value:
                raise _WrongError(f"lacks '{key}'")
        key = ""
        try:
            for key, part in value.items():
                text(key)
                shapes.get(key, other)(part)
        except _WrongError as wrong:
            raise wrong.under(f".{_key(key)}") from None

    return check


def anything(value: Any, depth: int = 0) -> None:
    """Any JSON value that can be written again and is not nested too deeply."""
    if depth > DEEPEST:
        raise _WrongError(f"is nested more than {DEEPEST} levels deep")
    if isinstance(value, str):
        text(value)
    elif isinstance(value, int | float):
        if not isinstance(value, bool):
            number(whole=isinstance(value, int))(value)
    elif isinstance(value, list):
        each(lambda part: anything(part, depth + 1))(value)
    elif value is not None:
        table(rest=lambda part: anything(part, depth + 1))(value)


def _key(key: str) -> str:
    """A key in a message."""
    return key if key.isprintable() and len(key) <= LONGEST else f"{shown(key)[:LONGEST]}"


count = number(0, MANY, whole=True)
share = number(0, 1, empty=True)
measured = number(empty=True)
costs = table(rest=measured)
by_party = table(clients=costs, server=costs, rest=measured)


def flops(value: Any) -> None:
    """Floating-point operations by party; older runs have one number, without those of generators."""
    (table(rest=number(0)) if isinstance(value, dict) else number(0, empty=True))(value)


def span(value: Any) -> None:
    """The two ends of an interval, or null."""
    if value is None:
        return
    each(number())(value)
    if len(value) != 2:
        raise _WrongError("is not an interval, a list of two numbers")


def cells(value: Any) -> None:
    """Confusion counts: a table of whole numbers, or several."""
    each(cells if isinstance(value, list) and value and isinstance(value[0], list) else count)(value)


META = table(
    needed=("format", "name", "label", "seed"),
    name=text,
    label=text,
    seed=number(whole=True),
    status=text,
    stopped_by=text,
    experiment=table(
        rounds=number(1, MANY, whole=True),
        evaluate_every=number(1, MANY, whole=True),
        data=table(name=text),
        method=table(name=text),
        partition=table(),
        published=each(
            table(
                needed=("source", "metrics", "rows"),
                source=text,
                metrics=each(text),
                rows=each(each(text)),
                where=table(),
                round=text,
            )
        ),
    ),
    clients=table(
        train_sizes=each(count),
        test_sizes=each(count),
        class_counts=each(each(count)),
        label_names=each(text),
        names=each(text),
    ),
    data=table(
        name=text,
        note=text,
        rows=count,
        mean=each(number()),
        std=each(number()),
        columns=each(table(needed=("name",), name=text)),
        statistics=table(needed=("up", "down"), rest=count),
    ),
    partition=table(name=text, options=table(), val=each(count)),
    model=table(name=text, parameters=count, classes=count),
    models=each(table(name=text, parameters=count, clients=each(count))),
    versions=table(rest=text),
    digests=table(rest=text),
    last=table(
        needed=("round", "views"),
        round=count,
        views=table(rest=table(intervals=table(rest=each(span)), confusion=cells, confusions=each(cells))),
    ),
)
DRAWN = table(
    needed=("clients", "data", "digests", "model"),
    clients=table(needed=("train_sizes", "class_counts", "label_names")),
    data=table(needed=("name",)),
    digests=table(needed=("data",)),
    model=table(needed=("input", "classes")),
)

SCORES: dict[Unit, Shape] = {
    "percent": share,
    "thousandths": share,
    "client": number(-1, MANY, whole=True, empty=True),
    "number": measured,
    "power": number(0, empty=True),
}
LOOSE = {**SCORES, "percent": number(high=1, empty=True), "thousandths": number(0, empty=True)}  # R2 has no least


def _view(scores: Mapping[Unit, Shape]) -> Shape:
    """A view whose scores have these shapes; runs before a metric existed have not recorded it."""
    recorded = {name: metric for name, metric in METRICS.items() if metric.source == "view"}
    return table(
        needed=(*(name for name, metric in recorded.items() if not metric.tasks), "clients"),
        **{name: scores[metric.unit] for name, metric in recorded.items()},
        balanced_error=measured,
        clients=table(
            needed=("accuracy", "size"),
            **dict.fromkeys(
                ("accuracy", "balanced", "auc", "sensitivity", "specificity", "ece", "subset"), each(scores["percent"])
            ),
            **dict.fromkeys(("loss", "error", "balanced_error", "mae", "rmse"), each(measured)),
            size=each(count),
            rest=each(anything),
        ),
    )


OF_SHARES, OF_NUMBERS = _view(SCORES), _view(LOOSE)


def view(value: Any) -> None:
    """All that was recorded of a view; its task is that of classes unless it says otherwise."""
    task = value.get("task", "classes") if isinstance(value, dict) else "classes"
    if task not in get_args(Task):
        raise _WrongError(f"has the task {shown(task)}, but must have one of: {', '.join(get_args(Task))}")
    (OF_NUMBERS if task == "numbers" else OF_SHARES)(value)


RECORD = table(
    needed=("round",),
    round=number(1, MANY, whole=True),
    active=each(count),
    lost=each(count),
    stragglers=each(count),
    forgot=each(count),
    spent=each(count),
    quarantined=each(table(needed=("client", "reason"), client=count, reason=text)),
    skipped=text,
    notes=table(rest=measured),
    epsilons=each(measured),
    seconds=costs,
    bytes=table(rest=table(rest=number(0, whole=True))),
    passes=by_party,
    flops=flops,
    memory=measured,
    views=table(rest=view),
)
