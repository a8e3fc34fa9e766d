"""Write the findings into docs/theory.md and draw its pictures, from fedalloy.theory.

Run it from the project's root: `python tools/make_theory.py`. What is between the markers of the page is made anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedalloy.report.svg import to_svg
from fedalloy.theory import FINDINGS, Finding
from fedalloy.theory.pictures import PICTURES

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "theory.md"
# What each picture shows, for those who cannot see it.
SHOWN = {
    "fedkf_lemma1": "Accuracy on all mixtures of three clients: never below the worst client; 0 on a domain outside",
    "fedkf_bound": "Worst accuracy on Q random mixtures, for three clients and for twenty: above the worst client",
    "kdia_theorem1": "Students and teachers for which the inequality fails, and its margin in the rounds of a run",
    "kdia_theorem1_proof": "Decrease over the squared gradient from every model: several times rho",
    "kdia_assumption2": "The gamma that KDIA's local solutions need lies far above the gamma that rho allows",
    "dafkd_theorem1_f": "Searched scores equal the formula with p_g; at the optimum they differ from the formula with p",
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
    lines = [f"| `{name}` | {verdict(finding)} |" for name, finding in found.items()]
    return "\n".join(["| Function of `fedalloy.theory` | Verdict |", "|---|---|", *lines])


def section(name: str, finding: Finding) -> str:
    """The verdict on a statement, what was found, the picture and the numbers."""
    numbers = [f"| {what} | {value:.4g} |" for what, value in finding.numbers.items()]
    return "\n\n".join(
        [
            f"**{verdict(finding).capitalize()}.** {finding.text}",
            f"![{SHOWN[name]}]({picture(name)})",
            "\n".join([f"| `{name}` | |", "|---|---|", *numbers]),
        ]
    )


def verdict(finding: Finding) -> str:
    """The verdict in a word."""
    return "holds" if finding.holds else "contradicted"


if __name__ == "__main__":
    main()
