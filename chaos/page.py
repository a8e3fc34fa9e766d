"""Writes `docs/reliability.md` from the reports in `chaos/results`, so that no figure in it is typed by hand.

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
from hosts_page import between_hosts

from fedalloy.check.attack_bench import NONE, bounds
from fedalloy.check.attacks import how_many as attackers

PAGE = HERE.parent / "docs" / "reliability.md"
ATTACKS = HERE.parent / "results" / "attacks.json"
CONFIDENCE = 0.95
KEPT = 0.95  # share of the accuracy without attack that a defence should keep under every attack
NOT_RUN = "not yet run"

PROMISES = {  # by report name, in the order of the table
    "kills": "A killed run can be resumed and ends with the same bits",
    "commits": "Every fault point of the commit path: after a fault, a run resumes to the same bits",
    "checkpoints": "A damaged checkpoint is refused, or the previous one leads to the same bits",
    "exactness": "Workers, order of arrival and hash seed change no bit",
    "replies": "With a malformed reply, the round is the same as without that client",
    "deliveries": "A duplicate reply, or one from an unknown client, changes nothing",
    "gate": "The gate answers any Python object, in one line",
    "oracle": "A hostile server learns no more by evaluation than a site's limits allow, and nothing under [privacy]",
    "site-introductions": "A site's introduction is valid and within the deployment's limits, or set aside",
    "site-ledgers": "A site's account of spent privacy is valid, or its reply is set aside",
    "site-meters": "A site's account of its work is plausible, or its reply is set aside",
    "site-evaluations": "A site's evaluation is valid, or left out",
    "memory": "Hostile replies take no more memory than the limit",
    "curious-server": "A server learns no more from a private site than from fresh noise",
    "gate-price": "The gate takes no more of a round's time than the limit",
    "config-tables": "A wrong experiment is refused in one line",
    "config-files": "A damaged experiment file is refused in one line",
    "config-runs": "An experiment that is accepted works",
    "files": "A damaged file of any other kind is refused in one line, or read correctly",
    "site-files": "A site's damaged file (.npz, .csv, images, site.toml) is refused in one line, or read correctly",
    "run-folders": "A run folder with arbitrary contents is refused in one line, or its report is correct",
    "commands": "A wrong command line gives one line and a documented exit status",
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"written: {PAGE.relative_to(HERE.parent)}\n")


def page(results: Path = RESULTS, attacks: Path = ATTACKS) -> str:
    """Return the page for these reports."""
    found = {name: json.loads((results / f"{name}.json").read_text()) for name in PROMISES if _is_there(results, name)}
    lines = [
        "# Reliability",
        "",
        "What happens when something goes wrong, how often it was tested, and how to test it again. `make chaos` runs",
        "all tests and writes this page: every figure comes from a report in [chaos/results](../chaos/results). Trials",
        "are numbered and determined by the seed, except for the moment of a kill.",
        "",
        "## What was tested",
        "",
        *table(found),
        "",
        *details(found),
        "## What each fault leads to",
        "",
        *faults(),
        *between_hosts(),
        *attacked(attacks),
        "## What is not promised",
        "",
        *(f"* {limit}" for limit in LIMITS),
    ]
    return "\n".join(lines) + "\n"


def _is_there(results: Path, name: str) -> bool:
    return (results / f"{name}.json").exists()


def table(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield one row for each promise, and below it the machines and the code of the reports."""
    machines = list(dict.fromkeys(_machine(report) for report in found.values()))
    head = ("promise", "trials", "failures", "failure rate, at most", "time", "seed", "machine", "command")

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
    """Describe which code the reports are for, by the beginning of its hash."""
    of: dict[str, list[str]] = {}
    for name, report in found.items():
        of.setdefault(report["code"][:8], []).append(name)
    if len(of) == 1:
        return f"All reports are for the same code, `{next(iter(of))}`."
    each = (f"`{digest}` ({', '.join(names)})" for digest, names in of.items())
    return f"The reports are not all for the same code: {', '.join(each)}."


def _at_most(report: Mapping[str, Any]) -> str:
    """Return an upper bound for the failure rate if random trials had no failures."""
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
    """Yield further details from the reports."""
    said = [f"* **{name}**: {sentence}" for name in found if (sentence := detail(name, found[name]))]
    if said:
        yield from ["In detail:", "", *said, ""]


def detail(name: str, report: Mapping[str, Any]) -> str:
    """Return a report's details in a sentence."""
    if name == "kills":
        return (
            f"{report['kills']:,} SIGKILLs in {report['trials']:,} runs, at least {report['least']} of each method; "
            f"{report['in_a_commit']:,} of them between the first and the last write of a round. In addition, "
            f"{report['workers_killed']:,} workers were killed."
        )
    if name == "commits":
        return (
            f"{report['trials']:,} of the {report['points']:,} points that runs and resumptions of "
            f"{len(report['methods'])} methods have: {_endings(report)}."
        )
    if name == "exactness":
        return f"{report['cells']} cells for each of {len(report['methods'])} methods."
    if name == "memory":
        return (
            f"at most {report['ratio']:.3g} times the memory of honest rounds, with replies as objects and as bytes; "
            f"the limit is {report['limit']}."
        )
    if name == "gate-price":
        of = ", ".join(f"{method} {found['median']:.2%}" for method, found in report["methods"].items())
        most = max(found["largest"] for found in report["methods"].values())
        return f"median share of a round: {of}; at most {most:.2%}; the limit is {report['limit']:.0%}."
    if name == "curious-server":
        return (
            f"the best of all guesses has a cosine of at most {report['largest']:.2g} with the true gradient, and of "
            f"{report['fresh']:.2g} against fresh noise; the distance between their distributions is "
            f"{report['distance']:.2g}, and the limit is {report['limit']:.2g}. Against the noise of a rehearsal it "
            "is at "
            f"least {report['control']:.8f}."
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
    """Yield the consequences of each fault, by group."""
    for group, members in FAULTS.items():
        yield from [f"### {group}", ""]
        rows = ((fault.what, fault.then, ", ".join(f"`{where}`" for where in fault.seen)) for fault in members)
        yield from [*_rows(("fault", "what happens", "tested in"), rows), ""]


def attacked(file: Path) -> Iterator[str]:
    """Yield how much accuracy is kept under attack, from the output of `fedalloy bench-attacks --out`."""
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
        "Accuracy of the honest clients in %, and in brackets as a share of the accuracy without attack in the same "
        "row, by",
        f"`fedalloy bench-attacks`: {report['fraction']:.0%} of {exp['partition']['clients']} clients attack, {where}.",
        "Figures are means over the seeds; a cell is empty if nothing is sent that the attack could change.",
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
    yield from ["The recommended defence keeps the most accuracy under its worst attack:", ""]
    yield from [f"* **{method}**: {advice(figures, method, options)}" for method in dict.fromkeys(m for m, _ in lines)]
    yield ""


Figure = tuple[float, float, float]  # accuracy and share kept (means over seeds), and the lowest share of any seed
Figures = Mapping[tuple[str, str, str], Figure]  # by method, defence and attack


def advice(figures: Figures, method: str, options: Mapping[str, Mapping[str, Any]]) -> str:
    """Recommend the defence with the largest share kept in the worst case, and say what it costs without attack."""
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
    keeps = f"keeps {math.floor(100 * share)}% under the worst attack, {worst}: {enough}."  # 94.9 is not 95
    alone, attack = min((figures[method, best, attack][2], attack) for attack in kept[best])
    if math.floor(100 * alone) < math.floor(100 * share):
        keeps += f" With a single seed it keeps as little as {math.floor(100 * alone)}% ({attack})."
    if best == NONE:
        return f"without a defence it {keeps}"
    how = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in options[best].items())
    own, plain = (100 * figures[method, defence, NONE][0] for defence in (best, NONE))
    return f"{best} ({how}) {keeps} Without attack it reaches {own:.1f}, compared to {plain:.1f} without a defence."


def _figure(found: Sequence[tuple[float | None, float | None]]) -> Figure | None:
    """Return the figures over the seeds, or None if there is nothing to attack."""
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
