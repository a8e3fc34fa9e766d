"""Reads finished runs and turns them into rows that can be compared.

A run folder holds `run.json` (what was run) and `rounds.jsonl` (one JSON object per completed round). An empty value
(`null` in the file) is `nan` in a series and None in a row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.files import read_file
from fedalloy.base.registry import suggest
from fedalloy.base.text import printable
from fedalloy.errors import DataError, UsageError
from fedalloy.federation import metrics
from fedalloy.federation.metrics import Floats
from fedalloy.storage.run_files import check_description, check_record

Selection = Literal["last", "best on validation", "best on test"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)

VIEWS = ("personal", "global", "aca", "oca", "student", "teacher")  # in the order in which they are shown
PERSONAL, DISTILLED = "personal", "distilled"  # a client's model after local training, and just before it
STAGES = ("initial", DISTILLED)  # clients' models on the way; measured, but not what a method results in
FORMAT = 1


@dataclass(frozen=True)
class Run:
    """One run as it was recorded: what was run, and every completed round.

    >>> run = Run({"name": "fedavg", "label": "FedAvg", "seed": 0}, ({"round": 1, "views": {"aca": {"amp": 0.5}}},))
    >>> run.views, run.series("aca", "amp")
    (('aca',), (array([1]), array([0.5])))
    """

    meta: Mapping[str, Any]
    rounds: tuple[Mapping[str, Any], ...]
    folder: Path | None = None

    @property
    def name(self) -> str:
        """The registered name of the method."""
        return str(self.meta["name"])

    @property
    def label(self) -> str:
        """The name that tables and plots show."""
        return printable(str(self.meta["label"]))

    @property
    def seed(self) -> int:
        """The seed of the experiment."""
        return int(self.meta["seed"])

    @property
    def views(self) -> tuple[str, ...]:
        """The views that were evaluated, in display order; names of a user's own come last."""
        seen = {view for record in self.rounds for view in record.get("views", {})}
        return tuple(view for view in VIEWS if view in seen) + tuple(sorted(seen.difference(VIEWS)))

    def series(self, view: str, metric: str) -> tuple[NDArray[np.int64], Floats]:
        """The rounds in which a view was evaluated, and a metric in each of them."""
        evaluated = self._evaluated(view)
        known = {name: 0 for record in evaluated.values() for name, value in record.items() if _is_score(value)}
        if metric not in known:
            raise UsageError(
                f"{self.label} recorded no metric '{metric}' of the view '{view}'; {suggest(metric, known)}"
            )
        values = [_number(record.get(metric)) for record in evaluated.values()]
        return np.array(list(evaluated), dtype=np.int64), np.array(values, dtype=np.float64)

    def clients(self, view: str, metric: str, when: int | Selection = "last") -> Floats:
        """One value per client (`accuracy`, `loss` or `size`) in a round, given by number or by selection."""
        evaluated = self._evaluated(view)
        chosen = when if isinstance(when, int) else best_round(self, view, when)
        if chosen not in evaluated:
            raise UsageError(f"{self.label} has no evaluation of the view '{view}' at {when!r}; choose another round")
        per_client = evaluated[chosen]["clients"]
        if metric not in per_client:
            raise UsageError(f"{self.label} recorded no '{metric}' of each client; {suggest(metric, per_client)}")
        return np.array([_number(value) for value in per_client[metric]], dtype=np.float64)

    def at(self, view: str, metric: str, selection: Selection = "last") -> float:
        """A metric of a view in the selected round; `nan` where no round is selected.

        >>> Run({"label": "FedAvg"}, ({"round": 1, "views": {"aca": {"amp": 0.5}}},)).at("aca", "amp")
        0.5
        """
        rounds, values = self.series(view, metric)
        chosen = values[rounds == best_round(self, view, selection)]
        return float(chosen[0]) if len(chosen) else math.nan

    def total(self, *path: str) -> float | None:
        """The sum of a cost over all rounds, such as `total("bytes", "up")`; None where a round did not record it.

        >>> rounds = ({"bytes": {"up": {"weights": 4, "framing": 1}}}, {"bytes": {"up": {"weights": 2}}})
        >>> Run({}, rounds).total("bytes", "up")
        7
        """
        return _total([_find(record, path) for record in self.rounds])

    def _evaluated(self, view: str) -> dict[int, Mapping[str, Any]]:
        if view not in self.views:
            raise UsageError(f"{self.label} has no view '{view}'; {suggest(view, list(self.views))}")
        return {record["round"]: record["views"][view] for record in self.rounds if view in record.get("views", {})}


def read(folder: Path | str) -> Run:
    """Read a run folder, also of a run that is still going or was cut off while it wrote its last line.

    >>> read("no-such-run")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: no-such-run/run.json cannot be read (No such file or directory); name a folder ...
    """
    folder = Path(folder)
    meta = read_meta(folder / "run.json")
    sizes = meta.get("clients", {}).get("train_sizes")
    return Run(meta, _read_rounds(folder / "rounds.jsonl", None if sizes is None else len(sizes)), folder)


def best_round(run: Run, view: str, selection: Selection) -> int | None:
    """The round that a selection chooses, the earliest of equals; None where nothing was recorded to choose by.

    "best on test" goes by the global test accuracy where there is one and otherwise by AMP on the clients' tests.
    It looks at what it reports, so it flatters: papers use it, a decision should rest on "last" or on validation.

    >>> record = lambda t, amp: {"round": t, "views": {"aca": {"amp": amp, "test": None, "validation": None}}}
    >>> run = Run({"label": "FedAvg"}, (record(1, 0.5), record(2, 0.7), record(3, 0.6)))
    >>> [best_round(run, "aca", selection) for selection in SELECTIONS]
    [3, None, 2]
    """
    if selection not in SELECTIONS:
        raise UsageError(f"there is no selection '{selection}'; {suggest(selection, list(SELECTIONS))}")
    if selection == "last":
        return int(run.series(view, "amp")[0][-1])
    rounds, values = run.series(view, "validation" if selection == "best on validation" else "test")
    if selection == "best on test" and np.isnan(values).all():
        rounds, values = run.series(view, "amp")
    return None if np.isnan(values).all() else int(rounds[np.nanargmax(values)])


def check_selection(runs: Iterable[Run], selection: Selection) -> None:
    """Refuse to choose rounds by validation data that no run has."""
    chosen = {best_round(run, view, selection) for run in runs for view in run.views}
    if selection == "best on validation" and chosen == {None}:
        raise UsageError(
            "no run has kept validation data, so no round is the best on it; run with partition.validation = 0.1, "
            "or select 'last'"
        )


@dataclass(frozen=True)
class Row:
    """One line of a table: what one view of one run reached in the selected round, and what the whole run cost."""

    label: str
    view: str
    seed: int
    selection: Selection
    round: int | None  # the one that was selected
    amp: float | None
    fm: float | None
    wlp: float | None
    worst_client: int | None
    bottom10: float | None
    test: float | None
    alma: float | None
    gap: float | None  # what clients' local training loses of the AMP that distillation had given them (FedMD+Global)
    loss: float | None
    stability: float | None
    rounds_to_target: int | None
    rounds: int  # the last one; the costs below are those of all rounds, since a best one is known only at the end
    bytes_up: float | None
    bytes_down: float | None
    bytes_total: float | None
    seconds: float | None
    flops: float | None
    target: float | None = None  # what rounds_to_target counts to


# An id has no mean, everything else in a row has.
COLUMNS = (
    *("round", "amp", "fm", "wlp", "bottom10", "test", "alma", "gap", "loss", "stability", "rounds_to_target"),
    "rounds",
    *("bytes_up", "bytes_down", "bytes_total", "seconds", "flops"),
)


def rows(run: Run, selection: Selection = "last", target: float | None = None, target_metric: str = "amp") -> list[Row]:
    """One row per view. Stability is that of AMP, and the target is one of AMP unless another metric is named.

    >>> scores = dict.fromkeys(("amp", "fm", "wlp", "worst_client", "bottom10", "test", "alma", "loss"), 0.5)
    >>> run = Run({"label": "FedAvg", "seed": 0}, ({"round": 1, "views": {"oca": scores, "aca": scores}},))
    >>> [(row.label, row.view, row.amp) for row in rows(run)]
    [('FedAvg', 'aca', 0.5), ('FedAvg', 'oca', 0.5)]
    """
    return [_row(run, view, selection, target, target_metric) for view in run.views]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds.

    The mean is None when any seed lacks the value: a mean over only those that reached a target would flatter.
    The deviation is None for a single seed. `count` says how many seeds have the value.
    """

    mean: float | None
    std: float | None
    count: int


@dataclass(frozen=True)
class CombinedRow:
    """The rows of one method and view over several seeds."""

    label: str
    view: str
    selection: Selection
    seeds: tuple[int, ...]
    columns: Mapping[str, Spread]  # one for each name in COLUMNS


def combine(list_of_rows: Iterable[Row]) -> list[CombinedRow]:
    """Group rows by label, view and selection, in order of first appearance, and average over seeds.

    A row does not know its experiment: of runs that differ in more than the seed, pass those of
    `fedalloy.storage.differences.told_apart(runs)`.

    >>> scores = dict.fromkeys(("fm", "wlp", "worst_client", "bottom10", "test", "alma", "loss"), 0.5)
    >>> amp = lambda value: ({"round": 1, "views": {"aca": {"amp": value, **scores}}},)
    >>> runs = [Run({"label": "FedAvg", "seed": seed}, amp(value)) for seed, value in enumerate((0.25, 0.75))]
    >>> (both,) = combine(row for run in runs for row in rows(run))
    >>> both.seeds, both.columns["amp"].mean
    ((0, 1), 0.5)
    """
    groups: dict[tuple[str, str, Selection], dict[int, Row]] = {}
    for row in list_of_rows:
        group = groups.setdefault((row.label, row.view, row.selection), {})
        if row.seed in group:
            raise UsageError(
                f"two runs of {row.label} (view '{row.view}') have the seed {row.seed}; leave one of them out, "
                "or make the rows of told_apart(runs)"
            )
        group[row.seed] = row
    return [
        CombinedRow(
            *key, tuple(group), {name: _spread([getattr(row, name) for row in group.values()]) for name in COLUMNS}
        )
        for key, group in groups.items()
    ]


def gain_over(run: Run, reference_run: Run, view: str, ref_view: str, when: Selection = "last") -> Floats:
    """What each client gains in accuracy over the reference, usually `local`, on the same test sets.

    >>> view = lambda accuracy: {"amp": 0.5, "clients": {"accuracy": accuracy, "size": [8, 8]}}
    >>> shared = Run({"label": "FedAvg"}, ({"round": 1, "views": {"aca": view([0.5, 0.75])}},))
    >>> alone = Run({"label": "Local"}, ({"round": 1, "views": {"personal": view([0.75, 0.25])}},))
    >>> gain_over(shared, alone, "aca", "personal").tolist()
    [-0.25, 0.5]
    """
    sizes, ref_sizes = run.clients(view, "size", when), reference_run.clients(ref_view, "size", when)
    if not np.array_equal(sizes, ref_sizes):
        raise UsageError(
            f"{run.label} and {reference_run.label} were not tested on the same clients; "
            "compare runs with the same data, partition and seed"
        )
    return metrics.gain(run.clients(view, "accuracy", when), reference_run.clients(ref_view, "accuracy", when))


def _row(run: Run, view: str, selection: Selection, target: float | None, target_metric: str) -> Row:
    chosen = best_round(run, view, selection)
    numbers, amps = run.series(view, "amp")

    def value(metric: str) -> float | None:
        values = run.series(view, metric)[1]
        return None if chosen is None else _known(float(values[numbers == chosen][0]))

    def gap() -> float | None:
        if view != PERSONAL or DISTILLED not in run.views or chosen is None:
            return None
        rounds, distilled = run.series(DISTILLED, "amp")
        if chosen not in rounds:
            return None
        return _known(float(distilled[rounds == chosen][0] - amps[numbers == chosen][0]))

    worst = value("worst_client")
    hit = None if target is None else metrics.rounds_to_target(run.series(view, target_metric)[1], target)
    return Row(
        label=run.label,
        view=view,
        seed=run.seed,
        selection=selection,
        round=chosen,
        amp=value("amp"),
        fm=value("fm"),
        wlp=value("wlp"),
        worst_client=None if worst is None or worst < 0 else int(worst),
        bottom10=value("bottom10"),
        test=value("test"),
        alma=value("alma"),
        gap=gap(),
        loss=value("loss"),
        stability=_known(metrics.stability(amps)),
        rounds_to_target=None if hit is None else int(numbers[hit - 1]),
        rounds=int(run.rounds[-1]["round"]),
        bytes_up=run.total("bytes", "up"),
        bytes_down=run.total("bytes", "down"),
        bytes_total=run.total("bytes"),
        seconds=run.total("seconds", "total"),
        flops=run.total("flops"),
        target=target,
    )


def _spread(values: list[float | None]) -> Spread:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Spread(None, None, len(known))
    with np.errstate(invalid="ignore"):  # the loss of a run that diverged is infinite, and then has no deviation
        std = _known(float(np.std(known, ddof=1))) if len(known) > 1 else None
    return Spread(float(np.mean(known)), std, len(known))


def copy_of(file: Path) -> Path:
    """Where the second copy of a `run.json` lies: beside the checkpoints, under a name that nobody takes for a run's.

    >>> print(copy_of(Path("runs/one/run.json")))
    runs/one/checkpoints/description.json
    """
    return file.parent / "checkpoints" / "description.json"


def read_meta(file: Path, say: Callable[[str], None] = lambda _: None) -> Mapping[str, Any]:
    """What a `run.json` says, or its copy, where it is lost or damaged."""
    try:
        return read_one_meta(file)
    except DataError as error:
        try:
            meta = read_one_meta(copy_of(file))
        except DataError:
            raise error from None
        say(f"{str(error).split(';')[0]}; its copy '{copy_of(file)}' is used instead")
        return meta


def read_one_meta(file: Path) -> Mapping[str, Any]:
    """What this copy of a `run.json` says."""
    try:
        meta = json.loads(read_file(file).decode("utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); name a folder that a run has written") from error
    except (ValueError, RecursionError) as error:
        reason = f"{error!s:.200}"
        raise DataError(f"{file} is not valid JSON ({reason}); restore it, or run the experiment again") from error
    if not isinstance(meta, dict) or not {"format", "name", "label", "seed"} <= meta.keys():
        raise DataError(f"{file} does not describe a run; it must be an object with format, name, label and seed")
    if meta["format"] != FORMAT:
        raise DataError(
            f"{file} has the format {shown(meta['format'])}, this fedalloy reads {FORMAT}; use the one that wrote it"
        )
    check_description(f"{file}", meta)
    return meta


def _read_rounds(file: Path, clients: int | None) -> tuple[Mapping[str, Any], ...]:
    lines = read_file(file).split(b"\n") if file.exists() else []
    while lines and not lines[-1].strip():
        lines.pop()
    # A run resumed after a crash may write a round again: the later writing counts, and counts once.
    records: dict[int, Mapping[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        where = f"line {number} of {file}"
        try:
            record = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break  # a crash has torn it
            raise DataError(f"{where} is not the record of a round; remove or mend it") from error
        check_record(where, record, clients)
        records[record["round"]] = record
    return tuple(records[number] for number in sorted(records))


def _find(record: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def _total(costs: Any) -> float | None:
    """Add up whatever is nested in there; one unknown part makes the sum unknown."""
    if isinstance(costs, int | float | None):
        return costs
    parts = [_total(part) for part in (costs.values() if isinstance(costs, Mapping) else costs)]
    return None if None in parts else sum(part for part in parts if part is not None)


def _is_score(value: object) -> bool:
    """Whether a view has recorded a number, or that there is none; what it has of each client is something else."""
    return value is None or isinstance(value, int | float)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
