"""Writes `docs/reliability.md` from the reports in `chaos/results`, so that no figure of it is typed by hand.

python chaos/page.py
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from faults import FAULTS, LIMITS
from harness import HERE, RESULTS

from fedalloy.check.attack_bench import NONE, bounds
from fedalloy.check.attacks import how_many as attackers

PAGE = HERE.parent / "docs" / "reliability.md"
ATTACKS = HERE.parent / "results" / "attacks.json"
CONFIDENCE = 0.95
KEPT = 0.95  # of the accuracy without attack: what a defence should keep under every attack
NOT_RUN = "not yet run"

PROMISES = {  # by the name of the report, in the order of the table
    "kills": "A run that is killed goes on to the same bits",
    "commits": "Every fault point of the commit path: a run that meets a fault goes on to the same bits",
    "checkpoints": "A damaged checkpoint is refused, or the one before it leads to the same bits",
    "exactness": "Workers, order of arrival and hash seed change no bit",
    "replies": "A malformed reply leaves the round as it is without that client",
    "deliveries": "A reply that comes twice or from a stranger changes nothing",
    "gate": "The gate answers whatever Python can hold, in one line",
    "oracle": "A hostile server learns no more by evaluation than a site's limits allow, and nothing under [privacy]",
    "site-introductions": "A site's introduction is sound and within the deployment's limits, or set aside",
    "site-ledgers": "A site's account of spent privacy is sound, or its reply is set aside",
    "site-meters": "A site's account of its work is plausible, or its reply is set aside",
    "site-evaluations": "A site's evaluation is sound, or left out",
    "memory": "Hostile replies take no more memory than the limit",
    "curious-server": "A server learns no more from a private site than from fresh noise",
    "gate-price": "The gate takes no more of a round than the limit",
    "config-tables": "A wrong experiment is refused in one line",
    "config-files": "A damaged experiment file is refused in one line",
    "config-runs": "An experiment that is accepted works",
    "files": "A damaged file of any other kind is refused in one line, or sound",
    "site-files": "A site's damaged file (.npz, .csv, images, site.toml) is refused in one line, or sound",
    "run-folders": "A run folder with anything in it is refused in one line, or its report is sound",
    "commands": "A wrong command line ends in one line and a documented code",
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"written: {PAGE.relative_to(HERE.parent)}\n")


def page(results: Path = RESULTS, attacks: Path = ATTACKS) -> str:
    """The page that these reports make."""
    found = {name: json.loads((results / f"{name}.json").read_text()) for name in PROMISES if _is_there(results, name)}
    lines = [
        "# Reliability",
        "",
        "What happens when something goes wrong, how often that was tried, and how to try it again. `make chaos` does",
        "all of it and writes this page: every figure comes from a report in [chaos/results](../chaos/results), which",
        "`chaos/page.py` puts here. Trials are numbered, and follow from the seed; only the moment of a kill does not.",
        "",
        "## What was tried",
        "",
        *table(found),
        "",
        *details(found),
        "## What each fault leads to",
        "",
        *faults(),
        *attacked(attacks),
        "## What is not promised",
        "",
        *(f"* {limit}" for limit in LIMITS),
    ]
    return "\n".join(lines) + "\n"


def _is_there(results: Path, name: str) -> bool:
    return (results / f"{name}.json").exists()


def table(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One row for each promise, and below which machines and which code the reports are of."""
    machines = list(dict.fromkeys(_machine(report) for report in found.values()))
    head = ("promise", "trials", "failures", "failures in general, at most", "time", "seed", "machine", "command")

    def row(name: str) -> Sequence[str]:
        if name not in found:
            return (PROMISES[name], NOT_RUN, *[""] * (len(head) - 2))
        report = found[name]
        return (
            PROMISES[name],
            f"{report['trials']:,}",
            str(report["failures"]),
            _at_most(report),
            _time(report["seconds"]),
            str(report["seed"]),
            chr(ord("A") + machines.index(_machine(report))),
            f"`{report['command']}`",
        )

    yield from _rows(head, map(row, PROMISES))
    yield ""
    if not found:
        return
    sides = [f"{chr(ord('A') + place)} is {machine}" for place, machine in enumerate(machines)]
    yield f'Machine {"; ".join(sides)}. "At most" holds with {CONFIDENCE:.0%} confidence for trials drawn like these.'
    yield from ["", code(found)]


def code(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Of which code the reports are, by the beginning of its hash: trials of one say little about another."""
    of: dict[str, list[str]] = {}
    for name, report in found.items():
        of.setdefault(report["code"][:8], []).append(name)
    if len(of) == 1:
        return f"All reports are of the same code, `{next(iter(of))}`."
    each = (f"`{digest}` ({', '.join(names)})" for digest, names in of.items())
    return f"The reports are not all of the same code: {', '.join(each)}."


def _at_most(report: Mapping[str, Any]) -> str:
    """An upper bound for the share of failures, where none was seen in trials that were drawn."""
    all_that_there_are = report["trials"] == report.get("points")
    if report["failures"] or "endings" not in report or not report["trials"] or all_that_there_are:
        return ""
    return f"{100 * (1 - (1 - CONFIDENCE) ** (1 / report['trials'])):.2g} %"


def _machine(report: Mapping[str, Any]) -> str:
    about = report["machine"]
    return f"{about['cores']} cores, {about['system']}, Python {about['python']}, torch {about['torch']}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def details(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What else the reports say."""
    said = [f"* **{name}**: {sentence}" for name in found if (sentence := detail(name, found[name]))]
    if said:
        yield from ["In detail:", "", *said, ""]


def detail(name: str, report: Mapping[str, Any]) -> str:
    """What a report says beside its figures, in a sentence."""
    if name == "kills":
        return (
            f"{report['kills']:,} SIGKILLs in {report['trials']:,} runs, at least {report['least']} of each method; "
            f"{report['in_a_commit']:,} fell between the first and the last write of a round. Besides, "
            f"{report['workers_killed']:,} workers were killed."
        )
    if name == "commits":
        return (
            f"{report['trials']:,} of the {report['points']:,} points that runs and resumptions of "
            f"{len(report['methods'])} methods have; {_endings(report)}."
        )
    if name == "exactness":
        return f"{report['cells']} cells for each of {len(report['methods'])} methods."
    if name == "memory":
        return (
            f"at most {report['ratio']:.3g} of the memory of honest rounds, with replies that are objects and with "
            f"replies that are bytes; the limit is {report['limit']}."
        )
    if name == "gate-price":
        of = ", ".join(f"of {method} {found['median']:.2%}" for method, found in report["methods"].items())
        most = max(found["largest"] for found in report["methods"].values())
        return f"of a round {of} in the median, {most:.2%} at most; the limit is {report['limit']:.0%}."
    if name == "curious-server":
        return (
            f"the best of all guesses has a cosine with the true gradient of {report['largest']:.2g} at most, and of "
            f"{report['fresh']:.2g} against fresh noise; their distributions are {report['distance']:.2g} apart, and "
            f"the limit is {report['limit']:.2g}. Against a rehearsal's noise it is {report['control']:.8f} at least."
        )
    if name == "replies":
        return f"{report['kinds']} kinds, {len(report['methods'])} methods; {_endings(report)}."
    if name == "oracle":
        return f"{report['messages']:,} messages, {report['kinds']} kinds of malformed models; {_endings(report)}."
    if name in ("files", "commands"):
        what = report["kinds"] if name == "files" else report["commands"]
        return f"{', '.join(what)}{'' if name == 'files' else f'; {_endings(report)}'}."
    if name == "run-folders":
        return f"{report['places']} places, {report['values']} values for each; {_endings(report)}."
    return f"{_endings(report)}."


def _endings(report: Mapping[str, Any]) -> str:
    return ", ".join(f"{count:,} {ending}" for ending, count in report["endings"].items())


def faults() -> Iterator[str]:
    """What each fault leads to, group by group."""
    for group, members in FAULTS.items():
        yield from [f"### {group}", ""]
        rows = ((fault.what, fault.then, ", ".join(f"`{where}`" for where in fault.seen)) for fault in members)
        yield from [*_rows(("fault", "what happens", "tried in"), rows), ""]


def attacked(file: Path) -> Iterator[str]:
    """How much accuracy is kept under attack, as `fedalloy bench-attacks --out` has written it."""
    if not file.exists():
        return
    report = json.loads(file.read_text())
    scores: Sequence[Mapping[str, Any]] = report["scores"]
    names = list(dict.fromkeys(score["attack"] for score in scores))
    seeds = sorted({score["seed"] for score in scores})
    exp = report["experiment"]
    where = f"{exp['data']['name']}, {exp['rounds']} rounds, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    yield from [
        "## What attackers can do",
        "",
        "Accuracy of the honest clients in %, and in brackets how much of the same line's without attack that is, by",
        f"`fedalloy bench-attacks`: {report['fraction']:.0%} of {exp['partition']['clients']} clients attack, {where}.",
        "Figures are means over the seeds; a cell is empty where nothing is sent that the attack could change.",
        "",
    ]
    lines = list(dict.fromkeys((score["method"], score["defence"]) for score in scores))
    cells = {(s["method"], s["defence"], s["attack"]): [] for s in scores}  # type: ignore[var-annotated]
    for score in scores:
        cells[score["method"], score["defence"], score["attack"]].append((score["accuracy"], score["kept"]))
    figures = {key: figure for key, found in cells.items() if (figure := _figure(found)) is not None}
    rows = ((*line, *(_cell(figures.get((*line, name)), name) for name in names)) for line in lines)
    yield from [*_rows(("method", "defence", *("no attack" if name == NONE else name for name in names)), rows), ""]
    clients = exp["partition"]["clients"]
    options = bounds(attackers(clients, report["fraction"]), clients)
    yield from ["Recommended is what keeps most under the attack that is worst for it:", ""]
    yield from [f"* **{method}**: {advice(figures, method, options)}" for method in dict.fromkeys(m for m, _ in lines)]
    yield ""


Figure = tuple[float, float, float]  # accuracy and share kept, means over the seeds, and the lowest share of a seed
Figures = Mapping[tuple[str, str, str], Figure]  # by method, defence and attack


def advice(figures: Figures, method: str, options: Mapping[str, Mapping[str, Any]]) -> str:
    """The defence of a method whose worst share kept is the largest, that share, and what it costs without attack."""
    kept: dict[str, dict[str, float]] = {}
    for (name, defence, attack), (_, share, _) in figures.items():
        if name == method and attack != NONE:
            kept.setdefault(defence, {})[attack] = share
    if not kept:
        return "nothing is sent that an attack could change."
    best = max(kept, key=lambda defence: min(kept[defence].values()))
    worst = min(kept[best], key=lambda attack: kept[best][attack])
    share = kept[best][worst]
    enough = f"at least {KEPT:.0%} under every attack" if share >= KEPT else f"less than {KEPT:.0%}"
    keeps = f"keeps {math.floor(100 * share)}% under the worst attack, {worst}: {enough}."  # 94.9 is not yet 95
    alone, attack = min((figures[method, best, attack][2], attack) for attack in kept[best])
    if math.floor(100 * alone) < math.floor(100 * share):
        keeps += f" With one seed alone it keeps as little as {math.floor(100 * alone)}% ({attack})."
    if best == NONE:
        return f"no defence {keeps}"
    how = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in options[best].items())
    own, plain = (100 * figures[method, defence, NONE][0] for defence in (best, NONE))
    return f"{best} ({how}) {keeps} Without attack it reaches {own:.1f} where no defence reaches {plain:.1f}."


def _figure(found: Sequence[tuple[float | None, float | None]]) -> Figure | None:
    """What the seeds have found, unless there is nothing to attack."""
    known = [(accuracy, kept) for accuracy, kept in found if accuracy is not None and kept is not None]
    if not known or len(known) < len(found):
        return None
    accuracies, kept = zip(*known, strict=True)
    return fmean(accuracies), fmean(kept), min(kept)


def _cell(figure: Figure | None, attack: str) -> str:
    if figure is None:
        return ""
    accuracy, kept, _ = figure
    return f"{100 * accuracy:.1f}" if attack == NONE else f"{100 * accuracy:.1f} ({kept:.0%})"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
