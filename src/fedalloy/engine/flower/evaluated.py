"""A site's log of evaluations for its server, with which it limits what a server can find out.

Each answer reveals exact counts of the site's test rows, so a site only answers for few models. They must belong to a
round of the site's own experiment, and to one that can be in progress as far as the site knows. Before it answers, it
writes the digests of the models to `evaluated.jsonl`, one line for each set of models and one for each round in which
it takes part. A repeated question is answered again: that tells a server nothing new, unless rows are to be prepared
differently. With another experiment, a site starts counting again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedalloy.base.files import append_line, locked, make_folder, read_file
from fedalloy.config.sections import Experiment
from fedalloy.engine.flower.memory import PRIVATE_FOLDER
from fedalloy.errors import UsageError
from fedalloy.storage.checkpoints import CHAINS
from fedalloy.storage.store import experiment_digest

ANEW = "if this is a new run, remove evaluated.jsonl at this site"
SETS = 2  # of models in one round: a resumed run may arrive at different models


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
    fedalloy.errors.UsageError: round 3 is not evaluated: this site has only taken part up to round 1
    """

    def __init__(self, folder: Path, agreed: Experiment) -> None:
        self.folder, self.file, self.agreed = folder, folder / "evaluated.jsonl", agreed
        self.experiment = experiment_digest({"experiment": agreed.to_dict()})

    def take_part(self, round: int) -> None:
        """Record that the site takes part in a round."""
        self._prepare()
        with locked(self.folder / "evaluated.lock"):
            if round > _taken_part(self._lines()):
                self._append({"round": round})

    def admit(self, round: int, models: Mapping[str, str], memory: str, prepared: str = "") -> None:
        """Record that models and the site's memory, by their digests, are about to be evaluated, or refuse it.

        On rows that are `prepared` differently, the same models tell something new.
        """
        asked = {"models": dict(models), "memory": memory, "prepared": _digest(prepared)}
        self._prepare()
        with locked(self.folder / "evaluated.lock"):
            lines = self._lines()
            if any(asked.items() <= line.items() for line in lines):
                return
            if (fault := _fault(round, lines, self.agreed)) is not None:
                raise UsageError(f"round {round} is not evaluated: {fault}")
            self._append({"round": round, **asked})

    def _prepare(self) -> None:
        make_folder(self.folder, PRIVATE_FOLDER)

    def _lines(self) -> list[dict[str, Any]]:
        """Return the lines of this experiment; a line truncated by a crash belongs to an answer that was never sent."""
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
    """Return why new models of this round are not evaluated, or None."""
    if not 1 <= round <= agreed.rounds or (round % agreed.evaluate_every and round != agreed.rounds):
        return f"this site agreed to rounds = {agreed.rounds} with evaluate_every = {agreed.evaluate_every}"
    taken_part, newest = _taken_part(lines), max((line["round"] for line in lines), default=0)
    # A site can miss a round but be online for its evaluation. If not all sites are asked, it may miss many.
    if agreed.participation.asks_all and round > taken_part + 1:
        return f"this site has only taken part up to round {taken_part}"
    if round <= newest - CHAINS:
        return f"round {newest} has begun, and no checkpoint goes back that far; {ANEW}"
    if sum(line["round"] == round and "models" in line for line in lines) >= SETS:
        return f"{SETS} different sets of models were already evaluated for it; {ANEW}"
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _taken_part(lines: list[dict[str, Any]]) -> int:
    return max((line["round"] for line in lines if "models" not in line), default=0)
