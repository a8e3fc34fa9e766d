"""Attacks on a site's audit log: crashes at every point, full disks, forged files, hostile servers."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for sites_grid, which is no test

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from sites_grid import grid_of

from fedalloy.cli.main import main
from fedalloy.deploy import app
from fedalloy.deploy.audit import HEADS, audited, rows, table, witnessed
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.engine.flower.client import ACT, INTRODUCE
from fedalloy.errors import FedalloyError, UsageError
from fedalloy.storage import audit
from fedalloy.storage.audit import HEAD, LOG, AuditError, AuditLog, _sealed, verify

TINY = {
    "rounds": 1,
    "data": {"name": "tiny"},
    "model": {"name": "mlp"},
    "partition": {"clients": 2, "alpha": 1.0},
    "training": {"batch": 16},
}


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    found = AuditLog(tmp_path / "0", {"client": 0, "authority": "a"})
    for number in range(3):
        found.append("asked", {"round": number})
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = init(TINY, tmp_path_factory.mktemp("audit") / "lab", 2)
    app.conducted(grid_of(made), made, lambda _: None)
    return made


def _dying(monkeypatch: pytest.MonkeyPatch, at: int, part: int) -> None:
    """Let the process die in its `at`-th change of a file; if that is a write, after `part` bytes."""
    left = [at]

    def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if real is write:
                    real(args[0], bytes(args[1])[:part])
                raise Killed
            return real(*args, **kwargs)

        return call

    write = os.write
    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(os, name, mortal(getattr(os, name)))


def test_a_process_may_die_at_every_point_and_again_while_it_repairs(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged, deaths = 3, 0
    for part in (0, 1, 50, 10_000):
        for at in range(1, 20):
            for again in (at, 1 + at % 7):
                with monkeypatch.context() as patch:
                    _dying(patch, again, part)
                    try:
                        log.append("asked", {"round": acknowledged})
                    except Killed:
                        deaths += 1
                    else:
                        acknowledged += 1
                assert verify(log.folder, log.about).fault is None
    log.append("asked", {"round": acknowledged})
    found = verify(log.folder, log.about)
    assert deaths > 50
    assert found.fault is None
    assert {*range(acknowledged + 1)} <= {e["round"] for e in found.entries if "round" in e}


def test_a_disk_that_is_full_again_and_again_does_not_break_the_log(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    for room in (20, 30, 0):

        def short(handle: int, data: bytes, left: list[int] = [room]) -> int:  # noqa: B006
            if not os.readlink(f"/proc/self/fd/{handle}").endswith(LOG):
                return write(handle, data)
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            left[0] -= (done := write(handle, bytes(data)[: left[0]]))
            return done

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", short)
            with pytest.raises(FedalloyError):
                log.append("asked", {"round": 9})
        assert verify(log.folder, log.about).fault is None
    log.append("asked", {"round": 10})
    found = verify(log.folder, log.about)
    assert found.fault is None
    assert [e.get("round") for e in found.entries] == [None, 0, 1, 2, 9, None, 10]


def test_a_site_whose_whole_log_was_removed_answers_nothing(log: AuditLog) -> None:
    (log.folder / LOG).unlink()
    with pytest.raises(AuditError):
        log.append("asked", {})
    (log.folder / HEAD).write_text("damaged")
    with pytest.raises(AuditError):
        log.append("asked", {})
    assert not (log.folder / LOG).exists()


@pytest.mark.parametrize(
    "written", ['"round":  1', '"round": 7, "round": 1', '"round": 1.0'], ids=["a space", "a key twice", "a float"]
)
def test_a_line_that_only_reads_the_same_was_changed(log: AuditLog, written: str) -> None:
    file = log.folder / LOG
    file.write_text(file.read_text().replace('"round": 1', written))
    assert "line 3 was changed" in str(verify(log.folder).fault)


@pytest.mark.parametrize(
    "forged",
    [{"line": "x"}, {"line": True}, {"event": []}, {"previous": {}}, {"event": "repaired", "completed": "x"},
     {"round": [], "event": "asked", "kind": {}, "in": {"bytes": "x"}}, {"event": "refused", "kinds": {"a": "b"}}],
)  # fmt: skip
def test_a_forged_entry_of_wrong_types_is_a_fault_or_harmless(log: AuditLog, forged: dict[str, Any]) -> None:
    last = json.loads((log.folder / HEAD).read_text())
    entry = {**last, "line": last["line"] + 1, "previous": last["hash"], **forged}
    text = _sealed({key: value for key, value in entry.items() if key != "hash"})[1]
    (log.folder / HEAD).write_bytes(text)
    assert verify(log.folder).entries
    with (log.folder / LOG).open("ab") as file:
        file.write(text + b"\n")
    found = verify(log.folder)
    assert found.fault is not None or len(rows(found.entries)) > 1
    assert table("log", found).rows
    (log.folder / HEAD).write_text("[" * 100_000)
    assert verify(log.folder).fault is not None


def test_a_link_in_place_of_the_log_is_not_followed(log: AuditLog, tmp_path: Path) -> None:
    (log.folder / LOG).rename(tmp_path / "elsewhere")
    (log.folder / LOG).symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(FedalloyError):
        log.append("asked", {})
    assert (tmp_path / "elsewhere").read_bytes() == before
    assert "link" in str(verify(log.folder).fault)
    (log.folder / LOG).unlink()
    os.mkfifo(log.folder / LOG)
    with pytest.raises(AuditError):
        log.append("asked", {})


def _write_some(folder: Path) -> None:
    for _ in range(15):
        AuditLog(folder, {"client": 0, "authority": "a"}).append("asked", {"round": 1})


def test_several_processes_write_one_chain_and_it_can_be_verified_meanwhile(log: AuditLog) -> None:
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_write_some, args=(log.folder,)) for _ in range(2)]
    for one in writers:
        one.start()
    while any(one.is_alive() for one in writers):
        found = verify(log.folder, log.about)
        assert (found.fault, found.notes) == (None, ())
    for one in writers:
        one.join()
    assert len(verify(log.folder, log.about).entries) == 4 + 30


def test_appending_does_not_read_the_whole_log(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(path: Path) -> bytes:
        assert path.name != LOG
        return path.read_bytes()

    monkeypatch.setattr(audit, "read_file", small)
    log.append("asked", {})


def test_a_hash_does_not_reveal_what_a_line_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is told the hash, and could otherwise try out the few things that the line may say."""

    class Stopped(audit.datetime):  # type: ignore[misc, name-defined]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr(audit, "datetime", Stopped)
    heads = {AuditLog(tmp_path / name, {"client": 0}).append("refused", {"why": "row 7"}) for name in "ab"}
    assert len(heads) == 2
    salts = [e["salt"] for e in verify(tmp_path / "a").entries]
    assert len({*salts}) == 2
    assert all(len(salt) == 32 for salt in salts)


def test_a_clock_that_goes_back_is_noted_but_no_fault(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(audit.datetime):  # type: ignore[misc, name-defined]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(2001, 1, 1, tzinfo=tz)

    monkeypatch.setattr(audit, "datetime", Early)
    log.append("asked", {})
    found = verify(log.folder)
    assert found.fault is None
    assert "clock" in found.notes[0]


def test_heads_that_the_server_has_seen_are_never_replaced(ran: Deployment, tmp_path: Path) -> None:
    """A site that writes a new log and answers once more cannot make the server forget the old one."""
    folder, heads = ran.site(0) / "memory" / "0", ran.state / HEADS
    kept, noted = {name: (folder / name).read_bytes() for name in (LOG, HEAD)}, heads.read_bytes()
    about = verify(folder).entries[0]
    try:
        for name in (LOG, HEAD):
            (folder / name).unlink()
        new = AuditLog(folder, {key: about[key] for key in ("client", "authority", "server", "experiment")})
        for _ in range(20):
            witnessed(ran, 0, new.append("answered", {}))
        (one, *_) = audited(ran.folder).values()
        assert "replaced" in str(one.fault)
    finally:
        for name, data in kept.items():
            (folder / name).write_bytes(data)
        heads.write_bytes(noted)
    witnessed(ran, 0, "1:nonsense\x1b")
    (ran.state / HEADS).open("ab").write(b'{"client": 0, "he')  # a crash
    assert all(one.fault is None for one in audited(ran.folder).values())
    heads.write_bytes(noted)


def test_a_noted_head_is_compared(ran: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    site = ran.site(1)
    entries = verify(site / "memory" / "1").entries
    early = f"{entries[2]['line']}:{entries[2]['hash']}"
    assert [one.fault for one in audited(site, [early]).values()] == [None]
    assert "line 3" in str(*(one.fault for one in audited(site, ["3:" + "0" * 64]).values()))
    for path, heads in ((site, ["nonsense"]), (ran.folder, [early])):
        with pytest.raises(UsageError, match="head"):
            audited(path, heads)
    monkeypatch.chdir(site)
    assert [folder.name for folder, _ in audited(Path())] == ["site-1"]


def _sent(deployment: Deployment, content: RecordDict | None, kind: str, identifier: str = "m") -> Message:
    """What site 0 answers to a message of a hostile server."""
    where = {"partition-id": 0, "num-partitions": 2, "site": str(deployment.site(0))}
    context = Context(run_id=1, node_id=1, node_config=where, state=RecordDict(), run_config={})
    grid_of(deployment)  # sets the identity that Flower wants for answers
    message = Message(content or RecordDict(), 1000, kind)
    message.metadata.__dict__["_message_id"] = identifier
    return app.client(message, context)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"fedalloy": ConfigRecord({"experiment": "no json", "action": "\x1b[2J" * 9_999, "round": 2**62})}),
        RecordDict({"fedalloy": ConfigRecord({"experiment": "\ud800", "round": -1})}),
        RecordDict({"other": ArrayRecord({"x": Array("uint8", (9,), "x", b"123456789")})}),
    ],
    ids=["empty", "control characters", "surrogates", "other records"],
)
def test_whatever_a_hostile_server_sends_is_recorded_in_short_lines(
    ran: Deployment, content: RecordDict, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ran.site(0) / "memory" / "0"
    for kind in (ACT, INTRODUCE):
        before = verify(folder).entries
        answer = _sent(ran, content, kind, "\x1b[31m" * 100_000)
        new = verify(folder).entries[len(before) :]
        assert [e["event"] for e in new] == ["asked", "refused"]
        assert new[1]["kind"] == kind
        assert answer.content["fedalloy"]["audit"] == f"{new[1]['line']}:{new[1]['hash']}"
        assert all(len(line) < 3000 for line in (folder / LOG).read_bytes().splitlines())
    if "other" in content:
        assert new[0]["in"]["bytes"] == 9
    assert b"\x1b" not in (folder / LOG).read_bytes()
    for words in ((), ("--json",)):
        with pytest.raises(SystemExit) as ended:
            main(["deploy", "audit", str(ran.site(0)), *words])
        assert ended.value.code in (0, None)
        assert "\x1b[2J" not in capsys.readouterr().out


def test_the_head_of_a_refusal_is_seen_by_the_server(tmp_path: Path) -> None:
    made = init(TINY, tmp_path / "lab", 2)

    def broken(client: int, answer: Message) -> Message:
        """After its introduction, site 1 has another experiment than the server."""
        file = made.site(1) / "experiment.toml"
        if client == 1 and "[quorum]" not in file.read_text():
            file.write_text(file.read_text() + "\n[quorum]\nfraction = 0.3\n")
        return answer

    app.conducted(grid_of(made, broken), made, lambda _: None)
    seen = [json.loads(line) for line in (made.state / HEADS).read_text().splitlines()]
    (one,) = (found for (_, number), found in audited(made.folder).items() if number == 1)
    assert one.fault is None
    assert {f"{e['line']}:{e['hash']}" for e in one.entries if e["event"] == "refused"} & {
        line["head"] for line in seen if line["client"] == 1
    }
    agreed = [e["agreed"] for e in one.entries if e["event"] == "asked"]
    assert len({*agreed}) == 2  # the site's own experiment changed, and its log shows when


def test_a_disk_that_is_full_at_a_site_is_an_answer_without_results(
    ran: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = ran.site(0) / "memory" / "0"
    count = len(verify(folder).entries)
    with monkeypatch.context() as patch:
        patch.setattr(audit, "append_line", full)
        answer = _sent(ran, RecordDict({"fedalloy": ConfigRecord({"experiment": "{}"})}), INTRODUCE)
    assert "error" in answer.content["fedalloy"]
    assert "audit" not in answer.content["fedalloy"]
    assert len(verify(folder).entries) == count
    _sent(ran, RecordDict(), INTRODUCE)
    assert verify(folder).fault is None


@pytest.mark.parametrize("head", ["", "x" * 60_000, "1:", "1:" + "0" * 63, '1:"}\n{"client": 0', "1:" + "G" * 64])
def test_what_is_no_head_is_not_kept(ran: Deployment, head: str) -> None:
    before = (ran.state / HEADS).read_bytes()
    witnessed(ran, 1, head)
    assert (ran.state / HEADS).read_bytes() == before
