"""What a site has evaluated for its server: a log of its own, by which it limits what a server can find out.

Each answer tells exact counts of the site's test rows, so a site answers for few models. They must belong to a round of
the experiment that it was handed, and to one that can be under way, as far as the site itself knows. Before it answers,
it writes the digests of the models to `evaluated.jsonl`, one line for each set of them, and one for each round in which
it takes part. What was answered once is answered again: that tells a server nothing new. A site that is handed another
experiment counts anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedalloy.base.files import append_line, locked, make_folder, read_file
from fedalloy.config.experiment import Experiment
from fedalloy.engine.flower.memory import PRIVATE_FOLDER
from fedalloy.errors import UsageError
from fedalloy.storage.checkpoints import CHAINS
from fedalloy.storage.store import experiment_digest

ANEW = "if this is a new run, remove evaluated.jsonl at this site"
SETS = 2  # of models in one round: a run that was resumed may come to other ones than before


class EvaluationLog:
    """The log of one site, in the folder of its memory.

    >>> import tempfile
    >>> from fedalloy.config.experiment import experiment
    >>> log = EvaluationLog(Path(tempfile.mkdtemp()), experiment({"rounds": 5}))
    >>> log.take_part(1)
    >>> log.admit(1, {"aca": "the digest of a model"}, memory="")
    >>> log.admit(3, {"aca": "another digest"}, memory="")
    Traceback (most recent call last):
    ...
    fedalloy.errors.UsageError: nothing is evaluated for round 3: this site has only taken part up to round 1
    """

    def __init__(self, folder: Path, agreed: Experiment) -> None:
        self.folder, self.file, self.agreed = folder, folder / "evaluated.jsonl", agreed
        self.experiment = experiment_digest({"experiment": agreed.to_dict()})

    def take_part(self, round: int) -> None:
        """Note that the site takes part in a round."""
        self._prepare()
        with locked(self.folder / "evaluated.lock"):
            if round > _taken_part(self._lines()):
                self._append({"round": round})

    def admit(self, round: int, models: Mapping[str, str], memory: str) -> None:
        """Note that models and what the site remembers, by their digests, are about to be evaluated, or refuse it."""
        self._prepare()
        with locked(self.folder / "evaluated.lock"):
            lines = self._lines()
            if any(line.get("models") == models and line["memory"] == memory for line in lines):
                return
            if (fault := _fault(round, lines, self.agreed)) is not None:
                raise UsageError(f"nothing is evaluated for round {round}: {fault}")
            self._append({"round": round, "models": dict(models), "memory": memory})

    def _prepare(self) -> None:
        make_folder(self.folder, PRIVATE_FOLDER)

    def _lines(self) -> list[dict[str, Any]]:
        """What was noted of this experiment; a line that a crash cut off belongs to an answer that was never sent."""
        if not self.file.exists():
            return []
        found = []
        for line in read_file(self.file).splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [line for line in found if line.get("experiment") == self.experiment]

    def _append(self, line: Mapping[str, Any]) -> None:
        whole = not self.file.exists() or read_file(self.file).endswith(b"\n")
        append_line(self.file, ("" if whole else "\n") + json.dumps({**line, "experiment": self.experiment}))


def _fault(round: int, lines: list[dict[str, Any]], agreed: Experiment) -> str | None:
    """Why no new model of this round is evaluated, if none is."""
    if not 1 <= round <= agreed.rounds or (round % agreed.evaluate_every and round != agreed.rounds):
        return f"this site agreed to rounds = {agreed.rounds} with evaluate_every = {agreed.evaluate_every}"
    taken_part, newest = _taken_part(lines), max((line["round"] for line in lines), default=0)
    # A site can miss a round and be there for its evaluation. Where not all sites are asked, it may miss many.
    asks_all = agreed.participation.policy == "full" and agreed.participation.deadline is None
    if asks_all and round > taken_part + 1:
        return f"this site has only taken part up to round {taken_part}"
    if round <= newest - CHAINS:
        return f"round {newest} has begun, from which no checkpoint leads back; {ANEW}"
    if sum(line["round"] == round and "models" in line for line in lines) >= SETS:
        return f"{SETS} different sets of models were evaluated for it already; {ANEW}"
    return None


def _taken_part(lines: list[dict[str, Any]]) -> int:
    return max((line["round"] for line in lines if "models" not in line), default=0)
