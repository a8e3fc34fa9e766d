"""Keys that are revoked and replaced: what is valid, what a kill leaves behind, and what a run does without a site."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for fake_link and sites_grid, which are no tests

from fake_link import FakeLink
from flwr.app import Message
from sites_grid import Killed, Mortal, grid_of

from fedalloy.base.files import write_json
from fedalloy.cli.main import main
from fedalloy.deploy import app, control, keys, link, processes, rotation, site_keys
from fedalloy.deploy.audit import audited
from fedalloy.deploy.door import guarded, keys_in
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.errors import StorageError, UsageError
from fedalloy.federation.quorum import QuorumError
from fedalloy.storage.results import read
from fedalloy.storage.store import described

TINY = {
    "rounds": 2,
    "evaluate_every": 2,
    "data": {"name": "tiny"},
    "model": {"name": "mlp"},
    "partition": {"clients": 3, "alpha": 1.0},
    "training": {"batch": 16},
}


def _quiet(_: str) -> None:
    pass


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    return init(TINY, tmp_path / "lab", 3)


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    found = FakeLink()
    monkeypatch.setattr(link, "connected", lambda _: nullcontext(found))
    return found


def _pem(made: Deployment, site: int) -> bytes:
    return keys.public_pem(site_keys.current_file(made, site).read_bytes())


def _held(made: Deployment, site: int) -> bytes:
    """The public part of the key in the site's folder."""
    return keys.public_of((made.site(site) / "node.key").read_bytes())


def _code(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["deploy", *words])
    return int(ended.value.code or 0)


# --- what is valid ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["1", "site-1", "Lakeside"])
def test_a_site_is_named_by_number_or_name(word: str) -> None:
    lab = Deployment(Path("lab"), "127.0.0.1", 8443, 3, names=("North clinic", "Lakeside", "Hill"))
    assert lab.number(word) == 1


@pytest.mark.parametrize("word", ["3", "-1", "site-3", "site-", "lakeside", ""])
def test_a_site_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="no site"):
        Deployment(Path("lab"), "127.0.0.1", 8443, 3, names=("North clinic", "Lakeside", "Hill")).number(word)


def test_a_name_that_is_another_site_s_number_is_ambiguous() -> None:
    lab = Deployment(Path("lab"), "127.0.0.1", 8443, 2, names=("1", "site-0"))
    with pytest.raises(UsageError, match="site-NUMBER"):
        lab.number("1")
    assert lab.number("site-0") == 0


def test_a_revoked_key_is_unregistered_kept_and_never_registered_again(made: Deployment, superlink: FakeLink) -> None:
    link.register(made)
    old = _pem(made, 1)
    rotation.revoke(made, 1, _quiet)
    assert old not in superlink.accepted()
    assert len(superlink.accepted()) == 2
    assert site_keys.revoked_keys(made.server / "revoked") == {old}
    assert sorted(link.bound_nodes(made).values()) == [0, 2]
    assert link.site_states(made)[1] == "revoked"
    link.register(made)
    rotation.revoke(made, 1, _quiet)
    assert len(superlink.nodes) == 3
    assert len(list((made.server / "revoked").glob("*.pub"))) == 1


def test_a_revocation_without_a_link_is_completed_by_the_next_up(
    made: Deployment, superlink: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.register(made)
    old, said = _pem(made, 1), list[str]()
    with monkeypatch.context() as patch:

        def away(_: Deployment) -> Any:
            raise link.LinkError("the SuperLink does not answer")

        patch.setattr(link, "connected", away)
        rotation.revoke(made, 1, said.append)
        assert ("site-1", "revoked") in control.status(made)
    assert any("deploy up" in line for line in said)
    assert sorted(link.bound_nodes(made).values()) == [0, 2]  # a run ignores it already
    link.register(made)
    assert old not in superlink.accepted()


@pytest.mark.parametrize("revoked", [False, True])
def test_a_run_ignores_the_old_key_after_a_rotation_of_which_the_link_has_not_been_told(
    made: Deployment, superlink: FakeLink, monkeypatch: pytest.MonkeyPatch, revoked: bool
) -> None:
    link.register(made)
    (old,) = (node for node, site in link.bound_nodes(made).items() if site == 1)
    with monkeypatch.context() as patch:

        def away(_: Deployment) -> Any:
            raise link.LinkError("the SuperLink does not answer")

        patch.setattr(link, "connected", away)
        if revoked:
            rotation.revoke(made, 1, _quiet)
        rotation.rotate(made, 1, _quiet, reinstate=revoked)
    assert sorted(link.bound_nodes(made).values()) == [0, 2]  # an answer of the old key may still be waiting
    link.register(made)
    assert sorted(link.bound_nodes(made).values()) == [0, 1, 2]
    assert old not in link.bound_nodes(made)


def test_a_key_file_put_back_by_hand_does_not_reinstate_a_site(made: Deployment, superlink: FakeLink) -> None:
    file = site_keys.current_file(made, 1)
    old = file.read_bytes()
    rotation.revoke(made, 1, _quiet)
    file.write_bytes(old)  # a backup was restored
    link.register(made)
    assert len(superlink.accepted()) == 2
    assert link.site_states(made)[1] == "revoked"
    rotation.rotate(made, 1, _quiet, reinstate=True)
    file.write_bytes(old)  # and once more, now that the site is not revoked
    with pytest.raises(StorageError, match=r"site-1\.pub.*revoked"):
        link.register(made)


def test_a_site_gets_a_new_key_with_its_number_and_its_log(tmp_path: Path, superlink: FakeLink) -> None:
    made = init({**TINY, "rounds": 1}, tmp_path / "lab", 3)
    app.conducted(grid_of(made), made, _quiet)
    link.register(made)
    old, lines = _pem(made, 1), len(audited(made.folder)[made.site(1), 1].entries)
    (before,) = (node for node, site in link.bound_nodes(made).items() if site == 1)
    rotation.rotate(made, 1, _quiet)
    new = _pem(made, 1)
    assert new != old
    assert _held(made, 1) == new == keys.public_pem((made.site(1) / "node.pub").read_bytes())
    assert (made.site(1) / "node.key").stat().st_mode & 0o777 == 0o600
    assert set(superlink.accepted()) == {_pem(made, k) for k in range(3)}
    assert superlink.most == 3  # the old and the new key were never accepted at the same time
    (after,) = (node for node, site in link.bound_nodes(made).items() if site == 1)
    assert after != before
    found = audited(made.folder)[made.site(1), 1]
    assert found.fault is None
    assert (len(found.entries), found.entries[-1]["event"]) == (lines + 1, "rotated")
    assert found.entries[-1]["key"] == keys.fingerprint(new)


def test_a_revoked_site_is_only_reinstated_on_purpose_and_with_another_key(
    made: Deployment, superlink: FakeLink, tmp_path: Path
) -> None:
    file = tmp_path / "own.pub"
    file.write_bytes(site_keys.current_file(made, 1).read_bytes())
    rotation.revoke(made, 1, _quiet)
    with pytest.raises(UsageError, match="--reinstate"):
        rotation.rotate(made, 1, _quiet)
    with pytest.raises(UsageError, match="revoked"):
        rotation.rotate(made, 1, _quiet, file, reinstate=True)  # the old key
    file.write_bytes(site_keys.current_file(made, 0).read_bytes())
    with pytest.raises(UsageError, match="site 0"):
        rotation.rotate(made, 1, _quiet, file, reinstate=True)
    file.write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="OpenSSH"):
        rotation.rotate(made, 1, _quiet, file, reinstate=True)
    assert site_keys.revoked_sites(made) == [1]
    own = keys.node_key().public
    file.write_bytes(own)
    said = list[str]()
    rotation.rotate(made, 1, said.append, file, reinstate=True)
    assert site_keys.revoked_sites(made) == []
    assert keys.public_pem(own) in superlink.accepted()
    assert any("node.key" in line for line in said)
    rotation.rotate(made, 1, said.append, file)  # again: nothing changes
    assert len(list((made.server / "revoked").glob("*.pub"))) == 1


def test_a_site_whose_folder_was_handed_over_creates_its_own_key(made: Deployment, superlink: FakeLink) -> None:
    (made.site(1) / "node.key").unlink()
    before = _pem(made, 1)
    with pytest.raises(UsageError, match="--public-key"):
        rotation.rotate(made, 1, _quiet)
    assert _pem(made, 1) == before


def test_the_commands_name_what_is_wrong(made: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    assert _code("revoke", str(made.folder), "site-7") == 2
    assert "site-7" in capsys.readouterr().err
    assert _code("rotate", str(made.folder), "1", "--public-key", "missing.pub") == 2
    assert "missing.pub" in capsys.readouterr().err
    assert _code("revoke", str(made.folder), "1") == 0
    assert "deploy up" in capsys.readouterr().out
    assert _code("rotate", str(made.folder), "1") == 2
    assert "--reinstate" in capsys.readouterr().err
    assert _code("rotate", str(made.folder), "1", "--reinstate") == 0
    assert _code("rotate", str(made.folder), "server", "--reinstate") == 2


# --- kills ------------------------------------------------------------------------------------------------------------


def _killed_after(count: int, patch: pytest.MonkeyPatch, superlink: FakeLink) -> None:
    """Let so many changes happen, of files or at the SuperLink, and die before the next."""
    left = [count]

    def step() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    def stepping(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            step()
            return function(*args)

        return call

    for name in ("write_atomically", "_rename", "remove_file"):
        patch.setattr(site_keys, name, stepping(getattr(site_keys, name)))
    patch.setattr(link, "write_atomically", stepping(link.write_atomically))
    patch.setattr(superlink, "before", step)


def _everywhere(made: Deployment) -> set[bytes]:
    files = [*(made.server / "sites").iterdir(), *(made.server / "revoked").glob("*.pub")]
    return {keys.public_pem(file.read_bytes()) for file in files if not file.name.startswith(".")}


@pytest.mark.parametrize("again", ["same", "up"])
@pytest.mark.parametrize("what", ["revoke", "rotate", "reinstate"])
def test_a_kill_between_any_two_steps_is_completed_by_the_next_call(
    what: str, again: str, made: Deployment, superlink: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, Callable[[], None]] = {
        "revoke": lambda: rotation.revoke(made, 1, _quiet),
        "rotate": lambda: rotation.rotate(made, 1, _quiet),
        "reinstate": lambda: rotation.rotate(made, 1, _quiet, reinstate=True),
    }
    link.register(made)
    for steps in range(20):
        if what == "reinstate":
            rotation.revoke(made, 1, _quiet)
        elif site_keys.is_revoked(made, 1):
            rotation.rotate(made, 1, _quiet, reinstate=True)
        before, held, private = _everywhere(made), _pem(made, 1) if what != "reinstate" else b"", _held(made, 1)
        superlink.most = len(superlink.accepted())
        killed = False
        with monkeypatch.context() as patch:
            _killed_after(steps, patch, superlink)
            try:
                calls[what]()
            except Killed:
                killed = True
        assert before <= _everywhere(made)  # every public key is still somewhere
        begun = site_keys._next(made, 1).exists() or _held(made, 1) != private
        if again == "up":
            link.register(made)
        if again == "same" or not begun:
            with monkeypatch.context() as patch:  # "rotate" without --reinstate: it was not revoked by a kill
                calls[what]()
        link.register(made)
        assert superlink.most <= 3
        assert before <= _everywhere(made)
        assert site_keys.is_revoked(made, 1) == (what == "revoke")
        assert set(superlink.accepted()) == set(site_keys.valid_keys(made))
        assert not held or held not in superlink.accepted()
        if what != "revoke":
            assert _held(made, 1) == _pem(made, 1) == keys.public_pem((made.site(1) / "node.pub").read_bytes())
        assert not list(made.site(1).glob("*.next"))
        assert not list((made.server / "sites").glob("*.next"))
        if not killed:
            assert steps >= 4
            return
    raise AssertionError


def test_two_commands_do_not_change_keys_at_once(made: Deployment, superlink: FakeLink) -> None:
    from fedalloy.base.files import locked

    with locked(link.lock_file(made)), pytest.raises(UsageError, match="process"):
        rotation.revoke(made, 1, _quiet)
    assert not site_keys.is_revoked(made, 1)


# --- the door ---------------------------------------------------------------------------------------------------------


def test_the_door_refuses_a_revoked_key_from_that_moment_on(made: Deployment) -> None:
    status: list[int] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        status.extend([message["status"]] if "status" in message else [])

    door = guarded(inner, keys_in(made.server / "revoked"))

    def asked(site: int, peer: str = "10.1.2.3") -> int:
        header = base64.b64encode(keys.public_of((made.site(site) / "node.key").read_bytes()))
        scope = {"type": "http", "path": "/v1/fleet/pull-messages", "client": (peer, 4711)}
        asyncio.run(door({**scope, "headers": [(b"flwr-public-key", header)]}, None, send))
        return status.pop()

    assert [asked(0), asked(1)] == [200, 200]
    site_keys.revoke_key(made, 1)
    assert [asked(0), asked(1), asked(1, "127.0.0.1")] == [200, 401, 401]
    site_keys.revoke_key(made, 0)
    assert [asked(0), asked(1), asked(2)] == [401, 401, 200]


def test_flower_s_requests_carry_the_key_that_the_door_reads() -> None:
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    from fedalloy.deploy.door import KEY

    assert KEY.decode() == FLEET_HTTP_PUBLIC_KEY_HEADER


# --- runs -------------------------------------------------------------------------------------------------------------


def _revoking(made: Deployment, site: int, after: int) -> Callable[[int, Message], Message]:
    """A fault: a site is revoked while the answers travel."""
    left = [after]

    def fault(client: int, answer: Message) -> Message:
        left[0] -= 1
        if left[0] == 0:
            site_keys.revoke_key(made, site)
        return answer

    return fault


def test_a_run_goes_on_without_a_site_that_is_revoked_in_it(made: Deployment) -> None:
    said = list[str]()
    grid = grid_of(made, _revoking(made, 1, 10))  # after three introductions and the first round
    app.conducted(grid, made, said.append)
    first, second = read(made.run).rounds
    assert "quarantined" not in first
    assert [(bad["client"], "revoked" in bad["reason"]) for bad in second["quarantined"]] == [(1, True)]
    assert len([line for line in said if "site-1" in line or "client 1" in line]) <= 2
    late = [m for m in grid.sent if m.metadata.dst_node_id == 1007][-1]
    assert late.metadata.group_id != "2" or late.metadata.message_type == "train.act"


def test_an_answer_on_its_way_is_ignored(made: Deployment) -> None:
    app.conducted(grid_of(made, _revoking(made, 0, 4)), made, _quiet)  # while the first round's answers arrive
    for record in read(made.run).rounds:
        assert [bad["client"] for bad in record["quarantined"]] == [0]


@pytest.mark.parametrize("method", ["fedavg", "fedgen", "knfu", "fedmd", "kdia", "feddf"])
def test_a_new_run_begins_without_a_revoked_site(method: str, tmp_path: Path) -> None:
    import fedalloy.methods  # noqa: F401  # registers them
    from fedalloy.federation.core import methods

    card = methods[method].card
    values: dict[str, Any] = {**TINY, "method": {"name": method, **card.quick}}
    if card.public:
        values["public"] = {"data": "own", "samples": 30, "labelled": True}
    made = init(values, tmp_path / "lab", 3)
    site_keys.revoke_key(made, 1)
    grid = grid_of(made)
    app.conducted(grid, made, _quiet)
    assert not any(message.metadata.dst_node_id == 1007 for message in grid.sent)
    rounds = read(made.run).rounds
    assert len(rounds) == 2
    assert all({bad["client"] for bad in record["quarantined"]} == {1} for record in rounds)
    assert described(made.run)["clients"]["train_sizes"][1] == 1


def test_a_site_that_was_reinstated_later_is_not_part_of_a_run_that_began_without_it(made: Deployment) -> None:
    site_keys.revoke_key(made, 1)
    with pytest.raises(Killed):
        app.conducted(grid_of(made, Mortal(6)), made, _quiet)
    pair = keys.node_key()
    site_keys.replace_key(made, 1, pair.public, pair.private)
    app.conducted(grid_of(made), made, _quiet)
    (bad,) = read(made.run).rounds[-1]["quarantined"]
    assert bad["client"] == 1
    assert "new run" in bad["reason"]


def test_a_run_takes_a_site_back_under_its_new_node(made: Deployment) -> None:
    grid = grid_of(made)

    def fault(client: int, answer: Message) -> Message:
        if client == 2 and len(grid.received) == 5:  # site 1 is rotated after the first round
            grid.rename(1)
            write_json(made.state / "nodes.json", {str(site): str(node) for node, site in grid.nodes.items()})
        return answer

    grid.fault = fault
    app.conducted(grid, made, _quiet)
    assert any(message.metadata.dst_node_id == 51007 for message in grid.sent)
    assert all("quarantined" not in record for record in read(made.run).rounds)


def test_a_run_is_refused_before_it_starts_if_revoked_sites_make_a_quorum_impossible(
    made: Deployment, superlink: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "submit", lambda _: "7")
    link.register(made)
    site_keys.revoke_key(made, 1)
    said = list[str]()
    assert control.submitted(made, said.append) == "7"  # two of three are left, and two are needed
    assert any("site-1" in line for line in said)
    (made.state / "current.json").unlink()
    site_keys.revoke_key(made, 2)
    with pytest.raises(QuorumError, match=r"site-1, site-2 of 3.*quorum\.fraction"):
        control.submitted(made, said.append)


def test_up_does_not_start_a_revoked_site(
    made: Deployment, superlink: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, said = list[str](), list[str]()
    monkeypatch.setattr(control, "_start", lambda _, name: started.append(name))
    monkeypatch.setattr(control, "_await_site", lambda *_: None)
    monkeypatch.setattr(processes, "answers", lambda _: True)
    site_keys.revoke_key(made, 1)
    control.up(made, 3, said.append)
    assert started == ["superlink", "superexec", "site-0", "site-2"]
    assert any(line.split() == ["site-1", "revoked"] for line in said)


# --- the server's certificate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [None, "crt", "key", "placed"])
def test_the_server_s_certificate_is_renewed_even_after_a_kill(
    kill: str | None, made: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (made.server / "server.crt").read_bytes()
    with monkeypatch.context() as patch:
        if kill in ("crt", "key"):
            write = rotation.write_atomically

            def dying(path: Path, data: bytes, mode: int) -> None:
                write(path, data, mode)
                if path.name == f"server.{kill}.next":
                    raise Killed

            patch.setattr(rotation, "write_atomically", dying)
        elif kill:

            def placed(*_: Any) -> bool:
                raise Killed

            patch.setattr(keys, "certified", placed)
        with nullcontext() if kill is None else pytest.raises(Killed):
            rotation.renew_server(made, _quiet)
    if kill:
        rotation.renew_server(made, _quiet)
    new = (made.server / "server.crt").read_bytes()
    assert new != old
    assert old in [file.read_bytes() for file in (made.server / "revoked").glob("server-*.crt")]
    assert not list(made.server.glob("*.next"))
    assert os.stat(made.server / "server.key").st_mode & 0o777 == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.server / "server.crt", made.server / "server.key")


def test_a_certificate_cannot_be_renewed_without_the_authority(made: Deployment) -> None:
    (made.server / "ca.key").unlink()
    with pytest.raises(UsageError, match=r"ca\.key"):
        rotation.renew_server(made, _quiet)
