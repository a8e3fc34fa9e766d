"""The advice that follows from a look at the clients and a short comparison, as sentences and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedalloy.advise.look import Look
from fedalloy.advise.trial import Trial
from fedalloy.base.text import MISSING, human_bytes, human_seconds, listed, number
from fedalloy.federation import disclosure
from fedalloy.federation.core import methods as registered
from fedalloy.report import facts
from fedalloy.report.gains import BOUNDS, Gains, gains, leading
from fedalloy.report.gains_table import Listing, each_client, signed
from fedalloy.report.statistics import Interval, paired, t_interval
from fedalloy.report.trained import doubts, told
from fedalloy.report.verdict import verdict
from fedalloy.storage.results import Run
from fedalloy.storage.rows import rows

NEAR = 3  # methods that are named beside the leading one


@dataclass(frozen=True)
class Advice:
    """What to tell the people who own the data; every part is text."""

    verdict: str
    data: tuple[str, ...]
    clients: Listing
    gains: Listing | None
    method: tuple[str, ...]
    costs: tuple[str, ...]
    leaves: tuple[str, ...]
    sure: tuple[str, ...]
    untried: tuple[str, ...]
    chosen: str  # the registered name of the advised method; empty if there is none
    found: tuple[Gains, ...]  # of the advised method, for pictures


def advice(looked: Look, trial: Trial) -> Advice:
    """Turn a comparison into advice."""
    runs = [run for run in trial.runs if run.views]
    table = [row for run in runs for row in rows(run, "last")]
    names = {run.label: run.name for run in runs}
    doubted, found = doubts(runs), gains(runs)
    best = leading(found) if found else []
    of_best = [run for run in runs if best and run.label == best[0].label]
    return Advice(
        verdict=verdict(table, names=names, clients=found, doubts=doubted),
        data=tuple(looked.sentences()),
        clients=_clients(looked),
        gains=each_client(found) if found else None,
        method=tuple(_method(found, of_best)),
        costs=tuple(_costs(of_best, len(looked.clients))),
        leaves=tuple(_leaves(of_best)),
        sure=(*_sure(runs, best), *told(doubted)),
        untried=tuple(_untried(trial)),
        chosen=of_best[0].name if of_best else "",
        found=tuple(best),
    )


def _clients(looked: Look) -> Listing:
    body = [
        [
            one.name,
            f"{one.train:,}",
            f"{one.test:,}",
            f"{one.classes} of {looked.classes}" if one.classes else MISSING,
            number(one.labels),
            number(one.inputs),
            one.network,
        ]
        for one in looked.clients
    ]
    headings = ("Client", "Training", "Test", "Classes", "Label distance", "Input shift", "Network")
    note = (
        "Label distance: Jensen-Shannon divergence from the classes of all clients together, 0 to 1. Input shift: "
        "distance of its inputs' means from everyone's, in standard deviations. Both come from simulating with all "
        "files in one place."
    )
    return Listing("The clients", headings, body, words=1, note=note)


def _method(found: Sequence[Gains], of_best: Sequence[Run]) -> list[str]:
    if not found:
        return ["No federated method was compared with training alone."]
    best, card = found[0], registered[of_best[0].name].card
    about = f"{best.name} ({card.paper})"
    told = [f"{about} has the best average score of the methods that were compared."]
    if card.distils != "no":
        told.append(f"It distils {card.distils}.")
    others = [one for one in found[1:] if one.over == best.over and one.label != best.label][:NEAR]
    if others:
        behind = [f"{one.name} ({signed(_mean(one) - _mean(best))})" for one in others]
        told.append(f"Next, in points of mean gain behind it: {listed(behind)}.")
    return told


def _mean(one: Gains) -> float:
    return float(one.points.mean())


def _costs(of_best: Sequence[Run], clients: int) -> list[str]:
    if not of_best:
        return []
    run = of_best[0]
    rounds = max(1, len(run.rounds))
    up, down, seconds = (run.total(*path) for path in (("bytes", "up"), ("bytes", "down"), ("seconds", "client")))
    if up is None or down is None:
        return []
    told = [
        f"{len(run.rounds)} rounds sent {human_bytes(up)} from the clients and {human_bytes(down)} to them: about "
        f"{human_bytes((up + down) / rounds / clients)} a round for each of {clients} clients."
    ]
    if seconds is not None:
        told.append(f"All clients together trained for {human_seconds(seconds)} on this machine.")
    return told


def _leaves(of_best: Sequence[Run]) -> list[str]:
    if not of_best:
        return []
    return [f"Under {of_best[0].label}: {facts.left(of_best[0])}.", *disclosure.always()]


def lead(runs: Sequence[Run], best: Gains) -> Interval:
    """The lead in AMP of the advised method over its reference, in points, over the seeds that both have."""
    values: dict[str, dict[int, float]] = {"method": {}, "reference": {}}
    for run in runs:
        if run.label == best.label:
            values["method"][run.seed] = 100 * run.at(best.view, "amp")
        elif run.name == best.over:
            values["reference"][run.seed] = 100 * run.at(run.views[0] if "aca" not in run.views else "aca", "amp")
    return t_interval(list(paired(values["method"], values["reference"]).values()))


def _sure(runs: Sequence[Run], best: Sequence[Gains]) -> list[str]:
    if not best:
        return []
    first, federated = best[0], {run.label for run in runs if run.name not in BOUNDS}
    found = lead(runs, first)
    if found.n == 1:
        told = [f"With one seed, the lead over {first.reference} is {signed(found.mean)} points, without an interval."]
    else:
        told = [
            f"Over {found.n} seeds, each with another split into training and test samples, the lead of {first.name} "
            f"over {first.reference} is {signed(found.mean)} points of AMP (95 % interval {signed(found.low)} to "
            f"{signed(found.high)})."
        ]
    clear = int(first.clear.sum())
    told.append(
        f"{clear} of {len(first.points)} clients gain or lose more than two standard errors of their own test samples."
    )
    if len(federated) > 1:
        told.append(
            f"The best of {len(federated)} methods was chosen on these same seeds, so its lead is a little too "
            "good; the first command below repeats the comparison with other seeds."
        )
    return told


def _untried(trial: Trial) -> list[str]:
    told = []
    by_reason: dict[str, list[str]] = {}
    for name, reason in trial.unfit.items():
        by_reason.setdefault(_without(reason, name), []).append(name)
    for reason, several in by_reason.items():
        told.append(f"{listed(several)}: {reason}")
    if late := {name: cost for name, cost in trial.slow.items() if cost}:
        told.append(
            f"Too slow for the time given: {listed([f'{n} (about {human_seconds(c)})' for n, c in late.items()])}"
        )
    if unknown := [name for name, cost in trial.slow.items() if not cost]:
        told.append(f"Not reached in the time given: {listed(unknown)}")
    return told


def _without(reason: str, name: str) -> str:
    """A reason without the name of the method it is about, so that equal reasons are told once."""
    label = registered[name].label if name in registered else name
    for word in (name, label):
        reason = reason.replace(f"the method {word}", "it").replace(f"'{word}'", "it").replace(word, "it")
    return reason


def commands(advised: Advice, experiment: str, clients: int, seeds: Sequence[int]) -> Mapping[str, Sequence[str]]:
    """What to type next: compare again with seeds on which nothing was chosen, train fully, rehearse a deployment."""
    if not advised.chosen:
        return {}
    fresh = ",".join(str(max(seeds) + 1 + place) for place in range(len(seeds)))
    methods = ",".join(dict.fromkeys(["local-converged", "fedavg", advised.chosen]))
    return {
        "Check the advice with seeds that it was not chosen on": [
            f"fedalloy compare {experiment} --methods {methods} --seeds {fresh}"
        ],
        "Train fully": [f"fedalloy run {experiment} rounds=100"],
        "Rehearse the deployment on this machine": [
            f"fedalloy deploy init {experiment} --out deployment --sites {clients}",
            f"fedalloy deploy up deployment --local {clients}",
            "fedalloy deploy run deployment",
        ],
    }
