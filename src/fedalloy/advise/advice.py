"""The advice that follows from a look at the clients and a short comparison, as sentences and tables."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedalloy.advise.look import Look
from fedalloy.advise.trial import ALONE, Trial
from fedalloy.base.text import MISSING, human_bytes, human_seconds, listed, number
from fedalloy.federation import disclosure
from fedalloy.federation.core import methods as registered
from fedalloy.report import facts
from fedalloy.report.gains import BOUNDS, Gains, gains, leading
from fedalloy.report.gains_table import Listing, each_client, signed
from fedalloy.report.statistics import Interval, paired, t_interval
from fedalloy.report.trained import Doubts, doubts, settled, told
from fedalloy.report.verdict import NOT, WITHHELD, verdict
from fedalloy.storage.results import STAGES, Run
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
    compared: tuple[str, ...] = ()  # the registered names of all methods that were compared


def advice(looked: Look, trial: Trial) -> Advice:
    """Turn a comparison into advice."""
    runs = [run for run in trial.runs if run.views]
    table = [row for run in runs for row in rows(run, "last")]
    names = {run.label: run.name for run in runs}
    doubted, found = doubts(runs), gains(runs)
    best = leading(found) if found else []
    of_best = [run for run in runs if best and run.label == best[0].label]
    return Advice(
        verdict=_against(runs, found, doubted) or verdict(table, names=names, clients=found, doubts=doubted),
        data=(*looked.sentences(), *facts.rare_classes(runs)),
        clients=_clients(looked),
        gains=each_client(found) if found else None,
        method=tuple(_method(found, of_best)),
        costs=tuple(_costs(of_best, len(looked.clients))),
        leaves=tuple(_leaves(of_best)),
        sure=(*_sure(runs, best), *told(doubted)),
        untried=tuple(_untried(trial)),
        chosen=of_best[0].name if of_best else "",
        found=tuple(best),
        compared=tuple(dict.fromkeys(run.name for run in runs)),
    )


def _against(runs: Sequence[Run], found: Sequence[Gains], doubted: Doubts) -> str:
    """Advice against federating where no method gets far from chance, although clients learn well alone; or nothing.

    In general, a model near chance is not judged, since more rounds may help. But if no curve rises any more, and every
    method is clearly below training alone with every seed, more rounds are not what is lacking.
    """
    against = [one for one in found if one.over == ALONE]
    federated = {run.label for run in runs if run.name not in BOUNDS}
    if not against or federated != {one.label for one in against}:
        return ""
    if any(run.name == ALONE and (run.label, view) in doubted for run in runs for view in run.views):
        return ""
    low = {label for (label, _), doubt in doubted.items() if doubt.kind in ("near chance", "one class")}
    if against[0].label not in low or not all(settled(runs, label) for label in federated):
        return ""
    over = [lead(runs, one) for one in against]
    if not all(one.n > 1 and one.high < 0 for one in over):
        return ""
    best, worse = against[0], -over[0].mean
    stays = "hardly predicts better than the mean" if best.leads.task == "numbers" else "stays near chance"
    return (
        f"{NOT}: local training is {number(worse, 1)} points of {best.leads.average} above the best federated method, "
        f"{best.name}, which {stays} and no longer improves; {len(best.losing)} of {len(best.points)} clients lose. "
        "Perhaps the same inputs mean different things to different clients; check how they label their data."
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
    told = [f"{about} has the best average score of the federated methods that were compared."]
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
    """The lead of the advised method over its reference in the score of all clients, in points, over common seeds."""
    values: dict[str, dict[int, float]] = {"method": {}, "reference": {}}
    for run in runs:
        if run.label == best.label:
            values["method"][run.seed] = 100 * run.at(best.view, best.leads.first)
        elif run.name == best.over:
            view = run.views[0] if "aca" not in run.views else "aca"
            values["reference"][run.seed] = 100 * run.at(view, best.leads.first)
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
            f"over {first.reference} is {signed(found.mean)} points of {first.leads.average} (95 % interval "
            f"{signed(found.low)} to {signed(found.high)})."
        ]
    clear = int(first.clear.sum())
    told.append(
        f"{clear} of {len(first.points)} clients gain or lose more than two standard errors of their own test samples."
    )
    if len(federated) > 1:
        apart = chosen_apart(runs, first)
        honest = f" Chosen by the other seeds each time, the lead is {signed(apart.mean)} points." if apart else ""
        told.append(
            f"The best of {len(federated)} methods was chosen on the test samples that it is reported on, so its lead "
            f"is a little too good.{honest} The check below repeats the comparison with other seeds."
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


def chosen_apart(runs: Sequence[Run], best: Gains) -> Interval | None:
    """The lead over the reference if the method is chosen by the other seeds, for each seed; None for one seed.

    This is what choosing the best method brings, without the optimism of choosing and measuring on the same seeds.
    """
    reference, of_method = _scores(runs, best)
    seeds = sorted(set(reference).intersection(*of_method.values())) if of_method else []
    if len(seeds) < 2:
        return None
    leads = []
    for seed in seeds:
        others = [other for other in seeds if other != seed]
        first = max(of_method.values(), key=lambda values: sum(values[other] for other in others))
        leads.append(first[seed] - reference[seed])
    return t_interval(leads)


def _scores(runs: Sequence[Run], best: Gains) -> tuple[dict[int, float], dict[str, dict[int, float]]]:
    """The score in points by seed: of the reference, and of each federated method's best view."""
    reference: dict[int, float] = {}
    of_method: dict[str, dict[int, float]] = {}
    for run in runs:
        values = [100 * run.at(view, best.leads.first) for view in run.views if view not in STAGES]
        top = max((value for value in values if math.isfinite(value)), default=math.nan)
        if run.name == best.over:
            reference[run.seed] = top
        elif run.name not in BOUNDS:
            of_method.setdefault(run.label, {})[run.seed] = top
    whole = {label: values for label, values in of_method.items() if all(map(math.isfinite, values.values()))}
    return {seed: value for seed, value in reference.items() if math.isfinite(value)}, whole


def commands(
    advised: Advice, experiment: str, clients: int, seeds: Sequence[int], rounds: int = 0, more: Sequence[str] = ()
) -> Mapping[str, Sequence[str]]:
    """What to type next: compare again with seeds on which nothing was chosen, then what the verdict calls for.

    That is to train alone, to advise again with more rounds, or to train fully and rehearse a deployment. `more` are
    words that every command needs, such as those of plugins.
    """
    if not advised.chosen:
        return {}
    fresh = ",".join(str(max(seeds) + 1 + place) for place in range(len(seeds)))
    methods = ",".join(dict.fromkeys([ALONE, *(["fedavg"] if "fedavg" in advised.compared else []), advised.chosen]))

    def typed(*words: str) -> str:
        return shlex.join(["fedalloy", *words, *more])

    check = {
        "Check the advice with seeds that it was not chosen on": [
            typed("compare", experiment, "--methods", methods, "--seeds", fresh)
        ]
    }
    if advised.verdict.startswith(NOT):
        return {**check, "Train every client alone": [typed("run", experiment, f"method={ALONE}")]}
    if advised.verdict.startswith(WITHHELD):
        longer = typed("advise", experiment, f"rounds={2 * rounds}") if rounds else typed("advise", experiment)
        return {"Ask again with more rounds, and more time": [f"{longer} --minutes 10"], **check}
    return {
        **check,
        "Train fully": [typed("run", experiment, "rounds=100")],
        "Rehearse the deployment on this machine": [
            typed("deploy", "init", experiment, "--out", "deployment"),
            f"fedalloy deploy up deployment --local {clients}",
            "fedalloy deploy run deployment",
        ],
    }
