"""A site's audit log: what it records, and what happens to it when somebody changes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for sites_grid, which is no test

from sites_grid import grid_of

from fedalloy.cli.main import main
from fedalloy.deploy import app
from fedalloy.deploy.audit import HEADS, audited, site_log, site_names
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.storage.audit import HEAD, LOG, AuditError, AuditLog, _sealed, verify

TINY = {
    "rounds": 2,
    "data": {"name": "tiny"},
    "model": {"name": "mlp"},
    "partition": {"clients": 2, "alpha": 1.0},
    "training": {"batch": 16},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = init(TINY, tmp_path_factory.mktemp("audit") / "lab", 2)
    app.conducted(grid_of(made), made, lambda _: None)
    return made


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    found = AuditLog(tmp_path / "0", {"client": 0, "authority": "a"})
    for number in range(4):
        found.append("asked", {"round": number})
    return found


def _lines(log: AuditLog) -> list[str]:
    return (log.folder / LOG).read_text().splitlines()


def _put(log: AuditLog, lines: list[str]) -> None:
    (log.folder / LOG).write_text("".join(f"{line}\n" for line in lines))


def test_every_message_is_recorded_and_the_server_is_a_witness(ran: Deployment) -> None:
    found = audited(ran.folder)
    assert len(found) == 2
    for (folder, number), one in found.items():
        assert one.fault is None
        assert (folder / "memory" / str(number) / LOG).stat().st_mode & 0o777 == 0o600
        events = [entry["event"] for entry in one.entries]
        assert events.count("asked") == events.count("answered") >= 5
        trained = [e for e in one.entries if e["event"] == "answered" and e.get("action") == "train"]
        assert [e["round"] for e in trained] == [1, 2]
        assert all(sum(e["kinds"].values()) > 0 and len(e["out"]["sha256"]) == 64 for e in trained)
        (scores, *_) = (e["scores"] for e in one.entries if "scores" in e)
        assert 0 <= scores["aca"]["accuracy"] <= 1
        heads = [json.loads(line) for line in (ran.state / HEADS).read_text().splitlines()]
        assert [line["head"] for line in heads if line["client"] == number][-1] == one.head
        assert one.entries[0]["server"] == ran.address


def test_a_refusal_is_recorded_with_its_reason(tmp_path: Path) -> None:
    made = init(TINY, tmp_path / "lab", 2)
    (made.site(1) / "experiment.toml").write_text(
        (made.site(1) / "experiment.toml").read_text() + "\n[quorum]\nfraction = 0.3\n"
    )
    with pytest.raises(Exception, match="site"):
        app.conducted(grid_of(made), made, lambda _: None)
    (one,) = (found for (_, number), found in audited(made.folder).items() if number == 1)
    (entry, *_) = (e for e in one.entries if e["event"] == "refused")
    assert "quorum" in entry["why"]
    assert one.fault is None


def _edited(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[2].replace('"round": 1', '"round": 7'), *lines[3:]]


def _forged(lines: list[str]) -> list[str]:
    last = json.loads(lines[-1])
    return [*lines, _rehashed({**last, "line": last["line"] + 1, "previous": last["hash"]})]


def _rehashed(entry: dict[str, Any]) -> str:
    """A line with a hash of its own, as somebody can compute who knows the format."""
    return _sealed({key: value for key, value in entry.items() if key != "hash"})[1].decode()


@pytest.mark.parametrize(
    ("attack", "line"),
    [
        (_edited, 3),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
        (lambda lines: lines[:-1][:-1], 4),
        (lambda lines: lines[:1], 2),
        (lambda lines: [], 1),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (_forged, 6),
        (lambda lines: [*lines[:2], "nonsense", *lines[2:]], 3),
    ],
)
def test_an_attack_is_noticed_and_names_its_line(
    log: AuditLog, attack: Callable[[list[str]], list[str]], line: int
) -> None:
    _put(log, attack(_lines(log)))
    fault = verify(log.folder, log.about).fault
    assert fault is not None
    assert f"line {line} " in fault


def test_a_line_with_a_new_hash_of_its_own_breaks_the_chain(log: AuditLog) -> None:
    lines = _lines(log)
    lines[2] = _rehashed({**json.loads(lines[2]), "round": 7})
    _put(log, lines)
    assert "line 4 does not continue" in str(verify(log.folder).fault)


def test_both_files_replaced_are_noticed_by_whose_they_are_or_by_a_witness(log: AuditLog, tmp_path: Path) -> None:
    head = verify(log.folder).head
    for about, witness in (({"client": 1, "authority": "a"}, ""), (log.about, head)):
        other = AuditLog(tmp_path / f"other-{len(witness)}", about)
        for _ in range(6):
            other.append("asked", {})
        assert verify(other.folder, about).fault is None
        for name in (LOG, HEAD):
            (log.folder / name).write_bytes((other.folder / name).read_bytes())
        assert verify(log.folder, log.about, [witness] if witness else []).fault is not None
    for name in (LOG, HEAD):
        (log.folder / name).unlink()
    assert "missing" in str(verify(log.folder, log.about, [head]).fault)


def test_a_site_with_a_changed_log_answers_nothing(log: AuditLog) -> None:
    _put(log, _forged(_lines(log)))
    with pytest.raises(AuditError, match="not intact"):
        log.append("asked", {})
    (log.folder / HEAD).unlink()
    with pytest.raises(AuditError, match=HEAD):
        log.append("asked", {})


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_a_crash_between_or_within_lines_is_noted_and_nothing_is_lost(log: AuditLog, cut: int) -> None:
    lines = _lines(log)
    (log.folder / LOG).write_text("".join(f"{line}\n" for line in lines[:-1]) + lines[-1][:cut])
    before = verify(log.folder, log.about)
    assert before.fault is None
    assert before.notes
    log.append("asked", {"round": 9})
    after = verify(log.folder, log.about)
    assert after.fault is None
    assert [e.get("round") for e in after.entries] == [None, 0, 1, 2, 3, None, 9]
    assert "line 5 was interrupted" in after.notes[0]


def test_a_site_is_called_by_its_name_on_the_server_and_at_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("North clinic", "South"):
        rows = "".join(f"{40 + k},{'ny'[k % 2]}\n" for k in range(30))
        (tmp_path / f"{name}.csv").write_text(f"age,ill\n{rows}")
    clients = [{"name": name, "data": str(tmp_path / f"{name}.csv")} for name in ("North clinic", "South")]
    made = init({"rounds": 1, "clients": clients, "model": {"name": "mlp", "hidden": [4]}}, tmp_path / "lab")
    app.conducted(grid_of(made), made, lambda _: None)
    for place in (made.folder, made.site(0)):
        with pytest.raises(SystemExit):
            main(["deploy", "audit", str(place)])
        out = capsys.readouterr().out
        assert "North clinic (site-0, client 0)" in out
        assert "head of North clinic: " in out
    (made.site(0) / "experiment.toml").write_text("[")
    assert site_names(made.site(0)) == ()


def test_the_command_exits_with_1_and_names_the_line(
    ran: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def code(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["deploy", "audit", *words])
        return int(ended.value.code or 0)

    assert code(str(ran.folder)) == 0
    out = capsys.readouterr().out
    assert "train" in out
    assert all(f"{one.head}\n" in out for one in audited(ran.folder).values())  # in one piece on any terminal
    assert code(str(ran.site(1)), "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["intact"] is True
    file = ran.site(1) / "memory" / "1" / LOG
    kept = file.read_bytes()
    file.write_bytes(kept.replace(b'"round": 1', b'"round": 3', 1))
    try:
        assert code(str(ran.site(1))) == 1
        assert "was changed" in capsys.readouterr().err
    finally:
        file.write_bytes(kept)
    assert code(str(tmp_path)) == 2


def test_a_log_is_bound_to_the_authority_of_the_site(ran: Deployment) -> None:
    about = site_log(ran.site(0), 0).about
    assert about["client"] == 0
    assert len(about["authority"]) == 64


def test_a_site_whose_whole_memory_was_removed_is_noticed_by_the_server_s_copy(ran: Deployment) -> None:
    memory = ran.site(0) / "memory"
    memory.rename(ran.folder / "away")
    try:
        (one, *_) = audited(ran.folder).values()
        assert "missing" in str(one.fault)
    finally:
        (ran.folder / "away").rename(memory)
