"""Who a site is and how much data it has: bound to its registered key, fixed when the run begins, within limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))  # for sites_grid, which is no test

from fake_link import FakeLink
from flwr.app import Message
from sites_grid import Killed, Mortal, changed, grid_of

from fedalloy.config.experiment import experiment
from fedalloy.deploy import app, control, keys, link
from fedalloy.deploy.folder import Deployment, read_deployment
from fedalloy.deploy.init import init
from fedalloy.deploy.settings import Amount, for_server
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
    "quorum": {"fraction": 0.5, "deadline": 20.0},
}
COUNTED = {**TINY, "method": {"name": "fedgen", "generator_steps": 1}}
DISCO = {**TINY, "aggregation": {"weights": "disco"}}
Change = Callable[[dict[str, Any], Any], Any]


def _saying(site: int, change: Change, kind: str = "query.introduce") -> Callable[[int, Message], Message]:
    """A fault: what one site answers to messages of a kind is changed."""

    def fault(client: int, answer: Message) -> Message:
        return changed(answer, change) if client == site and answer.metadata.message_type == kind else answer

    return fault


def _introducing(site: int, **about: Any) -> Callable[[int, Message], Message]:
    return _saying(site, lambda header, body: ({**header, **about}, body))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PATIENCE", 1.0)


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    return init(TINY, tmp_path / "lab", 3)


def _begun(made: Deployment) -> list[str]:
    """Let a run begin with honest sites and be cut off after its first round; returns the sentences of a resumption."""
    with pytest.raises(Killed):
        app.conducted(grid_of(made, Mortal(10)), made, lambda _: None)
    assert len(read(made.run).rounds) == 1
    return []


# --- identity ---------------------------------------------------------------------------------------------------------


def test_a_site_cannot_begin_a_run_as_another(made: Deployment) -> None:
    grid, said = grid_of(made, _introducing(2, client=0)), list[str]()
    del grid.nodes[min(grid.nodes)]  # the true site 0 is away
    with pytest.raises(QuorumError):
        app.conducted(grid, made, said.append)
    assert any("client 2" in line and "client 0" in line for line in said)
    assert not (made.run / "run.json").exists()


def test_a_site_cannot_resume_a_run_as_another(made: Deployment) -> None:
    said = _begun(made)
    app.conducted(grid_of(made, _introducing(0, client=2)), made, said.append)  # site 0 is asked first
    (bad,) = read(made.run).rounds[1]["quarantined"]
    assert bad["client"] == 0
    assert "client 0" in bad["reason"]
    assert "client 2" in bad["reason"]


def test_a_node_that_was_never_registered_is_ignored_and_said_once(made: Deployment) -> None:
    grid, said = grid_of(made), list[str]()
    grid.nodes[7] = 1  # asked before all others, and claims to be site 1
    app.conducted(grid, made, said.append)
    assert not any(message.metadata.dst_node_id == 7 for message in grid.sent)
    assert len(set(said)) == 1
    assert "quarantined" not in read(made.run).rounds[0]


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    found = FakeLink()
    monkeypatch.setattr(link, "connected", lambda _: nullcontext(found))
    return found


def test_nodes_are_bound_by_their_keys(made: Deployment, superlink: FakeLink) -> None:
    link.register(made)
    bound = link.bound_nodes(made)
    assert sorted(bound.values()) == [0, 1, 2]
    assert (made.state / "nodes.json").stat().st_mode & 0o777 == 0o600
    (made.state / "nodes.json").unlink()  # what the SuperLink knows is found again, in whatever order it has it
    superlink.nodes = superlink.nodes[::-1]
    link.register(made)
    assert link.bound_nodes(made) == bound


def test_a_key_that_was_replaced_is_no_site_s_any_more(made: Deployment, superlink: FakeLink) -> None:
    link.register(made)
    (old,) = (node for node, site in link.bound_nodes(made).items() if site == 1)
    (made.server / "sites" / "site-1.pub").write_bytes(keys.node_key().public)
    link.register(made)
    assert old not in link.bound_nodes(made)
    assert old not in superlink.accepted().values()
    assert sorted(link.bound_nodes(made).values()) == [0, 1, 2]


def test_two_sites_with_one_key_are_refused(made: Deployment, superlink: FakeLink) -> None:
    folder = made.server / "sites"
    (folder / "site-2.pub").write_bytes((folder / "site-0.pub").read_bytes())
    with pytest.raises(StorageError, match="sites 0 and 2"):
        link.register(made)
    assert not superlink.nodes


def test_a_site_that_stays_away_does_not_keep_a_run_from_being_resumed(
    made: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _begun(made)
    monkeypatch.setattr(link, "site_states", lambda _: {0: "online", 1: "offline", 2: "online"})
    monkeypatch.setattr(link, "submit", lambda _: "7")
    assert control.submitted(made, said.append) == "7"
    assert "site-1 is offline" in said[0]
    monkeypatch.setattr(link, "site_states", lambda _: dict.fromkeys(range(3), "offline"))
    monkeypatch.setattr(link, "run_status", lambda *_: ("finished", ""))
    with pytest.raises(UsageError, match="site-0 is offline"):
        control.submitted(made, said.append)


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["train", "test", "validation"])
@pytest.mark.parametrize("claim", [1_000_001, 10**9, 1 << 40])
def test_a_claim_beyond_the_limit_is_refused_with_both_numbers(made: Deployment, part: str, claim: int) -> None:
    said = list[str]()
    with pytest.raises(QuorumError):
        app.conducted(grid_of(made, _introducing(1, **{part: claim})), made, said.append)
    assert f"{claim:,}" in said[0]
    assert "1,000,000" in said[0]
    assert not (made.run / "run.json").exists()


def test_each_site_may_have_a_limit_of_its_own(made: Deployment) -> None:
    file = made.folder / "deployment.toml"
    file.write_text(file.read_text().replace("most_samples = 1000000", "most_samples = [500, 20, 500]"))
    said = list[str]()
    with pytest.raises(QuorumError):
        app.conducted(grid_of(made), read_deployment(made.folder), said.append)
    assert len(said) == 1
    assert "client 1" in said[0]
    assert "allows 20" in said[0]


@pytest.mark.parametrize("limit", ["0", "-1", "true", '"many"', "[5, 5]", "[5, 5, 0]", "1.5"])
def test_a_limit_that_is_none_is_refused(made: Deployment, limit: str) -> None:
    file = made.folder / "deployment.toml"
    file.write_text(file.read_text().replace("most_samples = 1000000", f"most_samples = {limit}"))
    with pytest.raises(UsageError, match="most_samples"):
        read_deployment(made.folder)


def test_a_deployment_without_a_limit_has_the_usual_one(made: Deployment) -> None:
    file = made.folder / "deployment.toml"
    file.write_text("".join(line for line in file.open() if "most_samples" not in line))
    assert [read_deployment(made.folder).limit(k) for k in range(3)] == [1_000_000] * 3


@pytest.mark.parametrize("part", ["train", "test", "validation"])
def test_sizes_stay_what_they_were_when_the_run_began(made: Deployment, part: str) -> None:
    said = _begun(made)
    before = described(made.run)["clients"], described(made.run)["partition"]
    app.conducted(grid_of(made, _introducing(1, **{part: 990_000})), made, said.append)
    assert (described(made.run)["clients"], described(made.run)["partition"]) == before
    (bad,) = read(made.run).rounds[1]["quarantined"]
    assert bad["client"] == 1
    place = {"train": 0, "test": 1, "validation": 2}[part]
    assert "990,000" in bad["reason"]
    assert f"{[*_sizes(before)][place]:,}" in bad["reason"]
    assert bad["reason"].removeprefix("it ") in "".join(said)


def _sizes(before: Any) -> tuple[int, int, int]:
    clients, partition = before
    return clients["train_sizes"][1], clients["test_sizes"][1], partition["val"][1]


def test_a_size_takes_no_memory_however_large_it_is() -> None:
    exp = experiment(
        {
            "data": {"name": "sites", "classes": 2, "channels": 3, "size": 8, "mean": [0.5], "std": [0.25]},
            "model": {"name": "mlp"},
        }
    )
    built = for_server(exp, {0: Amount(1 << 40, 1 << 40, 1 << 40), 1: Amount(3, 3)})
    assert built.setting.sizes == [1 << 40, 3]
    assert built.card.to_json()["train"] == [1 << 40, 3]
    assert built.card.to_json()["val"] == [1 << 40, 0]


# --- label counts -----------------------------------------------------------------------------------------------------


def _moved(header: dict[str, Any], body: Any) -> Any:
    """The same reply with one sample of the commonest class counted as of another."""
    counts = body["counts"].clone()
    most = int(counts.argmax())
    counts[most] -= 1
    counts[(most + 1) % len(counts)] += 1
    return header, {**body, "counts": counts}


def test_label_counts_are_those_of_the_introduction(tmp_path: Path) -> None:
    made, said = init(COUNTED, tmp_path / "lab", 3), list[str]()
    app.conducted(grid_of(made, _saying(1, _moved, "train.act")), made, said.append)
    clients = described(made.run)["clients"]
    assert [sum(row) for row in clients["class_counts"]] == clients["train_sizes"]
    for record in read(made.run).rounds:
        (bad,) = record["quarantined"]
        assert bad["client"] == 1
        assert bad["reason"].startswith("counts")


def test_label_counts_stay_what_they_were_when_the_run_began(tmp_path: Path) -> None:
    made = init(COUNTED, tmp_path / "lab", 3)
    said = _begun(made)
    before = described(made.run)["clients"]

    def other(header: dict[str, Any], body: Any) -> Any:
        counts = json.loads(header["counts"])
        return {**header, "counts": json.dumps(counts[::-1])}, body

    app.conducted(grid_of(made, _saying(1, other)), made, said.append)
    assert described(made.run)["clients"] == before
    (bad,) = read(made.run).rounds[1]["quarantined"]
    assert bad["client"] == 1
    assert "label counts" in bad["reason"]


def test_label_counts_leave_a_site_only_where_the_method_needs_them(made: Deployment) -> None:
    heads: list[dict[str, Any]] = []
    app.conducted(grid_of(made, _saying(1, lambda header, body: heads.append(header) or (header, body))), made, print)
    assert heads
    assert all("counts" not in header for header in heads)


@pytest.mark.parametrize("counts", [None, "[1]", "[-1, 49]", '{"a": 1}', "[" * 5000, "[1.5, 2]", "7"])
def test_label_counts_that_are_none_are_refused(tmp_path: Path, counts: str | None) -> None:
    made, said = init(COUNTED, tmp_path / "lab", 3), list[str]()

    def other(header: dict[str, Any], body: Any) -> Any:
        kept = {key: value for key, value in header.items() if key != "counts"}
        return kept if counts is None else {**kept, "counts": counts}, body

    with pytest.raises(QuorumError):
        app.conducted(grid_of(made, _saying(1, other)), made, said.append)
    assert "counts" in said[0]


# --- FedDisco's discrepancies -----------------------------------------------------------------------------------------


def test_a_discrepancy_is_told_once_and_no_label_counts(tmp_path: Path) -> None:
    made, told, heads = init(DISCO, tmp_path / "lab", 3), list[float](), list[dict[str, Any]]()

    def noted(header: dict[str, Any], body: Any) -> Any:
        heads.append(header)
        told.extend(value for key, value in body.items() if key == "discrepancy")
        assert "counts" not in body
        return header, body

    def fault(client: int, answer: Message) -> Message:
        return changed(answer, noted) if client == 1 else answer

    app.conducted(grid_of(made, fault), made, print)
    assert len(read(made.run).rounds) == 2
    assert len(told) == 1
    assert told[0] > 0
    assert all("counts" not in header for header in heads)


@pytest.mark.parametrize("claim", [-0.1, 2.4, float("nan"), "none"])  # at most ln 10 = 2.303 with ten classes
def test_a_discrepancy_out_of_range_is_refused(claim: float | str, tmp_path: Path) -> None:
    made = init(DISCO, tmp_path / "lab", 3)

    def other(header: dict[str, Any], body: Any) -> Any:
        return header, {**body, "discrepancy": claim} if "discrepancy" in body else body

    app.conducted(grid_of(made, _saying(1, other, "train.act")), made, lambda _: None)
    for record in read(made.run).rounds:
        (bad,) = record["quarantined"]
        assert (bad["client"], bad["action"]) == (1, "tell")
        assert bad["reason"].startswith("discrepancy")
