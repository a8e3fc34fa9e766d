"""Write the findings into docs/theory.md and draw its pictures, from fedalloy.theory.

Run it from the project's root: `python tools/make_theory.py`. What is between the markers of the page is made anew.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from fedalloy.report.svg import to_svg
from fedalloy.theory import FINDINGS, Finding
from fedalloy.theory.pictures import PICTURES

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "theory.md"
STATEMENTS = {
    "fedkf_lemma1": "FedKF, Lemma 1",
    "fedkf_bound": "FedKF, Theorem 5.1",
    "kdia_theorem1": "KDIA, Theorem 1, as stated",
    "kdia_theorem1_proof": "KDIA, Theorem 1, if the teacher is the current model",
    "kdia_assumption2": "KDIA, Assumption 2, for KDIA's own local objective",
    "dafkd_theorem1_f": "DaFKD, Theorem 1, f = p_k / (p_k + p_g)",
    "dafkd_theorem1_pg": "DaFKD, Theorem 1, p_g = p",
    "dafkd_theorem2": "DaFKD, Theorem 2, as stated",
    "dafkd_theorem2_limit": "DaFKD, Theorem 2, with unlimited data and p_g = p",
}
# What each picture shows, for those who cannot see it.
SHOWN = {
    "fedkf_lemma1": "Accuracy on all mixtures of three clients: never below the worst client; 0 on a domain outside",
    "fedkf_bound": "Worst accuracy on Q random mixtures, for three clients and for twenty: above the worst client",
    "kdia_theorem1": "Students and teachers for which the inequality fails, and its margin in the rounds of a run",
    "kdia_theorem1_proof": "Decrease over the squared gradient from every model: several times rho",
    "kdia_assumption2": "The gamma that KDIA's local solutions need lies far above the gamma that rho allows",
    "dafkd_theorem1_f": "Searched scores equal the formula with p_g; at the optimum they differ from it with p",
    "dafkd_theorem1_pg": "The divergence has its minimum beside the mean; rare samples nearly vanish at the optimum",
    "dafkd_theorem2": "Two counterexamples in which the ensemble's loss lies above the bound",
    "dafkd_theorem2_limit": "Ensemble's loss as a share of the bound: below one half in all random problems",
}


def main() -> None:
    """Write the page and its pictures."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """The page and its pictures as they should be."""
    drawn = {DOCS / picture(name): to_svg(draw(), label=SHOWN[name], ids=name) for name, draw in PICTURES.items()}
    return {PAGE: with_findings(PAGE.read_text(encoding="utf-8")), **drawn}


def picture(name: str) -> str:
    """Where the picture of a finding is, from the page."""
    return f"pictures/theory-{name.replace('_', '-')}.svg"


def with_findings(text: str) -> str:
    """The page with what is between its markers made anew."""
    found = {name: find() for name, find in FINDINGS.items()}
    filled = {"overview": overview(found), **{name: section(name, finding) for name, finding in found.items()}}

    def fill(marker: re.Match[str]) -> str:
        return f"<!-- finding: {marker[1]} -->\n\n{filled[marker[1]]}\n\n<!-- end of finding -->"

    return re.sub(r"<!-- finding: (\w+) -->.*?<!-- end of finding -->", fill, text, flags=re.DOTALL)


def overview(found: dict[str, Finding]) -> str:
    """A table of all verdicts."""
    lines = [f"| {STATEMENTS[name]} | {verdict(name, finding)} | `{name}` |" for name, finding in found.items()]
    return "\n".join(["| Statement | Verdict | Function of `fedalloy.theory` |", "|---|---|---|", *lines])


def section(name: str, finding: Finding) -> str:
    """The verdict on a statement, what was found, the picture and the numbers."""
    numbers = [f"| {what} | {value:.4g} |" for what, value in finding.numbers.items()]
    return "\n\n".join(
        [
            textwrap.fill(f"**{verdict(name, finding).capitalize()}.** {finding.text}", 120, break_on_hyphens=False),
            f"![{SHOWN[name]}]({picture(name)})",
            "\n".join([f"| `{name}` | |", "|---|---|", *numbers]),
        ]
    )


def verdict(name: str, finding: Finding) -> str:
    """The verdict on a statement, or on an assumption, in a few words."""
    if "assumption" in name:
        return "fulfilled" if finding.holds else "not fulfilled on this problem"
    return "holds" if finding.holds else "contradicted"


if __name__ == "__main__":
    main()
