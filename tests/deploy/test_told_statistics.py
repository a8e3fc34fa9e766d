"""The question about statistics between a server and its sites: sites that lie, and servers that ask too much."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for sites_grid and test_own_files

from sites_grid import changed, grid_of
from test_own_files import NAMES, deployed, hospitals, values

from fedalloy.config.experiment import read
from fedalloy.data.columns import Column, Recipe
from fedalloy.data.statistics import LONGEST, preparation_text
from fedalloy.deploy import app
from fedalloy.deploy.agreed import frame
from fedalloy.deploy.audit import audited
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.deploy.settings import known_statistics
from fedalloy.deploy.site_report import render
from fedalloy.engine.flower.client import ACT, INTRODUCE, SUMMARISE
from fedalloy.engine.flower.codec import header_in
from fedalloy.engine.flower.roster import Question, introduce, introductions, summarise
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.disclosure import STATISTICS
from fedalloy.federation.quorum import QuorumError
from fedalloy.storage.store import begun

CONSTANTS = {"impute": "mean", "mean": [55.0, 3.0], "std": [10.0, 3.0], "categories": {"sex": ["f", "m", "x"]}}


def lab(tmp_path: Path, **more: Any) -> Deployment:
    given = values(hospitals(tmp_path / "h", rows=20))
    given["data"] |= more.pop("data", {})
    return init({**given, **more}, tmp_path / "lab", address="127.0.0.1:23456")


def kinds(grid: Any) -> set[str]:
    """The kinds of all messages that a server has sent."""
    return {message.metadata.message_type for message in grid.sent}


def ask(made: Deployment, question: Question[Any], grid: Any = None) -> tuple[Any, list[str]]:
    """What a server learns that asks a question of its own, and what is said about it."""
    said: list[str] = []
    bound = lambda: app.valid(made)  # noqa: E731
    roster = introductions(
        grid or grid_of(made), read(made.experiment), 3, 5.0, said.append, bound, names=made.names, question=question
    )
    return roster, said


def everything() -> Question[Any]:
    """The question about statistics of all columns."""
    return summarise([Column("age"), Column("sex", ()), Column("dose")], Recipe("median"), 1)


# --- sites that lie ---------------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], Any]


def in_age(**entries: Any) -> Change:
    def change(header: dict[str, Any]) -> dict[str, Any]:
        told = json.loads(header["statistics"])
        told["columns"]["age"] |= entries
        return {**header, "statistics": json.dumps(told)}

    return change


def in_all(**entries: Any) -> Change:
    return lambda header: {**header, "statistics": json.dumps({**json.loads(header["statistics"]), **entries})}


@pytest.mark.parametrize(
    "lie",
    [
        in_age(total=float("nan")),
        in_age(squares=0.0),
        in_age(present=1000),
        in_age(histogram={"99999999": 1}),
        in_age(rows=["Ada", "Bob"]),
        in_all(rows=10**9),  # more than most_samples allows
        in_all(rows=-1),
        in_all(columns={}),
        lambda header: {**header, "statistics": "x" * (LONGEST + 1)},
        lambda header: {**header, "statistics": "[" * 50_000},
        lambda header: {**header, "statistics": 3},
        lambda header: {key: value for key, value in header.items() if key != "statistics"},
        lambda header: {**header, "client": 0},  # which is another site
        lambda header: {**header, "client": "1"},
    ],
    ids=range(14),
)
def test_a_site_whose_statistics_are_refused_is_named_and_nothing_begins(lie: Change, tmp_path: Path) -> None:
    made = lab(tmp_path)

    def fault(client: int, answer: Any) -> Any:
        return changed(answer, lambda header, body: (lie(header), body)) if client == 1 else answer

    grid = grid_of(made, fault)
    with pytest.raises(QuorumError) as caught:
        deployed(made, grid)
    sentence = str(caught.value)
    assert "south" in sentence
    assert "north" not in sentence.partition(";")[0]
    assert sentence.isprintable()
    assert len(sentence) < 1000
    assert kinds(grid) == {SUMMARISE}  # nobody was asked to train
    assert not begun(made.run)


def test_the_rows_of_a_site_count_for_no_more_than_it_may_claim(tmp_path: Path) -> None:
    made = replace(lab(tmp_path), most_samples=(10**6, 10, 10**6))
    with pytest.raises(QuorumError, match=r"south.*most_samples"):
        deployed(made)


# --- servers that ask too much ----------------------------------------------------------------------------------------


def test_under_privacy_a_site_tells_no_statistics_whatever_it_is_asked(tmp_path: Path) -> None:
    made = lab(tmp_path)
    for file in (made.experiment, *(made.site(k) / "experiment.toml" for k in range(3))):  # past `deploy init`
        file.write_text(file.read_text() + "\n[privacy]\nnoise_multiplier = 1.0\n")
    grid = grid_of(made)
    with pytest.raises(UsageError, match=r"data\.mean"):
        deployed(made, grid)
    assert not grid.sent  # the server itself does not even ask
    roster, said = ask(made, everything())
    assert not roster.known
    assert set(roster.refused) == {0, 1, 2}
    assert any("[privacy]" in sentence for sentence in said)
    for found in audited(made.folder).values():
        assert [entry["event"] for entry in found.entries if "event" in entry][-2:] == ["asked", "refused"]


@pytest.mark.parametrize("privacy", [{}, {"privacy": {"noise_multiplier": 1.0}}])
def test_where_constants_prepare_rows_a_site_has_nothing_to_tell(privacy: dict[str, Any], tmp_path: Path) -> None:
    made = lab(tmp_path, data=CONSTANTS, **privacy)
    grid = grid_of(made)
    roster, _ = ask(made, everything(), grid)
    assert not roster.known
    assert set(roster.refused) == {0, 1, 2}
    assert not any("statistics" in header_in(message.content) for message in grid.received)


def test_where_constants_prepare_rows_a_server_cannot_change_them(tmp_path: Path) -> None:
    from fedalloy.deploy.site import site_setting

    made = lab(tmp_path, data=CONSTANTS)
    ours = site_setting(made.site(0), 3)[1]
    spoilt = json.dumps([{"name": "age", "std": 1e-30}, {"name": "sex", "categories": ["f"]}, {"name": "dose"}])
    assert site_setting(made.site(0), 3, spoilt)[1].sites[0].train.x.equal(ours.sites[0].train.x)


def test_a_server_with_another_experiment_learns_nothing(tmp_path: Path) -> None:
    made = lab(tmp_path)
    made.experiment.write_text(made.experiment.read_text().replace("median", "mean"))
    roster, said = ask(made, everything())
    assert not roster.known
    assert any("(data)" in sentence for sentence in said)


@pytest.mark.parametrize("prepared", [None, "", "[]", '[{"name":"age","std":0.0}]', "[" * 50_000])
def test_a_message_that_does_not_say_how_to_prepare_rows_is_refused(prepared: str | None, tmp_path: Path) -> None:
    roster, said = ask(lab(tmp_path), introduce(prepared))
    assert not roster.known
    assert set(roster.refused) == {0, 1, 2}
    assert said
    assert "Traceback" not in " ".join(said)


# --- what stays behind ------------------------------------------------------------------------------------------------


def test_the_question_is_asked_once_and_each_sites_log_has_it(tmp_path: Path) -> None:
    made = lab(tmp_path)
    grid = grid_of(made)
    deployed(made, grid)
    order = [message.metadata.message_type for message in grid.sent]
    assert order[:6] == [SUMMARISE] * 3 + [INTRODUCE] * 3
    assert SUMMARISE not in order[3:]
    assert ACT in order
    about = json.loads((made.run / "run.json").read_text())["data"]
    told = 0
    for (_, number), found in audited(made.folder).items():
        assert found.fault is None
        asked, answered = [entry for entry in found.entries if entry.get("kind") == SUMMARISE]
        assert (asked["event"], answered["event"]) == ("asked", "answered")
        assert answered["kinds"].keys() == {"statistics"}
        told += answered["kinds"]["statistics"]
        assert len(texts(grid)[number].encode()) == answered["kinds"]["statistics"]
        page = render(made.site(number), number, found, NAMES[number])
        assert all(words in html.unescape(page) for words in STATISTICS.values())
    first, second = map(json.loads, (made.run / "rounds.jsonl").read_text().splitlines())
    assert told == about["statistics"]["up"] == first["bytes"]["up"]["statistics"]
    statistics = known_statistics(read(made.experiment), json.loads((made.run / "run.json").read_text()))
    assert statistics is not None
    sent = 3 * len(preparation_text(statistics.preparation).encode())
    assert sent == about["statistics"]["down"] == first["bytes"]["down"]["statistics"]
    assert "statistics" not in {**second["bytes"]["up"], **second["bytes"]["down"]}


def texts(grid: Any) -> dict[int, str]:
    """What each site told about its columns."""
    headers = [header_in(m.content) for m in grid.received if m.metadata.message_type == SUMMARISE]
    return {header["client"]: header["statistics"] for header in headers}


def test_no_value_of_a_row_is_in_what_sites_tell(tmp_path: Path) -> None:
    made = lab(tmp_path)
    grid = grid_of(made)
    roster, _ = ask(made, everything(), grid)
    assert set(roster.known) == {0, 1, 2}
    for number, text in texts(grid).items():
        lines = (tmp_path / "h" / f"{NAMES[number]}.csv").read_text().splitlines()[1:]
        held = {value for line in lines for value in line.split(",")[:3:2] if value}  # ages and doses
        assert len(held) > 20
        assert not [value for value in held if value in text]


def test_a_run_whose_file_was_spoilt_does_not_resume(tmp_path: Path) -> None:
    made = lab(tmp_path)
    deployed(made)
    about = json.loads((made.run / "run.json").read_text())
    about["data"]["columns"][0]["std"] = 0.0
    with pytest.raises(DataError, match="std"):
        known_statistics(read(made.experiment), about)
    assert frame(read(made.experiment).data).recipe == Recipe("median")
