"""What a report says in words and small tables: the setting, the split, the traffic, the time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.text import human_bytes, human_seconds, listed, number
from fedalloy.config.experiment import recorded
from fedalloy.config.methods import make_method
from fedalloy.data.card import jensen_shannon
from fedalloy.data.catalogue import AGREED, LISTED
from fedalloy.errors import FedalloyError
from fedalloy.federation import disclosure
from fedalloy.federation.core import methods
from fedalloy.report.attendance import unheard
from fedalloy.report.coverage import uncovered
from fedalloy.report.partition_plot import Counts
from fedalloy.report.spent import private
from fedalloy.storage.results import Run
from fedalloy.storage.rows import WEIGHTS, leads, share_of_commonest, weights_would_help

SECONDS = ("client", "server", "evaluation", "checkpoint", "total")


def setting(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The facts to know before reading any number."""
    facts = {
        "Data": _each(run.meta.get("experiment", {}).get("data", {}).get("name") for run in runs),
        "Split": _each(_split(run) for run in runs),
        "Clients": _each(len(run.meta.get("clients", {}).get("train_sizes", [])) for run in runs),
        "Model": _each(_model(run) for run in runs),
        "Rounds": _each(run.rounds[-1]["round"] for run in runs if run.meta.get("stopped_by") != "method"),
        "Seeds": seeds(runs),
    }
    return [(term, text) for term, text in facts.items() if text]


def seeds(runs: Sequence[Run]) -> str:
    """How many seeds there are, and which.

    >>> seeds([Run({"seed": 0}, ())]), seeds([Run({"seed": seed}, ()) for seed in (10, 2, 2)])
    ('1 (seed 0)', '2 (seeds 2 and 10)')
    """
    found = [str(seed) for seed in sorted({run.seed for run in runs})]
    return f"{len(found)} (seed{'' if len(found) == 1 else 's'} {listed(found)})"


def repeat(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What it takes to get the same numbers: seeds, versions and the kind of machine."""
    names = dict.fromkeys(name for run in runs for name in run.meta.get("versions", {}))
    found = {name: _each(run.meta.get("versions", {}).get(name) for run in runs) for name in names}
    machine = found.pop("machine", "")
    together = ", ".join(f"{name} {version}" for name, version in found.items())
    return [
        (term, text) for term, text in (("Seeds", seeds(runs)), ("Versions", together), ("Machine", machine)) if text
    ]


def left(run: Run) -> str:
    """What left the clients, in words; unknown for a method that is not registered here.

    >>> left(Run({"name": "feddisco", "experiment": {"method": {"name": "feddisco"}}}, ()))
    'model weights, number of samples, once how far its labels are from uniform'
    """
    try:
        return make_method(recorded(run.meta)).leaves()
    except (FedalloyError, LookupError, TypeError, AttributeError):
        return "unknown: the method is not registered"


def evaluated(run: Run) -> str:
    """Which models the clients evaluated; unknown for a method that is not registered here."""
    if is_unevaluated(run):
        return f"none: {disclosure.OFF}"
    return disclosure.evaluated(methods[run.name]) if run.name in methods else "unknown"


def warnings(runs: Sequence[Run]) -> list[str]:
    """Caveats about these runs."""
    return [
        *unfinished(runs),
        *untested(runs),
        *unevaluated(runs),
        *skipped(runs),
        *unheard(runs),
        *uncovered(runs),
        *private(runs),
        *rare_classes(runs),
        *prepared(runs),
    ]


def rare_classes(runs: Sequence[Run]) -> list[str]:
    """A sentence for each data set on which a model that always gives the same answer would be mostly right.

    >>> view = {"clients": {"balanced": [0.5]}}
    >>> meta = {"label": "FedAvg", "data": {"name": "wards"}, "clients": {"class_counts": [[95, 5]]}}
    >>> rare_classes([Run(meta, ({"round": 1, "views": {"aca": view}},))])[0].partition(",")[0]
    "In 'wards' always giving the same answer would be right for 95 % of the rows"
    """
    found: dict[str, str] = {}
    for run in runs:
        lead = leads(run)
        if lead.first != "balanced" or not run.views:
            continue
        name, share = run.meta.get("data", {}).get("name"), share_of_commonest(run, lead.task)
        same = "the same answer" if lead.task == "classes" else "each label's commonest answer"
        told = (
            f"In '{name}' always giving {same} would be right for {number(100 * share, 0)} % of the rows, so methods "
            "are ranked by balanced accuracy"
        )
        if weights_would_help(run):
            told += f"; {WEIGHTS} keeps a rare class from being ignored"
        found.setdefault(str(name), f"{told}.")
    return list(found.values())


def prepared(runs: Sequence[Run]) -> list[str]:
    """A sentence for each data set that clients prepared with statistics of their own rows.

    >>> run = Run({"label": "FedAvg", "data": {"name": "wards", "statistics": {"up": 90, "down": 30}}}, ())
    >>> listed = Run({"label": "FedAvg", "data": {"name": "clients", "statistics": {"up": 90, "down": 30}}}, ())
    >>> prepared([listed])
    ['Before the first round, the clients told statistics of their columns: 120 bytes in all.']
    >>> prepared([run, run])
    ["Before the first round, the clients of 'wards' told statistics of their columns: 120 bytes in all."]
    """
    about = [data for run in runs if (data := run.meta.get("data", {})).get("statistics")]
    costs: dict[str, int] = {}
    for data in about:
        costs[data["name"]] = max(costs.get(data["name"], 0), sum(data["statistics"].values()))
    whose = {name: "the clients" if name in (AGREED, LISTED) else f"the clients of '{name}'" for name in costs}
    return [
        f"Before the first round, {whose[name]} told statistics of their columns: {cost:,} bytes in all."
        for name, cost in costs.items()
        if cost
    ]


def unfinished(runs: Sequence[Run]) -> list[str]:
    """A sentence for each run that is not finished."""
    found = []
    for run in runs:
        if run.meta.get("status", "done") != "done":
            planned = run.meta.get("experiment", {}).get("rounds")
            done = f"{run.rounds[-1]['round']}{f' of {planned}' if planned else ''} rounds"
            found.append(f"{run.label}, seed {run.seed}, is not finished: these are the results after {done}.")
    return found


def untested(runs: Sequence[Run]) -> list[str]:
    """A sentence on the runs in which no client has test samples, if there are any: they have no accuracies."""
    sizes = [run.meta.get("clients", {}).get("test_sizes", []) for run in runs]
    blind = [run for run, tests in zip(runs, sizes, strict=True) if tests and not any(tests)]
    if not blind:
        return []
    whose = "" if len(blind) == len(runs) else f" of {_each(run.label for run in blind)}"
    advice = "raise partition.test_fraction or lower partition.clients"
    return [f"No client{whose} has test samples, so AMP, FM and WLP are unknown; {advice}."]


def unevaluated(runs: Sequence[Run]) -> list[str]:
    """A sentence for each private run at real sites: it has no accuracies."""
    return [f"{run.label}, seed {run.seed}: {disclosure.OFF}." for run in runs if is_unevaluated(run)]


def is_unevaluated(run: Run) -> bool:
    """Whether the clients of a private run evaluated nothing, although they have test samples."""
    views = [view for record in run.rounds for view in record.get("views", {}).values()]
    sizes = [view.get("clients", {}).get("size", []) for view in views]
    has_tests = any(run.meta.get("clients", {}).get("test_sizes", []))
    private = run.meta.get("experiment", {}).get("privacy") is not None
    return private and has_tests and bool(sizes) and not any(map(any, sizes))


def skipped(runs: Sequence[Run]) -> list[str]:
    """A sentence for each run with rounds that lacked a quorum, and for each that rolled back to an earlier model.

    >>> rounds = ({"round": 1}, {"round": 2, "skipped": "0 of 10 clients answered, and 5 are needed"})
    >>> skipped([Run({"label": "FedAvg", "seed": 0}, rounds)])[0]
    'FedAvg, seed 0: round 2 of 2 was skipped and changed nothing: 0 of 10 clients answered, and 5 are needed.'
    """
    found = []
    for run in runs:
        lacking = [record for record in run.rounds if record.get("skipped")]
        if lacking:
            first, last = lacking[0], run.rounds[-1]["round"]
            rounds, where = f"round {first['round']} of {last} was", ""
            if len(lacking) > 1:
                rounds, where = f"{len(lacking)} of {last} rounds were", f", first in round {first['round']}"
            told = f"{rounds} skipped and changed nothing{where}: {first['skipped']}"
            found.append(f"{run.label}, seed {run.seed}: {told}.")
        for record in run.rounds:
            if record.get("back_to") is not None:
                told = f"in round {record['round']} clients could not train the model, so the run rolled back to that"
                found.append(f"{run.label}, seed {run.seed}: {told} of round {record['back_to']}.")
    return found


def held(run: Run) -> str:
    """How many training samples the clients hold.

    >>> held(Run({"clients": {"train_sizes": [30, 10, 20]}}, ()))
    '3 clients hold 10 to 30 training samples each (median 20).'
    """
    return _held(np.asarray(run.meta["clients"]["train_sizes"]))


def _held(sizes: NDArray[np.int64]) -> str:
    return (
        f"{len(sizes)} clients hold {sizes.min():,} to {sizes.max():,} training samples each "
        f"(median {np.median(sizes):,.0f})."
    )


def skew(counts: Counts) -> str:
    """Describe how clients differ: in size, classes, the share of their most common class, and class distribution.

    >>> print(skew(np.array([[30, 0, 0], [5, 5, 0], [5, 10, 5]])).replace(". ", ".\\n").replace(" (J", "\\n(J"))
    3 clients hold 10 to 30 training samples each (median 20).
    The median client has 2 of 3 classes, and 50 % of its samples are of one class.
    The mean distance of a client's class distribution from the overall one is 0.13
    (Jensen-Shannon: 0 is identical, 1 is disjoint).
    """
    sizes = counts.sum(axis=1)
    mixtures = counts[sizes > 0] / sizes[sizes > 0, None]
    distance = jensen_shannon(mixtures, counts.sum(axis=0) / counts.sum())
    return (
        f"{_held(sizes)} The median client has {np.median((counts > 0).sum(axis=1)):.0f} of "
        f"{counts.shape[1]} classes, and {np.median(mixtures.max(axis=1)):.0%} of its samples are of one class. "
        f"The mean distance of a client's class distribution from the overall one is {distance.mean():.2f} "
        "(Jensen-Shannon: 0 is identical, 1 is disjoint)."
    ).replace("%", " %")


def class_counts(run: Run) -> Counts | None:
    """How many training samples of each class each client holds, if the run recorded it."""
    counts = np.asarray(run.meta.get("clients", {}).get("class_counts", []), dtype=np.int64)
    return counts if counts.ndim == 2 and counts.any() else None


def traffic(runs: Sequence[Run]) -> list[dict[str, str]]:
    """The traffic of one method by kind, largest first: bytes of all rounds, mean over seeds."""
    sent: dict[str, Counter[str]] = {"down": Counter(), "up": Counter()}
    for run in runs:
        for record in run.rounds:
            for way in sent:
                sent[way].update(record.get("bytes", {}).get(way, {}))
    both = sent["down"] + sent["up"]
    return [
        {"label": runs[0].label, "kind": kind}
        | {way: human_bytes(amount[kind] / len(runs)) for way, amount in {**sent, "both": both}.items()}
        for kind in sorted(both, key=lambda kind: (-both[kind], kind)) or ["nothing"]
    ]


def times(runs: Sequence[Run]) -> list[str]:
    """A label and the time of each phase, means over seeds."""
    totals = [[run.total("seconds", part) for run in runs] for part in SECONDS]
    means = [None if None in seeds else sum(s for s in seeds if s is not None) / len(seeds) for seeds in totals]
    return [runs[0].label, *(human_seconds(mean) for mean in means)]


def experiment(runs: Sequence[Run]) -> str:
    """All settings of the runs under one label, which differ in the seed only."""
    settings: dict[str, Any] = dict(runs[0].meta.get("experiment", {}))
    settings["seed"] = [run.seed for run in runs] if len(runs) > 1 else runs[0].seed
    return json.dumps(settings, indent=2, ensure_ascii=False)


def _each(values: Iterable[object]) -> str:
    """The distinct values in order of appearance; those that were not recorded are omitted."""
    return listed(list(dict.fromkeys(str(value) for value in values if value)))


def _split(run: Run) -> str:
    partition: Mapping[str, Any] = run.meta.get("partition", {})
    options = ", ".join(f"{key} {value}" for key, value in partition.get("options", {}).items())
    return f"{partition.get('name', '')}{f' ({options})' if options else ''}"


def _model(run: Run) -> str:
    model: Mapping[str, Any] = run.meta.get("model", {})
    size = f" ({model['parameters']:,} parameters)" if model.get("parameters") else ""
    return f"{model.get('name', '')}{size}"
