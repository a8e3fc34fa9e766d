"""A recorded run: read from its folder, queried by view, metric and round.

A run folder holds `run.json` (what was run) and `rounds.jsonl` (one JSON object per completed round). A missing value
(`null` in the file) is `nan` in a series.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted, read_file
from fedalloy.base.registry import suggest
from fedalloy.base.text import printable
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.across import Floats
from fedalloy.storage.run_files import check_description, check_record

Selection = str
"""Which round of a run is reported: one of `SELECTIONS`, or a mean of another number of rounds."""
SELECTIONS: tuple[Selection, ...] = ("last", "best by amp", "best by test", "best by validation", "mean of last 10")

VIEWS = ("personal", "global", "aca", "oca", "student", "teacher")  # in display order
PERSONAL, DISTILLED = "personal", "distilled"  # a client's model after local training, and just before it
STAGES = ("initial", DISTILLED)  # intermediate models of clients: evaluated, but not the result of a method
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
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients, if they have names."""
        return tuple(self.meta.get("clients", {}).get("names", ()))

    @property
    def networks(self) -> dict[int, str]:
        """Each client's network, if they differ; equal names are told apart by the number of parameters.

        >>> models = [{"name": "mlp", "parameters": n, "clients": [k]} for k, n in enumerate((90, 1200))]
        >>> Run({"models": models}, ()).networks
        {0: 'mlp (90)', 1: 'mlp (1,200)'}
        """
        kinds = self.meta.get("models", ())
        names = [kind.get("name", "network") for kind in kinds]
        alone = len(set(names)) == len(names)
        shown = [
            name if alone or "parameters" not in kind else f"{name} ({kind['parameters']:,})"
            for name, kind in zip(names, kinds, strict=True)
        ]
        owned = {k: name for name, kind in zip(shown, kinds, strict=True) for k in kind.get("clients", ())}
        return owned if len(kinds) > 1 else {}

    @property
    def views(self) -> tuple[str, ...]:
        """The views that were evaluated, in display order; names of a user's own come last."""
        seen = {view for record in self.rounds for view in record.get("views", {})}
        return tuple(view for view in VIEWS if view in seen) + tuple(sorted(seen.difference(VIEWS)))

    def series(self, view: str, metric: str) -> tuple[NDArray[np.int64], Floats]:
        """The rounds in which a view was evaluated, and the values of a metric in them."""
        evaluated = self._evaluated(view)
        known = {name: 0 for record in evaluated.values() for name, value in record.items() if _is_score(value)}
        if metric not in known:
            raise UsageError(f"{self.label} has no metric '{metric}' for the view '{view}'; {suggest(metric, known)}")
        values = [_number(record.get(metric)) for record in evaluated.values()]
        return np.array(list(evaluated), dtype=np.int64), np.array(values, dtype=np.float64)

    @property
    def notes(self) -> tuple[str, ...]:
        """The names of the numbers that the method's server noted (`fed.note`), in order of first appearance."""
        return tuple({name: None for record in self.rounds for name in record.get("notes", {})})

    def noted(self, name: str) -> tuple[NDArray[np.int64], Floats]:
        """The rounds in which the server noted a number, and the numbers.

        >>> Run({"label": "DaFKD"}, ({"round": 1, "notes": {"coverage": 0.5}}, {"round": 2})).noted("coverage")
        (array([1]), array([0.5]))
        """
        found = {r["round"]: _number(r["notes"][name]) for r in self.rounds if name in r.get("notes", {})}
        if not found:
            raise UsageError(f"{self.label} has no note '{name}'; {suggest(name, list(self.notes))}")
        return np.array(list(found), dtype=np.int64), np.array(list(found.values()), dtype=np.float64)

    def clients(self, view: str, metric: str, when: int | Selection = "last") -> Floats:
        """One value per client (`accuracy`, `loss` or `size`) in a round, given by number or by selection.

        If several rounds are selected, it is each client's mean over them.
        """
        evaluated = self._evaluated(view)
        chosen = (when,) if isinstance(when, int) else selected(self, view, when)
        if not chosen or chosen[0] not in evaluated:
            raise UsageError(f"{self.label} has no evaluation of the view '{view}' at {when!r}; choose another round")
        if metric not in (per_client := evaluated[chosen[0]]["clients"]):
            raise UsageError(f"{self.label} has no '{metric}' of each client; {suggest(metric, per_client)}")
        rounds = [[_number(value) for value in evaluated[number]["clients"][metric]] for number in chosen]
        return np.asarray(np.mean(rounds, axis=0), dtype=np.float64)

    def view(self, name: str, number: int) -> Mapping[str, Any]:
        """All that was recorded of a view in a round; empty if it was not evaluated then."""
        return self._evaluated(name).get(number, {})

    def at(self, view: str, metric: str, selection: Selection = "last") -> float:
        """A metric of a view in the selected round, or its mean over several; `nan` if a value is missing.

        >>> Run({"label": "FedAvg"}, ({"round": 1, "views": {"aca": {"amp": 0.5}}},)).at("aca", "amp")
        0.5
        """
        rounds, values = self.series(view, metric)
        chosen = values[np.isin(rounds, selected(self, view, selection))]
        return float(chosen.mean()) if len(chosen) else math.nan

    def total(self, *path: str) -> float | None:
        """The sum of a cost over all rounds, such as `total("bytes", "up")`; None if a round did not record it.

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
    """Read a run folder, even if the run is still going or was interrupted while it wrote its last line.

    >>> read("no-such-run")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedalloy.errors.DataError: no-such-run/run.json cannot be read (No such file or directory); name a folder ...
    """
    folder = Path(folder)
    meta = read_meta(folder / "run.json")
    sizes = meta.get("clients", {}).get("train_sizes")
    return Run(meta, _read_rounds(folder / "rounds.jsonl", None if sizes is None else len(sizes)), folder)


def check_word(selection: str, where: str = "the reported round") -> None:
    """Refuse a word that names no selection.

    >>> check_word("mean of last 5")
    >>> check_word("best on test", "--select")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: --select is 'best on test'; did you mean 'best by test'?
    """
    if not is_selection(selection):
        raise UsageError(f"{where} is {shown(selection)}; {suggest(selection, list(SELECTIONS))}")


def is_selection(word: str) -> bool:
    """Whether a word names a selection."""
    return word in SELECTIONS or averaged_rounds(word) is not None


def averaged_rounds(selection: Selection) -> int | None:
    """Over how many evaluated rounds a selection averages; None if it takes a single one.

    >>> averaged_rounds("mean of last 10"), averaged_rounds("last")
    (10, None)
    """
    found = re.fullmatch(r"mean of last ([1-9][0-9]{0,5})", selection)
    return int(found[1]) if found and int(found[1]) > 1 else None


def selected(run: Run, view: str, selection: Selection) -> tuple[int, ...]:
    """The evaluated rounds of a view that a selection takes; none if the criterion was not recorded.

    "best by ..." is one round, the earliest of equals. "mean of last 10" is the last ten evaluated rounds, or all if
    there are fewer. Selecting by AMP or by the test reports what it selects by and is too optimistic: papers do it, but
    decide by "last", by validation or by a mean.

    >>> record = lambda t, amp: {"round": t, "views": {"aca": {"amp": amp, "test": None, "validation": None}}}
    >>> run = Run({"label": "FedAvg"}, (record(1, 0.5), record(2, 0.7), record(3, 0.6)))
    >>> [selected(run, "aca", selection) for selection in SELECTIONS]
    [(3,), (2,), (), (), (1, 2, 3)]
    """
    check_word(selection)
    if last := 1 if selection == "last" else averaged_rounds(selection):
        return tuple(run.series(view, "amp")[0][-last:].tolist())
    rounds, values = run.series(view, selection.removeprefix("best by "))
    return () if np.isnan(values).all() else (int(rounds[np.nanargmax(values)]),)


def copy_of(file: Path) -> Path:
    """The path of the second copy of a `run.json`: beside the checkpoints, under another name.

    >>> print(copy_of(Path("runs/one/run.json")))
    runs/one/checkpoints/description.json
    """
    return file.parent / "checkpoints" / "description.json"


def read_meta(file: Path, say: Callable[[str], None] = lambda _: None) -> Mapping[str, Any]:
    """The content of a `run.json`, or of its copy if it is lost or damaged."""
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
    """The content of this copy of a `run.json`."""
    try:
        meta = json.loads(read_file(file).decode("utf-8"))
    except OSError as error:
        inside = sorted(str(found.parent) for found in file.parent.glob("**/run.json"))
        instead = f", such as {quoted(inside[0])}" if inside else ""
        raise DataError(
            f"{file} cannot be read ({error.strerror}); name a folder that a run has written{instead}"
        ) from error
    except (ValueError, RecursionError) as error:
        reason = f"{error!s:.200}"
        raise DataError(f"{file} is not valid JSON ({reason}); restore it, or run the experiment again") from error
    if not isinstance(meta, dict) or not {"format", "name", "label", "seed"} <= meta.keys():
        raise DataError(f"{file} does not describe a run; it must be an object with format, name, label and seed")
    if meta["format"] != FORMAT:
        raise DataError(
            f"{file} has format {shown(meta['format'])}, but this version reads {FORMAT}; use the one that wrote it"
        )
    check_description(f"{file}", meta)
    return meta


def _read_rounds(file: Path, clients: int | None) -> tuple[Mapping[str, Any], ...]:
    lines = read_file(file).split(b"\n") if file.exists() else []
    while lines and not lines[-1].strip():
        lines.pop()
    # A run resumed after a crash may write a round again: the later record counts.
    records: dict[int, Mapping[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        where = f"line {number} of {file}"
        try:
            record = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break  # a crash has truncated it
            raise DataError(f"{where} is not the record of a round; remove or correct it") from error
        check_record(where, record, clients)
        records[record["round"]] = record
    return tuple(records[number] for number in sorted(records))


def _find(record: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def _total(costs: Any) -> float | None:
    """The sum of all nested values; None if one of them is unknown."""
    if isinstance(costs, int | float | None):
        return costs
    parts = [_total(part) for part in (costs.values() if isinstance(costs, Mapping) else costs)]
    return None if None in parts else sum(part for part in parts if part is not None)


def _is_score(value: object) -> bool:
    """Whether a value is a number or missing, and not a table of clients."""
    return value is None or isinstance(value, int | float)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
