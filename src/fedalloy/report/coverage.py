"""A caveat for runs whose pseudo-samples collapsed to a few classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedalloy.knowledge.coverage import LARGEST, collapsed, in_words
from fedalloy.storage.results import Run


def uncovered(runs: Sequence[Run]) -> list[str]:
    """A sentence for each run in which a round's pseudo-samples covered too little, with the worst of these rounds.

    >>> notes = [{"classes of pseudo-samples": n, LARGEST: 1 / n} for n in (3, 1, 1)]
    >>> meta = {"label": "DaFKD", "seed": 0, "clients": {"class_counts": [[5, 5, 5, 5]]}}
    >>> print(uncovered([Run(meta, tuple({"round": t, "notes": n} for t, n in enumerate(notes, 1)))])[0])
    DaFKD, seed 0: pseudo-samples collapsed in 2 of 3 rounds, first in round 2. In the teachers' eyes, those of \
round 2 cover 1 of 4 classes, and 100 % of them are of one class.
    """
    found = []
    for run in runs:
        classes = np.shape(run.meta.get("clients", {}).get("class_counts", []))[-1]
        bad = [record for record in run.rounds if collapsed(record, classes)] if classes else []
        if bad:
            worst = max(bad, key=lambda record: record["notes"][LARGEST])
            found.append(
                f"{run.label}, seed {run.seed}: pseudo-samples collapsed in {len(bad)} of {run.rounds[-1]['round']} "
                f"rounds, first in round {bad[0]['round']}. In the teachers' eyes, those of round {worst['round']} "
                f"{in_words(worst, classes)}."
            )
    return found
