"""Observers that hand a run's numbers to a tracker: TensorBoard, MLflow, Weights & Biases, trackio.

Each writes to a local folder, unless its library is configured otherwise, and needs the extra of its name. A resumed
run continues its tracker run: its folder has `tracked.json` with the run's id and, for each tracker, the last round
that it was told of. A tracker that is turned on later is told of the earlier rounds, too.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

from fedalloy.base.files import PRIVATE, as_json, read_file, write_atomically
from fedalloy.base.registry import suggest
from fedalloy.errors import UsageError
from fedalloy.run.comparison import slug
from fedalloy.run.observer import Observer
from fedalloy.storage.results import Run

PROJECT = "fedalloy"  # the experiment or project that runs belong to in a tracker
STATE = "tracked.json"


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round's record by name, such as `aca/amp`; those of single clients are left out.

    >>> scalars({"round": 1, "views": {"aca": {"amp": 0.5, "clients": {}}}, "bytes": {"up": {"weights": 8, "n": 2}}})
    {'aca/amp': 0.5, 'bytes/up': 10.0}
    """
    found: dict[str, Any] = {}
    for view, scores in record["views"].items():
        found |= {f"{view}/{metric}": value for metric, value in scores.items()}
    found |= {f"notes/{name}": value for name, value in record.get("notes", {}).items()}
    found |= {f"bytes/{way}": sum(kinds.values()) for way, kinds in record.get("bytes", {}).items()}
    for cost in ("seconds", "flops"):
        found |= {f"{cost}/{part}": value for part, value in record.get(cost, {}).items()}
    found |= {f"clients/{kind}": len(record[kind]) for kind in ("active", "lost", "quarantined") if kind in record}
    found |= {name: record[name] for name in ("epsilon", "memory") if name in record}
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if not isinstance(value, bool)}


def parameters(run: Run) -> dict[str, Any]:
    """What a run was made with, by the keys of its experiment, and the versions.

    >>> parameters(Run({"label": "FedAvg", "seed": 0, "experiment": {"training": {"lr": 0.1}, "methods": {}}}, ()))
    {'label': 'FedAvg', 'training.lr': 0.1}
    """
    shown = {key: value for key, value in run.meta["experiment"].items() if key not in ("methods", "published")}
    versions = {f"versions.{name}": version for name, version in run.meta.get("versions", {}).items()}
    return {"label": run.label, **_flat(shown), **versions}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


class Tracker(Observer):
    """Hands each round's numbers to a library, once; a subclass says how the library opens, logs and closes a run."""

    kind: ClassVar[str]
    library: ClassVar[str]  # the module
    environment: ClassVar[Mapping[str, str]] = {}  # unless it is set: nothing is sent anywhere without being asked to

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        try:
            self.api: Any = importlib.import_module(self.library)
        except ImportError as error:
            what = f"the tracker {self.kind} needs {self.library.split('.')[0]}"
            raise UsageError(f'{what}; pip install ".[{self.kind}]" in a clone of the repository') from error
        self._place: Path | None = None
        self._told, self._bytes = 0, 0.0

    @abstractmethod
    def open(self, run: Run, id: str, told: int) -> None:
        """Open the tracker run with this id, which has the rounds up to `told`."""

    @abstractmethod
    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log a round's numbers."""

    @abstractmethod
    def close(self, error: BaseException | None) -> None:
        """Close the tracker run."""

    def begin(self, run: Run) -> None:
        """Open or continue the tracker run, and log what it has not been told yet."""
        self._place, self._bytes = None if run.folder is None else run.folder / STATE, 0.0
        state = self._remember(0)
        self._told = state["told"][self._key]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.open(run, state["id"], self._told)
        for record in run.rounds:
            self.round(record)

    def round(self, record: Mapping[str, Any]) -> None:
        """Log a round, unless the tracker has it: the run may have gone back to an earlier one, to the same bits."""
        numbers = scalars(record)
        self._bytes += numbers.get("bytes/down", 0.0) + numbers.get("bytes/up", 0.0)
        if record["round"] <= self._told:
            return
        self._told = record["round"]
        self._remember(self._told)  # before it is logged: a crash may lose a point, but never doubles one
        self.log(record["round"], {**numbers, "bytes/total": self._bytes})

    def end(self, run: Run, error: BaseException | None) -> None:
        """Close the tracker run."""
        self.close(error)

    def _remember(self, round: int) -> dict[str, Any]:
        """Note in the run's folder that the tracker was told of a round; returns what is noted there."""
        state: dict[str, Any] = {"id": uuid.uuid4().hex[:8], "told": {}}
        if self._place is not None and self._place.exists():  # other trackers write to it, too
            state = json.loads(read_file(self._place))
        state["told"][self._key] = max(round, state["told"].get(self._key, 0))
        if self._place is not None:
            write_atomically(self._place, as_json(state), PRIVATE)
        return state

    @property
    def _key(self) -> str:
        """The tracker and its folder in `tracked.json`, without a path: run folders are handed on."""
        return f"{self.kind} {hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]}"


def _name(run: Run) -> str:
    return f"{run.label}, seed {run.seed}"


class TensorBoard(Tracker):
    """Writes event files for TensorBoard, with one folder for each run: `tensorboard --logdir FOLDER`."""

    kind, library = "tensorboard", "torch.utils.tensorboard"

    def open(self, run: Run, id: str, told: int) -> None:
        """Begin an event file; what earlier ones may have after the last round is hidden."""
        place = self.folder / f"{slug(run.label)}-seed{run.seed}-{id}"
        self._writer = self.api.SummaryWriter(str(place), purge_step=told + 1 if told else None)
        if not told:
            lines = [f"    {name} = {json.dumps(value)}" for name, value in parameters(run).items()]
            self._writer.add_text("experiment", "\n".join(lines), 0)

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers, to disk at once."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, error: BaseException | None) -> None:
        """Close the event file."""
        self._writer.close()


class MLflow(Tracker):
    """Writes to an MLflow file store: `MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri FOLDER`."""

    kind, library = "mlflow", "mlflow.tracking"
    environment: ClassVar = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}

    def open(self, run: Run, id: str, told: int) -> None:
        """Find the run by its id, or create it with its parameters."""
        self._client = self.api.MlflowClient(self.folder.as_uri())
        there = self._client.get_experiment_by_name(PROJECT)
        place = there.experiment_id if there is not None else self._client.create_experiment(PROJECT)
        if found := self._client.search_runs([place], f"tags.fedalloy_id = '{id}'"):
            self._run = found[0].info.run_id
            self._client.update_run(self._run, "RUNNING")
            return
        self._run = self._client.create_run(place, run_name=_name(run), tags={"fedalloy_id": id}).info.run_id
        for name, value in parameters(run).items():
            self._client.log_param(self._run, name, str(value)[:6000])

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=round)

    def close(self, error: BaseException | None) -> None:
        """Say how the run ended."""
        how = "FINISHED" if error is None else "FAILED" if isinstance(error, Exception) else "KILLED"
        self._client.set_terminated(self._run, how)


class WandB(Tracker):
    """Writes offline runs of W&B, for `wandb sync FOLDER/wandb/offline-run-*`; with WANDB_MODE=online it sends them."""

    kind, library = "wandb", "wandb"
    environment: ClassVar = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}

    def open(self, run: Run, id: str, told: int) -> None:
        """Begin a run, or a second part of it, which has the same id."""
        self._run = self.api.init(
            project=PROJECT,
            dir=str(self.folder),
            id=id,
            name=_name(run),
            config=parameters(run),
            resume="allow",
            reinit="create_new",
            settings=self.api.Settings(console="off", silent=True),
        )

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        self._run.log(dict(numbers), step=round)

    def close(self, error: BaseException | None) -> None:
        """Finish the run, after all has been written."""
        self._run.finish(exit_code=0 if error is None else 1)


class Trackio(Tracker):
    """Writes trackio's local database: `TRACKIO_DIR=FOLDER trackio show --project fedalloy`."""

    kind, library = "trackio", "trackio"

    def __init__(self, folder: str | Path) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(Path(folder).absolute()))  # which it reads when it is imported
        super().__init__(folder)
        if Path(self.api.utils.TRACKIO_DIR) != self.folder:
            raise UsageError(
                f"trackio writes to '{self.api.utils.TRACKIO_DIR}' in this process, not to '{folder}'; it takes one "
                "folder only, from TRACKIO_DIR if that is set"
            )

    def open(self, run: Run, id: str, told: int) -> None:
        """Begin a run, or continue it by its name."""
        with _quiet():
            self._run = self.api.init(
                project=PROJECT, name=f"{_name(run)}, {id}", config=parameters(run), resume="allow", embed=False
            )

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        self._run.log(dict(numbers), step=round)

    def close(self, error: BaseException | None) -> None:
        """Finish the run, after all has been written."""
        with _quiet():
            self._run.finish()


@contextmanager
def _quiet() -> Iterator[None]:
    """Print nothing on the way: trackio greets and says goodbye."""
    with redirect_stdout(io.StringIO()):
        yield


TRACKERS: dict[str, type[Tracker]] = {one.kind: one for one in (TensorBoard, MLflow, WandB, Trackio)}


def tracker(text: str) -> Tracker:
    """The tracker that a text such as "tensorboard=FOLDER" names.

    >>> tracker("tensorbord=logs")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: --track has no tracker 'tensorbord'; did you mean 'tensorboard'?
    """
    kind, _, folder = text.partition("=")
    if kind not in TRACKERS:
        raise UsageError(f"--track has no tracker '{kind}'; {suggest(kind, list(TRACKERS))}")
    if not folder:
        raise UsageError(f"--track {kind} must say where; write --track {kind}=FOLDER")
    return TRACKERS[kind](folder)
