"""Which clients took part in a run, and which classes are lost with those that never did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedalloy.base.text import client_labels, listed
from fedalloy.storage.results import Run

NAMED = 6  # clients or classes that a sentence names; if there are more, it gives their number


def took_part(records: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The clients of each recorded round whose reply arrived and counted.

    >>> took_part([{"active": [0, 1, 2], "lost": [1]}, {"active": [0, 1], "lost": [], "skipped": "too few"}])
    [[0, 2], []]
    """
    return [[] if "skipped" in record else _heard(record) for record in records]


def _heard(record: Mapping[str, Any]) -> list[int]:
    refused = {bad["client"] for bad in record.get("quarantined", [])}
    return sorted({*record.get("active", ())} - {*record.get("lost", ())} - refused)


def unheard(runs: Sequence[Run]) -> list[str]:
    """A sentence on the clients that never took part, if only they hold a class: no model could learn it from others.

    If only strong clients take part, or the same ones always drop out, the overall accuracy does not show who pays for
    it. Runs that ask no clients, such as centralised training, are skipped.

    >>> meta = {"label": "FedAvg", "clients": {"class_counts": [[5, 0], [9, 0], [1, 4]]}}
    >>> unheard([Run(meta, ({"round": 1, "active": [0, 1], "lost": []},))])
    ['Client 2 never took part, and no other client holds class 1; see [participation].']
    """
    found: dict[str, list[str]] = {}
    for run in runs:
        if sentence := _missing(run):
            found.setdefault(sentence, []).append(run.label)
    return [
        sentence[0].upper() + sentence[1:]
        if len(labels) == len(runs)
        else f"{listed(list(dict.fromkeys(labels)))}: {sentence}"
        for sentence, labels in found.items()
    ]


def _missing(run: Run) -> str:
    counts = np.asarray(run.meta.get("clients", {}).get("class_counts", []))
    heard = sorted({client for clients in took_part(run.rounds) for client in clients})
    if counts.ndim != 2 or not heard or heard[-1] >= len(counts):
        return ""
    away = sorted({*range(len(counts))} - {*heard})
    lost = np.flatnonzero((counts[heard].sum(0) == 0) & (counts.sum(0) > 0)).tolist()
    if not lost:
        return ""
    names = run.client_names
    who = client_labels(names, away) if len(away) <= NAMED else f"{len(away)} clients"
    who = f"{who} never took part"
    return f"{who}, and no other client holds {_named(lost, 'class', 'classes')}; see [participation]."


def _named(ids: Sequence[int], one: str, several: str) -> str:
    if len(ids) > NAMED:
        return f"{len(ids)} {several}"
    return f"{one if len(ids) == 1 else several} {listed([str(i) for i in ids])}"
