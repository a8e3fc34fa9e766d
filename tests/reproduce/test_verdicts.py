"""Which runs a verdict rests on: all of the full scale, else those of the reduced scale, else the library's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedalloy.base.text import MISSING
from fedalloy.reproduce import verdicts
from fedalloy.reproduce.catalogue import Claim, Item, Paper, Row, Scale
from fedalloy.reproduce.claims import Judgement, Verdict
from fedalloy.reproduce.plan import jobs
from fedalloy.reproduce.results import Results
from fedalloy.reproduce.verdicts import Told, claim_lines, counted, judged, known, papers_table, reached
from fedalloy.storage.results import Run

CPU = Scale(experiment="knfu-mnist", columns=("50, 0.1",))
ITEM = Item(
    "table1", "a table", "4", "scores", full=replace(CPU, columns=("50, 1",)), cpu=CPU, smoke=CPU,
    rows=(Row("KnFu", "knfu", "personal"), Row("Alone", "local", "personal")), metrics=("alma",), paper="knfu",
)  # fmt: skip
CLAIMS = tuple(
    Claim(name, "table1", "4", f"{name} holds", "greater", ("KnFu",), ("Alone",), paper="knfu") for name in ("a", "b")
)
PAPER = Paper("knfu", "KnFu", "t", "a", "v", (ITEM,), CLAIMS)


@pytest.mark.parametrize(
    ("full", "cpu", "scale"),
    [(6, 6, "full"), (5, 6, "cpu"), (6, 0, "full"), (0, 6, "cpu"), (5, 0, "cpu"), (0, 0, "cpu")],
)
def test_the_full_scale_counts_only_if_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, full: int, cpu: int, scale: str
) -> None:
    there = {job.folder for name, count in (("full", full), ("cpu", cpu)) for job in jobs(ITEM, name)[:count]}

    def found(item: Item, scale: str, folder: Path) -> Results:
        planned = jobs(item, scale)
        runs = {(job.column, job.method, job.seed): Run({}, ()) for job in planned if job.folder in there}
        missing = tuple(job for job in planned if job.folder not in there)
        return Results(item, scale, (planned[0].column,), (0, 1, 2), runs, missing)

    monkeypatch.setattr(verdicts, "recorded", found)
    monkeypatch.setattr(verdicts, "finished", lambda place, _: Run({}, ()) if place.name in there else None)
    assert reached(ITEM, Path()).scale == scale


def test_every_claim_is_judged_even_without_runs(tmp_path: Path) -> None:
    found = judged(PAPER, tmp_path)
    assert [(one.claim.id, one.verdict) for one in found] == [("a", "not tested"), ("b", "not tested")]


def said(claim: Claim, verdict: Verdict) -> Judgement:
    return Judgement(claim, verdict, "cpu", "last", (), (), (), f"ours: {verdict}")


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ("contradicted", Told("contradicted", "cpu", "ours: contradicted")),
        ("not shown", Told("not shown", "cpu", "ours: not shown")),
        ("not tested", Told("reproduced", "full", "theirs")),
    ],
)
def test_own_runs_replace_the_librarys_verdicts_if_they_test_the_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ours: Verdict, expected: Told
) -> None:
    theirs = {"knfu/a": Told("reproduced", "full", "theirs")}
    monkeypatch.setattr(verdicts, "shipped", lambda: theirs)
    some = Results(ITEM, "cpu", ("50, 0.1",), (0,), {("50, 0.1", "knfu", 0): Run({}, ())})
    monkeypatch.setattr(verdicts, "reached", lambda *_: some)
    monkeypatch.setattr(verdicts, "judge", lambda claim, _: said(claim, ours))
    found, others = known([PAPER], tmp_path)
    assert found["knfu/a"] == expected
    assert found["knfu/b"].verdict == ours
    assert others == (ours == "not tested")  # some verdicts are the library's
    alone = {"knfu/a": Told("reproduced", "full", "theirs")}
    assert known([PAPER], tmp_path / "no such folder") == (alone, True)


def test_claims_are_counted_by_verdict_and_listed() -> None:
    told = {"knfu/a": Told("contradicted", "cpu", "because"), "fedkf/z": Told("reproduced", "full", "of another paper")}
    assert counted(told, CLAIMS) == {"contradicted": 1, "not tested": 1}
    assert papers_table([PAPER], told).rows == [["knfu", "1", "2", MISSING, MISSING, MISSING, "1", "1"]]
    assert papers_table([PAPER, PAPER], told).rows[-1] == ["all", "2", "4", MISSING, MISSING, MISSING, "2", "2"]
    assert list(claim_lines((replace(CLAIMS[0], ours=True), CLAIMS[1]), told)) == [
        ("CONTRADICTED  a (table1, a control of ours)", "a holds", "because"),
        ("NOT TESTED  b (table1)", "b holds", "No runs are recorded."),
    ]
